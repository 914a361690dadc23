//! The network of a scenario with links in series: hosts in a row, a link of two TUN devices
//! between neighbours, addresses, routes, settings, proxies.
//!
//! Link `k` (from 1) joins two hosts as 10.77.k.1 and 10.77.k.2, and as fd77:0:0:k::1 and ::2. Its
//! device is called `link<k>` on both. All networks use the same addresses, since their namespaces
//! are separate.

use crate::{
    LabError,
    capture::{Capture, CaptureWriter},
    emulator::{Emulator, EmulatorSettings, LinkReport, LinkSpec, Reordering},
    host::{Host, has_ipv6},
    keep_cpus_awake::CpusAwake,
    other_proxy::{OtherProxy, RunningProgram},
    reachable_proxy::ReachableProxy,
    sys,
};
use intercept::{CapacitySource, Interface, LegProfile, LegRule, LinkView, Policy, Prefix, ReceiveCounters};
use kernel::Controller;
use link::DirectionSpec;
use proxy::{FlowRecord, FlowStats, ListenerConfig, Proxy, ProxyConfig};
use rand_pcg::Pcg64;
use rustix::fd::OwnedFd;
use scenario::{Buffer, FlowPath, LegLinks, LinkCapacity, Opens, Purpose, ReceiveBuffers, Scenario, stream};
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
    time::Instant,
};
use units::{Bytes, PKT, Rate, Span};

/// Port at which the transparent proxies listen.
const PROXY_PORT: u16 = 5000;
/// Length, in packets, of the queue between a host and the emulator (txqueuelen). The host drops
/// packets beyond it, which makes a run invalid. It is the largest length that every kernel
/// accepts: stable updates of 2026 refuse more than 32767.
pub(crate) const HOST_QUEUE: u32 = 32_767;

/// The hosts, links and proxies of a scenario with links in series, up and running until dropped.
#[derive(Debug)]
pub struct SeriesNetwork {
    /// From sender to receiver.
    hosts: Vec<Host>,
    /// From sender to receiver. Declared before the emulator, so that they are dropped while it
    /// still delivers their last packets.
    proxies: Vec<HostedProxy>,
    emulator: Option<Emulator>,
    capture_writer: Option<CaptureWriter>,
    _cpus_awake: CpusAwake,
}

/// Properties of a network that the scenario does not specify.
#[derive(Debug, Default, Clone)]
pub struct NetworkOptions {
    /// Path prefix of the captures, one file for each host: `<prefix><host>.pcapng`.
    pub capture: Option<PathBuf>,
    /// Extra one-way delay on the first link, by the server port of a flow.
    pub access_delays: HashMap<u16, Span>,
    /// Makes some packets of a link arrive after later ones.
    pub reordering: Option<Reordering>,
    /// Whether the hosts get names for `ip netns exec`, and the proxies control sockets.
    pub published: bool,
    /// The program that splits connections. Absent: Tandem's proxy.
    pub other_proxy: Option<OtherProxy>,
    /// Socket buffers of the hosts. Absent: so large that they limit no connection.
    pub memory: Option<HostMemory>,
}

/// Socket buffers of a host, each as the three numbers of the setting.
#[derive(Debug, Clone)]
pub struct SocketMemory {
    /// `net.ipv4.tcp_rmem`.
    pub receive: String,
    /// `net.ipv4.tcp_wmem`.
    pub send: String,
}

/// Socket buffers of the hosts of a network with links in series.
#[derive(Debug, Clone)]
pub struct HostMemory {
    /// Those of the receiver's host.
    pub receiver: SocketMemory,
    /// Those of all other hosts.
    pub others: SocketMemory,
}

/// A proxy and the index of its host.
#[derive(Debug)]
struct HostedProxy {
    host: usize,
    /// Absent if another program splits, and when it is stopped.
    proxy: Option<ReachableProxy>,
    other: Option<RunningProgram>,
}

/// The addresses of the two hosts of link `index` (from 0), sender's side first; of each IPv4,
/// IPv6.
fn addresses(index: usize) -> [[IpAddr; 2]; 2] {
    let number = index as u16 + 1;
    [1, 2].map(|end| {
        [
            IpAddr::V4(Ipv4Addr::new(10, 77 + (number >> 8) as u8, number as u8, end)),
            IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, number, 0, 0, 0, u16::from(end))),
        ]
    })
}

