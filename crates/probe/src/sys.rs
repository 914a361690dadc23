//! System calls that no library in use wraps: TCP_INFO, the error queue of a socket, and the time
//! and TTL of received packets. Nothing is decided here.
#![allow(unsafe_code)]

use socket2::Socket;
use std::{
    io, mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, AsRawFd},
};

/// An ICMP error caused by a packet of this socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IcmpError {
    /// Type, of ICMP or ICMPv6.
    pub(crate) kind: u8,
    pub(crate) code: u8,
    /// The node that sent it.
    pub(crate) from: Option<IpAddr>,
}

/// A received message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReceivedMessage {
    /// Bytes in the buffer.
    pub(crate) length: usize,
    /// Length before truncation, bytes. For a packet socket, the length on the wire.
    pub(crate) whole: usize,
    pub(crate) from: Option<SocketAddr>,
    /// When the kernel received it, ns since 1970.
    pub(crate) at: Option<i64>,
    /// Remaining TTL or hop limit.
    pub(crate) ttl: Option<u8>,
    pub(crate) icmp_error: Option<IcmpError>,
    /// For a packet socket: whether this machine sent it.
    pub(crate) outgoing: bool,
}

/// Sets an integer option.
fn set_number(socket: &Socket, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the pointer and length describe `value`.
    let status = unsafe {
        libc::setsockopt(socket.as_fd().as_raw_fd(), level, name, (&raw const value).cast(), size_of::<libc::c_int>() as libc::socklen_t)
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets the TTL or hop limit of packets sent from now on, including retransmissions. `None`
/// restores the default.
pub(crate) fn set_hops(socket: &Socket, v6: bool, hops: Option<u8>) -> io::Result<()> {
    let hops = hops.map_or(-1, libc::c_int::from);
    if v6 {
        set_number(socket, libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, hops)
    } else {
        set_number(socket, libc::IPPROTO_IP, libc::IP_TTL, hops)
    }
}

/// Enables the error queue (ICMP errors) and the time and TTL of received packets.
pub(crate) fn enable_error_queue(socket: &Socket, v6: bool) -> io::Result<()> {
    set_number(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
    if v6 {
        set_number(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)?;
        set_number(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1)
    } else {
        set_number(socket, libc::IPPROTO_IP, libc::IP_RECVERR, 1)?;
        set_number(socket, libc::IPPROTO_IP, libc::IP_RECVTTL, 1)
    }
}

/// Enables timestamps of received packets.
pub(crate) fn enable_timestamps(socket: &Socket) -> io::Result<()> {
    set_number(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
}

/// Sets the size of the receive buffer, bytes, as far as the process is allowed to.
pub(crate) fn set_receive_buffer(socket: &Socket, bytes: usize) {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    if set_number(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes).is_err() {
        let _ = set_number(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes);
    }
}

/// Receives a message, or an entry of the error queue. Never blocks.
pub(crate) fn receive(socket: &Socket, buffer: &mut [u8], errors: bool) -> io::Result<ReceivedMessage> {
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = [0u64; 64];
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC | if errors { libc::MSG_ERRQUEUE } else { 0 };
    // SAFETY: an all-zero sockaddr_storage and msghdr are valid; the pointers set below outlive the
    // call; the control buffer is aligned for cmsghdr, and its messages are read only through the
    // CMSG macros, within the length that the kernel returned.
    unsafe {
        let mut from: libc::sockaddr_storage = mem::zeroed();
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_name = (&raw mut from).cast();
        message.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let length = libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags);
        if length < 0 {
            return Err(io::Error::last_os_error());
        }
        let whole = length as usize;
        let mut received =
            ReceivedMessage { length: whole.min(buffer.len()), whole, from: None, at: None, ttl: None, icmp_error: None, outgoing: false };
        received.from = address(&from, message.msg_namelen);
        if libc::c_int::from(from.ss_family) == libc::AF_PACKET {
            let link = &*(&raw const from).cast::<libc::sockaddr_ll>();
            received.outgoing = link.sll_pkttype == libc::PACKET_OUTGOING;
        }
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header);
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                    let stamp = data.cast::<libc::timespec>().read_unaligned();
                    // 32 bits wide on ARM.
                    #[allow(clippy::unnecessary_cast)]
                    let (seconds, nanoseconds) = (stamp.tv_sec as i64, stamp.tv_nsec as i64);
                    received.at = Some(seconds * 1_000_000_000 + nanoseconds);
                }
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    received.ttl = u8::try_from(data.cast::<libc::c_int>().read_unaligned()).ok();
                }
                (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => {
                    let error = data.cast::<libc::sock_extended_err>().read_unaligned();
                    if matches!(error.ee_origin, libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6) {
                        // The address of the node that sent the error follows.
                        let behind = data.add(size_of::<libc::sock_extended_err>());
                        // The type differs between C libraries.
                        #[allow(clippy::unnecessary_cast)]
                        let room = ((*header).cmsg_len as usize).saturating_sub(behind as usize - header as usize);
                        let mut sender: libc::sockaddr_storage = mem::zeroed();
                        std::ptr::copy_nonoverlapping(behind, (&raw mut sender).cast::<u8>(), room.min(size_of_val(&sender)));
                        let from = address(&sender, room as libc::socklen_t).map(|address| address.ip());
                        received.icmp_error = Some(IcmpError { kind: error.ee_type, code: error.ee_code, from });
                    }
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
        Ok(received)
    }
}

/// An IPv4 or IPv6 address.
fn address(storage: &libc::sockaddr_storage, length: libc::socklen_t) -> Option<SocketAddr> {
    let (pointer, length) = (&raw const *storage, length as usize);
    match libc::c_int::from(storage.ss_family) {
        libc::AF_INET if length >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: the family says what it is, a storage is larger and as aligned, and that much
            // of it was written.
            let at = unsafe { &*pointer.cast::<libc::sockaddr_in>() };
            Some(SocketAddr::new(Ipv4Addr::from(u32::from_be(at.sin_addr.s_addr)).into(), u16::from_be(at.sin_port)))
        }
        libc::AF_INET6 if length >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY: as above.
            let at = unsafe { &*pointer.cast::<libc::sockaddr_in6>() };
            Some(SocketAddr::new(Ipv6Addr::from(at.sin6_addr.s6_addr).into(), u16::from_be(at.sin6_port)))
        }
        _ => None,
    }
}

