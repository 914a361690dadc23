//! The transfers: programs that open connections, over one network or over the bond, send and check what arrived.
//!
//! Whoever opens a connection says the transfer's number first; whoever accepts it knows by that what is to come, or what to send. All of it is checked
//! byte by byte.

use super::network::{Networks, OUT_PORT, address, end_of, entrance};
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

/// Where the transfers of network `index` come in; Multipath TCP's at the first.
const FIRST_PORT: u16 = 10_000;
/// What is written and read at a time.
const CHUNK: usize = 64 * 1024;
/// The transfer's number, ahead of its bytes.
const NUMBER: usize = 8;
/// `IPPROTO_MPTCP` of Linux (include/uapi/linux/in.h).
const MPTCP: i32 = 262;

/// How a transfer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    /// One network, from 0.
    Network(usize),
    Bond,
    Multipath,
}

/// A transfer that comes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spec {
    pub(super) number: u64,
    pub(super) over: Over,
    pub(super) opens: Opens,
    /// Without an end where absent.
    pub(super) bytes: Option<Bytes>,
    /// Of the receiving end.
    pub(super) window: Option<Bytes>,
}

/// A transfer under way.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) spec: Spec,
    /// Payload that was read.
    pub(super) read: AtomicU64,
    /// Its sockets, to be interrupted.
    sockets: Mutex<Vec<Socket>>,
}

/// A transfer that has ended: its number, when the last byte was read, or what went wrong.
pub(super) type Ended = (u64, Result<f64, String>);

/// All that are under way, and what they share.
#[derive(Debug)]
pub(super) struct Transfers {
    pub(super) began: Instant,
    stop: AtomicBool,
    payload: Vec<u8>,
    control: String,
    live: Mutex<HashMap<u64, Arc<Transfer>>>,
    ended: Mutex<mpsc::Sender<Ended>>,
}

/// Threads that accept, and those that open.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) all: Arc<Transfers>,
    listeners: Vec<Arc<Socket>>,
    threads: Vec<thread::JoinHandle<()>>,
    /// To whom transfers are given that this host opens.
    openers: Option<[mpsc::Sender<Arc<Transfer>>; 2]>,
}

impl Transfers {
    pub(super) fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    fn tell(&self, ended: Ended) {
        let _ = self.ended.lock().unwrap_or_else(PoisonError::into_inner).send(ended);
    }

    fn find(&self, number: u64) -> Option<Arc<Transfer>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    pub(super) fn forget(&self, number: u64) -> Option<Arc<Transfer>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).remove(&number)
    }

    /// A socket for transfers, tuned before it connects.
    fn socket(&self, over: Over, receives: Option<Bytes>, sends: bool) -> io::Result<Socket> {
        let protocol = if over == Over::Multipath { Protocol::from(MPTCP) } else { Protocol::TCP };
        let socket = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), Some(protocol))?;
        socket.set_reuse_address(true)?;
        if over == Over::Bond {
            return Ok(socket);
        }
        if let Some(window) = receives {
            intercept::force_receive_buffer(&socket, window.0 as usize * 2)?;
            if over != Over::Multipath {
                intercept::clamp_window(&socket, window.0 as usize)?;
            }
        }
        if sends {
            socket.set_tcp_congestion(self.control.as_bytes())?;
        }
        Ok(socket)
    }

    /// Opens a transfer's connection, and plays its end of it.
    fn open(&self, transfer: &Arc<Transfer>, networks: usize) {
        let spec = transfer.spec;
        let there = 1 - end_of(spec.opens);
        let to: SocketAddr = match spec.over {
            Over::Bond => entrance(),
            Over::Network(index) => (address(index, there), FIRST_PORT + index as u16).into(),
            Over::Multipath => (address(0, there), FIRST_PORT + networks as u16).into(),
        };
        let sends = spec.opens == Opens::Sender;
        let played = self.socket(spec.over, spec.window.filter(|_| !sends), sends).and_then(|mut socket| {
            socket.connect(&SockAddr::from(to))?;
            socket.write_all(&spec.number.to_be_bytes())?;
            self.play(transfer, socket, sends)
        });
        self.note(transfer, played, sends);
    }

    /// What playing an end came to: that of the receiver is when it ended.
    fn note(&self, transfer: &Transfer, played: io::Result<()>, sends: bool) {
        match played {
            Err(_) if self.stop.load(Relaxed) => {}
            Err(why) => self.tell((transfer.spec.number, Err(format!("{}: {why}", if sends { "sending" } else { "receiving" })))),
            Ok(()) => {}
        }
    }

    fn play(&self, transfer: &Arc<Transfer>, socket: Socket, sends: bool) -> io::Result<()> {
        transfer.sockets.lock().unwrap_or_else(PoisonError::into_inner).push(socket.try_clone()?);
        if self.stop.load(Relaxed) {
            transfer.interrupt();
        }
        let played = if sends { self.send(transfer, &socket) } else { self.receive(transfer, &socket) };
        // The other end waits for this end's FIN, and another hand holds the socket.
        let _ = socket.shutdown(Shutdown::Both);
        played
    }

    /// Where in the payload a transfer's byte is.
    fn place(&self, number: u64, at: u64) -> usize {
        ((at + number * 4099) % self.payload.len() as u64) as usize
    }

    /// Writes the transfer's bytes, ends, and waits for the other end's end: a clean one means that all was delivered.
    fn send(&self, transfer: &Transfer, mut socket: &Socket) -> io::Result<()> {
        let (spec, mut sent) = (transfer.spec, 0);
        let most = spec.bytes.map_or(u64::MAX, |bytes| bytes.0);
        while sent < most && !self.stop.load(Relaxed) {
            let place = self.place(spec.number, sent);
            let room = (self.payload.len() - place).min(CHUNK).min(usize::try_from(most - sent).unwrap_or(CHUNK));
            sent += socket.write(&self.payload[place..place + room])? as u64;
        }
        socket.shutdown(Shutdown::Write)?;
        socket.read(&mut [0; 1]).map(drop)
    }

    /// Reads until the end, and tells when that was.
    fn receive(&self, transfer: &Transfer, mut socket: &Socket) -> io::Result<()> {
        let (spec, mut read, mut bytes, mut last) = (transfer.spec, 0u64, vec![0; CHUNK], self.now());
        let clamps = spec.window.filter(|_| matches!(spec.over, Over::Network(_)));
        loop {
            if let Some(window) = clamps {
                // The kernel forgets the clamp whenever a segment larger than any before comes.
                intercept::clamp_window(socket, window.0 as usize)?;
            }
            let count = socket.read(&mut bytes)?;
            if count == 0 {
                break;
            }
            last = self.now();
            let mut seen = 0;
            while seen < count {
                let place = self.place(spec.number, read + seen as u64);
                let here = (count - seen).min(self.payload.len() - place);
                if bytes[seen..seen + here] != self.payload[place..place + here] {
                    return Err(io::Error::other(format!("other bytes than were sent, before byte {}", read + (seen + here) as u64)));
                }
                seen += here;
            }
            read += count as u64;
            transfer.read.store(read, Relaxed);
        }
        match spec.bytes {
            Some(bytes) if bytes.0 != read && !self.stop.load(Relaxed) => {
                Err(io::Error::other(format!("{read} of {} bytes came", bytes.0)))
            }
            _ => {
                self.tell((spec.number, Ok(last)));
                Ok(())
            }
        }
    }

    /// Accepts until the listener is shut.
    fn accept(self: &Arc<Self>, listener: &Socket) {
        while let Ok((mut socket, _)) = listener.accept() {
            let all = self.clone();
            // Too many at once are a failure of those that are too many.
            let _ = thread::Builder::new().name("acceptor".into()).spawn(move || {
                let mut number = [0; NUMBER];
                let Some(transfer) = socket.read_exact(&mut number).ok().and_then(|()| all.find(u64::from_be_bytes(number))) else {
                    return;
                };
                let sends = transfer.spec.opens == Opens::Receiver;
                let played = all.play(&transfer, socket, sends);
                all.note(&transfer, played, sends);
            });
        }
    }
}

