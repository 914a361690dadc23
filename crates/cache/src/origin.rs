//! Connections to origin servers, and requests over them.

use crate::{
    admission::RequestReservation,
    body::{MessageBody, Recycle},
    client::Client,
    error_response::{Error, ErrorResponse},
    leg_stream::{self, LegStream},
    limits::{CONNECTION_BYTES, MAX_HEADER_BYTES, MAX_HEADER_FIELDS, Reservation},
    reach, response_head,
    server_pool::{ServerAddress, ServerConnection},
    server_stream::{ServerGate, ServerStream, VerbatimResponse},
};
use hyper::{
    Request, Response, StatusCode,
    body::{Body as _, Incoming},
    client::conn::http1,
    header::UPGRADE,
};
use hyper_util::rt::TokioIo;
use std::{io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::Interest,
    net::{TcpStream, lookup_host},
    time::timeout,
};

/// How long a request may make no progress after its response is complete. Then the connection is
/// closed.
const REQUEST_TAIL_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns for how long a request body has made no progress.
pub(crate) type StallClock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// A connection to a server that is in use. It is recycled once the response is complete, and
/// closed when it is dropped before.
pub(crate) struct ConnectionLease {
    client: Arc<Client>,
    server: ServerAddress,
    connection: Option<ServerConnection>,
    stalled_for: StallClock,
}

impl ConnectionLease {
    /// Leaves the connection to a tunnel, which uses another protocol on it.
    pub(crate) fn detach(mut self) {
        self.connection = None;
    }
}

impl Recycle for ConnectionLease {
    fn recycle(mut self: Box<Self>) {
        let Some(mut connection) = self.connection.take() else { return };
        let client = self.client.clone();
        let server = self.server.clone();
        let stalled_for = self.stalled_for.clone();
        tokio::spawn(async move {
            // The connection is ready once its task has read the end of the response, and the
            // request has been sent. A server may respond before it has read the whole request.
            loop {
                match timeout(REQUEST_TAIL_TIMEOUT, connection.sender.ready()).await {
                    Ok(Ok(())) => break,
                    Ok(Err(_)) => return,
                    // The client sends no more of the request, or the server reads no more.
                    Err(_) if stalled_for() >= REQUEST_TAIL_TIMEOUT => return connection.task.abort(),
                    Err(_) => {}
                }
            }
            // If a request waits for memory, the connection is closed instead, to release its own.
            if !client.share.is_waited_for() {
                client.shared.server_pool.put(client.id, server, connection);
            }
        });
    }
}

impl Drop for ConnectionLease {
    fn drop(&mut self) {
        if let Some(connection) = &self.connection {
            connection.task.abort();
        }
    }
}

/// The head of a response, and the connection on which its body follows.
pub(crate) struct OriginResponse {
    pub(crate) response: Response<Incoming>,
    pub(crate) lease: ConnectionLease,
}

/// A request that failed.
struct FailedRequest {
    response: ErrorResponse,
    /// The request, where nothing of it was sent: it can be sent again.
    unsent: Option<Box<Request<MessageBody>>>,
    /// The response, where hyper cannot represent it.
    verbatim: Option<Box<VerbatimResponse>>,
}

impl FailedRequest {
    fn sent(status: StatusCode, text: String) -> Self {
        ErrorResponse::new(status, text).into()
    }
}

impl From<ErrorResponse> for FailedRequest {
    fn from(response: ErrorResponse) -> Self {
        FailedRequest { response, unsent: None, verbatim: None }
    }
}

impl Client {
    /// Connects to a server.
    ///
    /// # Errors
    /// 502 when it is not reached, 504 when that takes too long, 403 when the listener does not
    /// allow the destination.
    pub(crate) async fn dial(&self, server: &ServerAddress) -> Result<TcpStream, ErrorResponse> {
        let limit = self.shared.config.connect_timeout;
        let attempt = async {
            let addresses = self.resolve(server).await?;
            let reached = match addresses.as_slice() {
                [address] => self.dial_address(*address).await,
                _ => reach::reach(addresses, &self.shared.history, limit, |address| self.dial_address(address)).await,
            };
            reached.map_err(|why| cannot_connect(StatusCode::BAD_GATEWAY, server, &why))
        };
        let late = || cannot_connect(StatusCode::GATEWAY_TIMEOUT, server, &format!("no answer in {} s", limit.as_secs_f64()));
        timeout(limit, attempt).await.unwrap_or_else(|_| Err(late()))
    }

