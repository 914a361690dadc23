//! Two hosts, the networks in parallel between them, and the two ends of a bond.
//!
//! Network `k` (from 1) joins the sender as 10.77.k.1 and the receiver as 10.77.k.2. Its device is
//! called `link<k>` on both. A connection runs over the network whose addresses it uses. A bond is
//! dialled by the host that opens the transfers which it carries.

use crate::{
    LabError,
    capture::{Capture, CaptureWriter},
    emulator::{Emulator, EmulatorSettings, LinkReport, LinkSpec},
    host::{Host, clear_stale},
    keep_cpus_awake::CpusAwake,
    network::{HOST_QUEUE, NetworkOptions, reordering, settings},
    reachable_proxy::ReachableProxy,
    sys,
};
use bond::{BondSettings, PresharedKey};
use intercept::{Destinations, LegProfile, Policy, Prefix};
use link::{DirectionSpec, LinkStreams};
use proxy::{BondConfig, BondNetwork, Buffer, FlowRecord, FlowStats, ListenerConfig, ProxyConfig};
use rand::RngExt as _;
use rustix::fd::OwnedFd;
use scenario::{Link, Opens, Parallel};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};
use units::{Bytes, PKT, Rate, Span};

/// Port at which the accepting end of a bond listens.
const BOND_PORT: u16 = 7000;
/// Port of the loopback interface at which the dialling end of a bond accepts connections.
const ENTRY_PORT: u16 = 4000;
/// Port of the loopback interface to which the accepting end of a bond connects.
pub(super) const EXIT_PORT: u16 = 4100;
/// Payload of a full segment with timestamps, bytes.
const MSS: u32 = PKT.0 as u32 - 52;
/// Maximum time to wait for the handshakes of a bond's connections before a run starts.
pub(super) const MAX_START_DELAY: Duration = Duration::from_secs(10);

/// The hosts, networks and bonds of a scenario with networks in parallel, up and running until
/// dropped.
#[derive(Debug)]
pub struct ParallelNetworks {
    /// Sender and receiver.
    hosts: [Host; 2],
    /// The dialling and the accepting end of the bond that carries what the sender opens, and of
    /// the one that carries what the receiver opens. Declared before the emulator, so that they are
    /// dropped while it still delivers their last packets.
    bonds: [Option<[ReachableProxy; 2]>; 2],
    emulator: Option<Emulator>,
    capture_writer: Option<CaptureWriter>,
    /// Whether other programs use the network.
    is_published: bool,
    _cpus_awake: CpusAwake,
}

/// Where applications reach a bond, and where it reaches applications.
#[derive(Debug)]
pub struct BondRoute<'a> {
    /// The host on which connections to `entry` enter the bond.
    pub from: &'a Host,
    /// Address on that host.
    pub entry: SocketAddr,
    /// The host on which the bond connects to `exit` for each of them.
    pub to: &'a Host,
    /// Address on that host.
    pub exit: SocketAddr,
}

/// Called when a stream of a bond has ended, by the dialling end (0) and by the accepting end (1).
pub(super) trait OnStreamEnd: Fn(usize, &FlowRecord) + Clone + Send + Sync + 'static {}
impl<T: Fn(usize, &FlowRecord) + Clone + Send + Sync + 'static> OnStreamEnd for T {}

/// The address of the sender (`end` 0) or of the receiver (1) in network `index` (from 0).
pub(super) fn address(index: usize, end: usize) -> IpAddr {
    Ipv4Addr::new(10, 77, index as u8 + 1, end as u8 + 1).into()
}

/// The networks as links with rates in IP bits a second.
pub(super) fn ip_links(parallel: &Parallel<'_>) -> Vec<Link> {
    parallel.networks.iter().map(|network| network.ip_link(MSS)).collect()
}

/// Index of the host that opens connections: 0 for the sender, 1 for the receiver.
pub(super) fn end_of(opens: Opens) -> usize {
    usize::from(opens == Opens::Receiver)
}

/// Where applications connect to enter a bond.
pub(super) fn bond_entrance() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, ENTRY_PORT).into()
}

/// Where a bond connects to reach applications.
fn exit_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, EXIT_PORT).into()
}

