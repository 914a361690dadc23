//! Real programs through the transparent proxy and through a bond: curl from nginx, HTTP/2 and TLS,
//! a browser, ssh and scp, rsync, iperf3, an exchange with pauses; IPv4 and IPv6; opened by the
//! sender and by the receiver.

use crate::common::{self, Daemon, skip, wait_for_listener, wait_for_port};
use lab::{Host, NetworkOptions, SeriesNetwork};
use proxy::{BondConfig, Ending, FlowRecord, FlowStats, ListenerConfig, NetworkSpec, Proxy, ProxyConfig};
use scenario::ScenarioFile;
use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{IpAddr, Shutdown, TcpListener, TcpStream, ToSocketAddrs},
    path::Path,
    process::{Command, Output, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

const LINKS: &str = r#"
name = "clients"
[[link]]
rate  = "1Gbit"
delay = "1ms"
[[link]]
rate  = "400Mbit"
delay = "10ms"
[[split]]
after  = 1
buffer = "1MiB"
[control]
proxy = "bbr"
[[flow]]
bytes = "1B"
"#;

/// The middlebox between clients and servers.
enum Middle {
    /// A proxy between two links.
    Proxy(SeriesNetwork),
    /// Two gateways with two networks and a bond between them: client, gateway, gateway, server; and the two ends of the bond.
    Bond([Host; 4], Vec<Proxy>),
}

/// Clients, servers and the middlebox between them, and its finished flows.
struct Bench {
    middle: Middle,
    ended: Arc<Mutex<Vec<FlowRecord>>>,
}

impl Bench {
    /// Returns a bench with a proxy and one with a bond.
    fn all() -> [Self; 2] {
        [Bench::with_proxy(), Bench::with_bond()]
    }

    fn with_proxy() -> Self {
        let scenario = ScenarioFile::parse(LINKS, "clients").unwrap().variants(&[]).unwrap().remove(0).scenario;
        let ended = Arc::new(Mutex::new(Vec::new()));
        let records = ended.clone();
        let network =
            SeriesNetwork::build(&scenario, 1, &NetworkOptions::default(), move |_, record| records.lock().unwrap().push(record)).unwrap();
        Bench { middle: Middle::Proxy(network), ended }
    }

    fn with_bond() -> Self {
        let hosts = ["client", "near", "far", "server"].map(|name| Host::new(name).unwrap());
        let [client, near, far, server] = &hosts;
        client.join(&["10.1.0.1/24", "fd01::1/64"], near, &["10.1.0.2/24", "fd01::2/64"], "lan").unwrap();
        near.join(&["10.2.0.1/24"], far, &["10.2.0.2/24"], "first").unwrap();
        near.join(&["fd03::1/64"], far, &["fd03::2/64"], "second").unwrap();
        far.join(&["10.4.0.1/24", "fd04::1/64"], server, &["10.4.0.2/24", "fd04::2/64"], "lan").unwrap();
        client.ip(&["route add 10.4.0.0/24 via 10.1.0.2".into(), "route add fd04::/64 via fd01::2".into()]).unwrap();
        near.sysctl(&[("ipv4/ip_forward", "1".into()), ("ipv6/conf/all/forwarding", "1".into())]).unwrap();
        // Routes to the servers by way of the other gateway.
        near.ip(&["route add 10.4.0.0/24 via 10.2.0.2".into(), "route add fd04::/64 via fd03::2".into()]).unwrap();
        let ended = Arc::new(Mutex::new(Vec::new()));
        let bond =
            BondConfig { key: Some(bond::PresharedKey::new(b"a key for these tests alone").unwrap()), tls: true, ..BondConfig::default() };
        let network = |text: &str| text.parse::<NetworkSpec>().unwrap().network(None).unwrap();
        let networks = vec![network("first,to=10.2.0.2:7000"), network("second,to=[fd03::2]:7000")];
        let serves = ProxyConfig {
            listen: vec![ListenerConfig::bond("[::]:7000".parse().unwrap())],
            bond: Some(bond.clone()),
            ..ProxyConfig::default()
        };
        let connects = ProxyConfig {
            listen: vec![ListenerConfig::transparent("[::]:5000".parse().unwrap())],
            networks,
            bond: Some(bond),
            ..ProxyConfig::default()
        };
        let records = ended.clone();
        let serves = far.enter(|| Proxy::start(serves, |_| {}).unwrap()).unwrap();
        let connects = near.enter(|| Proxy::start(connects, move |record| records.lock().unwrap().push(record)).unwrap()).unwrap();
        Bench { middle: Middle::Bond(hosts, vec![connects, serves]), ended }
    }

    /// Returns client host, server host and the server's addresses; with a proxy, connections
    /// opened by the sender, then by the receiver.
    fn ways(&self) -> Vec<(&Host, &Host, [IpAddr; 2])> {
        match &self.middle {
            Middle::Proxy(network) => {
                let (sender, receiver) = (network.sender(), network.receiver());
                vec![(sender, receiver, network.receiver_addresses()), (receiver, sender, network.sender_addresses())]
            }
            Middle::Bond([client, .., server], _) => vec![(client, server, ["10.4.0.2", "fd04::2"].map(|text| text.parse().unwrap()))],
        }
    }

    /// Returns the current flows.
    fn flows(&self) -> Vec<FlowStats> {
        match &self.middle {
            Middle::Proxy(network) => network.proxy_flows().concat(),
            Middle::Bond(_, ends) => ends[0].flows(),
        }
    }

    /// Returns the client addresses that a server with these addresses sees.
    fn known_by(&self, server: [IpAddr; 2]) -> [IpAddr; 2] {
        match &self.middle {
            Middle::Proxy(_) => self.ways().into_iter().find(|way| way.2 != server).unwrap().2,
            // The accepting end of the bond.
            Middle::Bond(..) => ["10.4.0.1", "fd04::1"].map(|text| text.parse().unwrap()),
        }
    }

    /// Waits for a flow to this server that moved at least so much and ended well: the proof that
    /// the proxy carried it.
    fn assert_split(&self, server: IpAddr, port: u16, at_least: u64) {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(30) {
            let records = self.ended.lock().unwrap();
            let found = records.iter().any(|record| {
                let last = &record.last;
                last.server.ip() == server
                    && last.server.port() == port
                    && last.up.moved.max(last.down.moved) >= at_least
                    && record.ending == Ending::Finished
            });
            if found {
                return;
            }
            drop(records);
            thread::sleep(Duration::from_millis(20));
        }
        panic!("no flow of {at_least} bytes to {server}:{port} went through the proxy: {:?}", self.ended.lock().unwrap());
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // Each proxy removes its rules in its own namespace.
        if let Middle::Bond(hosts, ends) = &mut self.middle {
            for (host, end) in hosts[1..].iter().zip(ends.drain(..)) {
                host.enter(|| drop(end)).unwrap();
            }
        }
    }
}

fn run(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|why| panic!("{command:?}: {why}"));
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    output
}

