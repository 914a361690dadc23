//! Egress links with a capacity: a shaper, and a monitor. The monitor writes records, which the
//! congestion controllers read. The capacity is configured, read from a file, or estimated by the
//! controller `share`.
//!
//! The shaper is an htb class for the proxy's own packets, which carry its priority; all other
//! packets bypass it. So a shaper that a killed proxy leaves behind does not slow other traffic,
//! and the next start takes it over. If the operator has configured a queueing discipline on the
//! interface, it stays, and the monitor computes the queue that there would be at the configured
//! capacity. An estimated capacity is not shaped to: the queue is where the bottleneck is.

use crate::{
    capacity::{CapacityFileError, CapacitySource},
    leg::{self, LegProfile},
    link_view::LinkView,
    policy::{Interface, NamedProfile},
    routes::{Device, Routes},
};
use kernel::{LinkId, LinkRecord, Monitor, MonitorSettings, WatchMode};
use std::{
    collections::BTreeMap,
    io, mem,
    net::Ipv4Addr,
    process::{Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant, SystemTime},
};
use units::Rate;

/// The handle of the shaper. The priority of the proxy's packets selects its class 1.
const HANDLE: u32 = leg::SHAPED >> 16;
/// How often files with capacities are read.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(500);

/// Why a link could not be set up as its profile says.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// The profile has a capacity, but does not determine an interface.
    #[error("{leg}: cannot tell which link has capacity = {capacity}: {why}; name it, as in link = \"eth0\"")]
    WhichLink {
        /// Which profile.
        leg: String,
        /// The capacity.
        capacity: CapacitySource,
        /// Why the interface is not determined.
        why: String,
    },
    /// Two profiles disagree about one link.
    #[error("{leg}: capacity or shape of {link} differs from another profile's: a link has one capacity, so set both alike")]
    Contradiction {
        /// Which profile.
        leg: String,
        /// The interface.
        link: String,
    },
    /// The file with the capacity cannot be used.
    #[error("{leg}: {why}")]
    CapacityFile {
        /// Which profile or interface.
        leg: String,
        /// The file, the reason and the cure.
        why: CapacityFileError,
    },
    /// The thread that reads the files could not be started.
    #[error("cannot start the thread that follows the files with capacities: {0}")]
    Follow(io::Error),
    /// There is no such interface.
    #[error("{leg}: there is no interface {link:?} in this network namespace: correct the name (`ip link`)")]
    NoLink {
        /// Which profile.
        leg: String,
        /// The name in the profile.
        link: String,
    },
    /// The monitor could not be attached.
    #[error("cannot monitor the egress of {link}: {why}")]
    Watch {
        /// The interface.
        link: String,
        /// The reason.
        why: Box<kernel::Error>,
    },
    /// The shaper could not be set up.
    #[error("cannot shape the egress of {link}: `tc {arguments}` failed: {why}")]
    Shape {
        /// The interface.
        link: String,
        /// The arguments of tc.
        arguments: String,
        /// The error message of tc.
        why: String,
    },
}

/// The links with a capacity: shaped or monitored until it is dropped.
#[derive(Debug)]
pub struct Egress {
    links: Arc<Mutex<WatchedLinks>>,
    /// Reads the files with capacities, once there are any.
    follower: Option<Follower>,
}

/// A thread that has the links follow their files until it is dropped.
#[derive(Debug)]
struct Follower {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct WatchedLinks {
    monitor: Monitor,
    links: BTreeMap<String, WatchedLink>,
}

#[derive(Debug)]
struct WatchedLink {
    settings: LinkSettings,
    id: LinkId,
    mode: WatchMode,
    /// The present capacity; `None`: it is estimated.
    rate: Option<Rate>,
    /// Why its file could not be used when it was last read.
    failure: Option<String>,
    /// When its file was last modified, as far as it could be used.
    modified: Option<SystemTime>,
    /// When `views` last read its record, and the bytes that had left by then.
    last: Option<(Instant, u64)>,
}

/// A link as profiles configure it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LinkSettings {
    device: Device,
    capacity: CapacitySource,
    shape: bool,
}

