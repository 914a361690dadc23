//! The egress monitor and the link records that controllers read.

use crate::{
    Error, Result,
    features::features,
    shared_maps,
    sys::{self, Plain},
};
use control::LinkRecord;
use libbpf_rs::{Map, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, ProgramInput};
use std::{
    collections::HashMap,
    fs,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt as _,
    },
};

/// Identifies a link: an interface of a network namespace. The namespace is known by its inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkId {
    netns: u32,
    ifindex: u32,
}

impl LinkId {
    /// An interface of this thread's network namespace.
    ///
    /// # Errors
    /// When /proc is not mounted.
    pub fn here(ifindex: u32) -> Result<LinkId> {
        let namespace = fs::metadata("/proc/thread-self/ns/net").map_err(Error::system("identify this thread's network namespace"))?;
        Ok(LinkId { netns: namespace.ino() as u32, ifindex })
    }
}

/// How the traffic and queue of a link are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchMode {
    /// By the counters of the interface's root qdisc, which is a shaper (tbf or htb).
    Qdisc,
    /// By a virtual queue that takes what is sent to the interface and drains at the capacity: the
    /// bottleneck lies behind the interface.
    Virtual,
}

/// Configuration of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MonitorSettings {
    /// Capacity, wire bytes/s; `None`: the controller `share` estimates it.
    pub capacity: Option<u64>,
    /// Link-layer overhead of a packet, bytes: 14 on Ethernet, 0 on a tunnel.
    pub overhead: u32,
    /// How traffic and queue are measured.
    pub watch: WatchMode,
}

/// Measures links until it is dropped.
///
/// [`watch`](Monitor::watch) starts, or changes, the measurement of a link; [`read`](Monitor::read)
/// returns its record; [`forget`](Monitor::forget) ends it.
#[derive(Debug)]
pub struct Monitor {
    object: Object,
    records: MapHandle,
    claims: MapHandle,
    /// The program at qdisc dequeues; attached with the first link in [`WatchMode::Qdisc`].
    dequeue_hook: Option<libbpf_rs::Link>,
    /// The program at all interfaces' egress, on kernels without tcx; attached with the first link
    /// in [`WatchMode::Virtual`].
    queue_hook: Option<libbpf_rs::Link>,
    watched: HashMap<LinkId, WatchedLink>,
}

/// A link that is measured.
#[derive(Debug)]
struct WatchedLink {
    /// Index of its record.
    index: u32,
    /// The program at this interface's egress (tcx).
    egress_hook: Option<OwnedFd>,
}

/// `struct td_configuration` of the programs.
#[repr(C)]
#[derive(Clone, Copy)]
struct RecordConfiguration {
    capacity: u64,
    overhead: u32,
    local: u32,
    watch: u32,
    index: u32,
    fresh: u32,
    estimated: u32,
}
impl Plain for RecordConfiguration {}

impl RecordConfiguration {
    /// Clears a record: no capacity is known, and nothing is measured.
    fn cleared(index: u32) -> Self {
        RecordConfiguration { capacity: 0, overhead: 0, local: 0, watch: 0, index, fresh: 1, estimated: 0 }
    }
}

/// `struct td_link_id`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ClaimKey {
    netns: u32,
    ifindex: u32,
}
impl Plain for ClaimKey {}

/// `struct td_claim`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RecordClaim {
    index: u32,
    owner: u32,
}
impl Plain for RecordClaim {}

impl Plain for u32 {}

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/monitor.bpf.o"));
/// `TD_CONFIGURATION_AT`.
const CONFIGURATION_AT: usize = 16;
/// The program at the egress of one interface (tcx).
const ONE_EGRESS: &str = "td_egress";
/// The program at the egress of all interfaces.
const ALL_EGRESS: &str = "td_queue";
/// Offset of the link in a record, bytes: behind the lock and the watch mode.
const LINK_AT: usize = 8;

impl Monitor {
    /// Loads the programs. Nothing is measured yet.
    ///
    /// # Errors
    /// When the kernel lacks BTF or refuses the programs, or this process lacks the privilege.
    pub fn new() -> Result<Monitor> {
        sys::redirect_libbpf_log();
        let attempt = "load the egress monitor";
        let _lock = shared_maps::lock();
        let egress = egress_program()?;
        let object = shared_maps::load(attempt, || {
            let mut builder = ObjectBuilder::default();
            let open = builder.name("td_monitor").and_then(|builder| builder.open_memory(OBJECT));
            let mut open = open.map_err(Error::kernel(attempt))?;
            open.progs_mut().filter(|program| program.name() == egress).for_each(|mut program| program.set_autoload(true));
            Ok(open)
        })?;
        let map = |name: &str| {
            let map = object.maps().find(|map| map.name() == name).expect("the object has this map");
            handle(&map).map_err(Error::kernel(attempt))
        };
        let (records, claims) = (map(shared_maps::RECORDS)?, map(shared_maps::CLAIMS)?);
        let monitor = Monitor { object, records, claims, dequeue_hook: None, queue_hook: None, watched: HashMap::new() };
        monitor.reclaim();
        Ok(monitor)
    }

    /// Starts to measure a link, or changes its configuration. In [`WatchMode::Virtual`] the link
    /// must be in this thread's network namespace.
    ///
    /// # Errors
    /// When all records are in use, or the kernel refuses.
    pub fn watch(&mut self, link: LinkId, settings: MonitorSettings) -> Result<()> {
        let (index, fresh) = match self.watched.get(&link) {
            Some(watched) => (watched.index, false),
            None => (self.claim(link)?, true),
        };
        self.configure(index, fresh, settings)?;
        let egress = self.watched.remove(&link).and_then(|watched| watched.egress_hook);
        match self.attach(link, settings.watch, egress) {
            Ok(egress_hook) => {
                self.watched.insert(link, WatchedLink { index, egress_hook });
                Ok(())
            }
            Err(error) => {
                self.watched.insert(link, WatchedLink { index, egress_hook: None });
                self.forget(link);
                Err(error)
            }
        }
    }

