//! Entry points of the fuzz targets into private parts of this crate. Not an API.

use crate::{
    handshake::{Credentials, Handshake, HandshakeFailure, HandshakeStep},
    tls::Encryption,
};
use bond::{Announcement, DialHandshake, Families, PresharedKey, VERSION};
use intercept::fuzz_api::take;
use rustix::{
    io::Errno,
    net::{SendFlags, send},
};
use socket2::{Domain, Socket, Type};
use std::{io::Read as _, sync::OnceLock, time::Instant};

/// The windows that the two ends announce, bytes.
const WINDOWS: [u32; 2] = [7000, 9000];
/// Turns after which a handshake between two correct ends is complete.
const TURNS: usize = 40;

/// One end of a handshake.
enum HandshakeEnd {
    Waits(Box<Handshake>),
    In(u32),
    Refused(HandshakeFailure),
}

impl HandshakeEnd {
    fn step(self, credentials: &Credentials) -> HandshakeEnd {
        match self {
            HandshakeEnd::Waits(handshake) => match handshake.step(credentials) {
                Ok(HandshakeStep::Pending(handshake)) => HandshakeEnd::Waits(handshake),
                Ok(HandshakeStep::Done(_, theirs)) => HandshakeEnd::In(theirs.window),
                Err(why) => HandshakeEnd::Refused(why),
            },
            done => done,
        }
    }
}

fn credentials(encrypts: bool, window: u32) -> Credentials {
    static ENCRYPTION: OnceLock<Encryption> = OnceLock::new();
    let key = PresharedKey::new(b"a secret of thirty-two bytes, two").expect("it is long enough");
    let encryption = || ENCRYPTION.get_or_init(|| Encryption::new().expect("a certificate can be made")).clone();
    Credentials { key, encryption: encrypts.then(encryption), own: Announcement { window, families: Families::BOTH } }
}

fn pair() -> (Socket, Socket) {
    let (one, other) = Socket::pair(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None).expect("there are descriptors");
    (one, other)
}

/// Sends bytes; false: the other end is closed.
fn write(socket: &Socket, bytes: &[u8]) -> bool {
    match send(socket, bytes, SendFlags::NOSIGNAL) {
        Ok(sent) => {
            assert_eq!(sent, bytes.len(), "it fits into the socket");
            true
        }
        Err(_) => false,
    }
}

/// Reads everything that has arrived.
fn hear(mut socket: &Socket) -> Vec<u8> {
    let mut bytes = vec![0; 64 * 1024];
    let count = socket.read(&mut bytes).unwrap_or(0);
    bytes.truncate(count);
    bytes
}

/// Unauthenticated peers, peers that have the key and break TLS, and a man in the middle.
///
/// # Panics
/// When a peer without the key gets in or is sent anything, when broken TLS gets in, or when two
/// ends between which nothing is changed do not get in.
pub fn handshake(data: &[u8]) {
    let Some((&first, bytes)) = data.split_first() else { return };
    let encrypts = first & 4 != 0;
    match first & 3 {
        0 => accepts_unauthenticated(bytes, encrypts),
        1 => dials_unauthenticated(bytes, encrypts),
        2 => peer_with_key(bytes),
        _ => between(bytes, encrypts),
    }
}

/// Sends bytes in pieces to one end, and steps its handshake after each.
fn say(mut side: HandshakeEnd, credentials: &Credentials, to: &Socket, bytes: &[u8], piece: usize) -> HandshakeEnd {
    for piece in bytes.chunks(piece) {
        // The end has closed the connection.
        if !write(to, piece) {
            break;
        }
        side = side.step(credentials);
    }
    side
}

/// A connection comes from a peer without the key.
fn accepts_unauthenticated(mut bytes: &[u8], encrypts: bool) {
    let ((own, theirs), credentials) = (pair(), credentials(encrypts, WINDOWS[0]));
    let [piece] = take(&mut bytes);
    let side = HandshakeEnd::Waits(Box::new(Handshake::accepted(own, Instant::now())));
    let side = say(side, &credentials, &theirs, bytes, 1 + usize::from(piece));
    assert!(hear(&theirs).is_empty(), "an unauthenticated peer is answered");
    match side {
        HandshakeEnd::Waits(handshake) => assert!(handshake.is_unauthenticated() && bytes.len() < size_of::<bond::Hello>()),
        HandshakeEnd::In(_) => panic!("an unauthenticated peer is in"),
        HandshakeEnd::Refused(why) => assert!(matches!(why, HandshakeFailure::Refused(_)), "{why}"),
    }
}

