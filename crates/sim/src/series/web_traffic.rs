//! The clients of web traffic and their connections, each a pair of flows.

use super::controls::SeriesControls;
use crate::{sender::CongestionControl, settings::TcpSettings};
use scenario::{WebClient, WebRequest, WebTable};
use std::collections::VecDeque;
use units::Span;

/// The part of a flow in a pair.
#[derive(Debug, Clone, Copy)]
pub(super) struct WebHalf {
    /// The index of the pair.
    pub(super) pair: u32,
    /// Whether it is the flow of the requests.
    pub(super) is_request: bool,
}

/// A connection between a client and its server.
#[derive(Debug)]
pub(super) struct WebPair {
    pub(super) client: usize,
    /// The client's number for it.
    pub(super) number: u32,
    /// The index of the flow of the requests; that of the responses follows.
    pub(super) requests: usize,
    /// Payload of the requests so far.
    pub(super) asked: u64,
    /// The requests that have not arrived yet, each with its end in their stream.
    pub(super) on_the_way: VecDeque<(u64, WebRequest)>,
    /// The sizes of responses that the server is working on, and when the last of them is due, ns.
    pub(super) responses: VecDeque<u64>,
    pub(super) last_due: u64,
}

/// The clients of a run, and their connections.
#[derive(Debug)]
pub(crate) struct WebTraffic {
    pub(crate) clients: Vec<WebClient>,
    /// The pair of each connection of each client, by the client's number for it.
    pub(super) connections: Vec<Vec<usize>>,
    /// The wakeup of each client that was scheduled last.
    pub(super) wakeups: Vec<Option<Span>>,
    /// Whether the run still waits for a client.
    pub(super) awaited: Vec<bool>,
    pub(super) pairs: Vec<WebPair>,
    /// The congestion control of the proxies, and of the ends of each client's connections.
    pub(super) legs: Vec<CongestionControl>,
    pub(super) ends: Vec<CongestionControl>,
    pub(super) limits: (u64, TcpSettings),
}

impl WebTraffic {
    /// The traffic of these clients; none if there are none.
    pub(super) fn new(clients: Vec<WebClient>, pages: usize, controls: &SeriesControls, limits: (u64, TcpSettings)) -> Option<Box<Self>> {
        let of = |client: &WebClient| match client.table() {
            WebTable::Page(page) => controls.web[page].clone(),
            WebTable::Exchange(exchange) => controls.web[pages + exchange].clone(),
        };
        let traffic = WebTraffic {
            connections: vec![Vec::new(); clients.len()],
            wakeups: vec![None; clients.len()],
            awaited: clients.iter().map(WebClient::has_end).collect(),
            pairs: Vec::new(),
            legs: controls.legs.clone(),
            ends: clients.iter().map(of).collect(),
            limits,
            clients,
        };
        (!traffic.clients.is_empty()).then(|| Box::new(traffic))
    }

    /// Number of clients that end by themselves.
    pub(super) fn awaited(&self) -> usize {
        self.awaited.iter().filter(|awaited| **awaited).count()
    }
}
