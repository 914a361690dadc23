//! All connections of one capture file, in bounded memory.

use crate::{
    obstacle::Obstacle,
    packet::{self, Dissected, TcpSegment},
    trace::{self, CapturedFrame, LinkType, TraceEnd, TraceError},
    traced_connection::TracedConnection,
};
use serde::Serialize;
use std::{
    collections::{BTreeMap, HashMap},
    io::Read,
    net::SocketAddr,
    path::{Path, PathBuf},
};

/// Number of connections kept. When it is exceeded, the half that carried least is dropped.
const MOST_FLOWS: usize = 8192;
/// Steps of all progress curves together, and the minimum and maximum of one curve. A connection
/// has four curves.
const STEPS: usize = 1 << 20;
const FEWEST_STEPS: usize = 64;
const MOST_STEPS: usize = 4096;
/// Number of datagram streams kept.
const MOST_DATAGRAMS: usize = 1024;
/// Number of networks that may use the same addresses and ports, for one pair of them.
const MOST_NETWORKS: usize = 16;
/// Time after which a datagram stream may continue at another place of capture, ns.
const MOVED: i64 = 1_000_000_000;

/// Counters of what a capture contained.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CaptureTally {
    /// Frames of any kind.
    pub frames: u64,
    /// TCP segments, also those in tunnels.
    pub segments: u64,
    /// TCP segments that the capture has more than once, from several interfaces or with and
    /// without a tunnel's headers. Each is counted once in everything else.
    pub copies: u64,
    /// Frames truncated before the end of the TCP header.
    pub short: u64,
    /// IP fragments. They are not reassembled.
    pub fragments: u64,
    /// UDP datagrams.
    pub datagrams: u64,
    /// Frames of other protocols.
    pub others: u64,
    /// Encapsulations that cannot be read, and the frames that have them. Those in UDP are also
    /// among the datagrams.
    pub unreadable: BTreeMap<Obstacle, u64>,
    /// Frames without a time.
    pub untimed: u64,
    /// Packets of interfaces that the file does not describe. They are not among the frames.
    pub orphans: u64,
    /// Number of an unsupported link type, and the frames that have it.
    pub unknown_link: Option<(i32, u64)>,
    /// Connections dropped because there were too many. They carried less than those kept.
    pub forgotten: u64,
    /// Offset at which the last record begins, if the file ends within it, bytes.
    pub cut_at: Option<u64>,
}

/// A capture file that has been read: its connections and counters.
#[derive(Debug)]
pub struct CaptureFile {
    pub(crate) path: PathBuf,
    pub(crate) tally: CaptureTally,
    pub(crate) flows: Vec<TracedConnection>,
    /// Datagram streams by sender and receiver.
    pub(crate) datagrams: BTreeMap<(SocketAddr, SocketAddr), DatagramStream>,
    /// Latest time of any frame, ns since 1970 by the capture's clock.
    last: Option<i64>,
    current: HashMap<[SocketAddr; 2], CurrentConnections>,
    room: usize,
}

/// The latest connection between two ports, in each network that has one.
#[derive(Debug)]
struct CurrentConnections {
    /// Network and index of the connection: the first one, and others.
    first: (u64, usize),
    others: Vec<(u64, usize)>,
}

impl CurrentConnections {
    fn all(&self) -> impl Iterator<Item = &(u64, usize)> {
        std::iter::once(&self.first).chain(&self.others)
    }

    fn of(&self, network: u64) -> Option<usize> {
        if self.first.0 == network {
            return Some(self.first.1);
        }
        self.others.iter().find(|(known, _)| *known == network).map(|(_, index)| *index)
    }

    fn set(&mut self, network: u64, index: usize) {
        if self.first.0 == network {
            self.first.1 = index;
            return;
        }
        self.others.retain(|(known, _)| *known != network);
        if self.others.len() + 1 >= MOST_NETWORKS {
            self.others.remove(0);
        }
        self.others.push((network, index));
    }
}

/// Datagrams in one direction between two ports. Times are ns since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DatagramStream {
    pub(crate) first: i64,
    pub(crate) last: i64,
    pub(crate) bytes: u64,
    /// Place of capture. What other places have are copies.
    point: u64,
}

