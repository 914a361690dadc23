//! The links that legs leave through, where their capacity is known: a shaper, and the monitor that the controllers on them read.
//!
//! The shaper is an htb class for the proxy's own packets, which say so by their priority; all others go past it at once. So
//! one that a killed proxy leaves behind slows nobody down, and the next start takes it over. Where the operator has a queueing discipline of
//! their own on the interface it stays, and the monitor keeps the queue in mind instead.

use crate::{
    leg::{self, LegProfile},
    policy::{Interface, NamedProfile},
    routes::{Device, Routes},
};
use kernel::{LinkId, LinkRecord, Monitor, MonitorSettings, WatchMode};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    io,
    net::Ipv4Addr,
    process::{Command, Stdio},
    time::Instant,
};
use units::Rate;

/// The shaper's handle: its class 1 is what the proxy's packets ask for.
const HANDLE: u32 = leg::SHAPED >> 16;

/// Why a link is not as its profile says.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// It is not known whose capacity it is.
    #[error("{leg}: capacity = \"{capacity}\", but of which link? {why}; say it: link = \"eth0\"")]
    WhichLink {
        /// Which profile.
        leg: String,
        /// What it says.
        capacity: Rate,
        /// What stands against a guess.
        why: String,
    },
    /// Two profiles say different things of one link.
    #[error("{leg}: capacity and shape of {link} are not what another profile says of it: a link has one capacity")]
    Contradiction {
        /// Which profile.
        leg: String,
        /// The interface.
        link: String,
    },
    /// There is no such interface.
    #[error("{leg}: there is no interface {link:?} in this network namespace: see `ip link`")]
    NoLink {
        /// Which profile.
        leg: String,
        /// What it says.
        link: String,
    },
    /// The kernel's part.
    #[error("cannot watch what leaves through {link}: {why}")]
    Watch {
        /// The interface.
        link: String,
        /// Why not.
        why: Box<kernel::Error>,
    },
    /// The shaper could not be set up.
    #[error("cannot shape what leaves through {link}: `tc {arguments}`: {why}")]
    Shape {
        /// The interface.
        link: String,
        /// What was attempted.
        arguments: String,
        /// What tc says.
        why: String,
    },
}

/// The links whose capacity is known.
#[derive(Debug)]
pub struct Egress {
    monitor: Monitor,
    links: BTreeMap<String, WatchedLink>,
}

#[derive(Debug)]
struct WatchedLink {
    wanted: LinkSettings,
    place: LinkId,
    watch: WatchMode,
    /// When it was last asked about, and what had left by then.
    last: Option<(Instant, u64)>,
}

/// What profiles say of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LinkSettings {
    device: Device,
    capacity: Rate,
    shape: bool,
}

/// What is known of a link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkView {
    /// The interface.
    pub link: String,
    /// As configured, bit/s of IP.
    pub capacity_bps: u64,
    /// What leaves, since the last look, bit/s of IP.
    pub egress_bps: f64,
    /// Of that: not of flows under `share`, bit/s.
    pub other_bps: f64,
    /// Bytes that wait for good (the least backlog lately), and that wait now.
    pub queue_bytes: u64,
    /// Bytes that wait now.
    pub backlog_bytes: u64,
    /// Whether the queue is the shaper's; else it is further on, and what is said of it is what would wait at the capacity.
    pub shaped: bool,
    /// Packets that the shaper had no room for.
    pub drops: u64,
    /// Load factor as MPCP measures it; 0 before it has.
    pub load: f64,
    /// What XCP hands out and takes back in a control interval, bytes.
    pub give_bytes: u64,
    /// What XCP takes back.
    pub take_bytes: u64,
    /// Rate of a greedy flow of weight 1 under `share`, payload bit/s, and how many flows there are.
    pub share_bps: u64,
    /// Flows under `share` that have something to send.
    pub share_flows: u32,
    /// What `share` believes there is, of what is configured.
    pub share_scale: f64,
}

