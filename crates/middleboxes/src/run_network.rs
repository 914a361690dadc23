//! The network of a run: two ends with ordinary network devices, emulated links, and the middle
//! host.
//!
//! end – edge – link 1 – middle – link 2 – (router – link 3 –) edge – end. Data flow from left to
//! right. The slow link is the client's.

use crate::{
    conditions::{BulkDirection, LATE, NetworkCondition},
    run::MiddleboxRun,
};
use anyhow::{Context as _, Result, ensure};
use lab::{Host, NetworkOptions, Reordering, SeriesNetwork};
use scenario::ScenarioFile;
use std::{
    io::{BufRead as _, BufReader, Read as _},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};
use units::Span;

/// Port of the server.
pub(crate) const PORT: u16 = 80;
/// Device of an end.
const DEVICE: &str = "eth0";

pub(crate) struct RunNetwork {
    network: SeriesNetwork,
    /// Left (sender) and right (receiver).
    ends: [Host; 2],
    direction: BulkDirection,
    /// Host and device of the receiver's capture, if that is not at the end itself.
    before: Option<(usize, String)>,
}

fn end_address(end: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 78, end as u8 + 1, 2))
}

impl RunNetwork {
    pub(crate) fn build(run: &MiddleboxRun) -> Result<Self> {
        let path = &run.path;
        let loss = if run.condition == NetworkCondition::Loss { "loss = { per_packet = 0.01 }\n" } else { "" };
        let slow = format!(
            "[[link]]\nrate = \"{}kbit\"\ndelay = \"{}us\"\nqueue = \"{}pkt\"\n{loss}",
            path.slow_kbit, path.slow_delay_us, path.queue_packets
        );
        let fast = format!("[[link]]\nrate = \"{}kbit\"\ndelay = \"{}us\"\nqueue = \"400pkt\"\n", path.fast_kbit, path.fast_delay_us);
        let mut links = match run.direction {
            BulkDirection::Up => [slow, fast].concat(),
            BulkDirection::Down => [fast, slow].concat(),
        };
        let late = run.condition == NetworkCondition::LateAcks;
        if late {
            // A link behind the receiver's capture point delays each segment, and each ACK, by half
            // of the ACK delay.
            links += &format!("[[link]]\nrate = \"200Mbit\"\ndelay = \"{}us\"\nqueue = \"4000pkt\"\n", (LATE * 5e5) as u64);
        }
        let text = format!("name = \"corpus\"\n{links}[[flow]]\nbytes = \"1MB\"\n");
        let scenario = ScenarioFile::parse(&text, "corpus")?.variants(&[])?.remove(0).scenario;
        let slow = if run.direction == BulkDirection::Up { 0 } else { 1 };
        let reordering =
            (run.condition == NetworkCondition::Reordering).then_some(Reordering { link: slow, share: 0.03, by: Span(8_000_000) });
        let network = SeriesNetwork::build(&scenario, run.seed, &NetworkOptions { reordering, ..NetworkOptions::default() }, |_, _| {})?;
        let hosts = network.hosts();
        let ends = [Host::new("left")?, Host::new("right")?];
        for (end, edge) in [(0, &hosts[0]), (1, &hosts[hosts.len() - 1])] {
            let net = format!("10.78.{}", end + 1);
            edge.join(&[&format!("{net}.1/24")], &ends[end], &[&format!("{net}.2/24")], DEVICE)?;
            ends[end].ip(&[format!("route add default via {net}.1")])?;
            // Without metrics cached from earlier connections.
            ends[end].sysctl(&[("ipv4/tcp_no_metrics_save", "1".into())])?;
        }
        for (index, host) in hosts.iter().enumerate() {
            let mut lines = Vec::new();
            if index > 0 {
                lines.push(format!("route add 10.78.1.0/24 dev link{index}"));
            }
            if index + 1 < hosts.len() {
                lines.push(format!("route add 10.78.2.0/24 dev link{}", index + 1));
            }
            host.ip(&lines)?;
        }
        let before = late.then(|| (2, "link2".to_string()));
        let network = RunNetwork { network, ends, direction: run.direction, before };
        network.set_offloads(run.condition)?;
        if run.condition == NetworkCondition::Nat {
            network.enable_nat()?;
        }
        Ok(network)
    }

    /// Sets segmentation and receive offload (TSO, GRO) of the ends, and how long receive offload
    /// waits for further segments.
    fn set_offloads(&self, condition: NetworkCondition) -> Result<()> {
        let (offloads, flush_us) = match condition {
            NetworkCondition::Offload => ("on", Some(500)),
            NetworkCondition::StretchAcks => ("on", Some(6000)),
            _ => ("off", None),
        };
        for end in &self.ends {
            let set = ["-K", DEVICE, "tso", offloads, "gso", offloads, "gro", offloads];
            run(end.command("ethtool").args(set))?;
            if let Some(flush_us) = flush_us {
                // The settings are files in a sysfs that shows this namespace's devices.
                let script = format!(
                    "mount -t sysfs none /sys && cd /sys/class/net/{DEVICE} && echo 8 > napi_defer_hard_irqs && \
                     echo {} > gro_flush_timeout",
                    flush_us * 1000
                );
                run(end.command("unshare").args(["--mount", "sh", "-c", &script]))?;
            }
        }
        Ok(())
    }

    /// Enables NAT on the middle host: the server sees another address and port than the client
    /// has.
    fn enable_nat(&self) -> Result<()> {
        let rules = format!(
            "table ip nat {{ chain out {{ type nat hook postrouting priority srcnat;\n\
             oifname {} ip daddr {} meta l4proto 6 masquerade to :20000-29999 random\n}}\n}}\n",
            self.server_link(),
            end_address(self.server_end())
        );
        testbed::load_rules(self.middle(), &rules)
    }

