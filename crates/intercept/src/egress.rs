//! Egress links with a capacity: a shaper, and a monitor. The monitor writes records, which the
//! congestion controllers read. The capacity is configured, read from a file, or estimated by the
//! controller `share`.
//!
//! The shaper is an htb class for the proxy's own packets, which carry its priority; all other
//! packets bypass it. So a shaper that a killed proxy leaves behind does not slow other traffic,
//! and the next start takes it over. If the operator has configured a queueing discipline on the
//! interface, it stays, and the monitor computes the queue that there would be at the configured
//! capacity. An estimated capacity is not shaped to: the queue is where the bottleneck is.

mod settings;
mod shaper;

use crate::{
    capacity::{CapacityFileError, CapacitySource},
    link_view::LinkView,
    policy::NamedProfile,
};
use kernel::{CapacityEstimate, LinkId, LinkRecord, Monitor, MonitorSettings, WatchMode};
use settings::{FoundLinks, LinkProfile, LinkSettings};
use shaper::{shape_to, tc, unshape, wire_rate};
use std::{
    collections::{BTreeMap, VecDeque},
    io, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant, SystemTime},
};
use units::Rate;

/// How often files with capacities, the list of interfaces and the records of links are read.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(500);

/// Time over which rates are means.
const RATE_TIME: Duration = Duration::from_secs(2);

/// Least time between two warnings that a link's configured capacity is wrong. A link that varies
/// has another rate every few seconds.
const WARNING_INTERVAL: Duration = Duration::from_secs(600);

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
    /// The thread that reads the files and watches the interfaces could not be started.
    #[error("cannot start the thread that follows links and the files with their capacities: {0}")]
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

/// How a link is used, as it was last read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkUse {
    /// The capacity in use, bytes/s of IP.
    pub capacity: f64,
    /// What leaves, mean over two seconds, bytes/s of IP.
    pub egress: f64,
    /// The part of it that does not belong to flows under `share`, bytes/s of IP.
    pub other: f64,
    /// Flows under `share` that have data to send.
    pub share_flows: u32,
}

/// How the links of profiles are used, by the name of the profile, for other threads. A profile for
/// several interfaces has none.
#[derive(Debug, Clone, Default)]
pub struct LinkUses(Arc<Mutex<BTreeMap<String, LinkUse>>>);

impl LinkUses {
    /// How the link of a profile is used; none: it has no capacity, or it is not known yet.
    pub fn of(&self, profile: &str) -> Option<LinkUse> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(profile).copied()
    }
}

/// The links with a capacity: shaped or monitored until it is dropped.
#[derive(Debug)]
pub struct Egress {
    links: Arc<Mutex<WatchedLinks>>,
    _follower: Follower,
}

/// A thread that has the links follow their interfaces and files until it is dropped.
#[derive(Debug)]
struct Follower {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct WatchedLinks {
    monitor: Monitor,
    /// What is configured, whether the interfaces are there or not.
    profiles: Vec<LinkProfile>,
    links: BTreeMap<String, WatchedLink>,
    /// Why the links could not follow their interfaces when these were last listed.
    trouble: Option<String>,
}

#[derive(Debug)]
struct WatchedLink {
    settings: LinkSettings,
    id: LinkId,
    mode: WatchMode,
    /// The present capacity; `None`: it is estimated.
    rate: Option<Rate>,
    /// The shaper and the monitor are set up.
    complete: bool,
    /// Why its file could not be used when it was last read.
    failure: Option<String>,
    /// When its file was last modified, as far as it could be used.
    modified: Option<SystemTime>,
    /// What had left at recent times, the oldest first.
    sent: VecDeque<SentBytes>,
    /// Whether an estimate takes the place of the configured capacity.
    is_estimated_instead: bool,
    /// When the log last said so.
    warned: Option<Instant>,
}

/// Bytes that have left by a point in time, on the wire.
#[derive(Debug, Clone, Copy)]
struct SentBytes {
    at: Instant,
    all: u64,
    /// Those that do not belong to flows under `share`.
    other: u64,
}

impl Egress {
    /// Checks that [`Egress::of`] would find its links and could monitor them, without changing
    /// anything. Returns the names of the links.
    ///
    /// # Errors
    /// The first link that could not be set up.
    pub fn try_out<'a>(profiles: impl Iterator<Item = NamedProfile<'a>>) -> Result<String, EgressError> {
        let configured = FoundLinks::of(&LinkProfile::of(profiles)?)?.allowing(LinkProfile::has_patterns)?;
        let links = configured.iter().map(|link| link.device.name.as_str()).collect::<Vec<_>>().join(", ");
        Monitor::new().map_err(|why| EgressError::Watch { link: links.clone(), why: why.into() })?;
        configured.iter().try_for_each(|link| {
            let file = |why| EgressError::CapacityFile { leg: link.device.name.clone(), why };
            link.capacity.rate().map(drop).map_err(file)
        })?;
        configured.iter().try_for_each(|link| tc(&link.device.name, &["qdisc", "show", "dev", &link.device.name, "root"]).map(drop))?;
        Ok(if links.is_empty() { "none is there yet".into() } else { links })
    }

