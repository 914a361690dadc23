//! Clients and servers that know every byte they are to receive, and how their connections ended.

use anyhow::{Context as _, Result};
use lab::Host;
use std::{
    collections::HashMap,
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

/// How long an endpoint waits before it counts as stuck: longer than the 30 s that a far end, or
/// the other end of a bond, has to answer.
pub(crate) const STUCK: Duration = Duration::from_secs(40);

/// What a connection does. Servers recognise it by their port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransferKind {
    /// Both ends send at once, at full speed.
    Both,
    /// The client sends; the server answers when it has everything.
    Up,
    /// Messages of 200 bytes, in turn.
    Messages,
    /// As `Up`, to a server that starts to read late, so that all buffers on the path fill.
    Slow,
}

pub(crate) const TRANSFER_KINDS: [TransferKind; 4] = [TransferKind::Both, TransferKind::Up, TransferKind::Messages, TransferKind::Slow];

impl TransferKind {
    /// The server's port.
    pub(crate) fn port(self) -> u16 {
        8001 + self as u16
    }

    /// Bytes sent up and down.
    fn sizes(self) -> (usize, usize) {
        match self {
            TransferKind::Both => (600_000, 600_000),
            TransferKind::Up => (300_000, 1000),
            TransferKind::Messages => (Self::MESSAGES * 200, Self::MESSAGES * 200),
            TransferKind::Slow => (6_000_000, 100_000),
        }
    }

    const MESSAGES: usize = 10;
    /// How long the slow server waits.
    const NAP: Duration = Duration::from_millis(60);
}

/// How a connection ended, as one endpoint saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TransferEnd {
    /// Everything was sent and received, then came end of file.
    Complete,
    /// An error; whether everything had been received before it.
    Reset { had_all: bool, why: io::ErrorKind },
    /// No progress for [`STUCK`].
    Stuck,
    /// Wrong bytes, or an early end of file.
    Wrong(String),
}

/// Number of the next transfer, unique in this process.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The bytes of transfer `id` in one direction.
fn pattern(id: u64, down: bool, length: usize) -> Vec<u8> {
    let mut state = id.wrapping_mul(2).wrapping_add(u64::from(down)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let word = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_ne_bytes()
    };
    let mut bytes: Vec<u8> = (0..length.div_ceil(8)).flat_map(word).collect();
    bytes.truncate(length);
    bytes
}

/// Why an endpoint stopped early.
#[derive(Debug)]
enum TransferError {
    Failed(io::Error),
    Wrong(String),
}

impl From<io::Error> for TransferError {
    fn from(why: io::Error) -> Self {
        TransferError::Failed(why)
    }
}

fn read_expected(stream: &mut impl Read, expected: &[u8], got: &mut usize) -> Result<(), TransferError> {
    let mut room = vec![0; 64 * 1024];
    while *got < expected.len() {
        let most = room.len().min(expected.len() - *got);
        match stream.read(&mut room[..most]) {
            Ok(0) => return Err(TransferError::Wrong(format!("end of file after {got} of {} bytes", expected.len()))),
            Ok(count) if room[..count] == expected[*got..*got + count] => *got += count,
            Ok(_) => return Err(TransferError::Wrong(format!("wrong bytes after {got}"))),
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) => return Err(why.into()),
        }
    }
    Ok(())
}

fn read_end(stream: &mut impl Read) -> Result<(), TransferError> {
    match stream.read(&mut [0])? {
        0 => Ok(()),
        _ => Err(TransferError::Wrong("bytes after the last".into())),
    }
}

