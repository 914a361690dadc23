//! The weight of tails: of the buffer, of the growth over a cycle, and of Hill's estimate for known
//! laws.

use super::{
    far_tail,
    plot::{ComputedFigure, ComputedPlot},
    simulated_buffer,
    table::{ComputedRow, ComputedTable, exact},
};
use crate::error::PaperError;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use theory::{Aimd, LossRate, Mean, TandemModel, TandemState, tail};

/// The number of samples of the buffer.
const SAMPLES: usize = 1_000_000;
/// Probabilities between which slopes are taken.
const RANGES: [(f64, f64); 3] = [(1e-1, 1e-2), (1e-2, 1e-3), (1e-3, 1e-5)];

/// Samples of an unlimited buffer at random times, in the mean so far apart that several losses lie
/// in between.
fn buffer_samples(split: &TandemModel) -> Vec<f64> {
    let [x, y] = split.isolated_means();
    let gap_s = 4.0 / split.slower_losses();
    split.trajectory(TandemState { x, y, q: 0.0 }, 3).samples(gap_s, 4).skip(1000).take(SAMPLES).map(|state| state.q).collect()
}

fn slow_then_fast(losses: fn(f64) -> LossRate, rate: f64) -> Result<TandemModel, PaperError> {
    Ok(TandemModel::new(Aimd::new(0.09, losses(rate))?, Aimd::new(0.03, losses(rate))?))
}

/// Where samples of the buffer come from.
const EQUATIONS: &str = "equations";
const PACKETS: [(&str, &str); 2] = [("packets, unused windows grow", "tcp.validation=false"), ("packets, as Linux", "tcp.validation=true")];

/// The curves of Figures 19.6 and 19.8, from several sources.
struct TailCurves {
    plots: Vec<ComputedPlot>,
}

impl TailCurves {
    fn new(of: &str) -> Self {
        let plots = vec![
            ComputedPlot::new(format!("Hill's estimate, {of}"), "log₁₀ k", "γ"),
            ComputedPlot::new(format!("R statistic for the second moment, {of}"), "log₁₀ n", "Rₙ"),
            ComputedPlot::new(format!("Q's tail, {of}"), "ln q", "ln(−ln P(Q > q | Q > 0))"),
        ];
        TailCurves { plots }
    }

    fn add(&mut self, from: &str, queue: &[f64]) -> Result<(), PaperError> {
        const POINTS: i32 = 80;
        let spread = |least: f64, most: f64| (0..=POINTS).map(move |at| least * (most / least).powf(f64::from(at) / f64::from(POINTS)));
        let positive = queue.iter().filter(|q| **q > 0.0).count() as f64;
        let counts: Vec<usize> = spread(100.0, positive / 2.0).map(|k| k as usize).collect();
        let hill: Vec<_> =
            tail::hill_curve(queue, &counts)?.into_iter().map(|(k, gamma)| ((k as f64).log10(), gamma.mean, gamma.half)).collect();
        self.plots[0].add_with_interval(from, &hill);
        let ratios = tail::max_over_sum(queue, 2.0);
        let sizes = spread(100.0, queue.len() as f64).map(|n| n as usize);
        self.plots[1].add(from, sizes.map(|n| ((n as f64).log10(), ratios[n - 1])).collect());
        self.plots[2].add(from, tail::weibull_curve(queue)?);
        Ok(())
    }
}

/// Figure 19.6: the slow sender and fast forwarder of Figure 19.3.
pub(super) fn by_time(seeds: u64) -> Result<ComputedFigure, PaperError> {
    let mut curves = TailCurves::new("losses by time");
    let equations = buffer_samples(&slow_then_fast(LossRate::PerSecond, 0.4)?);
    curves.add(EQUATIONS, &equations)?;
    let mut rows = by_time_of(EQUATIONS, &equations)?;
    for (from, setting) in PACKETS {
        let packets = simulated_buffer::held("baccelli/fig-19.3.toml", &[setting], seeds)?;
        curves.add(from, &packets)?;
        rows.extend(by_time_of(from, &packets)?);
    }
    let notes = vec![
        "Hill's γ above 1/2 indicates a Pareto law with an infinite second moment; the R statistic indicates a finite one, which is right."
            .into(),
        simulated_buffer::note(seeds),
    ];
    Ok(ComputedFigure { table: ComputedTable::new(&["from", "of"], rows, notes), plots: curves.plots })
}

