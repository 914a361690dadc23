//! Accounts for each connection: compares the reports of the client, the server and the proxy's log
//! once all three are there, then forgets the connection.

use crate::{
    addresses::is_hostile,
    plan::{ConnectionId, ConnectionKind, ConnectionPlan, EndpointOutcome, EndpointReport, HEADER},
};
use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// When a connection without a line in the proxy's log counts as unsplit, after both endpoints have
/// ended. The proxy's keepalive and user timeout end a flow with a dead endpoint sooner.
const UNSPLIT_AFTER: Duration = Duration::from_secs(150);
/// A cut explains a failed connect that began this long before its start or after its end, given
/// TCP's retransmission timeouts.
const BEFORE_CUT: Duration = Duration::from_secs(3);
const AFTER_CUT: Duration = Duration::from_secs(45);
/// How much earlier the proxy's log may report a connection than its client.
const QUICKER: Duration = Duration::from_secs(1);
/// A flow and a connection with the same addresses belong together if they began within this time.
/// A busy machine delays both.
const SAME_TIME: Duration = Duration::from_secs(10);
/// The proxy writes log lines together if they waited for less than this.
const AT_ONCE: Duration = Duration::from_secs(1);
/// How many violations are kept in full.
const TOLD: usize = 20;

/// A line of the proxy's log about a flow.
#[derive(Debug, Clone)]
pub(crate) struct FlowLogLine {
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    pub(crate) up: u64,
    pub(crate) down: u64,
    pub(crate) age: Duration,
    pub(crate) ending: String,
    at: Instant,
}

impl FlowLogLine {
    /// Parses a line of the log; `None` if it is not about a flow.
    pub(crate) fn parse(text: &str) -> Option<FlowLogLine> {
        let value = |key: &str| {
            let (_, rest) = text.split_once(&format!(" {key}="))?;
            rest.split_whitespace().next()
        };
        let (_, ending) = text.split_once(" ending=")?;
        let number = |key: &str| value(key).and_then(|value| value.parse().ok()).unwrap_or(0);
        Some(FlowLogLine {
            client: value("client")?.parse().ok()?,
            server: value("server")?.parse().ok()?,
            up: number("up"),
            down: number("down"),
            age: Duration::from_secs_f64(value("seconds").and_then(|value| value.parse().ok()).unwrap_or(0.0)),
            ending: ending.trim().trim_matches('"').into(),
            at: Instant::now(),
        })
    }

    /// The ending, as the metrics name it.
    pub(crate) fn kind(&self) -> &'static str {
        let kinds = [
            ("finished", "finished"),
            ("near leg failed", "near_failed"),
            ("far end not reached: timed out", "far_timed_out"),
            ("far end not reached", "far_not_reached"),
            ("far leg failed", "far_failed"),
            ("idle", "idle"),
            ("no sensible greeting", "no_greeting"),
            ("no descriptor or memory left", "no_room"),
            ("proxy stopped", "stopped"),
        ];
        kinds.iter().find(|(begin, _)| self.ending.starts_with(begin)).map_or("unknown", |(_, kind)| kind)
    }
}

#[derive(Debug, Clone)]
struct LedgerEntry {
    plan: ConnectionPlan,
    addresses: (SocketAddr, SocketAddr),
    begun: Instant,
    /// When the latest report came.
    over: Instant,
    client: Option<EndpointReport>,
    server: Option<EndpointReport>,
    line: Option<FlowLogLine>,
}

/// Totals so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct LedgerTotals {
    /// Connections that clients made, and how these ended for the clients.
    pub(crate) begun: u64,
    pub(crate) complete: u64,
    pub(crate) killed: u64,
    pub(crate) failed: u64,
    pub(crate) not_connected: u64,
    pub(crate) no_header: u64,
    /// Connections without a line in the proxy's log.
    pub(crate) unsplit: u64,
    /// Flows in the proxy's log, by ending, and their bytes.
    pub(crate) lines: BTreeMap<&'static str, u64>,
    pub(crate) up: u64,
    pub(crate) down: u64,
    /// Flows whose bytes both endpoints and the proxy counted alike, and the sum of these bytes.
    pub(crate) exact: u64,
    pub(crate) exact_bytes: u64,
    /// Payload of complete connections, counted by the clients.
    pub(crate) bytes: u64,
    pub(crate) violations: u64,
}