/// The prefixes of link `index` (from 0): IPv4, IPv6.
fn prefixes(index: usize) -> [String; 2] {
    let [v4, v6] = addresses(index)[0];
    let v4 = v4.to_string();
    [format!("{}0/30", &v4[..v4.len() - 1]), v6.to_string().replace("::1", "::/64")]
}

impl SeriesNetwork {
    /// Builds the network of `scenario`, with its proxies. `on_end` is called with each flow that
    /// ends at a proxy, after the index of that proxy (from 0, sender's side first).
    ///
    /// # Errors
    /// If the scenario has no links in series, or a host, device, capture or proxy cannot be made.
    pub fn build(
        scenario: &Scenario,
        seed: u64,
        options: &NetworkOptions,
        on_end: impl Fn(usize, FlowRecord) + Clone + Send + Sync + 'static,
    ) -> Result<Self, LabError> {
        if scenario.links.is_empty() {
            return Err(LabError::NoLinks { scenario: scenario.name.clone() });
        }
        crate::host::clear_stale();
        let epoch = Instant::now();
        let count = scenario.links.len();
        let mut hosts = host_names(scenario).iter().map(|name| Host::new(name)).collect::<Result<Vec<_>, _>>()?;
        if options.published {
            for host in &mut hosts {
                host.publish()?;
            }
        }
        let mut settings = settings(&socket_memory(scenario)).to_vec();
        if scenario.links.iter().any(|link| link.queue.marks()) {
            // Ask for ECN: the kernel's default only accepts it.
            settings.push(("ipv4/tcp_ecn", "1".into()));
        }
        let mut ends = Vec::new();
        for (index, host) in hosts.iter().enumerate() {
            ends.push(set_up(host, index, count, &settings, scenario.tcp.initial_window)?);
        }
        if let Some(ReceiveBuffers { first, most }) = scenario.tcp.receive_buffers {
            let receive = format!("4096 {} {}", first.0, most.0);
            [&hosts[0], &hosts[count]].into_iter().try_for_each(|host| host.sysctl(&[("ipv4/tcp_rmem", receive.clone())]))?;
        }
        if let Some(memory) = &options.memory {
            for (index, host) in hosts.iter().enumerate() {
                let SocketMemory { receive, send } = if index == count { &memory.receiver } else { &memory.others };
                host.sysctl(&[("ipv4/tcp_rmem", receive.clone()), ("ipv4/tcp_wmem", send.clone())])?;
            }
        }
        if uses_fast_open(scenario) {
            hosts.iter().try_for_each(|host| host.sysctl(&fast_open_settings()))?;
        }
        let links = link_specs(scenario, seed, ends);
        let (capture, capture_writer) = Capture::of_hosts(options.capture.as_deref(), &hosts)?;
        let access_delays = options.access_delays.clone();
        let settings = EmulatorSettings { epoch, access_delays, reordering: reordering(options, seed), capture };
        let emulator = Some(Emulator::start(links, settings)?);
        let mut network = SeriesNetwork { hosts, proxies: Vec::new(), emulator, capture_writer, _cpus_awake: CpusAwake::keep() };
        for number in 0..scenario.splits.len() {
            let on_end = on_end.clone();
            if let Some(other) = &options.other_proxy {
                let host = scenario.splits[number].after;
                let other = Some(other.start(&network.hosts[host])?);
                network.proxies.push(HostedProxy { host, proxy: None, other });
                continue;
            }
            // Each is alone in its network namespace.
            let name = options.published.then_some("default");
            network.start_proxy(scenario, number, name, move |record| on_end(number, record))?;
        }
        Ok(network)
    }

    /// The host at the sender's end.
    pub fn sender(&self) -> &Host {
        &self.hosts[0]
    }

    /// The host at the receiver's end.
    pub fn receiver(&self) -> &Host {
        &self.hosts[self.hosts.len() - 1]
    }

    /// All hosts, from sender to receiver.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The sender's addresses: IPv4, IPv6.
    pub fn sender_addresses(&self) -> [IpAddr; 2] {
        addresses(0)[0]
    }

    /// The receiver's addresses: IPv4, IPv6.
    pub fn receiver_addresses(&self) -> [IpAddr; 2] {
        addresses(self.hosts.len() - 2)[1]
    }

