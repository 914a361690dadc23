//! Many connections during several restarts.

use super::{Successor, restart};
use crate::common::{
    routed::{CLIENT, Routed, SERVER},
    skip, wait_until,
};
use std::{
    io::{Read as _, Write as _},
    net::Shutdown,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
};

/// Sends `length` bytes and reads them back; returns how many came back right.
fn exchange(routed: &Routed, server: &str, length: usize) -> std::io::Result<usize> {
    let mut stream = routed.connect(server, 80)?;
    let byte = |at: usize| (at % 251) as u8;
    let sent: Vec<u8> = (0..length).map(byte).collect();
    let mut writer = stream.try_clone()?;
    let back = thread::scope(|scope| {
        let writing = scope.spawn(move || writer.write_all(&sent).and_then(|()| writer.shutdown(Shutdown::Write)));
        let mut back = Vec::new();
        let read = stream.read_to_end(&mut back);
        writing.join().unwrap()?;
        read.map(|_| back)
    })?;
    Ok(back.iter().enumerate().filter(|(at, found)| **found == byte(*at)).count())
}

#[test]
fn no_connection_fails_or_passes_unsplit_during_restarts() {
    if skip("no_connection_fails_or_passes_unsplit_during_restarts", &["nft", "ip"]) {
        return;
    }
    const RESTARTS: usize = 6;
    let routed = Routed::new();
    routed.echo(80);
    let first = routed.proxy(&["--threads", "2"]);
    let (ended, connections, restarted) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let last = thread::scope(|scope| {
        let _end = EndOnDrop(&ended);
        for number in 0..4 {
            let (routed, ended, connections) = (&routed, &ended, &connections);
            scope.spawn(move || {
                while !ended.load(Relaxed) {
                    let back = exchange(routed, SERVER[number % 2], 2000);
                    assert_eq!(back.unwrap(), 2000, "a connection from {}", CLIENT[number % 2]);
                    connections.fetch_add(1, Relaxed);
                }
            });
        }
        // Long transfers, each of which lasts over at least one restart.
        for server in SERVER {
            let (routed, ended, connections, restarted) = (&routed, &ended, &connections, &restarted);
            scope.spawn(move || {
                while !ended.load(Relaxed) {
                    let (mut stream, begun) = (routed.connect(server, 80).unwrap(), restarted.load(Relaxed));
                    let (mut sent, mut block) = (0u64, [0; 8192]);
                    while !ended.load(Relaxed) && restarted.load(Relaxed) <= begun + 1 {
                        let number = (sent % 251) as u8;
                        stream.write_all(&[number; 8192]).unwrap();
                        stream.read_exact(&mut block).unwrap();
                        assert!(block.iter().all(|byte| *byte == number));
                        sent += 8192;
                    }
                    stream.shutdown(Shutdown::Write).unwrap();
                    assert_eq!(stream.read(&mut block).unwrap(), 0, "it ends cleanly after {sent} bytes");
                    connections.fetch_add(1, Relaxed);
                }
            });
        }
        let mut last: Option<Successor> = None;
        for _ in 0..RESTARTS {
            let before = connections.load(Relaxed);
            wait_until("connections are made", || connections.load(Relaxed) > before + 100);
            let (next, _) = restart(&routed);
            restarted.fetch_add(1, Relaxed);
            // It ends by itself.
            std::mem::forget(last.replace(next));
        }
        last.unwrap()
    });
    drop(first);
    let made = connections.load(Relaxed);
    wait_until("all are counted", || routed.status().totals.ended_as("finished") == made);
    let status = routed.status();
    assert_eq!(status.totals.ended.iter().sum::<u64>(), made, "none has failed: {:?}", status.totals);
    assert_eq!(routed.verdicts(), (made, 0, 0));
    assert!(!routed.log().contains("ERROR"), "{}", routed.log());
    last.stop();
}

/// Ends the clients, also when the test fails.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