impl LedgerEntry {
    /// Both endpoints have reported success.
    fn is_complete(&self) -> bool {
        [&self.client, &self.server].into_iter().all(|report| report.as_ref().is_some_and(|report| report.end == EndpointOutcome::Complete))
    }
}

#[derive(Debug, Default)]
struct LedgerState {
    entries: HashMap<ConnectionId, LedgerEntry>,
    /// Connections that were closed without all reports, kept for the message if one comes later.
    incomplete: HashMap<ConnectionId, LedgerEntry>,
    by_addresses: HashMap<(SocketAddr, SocketAddr), Vec<ConnectionId>>,
    /// Log lines that match no known connection yet.
    unmatched: Vec<FlowLogLine>,
    cuts: Vec<(Instant, Option<Instant>)>,
    totals: LedgerTotals,
    reported: Vec<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<LedgerState>);

impl Ledger {
    fn state(&self) -> MutexGuard<'_, LedgerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn totals(&self) -> LedgerTotals {
        self.state().totals.clone()
    }

    /// The first violations.
    pub(crate) fn reported(&self) -> Vec<String> {
        self.state().reported.clone()
    }

    pub(crate) fn violation(&self, what: String) {
        self.state().violation(what);
    }

    /// A connect that began at `begun` has failed.
    pub(crate) fn not_connected(&self, begun: Instant, to: SocketAddr, why: &std::io::Error) {
        let mut state = self.state();
        state.totals.not_connected += 1;
        if !state.near_a_cut(begun) {
            let after = begun.elapsed().as_secs_f64();
            state.violation(format!("a client could not connect to {to} though no link was cut: {why} after {after:.1} s"));
        }
    }

    pub(crate) fn no_header(&self) {
        self.state().totals.no_header += 1;
    }

    pub(crate) fn begin_cut(&self) {
        self.state().cuts.push((Instant::now(), None));
    }

    pub(crate) fn end_cut(&self) {
        if let Some(cut) = self.state().cuts.last_mut() {
            cut.1 = Some(Instant::now());
        }
    }

    /// A client has connected.
    pub(crate) fn begin(&self, plan: &ConnectionPlan, client: SocketAddr, server: SocketAddr) {
        let mut state = self.state();
        let now = Instant::now();
        // The proxy's log may be quicker than this call. An older line belongs to a client that
        // never connected.
        let at = state.unmatched.iter().position(|line| (line.client, line.server) == (client, server) && line.at.elapsed() < QUICKER);
        let line = at.map(|at| state.unmatched.swap_remove(at));
        state.totals.begun += 1;
        state.by_addresses.entry((client, server)).or_default().push(plan.id);
        let entry = LedgerEntry { plan: *plan, addresses: (client, server), begun: now, over: now, client: None, server: None, line };
        state.entries.insert(plan.id, entry);
    }

    pub(crate) fn client(&self, id: ConnectionId, report: EndpointReport) {
        let mut state = self.state();
        let totals = &mut state.totals;
        match report.end {
            EndpointOutcome::Complete => {
                totals.complete += 1;
                totals.bytes += report.sent + report.received;
            }
            EndpointOutcome::Aborted => totals.killed += 1,
            _ => totals.failed += 1,
        }
        state.record(id, "its client", |entry| entry.client = Some(report));
    }

    pub(crate) fn server(&self, id: ConnectionId, report: EndpointReport) {
        self.state().record(id, "its server", |entry| entry.server = Some(report));
    }

    /// A flow has ended, as the proxy's log says.
    pub(crate) fn line(&self, line: FlowLogLine) {
        let mut state = self.state();
        *state.totals.lines.entry(line.kind()).or_default() += 1;
        state.totals.up += line.up;
        state.totals.down += line.down;
        if is_hostile(line.client) {
            return;
        }
        // Among connections with the same addresses, take the one that began when the flow did; the
        // others bypassed the proxy. Ports are reused so soon that two flows may be logged
        // together. Then the planned number of bytes tells them apart.
        let began = line.at - line.age;
        // Ports of a connection that bypassed the proxy may be reused within seconds by one that
        // never connected. Such a client cannot tell its port. But a connection that reached its
        // server cannot be the flow that did not.
        let unreached = matches!(line.kind(), "far_not_reached" | "far_timed_out");
        let candidates = state.by_addresses.get(&(line.client, line.server)).cloned().unwrap_or_default();
        let distance = |id: &ConnectionId| {
            let entry = state.entries.get(id).filter(|entry| entry.line.is_none() && !(unreached && entry.is_complete()))?;
            let distance = entry.begun.saturating_duration_since(began) + began.saturating_duration_since(entry.begun);
            let planned = (line.up, line.down) == (entry.plan.up + HEADER as u64, entry.plan.down);
            (distance < SAME_TIME).then_some((distance > AT_ONCE || !planned, distance, *id))
        };
        match candidates.iter().filter_map(distance).min() {
            Some((_, _, id)) => state.record(id, "the log", |entry| entry.line = Some(line)),
            None => state.unmatched.push(line),
        }
    }

    /// Closes connections whose missing reports will not come. At the end, with no flow left in the
    /// proxy, none will.
    pub(crate) fn close_stale(&self, at_the_end: bool) {
        let mut state = self.state();
        // A server without data whose reset was lost in a cut learns of the end only at the end of
        // the soak, or when its ports are reused.
        let may_be_late = |entry: &LedgerEntry| entry.plan.kind == ConnectionKind::Silent && entry.server.is_none();
        let quiet =
            |entry: &LedgerEntry| entry.client.is_some() && (at_the_end || (entry.over.elapsed() > UNSPLIT_AFTER && !may_be_late(entry)));
        let stale: Vec<ConnectionId> = state.entries.iter().filter(|(_, entry)| quiet(entry)).map(|(id, _)| *id).collect();
        for id in stale {
            if let Some(entry) = state.entries.get(&id).filter(|entry| entry.server.is_none() || entry.plan.abort.is_some()).cloned() {
                state.incomplete.insert(id, entry);
            }
            state.close(id);
        }
        if at_the_end {
            let left = state.entries.len();
            if left > 0 {
                state.violation(format!("{left} connections never ended for their clients"));
            }
        }
        // Clients that never connected know no port, so their log lines cannot be matched.
        let (unmatched, failures) = (state.unmatched.len() as u64, state.totals.not_connected);
        if unmatched > failures {
            let why = format!(
                "the log has {unmatched} flows that match no client, but only {failures} clients did not connect: {:?}",
                state.unmatched
            );
            state.violation(why);
        }
    }
}