    /// The IPv4 address at the receiver's end of link `index` (from 0).
    pub(crate) fn link_end(&self, index: usize) -> IpAddr {
        addresses(index)[1][0]
    }

    /// Bytes in the queue of link `index` (from 0), and bytes that have left the queue, both in the
    /// direction of the data.
    pub(crate) fn link_gauge(&self, index: usize) -> (u64, u64) {
        use std::sync::atomic::Ordering::Relaxed;
        let gauge =
            |emulator: &Emulator| (emulator.gauges()[index].queued.load(Relaxed), emulator.gauges()[index].left_bytes.load(Relaxed));
        self.emulator.as_ref().map_or((0, 0), gauge)
    }

    /// Starts the clock of the run: rate changes of links are due relative to this moment.
    pub(crate) fn start_clock(&self) {
        if let Some(emulator) = &self.emulator {
            emulator.start_clock();
        }
    }

    /// While `bypassed`, packets cross the links at once, as if there were none.
    pub(crate) fn bypass_links(&self, bypassed: bool) {
        if let Some(emulator) = &self.emulator {
            emulator.bypass_links(bypassed);
        }
    }

    /// The host of proxy `number` (from 0).
    pub(crate) fn proxy_host(&self, number: usize) -> &Host {
        &self.hosts[self.proxies[number].host]
    }

    /// The host that opens connections over all links, the host that accepts them, and its IPv4
    /// address.
    pub(crate) fn ends(&self, opens: Opens) -> (&Host, &Host, IpAddr) {
        let links = LegLinks { first: 0, end: self.hosts.len() - 1 };
        self.ends_of(FlowPath { links, is_reverse: false }, opens)
    }

    /// The host that opens the connections of a flow, the host that accepts them, and its IPv4
    /// address.
    pub(crate) fn ends_of(&self, path: FlowPath, opens: Opens) -> (&Host, &Host, IpAddr) {
        let (opener, server) = match opens {
            Opens::Sender => (path.sender_host(), path.receiver_host()),
            Opens::Receiver => (path.receiver_host(), path.sender_host()),
        };
        let LegLinks { first, end } = path.links;
        let address = if server == end { addresses(end - 1)[1][0] } else { addresses(first)[0][0] };
        (&self.hosts[opener], &self.hosts[server], address)
    }

    /// Reconfigures the proxies that send into link `index` (from 0) for its new rate, except those
    /// whose scenario gives them a capacity.
    pub(crate) fn update_link_rate(&mut self, scenario: &Scenario, index: usize, rate: Rate) -> Result<(), LabError> {
        let follows_link = |number: &usize| scenario.splits[*number].after == index && scenario.splits[*number].capacity.is_none();
        for number in (0..scenario.splits.len()).filter(follows_link) {
            let (config, on) = (self.config(scenario, number, rate), &self.proxies[number]);
            let Some(proxy) = &on.proxy else { continue };
            let host = &self.hosts[on.host];
            host.enter(|| proxy.reload(config))?.map_err(|why| LabError::Reload { host: host.name().into(), why: why.into() })?;
        }
        Ok(())
    }

    /// The current flows of each proxy.
    pub fn proxy_flows(&self) -> Vec<Vec<FlowStats>> {
        self.proxies.iter().map(|on| on.proxy.as_deref().map(Proxy::flows).unwrap_or_default()).collect()
    }

    /// The links whose capacity the proxies share among flows, sender's side first.
    pub fn proxy_links(&self) -> Vec<LinkView> {
        self.proxies.iter().filter_map(|on| on.proxy.as_deref()).flat_map(Proxy::links).collect()
    }

