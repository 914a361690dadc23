//! The two-segment settings of Yuan, Rossman and Winstein with packets over both segments, from end
//! to end and split, beside their heuristic.

use super::{
    parallel_map::parallel_map,
    segment_paths::{LossPattern, SegmentSetting, goodput_mbit, scenario, settings},
    settings_count::{PairSpeeds, counts},
    table::{ComputedRow, ComputedTable, exact},
    two_segments::{CONTROLLERS, SEEDS, alone, by_heuristic, medians},
};
use crate::error::PaperError;

/// What the proxy holds: as much as Linux grants a connection (`tcp_rmem`).
const BUFFER: &str = "6MiB";
/// The seed of the packets.
const SEED: u64 = 1;

/// The speeds of a setting with packets over both segments.
fn simulated(segments: [SegmentSetting; 2], control: &str) -> Result<PairSpeeds, PaperError> {
    let goodput = |buffer: Option<&str>| goodput_mbit(&scenario(&segments, LossPattern::Single, control, buffer)?, SEED);
    Ok(PairSpeeds { segments, split: goodput(Some(BUFFER))?, end_to_end: goodput(None)? })
}

/// The value below which this share of the values lies.
fn quantile(values: impl Iterator<Item = f64>, share: f64) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(((sorted.len().max(1) - 1) as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
}

/// The share of the values that are within a tenth of 1.
fn near_one(values: impl Iterator<Item = f64>) -> f64 {
    let (near, all) = values.fold((0, 0), |(near, all), value| (near + u32::from((value - 1.0).abs() <= 0.1), all + 1));
    f64::from(near) / f64::from(all.max(1)) * 100.0
}

/// How far the heuristic is from packets.
fn comparison(name: &str, simulated: &[PairSpeeds], heuristic: &[PairSpeeds]) -> Vec<ComputedRow> {
    let split = || simulated.iter().zip(heuristic).map(|(packets, heuristic)| packets.split / heuristic.split);
    let end_to_end = || simulated.iter().zip(heuristic).map(|(packets, heuristic)| packets.end_to_end / heuristic.end_to_end);
    let row = |what: &str, here: f64, decimals| ComputedRow::new([name, what, ""].map(str::to_owned).into(), exact(here), decimals);
    vec![
        row("split: packets ÷ heuristic, median", quantile(split(), 0.5), 2),
        row("split: packets ÷ heuristic, 5 % are below", quantile(split(), 0.05), 2),
        row("split: packets ÷ heuristic, 5 % are above", quantile(split(), 0.95), 2),
        row("split: within a tenth of the heuristic, % of the settings", near_one(split()), 0),
        row("end to end: packets ÷ the one path, median", quantile(end_to_end(), 0.5), 2),
        row("end to end: within a tenth of the one path, % of the settings", near_one(end_to_end()), 0),
    ]
}

/// How many settings a split speeds up with packets, and how far the heuristic is from that.
pub(super) fn table() -> Result<ComputedTable, PaperError> {
    let settings = settings();
    let mut rows = Vec::new();
    for (control, name) in CONTROLLERS {
        let speeds: Vec<PairSpeeds> =
            parallel_map(&settings, |segments| simulated(*segments, control)).into_iter().collect::<Result<_, PaperError>>()?;
        rows.extend(counts(name, "each packet by itself", &speeds));
        let heuristic = by_heuristic(&medians(&alone(control, LossPattern::Single, SEEDS)?, None));
        rows.extend(comparison(name, &speeds, &heuristic));
    }
    let notes = vec![
        "Both segments are simulated, from end to end and with a proxy between them that holds at most 6 MiB in each direction; one seed. Each \
         link has a queue of one BDP of the whole path, at least 12 kB."
            .into(),
        "The printed counts are those of the heuristic. A count holds if it is within a tenth of the printed one.".into(),
    ];
    Ok(ComputedTable::new(&["controller", "settings", "losses"], rows, notes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_near_the_heuristic() {
        let segment = |delay_ms, loss_percent| SegmentSetting { delay_ms, loss_percent, rate_mbit: 20 };
        let segments = [segment(100, 2), segment(1, 2)];
        let found = simulated(segments, "bbr").unwrap();
        let alone = goodput_mbit(&scenario(&segments[..1], LossPattern::Single, "bbr", None).unwrap(), SEED).unwrap();
        let rows = comparison("BBRv1", &[found], &[PairSpeeds { split: alone, ..found }]);
        assert!((rows[0].here.mean - 1.0).abs() < 0.1 && rows[3].here.mean == 100.0, "{found:?} {alone}");
        assert_eq!((rows[4].here.mean, rows[5].here.mean), (1.0, 100.0));
    }

    #[test]
    fn quantiles_are_values() {
        let values = || [3.0, 1.0, 2.0].into_iter();
        assert_eq!((quantile(values(), 0.5), quantile(values(), 0.0), quantile(values(), 1.0)), (2.0, 1.0, 3.0));
        assert!((near_one([0.95, 1.2, 1.05, 0.5].into_iter()) - 50.0).abs() < 1e-9);
    }
}
