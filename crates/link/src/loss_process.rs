//! Random packet loss on a link. Each process is a function of its seed and of the packets it sees.

use crate::time::Time;
use rand::RngExt;
use rand_pcg::Pcg64;
use scenario::{Gilbert, Link, Loss};
use units::Span;

/// How long an event of the per-second process waits for a packet before it lapses. Without this
/// limit, the single packet that a sender retransmits after a timeout would meet an event from the
/// silence before it, and recovery could stall for ever. Events that are due together drop one
/// packet each.
const EVENT_LIFETIME: Span = Span(100_000_000);

/// A loss process: decides for each packet that crosses the link whether it is lost.
#[derive(Debug)]
pub struct LossProcess {
    model: LossModel,
    rng: Pcg64,
    lost: u64,
}

#[derive(Debug)]
enum LossModel {
    None,
    /// Rate dependent (RD): each packet is lost with this probability.
    PerPacket(f64),
    /// Rate independent (RI): Poisson events, each of which drops the next packet.
    PerSecond {
        /// Mean time between events, ns.
        mean_ns: f64,
        /// The oldest event that has not dropped a packet, or the next event; `None` before the
        /// first packet.
        next_event: Option<Time>,
    },
    Gilbert {
        gilbert: Gilbert,
        in_bad_state: bool,
    },
}

impl LossModel {
    fn new(loss: Option<Loss>) -> Self {
        match loss {
            None => LossModel::None,
            Some(Loss::PerPacket(p)) if p <= 0.0 => LossModel::None,
            Some(Loss::PerPacket(p)) => LossModel::PerPacket(p),
            Some(Loss::PerSecond(rate)) if rate <= 0.0 => LossModel::None,
            Some(Loss::PerSecond(rate)) => LossModel::PerSecond { mean_ns: 1e9 / rate, next_event: None },
            Some(Loss::Gilbert(gilbert)) => LossModel::Gilbert { gilbert, in_bad_state: false },
        }
    }
}

impl LossProcess {
    /// The process that a scenario asks for; `None` loses nothing.
    pub fn new(loss: Option<Loss>, rng: Pcg64) -> Self {
        LossProcess { model: LossModel::new(loss), rng, lost: 0 }
    }

    /// Changes the process, for packets that come from now on.
    pub fn set(&mut self, loss: Option<Loss>) {
        self.model = LossModel::new(loss);
    }

    /// Packets lost so far.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Whether the packet that crosses the link at `now` is lost. Call it once for each packet, in
    /// order: times never decrease.
    #[inline]
    pub fn drops(&mut self, now: Time) -> bool {
        !matches!(self.model, LossModel::None) && self.draw(now)
    }

    fn draw(&mut self, now: Time) -> bool {
        let rng = &mut self.rng;
        let is_lost = match &mut self.model {
            LossModel::None => false,
            LossModel::PerPacket(p) => rng.random::<f64>() < *p,
            LossModel::PerSecond { mean_ns, next_event } => {
                let oldest = Time(now.0.saturating_sub(EVENT_LIFETIME.0));
                // The Poisson process is memoryless: after a silence of any length, one new draw
                // from `oldest` on replaces the events that have lapsed.
                let event = match *next_event {
                    Some(event) if event >= oldest => event,
                    _ => oldest + exponential(rng, *mean_ns),
                };
                let is_hit = event <= now;
                *next_event = Some(if is_hit { event + exponential(rng, *mean_ns) } else { event });
                is_hit
            }
            LossModel::Gilbert { gilbert, in_bad_state } => {
                let transition = if *in_bad_state { gilbert.bad_to_good } else { gilbert.good_to_bad };
                if rng.random::<f64>() < transition {
                    *in_bad_state = !*in_bad_state;
                }
                rng.random::<f64>() < if *in_bad_state { gilbert.loss_bad } else { gilbert.loss_good }
            }
        };
        self.lost += u64::from(is_lost);
        is_lost
    }
}

/// An exponentially distributed span with this mean in ns. It is rounded to whole nanoseconds
/// because the last digit of a logarithm differs between machines.
fn exponential(rng: &mut Pcg64, mean_ns: f64) -> Span {
    Span((-mean_ns * (1.0 - rng.random::<f64>()).ln()).round() as u64)
}

/// The share of packets that a link loses by its scenario in the direction of the data; `None` if
/// that depends on their rate, their size or on time.
pub fn asked_loss(link: &Link) -> Option<f64> {
    let depends = link.changes.iter().any(|change| change.loss.is_some()) || link.bit_errors.is_some() || link.outages.is_some();
    match link.loss.forward {
        _ if depends => None,
        None => Some(0.0),
        Some(loss) => mean_loss(loss),
    }
}

