//! The far tail of an unbounded buffer, by multilevel splitting on the exact path, beside the decay
//! that the equations give: Lemma 19.8, the remark of §19.4.6 on limited windows, and open question
//! (ii)(a).

use super::{
    parallel_map::parallel_map,
    plot::{ComputedFigure, ComputedPlot},
    table::{ComputedRow, ComputedTable, exact},
};
use crate::error::PaperError;
use theory::{Aimd, LossRate, Mean, SplittingEffort, TailDecay, TailLevels, TandemModel};

const EFFORT: SplittingEffort = SplittingEffort { until: 3e-11, paths: 1000, replicas: 20 };
const SEED: u64 = 1;
/// Tail probabilities, of which the table has the levels.
const SHOWN: [f64; 3] = [1e-4, 1e-7, 1e-10];
/// Ranges of the tail probability over which a decay rate is taken: (from, to).
const DECADES: [(f64, f64); 2] = [(1e-4, 1e-7), (1e-7, 1e-10)];
/// The relative distance from θ within which a decay agrees with it.
const TOLERANCE: f64 = 0.1;

/// The setting of a row, and its tail.
struct FarTail {
    name: String,
    split: TandemModel,
    decay: TailDecay,
    levels: TailLevels,
}

impl FarTail {
    fn all(settings: Vec<(String, TandemModel)>) -> Result<Vec<FarTail>, PaperError> {
        let play = |(name, split): &(String, TandemModel)| {
            let levels = split.tail_by_splitting(EFFORT, SEED)?;
            Ok(FarTail { name: name.clone(), split: *split, decay: split.tail_decay()?, levels })
        };
        parallel_map(&settings, play).into_iter().collect()
    }

    fn between(&self, (from, to): (f64, f64)) -> [usize; 2] {
        [self.levels.nearest(from), self.levels.nearest(to)]
    }

    fn row(&self, of: String, here: Mean, decimals: usize) -> ComputedRow {
        ComputedRow::new(vec![self.name.clone(), of], here, decimals)
    }

    /// The probabilities at some levels, and the slopes of ln(−ln P) between them.
    fn probabilities(&self) -> Vec<ComputedRow> {
        let shown = SHOWN.iter().map(|probability| {
            let level = self.levels.nearest(*probability);
            let here = self.levels.of(|probabilities| -probabilities[level].log10());
            self.row(format!("−log₁₀ P(Q > {:.0})", self.levels.packets[level]), here, 2)
        });
        let slopes = DECADES.iter().map(|decades| {
            let shape = self.levels.shape(self.between(*decades));
            self.row(format!("slope of ln(−ln P) over ln q, {:e} … {:e}", decades.0, decades.1), shape, 3)
        });
        shown.chain(slopes).collect()
    }

    /// (of q, −log₁₀ P(Q > q), half of its interval) at all levels.
    fn curve(&self, of: impl Fn(f64) -> f64) -> Vec<(f64, f64, f64)> {
        let point = |(level, packets): (usize, &f64)| {
            let here = self.levels.of(|probabilities| -probabilities[level].log10());
            (of(*packets), here.mean, here.half)
        };
        self.levels.packets.iter().enumerate().map(point).collect()
    }

    /// The decay between two probabilities over that of the equations.
    fn decay_ratio(&self, decades: (f64, f64)) -> ComputedRow {
        let (rate, per, name) = match self.decay {
            TailDecay::Stretched { per_sqrt_packet } => (per_sqrt_packet, f64::sqrt as fn(f64) -> f64, "√q ÷ λR₁√2"),
            TailDecay::Exponential { per_packet, .. } => (per_packet, (|q| q) as fn(f64) -> f64, "q ÷ θ"),
        };
        let decay = self.levels.decay(self.between(decades), per);
        let here = Mean { mean: decay.mean / rate, half: decay.half / rate };
        self.row(format!("−ln P over {name}, {:e} … {:e}", decades.0, decades.1), here, 3)
    }
}

fn tandem(first: f64, second: f64, losses: LossRate) -> Result<TandemModel, PaperError> {
    Ok(TandemModel::new(Aimd::new(first, losses)?, Aimd::new(second, losses)?))
}

