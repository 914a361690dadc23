//! The paths of Yuan, Rossman and Winstein (ATC 2025): 150 single ones, and the 7875 pairs of
//! segments that are composed of them; each as a scenario.

use crate::error::PaperError;
use outcome::{Engine as _, EngineError};
use scenario::{Scenario, ScenarioFile};
use sim::Sim;

/// The shortest delay of a segment, ms: a proxy at the edge.
pub(super) const SHORT_MS: u64 = 1;
const LOSSES_PERCENT: [u64; 5] = [0, 1, 2, 3, 4];
const DELAYS_MS: [u64; 6] = [SHORT_MS, 20, 40, 60, 80, 100];
const RATES_MBIT: [u64; 5] = [10, 20, 30, 40, 50];

/// A transfer is what the slowest link carries in this time.
const TRANSFER_S: u64 = 10;
/// The least queue, bytes: the upper threshold of the RED queue in the authors' emulation.
const LEAST_QUEUE: u64 = 12_000;

/// A path, or a segment of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SegmentSetting {
    /// Delay of one direction.
    pub(super) delay_ms: u64,
    /// Probability of a loss, in the direction of the data.
    pub(super) loss_percent: u64,
    /// Rate.
    pub(super) rate_mbit: u64,
}

impl SegmentSetting {
    /// The path of these two segments as the paper has it: 1 ms adds nothing to a longer delay.
    pub(super) fn with(self, next: Self) -> Self {
        let short = u64::from(self.delay_ms == SHORT_MS || next.delay_ms == SHORT_MS);
        SegmentSetting {
            delay_ms: self.delay_ms + next.delay_ms - short * SHORT_MS,
            loss_percent: self.loss_percent + next.loss_percent,
            rate_mbit: self.rate_mbit.min(next.rate_mbit),
        }
    }
}

/// Which packets a link loses. The mean is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LossPattern {
    /// Each packet by itself.
    Single,
    /// Bursts of two packets in the mean. Linux's netem drops whole pieces of segmentation offload,
    /// which are two segments at 10 Mbit/s under a paced sender, and more at a higher rate.
    Bursts,
}

impl LossPattern {
    /// The keys of a link's losses.
    fn keys(self, percent: u64) -> String {
        match self {
            LossPattern::Single => format!("per_packet = \"{percent}%\""),
            LossPattern::Bursts => {
                // Half of the lost packets are followed by another one, and begin / (begin + 1/2)
                // is their share.
                let share = percent as f64 / 100.0;
                format!("gilbert = {{ good_to_bad = {:.6}, bad_to_good = 0.5 }}", 0.5 * share / (1.0 - share))
            }
        }
    }
}

/// Every pair of values, in both orders.
fn pairs<T: Copy>(values: &[T]) -> impl Iterator<Item = (T, T)> {
    values.iter().flat_map(move |first| values.iter().map(move |second| (*first, *second)))
}

/// The 150 single paths.
pub(super) fn single_paths() -> Vec<SegmentSetting> {
    let mut all = Vec::new();
    for rate_mbit in RATES_MBIT {
        for loss_percent in LOSSES_PERCENT {
            all.extend(DELAYS_MS.map(|delay_ms| SegmentSetting { delay_ms, loss_percent, rate_mbit }));
        }
    }
    all
}

/// The 7875 pairs of segments that together are one of the single paths.
pub(super) fn settings() -> Vec<[SegmentSetting; 2]> {
    let known = single_paths();
    let most = |get: fn(&SegmentSetting) -> u64| known.iter().map(get).max().unwrap_or(0);
    let (most_delay, most_loss) = (most(|path| path.delay_ms), most(|path| path.loss_percent));
    let is_known = |[first, second]: &[SegmentSetting; 2]| {
        let path = first.with(*second);
        path.delay_ms <= most_delay && path.loss_percent <= most_loss
    };
    pairs(&known).map(|(first, second)| [first, second]).filter(is_known).collect()
}

