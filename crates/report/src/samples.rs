//! Invented outcomes for tests: plausible shapes and round numbers, no measurements.

use outcome::{Dist, FlowOutcome, LegOutcome, LinkOutcome, NetworkOutcome, Outcome, Phases, ProxyOutcome, ReorderOutcome, Series};
use std::collections::BTreeMap;

/// The four cases of a demonstration, with numbers over time.
pub(crate) fn demo() -> Vec<Outcome> {
    vec![
        case("end-to-end cubic", 38.4, 5.2e6, 212, None),
        case("split cubic/cubic", 24.2, 8.26e6, 148, Some(410e3)),
        case("end-to-end bbr", 23.5, 8.5e6, 631, None),
        case("split cubic/bbr", 21.9, 9.13e6, 574, Some(1.24e6)),
    ]
}

/// An outcome in which every field but the error is present.
pub(crate) fn full() -> Outcome {
    Outcome {
        warnings: vec!["the machine was busy".into()],
        sojourn_s: vec![Some(2.41), Some(4.43)],
        sojourn_jobs: vec![2000, 3000],
        networks: vec![NetworkOutcome { network: 1, utilization: 0.7, share: Some(0.6), queue_drops: Some(12) }],
        reorder: Some(ReorderOutcome { mean_bytes: 12e3, max_bytes: 40_000 }),
        ci95: BTreeMap::from([("goodput_bps".to_string(), 2e4)]),
        ..case("split cubic/bbr", 21.9, 9.13e6, 574, Some(1.24e6))
    }
}

fn case(name: &str, end: f64, goodput: f64, retransmits: u64, held: Option<f64>) -> Outcome {
    let split = held.is_some();
    let bbr = name.ends_with("bbr");
    let leg = |control: &str, rtt: f64, cwnd: f64, retransmits| LegOutcome {
        control: control.into(),
        mean_rtt_s: rtt,
        min_rtt_s: rtt * 0.9,
        retransmits,
        mean_cwnd_pkt: cwnd,
        timeouts: None,
    };
    let legs = match split {
        true => vec![leg("cubic", 0.011, 31.0, 0), leg(if bbr { "bbr" } else { "cubic" }, 0.9, 700.0, retransmits)],
        false => vec![leg(if bbr { "bbr" } else { "cubic" }, 0.9, 700.0, retransmits)],
    };
    Outcome {
        scenario: "satellite".into(),
        case: name.into(),
        engine: "lab".into(),
        seed: 1,
        valid: true,
        goodput_bps: goodput,
        utilization: goodput * 1.036 / 10e6,
        flows: vec![FlowOutcome {
            id: 0,
            asked_bytes: Some(25_000_000),
            bytes: 25_000_000,
            start_s: 0.0,
            end_s: Some(end),
            goodput_bps: goodput,
            legs,
            ..FlowOutcome::default()
        }],
        proxy: held.map(|held| ProxyOutcome {
            buffer_bytes: Dist { mean: held * 0.31, p50: held * 0.3, p99: held * 0.97, max: held },
            delay_s: Dist { mean: 0.61, p50: 0.6, p99: 0.9, max: 0.95 },
            phases: Phases { free: 0.72, starvation: 0.04, backpressure: 0.24 },
            shaper: None,
            receive_overruns: None,
        }),
        links: vec![link(1, 1e9, 0.005, None, 0), link(2, 10e6, 0.4, Some(0.001), retransmits)],
        series: series(bbr, split, end, goodput, held, retransmits as f64),
        ..Outcome::default()
    }
}

fn link(number: usize, rate: f64, delay: f64, loss: Option<f64>, drops: u64) -> LinkOutcome {
    LinkOutcome {
        link: number,
        rate_bps: rate,
        delivered_rate_bps: (number == 2).then_some(rate * 0.9991),
        delay_s: delay,
        delivered_delay_s: Some(delay + 0.000_04),
        late_p99_s: 0.000_09,
        packets: 17_300,
        queue_drops: drops,
        losses: if loss.is_some() { 18 } else { 0 },
        duplicates: 0,
        loss_asked: loss,
        queue_max_bytes: if number == 2 { 1_000_000 } else { 45_000 },
        queue_delay_p50_s: Some(0.001),
        queue_delay_p95_s: Some(0.004),
        reverse: None,
    }
}

/// Series with plausible shapes: slow start, a sawtooth or BBR's cycle, a buffer that fills and
/// drains.
fn series(bbr: bool, split: bool, end: f64, goodput: f64, held: Option<f64>, retransmits: f64) -> Vec<Series> {
    let t: Vec<f64> = (0..(end / 0.05) as usize).map(|i| f64::from(i as u32) * 0.05).collect();
    let mut state: u64 = 7 + retransmits as u64;
    let mut noise = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / f64::from(1u32 << 24) - 0.5
    };
    let rise = if split { 2.5 } else { 5.0 };
    let shape = |t: f64| {
        let start = (((t - rise) / 0.7).exp()).min(1.0);
        let wave = if bbr { 1.0 + 0.12 * (t / 0.9).sin() } else { 0.68 + 0.32 * ((t - rise).max(0.0) % 9.0) / 9.0 };
        start * wave
    };
    let of = |what: &str, whose: &str, unit: &str, v: Vec<f64>| Series {
        what: what.into(),
        whose: whose.into(),
        unit: unit.into(),
        t: t.clone(),
        v,
    };
    let mut all = vec![
        of("goodput", "all", "bit/s", t.iter().map(|t| (shape(t - 0.4) * goodput * 1.15 * (1.0 + 0.25 * noise())).max(0.0)).collect()),
        of(
            "cwnd",
            "flow 0 leg 1",
            "pkt",
            t.iter().map(|t| if split { 120.0 + 10.0 * noise() } else { shape(*t) * 900.0 + 10.0 }).collect(),
        ),
        of("rtt", "flow 0 leg 1", "s", t.iter().map(|t| if split { 0.012 } else { 0.81 + 0.5 * shape(*t) }).collect()),
        of("in_flight", "flow 0 leg 1", "B", t.iter().map(|t| shape(*t) * 1.2e6 * (1.0 + 0.1 * noise())).collect()),
        of("queue", "link 1", "B", t.iter().map(|_| 30e3 * (0.5 + noise())).collect()),
        of("queue", "link 2", "B", t.iter().map(|t| (shape(*t) - 0.5).max(0.0) * 1.6e6 * (1.0 + 0.1 * noise())).collect()),
        of("retransmits", "all", "pkt", t.iter().map(|t| (retransmits * t / end).floor()).collect()),
    ];
    if let Some(held) = held {
        all.push(of("cwnd", "flow 0 leg 2", "pkt", t.iter().map(|t| shape(*t) * 880.0 + 10.0).collect()));
        all.push(of("rtt", "flow 0 leg 2", "s", t.iter().map(|t| 0.8 + 0.5 * shape(*t)).collect()));
        all.push(of("in_flight", "flow 0 leg 2", "B", t.iter().map(|t| shape(*t) * 1.1e6 * (1.0 + 0.1 * noise())).collect()));
        let fill = |t: f64| (t / 3.0).min(1.0) * (1.0 - ((t - end + 4.0) / 4.0).clamp(0.0, 1.0)) * (0.8 + 0.2 * (t / 3.0).cos());
        all.push(of("held", "all", "B", t.iter().map(|t| fill(*t) * held).collect()));
    }
    all
}
