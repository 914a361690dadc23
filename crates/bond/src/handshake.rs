//! How two ends that share a key come to know each other, before anything else is said over a connection.
//!
//! | who | what | bytes |
//! |---|---|---|
//! | who dials | its version, a nonce of its own, a tag | 1 + 32 + 32 |
//! | who accepts | its version, its window, a nonce of its own, a tag | 1 + 4 + 32 + 32 |
//! | who dials | its window, a tag | 4 + 32 |
//!
//! A tag is HMAC-SHA-256 (RFC 2104), under the key, of a label that no other message has, of the binding, and of all that was said until then. Who dials can
//! send on behind its last word. Who accepts says nothing to whoever has not the key: a stranger costs it 65 bytes and one hash, and
//! learns nothing; who repeats a first message that it overheard hears 69 bytes, and can do nothing with them.
//!
//! The nonces are the caller's: random, and never used twice. The binding is what both ends must agree on besides the key. What follows is not protected:
//! who can change what is under way can change what is said later. For that there is TLS, which begins behind the last word, so that a stranger does
//! not even cost its handshake; each end then first says a [tag](Key::bound) of what only the two ends of that TLS channel know (RFC 9266), so that
//! nobody stands in between.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;

/// What is spoken here.
pub const VERSION: u8 = 1;
const TAG: usize = 32;

/// A nonce.
pub type Nonce = [u8; 32];
/// The first message, from who dials.
pub type Hello = [u8; 65];
/// The second, from who accepts.
pub type Challenge = [u8; 69];
/// The third, from who dials.
pub type Proof = [u8; 36];

/// Why the other end is not let in, or not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The key is no secret.
    #[error("the bond's key has {0} bytes, and must have {least} or more: make one, as by `openssl rand -hex 32`", least = Key::LEAST)]
    ShortKey(usize),
    /// It has not the key.
    #[error("the other end of the bond has another key, or is no bond: give both ends the same key")]
    WrongKey,
    /// It speaks another version.
    #[error("the other end of the bond speaks version {0}, and this one version {VERSION}: run the same release at both ends")]
    OtherVersion(u8),
}

