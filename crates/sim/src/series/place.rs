//! The places of connections, and the way of packets where it depends on the connection: with data
//! against the links, or connections over some of them.

use super::simulation::SeriesSimulation;
use crate::{
    network::{backward, forward},
    packet::SimPacket,
};

/// The place of a connection in its flow, and of its ends in the network.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectionPlace {
    /// The number of its flow.
    pub(super) flow: u32,
    /// The index of the split whose proxy sends on it; [`NO_SPLIT`]: the flow's sender does.
    pub(super) split_before: u32,
    /// The index of the split whose proxy receives on it; [`NO_SPLIT`]: the flow's receiver does.
    pub(super) split_behind: u32,
    /// Its first link, and one past its last link, whichever way its data goes.
    pub(super) links: [u16; 2],
    /// Its data goes against the links.
    pub(super) is_reverse: bool,
}

/// The end of a leg without a split.
pub(super) const NO_SPLIT: u32 = u32::MAX;

impl ConnectionPlace {
    /// Whether it is the connection of the flow's sender.
    pub(super) fn is_first(self) -> bool {
        self.split_before == NO_SPLIT
    }

    /// Whether it is the connection of the flow's receiver.
    pub(super) fn is_last(self) -> bool {
        self.split_behind == NO_SPLIT
    }
}

impl SeriesSimulation<'_> {
    /// Sends a packet that a channel has delivered into the next channel of its connection, or to the
    /// end of the connection that is there.
    pub(super) fn forward_by_connection(&mut self, channel: usize, packet: &SimPacket) {
        let ConnectionPlace { links: [first, end], is_reverse, .. } = self.places[packet.connection as usize];
        let (link, goes_forward) = (channel / 2, channel == forward(channel / 2));
        let is_at_end = if goes_forward { link + 1 == usize::from(end) } else { link == usize::from(first) };
        match (is_at_end, goes_forward == is_reverse) {
            (false, _) if goes_forward => _ = self.net.send(forward(link + 1), *packet),
            (false, _) => _ = self.net.send(backward(link - 1), *packet),
            (true, false) => {
                self.on_packet_at_receiver(packet);
                if self.web.is_some() {
                    self.on_web_data(packet.connection as usize);
                }
            }
            (true, true) => self.on_packet_at_sender(packet),
        }
    }
}
