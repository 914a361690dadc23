//! Queries routes and interfaces of the kernel, and installs the routing rules that deliver marked
//! packets to this host (rtnetlink).

use netlink_packet_core::{
    ErrorMessage, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
pub(crate) use netlink_packet_route::AddressFamily;
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkLayerType, LinkMessage},
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType},
    rule::{RuleAction, RuleAttribute, RuleMessage},
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::fd::AsFd;
use std::{io, net::IpAddr};

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Its MTU, bytes.
    pub mtu: u32,
    /// Link-layer bytes that the kernel counts for each packet besides IP: 14 for an Ethernet
    /// header, or 0.
    pub overhead: u32,
}

/// A routing rule (`ip rule`) for packets with a firewall mark. It selects a routing table of its
/// own with a single route of type `local`, so that these packets are delivered to this host
/// instead of being forwarded. A rule before it exempts lookups that are not for a received packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    pub mark: u32,
    pub table: u32,
    /// The rule's preference. The exemption has the preference before it.
    pub preference: u32,
}

/// The loopback interface, in every network namespace.
const LOOPBACK: u32 = 1;
/// The main routing table.
const MAIN: u32 = 254;

/// An rtnetlink socket of one network namespace.
#[derive(Debug)]
pub struct Routes {
    socket: Socket,
}

impl Routes {
    /// Opens a netlink socket in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The kernel refuses the socket.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Routes { socket })
    }

    /// The name of the interface through which `address` is reached. `None` if there is no route.
    pub fn interface_to(&self, address: IpAddr) -> Option<String> {
        self.try_interface_to(address).ok().flatten()
    }

    /// Like [`interface_to`](Self::interface_to). `None` if the route has no interface.
    ///
    /// # Errors
    /// There is no route to the address, with the kernel's reason.
    pub fn try_interface_to(&self, address: IpAddr) -> io::Result<Option<String>> {
        Ok(self.query(address, Vec::new())?.and_then(|route| self.interface_of(&route)))
    }

    /// The name of the interface through which a packet of another host leaves, which comes in
    /// through the interface `inward`. `None` if it does not leave: it is for this host, or there
    /// is no such interface.
    ///
    /// # Errors
    /// The packet would not be forwarded, with the kernel's reason.
    pub fn forwarded_through(&self, from: IpAddr, inward: &str, to: IpAddr) -> io::Result<Option<String>> {
        let Ok(index) = rustix::net::netdevice::name_to_index(self.socket.as_fd(), inward) else { return Ok(None) };
        let route = self.query(to, vec![RouteAttribute::Source(route_address(from)), RouteAttribute::Iif(index)])?;
        Ok(route.filter(|route| route.header.kind == RouteType::Unicast).and_then(|route| self.interface_of(&route)))
    }

    fn interface_of(&self, route: &RouteMessage) -> Option<String> {
        let index = route.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => Some(*index),
            _ => None,
        })?;
        rustix::net::netdevice::index_to_name(self.socket.as_fd(), index).ok()
    }

    /// Whether packets to `address` are delivered to this host: it is an address of this host, or a
    /// broadcast, multicast or anycast address. False if there is no route. `scope` is the
    /// interface index of a link-local address, or 0.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn is_local(&self, address: IpAddr, scope: u32) -> io::Result<bool> {
        use io::ErrorKind::{HostUnreachable, NetworkUnreachable};
        let scope = (scope > 0).then_some(RouteAttribute::Oif(scope));
        match self.query(address, scope.into_iter().collect()) {
            Ok(route) => Ok(route.is_some_and(|route| {
                matches!(route.header.kind, RouteType::Local | RouteType::Broadcast | RouteType::Multicast | RouteType::Anycast)
            })),
            Err(why) if matches!(why.kind(), HostUnreachable | NetworkUnreachable) => Ok(false),
            Err(why) => Err(why),
        }
    }

    /// The interfaces of this network namespace. (/sys/class/net shows those of the network
    /// namespace in which it was mounted.)
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn devices(&self) -> io::Result<Vec<Device>> {
        self.send(RouteNetlinkMessage::GetLink(LinkMessage::default()), NLM_F_REQUEST | NLM_F_DUMP)?;
        let mut devices = Vec::new();
        loop {
            let (answers, _) = self.socket.recv_from_full()?;
            if read_devices(&answers, &mut devices)? {
                return Ok(devices);
            }
        }
    }

    /// Installs `delivery` for packets of a family, replacing an existing one.
    ///
    /// # Errors
    /// The kernel refuses a rule or the route.
    pub fn install(&self, delivery: Delivery, family: AddressFamily) -> io::Result<()> {
        for rule in rules(delivery, family) {
            let done = self.change(RouteNetlinkMessage::NewRule(rule), NLM_F_CREATE | NLM_F_EXCL);
            // Another process may have added the same rule.
            if let Err(why) = done
                && why.kind() != io::ErrorKind::AlreadyExists
            {
                return Err(why);
            }
        }
        self.change(RouteNetlinkMessage::NewRoute(route(delivery, family)), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Removes all copies of the rules and the route. It is not an error if there are none.
    pub fn remove(&self, delivery: Delivery, family: AddressFamily) {
        for rule in rules(delivery, family) {
            while self.change(RouteNetlinkMessage::DelRule(rule.clone()), 0).is_ok() {}
        }
        while self.change(RouteNetlinkMessage::DelRoute(route(delivery, family)), 0).is_ok() {}
    }

    /// Requests a change and waits for the kernel's acknowledgement.
    fn change(&self, wanted: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.send(wanted, NLM_F_REQUEST | NLM_F_ACK | flags)?;
        let (answer, _) = self.socket.recv_from_full()?;
        read_route(&answer).map(drop)
    }

    fn send(&self, request: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        let mut request = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(request));
        request.header.flags = flags;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        Ok(())
    }

    /// The route to an address, for packets with these `attributes`.
    fn query(&self, address: IpAddr, mut attributes: Vec<RouteAttribute>) -> io::Result<Option<RouteMessage>> {
        let mut route = RouteMessage::default();
        let (family, length) = match address {
            IpAddr::V4(_) => (AddressFamily::Inet, 32),
            IpAddr::V6(_) => (AddressFamily::Inet6, 128),
        };
        let has_source = attributes.iter().any(|attribute| matches!(attribute, RouteAttribute::Source(_)));
        (route.header.address_family, route.header.destination_prefix_length) = (family, length);
        route.header.source_prefix_length = if has_source { length } else { 0 };
        attributes.push(RouteAttribute::Destination(route_address(address)));
        route.attributes = attributes;
        self.send(RouteNetlinkMessage::GetRoute(route), NLM_F_REQUEST)?;
        let (answer, _) = self.socket.recv_from_full()?;
        read_route(&answer)
    }
}

