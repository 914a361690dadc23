//! UDP across one link, as the lab's: packets of 1500 bytes at their times, in spells if the scenario says so.

use crate::{
    net::{Net, forward},
    packet::{Kind, Packet},
    timers::{Key, What},
};
use scenario::{Cross, PKT};

/// A source at work.
#[derive(Debug)]
pub(crate) struct Source {
    cross: Cross,
    /// How long it has been sending, pauses not counted, ns.
    active: u64,
}

impl Source {
    /// One that has not begun.
    pub(crate) fn new(cross: &Cross) -> Self {
        Source { cross: cross.clone(), active: 0 }
    }

    /// Waits for its next packet's time; not beyond its end.
    pub(crate) fn wait(&self, number: u32, net: &mut Net) {
        let at = self.cross.start.0
            + match self.cross.on.zip(self.cross.off) {
                None => self.active,
                Some((on, off)) => self.active / on.0 * (on.0 + off.0) + self.active % on.0,
            };
        if self.cross.stop.is_none_or(|stop| at < stop.0) {
            net.timers.once(Key { who: number, what: What::Cross }, at);
        }
    }

    /// Sends a packet.
    pub(crate) fn send(&mut self, number: u32, net: &mut Net) {
        net.send(forward(self.cross.link - 1), Packet::bare(u32::MAX, Kind::Udp, PKT.0 as u32));
        self.active += self.cross.rate.time_for(PKT).0.max(1);
        self.wait(number, net);
    }
}
