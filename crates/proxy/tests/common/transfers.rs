//! Transfers of random sizes, orders and ends, and the law they must keep: a clean end means
//! delivered.
//!
//! A transfer is a connection with a stream each way. Each of its ends is a thread that writes,
//! reads, half-closes and, in some, aborts; what it is to do comes from the transfer's number
//! alone. Afterwards what the two ends saw is judged:
//!
//! 1. What an end has read is how the other's stream begins, checksum for checksum.
//! 2. An end that reads end of file has read all of it, and the other end has half-closed.
//! 3. An end that half-closes, then reads end of file and closes has been read to the end by the
//!    other, which read end of file too.
//! 4. Where nobody aborts, both ends read all and end without an error.
//!
//! So whatever was not read to its end ended in an error at its sender. To law 3 there is one
//! exception, which no proxy is needed for: an end that half-closes, and gives up before it has
//! read everything. Its end of file may be told before that (at once to an end that has not
//! finished; else when its TCP has acknowledged all bytes, the note ¹ in `connection.rs`), and
//! cannot be taken back. Such an end is exempt from law 3, and from nothing else. For it there is a
//! law of its own, which is that note:
//!
//! 5. An end whose FIN the proxy has before the other half-closes never reads end of file while the
//!    other's TCP lacks bytes. In some transfers one end *withholds*: it leaves more unread than
//!    its TCP takes, waits until the other's FIN is acknowledged, half-closes and, after a while,
//!    aborts.
//!
//! On a link that loses packets a reset can be lost: nobody repeats it. An end that waits for
//! nothing but bytes then waits for ever (the proxy has no keepalive), as it would without a proxy.
//! It is *unheard of*: no clean end either.
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

/// How long an end may wait without a byte.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long it may when the other end is gone, on a link that loses resets.
const PATIENCE_ALONE: Duration = Duration::from_secs(20);
/// What an end writes or reads at a time.
const CHUNK: usize = 64 * 1024;
/// The largest stream of the mixture.
const MOST: u64 = 10_000_000;
/// The sweep goes around so many multiples of 64 KiB.
const MULTIPLES: u64 = 16;
/// Of an end that withholds: its receive buffer (the kernel doubles it), what it leaves unread, and
/// for how long it waits for the other's FIN, since a small B never takes so much.
const RECEIVES: usize = 32 * 1024;
const LEFT_UNREAD: std::ops::Range<u64> = 140_000..180_000;
const WITHHOLDS_AT_MOST: Duration = Duration::from_secs(3);
/// TCP_INFO's number of the state in which our FIN is acknowledged; then come those in which all is
/// over.
const FIN_WAIT_2: u8 = 5;
const CLOSED: u8 = 7;

/// How many transfers are asked for: TANDEM_TRANSFERS, or a number for every day.
pub(crate) fn asked(usually: u64) -> u64 {
    std::env::var("TANDEM_TRANSFERS").ok().map_or(usually, |text| text.parse().expect("TANDEM_TRANSFERS is a number"))
}

/// Where a transfer can run; one at a time does, so that whoever is accepted is who connected.
pub(crate) struct Slot<'a> {
    /// Opens a connection to the listener, through the proxy.
    pub(crate) connect: Box<dyn Fn() -> io::Result<TcpStream> + Send + 'a>,
    pub(crate) listener: TcpListener,
}

/// When an end half-closes, and when it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Writes while it reads; half-closes after its last byte.
    AtOnce,
    /// Writes while it reads; half-closes when the other has.
    ClosesLast,
    /// Writes when it has read everything: an answer.
    Answers,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// SO_LINGER 0.
    Linger,
    /// Closes while there is something to read.
    Unread,
}

/// An end that gives up.
#[derive(Debug, Clone, Copy)]
struct Abort {
    manner: Manner,
    /// As soon as it has read and written so much.
    read: u64,
    written: u64,
    /// And has half-closed.
    half_closed: bool,
}

/// What an end is to do.
#[derive(Debug, Clone, Copy)]
struct Part {
    seed: u64,
    size: u64,
    order: Order,
    abort: Option<Abort>,
    /// It reads nothing for so long, once it has read so much.
    pause: Option<(u64, Duration)>,
    /// It withholds, and aborts so long after its half-close.
    withholds: Option<Duration>,
}

