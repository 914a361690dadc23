//! The service manager's watchdog: it kills and restarts a service that no longer says it is alive.

use proxy::Liveness;
use sd_notify::NotifyState;
use std::{io, thread};

/// How often it is said that the service is alive, within the time that the service manager waits.
/// Between two such moments every event loop must have turned.
const TIMES: u32 = 3;

/// Starts a thread that tells the service manager that the proxy is alive, as long as every worker
/// turns its event loop; does nothing where the service manager has no watchdog.
pub(crate) fn start(mut liveness: Liveness) -> io::Result<()> {
    let Some(limit) = sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero()) else { return Ok(()) };
    let work = move || {
        let mut alive = true;
        loop {
            let before = alive;
            alive = liveness.check();
            if alive {
                let _ = sd_notify::notify(&[NotifyState::Watchdog]);
            } else if before {
                tracing::warn!("a worker has not turned its event loop for {:?}", limit / TIMES);
            }
            thread::sleep(limit / TIMES);
        }
    };
    thread::Builder::new().name("tandem-watchdog".into()).spawn(work).map(drop)
}