fn in_url(address: IpAddr) -> String {
    if address.is_ipv6() { format!("[{address}]") } else { address.to_string() }
}

fn checksum(path: &Path) -> String {
    let output = run(Command::new("sha256sum").arg(path));
    String::from_utf8_lossy(&output.stdout).split_whitespace().next().unwrap_or_default().to_string()
}

/// Writes a file of random bytes, size in MB.
fn random_file(path: &Path, megabytes: u64) {
    run(Command::new("sh").args(["-c", &format!("head -c {}000000 /dev/urandom > {}", megabytes, path.display())]));
}

/// Starts nginx on a host, serving a directory; `listen` are its listen directives.
fn nginx(host: &Host, here: &Path, number: usize, listen: &str) -> Daemon {
    // nginx's workers run as an unprivileged user.
    fs::set_permissions(here, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let configuration = here.join(format!("nginx{number}.conf"));
    let text = format!(
        "daemon off; master_process off; pid {0}/pid{number}; error_log stderr;\nevents {{ }}\n\
         http {{ types {{ text/html html; image/bmp bmp; }} access_log off; sendfile on; client_body_temp_path {0}/body{number};\n\
         proxy_temp_path {0}/proxy{number}; fastcgi_temp_path {0}/fastcgi{number}; uwsgi_temp_path {0}/uwsgi{number};\n\
         scgi_temp_path {0}/scgi{number}; server {{ {listen} root {0}; }} }}\n",
        here.display()
    );
    fs::write(&configuration, text).unwrap();
    Daemon::start(host.command("nginx").arg("-c").arg(&configuration))
}

/// Writes a key and a certificate for the hosts' addresses; returns nginx's directives for TLS with
/// them.
fn certificate(bench: &Bench, here: &Path) -> String {
    let names: Vec<String> = bench.ways().into_iter().flat_map(|way| way.2).map(|address| format!("IP:{address}")).collect();
    let mut openssl = Command::new("openssl");
    openssl.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-subj",
        "/CN=tandem",
        "-days",
        "2",
    ]);
    openssl.args(["-addext", &format!("subjectAltName={}", names.join(","))]);
    run(openssl.arg("-keyout").arg(here.join("key.pem")).arg("-out").arg(here.join("certificate.pem")));
    format!(
        "listen 443 ssl http2; listen [::]:443 ssl http2; ssl_certificate {0}/certificate.pem; ssl_certificate_key {0}/key.pem;",
        here.display()
    )
}

