//! A stream of server-sent events (HTML standard, 9.2).

use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::sync::{Notify, mpsc};

/// Events that wait for a client. A client that reads slower misses events.
const WAITING: usize = 4;
/// Events in a row that a client may miss before its stream is closed.
const MISSED: u32 = 15;

/// The body of an answer that consists of events.
#[derive(Debug)]
pub struct EventStream {
    events: mpsc::Receiver<Bytes>,
    /// Notified when the other end is dropped.
    pub(crate) ended: Arc<Notify>,
}

/// Sends events to one client. Dropping it closes the client's connection.
#[derive(Debug)]
pub struct EventSender {
    events: mpsc::Sender<Bytes>,
    missed: u32,
    ended: Arc<Notify>,
}

/// Opens a stream of events: the end that sends, and the body of the answer.
pub fn event_stream() -> (EventSender, EventStream) {
    let (sender, events) = mpsc::channel(WAITING);
    let ended = Arc::new(Notify::new());
    (EventSender { events: sender, missed: 0, ended: ended.clone() }, EventStream { events, ended })
}

impl EventSender {
    /// Whether the client has gone.
    pub fn is_closed(&self) -> bool {
        self.events.is_closed()
    }

    /// Sends an event of this type; `data` is one line. Never blocks: a client that does not read
    /// misses the event. False: the client has gone, or has missed too many.
    pub fn send(&mut self, event: &str, data: &str) -> bool {
        debug_assert!(!data.contains(['\n', '\r']), "the data of an event is one line");
        let text = format!("event: {event}\ndata: {data}\n\n");
        match self.events.try_send(text.into()) {
            Ok(()) => self.missed = 0,
            Err(mpsc::error::TrySendError::Full(_)) => self.missed += 1,
            Err(mpsc::error::TrySendError::Closed(_)) => return false,
        }
        self.missed <= MISSED
    }
}

impl Drop for EventSender {
    fn drop(&mut self) {
        self.ended.notify_one();
    }
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.events.poll_recv(context).map(|event| event.map(|text| Ok(Frame::data(text))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
