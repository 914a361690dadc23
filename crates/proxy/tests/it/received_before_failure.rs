//! What was received before a leg fails reaches the peer of the other leg, as over a direct
//! connection; then that leg is reset.

use crate::common::{ForwardBench, PATIENCE, abort, fill, kind, payload, read_out, wait_until, write_until_error};
use intercept::sys;
use proxy::Ending;
use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    thread,
    time::{Duration, Instant},
};
use units::Bytes;

/// From less than a segment to more than any test sends; none: unlimited.
const BUFFERS: [Option<Bytes>; 5] = [Some(Bytes(6_000)), Some(Bytes(64 << 10)), Some(Bytes(1 << 20)), Some(Bytes(16 << 20)), None];

type Ends = (TcpStream, TcpStream);

/// Which end fails.
const FAILING: [&str; 2] = ["the client fails", "the server fails"];

/// The ends in the order: the one that fails, the other.
fn ordered(failing: &str, (client, server): Ends) -> Ends {
    if failing == FAILING[0] { (client, server) } else { (server, client) }
}

/// A server answers before it has read a request, and closes: its kernel sends a reset, since bytes
/// are unread.
#[test]
fn an_early_answer_reaches_a_client_that_still_sends() {
    let answer = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbig\n";
    for buffer in BUFFERS {
        let bench = ForwardBench::new(buffer);
        for (round, size) in [100_000, 3_000_000].into_iter().cycle().take(12).enumerate() {
            let (mut client, mut server) = bench.connect();
            let answering = thread::spawn(move || {
                server.read_exact(&mut [0; 20_000]).unwrap();
                server.write_all(answer).unwrap();
                wait_until(|| sys::received(&server) > 0);
            });
            // The reset may arrive before all is written, and is reported only once.
            let written = kind(client.write_all(&payload(size)));
            let mut received = Vec::new();
            let read = kind(client.read_to_end(&mut received));
            assert!(received == answer, "{buffer:?}, round {round}: {} bytes, then {read:?}", received.len());
            assert!(written.is_err() || read == Err(ErrorKind::ConnectionReset), "{buffer:?}, round {round}: {read:?}");
            answering.join().unwrap();
            assert!(matches!(bench.ending(), Ending::FarFailed(_)));
        }
    }
}

/// An end sends as much as the proxy acknowledges and aborts, before the other end reads.
#[test]
fn bytes_that_the_proxy_has_acknowledged_are_delivered_before_a_reset() {
    for buffer in BUFFERS {
        let bytes = payload(buffer.map_or(3_000_000, |bytes| (bytes.0 as usize / 2).min(3_000_000)));
        let bench = ForwardBench::new(buffer);
        for which in FAILING {
            let (mut aborter, mut other) = ordered(which, bench.connect());
            aborter.write_all(&bytes).unwrap();
            wait_until(|| sys::unacknowledged(&aborter).unwrap() == 0);
            abort(aborter);
            let mut received = Vec::new();
            let read = kind(other.read_to_end(&mut received));
            assert!(received == bytes, "{buffer:?}, {which}: {} of {} bytes, then {read:?}", received.len(), bytes.len());
            assert_eq!(read, Err(ErrorKind::ConnectionReset), "{buffer:?}, {which}");
            bench.ending();
        }
    }
}

/// As by a server that closes and then gets more of the request: the FIN arrives before the reset,
/// and is passed on before it.
#[test]
fn a_fin_that_arrived_before_a_reset_is_delivered_too() {
    for buffer in BUFFERS {
        let bytes = payload(buffer.map_or(1_000_000, |bytes| (bytes.0 as usize / 2).min(1_000_000)));
        let bench = ForwardBench::new(buffer);
        for which in FAILING {
            let (mut aborter, mut other) = ordered(which, bench.connect());
            other.write_all(b"unread").unwrap();
            wait_until(|| sys::received(&aborter) > 0);
            aborter.write_all(&bytes).unwrap();
            aborter.shutdown(Shutdown::Write).unwrap();
            wait_until(|| sys::unacknowledged(&aborter).unwrap() == 0);
            drop(aborter);
            let read = read_out(&other);
            assert!(read.as_ref().is_ok_and(|received| *received == bytes), "{buffer:?}, {which}: {:?}", read.map(|bytes| bytes.len()));
            let why = write_until_error(&other);
            assert!(matches!(why, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{buffer:?}, {which}: {why}");
            bench.ending();
        }
    }
}

/// The other end writes and does not read: its window closes, and it would wait for ever. It reads
/// what its kernel has taken, as over a direct connection.
#[test]
fn an_end_that_only_writes_is_reset_soon() {
    for which in FAILING {
        let bench = ForwardBench::new(Some(Bytes(64 << 10)));
        let (aborter, other) = ordered(which, bench.connect());
        fill(&aborter, 64 << 20);
        fill(&other, 64 << 20);
        let begun = Instant::now();
        abort(aborter);
        other.set_write_timeout(Some(PATIENCE)).unwrap();
        let why = write_until_error(&other);
        assert!(matches!(why, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{which}: {why}");
        assert!(begun.elapsed() < PATIENCE, "{which}: {:?}", begun.elapsed());
        bench.ending();
    }
}

/// An end that reads slowly is waited for as long as it reads.
#[test]
fn a_slow_reader_gets_everything_before_the_reset() {
    let bytes = payload(2_000_000);
    let bench = ForwardBench::new(Some(Bytes(4 << 20)));
    let (mut client, mut server) = bench.connect();
    server.write_all(&bytes).unwrap();
    wait_until(|| sys::unacknowledged(&server).unwrap() == 0);
    abort(server);
    let mut received = Vec::new();
    let mut part = vec![0; 100_000];
    let ended = loop {
        thread::sleep(Duration::from_millis(50));
        match client.read(&mut part) {
            Ok(0) => break Ok(()),
            Ok(count) => received.extend_from_slice(&part[..count]),
            Err(why) => break Err(why.kind()),
        }
    };
    assert!(received == bytes, "{} of {} bytes", received.len(), bytes.len());
    assert_eq!(ended, Err(ErrorKind::ConnectionReset));
    assert!(matches!(bench.ending(), Ending::FarFailed(_)));
}
