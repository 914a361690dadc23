//! The split connection's lemmas on the rate and the buffer, and the questions that the paper leaves open.

use super::{Line, Sheet, exact, side_by_side};
use crate::PaperError;
use theory::{Aimd, LossBasis as Follows, LossProcess as Losses, Mean, TandemModel as Split, TheoryError};

/// Losses of both legs together that a figure is from.
const LOSSES: u64 = 2_000_000;

fn ri(first: (f64, f64), second: (f64, f64)) -> Result<Split, TheoryError> {
    legs(first, second, Losses::PerSecond)
}

fn legs(first: (f64, f64), second: (f64, f64), losses: fn(f64) -> Losses) -> Result<Split, TheoryError> {
    Ok(Split::new(Aimd::new(first.0, losses(first.1))?, Aimd::new(second.0, losses(second.1))?))
}

/// Lemma 19.6.
pub(super) fn below_both_legs() -> Result<Sheet, PaperError> {
    let settings = [
        ("Table 19.1: 40 and 20 ms", ri((0.04, 0.4), (0.02, 0.4))?, 3125.0),
        ("Figure 19.2: 100 and 90 ms", ri((0.1, 0.3), (0.09, 0.3))?, 2.0 / 0.01 / 0.3),
        ("Figure 19.4: 40 and 80 ms", ri((0.04, 0.4), (0.08, 0.2))?, 2.0 / 0.0064 / 0.2),
    ];
    let asked: Vec<_> = settings.iter().flat_map(|one| [1.0, 20.0, 1000.0, 20_000.0].map(|buffer| (one, buffer))).collect();
    let line = |((name, split, least), buffer): &(&(&str, Split, f64), f64)| {
        let share = split.with_buffer(*buffer)?.shortfall(1, LOSSES);
        let here = Mean { mean: 1.0 - share.mean, half: share.half };
        let of = vec![(*name).to_owned(), buffer.to_string(), format!("{least:.1}")];
        Ok(Line::new(of, here, 6).claimed("below 1", share.mean - share.half > 0.0))
    };
    let lines = side_by_side(&asked, line).into_iter().collect::<Result<_, PaperError>>()?;
    let notes = vec![
        "The rate as a part of the slower leg's in isolation, measured against that leg with the same losses: it holds where the whole interval \
         is below 1."
            .into(),
    ];
    Ok(Sheet { head: vec!["setting", "B, packets", "slower leg alone, packets/s"], lines, notes })
}

/// Lemma 19.7 and its analogue of §19.4.5.
pub(super) fn stability() -> Result<Sheet, PaperError> {
    // A buffer that nothing fills, and growth over a long time in it: where the load is above 1 it grows by what the legs' means differ.
    const ENDLESS: f64 = 1e15;
    let mut lines = Vec::new();
    for (name, losses, rate) in [("RI", Losses::PerSecond as fn(f64) -> Losses, 0.4), ("RD", Losses::PerPacket, 0.001)] {
        for ratio in [0.5f64, 0.8, 0.95, 1.05, 1.25, 2.0] {
            // The load is the ratio of the slopes where losses are alike.
            let split = legs((0.04, rate), (0.04 * ratio.sqrt(), rate), losses)?;
            let start = theory::TandemState { x: split.isolated_means()[0], y: split.isolated_means()[1], q: 0.0 };
            let mut path = split.with_buffer(ENDLESS)?.trajectory(start, 1);
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
                0.0 => ("stable", growth.abs() < 0.01 * split.isolated_means()[0]),
                _ => ("grows", (growth / drift - 1.0).abs() < 0.2),
            };
            lines.push(Line::new(of, exact(growth), 1).claimed(says, holds));
        }
    }
    let notes = vec![
        "How fast the buffer grows over the second half of two million events, packets/s, beside the difference of the legs' means in isolation."
            .into(),
    ];
    Ok(Sheet { head: vec!["losses", "ρ", "drift"], lines, notes })
}

/// Open questions (i): the least buffer for a share of the rate, in units of what the slower leg gains between two of its losses.
pub(super) fn buffer() -> Result<Sheet, PaperError> {
    let mut asked = Vec::new();
    for (kind, losses, follows) in [
        ("RI", Losses::PerSecond as fn(f64) -> Losses, Follows::Window),
        ("RD, by what is sent", Losses::PerPacket, Follows::Sending),
        ("RD, by the window", Losses::PerPacket, Follows::Window),
    ] {
        for ratio in [1.1, 1.5, 2.0, 4.0f64] {
            for often in [0.25, 1.0, 4.0f64] {
                for share in [0.9, 0.95, 0.99, 0.999] {
                    asked.push((kind, losses, follows, ratio, often, share));
                }
            }
        }
    }
    type Asked = (&'static str, fn(f64) -> Losses, Follows, f64, f64, f64);
    let line = |(kind, losses, follows, ratio, often, share): &Asked| {
        let slope = often * if *kind == "RI" { *ratio } else { ratio * ratio };
        let split = legs((1.0, 1.0), (slope.powf(-0.5), *often), *losses)?.with_loss_basis(*follows);
        let enough = split.sufficient_buffer(*share, 1, LOSSES / 8)?;
        let of = vec![(*kind).to_owned(), ratio.to_string(), often.to_string(), format!("{}", share * 100.0)];
        let why = format!("waits {:.3} times as long as between two losses", enough.waits_s * split.slower_losses());
        Ok(Line::new(of, enough.packets, 3).because(why))
    };
    let lines = side_by_side(&asked, line).into_iter().collect::<Result<_, PaperError>>()?;
    let notes = vec![
        "In units of α/λ² (RI) and 1/λ (RD) packets of the slower leg, which comes first: in these the equations know only the ratio of the \
         means and how often the faster leg loses (losses of the faster leg over the slower one's, per second or packet). RTT, loss rate and \
         buffer are collapsed into one."
            .into(),
    ];
    Ok(Sheet { head: vec!["losses", "means' ratio", "losses' ratio", "% of the rate"], lines, notes })
}
