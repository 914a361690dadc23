//! Starts the next proxy, for `tandem restart`.

use super::{
    messages::RestartReport,
    present::{Phase, Takeovers},
};
use std::{
    process::Child,
    thread,
    time::{Duration, Instant},
};

/// Time limit for a restart: longer than the time limits of a takeover together.
const RESTART_TIMEOUT: Duration = Duration::from_secs(60);
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

impl Takeovers {
    /// Starts the next proxy, and waits until it is in charge.
    ///
    /// # Errors
    /// Why it is not. This proxy then goes on.
    pub(crate) fn restart(&self) -> Result<RestartReport, String> {
        let launch = self.launch.as_ref().ok_or("this proxy does not know how it was started (is /proc mounted?)")?;
        let Ok(_one_at_a_time) = self.restarting.try_lock() else { return Err("another restart is in progress".into()) };
        if let Phase::Left(_) = *self.phase() {
            return Err("this proxy drains: another process is in charge already".into());
        }
        launch.check()?;
        self.forget_failure();
        let mut next = launch.start()?;
        let outcome = self.wait_for(&mut next);
        match outcome {
            Ok(_) => watch(next),
            Err(_) => {
                let _ = next.kill();
                let _ = next.wait();
            }
        }
        outcome
    }

    fn wait_for(&self, next: &mut Child) -> Result<RestartReport, String> {
        let begun = Instant::now();
        loop {
            let ended = next.try_wait().map_err(|why| format!("cannot wait for the new process: {why}"))?;
            let phase = self.phase().clone();
            if let Phase::Left(report) = phase {
                return Ok(report);
            }
            // It may have said why it ended: its last message is read when the phase is `Busy`.
            if let Some(status) = ended
                && !matches!(phase, Phase::Busy)
            {
                let why = self.failure().unwrap_or_else(|| format!("the new process ended before it was ready ({status}): see the log"));
                return Err(why);
            }
            if begun.elapsed() > RESTART_TIMEOUT {
                return Err(format!("the new process was not in charge after {} s", RESTART_TIMEOUT.as_secs()));
            }
            thread::sleep(CHECK_INTERVAL);
        }
    }
}

/// Waits for the end of the next proxy while this one drains. Otherwise it would remain as a
/// zombie, and the service manager would not notice its end.
fn watch(mut next: Child) {
    let wait = move || match next.wait() {
        Ok(status) if !status.success() => tracing::error!("the process that has taken over has ended: {status}"),
        _ => {}
    };
    // Without the thread, this process' end has the same effect.
    let _ = thread::Builder::new().name("tandem-next".into()).spawn(wait);
}
