//! The handshake: both ends of a connection prove that they share a key, before anything else is
//! sent.
//!
//! | sender | message | content | bytes |
//! |---|---|---|---|
//! | dialling end | [`Hello`] | version, nonce, tag | 1 + 32 + 32 |
//! | accepting end | [`Challenge`] | version, window, families, nonce, tag | 1 + 4 + 1 + 31 + 32 |
//! | dialling end | [`Proof`] | window, tag | 4 + 32 |
//!
//! In version 1 the challenge has no families, and a nonce of 32 bytes. The accepting end speaks
//! the version of the hello, if it knows it. The dialling end begins with the newest; from an older
//! end it gets a challenge of version 1, and connects again with a hello of that version.
//!
//! A tag is HMAC-SHA-256 (RFC 2104) under the key, over a label that is unique to the message, the
//! binding, and all that was sent before. Each field is preceded by its length, so that no two
//! sequences of fields are the same bytes. The dialling end may send data right behind its proof.
//!
//! The accepting end sends nothing to a peer without the key: an unauthenticated peer costs it 65
//! bytes and one hash, and learns nothing. A replayed hello is answered with a challenge, but has
//! no use without the key, because the proof must cover the new nonce.
//!
//! The caller supplies the nonces: random, never used twice. The *binding* is further data that
//! both ends must agree on.
//!
//! The handshake does not protect what follows: an attacker on the path can change it. TLS does
//! that. It begins behind the proof, so an unauthenticated peer does not even cost a TLS handshake.
//! Inside TLS each end first sends a [channel tag](PresharedKey::channel_tag) over the channel
//! binding of this TLS session (RFC 9266), which rules out a man in the middle.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;

/// Version of the bond's protocol.
pub const VERSION: u8 = 2;
/// The oldest version that this end speaks.
pub const OLDEST_VERSION: u8 = 1;
/// Length of a tag, bytes.
const TAG: usize = 32;

/// A nonce: random bytes, never used twice.
pub type Nonce = [u8; 32];
/// The first message, from the dialling end.
pub type Hello = [u8; 65];
/// The second message, from the accepting end.
pub type Challenge = [u8; 69];
/// The third message, from the dialling end.
pub type Proof = [u8; 36];

/// The IP versions of the servers that an accepting end has a route to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Families {
    /// IPv4.
    pub ipv4: bool,
    /// The IPv6 Internet.
    pub ipv6: bool,
}

impl Families {
    /// Both. An end of version 1 does not say, so that both are tried.
    pub const BOTH: Families = Families { ipv4: true, ipv6: true };

    fn encode(self) -> u8 {
        u8::from(self.ipv4) | u8::from(self.ipv6) << 1
    }

    /// Further bits are for later versions.
    fn decode(byte: u8) -> Self {
        Families { ipv4: byte & 1 != 0, ipv6: byte & 2 != 0 }
    }
}

/// What an accepting end says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcement {
    /// Its window, bytes.
    pub window: u32,
    /// Where it has routes to.
    pub families: Families,
}

/// Why a handshake fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The key is too short; it has this many bytes.
    #[error("the bond's key has {0} bytes, but needs at least {min}: make one, for example with `openssl rand -hex 32`", min = PresharedKey::MIN_LEN)]
    ShortKey(usize),
    /// The peer does not have the key.
    #[error("the bond's peer has a different key, or is no bond: give both ends the same key")]
    WrongKey,
    /// The peer speaks this version.
    #[error(
        "the bond's peer speaks version {0} of the protocol, this end versions {OLDEST_VERSION} to {VERSION}: run the same release at both ends"
    )]
    UnsupportedVersion(u8),
}

/// The key that both ends of a bond share. Its `Debug` form does not show it.
#[derive(Clone)]
pub struct PresharedKey(Hmac<Sha256>);

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresharedKey")
    }
}

impl PresharedKey {
    /// Length of the shortest key, bytes.
    pub const MIN_LEN: usize = 16;

    /// A key from `secret`, which must not be guessable.
    ///
    /// # Errors
    /// [`ShortKey`](HandshakeError::ShortKey) below [`MIN_LEN`](PresharedKey::MIN_LEN) bytes.
    pub fn new(secret: &[u8]) -> Result<PresharedKey, HandshakeError> {
        let short = HandshakeError::ShortKey(secret.len());
        if secret.len() < PresharedKey::MIN_LEN {
            return Err(short);
        }
        Hmac::new_from_slice(secret).map(PresharedKey).map_err(|_| short)
    }

