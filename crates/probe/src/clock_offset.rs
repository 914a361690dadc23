//! Compares the clocks of prober and responder with UDP datagrams, like NTP (RFC 5905). A TCP
//! splitter does not touch UDP.

use crate::{clock::now, error::ProbeError, sys};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

/// Number of exchanges, and size of a datagram in bytes.
const EXCHANGES: u32 = 12;
const DATAGRAM: usize = 40;

/// How far the responder's clock is ahead, and the round trip of datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ClockOffset {
    /// The offset, s.
    pub offset_s: f64,
    /// Half the width of the interval that contains the offset, s, however asymmetric the path is.
    pub error_s: f64,
    /// Shortest round trip, s.
    pub round_trip_s: f64,
    /// Number of exchanges.
    pub exchanges: u32,
}

/// Estimates the offset from four times per exchange, ns: sent here, received there, sent there,
/// received here (RFC 5905). The result satisfies every exchange.
pub(crate) fn estimate(exchanges: &[[i64; 4]]) -> Option<ClockOffset> {
    let seconds = |span: i64| span as f64 / 1e9;
    let least = |of: fn(&[i64; 4]) -> i64| exchanges.iter().map(of).min();
    // No packet arrives before it was sent. The offset is therefore at most each outbound transit
    // and at least minus each return transit, as the clocks show them. The peer's times are
    // untrusted: subtract with saturation.
    let (most, back) = (seconds(least(|at| at[1].saturating_sub(at[0]))?), seconds(least(|at| at[3].saturating_sub(at[2]))?));
    let round_trip_s = seconds(least(|at| at[3].saturating_sub(at[0]).saturating_sub(at[2].saturating_sub(at[1])))?);
    // Otherwise a clock was set in between.
    (most + back >= 0.0).then(|| ClockOffset {
        offset_s: (most - back) / 2.0,
        error_s: (most + back) / 2.0,
        round_trip_s,
        exchanges: exchanges.len() as u32,
    })
}

/// The prefix that authenticates datagrams. `None` if the key is too short.
pub(crate) fn datagram_key(key: &str) -> Option<&[u8; 16]> {
    key.as_bytes().first_chunk()
}

/// Exchanges datagrams with the responder. Returns four times per exchange, as [`estimate`] takes
/// them.
///
/// # Errors
/// The socket cannot be opened or connected.
pub(crate) fn exchange(to: SocketAddr, key: &str) -> Result<Vec<[i64; 4]>, ProbeError> {
    let failed = |why: io::Error| ProbeError::Socket { what: format!("exchange datagrams with the responder at {to}"), why };
    let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP)).map_err(failed)?;
    socket.connect(&to.into()).map_err(failed)?;
    let Some(key) = datagram_key(key) else { return Ok(Vec::new()) };
    let (mut found, begun) = (Vec::new(), Instant::now());
    // Wait for three times as long as the last exchange took.
    let mut patience = Duration::from_secs(1);
    for _ in 0..EXCHANGES {
        let mut datagram = [0; DATAGRAM];
        datagram[..16].copy_from_slice(key);
        let sent = now();
        datagram[16..24].copy_from_slice(&sent.to_be_bytes());
        if socket.send(&datagram).is_err() {
            continue;
        }
        let (asked, mut answer) = (Instant::now(), [0; DATAGRAM]);
        while asked.elapsed() < patience {
            match sys::receive(&socket, &mut answer, false) {
                Ok(got) if got.length == DATAGRAM && answer[16..24] == sent.to_be_bytes() => {
                    let time = |at: usize| i64::from_be_bytes(answer[at..at + 8].try_into().expect("eight bytes"));
                    found.push([sent, time(24), time(32), now()]);
                    patience = (asked.elapsed() * 3).max(Duration::from_millis(100));
                    break;
                }
                _ => thread::sleep(Duration::from_micros(100)),
            }
        }
        if begun.elapsed() > Duration::from_secs(8) {
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(found)
}

/// Answers datagrams that begin with the key until `over`. Each answer is as large as its request,
/// so that nothing is amplified.
pub(crate) fn answer_datagrams(socket: &UdpSocket, key: &str, over: &AtomicBool) {
    let mut datagram = [0; DATAGRAM + 1];
    let _ = socket.set_read_timeout(Some(Duration::from_millis(50)));
    while !over.load(Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut datagram) else { continue };
        let received = now();
        if length != DATAGRAM || datagram_key(key).is_none_or(|key| datagram[..16] != *key) {
            continue;
        }
        datagram[24..32].copy_from_slice(&received.to_be_bytes());
        datagram[32..40].copy_from_slice(&now().to_be_bytes());
        let _ = socket.send_to(&datagram[..DATAGRAM], from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The offset is within its bound, whatever the transit times.
        #[test]
        fn the_offset_is_within_its_bound(ahead in -5_000_000_000i64..5_000_000_000, ways in prop::collection::vec((1i64..400_000_000, 1i64..400_000_000), 1..20)) {
            let exchange = |(index, (there, back)): (usize, &(i64, i64))| {
                let sent = index as i64 * 1_000_000_000;
                let received = sent + there + ahead;
                [sent, received, received + 50_000, sent + there + 50_000 + back]
            };
            let found = estimate(&ways.iter().enumerate().map(exchange).collect::<Vec<_>>()).unwrap();
            let wrong = (found.offset_s - ahead as f64 / 1e9).abs();
            prop_assert!(wrong <= found.error_s + 1e-9, "{found:?}");
            let least = ways.iter().map(|(there, back)| there + back).min().unwrap() as f64 / 1e9;
            prop_assert!((found.round_trip_s - least).abs() < 1e-6 && found.error_s <= least / 2.0 + 1e-6, "{found:?}");
        }
    }

    #[test]
    fn a_clock_set_in_between_gives_no_offset() {
        assert_eq!(estimate(&[[0, 10, 10, 20], [100, 50, 50, 120]]).map(|found| found.exchanges), None);
        assert_eq!(estimate(&[]), None);
    }
}
