//! The thread that samples the proxy and sends events to browsers.

use crate::{
    history::{History, Point},
    table::{FlowTable, LimiterShares, Row, Selection},
    view::{ROWS, View},
};
use intercept::LinkView;
use monitor::GainVerdict;
use proxy::{Ending, ExperimentView, FlowId, LegAccount, Proxy, Totals};
use serde::Serialize;
use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    iter, process,
    sync::{Weak, mpsc},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use web_server::{EventSender, MOST_STREAMS};

/// Interval of samples and events.
const INTERVAL: Duration = Duration::from_secs(1);
/// The shortest time between answers to browsers that have changed their view, so that a client
/// cannot keep the workers busy.
const RESPITE: Duration = Duration::from_millis(150);
/// A list of flows that is older is not good enough for a new view.
const FRESH: Duration = Duration::from_millis(400);

/// The most rows of an experiment that browsers get: all destinations, then those with the most
/// connections.
const EXPERIMENT_ROWS: usize = 36;

/// What other threads ask of the sampler.
#[derive(Debug)]
pub(crate) enum SamplerCommand {
    /// Send events for this view.
    Show(View, EventSender),
    /// End.
    Stop,
}

/// A browser.
#[derive(Debug)]
struct Viewer {
    view: View,
    events: EventSender,
    /// It has got no event yet.
    is_new: bool,
}

/// Samples a proxy.
#[derive(Debug)]
pub(crate) struct Sampler {
    proxy: Weak<Proxy>,
    name: String,
    /// Names this run of the program: numbers of flows are of this run alone.
    run: String,
    history: History,
    links: Vec<LinkView>,
    experiment: Option<ExperimentView>,
    table: FlowTable,
    viewers: Vec<Viewer>,
    /// When browsers got events last.
    served: Instant,
}

/// The first event of a stream.
#[derive(Serialize)]
struct Hello<'a> {
    run: &'a str,
    name: &'a str,
    version: &'static str,
    rows_of_a_page: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<&'a VecDeque<Point>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    minutes: Option<&'a VecDeque<Point>>,
}

/// The event of every second.
#[derive(Serialize)]
struct Tick<'a> {
    /// The last second.
    point: Option<&'a Point>,
    /// The mean of the last whole minute.
    minute: Option<&'a Point>,
    totals: Option<TotalsView>,
    links: &'a [LinkView],
    networks: Option<&'a BTreeMap<String, proxy::NetworkTotals>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    experiment: Option<Comparison<'a>>,
    limiters: &'a LimiterShares,
    flows: Flows<'a>,
}

/// The experiment.
#[derive(Serialize)]
struct Comparison<'a> {
    #[serde(flatten)]
    view: &'a ExperimentView,
    /// What each row says.
    verdicts: Vec<GainVerdict>,
}

#[derive(Serialize)]
struct TotalsView {
    flows: u64,
    up: u64,
    down: u64,
    ended: BTreeMap<&'static str, u64>,
    accounts: Vec<LegAccount>,
}

#[derive(Serialize)]
struct Flows<'a> {
    all: usize,
    matching: usize,
    page: usize,
    rows: Vec<Row<'a>>,
    /// The open flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    open: Option<Row<'a>>,
    /// Whether the flow that the browser has open has ended.
    open_has_ended: bool,
    /// Why the filter cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

impl<'a> Comparison<'a> {
    fn of(view: &'a ExperimentView) -> Self {
        Comparison { view, verdicts: view.rows.iter().map(GainVerdict::of).collect() }
    }
}

impl TotalsView {
    fn of(totals: &Totals) -> Self {
        let ended = Ending::KINDS.into_iter().zip(totals.ended).filter(|(_, count)| *count > 0).collect();
        TotalsView { flows: totals.flows, up: totals.up, down: totals.down, ended, accounts: totals.accounts() }
    }
}

impl Sampler {
    pub(crate) fn new(proxy: Weak<Proxy>, name: &str) -> Self {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        Sampler {
            proxy,
            name: name.into(),
            run: format!("{started}-{}", process::id()),
            history: History::default(),
            links: Vec::new(),
            experiment: None,
            table: FlowTable::default(),
            viewers: Vec::new(),
            served: Instant::now(),
        }
    }

