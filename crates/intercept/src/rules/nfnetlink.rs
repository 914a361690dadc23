//! Reads nftables from the kernel over netlink. `nft` itself would list sets of up to 262,144
//! elements with every table.

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};
use std::{collections::HashMap, io};

/// Message types of the netfilter subsystem `nf_tables` (include/uapi/linux/netfilter/nf_tables.h).
const NF_TABLES: u16 = 10 << 8;
const NEW_CHAIN: u16 = NF_TABLES | 3;
const GET_CHAIN: u16 = NF_TABLES | 4;
pub(crate) const NEW_RULE: u16 = NF_TABLES | 6;
const GET_RULE: u16 = NF_TABLES | 7;
pub(crate) const NEW_GENERATION: u16 = NF_TABLES | 15;
const GET_GENERATION: u16 = NF_TABLES | 16;
const NEW_OBJECT: u16 = NF_TABLES | 18;
const GET_OBJECT: u16 = NF_TABLES | 19;
/// Types and flags of netlink itself (include/uapi/linux/netlink.h).
pub(crate) const ERROR: u16 = 2;
const DONE: u16 = 3;
pub(crate) const REQUEST: u16 = 1;
const DUMP: u16 = 0x300;
const DUMP_INTERRUPTED: u16 = 0x10;
/// Attribute of a generation: its number, in network byte order.
const GENERATION_ID: u16 = 1;
/// Attributes of a rule: its table and chain (zero-terminated texts).
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
/// Attributes of a stateful object: its table, name, type (a counter) and data; of a counter: bytes
/// and packets.
const OBJECT_TABLE: u16 = 1;
const OBJECT_NAME: u16 = 2;
const OBJECT_TYPE: u16 = 3;
const OBJECT_DATA: u16 = 4;
const COUNTER: [u8; 4] = 1u32.to_be_bytes();
const COUNTER_BYTES: u16 = 1;
const COUNTER_PACKETS: u16 = 2;
/// Families: any, and `inet`.
const UNSPECIFIED: u8 = 0;
pub(super) const INET: u8 = 1;
/// Lengths of the netlink header, the netfilter header that follows it, and an attribute's header,
/// bytes.
const HEADER: usize = 16;
const NETFILTER_HEADER: usize = 4;
const ATTRIBUTE_HEADER: usize = 4;
/// The bits of an attribute's type without its flags.
const ATTRIBUTE_NUMBER: u16 = 0x3fff;

/// A netlink socket that reads the nftables of one network namespace.
pub(super) struct NftablesSocket {
    socket: Socket,
}