impl Ends {
    /// Listens at both hosts, and opens what it is given.
    pub(super) fn start(
        networks: &Networks,
        count: usize,
        (seed, control): (u64, &str),
        windows: &[Option<Bytes>],
        multipath: bool,
        ended: mpsc::Sender<Ended>,
    ) -> Result<Self, LabError> {
        let mut payload = vec![0; 1 << 20];
        stream(seed, Purpose::Payload, 0).fill(&mut payload[..]);
        let all = Arc::new(Transfers {
            began: Instant::now(),
            stop: AtomicBool::new(false),
            payload,
            control: control.into(),
            live: Mutex::default(),
            ended: Mutex::new(ended),
        });
        let (mut listeners, mut threads, mut openers) = (Vec::new(), Vec::new(), Vec::new());
        let system = |what| move |why| LabError::System { what, why };
        for end in [0, 1] {
            let host = networks.host(end);
            let mut places: Vec<(Over, IpAddr, u16, Option<Bytes>)> = (0..count)
                .map(|index| (Over::Network(index), address(index, end), FIRST_PORT + index as u16, windows[index + 1]))
                .collect();
            places.push((Over::Bond, Ipv4Addr::LOCALHOST.into(), OUT_PORT, None));
            if multipath {
                places.push((Over::Multipath, Ipv4Addr::UNSPECIFIED.into(), FIRST_PORT + count as u16, windows[0]));
            }
            for (over, at, port, window) in places {
                // Who receives has its window from the first packet on; who sends its controller.
                let listener = host.enter(|| {
                    let socket = all.socket(over, window, true)?;
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
                    let (all, number) = (all.clone(), transfer.spec.number);
                    let told = all.clone();
                    let spawned = thread::Builder::new().name("opener".into()).spawn(move || all.open(&transfer, count));
                    if let Err(why) = spawned {
                        told.tell((number, Err(format!("cannot start a thread: {why}"))));
                    }
                }
            })?);
        }
        let openers = <[_; 2]>::try_from(openers).map_err(|_| LabError::Panicked)?;
        Ok(Ends { all, listeners, threads, openers: Some(openers) })
    }

    /// Opens a transfer now.
    pub(super) fn open(&self, spec: Spec) -> Arc<Transfer> {
        let transfer = Arc::new(Transfer { spec, read: AtomicU64::new(0), sockets: Mutex::default() });
        self.all.live.lock().unwrap_or_else(PoisonError::into_inner).insert(spec.number, transfer.clone());
        if let Some(openers) = &self.openers {
            let _ = openers[end_of(spec.opens)].send(transfer.clone());
        }
        transfer
    }

    /// Ends what still runs, and waits for those who listen and open.
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

impl Drop for Ends {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Transfer {
    /// Ends whatever its threads wait for. What it has not delivered goes with it: the kernel would hold it for minutes, for a network that is gone.
    pub(super) fn interrupt(&self) {
        for socket in self.sockets.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = socket.set_linger(Some(Duration::ZERO));
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// Whether this kernel has Multipath TCP.
pub(super) fn has_multipath() -> bool {
    Socket::new(Domain::IPV4, Type::STREAM.cloexec(), Some(Protocol::from(MPTCP))).is_ok()
}
