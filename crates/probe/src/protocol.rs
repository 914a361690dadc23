//! What prober and responder say to each other: frames of JSON over one connection, which both bound in size; and the clocks' offset, by datagrams.
//!
//! The prober opens; the responder challenges; the prober proves that it knows the token (HMAC-SHA256). Then it gives orders, one after the other, and hears
//! what came of each. Nothing is ever sent to an address that has not answered a SYN, and a datagram is answered by one as large, to those who know the
//! session's key.

use crate::{clock::now, error::ProbeError};
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::Sha256;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::{
    fs::File,
    io::{self, Read, Write},
    net::{SocketAddr, UdpSocket},
    os::fd::AsFd,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

/// Where the responder is spoken to unless it is told otherwise.
pub const CONTROL_PORT: u16 = 7707;
/// What both ends must speak.
pub(crate) const VERSION: u32 = 1;
/// The largest frame of words, and of a trace, bytes.
pub(crate) const WORDS: usize = 64 << 10;
pub(crate) const TRACE: usize = 64 << 20;
/// The most that is carried in one transfer, bytes.
pub const MOST_BYTES: u64 = 4 << 20;
/// The longest that ACKs are held, s.
pub const LONGEST_HOLD: f64 = 20.0;
/// Exchanges of datagrams by which clocks are compared, and how long one is waited for.
const EXCHANGES: u32 = 12;
const DATAGRAM: usize = 40;

/// Writes a frame: its length in four bytes, big-endian, and what it holds.
pub(crate) fn write_bytes(mut to: impl Write, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(|_| io::Error::other("a frame too large"))?;
    to.write_all(&[&length.to_be_bytes(), bytes].concat())
}

/// Reads a frame of at most `most` bytes.
pub(crate) fn read_bytes(mut from: impl Read, most: usize) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > most {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {length} bytes, where at most {most} are allowed")));
    }
    let mut bytes = Vec::new();
    if from.take(length as u64).read_to_end(&mut bytes)? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

/// A socket until a moment: whoever is heard on it, a byte now and then, is heard no longer than that.
pub(crate) struct Until<'a> {
    socket: SockRef<'a>,
    end: Instant,
    silence: Duration,
}

impl<'a> Until<'a> {
    /// For so long in all, and for so long with nothing.
    pub(crate) fn new<S: AsFd>(socket: &'a S, all: Duration, silence: Duration) -> Self {
        Until { socket: SockRef::from(socket), end: Instant::now() + all, silence }
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.saturating_duration_since(Instant::now()).min(self.silence);
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(self.left()?)?;
        (&*self.socket).read(buffer)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(self.left()?)?;
        (&*self.socket).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes words.
pub(crate) fn tell(to: impl Write, words: &impl Serialize) -> io::Result<()> {
    write_bytes(to, &serde_json::to_vec(words)?)
}

/// Reads words.
pub(crate) fn hear<T: DeserializeOwned>(from: impl Read) -> io::Result<T> {
    Ok(serde_json::from_slice(&read_bytes(from, WORDS)?)?)
}

/// What an application carries, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Application {
    /// Bytes without a protocol.
    Tcp,
    /// Text, by HTTP/1.1.
    HttpData,
    /// A JPEG image, by HTTP/1.1.
    HttpImage,
    /// A file, by FTP: what is looked at is its data connection.
    Ftp,
}

impl std::fmt::Display for Application {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Application::Tcp => "TCP",
            Application::HttpData => "HTTP data",
            Application::HttpImage => "HTTP image",
            Application::Ftp => "FTP",
        })
    }
}

/// Which way the data go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// To the prober.
    Down,
    /// From it.
    Up,
}

/// The responder's first word.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Challenge {
    pub(crate) version: u32,
    pub(crate) nonce: String,
}

/// The prober's.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) version: u32,
    pub(crate) proof: String,
}

/// What the responder has to offer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// Why it won't.
    pub(crate) refused: Option<String>,
    pub(crate) ports: Vec<u16>,
    pub(crate) ftp_data: u16,
    /// Why it takes no trace, if it takes none.
    pub(crate) no_trace: Option<String>,
    /// What its datagrams must begin with.
    pub(crate) key: String,
}

/// What the prober wants.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Order {
    Transfer(Transfer),
    /// Let no SYN in at this port for so long, s.
    Deaf {
        port: u16,
        seconds: f64,
    },
    /// End the trace and send it.
    Trace,
}

/// A transfer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Transfer {
    pub(crate) application: Application,
    pub(crate) direction: Direction,
    pub(crate) port: u16,
    /// What its connection is known by: letters and digits.
    pub(crate) nonce: String,
    pub(crate) bytes: u64,
    /// Between the first half and the second, s.
    pub(crate) pause: f64,
    /// The receiver sends no ACK for so long, s, after it has heard that the first byte was sent.
    pub(crate) hold: Option<f64>,
    /// How long the connection is waited for, s.
    pub(crate) patience: f64,
}

