//! The network interfaces of this host, with their addresses and the networks behind them.

use intercept::Prefix;
use nix::{ifaddrs::getifaddrs, net::if_::InterfaceFlags};
use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostInterface {
    pub(crate) name: String,
    /// Whether it is up. One that is down is not suggested.
    pub(crate) is_up: bool,
    /// Its addresses, each with the length of its prefix; none that is link-local.
    pub(crate) addresses: Vec<(IpAddr, u8)>,
    /// Networks behind other hosts that are reached through it, each with the length of its prefix.
    pub(crate) routed: Vec<(IpAddr, u8)>,
    /// Whether a default route leads through it.
    pub(crate) is_default: bool,
}

/// Looks at this host, in the network namespace of this process.
///
/// # Errors
/// The host has no interface but loopback, or they cannot be listed.
pub(crate) fn of_host() -> Result<Vec<HostInterface>, String> {
    let mut interfaces: Vec<HostInterface> = Vec::new();
    let routes = routes();
    let is_default = |name: &str| routes.iter().any(|route| route.interface == name && route.length == 0);
    let found = getifaddrs().map_err(|why| format!("cannot list the network interfaces: {why}"))?;
    for address in found.filter(|it| it.interface_name != "lo") {
        let name = address.interface_name;
        let index = interfaces.iter().position(|known| known.name == name).unwrap_or_else(|| {
            let is_up = address.flags.contains(InterfaceFlags::IFF_UP);
            let routed = routes.iter().filter(|route| route.interface == name && route.is_through_host && route.length > 0);
            let routed = routed.map(|route| (route.network, route.length)).collect();
            interfaces.push(HostInterface { is_default: is_default(&name), is_up, name, routed, addresses: Vec::new() });
            interfaces.len() - 1
        });
        let ip = |address: Option<nix::sys::socket::SockaddrStorage>| {
            let address = address?;
            let v4 = address.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip())))
        };
        if let (Some(own), Some(mask)) = (ip(address.address), ip(address.netmask))
            && !is_link_local(own)
        {
            interfaces[index].addresses.push((own, prefix_length(mask)));
        }
    }
    if interfaces.is_empty() {
        return Err("this host has no network interface besides loopback: set one up first".into());
    }
    Ok(interfaces)
}

/// The networks of interfaces and behind them, each once.
pub(crate) fn networks<'a>(interfaces: impl Iterator<Item = &'a HostInterface>) -> Vec<Prefix> {
    let mut prefixes: Vec<Prefix> = Vec::new();
    for (address, length) in interfaces.flat_map(|it| it.addresses.iter().chain(&it.routed)) {
        if let Ok(prefix) = format!("{address}/{length}").parse::<Prefix>()
            && !prefixes.contains(&prefix)
        {
            prefixes.push(prefix);
        }
    }
    prefixes
}

/// A route of the main table.
#[derive(Debug, PartialEq, Eq)]
struct HostRoute {
    interface: String,
    network: IpAddr,
    length: u8,
    /// Whether it leads to another host, which forwards.
    is_through_host: bool,
}

/// The routes through interfaces other than loopback, to networks that are not link-local.
fn routes() -> Vec<HostRoute> {
    let read = |file| fs::read_to_string(file).unwrap_or_default();
    let (v4, v6) = (read("/proc/net/route"), read("/proc/net/ipv6_route"));
    let routes = v4.lines().skip(1).filter_map(route_v4).chain(v6.lines().filter_map(route_v6));
    routes.filter(|route| route.interface != "lo" && !is_link_local(route.network) && !route.network.is_multicast()).collect()
}

/// A line of `/proc/net/route`: interface, network, next host, …, mask. Addresses are numbers in the
/// order of the processor's bytes.
fn route_v4(line: &str) -> Option<HostRoute> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let address = |at: usize| Some(Ipv4Addr::from(u32::from_str_radix(fields.get(at)?, 16).ok()?.to_ne_bytes()));
    let (network, next, mask) = (address(1)?, address(2)?, address(7)?);
    let length = prefix_length(IpAddr::V4(mask));
    Some(HostRoute { interface: (*fields.first()?).into(), network: network.into(), length, is_through_host: !next.is_unspecified() })
}

/// A line of `/proc/net/ipv6_route`: network, its length, source and its length, next host, …,
/// interface.
fn route_v6(line: &str) -> Option<HostRoute> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let address = |at: usize| Some(Ipv6Addr::from(u128::from_str_radix(fields.get(at)?, 16).ok()?));
    let (network, next) = (address(0)?, address(4)?);
    let length = u8::from_str_radix(fields.get(1)?, 16).ok()?;
    Some(HostRoute { interface: (*fields.get(9)?).into(), network: network.into(), length, is_through_host: !next.is_unspecified() })
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn prefix_length(mask: IpAddr) -> u8 {
    let ones = match mask {
        IpAddr::V4(mask) => mask.to_bits().count_ones(),
        IpAddr::V6(mask) => mask.to_bits().count_ones(),
    };
    ones as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_read_as_the_kernel_writes_them() {
        let route = |interface: &str, network: &str, length, is_through_host| {
            Some(HostRoute { interface: interface.into(), network: network.parse().unwrap(), length, is_through_host })
        };
        // Little-endian, as most processors are.
        if cfg!(target_endian = "little") {
            let default = "sat0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0";
            assert_eq!(route_v4(default), route("sat0", "0.0.0.0", 0, true));
            assert_eq!(route_v4("lan0\t0007A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0"), route("lan0", "192.168.7.0", 24, false));
        }
        assert_eq!(route_v4("Iface\tDestination"), None);
        let zeros = "0".repeat(32);
        let line = format!("fd770000000000000000000000000000 40 {zeros} 00 {zeros} 00000100 00000001 00000000 00000001 sat0");
        assert_eq!(route_v6(&line), route("sat0", "fd77::", 64, false));
    }
}