/// What both ends know and nobody else.
#[derive(Clone)]
pub struct Key(Hmac<Sha256>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// The shortest, in bytes.
    pub const LEAST: usize = 16;

    /// Of a secret that is not to be guessed.
    pub fn new(secret: &[u8]) -> Result<Key, Refused> {
        let short = Refused::ShortKey(secret.len());
        if secret.len() < Key::LEAST {
            return Err(short);
        }
        Hmac::new_from_slice(secret).map(Key).map_err(|_| short)
    }

    /// What an end, who dials or who accepts, says first in a channel that has such a binding.
    pub fn bound(&self, by_who_dials: bool, binding: &[u8]) -> [u8; 32] {
        self.mac(if by_who_dials { BOUND_DIALLED } else { BOUND_ACCEPTED }, &[binding]).finalize().into_bytes().into()
    }

    /// Whether the other end has said that.
    pub fn is_bound(&self, by_who_dials: bool, binding: &[u8], said: &[u8; 32]) -> Result<(), Refused> {
        let label = if by_who_dials { BOUND_DIALLED } else { BOUND_ACCEPTED };
        self.mac(label, &[binding]).verify_slice(said).map_err(|_| Refused::WrongKey)
    }

    /// The tag of what was said, each part behind its length.
    fn mac(&self, label: &str, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        for part in [label.as_bytes()].iter().chain(parts) {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac
    }

    /// Writes the tag behind what is said.
    fn sign(&self, label: &str, parts: &[&[u8]], message: &mut [u8]) {
        let (said, tag) = message.split_at_mut(message.len() - TAG);
        let mac = self.mac(label, &[parts, &[said]].concat());
        tag.copy_from_slice(&mac.finalize().into_bytes());
    }

    /// Whether who said that has the key; it takes as long to find out where not.
    fn check(&self, label: &str, parts: &[&[u8]], message: &[u8]) -> Result<(), Refused> {
        let (said, tag) = message.split_at(message.len() - TAG);
        self.mac(label, &[parts, &[said]].concat()).verify_slice(tag).map_err(|_| Refused::WrongKey)
    }
}

const HELLO: &str = "tandem bond: hello";
const CHALLENGE: &str = "tandem bond: challenge";
const PROOF: &str = "tandem bond: proof";
const BOUND_DIALLED: &str = "tandem bond: bound, who dialled";
const BOUND_ACCEPTED: &str = "tandem bond: bound, who accepted";

/// The end that dials, between its two messages.
#[derive(Debug, Clone)]
pub struct Dialled {
    key: Key,
    hello: Hello,
    binding: Vec<u8>,
}

impl Dialled {
    /// Begins: what to say first. `binding` is what both ends must agree on besides.
    pub fn new(key: &Key, nonce: Nonce, binding: &[u8]) -> (Dialled, Hello) {
        let mut hello = [0; 65];
        hello[0] = VERSION;
        hello[1..33].copy_from_slice(&nonce);
        key.sign(HELLO, &[binding], &mut hello);
        (Dialled { key: key.clone(), hello, binding: binding.into() }, hello)
    }

    /// What to say to the other end's answer, and what room the other end has, if it is the right one. `window` is the room that this one has.
    pub fn answer(self, challenge: &Challenge, window: u32) -> Result<(Proof, u32), Refused> {
        self.key.check(CHALLENGE, &[&self.binding, &self.hello], challenge)?;
        if challenge[0] != VERSION {
            return Err(Refused::OtherVersion(challenge[0]));
        }
        let mut proof = [0; 36];
        proof[..4].copy_from_slice(&window.to_be_bytes());
        self.key.sign(PROOF, &[&self.binding, &self.hello, challenge], &mut proof);
        Ok((proof, number(&challenge[1..5])))
    }
}

/// The end that accepts, after its message.
#[derive(Debug, Clone)]
pub struct Accepted {
    key: Key,
    hello: Hello,
    challenge: Challenge,
    binding: Vec<u8>,
}

impl Accepted {
    /// What to say to who dials, if it has the key: else nothing is said. One of another version is told which this is, and is refused when it proves that
    /// it heard.
    pub fn new(key: &Key, hello: &Hello, nonce: Nonce, binding: &[u8], window: u32) -> Result<(Accepted, Challenge), Refused> {
        key.check(HELLO, &[binding], hello)?;
        let mut challenge = [0; 69];
        challenge[0] = VERSION;
        challenge[1..5].copy_from_slice(&window.to_be_bytes());
        challenge[5..37].copy_from_slice(&nonce);
        key.sign(CHALLENGE, &[binding, hello], &mut challenge);
        Ok((Accepted { key: key.clone(), hello: *hello, challenge, binding: binding.into() }, challenge))
    }

    /// Whether it is who it says, now and not at some other time; what room it has.
    pub fn prove(self, proof: &Proof) -> Result<u32, Refused> {
        if self.hello[0] != VERSION {
            return Err(Refused::OtherVersion(self.hello[0]));
        }
        self.key.check(PROOF, &[&self.binding, &self.hello, &self.challenge], proof)?;
        Ok(number(&proof[..4]))
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(secret: &str) -> Key {
        Key::new(secret.as_bytes()).unwrap()
    }

    const OURS: &str = "0123456789abcdef0123456789abcdef";
    const OTHER: &str = "0123456789abcdef0123456789abcdeg";

    #[test]
    fn who_has_the_key_is_let_in_and_hears_of_the_window() {
        let (dialled, hello) = Dialled::new(&key(OURS), [1; 32], b"channel");
        let (accepted, challenge) = Accepted::new(&key(OURS), &hello, [2; 32], b"channel", 1 << 20).unwrap();
        let (proof, window) = dialled.answer(&challenge, 77).unwrap();
        assert_eq!((window, accepted.prove(&proof)), (1 << 20, Ok(77)));
    }

    #[test]
    fn who_has_it_not_is_told_nothing() {
        let (dialled, hello) = Dialled::new(&key(OTHER), [1; 32], b"");
        assert_eq!(Accepted::new(&key(OURS), &hello, [2; 32], b"", 1).unwrap_err(), Refused::WrongKey);
        // Nor is it believed.
        let (_, challenge) = Accepted::new(&key(OURS), &Dialled::new(&key(OURS), [1; 32], b"").1, [2; 32], b"", 1).unwrap();
        assert_eq!(dialled.answer(&challenge, 1).unwrap_err(), Refused::WrongKey);
        assert_eq!(Key::new(b"short").unwrap_err(), Refused::ShortKey(5));
        assert_eq!(format!("{:?}", key(OURS)), "Key");
    }

    #[test]
    fn what_was_overheard_is_of_no_use() {
        let ours = key(OURS);
        let (dialled, hello) = Dialled::new(&ours, [1; 32], b"");
        let (_, challenge) = Accepted::new(&ours, &hello, [2; 32], b"", 1).unwrap();
        let (proof, _) = dialled.clone().answer(&challenge, 1).unwrap();
        // Again, with another nonce from who accepts.
        let (again, other) = Accepted::new(&ours, &hello, [3; 32], b"", 1).unwrap();
        assert_eq!(again.prove(&proof), Err(Refused::WrongKey));
        // The first answer to another who dials.
        let (second, _) = Dialled::new(&ours, [4; 32], b"");
        assert_eq!(second.answer(&challenge, 1).unwrap_err(), Refused::WrongKey);
        assert_ne!(challenge, other);
        // Over another channel.
        assert_eq!(Accepted::new(&ours, &hello, [2; 32], b"another", 1).unwrap_err(), Refused::WrongKey);
    }

    #[test]
    fn a_channel_is_that_of_both_ends() {
        let (ours, said) = (key(OURS), key(OURS).bound(true, b"channel"));
        assert_eq!(ours.is_bound(true, b"channel", &said), Ok(()));
        // Not said back, not over another channel, not with another key.
        assert_eq!(ours.is_bound(false, b"channel", &said), Err(Refused::WrongKey));
        assert_eq!(ours.is_bound(true, b"another", &said), Err(Refused::WrongKey));
        assert_eq!(key(OTHER).is_bound(true, b"channel", &said), Err(Refused::WrongKey));
    }

    #[test]
    fn versions_are_named() {
        let ours = key(OURS);
        let mut hello = [0; 65];
        hello[0] = 9;
        ours.sign(HELLO, &[b""], &mut hello);
        let (accepted, challenge) = Accepted::new(&ours, &hello, [2; 32], b"", 1).unwrap();
        assert_eq!((challenge[0], accepted.prove(&[0; 36])), (VERSION, Err(Refused::OtherVersion(9))));
        let (dialled, hello) = Dialled::new(&ours, [1; 32], b"");
        let mut challenge = [0; 69];
        challenge[0] = 9;
        ours.sign(CHALLENGE, &[b"", &hello], &mut challenge);
        assert_eq!(dialled.answer(&challenge, 1).unwrap_err(), Refused::OtherVersion(9));
    }

    proptest! {
        #[test]
        fn a_changed_bit_is_noticed(message in 0usize..3, bit in 0usize..1000) {
            let ours = key(OURS);
            let change = |bytes: &mut [u8]| bytes[bit / 8 % bytes.len()] ^= 1 << (bit % 8);
            let (dialled, mut hello) = Dialled::new(&ours, [1; 32], b"");
            if message == 0 {
                change(&mut hello);
                prop_assert!(Accepted::new(&ours, &hello, [2; 32], b"", 1).is_err());
                return Ok(());
            }
            let (accepted, mut challenge) = Accepted::new(&ours, &hello, [2; 32], b"", 1).unwrap();
            if message == 1 {
                change(&mut challenge);
                prop_assert!(dialled.answer(&challenge, 1).is_err());
                return Ok(());
            }
            let (mut proof, _) = dialled.answer(&challenge, 1).unwrap();
            change(&mut proof);
            prop_assert!(accepted.prove(&proof).is_err());
        }
    }
}
