//! PEPsal beside Tandem's proxy, over the satellite link of Li and Yousefi'zadeh (`papers/li`).
//!
//! PEPsal is the splitter with which the paper compares, "TCP PEP". It runs on the lab's proxy
//! host, with the same hosts, links, files, starts and losses as Tandem's proxy. Its controller is
//! the kernel's Hybla, or td_hybla with the growth of the kernel's if the kernel has none.

use crate::other_program;
use anyhow::{Context as _, Result, ensure};
use lab::{Host, Lab, OtherProxy};
use measurements::{MeasurementRecord, SampleColumn, SampleTable};
use outcome::{Engine as _, Outcome};
use scenario::{Assignment, Scenario, ScenarioFile};
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};
use testbed::load_rules;

/// Links, files and starts.
const SCENARIO: &str = include_str!("../../../papers/li/case.toml");
/// Port at which PEPsal listens.
const PORT: u16 = 5000;
/// Growth as in Linux: per ACK, and 2^rho with rho up to 16.
const AS_IN_LINUX: [&str; 2] = ["control.tunables.hybla.per_ack=1", "control.tunables.hybla.max_doublings=16"];
/// How long PEPsal may take to listen.
const PATIENCE: Duration = Duration::from_secs(5);

/// Compares PEPsal with Tandem's proxy over the satellite link of Li and Yousefi'zadeh: five files
/// of 5 MB over 10 Mbit/s and 800 ms. Without PEPsal only Tandem's proxy is measured
#[derive(Debug, clap::Args)]
pub(crate) struct PepsalComparison {
    /// Rounds; each contestant is measured once in each
    #[arg(long, default_value_t = 5)]
    runs: u64,
    /// Loss probabilities of the satellite link, played side by side
    #[arg(long, value_delimiter = ',', default_value = "0,0.01")]
    loss: Vec<f64>,
    /// The pepsal program
    #[arg(long, default_value = "pepsal")]
    pepsal: PathBuf,
    /// How often a run is repeated if the machine does not keep up
    #[arg(long, default_value_t = 3)]
    tries: usize,
}

/// What splits connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Splitter {
    Tandem,
    Pepsal,
}

/// A splitter with a controller.
#[derive(Debug)]
struct Contestant {
    name: &'static str,
    splitter: Splitter,
    /// The case of the file: a controller.
    case: &'static str,
    sets: &'static [&'static str],
}

/// In the order of their turns.
const CONTESTANTS: [Contestant; 6] = [
    Contestant { name: "PEPsal, Hybla", splitter: Splitter::Pepsal, case: "hybla", sets: &AS_IN_LINUX },
    Contestant { name: "Tandem, the same Hybla", splitter: Splitter::Tandem, case: "hybla", sets: &AS_IN_LINUX },
    Contestant { name: "Tandem, td_hybla", splitter: Splitter::Tandem, case: "hybla", sets: &[] },
    Contestant { name: "PEPsal, BBR", splitter: Splitter::Pepsal, case: "bbr", sets: &[] },
    Contestant { name: "Tandem, BBR", splitter: Splitter::Tandem, case: "bbr", sets: &[] },
    Contestant { name: "Tandem, td_share", splitter: Splitter::Tandem, case: "share", sets: &[] },
];

/// A run.
#[derive(Debug)]
struct PepRun {
    /// Whether the machine kept up.
    valid: bool,
    /// In the order of [`COLUMNS`]: mean time of a file; time from the first start to the last end;
    /// goodput of all files over that time; packets that the queue before the satellite dropped;
    /// segments sent again, and retransmission timeouts, on the leg over the satellite; files that
    /// arrived whole.
    figures: [f64; COLUMNS.len()],
}

/// The columns, and their decimals.
const COLUMNS: [(&str, &str, usize); 7] = [
    ("mean", "s", 2),
    ("all", "s", 2),
    ("goodput", "Mbit/s", 2),
    ("drops", "", 0),
    ("sent again", "", 0),
    ("timeouts", "", 0),
    ("whole files", "", 0),
];

