//! UDP cross traffic over one link, as in the lab: packets of 1500 bytes at the times that the
//! scenario draws.

use crate::{
    event_queue::{EventKey, ScheduledEventKind},
    network::{SimNetwork, forward},
    packet::{PacketKind, SimPacket},
};
use scenario::{Cross, Times};
use units::PKT;

/// A source of cross traffic.
#[derive(Debug)]
pub(crate) struct CrossTrafficSource {
    channel: usize,
    times: Times,
}

impl CrossTrafficSource {
    /// Source `index` of the scenario, before its start.
    pub(crate) fn new(cross: &Cross, seed: u64, index: u64) -> Self {
        CrossTrafficSource { channel: forward(cross.link - 1), times: cross.times(seed, index) }
    }

    /// Schedules its next packet, if there is one. `number` is the index of this source.
    pub(crate) fn schedule_next(&mut self, number: u32, net: &mut SimNetwork) {
        if let Some(at) = self.times.next() {
            net.events.schedule(EventKey { target: number, kind: ScheduledEventKind::CrossTraffic }, at.0);
        }
    }

    /// Sends a packet and schedules the next one.
    pub(crate) fn send(&mut self, number: u32, net: &mut SimNetwork) {
        net.send(self.channel, SimPacket::without_payload(u32::MAX, PacketKind::Udp, PKT.0 as u32));
        self.schedule_next(number, net);
    }
}
