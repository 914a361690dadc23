//! Transfers of random sizes, orders and endings, and the law that the proxy must keep: a clean end
//! means delivered.
//!
//! A transfer is a connection with a stream in each direction. Each endpoint is a thread that
//! writes, reads, half-closes and, in some transfers, aborts. The number of the transfer alone
//! determines what it does. Afterwards the observations of the two endpoints are compared:
//!
//! 1. The bytes that an endpoint has read are a prefix of the other's stream, by checksum.
//! 2. An endpoint that reads end of file has read the whole stream, and the other has half-closed.
//! 3. If an endpoint half-closes, then reads end of file and closes, the other has read its whole
//!    stream, and end of file too.
//! 4. If neither endpoint aborts, both read everything and end without an error.
//!
//! So the sender of a stream that was not read to its end gets an error. Law 3 has one exception,
//! which exists without a proxy too: an endpoint that half-closes and aborts before it has read
//! everything. Its FIN may have been passed on before (at once to an endpoint that has not finished
//! sending; else when its TCP has acknowledged all bytes, note ¹ in `connection.rs`) and cannot be
//! revoked. Such an endpoint is exempt from law 3 only. Another law, which is that note, holds for
//! it:
//!
//! 5. An endpoint whose FIN reaches the proxy before the other half-closes never reads end of file
//!    while the other's TCP lacks bytes. In some transfers one endpoint *withholds*: it leaves more
//!    bytes unread than its TCP takes, waits until the other's FIN is acknowledged, half-closes
//!    and, after a while, aborts.
//!
//! On a link that loses packets a reset can be lost: it is not retransmitted. An endpoint that only
//! waits for bytes then waits for ever (its socket has no keepalive), as it would without a proxy.
//! Its transfer ends *unnotified*: that is no clean end either.
#![allow(dead_code)]

use rand::RngExt;
use rand_pcg::Pcg64;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;
use std::{
    fmt,
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use xxhash_rust::xxh3::Xxh3;

/// How long an endpoint waits without progress.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long it waits when the other endpoint has gone, on a link that loses resets.
const PATIENCE_ALONE: Duration = Duration::from_secs(20);
/// The most bytes of a write or read.
const CHUNK: usize = 64 * 1024;
/// The largest stream of random size, bytes.
const MOST: u64 = 10_000_000;
/// Some transfers sweep this many multiples of 64 KiB, with one byte less and more.
const MULTIPLES: u64 = 16;
/// Receive buffer of an endpoint that withholds, bytes (the kernel doubles it); the bytes that it
/// leaves unread; and how long it waits for the other's FIN, since a small B never takes that much.
const RECEIVES: usize = 32 * 1024;
const LEFT_UNREAD: std::ops::Range<u64> = 140_000..180_000;
const WITHHOLDS_AT_MOST: Duration = Duration::from_secs(3);
/// Numbers of states in TCP_INFO. From FIN_WAIT_2 to CLOSED the endpoint's own FIN is acknowledged.
const FIN_WAIT_2: u8 = 5;
const CLOSED: u8 = 7;

/// Number of transfers: TANDEM_TRANSFERS, or else `usually`.
pub(crate) fn asked(usually: u64) -> u64 {
    std::env::var("TANDEM_TRANSFERS").ok().map_or(usually, |text| text.parse().expect("TANDEM_TRANSFERS is a number"))
}

/// Runs one transfer at a time, so that the accepted connection is the one that was opened.
pub(crate) struct Slot<'a> {
    /// Opens a connection to the listener, through the proxy.
    pub(crate) connect: Box<dyn Fn() -> io::Result<TcpStream> + Send + 'a>,
    pub(crate) listener: TcpListener,
}

/// When an endpoint writes and half-closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Writes while it reads; half-closes after its last byte.
    AtOnce,
    /// Writes while it reads; half-closes after the other.
    ClosesLast,
    /// Writes after it has read everything, as a server answers.
    Answers,
}