#[test]
fn curl_fetches_100_mb_from_nginx() {
    if skip("curl_fetches_100_mb_from_nginx", &["curl", "nginx", "sha256sum"]) {
        return;
    }
    Bench::all().iter().for_each(fetch);
}

fn fetch(bench: &Bench) {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    random_file(&here.join("file"), 100);
    let sum = checksum(&here.join("file"));
    for (number, (client, server, addresses)) in bench.ways().into_iter().enumerate() {
        let _nginx = nginx(server, here, number, "listen 80; listen [::]:80;");
        for address in addresses {
            wait_for_port(server, address, 80);
            let got = here.join("got");
            run(client.command("curl").args(["-sS", "--fail", "-o"]).arg(&got).arg(format!("http://{}/file", in_url(address))));
            assert_eq!(checksum(&got), sum, "from {address}");
            bench.assert_split(address, 80, 100_000_000);
        }
    }
}

#[test]
fn curl_speaks_http2_over_tls() {
    if skip("curl_speaks_http2_over_tls", &["curl", "nginx", "openssl", "sha256sum"]) {
        return;
    }
    Bench::all().iter().for_each(fetch_by_http2);
}

fn fetch_by_http2(bench: &Bench) {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let listen = certificate(bench, here);
    let names = ["one", "two", "three", "four"];
    names.iter().for_each(|name| random_file(&here.join(name), 5));
    for (number, (client, server, addresses)) in bench.ways().into_iter().enumerate() {
        let _nginx = nginx(server, here, number, &listen);
        for address in addresses {
            wait_for_port(server, address, 443);
            // Concurrent streams of one connection.
            let mut curl = client.command("curl");
            curl.args(["-sS", "--fail", "--http2", "--parallel", "-w", "%{http_version} %{ssl_verify_result}\n", "--cacert"]);
            curl.arg(here.join("certificate.pem"));
            for name in names {
                curl.arg(format!("https://{}/{name}", in_url(address))).arg("-o").arg(here.join(format!("got-{name}")));
            }
            assert_eq!(String::from_utf8_lossy(&run(&mut curl).stdout), "2 0\n".repeat(names.len()), "from {address}");
            for name in names {
                assert_eq!(checksum(&here.join(format!("got-{name}"))), checksum(&here.join(name)), "{name} from {address}");
            }
            bench.assert_split(address, 443, 5_000_000);
        }
    }
}

/// Writes an uncompressed image (BMP, 24 bits per pixel) of random pixels.
fn random_image(path: &Path, width: u32, height: u32) {
    let size = width * height * 3;
    let mut bytes = b"BM".to_vec();
    for number in [54 + size, 0, 54, 40, width, height, 1 | 24 << 16, 0, size, 0, 0, 0, 0] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    let mut pixels = vec![0; size as usize];
    fs::File::open("/dev/urandom").unwrap().read_exact(&mut pixels).unwrap();
    bytes.extend(pixels);
    fs::write(path, bytes).unwrap();
}

