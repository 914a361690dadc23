//! Classic BPF programs for a listening socket that drop SYNs: all, or those of some clients. The
//! TCP header is at offset 0, the IP header at `SKF_NET_OFF`.

use socket2::SockFilter;
use std::net::{IpAddr, Ipv6Addr};

/// Which connections a listener accepts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Accepting {
    /// All connections.
    #[default]
    All,
    /// All but those of these clients, at most [`MOST_LEFT_OUT`](Accepting::MOST_LEFT_OUT).
    NotFrom(Vec<ClientKey>),
    /// No connection.
    None,
}

impl Accepting {
    /// The most clients that can be left out.
    pub const MOST_LEFT_OUT: usize = 64;
}

/// The key by which connections of a client are counted: its IPv4 address, or its IPv6 /64, since a
/// host can use any address of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientKey(IpAddr);

impl From<IpAddr> for ClientKey {
    fn from(address: IpAddr) -> Self {
        ClientKey(match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
            address => address,
        })
    }
}

/// The SYN flag, in this byte of the TCP header.
const FLAGS: u32 = 13;
const SYN: u32 = 2;
/// Source address in the IP header.
const SOURCE_V4: u32 = libc::SKF_NET_OFF as u32 + 12;
const SOURCE_V6: u32 = libc::SKF_NET_OFF as u32 + 8;

fn load(size: u32, at: u32) -> SockFilter {
    SockFilter::new((libc::BPF_LD | size | libc::BPF_ABS) as u16, 0, 0, at)
}

/// Goes on, or skips so many instructions unless the value is this one.
fn unless_equal(value: u32, skip: u8) -> SockFilter {
    SockFilter::new((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, 0, skip, value)
}

fn verdict(takes: bool) -> SockFilter {
    SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, if takes { u32::MAX } else { 0 })
}

/// Takes segments without the SYN flag, and goes on with the others.
fn syns_only() -> [SockFilter; 3] {
    let is_syn = SockFilter::new((libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16, 1, 0, SYN);
    [load(libc::BPF_B, FLAGS), is_syn, verdict(true)]
}

/// Drops SYNs.
pub(crate) fn drop_syns() -> Vec<SockFilter> {
    let mut program = Vec::from(syns_only());
    program.push(verdict(false));
    program
}

/// Drops the SYNs of these clients.
pub(crate) fn drop_syns_of(clients: &[ClientKey]) -> Vec<SockFilter> {
    let mut program = Vec::from(syns_only());
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for client in clients.iter().take(Accepting::MOST_LEFT_OUT) {
        match client.0 {
            IpAddr::V4(address) => v4.extend([unless_equal(address.to_bits(), 1), verdict(false)]),
            IpAddr::V6(address) => {
                let [high, low] = [address.to_bits() >> 96, address.to_bits() >> 64].map(|bits| bits as u32);
                v6.extend([load(libc::BPF_W, SOURCE_V6), unless_equal(high, 3), load(libc::BPF_W, SOURCE_V6 + 4)]);
                v6.extend([unless_equal(low, 1), verdict(false)]);
            }
        }
    }
    // The version of IP. A jump over the part of IPv4 may be longer than a condition can encode.
    let shift = SockFilter::new((libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16, 0, 0, 4);
    let jump = SockFilter::new((libc::BPF_JMP | libc::BPF_JA) as u16, 0, 0, v4.len() as u32 + 2);
    let is_v6 = SockFilter::new((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, 0, 1, 6);
    program.extend([load(libc::BPF_B, libc::SKF_NET_OFF as u32), shift, is_v6, jump, load(libc::BPF_W, SOURCE_V4)]);
    program.extend(v4);
    program.push(verdict(true));
    program.extend(v6);
    program.push(verdict(true));
    program
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, SockAddr, Socket, Type};
    use std::{
        io::ErrorKind,
        net::{Ipv4Addr, SocketAddr},
        time::Duration,
    };

    fn key(address: &str) -> ClientKey {
        address.parse::<IpAddr>().unwrap().into()
    }

    /// Whether a listener with this filter accepts a connection from each of these addresses.
    fn accepts(filter: Option<&[SockFilter]>, from: &[&str]) -> Vec<bool> {
        let listener = Socket::new(Domain::IPV6, Type::STREAM, None).unwrap();
        listener.set_only_v6(false).unwrap();
        listener.bind(&SockAddr::from(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)))).unwrap();
        listener.listen(64).unwrap();
        let port = listener.local_addr().unwrap().as_socket().unwrap().port();
        filter.inspect(|filter| listener.attach_filter(filter).unwrap());
        let connect = |from: &&str| {
            let from: IpAddr = from.parse().unwrap();
            let to = if from.is_ipv4() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { IpAddr::V6(Ipv6Addr::LOCALHOST) };
            let socket = Socket::new(Domain::for_address((from, 0).into()), Type::STREAM, None).unwrap();
            socket.bind(&SockAddr::from(SocketAddr::from((from, 0)))).unwrap();
            match socket.connect_timeout(&SockAddr::from(SocketAddr::from((to, port))), Duration::from_millis(300)) {
                Ok(()) => true,
                Err(why) if why.kind() == ErrorKind::TimedOut => false,
                Err(why) => panic!("{from}: {why}"),
            }
        };
        from.iter().map(connect).collect()
    }

    #[test]
    fn syns_of_some_clients_are_dropped() {
        let from = ["127.0.0.2", "127.0.0.3", "127.0.0.4", "::1"];
        assert_eq!(accepts(None, &from), [true; 4]);
        assert_eq!(accepts(Some(&drop_syns()), &from), [false; 4]);
        assert_eq!(accepts(Some(&drop_syns_of(&[])), &from), [true; 4]);
        let some = [key("127.0.0.3"), key("::7"), key("127.0.0.4"), key("2001:db8::1")];
        assert_eq!(accepts(Some(&drop_syns_of(&some)), &from), [true, false, false, false]);
        assert_eq!(accepts(Some(&drop_syns_of(&[key("2001:db8::1"), key("127.0.0.2")])), &from), [false, true, true, true]);
        let many: Vec<ClientKey> = (0..200u8).map(|last| IpAddr::from([10, 0, 0, last]).into()).collect();
        assert_eq!(accepts(Some(&drop_syns_of(&many)), &from), [true; 4]);
    }

    #[test]
    fn clients_of_ipv6_are_counted_by_their_prefix() {
        assert_eq!(key("2001:db8:1:2:3::4"), key("2001:db8:1:2:ffff::"));
        assert_ne!(key("2001:db8:1:2::"), key("2001:db8:1:3::"));
        assert_eq!(key("::ffff:192.0.2.1"), key("192.0.2.1"));
    }
}