impl CaptureFile {
    /// Reads a capture file (pcap or pcapng) as a stream.
    ///
    /// # Errors
    /// The file cannot be read, is not a capture, is damaged, or has no TCP.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let mut capture = CaptureFile::empty(path);
        let ending = trace::frames(path, |frame| capture.note(&frame))?;
        capture.end(ending)
    }

    /// Reads a capture from any source. Errors call it `name`.
    ///
    /// # Errors
    /// As [`CaptureFile::read`].
    pub fn read_from(source: impl Read + Send, name: &Path) -> Result<Self, TraceError> {
        let mut capture = CaptureFile::empty(name);
        let ending = trace::frames_of(source, name, |frame| capture.note(&frame))?;
        capture.end(ending)
    }

    /// Counters of frames and segments.
    pub fn tally(&self) -> &CaptureTally {
        &self.tally
    }

    /// The path it was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of connections.
    pub fn connections(&self) -> usize {
        self.flows.len()
    }

    fn empty(path: &Path) -> Self {
        let (flows, datagrams, current) = (Vec::new(), BTreeMap::new(), HashMap::new());
        CaptureFile { path: path.into(), tally: CaptureTally::default(), flows, datagrams, last: None, current, room: MOST_STEPS }
    }

    /// Time up to which the capture is complete, ns since 1970 by its clock: a connection absent
    /// before that time did not exist. `None` if the file is truncated, connections were dropped,
    /// or some frames could not be read.
    pub(crate) fn complete_until(&self) -> Option<i64> {
        let tally = &self.tally;
        let unread = tally.unknown_link.is_some() || !tally.unreadable.is_empty() || tally.orphans > 0;
        let lacks = tally.cut_at.is_some() || tally.forgotten > 0 || unread || !self.is_timed();
        self.last.filter(|_| !lacks)
    }

    /// Whether every frame has a time.
    pub(crate) fn is_timed(&self) -> bool {
        self.tally.untimed == 0
    }

    /// What the capture has instead of TCP, and what to do, in words.
    pub fn without_tcp(&self) -> String {
        nothing(&self.tally)
    }

    fn end(mut self, ending: TraceEnd) -> Result<Self, TraceError> {
        (self.tally.cut_at, self.tally.orphans) = (ending.cut_at, ending.orphans);
        if self.tally.segments == 0 && self.tally.datagrams == 0 {
            return Err(TraceError::NoTcp { path: self.path, what: nothing(&self.tally) });
        }
        Ok(self)
    }

    fn note(&mut self, frame: &CapturedFrame<'_>) {
        self.tally.frames += 1;
        self.last = self.last.max(Some(frame.at));
        self.tally.untimed += u64::from(!frame.timed);
        packet::dissect_each(frame, |found| match found {
            Dissected::Tcp(segment) => self.note_segment(frame.at, &segment),
            Dissected::Udp { from, to, length, point, carries } => {
                self.note_datagram(frame.at, (from, to), length, point);
                if let Some(obstacle) = carries {
                    *self.tally.unreadable.entry(obstacle).or_default() += 1;
                }
            }
            Dissected::Other => self.tally.others += 1,
            Dissected::Unreadable(obstacle) => *self.tally.unreadable.entry(obstacle).or_default() += 1,
            Dissected::Fragment => self.tally.fragments += 1,
            Dissected::Short => self.tally.short += 1,
            Dissected::UnknownLink(number) => self.tally.unknown_link.get_or_insert((number, 0)).1 += 1,
        });
    }

    fn note_segment(&mut self, at: i64, segment: &TcpSegment<'_>) {
        self.tally.segments += 1;
        let (sides, side) = if segment.from <= segment.to { ([segment.from, segment.to], 0) } else { ([segment.to, segment.from], 1) };
        let known = self.current.get(&sides).and_then(|current| current.of(segment.network));
        let index = match known {
            Some(index) if !self.flows[index].is_over_for(side, segment) => index,
            _ => self.join_or_begin(at, sides, side, segment),
        };
        let is_copy = self.flows[index].note(at, side, segment, self.room);
        self.tally.copies += u64::from(is_copy);
    }

    /// The connection of a segment that is the first in its network: one that another network also
    /// has, or a new one.
    fn join_or_begin(&mut self, at: i64, sides: [SocketAddr; 2], side: usize, segment: &TcpSegment<'_>) -> usize {
        let continued = self.current.get(&sides).and_then(|current| {
            let continues = |index: usize| self.flows[index].is_continued_by(side, segment);
            current.all().map(|(_, index)| *index).find(|index| continues(*index))
        });
        let index = continued.unwrap_or_else(|| self.begin(sides, at));
        self.current
            .entry(sides)
            .and_modify(|current| current.set(segment.network, index))
            .or_insert_with(|| CurrentConnections { first: (segment.network, index), others: Vec::new() });
        index
    }

    fn begin(&mut self, sides: [SocketAddr; 2], at: i64) -> usize {
        if self.flows.len() >= MOST_FLOWS {
            self.forget();
        }
        self.flows.push(TracedConnection::new(sides, at));
        // Whenever the number of connections doubles, the limit of each curve is halved.
        if self.flows.len().is_power_of_two() {
            let room = (STEPS / 4 / self.flows.len()).clamp(FEWEST_STEPS, MOST_STEPS);
            if room < self.room {
                self.room = room;
                self.flows.iter_mut().for_each(|flow| flow.thin(room));
            }
        }
        self.flows.len() - 1
    }

    /// Keeps the half that carried most, in order of arrival.
    fn forget(&mut self) {
        let mut sizes: Vec<u64> = self.flows.iter().map(TracedConnection::bytes).collect();
        sizes.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
        let (least, mut left) = (sizes[MOST_FLOWS / 2], MOST_FLOWS / 2);
        let before = self.flows.len();
        // New index of each connection that is kept.
        let mut moved = vec![None; before];
        let (mut index, mut kept) = (0, 0);
        // Among connections that tie with the smallest one kept, the earliest stay.
        let mut ties = left - sizes.iter().filter(|bytes| **bytes > least).count();
        self.flows.retain(|flow| {
            let keep = flow.bytes() > least || (flow.bytes() == least && ties > 0);
            ties -= usize::from(keep && flow.bytes() == least);
            left -= usize::from(keep);
            moved[index] = keep.then_some(kept);
            (index, kept) = (index + 1, kept + usize::from(keep));
            keep
        });
        self.tally.forgotten += (before - self.flows.len()) as u64;
        self.current.retain(|_, current| {
            let mut left = current.all().filter_map(|(network, index)| Some((*network, moved[*index]?))).collect::<Vec<_>>().into_iter();
            left.next().map(|first| *current = CurrentConnections { first, others: left.collect() }).is_some()
        });
    }

    fn note_datagram(&mut self, at: i64, ends: (SocketAddr, SocketAddr), length: u64, point: u64) {
        self.tally.datagrams += 1;
        if self.datagrams.len() >= MOST_DATAGRAMS && !self.datagrams.contains_key(&ends) {
            return;
        }
        let stream = self.datagrams.entry(ends).or_insert(DatagramStream { first: at, last: at, bytes: 0, point });
        if stream.point != point && at < stream.last.saturating_add(MOVED) {
            return;
        }
        stream.point = point;
        stream.last = stream.last.max(at);
        stream.bytes = stream.bytes.saturating_add(length);
    }
}