fn by_time_of(from: &str, queue: &[f64]) -> Result<Vec<ComputedRow>, PaperError> {
    let row = |text: &str, here: Mean, decimals: usize| ComputedRow::new(vec![from.to_owned(), text.to_owned()], here, decimals);
    let (fit, verdict) = (tail::weibull(queue)?, tail::verdict(queue)?);
    let positive = queue.iter().filter(|q| **q > 0.0).count();
    let mut rows = vec![
        row("E[Q], packets", exact(queue.iter().sum::<f64>() / queue.len() as f64), 1),
        row("share of time with something in the buffer", exact(positive as f64 / queue.len() as f64), 4),
        row("Weibull shape by maximum likelihood", fit.shape, 3)
            .compared_with("0.5")
            .with_note("of positive samples; the printed one is of ns-2's samples"),
    ];
    for share in [0.001, 0.01, 0.1] {
        let hill = tail::hill(queue, (share * positive as f64) as usize)?;
        rows.push(
            row(&format!("Hill's γ, the largest {} %", share * 100.0), hill, 3)
                .claimed("Hill's γ is between 0 and 1 (§19.3.2)", hill.mean > 0.0 && hill.mean < 1.0),
        );
    }
    let ratios = tail::max_over_sum(queue, 2.0);
    let [early, late] = [ratios[queue.len() / 100], ratios[queue.len() - 1]];
    rows.push(row("R statistic, second moment, of the first hundredth of the samples", exact(early), 4));
    rows.push(row("R statistic, second moment, of all", exact(late), 4).claimed("the R statistic goes to 0 (§19.3.2)", late < early / 4.0));
    rows.push(
        row("slope of ln(−ln P(Q > x)), 1 is exponential", verdict.slope, 3)
            .claimed("Q's tail is heavy (observation 19.4): heavier than exponential", verdict.weight == tail::TailWeight::Heavier),
    );
    Ok(rows)
}

/// Figure 19.8.
pub(super) fn per_packet(seeds: u64) -> Result<ComputedFigure, PaperError> {
    let mut rows = Vec::new();
    let mut plots = Vec::new();
    for (name, second, delay) in [("90 and 30 ms", 0.03, "link.2.delay=15ms"), ("90 and 80 ms", 0.08, "link.2.delay=40ms")] {
        let split = TandemModel::new(Aimd::new(0.09, LossRate::PerPacket(0.03))?, Aimd::new(second, LossRate::PerPacket(0.03))?);
        let mut curves = TailCurves::new(&format!("losses per packet, {name}"));
        let equations = buffer_samples(&split);
        curves.add(EQUATIONS, &equations)?;
        rows.extend(per_packet_of([name, EQUATIONS], &equations)?);
        for (from, setting) in PACKETS {
            let sets = [setting, delay, "link.1.loss={ per_packet = 0.03 }", "link.2.loss={ per_packet = 0.03 }"];
            let packets = simulated_buffer::held("baccelli/fig-19.3.toml", &sets, seeds)?;
            curves.add(from, &packets)?;
            rows.extend(per_packet_of([name, from], &packets)?);
        }
        plots.extend(curves.plots);
    }
    let notes = vec![
        "Slopes of ln(−ln P(Q > x)) over ln x between two probabilities: 1 is exponential, and a light tail has 1 or more far out (observation 19.5). \
         With nearly equal legs they reach it. Where the second leg is much faster the buffer is nearly always empty, and the bulk of its contents \
         looks as under losses per second: only the far tail differs."
            .into(),
        simulated_buffer::note(seeds),
    ];
    Ok(ComputedFigure { table: ComputedTable::new(&["round trips", "from", "of"], rows, notes), plots })
}

fn per_packet_of(of: [&str; 2], queue: &[f64]) -> Result<Vec<ComputedRow>, PaperError> {
    let mut rows = Vec::new();
    let mut add = |what: &str, mean: Mean, decimals: usize| {
        rows.push(ComputedRow::new(of.into_iter().chain([what]).map(str::to_owned).collect(), mean, decimals));
    };
    let count = queue.len();
    add("E[Q], packets", exact(queue.iter().sum::<f64>() / count as f64), 3);
    add("share of time with something in the buffer", exact(queue.iter().filter(|q| **q > 0.0).count() as f64 / count as f64), 4);
    let ratios = tail::max_over_sum(queue, 2.0);
    let positive = queue.iter().filter(|q| **q > 0.0).count();
    for share in [0.001, 0.01, 0.1] {
        add(&format!("Hill's γ, the largest {} %", share * 100.0), tail::hill(queue, (share * positive as f64) as usize)?, 3);
    }
    add("R statistic, second moment, of the first hundredth of the samples", exact(ratios[count / 100]), 4);
    add("R statistic, second moment, of all", exact(ratios[count - 1]), 4);
    for (from, to) in RANGES {
        // Simulated samples are too few for probabilities below one in a thousand.
        if count >= SAMPLES || to >= 1e-3 {
            add(&format!("slope from {from} to {to}"), tail::slope(queue, from, to)?, 3);
        }
    }
    Ok(rows)
}

