//! Clients that misuse the metrics server and the control socket of a running proxy or cache. None
//! of them may block other clients, delay the exit of the program, or use more than a fixed amount
//! of memory, threads and descriptors.

use crate::common::{Daemon, TANDEM, as_nobody, control_socket, skip, wait_for_port, wait_until};
use lab::Host;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::{
    collections::BTreeSet,
    fs,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            fs::OpenOptionsExt as _,
            net::{SocketAddr as UnixAddress, UnixListener, UnixStream},
        },
    },
    path::Path,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

const METRICS: &str = "127.0.0.1:9155";
/// Longest allowed delay of a well-behaved client while others misbehave. Answers take
/// milliseconds.
const PROMPT: Duration = Duration::from_secs(5);

/// A program with a metrics server, in a network namespace of its own.
struct Watched {
    host: Host,
    daemon: Daemon,
}

impl Watched {
    fn start(subcommand: &str) -> Self {
        let host = Host::new("watched").unwrap();
        let arguments = [subcommand, "--listen", "forward=127.0.0.1:7000=127.0.0.1:9", "--metrics", METRICS];
        let daemon = Daemon::start(host.command(TANDEM).args(arguments));
        wait_for_port(&host, [127, 0, 0, 1].into(), 9155);
        Watched { host, daemon }
    }

    fn connect(&self) -> io::Result<TcpStream> {
        self.host.enter(|| TcpStream::connect_timeout(&METRICS.parse().unwrap(), PROMPT)).unwrap()
    }

    /// Reads the metrics as a well-behaved client; returns the time.
    fn scrape(&self) -> io::Result<Duration> {
        let begun = Instant::now();
        let mut stream = self.connect()?;
        stream.set_read_timeout(Some(PROMPT))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        assert!(page.starts_with("HTTP/1.1 200 ") && page.ends_with("# EOF\n"), "{page}");
        Ok(begun.elapsed())
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.daemon.0)
    }

    /// Returns a number from /proc/PID/status of the program.
    fn status(&self, key: &str) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// The descriptors in use. Some may be inherited, with high numbers.
    fn descriptors(&self) -> BTreeSet<u64> {
        let names = fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap();
        names.filter_map(|name| name.unwrap().file_name().to_str()?.parse().ok()).collect()
    }

    /// Limits the program to this many more descriptors.
    fn limit_descriptors(&self, free: usize) {
        let used = self.descriptors();
        // A limit of n excludes descriptors from number n on.
        let limit = (0..).filter(|number| !used.contains(number)).nth(free);
        let limit = Rlimit { current: limit, maximum: limit };
        prlimit(Some(self.pid()), Resource::Nofile, limit).unwrap();
    }

    /// Returns the CPU time of the program, in hundredths of a second.
    fn processor_ticks(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    /// Ends the program by a signal; returns the time.
    fn end(mut self) -> Duration {
        let begun = Instant::now();
        self.daemon.signal("TERM");
        wait_until("the program ends", || self.daemon.0.try_wait().unwrap().is_some());
        begun.elapsed()
    }
}

#[test]
fn idle_metrics_clients_use_no_thread_and_block_no_client() {
    if skip("idle_metrics_clients_use_no_thread_and_block_no_client", &[]) {
        return;
    }
    for program in ["proxy", "cache"] {
        let watched = Watched::start(program);
        watched.scrape().unwrap();
        let threads = watched.status("Threads");
        let idle: Vec<TcpStream> = (0..200).map(|_| watched.connect().unwrap()).collect();
        let scrapes: Vec<_> = (0..5).map(|_| watched.scrape()).collect();
        let [more, memory] = [watched.status("Threads") - threads, watched.status("VmRSS")];
        let descriptors = watched.descriptors().len();
        println!("{program}: 200 idle clients, {more} more threads, {memory} kB, {descriptors} descriptors, scrapes {scrapes:?}");
        assert!(scrapes.iter().all(Result::is_ok));
        assert_eq!(more, 0);
        assert!(descriptors < 100, "{descriptors}");
        let took = watched.end();
        println!("{program}: ended within {took:?}");
        assert!(took < PROMPT);
        drop(idle);
    }
}

