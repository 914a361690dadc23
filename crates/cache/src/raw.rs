//! Store and forward for any TCP, as Wei et al. found it (§I, §III-C): what an end sends is received as fast as it comes, and forwarded when it
//! is whole. Whole it is when its sender has finished, or, since most protocols wait for answers on connections that stay open, when the sender has
//! said nothing for a while. A lull that was none costs nothing but that some of it goes on early.
//!
//! What is more than there is room for goes on as it comes, as through the proxy: a reset would break what worked before.
//!
//! Ends are told of ends as through the proxy (`proxy/src/connection.rs`): a clean close means delivered, and a failure of one leg is a reset of the
//! other.

use crate::{
    blob::{Piece, Reader, Writer},
    config::Raw,
    error_response::Error,
    leg_stream::close_gently,
    limits::{ClientShare, Reserved},
    shared::{Caller, House},
};
use bytes::Bytes;
use socket2::SockRef;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{interval, sleep, timeout},
};

/// Runs that may wait to be forwarded: what is stored of them is accounted for.
const RUNS: usize = 16;
/// Bytes that are read at once when they can be reserved, and when they cannot.
const PIECE: usize = 32 * 1024;
const LEAST: usize = 4 * 1024;
/// How often acknowledgements are looked for when an end waits for one.
const LOOK: Duration = Duration::from_millis(5);
/// How often it is looked whether a leg has failed of which nothing is wanted.
const WATCH: Duration = Duration::from_secs(1);

/// What is forwarded.
enum Run {
    /// What was stored, from its beginning.
    Stored(Reader),
    /// What did not fit, its place (a direction has one), and its reservation.
    Piece(Bytes, OwnedSemaphorePermit, Option<Reserved>),
    /// Its sender has finished.
    Finish,
}

/// How far a direction has come.
#[derive(Debug, Default)]
struct Progress {
    /// Its source has finished sending.
    heard_all: AtomicBool,
    /// All of that has been written to the other leg.
    said_all: AtomicBool,
    bytes: AtomicU64,
}

/// Carries both directions until both ends have finished; an error is a reset of both legs.
/// What has been read of either before goes first.
pub(crate) async fn relay(
    caller: &Arc<Caller>,
    (near, said): (TcpStream, Bytes),
    (far, answered): (TcpStream, Bytes),
    raw: Raw,
) -> Result<(), Error> {
    let house = &caller.house;
    house.counters.raw_connections.add(1);
    let (up, down) = (Progress::default(), Progress::default());
    let both = async {
        let upward = carry(caller, (&near, &far), said, raw, (&up, &down));
        let downward = carry(caller, (&far, &near), answered, raw, (&down, &up));
        tokio::try_join!(upward, downward).map(drop)
    };
    let outcome = tokio::select! {
        outcome = both => outcome,
        failure = watch(&near, &far) => Err(failure),
    };
    let (sent, received) = (up.bytes.load(Ordering::Relaxed), down.bytes.load(Ordering::Relaxed));
    house.counters.raw_bytes.add(sent + received);
    tracing::info!(up = sent, down = received, ending = if outcome.is_ok() { "finished" } else { "failed" }, "connection");
    if outcome.is_err() {
        for leg in [&near, &far] {
            let _ = SockRef::from(leg).set_linger(Some(Duration::ZERO));
        }
    }
    Ok(outcome?)
}

/// Finds out a leg that has failed while nothing was asked of it.
async fn watch(near: &TcpStream, far: &TcpStream) -> io::Error {
    let mut ticks = interval(WATCH);
    loop {
        ticks.tick().await;
        if has_failed(near) || has_failed(far) {
            return io::ErrorKind::ConnectionReset.into();
        }
    }
}

/// Whether a leg has failed. One that has been closed from both ends has not.
fn has_failed(leg: &TcpStream) -> bool {
    !matches!(leg.take_error(), Ok(None))
}

async fn carry(
    caller: &Arc<Caller>,
    (source, sink): (&TcpStream, &TcpStream),
    first: Bytes,
    raw: Raw,
    (own, other): (&Progress, &Progress),
) -> io::Result<()> {
    let (queue, runs) = mpsc::channel(RUNS);
    let store = async {
        match raw {
            Raw::Store(lull) => store(&caller.house, &caller.share, source, first, lull, &queue).await,
            Raw::Stream => stream(&caller.share, source, first, None, &queue).await.map(drop),
        }?;
        own.heard_all.store(true, Ordering::Release);
        drop(queue.send(Run::Finish).await);
        Ok(())
    };
    tokio::try_join!(store, forward(runs, source, sink, own, other)).map(drop)
}

