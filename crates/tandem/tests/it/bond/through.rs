//! Data transfer through a bond: both directions, closing, addresses and names.

use crate::{
    bond::bench::{Bench, PATIENCE, SERVER, bytes, echo, pair, pipes, read_all, socks},
    common::{Daemon, TANDEM, skip, wait_for_listener, wait_until},
};
use lab::Host;
use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::mpsc,
    thread,
    time::Duration,
};

#[test]
fn data_arrive_unchanged_in_both_directions() {
    if skip("data_arrive_unchanged_in_both_directions", &["ss"]) {
        return;
    }
    for more in [&[][..], &["--tls"], &["--scheduler", "round-robin"], &["--scheduler", "redundant"], &["--scheduler", "single"]] {
        let bench = Bench::new(more, more).whole();
        bench.server(echo);
        for count in [0, 1, 1000, 100_000, 10_000_000] {
            let sent = bytes(count);
            let mut stream = bench.call();
            let mut writer = stream.try_clone().unwrap();
            let said = sent.clone();
            let writing = thread::spawn(move || {
                writer.write_all(&said).unwrap();
                writer.shutdown(Shutdown::Write).unwrap();
            });
            let heard = read_all(&mut stream).unwrap();
            writing.join().unwrap();
            assert!(heard == sent, "{more:?}: {count} bytes");
        }
        wait_until("nothing is left", || bench.flows().as_array().unwrap().is_empty());
    }
}

#[test]
fn urgent_data_are_delivered_in_line() {
    if skip("urgent_data_are_delivered_in_line", &["ss"]) {
        return;
    }
    let bench = Bench::new(&[], &[]).whole();
    bench.server(|mut stream| {
        let mut word = [0; 4];
        while stream.read_exact(&mut word).is_ok() && stream.write_all(&word).is_ok() {}
    });
    let mut stream = bench.call();
    // Both parts have often arrived before the first read.
    for _ in 0..200 {
        stream.write_all(b"abc").unwrap();
        socket2::SockRef::from(&stream).send_out_of_band(b"!").unwrap();
        let mut word = [0; 4];
        stream.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"abc!");
    }
}

#[test]
fn a_stalled_stream_releases_its_pipes_and_loses_nothing() {
    if skip("a_stalled_stream_releases_its_pipes_and_loses_nothing", &["ss"]) {
        return;
    }
    let bench = Bench::new(&[], &[]).whole();
    let block = bytes(1_000_003);
    let sent = block.clone();
    bench.server(move |mut stream| while stream.write_all(&sent).is_ok() {});
    let before: Vec<usize> = bench.daemons.iter().map(|daemon| pipes(daemon.0.id())).collect();
    let mut stream = bench.call();
    let (mut all, mut part) = (0, vec![0; block.len()]);
    let mut read_until = |done: &dyn Fn(usize) -> bool| {
        while !done(all) {
            let expected = &block[all % block.len()..];
            let count = stream.read(&mut part[..expected.len()]).unwrap();
            assert!(count > 0 && part[..count] == expected[..count], "data differ from offset {all} on");
            all += count;
        }
        all
    };
    for _ in 0..2 {
        let most = |all: usize| bench.daemons.iter().zip(&before).all(|(daemon, before)| pipes(daemon.0.id()) > before + 2) && all > 0;
        let there = read_until(&|all| all % (50 * 65536) < 65536 && most(all));
        // The server stops reading.
        wait_until("no pipes are kept", || bench.daemons.iter().zip(&before).all(|(daemon, before)| pipes(daemon.0.id()) <= *before));
        read_until(&|all| all > there + 100_000_000);
    }
}

#[test]
fn an_exchange_uses_both_networks_and_flows_shows_them() {
    if skip("an_exchange_uses_both_networks_and_flows_shows_them", &["ss"]) {
        return;
    }
    let bench = Bench::new(&[], &[]).whole();
    bench.server(|mut stream| {
        let mut word = [0; 100];
        while stream.read_exact(&mut word).is_ok() && stream.write_all(&word).is_ok() {}
    });
    let mut stream = bench.call();
    for turn in 0..200u8 {
        let mut word = [0; 100];
        stream.write_all(&[turn; 100]).unwrap();
        stream.read_exact(&mut word).unwrap();
        assert_eq!(word, [turn; 100]);
    }
    let flows = bench.flows();
    let paths = flows[0]["bond"]["paths"].as_array().unwrap();
    assert_eq!(paths.iter().map(|path| path["network"].as_str().unwrap()).collect::<Vec<_>>(), ["n1", "n2"], "{flows}");
    let sum = |key: &str| paths.iter().map(|path| path[key].as_u64().unwrap()).sum::<u64>();
    assert!(sum("sent_bytes") >= 20_000 && sum("received_bytes") >= 20_000, "{flows}");
    assert!(paths.iter().all(|path| path["up"] == true && path["score_s"].as_f64().is_some()), "{flows}");
    assert_eq!(flows[0]["server"], "127.0.0.1:8000");
}

