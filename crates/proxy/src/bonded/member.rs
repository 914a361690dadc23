//! One of the connections that carry a stream: what is to be said over it waits here for its turn, and what comes over it goes to its place.

use super::{
    channel::Channel,
    haul::{self, Incoming, Load, Parcel},
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
};
use units::{Bytes, Span};

/// What is read at once of what is no payload: some frames.
const SPILL: usize = 512;
/// What is read at once behind payload: the next piece's header.
const BEHIND: usize = 32;
/// How much may be read before others have their turn.
const TURN_BYTES: usize = 1 << 20;
/// Until so much was acknowledged a connection is judged by its least round trip.
const JUDGED: u64 = 32 * 1024;
/// From this state of the kernel's TCP on (`TCP_CA_Recovery`, `TCP_CA_Loss`) it sends again what was lost.
const RECOVERY: u8 = 3;
/// So many parts are sent at once.
const PARTS: usize = 24;

/// Something to be said: a header, and for a piece its bytes. These are the stream's, or in a parcel; where they are in several places the others follow,
/// without a header.
#[derive(Debug)]
struct Said {
    header: Option<FrameHeader>,
    offset: u64,
    len: usize,
    parcel: Option<Parcel>,
}

impl Said {
    fn header(&self) -> &[u8] {
        self.header.as_deref().unwrap_or_default()
    }
}

