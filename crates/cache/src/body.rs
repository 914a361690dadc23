//! Bodies of messages on their way: one task reads a source, another writes what it is handed.

use crate::{
    access_log::Record,
    blob::{End, Piece, Reader},
    budget::Share,
    counters::Counters,
    encode::Encoder,
    error_response::Error,
    negotiate::Coding,
    window::Window,
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

/// Parts that wait between two tasks.
const QUEUE: usize = 4;

/// A part of a body.
#[derive(Debug)]
pub(crate) enum Part {
    Bytes(Bytes),
    /// All has come, these trailers with it.
    End(Option<HeaderMap>),
}

pub(crate) type Sender = mpsc::Sender<Result<Part, Error>>;

/// Where parts come from. Without an `End` they are not all.
#[derive(Debug)]
pub(crate) struct Flow {
    parts: mpsc::Receiver<Result<Part, Error>>,
    /// How many bytes come, where that is known.
    pub(crate) length: Option<u64>,
}

impl Flow {
    pub(crate) fn channel(length: Option<u64>) -> (Sender, Flow) {
        let (sender, parts) = mpsc::channel(QUEUE);
        (sender, Flow { parts, length })
    }

    pub(crate) async fn next(&mut self) -> Result<Part, Error> {
        self.parts.recv().await.unwrap_or_else(|| Err(gone()))
    }

    /// The next part, where it is there already.
    fn next_now(&mut self) -> Option<Result<Part, Error>> {
        self.parts.try_recv().ok()
    }

    /// It compressed; what that saves is counted.
    pub(crate) fn compressed(mut self, packing: Packing, counters: Arc<Counters>) -> Flow {
        let (sender, flow) = Flow::channel(None);
        tokio::spawn(async move {
            let Packing { coding, share } = packing;
            let window = Window::new(Arc::new(share));
            tokio::select! {
                Err(why) = compress(&mut self, coding, &sender, &counters, &window) => drop(sender.send(Err(why)).await),
                () = sender.closed() => {}
            }
        });
        flow
    }
}

/// How a body is compressed, and the room that this takes.
#[derive(Debug)]
pub(crate) struct Packing {
    pub(crate) coding: Coding,
    pub(crate) share: Share,
}

fn gone() -> Error {
    "its source is gone".into()
}

async fn compress(source: &mut Flow, coding: Coding, sender: &Sender, counters: &Counters, window: &Window) -> Result<(), Error> {
    let mut encoder = Encoder::new(coding)?;
    let (mut before, mut after) = (0_u64, 0_u64);
    let mut waiting = Some(source.next().await?);
    loop {
        let part = match waiting.take() {
            Some(part) => part,
            None => source.next().await?,
        };
        let (bytes, trailers) = match part {
            Part::Bytes(bytes) => (bytes, None),
            Part::End(trailers) => (Bytes::new(), Some(trailers)),
        };
        before += bytes.len() as u64;
        waiting = source.next_now().transpose()?;
        let flush = waiting.is_none() && trailers.is_none();
        // Compressing takes longer than a task should keep others waiting.
        let work = move || match trailers {
            None => encoder.push(&bytes, flush).map(|out| (out, Ok(encoder))),
            Some(trailers) => encoder.finish().map(|out| (out, Err(trailers))),
        };
        let (out, rest) = tokio::task::spawn_blocking(work).await??;
        after += out.len() as u64;
        if !out.is_empty() {
            let out = window.pass(out.into(), true).await;
            if sender.send(Ok(Part::Bytes(out))).await.is_err() {
                return Ok(());
            }
        }
        match rest {
            Ok(same) => encoder = same,
            Err(trailers) => {
                counters.compressed.add(1);
                counters.compressed_bytes_saved.add(before.saturating_sub(after));
                let _ = sender.send(Ok(Part::End(trailers))).await;
                return Ok(());
            }
        }
    }
}

/// A connection that a body comes over, and that can be used again after its end.
pub(crate) trait GivesBack: Send + Sync {
    /// All of the body has come.
    fn give_back(self: Box<Self>);
}

/// Something that comes in, and is counted as it does.
pub(crate) struct Source {
    pub(crate) body: Incoming,
    /// The connection to give back at the end, where it is a server's.
    pub(crate) lease: Option<Box<dyn GivesBack>>,
    /// How long it may say nothing.
    pub(crate) patience: Duration,
    pub(crate) counters: Arc<Counters>,
    /// What has come, where that is an answer.
    pub(crate) came: Option<Arc<AtomicU64>>,
    /// Bounds what is passed on as it comes.
    pub(crate) window: Window,
}

impl Source {
    pub(crate) fn length(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }

    /// The next part; after the last the connection is given back.
    pub(crate) async fn next(&mut self) -> Result<Part, Error> {
        let frame = timeout(self.patience, self.body.frame()).await;
        let end = match frame.map_err(|_| "it said nothing for too long")?.transpose()? {
            None => Part::End(None),
            Some(frame) => match frame.into_data() {
                Ok(bytes) => {
                    if let Some(came) = &self.came {
                        came.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                        self.counters.origin_bytes.add(bytes.len() as u64);
                    }
                    return Ok(Part::Bytes(bytes));
                }
                Err(other) => Part::End(other.into_trailers().ok()),
            },
        };
        if let Some(lease) = self.lease.take() {
            lease.give_back();
        }
        Ok(end)
    }

    /// What comes, as it comes.
    pub(crate) fn flow(self) -> Flow {
        self.flow_from(async { true })
    }

    /// What comes, as it comes, from when `wanted` says so; nothing ever, if it says no.
    pub(crate) fn flow_from(mut self, wanted: impl Future<Output = bool> + Send + 'static) -> Flow {
        let (sender, flow) = Flow::channel(self.length());
        tokio::spawn(async move {
            let wanted = tokio::select! {
                wanted = wanted => wanted,
                () = sender.closed() => return,
            };
            if wanted {
                send_on(&mut self, &sender).await;
            } else {
                // Who sends it need not wait until it is taken.
                drop(self);
                sender.closed().await;
            }
        });
        flow
    }
}

/// Sends this part, and all that still comes after it.
pub(crate) async fn send_rest(source: &mut Source, first: Part, sender: &Sender) {
    let last = matches!(first, Part::End(_));
    if send(source, Ok(first), sender).await && !last {
        send_on(source, sender).await;
    }
}

/// Sends all that still comes.
pub(crate) async fn send_on(source: &mut Source, sender: &Sender) {
    loop {
        let part = tokio::select! {
            part = source.next() => part,
            () = sender.closed() => return,
        };
        let last = !matches!(part, Ok(Part::Bytes(_)));
        if !send(source, part, sender).await || last {
            return;
        }
    }
}

/// Sends a part when the window has room for it; returns whether the receiver is still there.
async fn send(source: &Source, part: Result<Part, Error>, sender: &Sender) -> bool {
    let part = match part {
        Ok(Part::Bytes(bytes)) => tokio::select! {
            bytes = source.window.pass(bytes, false) => Ok(Part::Bytes(bytes)),
            () = sender.closed() => return false,
        },
        part => part,
    };
    sender.send(part).await.is_ok()
}

/// What a blob has from `from` on, `length` bytes of it, or all, and then what did not fit into it.
pub(crate) fn read_out(mut reader: Reader, from: u64, length: Option<u64>, mut beyond: Option<Flow>, window: Window) -> Flow {
    let (sender, flow) = Flow::channel(length);
    reader.seek(from);
    tokio::spawn(async move {
        let mut left = length.unwrap_or(u64::MAX);
        loop {
            let part = tokio::select! {
                part = read_on(&mut reader, &mut beyond, &mut left, &window) => part,
                () = sender.closed() => return,
            };
            let last = !matches!(part, Ok(Part::Bytes(_)));
            if sender.send(part).await.is_err() || last {
                return;
            }
            if left == 0 && length.is_some() {
                let _ = sender.send(Ok(Part::End(None))).await;
                return;
            }
        }
    });
    flow
}

/// The next part of a blob, at most `left` bytes, or of what did not fit into it.
async fn read_on(reader: &mut Reader, beyond: &mut Option<Flow>, left: &mut u64, window: &Window) -> Result<Part, Error> {
    match reader.next().await? {
        Piece::Bytes(mut bytes) => {
            bytes.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= bytes.len() as u64;
            Ok(Part::Bytes(window.pass(bytes, true).await))
        }
        Piece::End(End::Whole(trailers)) => Ok(Part::End(trailers)),
        Piece::End(End::Full) => match beyond {
            Some(beyond) => beyond.next().await,
            None => Err("it was larger than there is room for".into()),
        },
        Piece::End(End::Cut) => Err("its source broke off".into()),
    }
}

#[derive(Debug)]
enum What {
    Nothing,
    All(Bytes),
    Flow(Flow),
}

/// The body of a message that is sent.
#[derive(Debug)]
pub(crate) struct Body {
    what: What,
    left: Option<u64>,
    record: Option<Record>,
}

impl Body {
    pub(crate) fn empty() -> Self {
        Body { what: What::Nothing, left: Some(0), record: None }
    }

    pub(crate) fn of(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Body { left: Some(bytes.len() as u64), what: What::All(bytes), record: None }
    }

    pub(crate) fn flow(flow: Flow) -> Self {
        Body { left: flow.length, what: What::Flow(flow), record: None }
    }

    /// Has what goes through it, and how it ends, written down.
    pub(crate) fn recorded(mut self, mut record: Record) -> Self {
        // Nobody asks for what there is nothing of.
        record.whole = matches!(self.what, What::Nothing) || self.left == Some(0);
        self.record = Some(record);
        self
    }

    fn done(&mut self) {
        self.what = What::Nothing;
        if let Some(record) = &mut self.record {
            record.whole = true;
        }
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let part = match &mut self.what {
            What::Nothing => {
                self.done();
                return Poll::Ready(None);
            }
            What::All(bytes) => {
                let bytes = std::mem::take(bytes);
                self.what = What::Nothing;
                Ok(Part::Bytes(bytes))
            }
            What::Flow(flow) => match flow.parts.poll_recv(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(part) => part.unwrap_or_else(|| Err(gone())),
            },
        };
        match part {
            Ok(Part::Bytes(bytes)) => {
                let length = bytes.len() as u64;
                if let Some(left) = &mut self.left {
                    *left = left.saturating_sub(length);
                }
                let last = self.left == Some(0);
                if let Some(record) = &mut self.record {
                    record.sent(length);
                    record.whole |= last;
                }
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Ok(Part::End(trailers)) => {
                self.done();
                Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
            }
            Err(why) => {
                if let Some(record) = &mut self.record {
                    record.broke(&why);
                }
                Poll::Ready(Some(Err(why)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.what, What::Nothing)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