/// A page that shows the number of images loaded, and the checksum of a file that it fetches.
const PAGE: &str = r#"<!doctype html><body>IMAGES<p id="images"></p><p id="file"></p><script>
onload = () => {
    images.textContent = "images " + [...document.images].filter(image => image.naturalWidth == 200).length;
};
fetch("file").then(answer => answer.arrayBuffer()).then(bytes => crypto.subtle.digest("SHA-256", bytes)).then(sum => {
    file.textContent = "file " + [...new Uint8Array(sum)].map(byte => byte.toString(16).padStart(2, "0")).join("");
});
</script>"#;

#[test]
fn a_browser_loads_a_page_with_images_and_a_file() {
    if skip("a_browser_loads_a_page_with_images_and_a_file", &["chromium", "nginx", "openssl", "sha256sum", "timeout"]) {
        return;
    }
    Bench::all().iter().for_each(browse);
}

fn browse(bench: &Bench) {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    // crypto.subtle requires TLS.
    let listen = certificate(bench, here);
    random_file(&here.join("file"), 10);
    let wanted = format!("file {}", checksum(&here.join("file")));
    let mut images = String::new();
    for number in 0..12 {
        random_image(&here.join(format!("{number}.bmp")), 200, 300);
        images += &format!("<img src=\"{number}.bmp\">");
    }
    fs::write(here.join("page.html"), PAGE.replace("IMAGES", &images)).unwrap();
    for (number, (client, server, addresses)) in bench.ways().into_iter().enumerate() {
        let _nginx = nginx(server, here, number, &listen);
        for (family, address) in addresses.into_iter().enumerate() {
            wait_for_port(server, address, 443);
            let mut chromium = client.command("timeout");
            chromium.args(["-k", "5", "120", "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]);
            chromium.args(["--disable-background-networking", "--disable-dev-shm-usage", "--ignore-certificate-errors"]);
            chromium.arg(format!("--user-data-dir={}/profile{number}{family}", here.display()));
            chromium.args(["--virtual-time-budget=60000", "--dump-dom", &format!("https://{}/page.html", in_url(address))]);
            let output = run(&mut chromium);
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(said.contains(">images 12<") && said.contains(&wanted), "from {address}: {said}");
            bench.assert_split(address, 443, 10_000_000);
        }
    }
}

#[test]
fn ssh_and_scp_work() {
    if skip("ssh_and_scp_work", &["ssh", "scp", "ssh-keygen", "/usr/sbin/sshd"]) {
        return;
    }
    Bench::all().iter().for_each(log_in);
}

fn log_in(bench: &Bench) {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    for key in ["host", "user"] {
        run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(here.join(key)));
    }
    fs::copy(here.join("user.pub"), here.join("authorized")).unwrap();
    // sshd requires its privilege separation directory, which the service file would create.
    fs::create_dir_all("/run/sshd").unwrap();
    random_file(&here.join("file"), 5);
    let options = |command: &mut Command| {
        for option in ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "BatchMode=yes"] {
            command.args(["-o", option]);
        }
        command.arg("-i").arg(here.join("user"));
    };
    for (client, server, addresses) in bench.ways() {
        let text = format!(
            "Port 22\nHostKey {0}/host\nAuthorizedKeysFile {0}/authorized\nPidFile none\nUsePAM no\nStrictModes no\n\
             PermitRootLogin prohibit-password\nSubsystem sftp internal-sftp\n",
            here.display()
        );
        fs::write(here.join("sshd_config"), text).unwrap();
        let _sshd = Daemon::start(server.command("/usr/sbin/sshd").args(["-D", "-e", "-f"]).arg(here.join("sshd_config")));
        for address in addresses {
            wait_for_port(server, address, 22);
            let mut ssh = client.command("ssh");
            options(&mut ssh);
            let output = run(ssh.arg(format!("root@{address}")).arg("echo hello from $SSH_CONNECTION"));
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            // The server sees the client's own address; with a bond, that of the accepting end.
            let own = bench.known_by(addresses);
            assert!(said.starts_with("hello from") && own.iter().any(|own| said.contains(&own.to_string())), "{said}");
            let mut scp = client.command("scp");
            options(&mut scp);
            let got = here.join(format!("got-{}", address.to_string().replace(':', "-")));
            run(scp.arg(here.join("file")).arg(format!("root@{}:{}", in_url(address), got.display())));
            assert_eq!(checksum(&got), checksum(&here.join("file")));
            bench.assert_split(address, 22, 5_000_000);
        }
    }
}

