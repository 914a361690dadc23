//! The file or socket that flow records are written to. It is opened when there is something to
//! write, and again after an error.

use super::{FlowRecordsConfig, RecordTarget};
use crate::end::EndDeadline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, SockAddr, Socket, Type};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    net::TcpStream,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use units::Bytes;

/// Time limit for connecting and for writing a batch. Longer waits would only fill the queue.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Pauses after the first failure, and the longest: records that arrive meanwhile are dropped.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Output {
    config: FlowRecordsConfig,
    open: Option<Open>,
    /// No attempt before this time, and the pause that led to it.
    paused: Option<(Instant, Duration)>,
    /// Another process is in charge of the file: it renames it.
    has_left: bool,
    /// The file could not be renamed when it was large enough, which was reported.
    is_stuck: bool,
    /// When the proxy ends, this limits every wait.
    end: EndDeadline,
}

#[derive(Debug)]
enum Open {
    File(File),
    Socket(Socket),
}

impl Output {
    pub(super) fn new(config: FlowRecordsConfig, end: EndDeadline) -> Self {
        Output { config, open: None, paused: None, has_left: false, is_stuck: false, end }
    }

    /// Leaves it to another process to rename the file, and follows when it has.
    pub(super) fn leave(&mut self) {
        self.has_left = true;
    }

    /// Writes whole lines; returns whether all were written.
    pub(super) fn write(&mut self, lines: &[u8]) -> bool {
        if self.paused.is_some_and(|(until, _)| Instant::now() < until) {
            return false;
        }
        match self.try_write(lines) {
            Ok(()) => {
                if self.paused.take().is_some() {
                    tracing::info!("flow records are written again, to {}", self.config.to);
                }
                true
            }
            Err(why) => {
                // A part of a line may have been written.
                self.open = None;
                if self.paused.is_none() {
                    tracing::warn!("cannot write flow records to {}: {why}; they are dropped until that works", self.config.to);
                }
                let pause = self.paused.map_or(FIRST_PAUSE, |(_, last)| (last * 2).min(LONGEST_PAUSE));
                self.paused = Some((Instant::now() + pause, pause));
                false
            }
        }
    }

    fn try_write(&mut self, lines: &[u8]) -> io::Result<()> {
        let until = self.end.limit(TIMEOUT);
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.config.open(until)?,
        };
        if let (RecordTarget::File(path), Open::File(file)) = (&self.config.to, &open) {
            if self.has_left {
                if is_another(path, file) {
                    open = self.config.open(until)?;
                }
            } else if is_too_large(file, lines.len(), self.config.max_size)? {
                match rotate(path, self.config.keep) {
                    Ok(()) => (open, self.is_stuck) = (self.config.open(until)?, false),
                    Err(why) if self.is_stuck => tracing::debug!("{} grows on: {why}", self.config.to),
                    Err(why) => {
                        tracing::warn!("{} has {}, and grows on: it cannot be renamed: {why}", self.config.to, self.config.max_size);
                        self.is_stuck = true;
                    }
                }
            }
        }
        match &mut open {
            Open::File(file) => file.write_all(lines)?,
            Open::Socket(socket) => write_until(socket, lines, until)?,
        }
        self.open = Some(open);
        Ok(())
    }
}

impl FlowRecordsConfig {
    /// Whether records could be written, without changing anything.
    ///
    /// # Errors
    /// The reason that they could not.
    pub(crate) fn try_output(&self) -> io::Result<()> {
        match &self.to {
            RecordTarget::File(path) if path.exists() => Ok(rustix::fs::access(path, rustix::fs::Access::WRITE_OK)?),
            RecordTarget::File(path) => {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
                Ok(rustix::fs::access(folder, rustix::fs::Access::WRITE_OK)?)
            }
            RecordTarget::Unix(_) | RecordTarget::Tcp(_) => self.open(Instant::now() + TIMEOUT).map(drop),
        }
    }

    /// Opens the output, at the latest by `until` if it is a socket.
    fn open(&self, until: Instant) -> io::Result<Open> {
        match &self.to {
            RecordTarget::File(path) => {
                // Records have addresses: not for everyone. Opening a FIFO would wait for its reader.
                let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
                // The directory may be another user's than this process'.
                if files::is_foreign_link(path) {
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a symbolic link that another user has made: remove it"));
                }
                let mut file = OpenOptions::new().create(true).append(true).mode(0o640).custom_flags(flags).open(path)?;
                let data = file.metadata()?;
                if !data.is_file() {
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
                }
                if !ends_in_a_line(path, data.len()) {
                    // A full disk or a crash cut the last line off.
                    file.write_all(b"\n")?;
                }
                Ok(Open::File(file))
            }
            RecordTarget::Unix(path) => {
                let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
                // It limits the wait for a place in the program's backlog too.
                socket.set_write_timeout(Some(left(until)?))?;
                socket.connect(&SockAddr::unix(path)?)?;
                Ok(Open::Socket(socket))
            }
            RecordTarget::Tcp(address) => Ok(Open::Socket(TcpStream::connect_timeout(address, left(until)?)?.into())),
        }
    }
}

/// The time until then.
///
/// # Errors
/// None is left.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::Error::new(io::ErrorKind::TimedOut, "it takes too long")) } else { Ok(left) }
}

/// Writes all of `bytes` by `until`. The limit of the socket itself (SO_SNDTIMEO) would not do: it
/// begins anew with every piece, so that a program that reads a little now and then would keep the
/// thread for as long as it likes.
fn write_until(socket: &Socket, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        match socket.send_with_flags(bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => wait_for_room(socket, until)?,
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) => return Err(why),
        }
    }
    Ok(())
}

fn wait_for_room(socket: &Socket, until: Instant) -> io::Result<()> {
    let left = left(until)?;
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
    match poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether a file is empty or its last byte ends a line; true if that cannot be read.
fn ends_in_a_line(path: &Path, size: u64) -> bool {
    use std::os::unix::fs::FileExt as _;
    let mut last = [b'\n'];
    if size > 0
        && let Ok(file) = File::open(path)
    {
        let _ = file.read_exact_at(&mut last, size - 1);
    }
    last == *b"\n"
}

/// Whether these bytes more are too many for a file, to which other processes may write too. A file
/// has at least one batch.
fn is_too_large(file: &File, more: usize, limit: Bytes) -> io::Result<bool> {
    let size = file.metadata()?.len();
    Ok(size > 0 && size + more as u64 > limit.0)
}

/// Whether there is another file at this path than the one that is open. While there is none, the
/// open one is the right one: logrotate makes the new one after it has renamed the old one.
fn is_another(path: &Path, open: &File) -> bool {
    let (Ok(at_path), Ok(open)) = (fs::metadata(path), open.metadata()) else { return false };
    (at_path.dev(), at_path.ino()) != (open.dev(), open.ino())
}

/// Renames `PATH` to `PATH.1`, that to `PATH.2` and so on, and keeps `keep` of these.
fn rotate(path: &Path, keep: u32) -> io::Result<()> {
    let numbered = |number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    // An operator may have moved any of them.
    let if_there = |done: io::Result<()>| match done {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    };
    if keep == 0 {
        return if_there(fs::remove_file(path));
    }
    for number in (1..keep).rev() {
        if_there(fs::rename(numbered(number), numbered(number + 1)))?;
    }
    if_there(fs::rename(path, numbered(1)))
}