/// How an endpoint aborts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AbortManner {
    /// SO_LINGER 0.
    Linger,
    /// Closes while bytes are unread.
    Unread,
}

/// When and how an endpoint aborts.
#[derive(Debug, Clone, Copy)]
struct Abort {
    manner: AbortManner,
    /// Bytes that it reads before.
    read: u64,
    /// Bytes that it writes before.
    written: u64,
    /// Whether it half-closes before.
    half_closed: bool,
}

/// The behaviour of an endpoint.
#[derive(Debug, Clone, Copy)]
struct Behaviour {
    seed: u64,
    size: u64,
    order: Order,
    abort: Option<Abort>,
    /// A pause of reading after this many bytes.
    pause: Option<(u64, Duration)>,
    /// It withholds, and aborts this long after its half-close.
    withholds: Option<Duration>,
}

/// A transfer: the behaviour of client and server.
#[derive(Debug, Clone, Copy)]
struct TransferPlan([Behaviour; 2]);

impl TransferPlan {
    /// The plan of transfer `number`, which is the same in every run.
    fn new(number: u64) -> Self {
        let mut rng = generator(number, 0);
        if number % 16 == 7 {
            return Self::withholding(number, &mut rng);
        }
        let mut sizes = [size(&mut rng), size(&mut rng)];
        if number.is_multiple_of(4) {
            let at = number / 4;
            sizes[(at % 2) as usize] = (at / 6 % MULTIPLES + 1) * 65_536 + at / 2 % 3 - 1;
        }
        let mut orders = [Order::AtOnce; 2];
        if let Some(other) = [None, Some(Order::ClosesLast), Some(Order::Answers)][rng.random_range(0..3)] {
            orders[rng.random_range(0..2)] = other;
        }
        let mut part = |own: usize| {
            let other = 1 - own;
            let pause = rng.random_bool(0.3).then(|| (rng.random_range(0..=sizes[other]), Duration::from_millis(rng.random_range(1..200))));
            let abort = rng.random_bool(0.15).then(|| abort(&mut rng, [sizes[own], sizes[other]], [orders[own], orders[other]]));
            Behaviour { seed: number * 2 + own as u64, size: sizes[own], order: orders[own], abort, pause, withholds: None }
        };
        TransferPlan([part(0), part(1)])
    }

    /// One endpoint leaves more bytes unread than its TCP takes, and fewer than a proxy with a
    /// buffer of 256 KiB holds besides.
    fn withholding(number: u64, rng: &mut Pcg64) -> Self {
        let plain =
            |own: u64, size| Behaviour { seed: number * 2 + own, size, order: Order::AtOnce, abort: None, pause: None, withholds: None };
        let (one, read) = (rng.random_range(0..2), size(rng));
        let mut parts = [plain(0, size(rng).min(100_000)), plain(1, size(rng).min(100_000))];
        parts[1 - one].size = read + rng.random_range(LEFT_UNREAD);
        parts[one].abort = Some(Abort { manner: AbortManner::Unread, read, written: parts[one].size, half_closed: true });
        parts[one].withholds = Some(Duration::from_millis(rng.random_range(0..300)));
        TransferPlan(parts)
    }
}

/// A random size: 0, 1, or log-uniform.
fn size(rng: &mut Pcg64) -> u64 {
    match rng.random_range(0..20) {
        0 => 0,
        1 => 1,
        _ => (MOST as f64).powf(rng.random::<f64>()) as u64,
    }
}

/// An abort whose condition will be fulfilled: it waits for no more bytes than the other sends
/// before it reads end of file.
fn abort(rng: &mut Pcg64, [own, other]: [u64; 2], [order, others]: [Order; 2]) -> Abort {
    let half_closed = order == Order::AtOnce && rng.random_bool(0.25);
    // The other answers only after it has read end of file.
    let comes = if others == Order::Answers && !half_closed { 0 } else { other };
    let goes = if order == Order::Answers { 0 } else { own };
    let manner = if comes > 0 && rng.random_bool(0.5) { AbortManner::Unread } else { AbortManner::Linger };
    let read = rng.random_range(0..=comes - u64::from(manner == AbortManner::Unread));
    Abort { manner, read, written: rng.random_range(0..=goes), half_closed }
}