#[test]
fn the_metrics_server_survives_a_shortage_of_descriptors() {
    if skip("the_metrics_server_survives_a_shortage_of_descriptors", &[]) {
        return;
    }
    for program in ["proxy", "cache"] {
        let watched = Watched::start(program);
        watched.scrape().unwrap();
        watched.limit_descriptors(2);
        let idle: Vec<io::Result<TcpStream>> = (0..20).map(|_| watched.connect()).collect();
        // Connections that were not accepted are in the listener's backlog.
        let during = watched.scrape();
        drop(idle);
        let after = watched.scrape();
        println!("{program}: a scrape while descriptors were short {during:?}, afterwards {after:?}");
        assert!(during.is_ok() && after.is_ok());
    }
}

#[test]
fn a_metrics_client_that_never_reads_blocks_no_client() {
    if skip("a_metrics_client_that_never_reads_blocks_no_client", &[]) {
        return;
    }
    for program in ["proxy", "cache"] {
        let watched = Watched::start(program);
        let mut stream = watched.connect().unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        // Until writing fails: the buffers are full, or the connection is closed.
        let requests = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(100);
        let (begun, mut sent) = (Instant::now(), 0);
        let refused = loop {
            match stream.write_all(&requests) {
                Err(why) => break Some(why.kind()),
                Ok(()) if begun.elapsed() > PROMPT => break None,
                Ok(()) => sent += requests.len(),
            }
        };
        let (scrape, memory) = (watched.scrape(), watched.status("VmRSS"));
        let took = watched.end();
        println!("{program}: {sent} bytes pipelined until {refused:?}; another's scrape {scrape:?}; {memory} kB; ended within {took:?}");
        assert!(refused.is_some() && scrape.is_ok());
        assert!(took < PROMPT);
    }
}

/// Returns the exit status of `tandem flows`, and its output on stdout and stderr.
fn flows(host: &Host) -> (Option<i32>, String) {
    let output = host.command(TANDEM).arg("flows").output().unwrap();
    (output.status.code(), [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat())
}

#[test]
fn the_socket_of_another_user_is_ignored() {
    if skip("the_socket_of_another_user_is_ignored", &[]) {
        return;
    }
    let host = Host::new("squatted").unwrap();
    // The socket name until 0.2.0.
    let squatter = as_nobody(&host, || UnixListener::bind_addr(&UnixAddress::from_abstract_name("tandem/default").unwrap()).unwrap());
    thread::spawn(move || {
        for mut stream in squatter.incoming().flatten() {
            let _ = stream.write_all(b"{\"Err\":\"\\u001b[2J\\u001b]0;owned\\u0007 all is well\"}\n");
        }
    });
    let (status, said) = flows(&host);
    println!("with a squatter and no proxy: {status:?} {said:?}");
    let mut proxy = Daemon::start(host.command(TANDEM).args(["proxy", "--listen", "forward=127.0.0.1:7000=127.0.0.1:9"]));
    thread::sleep(Duration::from_secs(2));
    let ended = proxy.0.try_wait().unwrap();
    println!("a proxy beside the squatter: ended {ended:?}, {:?}", flows(&host));
    assert!(said.contains("no proxy named"), "{said:?}");
    assert!(ended.is_none());
    assert_eq!(flows(&host).0, Some(0));
}

#[test]
fn answers_of_a_proxy_are_bounded_and_without_control_characters() {
    if skip("answers_of_a_proxy_are_bounded_and_without_control_characters", &[]) {
        return;
    }
    let host = Host::new("told").unwrap();
    // A first proxy creates the directory.
    let mut proxy = Daemon::start(host.command(TANDEM).args(["proxy", "--listen", "forward=127.0.0.1:7000=127.0.0.1:9"]));
    wait_until("the proxy is up", || flows(&host).0 == Some(0));
    proxy.signal("TERM");
    proxy.0.wait().unwrap();
    let socket = control_socket(&host, "default");
    let mut lock = socket.clone().into_os_string();
    lock.push(".lock");
    assert!(!socket.exists() && !Path::new(&lock).exists(), "the proxy removes them at exit");

    let listener = UnixListener::bind(&socket).unwrap();
    let answer = |text: &[u8]| {
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.write_all(text);
                // A client that gives up closes the connection.
                while stream.write_all(&[b'x'; 4096]).is_ok() {}
            });
            let (status, said) = flows(&host);
            assert_eq!(status, Some(1));
            assert!(said.starts_with("tandem: ") && said.lines().count() == 1, "{said:?}");
            assert!(!said.trim_end().contains(char::is_control), "{said:?}");
            said
        })
    };
    let said = answer(b"{\"Err\":\"\\u001b[2J\\u001b]0;owned\\u0007\\u009b31m\"}\n");
    assert!(said.contains("[2J") && said.contains("owned"), "{said:?}");
    answer(b"{\"Ok\":[{\"\\u001b[2J\":0}]}\n");
    answer(b"\x1b[2J\n");
    fs::remove_file(socket).unwrap();
}

