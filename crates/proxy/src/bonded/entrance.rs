//! A connection whose ends do not know each other yet: they show that they share a key, and begin to encrypt where that is wanted. Nothing is said to
//! whoever has not the key, and nothing is read beyond what is expected: what follows is for those who come after.

use super::{channel::Channel, settings::BondConfig, tls::Encryption};
use bond::{AcceptHandshake, Challenge, DialHandshake, HandshakeError, Hello, Nonce, PresharedKey, Proof};
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

/// What an end needs to know another one.
#[derive(Debug, Clone)]
pub(super) struct Keeper {
    pub(super) key: PresharedKey,
    pub(super) encryption: Option<Encryption>,
    /// What it tells the other end of its window, bytes.
    pub(super) window: u32,
}

impl Keeper {
    /// As a bond's configuration says.
    pub(super) fn of(bond: &BondConfig) -> Result<Self, String> {
        let key = bond.key.clone().ok_or("the bond has no key")?;
        let encryption = if bond.tls { Some(Encryption::new()?) } else { None };
        Ok(Keeper { key, encryption, window: bond.window.0 as u32 })
    }

    /// What both ends must agree on besides the key.
    fn binding(&self) -> &'static [u8] {
        if self.encryption.is_some() { b"encrypted" } else { b"clear" }
    }
}

