//! What loses packets on a link. Each process is a function of its seed and of the packets it sees.

use crate::Time;
use rand::RngExt;
use rand_pcg::Pcg64;
use scenario::{Gilbert, Loss};
use units::Span;

/// How long an event of the per-second process waits for a packet. Without an end to it, the one packet that a sender risks
/// after a timeout would meet the events of the whole silence before it, and recovery could stall for ever. Events that are
/// due together drop a packet each.
const LAPSE: Span = Span(100_000_000);

/// A loss process.
#[derive(Debug)]
pub struct Losses {
    process: Process,
    rng: Pcg64,
    lost: u64,
}

#[derive(Debug)]
enum Process {
    None,
    /// Rate dependent (RD): each packet with this probability.
    PerPacket(f64),
    /// Rate independent (RI): Poisson events, each of which drops the next packet.
    PerSecond {
        /// Mean time between events, in nanoseconds.
        mean: f64,
        /// The oldest event that has not dropped a packet, or the one to come; none before the first packet.
        next: Option<Time>,
    },
    Gilbert {
        gilbert: Gilbert,
        bad: bool,
    },
}

impl Losses {
    /// The process that `loss` asks for.
    pub fn new(loss: Option<Loss>, rng: Pcg64) -> Self {
        let process = match loss {
            None => Process::None,
            Some(Loss::PerPacket(p)) if p <= 0.0 => Process::None,
            Some(Loss::PerPacket(p)) => Process::PerPacket(p),
            Some(Loss::PerSecond(rate)) if rate <= 0.0 => Process::None,
            Some(Loss::PerSecond(rate)) => Process::PerSecond { mean: 1e9 / rate, next: None },
            Some(Loss::Gilbert(gilbert)) => Process::Gilbert { gilbert, bad: false },
        };
        Losses { process, rng, lost: 0 }
    }

    /// Packets lost so far.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Whether the packet that crosses at `now` is lost. Times never go backwards.
    #[inline]
    pub fn drops(&mut self, now: Time) -> bool {
        !matches!(self.process, Process::None) && self.hits(now)
    }

    fn hits(&mut self, now: Time) -> bool {
        let rng = &mut self.rng;
        let drops = match &mut self.process {
            Process::None => false,
            Process::PerPacket(p) => rng.random::<f64>() < *p,
            Process::PerSecond { mean, next } => {
                let oldest = Time(now.0.saturating_sub(LAPSE.0));
                // Poisson has no memory: a silence, however long, is one new draw for its last tenth of a second.
                let event = match *next {
                    Some(event) if event >= oldest => event,
                    _ => oldest + exponential(rng, *mean),
                };
                let hit = event <= now;
                *next = Some(if hit { event + exponential(rng, *mean) } else { event });
                hit
            }
            Process::Gilbert { gilbert, bad } => {
                let leaves = if *bad { gilbert.bad_to_good } else { gilbert.good_to_bad };
                if rng.random::<f64>() < leaves {
                    *bad = !*bad;
                }
                rng.random::<f64>() < if *bad { gilbert.loss_bad } else { gilbert.loss_good }
            }
        };
        self.lost += u64::from(drops);
        drops
    }
}

/// A span of that mean in nanoseconds. Whole ones: the last digit of a logarithm is not the same on every machine.
fn exponential(rng: &mut Pcg64, mean: f64) -> Span {
    Span((-mean * (1.0 - rng.random::<f64>()).ln()).round() as u64)
}