/// Whether a number is below, or above, a limit with its whole interval; `None` if the interval
/// contains it.
fn is_below(here: Mean, limit: f64) -> Option<bool> {
    if here.mean + here.half < limit { Some(true) } else { (here.mean - here.half > limit).then_some(false) }
}

/// Of Lemma 19.8: whether the tail is above the asymptote, which is heavier than exp(−λR₁√(2q)), a
/// Weibull law of shape 1/2.
pub(super) fn by_time() -> Result<(Vec<ComputedRow>, Vec<ComputedPlot>), PaperError> {
    let setting = |first: f64, second: f64| -> Result<(String, TandemModel), PaperError> {
        Ok((format!("{:.0} and {:.0} ms", first * 1e3, second * 1e3), tandem(first, second, LossRate::PerSecond(0.4))?))
    };
    let tails = FarTail::all(vec![setting(0.03, 0.02)?, setting(0.04, 0.035)?, setting(0.09, 0.03)?])?;
    let mut rows = Vec::new();
    let mut plots = Vec::new();
    for tail in &tails {
        plots.push(against_root(tail));
        rows.extend(tail.probabilities());
        rows.extend(DECADES.map(|decades| tail.decay_ratio(decades)));
        for probability in SHOWN {
            let level = tail.levels.nearest(probability);
            if let Some(asymptote) = tail.split.one_burst_tail(tail.levels.packets[level]) {
                let here = tail.levels.of(|probabilities| probabilities[level] / asymptote);
                let row = tail.row(format!("P ÷ asymptote of one burst, at {probability:e}"), here, 2);
                let holds = is_below(here, 1.0).map(|below| !below);
                rows.push(ComputedRow { holds, ..row.claimed("Q's tail is heavier than Weibull ½ (Lemma 19.8): above 1", true) });
            }
        }
    }
    Ok((rows, plots))
}

/// The tail over c√q: a straight line for a Weibull law of shape 1/2.
fn against_root(tail: &FarTail) -> ComputedPlot {
    let mut plot = ComputedPlot::new(format!("Q's tail, losses by time, {}", tail.name), "√q, √packets", "−log₁₀ P(Q > q)");
    plot.add_with_interval("splitting", &tail.curve(f64::sqrt));
    if let TailDecay::Stretched { per_sqrt_packet } = tail.decay {
        let points = || tail.levels.packets.iter().map(|packets| (packets.sqrt(), *packets));
        plot.add("exp(−λR₁√(2q))", points().map(|(root, _)| (root, per_sqrt_packet * root / std::f64::consts::LN_10)).collect());
        let asymptote = points().filter_map(|(root, packets)| Some((root, -tail.split.one_burst_tail(packets)?.log10())));
        plot.add("asymptote of one burst", asymptote.collect());
    }
    plot
}

/// The tails over q: a straight line for an exponential law, here with the slope θ.
fn against_packets(title: &str, tails: &[FarTail]) -> Vec<ComputedPlot> {
    let plot = |tail: &FarTail| {
        let mut plot = ComputedPlot::new(format!("{title}, {}", tail.name), "q, packets", "−log₁₀ P(Q > q)");
        plot.add_with_interval("splitting", &tail.curve(|q| q));
        if let (TailDecay::Exponential { per_packet, .. }, [_, .., last]) = (tail.decay, &tail.levels.packets[..]) {
            // Through the last point, with the slope of the equations.
            let end = -tail.levels.probability(tail.levels.packets.len() - 1).mean.log10();
            let at = |q: f64| end - per_packet * (last - q) / std::f64::consts::LN_10;
            plot.add("slope θ", vec![(0.0, at(0.0)), (*last, end)]);
        }
        plot
    };
    tails.iter().map(plot).collect()
}

