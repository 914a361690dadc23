//! Counters of what the cache has done.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count that only grows.
#[derive(Debug, Default)]
pub(crate) struct EventCounter(AtomicU64);

impl EventCounter {
    pub(crate) fn add(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of a running cache.
        #[derive(Debug, Default)]
        pub(crate) struct CacheCounters {
            $(pub(crate) $name: EventCounter,)*
        }

        /// What a cache has done since its start, and what it holds.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
            /// Responses in the store.
            pub kept: u64,
            /// Bytes of memory that stored responses and messages in transit take.
            pub memory_bytes: u64,
            /// Bytes of disk that stored responses and messages in transit take.
            pub disk_bytes: u64,
            /// Bytes of memory that requests in progress and connections to servers reserve.
            pub reserved_bytes: u64,
        }

        impl CacheCounters {
            /// The counters; the fields of [`Stats`] that are no counters are 0.
            pub(crate) fn stats(&self) -> Stats {
                Stats { $($name: self.$name.get(),)* ..Stats::default() }
            }
        }
    };
}

counters! {
    /// Accepted connections.
    connections,
    /// Requests that were answered, or refused.
    requests,
    /// Responses from the store, without asking the origin server.
    hits,
    /// Responses from the store that the origin server had confirmed (304).
    revalidated,
    /// Stale responses from the store, served since the origin server failed (`stale-if-error`).
    stale,
    /// Responses from an origin server that may have been stored.
    misses,
    /// Responses from an origin server that could not be stored.
    passed,
    /// Requests that were refused by this proxy, or whose origin server was not reached.
    refused,
    /// Requests that had to wait for memory, including those that were then refused.
    waited,
    /// Requests that waited for the response to an equal request (collapsed forwarding).
    collapsed,
    /// Bytes of bodies from origin servers.
    origin_bytes,
    /// Bytes of bodies to clients.
    client_bytes,
    /// Pictures that were transcoded to a smaller one.
    pictures,
    /// Bytes that were not sent to clients thanks to smaller pictures.
    picture_bytes_saved,
    /// Pictures that passed unchanged because the transcoding queue was full.
    pictures_skipped,
    /// Pictures that passed unchanged because their worker process failed.
    pictures_failed,
    /// Bodies that were compressed.
    compressed,
    /// Bytes that were not sent to clients thanks to compression.
    compressed_bytes_saved,
    /// Responses that were not sent completely: the client or the origin server broke off.
    aborted,
    /// Tunnels (CONNECT, Upgrade).
    tunnels,
    /// Connections that were relayed as bytes: protocols other than HTTP, and tunnels of HTTP/1.1.
    raw_connections,
    /// Bytes that such connections and all tunnels carried, both directions.
    raw_bytes,
    /// Directions of such connections that exceeded the storage and were streamed from then on.
    overflows,
}