/// A connection leads to a peer without the key.
fn dials_unauthenticated(mut bytes: &[u8], encrypts: bool) {
    let ((own, theirs), credentials) = (pair(), credentials(encrypts, WINDOWS[0]));
    let [piece] = take(&mut bytes);
    let side = HandshakeEnd::Waits(Box::new(Handshake::dialled(own, VERSION, Instant::now()))).step(&credentials);
    assert_eq!(hear(&theirs).len(), size_of::<bond::Hello>());
    let side = say(side, &credentials, &theirs, bytes, 1 + usize::from(piece));
    assert!(hear(&theirs).is_empty(), "an unauthenticated peer gets a proof");
    match side {
        HandshakeEnd::Waits(_) => assert!(bytes.len() < size_of::<bond::Challenge>()),
        HandshakeEnd::In(_) => panic!("an unauthenticated peer is believed"),
        HandshakeEnd::Refused(why) => assert!(matches!(why, HandshakeFailure::Refused(_)), "{why}"),
    }
}

/// A peer has the key, and then speaks TLS of any kind.
fn peer_with_key(mut bytes: &[u8]) {
    let ((own, theirs), credentials) = (pair(), credentials(true, WINDOWS[0]));
    let [piece] = take(&mut bytes);
    let mut side = HandshakeEnd::Waits(Box::new(Handshake::accepted(own, Instant::now())));
    let (dialled, hello) = DialHandshake::new(&credentials.key, VERSION, [1; 32], b"encrypted");
    assert!(write(&theirs, &hello));
    side = side.step(&credentials);
    let challenge = hear(&theirs).as_slice().try_into().expect("a peer that has the key is answered");
    let (proof, announced) = dialled.finish(&challenge, WINDOWS[1]).expect("the key is the same");
    assert_eq!(announced.window, WINDOWS[0]);
    assert!(write(&theirs, &proof));
    side = side.step(&credentials);
    assert!(matches!(side, HandshakeEnd::Waits(_)), "it does not wait for TLS");
    side = say(side, &credentials, &theirs, bytes, 1 + 4 * usize::from(piece));
    assert!(!matches!(side, HandshakeEnd::In(_)), "it gets in without knowing the channel");
}

/// Both ends have the key. Their messages arrive altered, in pieces, late, or not at all.
fn between(mut bytes: &[u8], encrypts: bool) {
    let credentials = WINDOWS.map(|window| credentials(encrypts, window));
    let ((own, here), (theirs, there)) = (pair(), pair());
    let mut sides = [
        HandshakeEnd::Waits(Box::new(Handshake::dialled(own, VERSION, Instant::now()))),
        HandshakeEnd::Waits(Box::new(Handshake::accepted(theirs, Instant::now()))),
    ];
    let (wires, mut changed) = ([here, there], false);
    let mut on_the_way = [Vec::new(), Vec::new()];
    for turn in 0..TURNS {
        for (index, credentials) in credentials.iter().enumerate() {
            let side = std::mem::replace(&mut sides[index], HandshakeEnd::In(0)).step(credentials);
            sides[index] = side;
            on_the_way[index].extend(hear(&wires[index]));
            let [choice, place, value] = if turn < TURNS / 2 { take(&mut bytes) } else { [0; 3] };
            let said = &mut on_the_way[index];
            let at = usize::from(place) * said.len() / 256;
            match choice % 8 {
                // Only a part is passed on.
                1 if said.len() > 1 => {
                    let part: Vec<u8> = said.drain(..at.max(1)).collect();
                    write(&wires[1 - index], &part);
                    continue;
                }
                2 if at < said.len() && value != 0 => {
                    said[at] ^= value;
                    changed = true;
                }
                3 if at < said.len() => {
                    said.insert(at, value);
                    changed = true;
                }
                4 if at < said.len() => {
                    said.remove(at);
                    changed = true;
                }
                _ => {}
            }
            write(&wires[1 - index], &std::mem::take(said));
        }
    }
    for (index, side) in sides.iter().enumerate() {
        match side {
            HandshakeEnd::In(window) => assert_eq!(*window, WINDOWS[1 - index], "it believes another window"),
            HandshakeEnd::Waits(_) => assert!(changed, "two ends that understand each other are not in"),
            HandshakeEnd::Refused(why) => assert!(changed || matches!(why, HandshakeFailure::Failed(Errno::PIPE)), "{why}"),
        }
    }
}
