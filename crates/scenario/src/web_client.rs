//! What a browser, or a client of request-response, does next: when it opens a connection, over
//! which one it sends which request, how long each response took. The simulator and the lab share
//! it.

use crate::{
    law::SpanLaw,
    pages::{Exchange, LEAST_REQUEST, WebPage},
    path::FlowPath,
    random::{Purpose, stream},
};
use rand_pcg::Pcg64;
use std::{
    collections::{BTreeMap, VecDeque},
    mem,
};
use units::{Bytes, Span};

/// The table of a scenario that a client belongs to, by its index from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WebTable {
    /// A `[[page]]`.
    Page(usize),
    /// An `[[exchange]]`.
    Exchange(usize),
}

/// A request, and what the server is to do with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WebRequest {
    /// Size of the request.
    pub up: Bytes,
    /// Size of the response.
    pub down: Bytes,
    /// Time from the arrival of the request to the response.
    pub service: Span,
}

/// What a client wants done. It numbers its connections from 0 in the order in which it opens them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebAction {
    /// Open a connection.
    Open(u32),
    /// Send a request over an open connection.
    Send(u32, WebRequest),
    /// Close a connection.
    Close(u32),
}

/// What a client has measured.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WebTimes {
    /// For each load of a page: from its beginning until its last object was read, seconds.
    pub loads_s: Vec<f64>,
    /// For each response: from the time at which the client wanted it until it was read, seconds.
    /// That includes the time in which it waited for a connection.
    pub responses_s: Vec<f64>,
    /// Payload of these responses.
    pub bytes: u64,
    /// Connections that were opened.
    pub connections: u32,
}

/// A request that waits for a connection or for its response.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    since: Span,
    request: WebRequest,
    /// The index of its object in the load.
    object: usize,
}

/// An open or opening connection.
#[derive(Debug, Default)]
struct WebConnection {
    is_open: bool,
    /// Payload of all responses that were asked for.
    asked: u64,
    /// Payload of responses that was read.
    read: u64,
    /// The requests without a response, each with the end of its response in the stream.
    pending: VecDeque<(u64, Wanted)>,
}

/// An object of the current load.
#[derive(Debug, Clone, Copy)]
struct LoadedObject {
    /// Objects that it needs and that are not there yet.
    missing: usize,
    request: WebRequest,
}

/// The plan of a client.
#[derive(Debug, Clone)]
enum Plan {
    Page(WebPage),
    Exchange(Exchange),
}

/// A browser or a client of request-response.
///
/// The caller calls [`wake`](Self::wake) at [`next_wakeup`](Self::next_wakeup),
/// [`connected`](Self::connected) and [`received`](Self::received) when that has happened, and
/// after each of them does what [`take_actions`](Self::take_actions) returns, until
/// [`is_done`](Self::is_done). Times count from the start of the run.
#[derive(Debug)]
pub struct WebClient {
    table: WebTable,
    path: FlowPath,
    plan: Plan,
    random: Pcg64,
    /// Loads or requests that are still to be begun; none: without end.
    left: Option<u32>,
    next_wakeup: Option<Span>,
    connections: BTreeMap<u32, WebConnection>,
    /// Requests that wait for a connection.
    waiting: VecDeque<Wanted>,
    /// The objects of the current load, and how many of them are there.
    objects: Vec<LoadedObject>,
    loaded: usize,
    /// When the current load began.
    began: Span,
    actions: Vec<WebAction>,
    times: WebTimes,
    /// Payload of responses that was read, from all connections.
    read: u64,
}

impl WebClient {
    pub(crate) fn of_page(page: &WebPage, table: usize, index: u64, seed: u64, path: FlowPath, start: Span) -> Self {
        WebClient::new(WebTable::Page(table), Plan::Page(page.clone()), Some(page.loads), index, seed, path, start)
    }

    pub(crate) fn of_exchange(exchange: &Exchange, table: usize, index: u64, seed: u64, path: FlowPath, start: Span) -> Self {
        WebClient::new(WebTable::Exchange(table), Plan::Exchange(exchange.clone()), exchange.requests, index, seed, path, start)
    }

    fn new(table: WebTable, plan: Plan, left: Option<u32>, index: u64, seed: u64, path: FlowPath, start: Span) -> Self {
        WebClient {
            table,
            path,
            plan,
            random: stream(seed, Purpose::Web, index),
            left,
            next_wakeup: Some(start),
            connections: BTreeMap::new(),
            waiting: VecDeque::new(),
            objects: Vec::new(),
            loaded: 0,
            began: Span::ZERO,
            actions: Vec::new(),
            times: WebTimes::default(),
            read: 0,
        }
    }

