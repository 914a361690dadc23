//! Entry points for the fuzz targets: messages of the probe protocol. Not an API.

use crate::{
    clock_offset, framing, ftp, handshake, http, payload, pending_connections,
    protocol::{ProberOrder, ResponderChallenge, ResponderEvent, Welcome},
    token,
    transfer_record::{Application, TransferDirection, TransferRecord, TransferReport},
    two_ended_evidence,
};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;

const NONCE: &str = "0123456789abcdef";

/// Messages between prober and responder, and data on the connections beside it. The first byte
/// selects the kind of message.
///
/// # Panics
/// If the result depends on how the bytes are split, if a parsed message is written differently, or
/// if a wrong proof is accepted.
pub fn probe_messages(data: &[u8]) {
    let Some((&first, bytes)) = data.split_first() else { return };
    match first % 8 {
        0 => hello(bytes),
        1 => frame(bytes),
        2 => {
            again::<ProberOrder>(bytes, |order| {
                if let ProberOrder::Transfer(transfer) = order
                    && transfer.is_allowed()
                    && transfer.bytes <= 4096
                {
                    let length = payload::generate(transfer.application, &transfer.nonce, transfer.bytes).len() as u64;
                    assert!(length <= 2 * transfer.bytes + 1024, "{length} bytes for {}", transfer.bytes);
                }
            });
            again::<ResponderChallenge>(bytes, |_| ());
        }
        3 => reports(bytes),
        4 => proof(bytes),
        5 => clocks(bytes),
        6 => lines(bytes),
        _ => http(bytes),
    }
}

/// The prober's first message, byte by byte.
fn hello(bytes: &[u8]) {
    let mut decided = None;
    for end in 0..=bytes.len().min(6000) {
        let now =
            handshake::parse_hello(&bytes[..end]).map_err(|why| why.kind()).map(|hello| hello.map(|hello| (hello.version, hello.proof)));
        if let Some(decided) = &decided {
            assert_eq!(&now, decided, "what was decided is undone at byte {end}");
        } else if now != Ok(None) {
            decided = Some(now);
        }
    }
    assert!(decided.is_some() || bytes.len() <= 4096, "a first word without end");
}

/// A frame round-trips and is bounded.
fn frame(bytes: &[u8]) {
    let most = bytes.len() / 2;
    if let Ok(read) = framing::read_frame(bytes, most) {
        assert!(read.len() <= most);
        let mut written = Vec::new();
        framing::write_frame(&mut written, &read).expect("it is short");
        assert!(bytes.starts_with(&written), "it is written otherwise");
    }
    let mut written = Vec::new();
    framing::write_frame(&mut written, bytes).expect("it is short");
    assert_eq!(framing::read_frame(&written[..], bytes.len()).expect("it is whole"), bytes);
    assert!(framing::read_frame(&written[..written.len() - 1], bytes.len()).is_err());
}

/// A parsed message can be written and parsed again. `then` uses it.
fn again<T: Serialize + DeserializeOwned + Debug>(bytes: &[u8], then: impl FnOnce(&T)) {
    let Ok(said) = serde_json::from_slice::<T>(bytes) else { return };
    let mut written = Vec::new();
    framing::write_message(&mut written, &said).expect("what was heard can be said");
    let heard = framing::read_message::<T>(&written[..]).unwrap_or_else(|why| panic!("{said:?}: {why}"));
    then(&heard);
}

/// Reports may hold any values: evidence is derived from them without a panic.
fn reports(bytes: &[u8]) {
    again::<Welcome>(bytes, |welcome| assert!(clock_offset::datagram_key(&welcome.key).is_some() == (welcome.key.len() >= 16)));
    again::<ResponderEvent>(bytes, |event| {
        let ResponderEvent::Done(there) = event else { return };
        for direction in [TransferDirection::Up, TransferDirection::Down] {
            let (there, again) = (there.clone(), there.whole);
            let here = TransferReport { first: Some(1), resumed: Some(2), last: Some(3), head: "GET / HTTP/1.1".into(), ..there.clone() };
            let transferred = TransferRecord {
                application: Application::HttpData,
                direction,
                port: 80,
                again,
                hold_s: there.acknowledged_s.map(|_| 1.0),
                patience_s: 1.0,
                clocks: clock_offset::estimate(&[[1, there.first.unwrap_or(0), there.last.unwrap_or(0), 4]]),
                here,
                there,
            };
            two_ended_evidence::evidence(&transferred);
        }
    });
    again::<TransferRecord>(bytes, |transferred| drop(two_ended_evidence::evidence(transferred)));
}

/// Only one text proves knowledge of the token.
fn proof(bytes: &[u8]) {
    let right = token::proof("token", NONCE);
    assert!(token::verify_proof("token", NONCE, &right) && !token::verify_proof("other", NONCE, &right));
    let mut near = right.clone().into_bytes();
    for change in bytes.chunks_exact(2).take(8) {
        near[usize::from(change[0]) % right.len()] = change[1];
    }
    for text in [String::from_utf8_lossy(&near), String::from_utf8_lossy(bytes)] {
        assert_eq!(token::verify_proof("token", NONCE, &text), text.eq_ignore_ascii_case(&right), "{text}");
    }
}

/// The peer's times may be any value.
fn clocks(bytes: &[u8]) {
    let numbers: Vec<i64> = bytes.chunks_exact(8).filter_map(|bytes| Some(i64::from_be_bytes(bytes.try_into().ok()?))).collect();
    let exchanges: Vec<[i64; 4]> = numbers.chunks_exact(4).filter_map(|four| four.try_into().ok()).collect();
    if let Some(offset) = clock_offset::estimate(&exchanges) {
        assert!(offset.error_s >= 0.0 && offset.offset_s.is_finite() && offset.round_trip_s.is_finite(), "{offset:?}");
    }
}

/// FTP lines, and the nonce that identifies a connection, byte by byte.
fn lines(bytes: &[u8]) {
    let read = |step: usize| {
        let (mut heard, mut lines) = (Vec::new(), Vec::new());
        for piece in bytes.chunks(step) {
            heard.extend(piece);
            loop {
                match ftp::take_line(&mut heard) {
                    Ok(Some(line)) => lines.push(line),
                    Ok(None) => break,
                    Err(_) => return (lines, true),
                }
            }
            assert!(heard.len() <= ftp::LINE + 1, "a line without end");
        }
        (lines, false)
    };
    assert_eq!(read(1), read(bytes.len().max(1)));
    for application in [Application::Tcp, Application::Ftp, Application::HttpData] {
        if let Some(behind) = pending_connections::after_nonce(bytes, application, NONCE) {
            assert!(bytes.ends_with(&behind));
        }
    }
}

/// HTTP heads and bodies.
fn http(bytes: &[u8]) {
    if let Some(at) = http::head_end(bytes) {
        let _ = http::content_length(&bytes[..at]);
        assert!(bytes[..at].ends_with(b"\r\n\r\n") && at <= bytes.len());
    }
    let _ = http::is_chunked(&String::from_utf8_lossy(bytes));
    assert!(http::decode_chunked(bytes).len() <= bytes.len(), "more comes out of chunks than went in");
    let mut chunks = Vec::new();
    for chunk in bytes.chunks(7) {
        chunks.extend(format!("{:x};x=y\r\n", chunk.len()).into_bytes());
        chunks.extend(chunk);
        chunks.extend(b"\r\n");
    }
    chunks.extend(b"0\r\n\r\n");
    assert_eq!(http::decode_chunked(&chunks), bytes);
}
