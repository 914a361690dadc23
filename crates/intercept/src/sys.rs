//! System calls that our libraries do not wrap: TCP_INFO, socket options, two ioctls. No policy
//! here.
#![allow(unsafe_code)]

use account::SenderWait;
use rustix::fd::{AsFd, AsRawFd, FromRawFd as _, OwnedFd};
use std::{io, mem, net::SocketAddr};

/// `struct tcp_info` of Linux (include/uapi/linux/tcp.h). Fields that the kernel does not fill are
/// 0, except `rcv_wnd`, which is estimated then. [`TcpInfo::timeouts`] distinguishes 0 from not
/// filled.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct TcpInfo {
    pub state: u8,
    pub ca_state: u8,
    pub retransmits: u8,
    pub probes: u8,
    pub backoff: u8,
    pub options: u8,
    pub wscale: u8,
    pub app_limited: u8,
    pub rto_us: u32,
    pub ato_us: u32,
    pub snd_mss: u32,
    pub rcv_mss: u32,
    pub unacked: u32,
    pub sacked: u32,
    pub lost: u32,
    pub retrans: u32,
    pub fackets: u32,
    pub last_data_sent_ms: u32,
    pub last_ack_sent_ms: u32,
    pub last_data_recv_ms: u32,
    pub last_ack_recv_ms: u32,
    pub pmtu: u32,
    pub rcv_ssthresh: u32,
    pub rtt_us: u32,
    pub rttvar_us: u32,
    pub snd_ssthresh: u32,
    pub snd_cwnd: u32,
    pub advmss: u32,
    pub reordering: u32,
    pub rcv_rtt_us: u32,
    pub rcv_space: u32,
    pub total_retrans: u32,
    pub pacing_rate: u64,
    pub max_pacing_rate: u64,
    pub bytes_acked: u64,
    pub bytes_received: u64,
    pub segs_out: u32,
    pub segs_in: u32,
    pub notsent_bytes: u32,
    pub min_rtt_us: u32,
    pub data_segs_in: u32,
    pub data_segs_out: u32,
    pub delivery_rate: u64,
    pub busy_time_us: u64,
    pub rwnd_limited_us: u64,
    pub sndbuf_limited_us: u64,
    pub delivered: u32,
    pub delivered_ce: u32,
    pub bytes_sent: u64,
    pub bytes_retrans: u64,
    pub dsack_dups: u32,
    pub reord_seen: u32,
    pub rcv_ooopack: u32,
    pub snd_wnd: u32,
    pub rcv_wnd: u32,
    pub rehash: u32,
    pub total_rto: u16,
    pub total_rto_recoveries: u16,
    pub total_rto_time_ms: u32,
    /// Number of bytes of this struct that the kernel filled.
    pub filled: u32,
}

/// `TCP_CA_Recovery`; `TCP_CA_Loss` is above.
const RECOVERY: u8 = 3;

impl TcpInfo {
    /// Retransmission timeouts so far. `None` if the kernel does not count them (before Linux 6.7).
    pub fn timeouts(&self) -> Option<u16> {
        self.has(mem::offset_of!(TcpInfo, total_rto) + mem::size_of::<u16>()).then_some(self.total_rto)
    }

    /// Whether the kernel filled the struct up to this offset.
    fn has(&self, end: usize) -> bool {
        self.filled as usize >= end
    }

    /// What this sender waits for before it sends more. `has_more`: there is more to send than its
    /// send queue holds. `by_model`: its controller sets the window by a model of the path and not
    /// by losses.
    pub fn waits_for(&self, has_more: bool, by_model: bool) -> SenderWait {
        let is_recovering = self.ca_state >= RECOVERY && self.unacked > 0;
        // Less than a segment waits for more data (Nagle's algorithm).
        let has_unsent = self.notsent_bytes >= self.snd_mss.max(1);
        if self.rtt_us == 0 {
            SenderWait::Handshake
        } else if !has_unsent && !has_more {
            if is_recovering { SenderWait::Recovery } else { SenderWait::Data }
        } else if self.window_is_full() {
            SenderWait::Receiver
        } else if !has_unsent {
            SenderWait::SendBuffer
        } else {
            self.path_wait(by_model)
        }
    }