/// Says what a capture without TCP contains instead, and the cure.
fn nothing(tally: &CaptureTally) -> String {
    let CaptureTally { frames, short, fragments, others, datagrams, .. } = tally;
    match tally.unknown_link {
        Some((number, count)) if count == *frames => {
            return format!(
                "its frames have link type {number}, which is not supported ({} are: capture on one of those, or on the interface `any`)",
                LinkType::SUPPORTED
            );
        }
        _ if *frames == 0 && tally.orphans > 0 => return orphans(tally.orphans),
        _ if *frames == 0 => return "no frame was captured (check the filter and the interface)".into(),
        _ => {}
    }
    let mut parts = Vec::new();
    let mut add = |count: u64, what: String| {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    };
    for (obstacle, count) in &tally.unreadable {
        add(*count, format!("are {}, which cannot be read ({})", obstacle.name(), obstacle.cure()));
    }
    let in_udp: u64 = tally.unreadable.iter().filter(|(obstacle, _)| obstacle.is_in_udp()).map(|(_, count)| count).sum();
    add(datagrams.saturating_sub(in_udp), "are UDP datagrams".into());
    add(*short, "are too short to show the headers (take the capture again with a snapshot length of at least 96, for tunnels 160)".into());
    add(*fragments, "are fragments, which are not put together (capture where packets are whole: at the ends of a tunnel)".into());
    if let Some((number, count)) = tally.unknown_link {
        add(count, format!("have link type {number}, which is not supported"));
    }
    add(*others, "are of other protocols (check the filter)".into());
    format!("of {frames} frames {}", parts.join(", "))
}

/// Says that packets belong to no described interface, and the cure.
fn orphans(count: u64) -> String {
    format!(
        "{count} packets belong to interfaces that the file does not describe (it is damaged or was put together wrongly: take the capture \
         again, or merge files with mergecap)"
    )
}