    /// The tag that an end sends first inside TLS. `binding` is the channel binding of the TLS
    /// session; `from_dialler` tells which end sends the tag, so that it cannot be reflected.
    pub fn channel_tag(&self, from_dialler: bool, binding: &[u8]) -> [u8; 32] {
        self.mac(channel_label(from_dialler), &[binding]).finalize().into_bytes().into()
    }

    /// Checks the peer's [channel tag](PresharedKey::channel_tag), in constant time.
    ///
    /// # Errors
    /// [`WrongKey`](HandshakeError::WrongKey) when the tag is not that of this key, end and
    /// binding.
    pub fn verify_channel_tag(&self, from_dialler: bool, binding: &[u8], tag: &[u8; 32]) -> Result<(), HandshakeError> {
        self.mac(channel_label(from_dialler), &[binding]).verify_slice(tag).map_err(|_| HandshakeError::WrongKey)
    }

    /// The MAC over `label` and `parts`, each preceded by its length.
    fn mac(&self, label: &str, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        for part in [label.as_bytes()].iter().chain(parts) {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac
    }

    /// Writes the tag into the last bytes of `message`, over `parts` and the rest of the message.
    fn sign(&self, label: &str, parts: &[&[u8]], message: &mut [u8]) {
        let (content, tag) = message.split_at_mut(message.len() - TAG);
        let mac = self.mac(label, &[parts, &[content]].concat());
        tag.copy_from_slice(&mac.finalize().into_bytes());
    }

    /// Checks the tag of a message, in constant time.
    fn verify(&self, label: &str, parts: &[&[u8]], message: &[u8]) -> Result<(), HandshakeError> {
        let (content, tag) = message.split_at(message.len() - TAG);
        self.mac(label, &[parts, &[content]].concat()).verify_slice(tag).map_err(|_| HandshakeError::WrongKey)
    }
}

// The labels are part of the protocol: a changed label is another version.
const HELLO: &str = "tandem bond: hello";
const CHALLENGE: &str = "tandem bond: challenge";
const PROOF: &str = "tandem bond: proof";
const CHANNEL_DIALLER: &str = "tandem bond: bound, who dialled";
const CHANNEL_ACCEPTOR: &str = "tandem bond: bound, who accepted";

fn channel_label(from_dialler: bool) -> &'static str {
    if from_dialler { CHANNEL_DIALLER } else { CHANNEL_ACCEPTOR }
}

/// The dialling end's side of a handshake, between its two messages.
///
/// The caller sends the [`Hello`] of [`new`](DialHandshake::new), receives a [`Challenge`], and
/// sends the [`Proof`] of [`finish`](DialHandshake::finish).
#[derive(Debug, Clone)]
pub struct DialHandshake {
    key: PresharedKey,
    hello: Hello,
    binding: Vec<u8>,
}

impl DialHandshake {
    /// Starts a handshake; returns the first message. Both ends must use the same `binding`.
    /// `version`: [`VERSION`], or that of [`UnsupportedVersion`](HandshakeError::UnsupportedVersion)
    /// if the peer is older.
    pub fn new(key: &PresharedKey, version: u8, nonce: Nonce, binding: &[u8]) -> (DialHandshake, Hello) {
        let mut hello = [0; 65];
        hello[0] = version;
        hello[1..33].copy_from_slice(&nonce);
        key.sign(HELLO, &[binding], &mut hello);
        (DialHandshake { key: key.clone(), hello, binding: binding.into() }, hello)
    }

    /// Authenticates the peer by its challenge. Returns the proof to send, and what the peer says
    /// of itself. `window` is this end's window in bytes.
    ///
    /// # Errors
    /// When the peer does not have the key, or speaks another version.
    pub fn finish(self, challenge: &Challenge, window: u32) -> Result<(Proof, Announcement), HandshakeError> {
        self.key.verify(CHALLENGE, &[&self.binding, &self.hello], challenge)?;
        if challenge[0] != self.hello[0] {
            return Err(HandshakeError::UnsupportedVersion(challenge[0]));
        }
        let families = if challenge[0] == OLDEST_VERSION { Families::BOTH } else { Families::decode(challenge[5]) };
        let mut proof = [0; 36];
        proof[..4].copy_from_slice(&window.to_be_bytes());
        self.key.sign(PROOF, &[&self.binding, &self.hello, challenge], &mut proof);
        Ok((proof, Announcement { window: number(&challenge[1..5]), families }))
    }
}

/// The accepting end's side of a handshake, after its message.
///
/// The caller receives a [`Hello`], sends the [`Challenge`] of [`new`](AcceptHandshake::new),
/// receives a [`Proof`] and passes it to [`finish`](AcceptHandshake::finish).
#[derive(Debug, Clone)]
pub struct AcceptHandshake {
    key: PresharedKey,
    hello: Hello,
    challenge: Challenge,
    binding: Vec<u8>,
}

