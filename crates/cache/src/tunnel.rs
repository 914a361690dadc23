//! What is no longer HTTP after a first exchange: CONNECT (RFC 9110 §9.3.6) and other protocols (§7.8). Both ways stream; nothing is looked at.

use crate::{
    body::Body,
    config::Raw,
    error_response::ErrorResponse,
    fields,
    leg_stream::Leg,
    origin::{Lease, told},
    raw,
    request::Asked,
    server_pool::Where,
    shared::Caller,
};
use bytes::Bytes;
use hyper::{
    Request, Response, StatusCode, Version,
    body::Incoming,
    header::{CONNECTION, HeaderValue, UPGRADE},
    upgrade::{OnUpgrade, Parts, Upgraded, on},
};
use hyper_util::rt::TokioIo;
use std::{sync::Arc, time::Instant};

/// Opens a tunnel to where a client of an explicit proxy wants it.
pub(crate) async fn connect(caller: &Arc<Caller>, mut request: Request<Incoming>) -> Result<Response<Body>, ErrorResponse> {
    let refused = |status, text: &str| ErrorResponse { status, text: text.into() };
    if caller.server.is_some() {
        return Err(refused(
            StatusCode::METHOD_NOT_ALLOWED,
            "tunnels (CONNECT) are opened by an explicit proxy alone: listen as http=HERE:PORT",
        ));
    }
    let to = request.uri().authority().filter(|to| to.port_u16().is_some() && !to.host().is_empty());
    let Some(to) = to.map(|to| Where::of(None, to.as_str(), 0)) else {
        return Err(refused(StatusCode::BAD_REQUEST, "CONNECT wants a host and a port"));
    };
    // A connection of HTTP/1.1 becomes the tunnel. One of HTTP/2 can have many, each with a
    // connection to a server.
    let reserved = if request.version() == Version::HTTP_2 { Some(caller.admit(request.headers(), false).await?) } else { None };
    let far = caller.dial(&to).await?;
    let near = on(&mut request);
    let caller = caller.clone();
    tokio::spawn(async move {
        let _held_to_the_end = reserved;
        match near.await {
            Ok(near) => join(&caller, near, Leg::new(far, Bytes::new(), caller.house.config.patience)).await,
            Err(why) => tracing::debug!("a tunnel to {to} did not open: {why}"),
        }
    });
    Ok(Response::new(Body::empty()))
}

/// What a server answers to the wish for another protocol.
pub(crate) enum Upgrade {
    /// It agrees; the response tells the client so.
    Switched(Box<Response<Body>>),
    /// It answers the request as it stands.
    Declined(Box<(Asked, Response<Incoming>, Lease)>),
}

/// Passes the wish for another protocol on, and that protocol where the server agrees.
///
/// # Errors
/// The server is not reached.
pub(crate) async fn upgrade(caller: &Arc<Caller>, mut asked: Asked, near: OnUpgrade) -> Result<Upgrade, ErrorResponse> {
    let to = asked.destination(caller);
    let begun = Instant::now();
    if asked.body.is_some() {
        // It is not clear to which protocol a body would belong.
        asked.upgrade = None;
    }
    let (request, _) = asked.whole(caller).await;
    let none: Option<fn() -> Request<Body>> = None;
    let (mut answer, lease) = caller.send(&asked.exchange, &to, request, none, move || begun.elapsed()).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(Upgrade::Declined(Box::new((asked, answer, lease))));
    }
    let far = on(&mut answer);
    let of = caller.clone();
    tokio::spawn(async move {
        // The connection is the tunnel's now.
        lease.leave();
        match tokio::try_join!(near, far) {
            Ok((near, far)) => match far.downcast::<TokioIo<Leg>>() {
                Ok(Parts { io, read_buf, .. }) => join(&of, near, io.into_inner().after(read_buf)).await,
                Err(_) => tracing::error!("a connection with {to} is none of ours"),
            },
            Err(why) => tracing::debug!("a connection with {to} did not change its protocol: {why}"),
        }
    });
    let protocol = answer.headers().get(UPGRADE).cloned();
    let (mut parts, _) = answer.into_parts();
    fields::strip(&mut parts.headers);
    protocol.into_iter().for_each(|protocol| drop(parts.headers.insert(UPGRADE, protocol)));
    parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    fields::add_via(&mut parts.headers, Version::HTTP_11, &caller.house.name);
    Ok(Upgrade::Switched(Box::new(Response::from_parts(parts, Body::empty()))))
}

/// Carries both ways until both ends have finished.
async fn join(caller: &Arc<Caller>, near: Upgraded, far: Leg) {
    let outcome = match near.downcast::<TokioIo<Leg>>() {
        Ok(Parts { io, read_buf, .. }) => match (io.into_inner().after(read_buf).into_parts(), far.into_parts()) {
            (Some(near), Some(far)) => raw::relay(caller, near, far, Raw::Stream).await,
            _ => return,
        },
        // A stream of HTTP/2.
        Err(near) => {
            let (mut near, mut far) = (TokioIo::new(near), far);
            let carried = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            carried.map(|(up, down)| caller.house.counters.raw_bytes.add(up + down)).map_err(Into::into)
        }
    };
    if let Err(why) = outcome {
        tracing::debug!("a tunnel broke off: {}", told(&why));
    }
}
