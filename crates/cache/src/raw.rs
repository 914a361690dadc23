//! Store and forward for any TCP connection, as the TCP proxies that Wei et al. found (§I, §III-C):
//! a message is received at full speed, and forwarded when it is complete. It is complete when its
//! sender has finished, or, since most protocols wait for a reply on a connection that stays open,
//! when the sender has paused for a while. A pause in the middle of a message only makes a part of
//! it be forwarded early.
//!
//! What exceeds the storage is streamed, as by the proxy. A reset would break connections that
//! worked without the cache.
//!
//! Connections end as in the proxy (`proxy/src/connection.rs`): a clean close means that everything
//! was delivered. The failure of one leg resets the other, once the peer of that has acknowledged
//! what was received before.

use crate::{
    blob::{BlobPiece, BlobReader, BlobWriter},
    client::Client,
    config::RawMode,
    error_response::Error,
    leg_stream::{LegParts, disable_reset_on_close},
    limits::{ClientShare, Reservation},
    shared::Shared,
};
use bytes::Bytes;
use intercept::{LastDelivery, sys};
use socket2::SockRef;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    net::TcpStream,
    sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc},
    time::{sleep, timeout},
};

/// Stored messages that may wait to be forwarded. Their bytes count towards the store's limits.
const MAX_QUEUED: usize = 16;
/// Bytes of one read when memory for them can be reserved.
const READ_BYTES: usize = 32 * 1024;
/// Bytes of one read without a reservation.
const MIN_READ_BYTES: usize = 4 * 1024;
/// Interval at which a leg is polled for acknowledgements that its peer's close waits for.
pub(crate) const ACK_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Interval at which both legs are checked for failures that no read or write reports.
const FAILURE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// What the receiving half of a direction hands to the forwarding half.
enum ForwardItem {
    /// A stored message.
    Stored(BlobReader),
    /// Bytes to be streamed, the direction's only permit for that, and the reservation of the
    /// bytes.
    Streamed(Bytes, OwnedSemaphorePermit, Option<Reservation>),
    /// The sender has finished.
    Finish,
}

/// A leg, and whether its connection is over.
#[derive(Debug)]
pub(crate) struct Leg {
    pub(crate) stream: TcpStream,
    /// Set at its first error, which the kernel reports only once: a later read of the rest of the
    /// receive queue returns an end of file, as after a FIN.
    has_failed: AtomicBool,
    failure: Notify,
}

impl Leg {
    /// A leg, and the bytes that were read from it before.
    pub(crate) fn of(parts: LegParts) -> (Self, Bytes) {
        let LegParts { stream, read_ahead, has_failed } = parts;
        (Leg { stream, has_failed: AtomicBool::new(has_failed), failure: Notify::new() }, read_ahead)
    }

    fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Notes an error of the leg.
    fn fail(&self, why: io::Error) -> io::Error {
        self.has_failed.store(true, Ordering::Release);
        self.failure.notify_waiters();
        why
    }

    /// Asks the socket whether the connection is over. One that both ends have closed is not.
    fn check(&self) -> io::Result<()> {
        match self.stream.take_error() {
            Ok(None) if self.has_failed() => Err(io::ErrorKind::ConnectionReset.into()),
            Ok(None) => Ok(()),
            Ok(Some(why)) | Err(why) => Err(self.fail(why)),
        }
    }

    /// Returns the error of a leg that has failed, when it has.
    async fn failed(&self) -> io::Error {
        let failure = self.failure.notified();
        tokio::pin!(failure);
        failure.as_mut().enable();
        if !self.has_failed() {
            failure.await;
        }
        io::ErrorKind::ConnectionReset.into()
    }

    /// Bytes that the peer has not acknowledged; a FIN counts as one.
    pub(crate) fn unacknowledged(&self) -> io::Result<usize> {
        self.check()?;
        sys::unacknowledged(&self.stream).map_err(|why| self.fail(why))
    }
}