impl ParallelNetworks {
    /// Builds hosts and networks, without bonds.
    pub(super) fn without_bonds(parallel: &Parallel<'_>, seed: u64, options: &NetworkOptions) -> Result<Self, LabError> {
        clear_stale();
        let epoch = Instant::now();
        let mut hosts = [Host::new("sender")?, Host::new("receiver")?];
        if options.published {
            for host in &mut hosts {
                host.publish()?;
            }
        }
        let links = ip_links(parallel);
        let mut settings = settings(&socket_memory(&links)).to_vec();
        if links.iter().any(|link| link.queue.marks()) {
            // Ask for ECN: the kernel's default only accepts it.
            settings.push(("ipv4/tcp_ecn", "1".into()));
        }
        let devices = set_up(&hosts[0], 0, links.len(), &settings)?.into_iter().zip(set_up(&hosts[1], 1, links.len(), &settings)?);
        let specs = (0..).zip(&links).zip(devices).map(|((index, link), (left, right))| LinkSpec {
            directions: [false, true].map(|is_reverse| {
                let streams = LinkStreams { seed, link: index, is_reverse };
                DirectionSpec::of_link(link, link.delay * 2, streams)
            }),
            changes: link.all_changes(),
            ends: [left, right],
            hosts: [0, 1],
        });
        let specs = specs.collect();
        let (capture, capture_writer) = Capture::of_hosts(options.capture.as_deref(), &hosts)?;
        let access_delays = options.access_delays.clone();
        let settings = EmulatorSettings { epoch, access_delays, reordering: reordering(options, seed), capture };
        let emulator = Some(Emulator::start(specs, settings)?);
        Ok(ParallelNetworks {
            hosts,
            bonds: [None, None],
            emulator,
            capture_writer,
            is_published: options.published,
            _cpus_awake: CpusAwake::keep(),
        })
    }

    /// Starts the clock of the run, from which on the networks change.
    pub(crate) fn start_clock(&self) {
        if let Some(emulator) = &self.emulator {
            emulator.start_clock();
        }
    }

    /// The sender and the receiver.
    pub fn hosts(&self) -> &[Host; 2] {
        &self.hosts
    }

    /// The addresses of the sender in each network.
    pub fn sender_addresses(&self) -> Vec<IpAddr> {
        (0..self.count()).map(|index| address(index, 0)).collect()
    }

    /// The addresses of the receiver in each network.
    pub fn receiver_addresses(&self) -> Vec<IpAddr> {
        (0..self.count()).map(|index| address(index, 1)).collect()
    }

