//! Packets beside the equations with the same losses: one connection alone, and two with a proxy between them that holds its sender back.

use super::{Line, Sheet, over_seeds, paired::Run, side_by_side};
use crate::PaperError;
use theory::{Aimd, LossProcess as Losses, TandemState as State};

const SEEDS: u64 = 10;
/// Within this much of the equations is what the model is asked for.
const NEAR: f64 = 0.03;

/// Losses of a leg that a seed's figures are from, fewer where windows are so large that this would be more packets than …
const ALONE_LOSSES: f64 = 400.0;
/// … these.
const ALONE_PACKETS: f64 = 2e6;
/// And those that come before, in which slow start is forgotten.
const FORGOTTEN: f64 = 10.0;

/// One connection: round trips (ms) and losses, from small windows to large ones.
const BY_TIME: [(u32, f64); 9] =
    [(100, 4.0), (100, 2.0), (100, 1.0), (100, 0.4), (100, 0.2), (100, 0.1), (100, 0.05), (40, 0.5), (20, 1.0)];
const PER_PACKET: [(u32, f64); 9] =
    [(100, 0.05), (100, 0.03), (100, 0.01), (100, 0.003), (100, 0.001), (100, 3e-4), (100, 1e-4), (40, 3e-4), (200, 3e-4)];
/// What the receiver and the recovery are; the second only where the mean window is below …
const ALONE_WAYS: [(&str, &[&str]); 2] = [("as Linux", &[]), ("as ns-2", &["tcp.sack=false", "tcp.delayed_acks=false"])];

/// … this: where they come to differ.
const SMALL: f64 = 60.0;

/// The mean of one connection beside 2/(R²λ) and Φ/(R√λ) (§19.4.2, (19.3)).
pub(super) fn alone() -> Result<Sheet, PaperError> {
    let settings = BY_TIME.map(|(rtt, rate)| (rtt, Losses::PerSecond(rate))).into_iter();
    let settings = settings.chain(PER_PACKET.map(|(rtt, rate)| (rtt, Losses::PerPacket(rate))));
    let settings: Vec<(u32, Aimd)> =
        settings.map(|(rtt, losses)| Ok((rtt, Aimd::new(f64::from(rtt) / 1e3, losses)?))).collect::<Result<_, PaperError>>()?;
    let ways = |leg: &Aimd| &ALONE_WAYS[..if leg.mean() * leg.rtt_s() < SMALL { 2 } else { 1 }];
    let cases: Vec<_> = settings.iter().flat_map(|(rtt, leg)| ways(leg).iter().map(move |way| (*rtt, *leg, *way))).collect();
    let asked: Vec<_> = cases.iter().flat_map(|case| (1..=SEEDS).map(move |seed| (*case, seed))).collect();
    let played: Vec<[f64; 2]> =
        side_by_side(&asked, |((_, leg, way), seed)| play_alone(leg, way.1, *seed)).into_iter().collect::<Result<_, _>>()?;
    let mut lines = Vec::new();
    for ((rtt, leg, way), runs) in cases.iter().zip(played.chunks(SEEDS as usize)) {
        let kind = match leg.losses() {
            Losses::PerSecond(rate) => format!("RI, {rate} a second"),
            Losses::PerPacket(rate) => format!("RD, {rate} a packet"),
        };
        let window = format!("{:.1}", leg.mean() * leg.rtt_s());
        let of = |what: &str| vec![kind.clone(), rtt.to_string(), window.clone(), way.0.to_owned(), what.to_owned()];
        let [rates, ratios] = [0, 1].map(|at| over_seeds(&runs.iter().map(|run| run[at]).collect::<Vec<_>>()));
        lines.push(Line { printed: Some(format!("{:.1}", leg.mean())), ..Line::new(of("packets sent a second"), rates, 1) });
        let holds = (ratios.mean - 1.0).abs() + ratios.half < NEAR;
        lines.push(Line::new(of("÷ the equations, same losses"), ratios, 4).claimed("1", holds).because(if holds {
            String::new()
        } else {
            format!("not within {} %", NEAR * 100.0)
        }));
    }
    let notes = vec![format!(
        "{SEEDS} seeds, each of {ALONE_LOSSES} losses, or of {:.0} million packets; ± is half of 95 %. Printed is the formula's mean. The equations start \
         from the window that the packets have after the first {FORGOTTEN} losses, and lose when they do: a ratio to them is known far better than a mean.",
        ALONE_PACKETS / 1e6
    )];
    Ok(Sheet { head: vec!["losses", "round trip, ms", "mean window", "sender", "of"], lines, notes })
}

