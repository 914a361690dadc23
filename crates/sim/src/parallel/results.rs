//! What came out of networks in parallel.

use super::{measurement::Mark, simulation::World, striping::MOST};
use crate::network::wire_rate;
use outcome::{FlowOutcome, NetworkOutcome, Outcome, ReorderOutcome};

/// What came out.
pub(crate) fn outcome(world: &World<'_>, seed: u64) -> Outcome {
    let (scenario, tally) = (world.scenario, &world.tally);
    let nothing = Mark { at: 0, left: [0; MOST], drops: [0; MOST], came: 0 };
    let (began, stopped) = tally.jobs.marks();
    let (began, stopped) = (began.copied().unwrap_or(nothing), stopped.copied().unwrap_or(nothing));
    let span = stopped.at.saturating_sub(began.at).max(1) as f64 / 1e9;
    let capacity = |network: usize| wire_rate(world.parallel.networks[network].rate, world.settings.mss).bits_per_s() as f64 / 8.0 * span;
    let left = |network: usize| stopped.left[network].saturating_sub(began.left[network]) as f64;
    let all: u64 = tally.shares.iter().sum();
    let network = |index: usize| NetworkOutcome {
        network: index + 1,
        utilization: left(index) / capacity(index),
        share: (all > 0).then(|| tally.shares[index] as f64 / all as f64),
        queue_drops: Some(stopped.drops[index].saturating_sub(began.drops[index])),
    };
    let means = tally.jobs.means();
    let flows: Vec<FlowOutcome> = (0..world.flows.len()).map(|flow| flow_outcome(world, flow)).collect();
    let carried = if flows.is_empty() { stopped.came.saturating_sub(began.came) } else { flows.iter().map(|flow| flow.bytes).sum() };
    let (held, most, count) = tally.held;
    Outcome {
        scenario: scenario.name.clone(),
        engine: "sim".into(),
        seed,
        valid: true,
        goodput_bps: carried as f64 * 8.0 / span,
        utilization: (0..tally.networks).map(left).sum::<f64>() / (0..tally.networks).map(capacity).sum::<f64>(),
        flows,
        sojourn_s: means.sojourn_s,
        sojourn_jobs: means.jobs,
        networks: (0..tally.networks).map(network).collect(),
        reorder: (count > 0).then(|| ReorderOutcome { mean_bytes: held as f64 / count as f64, max_bytes: most }),
        ci95: means.ci95,
        ..Outcome::default()
    }
}

fn flow_outcome(world: &World<'_>, flow: usize) -> FlowOutcome {
    let of = &world.flows[flow];
    let (start_s, end_s) = (of.spec.start.secs(), of.ended.map(|at| at as f64 / 1e9));
    let time = end_s.unwrap_or(world.net.now as f64 / 1e9) - start_s;
    FlowOutcome {
        id: of.spec.id,
        asked_bytes: of.spec.bytes.map(|bytes| bytes.0),
        bytes: of.read,
        start_s,
        end_s,
        goodput_bps: if time > 0.0 { of.read as f64 * 8.0 / time } else { 0.0 },
        ..FlowOutcome::default()
    }
}