    /// The addresses of a server that the listener allows.
    async fn resolve(&self, server: &ServerAddress) -> Result<Vec<SocketAddr>, ErrorResponse> {
        let name = match server {
            ServerAddress::Socket(address) => return Ok(vec![*address]),
            ServerAddress::Name(name) => name,
        };
        let found = lookup_host(name.as_str()).await.map_err(|why| cannot_connect(StatusCode::BAD_GATEWAY, server, &why))?;
        let mut allowed = Vec::new();
        let mut refusal = None;
        for address in found {
            match self.destinations.check(address) {
                Ok(()) => allowed.push(address),
                Err(why) => refusal = Some(why),
            }
        }
        match refusal.filter(|_| allowed.is_empty()) {
            None => Ok(allowed),
            Some(why) if why.kind() == io::ErrorKind::PermissionDenied => {
                tracing::info!(client = %self.address, "{server} is refused: {why}");
                // The reason could reveal addresses of this host to the client.
                Err(cannot_connect(StatusCode::FORBIDDEN, server, &"this proxy does not allow that destination"))
            }
            Some(why) => Err(cannot_connect(StatusCode::BAD_GATEWAY, server, &why)),
        }
    }

    async fn dial_address(&self, server: SocketAddr) -> io::Result<TcpStream> {
        let stream = leg_stream::register(self.shared.dialler.dial(self.source, server)?)?;
        stream.ready(Interest::WRITABLE).await?;
        match stream.take_error()? {
            Some(why) => Err(why),
            None => {
                intercept::acknowledge(&stream);
                Ok(stream)
            }
        }
    }

    /// Puts an open connection into the pool, for the client's first request. Closes it instead
    /// where its memory cannot be reserved.
    ///
    /// # Errors
    /// 502 when the HTTP connection cannot be set up.
    pub(crate) async fn adopt(&self, server: ServerAddress, stream: TcpStream) -> Result<(), ErrorResponse> {
        let Some(reservation) = self.share.try_reserve(CONNECTION_BYTES) else { return Ok(()) };
        let connection = self.start_http(&server, stream, reservation).await?;
        self.shared.server_pool.put(self.id, server, connection);
        Ok(())
    }

    async fn start_http(
        &self,
        server: &ServerAddress,
        stream: TcpStream,
        reservation: Reservation,
    ) -> Result<ServerConnection, ErrorResponse> {
        let gate = Arc::new(ServerGate::default());
        let io = TokioIo::new(ServerStream::new(LegStream::to_server(stream, self.shared.config.patience), gate.clone()));
        let mut builder = http1::Builder::new();
        builder.max_buf_size(MAX_HEADER_BYTES + 64 * 1024).max_header_size(MAX_HEADER_BYTES).max_headers(MAX_HEADER_FIELDS);
        // RFC 9112 §5.1 and §5.2: a proxy removes the white space, and replaces the line ends.
        builder.allow_spaces_after_header_name_in_responses(true).allow_obsolete_multiline_headers_in_responses(true);
        let (sender, connection) = builder
            .handshake(io)
            .await
            .map_err(|why| ErrorResponse::new(StatusCode::BAD_GATEWAY, format!("cannot start HTTP with {server}: {why}")))?;
        let task = tokio::spawn(async move {
            let _held_until_the_end = reservation;
            if let Err(why) = connection.with_upgrades().await {
                tracing::debug!("a connection to a server ended: {why}");
            }
        });
        Ok(ServerConnection { sender, task: task.abort_handle(), gate })
    }

    /// Sends a request, and waits for the head of its final response.
    ///
    /// `again` makes the same request once more where it may be repeated: a server may close an
    /// idle connection at the moment at which it is reused. `reservation` has the memory for a new
    /// connection. `stalled_for` says for how long the request body has made no progress.
    ///
    /// Does not return if a response comes that hyper cannot represent: the client's connection
    /// leaves hyper then, and the caller is dropped.
    ///
    /// # Errors
    /// 400 when the body of the request is invalid or breaks off, 502 when the server is not
    /// reached or its response is invalid, 503 when there is no memory for a connection, 504 when a
    /// timeout expires, 403 as [`Client::dial`].
    pub(crate) async fn send(
        self: &Arc<Self>,
        reservation: &RequestReservation,
        server: &ServerAddress,
        request: Request<MessageBody>,
        again: Option<impl Fn() -> Request<MessageBody>>,
        stalled_for: impl Fn() -> Duration + Send + Sync + 'static,
    ) -> Result<OriginResponse, ErrorResponse> {
        match self.attempt(reservation, server, request, again, Arc::new(stalled_for)).await {
            Ok(response) => Ok(response),
            Err(failed) => Err(self.give_up(failed).await),
        }
    }