/// The state of one direction.
#[derive(Debug, Default)]
pub(crate) struct DirectionState {
    /// The FIN of its source has been received.
    source_finished: AtomicBool,
    /// Everything received has been written to its sink.
    all_written: AtomicBool,
    /// Bytes written to its sink.
    pub(crate) bytes: AtomicU64,
}

/// A direction as its two halves see it.
#[derive(Clone, Copy)]
pub(crate) struct Direction<'a> {
    pub(crate) source: &'a Leg,
    pub(crate) sink: &'a Leg,
    pub(crate) state: &'a DirectionState,
    /// The state of the opposite direction.
    pub(crate) opposite: &'a DirectionState,
}

type ItemSender = mpsc::Sender<ForwardItem>;

/// Relays both directions until both ends have finished. Bytes that were read from a leg before go
/// first.
///
/// # Errors
/// When a leg fails. Both legs are then reset, the other one after its peer has received what was
/// read from the failed one.
pub(crate) async fn relay(client: &Arc<Client>, near: LegParts, far: LegParts, mode: RawMode) -> Result<(), Error> {
    let shared = &client.shared;
    shared.counters.raw_connections.add(1);
    let ((near, near_bytes), (far, far_bytes)) = (Leg::of(near), Leg::of(far));
    let (up, down) = (DirectionState::default(), DirectionState::default());
    let both = async {
        let upward = carry(client, Direction { source: &near, sink: &far, state: &up, opposite: &down }, near_bytes, mode);
        let downward = carry(client, Direction { source: &far, sink: &near, state: &down, opposite: &up }, far_bytes, mode);
        let (upward, downward) = tokio::join!(upward, downward);
        let outcome = upward.and(downward);
        while outcome.is_err() && [&near, &far].into_iter().any(|leg| leg.unacknowledged().is_ok_and(|bytes| bytes > 0)) {
            sleep(ACK_POLL_INTERVAL).await;
        }
        outcome
    };
    let outcome = tokio::select! {
        outcome = both => outcome,
        failure = watch_for_failure((&near, &down), (&far, &up)) => Err(failure),
    };
    let sent = up.bytes.load(Ordering::Relaxed);
    let received = down.bytes.load(Ordering::Relaxed);
    shared.counters.raw_bytes.add(sent + received);
    tracing::info!(up = sent, down = received, ending = if outcome.is_ok() { "finished" } else { "failed" }, "connection");
    if outcome.is_err() {
        for leg in [&near, &far] {
            let _ = SockRef::from(&leg.stream).set_linger(Some(Duration::ZERO));
        }
    }
    Ok(outcome?)
}

/// Detects failures of legs that are neither read nor written. Returns when nothing is left to wait
/// for: both legs have failed, or the peer of one takes nothing more of what the failed one has
/// sent. The directions are those that end at the legs.
pub(crate) async fn watch_for_failure(near: (&Leg, &DirectionState), far: (&Leg, &DirectionState)) -> io::Error {
    let delivery = loop {
        if near.0.check().is_err() || far.0.check().is_err() {
            break LastDelivery::new(Instant::now());
        }
        tokio::select! {
            () = sleep(FAILURE_POLL_INTERVAL) => {}
            _ = near.0.failed() => {}
            _ = far.0.failed() => {}
        }
    };
    let (leg, direction) = if near.0.has_failed() { far } else { near };
    let mut delivery = delivery;
    while let Ok(unacknowledged) = leg.unacknowledged() {
        let acknowledged = direction.bytes.load(Ordering::Relaxed).saturating_sub(unacknowledged as u64);
        if !delivery.goes_on(acknowledged, || sys::is_blocked(&leg.stream), Instant::now()) {
            break;
        }
        sleep(delivery.check_at().saturating_duration_since(Instant::now())).await;
    }
    io::ErrorKind::ConnectionReset.into()
}

