//! Reads the frames of a capture file as a stream, in bounded memory. Supports pcap (micro- or
//! nanoseconds, either byte order) and pcapng with all its kinds of packets.

use pcap_parser::{Block, InterfaceDescriptionBlock, OptionCode, PcapBlockOwned, PcapError, create_reader, traits::PcapNGPacketBlock as _};
use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

/// Initial size of the read buffer, bytes.
const BUFFER: usize = 1 << 20;
/// Upper bound on a record, bytes. The largest packet is 512 KiB (BIG TCP). Other blocks (secrets,
/// name resolution) are of that order.
const LARGEST_RECORD: usize = 1 << 24;
/// Upper bound on the interfaces of a pcapng section.
const INTERFACES: usize = 4096;
/// Latest time, ns since 1970 (the year 2115), so that no difference of two times overflows.
const LATEST: i64 = 4_600_000_000_000_000_000;

/// Magic number of pcapng.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// Type of the obsolete Packet Block.
const OBSOLETE_PACKET: u32 = 2;
/// Type of an Interface Description Block, as read in a little-endian section.
const LITTLE_ENDIAN_INTERFACE: u32 = 1;

/// The link-layer header type of a frame (tcpdump.org/linktypes.html).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkType {
    /// Ethernet.
    Ethernet,
    /// No link-layer header. The IP version is in the first four bits.
    Ip,
    /// Linux cooked capture, version 1.
    Cooked,
    /// Linux cooked capture, version 2.
    Cooked2,
    /// A four-byte protocol family (BSD loopback).
    Loopback,
    /// PPP.
    Ppp,
    /// PPP with a byte for the direction before it.
    PppDirected,
    /// PPP of pppd, with the direction in place of the address.
    PppPppd,
    /// PPP or Cisco HDLC on a serial line.
    PppHdlc,
    /// A PPPoE session without Ethernet.
    PppEther,
    /// Cisco HDLC.
    CiscoHdlc,
    /// Frame Relay.
    FrameRelay,
    /// MPLS without a link layer.
    Mpls,
    /// Packets that a firewall rule logged (Linux NFLOG).
    Nflog,
    /// Packets that OpenBSD's IPsec decrypted.
    Enc,
    /// 802.11.
    Wifi,
    /// 802.11 after a radiotap header.
    Radiotap,
    /// 802.11 after a Prism or an AVS header.
    Prism,
    /// 802.11 after an AVS header.
    Avs,
    /// Per-packet information, then another link layer.
    Ppi,
    /// The number of an unsupported type.
    Unknown(i32),
}

impl LinkType {
    /// Link types for messages, the common ones.
    pub(crate) const SUPPORTED: &'static str =
        "Ethernet, raw IP, Linux cooked, loopback, PPP, Cisco HDLC, Frame Relay, MPLS, NFLOG and 802.11";

    pub(crate) fn of(number: i32) -> Self {
        match number {
            1 => LinkType::Ethernet,
            // Some systems write 12 or 14 for 101.
            12 | 14 | 101 | 228 | 229 => LinkType::Ip,
            113 => LinkType::Cooked,
            276 => LinkType::Cooked2,
            0 | 108 => LinkType::Loopback,
            9 => LinkType::Ppp,
            50 => LinkType::PppHdlc,
            51 => LinkType::PppEther,
            104 => LinkType::CiscoHdlc,
            105 => LinkType::Wifi,
            107 => LinkType::FrameRelay,
            109 => LinkType::Enc,
            119 => LinkType::Prism,
            127 => LinkType::Radiotap,
            163 => LinkType::Avs,
            166 => LinkType::PppPppd,
            192 => LinkType::Ppi,
            204 => LinkType::PppDirected,
            219 => LinkType::Mpls,
            239 => LinkType::Nflog,
            other => LinkType::Unknown(other),
        }
    }
}

/// A captured frame.
#[derive(Debug, Clone, Copy)]
pub struct CapturedFrame<'a> {
    /// Time of capture, ns since 1970. If it is not `timed`, the time of the frame before it.
    pub at: i64,
    /// Whether the file has the time of this frame.
    pub timed: bool,
    /// Number of the interface in a pcapng section; 0 otherwise.
    pub interface: u32,
    /// Link-layer header type.
    pub link: LinkType,
    /// Content as captured, possibly truncated.
    pub bytes: &'a [u8],
    /// Length on the wire, bytes. `bytes` may be shorter.
    pub length: usize,
}