/// Plays one endpoint: it sends `sends` and must receive `expects`. The server has already read the
/// number of the transfer.
fn play(
    kind: TransferKind,
    is_client: bool,
    stream: &TcpStream,
    sends: &[u8],
    expects: &[u8],
    got: &mut usize,
) -> Result<(), TransferError> {
    let (mut reader, mut writer) = (stream, stream);
    match (kind, is_client) {
        (TransferKind::Both, _) => thread::scope(|scope| {
            let sending = scope.spawn(move || {
                writer.write_all(sends)?;
                stream.shutdown(Shutdown::Write)
            });
            let received = read_expected(&mut reader, expects, got).and_then(|()| read_end(&mut reader));
            let sent = sending.join().unwrap_or_else(|_| Err(io::Error::other("the sending thread panicked")));
            match (received, sent) {
                // The kernel reports an error once, here to the sending thread; the reader then
                // sees end of file.
                (Err(TransferError::Wrong(_)), Err(why)) => Err(why.into()),
                (received, sent) => received.and(sent.map_err(TransferError::from)),
            }
        }),
        (TransferKind::Messages, _) => {
            for at in 0..TransferKind::MESSAGES {
                let part = at * 200..(at + 1) * 200;
                if is_client {
                    writer.write_all(&sends[part.clone()])?;
                }
                read_expected(&mut reader, &expects[..part.end], got)?;
                if !is_client {
                    writer.write_all(&sends[part])?;
                }
            }
            if is_client {
                stream.shutdown(Shutdown::Write)?;
            }
            read_end(&mut reader)?;
            if is_client { Ok(()) } else { Ok(stream.shutdown(Shutdown::Write)?) }
        }
        (TransferKind::Up | TransferKind::Slow, true) => {
            writer.write_all(sends)?;
            stream.shutdown(Shutdown::Write)?;
            read_expected(&mut reader, expects, got)?;
            read_end(&mut reader)
        }
        (TransferKind::Up | TransferKind::Slow, false) => {
            if kind == TransferKind::Slow {
                thread::sleep(TransferKind::NAP);
            }
            read_expected(&mut reader, expects, got)?;
            read_end(&mut reader)?;
            writer.write_all(sends)?;
            Ok(stream.shutdown(Shutdown::Write)?)
        }
    }
}

fn end_of(outcome: Result<(), TransferError>, had_all: bool) -> TransferEnd {
    match outcome {
        Ok(()) => TransferEnd::Complete,
        Err(TransferError::Wrong(why)) => TransferEnd::Wrong(why),
        Err(TransferError::Failed(why)) if matches!(why.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => TransferEnd::Stuck,
        Err(TransferError::Failed(why)) => TransferEnd::Reset { had_all, why: why.kind() },
    }
}

fn be_patient(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(STUCK))?;
    stream.set_write_timeout(Some(STUCK))
}

/// Shared state of the servers.
#[derive(Debug, Default)]
struct ServerState {
    /// Connections that are open now.
    open: usize,
    ends: HashMap<u64, TransferEnd>,
    /// Endings of connections that got stuck, or ended cleanly, before they sent their number.
    strays: Vec<TransferEnd>,
}

/// The servers, which record how their connections end.
#[derive(Debug, Clone, Default)]
pub(crate) struct TransferServers(Arc<(Mutex<ServerState>, Condvar)>);

impl TransferServers {
    fn seen(&self) -> MutexGuard<'_, ServerState> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves all kinds of transfers on every address of a host.
    pub(crate) fn start(host: &Host) -> Result<Self> {
        let servers = TransferServers::default();
        for kind in TRANSFER_KINDS {
            let listener = host.enter(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, kind.port())))?.context("cannot listen")?;
            let servers = servers.clone();
            thread::Builder::new().name("server".into()).spawn(move || {
                for stream in listener.incoming().flatten() {
                    servers.seen().open += 1;
                    let servers = servers.clone();
                    thread::spawn(move || servers.serve(kind, &stream));
                }
            })?;
        }
        Ok(servers)
    }

    fn serve(&self, kind: TransferKind, stream: &TcpStream) {
        let mut id = [0; 8];
        let greeted = be_patient(stream).and_then(|()| (&*stream).read_exact(&mut id));
        let (id, (up, down)) = (u64::from_ne_bytes(id), kind.sizes());
        let mut got = 0;
        let end = match greeted {
            Ok(()) => end_of(play(kind, false, stream, &pattern(id, true, down), &pattern(id, false, up), &mut got), got == up),
            Err(ref why) if why.kind() == io::ErrorKind::UnexpectedEof => TransferEnd::Wrong("end of file before the first byte".into()),
            Err(ref why) => end_of(Err(io::Error::from(why.kind()).into()), false),
        };
        let mut seen = self.seen();
        seen.open -= 1;
        match (greeted, &end) {
            (Ok(()), _) => drop(seen.ends.insert(id, end)),
            (Err(_), TransferEnd::Stuck | TransferEnd::Wrong(_)) => seen.strays.push(end),
            (Err(_), _) => {}
        }
        self.0.1.notify_all();
    }

    /// Waits until no connection is open. Returns how they ended, by transfer, and the wrong
    /// endings of connections without a number.
    fn settle(&self) -> (HashMap<u64, TransferEnd>, Vec<TransferEnd>) {
        let begun = Instant::now();
        let mut seen = self.seen();
        while seen.open > 0 && begun.elapsed() < 2 * STUCK {
            seen = self.0.1.wait_timeout(seen, Duration::from_millis(100)).unwrap_or_else(PoisonError::into_inner).0;
        }
        let mut strays = std::mem::take(&mut seen.strays);
        strays.extend((0..seen.open).map(|_| TransferEnd::Stuck));
        (std::mem::take(&mut seen.ends), strays)
    }
}

