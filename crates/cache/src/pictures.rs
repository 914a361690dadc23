//! The smaller pictures that have been made of one, kept with it, so that each is made once.

use crate::{
    blob::{Blob, Room, Writer},
    shrink::{self, Kind, Wish},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Semaphore;

/// Pictures with more bytes stay as they are.
pub(crate) const LARGEST: u64 = 32 << 20;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Pictures {
    made: Mutex<Vec<(Kind, Option<Arc<Blob>>)>>,
    making: tokio::sync::Mutex<()>,
}

/// Where pictures are made, a few at a time: each takes a processor, and memory for its pixels.
#[derive(Debug)]
pub(crate) struct Studio {
    places: Arc<Semaphore>,
    wish: Wish,
}

impl Studio {
    pub(crate) fn new(wish: Wish) -> Self {
        let places = std::thread::available_parallelism().map_or(1, usize::from);
        Studio { places: Arc::new(Semaphore::new(places)), wish }
    }
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

    /// The picture `original` as a smaller one of the first of `kinds` that comes out smaller, or none where it stays as it is. `original` is whole.
    /// Also whether it has been made just now.
    pub(crate) async fn smaller(
        &self,
        original: &Arc<Blob>,
        from: Kind,
        kinds: &[Kind],
        studio: &Studio,
        room: &Arc<dyn Room>,
    ) -> Option<(Kind, Arc<Blob>, bool)> {
        let _making = self.making.lock().await;
        for to in kinds.iter().copied() {
            let known = self.made().iter().find(|(kind, _)| *kind == to).map(|(_, blob)| blob.clone());
            let (blob, new) = match known {
                Some(blob) => (blob, false),
                None => {
                    let blob = match make(original, from, to, studio, room).await {
                        Ok(blob) => Some(blob),
                        Err(why) => {
                            tracing::debug!("a picture stays as it is: {why}");
                            None
                        }
                    };
                    self.made().push((to, blob.clone()));
                    (blob, true)
                }
            };
            if let Some(blob) = blob {
                return Some((to, blob, new));
            }
        }
        None
    }
}

async fn make(original: &Arc<Blob>, from: Kind, to: Kind, studio: &Studio, room: &Arc<dyn Room>) -> Result<Arc<Blob>, String> {
    let place = studio.places.clone().acquire_owned().await.map_err(|why| why.to_string())?;
    let bytes = original.all().await.map_err(|why| why.to_string())?;
    let wish = studio.wish;
    let made = tokio::task::spawn_blocking(move || {
        let made = shrink::shrink(&bytes, from, to, wish);
        drop(place);
        made
    });
    // A decoder that panics has met a picture that it does not understand.
    let small = made.await.map_err(|why| format!("its decoder failed: {why}"))??;
    let no_room = || "there is no room for another one".to_string();
    let mut writer = Writer::new(room.clone(), Some(small.len() as u64)).ok_or_else(no_room)?;
    let blob = writer.blob().clone();
    if !writer.push(&small).await || writer.finish(None).await.is_err() {
        return Err(no_room());
    }
    Ok(blob)
}
