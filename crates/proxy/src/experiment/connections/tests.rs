use super::*;

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
    fn server(&mut self, at: f64, flags: &str, seq: u32, payload: u32) {
        let addresses = [SERVER, CLIENT].map(|address| address.parse().unwrap());
        let packet = LoggedPacket::example(seconds(at), Passage::ToClient, addresses, flags);
        self.take(&LoggedPacket { seq: SERVER_ISN.wrapping_add(seq), payload, ..packet });
    }

    /// The server's SYN-ACK, where it comes in and where it leaves, which is read later.
    fn answer(&mut self, at: f64) {
        let addresses = [SERVER, CLIENT].map(|address| address.parse().unwrap());
        let packet = LoggedPacket::example(seconds(at), Passage::FromServer, addresses, "S");
        self.take(&LoggedPacket { seq: SERVER_ISN, ..packet });
        self.server(at + 0.3, "S", 0, 0);
    }

    fn take(&mut self, packet: &LoggedPacket) {
        let events = &mut self.events;
        self.connections.take(packet, |_, event| events.push(event));
    }

    /// How the connection has ended: bytes and seconds.
    fn complete(&self) -> (u64, f64) {
        match self.events[..] {
            [Event::Ended(Ended::Complete { bytes, time, server })] => {
                assert_eq!(server.to_string(), "198.51.100.7");
                (bytes, (time.as_secs_f64() * 1e6).round() / 1e6)
            }
            _ => panic!("{:?}", self.events),
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
    scene.client(3.0, "", 101, 501, 0);
    scene.client(4.0, "", 101, 1001, 0);
    // The FIN comes after a while, and the client's own after another.
    scene.server(20.0, "F", 1001, 0);
    scene.client(20.5, "", 101, 1002, 0);
    scene.client(30.0, "F", 101, 1002, 0);
    assert_eq!(scene.complete(), (1100, 3.0));
}

#[test]
fn the_fin_may_come_with_the_last_data() {
    let mut scene = Scene::established();
    scene.client(1.8, "", 1, 1, 100);
    scene.server(2.0, "F", 501, 500);
    scene.client(3.0, "F", 101, 1002, 0);
    assert_eq!(scene.complete(), (1100, 2.0));
}

#[test]
fn an_upload_ends_with_the_answer_of_the_server() {
    let mut scene = Scene::established();
    scene.client(1.8, "", 1, 1, 5000);
    scene.client(2.8, "", 5001, 1, 5000);
    scene.client(4.0, "", 10_001, 31, 0);
    // A retransmission counts neither as payload nor as a request.
    scene.client(4.5, "", 5001, 31, 5000);
    scene.client(9.0, "F", 10_001, 31, 0);
    scene.server(9.1, "F", 31, 0);
    scene.client(9.2, "", 10_002, 32, 0);
    assert_eq!(scene.complete(), (10_030, 3.0));
}

#[test]
fn an_upload_without_an_answer_ends_with_the_servers_fin() {
    let mut scene = Scene::established();
    scene.client(1.8, "", 1, 1, 5000);
    scene.client(2.0, "F", 5001, 1, 0);
    scene.server(6.0, "F", 1, 0);
    scene.client(6.6, "", 5002, 2, 0);
    assert_eq!(scene.complete(), (5000, 5.6));
}

#[test]
fn time_between_an_answer_and_the_next_request_does_not_count() {
    let mut scene = Scene::established();
    scene.client(1.8, "", 1, 1, 100);
    scene.client(3.0, "", 101, 501, 0);
    // A duplicate acknowledgement does not end the rest.
    scene.client(3.1, "", 101, 501, 0);
    scene.client(33.1, "", 101, 501, 100);
    scene.client(34.1, "", 201, 1001, 0);
    scene.server(40.0, "F", 1001, 0);
    scene.client(40.1, "F", 201, 1002, 0);
    assert_eq!(scene.complete(), (1200, 3.1));
    // Nor does the silence of a connection that waits for an event.
    let mut scene = Scene::established();
    scene.client(1.8, "", 1, 1, 100);
    scene.client(500.0, "", 101, 501, 0);
    scene.client(501.0, "", 101, 901, 0);
    scene.server(501.0, "F", 901, 0);
    scene.client(501.0, "F", 101, 902, 0);
    assert_eq!(scene.complete(), (1000, 1.8));
}

#[test]
fn resets_and_connections_without_an_end_have_no_time() {
    let mut scene = Scene::established();
    scene.client(1.8, "", 1, 1, 100);
    scene.server(3.0, "R", 0, 0);
    assert_eq!(scene.events, [Event::Ended(Ended::Reset)]);
    // A reset of a connection that the client has closed with all answers is no failure.
    let mut scene = Scene::established();
    scene.client(1.8, "", 1, 1, 100);
    scene.client(2.8, "", 101, 501, 0);
    scene.client(2.8, "F", 101, 501, 0);
    scene.client(2.9, "R", 102, 0, 0);
    assert_eq!(scene.complete(), (600, 1.8));
    let mut scene = Scene::established();
    scene.client(1.8, "F", 1, 1, 0);
    scene.server(2.0, "F", 1, 0);
    scene.client(2.1, "", 2, 2, 0);
    assert_eq!(scene.events, [Event::Ended(Ended::Empty)]);
}

#[test]
fn connections_that_fall_silent_are_not_followed_for_ever() {
    let mut scene = Scene::established();
    let mut ended = Vec::new();
    scene.connections.sweep(seconds(800.0), |_, event| ended.push(event));
    assert!(ended.is_empty());
    scene.connections.sweep(seconds(902.0), |_, event| ended.push(event));
    assert_eq!(ended, [Event::Ended(Ended::Unfinished)]);
    assert_eq!(scene.connections.open_of(Group::Unsplit), 0);
    let mut scene = Scene { connections: Connections::default(), events: Vec::new() };
    scene.client(1.0, "S", 0, 0, 0);
    scene.client(2.0, "S", 0, 0, 0);
    assert_eq!(scene.events, [Event::Began], "a retransmitted SYN is the same connection");
    scene.connections.sweep(seconds(152.0), |_, event| scene.events.push(event));
    assert_eq!(scene.events, [Event::Began, Event::Ended(Ended::Unanswered)]);
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
    scene.client(4.0, "", 11, 101, 0);
    scene.server(4.0, "F", 101, 0);
    scene.client(4.0, "F", 11, 102, 0);
    assert_eq!(scene.complete(), (110, 3.0));
}

#[test]
fn packets_of_unknown_connections_are_ignored() {
    let mut scene = Scene { connections: Connections::default(), events: Vec::new() };
    scene.client(1.8, "", 1, 1, 0);
    scene.server(1.9, "F", 1, 0);
    assert!(scene.events.is_empty());
}

#[test]
fn the_handshake_of_a_split_connection_is_a_round_trip_of_its_client() {
    let mut scene = Scene { connections: Connections::default(), events: Vec::new() };
    let addresses = [CLIENT, SERVER].map(|address| address.parse().unwrap());
    let syn = LoggedPacket::example(seconds(1.0), Passage::FromClient, addresses, "S");
    scene.take(&LoggedPacket { group: Some(Group::Split), seq: CLIENT_ISN, ..syn });
    // The proxy's host answers at once, and the log is read later.
    scene.server(1.3, "S", 0, 0);
    scene.client(1.6, "", 1, 1, 0);
    assert_eq!(scene.events, [Event::Began, Event::Near(seconds(0.6))]);
}
