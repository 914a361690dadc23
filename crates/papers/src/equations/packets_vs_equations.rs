//! Simulated packets compared with the equations under the same losses: one connection alone, and
//! two with a proxy between them that applies backpressure.

use super::{
    paired_run::PairedRun,
    parallel_map::parallel_map,
    table::{ComputedRow, ComputedTable, over_seeds},
};
use crate::error::PaperError;
use theory::{Aimd, LossRate, TandemState};

/// The number of seeds by default.
pub(super) const SEEDS: u64 = 10;
/// The relative difference from the equations that is accepted.
const TOLERANCE: f64 = 0.03;
/// What such a row claims.
const SAME_RATE: &str = "packets have the equations' rate, within 3 %";

/// The number of losses in a run of one connection.
const ALONE_LOSSES: f64 = 400.0;
/// The largest mean number of packets of such a run: it has fewer losses than [`ALONE_LOSSES`] if
/// these take longer.
const ALONE_PACKETS: f64 = 2e6;
/// The number of losses of the warm-up, after which slow start no longer has an effect.
const WARM_UP_LOSSES: f64 = 10.0;

/// One connection: round trips (ms) and losses per second, from small windows to large ones.
const BY_TIME: [(u32, f64); 9] =
    [(100, 4.0), (100, 2.0), (100, 1.0), (100, 0.4), (100, 0.2), (100, 0.1), (100, 0.05), (40, 0.5), (20, 1.0)];
/// The same with losses per packet.
const PER_PACKET: [(u32, f64); 9] =
    [(100, 0.05), (100, 0.03), (100, 0.01), (100, 0.003), (100, 0.001), (100, 3e-4), (100, 1e-4), (40, 3e-4), (200, 3e-4)];
/// Behaviours of the receiver and of loss recovery. The second is compared only where the mean
/// window is below [`SMALL_WINDOW`], since the two hardly differ elsewhere.
const ALONE_BEHAVIOURS: [(&str, &[&str]); 2] = [("as Linux", &[]), ("as ns-2", &["tcp.sack=false", "tcp.delayed_acks=false"])];
/// The mean window, packets, below which both behaviours are compared.
const SMALL_WINDOW: f64 = 60.0;

/// The mean rate of one connection beside 2/(R²λ) and Φ/(R√λ) (§19.4.2, (19.3)).
pub(super) fn alone(seeds: u64) -> Result<ComputedTable, PaperError> {
    let settings = BY_TIME.map(|(rtt, rate)| (rtt, LossRate::PerSecond(rate))).into_iter();
    let settings = settings.chain(PER_PACKET.map(|(rtt, rate)| (rtt, LossRate::PerPacket(rate))));
    let settings: Vec<(u32, Aimd)> =
        settings.map(|(rtt, losses)| Ok((rtt, Aimd::new(f64::from(rtt) / 1e3, losses)?))).collect::<Result<_, PaperError>>()?;
    let behaviours = |leg: &Aimd| &ALONE_BEHAVIOURS[..if leg.mean() * leg.rtt_s() < SMALL_WINDOW { 2 } else { 1 }];
    let cases: Vec<_> =
        settings.iter().flat_map(|(rtt, leg)| behaviours(leg).iter().map(move |behaviour| (*rtt, *leg, *behaviour))).collect();
    let runs: Vec<_> = cases.iter().flat_map(|case| (1..=seeds).map(move |seed| (*case, seed))).collect();
    let played: Vec<[f64; 2]> =
        parallel_map(&runs, |((_, leg, behaviour), seed)| play_alone(leg, behaviour.1, *seed)).into_iter().collect::<Result<_, _>>()?;
    let mut rows = Vec::new();
    for ((rtt, leg, behaviour), runs) in cases.iter().zip(played.chunks(seeds as usize)) {
        let kind = match leg.losses() {
            LossRate::PerSecond(rate) => format!("RI, {rate} a second"),
            LossRate::PerPacket(rate) => format!("RD, {rate} a packet"),
        };
        let window = format!("{:.1}", leg.mean() * leg.rtt_s());
        let of = |what: &str| vec![kind.clone(), rtt.to_string(), window.clone(), behaviour.0.to_owned(), what.to_owned()];
        let [rates, ratios] = [0, 1].map(|at| over_seeds(&runs.iter().map(|run| run[at]).collect::<Vec<_>>()));
        rows.push(ComputedRow { printed: Some(format!("{:.1}", leg.mean())), ..ComputedRow::new(of("packets sent a second"), rates, 1) });
        let holds = (ratios.mean - 1.0).abs() + ratios.half < TOLERANCE;
        rows.push(ComputedRow::new(of("÷ the equations, same losses"), ratios, 4).claimed(SAME_RATE, holds).with_note(if holds {
            String::new()
        } else {
            format!("not within {} %", TOLERANCE * 100.0)
        }));
    }
    let notes = vec![format!(
        "{seeds} seeds, each of {ALONE_LOSSES} losses, or of {:.0} million packets; ± is half of 95 %. Printed is the formula's mean. The equations start \
         from the simulated window after the first {WARM_UP_LOSSES} losses and have the same losses: their ratio has a far smaller error than a mean.",
        ALONE_PACKETS / 1e6
    )];
    Ok(ComputedTable::new(&["losses", "round trip, ms", "mean window", "sender", "of"], rows, notes))
}