fn generator(seed: u64, stream: u64) -> Pcg64 {
    Pcg64::new((u128::from(seed) << 64) | 0x9e37_79b9_7f4a_7c15, u128::from(stream))
}

/// Generates the bytes of a stream, a chunk at a time.
struct PayloadStream {
    rng: Pcg64,
    chunk: Vec<u8>,
    at: usize,
}

impl PayloadStream {
    fn new(seed: u64) -> Self {
        PayloadStream { rng: generator(seed, 1), chunk: vec![0; CHUNK], at: CHUNK }
    }

    /// The next bytes, at most `most`.
    fn next(&mut self, most: u64) -> &[u8] {
        if self.at == CHUNK {
            self.rng.fill(&mut self.chunk[..]);
            self.at = 0;
        }
        let end = CHUNK.min(self.at.saturating_add(usize::try_from(most).unwrap_or(CHUNK)));
        &self.chunk[self.at..end]
    }

    fn take(&mut self, count: usize) {
        self.at += count;
    }

    /// The checksum of the first `length` bytes of a stream.
    fn sum(seed: u64, length: u64) -> u64 {
        let (mut bytes, mut sum, mut left) = (PayloadStream::new(seed), Xxh3::new(), length);
        while left > 0 {
            let next = bytes.next(left);
            sum.update(next);
            let count = next.len();
            left -= count as u64;
            bytes.take(count);
        }
        sum.digest()
    }
}

/// How an endpoint ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It has written all, half-closed and read end of file.
    Orderly,
    Aborted,
    Failed(ErrorKind),
    /// It made no progress for too long.
    Unnotified,
}

/// The observations of an endpoint.
#[derive(Debug, Clone, Copy)]
struct EndpointReport {
    written: u64,
    half_closed: bool,
    read: u64,
    /// PayloadStream that an endpoint which withholds received and left unread.
    unread: u64,
    sum: u64,
    end_of_file: bool,
    /// It read end of file after its own half-close.
    end_of_file_after: bool,
    end: End,
}

/// Shared by the two endpoints of a transfer.
#[derive(Debug, Default)]
struct Between {
    /// One of them has aborted or failed.
    alone: AtomicBool,
    /// One of them has half-closed, and its FIN was acknowledged.
    finished: AtomicBool,
    /// Number of reads and writes of both. While it grows, neither endpoint times out, however slow
    /// the machine is.
    moves: AtomicU64,
    /// The link may lose resets.
    lossy: bool,
}

/// A running endpoint.
struct Endpoint<'a> {
    part: &'a Behaviour,
    stream: TcpStream,
    bytes: PayloadStream,
    room: Vec<u8>,
    sum: Xxh3,
    seen: EndpointReport,
    /// The last value of [`Between::moves`] that it saw, and when that last grew.
    moves: u64,
    progressed: Instant,
}

impl<'a> Endpoint<'a> {
    fn new(part: &'a Behaviour, stream: TcpStream) -> Self {
        let seen = EndpointReport {
            written: 0,
            half_closed: false,
            read: 0,
            unread: 0,
            sum: 0,
            end_of_file: false,
            end_of_file_after: false,
            end: End::Orderly,
        };
        Endpoint {
            part,
            stream,
            bytes: PayloadStream::new(part.seed),
            room: vec![0; CHUNK],
            sum: Xxh3::new(),
            seen,
            moves: 0,
            progressed: Instant::now(),
        }
    }

    fn run_to_end(mut self, between: &Between) -> EndpointReport {
        self.seen.end = self.run(between).unwrap_or_else(|why| End::Failed(why.kind()));
        if self.seen.end != End::Orderly {
            between.alone.store(true, Relaxed);
        }
        if self.seen.end == End::Unnotified {
            let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
        }
        self.seen.sum = self.sum.digest();
        self.seen
    }