impl NftablesSocket {
    /// Opens a socket in the network namespace of the calling thread. Open a new one for each use:
    /// after an error an unread answer may be left in the old one.
    ///
    /// # Errors
    /// The kernel refuses the socket.
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(NftablesSocket { socket })
    }

    /// The generation of the ruleset: each change of any table increments it.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub(super) fn generation(&self) -> io::Result<u32> {
        self.send(GET_GENERATION, REQUEST, UNSPECIFIED, &[])?;
        let (bytes, _) = self.socket.recv_from_full()?;
        generation_of(&bytes)
    }

    /// The named counters of a table of the family `inet`. `None` if the ruleset changed during the
    /// dump.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub(super) fn counters(&self, table: &str) -> io::Result<Option<Counters>> {
        let table = text(table);
        let (about, mut counters) = ([(OBJECT_TABLE, &table[..]), (OBJECT_TYPE, &COUNTER)], Counters::default());
        let is_whole = self.dump(GET_OBJECT, INET, &about, NEW_OBJECT, |message| {
            let number = |data, kind| attribute(data, kind)?.try_into().ok().map(u64::from_be_bytes);
            let read = || {
                let (name, data) = (message.text(OBJECT_NAME)?, message.attribute(OBJECT_DATA)?);
                Some((name.to_owned(), Counter { packets: number(data, COUNTER_PACKETS)?, bytes: number(data, COUNTER_BYTES)? }))
            };
            counters.0.extend(read());
        })?;
        Ok(is_whole.then_some(counters))
    }

    /// Calls `each` for every chain of every table. Returns false if the ruleset changed meanwhile.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub(super) fn chains(&self, each: impl FnMut(&Message<'_>)) -> io::Result<bool> {
        self.dump(GET_CHAIN, UNSPECIFIED, &[], NEW_CHAIN, each)
    }

    /// Calls `each` for the rules of a table, or of one of its chains. Returns false if the ruleset
    /// changed meanwhile.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub(super) fn rules(&self, family: u8, table: &str, chain: Option<&str>, each: impl FnMut(&Message<'_>)) -> io::Result<bool> {
        let (table, chain) = (text(table), chain.map(text));
        let mut about = vec![(RULE_TABLE, &table[..])];
        about.extend(chain.iter().map(|chain| (RULE_CHAIN, &chain[..])));
        self.dump(GET_RULE, family, &about, NEW_RULE, each)
    }

    /// Sends a request with several answers, and calls `each` for those of the type `answer`.
    fn dump(&self, request: u16, family: u8, about: &[(u16, &[u8])], answer: u16, mut each: impl FnMut(&Message<'_>)) -> io::Result<bool> {
        self.send(request, REQUEST | DUMP, family, about)?;
        let mut interrupted = false;
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            if read_dump(&bytes, answer, &mut interrupted, &mut each)? {
                return Ok(!interrupted);
            }
        }
    }

    fn send(&self, request: u16, flags: u16, family: u8, about: &[(u16, &[u8])]) -> io::Result<()> {
        self.socket.send(&message(request, flags, family, about), 0).map(drop)
    }
}

/// The values of a named counter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counter {
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

/// The named counters of a table.
#[derive(Debug, Default)]
pub(super) struct Counters(HashMap<String, Counter>);

impl Counters {
    /// The counter of this name, 0 if there is none.
    pub(super) fn of(&self, name: &str) -> Counter {
        self.0.get(name).copied().unwrap_or_default()
    }
}

/// Serializes a message.
pub(crate) fn message(kind: u16, flags: u16, family: u8, attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut payload = vec![family, 0, 0, 0];
    for (kind, value) in attributes {
        payload.extend_from_slice(&((ATTRIBUTE_HEADER + value.len()) as u16).to_ne_bytes());
        payload.extend_from_slice(&kind.to_ne_bytes());
        payload.extend_from_slice(value);
        payload.resize(payload.len().next_multiple_of(4), 0);
    }
    let mut bytes = ((HEADER + payload.len()) as u32).to_ne_bytes().to_vec();
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&flags.to_ne_bytes());
    // Sequence number and port. The kernel fills in the port; a single request needs no number.
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&payload);
    bytes
}

/// Parses the answer to a request for the generation.
///
/// # Errors
/// The answer is an error, or contains no generation.
pub(crate) fn generation_of(answer: &[u8]) -> io::Result<u32> {
    only(answer, NEW_GENERATION, |message| message.attribute(GENERATION_ID)?.try_into().ok().map(u32::from_be_bytes))
}

