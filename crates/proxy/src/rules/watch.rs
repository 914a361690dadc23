//! Whether the rules in the table are still as many as were installed, asked of the kernel itself.
//!
//! nftables numbers its states: each change of any table has the next generation. While the
//! generation is the same, the table needs no look, so that looking often costs one short message.

use super::TABLE;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};
use std::io;

/// Message types of the netfilter subsystem `nf_tables` (include/uapi/linux/netfilter/nf_tables.h).
const NF_TABLES: u16 = 10 << 8;
const GET_RULE: u16 = NF_TABLES | 7;
const NEW_RULE: u16 = NF_TABLES | 6;
const NEW_GENERATION: u16 = NF_TABLES | 15;
const GET_GENERATION: u16 = NF_TABLES | 16;
/// Types and flags of netlink itself (include/uapi/linux/netlink.h).
const ERROR: u16 = 2;
const DONE: u16 = 3;
const REQUEST: u16 = 1;
const DUMP: u16 = 0x300;
const DUMP_INTERRUPTED: u16 = 0x10;
/// Attributes: the table of a rule (a text that ends with a zero), the number of a generation (in
/// network byte order).
const RULE_TABLE: u16 = 1;
const GENERATION_ID: u16 = 1;
/// The table's family, `inet`, and any.
const INET: u8 = 1;
const UNSPECIFIED: u8 = 0;
/// Lengths of a message's header, of the netfilter header that follows, of an attribute's header.
const HEADER: usize = 16;
const NETFILTER_HEADER: usize = 4;
const ATTRIBUTE_HEADER: usize = 4;

/// Counts the rules of the table of the network namespace that it is asked in.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// The generation of the last count.
    counted: Option<u32>,
}

impl Watch {
    /// The number of rules in the table, 0 where there is no table; none when nothing in nftables
    /// has changed since the last count.
    pub(super) fn count(&mut self) -> io::Result<Option<usize>> {
        // A socket for each look: an answer that a failed look left behind is gone with it.
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        let generation = generation(&socket)?;
        if self.counted == Some(generation) {
            return Ok(None);
        }
        let count = rules(&socket)?;
        if count.is_some() {
            self.counted = Some(generation);
        }
        Ok(count)
    }
}

/// The present generation.
fn generation(socket: &Socket) -> io::Result<u32> {
    ask(socket, GET_GENERATION, REQUEST, UNSPECIFIED, &[])?;
    let (answer, _) = socket.recv_from_full()?;
    let found = messages(&answer).find_map(|message| match message.kind {
        NEW_GENERATION => attribute(message.payload.get(NETFILTER_HEADER..)?, GENERATION_ID)?.try_into().ok().map(u32::from_be_bytes),
        _ => None,
    });
    if let Some(why) = messages(&answer).find_map(|message| message.error()) {
        return Err(why);
    }
    found.ok_or_else(|| io::Error::other("the kernel tells no generation of nftables"))
}

/// How many rules the table has; none when it changed meanwhile.
fn rules(socket: &Socket) -> io::Result<Option<usize>> {
    let mut name = TABLE.as_bytes().to_vec();
    name.push(0);
    ask(socket, GET_RULE, REQUEST | DUMP, INET, &[(RULE_TABLE, &name)])?;
    let (mut count, mut interrupted) = (0, false);
    loop {
        let (answer, _) = socket.recv_from_full()?;
        for message in messages(&answer) {
            if let Some(why) = message.error() {
                return Err(why);
            }
            interrupted |= message.flags & DUMP_INTERRUPTED != 0;
            match message.kind {
                NEW_RULE => count += 1,
                DONE => return Ok((!interrupted).then_some(count)),
                _ => {}
            }
        }
    }
}

/// Sends a message of this type.
fn ask(socket: &Socket, kind: u16, flags: u16, family: u8, attributes: &[(u16, &[u8])]) -> io::Result<()> {
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
    // Sequence number and port: the kernel fills the latter in, and one question at a time needs
    // no number.
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&payload);
    socket.send(&bytes, 0).map(drop)
}

/// A message of an answer.
struct Message<'a> {
    kind: u16,
    flags: u16,
    payload: &'a [u8],
}

impl Message<'_> {
    fn error(&self) -> Option<io::Error> {
        let code = i32::from_ne_bytes(self.payload.get(..4)?.try_into().ok()?);
        (self.kind == ERROR && code != 0).then(|| io::Error::from_raw_os_error(-code))
    }
}

/// The messages of an answer, as far as they are whole.
fn messages(mut rest: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(rest.get(..4)?.try_into().ok()?) as usize;
        let word = |at: usize| Some(u16::from_ne_bytes(rest.get(at..at + 2)?.try_into().ok()?));
        let message = Message { kind: word(4)?, flags: word(6)?, payload: rest.get(HEADER..length)? };
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(message)
    })
}

/// The value of the first attribute of this type.
fn attribute(mut rest: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let word = |at: usize| Some(u16::from_ne_bytes(rest.get(at..at + 2)?.try_into().ok()?));
        let (length, kind) = (usize::from(word(0)?), word(2)?);
        let value = rest.get(ATTRIBUTE_HEADER..length)?;
        if kind == wanted {
            return Some(value);
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_are_cut_short_have_no_more_messages() {
        let mut bytes = 20u32.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&DONE.to_ne_bytes());
        bytes.extend_from_slice(&[0; 14]);
        assert_eq!(messages(&bytes).map(|message| message.kind).collect::<Vec<_>>(), [DONE]);
        for length in 0..bytes.len() {
            assert_eq!(messages(&bytes[..length]).count(), 0, "{length} bytes");
        }
        // A length of nothing must not be read for ever.
        assert_eq!(messages(&[0; 64]).count(), 0);
    }

    #[test]
    fn an_attribute_is_found_behind_others() {
        let bytes = [7, 0, 5, 0, 1, 2, 3, 0, 8, 0, 1, 0, 0, 0, 0, 9];
        assert_eq!(attribute(&bytes, 1), Some(&[0, 0, 0, 9][..]));
        assert_eq!(attribute(&bytes, 2), None);
        assert_eq!(attribute(&[0; 8], 1), None);
    }
}
