//! The service manager's watchdog, which restarts a service that stops sending keepalives.

use proxy::Liveness;
use sd_notify::NotifyState;
use std::{io, sync::mpsc, thread};

/// Keepalives per watchdog interval. Between two of them every event loop must complete a turn.
const TIMES: u32 = 3;

/// Sends keepalives until it is dropped.
#[derive(Debug)]
pub(crate) struct Watchdog {
    _stop: Option<mpsc::Sender<()>>,
}

/// Starts a thread that sends keepalives to the service manager as long as every worker turns its
/// event loop. Does nothing if the service manager has no watchdog.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn start(mut liveness: Liveness) -> io::Result<Watchdog> {
    let Some(limit) = sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero()) else { return Ok(Watchdog { _stop: None }) };
    let (stop, stopped) = mpsc::channel::<()>();
    let work = move || {
        let mut alive = true;
        loop {
            let before = alive;
            alive = liveness.check();
            if alive {
                let _ = sd_notify::notify(&[NotifyState::Watchdog]);
            } else if before {
                tracing::warn!("the event loop of a worker has not turned for {:?}", limit / TIMES);
            }
            if stopped.recv_timeout(limit / TIMES) == Err(mpsc::RecvTimeoutError::Disconnected) {
                return;
            }
        }
    };
    thread::Builder::new().name("tandem-watchdog".into()).spawn(work)?;
    Ok(Watchdog { _stop: Some(stop) })
}
