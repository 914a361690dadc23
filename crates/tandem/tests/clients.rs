//! Programs that know nothing of Tandem, through the transparent proxy in the lab: curl from nginx, ssh and scp, iperf3;
//! IPv4 and IPv6; opened by the sender and by the receiver.

mod common;

use common::{Daemon, skip, wait_for_port};
use lab::{Extras, Host, Network};
use proxy::{Ending, FlowRecord};
use scenario::ScenarioFile;
use std::{
    fs,
    io::{ErrorKind, Read},
    net::{IpAddr, TcpStream},
    path::Path,
    process::{Command, Output, Stdio},
    sync::{Arc, Mutex},
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

/// A network with a proxy, and the flows that the proxy has ended.
struct Bench {
    network: Network,
    ended: Arc<Mutex<Vec<FlowRecord>>>,
}

impl Bench {
    fn new() -> Self {
        let scenario = ScenarioFile::parse(LINKS, "clients").unwrap().variants(&[]).unwrap().remove(0).scenario;
        let ended = Arc::new(Mutex::new(Vec::new()));
        let records = ended.clone();
        let network = Network::build(&scenario, 1, &Extras::default(), move |_, record| records.lock().unwrap().push(record)).unwrap();
        Bench { network, ended }
    }

    /// Client host, server host and the server's addresses: opened by the sender, then by the receiver.
    fn ways(&self) -> [(&Host, &Host, [IpAddr; 2]); 2] {
        let (sender, receiver) = (self.network.sender(), self.network.receiver());
        [(sender, receiver, self.network.receiver_addresses()), (receiver, sender, self.network.sender_addresses())]
    }

    /// Waits for a flow to this server that moved at least so much and ended well: the proof that the proxy carried it.
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
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("no flow of {at_least} bytes to {server}:{port} went through the proxy: {:?}", self.ended.lock().unwrap());
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

/// A file of so many random megabytes.
fn random_file(path: &Path, megabytes: u64) {
    run(Command::new("sh").args(["-c", &format!("head -c {}000000 /dev/urandom > {}", megabytes, path.display())]));
}

#[test]
fn curl_fetches_100_mb_from_nginx() {
    if skip("curl_fetches_100_mb_from_nginx", &["curl", "nginx", "sha256sum"]) {
        return;
    }
    let (bench, directory) = (Bench::new(), tempfile::tempdir().unwrap());
    let here = directory.path();
    fs::set_permissions(here, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    random_file(&here.join("file"), 100);
    let sum = checksum(&here.join("file"));
    for (number, (client, server, addresses)) in bench.ways().into_iter().enumerate() {
        let configuration = here.join(format!("nginx{number}.conf"));
        let text = format!(
            "daemon off; master_process off; pid {0}/pid{number}; error_log stderr;\nevents {{ }}\n\
             http {{ access_log off; sendfile on; client_body_temp_path {0}/body{number}; proxy_temp_path {0}/proxy{number};\n\
             fastcgi_temp_path {0}/fastcgi{number}; uwsgi_temp_path {0}/uwsgi{number}; scgi_temp_path {0}/scgi{number};\n\
             server {{ listen 80; listen [::]:80; root {0}; }} }}\n",
            here.display()
        );
        fs::write(&configuration, text).unwrap();
        let _nginx = Daemon::start(server.command("nginx").arg("-c").arg(&configuration));
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
fn ssh_and_scp_work() {
    if skip("ssh_and_scp_work", &["ssh", "scp", "ssh-keygen", "/usr/sbin/sshd"]) {
        return;
    }
    let (bench, directory) = (Bench::new(), tempfile::tempdir().unwrap());
    let here = directory.path();
    for key in ["host", "user"] {
        run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(here.join(key)));
    }
    fs::copy(here.join("user.pub"), here.join("authorized")).unwrap();
    // sshd wants its directory for unprivileged children, which a package's service file would make.
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
            // The server sees the client's own address, not the proxy's.
            let own = bench.ways().into_iter().find(|way| way.2 != addresses).unwrap().2;
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

#[test]
fn calling_the_proxy_itself_leads_nowhere_at_once() {
    if skip("calling_the_proxy_itself_leads_nowhere_at_once", &[]) {
        return;
    }
    let bench = Bench::new();
    for address in ["10.77.1.2:5000", "[fd77:0:0:1::2]:5000"] {
        let read = bench.network.sender().enter(|| {
            let mut client = TcpStream::connect(address).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            client.read(&mut [0]).map_err(|why| why.kind())
        });
        assert_eq!(read.unwrap(), Err(ErrorKind::ConnectionReset), "{address}");
    }
    assert!(bench.network.proxy_flows().iter().all(Vec::is_empty));
}

#[test]
fn a_closed_port_is_a_reset_through_the_proxy_too() {
    if skip("a_closed_port_is_a_reset_through_the_proxy_too", &[]) {
        return;
    }
    let bench = Bench::new();
    for (client, _, addresses) in bench.ways() {
        for address in addresses {
            let read = client.enter(|| {
                let mut client = TcpStream::connect((address, 4)).unwrap();
                client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
                client.read(&mut [0]).map_err(|why| why.kind())
            });
            assert_eq!(read.unwrap(), Err(ErrorKind::ConnectionReset), "{address}");
        }
    }
}

#[test]
fn iperf3_runs_in_both_directions() {
    if skip("iperf3_runs_in_both_directions", &["iperf3"]) {
        return;
    }
    let bench = Bench::new();
    for (client, server, addresses) in bench.ways() {
        let _iperf = Daemon::start(server.command("iperf3").arg("-s"));
        for address in addresses {
            wait_for_port(server, address, 5201);
            for direction in [&[][..], &["-R"][..]] {
                let output = run(client.command("iperf3").args(["-n", "20M", "-J", "-c", &address.to_string()]).args(direction));
                let said = String::from_utf8_lossy(&output.stdout);
                assert!(said.contains("\"sum_received\"") && !said.contains("\"error\""), "{said}");
            }
            bench.assert_split(address, 5201, 20_000_000);
        }
    }
}