#[test]
fn half_close_works_in_both_directions() {
    if skip("half_close_works_in_both_directions", &["ss"]) {
        return;
    }
    let bench = Bench::new(&[], &[]).whole();
    let (mut client, mut server) = pair(&bench);
    client.write_all(b"all").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut server).unwrap(), b"all");
    server.write_all(b"still here").unwrap();
    let mut heard = [0; 10];
    client.read_exact(&mut heard).unwrap();
    server.shutdown(Shutdown::Write).unwrap();
    assert_eq!((&heard, client.read(&mut [0]).unwrap()), (b"still here", 0));
}

#[test]
fn simultaneous_close_delivers_both_directions() {
    if skip("simultaneous_close_delivers_both_directions", &["ss"]) {
        return;
    }
    let bench = Bench::new(&[], &[]).whole();
    bench.server(|mut stream| {
        stream.write_all(&bytes(300_000)).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&mut stream).unwrap().len(), 200_000);
    });
    for _ in 0..20 {
        let mut client = bench.call();
        client.write_all(&bytes(200_000)).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&mut client).unwrap().len(), 300_000);
    }
    wait_until("nothing is left", || bench.flows().as_array().unwrap().is_empty());
}

#[test]
fn a_clean_close_means_delivered_and_resets_are_passed_on() {
    if skip("a_clean_close_means_delivered_and_resets_are_passed_on", &["ss"]) {
        return;
    }
    let bench = Bench::new(&[], &["127.0.0.0/8", "10.0.1.2", "10.0.2.2"].map(|prefix| ["--allow", prefix]).concat()).whole();
    let reset = |mut stream: TcpStream| {
        stream.read_exact(&mut [0; 10]).unwrap();
        // Closing with unread data causes a reset.
        thread::sleep(Duration::from_millis(200));
    };
    bench.server(reset);
    let mut client = bench.call();
    client.write_all(&bytes(100_000)).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let ended = client.read(&mut [0]);
    assert_eq!(ended.map_err(|why| why.kind()).unwrap_err(), ErrorKind::ConnectionReset);
    // A reset by the client reaches the server.
    let (tell, told) = mpsc::channel();
    bench.server_at(Ipv4Addr::new(10, 0, 1, 2).into(), move |mut stream| {
        tell.send(stream.read(&mut [0; 100]).map_err(|why| why.kind())).unwrap();
    });
    let mut client = socks(&bench, &[&[1][..], &[10, 0, 1, 2]].concat()).unwrap();
    client.write_all(b"x").unwrap();
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Ok(1));
    drop(client);
    let (tell, told) = mpsc::channel();
    bench.server_at(Ipv4Addr::new(10, 0, 2, 2).into(), move |mut stream| {
        tell.send(stream.read(&mut [0; 100]).map_err(|why| why.kind())).unwrap();
    });
    let client = socks(&bench, &[&[1][..], &[10, 0, 2, 2]].concat()).unwrap();
    socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Err(ErrorKind::ConnectionReset));
}

/// What was received before a reset arrives first, whichever end sends it.
#[test]
fn bytes_received_before_a_reset_are_delivered() {
    if skip("bytes_received_before_a_reset_are_delivered", &["ss"]) {
        return;
    }
    for more in [&[][..], &["--tls"]] {
        let bench = Bench::new(more, more).whole();
        let (tell, told) = mpsc::channel();
        // A server that answers early and closes with unread bytes, so that its kernel sends a
        // reset; or, if it reads nothing before the reset, one that notes what it has received.
        bench.server(move |mut stream| {
            let mut word = [0; 4];
            stream.read_exact(&mut word).unwrap();
            if &word == b"push" {
                let mut received = Vec::new();
                let ended = stream.read_to_end(&mut received).map_err(|why| why.kind());
                return tell.send((received, ended)).unwrap();
            }
            let count = u32::from_be_bytes(word) as usize;
            stream.write_all(&bytes(count)).unwrap();
            wait_until("the server's bytes are acknowledged", || intercept::sys::unacknowledged(&stream).unwrap() == 0);
            wait_until("the upload arrives", || intercept::sys::received(&stream) > 0);
        });
        for count in [10, 1000, 300_000].into_iter().cycle().take(9) {
            let mut client = bench.call();
            client.write_all(&(count as u32).to_be_bytes()).unwrap();
            // The reset may arrive before all is written.
            let _ = client.write_all(&bytes(100_000));
            let mut received = Vec::new();
            let _ = client.read_to_end(&mut received);
            assert!(received == bytes(count), "{more:?}: {} of {count} bytes", received.len());
        }
        for count in [10, 300_000] {
            let mut client = bench.call();
            client.write_all(b"push").unwrap();
            client.write_all(&bytes(count)).unwrap();
            wait_until("the client's bytes are acknowledged", || intercept::sys::unacknowledged(&client).unwrap() == 0);
            socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
            drop(client);
            let (received, ended) = told.recv_timeout(PATIENCE).unwrap();
            assert!(received == bytes(count), "{more:?}: {} of {count} bytes", received.len());
            assert_eq!(ended, Err(ErrorKind::ConnectionReset), "{more:?}");
        }
        wait_until("nothing is left", || bench.flows().as_array().unwrap().is_empty());
    }
}

