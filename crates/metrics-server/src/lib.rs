//! An HTTP server for one page of metrics, shared by the proxy and the cache.
//!
//! Any local user may connect to a metrics port, so clients are not trusted. The server runs on one
//! thread and holds a fixed number of connections: a client beyond that takes the place of the
//! connection that is oldest, so that idle clients cannot lock out a scraper. Each connection
//! carries one request and has a deadline, whether its client is slow to write, slow to read or
//! silent. When the process is short of descriptors, the server closes the oldest connection, waits
//! and accepts again. The caller renders the page.

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{
    collections::VecDeque,
    convert::Infallible,
    fmt, io,
    net::{SocketAddr, TcpListener as StdListener},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Builder,
    sync::oneshot,
    task::{JoinHandle, yield_now},
    time::{sleep, timeout},
};

/// The media type of the text format that Prometheus reads.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Bytes of a request that are buffered: hyper's minimum.
const LONGEST_REQUEST: usize = 8192;

/// Bounds on what clients can consume.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Maximum concurrent connections.
    connections: usize,
    /// Time for a client to send its whole request.
    request: Duration,
    /// Maximum time from accepting a connection to closing it.
    lifetime: Duration,
    /// Pause after a failed accept. Without it a shortage of descriptors would cause a busy loop.
    pause: Duration,
    /// Lifetime of a rendered page: requests within this time get the same page, so that clients
    /// cannot keep the workers busy with collecting statistics.
    fresh: Duration,
}

const LIMITS: Limits = Limits {
    connections: 32,
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
    /// Serves at `http://AT/metrics` what `page` returns: the page, or `None` while the program ends
    /// (status 503). `page` is called on the server's thread, one call at a time.
    ///
    /// # Errors
    /// The address cannot be bound, or the thread cannot be started.
    pub fn start(at: SocketAddr, page: impl Fn() -> Option<String> + Send + Sync + 'static) -> io::Result<Self> {
        Server::start_on(StdListener::bind(at)?, page)
    }

    /// As [`start`](Self::start), on a socket that listens already.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start_on(listener: StdListener, page: impl Fn() -> Option<String> + Send + Sync + 'static) -> io::Result<Self> {
        Server::with_limits(listener, page, LIMITS)
    }

    fn with_limits(listener: StdListener, page: impl Fn() -> Option<String> + Send + Sync + 'static, limits: Limits) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _guard = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let page = Arc::new(Page { render: Box::new(page), last: Mutex::default(), fresh: limits.fresh });
        let (stop, stopped) = oneshot::channel();
        let work = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept(&listener, &page, limits) => {}
                    _ = stopped => {}
                }
            });
        };
        let thread = thread::Builder::new().name("tandem-metrics".into()).spawn(work)?;
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
        // Waits for the listener to close, and for a page that is being rendered.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The page and its latest rendering.
struct Page {
    render: Box<dyn Fn() -> Option<String> + Send + Sync>,
    last: Mutex<Option<(Instant, Bytes)>>,
    fresh: Duration,
}

impl Page {
    fn text(&self) -> Option<Bytes> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((when, text)) = &*last
            && when.elapsed() < self.fresh
        {
            return Some(text.clone());
        }
        let text = Bytes::from((self.render)()?);
        *last = Some((Instant::now(), text.clone()));
        Some(text)
    }
}

/// Connections in the order of their arrival.
#[derive(Default)]
struct Connections(VecDeque<JoinHandle<()>>);

impl Connections {
    /// Adds a connection; closes the oldest if there are more than `limit`.
    fn add(&mut self, connection: JoinHandle<()>, limit: usize) {
        self.0.retain(|connection| !connection.is_finished());
        self.0.push_back(connection);
        if self.0.len() > limit {
            self.close_oldest();
        }
    }

    fn close_oldest(&mut self) {
        self.0.retain(|connection| !connection.is_finished());
        if let Some(oldest) = self.0.pop_front() {
            oldest.abort();
        }
    }
}

async fn accept(listener: &TcpListener, page: &Arc<Page>, limits: Limits) {
    let (mut connections, mut failing) = (Connections::default(), false);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                failing = false;
                connections.add(tokio::spawn(serve(stream, page.clone(), limits)), limits.connections);
                // New connections are served, and closed ones give their descriptor back, before
                // the next is accepted.
                yield_now().await;
            }
            Err(why) if why.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(why) => {
                if !failing {
                    tracing::warn!("cannot accept a connection for metrics: {why}; trying again");
                }
                failing = true;
                // Without a free descriptor accept fails even when no connection is pending.
                // Connections in progress free theirs within the pause; an idle one must be closed.
                sleep(limits.pause).await;
                connections.close_oldest();
            }
        }
    }
}

/// Answers the single request of a connection.
async fn serve(stream: TcpStream, page: Arc<Page>, limits: Limits) {
    let service = service_fn(|request: Request<Incoming>| {
        let response = respond(&request, &page);
        async { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.request)
        .max_buf_size(LONGEST_REQUEST)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // An error on one connection does not affect the others.
    let _ = timeout(limits.lifetime, connection).await;
}

fn respond<B>(request: &Request<B>, page: &Page) -> Response<Full<Bytes>> {
    let plain = |status: StatusCode, text: &'static str| {
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = status;
        response
    };
    if request.uri().path() != "/metrics" {
        return plain(StatusCode::NOT_FOUND, "metrics are at /metrics\n");
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "metrics are read with GET\n");
        response.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let Some(text) = page.text() else { return plain(StatusCode::SERVICE_UNAVAILABLE, "the program is ending\n") };
    let mut response = Response::new(Full::new(text));
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(OPEN_METRICS));
    response
}

#[cfg(test)]
mod tests;
