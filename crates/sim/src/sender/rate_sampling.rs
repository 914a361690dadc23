//! When a sender tells its rate sampler what happens.

use super::{segment::SentSegment, state::TcpSender};
use crate::network::SimNetwork;
use control::Event;

impl TcpSender {
    /// Segment `index` of the scoreboard is sent.
    #[inline]
    pub(super) fn sample_sent(&mut self, index: usize, now: u64) {
        if let Some(sampler) = &mut self.rate {
            sampler.on_sent(index, now, self.delivered);
        }
    }

    /// The first segment of the scoreboard has been acknowledged and removed.
    #[inline]
    pub(super) fn sample_acked(&mut self, segment: &SentSegment) {
        if let Some(sampler) = &mut self.rate {
            sampler.on_acked(segment);
        }
    }

    /// An acknowledgement has arrived.
    pub(super) fn sample_begins(&mut self) {
        self.check_app_limited();
        let in_flight = self.in_flight();
        if let Some(sampler) = &mut self.rate {
            sampler.prior_in_flight = in_flight;
        }
    }

    /// Notes whether the application limits what is sent: there is no data to send, though the
    /// window permits some (tcp_rate_check_app_limited). To be called when data is written, an
    /// acknowledgement arrives or a timer expires.
    pub(super) fn check_app_limited(&mut self) {
        if self.rate.is_none() {
            return;
        }
        let in_flight = self.in_flight();
        let has_data = self.unsent() >= self.settings.mss.into() || self.in_shaper > 0;
        if !has_data && in_flight < self.flow.cwnd && self.lost_out <= self.retrans_out {
            let until = (self.delivered + u64::from(in_flight)).max(1);
            if let Some(sampler) = &mut self.rate {
                sampler.app_limited = until;
            }
        }
    }

    /// Adds the rate sample and a random number to the event of an acknowledgement.
    pub(super) fn complete_sample(&mut self, event: &mut Event, net: &SimNetwork) {
        if let Some(sampler) = &mut self.rate {
            sampler.complete(event, self.delivered, self.rtt.min_us(), self.settings.mss, net.now);
        }
    }
}
