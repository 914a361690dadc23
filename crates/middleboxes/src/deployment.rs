//! Starts a middlebox on the middle host of a run.

use crate::{
    conditions::{BulkDirection, PathSpec},
    endpoints::{HttpMessage, ServerAccess},
    middlebox::{CACHES, FURTHER_TANDEMS, Middlebox, TANDEMS},
    run_network::{PORT, RunNetwork},
};
use anyhow::{Context as _, Result, ensure};
use socket2::{Domain, Socket, Type};
use std::{
    fs,
    io::Write as _,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Port of transparent middleboxes, and port of those that clients address explicitly.
const TRANSPARENT_PORT: u16 = 5000;
const EXPLICIT_PORT: u16 = 8080;
/// nginx's stream module, as Debian installs it.
const DEBIAN_STREAM: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

impl Middlebox {
    /// How the client reaches the server through it.
    pub(crate) fn access(self, network: &RunNetwork) -> ServerAccess {
        let server = network.server_address();
        let explicit = SocketAddr::new(network.middle_address(), EXPLICIT_PORT);
        let to = match self {
            Middlebox::Tandem("forward" | "socks5") => explicit,
            Middlebox::HaproxyHttp | Middlebox::NginxStream | Middlebox::NginxHttp | Middlebox::Socat => explicit,
            Middlebox::Squid | Middlebox::SquidAgain | Middlebox::Varnish => explicit,
            _ => server,
        };
        let whole_url = matches!(self, Middlebox::Squid | Middlebox::SquidAgain);
        ServerAccess { to, server, socks: self == Middlebox::Tandem("socks5"), whole_url }
    }

    /// Which requirement of it this machine lacks.
    pub fn missing_requirement(self, tandem: &Path) -> Option<String> {
        let program = |name: &str, package: &str| {
            let found = Command::new(name).arg("--help").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
            found.is_err().then(|| format!("{name} is not installed (Debian package {package})"))
        };
        match self {
            Middlebox::Forwarding | Middlebox::Hold | Middlebox::Lingering(_) => None,
            Middlebox::Tandem(variant) => {
                let ours = matches!(variant, "hybla" | "vegas" | "westwood" | "dctcp" | "share" | "xcp" | "mpcp");
                let loads = || kernel::load("share", &[]).map(drop).err().map(|why| why.to_string());
                program(&tandem.to_string_lossy(), "none: cargo build -p tandem").or_else(|| if ours { loads() } else { None })
            }
            Middlebox::Cache(_) | Middlebox::Bond => program(&tandem.to_string_lossy(), "none: cargo build -p tandem"),
            Middlebox::Haproxy | Middlebox::HaproxyOwn | Middlebox::HaproxyTunnel | Middlebox::HaproxyHttp => program("haproxy", "haproxy"),
            Middlebox::NginxHttp => program("nginx", "nginx-light"),
            Middlebox::NginxStream => program("nginx", "nginx-light").or_else(|| {
                (!Path::new(DEBIAN_STREAM).exists())
                    .then(|| format!("{DEBIAN_STREAM} is not installed (Debian package libnginx-mod-stream)"))
            }),
            Middlebox::Socat => program("socat", "socat"),
            Middlebox::Squid | Middlebox::SquidAgain => program("squid", "squid"),
            Middlebox::Varnish => program("varnishd", "varnish"),
        }
    }

    /// Starts it on the middle host. It runs until the returned value is dropped.
    pub(crate) fn start(self, network: &RunNetwork, tandem: &Path, path: &PathSpec) -> Result<MiddleboxProcesses> {
        self.start_as(network, tandem, path, None)
    }

    /// Starts a transparent one that listens at port `at`, to which the caller's own rules redirect
    /// connections ([`intercept`]).
    pub(crate) fn start_at(self, network: &RunNetwork, tandem: &Path, path: &PathSpec, at: u16) -> Result<MiddleboxProcesses> {
        self.start_as(network, tandem, path, Some(at))
    }

    fn start_as(self, network: &RunNetwork, tandem: &Path, path: &PathSpec, brought: Option<u16>) -> Result<MiddleboxProcesses> {
        let listen_at = brought.unwrap_or(TRANSPARENT_PORT);
        let own_rules = if brought.is_some() { "--no-rules" } else { "" };
        let directory = tempfile::tempdir()?;
        // Programs that drop their privileges read and write there.
        fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
        let file = |name: &str, text: String| -> Result<String> {
            let path = directory.path().join(name);
            fs::write(&path, text)?;
            Ok(path.to_string_lossy().into_owned())
        };
        let at = directory.path().display();
        let (middle, server) = (network.middle_address(), network.server_address());
        let child = |program: &str, arguments: &[&str]| -> Result<Option<Child>> {
            let log = fs::File::create(directory.path().join("log"))?;
            let mut command = network.middle().command(program);
            command.args(arguments).current_dir(directory.path()).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
            Ok(Some(command.spawn().with_context(|| format!("cannot run {program}"))?))
        };
        let mut others = None;
        let last = match self {
            Middlebox::Forwarding => None,
            Middlebox::Tandem(variant) => {
                let flags = flags(TANDEMS.iter().chain(&FURTHER_TANDEMS), variant);
                let listen = match variant {
                    "forward" => format!("forward={middle}:{EXPLICIT_PORT}={server}"),
                    "socks5" => format!("socks5={middle}:{EXPLICIT_PORT}"),
                    _ => format!("transparent=0.0.0.0:{listen_at}"),
                };
                // The leg towards the receiver: for downloads the accepted one.
                let (side, link, kbit) = match network.direction() {
                    BulkDirection::Down => ("near", network.client_link(), path.slow_kbit),
                    BulkDirection::Up => ("far", network.server_link(), path.fast_kbit),
                };
                let flags = flags.replace("SIDE", side).replace("LINK", link).replace("CAPACITY", &format!("{kbit}kbit"));
                let flags = flags.split_whitespace().chain(own_rules.split_whitespace());
                let arguments: Vec<&str> = ["proxy", "--listen", &listen].into_iter().chain(flags).collect();
                child(&tandem.to_string_lossy(), &arguments)?
            }
            Middlebox::Cache(variant) => {
                let listen = format!("transparent=0.0.0.0:{listen_at}");
                let flags = flags(CACHES.iter(), variant).split_whitespace().chain(own_rules.split_whitespace());
                let arguments: Vec<&str> = ["cache", "--listen", &listen].into_iter().chain(flags).collect();
                child(&tandem.to_string_lossy(), &arguments)?
            }
            Middlebox::Bond => {
                let key = file("key", "the corpus needs no secret of its own".into())?;
                fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
                let serve = ["bond", "serve", "--name", "far", "--listen", "127.0.0.1:7000", "--key", &key];
                others = child(&tandem.to_string_lossy(), &serve)?;
                // A refused bond retries after a pause, during which connections would wait.
                await_listener(others.as_mut_slice(), network.middle(), 7000).context("tandem bond serve")?;
                let listen = format!("transparent=0.0.0.0:{listen_at}");
                let connect = ["bond", "connect", "--listen", &listen, "--key", &key, "--to", "127.0.0.1:7000"];
                let networks = ["--network", "127.0.0.2", "--network", "127.0.0.3"];
                child(&tandem.to_string_lossy(), &[&connect[..], &networks].concat())?
            }
            Middlebox::Haproxy | Middlebox::HaproxyOwn | Middlebox::HaproxyTunnel => {
                let link = match self {
                    Middlebox::HaproxyTunnel => network.add_tunnel()?,
                    _ => network.client_link(),
                };
                if brought.is_none() {
                    intercept_from(network, link, &[("", TRANSPARENT_PORT)])?;
                }
                let source = if self != Middlebox::HaproxyOwn { "    source 0.0.0.0 usesrc clientip\n" } else { "" };
                let path = file(
                    "haproxy.cfg",
                    format!(
                        "{HAPROXY}    mode tcp\nfrontend all\n    bind 0.0.0.0:{listen_at} transparent\n    default_backend there\n\
                         backend there\n{source}    server original 0.0.0.0\n"
                    ),
                )?;
                child("haproxy", &["-db", "-f", &path])?
            }
            Middlebox::HaproxyHttp => {
                let listen = format!("listen all\n    mode http\n    bind {middle}:{EXPLICIT_PORT}\n    server there {server}\n");
                let path = file("haproxy.cfg", format!("{HAPROXY}{listen}"))?;
                child("haproxy", &["-db", "-f", &path])?
            }
            Middlebox::NginxStream => {
                let stream = format!("stream {{ server {{ listen {middle}:{EXPLICIT_PORT}; proxy_pass {server}; }} }}\n");
                let path = file("nginx.conf", format!("load_module {DEBIAN_STREAM};\n{}{stream}", nginx(directory.path())))?;
                child("nginx", &["-c", &path, "-e", "stderr"])?
            }
            Middlebox::NginxHttp => {
                let http = format!(
                    "http {{ access_log off; client_max_body_size 0; client_body_temp_path {at}/body; proxy_temp_path {at}/proxy;\n\
                     fastcgi_temp_path {at}/f; uwsgi_temp_path {at}/u; scgi_temp_path {at}/s;\n\
                     server {{ listen {middle}:{EXPLICIT_PORT}; location / {{ proxy_pass http://{server}; proxy_http_version 1.1; }} }} }}\n"
                );
                let path = file("nginx.conf", format!("{}{http}", nginx(directory.path())))?;
                child("nginx", &["-c", &path, "-e", "stderr"])?
            }
            Middlebox::Socat => child("socat", &[&format!("TCP4-LISTEN:{EXPLICIT_PORT},fork,reuseaddr"), &format!("TCP4:{server}")])?,
            Middlebox::Squid | Middlebox::SquidAgain => {
                let path = file(
                    "squid.conf",
                    format!(
                        "http_port {middle}:{EXPLICIT_PORT}\nhttp_access allow all\nvisible_hostname middle\npid_filename {at}/pid\n\
                         cache_log {at}/cache.log\naccess_log none\ncache_mem 64 MB\nmaximum_object_size_in_memory 16 MB\ncoredump_dir {at}\n\
                         shutdown_lifetime 0 seconds\nnetdb_filename none\npinger_enable off\n"
                    ),
                )?;
                child("squid", &["-N", "-f", &path])?
            }
            Middlebox::Varnish => {
                let SocketAddr::V4(there) = server else { anyhow::bail!("the lab's servers have IPv4") };
                let vcl = file(
                    "hold.vcl",
                    format!(
                        "vcl 4.1;\nbackend there {{ .host = \"{}\"; .port = \"{}\"; }}\n\
                         sub vcl_backend_response {{ set beresp.do_stream = false; }}\n",
                        there.ip(),
                        there.port()
                    ),
                )?;
                let listen = format!("{middle}:{EXPLICIT_PORT}");
                child("varnishd", &["-F", "-n", &format!("{at}/varnish"), "-a", &listen, "-f", &vcl, "-s", "malloc,64m", "-T", "none"])?
            }
            Middlebox::Hold => {
                intercept(network, &[("", TRANSPARENT_PORT)])?;
                serve_transparently(network, "hold", |near, far| {
                    let answer = HttpMessage::read(far, true)?;
                    Ok(near.write_all(&[answer.head.as_bytes(), &answer.body].concat())?)
                })?;
                None
            }
            Middlebox::Lingering(seconds) => {
                intercept(network, &[("", TRANSPARENT_PORT)])?;
                serve_transparently(network, "linger", move |near, far| {
                    // The client's reset ends the copying. The server sends until its window is shut.
                    let copied = std::io::copy(far, near);
                    if copied.is_err() {
                        thread::sleep(Duration::from_secs(seconds.into()));
                    }
                    Ok(())
                })?;
                None
            }
        };
        let mut running = MiddleboxProcesses { children: others.into_iter().chain(last).collect(), directory };
        let to = self.access(network).to;
        let port = if to.port() == PORT { listen_at } else { to.port() };
        running.await_ready(network.middle(), port).with_context(|| {
            let log = fs::read_to_string(running.directory.path().join("log")).unwrap_or_default();
            format!("cannot start {}; its log: {log}", self.name())
        })?;
        Ok(running)
    }
}

/// Arguments of a variant.
fn flags(mut variants: impl Iterator<Item = &'static (&'static str, &'static str)>, variant: &str) -> &'static str {
    variants.find(|(name, _)| *name == variant).map_or("", |(_, flags)| flags)
}

/// Processes of a middlebox; stopped when dropped.
pub(crate) struct MiddleboxProcesses {
    children: Vec<Child>,
    directory: TempDir,
}

impl MiddleboxProcesses {
    /// Runs a program on `host` and waits until it listens at `port`. It runs until the returned
    /// value is dropped.
    pub(crate) fn start(host: &lab::Host, program: &Path, arguments: &[&str], port: u16) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let log = fs::File::create(directory.path().join("log"))?;
        let mut command = host.command(&program.to_string_lossy());
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().with_context(|| format!("cannot run {}", program.display()))?;
        let mut running = MiddleboxProcesses { children: vec![child], directory };
        running.await_ready(host, port).with_context(|| {
            let log = fs::read_to_string(running.directory.path().join("log")).unwrap_or_default();
            format!("cannot start {} {}; its log: {log}", program.display(), arguments.join(" "))
        })?;
        Ok(running)
    }

    /// Fails if one of the processes has ended.
    pub(crate) fn ensure_running(&mut self) -> Result<()> {
        ensure_running(&mut self.children)
    }

    /// Waits until all processes are ready.
    fn await_ready(&mut self, host: &lab::Host, port: u16) -> Result<()> {
        if !self.children.is_empty() {
            await_listener(&mut self.children, host, port)?;
            // Rules are installed after the listeners.
            thread::sleep(Duration::from_millis(150));
        }
        Ok(())
    }
}

fn ensure_running(children: &mut [Child]) -> Result<()> {
    for child in children {
        ensure!(child.try_wait()?.is_none(), "the middlebox ended");
    }
    Ok(())
}

/// Waits until one of the processes listens at `port`.
fn await_listener(children: &mut [Child], host: &lab::Host, port: u16) -> Result<()> {
    let begun = Instant::now();
    while !host.enter(|| listens(port))?? {
        ensure_running(children)?;
        ensure!(begun.elapsed() < Duration::from_secs(15), "no process listens on port {port} after 15 s");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Whether a socket of the current thread's host listens at this port.
fn listens(port: u16) -> Result<bool> {
    let listens = |table: &str| {
        let text = fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
        // Columns: local address, remote address, state (0A: listening).
        text.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            words.next().is_some_and(|local| local.ends_with(&format!(":{port:04X}"))) && words.nth(1) == Some("0A")
        })
    };
    Ok(listens("tcp") || listens("tcp6"))
}

impl Drop for MiddleboxProcesses {
    fn drop(&mut self) {
        // The last process connects to the first ones, so it ends first.
        for child in self.children.iter_mut().rev() {
            let _ = rustix::process::kill_process(rustix::process::Pid::from_child(child), rustix::process::Signal::TERM);
            let begun = Instant::now();
            while matches!(child.try_wait(), Ok(None)) {
                if begun.elapsed() > Duration::from_secs(3) {
                    let _ = child.kill();
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

const HAPROXY: &str = "global\n    maxconn 100\ndefaults\n    timeout connect 10s\n    timeout client 1m\n    timeout server 1m\n    \
                       option splice-request\n    option splice-response\n";

fn nginx(directory: &Path) -> String {
    format!("worker_processes 1;\nuser root;\ndaemon off;\npid {}/pid;\nerror_log stderr;\nevents {{ }}\n", directory.display())
}

/// Redirects the client's connections, for middleboxes that install no rules of their own. `taken`
/// lists ports of servers (empty: all) and the port of the middlebox.
pub(crate) fn intercept(network: &RunNetwork, taken: &[(&str, u16)]) -> Result<()> {
    intercept_from(network, network.client_link(), taken)
}

/// The same for connections that arrive from `link`.
fn intercept_from(network: &RunNetwork, link: &str, taken: &[(&str, u16)]) -> Result<()> {
    let lines = taken.iter().map(|(ports, at)| {
        let ports = if ports.is_empty() { String::new() } else { format!("tcp dport {{ {ports} }} ") };
        format!("iifname {link} meta l4proto 6 {ports}tproxy to :{at} meta mark set 1 accept\n")
    });
    let rules = format!(
        "table ip others {{ chain prerouting {{ type filter hook prerouting priority mangle;\n\
         meta l4proto 6 socket transparent 1 meta mark set 1 accept\n{}}}\n}}\n",
        lines.collect::<String>()
    );
    testbed::load_rules(network.middle(), &rules)?;
    network.middle().ip(&["rule add fwmark 1 lookup 100 pref 100".into(), "route replace local default dev lo table 100".into()])?;
    Ok(())
}

/// Starts a relay that serves one connection. It receives a request completely, dials the server from
/// the client's address and sends the request. `answer` gets the client's and the server's connection.
fn serve_transparently(
    network: &RunNetwork,
    name: &'static str,
    answer: impl FnOnce(&mut TcpStream, &mut TcpStream) -> Result<()> + Send + 'static,
) -> Result<()> {
    let listener = network.middle().enter(|| -> Result<Socket> {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        listener.set_ip_transparent_v4(true).context("cannot listen transparently")?;
        listener.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, TRANSPARENT_PORT)).into())?;
        listener.listen(16)?;
        Ok(listener)
    })??;
    let serve = move || -> Result<()> {
        let (near, client) = listener.accept()?;
        let server = near.local_addr()?;
        let mut near = TcpStream::from(near);
        let asked = HttpMessage::read(&mut near, false)?;
        let far = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        far.set_ip_transparent_v4(true)?;
        far.bind(&client)?;
        far.connect(&server)?;
        let mut far = TcpStream::from(far);
        far.write_all(&[asked.head.as_bytes(), &asked.body].concat())?;
        answer(&mut near, &mut far)
    };
    network.middle().spawn(name, serve)?;
    Ok(())
}
