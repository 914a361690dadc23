//! Gain of `xcp_known` over plain XCP, on the link of Li and Yousefi'zadeh (10 Mbit/s, 800 ms).

use crate::bottleneck::{self, BottleneckPath, FlowData, RunResult, file, greedy, satellite};
use control::Controller;

const RATE: u64 = 1_250_000;

fn run(name: &str, path: &BottleneckPath, jobs: &[FlowData], seconds: f64) -> RunResult {
    bottleneck::run(Controller::named(name).unwrap(), path, jobs, seconds)
}

/// Checks with the bottleneck queue on the sender's host, and behind it.
fn both(mut check: impl FnMut(BottleneckPath)) {
    for local in [true, false] {
        check(BottleneckPath { local, ..satellite() });
    }
}

fn jain(rates: &[f64]) -> f64 {
    rates.iter().sum::<f64>().powi(2) / (rates.len() as f64 * rates.iter().map(|r| r * r).sum::<f64>())
}

#[test]
fn five_files_finish_sooner_and_more_evenly() {
    let jobs: Vec<_> = [0, 700_000, 1_900_000, 3_100_000, 4_800_000].iter().map(|start| file(*start, 5_000_000)).collect();
    for loss in [0.0, 0.01] {
        both(|path| {
            let [plain, known] = ["xcp", "xcp_known"].map(|name| run(name, &BottleneckPath { loss, ..path.clone() }, &jobs, 100.0));
            let end = |seen: &RunResult| seen.ends.iter().map(|end| end.unwrap()).fold(0.0, f64::max);
            assert!(end(&known) < 0.9 * end(&plain), "{} of {}", end(&known), end(&plain));
            assert!(known.jain(8.0, 17.0) > 0.99, "{}", known.jain(8.0, 17.0));
            assert_eq!((plain.drops, known.drops), (0, 0));
        });
    }
}

#[test]
fn new_flows_have_their_fair_share_within_four_round_trips() {
    both(|path| {
        let jobs: Vec<_> = (0..4).map(|i| greedy(i * 20_000_000)).collect();
        let seen = run("xcp_known", &path, &jobs, 85.0);
        for new_flow in 1..4 {
            let at = f64::from(new_flow) * 20.0 + 0.8 + 4.0 * 0.8;
            let rates = &seen.rates(at, at + 4.0)[..=new_flow as usize];
            assert!(jain(rates) > 0.98, "{} for {new_flow}: {rates:?}", jain(rates));
        }
        assert!(seen.utilization(5.0, 85.0, RATE) > 0.95);
        assert_eq!(seen.drops, 0);
    });
}

#[test]
fn freed_windows_are_reused_at_once() {
    both(|path| {
        // Three short files beside an endless flow.
        let mut jobs: Vec<_> = (0..3).map(|_| file(0, 2_000_000)).collect();
        jobs.push(greedy(0));
        let alone = |name: &str| {
            let seen = run(name, &path, &jobs, 40.0);
            let end = seen.ends.iter().flatten().copied().fold(0.0, f64::max);
            // From one round trip after the end of the last file.
            seen.rates(end + 1.0, end + 5.0)[3] / (RATE as f64 * 1448.0 / 1514.0)
        };
        let (plain, known) = (alone("xcp"), alone("xcp_known"));
        assert!(known > 0.95 && known > plain, "{known}, plain {plain}");
    });
}

#[test]
fn flows_are_counted_while_they_have_data_to_send() {
    for name in ["xcp", "xcp_known"] {
        let jobs: Vec<_> = (0..3).map(|i| file(i * 1_000_000, 500_000)).chain([greedy(0)]).collect();
        let seen = run(name, &satellite(), &jobs, 60.0);
        assert!(seen.ends[..3].iter().all(Option::is_some));
        assert_eq!(seen.link.xcp.flows, 1, "{name}");
    }
}
