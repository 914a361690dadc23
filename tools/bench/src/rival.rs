//! What runs on the middle host: plain forwarding, Tandem, or another proxy, with all settings.

use anyhow::{Context as _, Result, ensure};
use std::{
    fs,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use testbed::{ThreeHosts, load_rules, service_ports};

/// Port to which connections are redirected.
const PORT: u16 = 5000;

/// A program on the middle host.
#[derive(Debug, Clone)]
pub(crate) struct Rival {
    name: String,
    kind: RivalKind,
}

#[derive(Debug, Clone)]
enum RivalKind {
    Forwarding,
    Tandem { program: PathBuf, flags: Vec<String> },
    Haproxy { threads: usize, tuned: bool },
    Nginx,
    Socat,
    Bare,
}

impl Rival {
    /// All rivals, in the order of their turns.
    pub(crate) fn all(tandem: &Path, flags: &str) -> Vec<Rival> {
        let tandem = |threads: usize| {
            let mut all = vec!["--threads".to_string(), threads.to_string()];
            all.extend(flags.split_whitespace().map(str::to_owned));
            Rival { name: format!("tandem-{threads}"), kind: RivalKind::Tandem { program: tandem.to_path_buf(), flags: all } }
        };
        let haproxy = |threads, tuned| Rival {
            name: format!("haproxy-{threads}{}", if tuned { "-tuned" } else { "" }),
            kind: RivalKind::Haproxy { threads, tuned },
        };
        vec![
            Rival { name: "forwarding".into(), kind: RivalKind::Forwarding },
            tandem(1),
            haproxy(1, false),
            haproxy(1, true),
            tandem(2),
            haproxy(2, false),
            haproxy(2, true),
            Rival { name: "nginx".into(), kind: RivalKind::Nginx },
            Rival { name: "socat".into(), kind: RivalKind::Socat },
            Rival { name: "bare".into(), kind: RivalKind::Bare },
        ]
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The program of another project that it needs, and the flag that prints its version.
    pub(crate) fn program(&self) -> Option<(&'static str, &'static str)> {
        match self.kind {
            RivalKind::Forwarding | RivalKind::Tandem { .. } | RivalKind::Bare => None,
            RivalKind::Haproxy { .. } => Some(("haproxy", "-v")),
            RivalKind::Nginx => Some(("nginx", "-v")),
            RivalKind::Socat => Some(("socat", "-V")),
        }
    }

    /// Whether it is not measured with thousands of idle connections: socat forks for each, and the
    /// minimal relay is not made to hold any.
    pub(crate) fn is_spared(&self) -> bool {
        matches!(self.kind, RivalKind::Socat | RivalKind::Bare)
    }

    /// Starts it on the middle host. It runs until the returned value is dropped.
    pub(crate) fn start(&self, network: &ThreeHosts) -> Result<RunningRival> {
        let directory = tempfile::tempdir()?;
        let file = |name: &str, text: String| -> Result<PathBuf> {
            let path = directory.path().join(name);
            fs::write(&path, text)?;
            Ok(path)
        };
        let run = |program: &str, arguments: &[&str]| -> Result<Child> {
            network
                .middle
                .command(program)
                .args(arguments)
                .current_dir(directory.path())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(fs::File::create(directory.path().join("log"))?)
                .spawn()
                .with_context(|| format!("cannot run {program}"))
        };
        // Remove what the previous rival left.
        network.change_client_address()?;
        load_rules(&network.middle, "table ip others {}\ndelete table ip others\n")?;
        let mut children = Vec::new();
        let mut is_explicit = false;
        match &self.kind {
            RivalKind::Forwarding => {}
            RivalKind::Tandem { program, flags } => {
                if flags.iter().any(|flag| flag == "--no-rules") {
                    intercept(network)?;
                }
                let mut arguments = vec!["proxy", "--listen", "transparent=0.0.0.0:5000"];
                arguments.extend(flags.iter().map(String::as_str));
                children.push(run(&program.to_string_lossy(), &arguments)?);
            }
            RivalKind::Haproxy { threads, tuned } => {
                intercept(network)?;
                let path = file("haproxy.cfg", haproxy(*threads, *tuned))?;
                children.push(run("haproxy", &["-db", "-f", &path.to_string_lossy()])?);
            }
            RivalKind::Bare => {
                intercept(network)?;
                let this = std::env::current_exe().context("cannot find this program itself")?;
                children.push(run(&this.to_string_lossy(), &["bare", &format!("0.0.0.0:{PORT}")])?);
            }
            RivalKind::Nginx => {
                is_explicit = true;
                let path = file("nginx.conf", nginx(directory.path()))?;
                children.push(run("nginx", &["-c", &path.to_string_lossy(), "-e", "stderr"])?);
            }
            RivalKind::Socat => {
                is_explicit = true;
                for port in service_ports() {
                    let listen = format!("TCP4-LISTEN:{port},fork,reuseaddr,backlog=4096,nodelay");
                    children.push(run("socat", &["-b", "65536", &listen, &format!("TCP4:{}:{port},nodelay", ThreeHosts::SERVER)])?);
                }
            }
        }
        let running = RunningRival { children, is_explicit, directory };
        match running.await_ready(network) {
            Ok(()) => Ok(running),
            Err(error) => {
                let log = fs::read_to_string(running.directory.path().join("log")).unwrap_or_default();
                Err(error.context(format!("its log: {log}")))
            }
        }
    }
}

/// A running rival; stopped when dropped.
pub(crate) struct RunningRival {
    children: Vec<Child>,
    is_explicit: bool,
    directory: TempDir,
}

impl RunningRival {
    /// The address to which a client connects for this port of the server.
    pub(crate) fn address(&self, port: u16) -> SocketAddr {
        let host = if self.is_explicit { ThreeHosts::MIDDLE } else { ThreeHosts::SERVER };
        SocketAddr::new(host, port)
    }

    pub(crate) fn processes(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }

    /// Waits until connections go through it, and not past it.
    fn await_ready(&self, network: &ThreeHosts) -> Result<()> {
        let begun = Instant::now();
        loop {
            // A connection that is opened before its listener exists goes past the program, and
            // its end, which the program gets, never reaches the server.
            let all = (self.children.is_empty() || self.is_listening()?)
                && service_ports().all(|port| {
                    let try_port = || TcpStream::connect_timeout(&self.address(port), Duration::from_secs(1)).is_ok();
                    network.client.enter(try_port).unwrap_or(false)
                });
            if all {
                // Let the trial connections end before the measurement.
                thread::sleep(Duration::from_millis(100));
                return Ok(());
            }
            ensure!(begun.elapsed() < Duration::from_secs(10), "it does not answer within 10 s");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Whether each of its processes listens. Fails if one has ended.
    fn is_listening(&self) -> Result<bool> {
        for child in &self.children {
            let process = Path::new("/proc").join(child.id().to_string());
            // Threads may have descriptors of their own.
            let threads = fs::read_dir(process.join("task")).context("it ended at once")?;
            let descriptors = threads.flatten().filter_map(|thread| fs::read_dir(thread.path().join("fd")).ok());
            let links = descriptors.flat_map(Iterator::flatten).filter_map(|entry| fs::read_link(entry.path()).ok());
            let inodes: Vec<String> =
                links.filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())).collect();
            let tables = ["net/tcp", "net/tcp6"].map(|table| fs::read_to_string(process.join(table)).unwrap_or_default());
            // Columns: number, addresses, state (0A is LISTEN), …; the tenth is the inode.
            let is_listener = |line: &str| {
                let columns: Vec<&str> = line.split_whitespace().collect();
                columns.get(3) == Some(&"0A") && columns.get(9).is_some_and(|inode| inodes.iter().any(|own| own == inode))
            };
            if !tables.iter().flat_map(|table| table.lines()).any(is_listener) {
                return Ok(false);
            }
        }
        thread::sleep(Duration::from_millis(50));
        Ok(true)
    }
}

impl Drop for RunningRival {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = rustix::process::kill_process(rustix::process::Pid::from_child(child), rustix::process::Signal::TERM);
        }
        let begun = Instant::now();
        for child in &mut self.children {
            while matches!(child.try_wait(), Ok(None)) {
                if begun.elapsed() > Duration::from_secs(3) {
                    let _ = child.kill();
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// Redirects connections to a program that installs no rules itself, in the way its manual
/// describes.
fn intercept(network: &ThreeHosts) -> Result<()> {
    let rules = format!(
        "table ip others {{ chain prerouting {{ type filter hook prerouting priority mangle;\n\
         meta l4proto 6 socket transparent 1 meta mark set 1 accept\n\
         iifname near meta l4proto 6 tproxy to :{PORT} meta mark set 1 accept\n}}\n}}\n"
    );
    load_rules(&network.middle, &rules)?;
    // The previous rival may have left the rule and the route.
    let _ = network.middle.ip(&["rule add fwmark 1 lookup 100 pref 100".into()]);
    network.middle.ip(&["route replace local default dev lo table 100".into()])?;
    Ok(())
}

/// As Debian ships it, with splice and the client's address; optionally tuned as far as its manual
/// permits.
fn haproxy(threads: usize, tuned: bool) -> String {
    let tuning = if tuned {
        "    expose-experimental-directives\n    tune.pipesize 1048576\n    maxpipes 200\n    tune.maxpollevents 512\n    tune.fd.edge-triggered on\n    tune.recv_enough 65536\n"
    } else {
        ""
    };
    let smart = if tuned { "    option tcp-smart-connect\n    option tcp-smart-accept\n" } else { "" };
    format!(
        "global\n    nbthread {threads}\n    maxconn 7000\n{tuning}\ndefaults\n    mode tcp\n    timeout connect 10s\n    timeout client 1h\n    \
         timeout server 1h\n    option splice-request\n    option splice-response\n{smart}\nfrontend all\n    bind 0.0.0.0:{PORT} transparent\n    \
         default_backend there\n\nbackend there\n    source 0.0.0.0 usesrc clientip\n    server original 0.0.0.0\n"
    )
}

/// One worker that clients address: nginx's stream module cannot listen transparently.
fn nginx(directory: &Path) -> String {
    let servers: String = service_ports()
        .map(|port| {
            format!(
                "    server {{ listen {port} backlog=16384; proxy_pass {}:{port}; proxy_buffer_size 64k; tcp_nodelay on; }}\n",
                ThreeHosts::SERVER
            )
        })
        .collect();
    format!(
        "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\nworker_processes 1;\ndaemon off;\npid {}/pid;\nerror_log stderr;\n\
         events {{ worker_connections 16384; multi_accept on; }}\nstream {{\n{servers}}}\n",
        directory.display()
    )
}
