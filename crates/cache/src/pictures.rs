//! Smaller versions of one stored picture, kept with it, so that each is made only once.

use crate::{
    blob::{Blob, BlobWriter, StorageQuota},
    shrink::PictureFormat,
    transcoder::Transcoder,
    worker_pool::{TranscodeError, WorkerPool},
};
use std::{
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The versions that have been tried.
#[derive(Debug, Default)]
pub(crate) struct PictureVariants {
    tried: Mutex<Vec<TriedFormat>>,
    /// Held while a version is being made.
    making: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct TriedFormat {
    format: PictureFormat,
    /// None where the picture could not be made smaller in this format.
    smaller: Option<Arc<Blob>>,
}

/// What a client wants of a picture.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PictureRequest<'a> {
    /// The format of the original.
    pub(crate) from: PictureFormat,
    /// The formats that the client accepts, the best first.
    pub(crate) accepted: &'a [PictureFormat],
    pub(crate) client: IpAddr,
}

/// A smaller version of a picture.
#[derive(Debug)]
pub(crate) struct SmallerPicture {
    pub(crate) format: PictureFormat,
    pub(crate) blob: Arc<Blob>,
    /// Whether this request made it.
    pub(crate) is_new: bool,
}

/// Why a picture passes unchanged.
#[derive(Debug)]
pub(crate) enum Unchanged {
    /// No accepted format makes it smaller.
    NotSmaller,
    /// Too many pictures wait already, of this client or of all clients.
    QueueFull,
    /// The worker process failed, or did not start.
    WorkerFailed,
}

impl PictureVariants {
    fn tried(&self) -> MutexGuard<'_, Vec<TriedFormat>> {
        self.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no version has a reader.
    pub(crate) fn are_idle(&self) -> bool {
        self.tried().iter().all(|tried| tried.smaller.as_ref().is_none_or(|blob| blob.is_idle()))
    }

    /// Whether a version is stored on disk.
    pub(crate) fn use_disk(&self) -> bool {
        self.tried().iter().any(|tried| tried.smaller.as_ref().is_some_and(|blob| blob.disk_bytes() > 0))
    }

    /// The first of the accepted formats that came out smaller. None when the answer depends on a
    /// format that has not been tried yet.
    fn known(&self, accepted: &[PictureFormat]) -> Option<Result<SmallerPicture, Unchanged>> {
        let tried = self.tried();
        for format in accepted {
            let found = tried.iter().find(|tried| tried.format == *format)?;
            if let Some(blob) = &found.smaller {
                return Some(Ok(SmallerPicture { format: *format, blob: blob.clone(), is_new: false }));
            }
        }
        Some(Err(Unchanged::NotSmaller))
    }

    /// Returns `original`, which must be complete, in the first accepted format that makes it
    /// smaller; transcodes it where that has not been tried yet.
    ///
    /// # Errors
    /// Why the picture passes unchanged.
    pub(crate) async fn smaller(
        &self,
        original: &Arc<Blob>,
        request: PictureRequest<'_>,
        transcoder: &Transcoder,
        quota: &Arc<dyn StorageQuota>,
    ) -> Result<SmallerPicture, Unchanged> {
        loop {
            if let Some(known) = self.known(request.accepted) {
                return known;
            }
            // The request waits for its own client's turn even if another client's request waits to
            // make the same version: the other client's turn may come much later.
            let Some(permit) = transcoder.admit(request.client).await else { return Err(Unchanged::QueueFull) };
            let Ok(_making) = self.making.try_lock() else {
                // Another task makes it right now. The permit is free for other pictures meanwhile.
                drop(permit);
                drop(self.making.lock().await);
                continue;
            };
            if let Some(known) = self.known(request.accepted) {
                return known;
            }
            return self.make(original, request, &transcoder.workers, quota).await;
        }
    }

    /// Tries the accepted formats in turn until one makes the picture smaller, and keeps the
    /// outcome of each.
    async fn make(
        &self,
        original: &Arc<Blob>,
        request: PictureRequest<'_>,
        workers: &WorkerPool,
        quota: &Arc<dyn StorageQuota>,
    ) -> Result<SmallerPicture, Unchanged> {
        let bytes = match original.read_all().await {
            Ok(bytes) => bytes,
            Err(why) => {
                tracing::debug!("a picture passes unchanged: {why}");
                return Err(Unchanged::NotSmaller);
            }
        };
        for format in request.accepted.iter().copied() {
            if self.tried().iter().any(|tried| tried.format == format) {
                continue;
            }
            let transcoded = match workers.transcode(&bytes, request.from, format).await {
                Ok(transcoded) => transcoded,
                Err(TranscodeError::NotStarted(_)) => return Err(Unchanged::WorkerFailed),
                Err(TranscodeError::WorkerFailed(_)) => {
                    // It would make the next worker fail as well, whatever the format.
                    self.give_up(request.accepted);
                    return Err(Unchanged::WorkerFailed);
                }
            };
            let stored = match transcoded {
                Ok(smaller) => store(&smaller, quota).await,
                Err(why) => Err(why),
            };
            let smaller = stored.inspect_err(|why| tracing::debug!("a picture passes unchanged: {why}")).ok();
            self.tried().push(TriedFormat { format, smaller: smaller.clone() });
            if let Some(blob) = smaller {
                return Ok(SmallerPicture { format, blob, is_new: true });
            }
        }
        Err(Unchanged::NotSmaller)
    }

    /// Marks the formats that have not been tried yet as failed.
    fn give_up(&self, formats: &[PictureFormat]) {
        let mut tried = self.tried();
        for format in formats {
            if tried.iter().all(|tried| tried.format != *format) {
                tried.push(TriedFormat { format: *format, smaller: None });
            }
        }
    }
}

/// Stores a transcoded picture.
async fn store(picture: &[u8], quota: &Arc<dyn StorageQuota>) -> Result<Arc<Blob>, String> {
    let no_room = || "there is no room to store a smaller version".to_string();
    let mut writer = BlobWriter::new(quota.clone(), Some(picture.len() as u64)).ok_or_else(no_room)?;
    let blob = writer.blob().clone();
    if !writer.append(picture).await || writer.finish(None).await.is_err() {
        return Err(no_room());
    }
    Ok(blob)
}