    /// The configuration of proxy `number` when the link behind it has this rate.
    fn config(&self, scenario: &Scenario, number: usize, rate: Rate) -> ProxyConfig {
        let host = scenario.splits[number].after;
        let control = scenario.leg_controls()[number + 1];
        let split = &scenario.splits[number];
        // The proxy dials one of its legs, and only that one looks at `fast_open`.
        let profile = |control: &str| LegProfile { control: Some(control.into()), fast_open: split.fast_open, ..LegProfile::default() };
        // Data flow to the receiver, whichever end opens the connection: the leg towards the
        // receiver gets the proxy's controller.
        let to = self.receiver_addresses().map(|address| Prefix(address.into())).into();
        let mut onward = profile(control);
        if split.shaper || kernel::resolve(control).is_some_and(Controller::needs_capacity) {
            onward.capacity = Some(match split.capacity {
                None => CapacitySource::Rate(rate),
                Some(LinkCapacity::Rate(configured)) => CapacitySource::Rate(configured),
                Some(LinkCapacity::Auto) => CapacitySource::Auto,
            });
            onward.link = Some(format!("link{}", host + 1));
            onward.shape = Some(split.shaper);
        }
        let legs = if scenario.beyond_forward_flows().is_none() {
            vec![LegRule { to, profile: onward, ..LegRule::default() }]
        } else {
            // Connections may end before the receiver, and carry data away from it.
            let leaves = |link: usize, profile| {
                let interface = vec![Interface(format!("link{link}"))];
                LegRule { interface, profile, ..LegRule::default() }
            };
            let back = scenario.leg_controls()[scenario.control_of_leg_behind(number, true)];
            let reverse = scenario.has_two_way_data().then(|| leaves(host, profile(back)));
            [leaves(host + 1, onward)].into_iter().chain(reverse).collect()
        };
        let sender = profile(scenario.control.sender_name());
        ProxyConfig {
            listen: vec![ListenerConfig::transparent((Ipv6Addr::UNSPECIFIED, PROXY_PORT).into())],
            policy: Policy { legs, near: sender.clone(), far: sender, ..Policy::default() },
            buffer: match (scenario.splits[number].buffer, scenario.buffer_limit(number)) {
                (Buffer::Adaptive, Some(most)) => proxy::Buffer::Adaptive { most },
                (_, limit) => limit.into(),
            },
            ..ProxyConfig::default()
        }
    }

    fn start_proxy(
        &mut self,
        scenario: &Scenario,
        number: usize,
        name: Option<&str>,
        on_end: impl Fn(FlowRecord) + Send + Sync + 'static,
    ) -> Result<(), LabError> {
        let host = scenario.splits[number].after;
        let config = self.config(scenario, number, scenario.links[host].rate);
        let proxy = ReachableProxy::start(&self.hosts[host], config, name, on_end)?;
        self.proxies.push(HostedProxy { host, proxy: Some(proxy), other: None });
        Ok(())
    }

    /// How often sockets on the proxies' hosts had to prune or drop what they had received for lack
    /// of receive buffer; `None` if a host's counters cannot be read.
    pub(crate) fn receive_overruns(&self) -> Option<u64> {
        let of = |on: &HostedProxy| {
            let counters = self.hosts[on.host].enter(ReceiveCounters::read).ok()?.ok()?;
            Some(counters.pruned + counters.dropped)
        };
        self.proxies.iter().map(of).sum()
    }

    /// Stops proxies and emulator, and returns a report for each link. Packets that a host dropped
    /// before the emulator could read them are counted in `refused`.
    pub(crate) fn finish(mut self) -> Result<Vec<LinkReport>, LabError> {
        self.stop_proxies();
        let mut reports = match self.emulator.take() {
            Some(emulator) => emulator.finish()?,
            None => Vec::new(),
        };
        for (index, host) in self.hosts.iter().enumerate() {
            for (device, drops) in transmit_drops(host)? {
                let number = device.strip_prefix("link").and_then(|number| number.parse::<usize>().ok());
                if let Some(report) = number.and_then(|number| reports.get_mut(number.wrapping_sub(1))) {
                    tracing::debug!(host = index, device, drops, "packets lost before the emulator");
                    report.refused += drops;
                }
            }
        }
        if let Some(writer) = self.capture_writer.take() {
            writer.finish()?;
        }
        Ok(reports)
    }

    /// Drops each proxy inside its host, since it removes its firewall rules there.
    fn stop_proxies(&mut self) {
        for on in &mut self.proxies {
            let proxy = on.proxy.take();
            let _ = self.hosts[on.host].enter(|| drop(proxy));
            on.other = None;
        }
    }
}

impl Drop for SeriesNetwork {
    fn drop(&mut self) {
        self.stop_proxies();
    }
}

/// The reordering of packets that `options` ask for, with its generator of random numbers.
pub(crate) fn reordering(options: &NetworkOptions, seed: u64) -> Option<(Reordering, Pcg64)> {
    options.reordering.map(|reordering| (reordering, stream(seed, Purpose::Detours, reordering.link as u64)))
}