/// Packets per second, and the ratio to the equations with the same losses.
fn play_alone(leg: &Aimd, behaviour: &[&str], seed: u64) -> Result<[f64; 2], PaperError> {
    let (loss, losses_per_s) = match leg.losses() {
        LossRate::PerSecond(rate) => (format!("{{ per_second = {rate} }}"), rate),
        LossRate::PerPacket(rate) => (format!("{{ per_packet = {rate} }}"), rate * leg.mean()),
    };
    let count = ALONE_LOSSES.min(ALONE_PACKETS / leg.mean() * losses_per_s);
    let times = [WARM_UP_LOSSES, WARM_UP_LOSSES + count].map(|losses| (losses / losses_per_s).ceil());
    // The losses allow a rate of eight times the mean for less than a millionth of the time.
    let rate = format!("link.1.rate={:.0}kbit", (8.0 * leg.mean() * 12.0).max(1000.0));
    let sets = [rate, format!("link.1.delay={:.0}us", leg.rtt_s() * 5e5), format!("link.1.loss={loss}")];
    let sets: Vec<&str> = sets.iter().map(String::as_str).chain(behaviour.iter().copied()).collect();
    let run = PairedRun::play("baccelli/alone.toml", &sets, times, seed)?;
    Ok([run.sent(0), run.sent(0) / run.follow()?.rate])
}

/// Two connections: the setting, its file, and the changes to it.
const SETTINGS: [(&str, &str, &[&str]); 6] = [
    ("Table 19.1, 20 packets", "table-19.1", &[]),
    ("Table 19.1, 1000 packets", "table-19.1", &["split.1.buffer=1000pkt"]),
    ("Figure 19.2", "fig-19.2", &[]),
    ("Figure 19.3", "fig-19.3", &[]),
    ("Figure 19.4", "fig-19.4", &[]),
    ("Figure 19.5", "fig-19.5", &[]),
];
/// How a full proxy applies backpressure, and whether an unused window grows.
const BACKPRESSURES: [(&str, &[&str]); 3] =
    [("fluid, unused windows grow", &["tcp.validation=false"]), ("fluid", &[]), ("window", &["split.1.backpressure=window"])];
/// The start and end of the comparison, s.
const TIMES: [f64; 2] = [60.0, 560.0];

/// A share of time at most so large can be neglected, %. The paper gives no number.
const NEGLIGIBLE_PERCENT: f64 = 5.0;

/// What §19.3.1 says about the phases of a figure.
fn says_of_phases(setting: &str) -> Option<(&'static str, PhaseShare)> {
    match setting {
        "Figure 19.2" | "Figure 19.5" => Some(("all three phases occur (observation 19.1)", PhaseShare::AllOccur)),
        "Figure 19.3" => Some(("phase 3 is almost never visible (§19.3.1)", PhaseShare::Negligible(2))),
        "Figure 19.4" => Some(("phase 2 is negligible (§19.3.1)", PhaseShare::Negligible(1))),
        _ => None,
    }
}

/// A statement about the shares of the free, the starvation and the backpressure phase.
#[derive(Debug, Clone, Copy)]
enum PhaseShare {
    AllOccur,
    /// The phase with this index.
    Negligible(usize),
}

