//! The bond between two hosts with two networks between them: what goes through it, how connections end, networks that fail, and those who do not belong.

mod common;

use common::{Daemon, TANDEM, skip, wait_for_listener, wait_until};
use lab::Host;
use std::{
    fs,
    io::{self, ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    process::Command,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
/// Where the bond takes connections, and where servers listen.
const IN: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 4000);
const SERVER: u16 = 8000;

/// Two hosts, two networks, and a bond over them.
struct Bench {
    near: Host,
    far: Host,
    dir: TempDir,
    daemons: Vec<Daemon>,
}

impl Bench {
    /// Hosts and networks alone: the near one is 10.0.k.1 (fd00:k::1) in network k, the far one 10.0.k.2.
    fn hosts() -> Self {
        let (near, far) = (Host::new("near").unwrap(), Host::new("far").unwrap());
        for k in 1..=2 {
            let of = |end: u8| [format!("10.0.{k}.{end}/24"), format!("fd00:{k}::{end}/64")];
            let (ours, theirs) = (of(1), of(2));
            near.join(&ours.each_ref().map(String::as_str), &far, &theirs.each_ref().map(String::as_str), &format!("n{k}")).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let bench = Bench { near, far, dir, daemons: Vec::new() };
        bench.key("bond.key", "0123456789abcdef0123456789abcdef");
        bench.key("other.key", "0123456789abcdef0123456789abcdeX");
        bench
    }

    fn key(&self, name: &str, secret: &str) {
        let path = self.dir.path().join(name);
        fs::write(&path, secret).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// With a bond, of which either end is told more.
    fn new(connect: &[&str], serve: &[&str]) -> Self {
        let mut bench = Bench::hosts();
        bench.serve(serve);
        bench.connect(&["--listen", "forward=127.0.0.1:4000=127.0.0.1:8000", "--listen", "socks5=127.0.0.1:1080"], connect);
        bench
    }

    fn serve(&mut self, more: &[&str]) {
        let mut command = self.far.command(TANDEM);
        command.args(["bond", "serve", "--listen", "[::]:7000"]).args(more).current_dir(self.dir.path());
        if !more.contains(&"--key") {
            command.args(["--key", "bond.key"]);
        }
        self.daemons.push(Daemon::logging(&mut command, &self.dir.path().join("serve.log")));
        wait_for_listener(&self.far, 7000);
    }

    fn connect(&mut self, listen: &[&str], more: &[&str]) {
        let mut command = self.near.command(TANDEM);
        command.args(["bond", "connect"]).args(listen).args(["--key", "bond.key"]).args(more).current_dir(self.dir.path());
        if !more.contains(&"--network") {
            command.args(["--network", "n1,to=10.0.1.2:7000", "--network", "n2,to=10.0.2.2:7000"]);
        }
        self.daemons.push(Daemon::logging(&mut command, &self.dir.path().join("connect.log")));
        wait_for_listener(&self.near, 4000);
    }

    /// Waits until the bond has both networks.
    fn whole(self) -> Self {
        wait_until("the bond has both networks", || self.log("connect.log").matches("the bond has n").count() >= 2);
        self
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    /// A server on the far host, which does this with each connection.
    fn server(&self, work: impl Fn(TcpStream) + Send + Clone + 'static) {
        self.server_at(Ipv4Addr::LOCALHOST.into(), work);
    }

    fn server_at(&self, at: IpAddr, work: impl Fn(TcpStream) + Send + Clone + 'static) {
        let listener = self.far.enter(|| TcpListener::bind((at, SERVER)).unwrap()).unwrap();
        self.far
            .spawn("server", move || {
                for stream in listener.incoming().flatten() {
                    let work = work.clone();
                    thread::spawn(move || {
                        stream.set_read_timeout(Some(PATIENCE)).unwrap();
                        stream.set_write_timeout(Some(PATIENCE)).unwrap();
                        work(stream);
                    });
                }
            })
            .unwrap();
    }

    /// Calls the server through the bond.
    fn call(&self) -> TcpStream {
        let stream = self.near.enter(|| TcpStream::connect(IN).unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn flows(&self) -> serde_json::Value {
        let output = self.near.command(TANDEM).args(["flows", "--json"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Shapes both ends of a network.
    fn shape(&self, network: u32, rate: &str) {
        for host in [&self.near, &self.far] {
            let done = host
                .command("tc")
                .args(["qdisc", "replace", "dev", &format!("n{network}"), "root", "tbf", "rate", rate, "burst", "32kb", "latency", "50ms"])
                .output()
                .unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        }
    }

    /// What comes in over a network is lost at both ends, and nothing is said of it; or only what this holds of.
    fn lose(&self, network: u32, which: &str) {
        for host in [&self.near, &self.far] {
            let rule =
                format!("table inet hole {{ chain in {{ type filter hook input priority 0; iifname \"n{network}\" {which} drop; }}; }}");
            nft(host, &rule);
        }
    }

    fn heal(&self) {
        for host in [&self.near, &self.far] {
            nft(host, "delete table inet hole");
        }
    }
}

fn nft(host: &Host, text: &str) {
    let mut child = host.command("nft").args(["-f", "-"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
}

/// Bytes that no shift of them equals.
fn bytes(count: usize) -> Vec<u8> {
    let mut state = 1u64;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        })
        .collect()
}

fn read_all(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).map(|_| all)
}

/// Sends back what it hears, when it has heard all.
fn echo(mut stream: TcpStream) {
    if let Ok(all) = read_all(&mut stream) {
        let _ = stream.write_all(&all);
    }
}

#[test]
fn what_is_said_is_heard_at_both_ends() {
    if skip("what_is_said_is_heard_at_both_ends", &["ss"]) {
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
fn a_conversation_goes_on_and_its_networks_are_shown() {
    if skip("a_conversation_goes_on_and_its_networks_are_shown", &["ss"]) {
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

/// The two ends of a connection through the bond.
fn pair(bench: &Bench) -> (TcpStream, TcpStream) {
    let (tell, told) = mpsc::channel();
    bench.server(move |stream| tell.send(stream).unwrap());
    let client = bench.call();
    (client, told.recv_timeout(PATIENCE).unwrap())
}

#[test]
fn half_of_a_connection_may_end() {
    if skip("half_of_a_connection_may_end", &["ss"]) {
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
fn both_may_end_at_once() {
    if skip("both_may_end_at_once", &["ss"]) {
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
fn a_clean_end_means_delivered_and_a_reset_is_a_reset() {
    if skip("a_clean_end_means_delivered_and_a_reset_is_a_reset", &["ss"]) {
        return;
    }
    let bench = Bench::new(&[], &[]).whole();
    let reset = |mut stream: TcpStream| {
        stream.read_exact(&mut [0; 10]).unwrap();
        // Unread bytes make the close a reset.
        thread::sleep(Duration::from_millis(200));
    };
    bench.server(reset);
    let mut client = bench.call();
    client.write_all(&bytes(100_000)).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let ended = client.read(&mut [0]);
    assert_eq!(ended.map_err(|why| why.kind()).unwrap_err(), ErrorKind::ConnectionReset);
    // The client's reset is the server's too.
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

/// Goes to an address (RFC 1928 §5) and the servers' port, or hears why not.
fn socks(bench: &Bench, address: &[u8]) -> Result<TcpStream, u8> {
    let mut stream = bench.near.enter(|| TcpStream::connect((Ipv4Addr::LOCALHOST, 1080)).unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&[5, 1, 0]).unwrap();
    stream.read_exact(&mut [0; 2]).unwrap();
    stream.write_all(&[&[5, 1, 0], address, &SERVER.to_be_bytes()].concat()).unwrap();
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).unwrap();
    if answer[1] == 0 { Ok(stream) } else { Err(answer[1]) }
}

#[test]
fn socks_goes_to_addresses_and_names_and_hears_why_not() {
    if skip("socks_goes_to_addresses_and_names_and_hears_why_not", &["ss"]) {
        return;
    }
    let bench = Bench::new(&[], &["--allow", "10.0.0.0/8", "--allow", "127.0.0.0/8", "--allow", "fd00::/16", "--allow", "::1"]).whole();
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
    // Refused; no such name; not allowed.
    assert_eq!(socks(&bench, &[1, 10, 0, 1, 2]).unwrap_err(), 5);
    assert_eq!(socks(&bench, &name("nobody.invalid")).unwrap_err(), 4);
    assert_eq!(socks(&bench, &[1, 192, 0, 2, 1]).unwrap_err(), 1);
}

/// The program with names of its own: two addresses of one, of which only the second is listened at.
fn with_names(bench: &Bench, host: &Host, log: &str, arguments: &[&str]) -> Daemon {
    fs::write(bench.dir.path().join("hosts"), "::1 both.test\n127.0.0.1 both.test\n").unwrap();
    let mut command = host.command("unshare");
    command.args(["--mount", "sh", "-c", "mount --bind hosts /etc/hosts && exec \"$0\" \"$@\"", TANDEM]).args(arguments);
    Daemon::logging(command.current_dir(bench.dir.path()), &bench.dir.path().join(log))
}

#[test]
fn a_name_leads_to_the_first_of_its_addresses_that_answers() {
    if skip("a_name_leads_to_the_first_of_its_addresses_that_answers", &["ss", "unshare"]) {
        return;
    }
    let name = [&[3, 9][..], b"both.test"].concat();
    // Over a bond: what is refused first must not be taken for an end of what comes after it.
    let mut bench = Bench::hosts();
    let serve = ["bond", "serve", "--listen", "[::]:7000", "--key", "bond.key"];
    bench.daemons.push(with_names(&bench, &bench.far, "serve.log", &serve));
    wait_for_listener(&bench.far, 7000);
    bench.connect(&["--listen", "socks5=127.0.0.1:1080", "--listen", "forward=127.0.0.1:4000=127.0.0.1:8000"], &[]);
    let mut bench = bench.whole();
    bench.server(echo);
    let mut client = socks(&bench, &name).unwrap();
    client.write_all(b"hello").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut client).unwrap(), b"hello");
    // And through a plain proxy, of an answer that comes in parts.
    bench.daemons.clear();
    bench.daemons.push(with_names(&bench, &bench.near, "proxy.log", &["proxy", "--listen", "socks5=127.0.0.1:1080"]));
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

/// Ports of the near host's connections to the other end of the bond, and how many bytes each has sent.
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
fn an_other_end_that_is_not_there_yet_is_told_and_tried_again() {
    if skip("an_other_end_that_is_not_there_yet_is_told_and_tried_again", &["ss"]) {
        return;
    }
    let mut bench = Bench::hosts();
    bench.connect(&["--listen", "forward=127.0.0.1:4000=127.0.0.1:8000"], &[]);
    // Not only after the time that a handshake may take.
    wait_until("the refusal is told", || bench.log("connect.log").contains("Connection refused"));
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
fn a_connection_that_is_reset_while_nothing_moves_is_replaced() {
    if skip("a_connection_that_is_reset_while_nothing_moves_is_replaced", &["ss"]) {
        return;
    }
    let bench = Bench::new(&["--network", "n1,to=10.0.1.2:7000"], &[]);
    wait_until("the bond has its network", || bench.log("connect.log").contains("the bond has n1"));
    let (mut client, mut server) = pair(&bench);
    client.write_all(&bytes(50_000)).unwrap();
    server.read_exact(&mut [0; 50_000]).unwrap();
    let carries = || connections(&bench).into_iter().find(|(_, sent)| *sent > 50_000).map(|(port, _)| port);
    wait_until("spares are ready", || connections(&bench).len() >= 3);
    let port = carries().unwrap();
    // Nothing is under way, and no timer of the stream's is due.
    thread::sleep(Duration::from_secs(3));
    let killed = bench.near.command("ss").args(["-KtnH", "sport", "=", &format!(":{port}")]).output().unwrap();
    thread::sleep(Duration::from_millis(200));
    if connections(&bench).iter().any(|(there, _)| *there == port) {
        return common::note(
            "a_connection_that_is_reset_while_nothing_moves_is_replaced",
            &format!("ss -K ends no connection: {killed:?}"),
        );
    }
    // The other end waits for five seconds, and gives the stream up then.
    thread::sleep(Duration::from_secs(7));
    server.write_all(b"still here").unwrap();
    let mut heard = [0; 10];
    client.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"still here");
}

#[test]
fn networks_may_be_of_either_version_of_ip() {
    if skip("networks_may_be_of_either_version_of_ip", &["ss"]) {
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

/// A download while something happens; how long nothing came at the longest.
fn download_while(bench: &Bench, count: usize, happens: impl FnOnce(&Bench) + Send) -> Duration {
    bench.server(move |mut stream| stream.write_all(&bytes(count)).unwrap());
    let mut client = bench.call();
    thread::scope(|scope| {
        let reading = scope.spawn(move || {
            let (mut all, mut longest, mut last) = (Vec::new(), Duration::ZERO, Instant::now());
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
        assert!(all == bytes(count), "{} bytes came", all.len());
        longest
    })
}

/// How long a transfer may stand still when a network of a few ms is gone: two timeouts of 200 ms, which double meanwhile, and some for a slow machine.
const STALL: Duration = Duration::from_secs(5);

#[test]
fn a_download_goes_on_when_a_network_is_gone() {
    if skip("a_download_goes_on_when_a_network_is_gone", &["ss", "tc", "nft"]) {
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
        // Connections count their packets in the identification.
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
fn a_network_that_comes_back_is_used_again() {
    if skip("a_network_that_comes_back_is_used_again", &["ss", "tc", "nft"]) {
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
fn a_network_is_given_up_in_silence_when_all_was_said() {
    if skip("a_network_is_given_up_in_silence_when_all_was_said", &["ss", "tc", "nft"]) {
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
    // What the first network has of it comes over the second, so that all is acknowledged, and the first one is silent.
    talk(&mut stream);
    wait_until("the silent one is given up", || {
        let paths = &bench.flows()[0]["bond"]["paths"];
        paths[0]["up"] == false || paths[0]["stalled"] == true
    });
    talk(&mut stream);
    talk(&mut bench.call());
}

#[test]
fn a_stream_outlives_all_its_networks_for_a_while() {
    if skip("a_stream_outlives_all_its_networks_for_a_while", &["ss", "tc", "nft"]) {
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
fn a_network_that_appears_later_is_used() {
    if skip("a_network_that_appears_later_is_used", &["ss", "tc"]) {
        return;
    }
    let mut bench = Bench::hosts();
    bench.near.ip(&["link set n2 down".into()]).unwrap();
    bench.serve(&[]);
    bench.connect(&["--listen", "forward=127.0.0.1:4000=127.0.0.1:8000"], &[]);
    wait_until("the bond has the first network", || bench.log("connect.log").contains("the bond has n1"));
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
    assert!(bench.log("connect.log").contains("the bond has n2"), "{}", bench.log("connect.log"));
}

#[test]
fn who_is_killed_leaves_resets_and_no_clean_end() {
    if skip("who_is_killed_leaves_resets_and_no_clean_end", &["ss"]) {
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
fn who_has_not_the_key_is_not_let_in() {
    if skip("who_has_not_the_key_is_not_let_in", &["ss"]) {
        return;
    }
    // Another key; encryption at one end alone.
    for more in [&["--key", "other.key"][..], &["--tls"]] {
        let bench = Bench::new(&["--connect-timeout", "1s"], more);
        wait_until("it is told why", || bench.log("connect.log").matches("the bond has not n").count() >= 2);
        let mut client = bench.call();
        let ended = client.read(&mut [0]).map_err(|why| why.kind());
        assert_eq!(ended.unwrap_err(), ErrorKind::ConnectionReset, "{more:?}");
        assert!(bench.log("connect.log").contains("has another key"), "{}", bench.log("connect.log"));
    }
}

/// What a process holds, kB.
fn memory_of(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap().trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn strangers_learn_nothing_and_cost_little() {
    if skip("strangers_learn_nothing_and_cost_little", &["ss"]) {
        return;
    }
    let bench = Bench::new(&[], &[]).whole();
    bench.server(echo);
    let serve = bench.daemons[0].0.id();
    let before = memory_of(serve);
    let at = SocketAddr::from((Ipv4Addr::new(10, 0, 1, 2), 7000));
    // A million of them take a minute or two: TANDEM_STRANGERS=1000000.
    let count: u32 = std::env::var("TANDEM_STRANGERS").ok().and_then(|count| count.parse().ok()).unwrap_or(20_000);
    let flood = || {
        let mut held = Vec::new();
        for round in 0..count {
            let mut stream = TcpStream::connect(at).unwrap();
            // Silent, with garbage, with the beginning of what is right, at the length of what is right. Who is let go meanwhile can't say it.
            let _ = match round % 4 {
                0 => Ok(()),
                1 => stream.write_all(&bytes(1000)),
                2 => stream.write_all(&[1; 64]),
                _ => stream.write_all(&[1; 65]),
            };
            if held.len() < 3000 {
                held.push(stream);
            } else {
                // So that its port can be used again at once.
                socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
            }
        }
        held
    };
    let mut held = bench.near.enter(flood).unwrap();
    // Those who were let go hear an end, or a reset, and not a byte.
    let mut said = 0;
    for stream in &mut held {
        stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut byte = [0; 1];
        said += usize::from(matches!(stream.read(&mut byte), Ok(1)));
    }
    assert_eq!(said, 0, "a stranger heard something");
    let grown = memory_of(serve).saturating_sub(before);
    assert!(grown < 20_000, "{grown} kB more");
    // And who has the key is served meanwhile.
    let sent = bytes(100_000);
    let mut client = bench.call();
    client.write_all(&sent).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert!(read_all(&mut client).unwrap() == sent);
}

#[test]
fn a_bad_question_is_answered_with_its_cure() {
    let run = |arguments: &[&str]| {
        let output = Command::new(TANDEM).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    fs::write(&key, "too short").unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let key = key.to_str().unwrap();
    let serve = |more: &[&str]| run(&[&["bond", "serve", "--listen", "127.0.0.1:7000"], more].concat());
    assert!(serve(&["--key", "/nowhere"]).contains("cannot take the bond's key from /nowhere: No such file"));
    assert!(serve(&["--key", key]).contains("openssl rand -hex 32"));
    fs::write(key, "0123456789abcdef").unwrap();
    assert!(serve(&["--key", key, "--scheduler", "best"]).contains("it can be score, round-robin, single, redundant or tiers"));
    assert!(serve(&["--key", key, "--window", "1kB"]).contains("a window of 1kB can't be"));
    let connect = |more: &[&str]| run(&[&["bond", "connect", "--listen", "socks5=127.0.0.1:1080", "--key", key], more].concat());
    assert!(connect(&["--network", "wlan0"]).contains("does not say where the other end listens"));
    let twice = ["--to", "192.0.2.1:7000", "--network", "wlan0", "--network", "wlan0"];
    assert!(connect(&twice).contains("two networks are named wlan0"));
}