/// A Pareto sample for a uniform one: the inverse of P(X > x) = x^(−1/2).
fn pareto(u: f64) -> f64 {
    u.powi(-2)
}

/// A Weibull sample for a uniform one: the inverse of P(X > x) = exp(−√x).
fn weibull(u: f64) -> f64 {
    u.ln().powi(2)
}

/// Figure 19.7: Hill's estimate from 1000 samples of either law, over many repetitions.
pub(super) fn hill_bands() -> Result<ComputedFigure, PaperError> {
    let mut plot = ComputedPlot::new("Hill's estimate of 1000 samples: where 95 % of it lie", "k", "γ");
    const SIZE: usize = 1000;
    const TIMES: usize = 1000;
    let mut random = Pcg64Mcg::seed_from_u64(7);
    let mut rows = Vec::new();
    let laws = [("Pareto, index 1/2", pareto as fn(f64) -> f64, 2.0), ("Weibull, shape 1/2", weibull, 0.0)];
    for (name, inverse, gamma) in laws {
        let mut band = Vec::new();
        for k in [10, 30, 100, 300] {
            let mut found: Vec<f64> = (0..TIMES)
                .map(|_| {
                    let mut drawn: Vec<f64> = (0..SIZE).map(|_| inverse(1.0 - random.random::<f64>())).collect();
                    drawn.sort_unstable_by(|a, b| b.total_cmp(a));
                    drawn[..k].iter().map(|x| x.ln()).sum::<f64>() / k as f64 - drawn[k].ln()
                })
                .collect();
            found.sort_unstable_by(f64::total_cmp);
            let [low, high] = [found[TIMES / 40], found[TIMES - TIMES / 40]];
            let of = vec![name.to_owned(), k.to_string(), format!("{gamma}")];
            rows.push(ComputedRow::new(of, Mean { mean: (low + high) / 2.0, half: (high - low) / 2.0 }, 3));
            band.push((k as f64, (low + high) / 2.0, (high - low) / 2.0));
        }
        plot.add_with_interval(name, &band);
    }
    let notes = vec![
        "The paper does not say what its figure shows. Here ± spans 95 % of Hill's γ over 1000 sets of 1000 samples. The Weibull law has γ = 0, \
         and looks at every k like a Pareto law with another index, with an equally narrow band."
            .into(),
    ];
    Ok(ComputedFigure { table: ComputedTable::new(&["law", "k", "true γ"], rows, notes), plots: vec![plot] })
}

/// Lemma 19.8: slopes over a cycle from samples, and the far tail of the buffer.
pub(super) fn cycle() -> Result<ComputedFigure, PaperError> {
    let mut rows = Vec::new();
    for (name, first, second) in [("30 and 20 ms", 0.03, 0.02), ("40 and 35 ms", 0.04, 0.035)] {
        let split = TandemModel::new(Aimd::new(first, LossRate::PerSecond(0.4))?, Aimd::new(second, LossRate::PerSecond(0.4))?);
        let deltas: Vec<f64> = split.renewal_cycles(5).take(3 * SAMPLES).collect();
        for (from, to) in RANGES {
            let of = vec![name.to_owned(), format!("Δ over a cycle: slope of ln(−ln P), {from:e} … {to:e}")];
            rows.push(ComputedRow::new(of, tail::slope(&deltas, from, to)?, 3));
        }
    }
    let (far_rows, plots) = far_tail::by_time()?;
    rows.extend(far_rows);
    let notes = vec![
        "The lemma bounds the tail from below by a Weibull law of shape 1/2, which by the equations is exp(−c√q) with c = λR₁√2: the first leg has no loss \
         for √(2q)R₁ seconds. P ~ K² e^(−2/ρ) (c√q + 1) e^(−c√q) / (2(1/ρ − 1)) with K = 3.4627, the asymptote of one burst, is heavier than that by the \
         factor c√q + 1. The lemma holds if P is above it, with its whole interval: the ratio tends to 1, so that the shape is 1/2 in the limit and no \
         less. Slopes of 1/2 come late: near ρ = 1 the tail looks exponential for long, and −ln P over √q exceeds c before it falls to it."
            .into(),
        "Q by multilevel splitting on the exact path. Δ from samples: slopes of ln(−ln P) over ln x between two probabilities, 1 is exponential. A cycle \
         begins at a loss of the first leg after which neither rate is above its mean, and ends at the next such loss."
            .into(),
    ];
    Ok(ComputedFigure { table: ComputedTable::new(&["round trips", "of"], rows, notes), plots })
}
