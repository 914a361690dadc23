//! Handshake.

use crate::{
    framing,
    protocol::{self, Challenge, Hello},
    token, transfer,
};
use socket2::Socket;
use std::{
    io::{self, ErrorKind, Read as _},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

/// A word that was begun is said within this.
pub(crate) const WORD: Duration = Duration::from_secs(5);
/// Those who have come to speak and have not said who they are: so many of them, the oldest goes, and of each so much is heard.
const KNOCKING: usize = 32;
const HELLO: usize = 4 << 10;

/// Somebody who has come to speak, and is to prove first that the token is known. Many may be heard at once: who says nothing keeps nobody waiting.
pub(crate) struct Knocking {
    pub(crate) control: TcpStream,
    pub(crate) nonce: String,
    pub(crate) heard: Vec<u8>,
    pub(crate) since: Instant,
    pub(crate) from: String,
}

impl Knocking {
    pub(crate) fn new(control: TcpStream, from: Option<SocketAddr>) -> io::Result<Self> {
        control.set_nonblocking(true)?;
        control.set_nodelay(true)?;
        let nonce = token::secret()?;
        framing::tell(&control, &Challenge { version: protocol::VERSION, nonce: nonce.clone() })?;
        let from = from.map_or("somebody".into(), |from| transfer::unmapped(from).to_string());
        Ok(Knocking { control, nonce, heard: Vec::new(), since: Instant::now(), from })
    }

    /// The word, once it is there; an error where none will come.
    pub(crate) fn hello(&mut self) -> io::Result<Option<Hello>> {
        let mut part = [0; 1024];
        loop {
            if let Some(hello) = first_word(&self.heard)? {
                return Ok(Some(hello));
            }
            match self.control.read(&mut part) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.heard.extend(&part[..count]),
                Err(why) if why.kind() == ErrorKind::WouldBlock && self.since.elapsed() < WORD => return Ok(None),
                Err(why) if why.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
                Err(why) => return Err(why),
            }
        }
    }
}

/// The first word of a prober, once all of it has come.
pub(super) fn first_word(heard: &[u8]) -> io::Result<Option<Hello>> {
    let Some(length) = heard.first_chunk().map(|length| u32::from_be_bytes(*length) as usize) else { return Ok(None) };
    if heard.len() - 4 >= length {
        return framing::hear(heard).map(Some);
    }
    if length > HELLO - 4 {
        return Err(io::Error::new(ErrorKind::InvalidData, "its first word is longer than any prober's"));
    }
    Ok(None)
}

/// Lets those in who have come; of too many the oldest goes.
pub(crate) fn let_in(control: &Socket, knocking: &mut Vec<Knocking>) {
    while let Ok((stream, from)) = control.accept() {
        if knocking.len() >= KNOCKING {
            knocking.remove(0);
        }
        knocking.extend(Knocking::new(stream.into(), from.as_socket()));
    }
}

/// The first of those who have said their word, or from whom none will come.
pub(crate) fn whoever_is_first(knocking: &mut Vec<Knocking>) -> Option<(Knocking, io::Result<Hello>)> {
    let (index, hello) = knocking.iter_mut().enumerate().find_map(|(index, one)| Some((index, one.hello().transpose()?)))?;
    Some((knocking.remove(index), hello))
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