impl LedgerState {
    fn violation(&mut self, what: String) {
        self.totals.violations += 1;
        if self.reported.len() < TOLD {
            eprintln!("VIOLATION: {what}");
            self.reported.push(what);
        }
    }

    fn record(&mut self, id: ConnectionId, who: &str, note: impl FnOnce(&mut LedgerEntry)) {
        let Some(entry) = self.entries.get_mut(&id) else {
            let entry = self.incomplete.get(&id);
            return self.violation(format!("{who} reports connection {id} after it was closed: {entry:?}"));
        };
        note(entry);
        entry.over = Instant::now();
        if entry.client.is_some() && entry.server.is_some() && entry.line.is_some() {
            self.close(id);
        }
    }

    /// Whether a cut explains that a connect which began at this time failed.
    fn near_a_cut(&self, begun: Instant) -> bool {
        self.cuts.iter().any(|(from, to)| begun + BEFORE_CUT >= *from && to.is_none_or(|to| begun <= to + AFTER_CUT))
    }

    /// Judges and forgets a connection: no further report is expected.
    fn close(&mut self, id: ConnectionId) {
        let Some(entry) = self.entries.remove(&id) else { return };
        if let Some(ids) = self.by_addresses.get_mut(&entry.addresses) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_addresses.remove(&entry.addresses);
            }
        }
        if entry.line.is_none() {
            self.totals.unsplit += 1;
        }
        match judge(&entry, self.near_a_cut(entry.begun)) {
            Ok(Some(bytes)) => {
                self.totals.exact += 1;
                self.totals.exact_bytes += bytes;
            }
            Ok(None) => {}
            Err(why) => self.violation(format!("{why}: {entry:?}")),
        }
    }
}

