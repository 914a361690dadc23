//! Files that a scenario names.

use crate::{
    fraction::Fraction,
    link::{Link, LinkChange, NO_RATE},
    model::Scenario,
    networks::ParallelNetwork,
    trace::DeliveryTrace,
};
use files::Bounded;
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    io::{self, BufRead, Read},
    sync::{Arc, Mutex, PoisonError},
};
use toml_file::Fault;
use units::{Rate, Span};

/// The largest file that a scenario names, in bytes: it holds the longest trace and the longest list
/// of steps.
pub const LARGEST_NAMED_FILE: u64 = 256 << 20;

/// Opens a file by the name that a scenario gives it. At most [`LARGEST_NAMED_FILE`] bytes of it are
/// read.
pub type OpenFile = dyn Fn(&str) -> io::Result<Box<dyn BufRead>> + Send + Sync;

impl Scenario {
    /// The names of the files that its links and networks take their traces and changes from.
    pub fn file_names(&self) -> BTreeSet<&str> {
        let links = self.links.iter().chain(self.networks.iter().map(|network| &network.link));
        let names = links.flat_map(|link| {
            let steps = link.steps.iter().map(|steps| steps.name.as_str());
            let traces = link.trace.iter().flat_map(|trace| [trace.down.name.as_str(), trace.up.name.as_str()]);
            steps.chain(traces)
        });
        names.collect()
    }
}

/// The files that a scenario names. Each is read once, for all of the scenario's cases.
#[derive(Clone)]
pub(crate) struct AttachedFiles {
    open: Arc<OpenFile>,
    traces: Arc<Mutex<BTreeMap<String, Arc<DeliveryTrace>>>>,
}

impl AttachedFiles {
    pub(crate) fn new(open: Arc<OpenFile>) -> Self {
        AttachedFiles { open, traces: Arc::default() }
    }

    /// Reads the files that `scenario` names. A link with a trace gets the mean rate of the
    /// direction of the data, a network that of its payload.
    pub(crate) fn attach_to(&self, scenario: &mut Scenario) -> Result<(), Fault> {
        for (index, link) in scenario.links.iter_mut().enumerate() {
            self.attach_to_link(link, &format!("link[{index}]"))?;
        }
        for (index, network) in scenario.networks.iter_mut().enumerate() {
            self.attach_to_link(&mut network.link, &format!("network[{index}]"))?;
            if let Some(trace) = &network.link.trace {
                network.link.rate = ParallelNetwork::payload_rate(trace.down.trace().mean_rate());
            }
        }
        Ok(())
    }

    /// Reads the files that the link at `path` names.
    fn attach_to_link(&self, link: &mut Link, path: &str) -> Result<(), Fault> {
        if let Some(steps) = &mut link.steps {
            let key = format!("{path}.steps");
            if !link.changes.is_empty() {
                return Err(Fault::new(key, "stands beside changes: leave one of them out".to_owned()));
            }
            (steps.lines, link.changes) = self.steps(&steps.name).map_err(|why| Fault::new(key, why))?;
        }
        let Some(trace) = &mut link.trace else { return Ok(()) };
        for (file, key) in [(&mut trace.down, "down"), (&mut trace.up, "up")] {
            let contents = self.trace(&file.name).map_err(|why| Fault::new(format!("{path}.trace.{key}"), why))?;
            file.set(contents);
        }
        if link.rate != NO_RATE {
            let both = "stands beside trace, which determines the rate: leave one of them out";
            return Err(Fault::new(format!("{path}.rate"), both.to_owned()));
        }
        link.rate = trace.down.trace().mean_rate();
        Ok(())
    }

    /// The changes of a CSV file, and the line of each.
    fn steps(&self, name: &str) -> Result<(Vec<u64>, Vec<LinkChange>), String> {
        let input = (self.open)(name).map_err(|error| format!("cannot open {name:?}: {error}"))?;
        read_steps(Bounded::new(input, LARGEST_STEPS)).map_err(|error| format!("{name}: {error}"))
    }

