//! A leg as a stream for hyper. As everywhere in Tandem it is reset when it is dropped before it
//! was shut down: a peer that reads a body without a length must not take an abort for the end.

use crate::limits::READ_BYTES;
use bytes::{Buf as _, Bytes};
use socket2::{SockRef, Socket};
use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Sleep, timeout},
};

/// How long a leg that has been shut down is still read (linger). Closing it with unread data in
/// its receive queue would send a reset, which could destroy what the peer has not read yet.
const LINGER: Duration = Duration::from_secs(5);
/// Bytes that are read and discarded in that time, at most.
const LINGER_BYTES: u64 = 8 << 20;
const LINGER_BUFFER: usize = 16 * 1024;

/// A TCP connection, with bytes that were read from it before, and a timeout for writes.
#[derive(Debug)]
pub(crate) struct LegStream {
    stream: Option<TcpStream>,
    /// Bytes that were read before: they are returned first.
    read_ahead: Bytes,
    /// How long a write may be blocked.
    write_timeout: Duration,
    /// Runs while a write is blocked.
    write_deadline: Option<Pin<Box<Sleep>>>,
    /// Whether it has been shut down for writing.
    is_shut: bool,
    /// Whether the peer's FIN has been read.
    at_eof: bool,
    discards: Discards,
    /// The error of the write since which bytes are discarded.
    write_error: Option<io::ErrorKind>,
}

/// When bytes that the peer can no longer get are discarded, instead of failing the write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Discards {
    Never,
    /// While its end of file has not been read: it may have sent more before its reset.
    UntilEof,
    Always,
}

/// A connection, and what is known of it.
#[derive(Debug)]
pub(crate) struct LegParts {
    pub(crate) stream: TcpStream,
    /// Bytes that were read from it before.
    pub(crate) read_ahead: Bytes,
    /// Whether it was reset. The kernel has reported that, and does not report it again.
    pub(crate) has_failed: bool,
}

impl From<TcpStream> for LegParts {
    fn from(stream: TcpStream) -> Self {
        LegParts { stream, read_ahead: Bytes::new(), has_failed: false }
    }
}

/// Registers a non-blocking socket with the runtime.
///
/// # Errors
/// When the socket cannot be registered.
pub(crate) fn register(socket: Socket) -> io::Result<TcpStream> {
    TcpStream::from_std(socket.into())
}

/// Lets a connection close with a FIN instead of a reset.
///
/// # Errors
/// When the socket option cannot be set.
pub(crate) fn disable_reset_on_close(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(stream).set_linger(None)
}

impl LegStream {
    /// A stream that returns `read_ahead` first, and fails when a write is blocked for
    /// `write_timeout`.
    pub(crate) fn new(stream: TcpStream, read_ahead: Bytes, write_timeout: Duration) -> Self {
        LegStream {
            stream: Some(stream),
            read_ahead,
            write_timeout,
            write_deadline: None,
            is_shut: false,
            at_eof: false,
            discards: Discards::Never,
            write_error: None,
        }
    }

    /// A connection to a server. The server may answer before it has read the whole request, and
    /// reset the connection after that: bytes of the request are discarded then. Otherwise hyper
    /// would give up at the failed write, before it reads the answer.
    pub(crate) fn to_server(stream: TcpStream, write_timeout: Duration) -> Self {
        Self::new(stream, Bytes::new(), write_timeout).discarding(Discards::Always)
    }

    /// The server's leg of a tunnel, for which the same holds until it has been read to its end.
    pub(crate) fn to_tunnel_server(stream: TcpStream, write_timeout: Duration) -> Self {
        Self::new(stream, Bytes::new(), write_timeout).discarding(Discards::UntilEof)
    }

    fn discarding(mut self, discards: Discards) -> Self {
        self.discards = discards;
        self
    }

    /// The outcome of a write of `length` bytes.
    fn written(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<usize>>, length: usize) -> Poll<io::Result<usize>> {
        let discards = self.discards == Discards::Always || (self.discards == Discards::UntilEof && !self.at_eof);
        match outcome {
            Poll::Ready(Err(why)) if discards && matches!(why.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => {
                self.write_error.get_or_insert(why.kind());
                Poll::Ready(Ok(length))
            }
            outcome => self.with_write_timeout(cx, outcome),
        }
    }

    /// Puts back bytes that were read from it.
    pub(crate) fn unread(mut self, bytes: Bytes) -> Self {
        self.read_ahead = [bytes, std::mem::take(&mut self.read_ahead)].concat().into();
        self
    }

    /// What a raw relay goes on with. None after the stream has been taken.
    pub(crate) fn into_parts(mut self) -> Option<LegParts> {
        let has_failed = self.write_error.is_some_and(|why| why != io::ErrorKind::BrokenPipe);
        Some(LegParts { stream: self.stream.take()?, read_ahead: std::mem::take(&mut self.read_ahead), has_failed })
    }

    fn stream(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// The outcome of a write, or an error when writes are blocked for too long.
    fn with_write_timeout<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.write_deadline = None;
            return outcome;
        }
        let write_timeout = self.write_timeout;
        let deadline = self.write_deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(write_timeout)));
        match deadline.as_mut().poll(cx) {
            Poll::Ready(()) => {
                let text = format!("the peer has read nothing for {} s", write_timeout.as_secs_f64());
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, text)))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for LegStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.read_ahead.is_empty() {
            let length = self.read_ahead.len().min(buffer.remaining());
            buffer.put_slice(&self.read_ahead[..length]);
            self.read_ahead.advance(length);
            return Poll::Ready(Ok(()));
        }
        // hyper's read buffer grows to twice what one read returns: see `limits::CONNECTION_BYTES`.
        let most = buffer.remaining().min(READ_BYTES);
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(most));
        let outcome = self.stream()?.poll_read(cx, &mut part);
        let length = part.filled().len();
        buffer.advance(length);
        let at_eof = matches!(outcome, Poll::Ready(Ok(()))) && length == 0 && most > 0;
        // The kernel reports the error of a connection only once, and then an end of file. The
        // error is EPIPE when a FIN had arrived before the reset.
        if let Some(why) = self.write_error.filter(|why| at_eof && *why != io::ErrorKind::BrokenPipe) {
            return Poll::Ready(Err(why.into()));
        }
        self.at_eof |= at_eof;
        outcome
    }
}

impl AsyncWrite for LegStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = self.stream()?.poll_write(cx, bytes);
        self.written(cx, outcome, bytes.len())
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, slices: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let outcome = self.stream()?.poll_write_vectored(cx, slices);
        self.written(cx, outcome, slices.iter().map(|slice| slice.len()).sum())
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(stream) = &self.stream {
            disable_reset_on_close(stream)?;
        }
        self.is_shut = true;
        self.stream()?.poll_shutdown(cx)
    }
}

impl Drop for LegStream {
    fn drop(&mut self) {
        let Some(stream) = self.stream.take().filter(|_| self.is_shut && !self.at_eof) else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(linger(stream));
        }
    }
}

/// Reads and discards what the peer still sends, within bounds, then closes the connection.
pub(crate) async fn linger(mut stream: TcpStream) {
    let mut buffer = vec![0; LINGER_BUFFER];
    let mut remaining = LINGER_BYTES;
    let discard = async {
        while let Ok(length @ 1..) = stream.read(&mut buffer).await
            && remaining > 0
        {
            remaining = remaining.saturating_sub(length as u64);
        }
    };
    let _ = timeout(LINGER, discard).await;
}
