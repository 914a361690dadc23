//! Long work without the GIL that a signal ends.

use pyo3::prelude::*;
use std::{
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{RecvTimeoutError, channel},
    },
    thread,
    time::Duration,
};

/// How often the calling thread looks for signals.
const SIGNAL_CHECK: Duration = Duration::from_millis(50);

/// Runs `work` on a thread of its own, without the GIL. Python handles signals on its main thread
/// only, which therefore waits here and handles them: if a handler raises an exception, as that of
/// Ctrl-C does, the flag that `work` gets is set, and the exception is raised when `work` has
/// returned.
///
/// # Errors
/// The exception of the signal handler.
pub(crate) fn interruptible<T: Send>(py: Python<'_>, cancelled: &Arc<AtomicBool>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    py.detach(|| {
        let (done, is_done) = channel();
        thread::scope(|scope| {
            let worker = scope.spawn(move || {
                let answer = work();
                // The receiver outlives this thread.
                let _ = done.send(());
                answer
            });
            let mut raised = None;
            while let Err(RecvTimeoutError::Timeout) = is_done.recv_timeout(SIGNAL_CHECK) {
                if raised.is_none()
                    && let Err(exception) = Python::attach(check_signals)
                {
                    cancelled.store(true, Relaxed);
                    raised = Some(exception);
                }
            }
            let answer = worker.join().unwrap_or_else(|panic| resume_unwind(panic));
            raised.map_or(Ok(answer), Err)
        })
    })
}

/// Handles the signals that have arrived.
fn check_signals(py: Python<'_>) -> PyResult<()> {
    py.check_signals()
}
