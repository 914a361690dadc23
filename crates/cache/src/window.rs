//! Flow control: bounds the bytes of one body that are in memory between two sockets. Bytes count
//! until hyper has written the last of them and drops its buffer.

use crate::limits::BODY_WINDOW;
use bytes::Bytes;
use std::{any::Any, sync::Arc};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A window of [`BODY_WINDOW`] bytes.
#[derive(Debug, Clone)]
pub(crate) struct BodyWindow {
    free: Arc<Semaphore>,
    /// The reservation that the bytes count towards. Every admitted buffer keeps it alive.
    reservation: Arc<dyn Any + Send + Sync>,
}

/// A buffer together with its part of the window.
struct AdmittedBytes {
    bytes: Bytes,
    _permits: OwnedSemaphorePermit,
    _reservation: Arc<dyn Any + Send + Sync>,
}

impl AsRef<[u8]> for AdmittedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl BodyWindow {
    /// An empty window whose bytes count towards `reservation`.
    pub(crate) fn new(reservation: Arc<dyn Any + Send + Sync>) -> Self {
        BodyWindow { free: Arc::new(Semaphore::new(BODY_WINDOW)), reservation }
    }

    /// A second window under the same reservation, for bytes that are sent before those of this
    /// one. In a common window the later bytes could occupy the space that the earlier ones wait
    /// for: a deadlock.
    pub(crate) fn sibling(&self) -> Self {
        BodyWindow::new(self.reservation.clone())
    }

    /// Waits until the window has space for `bytes`, which must own their whole buffer. A buffer
    /// larger than the window waits until the window is empty.
    pub(crate) async fn admit(&self, bytes: Bytes) -> Bytes {
        self.admit_with(bytes, |bytes| bytes).await
    }

    /// As [`BodyWindow::admit`], for a slice of a larger buffer. The slice is copied, so that it
    /// does not keep the whole buffer in memory.
    pub(crate) async fn admit_copy(&self, bytes: Bytes) -> Bytes {
        self.admit_with(bytes, |bytes| Bytes::copy_from_slice(&bytes)).await
    }

    async fn admit_with(&self, bytes: Bytes, own: impl FnOnce(Bytes) -> Bytes) -> Bytes {
        let permits = bytes.len().clamp(1, BODY_WINDOW);
        let permits = self.free.clone().acquire_many_owned(u32::try_from(permits).unwrap_or(u32::MAX)).await;
        // The semaphore is never closed.
        let Ok(permits) = permits else { return bytes };
        Bytes::from_owner(AdmittedBytes { bytes: own(bytes), _permits: permits, _reservation: self.reservation.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    #[tokio::test]
    async fn a_full_window_admits_nothing_until_buffers_are_dropped() {
        let reservation = Arc::new(());
        let window = BodyWindow::new(reservation.clone());
        let first = window.admit(Bytes::from(vec![1; BODY_WINDOW / 2])).await;
        let second = window.admit_copy(Bytes::from(vec![2; BODY_WINDOW / 2])).await;
        let third = window.admit(Bytes::from(vec![3; 10 * BODY_WINDOW]));
        tokio::pin!(third);
        assert!(timeout(Duration::from_millis(20), third.as_mut()).await.is_err());
        // A slice keeps its whole buffer in the window.
        let part = first.slice(..1);
        drop((first, second));
        assert!(timeout(Duration::from_millis(20), third.as_mut()).await.is_err());
        drop(part);
        let third = timeout(Duration::from_secs(20), third).await.unwrap();
        assert_eq!(third.len(), 10 * BODY_WINDOW);
        assert_eq!(Arc::strong_count(&reservation), 3);
        drop(third);
        assert_eq!(Arc::strong_count(&reservation), 2);
    }
}
