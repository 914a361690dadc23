//! What a stream of a bond begins with.

use crate::recipe::Recipe;
use bond::{BadOpenMessage, OpenReply, OpenRequest, ResetReason, Target};
use std::{
    fmt::Debug,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// Calls and answers of any bytes, and those that any call and answer are encoded as.
///
/// # Panics
/// When what is decoded depends on how many bytes have come, or is not what it was encoded from.
pub fn call(data: &[u8]) {
    prefixes(data, OpenRequest::decode, OpenRequest::encode);
    prefixes(data, OpenReply::decode, OpenReply::encode);
    let mut recipe = Recipe(data);
    let client = address(&mut recipe);
    let to = match recipe.byte() {
        0..=127 => Target::Address(address(&mut recipe)),
        _ => {
            let port = recipe.word();
            let name = String::from_utf8_lossy(&recipe.0[..recipe.0.len().min(80)]).replace('\0', "");
            if name.is_empty() { Target::Address(client) } else { Target::Name(name, port) }
        }
    };
    let call = OpenRequest { client, target: to };
    let bytes = call.encode();
    assert_eq!(OpenRequest::decode(&bytes), Ok(Some((call, bytes.len()))));
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

/// As bytes come more is decided, and what is decided stays so.
fn prefixes<T: PartialEq + Debug>(
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<Option<(T, usize)>, BadOpenMessage>,
    encode: impl Fn(&T) -> Vec<u8>,
) {
    let whole = decode(bytes);
    if let Ok(Some((said, length))) = &whole {
        assert_eq!(encode(said), bytes[..*length], "what was read is written otherwise");
        assert_eq!(decode(&bytes[..length - 1]), Ok(None), "it was complete before its last byte");
    }
    let mut earlier = Ok(None);
    for end in 0..bytes.len().min(600) {
        let now = decode(&bytes[..end]);
        assert!(earlier == Ok(None) || now == earlier, "what was decided is undone at byte {end}");
        earlier = now;
    }
    assert!(earlier == Ok(None) || whole == earlier);
}
