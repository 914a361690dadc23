//! The responder's side of the handshake: unauthenticated peers, each with a challenge and a time
//! limit.

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

/// Time in which a peer must complete a message.
pub(crate) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Upper bound on unauthenticated peers, of which the oldest is dropped, and on the bytes that each
/// may send.
const MAX_PENDING: usize = 32;
const MAX_HELLO_BYTES: usize = 4 << 10;

/// An unauthenticated peer. Many can be pending at once, so that a silent peer does not block
/// others.
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
        let from = from.map_or("an unknown address".into(), |from| transfer::canonical_address(from).to_string());
        Ok(PendingProber { control, nonce, heard: Vec::new(), since: Instant::now(), from })
    }

    /// The peer's hello once it is complete. Call it repeatedly.
    ///
    /// # Errors
    /// The peer closed, was too slow, or sent an invalid message.
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

/// Parses a hello. `None` until it is complete.
///
/// # Errors
/// It is longer than [`MAX_HELLO_BYTES`] or malformed.
pub(super) fn parse_hello(heard: &[u8]) -> io::Result<Option<ProberHello>> {
    let Some(length) = heard.first_chunk().map(|length| u32::from_be_bytes(*length) as usize) else { return Ok(None) };
    if heard.len() - 4 >= length {
        return framing::read_message(heard).map(Some);
    }
    if length > MAX_HELLO_BYTES - 4 {
        return Err(io::Error::new(ErrorKind::InvalidData, "its first message is longer than a prober's"));
    }
    Ok(None)
}

/// Accepts waiting connections. When there are too many, drops the oldest.
pub(crate) fn accept_probers(control: &Socket, pending: &mut Vec<PendingProber>) {
    while let Ok((stream, from)) = control.accept() {
        if pending.len() >= MAX_PENDING {
            pending.remove(0);
        }
        pending.extend(PendingProber::new(stream.into(), from.as_socket()));
    }
}

/// Takes the first peer that has sent its hello or has failed to.
pub(crate) fn take_ready(pending: &mut Vec<PendingProber>) -> Option<(PendingProber, io::Result<ProberHello>)> {
    let (index, hello) = pending.iter_mut().enumerate().find_map(|(index, one)| Some((index, one.hello().transpose()?)))?;
    Some((pending.remove(index), hello))
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