/// Checks that the three reports agree. Returns the number of bytes that all have counted alike.
fn judge(entry: &LedgerEntry, near_a_cut: bool) -> Result<Option<u64>, String> {
    let need = |ok: bool, why: &str| if ok { Ok(()) } else { Err(why.to_string()) };
    let client = entry.client.as_ref().ok_or("it never ended for its client")?;
    let none = EndpointReport { end: EndpointOutcome::Failed(std::io::ErrorKind::NotConnected), sent: 0, received: 0 };
    let server = entry.server.as_ref().unwrap_or(&none);
    for report in [client, server] {
        if let EndpointOutcome::Violation(why) = &report.end {
            return Err(why.clone());
        }
    }
    let aborted = client.end == EndpointOutcome::Aborted || server.end == EndpointOutcome::Aborted;
    let both = client.end == EndpointOutcome::Complete && server.end == EndpointOutcome::Complete;
    if !aborted && !both {
        // The connection broke although neither endpoint was to abort.
        need(client.end != EndpointOutcome::Complete && server.end != EndpointOutcome::Complete, "it was complete for one endpoint only")?;
        match entry.line.as_ref().map(FlowLogLine::kind) {
            Some("far_not_reached" | "far_timed_out") | None => need(near_a_cut, "it failed though no link was cut")?,
            // The link was cut during the last step of the handshake: the server discarded the
            // connection when it could not answer.
            Some("far_failed") if entry.server.is_none() => need(near_a_cut, "it never reached its server though no link was cut")?,
            Some("idle") => need(entry.plan.kind == ConnectionKind::Silent, "the proxy closed it as idle though it carried data")?,
            Some(_) => return Err("it broke though no endpoint aborted".into()),
        }
    }
    let Some(line) = &entry.line else { return Ok(None) };
    need(server.received <= line.up && line.up <= client.sent, "the byte counts of the upstream direction disagree")?;
    need(client.received <= line.down && line.down <= server.sent, "the byte counts of the downstream direction disagree")?;
    if both {
        need(line.kind() == "finished", "it was complete for both endpoints, not for the proxy")?;
        need(server.received == line.up && line.up == client.sent, "not all bytes up were counted")?;
        need(client.received == line.down && line.down == server.sent, "not all bytes down were counted")?;
        return Ok(Some(line.up + line.down));
    }
    if aborted && line.kind() != "finished" {
        let fits = match line.kind() {
            "near_failed" => client.end == EndpointOutcome::Aborted,
            "far_failed" => server.end == EndpointOutcome::Aborted,
            "far_not_reached" | "far_timed_out" => near_a_cut,
            _ => false,
        };
        need(fits, "the proxy names the wrong leg as failed")?;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: &str = "10.79.1.1:23226";
    const SERVER: &str = "10.79.2.2:9203";

    fn line(ending: &str, up: u64, down: u64) -> FlowLogLine {
        let (client, server) = (CLIENT.parse().unwrap(), SERVER.parse().unwrap());
        FlowLogLine { client, server, up, down, age: Duration::ZERO, ending: ending.into(), at: Instant::now() }
    }

    /// Reports a connection that was complete for both endpoints.
    fn transfer(ledger: &Ledger, id: ConnectionId) {
        let plan = ConnectionPlan { kind: ConnectionKind::Transfer, id, seed: 1, up: 657, down: 233, rate: 0, early: false, abort: None };
        ledger.begin(&plan, CLIENT.parse().unwrap(), SERVER.parse().unwrap());
        let sent = 657 + HEADER as u64;
        ledger.client(id, EndpointReport { end: EndpointOutcome::Complete, sent, received: 233 });
        ledger.server(id, EndpointReport { end: EndpointOutcome::Complete, sent: 233, received: sent });
    }

    #[test]
    fn endings_are_named_as_the_metrics_name_them() {
        for (text, kind) in [
            ("far end not reached: timed out", "far_timed_out"),
            ("far end not reached: network unreachable", "far_not_reached"),
            ("finished", "finished"),
        ] {
            assert_eq!(line(text, 0, 0).kind(), kind);
        }
    }

    #[test]
    fn an_unsplit_connection_is_not_matched_to_a_later_failed_one_with_its_ports() {
        let ledger = Ledger::default();
        transfer(&ledger, 1);
        ledger.0.lock().unwrap().totals.not_connected += 1;
        ledger.line(line("far end not reached: network unreachable", 0, 0));
        ledger.close_stale(true);
        assert_eq!((ledger.totals().violations, ledger.totals().unsplit), (0, 1), "{:?}", ledger.reported());
    }

    #[test]
    fn bytes_that_were_not_counted_are_a_violation() {
        let ledger = Ledger::default();
        transfer(&ledger, 1);
        ledger.line(line("finished", 656 + HEADER as u64, 233));
        assert_eq!(ledger.totals().violations, 1);
    }
}