impl AcceptHandshake {
    /// Checks a hello; returns the challenge to send, with what this end says of itself. A peer of
    /// an unknown version gets a challenge too, so that it learns this end's version; it is refused
    /// in [`finish`](AcceptHandshake::finish).
    ///
    /// # Errors
    /// [`WrongKey`](HandshakeError::WrongKey). Nothing must be sent to the peer then.
    pub fn new(
        key: &PresharedKey,
        hello: &Hello,
        nonce: Nonce,
        binding: &[u8],
        own: Announcement,
    ) -> Result<(AcceptHandshake, Challenge), HandshakeError> {
        key.verify(HELLO, &[binding], hello)?;
        let mut challenge = [0; 69];
        challenge[0] = if is_spoken(hello[0]) { hello[0] } else { VERSION };
        challenge[1..5].copy_from_slice(&own.window.to_be_bytes());
        challenge[5..37].copy_from_slice(&nonce);
        if challenge[0] > OLDEST_VERSION {
            challenge[5] = own.families.encode();
        }
        key.sign(CHALLENGE, &[binding, hello], &mut challenge);
        Ok((AcceptHandshake { key: key.clone(), hello: *hello, challenge, binding: binding.into() }, challenge))
    }

    /// Authenticates the peer by its proof: it has the key, and its messages are not replayed.
    /// Returns the peer's window in bytes.
    ///
    /// # Errors
    /// When the peer speaks another version, or the proof is wrong.
    pub fn finish(self, proof: &Proof) -> Result<u32, HandshakeError> {
        if !is_spoken(self.hello[0]) {
            return Err(HandshakeError::UnsupportedVersion(self.hello[0]));
        }
        self.key.verify(PROOF, &[&self.binding, &self.hello, &self.challenge], proof)?;
        Ok(number(&proof[..4]))
    }
}

