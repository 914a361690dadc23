//! An HTTP server for metrics and for pages in a browser, shared by the proxy and the cache.
//!
//! Any local user may connect to its port, so clients are not trusted. The server runs on one thread
//! and holds a fixed number of connections: a client beyond that takes the place of the connection
//! that is oldest, so that idle clients cannot lock out others. Each connection carries one request
//! and has a deadline, whether its client is slow to write, slow to read or silent. A stream of
//! events has no deadline, but there are few of them, and one whose client does not read is closed.
//! When the process is short of descriptors, the server closes the oldest connection, waits and
//! accepts again. The caller renders what a [`Site`] consists of.

mod connections;
mod events;
mod host_names;
mod site;
mod token;

use connections::accept;
pub use events::{EventSender, EventStream, event_stream};
pub use host_names::parse_host_name;
pub use site::{PageAnswer, Pages, Site};
use std::{
    convert::Infallible,
    fmt, io,
    net::{SocketAddr, TcpListener as StdListener},
    sync::Arc,
    thread,
    time::Duration,
};
pub use token::{Token, TokenError};
use tokio::{net::TcpListener, runtime::Builder, sync::oneshot};

/// Bounds on what clients can consume.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Maximum concurrent connections, besides streams of events.
    connections: usize,
    /// Maximum concurrent streams of events.
    streams: usize,
    /// Time for a client to send its whole request.
    request: Duration,
    /// Maximum time from accepting a connection to closing it.
    lifetime: Duration,
    /// Pause after a failed accept. Without it a shortage of descriptors would cause a busy loop.
    pause: Duration,
    /// Lifetime of rendered metrics: requests within this time get the same text, so that clients
    /// cannot keep the workers busy with collecting statistics.
    fresh: Duration,
}

/// Streams of events that clients have at once, at most: one more replaces the oldest.
pub const MOST_STREAMS: usize = 16;

const LIMITS: Limits = Limits {
    connections: 32,
    streams: MOST_STREAMS,
    request: Duration::from_secs(5),
    lifetime: Duration::from_secs(10),
    pause: Duration::from_millis(50),
    fresh: Duration::from_millis(50),
};

/// A running server. Dropping it closes the listener and all connections at once.
pub struct Server {
    address: SocketAddr,
    /// Dropping it stops the server.
    stop: Option<oneshot::Sender<Infallible>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    /// Serves `site` at `http://AT/`.
    ///
    /// # Errors
    /// The address cannot be bound, or the thread cannot be started.
    pub fn start(at: SocketAddr, site: Site) -> io::Result<Self> {
        Server::start_on(StdListener::bind(at)?, site)
    }

    /// Serves `site` on a socket that listens already.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start_on(listener: StdListener, site: Site) -> io::Result<Self> {
        Server::with_limits(listener, site, LIMITS)
    }

    fn with_limits(listener: StdListener, site: Site, limits: Limits) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _guard = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let site = Arc::new(site);
        let (stop, stopped) = oneshot::channel();
        let work = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept(&listener, &site, limits) => {}
                    _ = stopped => {}
                }
            });
        };
        let thread = thread::Builder::new().name("tandem-web".into()).spawn(work)?;
        Ok(Server { address, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns the listening address; its port is the one that the kernel chose if `at` had port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        // Waits for the listener to close, and for metrics that are being rendered.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