/// Relays one direction. `first` was read from its source before. When the source fails, what was
/// received is forwarded before the error is returned.
pub(crate) async fn carry(client: &Arc<Client>, direction: Direction<'_>, first: Bytes, mode: RawMode) -> io::Result<()> {
    let Direction { source, sink, state, .. } = direction;
    let (sender, items) = mpsc::channel(MAX_QUEUED);
    let receive = async move {
        let received = match mode {
            RawMode::StoreAndForward(lull) => store(&client.shared, &client.share, source, first, lull, &sender).await,
            RawMode::Stream => stream(&client.share, source, first, None, &sender).await.map(drop),
        };
        // Without this item the forwarding half ends when it has forwarded all others.
        received?;
        state.source_finished.store(true, Ordering::Release);
        drop(sender.send(ForwardItem::Finish).await);
        Ok(())
    };
    let both = async {
        let (received, forwarded) = tokio::join!(receive, forward(items, direction));
        received.and(forwarded)
    };
    tokio::select! {
        outcome = both => outcome,
        why = sink.failed() => Err(why),
    }
}

/// Receives until the source has finished, and hands on each message when it is complete: after a
/// pause of `lull`, or at the end. What does not fit into the storage is streamed.
async fn store(
    shared: &Arc<Shared>,
    share: &ClientShare,
    source: &Leg,
    first: Bytes,
    lull: Option<Duration>,
    sender: &ItemSender,
) -> io::Result<()> {
    let mut writer: Option<BlobWriter> = None;
    let mut bytes = first;
    loop {
        if !bytes.is_empty() && !append(&mut writer, shared, &bytes).await {
            shared.counters.overflows.add(1);
            tracing::info!("there is no room to store all of one direction of a connection: it is streamed");
            if let Some(full) = writer.take() {
                hand_on(sender, ForwardItem::Stored(full.blob().reader())).await?;
            }
            if stream(share, source, std::mem::take(&mut bytes), lull, sender).await? {
                return Ok(());
            }
        }
        let next = read(source);
        let next = match lull.filter(|_| writer.is_some()) {
            Some(lull) => timeout(lull, next).await.ok().transpose(),
            None => next.await.map(Some),
        };
        // The message ends with a pause (none), with the end of the stream (empty), or with a
        // failure.
        let is_complete = next.as_ref().map_or(true, |next| next.as_ref().is_none_or(Bytes::is_empty));
        if is_complete && let Some(complete) = writer.take() {
            let reader = complete.blob().reader();
            // Bytes that the disk did not take are still readable.
            let _ = complete.finish(None).await;
            hand_on(sender, ForwardItem::Stored(reader)).await?;
        }
        match next? {
            Some(next) if next.is_empty() => return Ok(()),
            next => bytes = next.unwrap_or_default(),
        }
    }
}

/// Appends to the message that is being stored, or to a new one. Returns false when there is no
/// room.
async fn append(writer: &mut Option<BlobWriter>, shared: &Arc<Shared>, bytes: &[u8]) -> bool {
    match writer {
        Some(writer) => writer.append(bytes).await,
        None => match BlobWriter::new(shared.quota(), None) {
            Some(new) => writer.insert(new).append(bytes).await,
            None => false,
        },
    }
}

/// Hands bytes on as they are received. Returns true when the source has finished, false after a
/// pause of `lull`.
async fn stream(share: &ClientShare, source: &Leg, first: Bytes, lull: Option<Duration>, sender: &ItemSender) -> io::Result<bool> {
    let permits = Arc::new(Semaphore::new(1));
    let mut bytes = first;
    let mut reservation = None;
    loop {
        if !bytes.is_empty() {
            let permit = permits.clone().acquire_owned().await.map_err(io::Error::other)?;
            hand_on(sender, ForwardItem::Streamed(bytes, permit, reservation)).await?;
        }
        // Backpressure: nothing is read before the previous bytes have been written.
        drop(permits.acquire().await.map_err(io::Error::other)?);
        let next = match lull {
            Some(lull) => timeout(lull, read_reserved(share, source)).await.ok().transpose()?,
            None => Some(read_reserved(share, source).await?),
        };
        match next {
            None => return Ok(false),
            Some((next, _)) if next.is_empty() => return Ok(true),
            Some(next) => (bytes, reservation) = next,
        }
    }
}