#[test]
fn socks_accepts_addresses_and_names_and_reports_errors() {
    if skip("socks_accepts_addresses_and_names_and_reports_errors", &["ss"]) {
        return;
    }
    let allowed = ["10.0.1.2", "127.0.0.0/8", "fd00:1::2", "::1"].map(|prefix| ["--allow", prefix]).concat();
    let bench = Bench::new(&[], &allowed).whole();
    bench.server(echo);
    bench.server_at("fd00:1::2".parse().unwrap(), echo);
    let name = |name: &str| [&[3, name.len() as u8][..], name.as_bytes()].concat();
    let v6 = |text: &str| [&[4][..], &text.parse::<std::net::Ipv6Addr>().unwrap().octets()].concat();
    for address in [vec![1, 127, 0, 0, 1], name("localhost"), v6("fd00:1::2")] {
        let mut stream = socks(&bench, &address).unwrap_or_else(|code| panic!("{address:?}: {code}"));
        stream.write_all(b"hello").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&mut stream).unwrap(), b"hello", "{address:?}");
    }
    // Refused; unknown name; not allowed.
    assert_eq!(socks(&bench, &[1, 10, 0, 1, 2]).unwrap_err(), 5);
    assert_eq!(socks(&bench, &name("nobody.invalid")).unwrap_err(), 4);
    assert_eq!(socks(&bench, &[1, 192, 0, 2, 1]).unwrap_err(), 2);
    // An address of the accepting end, which requires an explicit --allow.
    assert_eq!(socks(&bench, &[1, 10, 0, 2, 2]).unwrap_err(), 2);
}

/// Starts the program with a hosts file: of the two addresses of a name only the second has a
/// listener.
fn with_names(bench: &Bench, host: &Host, log: &str, arguments: &[&str]) -> Daemon {
    fs::write(bench.dir.path().join("hosts"), "::1 both.test\n127.0.0.1 both.test\n").unwrap();
    let mut command = host.command("unshare");
    command.args(["--mount", "sh", "-c", "mount --bind hosts /etc/hosts && exec \"$0\" \"$@\"", TANDEM]).args(arguments);
    Daemon::logging(command.current_dir(bench.dir.path()), &bench.dir.path().join(log))
}

#[test]
fn the_first_address_of_a_name_that_accepts_is_used() {
    if skip("the_first_address_of_a_name_that_accepts_is_used", &["ss", "unshare"]) {
        return;
    }
    let name = [&[3, 9][..], b"both.test"].concat();
    // Over a bond: the refusal by the first address must not end the connection to the second.
    let mut bench = Bench::hosts();
    let serve = ["bond", "serve", "--listen", "[::]:7000", "--key", "bond.key", "--allow", "127.0.0.0/8", "--allow", "::1"];
    bench.daemons.push(with_names(&bench, &bench.far, "serve.log", &serve));
    wait_for_listener(&bench.far, 7000);
    bench.connect(&["--listen", "socks5=127.0.0.1:1080", "--listen", "forward=127.0.0.1:4000=127.0.0.1:8000"], &[]);
    let mut bench = bench.whole();
    bench.server(echo);
    let mut client = socks(&bench, &name).unwrap();
    client.write_all(b"hello").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut client).unwrap(), b"hello");
    // Through a plain proxy, with a response in several parts.
    bench.daemons.clear();
    bench.daemons.push(with_names(
        &bench,
        &bench.near,
        "proxy.log",
        &["proxy", "--listen", "socks5=127.0.0.1:1080,allow=127.0.0.0/8,allow=::1"],
    ));
    wait_for_listener(&bench.near, 1080);
    let listener = bench.near.enter(|| TcpListener::bind((Ipv4Addr::LOCALHOST, SERVER)).unwrap()).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        for part in bytes(50_000).chunks(10_000) {
            stream.write_all(part).unwrap();
            thread::sleep(Duration::from_millis(50));
        }
    });
    let mut client = socks(&bench, &name).unwrap();
    assert!(read_all(&mut client).unwrap() == bytes(50_000));
}

#[test]
fn networks_of_ipv4_and_ipv6_can_be_mixed() {
    if skip("networks_of_ipv4_and_ipv6_can_be_mixed", &["ss"]) {
        return;
    }
    let networks = ["--network", "fd00:1::1,name=n1,to=[fd00:1::2]:7000", "--network", "10.0.2.1,name=n2,to=10.0.2.2:7000"];
    let bench = Bench::new(&networks, &[]).whole();
    bench.server(echo);
    let sent = bytes(1_000_000);
    let mut client = bench.call();
    client.write_all(&sent).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert!(read_all(&mut client).unwrap() == sent);
}