    /// Shapes and monitors the links that profiles configure. `None` if no profile has a capacity.
    /// An interface that is created again later, or that appears and matches a pattern, is set up
    /// then. `uses` is kept up to date.
    ///
    /// # Errors
    /// The first link that could not be set up. What was set up before is removed.
    pub fn of<'a>(profiles: impl Iterator<Item = NamedProfile<'a>>, uses: &LinkUses) -> Result<Option<Self>, EgressError> {
        let profiles = LinkProfile::of(profiles)?;
        if profiles.is_empty() {
            return Ok(None);
        }
        let configured = FoundLinks::of(&profiles)?.allowing(LinkProfile::has_patterns)?;
        let links = configured.iter().map(|link| link.device.name.as_str()).collect::<Vec<_>>().join(", ");
        let monitor = Monitor::new().map_err(|why| EgressError::Watch { link: links, why: why.into() })?;
        let mut links = WatchedLinks { monitor, profiles, links: BTreeMap::new(), trouble: None };
        links.set(configured)?;
        let links = Arc::new(Mutex::new(links));
        Ok(Some(Egress { _follower: Follower::start(links.clone(), uses.clone())?, links }))
    }

    /// Replaces the configuration of the links. It applies to existing flows at once. A link that
    /// was configured before may be without its interface now.
    ///
    /// # Errors
    /// The first link that could not be set up. All links then keep their previous configuration.
    pub fn change<'a>(&mut self, profiles: impl Iterator<Item = NamedProfile<'a>>) -> Result<(), EgressError> {
        let profiles = LinkProfile::of(profiles)?;
        let mut links = self.lock();
        let was_configured = |profile: &LinkProfile| links.profiles.iter().any(|known| known.is_for_same_links(profile));
        let configured = FoundLinks::of(&profiles)?.allowing(|profile| profile.has_patterns() || was_configured(profile))?;
        let before = links.links.values().map(|watched| watched.settings.clone()).collect();
        links.set(configured).inspect_err(|_| {
            if let Err(why) = links.set(before) {
                tracing::error!("cannot restore the previous configuration of the links: {why}");
            }
        })?;
        links.profiles = profiles;
        Ok(())
    }

    /// The present state of each link. Rates are means over two seconds.
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
}

