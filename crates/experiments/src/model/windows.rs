//! Baccelli's Figure 19.9: the windows of both connections by the equations and by packets, with the same losses.

use super::{Line, Sheet, side_by_side};
use crate::{PaperError, index::PAPERS};
use link::Time;
use scenario::{Assignment, Outcome, PKT, Purpose, Scenario, ScenarioFile, half_width, stream};
use sim::Sim;
use theory::{Aimd, Losses, Mean, Split, State};

/// The settings of Figures 19.2 to 19.4: the paper does not say which of them, if any, its figure is of.
const FIGURES: [&str; 3] = ["fig-19.2", "fig-19.3", "fig-19.4"];
const SEEDS: u64 = 10;
/// From when until when windows are compared, s: slow start, which the equations have not, is over.
const FROM_S: f64 = 60.0;
const UNTIL_S: f64 = 260.0;

/// What packets and equations had at a time: the windows of both legs, packets.
type Pair = ([f64; 2], [f64; 2]);

/// Means over the seeds, of leg 1 and 2, of: the window of the packets, that of the equations, the distance of the two over the first, %.
pub(super) fn sheet() -> Result<Sheet, PaperError> {
    let asked: Vec<(&str, u64)> = FIGURES.iter().flat_map(|figure| (1..=SEEDS).map(|seed| (*figure, seed))).collect();
    let played: Vec<Vec<Pair>> =
        side_by_side(&asked, |(figure, seed)| play(figure, *seed)).into_iter().collect::<Result<_, PaperError>>()?;
    let mut lines = Vec::new();
    for (figure, runs) in FIGURES.iter().zip(played.chunks(SEEDS as usize)) {
        for leg in 0..2 {
            let mut add = |what: &str, decimals: usize, of: &dyn Fn(&[Pair]) -> f64| {
                let values: Vec<f64> = runs.iter().map(|run| of(run)).collect();
                let here = Mean { mean: values.iter().sum::<f64>() / values.len() as f64, half: half_width(&values) };
                lines.push(Line::new(vec![(*figure).to_owned(), (leg + 1).to_string(), what.to_owned()], here, decimals));
            };
            let mean = |run: &[Pair], of: &dyn Fn(&Pair) -> f64| run.iter().map(of).sum::<f64>() / run.len() as f64;
            add("mean window of packets", 1, &|run| mean(run, &|pair| pair.0[leg]));
            add("mean window by the equations", 1, &|run| mean(run, &|pair| pair.1[leg]));
            add("they are apart by, % of the mean", 1, &|run| {
                mean(run, &|pair| (pair.0[leg] - pair.1[leg]).abs()) / mean(run, &|pair| pair.0[leg]) * 100.0
            });
        }
    }
    let notes = vec![format!(
        "The paper says \"perfect agreement\" and not of which setting. Here: those of Figures 19.2 to 19.4, simulated with windows that grow whether \
         used or not, and the equations from the state of {FROM_S} s on, with every loss when it hit the packets; compared until {UNTIL_S} s."
    )];
    Ok(Sheet { head: vec!["setting", "leg", "of"], lines, notes })
}

fn play(figure: &str, seed: u64) -> Result<Vec<Pair>, PaperError> {
    let path = format!("baccelli/{figure}.toml");
    let wrong = |what: String| PaperError::Wrong { experiment: format!("papers/{path}"), what };
    let text = PAPERS.get_file(&path).and_then(include_dir::File::contents_utf8).ok_or_else(|| wrong("there is no such file".into()))?;
    let sets = [format!("duration={UNTIL_S}s"), "tcp.validation=false".into()];
    let sets: Vec<Assignment> = sets.iter().map(|set| set.parse()).collect::<Result<_, String>>().map_err(wrong)?;
    let scenario = &ScenarioFile::parse(text, &path)?.variants(&sets)?[0].scenario;
    let (outcome, _) = Sim::default().play(scenario, seed, &()).map_err(|error| wrong(error.to_string()))?;
    let curve = |what: &str, whose: &str| {
        let found = outcome.series.iter().find(|series| series.what == what && series.whose == whose);
        found.map(|found| found.t.iter().copied().zip(found.v.iter().copied()).filter(|(t, _)| *t >= FROM_S).collect::<Vec<_>>())
    };
    let curves = || Some([curve("cwnd", "flow 0 leg 1")?, curve("cwnd", "flow 0 leg 2")?, curve("held", "all")?]);
    let [first, second, held] = curves().ok_or_else(|| wrong("the simulator shows no windows".into()))?;
    let split = equations(scenario)?;
    let losses = [losses(scenario, 0, seed, &outcome), losses(scenario, 1, seed, &outcome)];
    let since: Vec<Vec<f64>> =
        losses.iter().map(|all| all.iter().filter(|at| **at > first[0].0).map(|at| at - first[0].0).collect()).collect();
    let [r1, r2] = split.rtts_s();
    let payload = 1448.0;
    let start = State { x: first[0].1 / r1, y: second[0].1 / r2, q: held[0].1 / payload };
    let mut path = split.path_with_losses(start, [&since[0], &since[1]])?;
    let (mut segment, mut gone) = (path.step(), first[0].0);
    let pairs = first.iter().zip(&second).map(|((t, w1), (_, w2))| {
        while gone + segment.span <= *t {
            gone += segment.span;
            segment = path.step();
        }
        let state = segment.at(t - gone);
        ([*w1, *w2], [state.x * r1, state.y * r2])
    });
    Ok(pairs.collect())
}

/// The scenario's two legs, with capacities and buffer, as the equations have them.
fn equations(scenario: &Scenario) -> Result<Split, PaperError> {
    let legs = scenario.legs();
    let leg = |at: usize| -> Result<Aimd, PaperError> {
        let losses = match scenario.links[at].loss {
            Some(scenario::Loss::PerSecond(rate)) => Losses::PerSecond(rate),
            other => {
                return Err(PaperError::Wrong {
                    experiment: scenario.name.clone(),
                    what: format!("no losses by time on a leg: {other:?}"),
                });
            }
        };
        Ok(Aimd::new(scenario.base_rtt(legs[at]).secs(), losses)?)
    };
    let capacity = |at: usize| scenario.links[at].rate.bits_per_s() as f64 / 8.0 / PKT.0 as f64;
    let split = Split::new(leg(0)?, leg(1)?).with_capacities(capacity(0), capacity(1))?;
    Ok(match scenario.buffer_limit(0) {
        Some(buffer) => split.with_buffer(buffer.0 as f64 / PKT.0 as f64)?,
        None => split,
    })
}

/// When a link's losses were, s: those of the same process among packets that come without a pause.
fn losses(scenario: &Scenario, link: usize, seed: u64, outcome: &Outcome) -> Vec<f64> {
    const STEP: u64 = 50_000;
    let mut process = link::Losses::new(scenario.links[link].loss, stream(seed, Purpose::Losses, link as u64));
    let until = outcome.flows[0].end_s.unwrap_or(UNTIL_S);
    let times = (0..).map(|step| Time(step * STEP)).take_while(|time| time.secs() < until);
    times.filter(|time| process.drops(*time)).map(Time::secs).collect()
}
