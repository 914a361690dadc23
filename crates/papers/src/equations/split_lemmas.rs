//! The lemmas on the rate and the buffer of a split connection, and an open question of the paper.

use super::{
    parallel_map::parallel_map,
    table::{ComputedRow, ComputedTable, exact},
};
use crate::error::PaperError;
use theory::{Aimd, LossBasis, LossRate, Mean, TandemModel, TandemState, TheoryError};

/// The number of losses of both legs together in a path.
const LOSSES: u64 = 2_000_000;

fn ri(first: (f64, f64), second: (f64, f64)) -> Result<TandemModel, TheoryError> {
    legs(first, second, LossRate::PerSecond)
}

fn legs(first: (f64, f64), second: (f64, f64), losses: fn(f64) -> LossRate) -> Result<TandemModel, TheoryError> {
    Ok(TandemModel::new(Aimd::new(first.0, losses(first.1))?, Aimd::new(second.0, losses(second.1))?))
}

/// Lemma 19.6.
pub(super) fn below_both_legs() -> Result<ComputedTable, PaperError> {
    let settings = [
        ("Table 19.1: 40 and 20 ms", ri((0.04, 0.4), (0.02, 0.4))?, 3125.0),
        ("Figure 19.2: 100 and 90 ms", ri((0.1, 0.3), (0.09, 0.3))?, 2.0 / 0.01 / 0.3),
        ("Figure 19.4: 40 and 80 ms", ri((0.04, 0.4), (0.08, 0.2))?, 2.0 / 0.0064 / 0.2),
    ];
    let asked: Vec<_> = settings.iter().flat_map(|one| [1.0, 20.0, 1000.0, 20_000.0].map(|buffer| (one, buffer))).collect();
    let row = |((name, split, least), buffer): &(&(&str, TandemModel, f64), f64)| {
        let share = split.with_buffer(*buffer)?.shortfall(1, LOSSES);
        let here = Mean { mean: 1.0 - share.mean, half: share.half };
        let of = vec![(*name).to_owned(), buffer.to_string(), format!("{least:.1}")];
        Ok(ComputedRow::new(of, here, 6)
            .claimed("the rate is below that of the slower leg (observation 19.3, Lemma 19.6)", share.mean - share.half > 0.0))
    };
    let rows = parallel_map(&asked, row).into_iter().collect::<Result<_, PaperError>>()?;
    let notes = vec![
        "The rate as a fraction of the rate of the slower leg in isolation, with the same losses. It holds if the whole interval is below 1."
            .into(),
    ];
    Ok(ComputedTable::new(&["setting", "B, packets", "slower leg alone, packets/s"], rows, notes))
}

/// Lemma 19.7 and its analogue of §19.4.5.
pub(super) fn stability() -> Result<ComputedTable, PaperError> {
    // The growth of a buffer that never fills: at a load above 1 it is the difference of the means.
    const UNLIMITED: f64 = 1e15;
    let mut rows = Vec::new();
    for (name, losses, rate) in [("RI", LossRate::PerSecond as fn(f64) -> LossRate, 0.4), ("RD", LossRate::PerPacket, 0.001)] {
        for ratio in [0.5f64, 0.8, 0.95, 1.05, 1.25, 2.0] {
            // With equal losses the load is the ratio of the slopes.
            let split = legs((0.04, rate), (0.04 * ratio.sqrt(), rate), losses)?;
            let start = TandemState { x: split.isolated_means()[0], y: split.isolated_means()[1], q: 0.0 };
            let mut path = split.with_buffer(UNLIMITED)?.trajectory(start, 1);
            let (mut time, mut half_way) = (0.0, 0.0);
            for step in 0..LOSSES {
                time += path.step().span;
                if step == LOSSES / 2 {
                    half_way = path.state().q;
                }
            }
            let growth = (path.state().q - half_way) / (time / 2.0);
            let drift = (split.isolated_means()[0] - split.isolated_means()[1]).max(0.0);
            let of = vec![name.to_owned(), format!("{ratio}"), format!("{drift:.1}")];
            let (says, holds) = match drift {
                0.0 => ("the buffer is stable (Lemma 19.7)", growth.abs() < 0.01 * split.isolated_means()[0]),
                _ => ("the buffer grows (Lemma 19.7)", (growth / drift - 1.0).abs() < 0.2),
            };
            rows.push(ComputedRow::new(of, exact(growth), 1).claimed(says, holds));
        }
    }
    let notes = vec![
        "Growth of the buffer over the second half of two million events, packets/s, beside the difference of the means of the legs in isolation."
            .into(),
    ];
    Ok(ComputedTable::new(&["losses", "ρ", "drift"], rows, notes))
}