/// A transfer: the client's part and the server's.
#[derive(Debug, Clone, Copy)]
struct Plan([Part; 2]);

impl Plan {
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
            Part { seed: number * 2 + own as u64, size: sizes[own], order: orders[own], abort, pause, withholds: None }
        };
        Plan([part(0), part(1)])
    }

    /// One end leaves more unread than its TCP takes, and less than a proxy of 256 KiB holds
    /// besides.
    fn withholding(number: u64, rng: &mut Pcg64) -> Self {
        let plain = |own: u64, size| Part { seed: number * 2 + own, size, order: Order::AtOnce, abort: None, pause: None, withholds: None };
        let (one, read) = (rng.random_range(0..2), size(rng));
        let mut parts = [plain(0, size(rng).min(100_000)), plain(1, size(rng).min(100_000))];
        parts[1 - one].size = read + rng.random_range(LEFT_UNREAD);
        parts[one].abort = Some(Abort { manner: Manner::Unread, read, written: parts[one].size, half_closed: true });
        parts[one].withholds = Some(Duration::from_millis(rng.random_range(0..300)));
        Plan(parts)
    }
}

/// A size of the mixture: nothing, a byte, else any order of magnitude alike.
fn size(rng: &mut Pcg64) -> u64 {
    match rng.random_range(0..20) {
        0 => 0,
        1 => 1,
        _ => (MOST as f64).powf(rng.random::<f64>()) as u64,
    }
}

/// How an end gives up, such that it comes to it: it waits for no more than the other brings before
/// it hears of an end.
fn abort(rng: &mut Pcg64, [own, other]: [u64; 2], [order, others]: [Order; 2]) -> Abort {
    let half_closed = order == Order::AtOnce && rng.random_bool(0.25);
    // An answer does not come before an end of file.
    let comes = if others == Order::Answers && !half_closed { 0 } else { other };
    let goes = if order == Order::Answers { 0 } else { own };
    let manner = if comes > 0 && rng.random_bool(0.5) { Manner::Unread } else { Manner::Linger };
    let read = rng.random_range(0..=comes - u64::from(manner == Manner::Unread));
    Abort { manner, read, written: rng.random_range(0..=goes), half_closed }
}

fn generator(seed: u64, stream: u64) -> Pcg64 {
    Pcg64::new((u128::from(seed) << 64) | 0x9e37_79b9_7f4a_7c15, u128::from(stream))
}

/// The bytes of a stream, a chunk at a time.
struct Bytes {
    rng: Pcg64,
    chunk: Vec<u8>,
    at: usize,
}

impl Bytes {
    fn new(seed: u64) -> Self {
        Bytes { rng: generator(seed, 1), chunk: vec![0; CHUNK], at: CHUNK }
    }

    /// What comes next, at most so much.
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
        let (mut bytes, mut sum, mut left) = (Bytes::new(seed), Xxh3::new(), length);
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

/// What an end came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It has written all, half-closed and read end of file.
    Orderly,
    Aborted,
    Failed(ErrorKind),
    /// No byte and no word for too long.
    Unheard,
}

/// What an end did and saw.
#[derive(Debug, Clone, Copy)]
struct Seen {
    written: u64,
    half_closed: bool,
    read: u64,
    /// Received, but left unread by one that withholds.
    unread: u64,
    sum: u64,
    end_of_file: bool,
    /// Its own half-close came first.
    end_of_file_after: bool,
    end: End,
}

/// What the two ends of a transfer know of each other, as long as it lasts.
#[derive(Debug, Default)]
struct Between {
    /// One of them has given up.
    alone: AtomicBool,
    /// One of them has finished sending, and that was acknowledged.
    finished: AtomicBool,
    /// How often either has read or written something: while one does, the other has nothing to
    /// complain of, however slow the machine.
    moves: AtomicU64,
    /// Of a reset nothing may be heard.
    lossy: bool,
}

/// One end while it plays its part.
struct Player<'a> {
    part: &'a Part,
    stream: TcpStream,
    bytes: Bytes,
    room: Vec<u8>,
    sum: Xxh3,
    seen: Seen,
    /// The moves of both that it knows of, and when it heard of the last.
    moves: u64,
    heard: Instant,
}

