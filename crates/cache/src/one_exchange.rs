//! Relays one request and its response as they come, and then ends the connection: where the next
//! request could be for another server.

use crate::{
    client::Client,
    config::RawMode,
    error_response::Error,
    framing::{BodyFraming, BodyScanner},
    leg_stream::{LegParts, linger},
    raw::{ACK_POLL_INTERVAL, Direction, DirectionState, Leg, carry, read_reserved, watch_for_failure, write},
};
use bytes::Bytes;
use socket2::SockRef;
use std::{
    io,
    mem::MaybeUninit,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use tokio::{net::TcpStream, time::sleep};

/// Interval at which the progress of both directions is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// How long the server may be silent when the client has sent more: it regards the response as
/// complete then.
const NEXT_REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// What a server gets of a request.
#[derive(Debug)]
pub(crate) struct Upload {
    pub(crate) head: Vec<u8>,
    /// The framing of the body. None: it ends when the client has finished.
    pub(crate) framing: Option<BodyFraming>,
    /// What has been read of the body, and perhaps of what follows.
    pub(crate) read_ahead: Bytes,
}

/// Relays a request, where it has not been sent yet, and the response to it, which ends when the
/// server has finished. `far_bytes` were read from the server before.
///
/// # Errors
/// When a leg fails, or neither makes progress. Both are reset then.
pub(crate) async fn relay_exchange(client: &Arc<Client>, near: TcpStream, upload: Option<Upload>, far: LegParts) -> Result<(), Error> {
    let shared = &client.shared;
    shared.counters.raw_connections.add(1);
    let ((near, _), (far, far_bytes)) = (Leg::of(near.into()), Leg::of(far));
    let (up, down) = (DirectionState::default(), DirectionState::default());
    let upward = async {
        if let Some(upload) = upload {
            // The server may answer before it has read everything, and reset the connection then:
            // its answer decides.
            let _ = send(client, &near, &far, upload, &up).await;
        }
        std::future::pending::<()>().await;
    };
    let downward = async {
        let direction = Direction { source: &far, sink: &near, state: &down, opposite: &up };
        let outcome = carry(client, direction, far_bytes, RawMode::Stream).await;
        while outcome.is_err() && near.unacknowledged().is_ok_and(|bytes| bytes > 0) {
            sleep(ACK_POLL_INTERVAL).await;
        }
        outcome
    };
    let outcome = tokio::select! {
        outcome = downward => outcome,
        () = upward => Ok(()),
        why = until_stalled(&near, &up, &down, shared.config.patience) => Err(why),
        why = watch_for_failure((&near, &down), (&far, &up)) => Err(why),
    };
    let (sent, received) = (up.bytes.load(Ordering::Relaxed), down.bytes.load(Ordering::Relaxed));
    shared.counters.raw_bytes.add(sent + received);
    tracing::info!(up = sent, down = received, ending = if outcome.is_ok() { "finished" } else { "failed" }, "connection");
    match outcome {
        Ok(()) => {
            // What the client has sent since must not reset the connection before it has read the
            // response.
            linger(near.stream).await;
            Ok(())
        }
        Err(why) => {
            for leg in [&near, &far] {
                let _ = SockRef::from(&leg.stream).set_linger(Some(Duration::ZERO));
            }
            Err(why.into())
        }
    }
}

/// Sends a request to its end.
async fn send(client: &Client, near: &Leg, far: &Leg, upload: Upload, state: &DirectionState) -> io::Result<()> {
    let Upload { head, framing, read_ahead } = upload;
    write(far, &head, state).await?;
    let mut scanner = BodyScanner::new(framing.unwrap_or(BodyFraming::Length(u64::MAX)));
    let mut scanned = scanner.scan(&read_ahead);
    write(far, &read_ahead[..scanned.bytes], state).await?;
    while !scanned.is_end {
        let (bytes, _reservation) = read_reserved(&client.share, near).await?;
        if bytes.is_empty() {
            return SockRef::from(&far.stream).shutdown(std::net::Shutdown::Write);
        }
        scanned = scanner.scan(&bytes);
        write(far, &bytes[..scanned.bytes], state).await?;
    }
    Ok(())
}

/// Waits until the exchange makes no more progress.
async fn until_stalled(near: &Leg, up: &DirectionState, down: &DirectionState, patience: Duration) -> io::Error {
    let mut carried = 0;
    let mut since = Instant::now();
    loop {
        sleep(POLL_INTERVAL.min(patience)).await;
        // What the client has not acknowledged would be lost with the connection.
        let unacknowledged = near.unacknowledged().unwrap_or(0) as u64;
        let now = (up.bytes.load(Ordering::Relaxed) + down.bytes.load(Ordering::Relaxed)).saturating_sub(unacknowledged);
        if now != carried {
            (carried, since) = (now, Instant::now());
        }
        let waits = down.bytes.load(Ordering::Relaxed) > 0 && unacknowledged == 0 && has_unread(near);
        let limit = if waits { patience.min(NEXT_REQUEST_TIMEOUT) } else { patience };
        if since.elapsed() >= limit {
            return io::Error::new(io::ErrorKind::TimedOut, format!("nothing was sent or received for {} s", limit.as_secs_f64()));
        }
    }
}

/// Whether bytes of a leg wait to be read.
fn has_unread(leg: &Leg) -> bool {
    SockRef::from(&leg.stream).peek(&mut [MaybeUninit::uninit()]).is_ok_and(|bytes| bytes > 0)
}