/// Returns a checksum of all files in a directory.
fn checksum_of_tree(path: &Path) -> String {
    let output =
        run(Command::new("sh").current_dir(path).args(["-c", "find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum"]));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn rsync_transfers_a_tree_in_both_directions_and_its_changes() {
    if skip("rsync_transfers_a_tree_in_both_directions_and_its_changes", &["rsync", "sha256sum"]) {
        return;
    }
    Bench::all().iter().for_each(synchronise);
}

fn synchronise(bench: &Bench) {
    for (client, server, addresses) in bench.ways() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        let tree = here.join("tree");
        for number in 0..40 {
            let within = tree.join(format!("{}/{}", number % 4, number % 7));
            fs::create_dir_all(&within).unwrap();
            fs::write(within.join(format!("small{number}")), format!("file {number}\n").repeat(number * number)).unwrap();
        }
        random_file(&tree.join("large"), 8);
        let text = format!(
            "use chroot = no\nuid = root\ngid = root\npid file = {0}/pid\nlog file = {0}/log\n[tree]\npath = {0}/tree\n\
             [back]\npath = {0}/back\nread only = no\n",
            here.display()
        );
        fs::write(here.join("rsyncd.conf"), text).unwrap();
        let _rsync = Daemon::start(
            server.command("rsync").args(["--daemon", "--no-detach"]).arg(format!("--config={}/rsyncd.conf", here.display())),
        );
        for address in addresses {
            wait_for_port(server, address, 873);
            let (got, back) = (here.join("got"), here.join("back"));
            for directory in [&got, &back] {
                let _ = fs::remove_dir_all(directory);
                fs::create_dir(directory).unwrap();
            }
            let rsync =
                |from: &str, to: &str| run(client.command("rsync").args(["-a", "--checksum", "--delete", "--timeout=60", from, to]));
            let (url, local) = (format!("rsync://{}", in_url(address)), format!("{}/", got.display()));
            rsync(&format!("{url}/tree/"), &local);
            assert_eq!(checksum_of_tree(&got), checksum_of_tree(&tree), "from {address}");
            bench.assert_split(address, 873, 8_000_000);
            // Transfers changes only: both ends exchange checksums of blocks.
            let mut large = fs::read(tree.join("large")).unwrap();
            large[4_000_000..4_000_100].fill(7);
            fs::write(tree.join("large"), large).unwrap();
            fs::write(tree.join("another"), format!("for {address}\n")).unwrap();
            rsync(&format!("{url}/tree/"), &local);
            assert_eq!(checksum_of_tree(&got), checksum_of_tree(&tree), "changes from {address}");
            rsync(&local, &format!("{url}/back/"));
            assert_eq!(checksum_of_tree(&back), checksum_of_tree(&tree), "back to {address}");
        }
    }
}

/// Runs one end of an exchange: sends 8 messages with pauses, and reads the 8 messages of the other
/// end.
fn converse(stream: &TcpStream, own: u64, others: u64) {
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(common::PATIENCE)).unwrap();
    let message = |seed: u64, number: u64| format!("message {number} of {seed}\n").repeat(1 + (seed * 31 + number * 17) as usize % 400);
    thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..8 {
                // Pauses, one of them long.
                thread::sleep(Duration::from_millis((own * 389 + number * 751) % 900 + if number == 5 { 4000 } else { 0 }));
                (&mut &*stream).write_all(message(own, number).as_bytes()).unwrap();
            }
            stream.shutdown(Shutdown::Write).unwrap();
        });
        for number in 0..8 {
            let wanted = message(others, number);
            let mut heard = vec![0; wanted.len()];
            (&mut &*stream).read_exact(&mut heard).unwrap();
            assert!(heard == wanted.as_bytes(), "message {number} of {others}");
        }
        assert_eq!((&mut &*stream).read(&mut [0]).unwrap(), 0, "the end of the conversation");
    });
}

