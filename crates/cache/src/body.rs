//! Bodies of messages in transit. One task reads a source and sends its parts over a channel; hyper
//! polls the receiving end and writes what it gets.

use crate::{
    access_log::AccessRecord,
    blob::{BlobEnd, BlobPiece, BlobReader},
    budget::BudgetShare,
    counters::CacheCounters,
    encode::Encoder,
    error_response::Error,
    negotiate::ContentCoding,
    window::BodyWindow,
};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::{
    HeaderMap,
    body::{Body as _, Frame, Incoming, SizeHint},
};
use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{sync::mpsc, time::timeout};

/// Parts that can be in the channel between two tasks.
const CHANNEL_PARTS: usize = 4;

/// A part of a body.
#[derive(Debug)]
pub(crate) enum BodyPart {
    Data(Bytes),
    /// The body is complete; with its trailers, if any.
    End(Option<HeaderMap>),
}

pub(crate) type BodySender = mpsc::Sender<Result<BodyPart, Error>>;

/// The receiving end of a body. A stream that ends without [`BodyPart::End`] is incomplete.
#[derive(Debug)]
pub(crate) struct BodyStream {
    parts: mpsc::Receiver<Result<BodyPart, Error>>,
    /// Bytes of the whole body, where that is known.
    pub(crate) length: Option<u64>,
}

impl BodyStream {
    /// Both ends of a body of this length (bytes), or of an unknown one.
    pub(crate) fn channel(length: Option<u64>) -> (BodySender, BodyStream) {
        let (sender, parts) = mpsc::channel(CHANNEL_PARTS);
        (sender, BodyStream { parts, length })
    }

    /// Waits for the next part.
    ///
    /// # Errors
    /// The reason why the body broke off.
    pub(crate) async fn next(&mut self) -> Result<BodyPart, Error> {
        self.parts.recv().await.unwrap_or_else(|| Err(sender_gone()))
    }

    /// The next part, if it is there already.
    fn try_next(&mut self) -> Option<Result<BodyPart, Error>> {
        self.parts.try_recv().ok()
    }

    /// The same body, compressed by a task of its own, which counts the bytes saved.
    pub(crate) fn compressed(mut self, compression: Compression, counters: Arc<CacheCounters>) -> BodyStream {
        let (sender, compressed) = BodyStream::channel(None);
        tokio::spawn(async move {
            let Compression { coding, share } = compression;
            let window = BodyWindow::new(Arc::new(share));
            tokio::select! {
                Err(why) = compress(&mut self, coding, &sender, &counters, &window) => drop(sender.send(Err(why)).await),
                () = sender.closed() => {}
            }
        });
        compressed
    }
}

/// How a body is to be compressed, and the memory reserved for that.
#[derive(Debug)]
pub(crate) struct Compression {
    pub(crate) coding: ContentCoding,
    pub(crate) share: BudgetShare,
}

fn sender_gone() -> Error {
    "the task that reads the body has ended".into()
}

/// Compresses `source` into `sender`. Flushes the encoder whenever no further part is there yet.
async fn compress(
    source: &mut BodyStream,
    coding: ContentCoding,
    sender: &BodySender,
    counters: &CacheCounters,
    window: &BodyWindow,
) -> Result<(), Error> {
    let mut encoder = Encoder::new(coding)?;
    let mut plain_bytes = 0_u64;
    let mut compressed_bytes = 0_u64;
    let mut lookahead = Some(source.next().await?);
    loop {
        let part = match lookahead.take() {
            Some(part) => part,
            None => source.next().await?,
        };
        let (bytes, trailers) = match part {
            BodyPart::Data(bytes) => (bytes, None),
            BodyPart::End(trailers) => (Bytes::new(), Some(trailers)),
        };
        plain_bytes += bytes.len() as u64;
        lookahead = source.try_next().transpose()?;
        let flush = lookahead.is_none() && trailers.is_none();
        // Compression would block the thread that runs other tasks.
        let work = move || match trailers {
            None => encoder.push(&bytes, flush).map(|output| (output, Ok(encoder))),
            Some(trailers) => encoder.finish().map(|output| (output, Err(trailers))),
        };
        let (output, rest) = tokio::task::spawn_blocking(work).await??;
        compressed_bytes += output.len() as u64;
        if !output.is_empty() {
            let output = window.admit(output.into()).await;
            if sender.send(Ok(BodyPart::Data(output))).await.is_err() {
                return Ok(());
            }
        }
        match rest {
            Ok(same) => encoder = same,
            Err(trailers) => {
                counters.compressed.add(1);
                counters.compressed_bytes_saved.add(plain_bytes.saturating_sub(compressed_bytes));
                let _ = sender.send(Ok(BodyPart::End(trailers))).await;
                return Ok(());
            }
        }
    }
}