impl Follower {
    fn start(links: Arc<Mutex<WatchedLinks>>, uses: LinkUses) -> Result<Self, EgressError> {
        let (stop, stopped) = mpsc::channel();
        // The thread is in the network namespace of this one.
        let work = move || {
            while stopped.recv_timeout(FOLLOW_INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
                follow_interfaces(&links);
                follow_files(&links);
                let read = links.lock().unwrap_or_else(PoisonError::into_inner).read_records();
                *uses.0.lock().unwrap_or_else(PoisonError::into_inner) = read;
            }
            uses.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
        };
        let thread = thread::Builder::new().name("tandem-capacity".into()).spawn(work).map_err(EgressError::Follow)?;
        Ok(Follower { stop: Some(stop), thread: Some(thread) })
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

/// Sets up a link when its interface has been created, again or for the first time, and ends it
/// when the interface is gone.
fn follow_interfaces(links: &Mutex<WatchedLinks>) {
    let lock = || links.lock().unwrap_or_else(PoisonError::into_inner);
    let profiles = lock().profiles.clone();
    let found = FoundLinks::of(&profiles);
    lock().take_interfaces(&profiles, found);
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
        for link in self.without(&configured) {
            self.release(&link);
        }
        configured.into_iter().try_for_each(|settings| self.set_up(settings))
    }

    /// The names of watched links that are not among these.
    fn without(&self, configured: &[LinkSettings]) -> Vec<String> {
        let stays = |link: &String| configured.iter().any(|settings| settings.device.name == *link);
        self.links.keys().filter(|link| !stays(link)).cloned().collect()
    }

    fn set_up(&mut self, settings: LinkSettings) -> Result<(), EgressError> {
        let known = self.links.get(&settings.device.name).filter(|known| known.settings.capacity == settings.capacity);
        let rate = match (settings.capacity.rate(), known) {
            (Ok(rate), _) => rate,
            // A file that cannot be used now has been used before: `take_rate` warns of it.
            (Err(_), Some(known)) => known.rate,
            (Err(why), None) => return Err(EgressError::CapacityFile { leg: settings.device.name.clone(), why }),
        };
        self.apply(settings, rate)
    }

    /// Takes the present interfaces of these profiles.
    fn take_interfaces(&mut self, profiles: &[LinkProfile], found: Result<FoundLinks, EgressError>) {
        // The configuration may have changed meanwhile.
        if self.profiles != *profiles {
            return;
        }
        let followed = found.and_then(|found| {
            for link in self.without(&found.links) {
                tracing::warn!("{link}: the interface is gone; its capacity applies again once it is back");
                self.release(&link);
            }
            found.links.into_iter().try_for_each(|settings| match self.links.get(&settings.device.name) {
                Some(known) if known.complete && known.settings == settings => Ok(()),
                _ => {
                    let link = settings.device.name.clone();
                    self.set_up(settings)?;
                    tracing::info!("{link}: the interface is there, or has changed, and has its capacity again");
                    Ok(())
                }
            })
        });
        let trouble = followed.err().map(|why| why.to_string());
        if let Some(why) = trouble.as_ref().filter(|_| trouble != self.trouble) {
            tracing::error!("{why}; trying again");
        }
        self.trouble = trouble;
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
        let before = self.links.remove(&device.name);
        // Another interface had the name. The kernel has detached the monitor from it.
        if let Some(before) = before.as_ref().filter(|before| before.id != id) {
            self.monitor.forget(before.id);
        }
        let before = before.filter(|before| before.id == id);
        let (sent, warned) = before.map(|before| (before.sent, before.warned)).unwrap_or_default();
        // Inserted before the monitor is attached, so that `release` removes both on an error.
        let modified = settings.capacity.modified();
        let (complete, failure, is_estimated_instead) = (false, None, false);
        let watched = WatchedLink { settings, id, mode, rate, complete, failure, modified, sent, is_estimated_instead, warned };
        self.links.insert(device.name.clone(), watched);
        self.monitor.watch(id, MonitorSettings { capacity, overhead: device.overhead, watch: mode }).map_err(failed)?;
        if let Some(watched) = self.links.get_mut(&device.name) {
            watched.complete = true;
        }
        Ok(())
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
                let (settings, failure) = (watched.settings.clone(), watched.failure.take());
                tracing::debug!("{link}: capacity {}", rate.map_or_else(String::new, |rate| rate.to_string()));
                if let Err(why) = self.apply(settings, rate) {
                    let why = format!("cannot change the capacity: {why}");
                    if failure.as_ref() != Some(&why) {
                        tracing::error!("{link}: {why}");
                    }
                    if let Some(watched) = self.links.get_mut(link) {
                        watched.failure = Some(why);
                    }
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
        // Interfaces are not followed any more.
        self.profiles.clear();
        for (_, watched) in mem::take(&mut self.links) {
            self.monitor.forget(watched.id);
        }
    }

    /// Keeps what has left by now, and says in the log when a configured capacity is found wrong.
    /// Returns how the link of each profile is used.
    fn read_records(&mut self) -> BTreeMap<String, LinkUse> {
        let (now, mut uses) = (Instant::now(), BTreeMap::new());
        for (link, watched) in &mut self.links {
            if let Ok(Some(record)) = self.monitor.read(watched.id) {
                watched.keep(now, &record);
                watched.report_fallback(link, now, &record);
                uses.insert(link.clone(), watched.use_of(now, &record));
            }
        }
        let of = |profile: &LinkProfile| {
            let mut its = self.links.values().map(|watched| &watched.settings.device).filter(|device| profile.is_for(device));
            let only = its.next().filter(|_| its.next().is_none())?;
            Some((profile.leg.clone(), *uses.get(&only.name)?))
        };
        self.profiles.iter().filter_map(of).collect()
    }

    fn views(&mut self) -> Vec<LinkView> {
        let now = Instant::now();
        let read = |(link, watched): (&String, &WatchedLink)| {
            let record = self.monitor.read(watched.id).ok()??;
            Some(view(link, watched, &record, watched.rates(now, &record)))
        };
        self.links.iter().filter_map(read).collect()
    }
}

impl WatchedLink {
    fn keep(&mut self, now: Instant, record: &LinkRecord) {
        // One that is as old as the time of a mean has to stay.
        while self.sent.get(1).is_some_and(|next| now - next.at >= RATE_TIME) {
            self.sent.pop_front();
        }
        self.sent.push_back(SentBytes { at: now, all: record.egress, other: record.foreign });
    }

    /// Mean rates of all that has left, and of what does not belong to flows under `share`, wire
    /// bytes/s.
    fn rates(&self, now: Instant, record: &LinkRecord) -> [f64; 2] {
        let Some(first) = self.sent.front().filter(|first| now > first.at) else { return [0.0; 2] };
        let seconds = (now - first.at).as_secs_f64();
        let [all, other] =
            [(record.egress, first.all), (record.foreign, first.other)].map(|(to, from)| to.saturating_sub(from) as f64 / seconds);
        // What is queued here has been counted as another flow's, but has not left yet.
        [all, other.min(all)]
    }

    fn use_of(&self, now: Instant, record: &LinkRecord) -> LinkUse {
        let bytes_of_ip = |wire: f64| self.bits_of_ip(wire) / 8.0;
        let [egress, other] = self.rates(now, record).map(bytes_of_ip);
        let is_instead = record.estimate.enabled == CapacityEstimate::FALLBACK;
        let told = self.rate.filter(|_| !is_instead).map(|rate| rate.bits_per_s() as f64 / 8.0);
        LinkUse { capacity: told.unwrap_or_else(|| bytes_of_ip(record.capacity as f64)), egress, other, share_flows: record.share.flows }
    }

    /// Says in the log that an estimate takes the place of the configured capacity, and that it does
    /// not any more.
    fn report_fallback(&mut self, link: &str, now: Instant, record: &LinkRecord) {
        let Some(told) = self.rate else { return };
        let is_instead = record.estimate.enabled == CapacityEstimate::FALLBACK;
        if is_instead == mem::replace(&mut self.is_estimated_instead, is_instead) {
            return;
        }
        let found = Rate::rounded(self.bits_of_ip(record.capacity as f64));
        if !is_instead {
            tracing::debug!("{link}: the configured capacity, {told}, is in use again");
        } else if self.warned.is_some_and(|at| now - at < WARNING_INTERVAL) {
            tracing::debug!("{link}: the link has {found}; share estimates its capacity");
        } else {
            self.warned = Some(now);
            tracing::warn!(
                "{link}: capacity = \"{told}\" is configured, but the link has {found}: share estimates its capacity until it has the \
                 configured one again. If that is not its rate, correct it; if its rate varies, write capacity = \"auto\""
            );
        }
    }

    /// From wire bytes/s to bit/s of IP.
    fn bits_of_ip(&self, wire: f64) -> f64 {
        let device = &self.settings.device;
        let mtu = f64::from(device.mtu);
        wire * 8.0 * mtu / (mtu + f64::from(device.overhead))
    }
}

impl Drop for WatchedLinks {
    fn drop(&mut self) {
        for link in self.links.keys().cloned().collect::<Vec<_>>() {
            self.release(&link);
        }
    }
}

fn view(link: &str, watched: &WatchedLink, record: &LinkRecord, [egress, other]: [f64; 2]) -> LinkView {
    let bits = |wire| watched.bits_of_ip(wire);
    let is_instead = record.estimate.enabled == CapacityEstimate::FALLBACK;
    let [queue_bytes, backlog_bytes] = queue(watched, record);
    LinkView {
        link: link.to_owned(),
        capacity_bps: watched.rate.filter(|_| !is_instead).map_or(bits(record.capacity as f64) as u64, Rate::bits_per_s),
        configured_bps: watched.rate.filter(|_| is_instead).map(Rate::bits_per_s),
        estimated: watched.rate.is_none(),
        egress_bytes: record.egress,
        file_time_s: watched.modified.and_then(|at| Some(at.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs_f64())),
        egress_bps: bits(egress),
        other_bps: bits(other),
        queue_bytes,
        backlog_bytes,
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

/// The standing queue and the backlog, bytes. If the queue is not on this host, flows under `share`
/// measure its delay; without them both are those of a bottleneck of the configured capacity.
fn queue(watched: &WatchedLink, record: &LinkRecord) -> [u64; 2] {
    let delay_us = record.share.last_delay_us;
    if watched.mode == WatchMode::Qdisc || record.share.flows == 0 || delay_us == u32::MAX {
        return [record.queue, record.backlog];
    }
    [record.capacity * u64::from(delay_us) / 1_000_000; 2]
}
