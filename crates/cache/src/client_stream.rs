//! The stream of a client for hyper's server. It looks at the header section of each request before
//! hyper gets it. From the first request on that hyper cannot represent, hyper finds the end of the
//! stream: it completes the responses in progress and drops the stream, which hands the connection
//! to `verbatim` then.

use crate::{
    client_gate::ClientGate,
    error_response::ErrorResponse,
    framing::{BodyScanner, end_of_head, start_of_head},
    leg_stream::LegStream,
    limits::MAX_HEADER_BYTES,
    request_head::{RequestVerdict, judge, start_line},
    server_stream::VerbatimResponse,
};
use bytes::{Buf as _, Bytes, BytesMut};
use hyper::StatusCode;
use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::oneshot,
};

/// Bytes of one read while a header section is incomplete.
const READ_BYTES: usize = 4096;

/// Why a connection leaves hyper.
#[derive(Debug)]
pub(crate) enum Departure {
    /// The next request goes to its server as it came, for this reason.
    Request(String),
    /// The next request is refused.
    Refused(ErrorResponse),
    /// The response to the last request goes to the client as it came.
    Response(VerbatimResponse),
}

/// A connection that has left hyper.
#[derive(Debug)]
pub(crate) struct Departed {
    pub(crate) leg: LegStream,
    /// What the client has sent and hyper has not got.
    pub(crate) unread: Bytes,
    pub(crate) departure: Departure,
}

/// Which part of the stream comes next.
#[derive(Debug)]
enum Position {
    /// A header section, of which this many bytes were searched for its end.
    Head(usize),
    Body(BodyScanner),
}

/// A client's connection, as hyper sees it.
#[derive(Debug)]
pub(crate) struct ClientStream {
    /// None after it has been taken.
    leg: Option<LegStream>,
    /// The destination of the connection. None in an explicit proxy.
    server: Option<SocketAddr>,
    gate: Arc<ClientGate>,
    /// Bytes that were read and that hyper has not got. It may have the first `released` of them.
    pending: BytesMut,
    released: usize,
    position: Position,
    departure: Option<Departure>,
    departed: Option<oneshot::Sender<Departed>>,
}

impl ClientStream {
    /// The stream, and where the connection arrives if it leaves hyper.
    pub(crate) fn new(leg: LegStream, server: Option<SocketAddr>, gate: Arc<ClientGate>) -> (Self, oneshot::Receiver<Departed>) {
        let (sender, receiver) = oneshot::channel();
        let stream = ClientStream {
            leg: Some(leg),
            server,
            gate,
            pending: BytesMut::new(),
            released: 0,
            position: Position::Head(0),
            departure: None,
            departed: Some(sender),
        };
        (stream, receiver)
    }

    /// The connection for a tunnel, which starts with what hyper has not got.
    pub(crate) fn into_leg(mut self) -> Option<LegStream> {
        Some(self.leg.take()?.unread(self.pending.split().freeze()))
    }

