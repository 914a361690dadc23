//! A connection as the HTTP machinery sees it. As everywhere in the house it is closed with a reset unless it has been shut down: an end whose
//! message has no length must not take a break for its end.

use crate::limits::PIECE;
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

/// How long, and how much, a peer is still listened to after all has been said to it: closing on what it has sent would reset what it has not
/// read yet.
const FAREWELL: (Duration, u64) = (Duration::from_secs(5), 8 << 20);

/// See the module.
#[derive(Debug)]
pub(crate) struct Leg {
    stream: Option<TcpStream>,
    /// What has been read of it before.
    first: Bytes,
    /// How long the peer may take nothing.
    patience: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
    shut: bool,
    heard_all: bool,
}

/// A socket that does not block, for tokio.
pub(crate) fn stream(socket: Socket) -> io::Result<TcpStream> {
    TcpStream::from_std(socket.into())
}

/// Lets a connection close as others do, once all has been said.
pub(crate) fn close_gently(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(stream).set_linger(None)
}

impl Leg {
    pub(crate) fn new(stream: TcpStream, first: Bytes, patience: Duration) -> Self {
        Leg { stream: Some(stream), first, patience, stalled: None, shut: false, heard_all: false }
    }

    /// It, after more that has been read of it before.
    pub(crate) fn after(mut self, read: Bytes) -> Self {
        self.first = [read, std::mem::take(&mut self.first)].concat().into();
        self
    }

    /// The connection, and what has been read of it and not been taken.
    pub(crate) fn into_parts(mut self) -> Option<(TcpStream, Bytes)> {
        Some((self.stream.take()?, std::mem::take(&mut self.first)))
    }

    fn stream(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// What came of a write, unless nothing comes of it for too long.
    fn watched<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stalled = None;
            return outcome;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        match stalled.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes nothing"))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Leg {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            let length = self.first.len().min(buffer.remaining());
            buffer.put_slice(&self.first[..length]);
            self.first.advance(length);
            return Poll::Ready(Ok(()));
        }
        // hyper's read buffer grows to twice what one read returns: see `limits::CONNECTION`.
        let most = buffer.remaining().min(PIECE);
        let mut piece = ReadBuf::new(buffer.initialize_unfilled_to(most));
        let outcome = self.stream()?.poll_read(cx, &mut piece);
        let length = piece.filled().len();
        buffer.advance(length);
        self.heard_all |= matches!(outcome, Poll::Ready(Ok(()))) && length == 0 && most > 0;
        outcome
    }
}

impl AsyncWrite for Leg {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = self.stream()?.poll_write(cx, bytes);
        self.watched(cx, outcome)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, pieces: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let outcome = self.stream()?.poll_write_vectored(cx, pieces);
        self.watched(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(stream) = &self.stream {
            close_gently(stream)?;
        }
        self.shut = true;
        self.stream()?.poll_shutdown(cx)
    }
}

impl Drop for Leg {
    fn drop(&mut self) {
        let Some(mut stream) = self.stream.take().filter(|_| self.shut && !self.heard_all) else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let (mut left, mut part) = (FAREWELL.1, vec![0; 16 * 1024]);
                let listen = async {
                    while let Ok(length @ 1..) = stream.read(&mut part).await
                        && left > 0
                    {
                        left = left.saturating_sub(length as u64);
                    }
                };
                let _ = timeout(FAREWELL.0, listen).await;
            });
        }
    }
}
