//! The egress monitor, and the links' records that controllers read.

use crate::{
    Error, Result, links,
    sys::{self, Plain},
};
use control::Link;
use libbpf_rs::{Map, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, ProgramInput};
use std::{
    collections::HashMap,
    os::fd::{AsFd, OwnedFd},
};

/// Where a link is: an interface of a network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    net_cookie: u64,
    ifindex: u32,
}

impl Place {
    /// An interface of this thread's network namespace.
    pub fn here(ifindex: u32) -> Result<Place> {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").or_else(|_| std::net::UdpSocket::bind("[::1]:0"));
        let cookie = socket.and_then(sys::net_cookie);
        cookie.map(|net_cookie| Place { net_cookie, ifindex }).map_err(Error::system("tell this network namespace from others"))
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
    dequeues: Option<libbpf_rs::Link>,
    watched: HashMap<Place, (u32, Option<OwnedFd>)>,
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
    net_cookie: u64,
    ifindex: u32,
    reserved: u32,
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
/// Where a record has its link: behind the lock and how it is watched.
const LINK_AT: usize = 8;

impl Monitor {
    /// Loads the programs; nothing is watched yet.
    pub fn new() -> Result<Monitor> {
        sys::quiet();
        let attempt = "load the egress monitor";
        let _alone = links::alone();
        let object = links::load(attempt, || {
            let mut builder = ObjectBuilder::default();
            builder.name("td_monitor").and_then(|builder| builder.open_memory(OBJECT)).map_err(Error::kernel(attempt))
        })?;
        let map = |name: &str| {
            let map = object.maps().find(|map| map.name() == name).expect("the object has it");
            handle(&map).map_err(Error::kernel(attempt))
        };
        let (records, places) = (map(links::RECORDS)?, map(links::PLACES)?);
        let monitor = Monitor { object, records, places, dequeues: None, watched: HashMap::new() };
        monitor.sweep();
        Ok(monitor)
    }

    /// Watches a link, or sets what is configured of it anew. Where the watch is virtual the place must be of this thread's namespace.
    pub fn watch(&mut self, place: Place, settings: Settings) -> Result<()> {
        let (index, fresh) = match self.watched.get(&place) {
            Some((index, _)) => (*index, false),
            None => (self.claim(place)?, true),
        };
        self.configure(index, fresh, settings)?;
        if settings.watch == Watch::Qdisc && self.dequeues.is_none() {
            let link = self.program("td_dequeue").attach().map_err(Error::kernel("watch what qdiscs let go"))?;
            self.dequeues = Some(link);
        }
        let mut egress = self.watched.remove(&place).and_then(|(_, egress)| egress);
        if settings.watch == Watch::Virtual && egress.is_none() {
            let attempt = format!("watch what leaves interface {}", place.ifindex);
            let attached = sys::attach_egress(self.program("td_egress").as_fd(), place.ifindex).map_err(Error::system(attempt));
            match attached {
                Ok(attached) => egress = Some(attached),
                Err(error) => {
                    self.watched.insert(place, (index, None));
                    self.forget(place);
                    return Err(error);
                }
            }
        } else if settings.watch == Watch::Qdisc {
            egress = None;
        }
        self.watched.insert(place, (index, egress));
        Ok(())
    }

    /// What is known of a link.
    pub fn read(&self, place: Place) -> Result<Option<Link>> {
        let Some((index, _)) = self.watched.get(&place) else { return Ok(None) };
        let record = self.records.lookup(&index.to_ne_bytes(), MapFlags::LOCK).map_err(Error::kernel("read a link's record"))?;
        Ok(record.map(|record| sys::plain_from(&record[LINK_AT..])))
    }

    /// Watches a link no longer; the controllers on it behave as if no capacity were known.
    pub fn forget(&mut self, place: Place) {
        if let Some((index, _)) = self.watched.remove(&place) {
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
        let _alone = links::alone();
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
        let mut context = sys::bytes_of(&configured).to_vec();
        let input = ProgramInput { context_in: Some(&mut context), ..ProgramInput::default() };
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

fn key(place: Place) -> Key {
    Key { net_cookie: place.net_cookie, ifindex: place.ifindex, reserved: 0 }
}

fn handle(map: &Map<'_>) -> libbpf_rs::Result<MapHandle> {
    MapHandle::try_from(map)
}