    fn trace(&self, name: &str) -> Result<Arc<DeliveryTrace>, String> {
        let mut traces = self.traces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(trace) = traces.get(name) {
            return Ok(trace.clone());
        }
        let input = (self.open)(name).map_err(|error| format!("cannot open {name:?}: {error}"))?;
        let trace = Arc::new(DeliveryTrace::read(input).map_err(|error| format!("{name}: {error}"))?);
        traces.insert(name.to_owned(), trace.clone());
        Ok(trace)
    }
}

/// The most changes that a file has; they take some 100 MB.
const MAX_STEPS: usize = 1 << 20;
/// The most bytes of such a file.
const LARGEST_STEPS: u64 = 64 << 20;

/// A line of a file of steps.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    time: Span,
    rate: Option<Rate>,
    delay: Option<Span>,
    loss: Option<Fraction>,
}

fn read_steps(input: impl Read) -> Result<(Vec<u64>, Vec<LinkChange>), String> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).comment(Some(b'#')).from_reader(input);
    let header = reader.headers().map_err(|error| explained(&error))?.clone();
    let (mut lines, mut changes) = (Vec::new(), Vec::new());
    for record in reader.records() {
        let record = record.map_err(|error| explained(&error))?;
        let Step { time, rate, delay, loss } = record.deserialize(Some(&header)).map_err(|error| explained(&error))?;
        if changes.len() == MAX_STEPS {
            return Err(format!("has more than {MAX_STEPS} lines: thin it out, or let a shorter one repeat"));
        }
        lines.push(record.position().map_or(0, csv::Position::line));
        changes.push(LinkChange { at: time, rate, delay, loss });
    }
    if changes.is_empty() {
        return Err("has no line with a time: write time,rate,delay,loss and below it lines such as 15s,20Mbit,40ms,0.1%".into());
    }
    Ok((lines, changes))
}

/// A fault of a CSV file, with its line.
fn explained(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::Deserialize { pos, err } => {
            let line = pos.as_ref().map(|pos| format!("line {}: ", pos.line())).unwrap_or_default();
            format!("{line}{}", err.kind())
        }
        _ => error.to_string(),
    }
}

