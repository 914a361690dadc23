//! Frames out of a capture file, one after the other and in bounded memory: pcap (micro- or nanoseconds, either byte order) and pcapng.

use pcap_parser::{Block, InterfaceDescriptionBlock, OptionCode, PcapBlockOwned, PcapError, create_reader, traits::PcapNGPacketBlock as _};
use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

/// What is read at once.
const BUFFER: usize = 1 << 20;
/// No record is larger: the largest packet is 512 KiB (BIG TCP), and blocks of other kinds (secrets, name resolution) are of that order.
const LARGEST_RECORD: usize = 1 << 24;
/// Interfaces of a section that are told apart.
const INTERFACES: usize = 4096;
/// Times are kept below the year 2116 so that no difference of two of them overflows.
const LATEST: i64 = 4_600_000_000_000_000_000;

/// What a pcapng file begins with.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// The type of an interface's block, as its bytes are in a little-endian section.
const LITTLE_ENDIAN_INTERFACE: u32 = 1;

/// What a frame begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkType {
    Ethernet,
    /// An IP header at once; its first four bits say which.
    Ip,
    /// Linux cooked, version 1 or 2.
    Cooked,
    Cooked2,
    /// A protocol family of four bytes (BSD loopback).
    Loopback,
    /// The number of a link type that is not read (tcpdump.org/linktypes.html).
    Unknown(i32),
}

impl LinkType {
    fn of(number: i32) -> Self {
        match number {
            1 => LinkType::Ethernet,
            // 12 and 14 are what some systems write for 101.
            12 | 14 | 101 | 228 | 229 => LinkType::Ip,
            113 => LinkType::Cooked,
            276 => LinkType::Cooked2,
            0 | 108 => LinkType::Loopback,
            other => LinkType::Unknown(other),
        }
    }
}

/// One frame as it was captured.
#[derive(Debug, Clone, Copy)]
pub struct CapturedFrame<'a> {
    /// ns since 1970.
    pub at: i64,
    pub link: LinkType,
    pub bytes: &'a [u8],
    /// Bytes it had on the wire; `bytes` may be fewer.
    pub length: usize,
}

/// How a file ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TraceEnd {
    /// The byte at which the last record begins, if the file ends within it.
    pub cut_at: Option<u64>,
}

/// Why a trace could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be read.
    #[error("could not read the trace {path}: {error}", path = path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// It is not a capture.
    #[error("could not read the trace {path}: {why}", path = path.display())]
    NotACapture {
        /// Which.
        path: PathBuf,
        /// What it is instead, and the cure.
        why: String,
    },
    /// A record makes no sense.
    #[error(
        "could not read the trace {path} beyond byte {offset}: the record there makes no sense, so that nothing after it can be found \
         (is the file whole? take the capture again, or cut it there: head -c {offset})",
        path = path.display()
    )]
    Damaged {
        /// Which.
        path: PathBuf,
        /// Where the record begins.
        offset: u64,
    },
    /// There is no TCP in it.
    #[error("the trace {path} has no TCP segments: {what}", path = path.display())]
    NoTcp {
        /// Which.
        path: PathBuf,
        /// What it has instead, and the cure.
        what: String,
    },
}

/// Reads until the buffer is full, so that a pipe's short reads look like a file's; keeps the error that the parser drops.
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
                    *self.error.lock().expect("nobody panics with this") = Some(error);
                    return Err(io::ErrorKind::Other.into());
                }
            }
        }
        Ok(filled)
    }
}

/// What is known of an interface of a pcapng section.
#[derive(Debug, Clone, Copy)]
struct PcapInterface {
    link: LinkType,
    /// Units a second, and what is added, in seconds.
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
        PcapInterface { link: LinkType::of(block.linktype.0), per_second: per_second.unwrap_or(1_000_000), offset_s: offset.unwrap_or(0) }
    }

    fn time(&self, high: u32, low: u32) -> i64 {
        let units = (u128::from(high) << 32) | u128::from(low);
        let whole = (units / self.per_second) as i128 + i128::from(self.offset_s);
        let part = (units % self.per_second).saturating_mul(1_000_000_000) / self.per_second;
        whole.saturating_mul(1_000_000_000).saturating_add(part as i128).clamp(0, i128::from(LATEST)) as i64
    }
}

