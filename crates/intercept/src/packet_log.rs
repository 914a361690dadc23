//! Reads the packets of an experiment from the kernel's packet log (NFLOG, nfnetlink_log): the
//! headers of packets that a rule of the firewall names (see `rules::experiment`), without payload.
//! Packets with IP options or extension headers are left out: their TCP header is beyond what is
//! copied.
//!
//! The kernel hands packets over in batches, after at most [`BATCH`], in the order in which the
//! rules saw them. Its queue is bounded: packets that find no room are lost, and counted.

use crate::rules::{
    ANSWER, CAPTURED, Group, LOG_GROUP,
    nfnetlink::{ERROR, REQUEST, message, messages},
};
use etherparse::{LaxIpSlice, ip_number};
use netlink_sys::{Socket, SocketAddr as NetlinkAddress, protocols::NETLINK_NETFILTER};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::BorrowedFd,
    net::{RecvFlags, recv, sockopt::set_socket_recv_buffer_size_force},
};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::{Duration, SystemTime},
};

/// Message types of the netfilter subsystem `ulog` (include/uapi/linux/netfilter/nfnetlink_log.h).
const ULOG: u16 = 4 << 8;
const PACKET: u16 = ULOG;
const CONFIG: u16 = ULOG | 1;
/// The flag of a request that is to be answered.
const ACKNOWLEDGE: u16 = 4;
/// Attributes of a configuration: a command (bind), what is copied of packets, the longest time
/// that a batch waits.
const CONFIG_COMMAND: u16 = 1;
const CONFIG_MODE: u16 = 2;
const CONFIG_TIMEOUT: u16 = 4;
const BIND: u8 = 1;
const COPY_PACKET: u8 = 2;
/// Attributes of a packet.
const PACKET_HEADER: u16 = 1;
const PACKET_TIME: u16 = 3;
const PACKET_PAYLOAD: u16 = 9;
const PACKET_PREFIX: u16 = 10;
/// The hook of packets from clients, in the packet header.
const PREROUTING: u8 = 0;
/// The longest time that a batch waits in the kernel.
const BATCH: Duration = Duration::from_millis(20);
/// Size of the receive buffer, bytes: some thousand packets.
const QUEUE: usize = 2 << 20;
/// Size of one read, bytes; more than the largest batch.
const READ: usize = 64 << 10;

/// TCP flags.
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;

/// Where a packet was logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passage {
    /// A packet of the client, where it comes in.
    FromClient,
    /// A server's answer to a SYN, where it comes in. Split connections have none: the proxy's host
    /// itself answers them.
    FromServer,
    /// A packet to the client, where it leaves. Its time is that at which it was read.
    ToClient,
}

/// The headers of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoggedPacket {
    /// When a rule saw it, since the Unix epoch.
    pub at: Duration,
    /// Where it was logged.
    pub passage: Passage,
    /// The group of the connection, which is known of the client's SYN alone.
    pub group: Option<Group>,
    /// Source.
    pub from: SocketAddr,
    /// Destination.
    pub to: SocketAddr,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// The flags, as in the header; see [`is_syn`](Self::is_syn) and the like.
    pub flags: u8,
    /// Bytes of payload.
    pub payload: u32,
}

impl LoggedPacket {
    /// A packet with these flags, for tests: any of the letters S, F and R.
    #[doc(hidden)]
    pub fn example(at: Duration, passage: Passage, [from, to]: [SocketAddr; 2], flags: &str) -> Self {
        let bit = |flag| match flag {
            'S' => SYN,
            'F' => FIN,
            'R' => RST,
            _ => 0,
        };
        let flags = flags.chars().map(bit).fold(0, |all, bit| all | bit);
        LoggedPacket { at, passage, group: None, from, to, seq: 0, ack: 0, flags, payload: 0 }
    }

    /// Whether it opens a connection, or answers such a packet.
    pub fn is_syn(&self) -> bool {
        self.flags & SYN != 0
    }

    /// Whether it ends its direction.
    pub fn is_fin(&self) -> bool {
        self.flags & FIN != 0
    }

    /// Whether it resets the connection.
    pub fn is_reset(&self) -> bool {
        self.flags & RST != 0
    }
}