impl<'a> Player<'a> {
    fn new(part: &'a Part, stream: TcpStream) -> Self {
        let seen = Seen {
            written: 0,
            half_closed: false,
            read: 0,
            unread: 0,
            sum: 0,
            end_of_file: false,
            end_of_file_after: false,
            end: End::Orderly,
        };
        Player { part, stream, bytes: Bytes::new(part.seed), room: vec![0; CHUNK], sum: Xxh3::new(), seen, moves: 0, heard: Instant::now() }
    }

    fn play(mut self, between: &Between) -> Seen {
        self.seen.end = self.run(between).unwrap_or_else(|why| End::Failed(why.kind()));
        if self.seen.end != End::Orderly {
            between.alone.store(true, Relaxed);
        }
        if self.seen.end == End::Unheard {
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
                if self.has_come_to_withhold() {
                    return self.withhold(pause, between);
                }
            } else if self.gives_up()? {
                return Ok(End::Aborted);
            }
            let moved = self.write()? | self.half_close()? | self.read()?;
            let moves = between.moves.fetch_add(moved.into(), Relaxed) + u64::from(moved);
            if moves != self.moves {
                self.moves = moves;
                self.heard = Instant::now();
            }
            if self.seen.end_of_file && self.seen.half_closed && !self.part.abort.is_some_and(|abort| abort.half_closed) {
                return Ok(End::Orderly);
            }
            if moved {
                continue;
            }
            let patience = if between.lossy && between.alone.load(Relaxed) { PATIENCE_ALONE } else { PATIENCE };
            if self.heard.elapsed() > patience {
                return Ok(End::Unheard);
            }
            if self.seen.half_closed && (FIN_WAIT_2..=CLOSED).contains(&intercept::tcp_info(&self.stream)?.state) {
                between.finished.store(true, Relaxed);
            }
            self.wait()?;
        }
    }

    /// Whether it has read and written all it will.
    fn has_come_to_withhold(&self) -> bool {
        self.seen.written == self.part.size && self.part.abort.is_some_and(|abort| self.seen.read == abort.read)
    }

    /// Half-closes when the other's FIN has come for certain, then aborts. If it never gets that
    /// far, it just aborts.
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

    /// Whether it is time to give up; closing is a reset then.
    fn gives_up(&mut self) -> io::Result<bool> {
        let Some(abort) = self.part.abort else { return Ok(false) };
        let seen = &self.seen;
        if seen.read < abort.read || seen.written < abort.written || seen.half_closed != abort.half_closed {
            return Ok(false);
        }
        match abort.manner {
            Manner::Linger => SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).map(|()| true),
            Manner::Unread => Ok(rustix::io::ioctl_fionread(&self.stream)? > 0),
        }
    }

    fn may_write(&self) -> bool {
        self.seen.written < self.part.size && (self.part.order != Order::Answers || self.seen.end_of_file)
    }

    /// How much it may read now.
    fn may_read(&self) -> usize {
        match self.part.abort {
            _ if self.seen.end_of_file => 0,
            // It stops there, and waits for what it will not read.
            Some(abort) if abort.manner == Manner::Unread || self.seen.read < abort.read => {
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

    /// Waits for what it may do next.
    fn wait(&self) -> io::Result<()> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, !self.seen.end_of_file);
        flags.set(PollFlags::OUT, self.may_write());
        let mut fds = [PollFd::new(&self.stream, flags)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 20_000_000 }))?;
        if fds[0].revents().contains(PollFlags::ERR) {
            // Whoever does not read now would not hear of it.
            return self.stream.take_error()?.map_or(Ok(()), Err);
        }
        Ok(())
    }
}