    fn run(&mut self, between: &Between) -> io::Result<End> {
        self.stream.set_nonblocking(true)?;
        if self.part.withholds.is_some() {
            SockRef::from(&self.stream).set_recv_buffer_size(RECEIVES)?;
        }
        loop {
            if let Some(pause) = self.part.withholds {
                if self.is_ready_to_withhold() {
                    return self.withhold(pause, between);
                }
            } else if self.aborts_now()? {
                return Ok(End::Aborted);
            }
            let moved = self.write()? | self.half_close()? | self.read()?;
            let moves = between.moves.fetch_add(moved.into(), Relaxed) + u64::from(moved);
            if moves != self.moves {
                self.moves = moves;
                self.progressed = Instant::now();
            }
            if self.seen.end_of_file && self.seen.half_closed && !self.part.abort.is_some_and(|abort| abort.half_closed) {
                return Ok(End::Orderly);
            }
            if moved {
                continue;
            }
            let patience = if between.lossy && between.alone.load(Relaxed) { PATIENCE_ALONE } else { PATIENCE };
            if self.progressed.elapsed() > patience {
                return Ok(End::Unnotified);
            }
            if self.seen.half_closed && (FIN_WAIT_2..=CLOSED).contains(&intercept::tcp_info(&self.stream)?.state) {
                between.finished.store(true, Relaxed);
            }
            self.wait()?;
        }
    }

    /// Whether it has read and written everything before it withholds.
    fn is_ready_to_withhold(&self) -> bool {
        self.seen.written == self.part.size && self.part.abort.is_some_and(|abort| self.seen.read == abort.read)
    }

    /// Half-closes once the other's FIN has certainly arrived, then aborts. If that takes too long,
    /// it aborts without a half-close.
    fn withhold(&mut self, pause: Duration, between: &Between) -> io::Result<End> {
        let begun = Instant::now();
        while !between.finished.load(Relaxed) && begun.elapsed() < WITHHOLDS_AT_MOST {
            thread::sleep(Duration::from_millis(1));
        }
        if between.finished.load(Relaxed) {
            self.stream.shutdown(Shutdown::Write)?;
            self.seen.half_closed = true;
            thread::sleep(pause);
        }
        self.seen.unread = rustix::io::ioctl_fionread(&self.stream)?;
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))?;
        Ok(End::Aborted)
    }

    /// Whether it aborts now; closing then sends a reset.
    fn aborts_now(&mut self) -> io::Result<bool> {
        let Some(abort) = self.part.abort else { return Ok(false) };
        let seen = &self.seen;
        if seen.read < abort.read || seen.written < abort.written || seen.half_closed != abort.half_closed {
            return Ok(false);
        }
        match abort.manner {
            AbortManner::Linger => SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).map(|()| true),
            AbortManner::Unread => Ok(rustix::io::ioctl_fionread(&self.stream)? > 0),
        }
    }

    fn may_write(&self) -> bool {
        self.seen.written < self.part.size && (self.part.order != Order::Answers || self.seen.end_of_file)
    }

    /// The most bytes that it may read now.
    fn may_read(&self) -> usize {
        match self.part.abort {
            _ if self.seen.end_of_file => 0,
            // It stops there, and waits for bytes that it will not read.
            Some(abort) if abort.manner == AbortManner::Unread || self.seen.read < abort.read => {
                CHUNK.min((abort.read - self.seen.read) as usize)
            }
            _ => CHUNK,
        }
    }

    fn write(&mut self) -> io::Result<bool> {
        if !self.may_write() {
            return Ok(false);
        }
        match self.stream.write(self.bytes.next(self.part.size - self.seen.written)) {
            Ok(count) => {
                self.bytes.take(count);
                self.seen.written += count as u64;
                Ok(true)
            }
            Err(why) if why.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(why) => Err(why),
        }
    }

    fn half_close(&mut self) -> io::Result<bool> {
        let is_time = self.part.withholds.is_none()
            && self.seen.written == self.part.size
            && (self.part.order == Order::AtOnce || self.seen.end_of_file)
            && self.part.abort.is_none_or(|abort| abort.half_closed);
        if self.seen.half_closed || !is_time {
            return Ok(false);
        }
        self.stream.shutdown(Shutdown::Write)?;
        self.seen.half_closed = true;
        Ok(true)
    }

    fn read(&mut self) -> io::Result<bool> {
        let most = self.may_read();
        if most == 0 {
            return Ok(false);
        }
        match self.stream.read(&mut self.room[..most]) {
            Ok(0) => {
                self.seen.end_of_file = true;
                self.seen.end_of_file_after = self.seen.half_closed;
            }
            Ok(count) => {
                self.sum.update(&self.room[..count]);
                let before = self.seen.read;
                self.seen.read += count as u64;
                if let Some((at, pause)) = self.part.pause
                    && (before..self.seen.read).contains(&at)
                {
                    thread::sleep(pause);
                }
            }
            Err(why) if why.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(why) => return Err(why),
        }
        Ok(true)
    }

    /// Waits until it can read or write.
    fn wait(&self) -> io::Result<()> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, !self.seen.end_of_file);
        flags.set(PollFlags::OUT, self.may_write());
        let mut fds = [PollFd::new(&self.stream, flags)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 20_000_000 }))?;
        if fds[0].revents().contains(PollFlags::ERR) {
            // An endpoint that does not read now would miss the error.
            return self.stream.take_error()?.map_or(Ok(()), Err);
        }
        Ok(())
    }
}