    /// What it waits for if path and congestion control are the limit.
    pub fn path_wait(&self, by_model: bool) -> SenderWait {
        if self.snd_cwnd < self.snd_ssthresh && self.ca_state < RECOVERY {
            SenderWait::SlowStart
        } else if !by_model && self.total_retrans > 0 {
            SenderWait::Recovery
        } else {
            SenderWait::Control
        }
    }

    /// Whether the peer has sent no data for two round trips, at least 50 ms.
    pub fn peer_is_silent(&self) -> bool {
        u64::from(self.last_data_recv_ms) > (u64::from(self.rtt_us) / 500).max(50)
    }

    /// Whether the peer's receive window has no room for another segment.
    pub fn window_is_full(&self) -> bool {
        (u64::from(self.unacked) + 1) * u64::from(self.snd_mss) > u64::from(self.snd_wnd)
    }

    /// Whether this end holds the peer back: the window last announced to it is less than two of
    /// its segments.
    pub fn holds_back(&self) -> bool {
        self.rcv_wnd < 2 * self.rcv_mss
    }
}

/// Reads the state of a connection (TCP_INFO).
///
/// # Errors
/// It is not a TCP socket.
pub fn tcp_info(socket: impl AsFd) -> io::Result<TcpInfo> {
    let mut info = TcpInfo::default();
    let mut length = mem::offset_of!(TcpInfo, filled) as libc::socklen_t;
    // SAFETY: the pointer and length describe the kernel's part of `info`. Every bit pattern is
    // valid.
    let status =
        unsafe { libc::getsockopt(socket.as_fd().as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut length) };
    check(status)?;
    info.filled = length;
    // Linux 6.2 and later fill it.
    if !info.has(mem::offset_of!(TcpInfo, rcv_wnd) + mem::size_of::<u32>()) {
        info.rcv_wnd = estimated_window(socket, info.rcv_mss)?;
    }
    Ok(info)
}

/// The window that a socket would announce, as `__tcp_select_window` of kernels before 6.2 computes
/// it with the default `net.ipv4.tcp_adv_win_scale`, which counts half of the free buffer as
/// payload.
fn estimated_window(socket: impl AsFd, mss: u32) -> io::Result<u32> {
    let ReceiveMemory { used, buffer, .. } = receive_memory(socket)?;
    let whole = u32::try_from(buffer / 2).unwrap_or(u32::MAX);
    let free = u32::try_from(buffer.saturating_sub(used) / 2).unwrap_or(u32::MAX);
    // If less than a sixteenth or less than a segment is free, the announced window is 0.
    Ok(if free < whole / 16 || free < mss { 0 } else { free })
}

/// The memory of a socket's receive side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReceiveMemory {
    /// Bytes of packets with their overhead: in order, out of order, and not yet processed.
    pub used: usize,
    /// Size of the receive buffer, bytes.
    pub buffer: usize,
    /// Packets that the socket has dropped: duplicates, packets out of its window, packets without
    /// room.
    pub drops: u32,
}

/// Reads the memory of a socket's receive side.
///
/// # Errors
/// The kernel refuses the option.
pub fn receive_memory(socket: impl AsFd) -> io::Result<ReceiveMemory> {
    let memory = memory_info(socket)?;
    Ok(ReceiveMemory {
        used: memory[RMEM_ALLOC] as usize + memory[BACKLOG] as usize,
        buffer: memory[RCVBUF] as usize,
        drops: memory[DROPS],
    })
}

