//! The file or socket that flow records are written to. It is opened when there is something to
//! write, and again after an error.

use super::{FlowRecordsConfig, RecordTarget};
use socket2::{Domain, SockAddr, Socket, Type};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    net::TcpStream,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Time limit for connecting and for a write. Longer waits would only fill the queue.
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
}

#[derive(Debug)]
enum Open {
    File(File, u64),
    Unix(Socket),
    Tcp(TcpStream),
}

impl Output {
    pub(super) fn new(config: FlowRecordsConfig) -> Self {
        Output { config, open: None, paused: None }
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
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.config.open()?,
        };
        if let (RecordTarget::File(path), Open::File(_, size)) = (&self.config.to, &open)
            && *size > 0
            && *size + lines.len() as u64 > self.config.max_size.0
        {
            rotate(path, self.config.keep)?;
            open = self.config.open()?;
        }
        match &mut open {
            Open::File(file, size) => {
                file.write_all(lines)?;
                *size += lines.len() as u64;
            }
            Open::Unix(socket) => socket.write_all(lines)?,
            Open::Tcp(socket) => socket.write_all(lines)?,
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
            RecordTarget::Unix(_) | RecordTarget::Tcp(_) => self.open().map(drop),
        }
    }

    fn open(&self) -> io::Result<Open> {
        match &self.to {
            RecordTarget::File(path) => {
                // Records have addresses: not for everyone. Opening a FIFO would wait for its reader.
                let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
                let mut file = OpenOptions::new().create(true).append(true).mode(0o640).custom_flags(flags).open(path)?;
                let data = file.metadata()?;
                if !data.is_file() {
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
                }
                if ends_in_a_line(path, data.len()) {
                    return Ok(Open::File(file, data.len()));
                }
                // A full disk or a crash cut the last line off.
                file.write_all(b"\n")?;
                Ok(Open::File(file, data.len() + 1))
            }
            RecordTarget::Unix(path) => {
                let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
                // It limits the wait for a place in the program's backlog too.
                socket.set_write_timeout(Some(TIMEOUT))?;
                socket.connect(&SockAddr::unix(path)?)?;
                Ok(Open::Unix(socket))
            }
            RecordTarget::Tcp(address) => {
                let socket = TcpStream::connect_timeout(address, TIMEOUT)?;
                socket.set_write_timeout(Some(TIMEOUT))?;
                Ok(Open::Tcp(socket))
            }
        }
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

/// Renames `PATH` to `PATH.1`, that to `PATH.2` and so on, and keeps `keep` of these.
fn rotate(path: &Path, keep: u32) -> io::Result<()> {
    let numbered = |number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    if keep == 0 {
        return fs::remove_file(path);
    }
    for number in (1..keep).rev() {
        match fs::rename(numbered(number), numbered(number + 1)) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
            _ => {}
        }
    }
    match fs::rename(path, numbered(1)) {
        // An operator may have moved it.
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(()),
        renamed => renamed,
    }
}
