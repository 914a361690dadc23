//! Serves one connection of a client: detects its protocol, and hands it to hyper or to the raw
//! relay.

use crate::{
    client::Client,
    client_gate::ClientGate,
    client_stream::ClientStream,
    config::RawMode,
    error_response::{Error, ErrorResponse},
    exchange,
    leg_stream::{self, LegParts, LegStream},
    limits::{BODY_WINDOW, MAX_HEADER_BYTES, MAX_HEADER_FIELDS},
    protocol::{ClientProtocol, detect},
    raw,
    server_pool::ServerAddress,
    shared::Shared,
    verbatim,
};
use bytes::{Bytes, BytesMut};
use hyper::{
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use intercept::{AcceptedConnection, ListenerAccess, Source};
use socket2::{SockRef, Socket};
use std::{io, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};
use tokio::{
    io::AsyncReadExt as _,
    net::TcpStream,
    sync::watch,
    time::{sleep, timeout},
};

/// How long a client may send nothing before its server is dialled: in some protocols the server
/// sends first.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_millis(300);
/// How long the protocol may stay undecided after the first byte.
const DETECTION_TIMEOUT: Duration = Duration::from_secs(2);
/// Size of the buffer for the first bytes. It grows.
const FIRST_BYTES: usize = 4096;
/// Concurrent requests of one HTTP/2 connection: about half of a client's share by default.
const MAX_STREAMS: u32 = 32;
/// Receive window of an HTTP/2 stream, bytes: about the protocol's default.
const STREAM_WINDOW: u32 = 64 * 1024;
/// Receive window of an HTTP/2 connection, bytes.
const CONNECTION_WINDOW: u32 = 128 * 1024;
/// Interval at which a connection is checked for a reset by its client.
const RESET_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Tells when the cache drains: no more requests are accepted then.
pub(crate) type DrainSignal = watch::Receiver<bool>;

/// What a connection inherits from its listener.
#[derive(Debug, Clone)]
pub(crate) struct ListenerSettings {
    pub(crate) access: ListenerAccess,
    pub(crate) is_transparent: bool,
}

/// Serves a connection until its end, or until the requests in progress when `drain` fires have
/// been served.
///
/// # Errors
/// Why the connection failed.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    arrival: AcceptedConnection,
    settings: ListenerSettings,
    drain: DrainSignal,
) -> Result<(), Error> {
    let AcceptedConnection { socket, client: address, server } = arrival;
    shared.dialler.tune(&socket)?;
    // A destination that was translated (DNAT) would see this host's address: whether it could
    // reply to the client directly is unknown here.
    let source = server.filter(|_| settings.is_transparent).and_then(|server| Source::of(&socket, address, server, |_| None));
    let mut near = leg_stream::register(socket)?;
    let ListenerAccess { destinations, users } = settings.access;
    let share = shared.limits.share_of(address.ip());
    let id = shared.server_pool.new_id(address.ip());
    let gate = Arc::new(ClientGate::default());
    let client = Arc::new(Client { shared, address, server, source, destinations, users, share, id, gate });
    let mut first = BytesMut::with_capacity(FIRST_BYTES);
    match server {
        Some(server) => serve_any(client, near, first, server, drain).await,
        None => {
            let limit = client.shared.config.patience;
            match timeout(limit, read_first_bytes(&mut near, &mut first)).await {
                Ok(read) => read?,
                Err(_) => return Ok(()),
            }
            serve_http(client, near, first.freeze(), drain).await
        }
    }
}

/// Reads until the protocol is detected, or until the end of the stream.
async fn read_first_bytes(near: &mut TcpStream, first: &mut BytesMut) -> io::Result<()> {
    let mut at_eof = false;
    while !at_eof && (first.is_empty() || detect(first, false) == ClientProtocol::Undecided) {
        at_eof = near.read_buf(first).await? == 0;
    }
    Ok(())
}

