//! A connection of a stream: queues frames and pieces, sends them, and puts received payload into
//! its place in the stream.

use crate::{
    channel::Channel,
    tls::MOST_IN_RECORD,
    zero_copy::{self, Incoming, PieceSource, PipeChunk},
};
use bond::{
    BadFrame, Decoded, Frame, FrameHeader, FrameReader, Inbound, NoMemory, PathId, PathSample, Piece, Placement, ProtocolViolation,
    StreamBuffer, StreamError,
};
use intercept::sys::{self, TcpInfo};
use rustix::io::Errno;
use std::{
    collections::VecDeque,
    io::{IoSlice, IoSliceMut},
    iter,
    time::Instant,
};
use units::{Bytes, Span};

/// Length of a read while no payload is expected, bytes: some frames.
const SPILL: usize = 512;
/// Length of a read after payload, bytes: the next piece's header.
const BEHIND: usize = 32;
/// The most bytes that are read in a turn, so that other connections are not delayed.
const TURN_BYTES: usize = 1 << 20;
/// Until this many bytes were acknowledged, a connection's RTT is taken to be its minimum.
const JUDGED: u64 = 32 * 1024;
/// From this state on (`TCP_CA_Recovery`, `TCP_CA_Loss`) the kernel's TCP retransmits.
const RECOVERY: u8 = 3;
/// Most slices of a vectored send.
const PARTS: usize = 24;

/// An entry of the send queue: a frame's header, and for a piece its bytes, which are in the
/// stream's buffer or in a chunk. A piece in several places has several entries; only the first has
/// a header.
#[derive(Debug)]
struct QueuedFrame {
    header: Option<FrameHeader>,
    offset: u64,
    len: usize,
    chunk: Option<PipeChunk>,
}

impl QueuedFrame {
    fn header(&self) -> &[u8] {
        self.header.as_deref().unwrap_or_default()
    }
}

/// How a connection was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Lost {
    /// The other end has closed or reset it.
    #[error("closed by the other end")]
    Closed,
    #[error("{0}")]
    Failed(Errno),
    /// The received bytes are not a valid frame.
    #[error(transparent)]
    BadFrame(#[from] BadFrame),
    #[error(transparent)]
    Violation(#[from] ProtocolViolation),
    /// No memory is left: the stream, not only the connection, has to end.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
}

impl From<StreamError> for Lost {
    fn from(why: StreamError) -> Lost {
        match why {
            StreamError::Violation(why) => why.into(),
            StreamError::NoMemory(why) => why.into(),
        }
    }
}

impl From<Errno> for Lost {
    fn from(why: Errno) -> Lost {
        match why {
            Errno::CONNRESET | Errno::PIPE => Lost::Closed,
            Errno::NOMEM => Lost::NoMemory(NoMemory),
            why => Lost::Failed(why),
        }
    }
}

/// A connection of a stream.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) channel: Channel,
    /// Number of its network at the end that dials.
    pub(crate) network: u8,
    /// Its index among the bond's sockets.
    pub(crate) entry: usize,
    /// Bound of its receive window, bytes.
    window: Option<Bytes>,
    pub(crate) readable: bool,
    /// The other end has closed it: no data follows what is in the receive queue.
    pub(crate) hung_up: bool,
    reader: FrameReader,
    /// Its received pieces take the zero-copy path, wholly or in part.
    brings_chunks: bool,
    out: VecDeque<QueuedFrame>,
    /// Bytes of the first entry of `out` that have been sent.
    gone: usize,
    /// Bytes in `out` that have not been sent.
    own: usize,
    /// TCP_NOTSENT_LOWAT of the socket, bytes.
    lowat: u64,
    /// TCP_INFO as of the last [`look`](Self::look).
    pub(crate) info: TcpInfo,
    /// Payload received over it, bytes.
    pub(crate) received: u64,
    /// Head-of-line blocking: how long data of other connections waited for data of this one.
    pub(crate) waited: Span,
    /// When it joined its stream, at the end that dials.
    pub(crate) joined: Option<Instant>,
}

impl Member {
    pub(crate) fn new(channel: Channel, network: u8, entry: usize, window: Option<Bytes>) -> Self {
        Member {
            channel,
            network,
            entry,
            window,
            readable: true,
            hung_up: false,
            reader: FrameReader::default(),
            brings_chunks: false,
            out: VecDeque::new(),
            gone: 0,
            own: 0,
            lowat: 0,
            info: TcpInfo::default(),
            received: 0,
            waited: Span::ZERO,
            joined: None,
        }
    }

