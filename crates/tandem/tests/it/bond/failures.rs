//! Failures of networks, connections and ends of a bond.

use crate::{
    bond::bench::{Bench, bytes, echo, nft, pair, pipes, read_all},
    common::{skip, wait_until},
};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Returns the local ports of the near host's connections to the other end, and the bytes that each
/// has sent.
fn connections(bench: &Bench) -> Vec<(String, u64)> {
    let output = bench.near.command("ss").args(["-tinHO", "dport", "=", ":7000"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let of = |line: &str| {
        let port = line.split_whitespace().nth(3)?.rsplit(':').next()?.to_owned();
        let sent = line.split_whitespace().find_map(|word| word.strip_prefix("bytes_sent:"))?.parse().ok()?;
        Some((port, sent))
    };
    text.lines().filter_map(of).collect()
}

#[test]
fn a_refused_bond_connection_is_logged_and_retried() {
    if skip("a_refused_bond_connection_is_logged_and_retried", &["ss"]) {
        return;
    }
    let mut bench = Bench::hosts();
    bench.connect(&["--listen", "forward=127.0.0.1:4000=127.0.0.1:8000"], &[]);
    // Before the time limit of a handshake.
    wait_until("the refusal is logged", || bench.log("connect.log").contains("Connection refused"));
    bench.serve(&[]);
    let bench = bench.whole();
    bench.server(echo);
    let mut client = bench.call();
    client.write_all(b"hello").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut client).unwrap(), b"hello");
    assert!(!bench.log("connect.log").contains("timed out"), "{}", bench.log("connect.log"));
}

#[test]
fn an_idle_bond_connection_that_is_reset_is_replaced() {
    if skip("an_idle_bond_connection_that_is_reset_is_replaced", &["ss"]) {
        return;
    }
    let bench = Bench::new(&["--network", "n1,to=10.0.1.2:7000"], &[]);
    wait_until("the bond has its network", || bench.log("connect.log").contains("network n1 of the bond is up"));
    let (mut client, mut server) = pair(&bench);
    client.write_all(&bytes(50_000)).unwrap();
    server.read_exact(&mut [0; 50_000]).unwrap();
    let carries = || connections(&bench).into_iter().find(|(_, sent)| *sent > 50_000).map(|(port, _)| port);
    wait_until("spare connections are ready", || connections(&bench).len() >= 3);
    let port = carries().unwrap();
    // No data are in flight, and no timer of the stream is due.
    thread::sleep(Duration::from_secs(3));
    let killed = bench.near.command("ss").args(["-KtnH", "sport", "=", &format!(":{port}")]).output().unwrap();
    thread::sleep(Duration::from_millis(200));
    if connections(&bench).iter().any(|(there, _)| *there == port) {
        return testing::skipped("an_idle_bond_connection_that_is_reset_is_replaced", &format!("ss -K ends no connection: {killed:?}"));
    }
    // The other end waits for five seconds, and gives the stream up then.
    thread::sleep(Duration::from_secs(7));
    server.write_all(b"still here").unwrap();
    let mut heard = [0; 10];
    client.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"still here");
}

/// Downloads while `happens` runs; returns the longest time without data.
fn download_while(bench: &Bench, count: usize, happens: impl FnOnce(&Bench) + Send) -> Duration {
    let data = Arc::new(bytes(count));
    let served = data.clone();
    bench.server(move |mut stream| stream.write_all(&served).unwrap());
    let mut client = bench.call();
    let mut first = vec![0; 1];
    client.read_exact(&mut first).unwrap();
    thread::scope(|scope| {
        let reading = scope.spawn(move || {
            let (mut all, mut longest, mut last) = (first, Duration::ZERO, Instant::now());
            let mut part = vec![0; 1 << 16];
            loop {
                let read = client.read(&mut part).unwrap();
                longest = longest.max(last.elapsed());
                last = Instant::now();
                if read == 0 {
                    return (all, longest);
                }
                all.extend_from_slice(&part[..read]);
            }
        });
        happens(bench);
        let (all, longest) = reading.join().unwrap();
        assert!(all == *data, "{} bytes came", all.len());
        longest
    })
}

/// Longest allowed stall after a network with an RTT of a few ms fails: two retransmission timeouts
/// of 200 ms with backoff, and a margin for a slow machine.
const STALL: Duration = Duration::from_secs(5);

