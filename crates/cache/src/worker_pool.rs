//! A pool of picture workers: processes that transcode pictures, reused for further pictures.
//!
//! A worker has one picture at a time. If it dies, takes too long or violates the protocol, its
//! picture passes unchanged, and a new worker is started for the next one. The caller bounds the
//! number of pictures in progress, and thereby the number of workers.

mod starter;
mod worker;

pub use starter::WorkerProgram;

use crate::shrink::{PictureFormat, ShrinkOptions};
use starter::Starter;
use std::{
    sync::{
        Mutex, Once, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::time::timeout;
use worker::{PictureWorker, Transcoded};

/// How long a worker may take until it is ready.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// A worker that has been busy for this long in total is replaced. This bounds what a worker that a
/// picture has compromised can do to later pictures.
const MAX_BUSY: Duration = Duration::from_secs(60);
/// Interval between warnings about failures, at least: clients can cause any number of failures.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// The workers that wait for a picture, and the means to start more.
#[derive(Debug)]
pub(crate) struct WorkerPool {
    starter: Starter,
    /// Idle workers, the most recently used at the end.
    idle: Mutex<Vec<PictureWorker>>,
    /// How long a picture may take.
    timeout: Duration,
    begun: Instant,
    /// Milliseconds since `begun` from which the next failure is a warning.
    warn_from: AtomicU64,
}

/// Why no worker has processed a picture.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TranscodeError {
    /// The picture may be tried again.
    #[error("cannot start a picture worker: {0}")]
    NotStarted(String),
    /// The picture is presumed to be the cause.
    #[error("a picture worker {0}")]
    WorkerFailed(String),
}

impl WorkerPool {
    /// A pool without workers; they are started when pictures come. A picture may take `timeout`.
    pub(crate) fn new(program: WorkerProgram, options: ShrinkOptions, timeout: Duration) -> Self {
        let cpu_limit = MAX_BUSY + timeout + Duration::from_secs(1);
        WorkerPool {
            starter: Starter::new(program, options, cpu_limit.as_secs()),
            idle: Mutex::default(),
            timeout,
            begun: Instant::now(),
            warn_from: AtomicU64::new(0),
        }
    }

    /// Has a worker transcode a picture. When the future is dropped, that worker is killed.
    ///
    /// # Errors
    /// When no worker starts, or the worker fails. The failure has been logged.
    pub(crate) async fn transcode(&self, picture: &[u8], from: PictureFormat, to: PictureFormat) -> Result<Transcoded, TranscodeError> {
        let transcoded = self.try_transcode(picture, from, to).await;
        if let Err(why) = &transcoded {
            self.log_failure(why);
        }
        transcoded
    }

    async fn try_transcode(&self, picture: &[u8], from: PictureFormat, to: PictureFormat) -> Result<Transcoded, TranscodeError> {
        let mut worker = match self.take_idle() {
            Some(worker) => worker,
            None => self.start().await?,
        };
        let begun = Instant::now();
        let bytes = picture.len();
        let transcoded = match timeout(self.timeout, worker.transcode(picture, from, to)).await {
            Ok(Ok(transcoded)) => transcoded,
            Ok(Err(why)) => return Err(TranscodeError::WorkerFailed(format!("failed with a picture of {bytes} bytes: {why}"))),
            Err(_) => {
                return Err(TranscodeError::WorkerFailed(format!("took more than {:?} for a picture of {bytes} bytes", self.timeout)));
            }
        };
        worker.busy += begun.elapsed();
        if worker.busy < MAX_BUSY {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(worker);
        }
        Ok(transcoded)
    }

    /// Takes an idle worker, and drops those that have ended.
    fn take_idle(&self) -> Option<PictureWorker> {
        loop {
            let worker = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
            if worker.is_ready() {
                return Some(worker);
            }
        }
    }

    async fn start(&self) -> Result<PictureWorker, TranscodeError> {
        let started = timeout(START_TIMEOUT, PictureWorker::start(&self.starter)).await;
        let (worker, hello) = match started {
            Ok(started) => started.map_err(|why| TranscodeError::NotStarted(why.to_string()))?,
            Err(_) => return Err(TranscodeError::NotStarted(format!("it was not ready after {START_TIMEOUT:?}"))),
        };
        if !hello.filtered {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| {
                tracing::warn!(
                    "system calls of picture workers are not filtered: this kernel or architecture does not support it. The workers still \
                     have no privileges. --no-shrink switches them off"
                );
            });
        }
        Ok(worker)
    }

    fn log_failure(&self, why: &TranscodeError) {
        let now = self.begun.elapsed();
        let next = (now + WARN_INTERVAL).as_millis() as u64;
        let due = |from| (now.as_millis() as u64 >= from).then_some(next);
        if self.warn_from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, due).is_ok() {
            tracing::warn!("{why}; the picture passes unchanged (further failures within {WARN_INTERVAL:?} are logged as debug messages)");
        } else {
            tracing::debug!("{why}; the picture passes unchanged");
        }
    }
}