/// A connection that can be reused once the body that it carries is complete.
pub(crate) trait Recycle: Send + Sync {
    /// Called when the whole body has been received. A connection that is dropped instead is
    /// closed.
    fn recycle(self: Box<Self>);
}

/// A body that is being received, with a timeout and counters.
pub(crate) struct IncomingBody {
    pub(crate) body: Incoming,
    /// The connection to recycle at the end, where the body comes from a server.
    pub(crate) connection: Option<Box<dyn Recycle>>,
    /// How long the sender may send nothing.
    pub(crate) timeout: Duration,
    pub(crate) counters: Arc<CacheCounters>,
    /// Counts the bytes received, where this is a response.
    pub(crate) received: Option<Arc<AtomicU64>>,
    /// Bounds the bytes in transit when the body is streamed.
    pub(crate) window: BodyWindow,
}

impl IncomingBody {
    /// Its length, bytes, where that is known.
    pub(crate) fn length(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }

    /// Receives the next part. After the last one the connection is recycled.
    ///
    /// # Errors
    /// When the sender broke off, or was silent for too long.
    pub(crate) async fn next(&mut self) -> Result<BodyPart, Error> {
        let frame = timeout(self.timeout, self.body.frame()).await;
        let frame = frame.map_err(|_| format!("the sender was silent for {} s", self.timeout.as_secs_f64()))?;
        let end = match frame.transpose()? {
            None => BodyPart::End(None),
            Some(frame) => match frame.into_data() {
                Ok(bytes) => {
                    if let Some(received) = &self.received {
                        received.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                        self.counters.origin_bytes.add(bytes.len() as u64);
                    }
                    return Ok(BodyPart::Data(bytes));
                }
                Err(other) => BodyPart::End(other.into_trailers().ok()),
            },
        };
        if let Some(connection) = self.connection.take() {
            connection.recycle();
        }
        Ok(end)
    }

    /// Streams the body as it is received.
    pub(crate) fn into_stream(self) -> BodyStream {
        self.into_stream_when(async { true })
    }

    /// Streams the body from the moment at which `wanted` returns true. If it returns false, the
    /// body is dropped and the stream stays empty.
    pub(crate) fn into_stream_when(mut self, wanted: impl Future<Output = bool> + Send + 'static) -> BodyStream {
        let (sender, stream) = BodyStream::channel(self.length());
        tokio::spawn(async move {
            let wanted = tokio::select! {
                wanted = wanted => wanted,
                () = sender.closed() => return,
            };
            if wanted {
                send_all(&mut self, &sender).await;
            } else {
                // Dropping it first releases its sender, which would wait for the body to be read.
                drop(self);
                sender.closed().await;
            }
        });
        stream
    }
}

/// Sends `first`, and everything that `source` has after it.
pub(crate) async fn send_rest(source: &mut IncomingBody, first: BodyPart, sender: &BodySender) {
    let is_last = matches!(first, BodyPart::End(_));
    if send(source, Ok(first), sender).await && !is_last {
        send_all(source, sender).await;
    }
}

/// Sends everything that `source` has.
pub(crate) async fn send_all(source: &mut IncomingBody, sender: &BodySender) {
    loop {
        let part = tokio::select! {
            part = source.next() => part,
            () = sender.closed() => return,
        };
        let is_last = !matches!(part, Ok(BodyPart::Data(_)));
        if !send(source, part, sender).await || is_last {
            return;
        }
    }
}

/// Sends a part once the window has space for it. Returns whether the receiver still exists.
async fn send(source: &IncomingBody, part: Result<BodyPart, Error>, sender: &BodySender) -> bool {
    let part = match part {
        Ok(BodyPart::Data(bytes)) => tokio::select! {
            bytes = source.window.admit_copy(bytes) => Ok(BodyPart::Data(bytes)),
            () = sender.closed() => return false,
        },
        part => part,
    };
    sender.send(part).await.is_ok()
}