#[test]
fn a_download_continues_when_a_network_fails() {
    if skip("a_download_continues_when_a_network_fails", &["ss", "tc", "nft"]) {
        return;
    }
    let down = |bench: &Bench| {
        thread::sleep(Duration::from_millis(500));
        bench.near.ip(&["link set n1 down".into()]).unwrap();
    };
    let hole = |bench: &Bench| {
        thread::sleep(Duration::from_millis(500));
        bench.lose(2, "");
    };
    let nearly = |bench: &Bench| {
        thread::sleep(Duration::from_millis(500));
        // The kernel increments the IP identification of a connection with each packet.
        bench.lose(1, "ip id & 0xf != 0");
    };
    let slower = |bench: &Bench| {
        for rate in ["4mbit", "40mbit", "1mbit"] {
            thread::sleep(Duration::from_millis(400));
            bench.shape(1, rate);
        }
    };
    type Happens<'a> = &'a (dyn Fn(&Bench) + Sync);
    let cases: [(&str, Happens<'_>); 4] = [("cut", &down), ("black hole", &hole), ("94 % loss", &nearly), ("other rates", &slower)];
    for (what, happens) in cases {
        let bench = Bench::new(&[], &[]).whole();
        (1..=2).for_each(|network| bench.shape(network, "40mbit"));
        let stall = download_while(&bench, 15_000_000, happens);
        println!("{what}: nothing for {stall:?} at the longest");
        assert!(stall < STALL, "{what}: nothing for {stall:?}");
    }
}

#[test]
fn zero_copy_data_is_reinjected_when_a_network_goes_silent() {
    if skip("zero_copy_data_is_reinjected_when_a_network_goes_silent", &["ss", "nft"]) {
        return;
    }
    // At full speed, in both directions.
    let bench = Bench::new(&[], &[]).whole();
    bench.server(|stream| {
        let _ = io::copy(&mut &stream, &mut &stream);
        let _ = stream.shutdown(Shutdown::Write);
    });
    let (client, block, enough) = (bench.call(), bytes(1_000_003), AtomicBool::new(false));
    thread::scope(|scope| {
        let said = scope.spawn(|| {
            let mut blocks = 0;
            while !enough.load(Ordering::Relaxed) {
                (&client).write_all(&block).unwrap();
                blocks += 1;
            }
            client.shutdown(Shutdown::Write).unwrap();
            blocks * block.len()
        });
        let heard = scope.spawn(|| {
            let (mut all, mut part) = (0, vec![0; block.len()]);
            loop {
                let expected = &block[all % block.len()..];
                let read = (&client).read(&mut part[..expected.len()]).unwrap();
                if read == 0 {
                    return all;
                }
                assert!(part[..read] == expected[..read], "data differ from offset {all} on");
                all += read;
            }
        });
        for daemon in &bench.daemons {
            wait_until("bytes are in pipes", || pipes(daemon.0.id()) > 4);
        }
        for network in [1, 2, 1] {
            bench.lose(network, "");
            wait_until("the network is silent", || {
                let path = &bench.flows()[0]["bond"]["paths"][network as usize - 1];
                path["up"] == false || path["stalled"] == true
            });
            bench.heal();
            wait_until("the network carries again", || {
                let path = &bench.flows()[0]["bond"]["paths"][network as usize - 1];
                path["up"] == true && path["stalled"] == false
            });
        }
        enough.store(true, Ordering::Relaxed);
        let (said, heard) = (said.join().unwrap(), heard.join().unwrap());
        println!("{} MB each way", said / 1_000_000);
        assert_eq!(said, heard);
    });
}

#[test]
fn a_recovered_network_is_used_again() {
    if skip("a_recovered_network_is_used_again", &["ss", "tc", "nft"]) {
        return;
    }
    let bench = Bench::new(&[], &[]).whole();
    (1..=2).for_each(|network| bench.shape(network, "20mbit"));
    let received = |bench: &Bench| bench.flows()[0]["bond"]["paths"][0]["received_bytes"].as_u64().unwrap_or(0);
    let stall = download_while(&bench, 60_000_000, |bench| {
        thread::sleep(Duration::from_millis(500));
        bench.lose(1, "");
        thread::sleep(Duration::from_secs(3));
        let before = received(bench);
        bench.heal();
        wait_until("the first network carries again", || received(bench) > before + 500_000);
    });
    println!("nothing for {stall:?} at the longest");
    assert!(stall < STALL, "nothing for {stall:?}");
}

#[test]
fn a_silent_network_without_unacknowledged_data_is_dropped() {
    if skip("a_silent_network_without_unacknowledged_data_is_dropped", &["ss", "tc", "nft"]) {
        return;
    }
    let bench = Bench::new(&[], &[]).whole();
    (1..=2).for_each(|network| bench.shape(network, "20mbit"));
    bench.server(|mut stream| {
        let mut part = vec![0; 400_000];
        while stream.read_exact(&mut part).is_ok() && stream.write_all(&part).is_ok() {}
    });
    let (mut stream, said, mut heard) = (bench.call(), bytes(400_000), vec![0; 400_000]);
    let mut talk = |stream: &mut TcpStream| {
        stream.write_all(&said).unwrap();
        stream.read_exact(&mut heard).unwrap();
        assert!(said == heard);
    };
    talk(&mut stream);
    bench.lose(1, "");
    // The data of the first network are reinjected on the second, so that everything is
    // acknowledged while the first is silent.
    talk(&mut stream);
    wait_until("the silent network is dropped", || {
        let paths = &bench.flows()[0]["bond"]["paths"];
        paths[0]["up"] == false || paths[0]["stalled"] == true
    });
    talk(&mut stream);
    talk(&mut bench.call());
}

#[test]
fn a_stream_survives_a_short_outage_of_all_networks() {
    if skip("a_stream_survives_a_short_outage_of_all_networks", &["ss", "tc", "nft"]) {
        return;
    }
    let bench = Bench::new(&[], &[]).whole();
    (1..=2).for_each(|network| bench.shape(network, "20mbit"));
    download_while(&bench, 10_000_000, |bench| {
        thread::sleep(Duration::from_millis(500));
        for host in [&bench.near, &bench.far] {
            nft(host, "table inet hole { chain in { type filter hook input priority 0; iifname \"n*\" drop; }; }");
        }
        thread::sleep(Duration::from_secs(4));
        bench.heal();
    });
}

#[test]
fn a_network_that_comes_up_later_is_used() {
    if skip("a_network_that_comes_up_later_is_used", &["ss", "tc"]) {
        return;
    }
    let mut bench = Bench::hosts();
    bench.near.ip(&["link set n2 down".into()]).unwrap();
    bench.serve(&[]);
    bench.connect(&["--listen", "forward=127.0.0.1:4000=127.0.0.1:8000"], &[]);
    wait_until("the bond has the first network", || bench.log("connect.log").contains("network n1 of the bond is up"));
    bench.shape(1, "10mbit");
    download_while(&bench, 20_000_000, |bench| {
        thread::sleep(Duration::from_millis(300));
        bench.near.ip(&["link set n2 up".into()]).unwrap();
        wait_until("the second network carries", || {
            let flows = bench.flows();
            let paths = flows[0]["bond"]["paths"].as_array().cloned().unwrap_or_default();
            flows.as_array().unwrap().is_empty()
                || paths.iter().any(|path| path["network"] == "n2" && path["received_bytes"].as_u64() > Some(500_000))
        });
    });
    assert!(bench.log("connect.log").contains("network n2 of the bond is up"), "{}", bench.log("connect.log"));
}

#[test]
fn a_killed_end_of_a_bond_causes_resets_and_no_clean_close() {
    if skip("a_killed_end_of_a_bond_causes_resets_and_no_clean_close", &["ss"]) {
        return;
    }
    for killed in 0..2 {
        let mut bench = Bench::new(&["--outage", "2s"], &["--outage", "2s"]).whole();
        let (mut client, mut server) = pair(&bench);
        client.write_all(b"hello").unwrap();
        server.read_exact(&mut [0; 5]).unwrap();
        bench.daemons.remove(killed);
        for end in [&mut client, &mut server] {
            let ended = end.read(&mut [0]).map_err(|why| why.kind());
            assert_eq!(ended.unwrap_err(), ErrorKind::ConnectionReset, "{killed}");
        }
    }
}

#[test]
fn a_stopped_accepting_end_is_started_again_while_its_last_stream_lives() {
    if skip("a_stopped_accepting_end_is_started_again_while_its_last_stream_lives", &["ss"]) {
        return;
    }
    let bench = Bench::new(&[], &[]).whole();
    bench.server(|mut stream| {
        let mut word = [0; 5];
        while stream.read_exact(&mut word).is_ok() && stream.write_all(&word).is_ok() {}
    });
    let talk = |stream: &mut TcpStream| {
        stream.write_all(b"hello").unwrap();
        let mut heard = [0; 5];
        stream.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"hello");
    };
    let mut old = bench.call();
    talk(&mut old);
    bench.daemons[0].signal("TERM");
    wait_until("the first end waits for its streams", || bench.log("serve.log").contains("no new connections are accepted"));
    wait_until("its listener is closed", || {
        let listed = bench.far.command("ss").args(["-Hltn", "sport = :7000"]).output().unwrap();
        listed.stdout.is_empty()
    });
    let mut bench = bench;
    bench.serve(&[]);
    wait_until("the second end is reached", || bench.log("connect.log").contains("of the bond is up again"));
    talk(&mut bench.call());
    talk(&mut old);
    assert!(!bench.log("serve.log").contains("cannot listen"), "{}", bench.log("serve.log"));
}