#[test]
fn an_endless_request_is_refused() {
    if skip("an_endless_request_is_refused", &[]) {
        return;
    }
    let host = Host::new("asked").unwrap();
    let _proxy = Daemon::start(host.command(TANDEM).args(["proxy", "--listen", "forward=127.0.0.1:7000=127.0.0.1:9"]));
    wait_until("the proxy is up", || flows(&host).0 == Some(0));
    let mut stream = UnixStream::connect(control_socket(&host, "default")).unwrap();
    // The proxy closes the connection before it has read all of this.
    let _ = stream.write_all(&vec![b'['; 16 << 20]);
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.contains("received a line of more than 262144 bytes"), "{answer}");
    assert_eq!(flows(&host).0, Some(0));
}

#[test]
fn a_proxy_replaces_the_socket_of_a_killed_one() {
    if skip("a_proxy_replaces_the_socket_of_a_killed_one", &[]) {
        return;
    }
    let host = Host::new("killed").unwrap();
    // A directory of its own: every proxy that starts removes what killed proxies left in its own.
    fs::create_dir_all("/run/tandem").unwrap();
    let directory = tempfile::tempdir_in("/run/tandem").unwrap();
    let start = || {
        let mut command = host.command(TANDEM);
        command.args(["proxy", "--listen", "forward=127.0.0.1:7000=127.0.0.1:9"]).env("RUNTIME_DIRECTORY", directory.path());
        let proxy = Daemon::start(&mut command);
        wait_until("the proxy is up", || flows(&host).0 == Some(0));
        proxy
    };
    drop(start());
    let socket = control_socket(&host, "default");
    assert!(directory.path().join(socket.file_name().unwrap()).exists());
    let (status, said) = flows(&host);
    assert!(status == Some(1) && said.contains("no proxy named"), "{said}");
    drop(start());
}

#[test]
fn silent_control_clients_block_no_other() {
    if skip("silent_control_clients_block_no_other", &[]) {
        return;
    }
    let host = Host::new("asked").unwrap();
    let mut proxy = Daemon::start(host.command(TANDEM).args(["proxy", "--listen", "forward=127.0.0.1:7000=127.0.0.1:9"]));
    wait_until("the proxy is up", || flows(&host).0 == Some(0));
    let socket = control_socket(&host, "default");
    let silent: Vec<UnixStream> = (0..20).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let begun = Instant::now();
    let answer = flows(&host);
    let took = begun.elapsed();
    println!("beside {} silent askers: {answer:?} within {took:?}", silent.len());
    proxy.signal("TERM");
    proxy.0.wait().unwrap();
    assert_eq!(answer.0, Some(0));
    assert!(took < PROMPT, "{took:?}");
}

