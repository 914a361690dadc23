//! The egress monitor, and the links' records that controllers read.

use crate::{
    Error, Result,
    features::features,
    shared_maps,
    sys::{self, Plain},
};
use control::Link;
use libbpf_rs::{Map, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, ProgramInput};
use std::{
    collections::HashMap,
    fs,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt as _,
    },
};

/// Where a link is: an interface of a network namespace, which is known by its inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    netns: u32,
    ifindex: u32,
}

impl Place {
    /// An interface of this thread's network namespace.
    pub fn here(ifindex: u32) -> Result<Place> {
        let namespace = fs::metadata("/proc/thread-self/ns/net").map_err(Error::system("tell this network namespace from others"))?;
        Ok(Place { netns: namespace.ino() as u32, ifindex })
    }
}

/// How a link is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// By the counters of the root qdisc, which shapes (tbf or htb).
    Qdisc,
    /// By what is offered, and a queue in mind that drains at the capacity: the bottleneck is further on.
    Virtual,
}

/// What is configured of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Wire bytes/s.
    pub capacity: u64,
    /// Wire bytes of a packet beside IP's: 14 on Ethernet, none on a tunnel.
    pub overhead: u32,
    /// How it is watched.
    pub watch: Watch,
}

/// Watches links, for as long as it lives.
#[derive(Debug)]
pub struct Monitor {
    object: Object,
    records: MapHandle,
    places: MapHandle,
    /// What sees packets leave qdiscs; attached with the first link that is watched so.
    dequeues: Option<libbpf_rs::Link>,
    /// What sees packets be offered to any interface, where they can't be seen at one alone; likewise.
    offers: Option<libbpf_rs::Link>,
    watched: HashMap<Place, Watched>,
}

/// A link that is watched.
#[derive(Debug)]
struct Watched {
    /// Its record.
    index: u32,
    /// What sees packets be offered to this interface alone.
    egress: Option<OwnedFd>,
}

/// `struct td_configured` of the programs.
#[repr(C)]
#[derive(Clone, Copy)]
struct Configured {
    capacity: u64,
    overhead: u32,
    local: u32,
    watch: u32,
    index: u32,
    fresh: u32,
    reserved: u32,
}
impl Plain for Configured {}

/// `struct td_place`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Key {
    netns: u32,
    ifindex: u32,
}
impl Plain for Key {}

/// `struct td_claim`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Claim {
    index: u32,
    owner: u32,
}
impl Plain for Claim {}

impl Plain for u32 {}

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/monitor.bpf.o"));
/// `TD_CONFIGURED_AT`.
const CONFIGURED_AT: usize = 16;
/// The programs that see packets be offered to one interface, and to all.
const OFFERED_TO_ONE: &str = "td_egress";
const OFFERED_TO_ALL: &str = "td_queue";
/// Where a record has its link: behind the lock and how it is watched.
const LINK_AT: usize = 8;

impl Monitor {
    /// Loads the programs; nothing is watched yet.
    pub fn new() -> Result<Monitor> {
        sys::quiet();
        let attempt = "load the egress monitor";
        let _alone = shared_maps::alone();
        let offered = offered_program()?;
        let object = shared_maps::load(attempt, || {
            let mut builder = ObjectBuilder::default();
            let open = builder.name("td_monitor").and_then(|builder| builder.open_memory(OBJECT));
            let mut open = open.map_err(Error::kernel(attempt))?;
            open.progs_mut().filter(|program| program.name() == offered).for_each(|mut program| program.set_autoload(true));
            Ok(open)
        })?;
        let map = |name: &str| {
            let map = object.maps().find(|map| map.name() == name).expect("the object has it");
            handle(&map).map_err(Error::kernel(attempt))
        };
        let (records, places) = (map(shared_maps::RECORDS)?, map(shared_maps::PLACES)?);
        let monitor = Monitor { object, records, places, dequeues: None, offers: None, watched: HashMap::new() };
        monitor.sweep();
        Ok(monitor)
    }

    /// Watches a link, or sets what is configured of it anew. Where the watch is virtual the place must be of this thread's namespace.
    pub fn watch(&mut self, place: Place, settings: Settings) -> Result<()> {
        let (index, fresh) = match self.watched.get(&place) {
            Some(watched) => (watched.index, false),
            None => (self.claim(place)?, true),
        };
        self.configure(index, fresh, settings)?;
        let egress = self.watched.remove(&place).and_then(|watched| watched.egress);
        match self.attach(place, settings.watch, egress) {
            Ok(egress) => {
                self.watched.insert(place, Watched { index, egress });
                Ok(())
            }
            Err(error) => {
                self.watched.insert(place, Watched { index, egress: None });
                self.forget(place);
                Err(error)
            }
        }
    }

