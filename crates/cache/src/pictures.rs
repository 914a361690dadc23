//! The smaller pictures that have been made of one, kept with it, so that each is made once.

use crate::{
    blob::{Blob, Room, Writer},
    shrink::Kind,
    transcoder::Transcoder,
    worker_pool::{Failed, WorkerPool},
};
use std::{
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Pictures {
    made: Mutex<Vec<(Kind, Option<Arc<Blob>>)>>,
    making: tokio::sync::Mutex<()>,
}

/// What a client wants of a picture.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) from: Kind,
    /// The kinds that the client accepts, the best first.
    pub(crate) kinds: &'a [Kind],
    pub(crate) client: IpAddr,
}

/// The outcome.
#[derive(Debug)]
pub(crate) enum Smaller {
    /// A smaller picture; the flag says that it has just been made.
    Made(Kind, Arc<Blob>, bool),
    /// None comes out smaller.
    None,
    /// Too many wait already, of this client or in all.
    NoPlace,
    /// The process that was to make it failed, or did not start.
    Failed,
}

impl Pictures {
    fn made(&self) -> MutexGuard<'_, Vec<(Kind, Option<Arc<Blob>>)>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody reads them.
    pub(crate) fn are_idle(&self) -> bool {
        self.made().iter().all(|(_, blob)| blob.as_ref().is_none_or(|blob| blob.is_idle()))
    }

    pub(crate) fn take_disk(&self) -> bool {
        self.made().iter().any(|(_, blob)| blob.as_ref().is_some_and(|blob| blob.held().1 > 0))
    }

    /// The outcome for `kinds` where it is known: the first that came out smaller, if any. Returns
    /// none when a kind has not been tried yet.
    fn known(&self, kinds: &[Kind]) -> Option<Smaller> {
        let made = self.made();
        for to in kinds {
            match made.iter().find(|(kind, _)| kind == to) {
                Some((_, Some(blob))) => return Some(Smaller::Made(*to, blob.clone(), false)),
                Some((_, None)) => {}
                None => return None,
            }
        }
        Some(Smaller::None)
    }

    /// Makes `original`, which must be whole, into the first of the wanted kinds that comes out
    /// smaller, unless that has been done before.
    pub(crate) async fn smaller(&self, original: &Arc<Blob>, wanted: Wanted<'_>, transcoder: &Transcoder, room: &Arc<dyn Room>) -> Smaller {
        loop {
            if let Some(known) = self.known(wanted.kinds) {
                return known;
            }
            // It waits for its own client's turn, even where another client waits to make the same
            // picture: that one's turn may come much later.
            let Some(place) = transcoder.place(wanted.client).await else { return Smaller::NoPlace };
            let Ok(_making) = self.making.try_lock() else {
                // Another task makes it right now. The place is free for other pictures meanwhile.
                drop(place);
                drop(self.making.lock().await);
                continue;
            };
            if let Some(known) = self.known(wanted.kinds) {
                return known;
            }
            return self.make(original, wanted, &transcoder.workers, room).await;
        }
    }

    /// Makes the first of the wanted kinds that comes out smaller, and keeps the outcome of each.
    async fn make(&self, original: &Arc<Blob>, wanted: Wanted<'_>, workers: &WorkerPool, room: &Arc<dyn Room>) -> Smaller {
        let bytes = match original.all().await {
            Ok(bytes) => bytes,
            Err(why) => {
                tracing::debug!("a picture stays as it is: {why}");
                return Smaller::None;
            }
        };
        for to in wanted.kinds.iter().copied() {
            if self.made().iter().any(|(kind, _)| *kind == to) {
                continue;
            }
            let small = match workers.transcode(&bytes, wanted.from, to).await {
                Ok(small) => small,
                Err(Failed::NotStarted(_)) => return Smaller::Failed,
                // It would do the same to the next worker, whatever is to be made of it.
                Err(Failed::Broken(_)) => {
                    let known: Vec<Kind> = self.made().iter().map(|(kind, _)| *kind).collect();
                    let unknown = wanted.kinds.iter().filter(|kind| !known.contains(kind));
                    self.made().extend(unknown.map(|kind| (*kind, None)));
                    return Smaller::Failed;
                }
            };
            let stored = match small {
                Ok(small) => stored(&small, room).await,
                Err(why) => Err(why),
            };
            let blob = stored.inspect_err(|why| tracing::debug!("a picture stays as it is: {why}")).ok();
            self.made().push((to, blob.clone()));
            if let Some(blob) = blob {
                return Smaller::Made(to, blob, true);
            }
        }
        Smaller::None
    }
}

async fn stored(small: &[u8], room: &Arc<dyn Room>) -> Result<Arc<Blob>, String> {
    let no_room = || "there is no room for another one".to_string();
    let mut writer = Writer::new(room.clone(), Some(small.len() as u64)).ok_or_else(no_room)?;
    let blob = writer.blob().clone();
    if !writer.push(small).await || writer.finish(None).await.is_err() {
        return Err(no_room());
    }
    Ok(blob)
}