    /// Runs until a command ends it, or the proxy ends.
    pub(crate) fn run(mut self, inbox: &mpsc::Receiver<SamplerCommand>) {
        let mut next = Instant::now();
        loop {
            let has_new = self.viewers.iter().any(|viewer| viewer.is_new);
            let due = if has_new { next.min(self.served + RESPITE) } else { next };
            match inbox.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(first) => {
                    // All that wait: more browsers may ask than are served one after another.
                    for command in iter::once(first).chain(inbox.try_iter()) {
                        match command {
                            SamplerCommand::Show(view, events) => self.add(view, events),
                            SamplerCommand::Stop => return,
                        }
                    }
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            let now = Instant::now();
            if now < due {
                continue;
            }
            // The reference is kept only for the sample: the proxy ends when its last reference is
            // dropped.
            let Some(proxy) = self.proxy.upgrade() else { return };
            let is_tick = now >= next;
            if is_tick {
                self.links = proxy.links();
                self.history.add(now, proxy.totals(), &self.links);
                // After a delay, such as a suspended host, the missed samples are left out.
                next = if now - next < INTERVAL { next + INTERVAL } else { now + INTERVAL };
            }
            self.serve(&proxy, is_tick);
        }
    }

    /// Adds a browser. If there are too many, those that have gone make room, and then the oldest:
    /// the server ends their streams too, but only with its next connection.
    fn add(&mut self, view: View, events: EventSender) {
        self.viewers.push(Viewer { view, events, is_new: true });
        if self.viewers.len() > MOST_STREAMS {
            self.forget_gone();
        }
        self.viewers.drain(..self.viewers.len().saturating_sub(MOST_STREAMS));
    }

    /// Forgets browsers that have gone, before anything is done for them.
    fn forget_gone(&mut self) {
        self.viewers.retain(|viewer| !viewer.events.is_closed());
    }

    /// Sends events to new browsers, and to all of them on a tick.
    fn serve(&mut self, proxy: &Proxy, is_tick: bool) {
        let now = Instant::now();
        self.served = now;
        self.forget_gone();
        if self.viewers.is_empty() {
            // Frees the memory.
            (self.table, self.experiment) = (FlowTable::default(), None);
            return;
        }
        if is_tick || self.experiment.is_none() {
            self.experiment = proxy.experiment_view();
            if let Some(view) = &mut self.experiment {
                view.rows.truncate(EXPERIMENT_ROWS);
            }
        }
        let is_old = |listed: Instant| now - listed > FRESH;
        if is_tick || self.table.listed_at().is_none_or(is_old) {
            self.table.list(proxy.brief_flows().iter().flatten(), now);
        }
        let selections: Vec<Option<Selection>> =
            self.viewers.iter().map(|viewer| (is_tick || viewer.is_new).then(|| self.table.select(&viewer.view))).collect();
        let in_turn = if is_tick { self.table.in_turn() } else { Vec::new() };
        let shown = selections.iter().flatten().flat_map(|selection| selection.rows.iter().chain(&selection.open).copied());
        let wanted: HashSet<FlowId> = shown.chain(in_turn).collect();
        let wanted: Vec<FlowId> = wanted.into_iter().collect();
        self.table.sample(&proxy.flows_of(&wanted), now);
        let limiters = self.table.limiters(now);
        let mut viewers = std::mem::take(&mut self.viewers);
        let mut selections = selections.iter();
        viewers.retain_mut(|viewer| match selections.next() {
            Some(Some(selection)) => self.send(viewer, selection, &limiters),
            _ => true,
        });
        self.viewers = viewers;
    }

    /// Sends a browser its events; false: it has gone.
    fn send(&self, viewer: &mut Viewer, selection: &Selection, limiters: &LimiterShares) -> bool {
        if std::mem::take(&mut viewer.is_new) {
            let wanted = viewer.view.wants_history;
            let hello = Hello {
                run: &self.run,
                name: &self.name,
                version: env!("CARGO_PKG_VERSION"),
                rows_of_a_page: ROWS,
                seconds: wanted.then_some(&self.history.seconds),
                minutes: wanted.then_some(&self.history.minutes),
            };
            if !send_json(&mut viewer.events, "hello", &hello) {
                return false;
            }
        }
        let totals = self.history.totals();
        let tick = Tick {
            point: self.history.seconds.back(),
            minute: self.history.minutes.back(),
            totals: totals.map(TotalsView::of),
            links: &self.links,
            networks: totals.map(|totals| &totals.networks),
            experiment: self.experiment.as_ref().map(Comparison::of),
            limiters,
            flows: Flows {
                all: self.table.len(),
                matching: selection.matching,
                page: selection.page,
                rows: selection.rows.iter().filter_map(|id| self.table.row(id)).collect(),
                open: selection.open.and_then(|id| self.table.row(&id)),
                open_has_ended: viewer.view.open.is_some() && selection.open.is_none(),
                error: viewer.view.filter_error.as_deref(),
            },
        };
        send_json(&mut viewer.events, "tick", &tick)
    }
}

/// Sends an event with JSON, which has no line break; false: the browser has gone.
fn send_json(events: &mut EventSender, event: &str, data: &impl Serialize) -> bool {
    match serde_json::to_string(data) {
        Ok(json) => events.send(event, &json),
        Err(why) => {
            tracing::debug!("live page: {why}");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use web_server::event_stream;

    #[test]
    fn the_newest_browsers_are_kept_and_those_that_have_gone_make_room_first() {
        let mut sampler = Sampler::new(Weak::new(), "test");
        let mut add = |page: usize| {
            let (sender, events) = event_stream();
            sampler.add(View { page, ..View::default() }, sender);
            let shown: Vec<usize> = sampler.viewers.iter().map(|viewer| viewer.view.page).collect();
            (events, shown)
        };
        let mut open: Vec<_> = (0..MOST_STREAMS).map(|page| add(page).0).collect();
        drop(open.remove(5));
        let (newest, shown) = add(MOST_STREAMS);
        assert_eq!(shown, (0..=MOST_STREAMS).filter(|page| *page != 5).collect::<Vec<_>>());
        let (last, shown) = add(MOST_STREAMS + 1);
        assert_eq!((shown.len(), shown[0]), (MOST_STREAMS, 1));
        drop((open, newest, last));
        sampler.forget_gone();
        assert!(sampler.viewers.is_empty());
    }
}