    /// Attaches the programs that a watch mode needs, if they are not attached. Returns the one
    /// that is attached to this interface alone.
    fn attach(&mut self, link: LinkId, watch: WatchMode, egress: Option<OwnedFd>) -> Result<Option<OwnedFd>> {
        let attach = |name, attempt| self.program(name).attach().map_err(Error::kernel(attempt));
        match watch {
            WatchMode::Qdisc => {
                if self.dequeue_hook.is_none() {
                    self.dequeue_hook = Some(attach("td_dequeue", "attach the monitor to qdiscs")?);
                }
                Ok(None)
            }
            WatchMode::Virtual if egress.is_some() || self.queue_hook.is_some() => Ok(egress),
            WatchMode::Virtual if egress_program()? == ALL_EGRESS => {
                self.queue_hook = Some(attach(ALL_EGRESS, "attach the monitor to all interfaces")?);
                Ok(None)
            }
            WatchMode::Virtual => {
                let attempt = format!("attach the monitor to interface {}", link.ifindex);
                sys::attach_egress(self.program(ONE_EGRESS).as_fd(), link.ifindex).map(Some).map_err(Error::system(attempt))
            }
        }
    }

    /// The record of a link; `None` if it is not measured.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn read(&self, link: LinkId) -> Result<Option<LinkRecord>> {
        let Some(watched) = self.watched.get(&link) else { return Ok(None) };
        let record =
            self.records.lookup(&watched.index.to_ne_bytes(), MapFlags::LOCK).map_err(Error::kernel("read the record of a link"))?;
        Ok(record.map(|record| sys::plain_from(&record[LINK_AT..])))
    }

    /// Ends the measurement of a link. Its controllers then behave as if its capacity were unknown.
    pub fn forget(&mut self, link: LinkId) {
        if let Some(WatchedLink { index, .. }) = self.watched.remove(&link) {
            let _ = self.run(RecordConfiguration::cleared(index));
            // A process that has taken over from this one has claimed a record of its own for the
            // link.
            let claim = self.claims.lookup(sys::bytes_of(&key(link)), MapFlags::ANY).ok().flatten();
            if claim.is_none_or(|claim| sys::plain_from::<RecordClaim>(&claim).index == index) {
                let _ = self.claims.delete(sys::bytes_of(&key(link)));
            }
        }
    }

    /// Reclaims the records of processes that have ended.
    fn reclaim(&self) {
        let is_abandoned = |claim: &RecordClaim| !sys::process_exists(claim.owner);
        for key in self.claims.keys().collect::<Vec<_>>() {
            let claim = self.claims.lookup(&key, MapFlags::ANY).ok().flatten().map(|claim| sys::plain_from::<RecordClaim>(&claim));
            if let Some(claim) = claim.filter(is_abandoned) {
                let _ = self.run(RecordConfiguration::cleared(claim.index));
                let _ = self.claims.delete(&key);
            }
        }
    }

    /// Claims a free record for a link.
    fn claim(&self, link: LinkId) -> Result<u32> {
        let _lock = shared_maps::lock();
        let taken: Vec<u32> = self
            .claims
            .keys()
            .filter_map(|key| self.claims.lookup(&key, MapFlags::ANY).ok().flatten())
            .map(|claim| sys::plain_from::<RecordClaim>(&claim).index)
            .collect();
        let max = self.records.max_entries();
        let index = (0..max).find(|index| !taken.contains(index)).ok_or(Error::AllRecordsInUse(max as usize))?;
        let claim = RecordClaim { index, owner: std::process::id() };
        self.claims
            .update(sys::bytes_of(&key(link)), sys::bytes_of(&claim), MapFlags::ANY)
            .map_err(Error::kernel("claim a record for a link"))?;
        Ok(index)
    }

    fn configure(&self, index: u32, fresh: bool, settings: MonitorSettings) -> Result<()> {
        let MonitorSettings { capacity, overhead, watch } = settings;
        let (local, watch) = match watch {
            WatchMode::Qdisc => (1, 1),
            WatchMode::Virtual => (0, 2),
        };
        let estimated = capacity.is_none().into();
        self.run(RecordConfiguration { capacity: capacity.unwrap_or(0), overhead, local, watch, index, fresh: fresh.into(), estimated })
    }

    fn run(&self, configuration: RecordConfiguration) -> Result<()> {
        let mut packet = vec![0; CONFIGURATION_AT];
        packet.extend(sys::bytes_of(&configuration));
        let input = ProgramInput { data_in: Some(&packet), ..ProgramInput::default() };
        let attempt = "configure the record of a link";
        let output = self.program("td_configure").test_run(input).map_err(Error::kernel(attempt))?;
        debug_assert_eq!(output.return_value, 0, "the index lies within the map");
        Ok(())
    }

    fn program(&self, name: &str) -> libbpf_rs::ProgramMut<'_> {
        self.object.progs_mut().find(|program| program.name() == name).expect("the object has this program")
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        for link in self.watched.keys().copied().collect::<Vec<_>>() {
            self.forget(link);
        }
    }
}

/// The egress program that this kernel can attach.
fn egress_program() -> Result<&'static str> {
    Ok(if features()?.tcx { ONE_EGRESS } else { ALL_EGRESS })
}

fn key(link: LinkId) -> ClaimKey {
    ClaimKey { netns: link.netns, ifindex: link.ifindex }
}

fn handle(map: &Map<'_>) -> libbpf_rs::Result<MapHandle> {
    MapHandle::try_from(map)
}
