//! Handshake.

use crate::{
    framing,
    protocol::{self, ProberHello, ResponderChallenge},
    token, transfer,
};
use socket2::Socket;
use std::{
    io::{self, ErrorKind, Read as _},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

/// A word that was begun is said within this.
pub(crate) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Those who have come to speak and have not said who they are: so many of them, the oldest goes, and of each so much is heard.
const MAX_PENDING: usize = 32;
const MAX_HELLO_BYTES: usize = 4 << 10;

/// Somebody who has come to speak, and is to prove first that the token is known. Many may be heard at once: who says nothing keeps nobody waiting.
pub(crate) struct PendingProber {
    pub(crate) control: TcpStream,
    pub(crate) nonce: String,
    pub(crate) heard: Vec<u8>,
    pub(crate) since: Instant,
    pub(crate) from: String,
}

impl PendingProber {
    pub(crate) fn new(control: TcpStream, from: Option<SocketAddr>) -> io::Result<Self> {
        control.set_nonblocking(true)?;
        control.set_nodelay(true)?;
        let nonce = token::random_hex()?;
        framing::write_message(&control, &ResponderChallenge { version: protocol::VERSION, nonce: nonce.clone() })?;
        let from = from.map_or("somebody".into(), |from| transfer::canonical_address(from).to_string());
        Ok(PendingProber { control, nonce, heard: Vec::new(), since: Instant::now(), from })
    }

    /// The word, once it is there; an error where none will come.
    pub(crate) fn hello(&mut self) -> io::Result<Option<ProberHello>> {
        let mut part = [0; 1024];
        loop {
            if let Some(hello) = parse_hello(&self.heard)? {
                return Ok(Some(hello));
            }
            match self.control.read(&mut part) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.heard.extend(&part[..count]),
                Err(why) if why.kind() == ErrorKind::WouldBlock && self.since.elapsed() < MESSAGE_TIMEOUT => return Ok(None),
                Err(why) if why.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
                Err(why) => return Err(why),
            }
        }
    }
}

/// The first word of a prober, once all of it has come.
pub(super) fn parse_hello(heard: &[u8]) -> io::Result<Option<ProberHello>> {
    let Some(length) = heard.first_chunk().map(|length| u32::from_be_bytes(*length) as usize) else { return Ok(None) };
    if heard.len() - 4 >= length {
        return framing::read_message(heard).map(Some);
    }
    if length > MAX_HELLO_BYTES - 4 {
        return Err(io::Error::new(ErrorKind::InvalidData, "its first word is longer than any prober's"));
    }
    Ok(None)
}

/// Lets those in who have come; of too many the oldest goes.
pub(crate) fn accept_probers(control: &Socket, pending: &mut Vec<PendingProber>) {
    while let Ok((stream, from)) = control.accept() {
        if pending.len() >= MAX_PENDING {
            pending.remove(0);
        }
        pending.extend(PendingProber::new(stream.into(), from.as_socket()));
    }
}

/// The first of those who have said their word, or from whom none will come.
pub(crate) fn take_ready(pending: &mut Vec<PendingProber>) -> Option<(PendingProber, io::Result<ProberHello>)> {
    let (index, hello) = pending.iter_mut().enumerate().find_map(|(index, one)| Some((index, one.hello().transpose()?)))?;
    Some((pending.remove(index), hello))
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
