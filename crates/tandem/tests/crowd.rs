//! As many concurrent connections as the limit of open files allows: all are split and work, and
//! leave nothing behind; further connections pass unsplit.
//!
//! Clients and servers are separate processes, in pairs, because of their own limits of open files:
//! this program runs copies of itself on the hosts. A copy reads commands from stdin and answers on
//! stderr.

mod common;

use common::{Daemon, PATIENCE, TANDEM, skip, wait_until};
use lab::Host;
use proxy::control::{ProxyStatus, Remote};
use rustix::{
    event::epoll::{self, CreateFlags, EventData, EventFlags},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader, ErrorKind, Lines, Read, Write},
    net::{TcpListener, TcpStream},
    os::fd::AsRawFd,
    process::{Child, ChildStderr, Command, Stdio},
    time::Instant,
};

/// Environment variable with the role of a copy: `client PORT` or `server PORT`.
const MEMBER: &str = "TANDEM_CROWD_MEMBER";
const SERVER: &str = "10.98.2.2";
/// More connections would only take longer.
const MOST_A_WORKER: u64 = 9_800;
/// Connections of one client process.
const MOST_A_PAIR: usize = 4_500;
const MESSAGE: usize = 64;

/// The limit of open files, as far as it can be raised.
fn open_files() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

/// Returns the maximum number of flows per worker: two descriptors per flow, besides its own.
fn room_of_a_worker() -> u64 {
    (open_files().saturating_sub(400) / 2).min(MOST_A_WORKER)
}

/// Returns the message of a connection, unique to its client.
fn message(port: u16, number: usize, round: u64) -> [u8; MESSAGE] {
    let mut message = [port as u8; MESSAGE];
    message[..8].copy_from_slice(&(number as u64).to_be_bytes());
    message[8..16].copy_from_slice(&round.to_be_bytes());
    message
}

/// Entry point of the copies that the test below starts; without a role it does nothing.
#[test]
fn crowd_member() {
    let Ok(role) = std::env::var(MEMBER) else { return };
    let limit = open_files();
    setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum: Some(limit) }).unwrap();
    let (role, port) = role.split_once(' ').unwrap();
    let port = port.parse().unwrap();
    match role {
        "client" => run_client(port),
        _ => run_server(port),
    }
}

fn run_client(port: u16) {
    let (mut streams, mut round) = (Vec::new(), 0);
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let outcome = match line.split_once(' ') {
            Some(("open", count)) => open(&mut streams, port, count.parse().unwrap()),
            _ if line == "exchange" => {
                round += 1;
                exchange(&mut streams, port, round)
            }
            _ => {
                streams.clear();
                Ok(())
            }
        };
        match outcome {
            Ok(()) => eprintln!("done"),
            Err(why) => eprintln!("failed: {line}: {why}"),
        }
    }
}

fn open(streams: &mut Vec<TcpStream>, port: u16, count: usize) -> std::io::Result<()> {
    for _ in 0..count {
        let stream = TcpStream::connect((SERVER, port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        streams.push(stream);
    }
    Ok(())
}

/// Sends a message on each connection, then reads its echo on each.
fn exchange(streams: &mut [TcpStream], port: u16, round: u64) -> std::io::Result<()> {
    for (number, stream) in streams.iter_mut().enumerate() {
        stream.write_all(&message(port, number, round))?;
    }
    for (number, stream) in streams.iter_mut().enumerate() {
        let mut echo = [0; MESSAGE];
        let heard = stream.read_exact(&mut echo);
        heard.map_err(|why| std::io::Error::other(format!("connection {number} from {}: {why}", stream.local_addr().unwrap())))?;
        if echo != message(port, number, round) {
            return Err(std::io::Error::other(format!("connection {number} brought something else")));
        }
    }
    Ok(())
}

/// Runs an echo server until stdin closes, at the end of the parent process.
fn run_server(port: u16) {
    let listener = TcpListener::bind(("0.0.0.0", port)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
    epoll::add(&epoll, &listener, EventData::new_u64(u64::MAX), EventFlags::IN).unwrap();
    let mut streams = HashMap::new();
    let mut events = Vec::with_capacity(256);
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    eprintln!("done");
    loop {
        events.clear();
        let _ = epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None);
        for event in &events {
            if event.data.u64() == u64::MAX {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true).unwrap();
                    epoll::add(&epoll, &stream, EventData::new_u64(stream.as_raw_fd() as u64), EventFlags::IN).unwrap();
                    streams.insert(stream.as_raw_fd() as u64, stream);
                }
            } else if let Some(stream) = streams.get_mut(&event.data.u64()) {
                let mut bytes = [0; 4096];
                let over = match stream.read(&mut bytes) {
                    Ok(0) => true,
                    Ok(count) => stream.write_all(&bytes[..count]).is_err(),
                    Err(why) => why.kind() != ErrorKind::WouldBlock,
                };
                if over {
                    streams.remove(&event.data.u64());
                }
            }
        }
    }
}