/// Whether this end speaks a version.
fn is_spoken(version: u8) -> bool {
    (OLDEST_VERSION..=VERSION).contains(&version)
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(secret: &str) -> PresharedKey {
        PresharedKey::new(secret.as_bytes()).unwrap()
    }

    /// An announcement of this window.
    fn said(window: u32) -> Announcement {
        Announcement { window, families: Families::BOTH }
    }

    const OURS: &str = "0123456789abcdef0123456789abcdef";
    const OTHER: &str = "0123456789abcdef0123456789abcdeg";

    #[test]
    fn both_ends_authenticate_and_learn_the_windows() {
        let (dialled, hello) = DialHandshake::new(&key(OURS), VERSION, [1; 32], b"channel");
        let (accepted, challenge) = AcceptHandshake::new(&key(OURS), &hello, [2; 32], b"channel", said(1 << 20)).unwrap();
        let (proof, window) = dialled.finish(&challenge, 77).unwrap();
        assert_eq!((window, accepted.finish(&proof)), (said(1 << 20), Ok(77)));
    }

    #[test]
    fn the_dialling_end_learns_where_the_other_has_routes() {
        for families in [(true, true), (true, false), (false, true), (false, false)].map(|(ipv4, ipv6)| Families { ipv4, ipv6 }) {
            let own = Announcement { window: 1, families };
            // An older end does not say.
            for (version, learned) in [(VERSION, families), (1, Families::BOTH)] {
                let (dialled, hello) = DialHandshake::new(&key(OURS), version, [1; 32], b"");
                let (accepted, challenge) = AcceptHandshake::new(&key(OURS), &hello, [2; 32], b"", own).unwrap();
                let (proof, announced) = dialled.finish(&challenge, 77).unwrap();
                assert_eq!((challenge[0], announced.families, accepted.finish(&proof)), (version, learned, Ok(77)));
            }
        }
    }

    #[test]
    fn an_end_of_version_1_is_understood() {
        // What such an end sends, whatever this one says.
        let ours = key(OURS);
        let (dialled, hello) = DialHandshake::new(&ours, VERSION, [1; 32], b"");
        let mut challenge = [7; 69];
        challenge[..5].copy_from_slice(&[1, 0, 0, 0, 9]);
        ours.sign(CHALLENGE, &[b"", &hello], &mut challenge);
        assert_eq!(dialled.finish(&challenge, 1).unwrap_err(), HandshakeError::UnsupportedVersion(1));
        let (dialled, hello) = DialHandshake::new(&ours, 1, [1; 32], b"");
        ours.sign(CHALLENGE, &[b"", &hello], &mut challenge);
        assert_eq!(dialled.finish(&challenge, 1).unwrap().1, said(9));
    }

    #[test]
    fn a_peer_without_the_key_gets_no_answer() {
        let (dialled, hello) = DialHandshake::new(&key(OTHER), VERSION, [1; 32], b"");
        assert_eq!(AcceptHandshake::new(&key(OURS), &hello, [2; 32], b"", said(1)).unwrap_err(), HandshakeError::WrongKey);
        // Nor is its challenge accepted.
        let (_, challenge) =
            AcceptHandshake::new(&key(OURS), &DialHandshake::new(&key(OURS), VERSION, [1; 32], b"").1, [2; 32], b"", said(1)).unwrap();
        assert_eq!(dialled.finish(&challenge, 1).unwrap_err(), HandshakeError::WrongKey);
        assert_eq!(PresharedKey::new(b"short").unwrap_err(), HandshakeError::ShortKey(5));
        assert_eq!(format!("{:?}", key(OURS)), "PresharedKey");
    }

    #[test]
    fn replayed_messages_are_refused() {
        let ours = key(OURS);
        let (dialled, hello) = DialHandshake::new(&ours, VERSION, [1; 32], b"");
        let (_, challenge) = AcceptHandshake::new(&ours, &hello, [2; 32], b"", said(1)).unwrap();
        let (proof, _) = dialled.clone().finish(&challenge, 1).unwrap();
        // The proof again, to a challenge with another nonce.
        let (repeated, other) = AcceptHandshake::new(&ours, &hello, [3; 32], b"", said(1)).unwrap();
        assert_eq!(repeated.finish(&proof), Err(HandshakeError::WrongKey));
        // The challenge again, to another hello.
        let (second, _) = DialHandshake::new(&ours, VERSION, [4; 32], b"");
        assert_eq!(second.finish(&challenge, 1).unwrap_err(), HandshakeError::WrongKey);
        assert_ne!(challenge, other);
        // With another binding.
        assert_eq!(AcceptHandshake::new(&ours, &hello, [2; 32], b"another", said(1)).unwrap_err(), HandshakeError::WrongKey);
    }

    #[test]
    fn a_channel_tag_is_bound_to_key_end_and_channel() {
        let (ours, tag) = (key(OURS), key(OURS).channel_tag(true, b"channel"));
        assert_eq!(ours.verify_channel_tag(true, b"channel", &tag), Ok(()));
        // Not reflected, not on another channel, not with another key.
        assert_eq!(ours.verify_channel_tag(false, b"channel", &tag), Err(HandshakeError::WrongKey));
        assert_eq!(ours.verify_channel_tag(true, b"another", &tag), Err(HandshakeError::WrongKey));
        assert_eq!(key(OTHER).verify_channel_tag(true, b"channel", &tag), Err(HandshakeError::WrongKey));
    }

    #[test]
    fn other_versions_are_refused_by_number() {
        let ours = key(OURS);
        let mut hello = [0; 65];
        hello[0] = 9;
        ours.sign(HELLO, &[b""], &mut hello);
        let (accepted, challenge) = AcceptHandshake::new(&ours, &hello, [2; 32], b"", said(1)).unwrap();
        assert_eq!((challenge[0], accepted.finish(&[0; 36])), (VERSION, Err(HandshakeError::UnsupportedVersion(9))));
        let (dialled, hello) = DialHandshake::new(&ours, VERSION, [1; 32], b"");
        let mut challenge = [0; 69];
        challenge[0] = 9;
        ours.sign(CHALLENGE, &[b"", &hello], &mut challenge);
        assert_eq!(dialled.finish(&challenge, 1).unwrap_err(), HandshakeError::UnsupportedVersion(9));
    }

    proptest! {
        #[test]
        fn a_flipped_bit_is_detected(message in 0usize..3, bit in 0usize..1000) {
            let ours = key(OURS);
            let flip = |bytes: &mut [u8]| bytes[bit / 8 % bytes.len()] ^= 1 << (bit % 8);
            let (dialled, mut hello) = DialHandshake::new(&ours, VERSION, [1; 32], b"");
            if message == 0 {
                flip(&mut hello);
                prop_assert!(AcceptHandshake::new(&ours, &hello, [2; 32], b"", said(1)).is_err());
                return Ok(());
            }
            let (accepted, mut challenge) = AcceptHandshake::new(&ours, &hello, [2; 32], b"", said(1)).unwrap();
            if message == 1 {
                flip(&mut challenge);
                prop_assert!(dialled.finish(&challenge, 1).is_err());
                return Ok(());
            }
            let (mut proof, _) = dialled.finish(&challenge, 1).unwrap();
            flip(&mut proof);
            prop_assert!(accepted.finish(&proof).is_err());
        }
    }
}
