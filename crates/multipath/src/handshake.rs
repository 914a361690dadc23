//! The handshake of a connection: both ends prove that they have the bond's key, then start TLS if
//! the bond is encrypted. A peer without the key gets no answer. The handshake never reads beyond
//! its own messages: the bytes that follow belong to a stream.

use crate::{channel::Channel, settings::BondConfig, tls::Encryption};
use bond::{AcceptHandshake, Announcement, Challenge, DialHandshake, Families, HandshakeError, Hello, Nonce, PresharedKey, Proof};
use intercept::sys;
use rustix::{
    io::Errno,
    rand::{GetRandomFlags, getrandom},
};
use socket2::Socket;
use std::{
    io::{IoSlice, IoSliceMut},
    mem,
    time::Instant,
};

/// The secrets and parameters of an end for handshakes.
#[derive(Debug, Clone)]
pub(crate) struct Credentials {
    pub(crate) key: PresharedKey,
    pub(crate) encryption: Option<Encryption>,
    /// What this end announces.
    pub(crate) own: Announcement,
}

impl Credentials {
    /// From the configuration of a bond.
    ///
    /// # Errors
    /// When the configuration has no key, or TLS cannot be set up.
    pub(crate) fn of(bond: &BondConfig) -> Result<Self, String> {
        let key = bond.key.clone().ok_or("the bond has no key")?;
        let encryption = if bond.tls { Some(Encryption::new()?) } else { None };
        Ok(Credentials { key, encryption, own: Announcement { window: bond.window.0 as u32, families: Families::BOTH } })
    }

    /// What both ends must agree on besides the key.
    fn binding(&self) -> &'static [u8] {
        if self.encryption.is_some() { b"encrypted" } else { b"clear" }
    }
}