/// A copy of this program; ends on drop.
struct Member {
    process: Child,
    answers: Lines<BufReader<ChildStderr>>,
}

impl Member {
    fn start(host: &Host, role: &str, port: u16) -> Self {
        let this = std::env::current_exe().unwrap();
        let mut command = host.command(&this.to_string_lossy());
        command.args(["--exact", "crowd_member", "--nocapture"]).env(MEMBER, format!("{role} {port}"));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(process.stderr.take().unwrap()).lines();
        Member { process, answers }
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{what}").unwrap();
    }

    fn await_done(&mut self) {
        assert_eq!(self.answers.next().expect("it answers").unwrap(), "done");
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Client, router, server, and the processes in them.
struct Crowd {
    router: Host,
    clients: Vec<Member>,
    _servers: Vec<Member>,
    hosts: [Host; 2],
}

impl Crowd {
    fn new(pairs: usize) -> Self {
        let [client, router, server] = ["client", "router", "server"].map(|name| Host::new(name).unwrap());
        client.join(&["10.98.1.1/24"], &router, &["10.98.1.2/24"], "near").unwrap();
        router.join(&["10.98.2.1/24"], &server, &["10.98.2.2/24"], "far").unwrap();
        client.ip(&["route add default via 10.98.1.2".into()]).unwrap();
        server.ip(&["route add default via 10.98.2.1".into()]).unwrap();
        router.sysctl(&[("ipv4/ip_forward", "1".into())]).unwrap();
        client.sysctl(&[("ipv4/ip_local_port_range", "2000 65535".into())]).unwrap();
        let ports = 7000..7000 + pairs as u16;
        let mut servers: Vec<Member> = ports.clone().map(|port| Member::start(&server, "server", port)).collect();
        servers.iter_mut().for_each(Member::await_done);
        let clients = ports.map(|port| Member::start(&client, "client", port)).collect();
        Crowd { router, clients, _servers: servers, hosts: [client, server] }
    }

    /// Sends a command to all clients, and waits for their answers.
    fn all(&mut self, what: impl Fn(usize) -> String) {
        for (index, client) in self.clients.iter_mut().enumerate() {
            client.tell(&what(index));
        }
        self.clients.iter_mut().for_each(Member::await_done);
    }

    /// Opens this many more connections, divided among the clients.
    fn open(&mut self, count: usize) {
        let clients = self.clients.len();
        self.all(|index| format!("open {}", count / clients + usize::from(index < count % clients)));
    }

    fn exchange(&mut self) {
        self.all(|_| "exchange".into());
    }

    fn close(&mut self) {
        self.all(|_| "close".into());
        wait_until("the proxy is empty", || self.status().totals.flows == 0);
    }

    /// Returns the number of SYNs that the clients retransmitted because the proxy accepted too
    /// slowly. The firewall counts these too.
    fn syns_again(&self) -> u64 {
        let text = self.hosts[0].enter(|| fs::read_to_string("/proc/thread-self/net/netstat").unwrap()).unwrap();
        let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:")).map(str::split_whitespace);
        let at = lines.next().unwrap().position(|name| name == "TCPSynRetrans").unwrap();
        lines.next().unwrap().nth(at).unwrap().parse().unwrap()
    }

    /// Asserts that the firewall has counted this many connections; returns how many passed
    /// unsplit.
    fn assert_counted(&self, connections: usize) -> u64 {
        let (counted, least) = (self.status().counted.unwrap(), connections as u64);
        let (all, again) = (counted.split + counted.unsplit, self.syns_again());
        assert!((least..=least + again).contains(&all), "{connections} connections, of which {again} called again: {counted:?}");
        counted.unsplit
    }

    fn try_status(&self) -> Option<ProxyStatus> {
        self.router.enter(|| Remote::named("default").status().ok()).unwrap()
    }

    fn status(&self) -> ProxyStatus {
        self.try_status().expect("the proxy answers")
    }

    fn said(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.router.command(program).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the firewall rules, without counters and set elements, and without the additional
    /// rules for a minute after connections passed unsplit.
    fn rules(&self) -> String {
        let said = self.said("nft", &["--stateless", "--terse", "list", "ruleset"]);
        said.lines().filter(|line| !(line.contains("@direct") && line.ends_with("accept"))).collect::<Vec<_>>().join("\n")
    }
}

/// Returns the open descriptors of a process, including each worker's own table, and its memory in
/// bytes.
fn holds(process: u32) -> (usize, u64) {
    let mut descriptors = 0;
    for task in fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten() {
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let worker = name.trim().strip_prefix("tandem-").is_some_and(|number| number.parse::<usize>().is_ok());
        if worker || task.file_name().to_string_lossy() == process.to_string() {
            descriptors += fs::read_dir(task.path().join("fd")).unwrap().count();
        }
    }
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    (descriptors, line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024)
}

/// Opens crowds of connections through a proxy with this many threads. The kernel distributes
/// connections only about evenly, so that the limits of all threads cannot be reached exactly.
fn hold_crowds(threads: u64, percent: u64) {
    let begun = Instant::now();
    let room = threads * room_of_a_worker();
    let count = (room * percent / 100 / 100 * 100) as usize;
    let mut crowd = Crowd::new(count.div_ceil(MOST_A_PAIR));
    let arguments = ["proxy", "--listen", "transparent=[::]:5000", "--threads", &threads.to_string(), "--max-flows", &room.to_string()];
    let mut proxy = Daemon::start(crowd.router.command(TANDEM).args(arguments));
    wait_until("the proxy is up", || crowd.try_status().is_some());
    let (rules, at_start) = (crowd.rules(), holds(proxy.0.id()));
    // A first crowd brings the memory of the proxy to its steady state.
    crowd.open(count);
    crowd.exchange();
    crowd.close();
    let warm = holds(proxy.0.id());
    crowd.open(count);
    crowd.exchange();
    let full = holds(proxy.0.id());
    crowd.exchange();
    assert_eq!(crowd.status().totals.flows, count as u64, "all are held");
    assert_eq!(crowd.assert_counted(2 * count), 0, "all are split");
    assert!(full.0 >= 2 * count, "{} descriptors for {count} connections", full.0);
    let mut beyond = 0;
    if threads == 1 {
        // More connections than the limit: the rest pass unsplit.
        let more = room as usize - count + 500;
        crowd.open(more);
        crowd.exchange();
        beyond = crowd.assert_counted(2 * count + more);
        assert!(beyond >= 300, "{beyond} passed unsplit");
    }
    crowd.close();
    // A status connection may still be closing. While connections pass unsplit, the proxy keeps a
    // kernel setting and its record open.
    wait_until("all descriptors are closed", || holds(proxy.0.id()).0 <= at_start.0 + 2);
    let after = holds(proxy.0.id());
    assert!(after.1 <= warm.1 + warm.1 / 4 + (4 << 20), "memory after the crowds: {} and {}", warm.1, after.1);
    assert_eq!(crowd.said(TANDEM, &["flows", "--json"]), "[]\n");
    assert_eq!(crowd.rules(), rules);
    assert!(Command::new("kill").args(["-TERM", &proxy.0.id().to_string()]).status().unwrap().success());
    assert!(proxy.0.wait().unwrap().success());
    assert_eq!(crowd.rules(), "");
    println!(
        "{threads} threads: held {count} connections, {} descriptors, {:.1} MiB; {beyond} more passed unsplit; afterwards {} descriptors (at first \
         {}), {:.1} MiB (after the first crowd {:.1}); {:.1} s",
        full.0,
        full.1 as f64 / 1048576.0,
        after.0,
        at_start.0,
        after.1 as f64 / 1048576.0,
        warm.1 as f64 / 1048576.0,
        begun.elapsed().as_secs_f64()
    );
}

#[test]
fn connections_up_to_the_file_limit_are_split_and_leave_nothing() {
    if skip("connections_up_to_the_file_limit_are_split_and_leave_nothing", &["nft", "ip"]) {
        return;
    }
    hold_crowds(1, 97);
    hold_crowds(2, 92);
}