    /// Sends a request with conditions of the cache's own, as [`Client::send`]. None: the response
    /// is a 304 that hyper cannot represent, which the client has not asked for.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub(crate) async fn validate(
        self: &Arc<Self>,
        reservation: &RequestReservation,
        server: &ServerAddress,
        make: impl Fn() -> Request<MessageBody>,
        stalled_for: impl Fn() -> Duration + Send + Sync + 'static,
    ) -> Result<Option<OriginResponse>, ErrorResponse> {
        match self.attempt(reservation, server, make(), Some(make), Arc::new(stalled_for)).await {
            Ok(response) => Ok(Some(response)),
            Err(FailedRequest { verbatim: Some(unfit), .. }) if response_head::status(&unfit.bytes) == Some(StatusCode::NOT_MODIFIED) => {
                Ok(None)
            }
            Err(failed) => Err(self.give_up(failed).await),
        }
    }

    /// Sends a request over an idle connection, or over a new one.
    async fn attempt(
        self: &Arc<Self>,
        reservation: &RequestReservation,
        server: &ServerAddress,
        mut request: Request<MessageBody>,
        again: Option<impl Fn() -> Request<MessageBody>>,
        stalled_for: StallClock,
    ) -> Result<OriginResponse, FailedRequest> {
        let lease = |connection| ConnectionLease {
            client: self.clone(),
            server: server.clone(),
            connection: Some(connection),
            stalled_for: stalled_for.clone(),
        };
        if let Some(connection) = self.shared.server_pool.take(self.id, server) {
            match self.exchange(lease(connection), request).await {
                Ok(response) => return Ok(response),
                Err(FailedRequest { unsent: Some(unsent), .. }) => request = *unsent,
                Err(failed) => match &again {
                    Some(again) if failed.response.status == StatusCode::BAD_GATEWAY && failed.verbatim.is_none() => request = again(),
                    _ => return Err(failed),
                },
            }
        }
        let reserved = self.reserve_connection(reservation).await?;
        let stream = self.dial(server).await?;
        let connection = self.start_http(server, stream, reserved).await?;
        self.exchange(lease(connection), request).await
    }

    /// The response to a request that has failed. If the server's response can be passed on as it
    /// came, does not return.
    async fn give_up(&self, failed: FailedRequest) -> ErrorResponse {
        if let Some(verbatim) = failed.verbatim
            && self.gate.hand_over(*verbatim).is_none()
        {
            return std::future::pending().await;
        }
        failed.response
    }

    /// Sends a request over a connection, and waits for the head of its final response.
    async fn exchange(&self, mut lease: ConnectionLease, request: Request<MessageBody>) -> Result<OriginResponse, FailedRequest> {
        let patience = self.shared.config.patience;
        let asks_for_upgrade = request.headers().contains_key(UPGRADE);
        let server = lease.server.clone();
        let stalled_for = lease.stalled_for.clone();
        let Some(connection) = &mut lease.connection else { unreachable!("a lease has its connection until it is recycled") };
        let gate = connection.gate.clone();
        let may_continue = self.server.is_some() && request.body().is_end_stream();
        gate.expect_response();
        let response = connection.sender.try_send_request(request);
        tokio::pin!(response);
        let response = loop {
            // The timeout starts when the request body makes no more progress.
            let remaining = patience.saturating_sub(stalled_for());
            match timeout(remaining.max(Duration::from_millis(10)), &mut response).await {
                Ok(response) => break response,
                Err(_) if stalled_for() >= patience => {
                    let text = format!("{server} has not answered in {} s", patience.as_secs_f64());
                    return Err(FailedRequest::sent(StatusCode::GATEWAY_TIMEOUT, text));
                }
                Err(_) => {}
            }
        };
        match response {
            // RFC 9110 §15.2.2: a server must not switch protocols unless the request asks for it.
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS && !asks_for_upgrade => {
                let text = format!("{server} switched the protocol although the request did not ask for that");
                Err(FailedRequest::sent(StatusCode::BAD_GATEWAY, text))
            }
            Ok(mut response) => {
                if let Some(phrase) = gate.take_phrase() {
                    response.extensions_mut().insert(phrase);
                }
                Ok(OriginResponse { response, lease })
            }
            Err(mut failure) => {
                let unsent = failure.take_message().map(Box::new);
                let failure = failure.into_error();
                let why = chain(&failure);
                let mut failed = if failure.is_user() {
                    FailedRequest::sent(StatusCode::BAD_REQUEST, format!("the body of the request broke off or is invalid: {why}"))
                } else {
                    FailedRequest::sent(StatusCode::BAD_GATEWAY, format!("{server} sent no valid response: {why}"))
                };
                failed.unsent = unsent;
                if gate.is_verbatim() {
                    // It drops the stream, which then has the response.
                    drop(lease);
                    let verbatim = gate.take_verbatim().await;
                    failed.unsent = None;
                    failed.verbatim = verbatim.map(|verbatim| Box::new(VerbatimResponse { may_continue, ..verbatim }));
                }
                Err(failed)
            }
        }
    }
}

fn cannot_connect(status: StatusCode, server: &ServerAddress, why: &dyn std::fmt::Display) -> ErrorResponse {
    ErrorResponse::new(status, format!("cannot connect to {server}: {why}"))
}

/// An error and its sources, separated by colons.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// An error and its sources, for the log.
pub(crate) fn describe(error: &Error) -> String {
    chain(error.as_ref())
}