    /// Its state, for the scheduler.
    pub(crate) fn look(&mut self) -> PathSample {
        self.info = sys::tcp_info(&self.channel).unwrap_or_default();
        let info = &self.info;
        let us = |us: u32| Span(u64::from(us) * 1000);
        let window = (u64::from(info.snd_cwnd) * u64::from(info.snd_mss)).min(u64::from(info.snd_wnd).max(u64::from(info.snd_mss)));
        let (delivered, unsent) = (info.bytes_acked, u64::from(info.notsent_bytes));
        // The RTT of the handshake may include the wake-up of a radio or a busy processor: the
        // minimum is a better estimate than the mean of a few samples.
        let rtt = if delivered < JUDGED { info.rtt_us.min(info.min_rtt_us) } else { info.rtt_us };
        // The retransmission timeout without its exponential backoff.
        let rto = us(info.rto_us >> info.backoff.min(16)).max(us(info.rtt_us));
        PathSample { delivered, unsent: unsent + self.waiting(), window, srtt: us(rtt), rto, in_recovery: info.ca_state >= RECOVERY }
    }

    /// Unsent bytes in this process.
    fn waiting(&self) -> u64 {
        (self.own + self.channel.pending()) as u64
    }

    /// Has the socket raise an event when fewer than `bytes` are unsent.
    pub(crate) fn wake_below(&mut self, bytes: u64) {
        // The kernel raises the event at half of the limit. It must not be raised above `bytes`, or
        // the scheduler would ask again at once.
        let most = 2 * bytes;
        if self.lowat < most / 2 || self.lowat > most {
            let wanted = most - most / 8;
            let set = sys::set_notsent_lowat(&self.channel, usize::try_from(wanted).unwrap_or(usize::MAX));
            self.lowat = if set.is_ok() { wanted } else { self.lowat };
        }
    }

    /// Queues a frame.
    pub(crate) fn say(&mut self, frame: &Frame) {
        self.push(Some(frame.header()), 0, 0, None);
    }

    /// Queues a piece that begins at this source; the rest is queued by
    /// [`carry_on`](Member::carry_on).
    pub(crate) fn carry(&mut self, piece: &Piece, source: PieceSource) {
        let header = Frame::Piece { offset: piece.offset, len: piece.len }.header();
        self.push_source(Some(header), piece.offset, source);
    }

    /// Queues more of the last piece, from `offset` on.
    pub(crate) fn carry_on(&mut self, offset: u64, source: PieceSource) {
        self.push_source(None, offset, source);
    }

    fn push_source(&mut self, header: Option<FrameHeader>, offset: u64, source: PieceSource) {
        match source {
            PieceSource::Buffer(len) => self.push(header, offset, len as usize, None),
            PieceSource::Chunk(chunk) => self.push(header, offset, chunk.len(), Some(chunk)),
        }
    }

    fn push(&mut self, header: Option<FrameHeader>, offset: u64, len: usize, chunk: Option<PipeChunk>) {
        let said = QueuedFrame { header, offset, len, chunk };
        self.own += said.header().len() + len;
        self.out.push_back(said);
    }

    pub(crate) fn has_something_to_say(&self) -> bool {
        !self.out.is_empty()
    }

    /// Sends as much as the socket takes; `buffer` has the bytes of pieces. False: more is queued.
    pub(crate) fn send(&mut self, buffer: &StreamBuffer) -> Result<bool, Lost> {
        match self.channel.flush() {
            Ok(()) => {}
            Err(Errno::AGAIN) => return Ok(false),
            Err(why) => return Err(why.into()),
        }
        while let Some(first) = self.out.front_mut() {
            let is_chunk = self.gone >= first.header().len() && first.chunk.is_some();
            let sent = match first.chunk.as_mut().filter(|_| is_chunk) {
                Some(chunk) => self.channel.pour(chunk),
                None => self.send_parts(buffer),
            };
            match sent {
                Ok(sent) => self.went(sent),
                Err(Errno::AGAIN) => return Ok(false),
                Err(why) => return Err(why.into()),
            }
        }
        Ok(true)
    }

    /// Sends what is queued, up to a chunk and its header.
    fn send_parts(&mut self, buffer: &StreamBuffer) -> Result<usize, Errno> {
        let mut parts = [IoSlice::new(&[]); PARTS];
        let (mut count, mut skip, mut more) = (0, self.gone, false);
        let is_encrypted = matches!(self.channel, Channel::Encrypted(_));
        let is_long = |said: &QueuedFrame| (said.header().len() + said.len) as u64 > MOST_IN_RECORD;
        for (index, said) in self.out.iter().enumerate() {
            if count == PARTS {
                break;
            }
            let header = &said.header()[skip.min(said.header().len())..];
            let begun = skip.saturating_sub(said.header().len());
            more = said.chunk.is_some();
            let own = if more { 0 } else { said.len - begun };
            let bytes = buffer.get(said.offset + begun as u64, own as u64);
            let whole = iter::once(header).filter(|header| !header.is_empty()).chain(bytes);
            for (part, said) in parts[count..].iter_mut().zip(whole) {
                *part = IoSlice::new(said);
                count += 1;
            }
            if more {
                break;
            }
            skip = 0;
            // A long piece is sent alone, so that its records begin and end with it.
            let next_is_long = self.out.get(index + 1).is_some_and(is_long);
            if is_encrypted && (is_long(said) || next_is_long) {
                break;
            }
        }
        self.channel.send(&parts[..count], more)
    }

