//! Asks the kernel through which interface an address is reached, and what interfaces there are.

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    link::{LinkAttribute, LinkLayerType, LinkMessage},
    route::{RouteAddress, RouteAttribute, RouteMessage},
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::fd::AsFd;
use std::{io, net::IpAddr};

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) index: u32,
    pub(crate) mtu: u32,
    /// Bytes of a packet beside IP's, as the kernel counts them: an Ethernet header, or nothing.
    pub(crate) overhead: u32,
}

/// A line to the kernel's routing.
#[derive(Debug)]
pub(crate) struct Routes {
    socket: Socket,
}

impl Routes {
    pub(crate) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Routes { socket })
    }

    /// The name of the interface that leads to `address`; none where nothing does.
    pub(crate) fn interface_to(&self, address: IpAddr) -> Option<String> {
        let index = self.ask(address).ok().flatten()?;
        rustix::net::netdevice::index_to_name(self.socket.as_fd(), index).ok()
    }

    /// The interfaces of this network namespace. (/sys/class/net would tell those of whoever mounted it.)
    pub(crate) fn devices(&self) -> io::Result<Vec<Device>> {
        self.send(RouteNetlinkMessage::GetLink(LinkMessage::default()), NLM_F_REQUEST | NLM_F_DUMP)?;
        let mut devices = Vec::new();
        loop {
            let (answers, _) = self.socket.recv_from_full()?;
            let mut rest = &answers[..];
            while !rest.is_empty() {
                let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(io::Error::other)?;
                let length = (answer.header.length as usize).next_multiple_of(4).min(rest.len());
                match answer.payload {
                    NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => devices.extend(device(&link)),
                    NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                    _ => return Ok(devices),
                }
                rest = &rest[length..];
            }
        }
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

    fn ask(&self, address: IpAddr) -> io::Result<Option<u32>> {
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
        self.send(RouteNetlinkMessage::GetRoute(route), NLM_F_REQUEST)?;
        let (answer, _) = self.socket.recv_from_full()?;
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer).map_err(io::Error::other)?;
        let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) = answer.payload else { return Ok(None) };
        Ok(route.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => Some(*index),
            _ => None,
        }))
    }
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