impl<'a> CapturedFrame<'a> {
    /// A timed frame that begins with its IP header.
    pub fn ip(at: i64, bytes: &'a [u8], length: usize) -> Self {
        CapturedFrame { at, timed: true, interface: 0, link: LinkType::Ip, bytes, length }
    }
}

/// How the file ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TraceEnd {
    /// Offset of the last record, if the file ends within it, bytes.
    pub cut_at: Option<u64>,
    /// Number of packets whose interface the file does not describe. They cannot be read.
    pub orphans: u64,
}

/// Why a trace could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be read.
    #[error("could not read the trace {path}: {error}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// The file is not a capture.
    #[error("could not read the trace {path}: {why}", path = path.display())]
    NotACapture {
        /// The file.
        path: PathBuf,
        /// What it is instead, and the cure.
        why: String,
    },
    /// A record is malformed.
    #[error(
        "could not read the trace {path} beyond byte {offset}: the record there is malformed, and what follows cannot be read \
         (is the file complete? take the capture again, or truncate it there: head -c {offset})",
        path = path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Offset of the record, bytes.
        offset: u64,
    },
    /// The file has no TCP segments.
    #[error("the trace {path} has no TCP segments: {what}", path = path.display())]
    NoTcp {
        /// The file.
        path: PathBuf,
        /// What it has instead, and the cure.
        what: String,
    },
}

/// Fills the buffer completely, so that short reads of a pipe look like those of a file. Keeps the
/// I/O error, which the parser drops.
struct FullReads<R> {
    source: R,
    error: Arc<Mutex<Option<io::Error>>>,
}

impl<R: Read> Read for FullReads<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.source.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    *self.error.lock().expect("no thread panics while it holds this lock") = Some(error);
                    return Err(io::ErrorKind::Other.into());
                }
            }
        }
        Ok(filled)
    }
}

/// Properties of an interface of a pcapng section.
#[derive(Debug, Clone, Copy)]
struct PcapInterface {
    link: LinkType,
    /// Largest part of a packet that was captured, bytes.
    snap_length: usize,
    /// Timestamp units per second, and the offset to add, s.
    per_second: u128,
    offset_s: i64,
}

impl PcapInterface {
    fn of(block: &InterfaceDescriptionBlock<'_>) -> Self {
        let power = u32::from(block.if_tsresol & 0x7f);
        let per_second =
            if block.if_tsresol & 0x80 == 0 { 10u128.checked_pow(power) } else { 1u128.checked_shl(power) }.filter(|units| *units > 0);
        let offset = block.options.iter().find(|option| option.code == OptionCode::IfTsoffset).and_then(|option| {
            let bytes: [u8; 8] = option.value().get(..8)?.try_into().ok()?;
            Some(if block.block_type != LITTLE_ENDIAN_INTERFACE { i64::from_be_bytes(bytes) } else { i64::from_le_bytes(bytes) })
        });
        let snap_length = if block.snaplen == 0 { usize::MAX } else { block.snaplen as usize };
        PcapInterface {
            link: LinkType::of(block.linktype.0),
            snap_length,
            per_second: per_second.unwrap_or(1_000_000),
            offset_s: offset.unwrap_or(0),
        }
    }

    fn time(&self, high: u32, low: u32) -> i64 {
        let units = (u128::from(high) << 32) | u128::from(low);
        let whole = (units / self.per_second) as i128 + i128::from(self.offset_s);
        let part = (units % self.per_second).saturating_mul(1_000_000_000) / self.per_second;
        whole.saturating_mul(1_000_000_000).saturating_add(part as i128).clamp(0, i128::from(LATEST)) as i64
    }
}

/// State from the file's headers.
#[derive(Debug, Default)]
struct TraceHeaders {
    legacy: Option<(LinkType, bool)>,
    interfaces: Vec<PcapInterface>,
    /// Byte order of the pcapng section.
    big_endian: bool,
    /// Time of the last packet that had one.
    last: i64,
    /// Packets of interfaces that are not described.
    orphans: u64,
}

