//! Tunnels: CONNECT (RFC 9110 §9.3.6) and protocol upgrades (§7.8). Both directions are streamed
//! without being parsed.

use crate::{
    body::MessageBody,
    client::Client,
    client_stream::ClientStream,
    config::RawMode,
    counters::EventCounter,
    error_response::ErrorResponse,
    fields,
    leg_stream::LegStream,
    origin::{OriginResponse, describe},
    raw,
    request::ClientRequest,
    server_pool::ServerAddress,
    server_stream::ServerStream,
};
use hyper::{
    Request, Response, StatusCode, Version,
    body::Incoming,
    header::{CONNECTION, HeaderValue, UPGRADE},
    upgrade::{OnUpgrade, Parts, Upgraded, on},
};
use hyper_util::rt::TokioIo;
use std::{io, sync::Arc, time::Instant};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split};

/// Bytes of one read from a tunnel of an HTTP/2 client.
const PIECE: usize = 8 * 1024;

/// Opens a tunnel for a client of an explicit proxy.
///
/// # Errors
/// 405 where this is no explicit proxy (one of HTTP/1.1 passes on CONNECT as it came), 400 where
/// the request names no host and port, and the errors of [`Client::dial`].
pub(crate) async fn connect(client: &Arc<Client>, mut request: Request<Incoming>) -> Result<Response<MessageBody>, ErrorResponse> {
    if client.server.is_some() {
        let text = "only an explicit proxy opens tunnels (CONNECT): add a listener http=ADDRESS:PORT";
        return Err(ErrorResponse::new(StatusCode::METHOD_NOT_ALLOWED, text));
    }
    let authority = request.uri().authority().filter(|authority| authority.port_u16().is_some() && !authority.host().is_empty());
    let Some(server) = authority.map(|authority| ServerAddress::of(None, authority.as_str(), 0)) else {
        return Err(ErrorResponse::new(StatusCode::BAD_REQUEST, "CONNECT needs a host and a port"));
    };
    // A connection of HTTP/1.1 becomes the tunnel. One of HTTP/2 can have many tunnels, each with a
    // connection to a server.
    let reservation = if request.version() == Version::HTTP_2 { Some(client.admit(request.headers(), false).await?) } else { None };
    let far = client.dial(&server).await?;
    let near = on(&mut request);
    let client = client.clone();
    tokio::spawn(async move {
        let _held_until_the_end = reservation;
        match near.await {
            Ok(near) => join(&client, near, LegStream::to_tunnel_server(far, client.shared.config.patience)).await,
            Err(why) => tracing::debug!("a tunnel to {server} was not opened: {why}"),
        }
    });
    Ok(Response::new(MessageBody::empty()))
}

/// A server's answer to a request to switch the protocol.
pub(crate) enum Upgrade {
    /// It agrees. The response is for the client.
    Switched(Box<Response<MessageBody>>),
    /// It answers the request without switching.
    Declined(Box<(ClientRequest, OriginResponse)>),
}

/// Forwards a request to switch the protocol, and opens a tunnel if the server agrees.
///
/// # Errors
/// When the server cannot be reached, or sends no valid response.
pub(crate) async fn upgrade(client: &Arc<Client>, mut request: ClientRequest, near: OnUpgrade) -> Result<Upgrade, ErrorResponse> {
    let server = request.server(client);
    let begun = Instant::now();
    if request.body.is_some() {
        // It is unclear to which protocol a body would belong: only the request is forwarded.
        request.upgrade = None;
    }
    let (forwarded, _) = request.with_body(client).await;
    let not_repeatable: Option<fn() -> Request<MessageBody>> = None;
    let mut origin = client.send(&request.reservation, &server, forwarded, not_repeatable, move || begun.elapsed()).await?;
    if origin.response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(Upgrade::Declined(Box::new((request, origin))));
    }
    let far = on(&mut origin.response);
    let OriginResponse { response, lease } = origin;
    let tunnel_client = client.clone();
    tokio::spawn(async move {
        lease.detach();
        match tokio::try_join!(near, far) {
            Ok((near, far)) => match far.downcast::<TokioIo<ServerStream>>() {
                Ok(Parts { io, read_buf, .. }) => {
                    if let Some(far) = io.into_inner().into_leg() {
                        join(&tunnel_client, near, far.unread(read_buf)).await;
                    }
                }
                Err(_) => tracing::error!("the upgraded connection to {server} has an unexpected type: its tunnel is closed"),
            },
            Err(why) => tracing::debug!("a connection to {server} did not switch its protocol: {why}"),
        }
    });
    let protocol = response.headers().get(UPGRADE).cloned();
    let (mut parts, _) = response.into_parts();
    fields::strip_hop_by_hop(&mut parts.headers);
    if let Some(protocol) = protocol {
        parts.headers.insert(UPGRADE, protocol);
    }
    parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    fields::add_via(&mut parts.headers, Version::HTTP_11, &client.shared.pseudonym);
    Ok(Upgrade::Switched(Box::new(Response::from_parts(parts, MessageBody::empty()))))
}

/// Relays both directions until both ends have finished.
async fn join(client: &Arc<Client>, near: Upgraded, far: LegStream) {
    let outcome = match near.downcast::<TokioIo<ClientStream>>() {
        Ok(Parts { io, read_buf, .. }) => {
            match (io.into_inner().into_leg().and_then(|near| near.unread(read_buf).into_parts()), far.into_parts()) {
                (Some(near), Some(far)) => raw::relay(client, near, far, RawMode::Stream).await,
                _ => return,
            }
        }
        // A stream of an HTTP/2 connection.
        Err(near) => {
            let ((mut from_near, mut to_near), (mut from_far, mut to_far)) = (split(TokioIo::new(near)), split(far));
            let bytes = &client.shared.counters.raw_bytes;
            let both = tokio::try_join!(pass_on(&mut from_near, &mut to_far, bytes), pass_on(&mut from_far, &mut to_near, bytes));
            both.map(drop).map_err(Into::into)
        }
    };
    if let Err(why) = outcome {
        tracing::debug!("a tunnel broke off: {}", describe(&why));
    }
}

/// Forwards one direction up to its end. What was read before an error is written first, which
/// `tokio::io::copy` does not do.
async fn pass_on(source: &mut (impl AsyncRead + Unpin), sink: &mut (impl AsyncWrite + Unpin), counter: &EventCounter) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        let length = source.read(&mut buffer).await?;
        if length == 0 {
            return sink.shutdown().await;
        }
        sink.write_all(&buffer[..length]).await?;
        counter.add(length as u64);
    }
}