    fn leg(&mut self) -> io::Result<Pin<&mut LegStream>> {
        self.leg.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Looks at a header section, as far as it has been received. Returns whether it is decided
    /// what becomes of the request.
    fn look_at_head(&mut self, searched: usize) -> bool {
        let verdict = match (self.impossible(), end_of_head(&self.pending, searched)) {
            (Some(verdict), _) => verdict,
            (None, Some(end)) if end <= MAX_HEADER_BYTES => {
                let verdict = judge(&self.pending[..end], self.server);
                if let RequestVerdict::Parse { framing, unfolded } = &verdict {
                    if let Some(unfolded) = unfolded {
                        self.pending[..end].copy_from_slice(unfolded);
                    }
                    self.released = end;
                    self.position = Position::Body(BodyScanner::new(*framing));
                }
                verdict
            }
            (None, None) if self.pending.len() <= MAX_HEADER_BYTES => return false,
            _ => {
                let text = format!("its header section is larger than {} KiB", MAX_HEADER_BYTES / 1024);
                self.unfit(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, text)
            }
        };
        self.departure = departure(verdict);
        true
    }

    /// What becomes of bytes that are not the beginning of a request of HTTP/1.
    fn impossible(&self) -> Option<RequestVerdict> {
        let start = &self.pending[start_of_head(&self.pending)..];
        let is_method =
            start.iter().take_while(|byte| **byte != b' ').all(|byte| byte.is_ascii_graphic() || *byte == b'\n' || *byte == b'\r');
        let line = start.contains(&b'\n').then(|| start_line(start));
        let is_http = line.is_none_or(|line| [&b" HTTP/1.1"[..], b" HTTP/1.0"].iter().any(|version| line.ends_with(version)));
        (!is_method || !is_http).then(|| self.unfit(StatusCode::BAD_REQUEST, "its first line is not that of a request of HTTP/1.1".into()))
    }

    /// What becomes of a request that cannot be parsed: without its authority an explicit proxy
    /// cannot pass it on.
    fn unfit(&self, status: StatusCode, why: String) -> RequestVerdict {
        match self.server {
            Some(_) => RequestVerdict::Verbatim(why),
            None => RequestVerdict::Refuse(ErrorResponse::new(status, format!("the request cannot be passed on: {why}"))),
        }
    }

    /// Reads more of a header section. Returns false where the client has finished before it.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut bytes = [0; READ_BYTES];
        let mut part = ReadBuf::new(&mut bytes);
        ready!(self.leg()?.poll_read(cx, &mut part))?;
        if !part.filled().is_empty() {
            self.pending.extend_from_slice(part.filled());
        } else if start_of_head(&self.pending) < self.pending.len() {
            let verdict = self.unfit(StatusCode::BAD_REQUEST, "the client has finished in the middle of its header section".into());
            self.departure = departure(verdict);
        } else {
            return Poll::Ready(Ok(false));
        }
        Poll::Ready(Ok(true))
    }
}

/// How the connection leaves hyper with a request; none if hyper parses the request.
fn departure(verdict: RequestVerdict) -> Option<Departure> {
    match verdict {
        RequestVerdict::Parse { .. } => None,
        RequestVerdict::Verbatim(why) => Some(Departure::Request(why)),
        RequestVerdict::Refuse(error) => Some(Departure::Refused(error)),
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if this.departure.is_some() {
                return Poll::Ready(Ok(()));
            }
            if this.released > 0 {
                let length = this.released.min(buffer.remaining());
                buffer.put_slice(&this.pending[..length]);
                this.pending.advance(length);
                this.released -= length;
                return Poll::Ready(Ok(()));
            }
            match &mut this.position {
                Position::Head(searched) => {
                    let searched = *searched;
                    if !this.pending.is_empty() && this.look_at_head(searched) {
                        continue;
                    }
                    this.position = Position::Head(this.pending.len());
                    if !ready!(this.poll_more(cx))? {
                        return Poll::Ready(Ok(()));
                    }
                }
                Position::Body(scanner) => {
                    let scanned = scanner.scan(&this.pending);
                    this.released = scanned.bytes;
                    if scanned.is_end {
                        this.position = Position::Head(0);
                    } else if scanned.bytes == 0 {
                        return this.poll_body(cx, buffer);
                    }
                }
            }
        }
    }
}

impl ClientStream {
    /// Reads a body into `buffer`; what comes after it is kept.
    fn poll_body(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(self.leg()?.poll_read(cx, buffer))?;
        if let Position::Body(scanner) = &mut self.position {
            let scanned = scanner.scan(&buffer.filled()[before..]);
            if scanned.is_end {
                self.position = Position::Head(0);
                self.pending.extend_from_slice(&buffer.filled()[before + scanned.bytes..]);
                buffer.set_filled(before + scanned.bytes);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.leg()?.poll_write(cx, bytes)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, slices: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.leg()?.poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.leg()?.poll_flush(cx))?;
        // hyper flushes once it has written everything that it had.
        self.gate.note_flush();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The connection goes on without hyper.
        if self.departure.is_some() {
            return Poll::Ready(Ok(()));
        }
        self.leg()?.poll_shutdown(cx)
    }
}

impl Drop for ClientStream {
    fn drop(&mut self) {
        let departure = self.departure.take().or_else(|| self.gate.take_response().map(Departure::Response));
        if let (Some(departure), Some(leg), Some(departed)) = (departure, self.leg.take(), self.departed.take()) {
            // The receiver is gone if the connection is being reset.
            let _ = departed.send(Departed { leg, unread: self.pending.split().freeze(), departure });
        }
    }
}
