//! Goes on with a connection that has left hyper: a request or a response that hyper cannot
//! represent is passed on as it came, over a connection to the server that nothing else uses. What
//! is passed on is never stored.
//!
//! Where the destination of the connection is known, all that follows on it is passed on too, until
//! it closes. In an explicit proxy the next request could be for another server: such a connection
//! ends with the exchange.

use crate::{
    access_log::AccessRecord,
    cache_status::CACHE_STATUS,
    client::Client,
    client_stream::{Departed, Departure},
    config::RawMode,
    error_response::{Error, ErrorResponse},
    exchange::error_page,
    explicit_request::ExplicitRequest,
    leg_stream::{LegParts, LegStream},
    one_exchange::{Upload, relay_exchange},
    raw,
    request_head::{changed_resource, start_line},
    server_pool::ServerAddress,
    server_stream::VerbatimResponse,
};
use bytes::Bytes;
use hyper::header::CONNECTION;
use std::sync::Arc;
use tokio::io::AsyncWriteExt as _;

/// Characters of a start line in the log.
const MAX_LOGGED: usize = 200;

/// Goes on with a connection until its end.
///
/// # Errors
/// Why it failed. It has been reset then.
pub(crate) async fn go_on(client: &Arc<Client>, departed: Departed) -> Result<(), Error> {
    let Departed { leg, unread, departure } = departed;
    // They would not be used again.
    client.shared.server_pool.close_all(client.id);
    match departure {
        Departure::Refused(error) => refuse(client, leg, &unread, error).await,
        Departure::Request(why) => {
            log(client, "request", &unread, &why);
            pass_on_request(client, leg, unread).await
        }
        Departure::Response(response) => pass_on_response(client, leg, unread, response).await,
    }
}

/// Says once for each connection what is passed on, and why.
fn log(client: &Client, what: &str, first: &[u8], why: &str) {
    tracing::info!(client = %client.address, first = %quoted(first), "a {what} is passed on as it came, like all that follows on its connection: {why}");
}

/// The beginning of a start line, for the log.
fn quoted(bytes: &[u8]) -> String {
    start_line(bytes).escape_ascii().take(MAX_LOGGED).map(char::from).collect()
}

async fn pass_on_request(client: &Arc<Client>, near: LegStream, first: Bytes) -> Result<(), Error> {
    let Some(server) = client.server else { return pass_on_explicit(client, near, first).await };
    match client.dial(&ServerAddress::Socket(server)).await {
        Ok(far) => {
            // The response will not be looked at. A request in between may store the old state
            // again.
            let changed = changed_resource(&first, server);
            let invalidate = || changed.iter().for_each(|target| client.shared.store.invalidate(target));
            invalidate();
            let Some(near) = near.unread(first).into_parts() else { return Ok(()) };
            let outcome = raw::relay(client, near, far.into(), RawMode::Stream).await;
            invalidate();
            outcome
        }
        Err(error) => refuse(client, near, &first, error).await,
    }
}

/// Passes on one request of an explicit proxy's client, and the response to it.
async fn pass_on_explicit(client: &Arc<Client>, near: LegStream, first: Bytes) -> Result<(), Error> {
    let request = match ExplicitRequest::of(&first).and_then(|request| client.authenticate(&request.credentials).map(|()| request)) {
        Ok(request) => request,
        Err(error) => return refuse(client, near, &first, error).await,
    };
    let far = match client.dial(&request.server).await {
        Ok(far) => far,
        Err(error) => return refuse(client, near, &first, error).await,
    };
    let Some(LegParts { stream: near, read_ahead, .. }) = near.unread(first.slice(request.length..)).into_parts() else { return Ok(()) };
    let upload = Upload { head: request.head, framing: request.framing, read_ahead };
    relay_exchange(client, near, Some(upload), far.into()).await
}

async fn pass_on_response(client: &Arc<Client>, near: LegStream, unread: Bytes, response: VerbatimResponse) -> Result<(), Error> {
    let VerbatimResponse { leg: far, bytes, why, may_continue } = response;
    log(client, "response", &bytes, &why);
    let (Some(near), Some(far)) = (near.unread(unread).into_parts(), far.unread(bytes).into_parts()) else { return Ok(()) };
    if may_continue {
        return raw::relay(client, near, far, RawMode::Stream).await;
    }
    relay_exchange(client, near.stream, None, far).await
}

/// Sends an error response, and closes the connection.
async fn refuse(client: &Client, mut near: LegStream, request: &[u8], error: ErrorResponse) -> Result<(), Error> {
    let line = quoted(request);
    let (method, target) = line.split_once(' ').unwrap_or((&line, ""));
    let target = target.rsplit_once(' ').map_or(target, |(target, _)| target);
    let mut record = AccessRecord::new(&client.shared.counters, client.address, method.into(), target.into());
    record.status = error.status;
    record.set_failure(&error.text.clone().into());
    let body = error.body();
    let mut head =
        format!("HTTP/1.1 {}\r\nconnection: close\r\n{CACHE_STATUS}: {}; detail=refused\r\n", error.status, client.shared.pseudonym)
            .into_bytes();
    for (name, value) in error_page(&error).headers() {
        if name == CONNECTION {
            continue;
        }
        head.extend_from_slice(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    head.extend_from_slice(format!("content-length: {}\r\n\r\n{body}", body.len()).as_bytes());
    near.write_all(&head).await?;
    near.shutdown().await?;
    record.add_sent(body.len() as u64);
    record.complete = true;
    Ok(())
}