    fn went(&mut self, bytes: usize) {
        self.own -= bytes;
        self.gone += bytes;
        while let Some(first) = self.out.front() {
            let len = first.header().len() + first.len;
            if self.gone < len {
                return;
            }
            self.gone -= len;
            self.out.pop_front();
        }
    }

    /// The unsent rest of a frame that was sent in part; `buffer` has the bytes of pieces. Other
    /// frames are dropped. After an error nothing more may be sent: the other end would take it for
    /// that rest.
    pub(crate) fn begun(&mut self, buffer: &StreamBuffer) -> Result<Vec<u8>, Errno> {
        let (out, mut gone) = (std::mem::take(&mut self.out), std::mem::take(&mut self.gone));
        self.own = 0;
        let mut all = Vec::new();
        for (index, said) in out.into_iter().enumerate() {
            let is_begun = index == 0 && gone > 0;
            if said.header.is_some() && !is_begun {
                break;
            }
            all.extend_from_slice(&said.header()[gone.min(said.header().len())..]);
            gone = gone.saturating_sub(said.header().len());
            match said.chunk {
                Some(chunk) => all.extend(chunk.read()?),
                None => buffer.get(said.offset + gone as u64, (said.len - gone) as u64).for_each(|part| all.extend_from_slice(part)),
            }
            gone = 0;
        }
        Ok(all)
    }

    /// Reads for a turn. Payload goes to its place in `inbound`, or to `incoming` by the zero-copy
    /// path; other frames go to `hear`. False: more may have arrived.
    pub(crate) fn receive(
        &mut self,
        now: Span,
        conn: PathId,
        inbound: &mut Inbound,
        mut incoming: Option<&mut Incoming>,
        scratch: &mut [u8],
        mut hear: impl FnMut(&mut Inbound, Frame) -> Result<(), Lost>,
    ) -> Result<bool, Lost> {
        let mut read = 0;
        while self.readable {
            if read >= TURN_BYTES {
                return Ok(false);
            }
            if let (Some((offset, left)), Some(incoming)) = (self.reader.payload(), incoming.as_deref_mut())
                && let Some(count) = incoming.take(&self.channel, offset, left, inbound)?
            {
                self.reader.consume_payload(count as u64);
                self.received += count as u64;
                inbound.on_payload(now, conn, offset, count as u64)?;
                self.clamp_again()?;
                (read, self.brings_chunks) = (read + count, true);
                continue;
            }
            self.channel.expect(self.reader.payload().map_or(0, |(_, left)| left));
            let mut spill = [0; SPILL];
            // The next piece may take the zero-copy path too: then only its header may be read
            // here.
            let (spilled, behind) = if self.brings_chunks { (FrameHeader::PIECE_LEN, FrameHeader::PIECE_LEN) } else { (SPILL, BEHIND) };
            let (mut direct, mut room) = (0, spilled);
            let received = match self.reader.payload() {
                Some((offset, left)) => {
                    // Directly into its place, together with the next header.
                    let place = match inbound.placement(offset, left)? {
                        Placement::Into(place) => place,
                        Placement::Skip(len) => {
                            let len = scratch.len().min(len as usize);
                            &mut scratch[..len]
                        }
                    };
                    direct = place.len();
                    room = if direct as u64 == left { behind } else { 0 };
                    let parts = &mut [IoSliceMut::new(place), IoSliceMut::new(&mut spill[..room])];
                    self.channel.receive(if room > 0 { parts } else { &mut parts[..1] })
                }
                None => self.channel.receive(&mut [IoSliceMut::new(&mut spill[..room])]),
            };
            let count = match received {
                Ok(0) => return Err(Lost::Closed),
                Ok(count) => count,
                Err(Errno::AGAIN) => {
                    self.readable = false;
                    return Ok(true);
                }
                Err(why) => return Err(why.into()),
            };
            read += count;
            self.clamp_again()?;
            let in_place = count.min(direct);
            if let Some((offset, _)) = self.reader.payload().filter(|_| in_place > 0) {
                self.reader.consume_payload(in_place as u64);
                self.received += in_place as u64;
                inbound.on_payload(now, conn, offset, in_place as u64)?;
            }
            self.interpret(now, conn, &spill[..count - in_place], inbound, &mut hear)?;
            // A short read means that the receive queue is empty; an event reports new data.
            if count < direct + room && !self.hung_up && matches!(self.channel, Channel::Clear(_)) {
                self.readable = false;
            }
        }
        Ok(true)
    }