    /// The table that it belongs to.
    pub fn table(&self) -> WebTable {
        self.table
    }

    /// The way of the responses.
    pub fn path(&self) -> FlowPath {
        self.path
    }

    /// The controller of both ends, if it is not `control.sender`.
    pub fn control(&self) -> Option<&str> {
        match &self.plan {
            Plan::Page(page) => page.control.as_deref(),
            Plan::Exchange(exchange) => exchange.control.as_deref(),
        }
    }

    /// Whether it ends by itself.
    pub fn has_end(&self) -> bool {
        self.left.is_some()
    }

    /// Whether all loads are complete, or all responses are there.
    pub fn is_done(&self) -> bool {
        self.left == Some(0) && self.waiting.is_empty() && self.loaded == self.objects.len() && !self.has_pending()
    }

    fn has_pending(&self) -> bool {
        self.connections.values().any(|connection| !connection.pending.is_empty())
    }

    /// When it wants to be woken, if it does.
    pub fn next_wakeup(&self) -> Option<Span> {
        self.next_wakeup
    }

    /// What it has measured so far.
    pub fn times(&self) -> &WebTimes {
        &self.times
    }

    /// Payload of responses that it has read, also of those that are not complete.
    pub fn read_bytes(&self) -> u64 {
        self.read
    }

    /// The numbers of the connections that are being opened (false), and of the open ones with a
    /// response that is not complete (true).
    pub fn awaited_connections(&self) -> impl Iterator<Item = (u32, bool)> + '_ {
        let awaited = self.connections.iter().filter(|(_, connection)| !connection.is_open || !connection.pending.is_empty());
        awaited.map(|(number, connection)| (*number, connection.is_open))
    }

    /// What is to be done, in this order.
    pub fn take_actions(&mut self) -> Vec<WebAction> {
        mem::take(&mut self.actions)
    }

    /// The time `now` has come. Does nothing before [`next_wakeup`](Self::next_wakeup).
    pub fn wake(&mut self, now: Span) {
        while let Some(due) = self.next_wakeup.filter(|due| *due <= now && self.left != Some(0)) {
            self.next_wakeup = None;
            self.left = self.left.map(|left| left - 1);
            match self.plan.clone() {
                Plan::Page(page) => self.begin_load(&page, due),
                Plan::Exchange(exchange) => self.send_next(&exchange, due),
            }
        }
        self.schedule();
    }

    /// A connection is open.
    pub fn connected(&mut self, connection: u32) {
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.is_open = true;
            self.schedule();
        }
    }

    /// `total` bytes have been read from a connection so far.
    pub fn received(&mut self, connection: u32, total: u64, now: Span) {
        let Some(from) = self.connections.get_mut(&connection) else { return };
        self.read += total.saturating_sub(from.read);
        from.read = from.read.max(total);
        let mut complete = Vec::new();
        while from.pending.front().is_some_and(|(end, _)| *end <= total) {
            let Some((_, wanted)) = from.pending.pop_front() else { break };
            complete.push(wanted);
        }
        for wanted in complete {
            self.times.responses_s.push((now - wanted.since).secs());
            self.times.bytes += wanted.request.down.0;
            match self.plan.clone() {
                Plan::Page(page) => self.object_loaded(&page, wanted.object, now),
                Plan::Exchange(exchange) if exchange.every.is_none() && self.left != Some(0) => {
                    self.next_wakeup = Some(now + self.draw(exchange.think));
                }
                Plan::Exchange(_) => {}
            }
        }
        // Closed loop without think time: the next request follows at once.
        if self.next_wakeup.is_some_and(|due| due <= now) { self.wake(now) } else { self.schedule() }
    }

    fn draw(&mut self, law: SpanLaw) -> Span {
        law.draw(&mut self.random)
    }

    /// Begins a load, which draws all sizes and service times of its objects.
    fn begin_load(&mut self, page: &WebPage, now: Span) {
        self.began = now;
        self.loaded = 0;
        self.objects.clear();
        for object in &page.objects {
            let missing = needed_by(page, &object.needs).map(|index| page.objects[index].count as usize).sum();
            for _ in 0..object.count {
                let (down, service) = (object.size.draw(&mut self.random), self.draw(page.service));
                self.objects.push(LoadedObject { missing, request: WebRequest { up: page.request, down, service } });
            }
        }
        for index in 0..self.objects.len() {
            self.want_if_ready(index, now);
        }
    }

    /// Asks for an object of the current load if all that it needs is there.
    fn want_if_ready(&mut self, index: usize, now: Span) {
        let object = self.objects[index];
        if object.missing == 0 {
            self.waiting.push_back(Wanted { since: now, request: object.request, object: index });
        }
    }

    /// An object is there: asks for those that needed only this one, or ends the load.
    fn object_loaded(&mut self, page: &WebPage, index: usize, now: Span) {
        self.loaded += 1;
        let table = table_of(page, index);
        let mut first = 0;
        for object in &page.objects {
            let members = first..first + object.count as usize;
            first = members.end;
            if needed_by(page, &object.needs).any(|needed| needed == table) {
                for member in members {
                    self.objects[member].missing -= 1;
                    self.want_if_ready(member, now);
                }
            }
        }
        if self.loaded == self.objects.len() {
            self.times.loads_s.push((now - self.began).secs());
            self.actions.extend(mem::take(&mut self.connections).into_keys().map(WebAction::Close));
            self.next_wakeup = (self.left != Some(0)).then(|| now + self.draw(page.think));
        }
    }

    /// Sends the next request of an exchange, and in an open loop plans the one after it.
    fn send_next(&mut self, exchange: &Exchange, now: Span) {
        let up = exchange.up.draw(&mut self.random).max(LEAST_REQUEST);
        let down = exchange.down.draw(&mut self.random);
        let service = self.draw(exchange.service);
        self.waiting.push_back(Wanted { since: now, request: WebRequest { up, down, service }, object: 0 });
        if let (Some(every), true) = (exchange.every, self.left != Some(0)) {
            self.next_wakeup = Some(now + self.draw(every));
        }
    }

    /// Assigns waiting requests to connections, and opens those that are lacking.
    fn schedule(&mut self) {
        let (most, at_once) = match &self.plan {
            Plan::Page(page) if !page.multiplexed => (page.connections as usize, false),
            Plan::Page(_) | Plan::Exchange(_) => (1, true),
        };
        for (&number, connection) in self.connections.iter_mut().filter(|(_, connection)| connection.is_open) {
            while at_once || connection.pending.is_empty() {
                let Some(wanted) = self.waiting.pop_front() else { return };
                connection.asked += wanted.request.down.0;
                connection.pending.push_back((connection.asked, wanted));
                self.actions.push(WebAction::Send(number, wanted.request));
            }
        }
        let opening = self.connections.values().filter(|connection| !connection.is_open).count();
        for _ in opening..self.waiting.len().min(opening + most - self.connections.len()) {
            let number = self.times.connections;
            self.times.connections += 1;
            self.connections.insert(number, WebConnection::default());
            self.actions.push(WebAction::Open(number));
        }
    }
}