/// What is wrong with a transfer, by the law.
fn judge(plan: &Plan, seen: &[Seen; 2], lossy: bool) -> Result<(), String> {
    let aborts = plan.0.iter().any(|part| part.abort.is_some());
    for (own, other) in [(0, 1), (1, 0)] {
        let (this, sender) = (&seen[own], &seen[other]);
        let size = plan.0[other].size;
        let wrong = |what: &str| Err(format!("{} {what}", ["the client", "the server"][own]));
        if this.read > sender.written || this.sum != Bytes::sum(plan.0[other].seed, this.read) {
            return wrong("read what was not sent");
        }
        if this.end_of_file && !(this.read == size && sender.half_closed) {
            return wrong("read a clean end where there is none");
        }
        let exempt = this.end == End::Aborted && this.half_closed;
        // Whoever aborts throws away his own bytes, though he may have been told of an end before.
        let told_so = sender.end == End::Orderly && sender.end_of_file_after;
        if told_so && !this.end_of_file && !exempt {
            return wrong("did not read to the end, but the other end was told so");
        }
        let lacks = this.read + this.unread < size;
        if plan.0[own].withholds.is_some() && this.half_closed && lacks && sender.end_of_file {
            return wrong("lacked bytes, but the other end read end of file");
        }
        match this.end {
            End::Orderly | End::Aborted => {}
            _ if !aborts => return wrong("did not end in order though nobody aborted"),
            // To half-close after a reset says the last of these.
            End::Failed(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::NotConnected) => {}
            End::Failed(_) => return wrong("failed in another way than by a reset"),
            End::Unheard if lossy => {}
            End::Unheard => return wrong("never heard of the other's end"),
        }
    }
    Ok(())
}

/// What many transfers came to.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) transfers: u64,
    /// Both streams read to their ends.
    pub(crate) completed: u64,
    /// One end or both gave up.
    pub(crate) aborted: u64,
    /// Of these: after a half-close whose end of file the other had read by then, having finished
    /// itself.
    pub(crate) told_before: u64,
    /// Of these: the one who gave up had withheld, and half-closed before.
    pub(crate) withheld: u64,
    /// Of these: one end never heard of it.
    pub(crate) unheard: u64,
    /// Read, both ways.
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) broken: Vec<String>,
}

impl Summary {
    fn add(&mut self, seen: &[Seen; 2], judgement: Result<(), String>) {
        let any = |is: fn(&Seen) -> bool| u64::from(seen.iter().any(is));
        self.transfers += 1;
        self.completed += u64::from(seen.iter().all(|seen| seen.end == End::Orderly));
        self.aborted += any(|seen| seen.end == End::Aborted);
        self.unheard += any(|seen| seen.end == End::Unheard);
        let told = |at: usize| seen[at].end == End::Orderly && seen[at].end_of_file_after && seen[1 - at].end == End::Aborted;
        self.told_before += u64::from(told(0) || told(1));
        self.withheld += any(|seen| seen.end == End::Aborted && seen.half_closed && seen.unread > 0);
        self.bytes += seen.iter().map(|seen| seen.read).sum::<u64>();
        self.broken.extend(judgement.err());
    }

    /// This and another, one after the other.
    pub(crate) fn and(mut self, other: Summary) -> Summary {
        self.transfers += other.transfers;
        self.completed += other.completed;
        self.aborted += other.aborted;
        self.told_before += other.told_before;
        self.withheld += other.withheld;
        self.unheard += other.unheard;
        self.bytes += other.bytes;
        self.seconds += other.seconds;
        self.broken.extend(other.broken);
        self
    }

    /// Fails the test if the law was broken.
    pub(crate) fn assert_lawful(&self) {
        assert!(self.broken.is_empty(), "{} of {} transfers:\n{}", self.broken.len(), self.transfers, self.broken.join("\n"));
        assert_eq!(self.completed + self.aborted, self.transfers, "whoever does not abort completes");
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { transfers, completed, aborted, told_before, withheld, unheard, bytes, seconds, broken } = self;
        write!(
            f,
            "{transfers} transfers: {completed} completed, {aborted} aborted ({told_before} after a clean end was told, {withheld} \
             withholding, {unheard} unheard of), {bytes} bytes in {seconds:.1} s, {} against the law",
            broken.len()
        )
    }
}

/// Runs the transfers of these numbers, one in each slot at a time. `lossy` says that resets may be
/// lost on the way.
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
                    let plan = Plan::new(number);
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

fn transfer(plan: &Plan, slot: &Slot<'_>, lossy: bool) -> io::Result<[Seen; 2]> {
    let client = (slot.connect)()?;
    let (server, _) = slot.listener.accept()?;
    let between = Between { lossy, ..Between::default() };
    thread::scope(|scope| {
        let at_server = scope.spawn(|| Player::new(&plan.0[1], server).play(&between));
        let at_client = Player::new(&plan.0[0], client).play(&between);
        Ok([at_client, at_server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))])
    })
}