/// Kernel memory of a socket's packets, bytes, as the kernel charges it to TCP: the receive queue,
/// in order or not, the send queue until it is acknowledged, and what is reserved for both.
///
/// # Errors
/// The kernel refuses the option.
pub fn socket_memory(socket: impl AsFd) -> io::Result<u64> {
    let memory = memory_info(socket)?;
    // What is reserved may be negative for a moment.
    let reserved = u64::try_from(memory[FWD_ALLOC] as i32).unwrap_or(0);
    Ok(reserved + [RMEM_ALLOC, BACKLOG, WMEM_QUEUED].into_iter().map(|index| u64::from(memory[index])).sum::<u64>())
}

// Indices of include/uapi/linux/sock_diag.h.
const RMEM_ALLOC: usize = 0;
const RCVBUF: usize = 1;
const SNDBUF: usize = 3;
const FWD_ALLOC: usize = 4;
const WMEM_QUEUED: usize = 5;
const BACKLOG: usize = 7;
const DROPS: usize = 8;

/// Reads a socket's memory counters (SO_MEMINFO).
fn memory_info(socket: impl AsFd) -> io::Result<[u32; 9]> {
    const SO_MEMINFO: libc::c_int = 55;
    let mut memory = [0u32; 9];
    let mut length = mem::size_of_val(&memory) as libc::socklen_t;
    // SAFETY: the pointer and length describe `memory`.
    let status =
        unsafe { libc::getsockopt(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, SO_MEMINFO, memory.as_mut_ptr().cast(), &raw mut length) };
    check(status).map(|()| memory)
}

/// Whether a socket's SYN has not been sent yet, has not been answered, or was refused.
pub fn is_unanswered(socket: impl AsFd) -> bool {
    const SYN_SENT: u8 = 2;
    const CLOSE: u8 = 7;
    tcp_info(socket).is_ok_and(|info| matches!(info.state, SYN_SENT | CLOSE))
}

fn set_int(socket: impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the pointer and length describe `value`.
    let status = unsafe {
        libc::setsockopt(socket.as_fd().as_raw_fd(), level, name, (&raw const value).cast(), mem::size_of::<i32>() as libc::socklen_t)
    };
    check(status)
}

fn get_int(socket: impl AsFd, level: i32, name: i32) -> io::Result<i32> {
    let mut value = 0i32;
    let mut length = mem::size_of::<i32>() as libc::socklen_t;
    // SAFETY: the pointer and length describe `value`.
    let status = unsafe { libc::getsockopt(socket.as_fd().as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length) };
    check(status).map(|()| value)
}

/// The credentials of the process at the other end of a Unix socket (SO_PEERCRED). The process ID
/// is 0 if this process cannot see it. The type of rustix has no such ID, and turns it into an
/// error.
///
/// # Errors
/// The descriptor is no Unix socket.
pub(crate) fn peer_credentials(socket: impl AsFd) -> io::Result<libc::ucred> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = mem::size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointer and length describe `credentials`, every bit pattern of which is valid.
    let status = unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut credentials).cast(), &raw mut length)
    };
    check(status)?;
    // Sockets of other families have no peer, and user -1.
    if credentials.uid == u32::MAX { Err(io::ErrorKind::InvalidInput.into()) } else { Ok(credentials) }
}

/// A descriptor of the process at the other end of a Unix socket (SO_PEERPIDFD).
///
/// # Errors
/// The process has ended, or the kernel does not know the option (before Linux 6.5).
pub(crate) fn peer_pidfd(socket: impl AsFd) -> io::Result<OwnedFd> {
    /// include/uapi/asm-generic/socket.h
    const SO_PEERPIDFD: i32 = 77;
    let descriptor = get_int(socket, libc::SOL_SOCKET, SO_PEERPIDFD)?;
    // SAFETY: the kernel has just opened the descriptor, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn check(status: i32) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Allows an IPv6 socket to have a local address that is not one of this host (IPV6_TRANSPARENT).
///
/// # Errors
/// The process lacks CAP_NET_ADMIN and CAP_NET_RAW.
pub fn set_transparent_v6(socket: impl AsFd) -> io::Result<()> {
    set_int(socket, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, 1)
}

/// Fixes the size of the receive buffer; the kernel doubles `bytes`. With CAP_NET_ADMIN it may
/// exceed `net.core.rmem_max`, otherwise it is limited to that.
///
/// # Errors
/// The kernel refuses the option.
pub fn force_receive_buffer(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    let value = i32::try_from(bytes).unwrap_or(i32::MAX);
    set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, value)
        .or_else(|_| set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, value))
}

