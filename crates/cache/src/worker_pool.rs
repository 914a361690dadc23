//! The picture workers of a cache: processes that make pictures smaller, kept for the next picture.
//!
//! A worker has one picture at a time. One that dies, takes too long or answers nonsense costs its
//! picture, which stays as it is, and is replaced when the next picture comes. The caller bounds
//! how many pictures are in progress, and so the number of workers.

mod starter;
mod worker;

pub use starter::WorkerProgram;

use crate::shrink::{Kind, Wish};
use starter::Starter;
use std::{
    sync::{
        Mutex, Once, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::time::timeout;
use worker::Worker;

/// How long a worker may take until it is ready.
const START: Duration = Duration::from_secs(10);
/// A worker that has been busy for so long in all is replaced. It bounds what one that a picture
/// has taken over can do to the pictures after it.
const LIFE: Duration = Duration::from_secs(60);
/// Failures are warned of so often at most; pictures could cause any number of them.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug)]
pub(crate) struct WorkerPool {
    starter: Starter,
    /// Workers that wait for a picture, the one that was used last at the end.
    idle: Mutex<Vec<Worker>>,
    patience: Duration,
    begun: Instant,
    /// Milliseconds since `begun` at which the next failure is warned of.
    warn_from: AtomicU64,
}

/// Why a picture was not tried, or not to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    /// It may be tried again.
    #[error("cannot start a picture worker: {0}")]
    NotStarted(String),
    /// The picture is to blame, as far as can be known.
    #[error("a picture worker {0}")]
    Broken(String),
}

/// What a worker makes of a picture: a smaller one, or the reason why it stays as it is.
pub(crate) type Made = Result<Vec<u8>, String>;

impl WorkerPool {
    /// `patience` is how long a picture may take.
    pub(crate) fn new(program: WorkerProgram, wish: Wish, patience: Duration) -> Self {
        let life = LIFE + patience + Duration::from_secs(1);
        WorkerPool {
            starter: Starter::new(program, wish, life.as_secs()),
            idle: Mutex::default(),
            patience,
            begun: Instant::now(),
            warn_from: AtomicU64::new(0),
        }
    }

    /// Makes a picture smaller. When the future is dropped, the worker that has the picture ends.
    pub(crate) async fn transcode(&self, picture: &[u8], from: Kind, to: Kind) -> Result<Made, Failed> {
        let made = self.try_transcode(picture, from, to).await;
        if let Err(why) = &made {
            self.tell(why);
        }
        made
    }

    async fn try_transcode(&self, picture: &[u8], from: Kind, to: Kind) -> Result<Made, Failed> {
        let mut worker = match self.take_idle() {
            Some(worker) => worker,
            None => self.start().await?,
        };
        let begun = Instant::now();
        let made = match timeout(self.patience, worker.transcode(picture, from, to)).await {
            Ok(Ok(made)) => made,
            Ok(Err(why)) => return Err(Failed::Broken(format!("failed with a picture of {} bytes: {why}", picture.len()))),
            Err(_) => {
                return Err(Failed::Broken(format!("took more than {:?} for a picture of {} bytes", self.patience, picture.len())));
            }
        };
        worker.busy += begun.elapsed();
        if worker.busy < LIFE {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(worker);
        }
        Ok(made)
    }

    /// Takes a worker that is still there; forgets those that are not.
    fn take_idle(&self) -> Option<Worker> {
        loop {
            let worker = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
            if worker.is_ready() {
                return Some(worker);
            }
        }
    }

    async fn start(&self) -> Result<Worker, Failed> {
        let started = timeout(START, Worker::start(&self.starter)).await;
        let (worker, hello) = match started {
            Ok(started) => started.map_err(|why| Failed::NotStarted(why.to_string()))?,
            Err(_) => return Err(Failed::NotStarted(format!("it was not ready after {START:?}"))),
        };
        if !hello.filtered {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| {
                tracing::warn!(
                    "picture workers: their system calls are not filtered, as this kernel or architecture has no filter for them; they \
                     have no privileges all the same (--no-shrink leaves pictures as they are)"
                );
            });
        }
        Ok(worker)
    }

    fn tell(&self, why: &Failed) {
        let now = self.begun.elapsed();
        let until = (now + WARN_EVERY).as_millis() as u64;
        let due = |from| (now.as_millis() as u64 >= from).then_some(until);
        if self.warn_from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, due).is_ok() {
            tracing::warn!("{why}; the picture passes unchanged (said at most once in {WARN_EVERY:?})");
        } else {
            tracing::debug!("{why}; the picture passes unchanged");
        }
    }
}