    pub(crate) fn middle(&self) -> &Host {
        &self.network.hosts()[1]
    }

    fn server_end(&self) -> usize {
        match self.direction {
            BulkDirection::Up => 1,
            BulkDirection::Down => 0,
        }
    }

    pub(crate) fn server(&self) -> &Host {
        &self.ends[self.server_end()]
    }

    pub(crate) fn client(&self) -> &Host {
        &self.ends[1 - self.server_end()]
    }

    /// Adds a tunnel over UDP between the client and the middle host, through which the client
    /// sends what is for the server. Returns its interface on the middle host.
    pub(crate) fn add_tunnel(&self) -> Result<&'static str> {
        const TUNNEL: &str = "tunnel";
        // Not the port of VXLAN: the detector would read TCP inside it, and this tunnel stands for
        // one of an operator's own.
        const PORT: u16 = 7789;
        let (client, middle, server) = (end_address(1 - self.server_end()), self.middle_address(), end_address(self.server_end()));
        let device = |local: IpAddr, remote: IpAddr, own: &str| {
            vec![
                format!("link add {TUNNEL} type vxlan id 7 local {local} remote {remote} dstport {PORT}"),
                format!("addr add {own}/24 dev {TUNNEL}"),
                format!("link set {TUNNEL} up mtu 1400"),
            ]
        };
        let mut lines = device(client, middle, "10.80.0.2");
        lines.push(format!("route add {server}/32 via 10.80.0.1 dev {TUNNEL} src {client}"));
        self.client().ip(&lines)?;
        let mut lines = device(middle, client, "10.80.0.1");
        // What a proxy sends to the client has the server's address. The rule comes after that of
        // `intercept`, which gets what the server sends.
        lines.push(format!("rule add from {server} to {client} lookup 101 pref 200"));
        lines.push(format!("route add default via 10.80.0.2 dev {TUNNEL} table 101"));
        self.middle().ip(&lines)?;
        for host in [self.client(), self.middle()] {
            host.sysctl(&[("ipv4/conf/all/rp_filter", "0".into()), ("ipv4/conf/tunnel/rp_filter", "0".into())])?;
        }
        Ok(TUNNEL)
    }

    /// Interface of the middle host towards the server.
    pub(crate) fn server_link(&self) -> &'static str {
        match self.direction {
            BulkDirection::Up => "link2",
            BulkDirection::Down => "link1",
        }
    }

    /// Interface of the middle host towards the client.
    pub(crate) fn client_link(&self) -> &'static str {
        match self.direction {
            BulkDirection::Up => "link1",
            BulkDirection::Down => "link2",
        }
    }

    pub(crate) fn direction(&self) -> BulkDirection {
        self.direction
    }

    /// Address of the server.
    pub(crate) fn server_address(&self) -> SocketAddr {
        (end_address(self.server_end()), PORT).into()
    }

    /// Address of the middle host, for middleboxes that clients address.
    pub(crate) fn middle_address(&self) -> IpAddr {
        let [network, host] = match self.direction {
            BulkDirection::Up => [1, 2],
            BulkDirection::Down => [2, 1],
        };
        IpAddr::V4(Ipv4Addr::new(10, 77, network, host))
    }

    /// Captures at both ends until the returned value is stopped.
    pub(crate) fn trace(&self, sender: &Path, receiver: &Path) -> Result<RunCaptures> {
        let left = Tcpdump::start(&self.ends[0], DEVICE, sender)?;
        let right = match &self.before {
            Some((host, device)) => Tcpdump::start(&self.network.hosts()[*host], device, receiver)?,
            None => Tcpdump::start(&self.ends[1], DEVICE, receiver)?,
        };
        Ok(RunCaptures([left, right]))
    }
}

/// Two running captures.
pub(crate) struct RunCaptures([Tcpdump; 2]);

impl RunCaptures {
    pub(crate) fn stop(self) -> Result<()> {
        // The last packets are still on their way to the file.
        thread::sleep(Duration::from_millis(60));
        self.0.into_iter().try_for_each(Tcpdump::stop)
    }
}

/// A running tcpdump.
struct Tcpdump(Child);

impl Tcpdump {
    fn start(host: &Host, device: &str, path: &Path) -> Result<Self> {
        let mut child = host
            .command("tcpdump")
            .args(["-i", device, "-n", "-Z", "root", "--immediate-mode", "--time-stamp-precision=nano", "-B", "16384", "-w"])
            .arg(path)
            .arg("tcp or udp")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run tcpdump; install it (Debian package tcpdump)")?;
        let mut said = BufReader::new(child.stderr.take().context("no pipe")?);
        let mut line = String::new();
        while !line.contains("listening on") {
            line.clear();
            ensure!(said.read_line(&mut line)? > 0, "tcpdump cannot capture: {line}");
        }
        // It prints statistics at its end and must not block on that.
        thread::spawn(move || said.read_to_end(&mut Vec::new()));
        Ok(Tcpdump(child))
    }

    fn stop(mut self) -> Result<()> {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), rustix::process::Signal::INT)?;
        ensure!(self.0.wait()?.success(), "tcpdump failed");
        Ok(())
    }
}

impl Drop for Tcpdump {
    fn drop(&mut self) {
        // A process that has ended is left alone.
        if let Ok(None) = self.0.try_wait() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// Runs a command. An error has the command's output.
fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