impl TraceHeaders {
    /// Updates the state from a header, or returns the frame of a packet record.
    fn take<'a>(&mut self, block: &'a PcapBlockOwned<'a>) -> Option<CapturedFrame<'a>> {
        match block {
            PcapBlockOwned::LegacyHeader(header) => {
                // The upper bits describe the frame check sequence.
                self.legacy = Some((LinkType::of(header.network.0 & 0x0fff_ffff), header.is_nanosecond_precision()));
                None
            }
            PcapBlockOwned::Legacy(record) => {
                let (link, nanos) = self.legacy?;
                let part = i64::from(record.ts_usec) * if nanos { 1 } else { 1000 };
                let at = (i64::from(record.ts_sec) * 1_000_000_000 + part).min(LATEST);
                let bytes = &record.data[..(record.caplen as usize).min(record.data.len())];
                Some(CapturedFrame { at, timed: true, interface: 0, link, bytes, length: record.origlen as usize })
            }
            PcapBlockOwned::NG(Block::SectionHeader(block)) => {
                self.interfaces.clear();
                self.big_endian = block.big_endian();
                None
            }
            PcapBlockOwned::NG(Block::InterfaceDescription(block)) => {
                if self.interfaces.len() < INTERFACES {
                    self.interfaces.push(PcapInterface::of(block));
                }
                None
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(block)) => {
                self.packet(block.if_id, Some((block.ts_high, block.ts_low)), block.packet_data(), block.origlen)
            }
            PcapBlockOwned::NG(Block::SimplePacket(block)) => {
                // It belongs to the first interface, whose snapshot length the padding follows.
                let kept = self.interfaces.first().map_or(0, |interface| interface.snap_length).min(block.packet_data().len());
                self.packet(0, None, &block.packet_data()[..kept], block.origlen)
            }
            PcapBlockOwned::NG(Block::Unknown(block)) => {
                let kind = if self.big_endian { block.block_type.swap_bytes() } else { block.block_type };
                if kind == OBSOLETE_PACKET { self.obsolete_packet(block.data) } else { None }
            }
            PcapBlockOwned::NG(_) => None,
        }
    }

    /// A packet of a pcapng section. `time` is in the units of the interface.
    fn packet<'a>(&mut self, interface: u32, time: Option<(u32, u32)>, bytes: &'a [u8], length: u32) -> Option<CapturedFrame<'a>> {
        let Some(known) = self.interfaces.get(interface as usize) else {
            self.orphans += 1;
            return None;
        };
        self.last = time.map_or(self.last, |(high, low)| known.time(high, low));
        Some(CapturedFrame { at: self.last, timed: time.is_some(), interface, link: known.link, bytes, length: length as usize })
    }

    /// The obsolete Packet Block (pcapng, appendix A), which pcap-parser does not parse: interface
    /// and number of drops, time, captured and original length, packet.
    fn obsolete_packet<'a>(&mut self, data: &'a [u8]) -> Option<CapturedFrame<'a>> {
        let (header, packet) = data.split_at_checked(20)?;
        let word = |at: usize| {
            let bytes = [header[at], header[at + 1], header[at + 2], header[at + 3]];
            if self.big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
        };
        let interface = if self.big_endian { word(0) >> 16 } else { word(0) & 0xffff };
        let kept = (word(12) as usize).min(packet.len());
        self.packet(interface, Some((word(4), word(8))), &packet[..kept], word(16))
    }
}