/// The fields of TCP_INFO (include/uapi/linux/tcp.h) that probes use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TcpInfoSample {
    /// Options of the connection: TCPI_OPT_TIMESTAMPS 1, SACK 2, WSCALE 4.
    pub(crate) options: u8,
    /// Window scales of the peer and of this side.
    pub(crate) their_scale: u8,
    pub(crate) own_scale: u8,
    /// Segments in flight.
    pub(crate) unacked: u32,
    /// Bytes acknowledged by the peer, including the SYN.
    pub(crate) bytes_acked: u64,
    pub(crate) retransmits: u32,
}

pub(crate) fn tcp_info(socket: &Socket) -> io::Result<TcpInfoSample> {
    let mut bytes = [0u8; 256];
    let mut length = size_of_val(&bytes) as libc::socklen_t;
    // SAFETY: the pointers describe `bytes` and its length; the kernel writes at most that much.
    let status = unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, bytes.as_mut_ptr().cast(), &raw mut length)
    };
    if status < 0 {
        return Err(io::Error::last_os_error());
    }
    let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let long = |at: usize| {
        u64::from(word(at + if cfg!(target_endian = "big") { 4 } else { 0 }))
            | (u64::from(word(at + if cfg!(target_endian = "big") { 0 } else { 4 })) << 32)
    };
    Ok(TcpInfoSample {
        options: bytes[5],
        // Bit fields begin at the low end on little-endian machines.
        their_scale: if cfg!(target_endian = "big") { bytes[6] >> 4 } else { bytes[6] & 15 },
        own_scale: if cfg!(target_endian = "big") { bytes[6] & 15 } else { bytes[6] >> 4 },
        unacked: word(24),
        bytes_acked: long(120),
        retransmits: word(100),
    })
}
