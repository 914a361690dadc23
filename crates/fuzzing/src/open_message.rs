//! The first messages of a bond's stream: the request to open it, and the reply.

use crate::recipe::Recipe;
use bond::{BadOpenMessage, OpenReply, OpenRequest, ResetReason, Target};
use std::{
    fmt::Debug,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// Decodes arbitrary bytes as requests and replies, and decodes what arbitrary requests and replies
/// are encoded as.
///
/// # Panics
/// If the result depends on how the bytes are split, or a decoded message differs from the encoded
/// one.
pub fn open_message(data: &[u8]) {
    prefixes(data, OpenRequest::decode, OpenRequest::encode);
    prefixes(data, OpenReply::decode, OpenReply::encode);
    let mut recipe = Recipe(data);
    let client = address(&mut recipe);
    let target = match recipe.byte() {
        0..=127 => Target::Address(address(&mut recipe)),
        _ => {
            let port = recipe.word();
            let name = String::from_utf8_lossy(&recipe.0[..recipe.0.len().min(80)]).replace('\0', "");
            if name.is_empty() { Target::Address(client) } else { Target::Name(name, port) }
        }
    };
    let request = OpenRequest { client, target };
    let bytes = request.encode();
    assert_eq!(OpenRequest::decode(&bytes), Ok(Some((request, bytes.len()))));
    let bytes = OpenReply(client).encode();
    assert_eq!(OpenReply::decode(&bytes), Ok(Some((OpenReply(client), bytes.len()))));
    for code in data.iter().take(4) {
        let why = ResetReason::from(*code);
        assert!(why as u8 == *code || why == ResetReason::Other);
    }
}

fn address(recipe: &mut Recipe<'_>) -> SocketAddr {
    let port = recipe.word();
    match recipe.byte() {
        0..=127 => SocketAddr::new(Ipv4Addr::from(recipe.bytes()).into(), port),
        _ => SocketAddr::new(Ipv6Addr::from(recipe.bytes()).into(), port),
    }
}

/// Checks that a result, once decided by a prefix, does not change as more bytes arrive.
fn prefixes<T: PartialEq + Debug>(
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<Option<(T, usize)>, BadOpenMessage>,
    encode: impl Fn(&T) -> Vec<u8>,
) {
    let whole = decode(bytes);
    if let Ok(Some((message, length))) = &whole {
        assert_eq!(encode(message), bytes[..*length], "a decoded message is encoded differently");
        assert_eq!(decode(&bytes[..length - 1]), Ok(None), "the message was complete before its last byte");
    }
    let mut earlier = Ok(None);
    for end in 0..bytes.len().min(600) {
        let now = decode(&bytes[..end]);
        assert!(earlier == Ok(None) || now == earlier, "the result changes at byte {end}");
        earlier = now;
    }
    assert!(earlier == Ok(None) || whole == earlier);
}
