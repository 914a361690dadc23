//! Yuan, Rossman and Winstein's Table 3 by their heuristic. A split is as fast as the slower of its
//! segments alone; end to end a pair of segments is one path with the sum of their delays and
//! losses and the lesser rate. Each of the single paths is simulated, and 7875 pairs of segments
//! are composed of them.

use super::{
    parallel_map::parallel_map,
    segment_paths::{LossPattern, SegmentSetting, goodput_mbit, least_within, scenario, settings, single_paths},
    settings_count::{PairSpeeds, counts},
    table::ComputedTable,
};
use crate::error::PaperError;
use std::collections::BTreeMap;

/// The seeds of the single paths; the paper has 20 trials of each.
pub(super) const SEEDS: u64 = 10;

/// The controllers, as the engines and as the paper name them.
pub(super) const CONTROLLERS: [(&str, &str); 3] = [("cubic", "CUBIC"), ("bbr", "BBRv1"), ("bbr3", "BBRv3")];

/// A run that takes longer has no result, s. The authors' outputs have settings of CUBIC without
/// one, even split; their programs have limits that differ.
const LIMIT_S: f64 = 600.0;

/// The goodputs of every single path under a controller, by seed in ascending order, Mbit/s.
pub(super) type SinglePaths = BTreeMap<SegmentSetting, Vec<f64>>;

/// Simulates the single paths.
///
/// # Errors
/// The simulator has no answer.
pub(super) fn alone(control: &str, losses: LossPattern, seeds: u64) -> Result<SinglePaths, PaperError> {
    let paths = single_paths();
    let goodputs = |path: &SegmentSetting| {
        let scenario = scenario(&[*path], losses, control, None)?;
        let mut goodputs = (1..=seeds).map(|seed| goodput_mbit(&scenario, seed)).collect::<Result<Vec<f64>, PaperError>>()?;
        goodputs.sort_unstable_by(f64::total_cmp);
        Ok(goodputs)
    };
    let all: Result<Vec<Vec<f64>>, PaperError> = parallel_map(&paths, goodputs).into_iter().collect();
    Ok(paths.into_iter().zip(all?).collect())
}

/// The median of each path, of the runs that ended within a limit if there is one; 0 if none did.
pub(super) fn medians(alone: &SinglePaths, limit_s: Option<f64>) -> BTreeMap<SegmentSetting, f64> {
    let median = |(path, goodputs): (&SegmentSetting, &Vec<f64>)| {
        let least = limit_s.map_or(0.0, |limit_s| least_within(path.rate_mbit, limit_s));
        let ended: Vec<f64> = goodputs.iter().copied().filter(|goodput| *goodput >= least).collect();
        (*path, ended.get(ended.len() / 2).copied().unwrap_or(0.0))
    };
    alone.iter().map(median).collect()
}

/// The speeds of every setting by the heuristic.
pub(super) fn by_heuristic(medians: &BTreeMap<SegmentSetting, f64>) -> Vec<PairSpeeds> {
    let speeds = |segments: [SegmentSetting; 2]| PairSpeeds {
        segments,
        split: segments.map(|segment| medians[&segment]).into_iter().fold(f64::INFINITY, f64::min),
        end_to_end: medians[&segments[0].with(segments[1])],
    };
    settings().into_iter().map(speeds).collect()
}

/// How many settings a split speeds up, by the heuristic.
pub(super) fn table(seeds: u64) -> Result<ComputedTable, PaperError> {
    let mut rows = Vec::new();
    for (control, name) in CONTROLLERS {
        let single = alone(control, LossPattern::Single, seeds)?;
        let bursts = alone(control, LossPattern::Bursts, seeds)?;
        for (setting, alone, limit_s) in [
            ("each packet by itself", &single, None),
            ("bursts of two", &bursts, None),
            ("each packet by itself, 10 min", &single, Some(LIMIT_S)),
            ("bursts of two, 10 min", &bursts, Some(LIMIT_S)),
        ] {
            rows.extend(counts(name, setting, &by_heuristic(&medians(alone, limit_s))));
        }
    }
    let notes = vec![
        format!(
            "The 7875 settings: two segments, each with 10 to 50 Mbit/s, 0 to 4 % of loss and 1 to 100 ms (one way), in both orders, whose \
             losses add up to at most 4 % and whose delays to at most 100 ms (1 ms adds nothing). Single paths: {seeds} seeds, of which the \
             median counts; a file of 10 s at the path's rate; a drop-tail queue of one BDP, at least 12 kB."
        ),
        "10 min: what takes longer has no result. A setting without a result from end to end counts as sped up, as in the authors' program, \
         also if the split has no result either."
            .into(),
        "A count holds if it is within a tenth of the printed one.".into(),
    ];
    Ok(ComputedTable::new(&["controller", "settings", "losses"], rows, notes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_split_and_end_to_end_as_the_single_paths_are() {
        let goodput = |path: SegmentSetting| (path.rate_mbit * 100 - path.delay_ms * 5 - path.loss_percent) as f64;
        let medians = single_paths().into_iter().map(|path| (path, goodput(path))).collect();
        let speeds = by_heuristic(&medians);
        let segment = |delay_ms, loss_percent, rate_mbit| SegmentSetting { delay_ms, loss_percent, rate_mbit };
        let pair = [segment(100, 2, 20), segment(1, 2, 50)];
        let found = speeds.iter().find(|speeds| speeds.segments == pair).unwrap();
        assert_eq!((found.split, found.end_to_end), (goodput(pair[0]), goodput(segment(100, 4, 20))));
    }

    #[test]
    fn slow_runs_have_no_result_within_a_limit() {
        let path = SegmentSetting { delay_ms: 100, loss_percent: 4, rate_mbit: 20 };
        let alone = SinglePaths::from([(path, vec![0.2, 0.4, 0.6])]);
        // 25 MB at 0.4 Mbit/s take 500 s.
        let median = |limit_s| medians(&alone, limit_s)[&path];
        assert_eq!([median(None), median(Some(600.0)), median(Some(400.0)), median(Some(100.0))], [0.4, 0.6, 0.6, 0.0]);
    }
}
