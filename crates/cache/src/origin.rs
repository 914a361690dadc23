//! Connections to servers, and requests over them.

use crate::{
    admission::Exchange,
    body::{Body, GivesBack},
    error_response::{Error, ErrorResponse},
    leg_stream::{self, Leg},
    limits::{CONNECTION, Reserved},
    server_pool::{ServerConnection, Where},
    shared::Caller,
};
use bytes::Bytes;
use hyper::{Request, Response, StatusCode, body::Incoming, client::conn::http1, header::UPGRADE};
use hyper_util::rt::TokioIo;
use std::{io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::Interest,
    net::{TcpStream, lookup_host},
    time::timeout,
};

/// How long a server that has answered still takes what is left of a request of which nothing moves.
const SAYS_ALL: Duration = Duration::from_secs(5);
/// What a server's header section may take, and how many fields it may have.
const HEADERS: (usize, usize) = (64 * 1024, 200);

/// A connection that is in use, to be given back when its answer has come. It ends where that is not waited for.
pub(crate) struct Lease {
    caller: Arc<Caller>,
    to: Where,
    line: Option<ServerConnection>,
    /// How long nothing of the request has moved.
    waited: Arc<dyn Fn() -> Duration + Send + Sync>,
}

impl Lease {
    /// Releases the connection to a tunnel, which speaks another protocol on it.
    pub(crate) fn leave(mut self) {
        self.line = None;
    }
}

impl GivesBack for Lease {
    fn give_back(mut self: Box<Self>) {
        let Some(mut line) = self.line.take() else { return };
        let (caller, to, waited) = (self.caller.clone(), self.to.clone(), self.waited.clone());
        tokio::spawn(async move {
            // The other half of the connection has to hear of the end first; and who was answered early may still say all that was to be said.
            loop {
                match timeout(SAYS_ALL, line.sender.ready()).await {
                    Ok(Ok(())) => break,
                    Ok(Err(_)) => return,
                    // What is left of the request nobody wants, or nobody sends.
                    Err(_) if waited() >= SAYS_ALL => return line.task.abort(),
                    Err(_) => {}
                }
            }
            // Otherwise a request waits for the memory that it takes.
            if !caller.share.is_waited_for() {
                caller.house.pool.keep(caller.owner, to, line);
            }
        });
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(line) = &self.line {
            line.task.abort();
        }
    }
}

impl Caller {
    /// Connects to a server.
    pub(crate) async fn dial(&self, to: &Where) -> Result<TcpStream, ErrorResponse> {
        let limit = self.house.config.connect_timeout;
        let cannot = |status, why: &dyn std::fmt::Display| ErrorResponse::new(status, format!("cannot connect to {to}: {why}"));
        let late = || cannot(StatusCode::GATEWAY_TIMEOUT, &format!("no answer in {} s", limit.as_secs_f64()));
        let attempt = async {
            let (mut servers, mut failure) = (Vec::new(), io::Error::other("the name has no address"));
            match to {
                Where::At(server) => servers.push(*server),
                Where::Named(name) => {
                    let found = lookup_host(name.as_str()).await.map_err(|why| cannot(StatusCode::BAD_GATEWAY, &why))?;
                    for server in found {
                        match self.destinations.check(server) {
                            Ok(()) => servers.push(server),
                            Err(why) => failure = why,
                        }
                    }
                    if servers.is_empty() && failure.kind() == io::ErrorKind::PermissionDenied {
                        tracing::info!(client = %self.client, "{to} is refused: {failure}");
                        // The reason could tell a client the addresses of this host.
                        return Err(cannot(StatusCode::FORBIDDEN, &"this proxy does not allow that destination"));
                    }
                }
            }
            for server in servers {
                match self.dial_one(server).await {
                    Ok(stream) => return Ok(stream),
                    Err(why) => failure = why,
                }
            }
            Err(cannot(StatusCode::BAD_GATEWAY, &failure))
        };
        timeout(limit, attempt).await.unwrap_or_else(|_| Err(late()))
    }

    async fn dial_one(&self, server: SocketAddr) -> io::Result<TcpStream> {
        let stream = leg_stream::stream(self.house.dialler.dial(self.source, server)?)?;
        stream.ready(Interest::WRITABLE).await?;
        match stream.take_error()? {
            Some(why) => Err(why),
            None => {
                intercept::acknowledge(&stream);
                Ok(stream)
            }
        }
    }

    /// Uses an open connection for the first request to `to`, if it can be reserved.
    pub(crate) async fn adopt(&self, to: Where, stream: TcpStream) -> Result<(), ErrorResponse> {
        let Some(reserved) = self.share.try_reserve(CONNECTION) else { return Ok(()) };
        let line = self.shake_hands(&to, stream, reserved).await?;
        self.house.pool.keep(self.owner, to, line);
        Ok(())
    }

