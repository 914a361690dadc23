//! Looks names up, off the workers' threads: the system's resolver takes as long as it likes.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs as _},
    sync::{Arc, Mutex, mpsc},
    thread,
};

/// Names looked up at once.
const THREADS: usize = 4;

/// Whose question it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    /// The client in this slot of the worker.
    Client(usize),
    /// The stream in this slot of the worker's carrier.
    Stream(usize),
}

/// A name to look up.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) name: String,
    pub(crate) port: u16,
    pub(crate) worker: usize,
    pub(crate) asker: Asker,
    /// Tells this asker from a later one in the same slot.
    pub(crate) serial: u64,
}

/// What a name came to.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) asker: Asker,
    pub(crate) serial: u64,
    pub(crate) addresses: io::Result<Vec<SocketAddr>>,
}

/// Answers questions until nobody can ask any; `tell` brings an answer to the worker that asked.
pub(crate) fn start(questions: mpsc::Receiver<Question>, tell: impl Fn(usize, Answer) + Clone + Send + 'static) -> io::Result<()> {
    let questions = Arc::new(Mutex::new(questions));
    for _ in 0..THREADS {
        let (questions, tell) = (questions.clone(), tell.clone());
        let work = move || {
            loop {
                let question = questions.lock().map(|questions| questions.recv());
                let Ok(Ok(Question { name, port, worker, asker, serial })) = question else { return };
                let addresses = (name.as_str(), port).to_socket_addrs().map(Iterator::collect);
                tell(worker, Answer { asker, serial, addresses });
            }
        };
        thread::Builder::new().name("tandem-names".into()).spawn(work)?;
    }
    Ok(())
}
