//! `tandem flows` and `tandem top`: what a running proxy's flows do now.

use crate::{CommandError, output};
use clap::Args;
use monitor::{FlowFilter, FlowOrder, RateTracker, WatchedFlow, flows_text, top};
use proxy::{
    FlowView,
    control::{ControlError, ProxyStatus, Remote},
};
use std::{
    io::{IsTerminal as _, Write as _, stdin, stdout},
    thread,
    time::{Duration, Instant},
};
use units::Span;

/// Time between the two samples from which a single list has its rates.
const FIRST_INTERVAL: Duration = Duration::from_millis(500);

/// The shortest interval of lists and samples: collecting all flows keeps the proxy from its work.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

fn interval(text: &str) -> Result<Span, String> {
    let every: Span = text.parse().map_err(|error: units::UnitError| error.to_string())?;
    if every.duration() < SHORTEST_INTERVAL {
        return Err("give at least 100ms: collecting all flows more often keeps the proxy from its work".into());
    }
    Ok(every)
}

/// List the flows of the running proxy or bond, with both legs of each
///
/// Rates are those of the payload that the receiver's host has acknowledged (for a bond: that the
/// proxy has carried) since the sample before: since half a second, or since the list before.
#[derive(Debug, Args)]
pub(crate) struct FlowsCommand {
    /// Repeat the list at this interval, at least 100ms, also while the proxy restarts; every 2s if
    /// TIME is left out
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "2s", value_parser = interval)]
    watch: Option<Span>,
    /// Print JSON: one list per interval
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    choice: FlowChoice,
    /// Name of the proxy, if several run
    #[arg(long, value_name = "NAME", default_value = "default")]
    name: String,
}

/// Watch the flows of the running proxy or bond on the whole terminal
///
/// The keys are at the lower edge; ? explains them. The view goes on while the proxy restarts.
#[derive(Debug, Args)]
pub(crate) struct TopCommand {
    /// Time from sample to sample, at least 100ms
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    every: Span,
    #[command(flatten)]
    choice: FlowChoice,
    /// Name of the proxy, if several run
    #[arg(long, value_name = "NAME", default_value = "default")]
    name: String,
}

/// Which flows are shown, and in which order.
#[derive(Debug, Args)]
struct FlowChoice {
    /// What flows must meet: words such as 192.0.2.0/24, :443, limited-by=far-leg,
    /// phase=backpressure, control=cubic, or a part of an address
    #[arg(long, value_name = "WORDS", default_value = "")]
    filter: String,
    /// Sort by rate, bytes, held, age, retrans, rtt, client or server; or by one direction or leg:
    /// up, down, near-rtt, far-rtt, near-retrans, far-retrans
    #[arg(long, value_name = "QUANTITY", default_value = "rate")]
    sort: FlowOrder,
}

impl FlowChoice {
    fn filter(&self) -> Result<FlowFilter, CommandError> {
        self.filter.parse().map_err(|error: monitor::FilterError| CommandError::Usage(error.to_string()))
    }
}

pub(crate) fn failed(error: ControlError) -> CommandError {
    CommandError::Failed(error.to_string())
}

/// The flows and the counts of a running proxy.
fn sample(remote: &Remote) -> Result<(Vec<FlowView>, ProxyStatus), ControlError> {
    Ok((remote.flows()?, remote.status()?))
}

impl FlowsCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let (remote, filter, mut tracker) = (Remote::named(&self.name), self.choice.filter()?, RateTracker::default());
        tracker.take(remote.flows().map_err(failed)?, Instant::now());
        thread::sleep(FIRST_INTERVAL);
        // On a terminal each list replaces the previous one.
        let clear = if self.watch.is_some() && !self.json && stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
        let mut was_silent = false;
        loop {
            let text = match sample(&remote) {
                Ok((flows, status)) => {
                    was_silent = false;
                    let mut watched = tracker.take(flows, Instant::now());
                    watched.retain(|watched| filter.accepts(&watched.flow));
                    self.choice.sort.sort(&mut watched);
                    self.text(&watched, &status)
                }
                // A proxy that restarts is awaited.
                Err(error) if self.watch.is_some() => {
                    if !was_silent {
                        eprintln!("tandem: {error}; asking again until it answers");
                    }
                    was_silent = true;
                    String::new()
                }
                Err(error) => return Err(failed(error)),
            };
            let written = if text.is_empty() { Ok(()) } else { write!(stdout(), "{clear}{text}").and_then(|()| stdout().flush()) };
            let Some(every) = self.watch.filter(|_| written.is_ok()) else { return Ok(()) };
            thread::sleep(every.duration());
        }
    }

    fn text(&self, flows: &[WatchedFlow], status: &ProxyStatus) -> String {
        if self.json { serde_json::to_string(flows).unwrap_or_default() + "\n" } else { flows_text(flows, status, output::width()) }
    }
}

impl TopCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        if !(stdin().is_terminal() && stdout().is_terminal()) {
            let why = "tandem top needs a terminal for keys and screen; for a list use tandem flows --watch";
            return Err(CommandError::Usage(why.into()));
        }
        let (remote, filter) = (Remote::named(&self.name), self.choice.filter()?);
        let options =
            top::TopOptions { name: self.name, every: self.every, order: self.choice.sort, filter, filter_text: self.choice.filter };
        top::run(options, move || sample(&remote).map_err(|error| error.to_string()))
            .map_err(|why| CommandError::Failed(format!("cannot use the terminal: {why}")))
    }
}
