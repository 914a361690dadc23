//! The endpoints of transfers, which open connections over one network or over the bond, send, and
//! check what arrives.
//!
//! The opening end sends the number of the transfer first, by which the accepting end finds its
//! specification. The receiver compares every byte.

use super::network::{EXIT_PORT, ParallelNetworks, address, bond_entrance, end_of};
use crate::LabError;
use rand::RngExt as _;
use scenario::{Opens, Purpose, stream};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::{
    collections::HashMap,
    io::{self, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};
use units::Bytes;

/// Port of transfers over network 0; those over network `index` have this port plus `index`, and
/// those by Multipath TCP this port plus the number of networks.
const FIRST_PORT: u16 = 10_000;
/// Bytes of one write or read.
const CHUNK: usize = 64 * 1024;
/// Length of the transfer number that precedes the payload, bytes.
const NUMBER_BYTES: usize = 8;
/// `IPPROTO_MPTCP` of Linux (include/uapi/linux/in.h).
const MPTCP: i32 = 262;

/// What carries a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TransferRoute {
    /// One network, by index from 0.
    Network(usize),
    /// The bond.
    Bond,
    /// Multipath TCP.
    Multipath,
}

/// What a transfer is to do.
#[derive(Debug, Clone, Copy)]
pub(super) struct TransferRequest {
    pub(super) number: u64,
    pub(super) route: TransferRoute,
    pub(super) opens: Opens,
    /// Payload; unlimited if absent.
    pub(super) bytes: Option<Bytes>,
    /// Window of the receiving end; the kernel's default if absent.
    pub(super) window: Option<Bytes>,
}

/// A running transfer.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) request: TransferRequest,
    /// Payload that the receiver has read, bytes.
    pub(super) read: AtomicU64,
    /// Its sockets, which [`Transfer::interrupt`] resets.
    sockets: Mutex<Vec<Socket>>,
}

/// The result of a transfer: its number, and when its last byte was read (in seconds since the
/// start of the run), or why it failed.
pub(super) type TransferResult = (u64, Result<f64, String>);

/// The running transfers and their shared state.
#[derive(Debug)]
pub(super) struct Transfers {
    /// Start of the run.
    pub(super) began: Instant,
    stop: AtomicBool,
    /// The bytes that transfers send, repeated cyclically.
    payload: Vec<u8>,
    /// The senders' congestion controller.
    control: String,
    /// Running transfers by number.
    live: Mutex<HashMap<u64, Arc<Transfer>>>,
    results: Mutex<mpsc::Sender<TransferResult>>,
}

/// The threads that accept and open connections. They are stopped when it is dropped.
#[derive(Debug)]
pub(super) struct TransferThreads {
    pub(super) all: Arc<Transfers>,
    listeners: Vec<Arc<Socket>>,
    threads: Vec<thread::JoinHandle<()>>,
    /// Transfers to open, for the sender's and for the receiver's opening thread.
    openers: Option<[mpsc::Sender<Arc<Transfer>>; 2]>,
}

impl Transfers {
    /// Seconds since the start of the run.
    pub(super) fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    fn report(&self, result: TransferResult) {
        let _ = self.results.lock().unwrap_or_else(PoisonError::into_inner).send(result);
    }

