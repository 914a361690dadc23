//! Links whose rate, delay or losses change: at given times, or with demand.

use super::{simulation::SeriesSimulation, varying_link::VaryingLink};
use crate::{
    event_queue::EventKey,
    network::{backward, forward},
};
use units::Rate;

impl SeriesSimulation<'_> {
    /// Assigns the rate of a link that follows demand, and schedules the next look at its queues. A
    /// proxy is not told of the rate.
    pub(super) fn follow_demand(&mut self, number: usize, key: EventKey) {
        let link = self.demand_links[number];
        let spec = &self.scenario.links[link];
        let Some(demand) = spec.demand else { return };
        let waiting = self.net.queued(forward(link)).max(self.net.queued(backward(link)));
        let assigned = match waiting {
            _ if self.net.now == 0 => Some(demand.least),
            0 => Some(demand.least),
            waiting if waiting >= demand.above.0 => Some(spec.rate),
            // What was assigned stays.
            _ => None,
        };
        if let Some(rate) = assigned {
            self.net.set_rate(forward(link), rate);
            self.net.set_rate(backward(link), rate);
        }
        self.net.events.schedule(key, self.net.now + demand.every.0);
    }

    /// Changes a link, and schedules its next change.
    pub(super) fn change_link(&mut self, number: usize, key: EventKey) {
        let VaryingLink { link, changes } = &mut self.varying_links[number];
        let link = *link;
        let Some(change) = changes.next() else { return };
        if let Some(next) = changes.peek() {
            self.net.events.schedule(key, next.at.0);
        }
        self.net.change_link(link, &change);
        if let Some(rate) = change.rate {
            self.change_rate(link, rate);
        }
    }

    /// Changes the rate of a link. The proxy before it learns of that unless its capacity is
    /// configured.
    fn change_rate(&mut self, link: usize, rate: Rate) {
        self.net.set_rate(forward(link), rate);
        self.net.set_rate(backward(link), rate);
        for (index, split) in self.scenario.splits.iter().enumerate() {
            if split.after == link && split.capacity.is_none() {
                if let Some(monitor) = self.monitors[index] {
                    self.net.monitors[monitor].set_capacity(rate);
                }
                if let Some(shaper) = self.shapers[index] {
                    self.net.set_rate(shaper, rate);
                }
            }
        }
    }
}