/// What a read has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Packets, which were passed on.
    Packets,
    /// Nothing more at present.
    Nothing,
    /// Packets were lost since the last read, because they were not read in time.
    Lost,
}

/// The packet log of one network namespace. Call [`wait`](Self::wait), then
/// [`read`](Self::read) until it finds nothing.
#[derive(Debug)]
pub struct PacketLog {
    socket: Socket,
    buffer: Vec<u8>,
}

impl PacketLog {
    /// Binds the log in the network namespace of the calling thread.
    ///
    /// # Errors
    /// `PermissionDenied` if another process reads it or CAP_NET_ADMIN is missing: the kernel says
    /// EPERM for both. Otherwise the kernel has no packet log (CONFIG_NETFILTER_NETLINK_LOG).
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        socket.connect(&NetlinkAddress::new(0, 0))?;
        // Beyond net.core.rmem_max if that is permitted; it is enough for a smaller share.
        if set_socket_recv_buffer_size_force(&socket, QUEUE).is_err() {
            let _ = socket.set_rx_buf_sz(QUEUE as i32);
        }
        let mut log = PacketLog { socket, buffer: vec![0; READ] };
        log.configure(&[(CONFIG_COMMAND, &[BIND])])?;
        let mode = [&CAPTURED.to_be_bytes()[..], &[COPY_PACKET, 0]].concat();
        // In hundredths of a second.
        let timeout = (BATCH.as_millis() as u32 / 10).to_be_bytes();
        log.configure(&[(CONFIG_MODE, &mode), (CONFIG_TIMEOUT, &timeout)])?;
        log.socket.set_non_blocking(true)?;
        Ok(log)
    }

    fn configure(&mut self, attributes: &[(u16, &[u8])]) -> io::Result<()> {
        let mut request = message(CONFIG, REQUEST | ACKNOWLEDGE, 0, attributes);
        // The number of the group, in the header that follows the one of netlink.
        request[18..20].copy_from_slice(&LOG_GROUP.to_be_bytes());
        self.socket.send(&request, 0)?;
        loop {
            let (answer, _) = self.socket.recv_from_full()?;
            // Packets may arrive before the answer.
            if let Some(answer) = messages(&answer).find(|message| message.kind() == ERROR) {
                return answer.error().map_or(Ok(()), Err);
            }
        }
    }

    /// Waits until there is something to read, `waker` is readable, or `timeout` has passed.
    ///
    /// # Errors
    /// The system refuses to wait.
    pub fn wait(&self, waker: BorrowedFd<'_>, timeout: Duration) -> io::Result<()> {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        let mut waits = [PollFd::new(&self.socket, PollFlags::IN), PollFd::from_borrowed_fd(waker, PollFlags::IN)];
        match poll(&mut waits, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Reads one batch, and calls `each` for the TCP packets in it.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn read(&mut self, each: impl FnMut(LoggedPacket)) -> io::Result<Reading> {
        use rustix::io::Errno;
        match recv(&self.socket, &mut self.buffer[..], RecvFlags::empty()) {
            Ok((count, _)) => {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                packets(&self.buffer[..count], now).for_each(each);
                Ok(Reading::Packets)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(Reading::Nothing),
            Err(Errno::NOBUFS) => Ok(Reading::Lost),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// The TCP packets of a batch. `now` is the time of those that have none of their own.
pub(crate) fn packets(batch: &[u8], now: Duration) -> impl Iterator<Item = LoggedPacket> {
    messages(batch).filter(|message| message.kind() == PACKET).filter_map(move |message| {
        let at = message.attribute(PACKET_TIME).and_then(time).unwrap_or(now);
        let prefix = message.text(PACKET_PREFIX).unwrap_or_default();
        let passage = match *message.attribute(PACKET_HEADER)?.get(2)? {
            PREROUTING if prefix == ANSWER => Passage::FromServer,
            PREROUTING => Passage::FromClient,
            _ => Passage::ToClient,
        };
        let group = Group::ALL.into_iter().find(|group| group.name() == prefix);
        let packet = headers(message.attribute(PACKET_PAYLOAD)?)?;
        Some(LoggedPacket { at, passage, group, ..packet })
    })
}

/// Seconds and microseconds, 64 bits each.
fn time(value: &[u8]) -> Option<Duration> {
    let number = |at: usize| Some(u64::from_be_bytes(value.get(at..at + 8)?.try_into().ok()?));
    Duration::from_secs(number(0)?).checked_add(Duration::from_micros(number(8)?))
}

/// The headers of an IP packet that is cut after its TCP header. `None` for another packet.
fn headers(bytes: &[u8]) -> Option<LoggedPacket> {
    let (sliced, stopped) = LaxIpSlice::from_slice(bytes).ok()?;
    let total = match &sliced {
        LaxIpSlice::Ipv4(packet) => usize::from(packet.header().total_len()),
        LaxIpSlice::Ipv6(packet) => 40 + usize::from(packet.header().payload_length()),
    };
    let (from, to): (IpAddr, IpAddr) = (sliced.source_addr(), sliced.destination_addr());
    let upper = sliced.payload();
    if stopped.is_some() || upper.fragmented || upper.ip_number != ip_number::TCP {
        return None;
    }
    let tcp = upper.payload;
    let word = |at: usize| Some(u16::from_be_bytes(tcp.get(at..at + 2)?.try_into().ok()?));
    let number = |at: usize| Some(u32::from_be_bytes(tcp.get(at..at + 4)?.try_into().ok()?));
    let before = (tcp.as_ptr() as usize - bytes.as_ptr() as usize) + usize::from(*tcp.get(12)? >> 4) * 4;
    Some(LoggedPacket {
        at: Duration::ZERO,
        passage: Passage::ToClient,
        group: None,
        from: SocketAddr::new(from, word(0)?),
        to: SocketAddr::new(to, word(2)?),
        seq: number(4)?,
        ack: number(8)?,
        flags: *tcp.get(13)?,
        payload: total.saturating_sub(before) as u32,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The headers of an IPv4 packet with 1000 bytes of payload; the payload is not captured.
    fn packet() -> Vec<u8> {
        let mut bytes = vec![0x45, 0, 4, 16, 0, 0, 0x40, 0, 64, 6, 0, 0, 192, 0, 2, 1, 198, 51, 100, 2];
        bytes.extend_from_slice(&[0x30, 0x39, 0, 80, 0, 0, 0, 7, 0, 0, 1, 0, 0x50, 0x11, 0, 9, 0, 0, 0, 0]);
        bytes
    }

    fn batch(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        message(PACKET, 0, 2, attributes)
    }

    #[test]
    fn a_packet_is_read_from_its_headers() {
        let time: Vec<u8> = [5u64.to_be_bytes(), 250_000u64.to_be_bytes()].concat();
        let bytes = batch(&[
            (PACKET_HEADER, &[8, 0, PREROUTING, 0]),
            (PACKET_TIME, &time),
            (PACKET_PAYLOAD, &packet()),
            (PACKET_PREFIX, b"split\0"),
        ]);
        let found: Vec<_> = packets(&bytes, Duration::ZERO).collect();
        let [one] = found[..] else { panic!("{found:?}") };
        assert_eq!((one.at, one.passage, one.group), (Duration::from_millis(5250), Passage::FromClient, Some(Group::Split)));
        assert_eq!((one.from.to_string(), one.to.to_string()), ("192.0.2.1:12345".into(), "198.51.100.2:80".into()));
        assert_eq!((one.seq, one.ack, one.payload), (7, 256, 1000));
        assert!(one.is_fin() && !one.is_syn() && !one.is_reset());
    }

    #[test]
    fn what_is_cut_or_of_another_protocol_is_left_out() {
        let count =
            |payload: &[u8]| packets(&batch(&[(PACKET_HEADER, &[8, 0, 4, 0]), (PACKET_PAYLOAD, payload)]), Duration::from_secs(3)).count();
        assert_eq!(count(&packet()), 1);
        (0..34).for_each(|length| assert_eq!(count(&packet()[..length]), 0, "{length} bytes"));
        // What the rule copies of a packet without options.
        assert_eq!(count(&packet()[..34]), 1);
        let with_options = [&[0x46], &packet()[1..20], &[1; 4], &packet()[20..]].concat();
        assert_eq!(count(&with_options[..34]), 0);
        let mut udp = packet();
        udp[9] = 17;
        assert_eq!(count(&udp), 0);
        assert_eq!(packets(&[0; 64], Duration::ZERO).count(), 0);
    }
}