/// Why a handshake failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HandshakeFailure {
    #[error(transparent)]
    Refused(#[from] HandshakeError),
    #[error("{0}")]
    Failed(#[from] Errno),
    #[error("no answer")]
    Silent,
    #[error("the other end closed the connection: it is no bond, has another key, or is full")]
    Closed,
}

/// What a handshake waits for.
#[derive(Debug)]
enum HandshakeStage {
    Connected,
    Challenge(Box<DialHandshake>),
    Hello,
    Proof(Box<AcceptHandshake>),
    /// The peer's tag of the TLS channel (RFC 9266); `said`: this end has sent its own.
    Bound {
        said: bool,
        theirs: Announcement,
    },
}

/// A handshake in progress. The caller calls [`step`](Self::step) after each event of its socket.
#[derive(Debug)]
pub(crate) struct Handshake {
    channel: Channel,
    /// The version that the dialling end speaks; none: this end has accepted.
    dialled: Option<u8>,
    stage: HandshakeStage,
    got: Vec<u8>,
    pub(crate) since: Instant,
}

/// Result of [`Handshake::step`].
#[derive(Debug)]
pub(crate) enum HandshakeStep {
    /// Wait for the next event.
    Pending(Box<Handshake>),
    /// Both ends are authenticated; what the other end announces. The end that dials announces its
    /// window alone.
    Done(Channel, Announcement),
}

fn nonce() -> Result<Nonce, Errno> {
    let mut nonce = Nonce::default();
    let mut filled = 0;
    while filled < nonce.len() {
        filled += getrandom(&mut nonce[filled..], GetRandomFlags::empty())?;
    }
    Ok(nonce)
}

/// An unpredictable number.
pub(crate) fn unguessable() -> Result<u128, Errno> {
    nonce().map(|bytes| bytes.iter().fold(0, |number, byte| number << 8 | u128::from(*byte)))
}

impl Handshake {
    /// Of a connection that was dialled. `version`: that of the protocol.
    pub(crate) fn dialled(socket: Socket, version: u8, since: Instant) -> Self {
        Handshake { channel: Channel::Clear(socket), dialled: Some(version), stage: HandshakeStage::Connected, got: Vec::new(), since }
    }

    pub(crate) fn accepted(socket: Socket, since: Instant) -> Self {
        Handshake { channel: Channel::Clear(socket), dialled: None, stage: HandshakeStage::Hello, got: Vec::new(), since }
    }

    pub(crate) fn socket(&self) -> &Socket {
        self.channel.socket()
    }

    /// Whether the other end has sent nothing yet.
    pub(crate) fn is_unauthenticated(&self) -> bool {
        matches!(self.stage, HandshakeStage::Hello)
    }

    /// Continues the handshake as far as possible without waiting.
    ///
    /// # Errors
    /// The handshake has failed; the connection is closed.
    pub(crate) fn step(mut self: Box<Self>, credentials: &Credentials) -> Result<HandshakeStep, HandshakeFailure> {
        loop {
            match mem::replace(&mut self.stage, HandshakeStage::Hello) {
                HandshakeStage::Connected => {
                    // A refused connection is closed, as is one that was never established.
                    if let Some(why) = self.socket().take_error().unwrap_or_else(Some) {
                        return Err(Errno::from_io_error(&why).unwrap_or(Errno::IO).into());
                    }
                    if sys::is_unanswered(self.socket()) {
                        self.stage = HandshakeStage::Connected;
                        return Ok(HandshakeStep::Pending(self));
                    }
                    let version = self.dialled.unwrap_or(bond::VERSION);
                    let (dialled, hello) = DialHandshake::new(&credentials.key, version, nonce()?, credentials.binding());
                    self.say(&hello)?;
                    self.stage = HandshakeStage::Challenge(Box::new(dialled));
                }
                HandshakeStage::Challenge(dialled) => {
                    let Some(challenge) = self.hear::<{ size_of::<Challenge>() }>()? else {
                        self.stage = HandshakeStage::Challenge(dialled);
                        return Ok(HandshakeStep::Pending(self));
                    };
                    let (proof, theirs) = dialled.finish(&challenge, credentials.own.window)?;
                    self.say(&proof)?;
                    match self.encrypt(credentials, theirs)? {
                        HandshakeStep::Pending(waits) => self = waits,
                        step => return Ok(step),
                    }
                }
                HandshakeStage::Hello => {
                    let Some(hello) = self.hear::<{ size_of::<Hello>() }>()? else { return Ok(HandshakeStep::Pending(self)) };
                    let (accepted, challenge) =
                        AcceptHandshake::new(&credentials.key, &hello, nonce()?, credentials.binding(), credentials.own)?;
                    self.say(&challenge)?;
                    self.stage = HandshakeStage::Proof(Box::new(accepted));
                }
                HandshakeStage::Proof(accepted) => {
                    let Some(proof) = self.hear::<{ size_of::<Proof>() }>()? else {
                        self.stage = HandshakeStage::Proof(accepted);
                        return Ok(HandshakeStep::Pending(self));
                    };
                    let theirs = Announcement { window: accepted.finish(&proof)?, families: Families::BOTH };
                    match self.encrypt(credentials, theirs)? {
                        HandshakeStep::Pending(waits) => self = waits,
                        step => return Ok(step),
                    }
                }
                HandshakeStage::Bound { mut said, theirs } => {
                    if let Channel::Encrypted(tls) = &mut self.channel {
                        match tls.flush() {
                            Ok(()) | Err(Errno::AGAIN) => {}
                            Err(why) => return Err(why.into()),
                        }
                    }
                    // Reading also continues the TLS handshake.
                    let heard = self.hear::<32>()?;
                    let binding = if let Channel::Encrypted(tls) = &self.channel { tls.binding() } else { None };
                    if let Some(binding) = binding.filter(|_| !said) {
                        self.say(&credentials.key.channel_tag(self.dialled.is_some(), &binding))?;
                        said = true;
                    }
                    match (heard, binding) {
                        (Some(tag), Some(binding)) => {
                            credentials.key.verify_channel_tag(self.dialled.is_none(), &binding, &tag)?;
                            return Ok(HandshakeStep::Done(self.channel, theirs));
                        }
                        _ => {
                            self.stage = HandshakeStage::Bound { said, theirs };
                            return Ok(HandshakeStep::Pending(self));
                        }
                    }
                }
            }
        }
    }

    /// Completes the handshake, or starts TLS.
    fn encrypt(self, credentials: &Credentials, theirs: Announcement) -> Result<HandshakeStep, HandshakeFailure> {
        let Handshake { channel, dialled, since, .. } = self;
        match (channel, &credentials.encryption) {
            (Channel::Clear(socket), Some(encryption)) => {
                let channel = Channel::Encrypted(Box::new(encryption.over(socket, dialled.is_some())?));
                let stage = HandshakeStage::Bound { said: false, theirs };
                Ok(HandshakeStep::Pending(Box::new(Handshake { channel, dialled, stage, got: Vec::new(), since })))
            }
            (channel, _) => Ok(HandshakeStep::Done(channel, theirs)),
        }
    }

    /// Sends a message of the handshake. The send queue of a new connection takes all of it.
    fn say(&mut self, bytes: &[u8]) -> Result<(), HandshakeFailure> {
        match self.channel.send(&[IoSlice::new(bytes)], false) {
            Ok(sent) if sent == bytes.len() => Ok(()),
            Ok(_) => Err(Errno::NOBUFS.into()),
            Err(why) => Err(why.into()),
        }
    }

    /// Reads exactly `N` bytes; none until all of them have arrived.
    fn hear<const N: usize>(&mut self) -> Result<Option<[u8; N]>, HandshakeFailure> {
        while self.got.len() < N {
            let mut bytes = [0; N];
            let room = N - self.got.len();
            match self.channel.receive(&mut [IoSliceMut::new(&mut bytes[..room])]) {
                Ok(0) => return Err(HandshakeFailure::Closed),
                Ok(count) => self.got.extend_from_slice(&bytes[..count]),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::CONNRESET | Errno::PIPE) => return Err(HandshakeFailure::Closed),
                Err(why) => return Err(why.into()),
            }
        }
        let heard = <[u8; N]>::try_from(self.got.as_slice()).ok();
        self.got.clear();
        Ok(heard)
    }
}
