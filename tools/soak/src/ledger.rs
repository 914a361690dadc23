//! The books of a soak: what the client, the server and the proxy's log say of each connection, put side by side as soon as all
//! have spoken, and then forgotten.

use crate::{
    hostile::is_hostile,
    plan::{End, HEADER, Kind, Plan, Report, Serial},
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
/// How many violations are told in full.
const TOLD: usize = 20;

/// What the proxy's log says of a flow.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    pub(crate) up: u64,
    pub(crate) down: u64,
    pub(crate) age: Duration,
    pub(crate) ending: String,
    at: Instant,
}

impl Line {
    /// Of a line of the log, where it speaks of a flow.
    pub(crate) fn parse(text: &str) -> Option<Line> {
        let value = |key: &str| {
            let (_, rest) = text.split_once(&format!(" {key}="))?;
            rest.split_whitespace().next()
        };
        let (_, ending) = text.split_once(" ending=")?;
        let number = |key: &str| value(key).and_then(|value| value.parse().ok()).unwrap_or(0);
        Some(Line {
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
struct Entry {
    plan: Plan,
    addresses: (SocketAddr, SocketAddr),
    begun: Instant,
    /// When the last of the two ends ended, as far as they have.
    over: Instant,
    client: Option<Report>,
    server: Option<Report>,
    line: Option<Line>,
}

/// What has been seen so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sums {
    /// Connections that clients made, and how they ended for them.
    pub(crate) begun: u64,
    pub(crate) complete: u64,
    pub(crate) killed: u64,
    pub(crate) failed: u64,
    pub(crate) not_connected: u64,
    pub(crate) headless: u64,
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

impl Entry {
    /// Both ends have said that all is well.
    fn is_complete(&self) -> bool {
        [&self.client, &self.server].into_iter().all(|report| report.as_ref().is_some_and(|report| report.end == End::Complete))
    }
}

#[derive(Debug, Default)]
struct Books {
    entries: HashMap<Serial, Entry>,
    /// Connections of which not everybody spoke in time, lest somebody does later.
    unheard: HashMap<Serial, Entry>,
    by_addresses: HashMap<(SocketAddr, SocketAddr), Vec<Serial>>,
    /// Lines of flows that no client knows of yet.
    orphans: Vec<Line>,
    cuts: Vec<(Instant, Option<Instant>)>,
    sums: Sums,
    told: Vec<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<Books>);

impl Ledger {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn sums(&self) -> Sums {
        self.books().sums.clone()
    }

    /// The first violations.
    pub(crate) fn told(&self) -> Vec<String> {
        self.books().told.clone()
    }

    pub(crate) fn violation(&self, what: String) {
        self.books().violation(what);
    }

    /// A connect that was begun then has failed.
    pub(crate) fn not_connected(&self, begun: Instant, to: SocketAddr, why: &std::io::Error) {
        let mut books = self.books();
        books.sums.not_connected += 1;
        if !books.near_a_cut(begun) {
            let after = begun.elapsed().as_secs_f64();
            books.violation(format!("a client could not connect to {to} though no link was cut: {why} after {after:.1} s"));
        }
    }

    pub(crate) fn headless(&self) {
        self.books().sums.headless += 1;
    }

    pub(crate) fn begin_cut(&self) {
        self.books().cuts.push((Instant::now(), None));
    }

    pub(crate) fn end_cut(&self) {
        if let Some(cut) = self.books().cuts.last_mut() {
            cut.1 = Some(Instant::now());
        }
    }

    /// A client has connected.
    pub(crate) fn begin(&self, plan: &Plan, client: SocketAddr, server: SocketAddr) {
        let mut books = self.books();
        let now = Instant::now();
        // The proxy may have been quicker to end it than we to begin it. What is older was of one that never connected.
        let at = books.orphans.iter().position(|line| (line.client, line.server) == (client, server) && line.at.elapsed() < QUICKER);
        let line = at.map(|at| books.orphans.swap_remove(at));
        books.sums.begun += 1;
        books.by_addresses.entry((client, server)).or_default().push(plan.serial);
        let entry = Entry { plan: *plan, addresses: (client, server), begun: now, over: now, client: None, server: None, line };
        books.entries.insert(plan.serial, entry);
    }

    pub(crate) fn client(&self, serial: Serial, report: Report) {
        let mut books = self.books();
        let sums = &mut books.sums;
        match report.end {
            End::Complete => {
                sums.complete += 1;
                sums.bytes += report.sent + report.received;
            }
            End::Killed => sums.killed += 1,
            _ => sums.failed += 1,
        }
        books.told_of(serial, "its client", |entry| entry.client = Some(report));
    }

    pub(crate) fn server(&self, serial: Serial, report: Report) {
        self.books().told_of(serial, "its server", |entry| entry.server = Some(report));
    }

    /// The proxy's log speaks of a flow.
    pub(crate) fn line(&self, line: Line) {
        let mut books = self.books();
        *books.sums.lines.entry(line.kind()).or_default() += 1;
        books.sums.up += line.up;
        books.sums.down += line.down;
        if is_hostile(line.client) {
            return;
        }
        // Of several with the same addresses the one that began when the flow did: another passed unsplit. Ports come again so soon
        // that two flows may be told of at once: then what was to be moved tells them apart.
        let began = line.at - line.age;
        // Who came through unsplit may have its ports used again within seconds, by one that never connected: that knows no port to say whose its
        // line is, but one that has reached its server and come back is not it.
        let unreached = matches!(line.kind(), "far_not_reached" | "far_timed_out");
        let candidates = books.by_addresses.get(&(line.client, line.server)).cloned().unwrap_or_default();
        let distance = |serial: &Serial| {
            let entry = books.entries.get(serial).filter(|entry| entry.line.is_none() && !(unreached && entry.is_complete()))?;
            let distance = entry.begun.saturating_duration_since(began) + began.saturating_duration_since(entry.begun);
            let planned = (line.up, line.down) == (entry.plan.up + HEADER as u64, entry.plan.down);
            (distance < SAME_TIME).then_some((distance > AT_ONCE || !planned, distance, *serial))
        };
        match candidates.iter().filter_map(distance).min() {
            Some((_, _, serial)) => books.told_of(serial, "the log", |entry| entry.line = Some(line)),
            None => books.orphans.push(line),
        }
    }

    /// Gives up waiting for what will not come. At the end, with the proxy empty, nothing will.
    pub(crate) fn tidy(&self, at_the_end: bool) {
        let mut books = self.books();
        // A server that never speaks, and whose reset got lost in a cut, hears of its end only when all is over, or when the same ports are
        // used again.
        let may_be_late = |entry: &Entry| entry.plan.kind == Kind::Mute && entry.server.is_none();
        let quiet = |entry: &Entry| entry.client.is_some() && (at_the_end || (entry.over.elapsed() > UNSPLIT_AFTER && !may_be_late(entry)));
        let stale: Vec<Serial> = books.entries.iter().filter(|(_, entry)| quiet(entry)).map(|(serial, _)| *serial).collect();
        for serial in stale {
            if let Some(entry) = books.entries.get(&serial).filter(|entry| entry.server.is_none() || entry.plan.kill.is_some()).cloned() {
                books.unheard.insert(serial, entry);
            }
            books.close(serial);
        }
        if at_the_end {
            let left = books.entries.len();
            if left > 0 {
                books.violation(format!("{left} connections never ended for their clients"));
            }
        }
        // Clients that never connected know no port: they can't say which lines are theirs.
        let (orphans, failures) = (books.orphans.len() as u64, books.sums.not_connected);
        if orphans > failures {
            let why = format!("the log knows {orphans} flows of no client, of whom {failures} did not connect: {:?}", books.orphans);
            books.violation(why);
        }
    }
}

impl Books {
    fn violation(&mut self, what: String) {
        self.sums.violations += 1;
        if self.told.len() < TOLD {
            eprintln!("VIOLATION: {what}");
            self.told.push(what);
        }
    }

    fn told_of(&mut self, serial: Serial, who: &str, note: impl FnOnce(&mut Entry)) {
        let Some(entry) = self.entries.get_mut(&serial) else {
            let entry = self.unheard.get(&serial);
            return self.violation(format!("{who} tells of connection {serial} after all was thought to be over: {entry:?}"));
        };
        note(entry);
        entry.over = Instant::now();
        if entry.client.is_some() && entry.server.is_some() && entry.line.is_some() {
            self.close(serial);
        }
    }

    /// Whether a connect of that time may have failed for a cut.
    fn near_a_cut(&self, begun: Instant) -> bool {
        self.cuts.iter().any(|(from, to)| begun + BEFORE_CUT >= *from && to.is_none_or(|to| begun <= to + AFTER_CUT))
    }

    /// All that will be said of a connection has been said.
    fn close(&mut self, serial: Serial) {
        let Some(entry) = self.entries.remove(&serial) else { return };
        if let Some(serials) = self.by_addresses.get_mut(&entry.addresses) {
            serials.retain(|other| *other != serial);
            if serials.is_empty() {
                self.by_addresses.remove(&entry.addresses);
            }
        }
        if entry.line.is_none() {
            self.sums.unsplit += 1;
        }
        match judge(&entry, self.near_a_cut(entry.begun)) {
            Ok(Some(bytes)) => {
                self.sums.exact += 1;
                self.sums.exact_bytes += bytes;
            }
            Ok(None) => {}
            Err(why) => self.violation(format!("{why}: {entry:?}")),
        }
    }
}

/// Whether what the three say of a connection goes together; how many bytes all have counted alike.
fn judge(entry: &Entry, near_a_cut: bool) -> Result<Option<u64>, String> {
    let need = |ok: bool, why: &str| if ok { Ok(()) } else { Err(why.to_string()) };
    let client = entry.client.as_ref().ok_or("it never ended for its client")?;
    let none = Report { end: End::Failed(std::io::ErrorKind::NotConnected), sent: 0, received: 0 };
    let server = entry.server.as_ref().unwrap_or(&none);
    for report in [client, server] {
        if let End::Wrong(why) = &report.end {
            return Err(why.clone());
        }
    }
    let killed = client.end == End::Killed || server.end == End::Killed;
    let both = client.end == End::Complete && server.end == End::Complete;
    if !killed && !both {
        // Something broke that nobody was told to break.
        need(client.end != End::Complete && server.end != End::Complete, "one end thinks that all is well, the other does not")?;
        match entry.line.as_ref().map(Line::kind) {
            Some("far_not_reached" | "far_timed_out") | None => need(near_a_cut, "it failed though no link was cut")?,
            // The link was cut in the handshake's last step: the server forgot what it had granted when its answer could not leave.
            Some("far_failed") if entry.server.is_none() => need(near_a_cut, "its server never had it though no link was cut")?,
            Some("idle") => need(entry.plan.kind == Kind::Mute, "it was thought idle")?,
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
            "near_failed" => client.end == End::Killed,
            "far_failed" => server.end == End::Killed,
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

    fn line(ending: &str, up: u64, down: u64) -> Line {
        let (client, server) = (CLIENT.parse().unwrap(), SERVER.parse().unwrap());
        Line { client, server, up, down, age: Duration::ZERO, ending: ending.into(), at: Instant::now() }
    }

    /// A connection that both ends are content with, told to the books.
    fn transfer(ledger: &Ledger, serial: Serial) {
        let plan = Plan { kind: Kind::Transfer, serial, seed: 1, up: 657, down: 233, rate: 0, early: false, kill: None };
        ledger.begin(&plan, CLIENT.parse().unwrap(), SERVER.parse().unwrap());
        let sent = 657 + HEADER as u64;
        ledger.client(serial, Report { end: End::Complete, sent, received: 233 });
        ledger.server(serial, Report { end: End::Complete, sent: 233, received: sent });
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
        ledger.0.lock().unwrap().sums.not_connected += 1;
        ledger.line(line("far end not reached: network unreachable", 0, 0));
        ledger.tidy(true);
        assert_eq!((ledger.sums().violations, ledger.sums().unsplit), (0, 1), "{:?}", ledger.told());
    }

    #[test]
    fn bytes_that_were_not_counted_are_a_violation() {
        let ledger = Ledger::default();
        transfer(&ledger, 1);
        ledger.line(line("finished", 656 + HEADER as u64, 233));
        assert_eq!(ledger.sums().violations, 1);
    }
}
