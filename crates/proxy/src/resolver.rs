//! Name lookups. They have threads of their own, since the system's resolver blocks.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs as _},
    sync::{Arc, Mutex, mpsc},
    thread,
};

/// Number of parallel lookups.
const THREADS: usize = 4;

/// What a lookup is for, within its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookupOrigin {
    /// The pending client in this slot of the worker.
    Client(usize),
    /// The stream in this slot of the worker's carrier.
    Stream(usize),
}

/// A request to look up a name.
#[derive(Debug)]
pub(crate) struct NameLookup {
    pub(crate) name: String,
    pub(crate) port: u16,
    /// Number of the worker that gets the result.
    pub(crate) worker: usize,
    pub(crate) origin: LookupOrigin,
    /// Distinguishes the present user of the slot from later ones; unchanged in the result.
    pub(crate) serial: u64,
}

/// The result of a [`NameLookup`].
#[derive(Debug)]
pub(crate) struct LookupResult {
    pub(crate) origin: LookupOrigin,
    pub(crate) serial: u64,
    pub(crate) addresses: io::Result<Vec<SocketAddr>>,
}

/// Starts the threads. They end when all senders of lookups have been dropped. `send_result` passes
/// a result to the worker with this number.
///
/// # Errors
/// When a thread cannot be started.
pub(crate) fn start(
    lookups: mpsc::Receiver<NameLookup>,
    send_result: impl Fn(usize, LookupResult) + Clone + Send + 'static,
) -> io::Result<()> {
    let lookups = Arc::new(Mutex::new(lookups));
    for _ in 0..THREADS {
        let (lookups, send_result) = (lookups.clone(), send_result.clone());
        let work = move || {
            loop {
                let lookup = lookups.lock().map(|lookups| lookups.recv());
                let Ok(Ok(NameLookup { name, port, worker, origin, serial })) = lookup else { return };
                let addresses = (name.as_str(), port).to_socket_addrs().map(Iterator::collect);
                send_result(worker, LookupResult { origin, serial, addresses });
            }
        };
        thread::Builder::new().name("tandem-names".into()).spawn(work)?;
    }
    Ok(())
}
