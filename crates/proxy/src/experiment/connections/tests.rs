use super::*;
use proptest::prelude::*;
use std::ops::Range;

/// A connection that tests describe packet by packet, and what was told of it.
struct Scene {
    connections: Connections,
    events: Vec<Event>,
}

const CLIENT: &str = "192.0.2.1:40000";
const SERVER: &str = "198.51.100.7:443";
/// Initial sequence numbers, near the wrap.
const CLIENT_ISN: u32 = u32::MAX - 10;
const SERVER_ISN: u32 = u32::MAX - 100;

impl Scene {
    /// After a handshake whose SYN arrived at 1 s, its SYN-ACK at 1.2 s, its ACK at 1.8 s.
    fn established() -> Self {
        let mut scene = Scene { connections: Connections::default(), events: Vec::new() };
        scene.client(1.0, "S", 0, 0, 0);
        scene.answer(1.2);
        scene.client(1.8, "", 1, 1, 0);
        assert_eq!(scene.events, [Event::Began, Event::Far(seconds(0.2)), Event::Near(seconds(0.6))]);
        scene.events.clear();
        scene
    }

    /// A packet of the client; numbers are relative to the initial ones.
    fn client(&mut self, at: f64, flags: &str, seq: u32, ack: u32, payload: u32) {
        let addresses = [CLIENT, SERVER].map(|address| address.parse().unwrap());
        let packet = LoggedPacket::example(seconds(at), Passage::FromClient, addresses, flags);
        let group = flags.contains('S').then_some(Group::Unsplit);
        self.take(&LoggedPacket { group, seq: CLIENT_ISN.wrapping_add(seq), ack: SERVER_ISN.wrapping_add(ack), payload, ..packet });
    }

    /// A packet to the client.
    fn server(&mut self, at: f64, flags: &str, seq: u32, ack: u32, payload: u32) {
        let addresses = [SERVER, CLIENT].map(|address| address.parse().unwrap());
        let packet = LoggedPacket::example(seconds(at), Passage::ToClient, addresses, flags);
        self.take(&LoggedPacket { seq: SERVER_ISN.wrapping_add(seq), ack: CLIENT_ISN.wrapping_add(ack), payload, ..packet });
    }

    /// Data to the client up to here, which acknowledge what the client has sent.
    fn data(&mut self, at: f64, ack: u32, range: Range<u32>) {
        self.server(at, "", range.start, ack, range.len() as u32);
    }

    /// The relay has counted so many bytes up and down.
    fn relay(&mut self, ended_at: f64, bytes: [u64; 2]) {
        let [client, server] = [CLIENT, SERVER].map(|address| address.parse().unwrap());
        let flow = RelayedFlow { client, server, bytes, ended_at: seconds(ended_at) };
        let events = &mut self.events;
        self.connections.take_relayed(&flow, |_, event| events.push(event));
    }

    /// The server's SYN-ACK, where it comes in and where it leaves, which is read later.
    fn answer(&mut self, at: f64) {
        let addresses = [SERVER, CLIENT].map(|address| address.parse().unwrap());
        let packet = LoggedPacket::example(seconds(at), Passage::FromServer, addresses, "S");
        self.take(&LoggedPacket { seq: SERVER_ISN, ack: CLIENT_ISN.wrapping_add(1), ..packet });
        self.server(at + 0.3, "S", 0, 1, 0);
    }

    fn take(&mut self, packet: &LoggedPacket) {
        let events = &mut self.events;
        self.connections.take(packet, |_, event| events.push(event));
    }

    /// How the connection has ended.
    fn how(&self) -> Ended {
        match self.events[..] {
            [Event::Ended { client, server, how }] => {
                assert_eq!((client.to_string(), server.to_string()), ("192.0.2.1".into(), "198.51.100.7".into()));
                how
            }
            _ => panic!("{:?}", self.events),
        }
    }