/// Open questions (i): the least buffer for a share of the rate, in units of what the slower leg
/// gains between two of its losses.
pub(super) fn buffer() -> Result<ComputedTable, PaperError> {
    let mut asked = Vec::new();
    for (kind, losses, follows) in [
        ("RI", LossRate::PerSecond as fn(f64) -> LossRate, LossBasis::Window),
        ("RD, by what is sent", LossRate::PerPacket, LossBasis::Sending),
        ("RD, by the window", LossRate::PerPacket, LossBasis::Window),
    ] {
        for ratio in [1.1, 1.5, 2.0, 4.0f64] {
            for often in [0.25, 1.0, 4.0f64] {
                for share in [0.9, 0.95, 0.99, 0.999] {
                    asked.push((kind, losses, follows, ratio, often, share));
                }
            }
        }
    }
    type Asked = (&'static str, fn(f64) -> LossRate, LossBasis, f64, f64, f64);
    let row = |(kind, losses, follows, ratio, often, share): &Asked| {
        let slope = often * if *kind == "RI" { *ratio } else { ratio * ratio };
        let split = legs((1.0, 1.0), (slope.powf(-0.5), *often), *losses)?.with_loss_basis(*follows);
        let enough = split.sufficient_buffer(*share, 1, LOSSES / 8)?;
        let of = vec![(*kind).to_owned(), ratio.to_string(), often.to_string(), format!("{}", share * 100.0)];
        let why = format!("waits {:.3} times as long as between two losses", enough.waits_s * split.slower_losses());
        Ok(ComputedRow::new(of, enough.packets, 3).with_note(why))
    };
    let rows = parallel_map(&asked, row).into_iter().collect::<Result<_, PaperError>>()?;
    let notes = vec![
        "In units of α/λ² (RI) or 1/λ (RD) packets of the slower leg, which is the first. In these units the equations depend only on the ratio of \
         the means and on the ratio of the losses (faster leg over slower leg, per second or per packet): RTT, loss rate and buffer collapse into one."
            .into(),
    ];
    Ok(ComputedTable::new(&["losses", "means' ratio", "losses' ratio", "% of the rate"], rows, notes))
}

/// Open questions (i)(b) and (ii)(b): the stationary rate and the mean content as functions of B,
/// in natural units, for legs of the same mean as well.
pub(super) fn rate_of_buffer() -> Result<ComputedTable, PaperError> {
    let mut asked = Vec::new();
    for (kind, losses) in [("RI", LossRate::PerSecond as fn(f64) -> LossRate), ("RD", LossRate::PerPacket)] {
        for ratio in [1.0, 1.1, 1.5, 2.0f64] {
            for buffer in [0.1, 1.0, 10.0, 100.0] {
                asked.push((kind, losses, ratio, buffer));
            }
        }
    }
    let row = |(kind, losses, ratio, buffer): &(&'static str, fn(f64) -> LossRate, f64, f64)| {
        let slope = if *kind == "RI" { *ratio } else { ratio * ratio };
        let split = legs((1.0, 1.0), (slope.powf(-0.5), 1.0), *losses)?.with_buffer(*buffer)?;
        let lost = split.shortfall(1, LOSSES);
        let found = split.estimate(1, LOSSES)?;
        let of = |what: &str| vec![(*kind).to_owned(), ratio.to_string(), buffer.to_string(), what.to_owned()];
        let share = Mean { mean: 1.0 - lost.mean, half: lost.half };
        let [mut rate, mut queue] =
            [ComputedRow::new(of("rate ÷ the slower leg's alone"), share, 5), ComputedRow::new(of("E[Q]"), found.queue, 4)];
        // With larger buffers the grid has too many cells for a quick answer.
        if *buffer <= 1.0 || (*buffer <= 10.0 && *ratio == 1.0) {
            let solved = split.stationary_means(24)?;
            rate = rate.with_note(format!("by the solver {:.4}", solved.rate / split.isolated_means()[0]));
            queue = queue.with_note(format!("by the solver {:.4}", solved.queue));
        }
        Ok([rate, queue])
    };
    let rows: Vec<[ComputedRow; 2]> = parallel_map(&asked, row).into_iter().collect::<Result<_, PaperError>>()?;
    let notes = vec![
        "B and E[Q] in units of α/λ² (RI) or 1/λ (RD) packets of the first leg, which is the slower one; both legs lose equally often. The rate beside \
         that of the isolated leg with the same losses. With equal means nothing but B bounds the buffer: E[Q] is B/2 by the duality Q ↔ B − Q, and the \
         rate falls short by the order of one unit over B. The solver iterates the distribution of both rates and the content on two grids, and \
         extrapolates; the other values are means over simulated trajectories."
            .into(),
    ];
    Ok(ComputedTable::new(&["losses", "means' ratio", "B", "of"], rows.into_iter().flatten().collect(), notes))
}