/// Makes a TUN device on `host` and removes it, to find out whether this machine can.
///
/// # Errors
/// If it cannot; the error names the cure.
pub fn try_tun(host: &Host) -> Result<(), LabError> {
    let device = "probe";
    let made = host.enter(|| sys::open_tun(device))?;
    made.map(drop).map_err(|why| LabError::Tun { device: device.into(), host: host.name().into(), why })
}

/// Whether the kernel grants the emulator's thread real-time scheduling.
pub fn try_realtime_scheduling() -> bool {
    std::thread::spawn(sys::request_realtime_scheduling).join().unwrap_or(false)
}

/// Names of the hosts, from sender to receiver.
fn host_names(scenario: &Scenario) -> Vec<String> {
    let inner = scenario.links.len() - 1;
    let is_proxy = |at: usize| scenario.splits.iter().any(|split| split.after == at);
    let several = |proxy: bool| (1..=inner).filter(|&at| is_proxy(at) == proxy).count() > 1;
    let mut names = vec!["sender".to_string()];
    let mut counts = [0, 0];
    for at in 1..=inner {
        let proxy = is_proxy(at);
        counts[usize::from(proxy)] += 1;
        let word = if proxy { "proxy" } else { "router" };
        names.push(if several(proxy) { format!("{word}{}", counts[usize::from(proxy)]) } else { word.to_string() });
    }
    names.push("receiver".into());
    names
}

