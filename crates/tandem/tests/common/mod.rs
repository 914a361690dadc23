//! Helpers of the binary's tests.
#![allow(dead_code)]

pub(crate) mod browser;
pub(crate) mod middle;
pub(crate) mod raw;
pub(crate) mod routed;

use lab::Host;
use scenario::ScenarioFile;
use std::{
    fs,
    io::{self, BufRead, BufReader},
    net::{IpAddr, SocketAddr, TcpStream},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Returns every scenario file of the project, sorted by path: the files below `scenarios` and
/// `papers`, and all others with links or networks.
pub(crate) fn scenario_files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let is_scenario = |path: &Path| {
        let has_them = |text: String| text.lines().any(|line| line.starts_with("[[link]]") || line.starts_with("[[network]]"));
        let is_there = ["scenarios", "papers"].iter().any(|folder| path.starts_with(root.join(folder))) && !path.ends_with("paper.toml");
        path.extension().is_some_and(|extension| extension == "toml") && (is_there || fs::read_to_string(path).is_ok_and(has_them))
    };
    let (mut found, mut waiting) = (Vec::new(), vec![root.clone()]);
    while let Some(path) = waiting.pop() {
        if !path.is_dir() {
            found.extend(is_scenario(&path).then_some(path));
            continue;
        }
        let inside = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap());
        // Skips build output and hidden directories.
        let is_ours = |name: &str| name != "target" && !name.starts_with('.');
        waiting.extend(inside.filter(|entry| entry.file_name().to_str().is_some_and(is_ours)).map(|entry| entry.path()));
    }
    found.sort();
    found
}

/// Parses a scenario file, which may name other files relative to it.
pub(crate) fn parse_scenario(path: &Path) -> ScenarioFile {
    let folder = path.parent().map(Path::to_owned).unwrap_or_default();
    let open = move |name: &str| -> io::Result<Box<dyn BufRead>> { Ok(Box::new(BufReader::new(fs::File::open(folder.join(name))?))) };
    let text = fs::read_to_string(path).unwrap();
    ScenarioFile::parse_with(&text, &path.display().to_string(), Arc::new(open)).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns whether `test` must be skipped, because hosts cannot be created or a program is missing,
/// and reports the reason.
pub(crate) fn skip(test: &str, programs: &[&str]) -> bool {
    let missing = testing::missing(programs).map(|program| format!("{program} is not installed"));
    let Some(reason) = lab::Host::new("probe").err().map(|error| error.to_string()).or(missing) else { return false };
    testing::skipped(test, &reason);
    true
}

/// A running program, which is killed on drop.
pub(crate) struct Daemon(pub(crate) Child);

impl Daemon {
    pub(crate) fn start(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Daemon(child.unwrap_or_else(|why| panic!("{command:?}: {why}")))
    }

    /// Starts a program with its stderr in a file.
    pub(crate) fn logging(command: &mut Command, log: &Path) -> Self {
        let log = fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        Daemon(child.unwrap_or_else(|why| panic!("{command:?}: {why}")))
    }

    /// Sends the program a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success(), "{name}");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until a connection to `address` from the host itself succeeds.
pub(crate) fn wait_for_port(host: &Host, address: IpAddr, port: u16) {
    wait_until("a daemon listens", || {
        host.enter(|| TcpStream::connect_timeout(&SocketAddr::new(address, port), Duration::from_millis(200)).is_ok()).unwrap()
    });
}

/// Waits until a socket listens on `port`, without connecting: iperf3 -1 would take the connection
/// for its client.
pub(crate) fn wait_for_listener(host: &Host, port: u16) {
    wait_until("a daemon listens", || {
        let listed = host.command("ss").args(["-Hltn", &format!("sport = :{port}")]).output().unwrap();
        assert!(listed.status.success(), "ss: {}", String::from_utf8_lossy(&listed.stderr));
        !listed.stdout.is_empty()
    });
}

/// Returns the path of the control socket of root's proxy with this name on a host.
pub(crate) fn control_socket(host: &Host, name: &str) -> PathBuf {
    let namespace = host.enter(|| fs::metadata("/proc/thread-self/ns/net").unwrap().ino()).unwrap();
    format!("/run/tandem/root/{namespace}.{name}.control").into()
}

/// Runs `work` on a host as a user without any privilege.
pub(crate) fn as_nobody<T: Send>(host: &Host, work: impl FnOnce() -> T + Send) -> T {
    host.enter(|| {
        // Changes the user of this thread only, which ends after the work.
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65534)).unwrap();
        work()
    })
    .unwrap()
}

/// Waits until `condition` holds.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "timed out waiting until {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The binary.
pub(crate) const TANDEM: &str = env!("CARGO_BIN_EXE_tandem");
