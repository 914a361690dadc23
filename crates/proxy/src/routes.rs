//! Asks the kernel through which interface an address is reached.

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{RouteAddress, RouteAttribute, RouteMessage},
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::fd::AsFd;
use std::{io, net::IpAddr};

/// A line to the kernel's routing.
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
        let mut question = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(RouteNetlinkMessage::GetRoute(route)));
        question.header.flags = NLM_F_REQUEST;
        question.finalize();
        let mut bytes = vec![0; question.buffer_len()];
        question.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let (answer, _) = self.socket.recv_from_full()?;
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer).map_err(io::Error::other)?;
        let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) = answer.payload else { return Ok(None) };
        Ok(route.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => Some(*index),
            _ => None,
        }))
    }
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
}
