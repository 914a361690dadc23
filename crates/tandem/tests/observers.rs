//! Clients that misuse what the running proxy and cache offer to observers, which is the metrics
//! server. None of them may block other clients, delay the end of the program, or cost it more than
//! a fixed amount of memory, threads and descriptors.

mod common;

use common::{Daemon, TANDEM, skip, wait_for_port, wait_until};
use lab::Host;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::{
    collections::BTreeSet,
    fs,
    io::{self, Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

const METRICS: &str = "127.0.0.1:9155";
/// How long an honest client may wait while others misbehave. Answers take milliseconds.
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

    /// Reads the metrics as an honest client; returns the time it took.
    fn scrape(&self) -> io::Result<Duration> {
        let begun = Instant::now();
        let mut stream = self.connect()?;
        stream.set_read_timeout(Some(PROMPT))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        assert!(page.starts_with("HTTP/1.1 200 ") && page.ends_with("# EOF\n"), "{page}");
        Ok(begun.elapsed())
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.daemon.0)
    }

    /// A number from the program's status in /proc.
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

    /// Leaves it so many descriptors besides those in use.
    fn limit_descriptors(&self, free: usize) {
        let used = self.descriptors();
        // A limit of n forbids numbers from n on.
        let limit = (0..).filter(|number| !used.contains(number)).nth(free);
        let limit = Rlimit { current: limit, maximum: limit };
        prlimit(Some(self.pid()), Resource::Nofile, limit).unwrap();
    }

    /// Asks the program to end; returns the time it took.
    fn end(mut self) -> Duration {
        let begun = Instant::now();
        self.daemon.signal("TERM");
        wait_until("the program ends", || self.daemon.0.try_wait().unwrap().is_some());
        begun.elapsed()
    }
}

#[test]
fn idle_clients_of_the_metrics_cost_no_thread_and_block_nobody() {
    if skip("idle_clients_of_the_metrics_cost_no_thread_and_block_nobody", &[]) {
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
fn the_metrics_survive_a_want_of_descriptors() {
    if skip("the_metrics_survive_a_want_of_descriptors", &[]) {
        return;
    }
    for program in ["proxy", "cache"] {
        let watched = Watched::start(program);
        watched.scrape().unwrap();
        watched.limit_descriptors(2);
        let idle: Vec<io::Result<TcpStream>> = (0..20).map(|_| watched.connect()).collect();
        // The listener's backlog holds those that were not accepted.
        let during = watched.scrape();
        drop(idle);
        let after = watched.scrape();
        println!("{program}: a scrape while descriptors were short {during:?}, afterwards {after:?}");
        assert!(during.is_ok() && after.is_ok());
    }
}

#[test]
fn a_client_that_never_reads_metrics_blocks_nobody() {
    if skip("a_client_that_never_reads_metrics_blocks_nobody", &[]) {
        return;
    }
    for program in ["proxy", "cache"] {
        let watched = Watched::start(program);
        let mut stream = watched.connect().unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        // Until nothing more is accepted: the buffers are full, or the connection is closed.
        let requests = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n".repeat(100);
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