impl Egress {
    /// Checks that [`Egress::of`] would find its links and could monitor them, without changing
    /// anything. Returns the names of the links.
    ///
    /// # Errors
    /// The first link that could not be set up.
    pub fn try_out<'a>(profiles: impl Iterator<Item = NamedProfile<'a>>) -> Result<String, EgressError> {
        let configured = configured_links(profiles)?;
        let links = configured.iter().map(|link| link.device.name.as_str()).collect::<Vec<_>>().join(", ");
        Monitor::new().map_err(|why| EgressError::Watch { link: links.clone(), why: why.into() })?;
        configured.iter().try_for_each(|link| {
            let file = |why| EgressError::CapacityFile { leg: link.device.name.clone(), why };
            link.capacity.rate().map(drop).map_err(file)
        })?;
        configured.iter().try_for_each(|link| tc(&link.device.name, &["qdisc", "show", "dev", &link.device.name, "root"]).map(drop))?;
        Ok(links)
    }

    /// Shapes and monitors the links that profiles configure. `None` if no profile has a capacity.
    ///
    /// # Errors
    /// The first link that could not be set up. What was set up before is removed.
    pub fn of<'a>(profiles: impl Iterator<Item = NamedProfile<'a>>) -> Result<Option<Self>, EgressError> {
        let configured = configured_links(profiles)?;
        if configured.is_empty() {
            return Ok(None);
        }
        let links = configured.iter().map(|link| link.device.name.as_str()).collect::<Vec<_>>().join(", ");
        let monitor = Monitor::new().map_err(|why| EgressError::Watch { link: links, why: why.into() })?;
        let links = Arc::new(Mutex::new(WatchedLinks { monitor, links: BTreeMap::new() }));
        let mut egress = Egress { links, follower: None };
        egress.lock().set(configured)?;
        egress.follow()?;
        Ok(Some(egress))
    }

    /// Replaces the configuration of the links. It applies to existing flows at once.
    ///
    /// # Errors
    /// The first link that could not be set up. All links then keep their previous configuration.
    pub fn change<'a>(&mut self, profiles: impl Iterator<Item = NamedProfile<'a>>) -> Result<(), EgressError> {
        let configured = configured_links(profiles)?;
        {
            let mut links = self.lock();
            let before = links.links.values().map(|watched| watched.settings.clone()).collect();
            links.set(configured).inspect_err(|_| {
                if let Err(why) = links.set(before) {
                    tracing::error!("cannot restore the previous configuration of the links: {why}");
                }
            })?;
        }
        self.follow()
    }

    /// The present state of each link. Rates are means since the previous call.
    pub fn views(&mut self) -> Vec<LinkView> {
        self.lock().views()
    }

    /// Ends the measurement, and leaves the shapers to another process, which has set up the same
    /// links.
    pub fn leave(self) {
        self.lock().leave();
    }

    fn lock(&self) -> MutexGuard<'_, WatchedLinks> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread that follows files, if there are any and it does not run.
    fn follow(&mut self) -> Result<(), EgressError> {
        if self.follower.is_some() || self.lock().files().is_empty() {
            return Ok(());
        }
        let (stop, stopped) = mpsc::channel();
        let links = self.links.clone();
        // The thread is in the network namespace of this one.
        let work = move || {
            while stopped.recv_timeout(FOLLOW_INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
                follow_files(&links);
            }
        };
        let thread = thread::Builder::new().name("tandem-capacity".into()).spawn(work).map_err(EgressError::Follow)?;
        self.follower = Some(Follower { stop: Some(stop), thread: Some(thread) });
        Ok(())
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reads the files with capacities, and applies what has changed. The files are read without the
/// lock: a slow file system must not delay a reload or a view.
fn follow_files(links: &Mutex<WatchedLinks>) {
    let lock = || links.lock().unwrap_or_else(PoisonError::into_inner);
    let files = lock().files();
    for (link, source) in files {
        let rate = source.rate();
        lock().take_rate(&link, &source, rate);
    }
}

impl WatchedLinks {
    fn set(&mut self, configured: Vec<LinkSettings>) -> Result<(), EgressError> {
        let stays = |link: &String| configured.iter().any(|settings| settings.device.name == *link);
        let gone: Vec<String> = self.links.keys().filter(|link| !stays(link)).cloned().collect();
        for link in gone {
            self.release(&link);
        }
        for settings in configured {
            let known = self.links.get(&settings.device.name).filter(|known| known.settings.capacity == settings.capacity);
            let rate = match (settings.capacity.rate(), known) {
                (Ok(rate), _) => rate,
                // A file that cannot be used now has been used before: `take_rate` warns of it.
                (Err(_), Some(known)) => known.rate,
                (Err(why), None) => return Err(EgressError::CapacityFile { leg: settings.device.name.clone(), why }),
            };
            self.apply(settings, rate)?;
        }
        Ok(())
    }

    /// Shapes and monitors a link for this capacity; `None`: it is estimated.
    fn apply(&mut self, settings: LinkSettings, rate: Option<Rate>) -> Result<(), EgressError> {
        let device = settings.device.clone();
        let failed = |why: kernel::Error| EgressError::Watch { link: device.name.clone(), why: why.into() };
        let id = LinkId::here(device.index).map_err(failed)?;
        let capacity = rate.map(|rate| wire_rate(rate, &device));
        let mode = match capacity {
            Some(wire) if settings.shape => shape_to(&device, wire)?,
            _ => unshape(&device),
        };
        let last = self.links.get(&device.name).and_then(|watched| watched.last);
        // Inserted before the monitor is attached, so that `release` removes both on an error.
        let modified = settings.capacity.modified();
        self.links.insert(device.name.clone(), WatchedLink { settings, id, mode, rate, failure: None, modified, last });
        self.monitor.watch(id, MonitorSettings { capacity, overhead: device.overhead, watch: mode }).map_err(failed)
    }

    /// Links that take their capacity from a file, each with its file.
    fn files(&self) -> Vec<(String, CapacitySource)> {
        let is_file = |watched: &&WatchedLink| matches!(watched.settings.capacity, CapacitySource::File(_));
        self.links
            .values()
            .filter(is_file)
            .map(|watched| (watched.settings.device.name.clone(), watched.settings.capacity.clone()))
            .collect()
    }

    /// Takes what was read from a link's file. If that failed, the last rate stays.
    fn take_rate(&mut self, link: &str, source: &CapacitySource, read: Result<Option<Rate>, CapacityFileError>) {
        // The configuration may have changed meanwhile.
        let Some(watched) = self.links.get_mut(link).filter(|watched| watched.settings.capacity == *source) else { return };
        match read {
            Ok(rate) if rate == watched.rate => (watched.failure, watched.modified) = (None, source.modified()),
            Ok(rate) => {
                let settings = watched.settings.clone();
                tracing::debug!("{link}: capacity {}", rate.map_or_else(String::new, |rate| rate.to_string()));
                if let Err(why) = self.apply(settings, rate) {
                    tracing::error!("{link}: cannot change the capacity: {why}");
                }
            }
            Err(why) => {
                let why = why.to_string();
                if watched.failure.as_ref() != Some(&why) {
                    let stays = watched.rate.map_or_else(String::new, |rate| format!(" (the last capacity, {rate}, stays)"));
                    tracing::warn!("{link}: {why}{stays}");
                    watched.failure = Some(why);
                }
            }
        }
    }

    fn release(&mut self, link: &str) {
        if let Some(watched) = self.links.remove(link) {
            self.monitor.forget(watched.id);
            if watched.mode == WatchMode::Qdisc {
                unshape(&watched.settings.device);
            }
        }
    }

    fn leave(&mut self) {
        for (_, watched) in mem::take(&mut self.links) {
            self.monitor.forget(watched.id);
        }
    }

    fn views(&mut self) -> Vec<LinkView> {
        let mut views = Vec::new();
        for (link, watched) in &mut self.links {
            let Ok(Some(record)) = self.monitor.read(watched.id) else { continue };
            let now = Instant::now();
            let (since, before) = watched.last.replace((now, record.egress)).unwrap_or((now, record.egress));
            let seconds = (now - since).as_secs_f64();
            let egress = if seconds > 0.0 { record.egress.saturating_sub(before) as f64 / seconds } else { 0.0 };
            views.push(view(link, watched, &record, egress));
        }
        views
    }
}

impl Drop for WatchedLinks {
    fn drop(&mut self) {
        for link in self.links.keys().cloned().collect::<Vec<_>>() {
            self.release(&link);
        }
    }
}

fn view(link: &str, watched: &WatchedLink, record: &LinkRecord, egress: f64) -> LinkView {
    // From bytes on the wire to bits of IP.
    let device = &watched.settings.device;
    let mtu = f64::from(device.mtu);
    let bits = |wire: f64| wire * 8.0 * mtu / (mtu + f64::from(device.overhead));
    LinkView {
        link: link.to_owned(),
        capacity_bps: watched.rate.map_or(bits(record.capacity as f64) as u64, Rate::bits_per_s),
        estimated: watched.rate.is_none(),
        egress_bytes: record.egress,
        file_time_s: watched.modified.and_then(|at| Some(at.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs_f64())),
        egress_bps: bits(egress),
        other_bps: bits(record.share.cross_rate as f64),
        queue_bytes: record.queue,
        backlog_bytes: record.backlog,
        shaped: watched.mode == WatchMode::Qdisc,
        drops: record.drops,
        load: f64::from(record.mpcp.load_milli) / 1000.0,
        give_bytes: record.xcp.give,
        take_bytes: record.xcp.take,
        share_bps: record.share.level * 8,
        share_flows: record.share.flows,
        share_scale: f64::from(record.share.scale) / 65536.0,
    }
}

/// The links for which profiles have a capacity.
fn configured_links<'a>(profiles: impl Iterator<Item = NamedProfile<'a>>) -> Result<Vec<LinkSettings>, EgressError> {
    let mut configured: Vec<LinkSettings> = Vec::new();
    for (leg, profile, chosen_by) in profiles {
        let Some(capacity) = &profile.capacity else { continue };
        for device in devices_of(&leg, profile, chosen_by, capacity)? {
            let shape = profile.shape.unwrap_or(*capacity != CapacitySource::Auto);
            let link = LinkSettings { device, capacity: capacity.clone(), shape };
            match configured.iter().find(|known| known.device == link.device) {
                None => configured.push(link),
                Some(known) if *known == link => {}
                Some(_) => return Err(EgressError::Contradiction { leg, link: link.device.name }),
            }
        }
    }
    Ok(configured)
}

