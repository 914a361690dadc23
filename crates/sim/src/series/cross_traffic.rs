//! UDP across one link, as the lab's: packets of 1500 bytes at the times that the scenario has for them.

use crate::{
    event_queue::{Key, What},
    network::{Net, forward},
    packet::{Kind, Packet},
};
use scenario::{Cross, Times};
use units::PKT;

/// A source at work.
#[derive(Debug)]
pub(crate) struct Source {
    line: usize,
    times: Times,
}

impl Source {
    /// Number `index` of the scenario, which has not begun.
    pub(crate) fn new(cross: &Cross, seed: u64, index: u64) -> Self {
        Source { line: forward(cross.link - 1), times: cross.times(seed, index) }
    }

    /// Waits for its next packet's time; not beyond its end.
    pub(crate) fn wait(&mut self, number: u32, net: &mut Net) {
        if let Some(at) = self.times.next() {
            net.timers.once(Key { who: number, what: What::Cross }, at.0);
        }
    }

    /// Sends a packet.
    pub(crate) fn send(&mut self, number: u32, net: &mut Net) {
        net.send(self.line, Packet::bare(u32::MAX, Kind::Udp, PKT.0 as u32));
        self.wait(number, net);
    }
}