/// Where a client connects.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TransferTarget {
    pub(crate) kind: TransferKind,
    pub(crate) at: SocketAddr,
    /// Connect by SOCKS5 to this name or address.
    pub(crate) socks: Option<&'static str>,
}

impl TransferTarget {
    fn connect(self, host: &Host) -> Result<TcpStream, TransferError> {
        let connected =
            host.enter(|| TcpStream::connect_timeout(&self.at, STUCK)).map_err(|why| TransferError::Failed(io::Error::other(why)))?;
        let mut stream = connected?;
        be_patient(&stream)?;
        let Some(name) = self.socks else { return Ok(stream) };
        stream.write_all(&[5, 1, 0])?;
        // End of file during the handshake is a refusal.
        stream.read_exact(&mut [0; 2])?;
        let address = match name.parse() {
            Ok(IpAddr::V4(address)) => [&[1][..], &address.octets()].concat(),
            _ => [&[3, name.len() as u8][..], name.as_bytes()].concat(),
        };
        stream.write_all(&[&[5, 1, 0][..], &address, &self.kind.port().to_be_bytes()].concat())?;
        let mut answer = [0; 10];
        stream.read_exact(&mut answer)?;
        if answer[1] == 0 { Ok(stream) } else { Err(TransferError::Failed(io::ErrorKind::ConnectionRefused.into())) }
    }

    fn play(self, host: &Host, id: u64) -> TransferEnd {
        let (up, down) = self.kind.sizes();
        let mut got = 0;
        let outcome = self.connect(host).and_then(|stream| {
            (&stream).write_all(&id.to_ne_bytes())?;
            play(self.kind, true, &stream, &pattern(id, false, up), &pattern(id, true, down), &mut got)
        });
        end_of(outcome, got == down)
    }
}

/// Results of a round of transfers.
#[derive(Debug, Clone, Default)]
pub(crate) struct RoundSummary {
    pub(crate) complete: usize,
    pub(crate) reset: usize,
    /// Must never happen: stuck flows, lost or wrong bytes.
    pub(crate) bad: Vec<String>,
}

/// Plays transfers at once and judges them. A client that saw a clean end knows that the server has
/// received everything, and neither endpoint sees a clean end before the last byte.
pub(crate) fn round(host: &Host, servers: &TransferServers, targets: &[TransferTarget]) -> RoundSummary {
    let ends: Vec<(TransferTarget, u64, TransferEnd)> = thread::scope(|scope| {
        let playing: Vec<_> = targets
            .iter()
            .map(|target| {
                let id = NEXT.fetch_add(1, Relaxed);
                scope.spawn(move || (*target, id, target.play(host, id)))
            })
            .collect();
        playing.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let (mut served, strays) = servers.settle();
    let mut sum = RoundSummary::default();
    if ends.len() != targets.len() {
        sum.bad.push("a client panicked".into());
    }
    if !strays.is_empty() {
        sum.bad.push(format!("connections without a transfer number: {strays:?}"));
    }
    for (target, id, client) in ends {
        let server = served.remove(&id);
        let had_all = matches!(server, Some(TransferEnd::Complete | TransferEnd::Reset { had_all: true, .. }));
        match (&client, &server) {
            (TransferEnd::Wrong(_) | TransferEnd::Stuck, _) | (_, Some(TransferEnd::Wrong(_) | TransferEnd::Stuck)) => {}
            (TransferEnd::Complete, Some(TransferEnd::Complete)) => {
                sum.complete += 1;
                continue;
            }
            // If both ends send at once, end of file may be passed on before the other direction
            // fails.
            (TransferEnd::Complete, _) if !had_all && target.kind != TransferKind::Both => {}
            _ => {
                sum.reset += 1;
                continue;
            }
        }
        let socks = target.socks.map_or(String::new(), |name| format!(" by SOCKS to {name}"));
        sum.bad.push(format!("{:?}{socks}: the client saw {client:?}, the server {server:?}", target.kind));
    }
    sum
}