    fn find(&self, number: u64) -> Option<Arc<Transfer>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    /// Removes a transfer that has ended.
    pub(super) fn forget(&self, number: u64) -> Option<Arc<Transfer>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).remove(&number)
    }

    /// A socket for transfers, with its options set before it connects or listens. `receives` is
    /// the window of the receiving end.
    fn socket(&self, route: TransferRoute, receives: Option<Bytes>, sends: bool) -> io::Result<Socket> {
        let protocol = if route == TransferRoute::Multipath { Protocol::from(MPTCP) } else { Protocol::TCP };
        let socket = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), Some(protocol))?;
        socket.set_reuse_address(true)?;
        if route == TransferRoute::Bond {
            return Ok(socket);
        }
        if let Some(window) = receives {
            intercept::force_receive_buffer(&socket, window.0 as usize * 2)?;
            if route != TransferRoute::Multipath {
                intercept::clamp_window(&socket, window.0 as usize)?;
            }
        }
        if sends {
            socket.set_tcp_congestion(self.control.as_bytes())?;
        }
        Ok(socket)
    }

    /// Opens the connection of a transfer, and plays the opening end.
    fn open(&self, transfer: &Arc<Transfer>, networks: usize) {
        let request = transfer.request;
        let there = 1 - end_of(request.opens);
        let to: SocketAddr = match request.route {
            TransferRoute::Bond => bond_entrance(),
            TransferRoute::Network(index) => (address(index, there), FIRST_PORT + index as u16).into(),
            TransferRoute::Multipath => (address(0, there), FIRST_PORT + networks as u16).into(),
        };
        let sends = request.opens == Opens::Sender;
        let played = self.socket(request.route, request.window.filter(|_| !sends), sends).and_then(|mut socket| {
            socket.connect(&SockAddr::from(to))?;
            socket.write_all(&request.number.to_be_bytes())?;
            self.play(transfer, socket, sends)
        });
        self.report_failure(transfer, played, sends);
    }

    /// Reports an error of one end, unless the run is being stopped. The receiver itself reports
    /// success.
    fn report_failure(&self, transfer: &Transfer, played: io::Result<()>, sends: bool) {
        match played {
            Err(_) if self.stop.load(Relaxed) => {}
            Err(why) => self.report((transfer.request.number, Err(format!("{}: {why}", if sends { "sending" } else { "receiving" })))),
            Ok(()) => {}
        }
    }

    /// Plays one end of a transfer.
    fn play(&self, transfer: &Arc<Transfer>, socket: Socket, sends: bool) -> io::Result<()> {
        transfer.sockets.lock().unwrap_or_else(PoisonError::into_inner).push(socket.try_clone()?);
        if self.stop.load(Relaxed) {
            transfer.interrupt();
        }
        let played = if sends { self.send(transfer, &socket) } else { self.receive(transfer, &socket) };
        // The peer waits for this end's FIN. Dropping the socket would not send it, since `sockets`
        // has a duplicate.
        let _ = socket.shutdown(Shutdown::Both);
        played
    }

    /// Offset in the cyclic payload of byte `at` of a transfer.
    fn payload_offset(&self, number: u64, at: u64) -> usize {
        ((at + number * 4099) % self.payload.len() as u64) as usize
    }

    /// Writes the transfer's bytes, sends a FIN, and waits for the peer's: a clean close means that
    /// all bytes were delivered.
    fn send(&self, transfer: &Transfer, mut socket: &Socket) -> io::Result<()> {
        let (request, mut sent) = (transfer.request, 0);
        let most = request.bytes.map_or(u64::MAX, |bytes| bytes.0);
        while sent < most && !self.stop.load(Relaxed) {
            let offset = self.payload_offset(request.number, sent);
            let room = (self.payload.len() - offset).min(CHUNK).min(usize::try_from(most - sent).unwrap_or(CHUNK));
            sent += socket.write(&self.payload[offset..offset + room])? as u64;
        }
        socket.shutdown(Shutdown::Write)?;
        socket.read(&mut [0; 1]).map(drop)
    }

    /// Reads until end of file, compares every byte, and reports the time of the last one.
    fn receive(&self, transfer: &Transfer, mut socket: &Socket) -> io::Result<()> {
        let (request, mut read, mut bytes, mut last) = (transfer.request, 0u64, vec![0; CHUNK], self.now());
        let clamps = request.window.filter(|_| matches!(request.route, TransferRoute::Network(_)));
        loop {
            if let Some(window) = clamps {
                // The kernel resets the clamp when it receives a segment larger than all before.
                intercept::clamp_window(socket, window.0 as usize)?;
            }
            let count = socket.read(&mut bytes)?;
            if count == 0 {
                break;
            }
            last = self.now();
            let mut seen = 0;
            while seen < count {
                let offset = self.payload_offset(request.number, read + seen as u64);
                let here = (count - seen).min(self.payload.len() - offset);
                if bytes[seen..seen + here] != self.payload[offset..offset + here] {
                    return Err(io::Error::other(format!(
                        "received bytes differ from those sent before byte {}",
                        read + (seen + here) as u64
                    )));
                }
                seen += here;
            }
            read += count as u64;
            transfer.read.store(read, Relaxed);
        }
        match request.bytes {
            Some(bytes) if bytes.0 != read && !self.stop.load(Relaxed) => {
                Err(io::Error::other(format!("end of file after {read} of {} bytes", bytes.0)))
            }
            _ => {
                self.report((request.number, Ok(last)));
                Ok(())
            }
        }
    }

    /// Accepts connections until the listener is shut down.
    fn accept(self: &Arc<Self>, listener: &Socket) {
        while let Ok((mut socket, _)) = listener.accept() {
            let all = self.clone();
            // If no thread can be started, the connection is closed and its transfer fails.
            let _ = thread::Builder::new().name("acceptor".into()).spawn(move || {
                let mut number = [0; NUMBER_BYTES];
                let Some(transfer) = socket.read_exact(&mut number).ok().and_then(|()| all.find(u64::from_be_bytes(number))) else {
                    return;
                };
                let sends = transfer.request.opens == Opens::Receiver;
                let played = all.play(&transfer, socket, sends);
                all.report_failure(&transfer, played, sends);
            });
        }
    }
}