/// Which buffers of a socket have a fixed size (SO_BUF_LOCK, Linux 5.14). The kernel tunes the
/// others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferLocks(i32);

impl BufferLocks {
    const SO_BUF_LOCK: libc::c_int = 72;
    const SEND: i32 = 1;
    const RECEIVE: i32 = 2;

    /// Reads the locks of a socket.
    ///
    /// # Errors
    /// The kernel does not have the option.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        get_int(socket, libc::SOL_SOCKET, Self::SO_BUF_LOCK).map(BufferLocks)
    }

    /// The same locks, except that the receive buffer is fixed at its present size, or not.
    pub fn with_receive(self, locked: bool) -> Self {
        BufferLocks(if locked { self.0 | Self::RECEIVE } else { self.0 & !Self::RECEIVE })
    }

    /// The same locks, except that the send buffer is fixed at its present size, or not.
    pub fn with_send(self, locked: bool) -> Self {
        BufferLocks(if locked { self.0 | Self::SEND } else { self.0 & !Self::SEND })
    }

    /// Sets the locks of a socket.
    ///
    /// # Errors
    /// The kernel does not have the option.
    pub fn apply(self, socket: impl AsFd) -> io::Result<()> {
        set_int(socket, libc::SOL_SOCKET, Self::SO_BUF_LOCK, self.0)
    }
}

/// Fixes the size of the send buffer; the kernel doubles `bytes`. With CAP_NET_ADMIN it may exceed
/// `net.core.wmem_max`, otherwise it is limited to that.
///
/// # Errors
/// The kernel refuses the option.
pub fn force_send_buffer(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    let value = i32::try_from(bytes).unwrap_or(i32::MAX);
    exceed_send_buffer(socket.as_fd(), bytes).or_else(|_| set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, value))
}

/// Fixes the size of the send buffer beyond what `net.core.wmem_max` allows; the kernel doubles
/// `bytes`.
///
/// # Errors
/// The process lacks CAP_NET_ADMIN.
pub fn exceed_send_buffer(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    set_int(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, i32::try_from(bytes).unwrap_or(i32::MAX))
}

/// What is in the send queue, and the size of the send buffer, bytes, with the overhead of packets.
///
/// # Errors
/// The kernel refuses the option.
pub fn send_memory(socket: impl AsFd) -> io::Result<(usize, usize)> {
    let memory = memory_info(socket)?;
    Ok((memory[WMEM_QUEUED] as usize, memory[SNDBUF] as usize))
}

/// Whether IPv6 is enabled in this kernel.
pub fn has_ipv6() -> bool {
    use rustix::net::{AddressFamily, SocketType, socket};
    !matches!(socket(AddressFamily::INET6, SocketType::STREAM, None), Err(rustix::io::Errno::AFNOSUPPORT))
}

/// Whether it is an IPv6 socket, which may have an IPv4 connection all the same.
fn is_for_v6(socket: impl AsFd) -> io::Result<bool> {
    Ok(rustix::net::sockopt::socket_domain(socket)? == rustix::net::AddressFamily::INET6)
}

/// Whether a connection's packets are IPv6.
fn sends_v6(socket: impl AsFd) -> io::Result<bool> {
    let own = SocketAddr::try_from(rustix::net::getsockname(socket)?)?;
    Ok(own.ip().to_canonical().is_ipv6())
}

