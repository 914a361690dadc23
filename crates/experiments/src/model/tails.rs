//! How heavy tails are: of the buffer, of what a cycle brings, and of what Hill's estimate makes of known laws.

use super::{Line, Sheet, exact, packets};
use crate::PaperError;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use theory::{Aimd, LossProcess as Losses, Mean, TandemModel as Split, TandemState as State, tail};

/// Looks at the buffer that a figure is from.
const LOOKS: usize = 1_000_000;
/// Probabilities between which slopes are taken.
const RANGES: [(f64, f64); 3] = [(1e-1, 1e-2), (1e-2, 1e-3), (1e-3, 1e-5)];

/// What the buffer holds at random times, without a bound: so far apart in the mean that there are some losses in between.
fn looks(split: &Split) -> Vec<f64> {
    let [x, y] = split.isolated_means();
    let gap_s = 4.0 / split.slower_losses();
    split.trajectory(State { x, y, q: 0.0 }, 3).samples(gap_s, 4).skip(1000).take(LOOKS).map(|state| state.q).collect()
}

fn slow_then_fast(losses: fn(f64) -> Losses, rate: f64) -> Result<Split, PaperError> {
    Ok(Split::new(Aimd::new(0.09, losses(rate))?, Aimd::new(0.03, losses(rate))?))
}

/// Whose samples of the buffer.
const EQUATIONS: &str = "equations";
const PACKETS: [(&str, &str); 2] = [("packets, unused windows grow", "tcp.validation=false"), ("packets, as Linux", "tcp.validation=true")];

/// Figure 19.6: the slow sender and fast forwarder of Figure 19.3.
pub(super) fn by_time() -> Result<Sheet, PaperError> {
    let mut lines = by_time_of(EQUATIONS, &looks(&slow_then_fast(Losses::PerSecond, 0.4)?))?;
    for (from, setting) in PACKETS {
        lines.extend(by_time_of(from, &packets::held("baccelli/fig-19.3.toml", &[setting])?)?);
    }
    let notes = vec![
        "Hill's γ says Pareto with an infinite second moment where it is above 1/2, and the R statistic that it is finite: the second is right.".into(),
        packets::note(),
    ];
    Ok(Sheet { head: vec!["from", "of"], lines, notes })
}

fn by_time_of(from: &str, queue: &[f64]) -> Result<Vec<Line>, PaperError> {
    let line = |text: &str, here: Mean, decimals: usize| Line::new(vec![from.to_owned(), text.to_owned()], here, decimals);
    let (fit, verdict) = (tail::weibull(queue)?, tail::verdict(queue)?);
    let positive = queue.iter().filter(|q| **q > 0.0).count();
    let mut lines = vec![
        line("E[Q], packets", exact(queue.iter().sum::<f64>() / queue.len() as f64), 1),
        line("share of time with something in the buffer", exact(positive as f64 / queue.len() as f64), 4),
        line("Weibull shape by maximum likelihood", fit.shape, 3)
            .beside("0.5")
            .because("of what is positive; the printed one is of ns-2's samples"),
    ];
    for share in [0.001, 0.01, 0.1] {
        let hill = tail::hill(queue, (share * positive as f64) as usize)?;
        lines.push(
            line(&format!("Hill's γ, the largest {} %", share * 100.0), hill, 3)
                .claimed("between 0 and 1", hill.mean > 0.0 && hill.mean < 1.0),
        );
    }
    let ratios = tail::max_over_sum(queue, 2.0);
    let [early, late] = [ratios[queue.len() / 100], ratios[queue.len() - 1]];
    lines.push(line("R statistic, second moment, of the first hundredth of the looks", exact(early), 4));
    lines.push(line("R statistic, second moment, of all", exact(late), 4).claimed("goes to 0", late < early / 4.0));
    lines.push(
        line("slope of ln(−ln P(Q > x)), 1 is exponential", verdict.slope, 3)
            .claimed("heavier", verdict.weight == tail::TailWeight::Heavier)
            .because("observation 19.4"),
    );
    Ok(lines)
}

/// Figure 19.8.
pub(super) fn per_packet() -> Result<Sheet, PaperError> {
    let mut lines = Vec::new();
    for (name, second, delay) in [("90 and 30 ms", 0.03, "link.2.delay=15ms"), ("90 and 80 ms", 0.08, "link.2.delay=40ms")] {
        let split = Split::new(Aimd::new(0.09, Losses::PerPacket(0.03))?, Aimd::new(second, Losses::PerPacket(0.03))?);
        lines.extend(per_packet_of([name, EQUATIONS], &looks(&split))?);
        for (from, setting) in PACKETS {
            let sets = [setting, delay, "link.1.loss={ per_packet = 0.03 }", "link.2.loss={ per_packet = 0.03 }"];
            lines.extend(per_packet_of([name, from], &packets::held("baccelli/fig-19.3.toml", &sets)?)?);
        }
    }
    let notes = vec![
        "Slopes of ln(−ln P(Q > x)) over ln x between two probabilities: 1 is exponential, and light is 1 or more far out (observation 19.5). With \
         legs that are nearly alike they come up to it. Where the second leg is much faster the buffer is nearly always empty, and the bulk of \
         what is in it looks as it does under losses by time: only the far tail tells."
            .into(),
        packets::note(),
    ];
    Ok(Sheet { head: vec!["round trips", "from", "of"], lines, notes })
}