impl TransferThreads {
    /// Listens on both hosts for the transfers of `count` networks, of the bond, and, if
    /// `multipath`, of Multipath TCP. `windows` are the receivers' windows: of the foreground, then
    /// of each network. Results of transfers go to `results`.
    pub(super) fn start(
        networks: &ParallelNetworks,
        count: usize,
        (seed, control): (u64, &str),
        windows: &[Option<Bytes>],
        multipath: bool,
        results: mpsc::Sender<TransferResult>,
    ) -> Result<Self, LabError> {
        let mut payload = vec![0; 1 << 20];
        stream(seed, Purpose::Payload, 0).fill(&mut payload[..]);
        let all = Arc::new(Transfers {
            began: Instant::now(),
            stop: AtomicBool::new(false),
            payload,
            control: control.into(),
            live: Mutex::default(),
            results: Mutex::new(results),
        });
        let (mut listeners, mut threads, mut openers) = (Vec::new(), Vec::new(), Vec::new());
        let system = |what| move |why| LabError::System { what, why };
        for end in [0, 1] {
            let host = &networks.hosts()[end];
            let mut listening: Vec<(TransferRoute, IpAddr, u16, Option<Bytes>)> = (0..count)
                .map(|index| (TransferRoute::Network(index), address(index, end), FIRST_PORT + index as u16, windows[index + 1]))
                .collect();
            listening.push((TransferRoute::Bond, Ipv4Addr::LOCALHOST.into(), EXIT_PORT, None));
            if multipath {
                listening.push((TransferRoute::Multipath, Ipv4Addr::UNSPECIFIED.into(), FIRST_PORT + count as u16, windows[0]));
            }
            for (route, at, port, window) in listening {
                // Accepted sockets inherit window and controller, which thus hold from the
                // handshake on.
                let listener = host.enter(|| {
                    let socket = all.socket(route, window, true)?;
                    socket.bind(&SockAddr::from(SocketAddr::new(at, port)))?;
                    socket.listen(1024)?;
                    io::Result::Ok(Arc::new(socket))
                })?;
                let listener = listener.map_err(system("open a listener for transfers"))?;
                let (all, shared) = (all.clone(), listener.clone());
                threads.push(host.spawn("listener", move || all.accept(&shared))?);
                listeners.push(listener);
            }
            let (opener, inbox) = mpsc::channel::<Arc<Transfer>>();
            openers.push(opener);
            let all = all.clone();
            threads.push(host.spawn("opener", move || {
                for transfer in inbox {
                    let (all, number) = (all.clone(), transfer.request.number);
                    let reporter = all.clone();
                    let spawned = thread::Builder::new().name("opener".into()).spawn(move || all.open(&transfer, count));
                    if let Err(why) = spawned {
                        reporter.report((number, Err(format!("cannot start a thread: {why}"))));
                    }
                }
            })?);
        }
        let openers = <[_; 2]>::try_from(openers).map_err(|_| LabError::Panicked)?;
        Ok(TransferThreads { all, listeners, threads, openers: Some(openers) })
    }

    /// Starts a transfer now.
    pub(super) fn open(&self, request: TransferRequest) -> Arc<Transfer> {
        let transfer = Arc::new(Transfer { request, read: AtomicU64::new(0), sockets: Mutex::default() });
        self.all.live.lock().unwrap_or_else(PoisonError::into_inner).insert(request.number, transfer.clone());
        if let Some(openers) = &self.openers {
            let _ = openers[end_of(request.opens)].send(transfer.clone());
        }
        transfer
    }

    /// Resets running transfers, and waits for the threads that listen and open.
    pub(super) fn finish(&mut self) {
        self.all.stop.store(true, Relaxed);
        self.openers = None;
        for listener in &self.listeners {
            let _ = listener.shutdown(Shutdown::Both);
        }
        let live = std::mem::take(&mut *self.all.live.lock().unwrap_or_else(PoisonError::into_inner));
        for transfer in live.values() {
            transfer.interrupt();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for TransferThreads {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Transfer {
    /// Resets its connections, so that its threads do not block any longer. A reset discards
    /// undelivered data, which the kernel would otherwise retransmit for minutes into a network
    /// that no longer exists.
    pub(super) fn interrupt(&self) {
        for socket in self.sockets.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = socket.set_linger(Some(Duration::ZERO));
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// Whether this kernel has Multipath TCP.
pub(super) fn has_multipath_tcp() -> bool {
    Socket::new(Domain::IPV4, Type::STREAM.cloexec(), Some(Protocol::from(MPTCP))).is_ok()
}
