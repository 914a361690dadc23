//! One direction of a link: queue and rate, then loss, then delay.

use crate::{Delay, Limit, Losses, Packet, Shaper, Stage, Time};
use rand_pcg::Pcg64;
use scenario::{Bytes, Loss, Rate, Span};

/// One direction of a link. A lost packet has used its time on the line.
#[derive(Debug)]
pub struct Way<P> {
    shaper: Shaper<P>,
    losses: Losses,
    delay: Delay<P>,
    counts: Counts,
}

/// What a direction of a link has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that came.
    pub arrived: u64,
    /// Packets that the queue had no room for.
    pub queue_drops: u64,
    /// Packets that left the line.
    pub left: u64,
    /// Their IP bytes.
    pub left_bytes: Bytes,
    /// Packets that were lost after it.
    pub losses: u64,
    /// Packets that came out at the other end.
    pub delivered: u64,
    /// The largest the queue has been.
    pub most_queued: Bytes,
}

impl<P: Packet> Way<P> {
    /// An empty link.
    pub fn new(rate: Rate, limit: Limit, delay: Span, loss: Option<Loss>, rng: Pcg64) -> Self {
        Way { shaper: Shaper::new(rate, limit), losses: Losses::new(loss, rng), delay: Delay::new(delay), counts: Counts::default() }
    }

    /// What it has done until now.
    pub fn counts(&self) -> Counts {
        let (left, left_bytes) = self.shaper.left();
        Counts { left, left_bytes, most_queued: self.shaper.most_queued(), ..self.counts }
    }

    /// Bytes in its queue at `now`.
    pub fn queued(&mut self, now: Time) -> Bytes {
        self.shaper.queued(now)
    }

    /// Lets packets that have left the line by `now` go on their way.
    fn advance(&mut self, now: Time) {
        while let Some((left, packet)) = self.shaper.ready(now) {
            if self.losses.drops(left) {
                self.counts.losses += 1;
            } else {
                // A delay refuses nothing.
                let _ = self.delay.enqueue(left, packet);
            }
        }
    }
}

impl<P: Packet> Stage<P> for Way<P> {
    fn enqueue(&mut self, now: Time, packet: P) -> Result<(), P> {
        self.counts.arrived += 1;
        self.advance(now);
        self.shaper.enqueue(now, packet).inspect_err(|_| self.counts.queue_drops += 1)
    }

    fn ready(&mut self, now: Time) -> Option<(Time, P)> {
        self.advance(now);
        let out = self.delay.ready(now);
        self.counts.delivered += u64::from(out.is_some());
        out
    }

    fn next_wakeup(&self) -> Option<Time> {
        self.shaper.next_wakeup().into_iter().chain(self.delay.next_wakeup()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use scenario::{Purpose, stream};

    #[derive(Debug)]
    struct Numbered(usize);
    impl Packet for Numbered {
        fn wire_bytes(&self) -> u32 {
            1000
        }
    }

    #[test]
    fn a_packet_takes_transmission_then_delay() {
        let mut way = Way::new(Rate(8_000_000), Limit::Packets(5), Span(400_000_000), None, stream(1, Purpose::Losses, 0));
        way.enqueue(Time(7), Numbered(0)).unwrap();
        way.enqueue(Time(7), Numbered(1)).unwrap();
        let mut out = Vec::new();
        while let Some(wakeup) = way.next_wakeup() {
            out.extend(way.ready(wakeup).map(|(at, packet)| (at.0, packet.0)));
        }
        assert_eq!(out, [(401_000_007, 0), (402_000_007, 1)]);
    }

    proptest! {
        /// No packet is made or unmade, and polling more or less often changes neither which come out nor when.
        #[test]
        fn every_packet_is_accounted_for(gaps in prop::collection::vec(0u64..2_000_000, 1..200), p in 0.0..0.5f64, seed: u64) {
            let run = |poll_always: bool| -> Result<Vec<(Time, usize)>, TestCaseError> {
                let mut way: Way<Numbered> = Way::new(Rate(8_000_000), Limit::Packets(3), Span(5_000_000), Some(Loss::PerPacket(p)), stream(seed, Purpose::Losses, 0));
                let (mut now, mut out) = (0, Vec::new());
                for (number, gap) in gaps.iter().enumerate() {
                    now += gap;
                    if poll_always {
                        while let Some((at, packet)) = way.ready(Time(now)) { out.push((at, packet.0)); }
                    }
                    let _ = way.enqueue(Time(now), Numbered(number));
                }
                while let Some(wakeup) = way.next_wakeup() {
                    while let Some((at, packet)) = way.ready(wakeup) { out.push((at, packet.0)); }
                }
                let counts = way.counts();
                prop_assert_eq!(counts.arrived, gaps.len() as u64);
                prop_assert_eq!(counts.arrived, counts.queue_drops + counts.left);
                prop_assert_eq!(counts.left, counts.losses + counts.delivered);
                prop_assert_eq!(counts.delivered, out.len() as u64);
                prop_assert_eq!(counts.left_bytes.0, counts.left * 1000);
                Ok(out)
            };
            prop_assert_eq!(run(true)?, run(false)?);
        }
    }
}