/// Checks a transfer against the laws.
///
/// # Errors
/// The law that is broken, and by which endpoint.
fn judge(plan: &TransferPlan, seen: &[EndpointReport; 2], lossy: bool) -> Result<(), String> {
    let aborts = plan.0.iter().any(|part| part.abort.is_some());
    for (own, other) in [(0, 1), (1, 0)] {
        let (this, sender) = (&seen[own], &seen[other]);
        let size = plan.0[other].size;
        let wrong = |what: &str| Err(format!("{} {what}", ["the client", "the server"][own]));
        if this.read > sender.written || this.sum != PayloadStream::sum(plan.0[other].seed, this.read) {
            return wrong("read bytes that were not sent");
        }
        if this.end_of_file && !(this.read == size && sender.half_closed) {
            return wrong("read end of file before the end of the stream");
        }
        let exempt = this.end == End::Aborted && this.half_closed;
        // An endpoint that aborts discards its own bytes, although it may have read end of file
        // before.
        let ended_cleanly = sender.end == End::Orderly && sender.end_of_file_after;
        if ended_cleanly && !this.end_of_file && !exempt {
            return wrong("did not read to the end, but the other endpoint ended cleanly");
        }
        let lacks = this.read + this.unread < size;
        if plan.0[own].withholds.is_some() && this.half_closed && lacks && sender.end_of_file {
            return wrong("lacked bytes, but the other endpoint read end of file");
        }
        match this.end {
            End::Orderly | End::Aborted => {}
            _ if !aborts => return wrong("did not end cleanly although neither endpoint aborted"),
            // A half-close after a reset fails with the last of these.
            End::Failed(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::NotConnected) => {}
            End::Failed(_) => return wrong("failed with another error than a reset"),
            End::Unnotified if lossy => {}
            End::Unnotified => return wrong("was never notified of the other's ending"),
        }
    }
    Ok(())
}

/// Counts of many transfers.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) transfers: u64,
    /// Both streams read to their ends.
    pub(crate) completed: u64,
    /// One endpoint or both aborted.
    pub(crate) aborted: u64,
    /// Aborted ones whose half-close came before: the other endpoint had finished and read end of
    /// file.
    pub(crate) after_clean_end: u64,
    /// Aborted ones whose aborting endpoint had withheld bytes and half-closed.
    pub(crate) withheld: u64,
    /// Aborted ones of which one endpoint was never notified.
    pub(crate) unnotified: u64,
    /// PayloadStream read, in both directions.
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) broken: Vec<String>,
}