/// Receives all that comes and hands it on in runs.
async fn store(
    house: &Arc<House>,
    share: &ClientShare,
    source: &TcpStream,
    first: Bytes,
    lull: Option<Duration>,
    queue: &mpsc::Sender<Run>,
) -> io::Result<()> {
    let mut writer: Option<Writer> = None;
    let mut piece = first;
    loop {
        if !piece.is_empty() {
            let stored = match &mut writer {
                Some(writer) => writer.push(&piece).await,
                None => match Writer::new(house.room(), None) {
                    Some(new) => writer.insert(new).push(&piece).await,
                    None => false,
                },
            };
            if !stored {
                house.counters.overflows.add(1);
                tracing::info!("a direction of a connection is larger than there is room for: it goes on as it comes");
                if let Some(full) = writer.take() {
                    hand(queue, Run::Stored(full.blob().reader())).await?;
                }
                if stream(share, source, std::mem::take(&mut piece), lull, queue).await? {
                    return Ok(());
                }
            }
        }
        let next = read(source);
        let next = match lull.filter(|_| writer.is_some()) {
            Some(lull) => timeout(lull, next).await.ok().transpose()?,
            None => Some(next.await?),
        };
        let ended = next.as_ref().is_none_or(Bytes::is_empty);
        if ended && let Some(whole) = writer.take() {
            let reader = whole.blob().reader();
            // What the disk had no room for is still there to be read.
            let _ = whole.finish(None).await;
            hand(queue, Run::Stored(reader)).await?;
        }
        match next {
            Some(bytes) if bytes.is_empty() => return Ok(()),
            next => piece = next.unwrap_or_default(),
        }
    }
}

/// Hands on what comes, as it comes; until the end, which it returns, or until a lull.
async fn stream(
    share: &ClientShare,
    source: &TcpStream,
    first: Bytes,
    lull: Option<Duration>,
    queue: &mpsc::Sender<Run>,
) -> io::Result<bool> {
    let places = Arc::new(Semaphore::new(1));
    let (mut piece, mut reserved) = (first, None);
    loop {
        if !piece.is_empty() {
            let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
            hand(queue, Run::Piece(piece, place, reserved)).await?;
        }
        // Backpressure: nothing is read before the previous piece has been written.
        drop(places.acquire().await.map_err(io::Error::other)?);
        let next = match lull {
            Some(lull) => timeout(lull, read_within(share, source)).await.ok().transpose()?,
            None => Some(read_within(share, source).await?),
        };
        match next {
            None => return Ok(false),
            Some((bytes, _)) if bytes.is_empty() => return Ok(true),
            Some(next) => (piece, reserved) = next,
        }
    }
}

async fn hand(queue: &mpsc::Sender<Run>, run: Run) -> io::Result<()> {
    queue.send(run).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
}

/// What has come; nothing at its end.
async fn read(source: &TcpStream) -> io::Result<Bytes> {
    loop {
        source.readable().await?;
        if let Some(bytes) = try_read(source, PIECE)? {
            return Ok(bytes);
        }
    }
}

/// As [`read`], with a reservation for what is read. Without one it reads a little, so that the
/// connection makes progress.
async fn read_within(share: &ClientShare, source: &TcpStream) -> io::Result<(Bytes, Option<Reserved>)> {
    loop {
        source.readable().await?;
        let reserved = share.try_reserve_spare(PIECE as u64);
        if let Some(bytes) = try_read(source, if reserved.is_some() { PIECE } else { LEAST })? {
            return Ok((bytes, reserved));
        }
    }
}

/// What can be read now; none when nothing has come.
fn try_read(source: &TcpStream, most: usize) -> io::Result<Option<Bytes>> {
    let mut bytes = vec![0; most];
    match source.try_read(&mut bytes) {
        Ok(length) => {
            bytes.truncate(length);
            bytes.shrink_to_fit();
            Ok(Some(bytes.into()))
        }
        Err(why) if why.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(why) => Err(why),
    }
}

/// Writes what is handed on, and the end.
async fn forward(mut runs: mpsc::Receiver<Run>, source: &TcpStream, sink: &TcpStream, own: &Progress, other: &Progress) -> io::Result<()> {
    while let Some(run) = runs.recv().await {
        match run {
            Run::Piece(bytes, _place, _reserved) => write(sink, &bytes, own).await?,
            Run::Stored(mut reader) => {
                while let Piece::Bytes(bytes) = reader.next().await? {
                    write(sink, &bytes, own).await?;
                }
            }
            Run::Finish => {
                own.said_all.store(true, Ordering::Release);
                // To an end that has finished itself the end is told when the other has acknowledged all that it sent.
                while other.heard_all.load(Ordering::Acquire) && !(other.said_all.load(Ordering::Acquire) && has_acknowledged(source)?) {
                    sleep(LOOK).await;
                }
                close_gently(sink)?;
                SockRef::from(sink).shutdown(std::net::Shutdown::Write)?;
                return Ok(());
            }
        }
    }
    Err(io::ErrorKind::BrokenPipe.into())
}

/// Whether the peer has everything that was sent to it.
fn has_acknowledged(leg: &TcpStream) -> io::Result<bool> {
    if has_failed(leg) {
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    let info = intercept::tcp_info(leg)?;
    Ok(info.unacked == 0 && info.notsent_bytes == 0)
}

async fn write(sink: &TcpStream, mut bytes: &[u8], own: &Progress) -> io::Result<()> {
    while !bytes.is_empty() {
        sink.writable().await?;
        match sink.try_write(bytes) {
            Ok(length) => {
                own.bytes.fetch_add(length as u64, Ordering::Relaxed);
                bytes = &bytes[length..];
            }
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
            Err(why) => return Err(why),
        }
    }
    Ok(())
}
