//! Bounds the bytes of a body that are in memory between two sockets. They count until hyper has
//! written the last of them and drops its buffer.

use crate::limits::WINDOW;
use bytes::Bytes;
use std::{any::Any, sync::Arc};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Room for [`WINDOW`] bytes of a body.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    room: Arc<Semaphore>,
    /// The reservation that the bytes count towards: every piece keeps it.
    reserved: Arc<dyn Any + Send + Sync>,
}

/// Bytes with their part of the window.
struct Piece {
    bytes: Bytes,
    _room: OwnedSemaphorePermit,
    _reserved: Arc<dyn Any + Send + Sync>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Window {
    pub(crate) fn new(reserved: Arc<dyn Any + Send + Sync>) -> Self {
        Window { room: Arc::new(Semaphore::new(WINDOW)), reserved }
    }

    /// A second window under the same reservation, for bytes that are sent before those of this
    /// one: in a common window the later bytes could take the room that the earlier ones wait for.
    pub(crate) fn another(&self) -> Self {
        Window::new(self.reserved.clone())
    }

    /// Waits until there is room for `bytes`; a piece larger than the window waits until it is
    /// empty. Unless they are `whole`, `bytes` are a part of a larger buffer: they are copied, so
    /// that they do not keep all of it in memory.
    pub(crate) async fn pass(&self, bytes: Bytes, whole: bool) -> Bytes {
        let length = bytes.len().clamp(1, WINDOW);
        let room = self.room.clone().acquire_many_owned(u32::try_from(length).unwrap_or(u32::MAX)).await;
        // The semaphore is never closed.
        let Ok(room) = room else { return bytes };
        let bytes = if whole { bytes } else { Bytes::copy_from_slice(&bytes) };
        Bytes::from_owner(Piece { bytes, _room: room, _reserved: self.reserved.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    #[tokio::test]
    async fn no_more_is_let_through_than_is_taken() {
        let reserved = Arc::new(());
        let window = Window::new(reserved.clone());
        let first = window.pass(Bytes::from(vec![1; WINDOW / 2]), true).await;
        let second = window.pass(Bytes::from(vec![2; WINDOW / 2]), false).await;
        let third = window.pass(Bytes::from(vec![3; 10 * WINDOW]), true);
        tokio::pin!(third);
        assert!(timeout(Duration::from_millis(20), third.as_mut()).await.is_err());
        // A slice keeps the whole piece.
        let part = first.slice(..1);
        drop((first, second));
        assert!(timeout(Duration::from_millis(20), third.as_mut()).await.is_err());
        drop(part);
        let third = timeout(Duration::from_secs(20), third).await.unwrap();
        assert_eq!(third.len(), 10 * WINDOW);
        assert_eq!(Arc::strong_count(&reserved), 3);
        drop(third);
        assert_eq!(Arc::strong_count(&reserved), 2);
    }
}
