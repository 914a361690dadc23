//! Two hosts and several networks between them, and the two ends of a bond.
//!
//! Network `k` (from 1) joins the sender as 10.77.k.1 and the receiver as 10.77.k.2; the device is called `link<k>` on both. Connections over a network are
//! those to its addresses. The bond is dialled from the host that opens transfers.

use crate::{
    LabError,
    capture::{Capture, Writer},
    emulator::{Emulator, LinkReport, LinkSpec, Setting},
    host::{Host, clear_stale},
    keep_cpus_awake::Awake,
    network::{HOST_QUEUE, settings},
    sys,
};
use bond::{BondSettings, PresharedKey};
use intercept::{LegProfile, Policy};
use proxy::{BondConfig, Config, FlowRecord, FlowStats, Listen, Proxy};
use rand::RngExt as _;
use rustix::fd::OwnedFd;
use scenario::{Opens, Parallel, Purpose, stream};
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::{Duration, Instant},
};
use units::{Bytes, PKT, Rate};

/// Where the accepting end of a bond listens.
const BOND_PORT: u16 = 7000;
/// Where applications find the bond, and where it finds theirs.
const IN_PORT: u16 = 4000;
pub(super) const OUT_PORT: u16 = 4100;
/// Payload of a full segment, with timestamps.
const MSS: u64 = PKT.0 - 52;

/// Hosts, networks and bonds, up and running.
#[derive(Debug)]
pub(crate) struct Networks {
    /// Sender and receiver.
    hosts: [Host; 2],
    /// The ends that dial and accept, by who opens transfers: the sender, the receiver. Declared before the emulator: they end while packets still flow.
    bonds: [Option<[Proxy; 2]>; 2],
    emulator: Option<Emulator>,
    writer: Option<Writer>,
    _awake: Awake,
}

/// What the ends of a bond tell of a stream that has ended.
pub(super) trait Heard: Fn(usize, &FlowRecord) + Clone + Send + Sync + 'static {}
impl<T: Fn(usize, &FlowRecord) + Clone + Send + Sync + 'static> Heard for T {}

/// The address of the sender (0) or the receiver (1) in network `index`, from 0.
pub(super) fn address(index: usize, end: usize) -> IpAddr {
    Ipv4Addr::new(10, 77, index as u8 + 1, end as u8 + 1).into()
}

/// What a network carries of IP when it carries so much payload in full segments.
pub(super) fn wire_rate(payload: Rate) -> Rate {
    Rate((u128::from(payload.bits_per_s()) * u128::from(PKT.0)).div_ceil(MSS.into()) as u64)
}

/// Which end opens: the sender or the receiver.
pub(super) fn end_of(opens: Opens) -> usize {
    usize::from(opens == Opens::Receiver)
}

impl Networks {
    pub(crate) fn build(parallel: &Parallel<'_>, seed: u64, capture: Option<&PathBuf>) -> Result<Self, LabError> {
        clear_stale();
        let epoch = Instant::now();
        let hosts = [Host::new("sender")?, Host::new("receiver")?];
        let memory = memory(parallel);
        let [mut left, mut right] = [0, 1].map(|end| set_up(&hosts[end], end, parallel.networks.len(), &memory));
        let ends = left.as_mut().map_err(take)?.drain(..).zip(right.as_mut().map_err(take)?.drain(..));
        let specs = parallel.networks.iter().enumerate().zip(ends).map(|((index, network), (left, right))| {
            let rate = wire_rate(network.rate);
            LinkSpec {
                rate,
                changes: Vec::new(),
                delay: network.delay,
                limit: network.queue.size_for(rate, network.delay * 2),
                loss: network.loss,
                loss_rng: stream(seed, Purpose::Losses, index as u64),
                ends: [left, right],
                hosts: [0, 1],
            }
        });
        let specs = specs.collect();
        let (capture, writer) = match capture {
            None => (None, None),
            Some(prefix) => {
                let path = |host: &Host| PathBuf::from(format!("{}{}.pcapng", prefix.display(), host.name()));
                let (capture, writer) = Capture::open(hosts.iter().map(path).collect())?;
                (Some(capture), Some(writer))
            }
        };
        let emulator = Some(Emulator::start(specs, Setting { epoch, access_delays: HashMap::new(), reordering: None, capture })?);
        Ok(Networks { hosts, bonds: [None, None], emulator, writer, _awake: Awake::keep() })
    }

    /// The sender (0) or the receiver (1).
    pub(crate) fn host(&self, end: usize) -> &Host {
        &self.hosts[end]
    }