    /// The bonds: none if the scenario's foreground uses a single network or Multipath TCP.
    pub fn bonds(&self) -> impl Iterator<Item = BondRoute<'_>> {
        self.bond_ends().map(move |(opens, _)| BondRoute {
            from: &self.hosts[end_of(opens)],
            entry: bond_entrance(),
            to: &self.hosts[1 - end_of(opens)],
            exit: exit_address(),
        })
    }

    /// Starts the two ends of a bond for the connections that `opens` opens.
    pub(super) fn start_bond(
        &mut self,
        parallel: &Parallel<'_>,
        opens: Opens,
        settings: BondSettings,
        control: &str,
        on_end: impl OnStreamEnd,
    ) -> Result<(), LabError> {
        let (here, there) = (end_of(opens), 1 - end_of(opens));
        let mut secret = [0; 32];
        rand::rng().fill(&mut secret[..]);
        let key = PresharedKey::new(&secret).map_err(|why| LabError::Bond(why.to_string()))?;
        let profile = LegProfile { control: Some(control.into()), ..LegProfile::default() };
        let in_flight = ip_links(parallel).iter().map(most_in_flight).sum::<u64>();
        let bond = BondConfig {
            key: Some(key),
            settings,
            window: parallel.bond.window.unwrap_or(Bytes((4 * in_flight).next_power_of_two().clamp(8 << 20, 1 << 28))),
            connection_window: parallel.window(0),
            spares: 4,
            // The accepting end refuses loopback addresses unless they are allowed.
            destinations: Destinations { allow: vec![Prefix(exit_address().ip().into())], ..Destinations::default() },
            ..BondConfig::default()
        };
        let accepts = ProxyConfig {
            listen: vec![ListenerConfig::bond((Ipv4Addr::UNSPECIFIED, BOND_PORT).into())],
            policy: Policy { near: profile.clone(), ..Policy::default() },
            bond: Some(bond.clone()),
            buffer: Buffer::Unlimited,
            ..ProxyConfig::default()
        };
        let network = |index: usize| BondNetwork {
            name: (index + 1).to_string(),
            interface: None,
            source: Some(address(index, here)),
            to: SocketAddr::new(address(index, there), BOND_PORT).into(),
            tier: index as u8,
            profile: profile.clone(),
        };
        let dials = ProxyConfig {
            listen: vec![ListenerConfig::forward(bond_entrance(), exit_address())],
            networks: (0..parallel.networks.len()).map(network).collect(),
            bond: Some(bond),
            buffer: Buffer::Unlimited,
            ..ProxyConfig::default()
        };
        // Bonds of both directions are on the same hosts.
        let name = self.is_published.then_some(if self.bonds[there].is_some() { "reverse" } else { "default" });
        let start = |config: ProxyConfig, end: usize, host: &Host| {
            let on_end = on_end.clone();
            ReachableProxy::start(host, config, name, move |record| on_end(end, &record))
        };
        let accepts = start(accepts, 1, &self.hosts[there])?;
        let dials = start(dials, 0, &self.hosts[here])?;
        self.bonds[here] = Some([dials, accepts]);
        Ok(())
    }

    /// Lets Multipath TCP use all networks.
    pub(super) fn enable_multipath_tcp(&self) -> Result<(), LabError> {
        for (end, host) in self.hosts.iter().enumerate() {
            let mut lines = vec!["mptcp limits set subflows 8 add_addr_accepted 8".to_string()];
            // The server signals its other addresses to the client (ADD_ADDR).
            let others = 1..self.count();
            lines.extend(others.map(|index| format!("mptcp endpoint add {} dev link{} signal", address(index, end), index + 1)));
            host.ip(&lines)?;
        }
        Ok(())
    }

    /// The current streams of the dialling ends.
    pub(super) fn streams(&self) -> Vec<FlowStats> {
        self.bonds.iter().flatten().flat_map(|[dials, _]| dials.flows()).collect()
    }

    /// The dialling and the accepting end of each bond, after the host that opens what it carries.
    pub(super) fn bond_ends(&self) -> impl Iterator<Item = (Opens, &[ReachableProxy; 2])> {
        [Opens::Sender, Opens::Receiver].into_iter().filter_map(|opens| Some((opens, self.bonds[end_of(opens)].as_ref()?)))
    }

    /// Number of networks.
    pub(super) fn count(&self) -> usize {
        self.emulator.as_ref().map_or(0, |emulator| emulator.gauges().len())
    }

    /// IP bytes that have left the queue of each network, in the direction of the data.
    pub(super) fn departed_bytes(&self) -> Vec<u64> {
        use std::sync::atomic::Ordering::Relaxed;
        self.emulator.as_ref().map_or(Vec::new(), |emulator| emulator.gauges().iter().map(|gauge| gauge.left_bytes.load(Relaxed)).collect())
    }

    /// Stops bonds and emulator, and returns a report for each network.
    pub(crate) fn finish(mut self) -> Result<Vec<LinkReport>, LabError> {
        self.stop_bonds();
        let reports = match self.emulator.take() {
            Some(emulator) => emulator.finish()?,
            None => Vec::new(),
        };
        if let Some(writer) = self.capture_writer.take() {
            writer.finish()?;
        }
        Ok(reports)
    }

    fn stop_bonds(&mut self) {
        self.bonds = [None, None];
    }
}

impl Drop for ParallelNetworks {
    fn drop(&mut self) {
        self.stop_bonds();
    }
}

/// Makes a host's devices, one for each network, and configures the host.
fn set_up(host: &Host, end: usize, networks: usize, settings: &[(&str, String)]) -> Result<Vec<OwnedFd>, LabError> {
    host.sysctl(settings)?;
    let mut devices = Vec::new();
    let mut lines = Vec::new();
    for index in 0..networks {
        let device = format!("link{}", index + 1);
        let made = host.enter(|| sys::open_tun(&device))?;
        devices.push(made.map_err(|why| LabError::Tun { device: device.clone(), host: host.name().into(), why })?);
        lines.extend([
            format!("link set {device} mtu {} txqueuelen {HOST_QUEUE}", PKT.0),
            format!("link set {device} up"),
            format!("addr add {}/30 dev {device}", address(index, end)),
        ]);
    }
    host.ip(&lines)?;
    Ok(devices)
}

/// Bytes in flight on a link at the highest rate and the longest delay that it ever has.
fn most_in_flight(link: &Link) -> u64 {
    let rates = link.changes.iter().filter_map(|change| change.rate);
    let delays = link.changes.iter().filter_map(|change| change.delay);
    rates.fold(link.rate, Rate::max).bytes_in(delays.fold(link.delay, Span::max) * 2).0
}

/// Default and maximum socket buffer, in bytes: four times what is in flight and queued in the
/// network with most of both. A factor of two covers the kernel's overhead, another the growth of
/// the window.
fn socket_memory(links: &[Link]) -> String {
    let need = |link: &Link| {
        let queue = link.queue.size_for(link.rate, link.delay * 2).bytes().0;
        most_in_flight(link).saturating_add(queue).saturating_mul(4)
    };
    let need = links.iter().map(need).max().unwrap_or(0).clamp(4 << 20, 1 << 28);
    format!("{need} {need}")
}
