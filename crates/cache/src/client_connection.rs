//! A connection that came in: is it HTTP, and of which version?

use crate::{
    config::Raw,
    error_response::Error,
    exchange,
    leg_stream::{self, Leg},
    limits::WINDOW,
    raw,
    server_pool::Where,
    shared::{Caller, House},
};
use bytes::{Bytes, BytesMut};
use hyper::{
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use intercept::{Arrival, ListenerAccess, Source};
use socket2::{SockRef, Socket};
use std::{io, pin::Pin, sync::Arc, time::Duration};
use tokio::{
    io::AsyncReadExt as _,
    net::TcpStream,
    sync::watch,
    time::{sleep, timeout},
};

/// How HTTP/2 begins (RFC 9113 §3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long a client of a protocol in which it speaks first takes to do so; then its server is asked.
const SPEAKS: Duration = Duration::from_millis(300);
/// For how long it may stay unclear what a connection is.
const UNCLEAR: Duration = Duration::from_secs(2);
/// A request line that is longer is HTTP's, or nobody's.
const LINE: usize = 8 * 1024;
/// What a header section may take, and how many fields it may have.
const HEADERS: (usize, usize) = (64 * 1024, 200);
/// Concurrent requests of one HTTP/2 connection: about half of a client's share by default.
const STREAMS: u32 = 32;
/// Receive windows of HTTP/2, bytes: of a request (the protocol's default), and of a connection.
const RECEIVING: (u32, u32) = (64 * 1024, 128 * 1024);

/// How often it is looked whether a client is still there.
const LOOK: Duration = Duration::from_secs(1);

/// What a connection begins as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Http1,
    Http2,
    Tls,
    Other,
    /// What there is could become several of these.
    Unclear,
}

/// What a client's first bytes make of its connection; `all` when no more will come.
pub(crate) fn kind(first: &[u8], all: bool) -> Kind {
    let so_far = &first[..first.len().min(PREFACE.len())];
    if so_far == PREFACE {
        return Kind::Http2;
    }
    if !first.is_empty() && PREFACE.starts_with(so_far) && !all {
        return Kind::Unclear;
    }
    // A TLS record with a handshake in it, of any version (RFC 8446 §5.1).
    if first.starts_with(&[0x16, 0x03]) {
        return Kind::Tls;
    }
    let method = first.iter().take_while(|byte| byte.is_ascii_uppercase() || **byte == b'-').count();
    let rest = &first[method..];
    let may_be = match rest {
        [] => method <= 20,
        [b' '] => method > 0,
        [b' ', b'/' | b'*' | b'h' | b'H', ..] => method > 0,
        // A tunnel's target is a host.
        [b' ', ..] => &first[..method] == b"CONNECT",
        _ => false,
    };
    if !may_be {
        return Kind::Other;
    }
    match first.iter().position(|byte| *byte == b'\n') {
        Some(end) => {
            let line = first[..end].trim_ascii_end();
            if line.ends_with(b" HTTP/1.1") || line.ends_with(b" HTTP/1.0") { Kind::Http1 } else { Kind::Other }
        }
        None if first.len() >= LINE => Kind::Http1,
        None if all => Kind::Other,
        None => Kind::Unclear,
    }
}

/// Serves a connection until its end, or until `stop` says that no more requests are wanted. Its
/// listener has this access, and is transparent or not.
pub(crate) async fn serve(
    house: Arc<House>,
    arrival: Arrival,
    (access, is_transparent): (ListenerAccess, bool),
    stop: watch::Receiver<bool>,
) -> Result<(), Error> {
    let Arrival { socket, client, server } = arrival;
    house.dialler.tune(&socket)?;
    // Where the server was translated (DNAT), servers see this host: nothing here tells whether they would answer the client directly.
    let source = server.filter(|_| is_transparent).and_then(|server| Source::of(&socket, client, server, |_| None));
    let mut near = leg_stream::stream(socket)?;
    let share = house.limits.of(client.ip());
    let owner = house.pool.owner(client.ip());
    let ListenerAccess { destinations, users } = access;
    let caller = Arc::new(Caller { house, client, server, source, destinations, users, share, owner });
    let mut first = BytesMut::with_capacity(4096);
    match server {
        Some(server) => sorted(caller, near, first, server, stop).await,
        None => {
            let limit = caller.house.config.patience;
            match timeout(limit, begin(&mut near, &mut first)).await {
                Ok(begun) => begun?,
                Err(_) => return Ok(()),
            }
            http(caller, near, first.freeze(), stop).await
        }
    }
}

/// Reads until it is clear how the connection begins.
async fn begin(near: &mut TcpStream, first: &mut BytesMut) -> io::Result<()> {
    let mut all = false;
    while !all && (first.is_empty() || kind(first, false) == Kind::Unclear) {
        all = near.read_buf(first).await? == 0;
    }
    Ok(())
}