    /// How the connection has ended: bytes and seconds.
    fn complete(&self) -> (u64, f64) {
        match self.how() {
            Ended::Complete { bytes, time } => (bytes, (time.as_secs_f64() * 1e6).round() / 1e6),
            how => panic!("{how:?}"),
        }
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_micros((seconds * 1e6).round() as u64)
}

#[test]
fn a_download_ends_when_the_client_has_acknowledged_its_last_byte() {
    let mut scene = Scene::established();
    scene.client(1.8, "", 1, 1, 100);
    scene.data(2.0, 101, 1..1001);
    scene.client(3.0, "", 101, 501, 0);
    scene.client(4.0, "", 101, 1001, 0);
    // The FIN comes after a while, and the client's own after another.
    scene.server(20.0, "F", 1001, 101, 0);
    scene.client(20.5, "", 101, 1002, 0);
    scene.client(30.0, "F", 101, 1002, 0);
    assert_eq!(scene.complete(), (1100, 3.0));
}

#[test]
fn the_fin_may_come_with_the_last_data() {
    let mut scene = Scene::established();
    scene.client(1.8, "", 1, 1, 100);
    scene.data(2.0, 101, 1..501);
    scene.server(2.0, "F", 501, 101, 500);
    scene.client(3.0, "F", 101, 1002, 0);
    assert_eq!(scene.complete(), (1100, 2.0));
}

#[test]
fn an_upload_ends_with_the_answer_of_the_server() {
    let mut scene = Scene::established();
    scene.client(1.8, "", 1, 1, 5000);
    scene.client(2.8, "", 5001, 1, 5000);
    scene.data(3.0, 10_001, 1..31);
    scene.client(4.0, "", 10_001, 31, 0);
    // A retransmission counts neither as payload nor as a request.
    scene.client(4.5, "", 5001, 31, 5000);
    scene.client(9.0, "F", 10_001, 31, 0);
    scene.server(9.1, "F", 31, 10_002, 0);
    scene.client(9.2, "", 10_002, 32, 0);
    assert_eq!(scene.complete(), (10_030, 3.0));
}

#[test]
fn an_upload_without_an_answer_ends_with_the_servers_fin() {
    let mut scene = Scene::established();
    scene.client(1.8, "", 1, 1, 5000);
    scene.client(2.0, "F", 5001, 1, 0);
    scene.server(6.0, "F", 1, 5002, 0);
    scene.client(6.6, "", 5002, 2, 0);
    assert_eq!(scene.complete(), (5000, 5.6));
}

#[test]
fn time_between_an_answer_and_the_next_request_does_not_count() {
    let mut scene = Scene::established();
    scene.client(1.8, "", 1, 1, 100);
    scene.data(2.0, 101, 1..501);
    scene.client(3.0, "", 101, 501, 0);
    // A duplicate acknowledgement does not end the rest.
    scene.client(3.1, "", 101, 501, 0);
    scene.client(33.1, "", 101, 501, 100);
    scene.data(33.5, 201, 501..1001);
    scene.client(34.1, "", 201, 1001, 0);
    scene.server(40.0, "F", 1001, 201, 0);
    scene.client(40.1, "F", 201, 1002, 0);
    assert_eq!(scene.complete(), (1200, 3.1));
    // Nor does the silence of a connection that waits for an event.
    let mut scene = Scene::established();
    scene.client(1.8, "", 1, 1, 100);
    scene.data(499.0, 101, 1..901);
    scene.client(500.0, "", 101, 501, 0);
    scene.client(501.0, "", 101, 901, 0);
    scene.server(501.0, "F", 901, 101, 0);
    scene.client(501.0, "F", 101, 902, 0);
    assert_eq!(scene.complete(), (1000, 1.8));
}

#[test]
fn resets_and_connections_without_an_end_have_no_time() {
    let mut scene = Scene::established();
    scene.client(1.8, "", 1, 1, 100);
    scene.server(3.0, "R", 1, 0, 0);
    assert_eq!(scene.how(), Ended::Reset);
    // A reset of a connection that the client has closed with all answers is no failure.
    let mut scene = Scene::established();
    scene.client(1.8, "", 1, 1, 100);
    scene.data(2.0, 101, 1..501);
    scene.client(2.8, "", 101, 501, 0);
    scene.client(2.8, "F", 101, 501, 0);
    scene.client(2.9, "R", 102, 0, 0);
    assert_eq!(scene.complete(), (600, 1.8));
    let mut scene = Scene::established();
    scene.client(1.8, "F", 1, 1, 0);
    scene.server(2.0, "F", 1, 2, 0);
    scene.client(2.1, "", 2, 2, 0);
    assert_eq!(scene.how(), Ended::Empty);
    // A SYN that is refused.
    let mut scene = Scene { connections: Connections::default(), events: Vec::new() };
    scene.client(1.0, "S", 0, 0, 0);
    scene.events.clear();
    scene.server(1.1, "R", 0, 7, 0);
    assert_eq!(scene.events, [], "it does not answer the SYN");
    scene.server(1.2, "R", 0, 1, 0);
    assert_eq!(scene.how(), Ended::Reset);
}

#[test]
fn connections_that_fall_silent_are_not_followed_for_ever() {
    let mut scene = Scene::established();
    let Scene { connections, events } = &mut scene;
    connections.sweep(seconds(800.0), |_, event| events.push(event));
    assert!(events.is_empty());
    connections.sweep(seconds(902.0), |_, event| events.push(event));
    assert_eq!(scene.how(), Ended::Unfinished);
    assert_eq!(scene.connections.open_of(Group::Unsplit), 0);
    let mut scene = Scene { connections: Connections::default(), events: Vec::new() };
    scene.client(1.0, "S", 0, 0, 0);
    scene.client(2.0, "S", 0, 0, 0);
    assert_eq!(scene.events, [Event::Began], "a retransmitted SYN is the same connection");
    scene.events.clear();
    scene.connections.sweep(seconds(152.0), |_, event| scene.events.push(event));
    assert_eq!(scene.how(), Ended::Unanswered);
}

#[test]
fn round_trips_of_a_retransmitted_handshake_are_not_measured() {
    let mut scene = Scene { connections: Connections::default(), events: Vec::new() };
    scene.client(1.0, "S", 0, 0, 0);
    scene.client(2.0, "S", 0, 0, 0);
    scene.answer(2.2);
    scene.client(2.8, "", 1, 1, 0);
    assert_eq!(scene.events, [Event::Began]);
    // Its time begins with the first SYN.
    scene.events.clear();
    scene.client(3.0, "", 1, 1, 10);
    scene.data(3.5, 11, 1..101);
    scene.client(4.0, "", 11, 101, 0);
    scene.server(4.0, "F", 101, 11, 0);
    scene.client(4.0, "F", 11, 102, 0);
    assert_eq!(scene.complete(), (110, 3.0));
}

#[test]
fn packets_of_unknown_connections_are_ignored() {
    let mut scene = Scene { connections: Connections::default(), events: Vec::new() };
    scene.client(1.8, "", 1, 1, 0);
    scene.server(1.9, "F", 1, 1, 0);
    scene.relay(2.0, [1, 1]);
    assert!(scene.events.is_empty());
}

#[test]
fn what_was_not_sent_cannot_be_acknowledged() {
    // By the client: data that no packet has brought.
    let mut scene = Scene::established();
    scene.client(1.9, "", 1, 1, 100);
    scene.client(2.0, "", 101, 1_000_001, 0);
    assert_eq!(scene.how(), Ended::Suspicious);
    scene.server(2.1, "F", 1, 101, 0);
    scene.client(2.2, "F", 101, 2, 0);
    assert_eq!(scene.events.len(), 1, "it is not followed any longer");
    // By the client: data behind a hole.
    let mut scene = Scene::established();
    scene.data(1.9, 1, 1_000_000..1_000_001);
    scene.client(2.0, "", 1, 1_000_001, 0);
    assert_eq!(scene.how(), Ended::Suspicious);
    // By the client: a FIN that was not sent.
    let mut scene = Scene::established();
    scene.client(2.0, "F", 1, 2, 0);
    assert_eq!(scene.how(), Ended::Suspicious);
    // By the client: a handshake without an answer.
    let mut scene = Scene { connections: Connections::default(), events: Vec::new() };
    scene.client(1.0, "S", 0, 0, 0);
    scene.events.clear();
    scene.client(1.1, "", 1, 1, 0);
    assert_eq!(scene.how(), Ended::Suspicious);
    // By a server that knows what the client claims.
    let mut scene = Scene::established();
    scene.server(2.0, "", 1, 5_000_001, 0);
    assert_eq!(scene.how(), Ended::Suspicious);
}

#[test]
fn payload_that_is_not_acknowledged_does_not_count() {
    let mut scene = Scene::established();
    scene.client(1.9, "", 1, 1, 5000);
    scene.data(2.0, 101, 1..11);
    scene.client(2.1, "", 5001, 11, 60_000);
    scene.server(2.2, "F", 11, 101, 0);
    scene.client(2.3, "F", 65_001, 12, 0);
    assert_eq!(scene.complete().0, 100 + 10);
}

#[test]
fn packets_far_from_what_has_passed_are_ignored() {
    let mut scene = Scene::established();
    scene.client(1.9, "", 1, 1, 100);
    // Another host that guesses: neither ends nor spoils the connection.
    scene.client(2.0, "R", 1 << 30, 0, 0);
    scene.client(2.0, "F", 1 << 31, 9_999_999, 0);
    scene.server(2.0, "R", 1 << 30, 0, 0);
    scene.server(2.0, "", 1 << 29, 1 << 30, 100);
    scene.data(2.5, 101, 1..501);
    scene.server(2.5, "F", 501, 101, 0);
    scene.client(2.8, "F", 101, 502, 0);
    assert_eq!(scene.complete(), (600, 1.8));
}

#[test]
fn packets_that_were_lost_before_they_were_read_cost_the_times_of_open_connections() {
    let mut scene = Scene::established();
    scene.connections.lose(|_, event| scene.events.push(event));
    assert_eq!(scene.how(), Ended::Missed);
    scene.client(2.0, "", 1, 1, 0);
    assert_eq!(scene.events.len(), 1);
}

#[test]
fn holes_take_bounded_memory() {
    let mut scene = Scene::established();
    for piece in 0..PIECES as u32 {
        scene.data(2.0, 1, 2 + 2 * piece..3 + 2 * piece);
    }
    assert_eq!((scene.events.len(), scene.connections.pieces), (0, PIECES));
    scene.data(2.0, 1, 1_000_000..1_000_001);
    assert_eq!((scene.how(), scene.connections.pieces), (Ended::Missed, 0));
}

/// A split connection of which packets say that 100 bytes went up and 1000 down.
fn split() -> Scene {
    split_after(Connections::default())
}

/// The same, as the next one of these connections.
fn split_after(connections: Connections) -> Scene {
    let mut scene = Scene { connections, events: Vec::new() };
    let addresses = [CLIENT, SERVER].map(|address| address.parse().unwrap());
    let syn = LoggedPacket::example(seconds(1.0), Passage::FromClient, addresses, "S");
    scene.take(&LoggedPacket { group: Some(Group::Split), seq: CLIENT_ISN, ..syn });
    // The proxy's host answers at once, and the log is read later.
    scene.server(1.3, "S", 0, 1, 0);
    scene.client(1.6, "", 1, 1, 0);
    assert_eq!(scene.events, [Event::Began, Event::Near(seconds(0.6))], "a round trip of the client");
    scene.events.clear();
    scene.client(1.6, "", 1, 1, 100);
    scene.data(2.0, 101, 1..1001);
    scene
}

fn close(scene: &mut Scene) {
    scene.server(2.5, "F", 1001, 101, 0);
    scene.client(3.0, "F", 101, 1002, 0);
}

#[test]
fn a_split_connection_counts_what_the_relay_has_counted() {
    // The relay tells before and after the last packets are read.
    let mut scene = split();
    scene.relay(3.1, [100, 1000]);
    assert_eq!(scene.events, []);
    close(&mut scene);
    assert_eq!(scene.complete(), (1100, 2.0));
    let mut scene = split();
    close(&mut scene);
    assert!(scene.events.is_empty() && scene.connections.open_of(Group::Split) == 1 && scene.connections.waits_for_relay());
    // A flow that ended earlier between the same ports is another one.
    scene.relay(0.9, [7, 7]);
    assert_eq!(scene.events, []);
    scene.relay(3.1, [60, 1000]);
    assert_eq!(scene.complete(), (1060, 2.0), "a part of the upload was never forwarded");
    assert!(scene.connections.open_of(Group::Split) == 0 && !scene.connections.waits_for_relay());
    // Data to the client that the relay did not send.
    let mut scene = split();
    close(&mut scene);
    scene.relay(3.1, [100, 999]);
    assert_eq!(scene.how(), Ended::Suspicious);
    // The relay tells before the SYN is read.
    let mut scene = Scene { connections: Connections::default(), events: Vec::new() };
    scene.relay(3.1, [100, 1000]);
    let mut scene = split_after(scene.connections);
    close(&mut scene);
    assert_eq!(scene.complete(), (1100, 2.0));
    // A flow that ended before the SYN, or long ago, is another one.
    let mut scene = Scene { connections: Connections::default(), events: Vec::new() };
    scene.relay(0.9, [100, 1000]);
    let mut scene = split_after(scene.connections);
    close(&mut scene);
    assert!(scene.events.is_empty() && scene.connections.early.is_empty());
    scene.relay(3.1, [100, 1000]);
    scene.relay(3.2, [100, 1000]);
    scene.connections.sweep(seconds(13.3), |_, _| {});
    assert!(scene.connections.early.is_empty());
    // The relay's count is lost.
    let mut scene = split();
    close(&mut scene);
    scene.connections.sweep(seconds(904.0), |_, event| scene.events.push(event));
    assert_eq!(scene.how(), Ended::Missed);
}

#[test]
fn a_later_connection_between_the_same_ports_does_not_take_the_count_of_the_earlier_one() {
    let mut scene = split();
    close(&mut scene);
    let addresses = [CLIENT, SERVER].map(|address| address.parse().unwrap());
    let syn = LoggedPacket::example(seconds(3.5), Passage::FromClient, addresses, "S");
    scene.take(&LoggedPacket { group: Some(Group::Split), seq: 9, ..syn });
    assert_eq!(scene.events, [Event::Began]);
    scene.events.clear();
    scene.relay(4.0, [100, 1000]);
    assert_eq!(scene.complete(), (1100, 2.0));
    assert_eq!(scene.connections.open_of(Group::Split), 1);
}

proptest! {
    /// Whatever packets come in whatever order, a connection ends once at most, and has no more
    /// bytes than packets have brought and the relay has counted.
    #[test]
    fn a_client_cannot_make_bytes(
        packets in prop::collection::vec((any::<bool>(), 0..4usize, 0..3000u32, 0..3000u32, 0..1500u32), 0..80),
        relayed in (0..3000u64, 0..3000u64),
    ) {
        let mut scene = split();
        let (mut up, mut down) = (100u64, 1000u64);
        scene.relay(9.0, [relayed.0, relayed.1]);
        for (index, (from_client, flags, seq, ack, payload)) in packets.into_iter().enumerate() {
            let (at, flags) = (3.0 + index as f64, ["", "F", "R", ""][flags]);
            if from_client {
                scene.client(at, flags, seq, ack, payload);
                up += u64::from(payload);
            } else {
                scene.server(at, flags, seq, ack, payload);
                down += u64::from(payload);
            }
        }
        prop_assert!(scene.events.len() <= 1);
        if let Some(Event::Ended { how: Ended::Complete { bytes, .. }, .. }) = scene.events.first() {
            prop_assert!(*bytes <= up.min(relayed.0) + down.min(relayed.1));
        }
        let pieces = scene.connections.open.values().map(Connection::pieces).sum::<usize>();
        prop_assert_eq!(pieces, scene.connections.pieces);
    }
}