/// Streams a blob from offset `from` (bytes): `length` bytes of it, or all. `overflow` continues a
/// blob that ended as full.
pub(crate) fn stream_blob(
    mut reader: BlobReader,
    from: u64,
    length: Option<u64>,
    mut overflow: Option<BodyStream>,
    window: BodyWindow,
) -> BodyStream {
    let (sender, stream) = BodyStream::channel(length);
    reader.seek(from);
    tokio::spawn(async move {
        let mut remaining = length.unwrap_or(u64::MAX);
        loop {
            let part = tokio::select! {
                part = next_blob_part(&mut reader, &mut overflow, &mut remaining, &window) => part,
                () = sender.closed() => return,
            };
            let is_last = !matches!(part, Ok(BodyPart::Data(_)));
            if sender.send(part).await.is_err() || is_last {
                return;
            }
            if remaining == 0 && length.is_some() {
                let _ = sender.send(Ok(BodyPart::End(None))).await;
                return;
            }
        }
    });
    stream
}

/// The next part of a blob, at most `remaining` bytes, or of its overflow.
async fn next_blob_part(
    reader: &mut BlobReader,
    overflow: &mut Option<BodyStream>,
    remaining: &mut u64,
    window: &BodyWindow,
) -> Result<BodyPart, Error> {
    match reader.next().await? {
        BlobPiece::Data(mut bytes) => {
            bytes.truncate(usize::try_from(*remaining).unwrap_or(usize::MAX));
            *remaining -= bytes.len() as u64;
            Ok(BodyPart::Data(window.admit(bytes).await))
        }
        BlobPiece::End(BlobEnd::Complete(trailers)) => Ok(BodyPart::End(trailers)),
        BlobPiece::End(BlobEnd::Full) => match overflow {
            Some(overflow) => overflow.next().await,
            None => Err("the stored body is incomplete: there was no room for all of it".into()),
        },
        BlobPiece::End(BlobEnd::Aborted) => Err("the sender of the body broke off".into()),
    }
}

#[derive(Debug)]
enum Content {
    Empty,
    Full(Bytes),
    Stream(BodyStream),
}

/// The body of a message that hyper sends.
#[derive(Debug)]
pub(crate) struct MessageBody {
    content: Content,
    /// Bytes still to be sent, where that is known.
    remaining: Option<u64>,
    record: Option<AccessRecord>,
}

impl MessageBody {
    /// No body.
    pub(crate) fn empty() -> Self {
        MessageBody { content: Content::Empty, remaining: Some(0), record: None }
    }

    /// A body that is in memory.
    pub(crate) fn full(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        MessageBody { remaining: Some(bytes.len() as u64), content: Content::Full(bytes), record: None }
    }

    /// A body that is sent as it comes.
    pub(crate) fn stream(stream: BodyStream) -> Self {
        MessageBody { remaining: stream.length, content: Content::Stream(stream), record: None }
    }

    /// Counts the bytes sent and the outcome in `record`.
    pub(crate) fn recorded(mut self, mut record: AccessRecord) -> Self {
        // hyper does not poll an empty body.
        record.complete = matches!(self.content, Content::Empty) || self.remaining == Some(0);
        self.record = Some(record);
        self
    }

    fn complete(&mut self) {
        self.content = Content::Empty;
        if let Some(record) = &mut self.record {
            record.complete = true;
        }
    }
}

impl hyper::body::Body for MessageBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let part = match &mut self.content {
            Content::Empty => {
                self.complete();
                return Poll::Ready(None);
            }
            Content::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                self.content = Content::Empty;
                Ok(BodyPart::Data(bytes))
            }
            Content::Stream(stream) => match stream.parts.poll_recv(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(part) => part.unwrap_or_else(|| Err(sender_gone())),
            },
        };
        match part {
            Ok(BodyPart::Data(bytes)) => {
                let length = bytes.len() as u64;
                if let Some(remaining) = &mut self.remaining {
                    *remaining = remaining.saturating_sub(length);
                }
                let is_last = self.remaining == Some(0);
                if let Some(record) = &mut self.record {
                    record.add_sent(length);
                    record.complete |= is_last;
                }
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Ok(BodyPart::End(trailers)) => {
                self.complete();
                Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
            }
            Err(why) => {
                if let Some(record) = &mut self.record {
                    record.set_failure(&why);
                }
                Poll::Ready(Some(Err(why)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.content, Content::Empty)
    }

    fn size_hint(&self) -> SizeHint {
        self.remaining.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