impl Transfer {
    /// Whether it is within what a responder does for anybody.
    pub(crate) fn is_allowed(&self) -> bool {
        self.bytes <= MOST_BYTES
            && (0.0..=LONGEST_HOLD).contains(&self.pause)
            && self.hold.is_none_or(|hold| (0.0..=LONGEST_HOLD).contains(&hold))
            && (8..=64).contains(&self.nonce.len())
            && self.nonce.bytes().all(|byte| byte.is_ascii_alphanumeric())
    }
}

/// What the responder says while a transfer runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Event {
    /// The order is taken: connect.
    Ready,
    /// The connection has come, and its data won't be acknowledged.
    Holding,
    /// The first byte was sent.
    Sent,
    Done(Report),
}

/// What one end did, and how it saw the other's doing. Times are ns since 1970 by its own clock.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Its own address and the other's, of the connection with the data.
    pub connection: Option<[SocketAddr; 2]>,
    /// The head that came before the data, as it was sent or received.
    pub head: String,
    /// Bytes of the body, their checksum (XXH3), whether they came to their end.
    pub bytes: u64,
    /// Of those.
    pub checksum: u64,
    /// Whether it came to its end.
    pub whole: bool,
    /// When the first byte was sent or received.
    pub first: Option<i64>,
    /// When the second half began to be sent.
    pub resumed: Option<i64>,
    /// When the last byte was sent or received.
    pub last: Option<i64>,
    /// Of data that the other end would not acknowledge: after what time the first of them were, s.
    pub acknowledged_s: Option<f64>,
    /// Window scales (this end's and the other's) and whether there are timestamps, as this end's TCP has agreed to them.
    pub scales: Option<(u8, u8)>,
    /// Timestamps.
    pub timestamps: Option<bool>,
    /// Why it came to nothing.
    pub error: Option<String>,
}

/// A transfer as both ends saw it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Transferred {
    /// What was carried.
    pub application: Application,
    /// Which way.
    pub direction: Direction,
    /// By which port of the host.
    pub port: u16,
    /// Whether the same had been asked for before.
    pub again: bool,
    /// For how long the receiver let no data in, s.
    pub hold_s: Option<f64>,
    /// How long the responder waited for the connection, s.
    pub patience_s: f64,
    /// The clocks, compared just before.
    pub clocks: Option<Offset>,
    /// The prober's report.
    pub here: Report,
    /// The responder's.
    pub there: Report,
}

/// A number nobody guesses, as text.
pub(crate) fn secret() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(hex(&bytes))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn mac(token: &str, nonce: &str) -> Hmac<Sha256> {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(token.as_bytes()).expect("a key may have any length");
    mac.update(b"tandem detect 1");
    mac.update(nonce.as_bytes());
    mac
}

/// What proves that the token is known.
pub(crate) fn proof(token: &str, nonce: &str) -> String {
    hex(&mac(token, nonce).finalize().into_bytes())
}

/// Whether that is it.
pub(crate) fn proves(token: &str, nonce: &str, proof: &str) -> bool {
    // Of a number's text a sign, or a single digit, would be accepted.
    if proof.len() != 64 || !proof.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return false;
    }
    let bytes: Option<Vec<u8>> =
        proof.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect();
    // Takes as long whatever is wrong.
    bytes.is_some_and(|bytes| mac(token, nonce).verify_slice(&bytes).is_ok())
}

/// How far the responder's clock is ahead, and the way there and back by datagrams, which no splitter of TCP touches.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Offset {
    /// s.
    pub offset_s: f64,
    /// It is as near to that as this, however unlike the two ways are.
    pub error_s: f64,
    /// The least of so many, s.
    pub round_trip_s: f64,
    /// How many.
    pub exchanges: u32,
}

/// The offset of four times each: sent here, received there, sent there, received here (RFC 5905's); what there is of it in all of them.
pub(crate) fn offset(exchanges: &[[i64; 4]]) -> Option<Offset> {
    let seconds = |span: i64| span as f64 / 1e9;
    let least = |of: fn(&[i64; 4]) -> i64| exchanges.iter().map(of).min();
    // Nothing is received before it was sent: the offset is at most any way there, at least minus any way back, as the clocks have them. The other end's times
    // are whatever it says.
    let (most, back) = (seconds(least(|at| at[1].saturating_sub(at[0]))?), seconds(least(|at| at[3].saturating_sub(at[2]))?));
    let round_trip_s = seconds(least(|at| at[3].saturating_sub(at[0]).saturating_sub(at[2].saturating_sub(at[1])))?);
    // A clock was set meanwhile.
    (most + back >= 0.0).then(|| Offset {
        offset_s: (most - back) / 2.0,
        error_s: (most + back) / 2.0,
        round_trip_s,
        exchanges: exchanges.len() as u32,
    })
}

/// What datagrams begin with.
pub(crate) fn key_of(key: &str) -> Option<&[u8; 16]> {
    key.as_bytes().first_chunk()
}