/// The path of these links in series as a scenario; with a proxy after the first that holds at most
/// `buffer`, if one is given.
///
/// # Errors
/// The text is wrong, which the tests exclude.
pub(super) fn scenario(links: &[SegmentSetting], losses: LossPattern, control: &str, buffer: Option<&str>) -> Result<Scenario, PaperError> {
    let rate = links.iter().map(|link| link.rate_mbit).min().unwrap_or(0);
    let round_trip_ms: u64 = 2 * links.iter().map(|link| link.delay_ms).sum::<u64>();
    // In Mbit/s × ms = 125 bytes.
    let queue = (rate * round_trip_ms * 125).max(LEAST_QUEUE);
    let bytes = rate * TRANSFER_S * 125;
    let mut text = format!(
        "name = \"two segments\"\n[control]\nsender = \"{control}\"\nproxy = \"{control}\"\n[[flow]]\nbytes = \"{bytes}kB\"\nopens = \"receiver\"\n"
    );
    for link in links {
        text += &format!("[[link]]\nrate = \"{}Mbit\"\ndelay = \"{}ms\"\nqueue = \"{queue}B\"\n", link.rate_mbit, link.delay_ms);
        if link.loss_percent > 0 {
            text += &format!("loss = {{ {} }}\n", losses.keys(link.loss_percent));
        }
    }
    if let Some(buffer) = buffer {
        text += &format!("[[split]]\nafter = 1\nbuffer = \"{buffer}\"\n");
    }
    Ok(ScenarioFile::parse(&text, "a setting of two segments")?.variants(&[])?.remove(0).scenario)
}

/// The goodput of the transfer in a simulation, Mbit/s.
///
/// # Errors
/// The simulator has no answer.
pub(super) fn goodput_mbit(scenario: &Scenario, seed: u64) -> Result<f64, PaperError> {
    let outcome = Sim::default()
        .run(scenario, seed, &())
        .map_err(|why: EngineError| PaperError::Wrong { experiment: "the settings of two segments".into(), what: why.to_string() })?;
    Ok(outcome.goodput_bps / 1e6)
}

/// The least goodput of a transfer that ends within `limit_s`, on a link of this rate, Mbit/s.
pub(super) fn least_within(rate_mbit: u64, limit_s: f64) -> f64 {
    (rate_mbit * TRANSFER_S) as f64 / limit_s
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(delay_ms: u64, loss_percent: u64, rate_mbit: u64) -> SegmentSetting {
        SegmentSetting { delay_ms, loss_percent, rate_mbit }
    }

    #[test]
    fn there_are_as_many_settings_as_in_the_paper() {
        assert_eq!((single_paths().len(), settings().len()), (150, 7875));
        let known = single_paths();
        assert!(settings().iter().all(|[first, second]| known.contains(&first.with(*second))));
        // The three of its Figure 1 are among them.
        for pair in
            [[segment(100, 0, 20), segment(1, 4, 20)], [segment(100, 2, 20), segment(1, 2, 20)], [segment(40, 2, 40), segment(40, 2, 40)]]
        {
            assert!(settings().contains(&pair));
        }
    }

    #[test]
    fn segments_add_up() {
        assert_eq!(segment(100, 1, 20).with(segment(1, 2, 50)), segment(100, 3, 20));
        assert_eq!(segment(1, 0, 20).with(segment(1, 0, 10)), segment(1, 0, 10));
        assert_eq!(segment(40, 0, 20).with(segment(60, 4, 20)), segment(100, 4, 20));
    }

    #[test]
    fn a_path_is_simulated_as_described() {
        let scenario = scenario(&[segment(100, 2, 20), segment(1, 0, 50)], LossPattern::Single, "bbr3", Some("6MiB")).unwrap();
        assert_eq!(scenario.flows[0].bytes.unwrap().fixed(), Some(units::Bytes(25_000_000)));
        assert_eq!(scenario.queue_size(0), units::QueueSize::Bytes(units::Bytes(505_000)));
        assert_eq!((scenario.leg_controls(), scenario.splits.len()), (vec!["bbr3", "bbr3"], 1));
        assert_eq!(scenario.links[0].loss.forward, Some(scenario::Loss::PerPacket(0.02)));
        assert!(scenario.links[1].loss.is_none());
    }

    #[test]
    fn bursts_lose_as_much() {
        let scenario = scenario(&[segment(20, 4, 10)], LossPattern::Bursts, "cubic", None).unwrap();
        let Some(scenario::Loss::Gilbert(gilbert)) = scenario.links[0].loss.forward else { panic!("{scenario:?}") };
        let lost = gilbert.good_to_bad / (gilbert.good_to_bad + gilbert.bad_to_good);
        assert!((lost - 0.04).abs() < 1e-5 && gilbert.bad_to_good == 0.5 && gilbert.loss_bad == 1.0, "{gilbert:?}");
    }

    #[test]
    fn a_limit_of_ten_times_the_transfer_is_a_tenth_of_the_rate() {
        assert!((least_within(20, 100.0) - 2.0).abs() < 1e-12);
    }
}
