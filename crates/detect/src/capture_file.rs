//! All connections of one capture file, in bounded memory.

use crate::{
    packet::{self, Dissected, TcpSegment},
    trace::{self, CapturedFrame, TraceEnd, TraceError},
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

/// Counters of what a capture contained.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CaptureTally {
    /// Frames of any kind.
    pub frames: u64,
    /// TCP segments.
    pub segments: u64,
    /// Frames truncated before the end of the TCP header.
    pub short: u64,
    /// IP fragments. They are not reassembled.
    pub fragments: u64,
    /// UDP datagrams.
    pub datagrams: u64,
    /// Frames of other protocols.
    pub others: u64,
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
    current: HashMap<[SocketAddr; 2], usize>,
    room: usize,
}

/// Datagrams in one direction between two ports. Times are ns since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DatagramStream {
    pub(crate) first: i64,
    pub(crate) last: i64,
    pub(crate) bytes: u64,
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
    /// or frames have an unsupported link type.
    pub(crate) fn complete_until(&self) -> Option<i64> {
        let lacks = self.tally.cut_at.is_some() || self.tally.forgotten > 0 || self.tally.unknown_link.is_some();
        self.last.filter(|_| !lacks)
    }

    fn end(mut self, ending: TraceEnd) -> Result<Self, TraceError> {
        self.tally.cut_at = ending.cut_at;
        if self.tally.segments == 0 && self.tally.datagrams == 0 {
            return Err(TraceError::NoTcp { path: self.path, what: nothing(&self.tally) });
        }
        Ok(self)
    }

    fn note(&mut self, frame: &CapturedFrame<'_>) {
        self.tally.frames += 1;
        self.last = self.last.max(Some(frame.at));
        match packet::dissect(frame) {
            Dissected::Tcp(segment) => self.note_segment(frame.at, &segment),
            Dissected::Udp { from, to, length } => self.note_datagram(frame.at, from, to, length),
            Dissected::Other => self.tally.others += 1,
            Dissected::Fragment => self.tally.fragments += 1,
            Dissected::Short => self.tally.short += 1,
            Dissected::UnknownLink(number) => self.tally.unknown_link.get_or_insert((number, 0)).1 += 1,
        }
    }

    fn note_segment(&mut self, at: i64, segment: &TcpSegment<'_>) {
        self.tally.segments += 1;
        let (sides, side) = if segment.from <= segment.to { ([segment.from, segment.to], 0) } else { ([segment.to, segment.from], 1) };
        let index = match self.current.get(&sides) {
            Some(index) if !self.flows[*index].is_over_for(side, segment) => *index,
            _ => self.begin(sides, at),
        };
        self.flows[index].note(at, side, segment, self.room);
    }

    fn begin(&mut self, sides: [SocketAddr; 2], at: i64) -> usize {
        if self.flows.len() >= MOST_FLOWS {
            self.forget();
        }
        self.flows.push(TracedConnection::new(sides, at));
        self.current.insert(sides, self.flows.len() - 1);
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
        // Among connections that tie with the smallest one kept, the earliest stay.
        let mut ties = left - sizes.iter().filter(|bytes| **bytes > least).count();
        self.flows.retain(|flow| {
            let keep = flow.bytes() > least || (flow.bytes() == least && ties > 0);
            ties -= usize::from(keep && flow.bytes() == least);
            left -= usize::from(keep);
            keep
        });
        self.tally.forgotten += (before - self.flows.len()) as u64;
        self.current = self.flows.iter().enumerate().map(|(index, flow)| (flow.sides, index)).collect();
    }

    fn note_datagram(&mut self, at: i64, from: SocketAddr, to: SocketAddr, length: u64) {
        self.tally.datagrams += 1;
        if self.datagrams.len() >= MOST_DATAGRAMS && !self.datagrams.contains_key(&(from, to)) {
            return;
        }
        let stream = self.datagrams.entry((from, to)).or_insert(DatagramStream { first: at, last: at, bytes: 0 });
        stream.last = stream.last.max(at);
        stream.bytes = stream.bytes.saturating_add(length);
    }
}

/// Says what a capture without TCP contains instead, and the cure.
fn nothing(tally: &CaptureTally) -> String {
    let CaptureTally { frames, short, fragments, others, .. } = tally;
    match tally.unknown_link {
        Some((number, _)) => format!(
            "its frames have link type {number}, which is not supported (Ethernet, raw IP, Linux cooked and loopback are: capture on one of those, or on \
             the interface `any`)"
        ),
        None if *frames == 0 => "no frame was captured (check the filter and the interface)".into(),
        None => format!(
            "of {frames} frames {short} are too short to show the headers, {fragments} are fragments, {others} of other protocols (check the filter, \
             and that the snapshot length is at least 96)"
        ),
    }
}