    /// Clamps the window again, if it is bounded: the kernel resets the clamp when a segment
    /// arrives that is larger than all before.
    fn clamp_again(&self) -> Result<(), Errno> {
        let clamp = |window: Bytes| sys::clamp_window(&self.channel, window.0 as usize);
        self.window.map_or(Ok(()), clamp).map_err(|why| Errno::from_io_error(&why).unwrap_or(Errno::IO))
    }

    fn interpret(
        &mut self,
        now: Span,
        conn: PathId,
        mut bytes: &[u8],
        inbound: &mut Inbound,
        hear: &mut impl FnMut(&mut Inbound, Frame) -> Result<(), Lost>,
    ) -> Result<(), Lost> {
        while !bytes.is_empty() {
            let (used, step) = self.reader.read(bytes)?;
            bytes = &bytes[used..];
            match step {
                Decoded::Incomplete => {}
                Decoded::Frame(Frame::Piece { offset, len }) => {
                    inbound.begin_piece(offset, len)?;
                    self.brings_chunks &= len >= zero_copy::LEAST as u64;
                }
                Decoded::Frame(frame) => hear(inbound, frame)?,
                Decoded::Payload { offset, left } => {
                    let here = bytes.len().min(left as usize);
                    inbound.receive(now, conn, offset, &bytes[..here])?;
                    self.reader.consume_payload(here as u64);
                    self.received += here as u64;
                    bytes = &bytes[here..];
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zero_copy::{Outgoing, PipePool};
    use socket2::Socket;
    use std::{
        io::{Read as _, Write as _},
        net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
        thread,
        time::Duration,
    };

    fn pair(room: usize) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        sys::force_receive_buffer(&listener, room).unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    #[test]
    fn what_was_begun_goes_whole_wherever_its_bytes_are() {
        const LEN: usize = 200_000;
        let payload: Vec<u8> = (0..LEN as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let header = Frame::Piece { offset: 0, len: LEN as u64 }.header();
        // Stops once in the chunk that the piece begins with, once in the buffer behind it.
        for enough in [1, LEN / 2 + 10_000] {
            let (mut buffer, mut outgoing) = (StreamBuffer::new(1 << 20), Outgoing::new(PipePool::new(8)));
            let (mut client, plain) = pair(1 << 20);
            client.write_all(&payload[..LEN / 2]).unwrap();
            while sys::received(&plain) < LEN / 2 {
                thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(outgoing.take(&plain, 0, LEN as u64 / 2, &mut buffer), Ok(Some(LEN / 2)));
            buffer.put(LEN as u64 / 2, &payload[LEN / 2..]).unwrap();

            let (near, mut far) = pair(8 * 1024);
            sys::force_send_buffer(&near, 8 * 1024).unwrap();
            near.set_nonblocking(true).unwrap();
            let mut member = Member::new(Channel::Clear(Socket::from(near.try_clone().unwrap())), 0, 0, None);
            let piece = Piece { path: PathId(0), offset: 0, len: LEN as u64, is_duplicate: false };
            let (first, second) = [0, LEN as u64 / 2].map(|at| outgoing.give(at, LEN as u64 - at, 0, &mut buffer).unwrap()).into();
            assert!(matches!((&first, &second), (PieceSource::Chunk(_), PieceSource::Buffer(_))), "{first:?} {second:?}");
            member.carry(&piece, first);
            member.carry_on(LEN as u64 / 2, second);
            member.say(&Frame::Delivered);

            let (mut heard, mut part) = (Vec::new(), [0; 4096]);
            far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            while LEN.saturating_sub(member.own) < enough {
                let _ = member.send(&buffer).unwrap();
                let count = far.read(&mut part).unwrap();
                heard.extend_from_slice(&part[..count]);
            }
            let rest = member.begun(&buffer).unwrap();
            near.set_nonblocking(false).unwrap();
            assert!(!rest.is_empty(), "it has all gone");
            thread::scope(|scope| {
                scope.spawn(|| {
                    (&near).write_all(&rest).unwrap();
                    near.shutdown(Shutdown::Write).unwrap();
                });
                far.read_to_end(&mut heard).unwrap();
            });
            assert!(heard == [&header, &*payload].concat(), "{} bytes came", heard.len());
        }
    }
}