async fn hand_on(sender: &ItemSender, item: ForwardItem) -> io::Result<()> {
    sender.send(item).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
}

/// Reads what has been received; nothing at the end of the stream.
async fn read(source: &Leg) -> io::Result<Bytes> {
    loop {
        source.stream.readable().await?;
        if let Some(bytes) = try_read(source, READ_BYTES)? {
            return Ok(bytes);
        }
    }
}

/// As [`read`], with a reservation for the bytes. Without one only a few bytes are read, so that
/// the connection still makes progress.
pub(crate) async fn read_reserved(share: &ClientShare, source: &Leg) -> io::Result<(Bytes, Option<Reservation>)> {
    loop {
        source.stream.readable().await?;
        let reservation = share.try_reserve_spare(READ_BYTES as u64);
        let limit = if reservation.is_some() { READ_BYTES } else { MIN_READ_BYTES };
        if let Some(bytes) = try_read(source, limit)? {
            return Ok((bytes, reservation));
        }
    }
}

/// Reads at most `limit` bytes. None when there is nothing to read yet.
fn try_read(source: &Leg, limit: usize) -> io::Result<Option<Bytes>> {
    let mut bytes = vec![0; limit];
    match source.stream.try_read(&mut bytes) {
        Ok(0) if source.has_failed() => Err(io::ErrorKind::ConnectionReset.into()),
        Ok(length) => {
            bytes.truncate(length);
            bytes.shrink_to_fit();
            Ok(Some(bytes.into()))
        }
        Err(why) if why.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(why) => Err(source.fail(why)),
    }
}

/// Writes what is handed on, and at last the FIN.
async fn forward(mut items: mpsc::Receiver<ForwardItem>, direction: Direction<'_>) -> io::Result<()> {
    let Direction { sink, state, .. } = direction;
    while let Some(item) = items.recv().await {
        match item {
            ForwardItem::Streamed(bytes, _permit, _reservation) => write(sink, &bytes, state).await?,
            ForwardItem::Stored(mut reader) => {
                // Without its message the sink's peer would wait for ever.
                while let BlobPiece::Data(bytes) = reader.next().await.map_err(|why| sink.fail(why))? {
                    write(sink, &bytes, state).await?;
                }
            }
            ForwardItem::Finish => return finish(direction).await,
        }
    }
    Err(io::ErrorKind::BrokenPipe.into())
}

/// Sends a FIN to the sink. If the sink has finished too, that would tell it that everything it
/// sent was delivered: the FIN then waits until the source has acknowledged all of that.
async fn finish(direction: Direction<'_>) -> io::Result<()> {
    let Direction { source, sink, state, opposite } = direction;
    state.all_written.store(true, Ordering::Release);
    while opposite.source_finished.load(Ordering::Acquire) {
        let unacknowledged = source.unacknowledged()?;
        if opposite.all_written.load(Ordering::Acquire) && unacknowledged == 0 {
            break;
        }
        sleep(ACK_POLL_INTERVAL).await;
    }
    let closed = disable_reset_on_close(&sink.stream).and_then(|()| SockRef::from(&sink.stream).shutdown(std::net::Shutdown::Write));
    closed.map_err(|why| sink.fail(why))
}

pub(crate) async fn write(sink: &Leg, mut bytes: &[u8], state: &DirectionState) -> io::Result<()> {
    while !bytes.is_empty() {
        sink.stream.writable().await?;
        match sink.stream.try_write(bytes) {
            Ok(length) => {
                state.bytes.fetch_add(length as u64, Ordering::Relaxed);
                bytes = &bytes[length..];
            }
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
            Err(why) => return Err(sink.fail(why)),
        }
    }
    Ok(())
}
