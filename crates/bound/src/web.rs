//! The clients of pages and exchanges, which decide as in the simulator and in the lab.

use link::Time;
use outcome::WebSamples;
use scenario::{Scenario, WebAction, WebClient};
use std::{cmp::Reverse, collections::BinaryHeap};
use units::Span;

/// What a client's event means for the bottleneck.
#[derive(Debug, Clone, Copy)]
pub(crate) enum WebEvent {
    /// A connection was opened, the next by number.
    Opened {
        /// The round trip of the leg that the bottleneck lies on.
        round_trip: Span,
    },
    /// A response can reach the bottleneck.
    Response {
        /// The number of its connection.
        connection: usize,
        /// From when on.
        at: Time,
        /// Its size.
        bytes: u64,
    },
}

/// Something that is to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// A client wants to be woken.
    Wake(usize),
    /// A connection is open at its client.
    Connected(usize),
    /// A request has arrived and was served.
    Served(usize, u64),
    /// Payload has arrived at the client.
    Arrived(usize, u64),
}

/// A connection of a client.
#[derive(Debug)]
struct WebConnection {
    client: usize,
    /// The client's number for it.
    number: u32,
    /// Payload that has arrived.
    read: u64,
}

/// All clients.
#[derive(Debug)]
pub(crate) struct WebTraffic {
    clients: Vec<WebClient>,
    starts: Vec<Option<Span>>,
    connections: Vec<WebConnection>,
    /// By client and its number of the connection.
    numbers: Vec<Vec<usize>>,
    /// What is to happen, with a serial number that keeps the order.
    due: BinaryHeap<Reverse<(Time, u64, Due)>>,
    serial: u64,
    /// Connections that were opened and that the bottleneck does not have yet.
    opened: usize,
    /// Responses that the bottleneck does not have yet.
    responses: Vec<WebEvent>,
    /// The round trip to where a client's connection ends, the way of a request over the whole
    /// path, and the round trip of the leg that the bottleneck lies on.
    handshake: Span,
    way: Span,
    round_trip: Span,
}

impl WebTraffic {
    pub(crate) fn new(scenario: &Scenario, seed: u64) -> Self {
        let clients = scenario.web_clients(seed);
        let legs = scenario.legs();
        let whole = scenario.base_rtt(scenario::LegLinks { first: 0, end: scenario.links.len() });
        let mut traffic = WebTraffic {
            starts: clients.iter().map(WebClient::next_wakeup).collect(),
            numbers: vec![Vec::new(); clients.len()],
            clients,
            connections: Vec::new(),
            due: BinaryHeap::new(),
            serial: 0,
            opened: 0,
            responses: Vec::new(),
            handshake: legs.last().map_or(whole, |leg| scenario.base_rtt(*leg)),
            way: Span(scenario.links.iter().map(|link| link.delay.0).sum()),
            round_trip: scenario.base_rtt(scenario.leg_of_link(scenario.bottleneck())),
        };
        (0..traffic.clients.len()).for_each(|client| traffic.act(client, Time::default()));
        traffic
    }

    /// When something happens next; none: nothing does.
    pub(crate) fn next(&self) -> Option<Time> {
        let waits = self.opened > 0 || !self.responses.is_empty();
        if waits { Some(Time::default()) } else { self.due.peek().map(|Reverse((at, ..))| *at) }
    }

    /// Does what happens next; returns what it means for the bottleneck, if anything.
    pub(crate) fn take_next(&mut self) -> Option<WebEvent> {
        if self.opened > 0 {
            self.opened -= 1;
            return Some(WebEvent::Opened { round_trip: self.round_trip });
        }
        if let Some(response) = self.responses.pop() {
            return Some(response);
        }
        let Reverse((now, _, due)) = self.due.pop()?;
        let at = Span(now.0);
        let client = match due {
            Due::Wake(client) => {
                self.clients[client].wake(at);
                client
            }
            Due::Connected(connection) => {
                let WebConnection { client, number, .. } = self.connections[connection];
                self.clients[client].connected(number);
                client
            }
            Due::Served(connection, bytes) => {
                self.responses.push(WebEvent::Response { connection, at: now, bytes });
                return None;
            }
            Due::Arrived(connection, bytes) => {
                let of = &mut self.connections[connection];
                of.read += bytes;
                self.clients[of.client].received(of.number, of.read, at);
                of.client
            }
        };
        self.act(client, now);
        None
    }

    /// Payload reaches the client of a connection at this time.
    pub(crate) fn arrives(&mut self, at: Time, connection: usize, bytes: u64) {
        self.schedule(at, Due::Arrived(connection, bytes));
    }

    fn schedule(&mut self, at: Time, due: Due) {
        self.serial += 1;
        self.due.push(Reverse((at, self.serial, due)));
    }

    /// Does what a client wants done.
    fn act(&mut self, client: usize, now: Time) {
        for action in self.clients[client].take_actions() {
            match action {
                WebAction::Open(number) => {
                    self.numbers[client].push(self.connections.len());
                    self.schedule(now + self.handshake, Due::Connected(self.connections.len()));
                    self.connections.push(WebConnection { client, number, read: 0 });
                    self.opened += 1;
                }
                WebAction::Send(number, request) => {
                    let connection = self.numbers[client][number as usize];
                    self.schedule(now + self.way + request.service, Due::Served(connection, request.down.0));
                }
                WebAction::Close(_) => {}
            }
        }
        if let Some(at) = self.clients[client].next_wakeup() {
            self.schedule(Time(at.0).max(now), Due::Wake(client));
        }
    }

    /// When each client began, seconds.
    pub(crate) fn first_start_s(&self) -> impl Iterator<Item = f64> + '_ {
        self.starts.iter().flatten().map(|start| start.secs())
    }

    /// What the clients have measured.
    pub(crate) fn samples(&self) -> Vec<WebSamples> {
        let of = |client: &WebClient| WebSamples { times: client.times().clone(), ..WebSamples::of(client.table()) };
        self.clients.iter().map(of).collect()
    }
}
