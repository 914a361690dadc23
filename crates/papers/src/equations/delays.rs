//! §19.4.7: end-to-end delays of the fast sender and slow forwarder, and the antibuffer.

use super::{
    parallel_map::parallel_map,
    table::{ComputedRow, ComputedTable, exact, over_seeds},
};
use crate::error::PaperError;
use theory::{Aimd, LossRate, SplittingEffort, TandemModel, TandemState};

const LOSSES: u64 = 1_000_000;
/// Paths, each with its own seed, and packets of each.
const PATHS: u64 = 10;
const PACKETS: usize = 40_000;
/// Relative distance of (19.16) from the packets' own delays within which it holds.
const TOLERANCE: f64 = 0.05;
/// The buffer, packets, of which the antibuffer is shown.
const LARGE: f64 = 100_000.0;

/// The fast sender and slow forwarder of Figure 19.4.
fn fast_then_slow() -> Result<[Aimd; 2], PaperError> {
    Ok([Aimd::new(0.04, LossRate::PerSecond(0.4))?, Aimd::new(0.08, LossRate::PerSecond(0.2))?])
}

pub(super) fn table() -> Result<ComputedTable, PaperError> {
    let mut rows = Vec::new();
    for part in parallel_map(&[20.0, 1000.0, 20_000.0], |buffer| delays(*buffer)) {
        rows.extend(part?);
    }
    rows.extend(antibuffer()?);
    let notes = vec![
        format!(
            "The setting of Figure 19.4. (19.16) divides the content by the mean rate of the second leg in isolation, Little's law by the throughput. Single \
             packets: first in, first out on the exact path, every packet alike. (19.16) holds if it is within {:.0} % of them. For the mean Little's law \
             is exact; the 99th percentile of the content over a mean rate is not that of the delay, because packets wait longest where the rate is \
             small.",
            TOLERANCE * 100.0
        ),
        "Antibuffer: B − Q by samples of the path, beside the unbounded buffer of the exchanged legs by splitting: the duality is exact on paths, and \
         the bound B does not matter to the antibuffer as long as Q hardly reaches 0."
            .into(),
    ];
    Ok(ComputedTable::new(&["B, packets", "of"], rows, notes))
}

fn delays(buffer: f64) -> Result<Vec<ComputedRow>, PaperError> {
    let [first, second] = fast_then_slow()?;
    let split = TandemModel::new(first, second).with_buffer(buffer)?;
    let found = split.estimate(1, LOSSES)?;
    let propagation_ms = (first.rtt_s() + second.rtt_s()) / 2.0 * 1e3;
    let by_formula = |packets: f64| propagation_ms + packets / second.mean() * 1e3;
    let packets: Vec<[f64; 2]> = (1..=PATHS)
        .map(|seed| {
            let mut delays: Vec<f64> =
                split.fifo_delays_s(seed, found.rate.mean).skip(PACKETS / 10).take(PACKETS).map(|delay| delay * 1e3).collect();
            delays.sort_unstable_by(f64::total_cmp);
            [delays.iter().sum::<f64>() / PACKETS as f64, delays[PACKETS - PACKETS / 100]]
        })
        .collect();
    let mut held = samples(&split);
    held.sort_unstable_by(f64::total_cmp);
    let [mean, most] = [0, 1].map(|at| over_seeds(&packets.iter().map(|one| one[at]).collect::<Vec<_>>()));
    let row = |what: &str, here, decimals| ComputedRow::new(vec![format!("{buffer}"), what.to_owned()], here, decimals);
    let compared = |what: &str, formula: f64, truth: f64| {
        row(what, exact(formula), 1)
            .claimed("(19.16) gives the delays of single packets, within 5 %", (formula / truth - 1.0).abs() < TOLERANCE)
            .with_note(format!("single packets: {truth:.1}"))
    };
    let little = theory::Mean { mean: found.delay_s.mean * 1e3, half: found.delay_s.half * 1e3 };
    Ok(vec![
        row("mean of single packets, ms", mean, 1),
        row("mean by Little's law, ms", little, 1),
        compared("mean by (19.16), ms", by_formula(found.queue.mean), mean.mean),
        row("99th percentile of single packets, ms", most, 1),
        compared("99th percentile by (19.16), ms", by_formula(held[held.len() - held.len() / 100]), most.mean),
    ])
}

/// Samples of the buffer at random times.
fn samples(split: &TandemModel) -> Vec<f64> {
    let [x, y] = split.isolated_means();
    split.trajectory(TandemState { x, y, q: 0.0 }, 3).samples(20.0, 4).skip(1000).take(200_000).map(|state| state.q).collect()
}

/// The antibuffer's tail beside that of the dual buffer.
fn antibuffer() -> Result<Vec<ComputedRow>, PaperError> {
    let [first, second] = fast_then_slow()?;
    let free: Vec<f64> = samples(&TandemModel::new(first, second).with_buffer(LARGE)?).iter().map(|q| LARGE - q).collect();
    let effort = SplittingEffort { until: 1e-4, paths: 1000, replicas: 20 };
    let dual = TandemModel::new(second, first).tail_by_splitting(effort, 1)?;
    let row = |(level, packets): (usize, &f64)| {
        let above = |samples: &[f64]| samples.iter().filter(|free| **free > *packets).count() as f64 / samples.len() as f64;
        let batches: Vec<f64> = free.chunks(free.len() / 20).map(above).collect();
        let here = over_seeds(&batches);
        let there = dual.probability(level);
        let holds = (here.mean - there.mean).abs() <= here.half + there.half;
        let of = vec![format!("{LARGE}"), format!("P(B − Q > {packets:.0})")];
        ComputedRow::new(of, here, 6)
            .claimed("B − Q has the law of the dual Q", holds)
            .with_note(format!("the dual Q: {:.6} ± {:.6}", there.mean, there.half))
    };
    Ok(dual.packets.iter().enumerate().filter(|(_, packets)| **packets < 0.6 * LARGE).map(row).collect())
}