fn route_address(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(address) => RouteAddress::Inet(address),
        IpAddr::V6(address) => RouteAddress::Inet6(address),
    }
}

/// Parses the answer to a request: its route, if it contains one, or the kernel's error.
pub(crate) fn read_route(answer: &[u8]) -> io::Result<Option<RouteMessage>> {
    match NetlinkMessage::<RouteNetlinkMessage>::deserialize(answer).map_err(io::Error::other)?.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => Ok(Some(route)),
        NetlinkPayload::Error(ErrorMessage { code: Some(code), .. }) => Err(io::Error::from_raw_os_error(code.get().saturating_neg())),
        _ => Ok(None),
    }
}

/// Appends the interfaces in one part of a dump to `devices`. Returns true for the last part.
pub(crate) fn read_devices(mut answer: &[u8], devices: &mut Vec<Device>) -> io::Result<bool> {
    while !answer.is_empty() {
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(answer).map_err(io::Error::other)?;
        // Messages are aligned to four bytes.
        let length = (message.header.length as usize).next_multiple_of(4).min(answer.len());
        match message.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => devices.extend(device(&link)),
            NetlinkPayload::Error(ErrorMessage { code: Some(code), .. }) => {
                return Err(io::Error::from_raw_os_error(code.get().saturating_neg()));
            }
            _ => return Ok(true),
        }
        answer = &answer[length..];
    }
    Ok(false)
}

/// The exemption and the rule. Reverse-path filters that use marks (`src_valid_mark`, firewalld's
/// `IPv6_rpfilter`) look up the route back to a marked packet's source. These lookups have the
/// loopback interface as their input, and would find this host without the exemption.
fn rules(delivery: Delivery, family: AddressFamily) -> [RuleMessage; 2] {
    let rule = |preference, table, more: Option<RuleAttribute>| {
        let mut rule = RuleMessage::default();
        rule.header.family = family;
        rule.header.action = RuleAction::ToTable;
        rule.attributes = vec![
            RuleAttribute::Priority(preference),
            RuleAttribute::FwMark(delivery.mark),
            RuleAttribute::Table(table),
            RuleAttribute::Protocol(RouteProtocol::Boot),
        ];
        rule.attributes.extend(more);
        rule
    };
    [rule(delivery.preference - 1, MAIN, Some(RuleAttribute::Iifname("lo".into()))), rule(delivery.preference, delivery.table, None)]
}

fn route(delivery: Delivery, family: AddressFamily) -> RouteMessage {
    let mut route = RouteMessage::default();
    route.header.address_family = family;
    route.header.protocol = RouteProtocol::Boot;
    route.header.scope = RouteScope::Host;
    route.header.kind = RouteType::Local;
    route.attributes = vec![RouteAttribute::Table(delivery.table), RouteAttribute::Oif(LOOPBACK)];
    route
}

fn device(link: &LinkMessage) -> Option<Device> {
    let name = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    })?;
    let mtu = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Mtu(mtu) => Some(*mtu),
        _ => None,
    })?;
    let ethernet = matches!(link.header.link_layer_type, LinkLayerType::Ether | LinkLayerType::Loopback);
    Some(Device { name, index: link.header.index, mtu, overhead: if ethernet { 14 } else { 0 } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_reached_through_the_loopback() {
        let routes = Routes::open().unwrap();
        assert_eq!(routes.interface_to("127.0.0.1".parse().unwrap()).as_deref(), Some("lo"));
        assert_eq!(routes.interface_to("::1".parse().unwrap()).as_deref(), Some("lo"));
    }

    #[test]
    fn the_loopback_is_the_first_device() {
        let devices = Routes::open().unwrap().devices().unwrap();
        let lo = devices.iter().find(|device| device.name == "lo").unwrap();
        assert_eq!((lo.index, lo.overhead), (1, 14), "{lo:?}");
        assert!(lo.mtu > 1500);
    }
}