/// Compares the clocks, by datagrams to the responder.
pub(crate) fn compare(to: SocketAddr, key: &str) -> Result<Vec<[i64; 4]>, ProbeError> {
    let failed = |why: io::Error| ProbeError::Socket { what: format!("exchange datagrams with the responder at {to}"), why };
    let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP)).map_err(failed)?;
    socket.connect(&to.into()).map_err(failed)?;
    let Some(key) = key_of(key) else { return Ok(Vec::new()) };
    let (mut found, begun) = (Vec::new(), Instant::now());
    // A datagram is waited for as long as three like it have taken.
    let mut patience = Duration::from_secs(1);
    for _ in 0..EXCHANGES {
        let mut datagram = [0; DATAGRAM];
        datagram[..16].copy_from_slice(key);
        let sent = now();
        datagram[16..24].copy_from_slice(&sent.to_be_bytes());
        if socket.send(&datagram).is_err() {
            continue;
        }
        let (asked, mut answer) = (Instant::now(), [0; DATAGRAM]);
        while asked.elapsed() < patience {
            match crate::sys::receive(&socket, &mut answer, false) {
                Ok(got) if got.length == DATAGRAM && answer[16..24] == sent.to_be_bytes() => {
                    let time = |at: usize| i64::from_be_bytes(answer[at..at + 8].try_into().expect("eight bytes"));
                    found.push([sent, time(24), time(32), now()]);
                    patience = (asked.elapsed() * 3).max(Duration::from_millis(100));
                    break;
                }
                _ => thread::sleep(Duration::from_micros(100)),
            }
        }
        if begun.elapsed() > Duration::from_secs(8) {
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(found)
}

/// Answers datagrams that begin with the key, at once and with as much, until `over`.
pub(crate) fn echo(socket: &UdpSocket, key: &str, over: &AtomicBool) {
    let mut datagram = [0; DATAGRAM + 1];
    let _ = socket.set_read_timeout(Some(Duration::from_millis(50)));
    while !over.load(Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut datagram) else { continue };
        let received = now();
        if length != DATAGRAM || key_of(key).is_none_or(|key| datagram[..16] != *key) {
            continue;
        }
        datagram[24..32].copy_from_slice(&received.to_be_bytes());
        datagram[32..40].copy_from_slice(&now().to_be_bytes());
        let _ = socket.send_to(&datagram[..DATAGRAM], from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_text_alone_proves_that_the_token_is_known() {
        // A nonce whose proof has a byte below sixteen, which a sign and a digit would stand for too.
        let nonces = (0..100).map(|number| number.to_string());
        let (nonce, right, at) = nonces
            .filter_map(|nonce| {
                let right = proof("token", &nonce);
                let at = (0..64).step_by(2).find(|at| right.as_bytes()[*at] == b'0')?;
                Some((nonce, right, at))
            })
            .next()
            .expect("one of a hundred has such a byte");
        assert!(proves("token", &nonce, &right));
        let mut other = right.clone();
        other.replace_range(at..=at, "+");
        assert!(!proves("token", &nonce, &other), "{other}");
        assert!(!proves("token", &nonce, &right[..63]));
    }

    proptest! {
        /// Whatever the ways there and back take, the offset is within its bound.
        #[test]
        fn the_offset_is_within_its_bound(ahead in -5_000_000_000i64..5_000_000_000, ways in prop::collection::vec((1i64..400_000_000, 1i64..400_000_000), 1..20)) {
            let exchange = |(index, (there, back)): (usize, &(i64, i64))| {
                let sent = index as i64 * 1_000_000_000;
                let received = sent + there + ahead;
                [sent, received, received + 50_000, sent + there + 50_000 + back]
            };
            let found = offset(&ways.iter().enumerate().map(exchange).collect::<Vec<_>>()).unwrap();
            let wrong = (found.offset_s - ahead as f64 / 1e9).abs();
            prop_assert!(wrong <= found.error_s + 1e-9, "{found:?}");
            let least = ways.iter().map(|(there, back)| there + back).min().unwrap() as f64 / 1e9;
            prop_assert!((found.round_trip_s - least).abs() < 1e-6 && found.error_s <= least / 2.0 + 1e-6, "{found:?}");
        }
    }

    #[test]
    fn a_clock_that_was_set_has_no_offset() {
        assert_eq!(offset(&[[0, 10, 10, 20], [100, 50, 50, 120]]).map(|found| found.exchanges), None);
        assert_eq!(offset(&[]), None);
    }

    #[test]
    fn who_knows_the_token_proves_it() {
        let proof = proof("secret", "nonce");
        assert!(proves("secret", "nonce", &proof));
        for (token, nonce, proof) in [
            ("Secret", "nonce", proof.as_str()),
            ("secret", "once", &proof),
            ("secret", "nonce", "zz"),
            ("secret", "nonce", ""),
            ("secret", "nonce", "é1"),
        ] {
            assert!(!proves(token, nonce, proof), "{token} {nonce} {proof}");
        }
    }

    #[test]
    fn frames_are_bounded() {
        let mut bytes = Vec::new();
        tell(&mut bytes, &Event::Ready).unwrap();
        assert!(matches!(hear(bytes.as_slice()), Ok(Event::Ready)));
        for bad in [&bytes[..bytes.len() - 1], &[0, 0][..], &[0, 0, 0, 1, b'?'], &[255; 8]] {
            assert!(hear::<Event>(bad).is_err(), "{bad:?}");
        }
    }
}
