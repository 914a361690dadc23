//! The shared record of a link, from which a proxy's controllers learn about the link that they
//! send into. It is updated at the same events and with the same values as by the kernel's egress
//! monitor (crates/kernel/bpf/monitor.bpf.c).

use control::{CapacityEstimate, LinkRecord};
use units::Rate;

/// The shared record of a link, and the private state of its monitor.
#[derive(Debug)]
pub(crate) struct MonitoredLink {
    /// What controllers read and share.
    pub(crate) link: LinkRecord,
    /// Minimum of the backlog in the current interval, and in the one before, bytes.
    min_backlog: u64,
    previous_min_backlog: u64,
    /// When the current interval began, µs.
    interval_start_us: u64,
    /// Virtual queue of a link without a shaper: its length, bytes, and when it was last drained,
    /// µs.
    virtual_queue: u64,
    drained_us: u64,
    /// Bytes that have entered the link.
    offered: u64,
}

impl MonitoredLink {
    /// The monitor of a link with a configured capacity. `has_shaper` tells that a shaper of the
    /// same host enforces the capacity.
    pub(crate) fn new(capacity: Rate, has_shaper: bool) -> Self {
        let link = LinkRecord { capacity: bytes_per_s(capacity), local: has_shaper.into(), ..LinkRecord::default() };
        MonitoredLink { link, min_backlog: 0, previous_min_backlog: 0, interval_start_us: 0, virtual_queue: 0, drained_us: 0, offered: 0 }
    }

    /// The monitor of a link without a configured capacity: the flows' controllers estimate it.
    pub(crate) fn estimating() -> Self {
        let mut monitor = MonitoredLink::new(Rate(0), false);
        monitor.link.estimate.enabled = CapacityEstimate::CONFIGURED;
        monitor
    }

    /// Changes the configured capacity (td_configure). An estimate in its place ends.
    pub(crate) fn set_capacity(&mut self, capacity: Rate) {
        self.link.capacity = bytes_per_s(capacity);
        self.link.estimate.enabled = CapacityEstimate::OFF;
    }

    /// A packet enters a link without a shaper: the virtual queue drains at the capacity
    /// (td_egress).
    pub(crate) fn on_enqueue(&mut self, now_us: u64, bytes: u64, foreign: bool) {
        let span_us = (now_us - self.drained_us).min(10_000_000);
        let drained = self.link.capacity * span_us / 1_000_000;
        self.virtual_queue = self.virtual_queue.saturating_sub(drained);
        // Keep the remainder of the division: the time counts again next time.
        if drained > 0 || self.virtual_queue == 0 {
            self.drained_us = now_us;
        }
        self.virtual_queue += bytes;
        self.offered += bytes;
        self.link.egress = self.link.egress.max(self.offered - self.virtual_queue.min(self.offered));
        self.link.foreign += if foreign { bytes } else { 0 };
        self.update_persistent_queue(now_us, self.virtual_queue);
    }

    /// A packet departs from the shaper, and `backlog` bytes remain (td_dequeue).
    pub(crate) fn on_shaper_departure(&mut self, now_us: u64, bytes: u64, foreign: bool, backlog: u64, drops: u64) {
        self.link.egress += bytes;
        self.link.foreign += if foreign { bytes } else { 0 };
        self.link.drops = drops;
        self.update_persistent_queue(now_us, backlog);
    }

    /// Updates the persistent queue: the minimum of the backlog over the last half to whole control
    /// interval (td_update_queue).
    fn update_persistent_queue(&mut self, now_us: u64, backlog: u64) {
        let interval_us = match self.link.xcp.interval_us {
            0 => 50_000,
            interval => u64::from(interval / 2).max(2000),
        };
        if now_us - self.interval_start_us >= interval_us {
            self.previous_min_backlog = self.min_backlog;
            self.min_backlog = backlog;
            self.interval_start_us = now_us;
        }
        self.min_backlog = self.min_backlog.min(backlog);
        self.link.queue = self.min_backlog.min(self.previous_min_backlog);
        self.link.backlog = backlog;
        self.link.measured_us = now_us;
    }
}

/// Wire bytes/s. Simulated links have no headers besides IP.
fn bytes_per_s(rate: Rate) -> u64 {
    rate.bits_per_s() / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_virtual_queue_drains_at_the_capacity() {
        let mut record = MonitoredLink::new(Rate(8_000_000), false);
        for packet in 0..10 {
            record.on_enqueue(1000 + packet, 1500, packet % 2 == 0);
        }
        assert_eq!((record.link.backlog, record.link.foreign), (15_000 - 9, 7500));
        // 15 ms later it has drained.
        record.on_enqueue(16_000, 1500, false);
        assert_eq!((record.link.backlog, record.link.egress), (1500, 15_000));
    }

    #[test]
    fn the_persistent_queue_is_the_minimum_of_two_half_intervals() {
        let mut record = MonitoredLink::new(Rate(8_000_000), true);
        for step in 0..200u64 {
            // Every 20 ms it falls to 100 bytes.
            record.on_shaper_departure(1_000_000 + step * 1000, 1500, false, if step % 20 == 0 { 100 } else { 9000 }, 0);
        }
        assert_eq!((record.link.queue, record.link.backlog, record.link.egress), (100, 9000, 300_000));
    }
}
