//! The control connection of FTP (RFC 959), as far as a probe needs it.

use crate::{
    framing::DeadlineSocket,
    transfer::{LONGEST, SILENCE},
};
use socket2::Socket;
use std::io::{self, Read as _, Write as _};

pub(crate) const LINE: usize = 512;

/// The control connection: lines that end with CRLF.
pub(crate) struct FtpControl<'a> {
    socket: DeadlineSocket<'a>,
    heard: Vec<u8>,
}

impl<'a> FtpControl<'a> {
    pub(crate) fn new(socket: &'a Socket, heard: Vec<u8>) -> Self {
        FtpControl { socket: DeadlineSocket::new(socket, LONGEST, SILENCE), heard }
    }

    pub(crate) fn send(&mut self, line: &str) -> io::Result<()> {
        self.socket.write_all(format!("{line}\r\n").as_bytes())
    }

    pub(crate) fn read_line(&mut self) -> io::Result<String> {
        let mut buffer = [0; LINE];
        loop {
            if let Some(line) = take_line(&mut self.heard)? {
                return Ok(line);
            }
            match self.socket.read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.heard.extend(&buffer[..count]),
            }
        }
    }

    /// Sends a command and expects a reply that begins with `number`.
    pub(crate) fn command(&mut self, line: &str, number: &str) -> io::Result<String> {
        self.send(line)?;
        self.expect(number)
    }

    pub(crate) fn expect(&mut self, number: &str) -> io::Result<String> {
        let answer = self.read_line()?;
        if answer.starts_with(number) { Ok(answer) } else { Err(io::Error::other(format!("expected FTP reply {number}, got {answer:?}"))) }
    }
}

/// Takes the first complete line out of the buffer.
///
/// # Errors
/// The line is longer than [`LINE`].
pub(super) fn take_line(heard: &mut Vec<u8>) -> io::Result<Option<String>> {
    let end = heard.windows(2).position(|two| two == b"\r\n");
    if end.unwrap_or(heard.len()) > LINE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("an FTP line longer than {LINE} bytes")));
    }
    Ok(end.map(|end| {
        let line = String::from_utf8_lossy(&heard[..end]).into_owned();
        heard.drain(..end + 2);
        line
    }))
}
