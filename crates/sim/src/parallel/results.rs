//! The outcome of a run over parallel networks.

use super::{measurement::NetworkSnapshot, simulation::ParallelSimulation};
use outcome::{FlowOutcome, NetworkOutcome, Outcome, ReorderOutcome};

/// The outcome of a run that has ended.
pub(crate) fn outcome(simulation: &ParallelSimulation<'_>, seed: u64) -> Outcome {
    let (scenario, measurement) = (simulation.scenario, &simulation.measurement);
    let (began, stopped) = measurement.jobs.marks();
    let began = began.copied().unwrap_or(NetworkSnapshot::ZERO);
    let stopped = stopped.copied().unwrap_or(NetworkSnapshot::ZERO);
    let span_s = stopped.at.saturating_sub(began.at).max(1) as f64 / 1e9;
    let capacity_bytes = |network: usize| simulation.links[network].capacity_between(began.at as f64 / 1e9, began.at as f64 / 1e9 + span_s);
    let departed_bytes = |network: usize| stopped.departed[network].saturating_sub(began.departed[network]) as f64;
    let striped_bytes: u64 = measurement.bytes_by_network.iter().sum();
    let network = |index: usize| NetworkOutcome {
        network: index + 1,
        utilization: departed_bytes(index) / capacity_bytes(index),
        share: (striped_bytes > 0).then(|| measurement.bytes_by_network[index] as f64 / striped_bytes as f64),
        queue_drops: Some(stopped.drops[index].saturating_sub(began.drops[index])),
    };
    let reorder =
        ReorderOutcome { mean_bytes: measurement.held_sum as f64 / measurement.striped_transfers as f64, max_bytes: measurement.held_max };
    let means = measurement.jobs.means();
    let flows: Vec<FlowOutcome> = (0..simulation.flows.len()).map(|flow| flow_outcome(simulation, flow)).collect();
    let payload = match flows.is_empty() {
        true => stopped.received.saturating_sub(began.received),
        false => flows.iter().map(|flow| flow.bytes).sum(),
    };
    let networks = 0..measurement.networks;
    Outcome {
        scenario: scenario.name.clone(),
        engine: "sim".into(),
        seed,
        valid: true,
        goodput_bps: payload as f64 * 8.0 / span_s,
        utilization: networks.clone().map(departed_bytes).sum::<f64>() / networks.clone().map(capacity_bytes).sum::<f64>(),
        flows,
        sojourn_s: means.sojourn_s,
        sojourn_jobs: means.jobs,
        networks: networks.map(network).collect(),
        reorder: (measurement.striped_transfers > 0).then_some(reorder),
        ci95: means.ci95,
        ..Outcome::default()
    }
}

fn flow_outcome(simulation: &ParallelSimulation<'_>, flow: usize) -> FlowOutcome {
    let flow = &simulation.flows[flow];
    let start_s = flow.spec.start.secs();
    let end_s = flow.ended.map(|at| at as f64 / 1e9);
    let duration_s = end_s.unwrap_or(simulation.net.now as f64 / 1e9) - start_s;
    FlowOutcome {
        id: flow.spec.id,
        asked_bytes: flow.spec.bytes.map(|bytes| bytes.0),
        bytes: flow.read,
        start_s,
        end_s,
        goodput_bps: if duration_s > 0.0 { flow.read as f64 * 8.0 / duration_s } else { 0.0 },
        ..FlowOutcome::default()
    }
}
