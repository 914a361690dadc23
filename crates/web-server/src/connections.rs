//! Accepts connections and serves them, within the limits.

use crate::{Limits, Site};
use http_body_util::Either;
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    pin::pin,
    sync::{Arc, OnceLock},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::{JoinHandle, yield_now},
    time::{sleep, timeout},
};

/// Bytes of a request that are buffered: hyper's minimum.
pub(crate) const LONGEST_REQUEST: usize = 8192;

/// Set once the answer of a connection is a stream of events: notified when the stream is to end.
type StreamEnd = Arc<OnceLock<Arc<Notify>>>;

/// Connections in the order of their arrival.
#[derive(Default)]
struct Connections(VecDeque<Connection>);

struct Connection {
    task: JoinHandle<()>,
    stream: StreamEnd,
}

impl Connections {
    /// Adds a connection; closes the oldest ones beyond the limits.
    fn add(&mut self, connection: Connection, limits: Limits) {
        self.forget_ended();
        self.0.push_back(connection);
        self.close_oldest(limits.connections, false);
        self.close_oldest(limits.streams, true);
    }

    fn forget_ended(&mut self) {
        self.0.retain(|connection| !connection.task.is_finished());
    }

    /// Closes the oldest streams, or the oldest other connections, except `keep` of them.
    fn close_oldest(&mut self, keep: usize, streams: bool) {
        let of_kind = |connection: &Connection| connection.stream.get().is_some() == streams;
        let mut excess = self.0.iter().filter(|connection| of_kind(connection)).count().saturating_sub(keep);
        self.0.retain(|connection| {
            let closes = excess > 0 && of_kind(connection);
            if closes {
                excess -= 1;
                connection.task.abort();
            }
            !closes
        });
    }

    /// Closes the oldest connection, which gives its descriptor back; a stream only if there is
    /// nothing else.
    fn free_a_descriptor(&mut self) {
        self.forget_ended();
        let oldest = self.0.iter().position(|connection| connection.stream.get().is_none()).unwrap_or(0);
        if let Some(connection) = self.0.remove(oldest) {
            connection.task.abort();
        }
    }
}

pub(crate) async fn accept(listener: &TcpListener, site: &Arc<Site>, limits: Limits) {
    let (mut connections, mut failing) = (Connections::default(), false);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                failing = false;
                let end = StreamEnd::default();
                let task = tokio::spawn(serve(stream, site.clone(), end.clone(), limits));
                connections.add(Connection { task, stream: end }, limits);
                // New connections are served, and closed ones give their descriptor back, before
                // the next is accepted.
                yield_now().await;
            }
            Err(why) if why.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(why) => {
                if !failing {
                    tracing::warn!("cannot accept a connection for metrics or the page: {why}; trying again");
                }
                failing = true;
                // Without a free descriptor accept fails even when no connection is pending.
                // Connections in progress free theirs within the pause; an idle one must be closed.
                sleep(limits.pause).await;
                connections.free_a_descriptor();
            }
        }
    }
}

/// Answers the single request of a connection.
async fn serve(stream: TcpStream, site: Arc<Site>, end: StreamEnd, limits: Limits) {
    let service = service_fn(|request: Request<Incoming>| {
        let (site, end) = (site.clone(), end.clone());
        async move {
            let response = site.respond(request, limits.fresh).await;
            if let Either::Right(events) = response.body() {
                let _ = end.set(events.ended.clone());
            }
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.request)
        .max_buf_size(LONGEST_REQUEST)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    // An error on one connection does not affect the others.
    if timeout(limits.lifetime, connection.as_mut()).await.is_ok() {
        return;
    }
    if let Some(ended) = end.get() {
        tokio::select! {
            _ = connection => {}
            () = ended.notified() => {}
        }
    }
}