/// How a connection has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Lost {
    /// The other end has closed or reset it.
    #[error("closed by the other end")]
    Closed,
    #[error("{0}")]
    Failed(Errno),
    /// What came over it is no frame, or breaks the rules.
    #[error(transparent)]
    BadFrame(#[from] BadFrame),
    #[error(transparent)]
    Violation(#[from] ProtocolViolation),
    /// The stream, not the connection, cannot go on.
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
pub(super) struct Member {
    pub(super) channel: Channel,
    /// Which of the networks of who dialled it goes over.
    pub(super) network: u8,
    /// Where events find it.
    pub(super) entry: usize,
    /// What the other end may have under way over it.
    window: Option<Bytes>,
    pub(super) readable: bool,
    /// The other end has closed it: what there is to read is all there will be.
    pub(super) hung_up: bool,
    reader: FrameReader,
    /// Of its pieces, all or some, no byte is copied.
    brings_parcels: bool,
    out: VecDeque<Said>,
    /// How much of the first of these has gone.
    gone: usize,
    /// What has not gone of these in all, bytes.
    own: usize,
    /// What it was told to wake up for, TCP_NOTSENT_LOWAT.
    lowat: u64,
    /// What was looked up last.
    pub(super) info: TcpInfo,
    /// Payload that came over it.
    pub(super) received: u64,
    /// For how long what came over others waited for what came over it.
    pub(super) waited: Span,
}

impl Member {
    pub(super) fn new(channel: Channel, network: u8, entry: usize, window: Option<Bytes>) -> Self {
        Member {
            channel,
            network,
            entry,
            window,
            readable: true,
            hung_up: false,
            reader: FrameReader::default(),
            brings_parcels: false,
            out: VecDeque::new(),
            gone: 0,
            own: 0,
            lowat: 0,
            info: TcpInfo::default(),
            received: 0,
            waited: Span::ZERO,
        }
    }

    /// What the scheduler is to know of it.
    pub(super) fn look(&mut self) -> PathSample {
        self.info = sys::tcp_info(&self.channel).unwrap_or_default();
        let info = &self.info;
        let us = |us: u32| Span(u64::from(us) * 1000);
        let window = (u64::from(info.snd_cwnd) * u64::from(info.snd_mss)).min(u64::from(info.snd_wnd).max(u64::from(info.snd_mss)));
        let (delivered, unsent) = (info.bytes_acked, u64::from(info.notsent_bytes));
        // A handshake may have waited for a radio to wake up, or a processor: the least round trip says more than the mean of a few.
        let rtt = if delivered < JUDGED { info.rtt_us.min(info.min_rtt_us) } else { info.rtt_us };
        // The timeout as it is, not as it has become by being waited for in vain.
        let rto = us(info.rto_us >> info.backoff.min(16)).max(us(info.rtt_us));
        PathSample { delivered, unsent: unsent + self.waiting(), window, srtt: us(rtt), rto, in_recovery: info.ca_state >= RECOVERY }
    }

    /// What waits in this process's own hands, bytes.
    fn waiting(&self) -> u64 {
        (self.own + self.channel.pending()) as u64
    }

    /// It is to raise an event when less than so much waits.
    pub(super) fn wake_below(&mut self, bytes: u64) {
        // The kernel wakes who waits for it at half of it. Never above what was asked for: it would be asked again at once, and again.
        let most = 2 * bytes;
        if self.lowat < most / 2 || self.lowat > most {
            let wanted = most - most / 8;
            let set = sys::set_notsent_lowat(&self.channel, usize::try_from(wanted).unwrap_or(usize::MAX));
            self.lowat = if set.is_ok() { wanted } else { self.lowat };
        }
    }

    /// It is to say this.
    pub(super) fn say(&mut self, frame: &Frame) {
        self.push(Some(frame.header()), 0, 0, None);
    }

    /// It is to carry this piece, which begins in a parcel, or with so many bytes of the stream's buffer; [`carry_on`](Member::carry_on) has the rest.
    pub(super) fn carry(&mut self, piece: &Piece, load: Load) {
        let header = Frame::Piece { offset: piece.offset, len: piece.len }.header();
        self.push_load(Some(header), piece.offset, load);
    }

    /// More of the piece that it is to carry, from `offset` on.
    pub(super) fn carry_on(&mut self, offset: u64, load: Load) {
        self.push_load(None, offset, load);
    }

    fn push_load(&mut self, header: Option<FrameHeader>, offset: u64, load: Load) {
        match load {
            Load::Buffer(len) => self.push(header, offset, len as usize, None),
            Load::Parcel(parcel) => self.push(header, offset, parcel.len(), Some(parcel)),
        }
    }

    fn push(&mut self, header: Option<FrameHeader>, offset: u64, len: usize, parcel: Option<Parcel>) {
        let said = Said { header, offset, len, parcel };
        self.own += said.header().len() + len;
        self.out.push_back(said);
    }

    pub(super) fn has_something_to_say(&self) -> bool {
        !self.out.is_empty()
    }

    /// Sends what it can, the bytes of pieces out of `buffer`; false: it has to wait before it can send more.
    pub(super) fn send(&mut self, buffer: &StreamBuffer) -> Result<bool, Lost> {
        match self.channel.flush() {
            Ok(()) => {}
            Err(Errno::AGAIN) => return Ok(false),
            Err(why) => return Err(why.into()),
        }
        while let Some(first) = self.out.front_mut() {
            let is_parcel = self.gone >= first.header().len() && first.parcel.is_some();
            let sent = match first.parcel.as_mut().filter(|_| is_parcel) {
                Some(parcel) => self.channel.pour(parcel),
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

    /// Sends what is to be said from the first on, up to a parcel and its header.
    fn send_parts(&mut self, buffer: &StreamBuffer) -> Result<usize, Errno> {
        let mut parts = [IoSlice::new(&[]); PARTS];
        let (mut count, mut skip, mut more) = (0, self.gone, false);
        for said in &self.out {
            if count == PARTS {
                break;
            }
            let header = &said.header()[skip.min(said.header().len())..];
            let begun = skip.saturating_sub(said.header().len());
            more = said.parcel.is_some();
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

    /// What must still go after it was begun, bytes out of `buffer`; what was not begun is forgotten.
    /// After an error nothing more may be sent: it would be taken for the rest of what was begun.
    pub(super) fn begun(&mut self, buffer: &StreamBuffer) -> Result<Vec<u8>, Errno> {
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
            match said.parcel {
                Some(parcel) => all.extend(parcel.read()?),
                None => buffer.get(said.offset + gone as u64, (said.len - gone) as u64).for_each(|part| all.extend_from_slice(part)),
            }
            gone = 0;
        }
        Ok(all)
    }

    /// Reads what has come, as far as its turn goes; payload goes to its place, or to `incoming` where there is much, `hear` hears the rest. False: there
    /// may be more.
    pub(super) fn receive(
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
                (read, self.brings_parcels) = (read + count, true);
                continue;
            }
            let mut spill = [0; SPILL];
            // Behind what was not copied there may be more of that, of which no more than the header is to be copied.
            let (spilled, behind) = if self.brings_parcels { (FrameHeader::PIECE_LEN, FrameHeader::PIECE_LEN) } else { (SPILL, BEHIND) };
            let (mut direct, mut room) = (0, spilled);
            let received = match self.reader.payload() {
                Some((offset, left)) => {
                    // Right to where it belongs, and with it the next header.
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
            // A socket that gave less than was asked for has no more, and will tell when it has.
            if count < direct + room && !self.hung_up && matches!(self.channel, Channel::Clear(_)) {
                self.readable = false;
            }
        }
        Ok(true)
    }

    /// Bounds the window, where that is wanted: the kernel forgets it whenever a segment larger than any before comes.
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
                    self.brings_parcels &= len >= haul::LEAST as u64;
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
    use crate::bonded::haul::{Outgoing, Pipes};
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
        // It is left when only its beginning, in a parcel, has gone, and when some of what follows in the buffer has.
        for enough in [1, LEN / 2 + 10_000] {
            let (mut buffer, mut outgoing) = (StreamBuffer::new(1 << 20), Outgoing::new(Pipes::new(8)));
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
            assert!(matches!((&first, &second), (Load::Parcel(_), Load::Buffer(_))), "{first:?} {second:?}");
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