/// The long-run share of packets that `loss` drops, 0 to 1; `None` for a rate-independent process,
/// whose share depends on the packet rate.
pub fn mean_loss(loss: Loss) -> Option<f64> {
    match loss {
        Loss::PerPacket(p) => Some(p),
        Loss::PerSecond(_) => None,
        Loss::Gilbert(Gilbert { good_to_bad, bad_to_good, loss_good, loss_bad }) => {
            let both = good_to_bad + bad_to_good;
            // If neither state is ever left, the process stays in the good one, where it starts.
            let bad_share = if both > 0.0 { good_to_bad / both } else { 0.0 };
            Some(bad_share * loss_bad + (1.0 - bad_share) * loss_good)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scenario::{Purpose, stream};
    use statrs::distribution::{ContinuousCDF, Exp, Normal};

    fn losses(loss: Loss, seed: u64) -> LossProcess {
        LossProcess::new(Some(loss), stream(seed, Purpose::Losses, 1))
    }

    /// The numbers of the lost packets among `count` packets that are `gap` nanoseconds apart.
    fn lost(losses: &mut LossProcess, count: u64, gap: u64) -> Vec<u64> {
        (0..count).filter(|index| losses.drops(Time(index * gap))).collect()
    }

    /// The Kolmogorov-Smirnov statistic of a sample against the exponential distribution with this
    /// mean, times √n.
    fn kolmogorov(mut sample: Vec<f64>, mean: f64) -> f64 {
        sample.sort_unstable_by(f64::total_cmp);
        let (n, law) = (sample.len() as f64, Exp::new(1.0 / mean).unwrap());
        let distance = |(index, x): (usize, &f64)| (law.cdf(*x) - index as f64 / n).abs().max((law.cdf(*x) - (index + 1) as f64 / n).abs());
        sample.iter().enumerate().map(distance).fold(0.0, f64::max) * n.sqrt()
    }

    fn gaps(times: &[u64]) -> Vec<f64> {
        times.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect()
    }

    /// The 99.9 % quantile of the Kolmogorov distribution.
    const KOLMOGOROV_999: f64 = 1.95;

    #[test]
    fn rate_dependent_loss_is_bernoulli() {
        for p in [0.001, 0.01, 0.2] {
            let count = 1_000_000;
            let times = lost(&mut losses(Loss::PerPacket(p), 1), count, 1000);
            let deviation = (times.len() as f64 - count as f64 * p) / (count as f64 * p * (1.0 - p)).sqrt();
            assert!(deviation.abs() < Normal::standard().inverse_cdf(0.9995), "{p}: {deviation} standard deviations");
        }
        let times = lost(&mut losses(Loss::PerPacket(0.001), 2), 3_000_000, 1);
        assert!(kolmogorov(gaps(&times), 1000.0) < KOLMOGOROV_999, "gaps are (nearly) exponential");
    }

    #[test]
    fn rate_independent_events_are_exponentially_spaced() {
        // 5 events/s and a packet every 0.1 ms: each event drops a packet immediately.
        let times = lost(&mut losses(Loss::PerSecond(5.0), 1), 20_000_000, 100_000);
        let seconds = 2000.0;
        assert!((times.len() as f64 - 5.0 * seconds).abs() < 3.3 * (5.0 * seconds).sqrt(), "{}", times.len());
        assert!(kolmogorov(gaps(&times), 2000.0) < KOLMOGOROV_999);
    }

    #[test]
    fn rate_independent_loss_does_not_depend_on_the_rate() {
        let of = |gap: u64| lost(&mut losses(Loss::PerSecond(2.0), 3), 1_000_000_000_000 / gap, gap).len() as f64;
        let (fast, slow) = (of(100_000), of(10_000_000));
        assert!((fast - slow).abs() < 4.0 * (2.0 * 2000.0_f64).sqrt(), "{fast} {slow}");
    }

    #[test]
    fn an_event_lapses_when_no_packet_comes() {
        // A packet each second meets only events of the 0.1 s before it: at 2 events/s that has a
        // probability of 1 − e^−0.2.
        let hits = lost(&mut losses(Loss::PerSecond(2.0), 1), 100_000, 1_000_000_000).len() as f64;
        let expected = 100_000.0 * (1.0 - (-0.2_f64).exp());
        assert!((hits - expected).abs() < 4.0 * expected.sqrt(), "{hits} for {expected}");
    }

    /// A per-second process with one event at 1 s; the next one is days later.
    fn one_event() -> LossProcess {
        let model = LossModel::PerSecond { mean_ns: 1e18, next_event: Some(Time(1_000_000_000)) };
        LossProcess { model, rng: stream(1, Purpose::Losses, 0), lost: 0 }
    }

    #[test]
    fn an_event_drops_the_first_packet_after_it_and_no_other() {
        let mut losses = one_event();
        let times = [0, 999_999_999, 1_000_000_000, 1_000_000_000, 1_000_000_001];
        assert_eq!(times.map(|at| losses.drops(Time(at))), [false, false, true, false, false]);
        assert_eq!(losses.lost(), 1);
    }

    #[test]
    fn an_event_lapses_after_a_tenth_of_a_second() {
        assert!(one_event().drops(Time(1_100_000_000)));
        assert!(!one_event().drops(Time(1_100_000_001)));
    }

    #[test]
    fn events_that_are_due_together_drop_one_packet_each() {
        // 1000 events/s. After 50 ms about 50 are due; after a longer silence the 100 of the last
        // 0.1 s.
        for (silence, expected) in [(50_000_000, 50.0), (10_000_000_000, 100.0), (u64::MAX / 2, 100.0)] {
            let seeds = 400;
            let burst = |seed| {
                let mut losses = losses(Loss::PerSecond(1000.0), seed);
                (0..1000).take_while(|index| losses.drops(Time(silence + index))).count() as f64
            };
            let mean = (0..seeds).map(burst).sum::<f64>() / f64::from(seeds as u32);
            let deviation = (mean - expected) / (expected / f64::from(seeds as u32)).sqrt();
            assert!(deviation.abs() < 3.3, "{silence}: {mean} for {expected}");
        }
    }

    #[test]
    fn gilbert_bursts_have_the_configured_length_and_share() {
        let gilbert = Gilbert { good_to_bad: 0.01, bad_to_good: 0.25, loss_good: 0.0, loss_bad: 1.0 };
        let times = lost(&mut losses(Loss::Gilbert(gilbert), 1), 2_000_000, 1);
        let asked = mean_loss(Loss::Gilbert(gilbert)).unwrap();
        assert!((asked - 0.01 / 0.26).abs() < 1e-12);
        assert!((times.len() as f64 / 2e6 / asked - 1.0).abs() < 0.02, "{}", times.len());
        let bursts = 1 + times.windows(2).filter(|pair| pair[1] > pair[0] + 1).count();
        let mean = times.len() as f64 / bursts as f64;
        assert!((mean - 4.0).abs() < 0.1, "mean burst {mean}");
    }

    #[test]
    fn each_gilbert_state_has_its_own_loss_rate() {
        for (good_to_bad, bad_to_good, loss_good, loss_bad) in
            [(0.02, 0.1, 0.01, 0.5), (0.3, 0.3, 0.0, 0.2), (0.0, 0.5, 0.1, 1.0), (0.0, 0.0, 0.05, 1.0), (1.0, 0.0, 0.0, 0.25)]
        {
            let loss = Loss::Gilbert(Gilbert { good_to_bad, bad_to_good, loss_good, loss_bad });
            let (count, asked) = (2_000_000, mean_loss(loss).unwrap());
            let share = lost(&mut losses(loss, 1), count, 1).len() as f64 / count as f64;
            assert!((share / asked - 1.0).abs() < 0.02, "{loss:?}: {share} for {asked}");
        }
    }

    #[test]
    fn loss_rates_of_zero_and_one_are_exact() {
        for none in [None, Some(Loss::PerPacket(0.0)), Some(Loss::PerSecond(0.0))] {
            assert!(lost(&mut LossProcess::new(none, stream(1, Purpose::Losses, 0)), 10_000, 1_000_000).is_empty());
        }
        assert_eq!(lost(&mut losses(Loss::PerPacket(1.0), 1), 10_000, 1).len(), 10_000);
        assert_eq!(mean_loss(Loss::PerPacket(0.25)), Some(0.25));
        assert_eq!(mean_loss(Loss::PerSecond(0.25)), None);
        // Extreme rates do not overflow: no event before the end of time, and one every nanosecond.
        assert!(!losses(Loss::PerSecond(f64::MIN_POSITIVE), 1).drops(Time(u64::MAX - 1)));
        assert!(losses(Loss::PerSecond(f64::MAX), 1).drops(Time(1)));
    }

    #[test]
    fn equal_seeds_lose_the_same_packets() {
        let gilbert = Gilbert { good_to_bad: 0.1, bad_to_good: 0.5, loss_good: 0.0, loss_bad: 1.0 };
        for loss in [Loss::PerPacket(0.1), Loss::PerSecond(50.0), Loss::Gilbert(gilbert)] {
            let run = |seed| lost(&mut losses(loss, seed), 10_000, 1_000_000);
            assert_eq!(run(5), run(5));
            assert_ne!(run(5), run(6));
        }
    }
}
