//! Baccelli's Figure 19.9: the windows of both connections by the equations and by simulated packets,
//! with the same losses.

use super::{
    paired_run::PairedRun,
    parallel_map::parallel_map,
    plot::{ComputedFigure, ComputedPlot},
    table::{ComputedRow, ComputedTable, over_seeds},
};
use crate::error::PaperError;

/// The settings of Figures 19.2 to 19.4: the paper does not say which of them its figure uses, if any.
const FIGURES: [&str; 3] = ["fig-19.2", "fig-19.3", "fig-19.4"];
/// The number of seeds by default.
pub(super) const SEEDS: u64 = 10;
/// The time over which windows are compared, s: after slow start, which the equations do not model.
const FROM_S: f64 = 60.0;
const UNTIL_S: f64 = 260.0;

/// The windows of both legs at a time, in packets: simulated, and by the equations.
struct Pair {
    at_s: f64,
    packets: [f64; 2],
    equations: [f64; 2],
}

/// Means over the seeds for each leg: the simulated window, the window by the equations, and their
/// distance in % of the first.
pub(super) fn table(seeds: u64) -> Result<ComputedFigure, PaperError> {
    let asked: Vec<(&str, u64)> = FIGURES.iter().flat_map(|figure| (1..=seeds).map(|seed| (*figure, seed))).collect();
    let played: Vec<Vec<Pair>> =
        parallel_map(&asked, |(figure, seed)| play(figure, *seed)).into_iter().collect::<Result<_, PaperError>>()?;
    let mut rows = Vec::new();
    for (figure, runs) in FIGURES.iter().zip(played.chunks(seeds as usize)) {
        for leg in 0..2 {
            let mut add = |what: &str, decimals: usize, of: &dyn Fn(&[Pair]) -> f64| {
                let values: Vec<f64> = runs.iter().map(|run| of(run)).collect();
                let here = over_seeds(&values);
                rows.push(ComputedRow::new(vec![(*figure).to_owned(), (leg + 1).to_string(), what.to_owned()], here, decimals));
            };
            let mean = |run: &[Pair], of: &dyn Fn(&Pair) -> f64| run.iter().map(of).sum::<f64>() / run.len() as f64;
            add("mean window of packets", 1, &|run| mean(run, &|pair| pair.packets[leg]));
            add("mean window by the equations", 1, &|run| mean(run, &|pair| pair.equations[leg]));
            add("they are apart by, % of the mean", 1, &|run| {
                mean(run, &|pair| (pair.packets[leg] - pair.equations[leg]).abs()) / mean(run, &|pair| pair.packets[leg]) * 100.0
            });
        }
    }
    let notes = vec![format!(
        "The paper says \"perfect agreement\" without the setting. Here: those of Figures 19.2 to 19.4, simulated with windows that grow whether \
         used or not. The equations start from the state at {FROM_S} s and have every loss when it hit the packets; compared until {UNTIL_S} s."
    )];
    let firsts = FIGURES.iter().zip(played.iter().step_by(seeds as usize));
    let plots = firsts.flat_map(|(figure, run)| [0, 1].map(|leg| overlay(figure, leg, run))).collect();
    Ok(ComputedFigure { table: ComputedTable::new(&["setting", "leg", "of"], rows, notes), plots })
}

/// Both windows of a leg over time, of the first seed.
fn overlay(figure: &str, leg: usize, run: &[Pair]) -> ComputedPlot {
    const POINTS: usize = 1000;
    let mut plot = ComputedPlot::new(format!("{figure}, leg {}, seed 1", leg + 1), "s", "window, packets");
    let shown: Vec<&Pair> = run.iter().step_by(run.len().div_ceil(POINTS).max(1)).collect();
    plot.add("packets", shown.iter().map(|pair| (pair.at_s, pair.packets[leg])).collect());
    plot.add("equations", shown.iter().map(|pair| (pair.at_s, pair.equations[leg])).collect());
    plot
}

fn play(figure: &str, seed: u64) -> Result<Vec<Pair>, PaperError> {
    let run = PairedRun::play(&format!("baccelli/{figure}.toml"), &["tcp.validation=false"], [FROM_S, UNTIL_S], seed)?;
    let [r1, r2] = run.equations()?.rtts_s();
    let (first, second, followed) = (run.windows(0), run.windows(1), run.follow()?);
    let pairs = first.iter().zip(&second).zip(&followed.states);
    Ok(pairs
        .map(|(((at_s, w1), (_, w2)), state)| Pair { at_s: *at_s, packets: [*w1, *w2], equations: [state.x * r1, state.y * r2] })
        .collect())
}
