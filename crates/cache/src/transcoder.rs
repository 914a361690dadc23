//! Schedules the transcoding of pictures. As many are transcoded at a time as there are processors,
//! each in a process of its own (`worker_pool`). Clients take turns; the queue is bounded.

use crate::{per_client::PerClient, worker_pool::WorkerPool};
use std::{net::IpAddr, sync::Arc};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Pictures of one client that may be in progress or wait: some seconds of work for one processor,
/// and about as many as a page shows at first.
const CLIENT_QUEUE: usize = 16;
/// Pictures of all clients that may be in progress or wait.
const TOTAL_QUEUE: usize = 64;

/// Admits pictures to the worker processes.
#[derive(Debug)]
pub(crate) struct Transcoder {
    slots: Arc<Semaphore>,
    queue: Arc<Semaphore>,
    /// Slots that one client may have: half of all, and at least one.
    slots_per_client: usize,
    clients: PerClient<ClientQueue>,
    pub(crate) workers: WorkerPool,
}

#[derive(Debug)]
struct ClientQueue {
    slots: Arc<Semaphore>,
    queue: Arc<Semaphore>,
}

/// The right to transcode one picture. Dropping it admits the next.
#[derive(Debug)]
pub(crate) struct TranscodePermit {
    _held: [OwnedSemaphorePermit; 4],
    _client: Arc<ClientQueue>,
}

impl Transcoder {
    /// As many slots as there are processors.
    pub(crate) fn new(workers: WorkerPool) -> Self {
        Self::with_slots(std::thread::available_parallelism().map_or(1, usize::from), workers)
    }

    fn with_slots(slots: usize, workers: WorkerPool) -> Self {
        Transcoder {
            slots: Arc::new(Semaphore::new(slots)),
            queue: Arc::new(Semaphore::new(TOTAL_QUEUE)),
            slots_per_client: (slots / 2).max(1),
            clients: PerClient::default(),
            workers,
        }
    }

    /// Waits for the client's turn. Returns none when the client's queue or the common one is full.
    pub(crate) async fn admit(&self, client: IpAddr) -> Option<TranscodePermit> {
        let new = || ClientQueue { slots: Arc::new(Semaphore::new(self.slots_per_client)), queue: Arc::new(Semaphore::new(CLIENT_QUEUE)) };
        let client = self.clients.get(client, new);
        let client_queue = client.queue.clone().try_acquire_owned().ok()?;
        let total_queue = self.queue.clone().try_acquire_owned().ok()?;
        // A client waits for a common slot with as many pictures as it may have slots: other
        // clients' pictures are at most that far behind.
        let client_slot = client.slots.clone().acquire_owned().await.ok()?;
        let slot = self.slots.clone().acquire_owned().await.ok()?;
        Some(TranscodePermit { _held: [slot, client_slot, total_queue, client_queue], _client: client })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{shrink::ShrinkOptions, worker_pool::WorkerProgram};
    use std::time::Duration;
    use tokio::time::timeout;

    #[tokio::test]
    async fn clients_take_turns_and_the_queue_is_bounded() {
        let options = ShrinkOptions { quality: 25, most_pixels: 1 };
        // Nothing is transcoded, so that no worker starts.
        let workers = WorkerPool::new(WorkerProgram::default(), options, Duration::from_secs(20));
        let transcoder = Arc::new(Transcoder::with_slots(2, workers));
        let (busy, other) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let first = transcoder.admit(busy).await.unwrap();
        let wait = |transcoder: &Arc<Transcoder>| {
            let transcoder = transcoder.clone();
            tokio::spawn(async move { transcoder.admit(busy).await })
        };
        let waiting: Vec<_> = (1..CLIENT_QUEUE).map(|_| wait(&transcoder)).collect();
        tokio::task::yield_now().await;
        assert!(transcoder.admit(busy).await.is_none(), "the client's queue is full");
        let permit = timeout(Duration::from_secs(20), transcoder.admit(other)).await.expect("it waits behind another client").unwrap();
        drop((first, permit));
        for next in waiting {
            drop(timeout(Duration::from_secs(20), next).await.expect("a queued picture is not admitted").unwrap().unwrap());
        }
    }
}