/// Calls `each` for every frame of the file, in order.
///
/// # Errors
/// The file cannot be read, is not a capture, or is damaged.
pub fn frames(path: &Path, each: impl FnMut(CapturedFrame<'_>)) -> Result<TraceEnd, TraceError> {
    let file = File::open(path).map_err(|error| TraceError::Read { path: path.into(), error })?;
    frames_of(file, path, each)
}

/// Calls `each` for every frame of `source`, in order. Errors call the source `path`.
///
/// # Errors
/// As [`frames`].
pub fn frames_of(source: impl Read + Send, path: &Path, mut each: impl FnMut(CapturedFrame<'_>)) -> Result<TraceEnd, TraceError> {
    let error = Arc::new(Mutex::new(None));
    let failed = |damage: TraceError| match error.lock().expect("no thread panics while it holds this lock").take() {
        Some(error) => TraceError::Read { path: path.into(), error },
        None => damage,
    };
    let peeked = Peeked::new(FullReads { source, error: error.clone() });
    let first = peeked.first();
    let mut reader = create_reader(BUFFER, peeked).map_err(|_| failed(not_a_capture(path, &first)))?;
    let (mut headers, mut offset, mut capacity) = (TraceHeaders::default(), 0u64, BUFFER);
    let has_blocks = first == PCAPNG;
    loop {
        if has_blocks && is_no_block(reader.data()) {
            return Err(TraceError::Damaged { path: path.into(), offset });
        }
        match reader.next() {
            Ok((size, block)) => {
                if let Some(frame) = headers.take(&block) {
                    each(frame);
                }
                offset += size as u64;
                reader.consume(size);
            }
            Err(PcapError::Eof) => return Ok(TraceEnd { cut_at: None, orphans: headers.orphans }),
            Err(PcapError::UnexpectedEof) => return Ok(TraceEnd { cut_at: Some(offset), orphans: headers.orphans }),
            Err(PcapError::Incomplete(_)) => {
                let had = reader.data().len();
                let refilled = reader.refill().is_ok();
                if !refilled || (reader.data().len() == had && !reader.reader_exhausted()) {
                    return Err(failed(TraceError::Damaged { path: path.into(), offset }));
                }
            }
            Err(PcapError::BufferTooSmall) if capacity < LARGEST_RECORD => {
                capacity *= 2;
                reader.grow(capacity);
                if reader.refill().is_err() {
                    return Err(failed(TraceError::Damaged { path: path.into(), offset }));
                }
            }
            Err(_) => return Err(failed(TraceError::Damaged { path: path.into(), offset })),
        }
    }
}

/// Whether a block claims to be shorter than its own header and trailer (pcapng §3.1). The parser
/// does not check that.
fn is_no_block(bytes: &[u8]) -> bool {
    const FRAME: u32 = 12;
    // In the wrong byte order, a length this small reads as larger than any record.
    bytes
        .get(4..8)
        .and_then(|length| length.try_into().ok())
        .is_some_and(|length| u32::from_le_bytes(length).min(u32::from_be_bytes(length)) < FRAME)
}

/// A reader that remembers the first four bytes of its source.
struct Peeked<R> {
    head: Vec<u8>,
    given: usize,
    source: R,
}

impl<R: Read> Peeked<R> {
    fn new(mut source: R) -> Self {
        let mut head = vec![0; 4];
        // An error here recurs in the next read, where it is reported.
        let length = source.read(&mut head).unwrap_or(0);
        head.truncate(length);
        Peeked { head, given: 0, source }
    }

    fn first(&self) -> Vec<u8> {
        self.head.clone()
    }
}

impl<R: Read> Read for Peeked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let ours = (self.head.len() - self.given).min(buffer.len());
        buffer[..ours].copy_from_slice(&self.head[self.given..self.given + ours]);
        self.given += ours;
        Ok(ours + self.source.read(&mut buffer[ours..])?)
    }
}

fn not_a_capture(path: &Path, first: &[u8]) -> TraceError {
    const PCAP: [[u8; 4]; 5] =
        [[0xa1, 0xb2, 0xc3, 0xd4], [0xd4, 0xc3, 0xb2, 0xa1], [0xa1, 0xb2, 0x3c, 0x4d], [0x4d, 0x3c, 0xb2, 0xa1], PCAPNG];
    let why = match first {
        [] => "it is empty (did the capture end before it wrote a packet? tcpdump -U writes each packet at once)".into(),
        [0x1f, 0x8b, ..] => "it is compressed (gunzip it first)".into(),
        [0x28, 0xb5, 0x2f, 0xfd] => "it is compressed (unzstd it first)".into(),
        first if PCAP.iter().any(|magic| magic == first) => "it ends within its header and has no packets (take the capture again)".into(),
        first => {
            let begins: String = first.iter().map(|byte| format!("{byte:02x}")).collect();
            format!(
                "it begins with {begins}, and is neither pcap nor pcapng (tcpdump -w and Wireshark write those; editcap -F pcapng converts others)"
            )
        }
    };
    TraceError::NotACapture { path: path.into(), why }
}