/// Serves a connection of any protocol to a known server.
async fn serve_any(
    client: Arc<Client>,
    mut near: TcpStream,
    mut first: BytesMut,
    server: SocketAddr,
    drain: DrainSignal,
) -> Result<(), Error> {
    let server = ServerAddress::Socket(server);
    let mut far = None;
    if timeout(FIRST_BYTE_TIMEOUT, near.readable()).await.is_err() {
        // Either the server sends first, or a browser has opened the connection for later use.
        let mut dialled = client.dial(&server).await.map_err(text)?;
        tokio::select! {
            readable = dialled.readable() => {
                readable?;
                return raw::relay(&client, near.into(), dialled.into(), client.shared.config.raw).await;
            }
            readable = near.readable() => readable?,
        }
        // The server may have closed its idle connection meanwhile.
        if dialled.take_error()?.is_some() {
            dialled = client.dial(&server).await.map_err(text)?;
        }
        far = Some(dialled);
    }
    // A client that pauses in the middle of a line waits for a reply: the protocol is not HTTP.
    let read = timeout(DETECTION_TIMEOUT, read_first_bytes(&mut near, &mut first)).await;
    // What the client has sent before it reset the connection goes on.
    let has_failed = matches!(read, Ok(Err(_)));
    if first.is_empty()
        && let Ok(read) = read
    {
        read?;
    }
    let first = first.freeze();
    let mode = match detect(&first, true) {
        // The server supports HTTP/2, and perhaps not HTTP/1.1, which this proxy would use.
        ClientProtocol::Http2 if client.shared.config.raw == RawMode::Stream => RawMode::Stream,
        ClientProtocol::Http1 | ClientProtocol::Http2 => {
            if let Some(far) = far {
                client.adopt(server, far).await.map_err(text)?;
            }
            return serve_http(client, near, first, drain).await;
        }
        // Without its keys the end of a message cannot be told from a pause, and every round trip
        // of the handshake would wait for one.
        ClientProtocol::Tls => RawMode::Stream,
        ClientProtocol::Other | ClientProtocol::Undecided => client.shared.config.raw,
    };
    let far = match far {
        Some(far) => far,
        None => client.dial(&server).await.map_err(text)?,
    };
    raw::relay(&client, LegParts { stream: near, read_ahead: first, has_failed }, far.into(), mode).await
}

/// The text of an error, for a connection on which no response can be sent.
fn text(error: ErrorResponse) -> String {
    error.text
}

/// Serves HTTP/1.1 or HTTP/2. `first` was read before.
async fn serve_http(client: Arc<Client>, near: TcpStream, first: Bytes, drain: DrainSignal) -> Result<(), Error> {
    let is_http2 = detect(&first, true) == ClientProtocol::Http2;
    let gate = client.gate.clone();
    // Uploads that have been received and not been read yet are in memory.
    let _receive_window = if is_http2 { Some(client.reserve(u64::from(CONNECTION_WINDOW)).await.map_err(text)?) } else { None };
    let patience = client.shared.config.patience;
    let socket = SockRef::from(&near).try_clone()?;
    let near = LegStream::new(near, first, patience);
    let service_client = client.clone();
    let service = service_fn(move |request| exchange::serve(service_client.clone(), request));
    if is_http2 {
        let io = TokioIo::new(near);
        let served = async {
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(MAX_STREAMS)
                .max_header_list_size(MAX_HEADER_BYTES as u32)
                .max_send_buf_size(BODY_WINDOW)
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .keep_alive_interval(patience)
                .serve_connection(io, service);
            serve_until_drained(connection, drain, http2::Connection::graceful_shutdown).await
        };
        return tokio::select! {
            served = served => Ok(served?),
            () = until_reset(&socket) => Err("the client reset its connection".into()),
        };
    }
    gate.open();
    let (near, departed) = ClientStream::new(near, client.server, gate.clone());
    let io = TokioIo::new(near);
    let served = async {
        // Without hyper's `pipeline_flush`: it buffers without bounds for a client that does not
        // read.
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(patience)
            .max_buf_size(MAX_HEADER_BYTES + 64 * 1024)
            .max_header_size(MAX_HEADER_BYTES)
            .max_headers(MAX_HEADER_FIELDS)
            // A client may finish sending before it reads the response.
            .half_close(true)
            .title_case_headers(true)
            .serve_connection(io, service)
            .with_upgrades();
        serve_until_drained(connection, drain, http1::UpgradeableConnection::graceful_shutdown).await
    };
    tokio::select! {
        served = served => served.inspect_err(|why| log_refusal(&client, why))?,
        () = gate.departs() => {}
        () = until_reset(&socket) => return Err("the client reset its connection".into()),
    }
    // hyper has dropped its stream.
    match departed.await {
        Ok(departed) => verbatim::go_on(&client, departed).await,
        Err(_) => Ok(()),
    }
}

/// Logs that hyper has answered a request that it could not parse: with 400, 414 or 431.
fn log_refusal(client: &Client, why: &hyper::Error) {
    if why.is_parse() {
        tracing::info!(client = %client.address, "a request is refused: it cannot be parsed: {why}");
    }
}

/// Serves a connection to its end, and shuts it down gracefully when the cache drains.
async fn serve_until_drained<C: Future<Output = hyper::Result<()>>>(
    connection: C,
    mut drain: DrainSignal,
    shut_down: impl FnOnce(Pin<&mut C>),
) -> hyper::Result<()> {
    tokio::pin!(connection);
    tokio::select! {
        served = connection.as_mut() => return served,
        _ = drain.wait_for(|drains| *drains) => shut_down(connection.as_mut()),
    }
    connection.await
}

/// Waits until a connection has been reset. hyper does not notice that while it neither reads nor
/// writes.
async fn until_reset(socket: &Socket) {
    const TCP_CLOSE: u8 = 7;
    while intercept::tcp_info(socket).is_ok_and(|info| info.state != TCP_CLOSE) {
        sleep(RESET_POLL_INTERVAL).await;
    }
}
