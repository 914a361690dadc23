//! The state of a soak: what the client, the server and the proxy's log say of each connection, put side by side as soon as all
//! have spoken, and then forgotten.

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

/// The proxy's keepalive and user timeout end a flow whose end has died in less; a connection of which its log says nothing for so long
/// after both ends have ended was not split.
const UNSPLIT_AFTER: Duration = Duration::from_secs(150);
/// A connect may fail from so long before a cut begins until so long after its end, given the pauses of TCP.
const BEFORE_CUT: Duration = Duration::from_secs(3);
const AFTER_CUT: Duration = Duration::from_secs(45);
/// By how much the proxy may be quicker to tell of a connection that has failed than its client.
const QUICKER: Duration = Duration::from_secs(1);
/// A flow and a connection of the same addresses are one if they began at about the same time, as far as a busy machine lets us know.
const SAME_TIME: Duration = Duration::from_secs(10);
/// Lines of the log are written together when they have waited for less than this.
const AT_ONCE: Duration = Duration::from_secs(1);
/// How many violations are reported in full.
const TOLD: usize = 20;

/// What the proxy's log says of a flow.
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
    /// Of a line of the log, where it speaks of a flow.
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

    /// As the metrics call it.
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
    /// When the last of the two ends ended, as far as they have.
    over: Instant,
    client: Option<EndpointReport>,
    server: Option<EndpointReport>,
    line: Option<FlowLogLine>,
}

/// What has been seen so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct LedgerTotals {
    /// Connections that clients made, and how they ended for them.
    pub(crate) begun: u64,
    pub(crate) complete: u64,
    pub(crate) killed: u64,
    pub(crate) failed: u64,
    pub(crate) not_connected: u64,
    pub(crate) no_header: u64,
    /// Connections of which the proxy's log never spoke.
    pub(crate) unsplit: u64,
    /// What the log said: flows by kind of ending, and their bytes.
    pub(crate) lines: BTreeMap<&'static str, u64>,
    pub(crate) up: u64,
    pub(crate) down: u64,
    /// Flows whose bytes both ends and the proxy counted alike, and those bytes.
    pub(crate) exact: u64,
    pub(crate) exact_bytes: u64,
    /// Payload of connections that ended well, at the clients.
    pub(crate) bytes: u64,
    pub(crate) violations: u64,
}

impl LedgerEntry {
    /// Both ends have said that all is well.
    fn is_complete(&self) -> bool {
        [&self.client, &self.server].into_iter().all(|report| report.as_ref().is_some_and(|report| report.end == EndpointOutcome::Complete))
    }
}

#[derive(Debug, Default)]
struct LedgerState {
    entries: HashMap<ConnectionId, LedgerEntry>,
    /// Connections of which not everybody spoke in time, lest somebody does later.
    incomplete: HashMap<ConnectionId, LedgerEntry>,
    by_addresses: HashMap<(SocketAddr, SocketAddr), Vec<ConnectionId>>,
    /// Lines of flows that no client knows of yet.
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

    /// A connect that was begun then has failed.
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
        // The proxy may have been quicker to end it than we to begin it. What is older was of one that never connected.
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

