//! The stream of a server for hyper's client. It looks at the header section of each response
//! before hyper gets it. If hyper cannot represent a response, hyper gets an error, and the
//! connection is left to the gate with all bytes of the response.

use crate::{
    framing::end_of_head,
    leg_stream::LegStream,
    limits::MAX_HEADER_BYTES,
    response_head::{ResponseVerdict, judge, may_be_response},
};
use bytes::{Buf as _, Bytes, BytesMut};
use hyper::ext::ReasonPhrase;
use std::{
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
};

/// Bytes of one read while a header section is incomplete.
const READ_BYTES: usize = 4096;

/// A response that goes to the client as it came.
#[derive(Debug)]
pub(crate) struct VerbatimResponse {
    /// The connection on which it comes.
    pub(crate) leg: LegStream,
    /// What has been received of it.
    pub(crate) bytes: Bytes,
    /// Why hyper cannot represent it.
    pub(crate) why: String,
    /// Whether the request that it answers is complete and had no body, so that the client's next
    /// request can follow on the same connection.
    pub(crate) may_continue: bool,
}

/// What the stream tells those who send requests over it.
#[derive(Debug, Default)]
pub(crate) struct ServerGate {
    /// A request is sent: the next bytes are the beginning of its response.
    expects: AtomicBool,
    is_verbatim: AtomicBool,
    found: Mutex<Found>,
    left: Notify,
}

#[derive(Debug, Default)]
struct Found {
    phrase: Option<ReasonPhrase>,
    verbatim: Option<VerbatimResponse>,
}

impl ServerGate {
    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be called before a request is sent.
    pub(crate) fn expect_response(&self) {
        self.found().phrase = None;
        self.expects.store(true, Ordering::Release);
    }

    /// The reason phrase of the last response, where hyper has lost it.
    pub(crate) fn take_phrase(&self) -> Option<ReasonPhrase> {
        self.found().phrase.take()
    }

    /// Whether a response has come that hyper cannot represent. hyper has reported an error then.
    pub(crate) fn is_verbatim(&self) -> bool {
        self.is_verbatim.load(Ordering::Acquire)
    }

    /// Waits until hyper has dropped the stream, and takes the response. To be called once, when
    /// there is one.
    pub(crate) async fn take_verbatim(&self) -> Option<VerbatimResponse> {
        self.left.notified().await;
        self.found().verbatim.take()
    }
}

/// A connection to a server, as hyper sees it.
#[derive(Debug)]
pub(crate) struct ServerStream {
    /// None after it has been taken.
    leg: Option<LegStream>,
    gate: Arc<ServerGate>,
    /// Bytes that were read and that hyper has not got. It may have the first `released` of them.
    pending: BytesMut,
    released: usize,
    /// Bytes of an expected header section that were searched for its end. None elsewhere.
    searched: Option<usize>,
    /// Why the response cannot be represented.
    unfit: Option<String>,
}

impl ServerStream {
    pub(crate) fn new(leg: LegStream, gate: Arc<ServerGate>) -> Self {
        ServerStream { leg: Some(leg), gate, pending: BytesMut::new(), released: 0, searched: None, unfit: None }
    }

    /// The connection for a tunnel, which starts with what hyper has not got.
    pub(crate) fn into_leg(mut self) -> Option<LegStream> {
        Some(self.leg.take()?.unread(self.pending.split().freeze()))
    }

    fn leg(&mut self) -> io::Result<Pin<&mut LegStream>> {
        self.leg.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Looks at a header section, as far as it has been received. Returns whether it is decided
    /// what becomes of the response.
    fn look_at_head(&mut self, searched: usize) -> bool {
        let verdict = match end_of_head(&self.pending, searched) {
            _ if !may_be_response(&self.pending) => ResponseVerdict::Verbatim("it does not begin like a response of HTTP/1".into()),
            Some(end) if end <= MAX_HEADER_BYTES => {
                let verdict = judge(&self.pending[..end]);
                if let ResponseVerdict::Parse { is_interim, .. } = verdict {
                    self.released = end;
                    // The next section is searched from its beginning, which is where this one
                    // ends.
                    self.searched = is_interim.then_some(0);
                }
                verdict
            }
            None if self.pending.len() <= MAX_HEADER_BYTES => return false,
            _ => ResponseVerdict::Verbatim(format!("its header section is larger than {} KiB", MAX_HEADER_BYTES / 1024)),
        };
        match verdict {
            ResponseVerdict::Parse { phrase, .. } => self.gate.found().phrase = phrase,
            ResponseVerdict::Verbatim(why) => {
                self.unfit = Some(why);
                self.gate.is_verbatim.store(true, Ordering::Release);
            }
        }
        true
    }
}

impl AsyncRead for ServerStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if let Some(why) = &this.unfit {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why.clone())));
            }
            if this.released > 0 {
                let length = this.released.min(buffer.remaining());
                buffer.put_slice(&this.pending[..length]);
                this.pending.advance(length);
                this.released -= length;
                return Poll::Ready(Ok(()));
            }
            if this.gate.expects.swap(false, Ordering::AcqRel) {
                this.searched = Some(0);
            }
            let Some(searched) = this.searched else {
                if this.pending.is_empty() {
                    return this.leg()?.poll_read(cx, buffer);
                }
                this.released = this.pending.len();
                continue;
            };
            if !this.pending.is_empty() && this.look_at_head(searched) {
                continue;
            }
            this.searched = Some(this.pending.len());
            let mut bytes = [0; READ_BYTES];
            let mut part = ReadBuf::new(&mut bytes);
            ready!(this.leg()?.poll_read(cx, &mut part))?;
            this.pending.extend_from_slice(part.filled());
            if part.filled().is_empty() {
                // hyper reports that the response is incomplete.
                this.searched = None;
                if this.pending.is_empty() {
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for ServerStream {
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
        self.leg()?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The connection goes on without hyper.
        if self.unfit.is_some() {
            return Poll::Ready(Ok(()));
        }
        self.leg()?.poll_shutdown(cx)
    }
}

impl Drop for ServerStream {
    fn drop(&mut self) {
        if let (Some(why), Some(leg)) = (self.unfit.take(), self.leg.take()) {
            let bytes = self.pending.split().freeze();
            self.gate.found().verbatim = Some(VerbatimResponse { leg, bytes, why, may_continue: false });
        }
        self.gate.left.notify_one();
    }
}