impl fmt::Debug for AttachedFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AttachedFiles").field(&self.traces).finish()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Fraction, LinkChange, ScenarioFile};
    use std::{
        io::{self, BufRead},
        sync::Arc,
    };
    use units::{Rate, Span};

    const LINK: &str = "name = \"x\"\n[[flow]]\nbytes = \"1MB\"\n[[link]]\ndelay = \"20ms\"\n";

    /// A scenario with one link that has these keys; the files are `good.trace` and the given one.
    fn parse(keys: &str, name: &'static str, contents: &'static str) -> Result<ScenarioFile, String> {
        let open = move |wanted: &str| -> io::Result<Box<dyn BufRead>> {
            match wanted {
                "good.trace" => Ok(Box::new("1\n2\n".as_bytes())),
                _ if wanted == name => Ok(Box::new(contents.as_bytes())),
                _ => Err(io::ErrorKind::NotFound.into()),
            }
        };
        ScenarioFile::parse_with(&format!("{LINK}{keys}\n"), "x.toml", Arc::new(open)).map_err(|error| error.to_string())
    }

    fn wrong(keys: &str, contents: &'static str) -> String {
        parse(keys, "f", contents).unwrap_err()
    }

    const TRACE: &str = "trace = { down = \"f\", up = \"good.trace\" }";
    const STEPS: &str = "rate = \"5Mbit\"\nsteps = \"f\"";

    #[test]
    fn a_link_with_a_trace_has_its_mean_rate() {
        let scenario = parse(TRACE, "f", "1\n1\n4\n").unwrap().variants(&[]).unwrap().remove(0).scenario;
        assert_eq!(scenario.links[0].rate, Rate(9_000_000));
        assert_eq!(scenario.links[0].capacity_between(0.0, 0.008), 7500.0, "the opportunities at 1, 1, 4, 5, 5 ms");
        assert_eq!(scenario.file_names().into_iter().collect::<Vec<_>>(), ["f", "good.trace"]);
    }

    #[test]
    fn files_that_cannot_be_used_are_named_with_key_and_line() {
        let starts = |error: String, with: &str| assert!(error.starts_with(with), "{error}");
        starts(wrong(TRACE, ""), "x.toml:6: link[1].trace.down: f: is empty");
        starts(wrong(TRACE, "3\n2\n"), "x.toml:6: link[1].trace.down: f: line 2: is 2, but the line before is 3");
        starts(wrong(&TRACE.replace("\"f\"", "\"none\""), ""), "x.toml:6: link[1].trace.down: cannot open \"none\": entity not found");
        starts(wrong(&format!("{TRACE}\nrate = \"1Mbit\""), "1\n"), "x.toml:7: link[1].rate: stands beside trace");
        starts(wrong("", ""), "x.toml:4: link[1].rate: is missing: give a rate, or a trace");
        let error = ScenarioFile::parse(&format!("{LINK}{TRACE}\n"), "x.toml").unwrap_err().to_string();
        starts(error, "x.toml:6: link[1].trace.down: cannot open \"f\": this scenario cannot name other files");
    }

    #[test]
    fn steps_are_changes_in_a_file() {
        let file = "# a comment\ntime, rate, delay, loss\n0s, 10Mbit, 30ms, 0.1%\n15s,, 40ms,\n16s, 0bit,,\n16.5s, 20Mbit,, 0\n";
        let keys = format!("{STEPS}\nrepeat = \"30s\"");
        let mut scenario = parse(&keys, "f", file).unwrap().variants(&[]).unwrap().remove(0).scenario;
        assert_eq!(scenario.file_names().into_iter().collect::<Vec<_>>(), ["f"]);
        let link = scenario.links.remove(0);
        let change = |at: f64, rate: Option<u64>, delay: Option<u64>, loss: Option<f64>| LinkChange {
            at: Span::from_secs_f64(at),
            rate: rate.map(|mbit| Rate(mbit * 1_000_000)),
            delay: delay.map(|ms| Span(ms * 1_000_000)),
            loss: loss.map(Fraction),
        };
        let first = [
            change(0.0, Some(10), Some(30), Some(0.001)),
            change(15.0, None, Some(40), None),
            change(16.0, Some(0), None, None),
            change(16.5, Some(20), None, Some(0.0)),
        ];
        assert_eq!(link.changes, first);
        assert_eq!(link.all_changes().nth(9), Some(change(75.0, None, Some(40), None)));
        assert_eq!(link.capacity_between(0.0, 30.0) * 8.0, 16.0 * 10e6 + 13.5 * 20e6);
    }

    #[test]
    fn wrong_steps_are_named_with_their_line() {
        let starts = |error: String, with: &str| assert!(error.starts_with(with), "{error}");
        starts(wrong(STEPS, ""), "x.toml:7: link[1].steps: f: has no line with a time");
        starts(wrong(STEPS, "time,rate\n1s,4M\n"), "x.toml:7: link[1].steps: f: line 2: ");
        starts(wrong(STEPS, "time,speed\n1s,4Mbit\n"), "x.toml:7: link[1].steps: f: line 2: unknown field `speed`");
        starts(wrong(STEPS, "time,loss\n-1s,0.1\n"), "x.toml:7: link[1].steps: f: line 2: ");
        starts(
            wrong(STEPS, "# a comment\n\ntime,loss\n2s,0.1\n1s,0.2\n"),
            "x.toml:7: link[1].steps: f: line 5: time is 1s, but changes come",
        );
        starts(wrong(STEPS, "time,loss\n2s,1.5\n"), "x.toml:7: link[1].steps: f: line 2: loss is 1.5, but a probability");
        starts(wrong(STEPS, "time,rate\n2s,\n"), "x.toml:7: link[1].steps: f: line 2: time is alone");
        starts(wrong(STEPS, "time,rate\n2s,0bit\n"), "x.toml:7: link[1].steps: f: line 2: rate is 0, and nothing would ever");
        let keys = format!("{STEPS}\nrepeat = \"2s\"");
        starts(
            wrong(&keys, "time,rate\n2s,1Mbit\n"),
            "x.toml:7: link[1].steps: f: line 2: time is 2s, but the changes come again after 2s",
        );
        starts(wrong("rate = \"1Mbit\"\nrepeat = \"2s\"", ""), "x.toml:7: link[1].repeat: is there, but there are no changes");
    }
}