/// The share of packets that `loss` takes in the long run; none where it is not a share of packets.
pub fn mean_loss(loss: Loss) -> Option<f64> {
    match loss {
        Loss::PerPacket(p) => Some(p),
        Loss::PerSecond(_) => None,
        Loss::Gilbert(Gilbert { good_to_bad, bad_to_good, loss_good, loss_bad }) => {
            let both = good_to_bad + bad_to_good;
            // Neither state is ever left: the good one is where it starts.
            let bad = if both > 0.0 { good_to_bad / both } else { 0.0 };
            Some(bad * loss_bad + (1.0 - bad) * loss_good)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scenario::{Purpose, stream};
    use statrs::distribution::{ContinuousCDF, Exp, Normal};

    fn losses(loss: Loss, seed: u64) -> Losses {
        Losses::new(Some(loss), stream(seed, Purpose::Losses, 1))
    }

    /// Which of `count` packets, `gap` nanoseconds apart, are lost.
    fn lost(losses: &mut Losses, count: u64, gap: u64) -> Vec<u64> {
        (0..count).filter(|index| losses.drops(Time(index * gap))).collect()
    }

    /// The largest distance between an empirical distribution and the exponential of that mean, times √n (Kolmogorov).
    fn kolmogorov(mut sample: Vec<f64>, mean: f64) -> f64 {
        sample.sort_unstable_by(f64::total_cmp);
        let (n, law) = (sample.len() as f64, Exp::new(1.0 / mean).unwrap());
        let distance = |(index, x): (usize, &f64)| (law.cdf(*x) - index as f64 / n).abs().max((law.cdf(*x) - (index + 1) as f64 / n).abs());
        sample.iter().enumerate().map(distance).fold(0.0, f64::max) * n.sqrt()
    }

    fn gaps(times: &[u64]) -> Vec<f64> {
        times.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect()
    }

    /// 99.9 % of Kolmogorov's distribution.
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
        // 5 events a second, a packet every 0.1 ms: each event meets a packet at once.
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
        // A packet a second meets only the events of the last tenth of it: 1 − e^−0.2 at two a second.
        let hits = lost(&mut losses(Loss::PerSecond(2.0), 1), 100_000, 1_000_000_000).len() as f64;
        let expected = 100_000.0 * (1.0 - (-0.2_f64).exp());
        assert!((hits - expected).abs() < 4.0 * expected.sqrt(), "{hits} for {expected}");
    }

    /// The per-second process with one event at 1 s, and the next in days.
    fn one_event() -> Losses {
        let process = Process::PerSecond { mean: 1e18, next: Some(Time(1_000_000_000)) };
        Losses { process, rng: stream(1, Purpose::Losses, 0), lost: 0 }
    }

    #[test]
    fn an_event_drops_the_first_packet_after_it_and_no_other() {
        let mut losses = one_event();
        let times = [0, 999_999_999, 1_000_000_000, 1_000_000_000, 1_000_000_001];
        assert_eq!(times.map(|at| losses.drops(Time(at))), [false, false, true, false, false]);
        assert_eq!(losses.lost(), 1);
    }

    #[test]
    fn an_event_waits_a_tenth_of_a_second() {
        assert!(one_event().drops(Time(1_100_000_000)));
        assert!(!one_event().drops(Time(1_100_000_001)));
    }

    #[test]
    fn events_that_are_due_together_drop_a_packet_each() {
        // 1000 events a second. After 50 ms some 50 are due, after any longer silence the 100 of the last tenth of a second.
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
    fn bursts_have_the_length_and_share_that_were_asked() {
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
    fn each_state_loses_its_own_share() {
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
    fn nothing_and_everything_are_exact() {
        for none in [None, Some(Loss::PerPacket(0.0)), Some(Loss::PerSecond(0.0))] {
            assert!(lost(&mut Losses::new(none, stream(1, Purpose::Losses, 0)), 10_000, 1_000_000).is_empty());
        }
        assert_eq!(lost(&mut losses(Loss::PerPacket(1.0), 1), 10_000, 1).len(), 10_000);
        assert_eq!(mean_loss(Loss::PerPacket(0.25)), Some(0.25));
        assert_eq!(mean_loss(Loss::PerSecond(0.25)), None);
        // Rates beyond all reason have an answer too: an event at the end of time, and one in each nanosecond.
        assert!(!losses(Loss::PerSecond(f64::MIN_POSITIVE), 1).drops(Time(u64::MAX - 1)));
        assert!(losses(Loss::PerSecond(f64::MAX), 1).drops(Time(1)));
    }

    #[test]
    fn the_same_seed_loses_the_same_packets() {
        let gilbert = Gilbert { good_to_bad: 0.1, bad_to_good: 0.5, loss_good: 0.0, loss_bad: 1.0 };
        for loss in [Loss::PerPacket(0.1), Loss::PerSecond(50.0), Loss::Gilbert(gilbert)] {
            let run = |seed| lost(&mut losses(loss, seed), 10_000, 1_000_000);
            assert_eq!(run(5), run(5));
            assert_ne!(run(5), run(6));
        }
    }
}