/// The interfaces that have a profile's capacity: the one that it names, those it is chosen by, or
/// that of the default route.
fn devices_of(leg: &str, profile: &LegProfile, chosen_by: &[Interface], capacity: &CapacitySource) -> Result<Vec<Device>, EgressError> {
    let which = |why: &str| EgressError::WhichLink { leg: leg.to_owned(), capacity: capacity.clone(), why: why.to_owned() };
    let routes = Routes::open().map_err(|why| which(&format!("the kernel does not list its interfaces: {why}")))?;
    let mut devices = routes.devices().map_err(|why| which(&format!("the kernel does not list its interfaces: {why}")))?;
    if let Some(link) = &profile.link {
        devices.retain(|device| device.name == *link);
        return if devices.is_empty() { Err(EgressError::NoLink { leg: leg.to_owned(), link: link.clone() }) } else { Ok(devices) };
    }
    if !chosen_by.is_empty() {
        devices.retain(|device| chosen_by.iter().any(|interface| interface.matches(&device.name)));
        return if devices.is_empty() { Err(which("none of the interfaces that the profile is for exists")) } else { Ok(devices) };
    }
    // Any address that is not one of this host. No packet is sent to it.
    let anywhere = Ipv4Addr::new(192, 88, 99, 1);
    let default = routes.interface_to(anywhere.into());
    devices.retain(|device| Some(&device.name) == default.as_ref());
    if devices.is_empty() { Err(which("the profile names no interface, and there is no default route")) } else { Ok(devices) }
}