/// Open question (ii)(a).
pub(super) fn per_packet() -> Result<ComputedFigure, PaperError> {
    let mut settings = Vec::new();
    for second in [0.03, 0.06, 0.08] {
        settings.push((format!("90 and {:.0} ms", second * 1e3), tandem(0.09, second, LossRate::PerPacket(0.03))?));
    }
    // For comparison: there the decay per packet falls towards 0.
    settings.push(("90 and 80 ms, losses by time".into(), tandem(0.09, 0.08, LossRate::PerSecond(0.4))?));
    let mut rows = Vec::new();
    let tails = FarTail::all(settings)?;
    for tail in &tails {
        rows.extend(theta(tail));
        rows.extend(tail.probabilities());
        for decades in DECADES {
            let row = tail.decay_ratio(decades);
            rows.push(match tail.decay {
                // Each packet further out costs at least θ, less the tolerance.
                TailDecay::Exponential { .. } => {
                    let holds = is_below(row.here, 1.0 - TOLERANCE).map(|below| !below);
                    ComputedRow { holds, ..row.claimed("Q's tail is light (observation 19.5, RD): at least 1", true) }
                }
                TailDecay::Stretched { .. } => row,
            });
        }
    }
    let notes = vec![
        format!(
            "Observation 19.5 and open question (ii)(a). Multilevel splitting on the exact path, {} replicas of {} paths from each level; ± is half of 95 %. \
             θ, per packet: Λ₁(θ) + Λ₂(−θ) = 0 with Λ the principal eigenvalues of the legs' generators, or the first leg's loss rate per packet if that is \
             smaller: the tail is then made by one burst of q packets without a loss, and falls by a factor e^(−κ√q) more. It holds if the whole interval \
             is above {}.",
            EFFORT.replicas,
            EFFORT.paths,
            1.0 - TOLERANCE
        ),
        "Losses by time for comparison: there −ln P grows with √q.".into(),
    ];
    let plots = against_packets("Q's tail, round trips", &tails);
    Ok(ComputedFigure { table: ComputedTable::new(&["round trips", "of"], rows, notes), plots })
}

/// θ in thousandths per packet, by the equations.
fn theta(tail: &FarTail) -> Option<ComputedRow> {
    let TailDecay::Exponential { per_packet, by_one_burst } = tail.decay else { return None };
    let why = if by_one_burst { "the first leg's loss rate per packet: one burst" } else { "" };
    Some(tail.row("1000 θ, per packet".into(), exact(per_packet * 1e3), 4).with_note(why))
}

/// §19.4.6: the tail with a limited congestion window of the first leg.
pub(super) fn clipped_window() -> Result<ComputedFigure, PaperError> {
    let mut settings = Vec::new();
    for limit in [1.5, 2.0, 4.0, 8.0] {
        let split = tandem(0.04, 0.035, LossRate::PerSecond(0.4))?;
        let [mean, _] = split.isolated_means();
        settings.push((format!("{limit}"), split.with_capacities(limit * mean, f64::MAX)?));
    }
    settings.push(("none".into(), tandem(0.04, 0.035, LossRate::PerSecond(0.4))?));
    let mut rows = Vec::new();
    let tails = FarTail::all(settings)?;
    for tail in &tails {
        rows.extend(theta(tail));
        rows.extend(tail.probabilities());
        for decades in DECADES {
            let row = tail.decay_ratio(decades);
            rows.push(match tail.decay {
                // A tail that is heavier than every exponential one decays ever more slowly.
                TailDecay::Exponential { .. } if decades == DECADES[1] => {
                    let holds = is_below(row.here, 1.0 - TOLERANCE);
                    ComputedRow { holds, ..row.claimed("Q's tail stays heavy with a limited window (§19.4.6): below 1", true) }
                }
                _ => row,
            });
        }
    }
    let notes = vec![
        "Round trips of 40 and 35 ms, 0.4 losses a second on each leg, the first leg's window limited to a multiple of its mean. With X ≤ c the integral of \
         X over a cycle is at most c times its length, whose tail is exponential, so Q's is exponential too, with the θ of the equations: the paper's \
         remark that the tail stays heavy does not hold in the limit. It holds in practice as far as bursts stay below the limit: up to a \
         probability of some e^(−2c/E[X])."
            .into(),
    ];
    let plots = against_packets("Q's tail, limit ÷ mean window", &tails);
    Ok(ComputedFigure { table: ComputedTable::new(&["limit ÷ mean window", "of"], rows, notes), plots })
}