fn per_packet_of(of: [&str; 2], queue: &[f64]) -> Result<Vec<Line>, PaperError> {
    let mut lines = Vec::new();
    let mut add = |what: &str, mean: Mean, decimals: usize| {
        lines.push(Line::new(of.into_iter().chain([what]).map(str::to_owned).collect(), mean, decimals));
    };
    let count = queue.len();
    add("E[Q], packets", exact(queue.iter().sum::<f64>() / count as f64), 3);
    add("share of time with something in the buffer", exact(queue.iter().filter(|q| **q > 0.0).count() as f64 / count as f64), 4);
    let ratios = tail::max_over_sum(queue, 2.0);
    add("R statistic, second moment, of the first hundredth of the looks", exact(ratios[count / 100]), 4);
    add("R statistic, second moment, of all", exact(ratios[count - 1]), 4);
    for (from, to) in RANGES {
        // Of what is rarer than one look in a thousand packets' samples say nothing.
        if count >= LOOKS || to >= 1e-3 {
            add(&format!("slope from {from} to {to}"), tail::slope(queue, from, to)?, 3);
        }
    }
    Ok(lines)
}

/// By the inverse of P(X > x): x^(−1/2) …
fn pareto(u: f64) -> f64 {
    u.powi(-2)
}

/// … and exp(−√x).
fn weibull(u: f64) -> f64 {
    u.ln().powi(2)
}

/// Figure 19.7: Hill's estimate from 1000 samples of either law, over many repetitions.
pub(super) fn hill_bands() -> Result<Sheet, PaperError> {
    const SAMPLES: usize = 1000;
    const TIMES: usize = 1000;
    let mut random = Pcg64Mcg::seed_from_u64(7);
    let mut lines = Vec::new();
    let laws = [("Pareto, index 1/2", pareto as fn(f64) -> f64, 2.0), ("Weibull, shape 1/2", weibull, 0.0)];
    for (name, inverse, gamma) in laws {
        for k in [10, 30, 100, 300] {
            let mut found: Vec<f64> = (0..TIMES)
                .map(|_| {
                    let mut drawn: Vec<f64> = (0..SAMPLES).map(|_| inverse(1.0 - random.random::<f64>())).collect();
                    drawn.sort_unstable_by(|a, b| b.total_cmp(a));
                    drawn[..k].iter().map(|x| x.ln()).sum::<f64>() / k as f64 - drawn[k].ln()
                })
                .collect();
            found.sort_unstable_by(f64::total_cmp);
            let [low, high] = [found[TIMES / 40], found[TIMES - TIMES / 40]];
            let of = vec![name.to_owned(), k.to_string(), format!("{gamma}")];
            lines.push(Line::new(of, Mean { mean: (low + high) / 2.0, half: (high - low) / 2.0 }, 3));
        }
    }
    let notes = vec![
        "The paper does not say what its figure shows; here: ± spans 95 % of Hill's γ over 1000 sets of 1000 samples. The Weibull law has γ = 0, \
         and looks at every k like a Pareto law of another index, with a band as narrow."
            .into(),
    ];
    Ok(Sheet { head: vec!["law", "k", "true γ"], lines, notes })
}

/// Lemma 19.8.
pub(super) fn cycle() -> Result<Sheet, PaperError> {
    let mut lines = Vec::new();
    for (name, first, second) in [("30 and 20 ms", 0.03, 0.02), ("40 and 35 ms", 0.04, 0.035)] {
        let split = Split::new(Aimd::new(first, Losses::PerSecond(0.4))?, Aimd::new(second, Losses::PerSecond(0.4))?);
        let deltas: Vec<f64> = split.renewal_cycles(5).take(3 * LOOKS).collect();
        let queue = looks(&split);
        for (what, samples) in [("Δ over a cycle", &deltas), ("Q", &queue)] {
            for (from, to) in RANGES {
                let slope = tail::slope(samples, from, to)?;
                let of = vec![name.to_owned(), what.to_owned(), format!("{from} … {to}")];
                // Where the interval has both nothing follows.
                let holds = if slope.mean + slope.half < 1.0 { Some(true) } else { (slope.mean - slope.half > 1.0).then_some(false) };
                lines.push(Line { holds, ..Line::new(of, slope, 3).claimed("heavier than exponential", true) });
            }
        }
    }
    let notes = vec![
        "Slopes of ln(−ln P) over ln x between two probabilities: 1 is exponential, 1/2 Weibull of shape 1/2, and heavier is less. The lemma is about \
         the limit: it bounds the tail from below by one of shape 1/2, whose slope those here come down to."
            .into(),
        "A cycle is from one loss of the first leg after which neither rate is above its mean to the next such.".into(),
    ];
    Ok(Sheet { head: vec!["round trips", "of", "probabilities"], lines, notes })
}