    /// Attaches what a way of watching takes, where it is not attached yet, and returns what is attached to this interface alone.
    fn attach(&mut self, place: Place, watch: Watch, egress: Option<OwnedFd>) -> Result<Option<OwnedFd>> {
        let attach = |name, attempt| self.program(name).attach().map_err(Error::kernel(attempt));
        match watch {
            Watch::Qdisc => {
                if self.dequeues.is_none() {
                    self.dequeues = Some(attach("td_dequeue", "watch what qdiscs let go")?);
                }
                Ok(None)
            }
            Watch::Virtual if egress.is_some() || self.offers.is_some() => Ok(egress),
            Watch::Virtual if offered_program()? == OFFERED_TO_ALL => {
                self.offers = Some(attach(OFFERED_TO_ALL, "watch what is offered to interfaces")?);
                Ok(None)
            }
            Watch::Virtual => {
                let attempt = format!("watch what leaves interface {}", place.ifindex);
                sys::attach_egress(self.program(OFFERED_TO_ONE).as_fd(), place.ifindex).map(Some).map_err(Error::system(attempt))
            }
        }
    }

    /// What is known of a link.
    pub fn read(&self, place: Place) -> Result<Option<Link>> {
        let Some(watched) = self.watched.get(&place) else { return Ok(None) };
        let record = self.records.lookup(&watched.index.to_ne_bytes(), MapFlags::LOCK).map_err(Error::kernel("read a link's record"))?;
        Ok(record.map(|record| sys::plain_from(&record[LINK_AT..])))
    }

    /// Watches a link no longer; the controllers on it behave as if no capacity were known.
    pub fn forget(&mut self, place: Place) {
        if let Some(Watched { index, .. }) = self.watched.remove(&place) {
            let none = Configured { capacity: 0, overhead: 0, local: 0, watch: 0, index, fresh: 1, reserved: 0 };
            let _ = self.run(none);
            let _ = self.places.delete(sys::bytes_of(&key(place)));
        }
    }

    /// Takes records back whose owners are gone.
    fn sweep(&self) {
        let gone = |claim: &Claim| !sys::is_there(claim.owner);
        for place in self.places.keys().collect::<Vec<_>>() {
            let claim = self.places.lookup(&place, MapFlags::ANY).ok().flatten().map(|claim| sys::plain_from::<Claim>(&claim));
            if let Some(claim) = claim.filter(gone) {
                let _ = self.run(Configured { capacity: 0, overhead: 0, local: 0, watch: 0, index: claim.index, fresh: 1, reserved: 0 });
                let _ = self.places.delete(&place);
            }
        }
    }

    /// Takes a record that nobody has.
    fn claim(&self, place: Place) -> Result<u32> {
        let _alone = shared_maps::alone();
        let taken: Vec<u32> = self
            .places
            .keys()
            .filter_map(|place| self.places.lookup(&place, MapFlags::ANY).ok().flatten())
            .map(|claim| sys::plain_from::<Claim>(&claim).index)
            .collect();
        let room = self.records.max_entries();
        let index = (0..room).find(|index| !taken.contains(index)).ok_or(Error::Full(room as usize))?;
        let claim = Claim { index, owner: std::process::id() };
        self.places
            .update(sys::bytes_of(&key(place)), sys::bytes_of(&claim), MapFlags::ANY)
            .map_err(Error::kernel("claim a link's record"))?;
        Ok(index)
    }

    fn configure(&self, index: u32, fresh: bool, settings: Settings) -> Result<()> {
        let Settings { capacity, overhead, watch } = settings;
        let (local, watch) = match watch {
            Watch::Qdisc => (1, 1),
            Watch::Virtual => (0, 2),
        };
        self.run(Configured { capacity, overhead, local, watch, index, fresh: fresh.into(), reserved: 0 })
    }

    fn run(&self, configured: Configured) -> Result<()> {
        let mut packet = vec![0; CONFIGURED_AT];
        packet.extend(sys::bytes_of(&configured));
        let input = ProgramInput { data_in: Some(&packet), ..ProgramInput::default() };
        let attempt = "configure a link's record";
        let output = self.program("td_configure").test_run(input).map_err(Error::kernel(attempt))?;
        debug_assert_eq!(output.return_value, 0, "the index is one of the map's");
        Ok(())
    }

    fn program(&self, name: &str) -> libbpf_rs::ProgramMut<'_> {
        self.object.progs_mut().find(|program| program.name() == name).expect("the object has it")
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        for place in self.watched.keys().copied().collect::<Vec<_>>() {
            self.forget(place);
        }
    }
}

/// Which of the two this kernel can attach.
fn offered_program() -> Result<&'static str> {
    Ok(if features()?.tcx { OFFERED_TO_ONE } else { OFFERED_TO_ALL })
}

fn key(place: Place) -> Key {
    Key { netns: place.netns, ifindex: place.ifindex }
}

fn handle(map: &Map<'_>) -> libbpf_rs::Result<MapHandle> {
    MapHandle::try_from(map)
}