/// What the headers of the file have said so far.
#[derive(Debug, Default)]
struct TraceHeaders {
    legacy: Option<(LinkType, bool)>,
    interfaces: Vec<PcapInterface>,
}

impl TraceHeaders {
    /// Takes note of a header, or hands out a frame.
    fn take<'a>(&mut self, block: &'a PcapBlockOwned<'a>) -> Option<CapturedFrame<'a>> {
        match block {
            PcapBlockOwned::LegacyHeader(header) => {
                // The upper bits say whether frames end with their check sequence.
                self.legacy = Some((LinkType::of(header.network.0 & 0x0fff_ffff), header.is_nanosecond_precision()));
                None
            }
            PcapBlockOwned::Legacy(record) => {
                let (link, nanos) = self.legacy?;
                let part = i64::from(record.ts_usec) * if nanos { 1 } else { 1000 };
                let at = (i64::from(record.ts_sec) * 1_000_000_000 + part).min(LATEST);
                let bytes = &record.data[..(record.caplen as usize).min(record.data.len())];
                Some(CapturedFrame { at, link, bytes, length: record.origlen as usize })
            }
            PcapBlockOwned::NG(Block::SectionHeader(_)) => {
                self.interfaces.clear();
                None
            }
            PcapBlockOwned::NG(Block::InterfaceDescription(block)) => {
                if self.interfaces.len() < INTERFACES {
                    self.interfaces.push(PcapInterface::of(block));
                }
                None
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(block)) => {
                let interface = self.interfaces.get(block.if_id as usize)?;
                let at = interface.time(block.ts_high, block.ts_low);
                Some(CapturedFrame { at, link: interface.link, bytes: block.packet_data(), length: block.origlen as usize })
            }
            // Simple packets have no time: nothing can be told of them.
            PcapBlockOwned::NG(_) => None,
        }
    }
}

/// Hands out every frame of the file, in its order.
pub fn frames(path: &Path, each: impl FnMut(CapturedFrame<'_>)) -> Result<TraceEnd, TraceError> {
    let file = File::open(path).map_err(|error| TraceError::Read { path: path.into(), error })?;
    frames_of(file, path, each)
}

/// Hands out every frame of `source`, which errors call `path`.
pub fn frames_of(source: impl Read + Send, path: &Path, mut each: impl FnMut(CapturedFrame<'_>)) -> Result<TraceEnd, TraceError> {
    let error = Arc::new(Mutex::new(None));
    let failed = |damage: TraceError| match error.lock().expect("nobody panics with this").take() {
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
            Err(PcapError::Eof) => return Ok(TraceEnd::default()),
            Err(PcapError::UnexpectedEof) => return Ok(TraceEnd { cut_at: Some(offset) }),
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

/// Whether a block's length is less than its own frame is (pcapng §3.1: type and length, and the length again): the parser takes that for granted.
fn is_no_block(bytes: &[u8]) -> bool {
    const FRAME: u32 = 12;
    // In the wrong byte order it is larger than any record if it is that small in the right one.
    bytes
        .get(4..8)
        .and_then(|length| length.try_into().ok())
        .is_some_and(|length| u32::from_le_bytes(length).min(u32::from_be_bytes(length)) < FRAME)
}

/// Knows what the source begins with.
struct Peeked<R> {
    head: Vec<u8>,
    given: usize,
    source: R,
}

impl<R: Read> Peeked<R> {
    fn new(mut source: R) -> Self {
        let mut head = vec![0; 4];
        // What fails here fails again, and is told then.
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
        [] => "it is empty (was the capture ended before anything was written? tcpdump -U writes packets at once)".into(),
        [0x1f, 0x8b, ..] => "it is compressed (gunzip it first)".into(),
        [0x28, 0xb5, 0x2f, 0xfd] => "it is compressed (unzstd it first)".into(),
        first if PCAP.iter().any(|magic| magic == first) => {
            "it ends within its header: there is nothing in it (take the capture again)".into()
        }
        first => {
            let begins: String = first.iter().map(|byte| format!("{byte:02x}")).collect();
            format!(
                "it begins with {begins}, and is neither pcap nor pcapng (tcpdump -w and wireshark write those; editcap -F pcapng converts others)"
            )
        }
    };
    TraceError::NotACapture { path: path.into(), why }
}
