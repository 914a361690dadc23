//! What a proxy's controllers are told of the link that they send into: the record that the kernel's monitor fills
//! (crates/kernel/bpf/monitor.bpf.c), at the same moments and with the same figures.

use control::LinkRecord as Link;
use units::Rate;

/// A link's record, and what the monitor keeps for itself.
#[derive(Debug)]
pub(crate) struct Record {
    /// What controllers see and share.
    pub(crate) link: Link,
    /// The running minimum of the backlog, since when, and the one before it.
    since_us: u64,
    least: u64,
    before: u64,
    /// The queue in mind of a link without a shaper: when it was last drained, what stands in it, what was ever put in.
    virtual_us: u64,
    virtual_bytes: u64,
    offered: u64,
}

impl Record {
    /// Of a link that is said to carry `capacity`; `local` where a shaper holds to it.
    pub(crate) fn new(capacity: Rate, local: bool) -> Self {
        let link = Link { capacity: bytes_per_s(capacity), local: local.into(), ..Link::default() };
        Record { link, since_us: 0, least: 0, before: 0, virtual_us: 0, virtual_bytes: 0, offered: 0 }
    }

    /// It carries something else from now on.
    pub(crate) fn set_capacity(&mut self, capacity: Rate) {
        self.link.capacity = bytes_per_s(capacity);
    }

    /// A packet is given to a link without a shaper: the queue in mind drains at the capacity (td_egress).
    pub(crate) fn offer(&mut self, now_us: u64, bytes: u64, foreign: bool) {
        let span = (now_us - self.virtual_us).min(10_000_000);
        let drained = self.link.capacity * span / 1_000_000;
        self.virtual_bytes = self.virtual_bytes.saturating_sub(drained);
        // A remainder of the division is time that is not lost.
        if drained > 0 || self.virtual_bytes == 0 {
            self.virtual_us = now_us;
        }
        self.virtual_bytes += bytes;
        self.offered += bytes;
        self.link.egress = self.link.egress.max(self.offered - self.virtual_bytes.min(self.offered));
        self.link.foreign += if foreign { bytes } else { 0 };
        self.persist(now_us, self.virtual_bytes);
    }

    /// A shaper has let a packet go, and so much waits behind it (td_dequeue).
    pub(crate) fn let_go(&mut self, now_us: u64, bytes: u64, foreign: bool, backlog: u64, drops: u64) {
        self.link.egress += bytes;
        self.link.foreign += if foreign { bytes } else { 0 };
        self.link.drops = drops;
        self.persist(now_us, backlog);
    }

    /// The least backlog of the last half to whole interval: what persists (td_persist).
    fn persist(&mut self, now_us: u64, backlog: u64) {
        let interval = match self.link.xcp.interval_us {
            0 => 50_000,
            interval => u64::from(interval / 2).max(2000),
        };
        if now_us - self.since_us >= interval {
            self.before = self.least;
            self.least = backlog;
            self.since_us = now_us;
        }
        self.least = self.least.min(backlog);
        self.link.queue = self.least.min(self.before);
        self.link.backlog = backlog;
        self.link.measured_us = now_us;
    }
}

/// Wire bytes a second; links here have no headers beside IP's.
fn bytes_per_s(rate: Rate) -> u64 {
    rate.bits_per_s() / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_in_mind_drains_at_the_capacity() {
        let mut record = Record::new(Rate(8_000_000), false);
        for packet in 0..10 {
            record.offer(1000 + packet, 1500, packet % 2 == 0);
        }
        assert_eq!((record.link.backlog, record.link.foreign), (15_000 - 9, 7500));
        // 15 ms later all of it has left.
        record.offer(16_000, 1500, false);
        assert_eq!((record.link.backlog, record.link.egress), (1500, 15_000));
    }

    #[test]
    fn what_persists_is_the_least_of_two_half_intervals() {
        let mut record = Record::new(Rate(8_000_000), true);
        for step in 0..200u64 {
            // Every 20 ms it falls to 100 bytes.
            record.let_go(1_000_000 + step * 1000, 1500, false, if step % 20 == 0 { 100 } else { 9000 }, 0);
        }
        assert_eq!((record.link.queue, record.link.backlog, record.link.egress), (100, 9000, 300_000));
    }
}