    async fn shake_hands(&self, to: &Where, stream: TcpStream, reserved: Reserved) -> Result<ServerConnection, ErrorResponse> {
        let io = TokioIo::new(Leg::new(stream, Bytes::new(), self.house.config.patience));
        let mut builder = http1::Builder::new();
        builder.max_buf_size(HEADERS.0 + 64 * 1024).max_header_size(HEADERS.0).max_headers(HEADERS.1);
        let shaken = builder.handshake(io).await;
        let (sender, connection) =
            shaken.map_err(|why| ErrorResponse::new(StatusCode::BAD_GATEWAY, format!("cannot speak to {to}: {why}")))?;
        let task = tokio::spawn(async move {
            let _held_to_the_end = reserved;
            if let Err(why) = connection.with_upgrades().await {
                tracing::debug!("a connection to a server ended: {why}");
            }
        });
        Ok(ServerConnection { sender, task: task.abort_handle() })
    }

    /// Sends a request and waits for what comes before the answer's body. `again` makes the same
    /// request once more, where that does no harm: a server may close a connection just when it is
    /// used again. `exchange` has the reservation of a new connection.
    pub(crate) async fn send(
        self: &Arc<Self>,
        exchange: &Exchange,
        to: &Where,
        request: Request<Body>,
        again: Option<impl Fn() -> Request<Body>>,
        waited: impl Fn() -> Duration + Send + Sync + 'static,
    ) -> Result<(Response<Incoming>, Lease), ErrorResponse> {
        let mut request = request;
        let waited: Arc<dyn Fn() -> Duration + Send + Sync> = Arc::new(waited);
        if let Some(line) = self.house.pool.take(self.owner, to) {
            match self.exchange(self.lease(to, line, &waited), request).await {
                Ok(answer) => return Ok(answer),
                Err((_, Some(unsent))) => request = *unsent,
                Err((trouble, None)) => match &again {
                    Some(again) if trouble.status == StatusCode::BAD_GATEWAY => request = again(),
                    _ => return Err(trouble),
                },
            }
        }
        let reserved = self.connection(exchange).await?;
        let stream = self.dial(to).await?;
        let line = self.shake_hands(to, stream, reserved).await?;
        self.exchange(self.lease(to, line, &waited), request).await.map_err(|(trouble, _)| trouble)
    }

    fn lease(self: &Arc<Self>, to: &Where, line: ServerConnection, waited: &Arc<dyn Fn() -> Duration + Send + Sync>) -> Lease {
        Lease { caller: self.clone(), to: to.clone(), line: Some(line), waited: waited.clone() }
    }

    async fn exchange(
        &self,
        mut lease: Lease,
        request: Request<Body>,
    ) -> Result<(Response<Incoming>, Lease), (ErrorResponse, Option<Box<Request<Body>>>)> {
        let patience = self.house.config.patience;
        let may_switch = request.headers().contains_key(UPGRADE);
        let (to, waited) = (lease.to.clone(), lease.waited.clone());
        let Some(line) = &mut lease.line else { unreachable!("it was leased with its connection") };
        let answer = line.sender.try_send_request(request);
        tokio::pin!(answer);
        let answer = loop {
            // While the request is still being sent there is no answer to wait for.
            let left = patience.saturating_sub(waited());
            match timeout(left.max(Duration::from_millis(10)), &mut answer).await {
                Ok(answer) => break answer,
                Err(_) if waited() >= patience => {
                    let text = format!("{to} has not answered in {} s", patience.as_secs_f64());
                    return Err((ErrorResponse::new(StatusCode::GATEWAY_TIMEOUT, text), None));
                }
                Err(_) => {}
            }
        };
        match answer {
            // RFC 9110 §7.8: to a protocol that the request asked for. Nobody would speak any other with it.
            Ok(answer) if answer.status() == StatusCode::SWITCHING_PROTOCOLS && !may_switch => {
                Err((ErrorResponse::new(StatusCode::BAD_GATEWAY, format!("{to} changed the protocol, which it was not asked to")), None))
            }
            Ok(answer) => Ok((answer, lease)),
            Err(mut failure) => {
                let unsent = failure.take_message().map(Box::new);
                let why = failure.into_error();
                Err((
                    ErrorResponse::new(StatusCode::BAD_GATEWAY, format!("{to} gave no answer that can be understood: {}", chain(&why))),
                    unsent,
                ))
            }
        }
    }
}

/// An error with what is behind it.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut behind = error.source();
    while let Some(error) = behind {
        text = format!("{text}: {error}");
        behind = error.source();
    }
    text
}

/// As [`Error`], for those who only log it.
pub(crate) fn told(error: &Error) -> String {
    chain(error.as_ref())
}