/// Sets the DSCP (0 to 63) of a socket's packets, of both families for an IPv6 socket.
///
/// # Errors
/// The kernel refuses the option.
pub fn set_dscp(socket: impl AsFd, value: u8) -> io::Result<()> {
    // The lower two bits of the byte are ECN's, which TCP sets itself.
    let bits = i32::from(value) << 2;
    if is_for_v6(&socket)? {
        set_int(&socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, bits)?;
    }
    set_int(&socket, libc::IPPROTO_IP, libc::IP_TOS, bits)
}

/// Sets the priority of a socket's packets (SO_PRIORITY), by which queueing disciplines choose
/// their class.
///
/// # Errors
/// The kernel refuses the option.
pub fn set_priority(socket: impl AsFd, priority: u32) -> io::Result<()> {
    set_int(&socket, libc::SOL_SOCKET, libc::SO_PRIORITY, priority as i32)
}

/// The DSCP of an accepted connection's SYN. A TCP socket returns it as a control message among its
/// "packet options" (net/ipv4/ip_sockglue.c, net/ipv6/ipv6_sockglue.c).
///
/// # Errors
/// The kernel refuses an option.
pub fn dscp_of_syn(socket: impl AsFd) -> io::Result<u8> {
    const IPV6_2292PKTOPTIONS: libc::c_int = 6;
    let (level, ask, name) = if sends_v6(&socket)? {
        (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, IPV6_2292PKTOPTIONS)
    } else {
        (libc::IPPROTO_IP, libc::IP_RECVTOS, libc::IP_PKTOPTIONS)
    };
    set_int(&socket, level, ask, 1)?;
    let mut space = [0u64; 16];
    let mut length = mem::size_of_val(&space) as libc::socklen_t;
    // SAFETY: the pointer and length describe `space`.
    let status = unsafe { libc::getsockopt(socket.as_fd().as_raw_fd(), level, name, space.as_mut_ptr().cast(), &raw mut length) };
    check(status)?;
    set_int(&socket, level, ask, 0)?;
    // SAFETY: a zeroed header is a valid one.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_control = space.as_mut_ptr().cast();
    header.msg_controllen = length as _;
    // SAFETY: the header describes the part of `space` that the kernel filled with control
    // messages. CMSG_NXTHDR stays within it, and the data byte that is read lies within the
    // message's length.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(&raw const header);
        while let Some(found) = message.as_ref() {
            // The type of `cmsg_len` differs between C libraries.
            #[allow(clippy::unnecessary_cast)]
            let length = found.cmsg_len as usize;
            if found.cmsg_level == level
                && matches!(found.cmsg_type, libc::IP_TOS | libc::IPV6_TCLASS)
                && length > mem::size_of::<libc::cmsghdr>()
            {
                return Ok(*libc::CMSG_DATA(message) >> 2);
            }
            message = libc::CMSG_NXTHDR(&raw const header, message);
        }
    }
    Ok(0)
}

