//! Web pages and request-response. A TCP connection with requests one way and responses the other
//! is two [`SeriesFlow`]s here, a pair: that of the requests opens it, leg by leg, and its
//! handshake establishes both. No acknowledgement travels with the data of the other flow.

use super::{
    application::SourceApplication,
    simulation::{SeriesFlow, SeriesSimulation},
    web_traffic::{WebHalf, WebPair},
};
use crate::{
    connection::ConnectionEnd,
    event_queue::{EventKey, ScheduledEventKind},
};
use account::{Cause, LegTime, Waits};
use outcome::{WebProgress, WebSamples};
use scenario::{FlowPath, FlowSpec, Opens, WebAction, WebRequest};
use std::collections::VecDeque;
use units::Span;

impl SeriesSimulation<'_> {
    /// The time of a client's wakeup may have come.
    pub(super) fn wake_client(&mut self, client: usize) {
        let now = Span(self.net.now);
        if let Some(web) = &mut self.web {
            web.clients[client].wake(now);
            self.act_for_client(client);
        }
    }

    /// Schedules the first wakeup of every client.
    pub(super) fn schedule_clients(&mut self) {
        for client in 0..self.web.as_ref().map_or(0, |web| web.clients.len()) {
            self.act_for_client(client);
        }
    }

    /// Payload that the proxies hold of web traffic, bytes.
    pub(super) fn held_of_web_traffic(&self) -> u64 {
        let Some(first) = self.web.as_ref().and_then(|web| web.pairs.first()) else { return 0 };
        let begin = self.flows[first.requests].first_connection;
        (begin..self.connections.len()).filter(|at| !self.places[*at].is_last()).map(|at| self.held_bytes(at)).sum()
    }

    /// Adds a sample of each client.
    pub(super) fn sample_clients(&self, t: f64, samples: &mut [WebSamples]) {
        let Some(web) = &self.web else { return };
        for (client, samples) in samples.iter_mut().enumerate() {
            let of = &web.clients[client];
            // The account of a run is that of the direction of the data.
            let awaited = of.awaited_connections().filter(|_| !of.path().is_reverse);
            let waits = Waits::mean(awaited.map(|(number, _)| self.waits_of_pair(&web.pairs[web.connections[client][number as usize]])));
            samples.progress.push(WebProgress { t, read: of.read_bytes(), waits });
        }
    }

    /// What the client of a pair waits for.
    fn waits_of_pair(&self, pair: &WebPair) -> Waits {
        let legs = |flow: usize| -> Vec<LegTime> {
            let SeriesFlow { first_connection, legs, .. } = self.flows[flow];
            let all = &self.connections[first_connection..first_connection + legs];
            all.iter().map(|connection| LegTime::all(connection.sender.waits_for())).collect()
        };
        let responses = pair.requests + 1;
        if !self.connections[self.flows[pair.requests].first_connection].sender.is_established() {
            Waits::all(Cause::Handshake)
        } else if !pair.on_the_way.is_empty() {
            Waits::of(&legs(pair.requests), true)
        } else if !pair.responses.is_empty() {
            Waits::all(Cause::Sender)
        } else {
            Waits::of(&legs(responses), true)
        }
    }

    /// Does what a client wants done.
    fn act_for_client(&mut self, client: usize) {
        let Some(web) = &mut self.web else { return };
        for action in web.clients[client].take_actions() {
            match action {
                WebAction::Open(number) => self.open_pair(client, number),
                WebAction::Send(number, request) => self.send_request(client, number, request),
                // An end that nothing is sent to any more takes no time.
                WebAction::Close(_) => {}
            }
        }
        let Some(web) = &mut self.web else { return };
        let wakeup = web.clients[client].next_wakeup();
        if let Some(at) = wakeup.filter(|_| wakeup != web.wakeups[client]) {
            self.net.events.schedule(EventKey { target: client as u32, kind: ScheduledEventKind::WebClient }, at.0.max(self.net.now));
        }
        web.wakeups[client] = wakeup;
        if web.awaited[client] && web.clients[client].is_done() {
            web.awaited[client] = false;
            self.open_flows -= 1;
        }
    }

    /// Opens a connection of a client.
    fn open_pair(&mut self, client: usize, number: u32) {
        let requests = self.flows.len();
        let Some(web) = &mut self.web else { return };
        let pair = web.pairs.len() as u32;
        let path = web.clients[client].path();
        web.connections[client].push(web.pairs.len());
        web.pairs.push(WebPair {
            client,
            number,
            requests,
            asked: 0,
            on_the_way: VecDeque::new(),
            responses: VecDeque::new(),
            last_due: 0,
        });
        let (legs, ends, limits) = (web.legs.clone(), web.ends[client].clone(), web.limits);
        for is_request in [true, false] {
            let spec = FlowSpec {
                id: u32::MAX,
                group: 0,
                bytes: None,
                start: Span(self.net.now),
                opens: Opens::Sender,
                path: FlowPath { links: path.links, is_reverse: path.is_reverse != is_request },
                access_delay: Span::ZERO,
                window: None,
                send_buffer: None,
                fast_open: false,
                offers: None,
            };
            self.add_flow(&spec, (false, Some(WebHalf { pair, is_request })), &legs, ends.clone(), limits);
            self.applications.push(SourceApplication::of_messages());
        }
        if !self.net.access_delays.is_empty() {
            self.net.access_delays.resize(self.connections.len(), 0);
        }
        let first = self.flows[requests].first_connection;
        self.connections[first].open(&mut self.net);
    }

    fn send_request(&mut self, client: usize, number: u32, request: WebRequest) {
        let Some(web) = &mut self.web else { return };
        let pair = &mut web.pairs[web.connections[client][number as usize]];
        pair.asked += request.up.0;
        pair.on_the_way.push_back((pair.asked, request));
        let flow = pair.requests;
        self.send_message(flow, request.up.0);
    }

    /// The application of a flow writes a message.
    fn send_message(&mut self, flow: usize, bytes: u64) {
        let written = self.applications[flow].append(bytes);
        let connection = self.flows[flow].first_connection;
        let sender = &mut self.connections[connection].sender;
        sender.write(written, false);
        sender.push(&mut self.net);
        self.after_sending(connection);
    }

    /// Data may have arrived in order on a connection: at the end of a pair, requests or responses
    /// may be complete.
    pub(super) fn on_web_data(&mut self, connection: usize) {
        let place = self.places[connection];
        let Some(half) = self.flows[place.flow as usize].web.filter(|_| place.is_last()) else { return };
        let (read, now) = (self.connections[connection].receiver.rcv_nxt, self.net.now);
        let Some(web) = &mut self.web else { return };
        let pair = &mut web.pairs[half.pair as usize];
        if !half.is_request {
            let (client, number) = (pair.client, pair.number);
            web.clients[client].received(number, read, Span(now));
            return self.act_for_client(client);
        }
        while pair.on_the_way.front().is_some_and(|(end, _)| *end <= read) {
            let Some((_, request)) = pair.on_the_way.pop_front() else { break };
            // Responses leave in the order of their requests.
            pair.last_due = pair.last_due.max(now + request.service.0);
            pair.responses.push_back(request.down.0);
            self.net.events.schedule(EventKey { target: half.pair, kind: ScheduledEventKind::WebServer }, pair.last_due);
        }
    }

    /// The next response of a pair is due.
    pub(super) fn respond(&mut self, pair: usize) {
        let Some(web) = &mut self.web else { return };
        let pair = &mut web.pairs[pair];
        if let Some(bytes) = pair.responses.pop_front() {
            let flow = pair.requests + 1;
            self.send_message(flow, bytes);
        }
    }

    /// A connection of requests has become established at an end: so is that of the responses over
    /// the same leg.
    pub(super) fn on_web_established(&mut self, connection: usize, end: ConnectionEnd, half: WebHalf) {
        let requests = self.places[connection].flow as usize;
        if !half.is_request {
            return;
        }
        let SeriesFlow { first_connection, legs, .. } = self.flows[requests];
        let twin = self.flows[requests + 1].first_connection + legs - 1 - (connection - first_connection);
        let twin_end = match end {
            ConnectionEnd::Sender => ConnectionEnd::Receiver,
            ConnectionEnd::Receiver => ConnectionEnd::Sender,
        };
        let rtt_us = self.connections[connection].handshake_rtt_us(end);
        self.connections[twin].establish_with(twin_end, rtt_us, &mut self.net);
        if twin_end == ConnectionEnd::Sender {
            self.connections[twin].sender.push(&mut self.net);
            self.after_sending(twin);
        }
        if connection == first_connection && end == ConnectionEnd::Sender {
            let Some(web) = &mut self.web else { return };
            let WebPair { client, number, .. } = web.pairs[half.pair as usize];
            web.clients[client].connected(number);
            self.act_for_client(client);
        }
    }
}