    /// The proxy's log speaks of a flow.
    pub(crate) fn line(&self, line: FlowLogLine) {
        let mut state = self.state();
        *state.totals.lines.entry(line.kind()).or_default() += 1;
        state.totals.up += line.up;
        state.totals.down += line.down;
        if is_hostile(line.client) {
            return;
        }
        // Of several with the same addresses the one that began when the flow did: another passed unsplit. Ports come again so soon
        // that two flows may be reported of at once: then what was to be moved tells them apart.
        let began = line.at - line.age;
        // Who came through unsplit may have its ports used again within seconds, by one that never connected: that knows no port to say whose its
        // line is, but one that has reached its server and come back is not it.
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

    /// Gives up waiting for what will not come. At the end, with the proxy empty, nothing will.
    pub(crate) fn tidy(&self, at_the_end: bool) {
        let mut state = self.state();
        // A server that never speaks, and whose reset got lost in a cut, hears of its end only when all is over, or when the same ports are
        // used again.
        let may_be_late = |entry: &LedgerEntry| entry.plan.kind == ConnectionKind::Silent && entry.server.is_none();
        let quiet =
            |entry: &LedgerEntry| entry.client.is_some() && (at_the_end || (entry.over.elapsed() > UNSPLIT_AFTER && !may_be_late(entry)));
        let stale: Vec<ConnectionId> = state.entries.iter().filter(|(_, entry)| quiet(entry)).map(|(id, _)| *id).collect();
        for id in stale {
            if let Some(entry) = state.entries.get(&id).filter(|entry| entry.server.is_none() || entry.plan.kill.is_some()).cloned() {
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
        // Clients that never connected know no port: they can't say which lines are theirs.
        let (unmatched, failures) = (state.unmatched.len() as u64, state.totals.not_connected);
        if unmatched > failures {
            let why = format!("the log knows {unmatched} flows of no client, of whom {failures} did not connect: {:?}", state.unmatched);
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
            return self.violation(format!("{who} tells of connection {id} after all was thought to be over: {entry:?}"));
        };
        note(entry);
        entry.over = Instant::now();
        if entry.client.is_some() && entry.server.is_some() && entry.line.is_some() {
            self.close(id);
        }
    }

    /// Whether a connect of that time may have failed for a cut.
    fn near_a_cut(&self, begun: Instant) -> bool {
        self.cuts.iter().any(|(from, to)| begun + BEFORE_CUT >= *from && to.is_none_or(|to| begun <= to + AFTER_CUT))
    }

    /// All that will be said of a connection has been said.
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

/// Whether what the three say of a connection goes together; how many bytes all have counted alike.
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
    let killed = client.end == EndpointOutcome::Aborted || server.end == EndpointOutcome::Aborted;
    let both = client.end == EndpointOutcome::Complete && server.end == EndpointOutcome::Complete;
    if !killed && !both {
        // Something broke that nobody was reported to break.
        need(
            client.end != EndpointOutcome::Complete && server.end != EndpointOutcome::Complete,
            "one end thinks that all is well, the other does not",
        )?;
        match entry.line.as_ref().map(FlowLogLine::kind) {
            Some("far_not_reached" | "far_timed_out") | None => need(near_a_cut, "it failed though no link was cut")?,
            // The link was cut in the handshake's last step: the server forgot what it had granted when its answer could not leave.
            Some("far_failed") if entry.server.is_none() => need(near_a_cut, "its server never had it though no link was cut")?,
            Some("idle") => need(entry.plan.kind == ConnectionKind::Silent, "it was thought idle")?,
            Some(_) => return Err("it broke though nobody broke it".into()),
        }
    }
    let Some(line) = &entry.line else { return Ok(None) };
    need(server.received <= line.up && line.up <= client.sent, "the bytes up do not fit")?;
    need(client.received <= line.down && line.down <= server.sent, "the bytes down do not fit")?;
    if both {
        need(line.kind() == "finished", "both ends are content, the proxy is not")?;
        need(server.received == line.up && line.up == client.sent, "not all bytes up were counted")?;
        need(client.received == line.down && line.down == server.sent, "not all bytes down were counted")?;
        return Ok(Some(line.up + line.down));
    }
    if killed && line.kind() != "finished" {
        let fits = match line.kind() {
            "near_failed" => client.end == EndpointOutcome::Aborted,
            "far_failed" => server.end == EndpointOutcome::Aborted,
            "far_not_reached" | "far_timed_out" => near_a_cut,
            _ => false,
        };
        need(fits, "the proxy blames the wrong end")?;
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

    /// A connection that both ends are content with, reported to the state.
    fn transfer(ledger: &Ledger, id: ConnectionId) {
        let plan = ConnectionPlan { kind: ConnectionKind::Transfer, id, seed: 1, up: 657, down: 233, rate: 0, early: false, kill: None };
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
    fn who_came_through_unsplit_is_not_who_had_its_ports_after_it_and_never_connected() {
        let ledger = Ledger::default();
        transfer(&ledger, 1);
        ledger.0.lock().unwrap().totals.not_connected += 1;
        ledger.line(line("far end not reached: network unreachable", 0, 0));
        ledger.tidy(true);
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