#[test]
fn a_shortage_of_descriptors_uses_no_cpu_time() {
    if skip("a_shortage_of_descriptors_uses_no_cpu_time", &[]) {
        return;
    }
    let watched = Watched::start("proxy");
    wait_until("the proxy is up", || flows(&watched.host).0 == Some(0));
    watched.limit_descriptors(0);
    // A pending accept may have reserved a descriptor; the next one finds none.
    drop(UnixStream::connect(control_socket(&watched.host, "default")).unwrap());
    let before = watched.processor_ticks();
    thread::sleep(Duration::from_secs(2));
    let ticks = watched.processor_ticks() - before;
    println!("two seconds with no descriptor for an asker: {ticks} hundredths of a second of processor time");
    assert!(ticks < 20, "{ticks}");
}

#[test]
fn a_proxy_runs_without_a_control_socket() {
    if skip("a_proxy_runs_without_a_control_socket", &["unshare", "mount"]) {
        return;
    }
    let host = Host::new("contained").unwrap();
    let log = tempfile::NamedTempFile::new().unwrap();
    let script = "mount -t tmpfs -o ro none /run && exec \"$@\"";
    let mut command = host.command("unshare");
    command.args(["--mount", "sh", "-c", script, "sh", TANDEM, "proxy", "--listen", "forward=127.0.0.1:7000=127.0.0.1:9"]);
    let _proxy = Daemon::logging(command.env_remove("XDG_RUNTIME_DIR"), log.path());
    wait_for_port(&host, [127, 0, 0, 1].into(), 7000);
    let said = || fs::read_to_string(log.path()).unwrap();
    wait_until("it splits connections", || said().contains("splitting connections"));
    let expected = "no control socket, so that tandem flows and bypass cannot reach this proxy: cannot make /run/tandem/root: Read-only";
    assert!(said().contains(expected), "{}", said());
}

/// Fills the pipe that a program logs to, which nobody reads.
fn fill(pipe: &impl std::os::fd::AsRawFd) {
    // Opened anew: its own mode does not change that of the program.
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let mut full = fs::OpenOptions::new().write(true).custom_flags(flags).open(path).unwrap();
    for size in [4096, 1] {
        while full.write(&vec![b'x'; size]).is_ok() {}
    }
}

#[test]
fn a_log_that_nobody_reads_does_not_keep_the_program() {
    if skip("a_log_that_nobody_reads_does_not_keep_the_program", &[]) {
        return;
    }
    let host = Host::new("unread").unwrap();
    let server = host.enter(|| TcpListener::bind("127.0.0.1:9").unwrap()).unwrap();
    let (reader, writer) = io::pipe().unwrap();
    let mut command = host.command(TANDEM);
    command.args(["proxy", "--listen", "forward=127.0.0.1:7000=127.0.0.1:9"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer.try_clone().unwrap()).spawn().unwrap();
    let mut daemon = Daemon(child);
    // It has started, and nobody reads from now on.
    let mut log = BufReader::new(&reader);
    let mut line = String::new();
    while !line.contains("splitting connections") {
        line.clear();
        assert!(log.read_line(&mut line).unwrap() > 0, "the program has ended");
    }
    fill(&writer);
    // A flow that ends: the thread of the flow log is stuck with its line.
    let client = host.enter(|| TcpStream::connect("127.0.0.1:7000").unwrap()).unwrap();
    server.accept().unwrap();
    // Its end resets the connections that were not accepted.
    drop((client, server));
    let begun = Instant::now();
    daemon.signal("TERM");
    let mut status = None;
    wait_until("the program ends", || {
        status = daemon.0.try_wait().unwrap();
        status.is_some()
    });
    println!("ended within {:?}: {status:?}", begun.elapsed());
    assert_eq!(status.unwrap().code(), Some(1), "by its deadline");
}
