//! Changes of links, and what proxies learn of them.

use super::simulation::SeriesSimulation;
use crate::event_queue::EventKey;

impl SeriesSimulation<'_> {
    /// Changes a link. The proxy before it learns of its rate unless the proxy's capacity is
    /// configured.
    pub(super) fn change_link(&mut self, key: EventKey) {
        let Some((link, rate)) = self.varying_links.handle(key, &mut self.net) else { return };
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