impl PepsalComparison {
    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<()> {
        record.rounds = self.runs;
        let program = testbed::resolve_program(&self.pepsal);
        let version = other_program::version(&program, &["-V"]);
        let is_there = |contestant: &&Contestant| version.is_ok() || contestant.splitter != Splitter::Pepsal;
        let contestants: Vec<&Contestant> = CONTESTANTS.iter().filter(is_there).collect();
        record.notes.push(match version {
            Ok(version) => format!("{version}."),
            Err(why) => format!("PEPsal is left out: {why:#}; install it, or name it by --pepsal."),
        });
        for loss in &self.loss {
            let columns = COLUMNS.map(|(head, unit, digits)| SampleColumn::new(head, unit, digits));
            let mut table = SampleTable::new(&format!("loss-{}", loss * 100.0), "", columns.to_vec());
            for contestant in &contestants {
                table.row(contestant.name);
            }
            record.tables.push(table);
        }
        let mut invalid = 0;
        for seed in 1..=self.runs {
            for contestant in &contestants {
                // Side by side: a controller has one set of tunables in a kernel.
                let program = program.as_path();
                let played: Vec<Result<PepRun>> = thread::scope(|scope| {
                    let plays: Vec<_> =
                        self.loss.iter().map(|&loss| scope.spawn(move || self.play(contestant, program, loss, seed))).collect();
                    plays.into_iter().map(|play| play.join().expect("no run panics")).collect()
                });
                for (table, run) in record.tables.iter_mut().zip(played) {
                    let run = run?;
                    eprintln!("{}, {}, seed {seed}: {run:?}", table.name, contestant.name);
                    invalid += usize::from(!run.valid);
                    let row = table.row(contestant.name);
                    let figures = run.figures.into_iter().filter(|_| run.valid);
                    COLUMNS.iter().zip(figures).for_each(|((head, ..), figure)| row.add(head, seed as usize - 1, figure));
                }
            }
        }
        if invalid > 0 {
            record.notes.push(format!("{invalid} runs are missing: the machine did not keep up."));
        }
        Ok(())
    }

    /// Repeats a run in which the machine did not keep up.
    fn play(&self, contestant: &Contestant, program: &Path, loss: f64, seed: u64) -> Result<PepRun> {
        let mut run = contestant.play(program, loss, seed)?;
        for _ in 1..self.tries {
            run = if run.valid { run } else { contestant.play(program, loss, seed)? };
        }
        Ok(run)
    }
}

impl Contestant {
    fn scenario(&self, loss: f64) -> Result<Scenario> {
        // The kernel's own controllers have no tunables.
        let sets = if kernel::has_congestion_control(self.case) { &[] } else { self.sets };
        let loss = format!("link.2.loss.per_packet={loss}");
        let sets = sets.iter().copied().chain([loss.as_str()]).map(|set| set.parse::<Assignment>().map_err(anyhow::Error::msg));
        let variants =
            ScenarioFile::parse(SCENARIO, "papers/li/case.toml")?.select(&sets.collect::<Result<Vec<_>>>()?, &[self.case.into()])?;
        Ok(variants.into_iter().next().with_context(|| format!("no case {:?}", self.case))?.scenario)
    }

    fn play(&self, program: &Path, loss: f64, seed: u64) -> Result<PepRun> {
        let scenario = self.scenario(loss)?;
        let counters = Arc::new(Mutex::new(HostCounters::default()));
        let control = kernel::resolve(self.case).map_or_else(|| self.case.to_owned(), |ours| format!("td_{}", ours.name()));
        let control = if kernel::has_congestion_control(self.case) { self.case.to_owned() } else { control };
        let (program, shared) = (program.to_owned(), counters.clone());
        let other_proxy = (self.splitter == Splitter::Pepsal).then(|| {
            OtherProxy::new(move |host| RunningPepsal::start(&program, &control, host, shared.clone()).map(|run| Box::new(run) as _))
        });
        let lab = Lab { other_proxy, ..Lab::default() };
        let outcome = lab.run(&scenario, seed, &()).with_context(|| format!("{}, loss {loss}, seed {seed}", self.name))?;
        // The near leg's round trip is 2 ms, the whole path's 804 ms.
        let near = outcome.flows.iter().filter_map(|flow| flow.legs.first()).map(|leg| leg.min_rtt_s).fold(0.0, f64::max);
        ensure!(near < 0.4, "{}: a connection was not split: its sender saw a round trip of {near:.3} s", self.name);
        let counters = *counters.lock().expect("no thread panics while it holds the counters");
        Ok(self.run_of(&outcome, counters))
    }