/// Packets a second, and what that is of the equations with the same losses.
fn play_alone(leg: &Aimd, way: &[&str], seed: u64) -> Result<[f64; 2], PaperError> {
    let (loss, losses_per_s) = match leg.losses() {
        Losses::PerSecond(rate) => (format!("{{ per_second = {rate} }}"), rate),
        Losses::PerPacket(rate) => (format!("{{ per_packet = {rate} }}"), rate * leg.mean()),
    };
    let count = ALONE_LOSSES.min(ALONE_PACKETS / leg.mean() * losses_per_s);
    let times = [FORGOTTEN, FORGOTTEN + count].map(|losses| (losses / losses_per_s).ceil());
    // Eight times the mean is a rate that the losses allow for less than a millionth of the time.
    let rate = format!("link.1.rate={:.0}kbit", (8.0 * leg.mean() * 12.0).max(1000.0));
    let sets = [rate, format!("link.1.delay={:.0}us", leg.rtt_s() * 5e5), format!("link.1.loss={loss}")];
    let sets: Vec<&str> = sets.iter().map(String::as_str).chain(way.iter().copied()).collect();
    let run = Run::play("baccelli/alone.toml", &sets, times, seed)?;
    Ok([run.sent(0), run.sent(0) / run.follow()?.rate])
}

/// Two connections: whose settings, and the changes to them.
const SETTINGS: [(&str, &str, &[&str]); 6] = [
    ("Table 19.1, 20 packets", "table-19.1", &[]),
    ("Table 19.1, 1000 packets", "table-19.1", &["split.1.buffer=1000pkt"]),
    ("Figure 19.2", "fig-19.2", &[]),
    ("Figure 19.3", "fig-19.3", &[]),
    ("Figure 19.4", "fig-19.4", &[]),
    ("Figure 19.5", "fig-19.5", &[]),
];
/// How a full proxy holds its sender back, and whether a window grows that is not used.
const WAYS: [(&str, &[&str]); 3] =
    [("fluid, unused windows grow", &["tcp.validation=false"]), ("fluid", &[]), ("window", &["split.1.backpressure=window"])];
/// From when until when they are compared, s.
const TIMES: [f64; 2] = [60.0, 560.0];

/// What there is to compare: by its name, with so many decimals.
const FIGURES: [(&str, usize); 7] = [
    ("packets sent on a second", 1),
    ("Q in the mean, packets", 2),
    ("Q, median", 1),
    ("Q, 99 % are below", 1),
    ("free, % of the time", 2),
    ("starvation, %", 2),
    ("backpressure, %", 2),
];

/// The three ways a proxy can hold back, beside the exact path of (19.4) to (19.7) with the same losses.
pub(super) fn split() -> Result<Sheet, PaperError> {
    let cases: Vec<_> = SETTINGS.iter().flat_map(|setting| WAYS.iter().map(move |way| (setting, way))).collect();
    let asked: Vec<_> = cases.iter().flat_map(|case| (1..=SEEDS).map(move |seed| (*case, seed))).collect();
    let played = side_by_side(&asked, |((setting, way), seed)| play_split(setting.1, &[setting.2, way.1].concat(), *seed));
    let played: Vec<[[f64; 7]; 2]> = played.into_iter().collect::<Result<_, _>>()?;
    let mut lines = Vec::new();
    for ((setting, way), runs) in cases.iter().zip(played.chunks(SEEDS as usize)) {
        let of = |what: &str| vec![setting.0.to_owned(), way.0.to_owned(), what.to_owned()];
        let seeds = |of: &dyn Fn(&[[f64; 7]; 2]) -> f64| over_seeds(&runs.iter().map(of).collect::<Vec<_>>());
        for (at, (what, decimals)) in FIGURES.into_iter().enumerate() {
            let equations = seeds(&|[_, equations]| equations[at]).mean;
            let line = Line::new(of(what), seeds(&|[packets, _]| packets[at]), decimals);
            lines.push(Line { printed: Some(format!("{equations:.decimals$}")), ..line });
            if at == 0 {
                let ratio = seeds(&|[packets, equations]| packets[at] / equations[at]);
                lines.push(Line::new(of("÷ the equations"), ratio, 4).claimed("1", (ratio.mean - 1.0).abs() + ratio.half < NEAR));
            }
        }
    }
    let notes = vec![format!(
        "{SEEDS} seeds, from {} s to {} s; \"the paper\" is its equations (19.4) to (19.7), from event to event, from the state that the packets have then and with \
         every loss when, or after as many packets as, it hit them. It holds where all of the interval is within {} %.",
        TIMES[0],
        TIMES[1],
        NEAR * 100.0
    )];
    Ok(Sheet { head: vec!["setting", "a full proxy", "of"], lines, notes })
}

/// The figures of packets, and of the equations with the same losses.
fn play_split(file: &str, sets: &[&str], seed: u64) -> Result<[[f64; 7]; 2], PaperError> {
    let run = Run::play(&format!("baccelli/{file}.toml"), sets, TIMES, seed)?;
    let followed = run.follow()?;
    let figures = |rate: f64, mut held: Vec<f64>, phases: [f64; 3]| {
        held.sort_unstable_by(f64::total_cmp);
        let below = |share: f64| held[(share * (held.len() - 1) as f64) as usize];
        let [free, starvation, backpressure] = phases.map(|share| share * 100.0);
        [rate, held.iter().sum::<f64>() / held.len() as f64, below(0.5), below(0.99), free, starvation, backpressure]
    };
    let queue = |state: &State| state.q;
    Ok([
        figures(run.sent(1), run.held(), run.phases()),
        figures(followed.rate, followed.states.iter().map(queue).collect(), followed.phases),
    ])
}