/// The destination of an accepted connection before this host translated it (DNAT). Without
/// translation it is the socket's local address.
///
/// # Errors
/// `NotFound` if conntrack does not track the connection. Another kind if this kernel has no
/// conntrack.
pub fn original_destination(socket: impl AsFd) -> io::Result<SocketAddr> {
    const SO_ORIGINAL_DST: libc::c_int = 80;
    let level = if sends_v6(&socket)? { libc::IPPROTO_IPV6 } else { libc::IPPROTO_IP };
    // SAFETY: the closure hands the kernel a pointer and length that describe the storage.
    let (_, address) = unsafe {
        socket2::SockAddr::try_init(|storage, length| {
            check(libc::getsockopt(socket.as_fd().as_raw_fd(), level, SO_ORIGINAL_DST, storage.cast(), length))
        })?
    };
    address.as_socket().ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// Makes a connect wait for the first data and send it with the SYN (RFC 7413), if the server has
/// given a cookie before.
///
/// # Errors
/// The kernel refuses the option.
pub fn set_fast_open_connect(socket: impl AsFd) -> io::Result<()> {
    set_int(socket, libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, 1)
}

/// Bounds the unsent bytes that a socket accepts (TCP_NOTSENT_LOWAT).
///
/// # Errors
/// The kernel refuses the option.
pub fn set_notsent_lowat(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    set_int(socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, i32::try_from(bytes).unwrap_or(i32::MAX))
}

/// Sets how many bytes must have been received until the socket counts as readable (SO_RCVLOWAT).
/// The end of the connection, and a full window, make it readable at any time.
///
/// # Errors
/// The kernel refuses the option.
pub fn set_receive_lowat(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    set_int(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, i32::try_from(bytes).unwrap_or(i32::MAX))
}

/// Bytes written to the socket that have not been acknowledged (SIOCOUTQ), sent or not. A FIN
/// counts as one byte. Data that a reset discarded counts as unacknowledged.
///
/// # Errors
/// It is not a TCP socket.
pub fn unacknowledged(socket: impl AsFd) -> io::Result<usize> {
    const SIOCOUTQ: libc::Ioctl = 0x5411;
    let mut bytes: libc::c_int = 0;
    // SAFETY: this ioctl writes one int to the pointer.
    check(unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCOUTQ, &raw mut bytes) })?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// Whether the peer's FIN has arrived. Data before it may not have been read yet.
///
/// # Errors
/// `poll` fails.
pub fn has_hung_up(socket: impl AsFd) -> io::Result<bool> {
    events(socket, libc::POLLRDHUP).map(|events| events & libc::POLLRDHUP != 0)
}

/// Whether both directions of the socket have ended: by a reset, a timeout, or a FIN of each end.
pub fn is_closed(socket: impl AsFd) -> bool {
    events(socket, 0).is_ok_and(|events| events & libc::POLLHUP != 0)
}

/// Which of the `wanted` events a file has now; an error and a hang-up are always among them.
fn events(file: impl AsFd, wanted: i16) -> io::Result<i16> {
    let mut poll = libc::pollfd { fd: file.as_fd().as_raw_fd(), events: wanted, revents: 0 };
    loop {
        // SAFETY: the pointer and count describe one pollfd.
        let status = unsafe { libc::poll(&raw mut poll, 1, 0) };
        if status >= 0 {
            return Ok(poll.revents);
        }
        let why = io::Error::last_os_error();
        if why.kind() != io::ErrorKind::Interrupted {
            return Err(why);
        }
    }
}

/// Bounds the advertised window, in bytes of payload (TCP_WINDOW_CLAMP).
///
/// # Errors
/// The kernel refuses the option.
pub fn clamp_window(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    set_int(socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, i32::try_from(bytes).unwrap_or(i32::MAX))
}

/// Payload in the receive queue, bytes (FIONREAD). 0 on an error.
pub fn received(socket: impl AsFd) -> usize {
    rustix::io::ioctl_fionread(socket).map_or(0, |bytes| bytes as usize)
}

/// Payload in the send queue that has not been sent yet, bytes (SIOCOUTQNSD).
///
/// # Errors
/// It is not a TCP socket.
pub fn unsent(socket: impl AsFd) -> io::Result<usize> {
    const SIOCOUTQNSD: libc::Ioctl = 0x894B;
    let mut bytes: libc::c_int = 0;
    // SAFETY: this ioctl writes one int to the pointer.
    check(unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCOUTQNSD, &raw mut bytes) })?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// Whether the peer's window is closed while bytes that it has sent are not read: it may wait to
/// write before it reads again.
pub fn is_blocked(socket: impl AsFd) -> bool {
    let nothing_in_flight = || tcp_info(&socket).is_ok_and(|info| info.unacked == 0);
    received(&socket) > 0 && unsent(&socket).is_ok_and(|bytes| bytes > 0) && nothing_in_flight()
}