    fn run_of(&self, outcome: &Outcome, counters: HostCounters) -> PepRun {
        let satellite = || outcome.flows.iter().filter_map(|flow| flow.legs.last());
        let (retransmits, timeouts) = match self.splitter {
            Splitter::Pepsal => (counters.retransmits, counters.timeouts),
            Splitter::Tandem => (satellite().map(|leg| leg.retransmits).sum(), satellite().filter_map(|leg| leg.timeouts).sum()),
        };
        let begin = outcome.flows.iter().map(|flow| flow.start_s).fold(f64::INFINITY, f64::min);
        let end = outcome.flows.iter().filter_map(|flow| flow.end_s).fold(begin, f64::max);
        let asked = outcome.flows.first().and_then(|flow| flow.asked_bytes);
        let whole = outcome.flows.iter().filter(|flow| Some(flow.bytes) == asked && flow.error.is_none()).count();
        let drops = outcome.links.get(1).map_or(0, |link| link.queue_drops);
        let mean_s = outcome.mean_flow_s().unwrap_or(f64::NAN);
        let counts = [drops, retransmits, timeouts, whole as u64].map(|count| count as f64);
        let [drops, retransmits, timeouts, whole] = counts;
        PepRun { valid: outcome.valid, figures: [mean_s, end - begin, outcome.goodput_bps / 1e6, drops, retransmits, timeouts, whole] }
    }
}

/// Counters of PEPsal's host: the kernel does not tell them of another program's sockets.
#[derive(Debug, Default, Clone, Copy)]
struct HostCounters {
    retransmits: u64,
    timeouts: u64,
}

/// PEPsal on a host. It is stopped when this is dropped.
struct RunningPepsal {
    child: Child,
    /// The host's counters when it was stopped.
    counters: Arc<Mutex<HostCounters>>,
}

impl RunningPepsal {
    /// Installs the rules of PEPsal's manual, for connections that the first link brings, and
    /// starts it.
    fn start(program: &Path, control: &str, host: &Host, counters: Arc<Mutex<HostCounters>>) -> io::Result<Self> {
        let rules = format!(
            "table ip pepsal {{ chain prerouting {{ type filter hook prerouting priority mangle;\n\
             meta l4proto 6 socket transparent 1 meta mark set 1 accept\n\
             iifname link1 meta l4proto 6 tproxy to :{PORT} meta mark set 1 accept\n}}\n}}\n"
        );
        load_rules(host, &rules).map_err(io::Error::other)?;
        host.ip(&["rule add fwmark 1 lookup 100".into(), "route add local default dev lo table 100".into()]).map_err(io::Error::other)?;
        let child = host
            .command(&program.to_string_lossy())
            .args(["-p", &PORT.to_string(), "-C", control])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let mut running = RunningPepsal { child, counters };
        let begun = Instant::now();
        while !running.is_listening() {
            if let Some(status) = running.child.try_wait()? {
                return Err(io::Error::other(format!("PEPsal ended at once ({status}); it printed why above")));
            }
            if begun.elapsed() > PATIENCE {
                return Err(io::Error::other(format!("PEPsal does not listen within {} s", PATIENCE.as_secs())));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(running)
    }

    /// A file of the host's counters.
    fn read(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/net/{file}", self.child.id())).unwrap_or_default()
    }

    fn is_listening(&self) -> bool {
        const LISTEN: &str = "0A";
        let port = format!(":{PORT:04X}");
        self.read("tcp6").lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            words.next().is_some_and(|local| local.ends_with(&port)) && words.nth(1) == Some(LISTEN)
        })
    }
}

impl Drop for RunningPepsal {
    fn drop(&mut self) {
        let count = |file, group, name| counter(&self.read(file), group, name).unwrap_or(0);
        let counted =
            HostCounters { retransmits: count("snmp", "Tcp:", "RetransSegs"), timeouts: count("netstat", "TcpExt:", "TCPTimeouts") };
        if let Ok(mut counters) = self.counters.lock() {
            *counters = counted;
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A counter of a file that has pairs of lines: names, then numbers.
fn counter(text: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with(group));
    let (names, numbers) = (lines.next()?, lines.next()?);
    names.split_whitespace().zip(numbers.split_whitespace()).find(|(column, _)| *column == name)?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_names() {
        let text = "Tcp: InSegs RetransSegs\nTcp: 7 8\nTcpExt: TCPTimeouts\nTcpExt: 9\n";
        assert_eq!(counter(text, "Tcp:", "RetransSegs"), Some(8));
        assert_eq!(counter(text, "TcpExt:", "TCPTimeouts"), Some(9));
        assert_eq!(counter(text, "Tcp:", "TCPTimeouts"), None);
    }

    #[test]
    fn every_contestant_has_a_scenario_with_the_papers_links() {
        for contestant in &CONTESTANTS {
            let scenario = contestant.scenario(0.01).unwrap();
            assert_eq!(scenario.splits.len(), 1, "{contestant:?}");
            assert_eq!((scenario.links[1].rate, scenario.links[1].delay), (units::Rate(10_000_000), "400ms".parse().unwrap()));
            assert!(scenario.links[1].loss.forward.is_some(), "{contestant:?}");
        }
    }
}