impl Egress {
    /// Tries what [`Egress::of`] would need, and changes nothing: the names of the links.
    pub fn try_out<'a>(profiles: impl Iterator<Item = NamedProfile<'a>>) -> Result<String, EgressError> {
        let wanted = wanted(profiles)?;
        let links = wanted.iter().map(|link| link.device.name.as_str()).collect::<Vec<_>>().join(", ");
        Monitor::new().map_err(|why| EgressError::Watch { link: links.clone(), why: why.into() })?;
        wanted.iter().try_for_each(|link| tc(&link.device.name, &["qdisc", "show", "dev", &link.device.name, "root"]).map(drop))?;
        Ok(links)
    }

    /// Sets up what the profiles say; none where they say nothing.
    pub fn of<'a>(profiles: impl Iterator<Item = NamedProfile<'a>>) -> Result<Option<Self>, EgressError> {
        let wanted = wanted(profiles)?;
        if wanted.is_empty() {
            return Ok(None);
        }
        let links = wanted.iter().map(|link| link.device.name.as_str()).collect::<Vec<_>>().join(", ");
        let monitor = Monitor::new().map_err(|why| EgressError::Watch { link: links, why: why.into() })?;
        let mut egress = Egress { monitor, links: BTreeMap::new() };
        egress.set(wanted)?;
        Ok(Some(egress))
    }

    /// Changes to what the profiles say now. Flows that there are feel it at once. Where one link fails, all stay as they were.
    pub fn change<'a>(&mut self, profiles: impl Iterator<Item = NamedProfile<'a>>) -> Result<(), EgressError> {
        let wanted = wanted(profiles)?;
        let before = self.links.values().map(|watched| watched.wanted.clone()).collect();
        self.set(wanted).inspect_err(|_| {
            if let Err(why) = self.set(before) {
                tracing::error!("what links were set to could not be restored: {why}");
            }
        })
    }

    fn set(&mut self, wanted: Vec<LinkSettings>) -> Result<(), EgressError> {
        let stays = |link: &String| wanted.iter().any(|wanted| wanted.device.name == *link);
        let gone: Vec<String> = self.links.keys().filter(|link| !stays(link)).cloned().collect();
        for link in gone {
            self.release(&link);
        }
        for wanted in wanted {
            let LinkSettings { device, capacity, shape } = wanted.clone();
            let watching = |why: kernel::Error| EgressError::Watch { link: device.name.clone(), why: why.into() };
            let place = LinkId::here(device.index).map_err(watching)?;
            let wire = wire_rate(capacity, &device);
            let watch = if shape { shape_to(&device, wire)? } else { unshape(&device) };
            // From here on a release takes all of it away.
            self.links.insert(device.name.clone(), WatchedLink { wanted, place, watch, last: None });
            self.monitor.watch(place, MonitorSettings { capacity: wire, overhead: device.overhead, watch }).map_err(watching)?;
        }
        Ok(())
    }

    fn release(&mut self, link: &str) {
        if let Some(watched) = self.links.remove(link) {
            self.monitor.forget(watched.place);
            if watched.watch == WatchMode::Qdisc {
                unshape(&watched.wanted.device);
            }
        }
    }

    /// What is known of each link.
    pub fn look(&mut self) -> Vec<LinkView> {
        let mut views = Vec::new();
        for (link, watched) in &mut self.links {
            let Ok(Some(record)) = self.monitor.read(watched.place) else { continue };
            let now = Instant::now();
            let (since, before) = watched.last.replace((now, record.egress)).unwrap_or((now, record.egress));
            let seconds = (now - since).as_secs_f64();
            let egress = if seconds > 0.0 { record.egress.saturating_sub(before) as f64 / seconds } else { 0.0 };
            views.push(view(link, watched, &record, egress));
        }
        views
    }
}

impl Drop for Egress {
    fn drop(&mut self) {
        for link in self.links.keys().cloned().collect::<Vec<_>>() {
            self.release(&link);
        }
    }
}

fn view(link: &str, watched: &WatchedLink, record: &LinkRecord, egress: f64) -> LinkView {
    // From bytes on the wire to bits of IP.
    let device = &watched.wanted.device;
    let mtu = f64::from(device.mtu);
    let bits = |wire: f64| wire * 8.0 * mtu / (mtu + f64::from(device.overhead));
    LinkView {
        link: link.to_owned(),
        capacity_bps: watched.wanted.capacity.bits_per_s(),
        egress_bps: bits(egress),
        other_bps: bits(record.share.cross_rate as f64),
        queue_bytes: record.queue,
        backlog_bytes: record.backlog,
        shaped: watched.watch == WatchMode::Qdisc,
        drops: record.drops,
        load: f64::from(record.mpcp.load_milli) / 1000.0,
        give_bytes: record.xcp.give,
        take_bytes: record.xcp.take,
        share_bps: record.share.level * 8,
        share_flows: record.share.flows,
        share_scale: f64::from(record.share.scale) / 65536.0,
    }
}

/// The links that profiles say the capacity of.
fn wanted<'a>(profiles: impl Iterator<Item = NamedProfile<'a>>) -> Result<Vec<LinkSettings>, EgressError> {
    let mut wanted: Vec<LinkSettings> = Vec::new();
    for (leg, profile, chosen_by) in profiles {
        let Some(capacity) = profile.capacity else { continue };
        for device in devices_of(&leg, profile, chosen_by, capacity)? {
            let link = LinkSettings { device, capacity, shape: profile.shape.unwrap_or(true) };
            match wanted.iter().find(|known| known.device == link.device) {
                None => wanted.push(link),
                Some(known) if *known == link => {}
                Some(_) => return Err(EgressError::Contradiction { leg, link: link.device.name }),
            }
        }
    }
    Ok(wanted)
}