/// Converts a rate of IP to bytes/s on the wire, for full-sized packets.
fn wire_rate(rate: Rate, device: &Device) -> u64 {
    let wire = u128::from(rate.bits_per_s()) * u128::from(device.mtu + device.overhead) / u128::from(device.mtu.max(1)) / 8;
    u64::try_from(wire).unwrap_or(u64::MAX)
}

/// Shapes the proxy's packets on an interface to `wire` bytes/s, unless the operator has configured
/// a queueing discipline there.
fn shape_to(device: &Device, wire: u64) -> Result<WatchMode, EgressError> {
    let link = device.name.as_str();
    let handle = format!("{HANDLE:x}:");
    let root = tc(link, &["qdisc", "show", "dev", link, "root"])?;
    let mut words = root.split_whitespace().skip(1);
    let (kind, there) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    // Handle 0: marks the kernel's default. No handle means noqueue.
    if there == handle {
        tracing::debug!("{link}: takes over the existing shaper");
    } else if there == "0:" || there.is_empty() {
        tc(link, &["qdisc", "replace", "dev", link, "root", "handle", &handle, "htb", "default", "0"])?;
    } else {
        tracing::info!("{link} has a queueing discipline already ({kind}), which stays: the proxy does not shape its packets there");
        return Ok(WatchMode::Virtual);
    }
    let (class, rate) = (format!("{handle}1"), format!("{}bit", wire * 8));
    // At least two full packets, but not much more: a burst would fill the queue of the next hop.
    let burst = (wire / 1000).max(u64::from(device.mtu) * 2).to_string();
    let arguments = ["class", "replace", "dev", link, "parent", &handle, "classid", &class, "htb", "rate", &rate, "burst", &burst];
    tc(link, &[&arguments[..], &["cburst", &burst]].concat())?;
    // TCP bounds the queue itself: it lets at most two packets of a flow, or those of a
    // millisecond, into the queues of its own host (TCP small queues). A drop here would only cause
    // a retransmission. So the limit has room for a thousand flows that start together.
    let (queue, limit) = (format!("{:x}:", HANDLE + 1), (wire / 2).max(4 << 20).to_string());
    tc(link, &["qdisc", "replace", "dev", link, "parent", &class, "handle", &queue, "bfifo", "limit", &limit])?;
    Ok(WatchMode::Qdisc)
}

/// Removes the shaper, which may be that of a killed proxy.
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
        let cure = if why.kind() == io::ErrorKind::NotFound { "; install it (Debian package iproute2)" } else { "" };
        failed(format!("{why}{cure}"))
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("it gave no reason").to_owned()))
}