/// Network settings of every host. `memory` is the default and the maximum size of a socket
/// buffer, as the last two values of `tcp_rmem`.
pub(crate) fn settings(memory: &str) -> [(&'static str, String); 8] {
    [
        // No traffic of the kernel's own may cross a link.
        ("ipv6/conf/default/addr_gen_mode", "1".into()),
        ("ipv6/conf/default/accept_ra", "0".into()),
        ("ipv6/conf/default/router_solicitations", "0".into()),
        ("ipv4/conf/all/rp_filter", "0".into()),
        ("ipv4/conf/default/rp_filter", "0".into()),
        ("ipv4/tcp_rmem", format!("4096 {memory}")),
        ("ipv4/tcp_wmem", format!("4096 {memory}")),
        // No flow may start from the metrics that the kernel saved of an earlier one.
        ("ipv4/tcp_no_metrics_save", "1".into()),
    ]
}

/// Whether a connection of the scenario has TCP Fast Open.
pub(crate) fn uses_fast_open(scenario: &Scenario) -> bool {
    scenario.flows.iter().any(|flow| flow.fast_open) || scenario.splits.iter().any(|split| split.fast_open)
}

/// Settings of every host if a connection has TCP Fast Open, to be made before a socket listens.
fn fast_open_settings() -> [(&'static str, String); 2] {
    const CLIENT: u32 = 1;
    const SERVER: u32 = 2;
    // Listeners need no option of their own, which the proxy's do not have.
    const EVERY_LISTENER: u32 = 0x400;
    [
        ("ipv4/tcp_fastopen", (CLIENT | SERVER | EVERY_LISTENER).to_string()),
        // A connection that ends badly switches Fast Open off for no later one.
        ("ipv4/tcp_fastopen_blackhole_timeout_sec", "0".into()),
    ]
}

/// Makes a host's devices and configures the host. Returns the devices towards the sender and
/// towards the receiver. `window` is the initial congestion window of its connections, in segments:
/// an attribute of routes, and the kernel's own default if absent.
fn set_up(
    host: &Host,
    index: usize,
    links: usize,
    settings: &[(&'static str, String)],
    window: Option<u32>,
) -> Result<[Option<OwnedFd>; 2], LabError> {
    host.sysctl(settings)?;
    host.sysctl(&[("ipv4/ip_forward", "1".into()), ("ipv6/conf/all/forwarding", "1".into())])?;
    let open = |link: usize| -> Result<OwnedFd, LabError> {
        let device = format!("link{}", link + 1);
        host.enter(|| sys::open_tun(&device))?.map_err(|why| LabError::Tun { device: device.clone(), host: host.name().into(), why })
    };
    let left = index.checked_sub(1);
    let right = (index < links).then_some(index);
    let ends = [left.map(open).transpose()?, right.map(open).transpose()?];
    let initial_window = window.map_or(String::new(), |window| format!(" initcwnd {window}"));
    let mut lines = Vec::new();
    for (link, own) in left.map(|link| (link, 1)).into_iter().chain(right.map(|link| (link, 0))) {
        let device = format!("link{}", link + 1);
        let [v4, v6] = addresses(link)[own];
        lines.extend([
            format!("link set {device} mtu {} txqueuelen {HOST_QUEUE}", PKT.0),
            format!("link set {device} up"),
            format!("addr add {v4}/30 dev {device}"),
        ]);
        if has_ipv6() {
            lines.push(format!("addr add {v6}/64 dev {device} nodad"));
        }
        if window.is_some() {
            // Replaces the routes to neighbours that the kernel made when the address was added.
            let [net4, net6] = prefixes(link);
            lines.push(format!("route replace {net4} dev {device} proto kernel scope link src {v4}{initial_window}"));
            if has_ipv6() {
                lines.push(format!("route replace {net6} dev {device} proto kernel metric 256{initial_window}"));
            }
        }
    }
    for other in (0..links).filter(|&link| Some(link) != left && Some(link) != right) {
        let device = format!("link{}", if other < index { index } else { index + 1 });
        let families = if has_ipv6() { 2 } else { 1 };
        lines.extend(prefixes(other)[..families].iter().map(|prefix| format!("route add {prefix} dev {device}{initial_window}")));
    }
    host.ip(&lines)?;
    Ok(ends)
}

/// The emulator's links, from the scenario and the devices of each host.
fn link_specs(scenario: &Scenario, seed: u64, mut ends: Vec<[Option<OwnedFd>; 2]>) -> Vec<LinkSpec> {
    let mut specs = Vec::new();
    for (index, link) in scenario.links.iter().enumerate() {
        let (Some(left), Some(right)) = (ends[index][1].take(), ends[index + 1][0].take()) else { continue };
        specs.push(LinkSpec {
            directions: [false, true].map(|is_reverse| DirectionSpec::of_series(scenario, index, seed, is_reverse)),
            changes: link.all_changes(),
            ends: [left, right],
            hosts: [index, index + 1],
        });
    }
    specs
}

/// Default and maximum socket buffer, in bytes: four times what is in flight and queued on the
/// whole path. A factor of two covers the kernel's overhead, another the growth of the window, so
/// that the window is never the bottleneck.
fn socket_memory(scenario: &Scenario) -> String {
    let queues: u64 = (0..scenario.links.len()).map(|index| scenario.queue_size(index).bytes().0).fold(0, u64::saturating_add);
    let whole = LegLinks { first: 0, end: scenario.links.len() };
    let extra = scenario.flow_specs(scenario.seed).iter().map(|flow| 2 * flow.access_delay.0).max().unwrap_or(0);
    let rtt = scenario.base_rtt(whole) + Span(extra);
    let fastest = scenario.links.iter().map(|link| link.rate).max().unwrap_or(units::Rate(0));
    let slowest = scenario.bottleneck_rate(whole);
    // Queues fill only as far as the fastest link can fill them.
    let Bytes(flight) = slowest.bytes_in(rtt);
    let Bytes(burst) = fastest.bytes_in(rtt);
    let need = (flight + queues.min(burst.saturating_mul(4))).saturating_mul(4).clamp(4 << 20, 1 << 30);
    format!("{need} {need}")
}

/// Packets that each device of `host` dropped because the emulator did not read them in time.
fn transmit_drops(host: &Host) -> Result<Vec<(String, u64)>, LabError> {
    let text = host
        .enter(|| std::fs::read_to_string("/proc/thread-self/net/dev"))?
        .map_err(|why| LabError::System { what: "read /proc/thread-self/net/dev", why })?;
    let parse = |line: &str| {
        let (device, numbers) = line.split_once(':')?;
        // bytes packets errs drop fifo frame compressed multicast | bytes packets errs drop …
        Some((device.trim().to_string(), numbers.split_whitespace().nth(11)?.parse().ok()?))
    };
    Ok(text.lines().filter_map(parse).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_share_a_prefix() {
        assert_eq!(prefixes(0), ["10.77.1.0/30", "fd77:0:0:1::/64"]);
        assert_eq!(addresses(1)[1][0].to_string(), "10.77.2.2");
        assert_eq!(addresses(1)[0][1].to_string(), "fd77:0:0:2::1");
    }
}