/// Like a WebSocket: an HTTP upgrade, then messages of both ends at any time.
#[test]
fn a_bidirectional_exchange_with_pauses_works() {
    if skip("a_bidirectional_exchange_with_pauses_works", &[]) {
        return;
    }
    Bench::all().iter().for_each(talk);
}

fn talk(bench: &Bench) {
    const UPGRADE: &[u8] = b"GET /chat HTTP/1.1\r\nHost: tandem\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    const SWITCHED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    let greet = |stream: &TcpStream, say: &[u8], wanted: &[u8], first: bool| {
        let mut heard = vec![0; wanted.len()];
        if first {
            (&mut &*stream).write_all(say).unwrap();
        }
        (&mut &*stream).read_exact(&mut heard).unwrap();
        assert_eq!(heard, wanted);
        if !first {
            (&mut &*stream).write_all(say).unwrap();
        }
    };
    thread::scope(|scope| {
        for (client, server, addresses) in bench.ways() {
            for address in addresses {
                let listener = server.enter(|| TcpListener::bind((address, 8080)).unwrap()).unwrap();
                scope.spawn(move || {
                    let (stream, _) = listener.accept().unwrap();
                    greet(&stream, SWITCHED, UPGRADE, false);
                    converse(&stream, 2, 1);
                });
                scope.spawn(move || {
                    let stream = client.enter(|| TcpStream::connect((address, 8080)).unwrap()).unwrap();
                    greet(&stream, UPGRADE, SWITCHED, true);
                    converse(&stream, 1, 2);
                });
            }
        }
    });
    for (_, _, addresses) in bench.ways() {
        addresses.into_iter().for_each(|address| bench.assert_split(address, 8080, 1000));
    }
}

/// Connects and reads one byte. A reset may arrive before the connect returns.
fn connect_and_read(address: impl ToSocketAddrs) -> Result<usize, ErrorKind> {
    let heard = TcpStream::connect(address).and_then(|mut client| {
        client.set_read_timeout(Some(Duration::from_secs(30)))?;
        client.read(&mut [0])
    });
    heard.map_err(|why| why.kind())
}

#[test]
fn a_connection_to_the_proxy_itself_is_reset_at_once() {
    if skip("a_connection_to_the_proxy_itself_is_reset_at_once", &[]) {
        return;
    }
    let bench = Bench::all();
    for (bench, addresses) in bench.iter().zip([["10.77.1.2:5000", "[fd77:0:0:1::2]:5000"], ["10.1.0.2:5000", "[fd01::2]:5000"]]) {
        for address in addresses {
            let read = bench.ways()[0].0.enter(|| connect_and_read(address));
            assert_eq!(read.unwrap(), Err(ErrorKind::ConnectionReset), "{address}");
        }
        assert!(bench.flows().is_empty());
    }
}

#[test]
fn a_closed_server_port_resets_the_client() {
    if skip("a_closed_server_port_resets_the_client", &[]) {
        return;
    }
    Bench::all().iter().for_each(call_a_closed_port);
}

fn call_a_closed_port(bench: &Bench) {
    for (client, _, addresses) in bench.ways() {
        for address in addresses {
            let read = client.enter(|| connect_and_read((address, 4)));
            assert_eq!(read.unwrap(), Err(ErrorKind::ConnectionReset), "{address}");
        }
    }
}

#[test]
fn iperf3_runs_in_both_directions() {
    if skip("iperf3_runs_in_both_directions", &["iperf3"]) {
        return;
    }
    Bench::all().iter().for_each(measure);
}

fn measure(bench: &Bench) {
    for (client, server, addresses) in bench.ways() {
        for address in addresses {
            for direction in [&[][..], &["-R"][..]] {
                // A new server per test: between two tests iperf3 closes its socket, and resets new
                // clients.
                let _iperf = Daemon::start(server.command("iperf3").args(["-s", "-1"]));
                wait_for_listener(server, 5201);
                let output = run(client.command("iperf3").args(["-n", "20M", "-J", "-c", &address.to_string()]).args(direction));
                let said = String::from_utf8_lossy(&output.stdout);
                assert!(said.contains("\"sum_received\"") && !said.contains("\"error\""), "{said}");
            }
            bench.assert_split(address, 5201, 20_000_000);
        }
    }
}
