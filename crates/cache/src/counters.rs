//! What has been done, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Numbers as they change.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)*
        }

        /// Numbers as they are.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
            /// Answers that are kept.
            pub kept: u64,
            /// Bytes of memory that they, and what is on its way, take.
            pub memory_bytes: u64,
            /// Bytes of disk.
            pub disk_bytes: u64,
            /// Bytes of memory that requests in progress and connections to servers reserve.
            pub reserved_bytes: u64,
        }

        impl Counters {
            pub(crate) fn stats(&self) -> Stats {
                Stats { $($name: self.$name.get(),)* ..Stats::default() }
            }
        }
    };
}

counters! {
    /// Connections that came in.
    connections,
    /// Requests that were answered, or refused.
    requests,
    /// Answers that came from what is kept, without a word to the origin.
    hits,
    /// … and after its origin had said that they still hold.
    revalidated,
    /// … and though they were stale, since the origin did not answer.
    stale,
    /// Answers that were fetched and could have been kept.
    misses,
    /// Answers that no cache has business with.
    passed,
    /// Requests that were refused here, or whose origin was not reached.
    refused,
    /// Requests for which there was no room at once: they waited, or were refused.
    waited,
    /// Requests that waited for another's answer.
    collapsed,
    /// Bodies from origins.
    origin_bytes,
    /// Bodies to clients.
    client_bytes,
    /// Pictures that were made smaller.
    pictures,
    /// What was not sent to clients because of that.
    picture_bytes_saved,
    /// Pictures that passed unchanged because too many waited to be made smaller.
    pictures_skipped,
    /// Pictures that passed unchanged because the process that was to make them smaller failed.
    pictures_failed,
    /// Bodies that were compressed.
    compressed,
    /// What was not sent to clients because of that.
    compressed_bytes_saved,
    /// Answers that broke off on either side.
    aborted,
    /// Tunnels (CONNECT, Upgrade).
    tunnels,
    /// Connections that are not HTTP.
    raw_connections,
    /// What they carried, both ways.
    raw_bytes,
    /// Directions of them that no longer fitted and were sent on as they came.
    overflows,
}