/// What `read` returns for the first message of the type `answer`.
fn only<T>(bytes: &[u8], answer: u16, read: impl Fn(&Message<'_>) -> Option<T>) -> io::Result<T> {
    if let Some(why) = messages(bytes).find_map(|message| message.error()) {
        return Err(why);
    }
    let found = messages(bytes).filter(|message| message.kind == answer).find_map(|message| read(&message));
    found.ok_or_else(|| io::Error::other("the kernel's answer about nftables does not contain the requested data"))
}

/// Parses one part of a dump: calls `each` for the messages of the type `answer`, and sets
/// `interrupted` if the ruleset changed meanwhile. Returns true for the last part.
///
/// # Errors
/// The part contains an error message.
pub(crate) fn read_dump(bytes: &[u8], answer: u16, interrupted: &mut bool, mut each: impl FnMut(&Message<'_>)) -> io::Result<bool> {
    for message in messages(bytes) {
        if let Some(why) = message.error() {
            return Err(why);
        }
        *interrupted |= message.flags & DUMP_INTERRUPTED != 0;
        if message.kind == DONE {
            return Ok(true);
        }
        if message.kind == answer {
            each(&message);
        }
    }
    Ok(false)
}

/// A text as the value of an attribute: zero-terminated.
fn text(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

/// One message of an answer.
pub(crate) struct Message<'a> {
    kind: u16,
    flags: u16,
    payload: &'a [u8],
}

impl Message<'_> {
    /// Its type.
    pub(crate) fn kind(&self) -> u16 {
        self.kind
    }

    /// The error that it reports. `None` for another message, and for a success.
    pub(crate) fn error(&self) -> Option<io::Error> {
        let code = i32::from_ne_bytes(self.payload.get(..4)?.try_into().ok()?);
        (self.kind == ERROR && code != 0).then(|| io::Error::from_raw_os_error(code.saturating_neg()))
    }

    /// The family of its subject.
    pub(super) fn family(&self) -> u8 {
        self.payload.first().copied().unwrap_or(UNSPECIFIED)
    }

    /// The value of its first attribute of this type.
    pub(crate) fn attribute(&self, wanted: u16) -> Option<&[u8]> {
        attribute(self.payload.get(NETFILTER_HEADER..)?, wanted)
    }

    /// The same, as a text.
    pub(crate) fn text(&self, wanted: u16) -> Option<&str> {
        as_text(self.attribute(wanted)?)
    }
}

/// The messages of an answer. A truncated one ends the iterator.
pub(crate) fn messages(mut rest: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(rest.get(..4)?.try_into().ok()?) as usize;
        let word = |at: usize| Some(u16::from_ne_bytes(rest.get(at..at + 2)?.try_into().ok()?));
        let message = Message { kind: word(4)?, flags: word(6)?, payload: rest.get(HEADER..length)? };
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(message)
    })
}

/// The types and values of the attributes in `rest`. A truncated one ends the iterator.
pub(super) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let word = |at: usize| Some(u16::from_ne_bytes(rest.get(at..at + 2)?.try_into().ok()?));
        let (length, kind) = (usize::from(word(0)?), word(2)? & ATTRIBUTE_NUMBER);
        let value = rest.get(ATTRIBUTE_HEADER..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

/// The value of the first attribute of this type.
pub(super) fn attribute(rest: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(rest).find_map(|(kind, value)| (kind == wanted).then_some(value))
}

/// A value as a text, without its zero terminator.
pub(super) fn as_text(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value.strip_suffix(&[0]).unwrap_or(value)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_message_ends_an_answer() {
        let mut bytes = 20u32.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&DONE.to_ne_bytes());
        bytes.extend_from_slice(&[0; 14]);
        assert_eq!(messages(&bytes).map(|message| message.kind).collect::<Vec<_>>(), [DONE]);
        for length in 0..bytes.len() {
            assert_eq!(messages(&bytes[..length]).count(), 0, "{length} bytes");
        }
        // A length of 0 must not cause an endless loop.
        assert_eq!(messages(&[0; 64]).count(), 0);
        assert_eq!(attributes(&[0; 64]).count(), 0);
    }

    #[test]
    fn an_attribute_is_found_behind_others() {
        let bytes = [7, 0, 5, 0, 1, 2, 3, 0, 8, 0, 1, 0x80, 0, 0, 0, 9];
        assert_eq!(attribute(&bytes, 1), Some(&[0, 0, 0, 9][..]), "with a flag");
        assert_eq!(attribute(&bytes, 2), None);
        assert_eq!(attributes(&bytes).count(), 2);
    }

    #[test]
    fn texts_end_with_a_zero_or_not() {
        assert_eq!(as_text(b"filter\0"), Some("filter"));
        assert_eq!(as_text(b"filter"), Some("filter"));
        assert_eq!(as_text(&[0xff, 0]), None);
    }
}