impl Summary {
    fn add(&mut self, seen: &[EndpointReport; 2], judgement: Result<(), String>) {
        let any = |is: fn(&EndpointReport) -> bool| u64::from(seen.iter().any(is));
        self.transfers += 1;
        self.completed += u64::from(seen.iter().all(|seen| seen.end == End::Orderly));
        self.aborted += any(|seen| seen.end == End::Aborted);
        self.unnotified += any(|seen| seen.end == End::Unnotified);
        let ended_cleanly = |at: usize| seen[at].end == End::Orderly && seen[at].end_of_file_after && seen[1 - at].end == End::Aborted;
        self.after_clean_end += u64::from(ended_cleanly(0) || ended_cleanly(1));
        self.withheld += any(|seen| seen.end == End::Aborted && seen.half_closed && seen.unread > 0);
        self.bytes += seen.iter().map(|seen| seen.read).sum::<u64>();
        self.broken.extend(judgement.err());
    }

    /// The sum of two summaries.
    pub(crate) fn and(mut self, other: Summary) -> Summary {
        self.transfers += other.transfers;
        self.completed += other.completed;
        self.aborted += other.aborted;
        self.after_clean_end += other.after_clean_end;
        self.withheld += other.withheld;
        self.unnotified += other.unnotified;
        self.bytes += other.bytes;
        self.seconds += other.seconds;
        self.broken.extend(other.broken);
        self
    }

    /// Fails the test if a law was broken.
    pub(crate) fn assert_lawful(&self) {
        assert!(self.broken.is_empty(), "{} of {} transfers:\n{}", self.broken.len(), self.transfers, self.broken.join("\n"));
        assert_eq!(self.completed + self.aborted, self.transfers, "transfers without an abort are complete");
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { transfers, completed, aborted, after_clean_end, withheld, unnotified, bytes, seconds, broken } = self;
        write!(
            f,
            "{transfers} transfers: {completed} completed, {aborted} aborted ({after_clean_end} after the other had ended cleanly, {withheld} \
             withholding, {unnotified} unnotified), {bytes} bytes in {seconds:.1} s, {} against the laws",
            broken.len()
        )
    }
}

/// Runs the transfers of these numbers, one in each slot at a time. `lossy`: the link may lose
/// resets.
pub(crate) fn run(numbers: std::ops::Range<u64>, slots: Vec<Slot<'_>>, lossy: bool) -> Summary {
    let (next, summary, begun) = (AtomicU64::new(numbers.start), Mutex::new(Summary::default()), Instant::now());
    thread::scope(|scope| {
        for slot in slots {
            let (next, summary, end) = (&next, &summary, numbers.end);
            scope.spawn(move || {
                SockRef::from(&slot.listener).set_read_timeout(Some(PATIENCE)).unwrap();
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= end {
                        break;
                    }
                    let plan = TransferPlan::new(number);
                    let seen = transfer(&plan, &slot, lossy).unwrap_or_else(|why| panic!("transfer {number}: {why}"));
                    let judgement = judge(&plan, &seen, lossy).map_err(|what| format!("transfer {number}: {what}\n  {plan:?}\n  {seen:?}"));
                    summary.lock().unwrap().add(&seen, judgement);
                }
            });
        }
    });
    let mut summary = summary.into_inner().unwrap();
    summary.seconds = begun.elapsed().as_secs_f64();
    summary
}

fn transfer(plan: &TransferPlan, slot: &Slot<'_>, lossy: bool) -> io::Result<[EndpointReport; 2]> {
    let client = (slot.connect)()?;
    let (server, _) = slot.listener.accept()?;
    let between = Between { lossy, ..Between::default() };
    thread::scope(|scope| {
        let at_server = scope.spawn(|| Endpoint::new(&plan.0[1], server).run_to_end(&between));
        let at_client = Endpoint::new(&plan.0[0], client).run_to_end(&between);
        Ok([at_client, at_server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))])
    })
}
