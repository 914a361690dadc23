//! What stands in the middle of a run, and what that makes of the connection.

use crate::{
    endpoints::{Call, Message},
    plan::Way,
    run_network::{PORT, Stage},
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
use testbed::pipe;

/// Where interception goes to, and where those listen that are called by name.
const INTERCEPTED: u16 = 5000;
const NAMED: u16 = 8080;
/// nginx's TCP proxy, as Debian installs it.
const DEBIAN_STREAM: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// Ways to run Tandem: what it is called, and its arguments, into which the leg towards the receiver, its link and its rate are put.
const TANDEMS: [(&str, &str); 15] = [
    ("plain", ""),
    ("small", "--buffer 64KiB"),
    ("unlimited", "--buffer unlimited --near control=bbr --far control=bbr"),
    ("large", "--buffer 16MiB --near control=cubic,not_sent=64KiB --far control=cubic,not_sent=64KiB"),
    ("forward", ""),
    ("socks5", ""),
    ("reno", "--near control=reno --far control=reno"),
    ("cubic", "--near control=cubic --far control=cubic"),
    ("hybla", "--near control=hybla --far control=hybla"),
    ("vegas", "--near control=td_vegas --far control=td_vegas"),
    ("westwood", "--near control=td_westwood --far control=td_westwood"),
    ("dctcp", "--near control=td_dctcp --far control=td_dctcp"),
    ("share", "--SIDE control=share,capacity=CAPACITY,link=LINK"),
    ("xcp", "--SIDE control=xcp,capacity=CAPACITY,link=LINK"),
    ("mpcp", "--SIDE control=mpcp,capacity=CAPACITY,link=LINK"),
];

/// Further ways, which the corpus has not: a buffer that holds what an operator's did, 16 s of 128 kbit/s.
const TANDEMS_BESIDES: [(&str, &str); 1] = [("operators", "--buffer 256KiB")];

/// Ways to run Tandem's cache.
const CACHES: [(&str, &str); 3] = [
    // All that it does, as it comes.
    ("plain", ""),
    // Nothing goes on before it is whole.
    ("hold", "--hold"),
    // Pictures alone are held, and made smaller.
    ("pictures", "--no-keep --no-compress"),
];

/// What stands in the middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Middle {
    /// Nothing but a router.
    Forwarding,
    /// Ours, in one of its ways.
    Tandem(&'static str),
    /// Our cache, transparent, in one of its ways.
    Cache(&'static str),
    /// Our bond, transparent, both of its ends on one host.
    Bond,
    /// In TCP mode, transparent.
    Haproxy,
    /// The same, calling servers from its own address.
    HaproxyOwn,
    /// In HTTP mode, called by name.
    HaproxyHttp,
    /// Its TCP proxy, called by name.
    NginxStream,
    /// Its HTTP proxy, called by name: holds all that goes up.
    NginxHttp,
    Socat,
    /// As an HTTP proxy that clients know.
    Squid,
    /// The second time: it has the answer.
    SquidAgain,
    /// Holds all that goes down.
    Varnish,
    /// A relay that holds each message until it has all of it, transparent.
    Hold,
}

/// What a run's connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Truth {
    Whole,
    Split,
    Proxy,
}

impl Middle {
    /// All that the corpus has, but none.
    pub(crate) fn all() -> Vec<Middle> {
        let others = [
            Middle::Cache("plain"),
            Middle::Cache("hold"),
            Middle::Bond,
            Middle::Haproxy,
            Middle::HaproxyHttp,
            Middle::NginxStream,
            Middle::NginxHttp,
            Middle::Socat,
            Middle::Squid,
            Middle::SquidAgain,
            Middle::Varnish,
            Middle::Hold,
        ];
        TANDEMS.iter().map(|(name, _)| Middle::Tandem(name)).chain(others).collect()
    }

    pub(crate) fn name(self) -> String {
        match self {
            Middle::Forwarding => "forwarding".into(),
            Middle::Tandem(way) => format!("tandem-{way}"),
            Middle::Cache(way) => format!("cache-{way}"),
            Middle::Bond => "bond".into(),
            Middle::Haproxy => "haproxy".into(),
            Middle::HaproxyOwn => "haproxy-own".into(),
            Middle::HaproxyHttp => "haproxy-http".into(),
            Middle::NginxStream => "nginx-stream".into(),
            Middle::NginxHttp => "nginx-http".into(),
            Middle::Socat => "socat".into(),
            Middle::Squid => "squid".into(),
            Middle::SquidAgain => "squid-again".into(),
            Middle::Varnish => "varnish".into(),
            Middle::Hold => "hold".into(),
        }
    }

    /// Whether it is met under every condition.
    pub(crate) fn is_thorough(self) -> bool {
        match self {
            Middle::Tandem(way) => matches!(way, "plain" | "small" | "unlimited"),
            Middle::Cache(_) | Middle::Bond | Middle::SquidAgain | Middle::Varnish | Middle::HaproxyHttp => false,
            _ => true,
        }
    }

    /// Whether it is of interest that way.
    pub(crate) fn goes(self, way: Way) -> bool {
        way == Way::Down || !matches!(self, Middle::SquidAgain | Middle::Varnish)
    }

    pub(crate) fn truth(self, way: Way) -> Truth {
        match self {
            Middle::Forwarding => Truth::Whole,
            Middle::Cache("hold") | Middle::Hold | Middle::SquidAgain | Middle::Varnish => Truth::Proxy,
            // proxy_request_buffering is on unless it is turned off.
            Middle::NginxHttp if way == Way::Up => Truth::Proxy,
            _ => Truth::Split,
        }
    }

    /// How the client reaches the server through it.
    pub(crate) fn call(self, stage: &Stage) -> Call {
        let server = stage.server_address();
        let named = SocketAddr::new(stage.middle_address(), NAMED);
        let to = match self {
            Middle::Tandem("forward" | "socks5") => named,
            Middle::HaproxyHttp | Middle::NginxStream | Middle::NginxHttp | Middle::Socat => named,
            Middle::Squid | Middle::SquidAgain | Middle::Varnish => named,
            _ => server,
        };
        let whole_url = matches!(self, Middle::Squid | Middle::SquidAgain);
        Call { to, server, socks: self == Middle::Tandem("socks5"), whole_url }
    }

    /// What this machine lacks for it.
    pub(crate) fn lacks(self, tandem: &Path) -> Option<String> {
        let program = |name: &str, package: &str| {
            let found = Command::new(name).arg("--help").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
            found.is_err().then(|| format!("there is no {name} (Debian package {package})"))
        };
        match self {
            Middle::Forwarding | Middle::Hold => None,
            Middle::Tandem(way) => {
                let ours = matches!(way, "hybla" | "vegas" | "westwood" | "dctcp" | "share" | "xcp" | "mpcp");
                let loads = || kernel::load("share", &[]).map(drop).err().map(|why| why.to_string());
                program(&tandem.to_string_lossy(), "none: cargo build -p tandem").or_else(|| if ours { loads() } else { None })
            }
            Middle::Cache(_) | Middle::Bond => program(&tandem.to_string_lossy(), "none: cargo build -p tandem"),
            Middle::Haproxy | Middle::HaproxyOwn | Middle::HaproxyHttp => program("haproxy", "haproxy"),
            Middle::NginxHttp => program("nginx", "nginx-light"),
            Middle::NginxStream => program("nginx", "nginx-light").or_else(|| {
                (!Path::new(DEBIAN_STREAM).exists()).then(|| format!("there is no {DEBIAN_STREAM} (Debian package libnginx-mod-stream)"))
            }),
            Middle::Socat => program("socat", "socat"),
            Middle::Squid | Middle::SquidAgain => program("squid", "squid"),
            Middle::Varnish => program("varnishd", "varnish"),
        }
    }

    /// Starts it on the middle host; it runs until what is returned is dropped.
    pub(crate) fn start(self, stage: &Stage, tandem: &Path, path: &super::plan::Path) -> Result<Running> {
        self.start_as(stage, tandem, path, None)
    }

    /// The same, of a transparent one; `at` is where it listens for what the caller's own rules bring it ([`intercept`]).
    pub(crate) fn start_at(self, stage: &Stage, tandem: &Path, path: &super::plan::Path, at: u16) -> Result<Running> {
        self.start_as(stage, tandem, path, Some(at))
    }

    fn start_as(self, stage: &Stage, tandem: &Path, path: &super::plan::Path, brought: Option<u16>) -> Result<Running> {
        let listen_at = brought.unwrap_or(INTERCEPTED);
        let own_rules = if brought.is_some() { "--no-rules" } else { "" };
        let directory = tempfile::tempdir()?;
        // Those that give up their rights still read and write there.
        fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
        let file = |name: &str, text: String| -> Result<String> {
            let path = directory.path().join(name);
            fs::write(&path, text)?;
            Ok(path.to_string_lossy().into_owned())
        };
        let at = directory.path().display();
        let (middle, server) = (stage.middle_address(), stage.server_address());
        let child = |program: &str, arguments: &[&str]| -> Result<Option<Child>> {
            let log = fs::File::create(directory.path().join("log"))?;
            let mut command = stage.middle().command(program);
            command.args(arguments).current_dir(directory.path()).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
            Ok(Some(command.spawn().with_context(|| format!("cannot run {program}"))?))
        };
        let mut others = None;
        let last = match self {
            Middle::Forwarding => None,
            Middle::Tandem(way) => {
                let flags = flags(TANDEMS.iter().chain(&TANDEMS_BESIDES), way);
                let listen = match way {
                    "forward" => format!("forward={middle}:{NAMED}={server}"),
                    "socks5" => format!("socks5={middle}:{NAMED}"),
                    _ => format!("transparent=0.0.0.0:{listen_at}"),
                };
                // The leg towards the data's receiver: the accepted one on the way down.
                let (side, link, kbit) = match stage.way() {
                    Way::Down => ("near", stage.client_link(), path.slow_kbit),
                    Way::Up => ("far", stage.server_link(), path.fast_kbit),
                };
                let flags = flags.replace("SIDE", side).replace("LINK", link).replace("CAPACITY", &format!("{kbit}kbit"));
                let flags = flags.split_whitespace().chain(own_rules.split_whitespace());
                let arguments: Vec<&str> = ["proxy", "--listen", &listen].into_iter().chain(flags).collect();
                child(&tandem.to_string_lossy(), &arguments)?
            }
            Middle::Cache(way) => {
                let listen = format!("transparent=0.0.0.0:{listen_at}");
                let flags = flags(CACHES.iter(), way).split_whitespace().chain(own_rules.split_whitespace());
                let arguments: Vec<&str> = ["cache", "--listen", &listen].into_iter().chain(flags).collect();
                child(&tandem.to_string_lossy(), &arguments)?
            }
            Middle::Bond => {
                let key = file("key", "the corpus needs no secret of its own".into())?;
                fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
                let serve = ["bond", "serve", "--name", "far", "--listen", "127.0.0.1:7000", "--key", &key];
                others = child(&tandem.to_string_lossy(), &serve)?;
                // Who is refused tries again a little later, and what comes in the meantime waits.
                await_listener(others.as_mut_slice(), stage.middle(), 7000).context("tandem bond serve")?;
                let listen = format!("transparent=0.0.0.0:{listen_at}");
                let connect = ["bond", "connect", "--listen", &listen, "--key", &key, "--to", "127.0.0.1:7000"];
                let networks = ["--network", "127.0.0.2", "--network", "127.0.0.3"];
                child(&tandem.to_string_lossy(), &[&connect[..], &networks].concat())?
            }
            Middle::Haproxy | Middle::HaproxyOwn => {
                if brought.is_none() {
                    intercept(stage, &[("", INTERCEPTED)])?;
                }
                let source = if self == Middle::Haproxy { "    source 0.0.0.0 usesrc clientip\n" } else { "" };
                let path = file(
                    "haproxy.cfg",
                    format!(
                        "{HAPROXY}    mode tcp\nfrontend all\n    bind 0.0.0.0:{listen_at} transparent\n    default_backend there\n\
                         backend there\n{source}    server original 0.0.0.0\n"
                    ),
                )?;
                child("haproxy", &["-db", "-f", &path])?
            }
            Middle::HaproxyHttp => {
                let listen = format!("listen all\n    mode http\n    bind {middle}:{NAMED}\n    server there {server}\n");
                let path = file("haproxy.cfg", format!("{HAPROXY}{listen}"))?;
                child("haproxy", &["-db", "-f", &path])?
            }
            Middle::NginxStream => {
                let stream = format!("stream {{ server {{ listen {middle}:{NAMED}; proxy_pass {server}; }} }}\n");
                let path = file("nginx.conf", format!("load_module {DEBIAN_STREAM};\n{}{stream}", nginx(directory.path())))?;
                child("nginx", &["-c", &path, "-e", "stderr"])?
            }
            Middle::NginxHttp => {
                let http = format!(
                    "http {{ access_log off; client_max_body_size 0; client_body_temp_path {at}/body; proxy_temp_path {at}/proxy;\n\
                     fastcgi_temp_path {at}/f; uwsgi_temp_path {at}/u; scgi_temp_path {at}/s;\n\
                     server {{ listen {middle}:{NAMED}; location / {{ proxy_pass http://{server}; proxy_http_version 1.1; }} }} }}\n"
                );
                let path = file("nginx.conf", format!("{}{http}", nginx(directory.path())))?;
                child("nginx", &["-c", &path, "-e", "stderr"])?
            }
            Middle::Socat => child("socat", &[&format!("TCP4-LISTEN:{NAMED},fork,reuseaddr"), &format!("TCP4:{server}")])?,
            Middle::Squid | Middle::SquidAgain => {
                let path = file(
                    "squid.conf",
                    format!(
                        "http_port {middle}:{NAMED}\nhttp_access allow all\nvisible_hostname middle\npid_filename {at}/pid\n\
                         cache_log {at}/cache.log\naccess_log none\ncache_mem 64 MB\nmaximum_object_size_in_memory 16 MB\ncoredump_dir {at}\n\
                         shutdown_lifetime 0 seconds\nnetdb_filename none\npinger_enable off\n"
                    ),
                )?;
                child("squid", &["-N", "-f", &path])?
            }
            Middle::Varnish => {
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
                let listen = format!("{middle}:{NAMED}");
                child("varnishd", &["-F", "-n", &format!("{at}/varnish"), "-a", &listen, "-f", &vcl, "-s", "malloc,64m", "-T", "none"])?
            }
            Middle::Hold => {
                intercept(stage, &[("", INTERCEPTED)])?;
                hold(stage)?;
                None
            }
        };
        let mut running = Running { children: others.into_iter().chain(last).collect(), directory };
        let to = self.call(stage).to;
        let port = if to.port() == PORT { listen_at } else { to.port() };
        running.await_ready(stage.middle(), port).with_context(|| {
            let log = fs::read_to_string(running.directory.path().join("log")).unwrap_or_default();
            format!("{} does not run; it said: {log}", self.name())
        })?;
        Ok(running)
    }
}

/// The arguments of a way that is called so.
fn flags(mut ways: impl Iterator<Item = &'static (&'static str, &'static str)>, way: &str) -> &'static str {
    ways.find(|(name, _)| *name == way).map_or("", |(_, flags)| flags)
}

/// Something in the middle, until it is dropped.
pub(crate) struct Running {
    children: Vec<Child>,
    directory: TempDir,
}

impl Running {
    /// Runs a program on `host` until what is returned is dropped, which listens at `port` then.
    pub(crate) fn start(host: &lab::Host, program: &Path, arguments: &[&str], port: u16) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let log = fs::File::create(directory.path().join("log"))?;
        let mut command = host.command(&program.to_string_lossy());
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().with_context(|| format!("cannot run {}", program.display()))?;
        let mut running = Running { children: vec![child], directory };
        running.await_ready(host, port).with_context(|| {
            let log = fs::read_to_string(running.directory.path().join("log")).unwrap_or_default();
            format!("{} {} does not run; it said: {log}", program.display(), arguments.join(" "))
        })?;
        Ok(running)
    }

    /// Whether all of it still runs.
    pub(crate) fn still(&mut self) -> Result<()> {
        still(&mut self.children)
    }

    /// Waits until all is ready.
    fn await_ready(&mut self, host: &lab::Host, port: u16) -> Result<()> {
        if !self.children.is_empty() {
            await_listener(&mut self.children, host, port)?;
            // Rules come after listeners.
            thread::sleep(Duration::from_millis(150));
        }
        Ok(())
    }
}

fn still(children: &mut [Child]) -> Result<()> {
    for child in children {
        ensure!(child.try_wait()?.is_none(), "it has ended");
    }
    Ok(())
}

/// Waits until one of them listens at `port`.
fn await_listener(children: &mut [Child], host: &lab::Host, port: u16) -> Result<()> {
    let begun = Instant::now();
    while !host.enter(|| listens(port))?? {
        still(children)?;
        ensure!(begun.elapsed() < Duration::from_secs(15), "it does not listen on port {port}");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Whether somebody in this thread's host listens at a port.
fn listens(port: u16) -> Result<bool> {
    let listens = |table: &str| {
        let text = fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
        // Local address, remote address, state 0A.
        text.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            words.next().is_some_and(|local| local.ends_with(&format!(":{port:04X}"))) && words.nth(1) == Some("0A")
        })
    };
    Ok(listens("tcp") || listens("tcp6"))
}

impl Drop for Running {
    fn drop(&mut self) {
        // Those that came last lead to those that came first.
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

/// Brings the client's connections to programs that do not do so themselves: those to which ports of servers (none: to all), and where they listen.
pub(crate) fn intercept(stage: &Stage, taken: &[(&str, u16)]) -> Result<()> {
    let link = stage.client_link();
    let lines = taken.iter().map(|(ports, at)| {
        let ports = if ports.is_empty() { String::new() } else { format!("tcp dport {{ {ports} }} ") };
        format!("iifname {link} meta l4proto 6 {ports}tproxy to :{at} meta mark set 1 accept\n")
    });
    let rules = format!(
        "table ip others {{ chain prerouting {{ type filter hook prerouting priority mangle;\n\
         meta l4proto 6 socket transparent 1 meta mark set 1 accept\n{}}}\n}}\n",
        lines.collect::<String>()
    );
    pipe(stage.middle().command("nft").args(["-f", "-"]), &rules)?;
    stage.middle().ip(&["rule add fwmark 1 lookup 100 pref 100".into(), "route replace local default dev lo table 100".into()])?;
    Ok(())
}

/// A relay that receives each message whole and then forwards it; it serves one connection, as the client's address.
fn hold(stage: &Stage) -> Result<()> {
    let listener = stage.middle().enter(|| -> Result<Socket> {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        listener.set_ip_transparent_v4(true).context("cannot listen transparently")?;
        listener.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, INTERCEPTED)).into())?;
        listener.listen(16)?;
        Ok(listener)
    })??;
    let serve = move || -> Result<()> {
        let (near, client) = listener.accept()?;
        let server = near.local_addr()?;
        let mut near = TcpStream::from(near);
        let asked = Message::read(&mut near, false)?;
        let far = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        far.set_ip_transparent_v4(true)?;
        far.bind(&client)?;
        far.connect(&server)?;
        let mut far = TcpStream::from(far);
        far.write_all(&[asked.head.as_bytes(), &asked.body].concat())?;
        let answer = Message::read(&mut far, true)?;
        near.write_all(&[answer.head.as_bytes(), &answer.body].concat())?;
        Ok(())
    };
    stage.middle().spawn("hold", serve)?;
    Ok(())
}