/// A connection to a known server.
async fn sorted(
    caller: Arc<Caller>,
    mut near: TcpStream,
    mut first: BytesMut,
    server: std::net::SocketAddr,
    stop: watch::Receiver<bool>,
) -> Result<(), Error> {
    let to = Where::At(server);
    let mut far = None;
    if timeout(SPEAKS, near.readable()).await.is_err() {
        // Perhaps it is the server who speaks first; perhaps a browser keeps a connection ready.
        let mut dialled = caller.dial(&to).await.map_err(|trouble| trouble.text)?;
        tokio::select! {
            spoken = dialled.readable() => {
                spoken?;
                return raw::relay(&caller, (near, Bytes::new()), (dialled, Bytes::new()), caller.house.config.raw).await;
            }
            heard = near.readable() => heard?,
        }
        if dialled.take_error()?.is_some() {
            dialled = caller.dial(&to).await.map_err(|trouble| trouble.text)?;
        }
        far = Some(dialled);
    }
    // Who says no more after half a line waits for an answer: it is not HTTP.
    if let Ok(begun) = timeout(UNCLEAR, begin(&mut near, &mut first)).await {
        begun?;
    }
    let first = first.freeze();
    let raw = match kind(&first, true) {
        // The server understands HTTP/2, and may understand nothing else.
        Kind::Http2 if caller.house.config.raw == Raw::Stream => Raw::Stream,
        Kind::Http1 | Kind::Http2 => {
            if let Some(far) = far {
                caller.adopt(to, far).await.map_err(|trouble| trouble.text)?;
            }
            return http(caller, near, first, stop).await;
        }
        // Its end can be told from a lull only by who has its key, and its handshake would wait for one at every turn.
        Kind::Tls => Raw::Stream,
        Kind::Other | Kind::Unclear => caller.house.config.raw,
    };
    let far = match far {
        Some(far) => far,
        None => caller.dial(&to).await.map_err(|trouble| trouble.text)?,
    };
    raw::relay(&caller, (near, first), (far, Bytes::new()), raw).await
}

async fn http(caller: Arc<Caller>, near: TcpStream, first: Bytes, stop: watch::Receiver<bool>) -> Result<(), Error> {
    let two = kind(&first, true) == Kind::Http2;
    // Uploads that have been received and not been read yet are in memory.
    let _received = if two { Some(caller.reserve(u64::from(RECEIVING.1)).await.map_err(|trouble| trouble.text)?) } else { None };
    let patience = caller.house.config.patience;
    let look = SockRef::from(&near).try_clone()?;
    let io = TokioIo::new(Leg::new(near, first, patience));
    let service = service_fn(move |request| exchange::answer(caller.clone(), request));
    let served = async {
        if two {
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(STREAMS)
                .max_header_list_size(HEADERS.0 as u32)
                .max_send_buf_size(WINDOW)
                .initial_stream_window_size(RECEIVING.0)
                .initial_connection_window_size(RECEIVING.1)
                .keep_alive_interval(patience)
                .serve_connection(io, service);
            return until(connection, stop, http2::Connection::graceful_shutdown).await;
        }
        // Not with hyper's `pipeline_flush`, which holds whatever it is given when nobody takes it.
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(patience)
            .max_buf_size(HEADERS.0 + 64 * 1024)
            .max_header_size(HEADERS.0)
            .max_headers(HEADERS.1)
            // A client may have said all it has to say and still want to hear.
            .half_close(true)
            .title_case_headers(true)
            .serve_connection(io, service)
            .with_upgrades();
        until(connection, stop, http1::UpgradeableConnection::graceful_shutdown).await
    };
    tokio::select! {
        served = served => Ok(served?),
        () = reset(&look) => Err("the client reset its connection".into()),
    }
}

/// Serves to the end, which is near when `stop` says so.
async fn until<C: Future<Output = hyper::Result<()>>>(
    connection: C,
    mut stop: watch::Receiver<bool>,
    end: impl FnOnce(Pin<&mut C>),
) -> hyper::Result<()> {
    tokio::pin!(connection);
    tokio::select! {
        done = connection.as_mut() => return done,
        _ = stop.wait_for(|stop| *stop) => end(connection.as_mut()),
    }
    connection.await
}

/// Waits until a connection has been reset, which nobody would notice who has nothing to write and expects nothing to read.
async fn reset(look: &Socket) {
    const CLOSE: u8 = 7;
    while intercept::tcp_info(look).is_ok_and(|info| info.state != CLOSE) {
        sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_connections_begin_as() {
        for (first, is) in [
            (&b"GET / HTTP/1.1\r\n"[..], Kind::Http1),
            (b"CONNECT example.org:443 HTTP/1.1\r\n", Kind::Http1),
            (b"M-SEARCH * HTTP/1.1\r\n", Kind::Http1),
            (b"GET /x HTTP/1.0\n", Kind::Http1),
            (PREFACE, Kind::Http2),
            (b"PRI * HTTP/2.0\r\n\r\n", Kind::Unclear),
            (b"\x16\x03\x01\x02\x00", Kind::Tls),
            (b"EHLO example.org\r\n", Kind::Other),
            (b"USER anonymous\r\n", Kind::Other),
            (b"OPTIONS * RTSP/1.0\r\n", Kind::Other),
            (b"SSH-2.0-OpenSSH\r\n", Kind::Other),
            (b"\0\x01\x02", Kind::Other),
            (b"GE", Kind::Unclear),
            (b"GET /a/long/path", Kind::Unclear),
        ] {
            assert_eq!(kind(first, false), is, "{}", first.escape_ascii());
        }
        assert_eq!(kind(b"GET /a/long/path", true), Kind::Other);
        assert_eq!(kind(b"", true), Kind::Other);
    }

    proptest! {
        /// More bytes never change what was clear.
        #[test]
        fn what_is_clear_stays_so(first in "(GET|POST|PRI|EHLO|[A-Z]{1,4})( |/|\\* HTTP/2.0|h|x){0,3}[ -~]{0,20}(\r\n| HTTP/1.1\r\n)?", cut in 0_usize..40) {
            let bytes = first.as_bytes();
            let cut = cut.min(bytes.len());
            let early = kind(&bytes[..cut], false);
            if early != Kind::Unclear && cut > 0 {
                prop_assert_eq!(kind(bytes, false), early);
            }
            prop_assert_ne!(kind(bytes, true), Kind::Unclear);
        }
    }
}
