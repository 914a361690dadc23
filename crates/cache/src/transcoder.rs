//! Schedules the transcoding of pictures. A few are transcoded at a time, since each takes a
//! processor and memory for its pixels, each in a process of its own (`worker_pool`). Clients take
//! turns; the queue is bounded.

use crate::{per_client::Clients, worker_pool::WorkerPool};
use std::{net::IpAddr, sync::Arc};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Pictures that may be in progress or wait, of one client and of all. A client's are some seconds
/// of work for one processor, and about as many as a page shows at first.
const QUEUE: (usize, usize) = (16, 64);

/// See the module.
#[derive(Debug)]
pub(crate) struct Transcoder {
    places: Arc<Semaphore>,
    queue: Arc<Semaphore>,
    /// Places that one client may have: half of all, and at least one.
    per_client: usize,
    clients: Clients<OfClient>,
    pub(crate) workers: WorkerPool,
}

#[derive(Debug)]
struct OfClient {
    places: Arc<Semaphore>,
    queue: Arc<Semaphore>,
}

/// The right to transcode one picture. Dropping it admits the next.
#[derive(Debug)]
pub(crate) struct Place {
    _held: [OwnedSemaphorePermit; 4],
    _client: Arc<OfClient>,
}

impl Transcoder {
    /// As many pictures at a time as there are processors.
    pub(crate) fn new(workers: WorkerPool) -> Self {
        Self::with(std::thread::available_parallelism().map_or(1, usize::from), workers)
    }

    fn with(places: usize, workers: WorkerPool) -> Self {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Transcoder {
            places: semaphore(places),
            queue: semaphore(QUEUE.1),
            per_client: (places / 2).max(1),
            clients: Clients::default(),
            workers,
        }
    }

    /// Waits for the client's turn; returns none when too many pictures wait already.
    pub(crate) async fn place(&self, client: IpAddr) -> Option<Place> {
        let new = || OfClient { places: Arc::new(Semaphore::new(self.per_client)), queue: Arc::new(Semaphore::new(QUEUE.0)) };
        let of_client = self.clients.get(client, new);
        let queued = of_client.queue.clone().try_acquire_owned().ok()?;
        let queued_of_all = self.queue.clone().try_acquire_owned().ok()?;
        // A client waits in the common queue only for as many places as it may have, so that the
        // others' pictures are at most that far behind.
        let own = of_client.places.clone().acquire_owned().await.ok()?;
        let place = self.places.clone().acquire_owned().await.ok()?;
        Some(Place { _held: [place, own, queued_of_all, queued], _client: of_client })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{shrink::Wish, worker_pool::WorkerProgram};
    use std::time::Duration;
    use tokio::time::timeout;

    #[tokio::test]
    async fn clients_take_turns_and_the_queue_is_bounded() {
        let wish = Wish { quality: 25, most_pixels: 1 };
        // No picture comes, and so no worker starts.
        let workers = WorkerPool::new(WorkerProgram::default(), wish, Duration::from_secs(20));
        let transcoder = Arc::new(Transcoder::with(2, workers));
        let (busy, other) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let first = transcoder.place(busy).await.unwrap();
        let wait = |transcoder: &Arc<Transcoder>| {
            let transcoder = transcoder.clone();
            tokio::spawn(async move { transcoder.place(busy).await })
        };
        let waiting: Vec<_> = (1..QUEUE.0).map(|_| wait(&transcoder)).collect();
        tokio::task::yield_now().await;
        assert!(transcoder.place(busy).await.is_none(), "more than may wait");
        let place = timeout(Duration::from_secs(20), transcoder.place(other)).await.expect("it waits for another client's").unwrap();
        drop((first, place));
        for next in waiting {
            drop(timeout(Duration::from_secs(20), next).await.expect("its turn does not come").unwrap().unwrap());
        }
    }
}