    /// Has a bond carry what `opens` opens; `on_end` hears of the streams that end, at the end that dials (0) or accepts (1).
    pub(super) fn bond(
        &mut self,
        parallel: &Parallel<'_>,
        opens: Opens,
        shared: BondSettings,
        control: &str,
        on_end: impl Heard,
    ) -> Result<(), LabError> {
        let (here, there) = (end_of(opens), 1 - end_of(opens));
        let mut secret = [0; 32];
        rand::rng().fill(&mut secret[..]);
        let key = PresharedKey::new(&secret).map_err(|why| LabError::Bond(why.to_string()))?;
        let profile = LegProfile { control: Some(control.into()), ..LegProfile::default() };
        let most = parallel.networks.iter().map(|network| wire_rate(network.rate).bytes_in(network.delay * 2).0).sum::<u64>();
        let bond = BondConfig {
            key: Some(key),
            settings: shared,
            window: Bytes((4 * most).next_power_of_two().clamp(8 << 20, 1 << 28)),
            connection_window: parallel.window(0),
            spares: 4,
            ..BondConfig::default()
        };
        let accepts = Config {
            listen: vec![Listen::bond((Ipv4Addr::UNSPECIFIED, BOND_PORT).into())],
            policy: Policy { near: profile.clone(), ..Policy::default() },
            bond: Some(bond.clone()),
            buffer: None,
            ..Config::default()
        };
        let path = |index: usize| proxy::Network {
            name: (index + 1).to_string(),
            interface: None,
            source: Some(address(index, here)),
            to: (address(index, there), BOND_PORT).into(),
            tier: index as u8,
            profile: profile.clone(),
        };
        let dials = Config {
            listen: vec![Listen::forward(entrance(), (Ipv4Addr::LOCALHOST, OUT_PORT).into())],
            networks: (0..parallel.networks.len()).map(path).collect(),
            bond: Some(bond),
            buffer: None,
            ..Config::default()
        };
        let start = |config: Config, end: usize, place: usize| {
            let (host, on_end) = (&self.hosts[place], on_end.clone());
            let started = host.enter(|| Proxy::start(config, move |record| on_end(end, &record)))?;
            started.map_err(|why| LabError::Proxy { host: host.name().into(), why: Box::new(why) })
        };
        let accepts = start(accepts, 1, there)?;
        let dials = start(dials, 0, here)?;
        self.bonds[here] = Some([dials, accepts]);
        Ok(())
    }

    /// Lets Multipath TCP use all networks.
    pub(super) fn multipath(&self, networks: usize) -> Result<(), LabError> {
        for (end, host) in self.hosts.iter().enumerate() {
            let mut lines = vec!["mptcp limits set subflows 8 add_addr_accepted 8".to_string()];
            // Whoever is called tells of its other addresses.
            lines.extend((1..networks).map(|index| format!("mptcp endpoint add {} dev link{} signal", address(index, end), index + 1)));
            host.ip(&lines)?;
        }
        Ok(())
    }

    /// The streams of the ends that dial as they are now.
    pub(super) fn streams(&self) -> Vec<FlowStats> {
        self.bonds.iter().flatten().flat_map(|[dials, _]| dials.flows()).collect()
    }

    /// The ends of each bond, that which dials first, and who opens what it carries.
    pub(super) fn ends(&self) -> impl Iterator<Item = (Opens, &[Proxy; 2])> {
        [Opens::Sender, Opens::Receiver].into_iter().filter_map(|opens| Some((opens, self.bonds[end_of(opens)].as_ref()?)))
    }

    /// How many networks there are.
    pub(super) fn count(&self) -> usize {
        self.emulator.as_ref().map_or(0, |emulator| emulator.gauges().len())
    }

    /// Bytes that have left each network in the direction of the data.
    pub(super) fn left(&self) -> Vec<u64> {
        use std::sync::atomic::Ordering::Relaxed;
        self.emulator.as_ref().map_or(Vec::new(), |emulator| emulator.gauges().iter().map(|gauge| gauge.left_bytes.load(Relaxed)).collect())
    }

    /// Ends everything, and tells what became of each network.
    pub(crate) fn finish(mut self) -> Result<Vec<LinkReport>, LabError> {
        self.stop();
        let reports = match self.emulator.take() {
            Some(emulator) => emulator.finish()?,
            None => Vec::new(),
        };
        if let Some(writer) = self.writer.take() {
            writer.finish()?;
        }
        Ok(reports)
    }

    fn stop(&mut self) {
        self.bonds = [None, None];
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Where applications find the bond.
pub(super) fn entrance() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, IN_PORT).into()
}

/// How long to wait for the networks of a bond to be there.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

fn take(error: &mut LabError) -> LabError {
    std::mem::replace(error, LabError::Panicked)
}

/// Makes the devices of a host, and configures it.
fn set_up(host: &Host, end: usize, networks: usize, memory: &str) -> Result<Vec<OwnedFd>, LabError> {
    host.sysctl(&settings(memory))?;
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

/// Default and largest socket buffer: what is in flight and queued, twice over and once more for growth.
fn memory(parallel: &Parallel<'_>) -> String {
    let need = |network: &scenario::ParallelNetwork| {
        let rate = wire_rate(network.rate);
        let flight = rate.bytes_in(network.delay * 2).0;
        let queue = network.queue.size_for(rate, network.delay * 2).bytes().0;
        flight.saturating_add(queue).saturating_mul(4)
    };
    let need = parallel.networks.iter().map(need).max().unwrap_or(0).clamp(4 << 20, 1 << 28);
    format!("{need} {need}")
}
