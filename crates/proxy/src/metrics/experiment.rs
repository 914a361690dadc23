//! The metrics of an experiment. Their labels are groups and size classes; destinations are in
//! `tandem experiment` alone.

use crate::{
    experiment::{ExperimentRow, ExperimentView, Gain, GroupCounts, GroupView},
    measure::SIZES,
};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use std::sync::atomic::AtomicU64;

type Labels = Vec<(&'static str, String)>;
type FloatGauge = Gauge<f64, AtomicU64>;

/// Registers them.
pub(super) fn register(registry: &mut Registry, view: &ExperimentView) {
    let connections = Family::<Labels, Counter>::default();
    for GroupView { group, counts, .. } in &view.groups {
        let GroupCounts { begun, complete, empty, reset, unfinished, unanswered, suspicious, missed } = *counts;
        let fates = [
            ("begun", begun),
            ("complete", complete),
            ("empty", empty),
            ("reset", reset),
            ("unfinished", unfinished),
            ("unanswered", unanswered),
            ("suspicious", suspicious),
            ("missed", missed),
        ];
        for (fate, count) in fates {
            connections.get_or_create(&vec![("group", group.clone()), ("fate", fate.into())]).inc_by(count);
        }
    }
    let help = "Connections of the experiment's groups: begun; complete, which have a time; empty, without payload; reset; unfinished, silent \
                for too long; unanswered; suspicious, by what their packets acknowledge; missed, of which packets were lost";
    registry.register("experiment_connections", help, connections);
    let gains = [
        (
            "experiment_gain",
            "How many times as long unsplit connections took as split ones, by size class",
            (|gain| gain.ratio) as fn(&Gain) -> f64,
        ),
        ("experiment_gain_low", "Lower end of the 95 % interval of that", |gain| gain.low),
        ("experiment_gain_high", "Upper end of the 95 % interval of that", |gain| gain.high),
    ];
    let rows = || view.rows.iter().filter(|row| row.prefix.is_none());
    let size = |row: &ExperimentRow| row.size.clone().unwrap_or_else(|| "all".into());
    for (name, help, of) in gains {
        let family = Family::<Labels, FloatGauge>::default();
        for row in rows() {
            if let Some(gain) = &row.gain {
                family.get_or_create(&vec![("size", size(row))]).set(of(gain));
            }
        }
        registry.register(name, help, family);
    }
    let lost = Counter::<u64>::default();
    lost.inc_by(view.lost);
    registry.register("experiment_losses", "Times that packets of the experiment were lost before they were read", lost);
}

/// A view with each label, for the reference documentation.
pub(super) fn example() -> ExperimentView {
    let group = |group: &str| GroupView { group: group.into(), ..GroupView::default() };
    let gain = Some(Gain { ratio: 1.0, low: 1.0, high: 1.0 });
    let row = |size: Option<&str>| ExperimentRow {
        prefix: None,
        size: size.map(str::to_owned),
        unsplit: 0,
        split: 0,
        compared_unsplit: 0,
        compared_split: 0,
        clients: 0,
        client_prefixes: 0,
        unlike_ends: false,
        unsplit_s: None,
        split_s: None,
        gain,
    };
    ExperimentView {
        one_in: 50,
        groups: ["unsplit", "split"].map(group).into(),
        rows: [None].into_iter().chain(SIZES.map(|(size, _)| Some(size))).map(row).collect(),
        ..ExperimentView::default()
    }
}