/// The indices of the tables of these names.
fn needed_by<'a>(page: &'a WebPage, needs: &'a [String]) -> impl Iterator<Item = usize> + 'a {
    needs.iter().filter_map(|name| page.objects.iter().position(|object| object.name.as_ref() == Some(name)))
}

/// The index of the table of object `index` of a load.
fn table_of(page: &WebPage, index: usize) -> usize {
    let mut end = 0;
    let is_in = |object: &crate::pages::PageObject| {
        end += object.count as usize;
        index < end
    };
    page.objects.iter().position(is_in).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ScenarioFile;

    fn client(table: &str) -> WebClient {
        let text = format!("name = \"x\"\nduration = \"1min\"\n[[link]]\nrate = \"9Mbit\"\ndelay = \"5ms\"\n{table}");
        ScenarioFile::parse(&text, "x").unwrap().variants(&[]).unwrap().remove(0).scenario.web_clients(1).remove(0)
    }

    fn ms(at: u64) -> Span {
        Span(at * 1_000_000)
    }

    const PAGE: &str = "[[page]]\nloads = 2\nthink = \"10ms\"\nconnections = 2\n\
        [[page.object]]\nname = \"html\"\nsize = \"9kB\"\n[[page.object]]\nname = \"style\"\nsize = \"2kB\"\nneeds = [\"html\"]\n\
        [[page.object]]\nsize = \"5kB\"\ncount = 3\nneeds = [\"html\"]\n[[page.object]]\nsize = \"1kB\"\nneeds = [\"style\"]\n";

    fn sizes(actions: &[WebAction]) -> Vec<(u32, u64)> {
        let send = |action: &WebAction| match action {
            WebAction::Send(connection, request) => Some((*connection, request.down.0)),
            _ => None,
        };
        actions.iter().filter_map(send).collect()
    }

    #[test]
    fn a_browser_asks_for_what_it_knows_of_over_few_connections() {
        let mut browser = client(PAGE);
        browser.wake(ms(0));
        assert_eq!(browser.take_actions(), [WebAction::Open(0)], "one object is known, so that one connection is enough");
        browser.connected(0);
        assert_eq!(sizes(&browser.take_actions()), [(0, 9000)]);
        browser.received(0, 8999, ms(20));
        assert_eq!(browser.take_actions(), []);
        browser.received(0, 9000, ms(30));
        let actions = browser.take_actions();
        // The idle connection is used at once, and another is opened: there can be two.
        assert_eq!((sizes(&actions), actions[1]), (vec![(0, 2000)], WebAction::Open(1)));
        browser.received(0, 11_000, ms(40));
        assert_eq!(sizes(&browser.take_actions()), [(0, 5000)], "what the style needs waits behind the three");
        browser.connected(1);
        assert_eq!(sizes(&browser.take_actions()), [(1, 5000)]);
        browser.received(0, 16_000, ms(50));
        browser.received(1, 5000, ms(50));
        assert_eq!(sizes(&browser.take_actions()), [(0, 5000), (1, 1000)]);
        browser.received(1, 6000, ms(55));
        browser.received(0, 21_000, ms(60));
        assert_eq!(browser.take_actions(), [WebAction::Close(0), WebAction::Close(1)]);
        assert_eq!((browser.times().loads_s.as_slice(), browser.next_wakeup()), (&[0.06][..], Some(ms(70))));
        assert!(!browser.is_done());
        // From the html on, and for the last one from the style on.
        assert_eq!(browser.times().responses_s, [0.03, 0.01, 0.02, 0.02, 0.015, 0.03]);
        browser.wake(ms(70));
        assert_eq!(browser.take_actions(), [WebAction::Open(2)], "a load has connections of its own");
    }

    #[test]
    fn a_multiplexed_browser_sends_every_request_at_once() {
        let mut browser = client(&PAGE.replace("connections = 2", "multiplexed = true").replace("loads = 2", "loads = 1"));
        browser.wake(ms(0));
        browser.connected(0);
        browser.received(0, 9000, ms(30));
        let actions = browser.take_actions();
        assert_eq!(sizes(&actions), [(0, 9000), (0, 2000), (0, 5000), (0, 5000), (0, 5000)]);
        browser.received(0, 11_000, ms(40));
        assert_eq!(sizes(&browser.take_actions()), [(0, 1000)], "what needs the style is asked for behind what is on its way");
        browser.received(0, 26_000, ms(50));
        assert!(!browser.is_done());
        browser.received(0, 27_000, ms(51));
        assert!(browser.is_done());
        assert_eq!((browser.take_actions(), browser.times().loads_s.as_slice()), (vec![WebAction::Close(0)], &[0.051][..]));
    }

    #[test]
    fn a_closed_loop_waits_for_responses_and_an_open_one_does_not() {
        let table = |more: &str| format!("[[exchange]]\nrequests = 3\nup = \"100B\"\ndown = \"1kB\"\nstart = \"5ms\"\n{more}");
        let mut closed = client(&table("think = \"10ms\"\n"));
        assert_eq!(closed.next_wakeup(), Some(ms(5)));
        closed.wake(ms(5));
        closed.connected(0);
        assert_eq!(sizes(&closed.take_actions()), [(0, 1000)]);
        assert_eq!(closed.next_wakeup(), None);
        closed.received(0, 1000, ms(25));
        assert_eq!((closed.next_wakeup(), closed.times().responses_s.as_slice()), (Some(ms(35)), &[0.02][..]));
        let mut open = client(&table("every = \"10ms\"\n"));
        open.wake(ms(5));
        assert_eq!((open.take_actions(), open.next_wakeup()), (vec![WebAction::Open(0)], Some(ms(15))));
        open.wake(ms(15));
        open.connected(0);
        assert_eq!(sizes(&open.take_actions()), [(0, 1000); 2], "what waited for the connection");
        open.wake(ms(25));
        assert_eq!((sizes(&open.take_actions()), open.next_wakeup()), (vec![(0, 1000)], None));
        open.received(0, 3000, ms(45));
        assert!(open.is_done());
        // Each counts from when it was due.
        assert_eq!(open.times().responses_s, [0.04, 0.03, 0.02]);
    }
}