impl PhaseShare {
    /// The row that judges the statement by the shares of each run's phases, %.
    fn row(self, of: impl Fn(&str) -> Vec<String>, says: &str, runs: &[[f64; 3]]) -> ComputedRow {
        let over_runs = |share: &dyn Fn(&[f64; 3]) -> f64| over_seeds(&runs.iter().map(share).collect::<Vec<_>>());
        match self {
            PhaseShare::AllOccur => {
                let least = over_runs(&|phases| phases.iter().copied().fold(f64::INFINITY, f64::min));
                ComputedRow::new(of("shortest phase, % of the time"), least, 2).claimed(says, least.mean - least.half > NEGLIGIBLE_PERCENT)
            }
            PhaseShare::Negligible(phase) => {
                let share = over_runs(&|phases| phases[phase]);
                let of = of(&format!("phase {}, % of the time", phase + 1));
                ComputedRow::new(of, share, 2).claimed(says, share.mean + share.half < NEGLIGIBLE_PERCENT)
            }
        }
    }
}

/// What is compared: its name and the number of decimals.
const FIGURES: [(&str, usize); 7] = [
    ("packets sent on a second", 1),
    ("Q in the mean, packets", 2),
    ("Q, median", 1),
    ("Q, 99 % are below", 1),
    ("free, % of the time", 2),
    ("starvation, %", 2),
    ("backpressure, %", 2),
];

/// The three kinds of backpressure beside the exact path of (19.4) to (19.7) with the same losses.
pub(super) fn split(seeds: u64) -> Result<ComputedTable, PaperError> {
    let cases: Vec<_> = SETTINGS.iter().flat_map(|setting| BACKPRESSURES.iter().map(move |backpressure| (setting, backpressure))).collect();
    let runs: Vec<_> = cases.iter().flat_map(|case| (1..=seeds).map(move |seed| (*case, seed))).collect();
    let played = parallel_map(&runs, |((setting, backpressure), seed)| play_split(setting.1, &[setting.2, backpressure.1].concat(), *seed));
    let played: Vec<[[f64; 7]; 2]> = played.into_iter().collect::<Result<_, _>>()?;
    let mut rows = Vec::new();
    for ((setting, backpressure), runs) in cases.iter().zip(played.chunks(seeds as usize)) {
        let of = |what: &str| vec![setting.0.to_owned(), backpressure.0.to_owned(), what.to_owned()];
        let mean = |of: &dyn Fn(&[[f64; 7]; 2]) -> f64| over_seeds(&runs.iter().map(of).collect::<Vec<_>>());
        for (at, (what, decimals)) in FIGURES.into_iter().enumerate() {
            let equations = mean(&|[_, equations]| equations[at]).mean;
            let row = ComputedRow::new(of(what), mean(&|[packets, _]| packets[at]), decimals);
            rows.push(ComputedRow { printed: Some(format!("{equations:.decimals$}")), ..row });
            if at == 0 {
                let ratio = mean(&|[packets, equations]| packets[at] / equations[at]);
                let holds = (ratio.mean - 1.0).abs() + ratio.half < TOLERANCE;
                rows.push(ComputedRow::new(of("÷ the equations"), ratio, 4).claimed(SAME_RATE, holds));
            }
        }
        if let Some((says, share)) = says_of_phases(setting.0) {
            let phases: Vec<[f64; 3]> = runs.iter().map(|[packets, _]| [packets[4], packets[5], packets[6]]).collect();
            rows.push(share.row(of, says, &phases));
        }
    }
    let notes = vec![format!(
        "{seeds} seeds, from {} s to {} s; \"the paper\" is its equations (19.4) to (19.7), solved from event to event, from the simulated state at the start and with \
         the simulated losses at the same times or packets. It holds if the whole interval is within {} %. A phase can be neglected \
         below {NEGLIGIBLE_PERCENT} % of the time.",
        TIMES[0],
        TIMES[1],
        TOLERANCE * 100.0
    )];
    Ok(ComputedTable::new(&["setting", "a full proxy", "of"], rows, notes))
}

/// The figures of a simulated run, and of the equations with the same losses.
fn play_split(file: &str, sets: &[&str], seed: u64) -> Result<[[f64; 7]; 2], PaperError> {
    let run = PairedRun::play(&format!("baccelli/{file}.toml"), sets, TIMES, seed)?;
    let followed = run.follow()?;
    let figures = |rate: f64, mut held: Vec<f64>, phases: [f64; 3]| {
        held.sort_unstable_by(f64::total_cmp);
        let below = |share: f64| held[(share * (held.len() - 1) as f64) as usize];
        let [free, starvation, backpressure] = phases.map(|share| share * 100.0);
        [rate, held.iter().sum::<f64>() / held.len() as f64, below(0.5), below(0.99), free, starvation, backpressure]
    };
    let queue = |state: &TandemState| state.q;
    Ok([
        figures(run.sent(1), run.held(), run.phases()),
        figures(followed.rate, followed.states.iter().map(queue).collect(), followed.phases),
    ])
}
