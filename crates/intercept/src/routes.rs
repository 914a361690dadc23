//! Asks the kernel through which interface an address is reached, and what interfaces there are;
//! has it deliver marked packets here.

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
    /// Bytes of a packet beside IP's, as the kernel counts them: an Ethernet header, or nothing.
    pub overhead: u32,
}

/// A routing rule (`ip rule`) that looks packets with a firewall mark up in a table of their own,
/// which has one route of type `local`: such packets are delivered to this host instead of being
/// forwarded. A rule before it exempts look-ups that are not for a packet that has come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    pub mark: u32,
    pub table: u32,
    /// Where the rule stands among the others; the exemption has the number before it.
    pub preference: u32,
}

/// The loopback interface, in every network namespace.
const LOOPBACK: u32 = 1;
/// The main routing table.
const MAIN: u32 = 254;

/// A line to the kernel's routing.
#[derive(Debug)]
pub struct Routes {
    socket: Socket,
}

impl Routes {
    /// Opens a netlink socket in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Routes { socket })
    }

    /// The name of the interface that leads to `address`; none where nothing does.
    pub fn interface_to(&self, address: IpAddr) -> Option<String> {
        self.try_interface_to(address).ok().flatten()
    }

    /// The same, with the reason where no route leads there.
    pub fn try_interface_to(&self, address: IpAddr) -> io::Result<Option<String>> {
        let Some(route) = self.ask(address, 0)? else { return Ok(None) };
        let index = route.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => Some(*index),
            _ => None,
        });
        Ok(index.and_then(|index| rustix::net::netdevice::index_to_name(self.socket.as_fd(), index).ok()))
    }

    /// Whether packets to `address` come to this host, alone or with others: it is an address of
    /// this host, or a broadcast, multicast or anycast one. `scope` is the interface of a
    /// link-local address, or 0. Where there is no route the answer is no.
    pub fn is_local(&self, address: IpAddr, scope: u32) -> io::Result<bool> {
        use io::ErrorKind::{HostUnreachable, NetworkUnreachable};
        match self.ask(address, scope) {
            Ok(route) => Ok(route.is_some_and(|route| {
                matches!(route.header.kind, RouteType::Local | RouteType::Broadcast | RouteType::Multicast | RouteType::Anycast)
            })),
            Err(why) if matches!(why.kind(), HostUnreachable | NetworkUnreachable) => Ok(false),
            Err(why) => Err(why),
        }
    }

    /// The interfaces of this network namespace. (/sys/class/net would tell those of whoever
    /// mounted it.)
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

    /// Installs `delivery` for packets of a family, in the place of one that is there.
    pub fn install(&self, delivery: Delivery, family: AddressFamily) -> io::Result<()> {
        for rule in rules(delivery, family) {
            let done = self.change(RouteNetlinkMessage::NewRule(rule), NLM_F_CREATE | NLM_F_EXCL);
            // Another process may have added the very same.
            if let Err(why) = done
                && why.kind() != io::ErrorKind::AlreadyExists
            {
                return Err(why);
            }
        }
        self.change(RouteNetlinkMessage::NewRoute(route(delivery, family)), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Removes it as often as it is there; that it is not is no error.
    pub fn remove(&self, delivery: Delivery, family: AddressFamily) {
        for rule in rules(delivery, family) {
            while self.change(RouteNetlinkMessage::DelRule(rule.clone()), 0).is_ok() {}
        }
        while self.change(RouteNetlinkMessage::DelRoute(route(delivery, family)), 0).is_ok() {}
    }

    /// Asks for a change and waits until it is made.
    fn change(&self, wanted: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.send(wanted, NLM_F_REQUEST | NLM_F_ACK | flags)?;
        let (answer, _) = self.socket.recv_from_full()?;
        read_route(&answer).map(drop)
    }

    fn send(&self, question: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        let mut question = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(question));
        question.header.flags = flags;
        question.finalize();
        let mut bytes = vec![0; question.buffer_len()];
        question.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        Ok(())
    }

    fn ask(&self, address: IpAddr, scope: u32) -> io::Result<Option<RouteMessage>> {
        let mut route = RouteMessage::default();
        (route.header.address_family, route.header.destination_prefix_length) = match address {
            IpAddr::V4(_) => (AddressFamily::Inet, 32),
            IpAddr::V6(_) => (AddressFamily::Inet6, 128),
        };
        let wanted = match address {
            IpAddr::V4(address) => RouteAddress::Inet(address),
            IpAddr::V6(address) => RouteAddress::Inet6(address),
        };
        route.attributes.push(RouteAttribute::Destination(wanted));
        if scope > 0 {
            route.attributes.push(RouteAttribute::Oif(scope));
        }
        self.send(RouteNetlinkMessage::GetRoute(route), NLM_F_REQUEST)?;
        let (answer, _) = self.socket.recv_from_full()?;
        read_route(&answer)
    }
}

/// The route that an answer tells, if it tells one; an error where the kernel tells one.
pub(crate) fn read_route(answer: &[u8]) -> io::Result<Option<RouteMessage>> {
    match NetlinkMessage::<RouteNetlinkMessage>::deserialize(answer).map_err(io::Error::other)?.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => Ok(Some(route)),
        NetlinkPayload::Error(ErrorMessage { code: Some(code), .. }) => Err(io::Error::from_raw_os_error(code.get().saturating_neg())),
        _ => Ok(None),
    }
}

/// Reads the interfaces that one of several answers tells; true when that was the last.
pub(crate) fn read_devices(mut answer: &[u8], devices: &mut Vec<Device>) -> io::Result<bool> {
    while !answer.is_empty() {
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(answer).map_err(io::Error::other)?;
        // Messages begin at multiples of four.
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

/// The exemption and the rule. Reverse-path filters that look at marks (`src_valid_mark`, firewalld's
/// `IPv6_rpfilter`) ask for the way back to a marked packet's source: those look-ups have the loopback
/// interface for their input, and would find this host.
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
    fn the_way_to_oneself_is_the_loopback() {
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