/// Why a connection leads nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unfit {
    #[error(transparent)]
    Refused(#[from] HandshakeError),
    #[error("{0}")]
    Failed(#[from] Errno),
    #[error("the other end closed it: it listens for something else, has another key, or is full")]
    Closed,
}

/// What is waited for.
#[derive(Debug)]
enum Stage {
    Connected,
    Challenge(Box<DialHandshake>),
    Hello,
    Proof(Box<AcceptHandshake>),
    /// The first word in a channel that is encrypted; whether the own has been said.
    Bound {
        said: bool,
        window: u32,
    },
}

/// A connection on its way in.
#[derive(Debug)]
pub(super) struct Entrance {
    channel: Channel,
    dialled: bool,
    stage: Stage,
    got: Vec<u8>,
    pub(super) since: Instant,
}

/// What it has come to.
#[derive(Debug)]
pub(super) enum Step {
    /// More must come.
    Waits(Box<Entrance>),
    /// It is in; the other end's window is so large.
    In(Channel, u32),
}

fn nonce() -> Result<Nonce, Errno> {
    let mut nonce = Nonce::default();
    let mut filled = 0;
    while filled < nonce.len() {
        filled += getrandom(&mut nonce[filled..], GetRandomFlags::empty())?;
    }
    Ok(nonce)
}

/// A number that nobody can guess.
pub(super) fn unguessable() -> Result<u128, Errno> {
    nonce().map(|bytes| bytes.iter().fold(0, |number, byte| number << 8 | u128::from(*byte)))
}

impl Entrance {
    pub(super) fn dialled(socket: Socket, since: Instant) -> Self {
        Entrance { channel: Channel::Clear(socket), dialled: true, stage: Stage::Connected, got: Vec::new(), since }
    }

    pub(super) fn accepted(socket: Socket, since: Instant) -> Self {
        Entrance { channel: Channel::Clear(socket), dialled: false, stage: Stage::Hello, got: Vec::new(), since }
    }

    pub(super) fn socket(&self) -> &Socket {
        self.channel.socket()
    }

    /// Whether the other end has shown nothing yet.
    pub(super) fn is_stranger(&self) -> bool {
        matches!(self.stage, Stage::Hello)
    }

    /// Goes on as far as it can.
    pub(super) fn step(mut self: Box<Self>, keeper: &Keeper) -> Result<Step, Unfit> {
        loop {
            match mem::replace(&mut self.stage, Stage::Hello) {
                Stage::Connected => {
                    // One that was refused is closed, as is one that has not begun.
                    if let Some(why) = self.socket().take_error().unwrap_or_else(Some) {
                        return Err(Errno::from_io_error(&why).unwrap_or(Errno::IO).into());
                    }
                    if sys::is_unanswered(self.socket()) {
                        self.stage = Stage::Connected;
                        return Ok(Step::Waits(self));
                    }
                    let (dialled, hello) = DialHandshake::new(&keeper.key, nonce()?, keeper.binding());
                    self.say(&hello)?;
                    self.stage = Stage::Challenge(Box::new(dialled));
                }
                Stage::Challenge(dialled) => {
                    let Some(challenge) = self.hear::<{ size_of::<Challenge>() }>()? else {
                        self.stage = Stage::Challenge(dialled);
                        return Ok(Step::Waits(self));
                    };
                    let (proof, window) = dialled.finish(&challenge, keeper.window)?;
                    self.say(&proof)?;
                    match self.encrypt(keeper, window)? {
                        Step::Waits(waits) => self = waits,
                        step => return Ok(step),
                    }
                }
                Stage::Hello => {
                    let Some(hello) = self.hear::<{ size_of::<Hello>() }>()? else { return Ok(Step::Waits(self)) };
                    let (accepted, challenge) = AcceptHandshake::new(&keeper.key, &hello, nonce()?, keeper.binding(), keeper.window)?;
                    self.say(&challenge)?;
                    self.stage = Stage::Proof(Box::new(accepted));
                }
                Stage::Proof(accepted) => {
                    let Some(proof) = self.hear::<{ size_of::<Proof>() }>()? else {
                        self.stage = Stage::Proof(accepted);
                        return Ok(Step::Waits(self));
                    };
                    let window = accepted.finish(&proof)?;
                    match self.encrypt(keeper, window)? {
                        Step::Waits(waits) => self = waits,
                        step => return Ok(step),
                    }
                }
                Stage::Bound { mut said, window } => {
                    if let Channel::Encrypted(tls) = &mut self.channel {
                        match tls.flush() {
                            Ok(()) | Err(Errno::AGAIN) => {}
                            Err(why) => return Err(why.into()),
                        }
                    }
                    // Hearing carries the handshake on, too.
                    let heard = self.hear::<32>()?;
                    let binding = if let Channel::Encrypted(tls) = &self.channel { tls.binding() } else { None };
                    if let Some(binding) = binding.filter(|_| !said) {
                        self.say(&keeper.key.channel_tag(self.dialled, &binding))?;
                        said = true;
                    }
                    match (heard, binding) {
                        (Some(tag), Some(binding)) => {
                            keeper.key.verify_channel_tag(!self.dialled, &binding, &tag)?;
                            return Ok(Step::In(self.channel, window));
                        }
                        _ => {
                            self.stage = Stage::Bound { said, window };
                            return Ok(Step::Waits(self));
                        }
                    }
                }
            }
        }
    }

    /// It is in, or begins to encrypt.
    fn encrypt(self, keeper: &Keeper, window: u32) -> Result<Step, Unfit> {
        let Entrance { channel, dialled, since, .. } = self;
        match (channel, &keeper.encryption) {
            (Channel::Clear(socket), Some(encryption)) => {
                let channel = Channel::Encrypted(Box::new(encryption.over(socket, dialled)?));
                let stage = Stage::Bound { said: false, window };
                Ok(Step::Waits(Box::new(Entrance { channel, dialled, stage, got: Vec::new(), since })))
            }
            (channel, _) => Ok(Step::In(channel, window)),
        }
    }

    /// Says all of it: so little fits into any socket.
    fn say(&mut self, bytes: &[u8]) -> Result<(), Unfit> {
        match self.channel.send(&[IoSlice::new(bytes)], false) {
            Ok(sent) if sent == bytes.len() => Ok(()),
            Ok(_) => Err(Errno::NOBUFS.into()),
            Err(why) => Err(why.into()),
        }
    }

    /// The next `N` bytes, once all are there, and not a byte more.
    fn hear<const N: usize>(&mut self) -> Result<Option<[u8; N]>, Unfit> {
        while self.got.len() < N {
            let mut bytes = [0; N];
            let room = N - self.got.len();
            match self.channel.receive(&mut [IoSliceMut::new(&mut bytes[..room])]) {
                Ok(0) => return Err(Unfit::Closed),
                Ok(count) => self.got.extend_from_slice(&bytes[..count]),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::CONNRESET | Errno::PIPE) => return Err(Unfit::Closed),
                Err(why) => return Err(why.into()),
            }
        }
        let heard = <[u8; N]>::try_from(self.got.as_slice()).ok();
        self.got.clear();
        Ok(heard)
    }
}