/// The interfaces that a profile's capacity is that of: the one it names, those it is chosen by, or the one to everywhere.
fn devices_of(leg: &str, profile: &LegProfile, chosen_by: &[Interface], capacity: Rate) -> Result<Vec<Device>, EgressError> {
    let which = |why: &str| EgressError::WhichLink { leg: leg.to_owned(), capacity, why: why.to_owned() };
    let routes = Routes::open().map_err(|why| which(&format!("the kernel does not tell its interfaces: {why}")))?;
    let mut devices = routes.devices().map_err(|why| which(&format!("the kernel does not tell its interfaces: {why}")))?;
    if let Some(link) = &profile.link {
        devices.retain(|device| device.name == *link);
        return if devices.is_empty() { Err(EgressError::NoLink { leg: leg.to_owned(), link: link.clone() }) } else { Ok(devices) };
    }
    if !chosen_by.is_empty() {
        devices.retain(|device| chosen_by.iter().any(|interface| interface.matches(&device.name)));
        return if devices.is_empty() { Err(which("no interface is there that the profile is chosen by")) } else { Ok(devices) };
    }
    // Any address that is not this machine's will do: it is only asked about.
    let anywhere = Ipv4Addr::new(192, 88, 99, 1);
    let default = routes.interface_to(anywhere.into());
    devices.retain(|device| Some(&device.name) == default.as_ref());
    if devices.is_empty() { Err(which("the profile names no interface, and there is no default route")) } else { Ok(devices) }
}

/// Wire bytes/s of a rate of IP bits, with full packets.
fn wire_rate(rate: Rate, device: &Device) -> u64 {
    let wire = u128::from(rate.bits_per_s()) * u128::from(device.mtu + device.overhead) / u128::from(device.mtu.max(1)) / 8;
    u64::try_from(wire).unwrap_or(u64::MAX)
}

/// Shapes the proxy's packets on an interface to so many wire bytes/s, or leaves the operator's own queueing discipline alone.
fn shape_to(device: &Device, wire: u64) -> Result<WatchMode, EgressError> {
    let link = device.name.as_str();
    let handle = format!("{HANDLE:x}:");
    let root = tc(link, &["qdisc", "show", "dev", link, "root"])?;
    let mut words = root.split_whitespace().skip(1);
    let (kind, there) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    // A handle of 0: is the kernel's own choice; where there is none at all it is noqueue.
    if there == handle {
        tracing::debug!("{link}: takes over the shaper that is there");
    } else if there == "0:" || there.is_empty() {
        tc(link, &["qdisc", "replace", "dev", link, "root", "handle", &handle, "htb", "default", "0"])?;
    } else {
        tracing::info!("{link} has a queueing discipline of its own ({kind}), which stays: nothing is shaped there");
        return Ok(WatchMode::Virtual);
    }
    let (class, rate) = (format!("{handle}1"), format!("{}bit", wire * 8));
    // As large as a full packet, and not much larger: a burst would go into the queue of whoever is next.
    let burst = (wire / 1000).max(u64::from(device.mtu) * 2).to_string();
    let arguments = ["class", "replace", "dev", link, "parent", &handle, "classid", &class, "htb", "rate", &rate, "burst", &burst];
    tc(link, &[&arguments[..], &["cburst", &burst]].concat())?;
    // What waits here is bounded by TCP itself, which lets no more than two packets of a flow, or a millisecond's worth, into its host's own
    // queue: to drop one would only have it sent again. So there is room for those of a thousand flows that begin together.
    let (queue, limit) = (format!("{:x}:", HANDLE + 1), (wire / 2).max(4 << 20).to_string());
    tc(link, &["qdisc", "replace", "dev", link, "parent", &class, "handle", &queue, "bfifo", "limit", &limit])?;
    Ok(WatchMode::Qdisc)
}

/// Takes a shaper away that a killed proxy left.
fn unshape(device: &Device) -> WatchMode {
    let link = device.name.as_str();
    let root = tc(link, &["qdisc", "show", "dev", link, "root"]).unwrap_or_default();
    if root.split_whitespace().nth(2) == Some(&format!("{HANDLE:x}:")) {
        let _ = tc(link, &["qdisc", "del", "dev", link, "root"]);
    }
    WatchMode::Virtual
}

fn tc(link: &str, arguments: &[&str]) -> Result<String, EgressError> {
    let failed = |why: String| EgressError::Shape { link: link.to_owned(), arguments: arguments.join(" "), why };
    let output = Command::new("tc").args(arguments).stdin(Stdio::null()).output().map_err(|why| {
        let cure = if why.kind() == io::ErrorKind::NotFound { ": install it (Debian package iproute2)" } else { "" };
        failed(format!("{why}{cure}"))
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("it gave no reason").to_owned()))
}
