//! The metrics of links, limits and the host.

use crate::{
    control::{ProxyStatus, StatusDetails},
    memory::MemoryLevel,
};
use intercept::{LinkView, host_memory};
use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family,
        gauge::{ConstGauge, Gauge},
    },
    registry::{Registry, Unit},
};
use std::sync::atomic::AtomicU64;

type Labels = [(&'static str, String); 1];
type FloatGauge = Gauge<f64, AtomicU64>;

/// Registers them.
pub(super) fn register(registry: &mut Registry, status: &ProxyStatus, started_s: f64) {
    let gauge = |value: f64| {
        let gauge = FloatGauge::default();
        gauge.set(value);
        gauge
    };
    let counter = |value: u64| {
        let counter = Counter::<u64>::default();
        counter.inc_by(value);
        counter
    };
    registry.register_with_unit("start_time", "When the process started, since the Unix epoch", Unit::Seconds, gauge(started_s));
    let StatusDetails { process_flows, limits, memory, zero_windows, flow_records, experiment: _, configuration: _ } = &status.details;
    if let &Some(flows) = process_flows {
        let help = "Connections that the present process splits now: without those of earlier processes, which end after a hot restart";
        registry.register("process_flows", help, ConstGauge::new(flows));
    }
    if let Some(limits) = limits {
        let help = "Open connections of a process beyond which further ones pass unsplit, or wait: max_flows, or those that there are \
                    descriptors for";
        registry.register("flows_limit", help, gauge(limits.flows as f64));
        if let Some(memory) = limits.memory {
            let help = "Memory of TCP on this host above which the kernel saves memory (net.ipv4.tcp_mem): the proxy stays below it";
            registry.register_with_unit("tcp_memory_limit", help, Unit::Bytes, gauge(memory as f64));
        }
    }
    if let Some(bytes) = host_memory::tcp_memory() {
        registry.register_with_unit("tcp_memory", "Memory that TCP takes on this host", Unit::Bytes, gauge(bytes as f64));
    }
    if let Some(memory) = memory {
        let help = "Memory of the connections: queues in the kernel, pipes, and a fixed amount for each. Measured when more than a third of \
                    the budget may be in use; else at most this";
        registry.register_with_unit("memory", help, Unit::Bytes, gauge(memory.used as f64));
        if let Some(budget) = memory.budget {
            let help = "Memory that the connections may take: memory, or what net.ipv4.tcp_mem or the control group leaves beside others";
            registry.register_with_unit("memory_budget", help, Unit::Bytes, gauge(budget as f64));
        }
        let family = Family::<Labels, FloatGauge>::default();
        for level in MemoryLevel::ALL {
            let is_present = memory.level == level.name();
            family.get_or_create(&[("level", level.name().to_owned())]).set(f64::from(u8::from(is_present)));
        }
        let help = "How short memory is, 1 for the present level: tight, buffers are limited to their share; full and above, new \
                    connections pass unsplit or wait, and flows that are stuck end";
        registry.register("memory_level", help, family);
    }
    if let Some(windows) = zero_windows {
        let family = Family::<Labels, Counter>::default();
        for (event, count) in [("announced", windows.announced), ("reopened", windows.reopened), ("probe", windows.probes)] {
            family.get_or_create(&[("event", event.to_owned())]).inc_by(count);
        }
        let help = "Zero windows of TCP in this network namespace: announced to peers by sockets of this host, reopened by them; probe, \
                    packets to peers that have announced one";
        registry.register("zero_windows", help, family);
    }
    if let Some(counted) = &status.counted {
        let help = "Times that the firewall's rules were lost and installed again; connections passed unsplit meanwhile";
        registry.register("rules_restored", help, counter(counted.restored));
    }
    if let Some(records) = flow_records {
        let family = Family::<Labels, Counter>::default();
        for (fate, count) in [("written", records.written), ("dropped", records.dropped)] {
            family.get_or_create(&[("fate", fate.to_owned())]).inc_by(count);
        }
        registry.register("flow_records", "Flow records: written; dropped, since they could not be written fast enough or at all", family);
    }
    links(registry, &status.links);
}

/// Registers the state of the links with a capacity.
fn links(registry: &mut Registry, links: &[LinkView]) {
    if links.is_empty() {
        return;
    }
    let of = |link: &LinkView| [("link", link.link.clone())];
    let mut gauges = |name: &str, help: &str, unit: Unit, value: &dyn Fn(&LinkView) -> Option<f64>| {
        let family = Family::<Labels, FloatGauge>::default();
        for link in links {
            if let Some(value) = value(link) {
                family.get_or_create(&of(link)).set(value);
            }
        }
        registry.register_with_unit(name, help, unit, family);
    };
    let per_second = || Unit::Other("bytes_per_second".into());
    let capacity = "Capacity of the link, in bytes of IP: configured, read from a file, or estimated";
    gauges("link_capacity", capacity, per_second(), &|link| Some(link.capacity_bps as f64 / 8.0));
    let queue = "Standing queue of the link: the smallest recent backlog";
    gauges("link_queue", queue, Unit::Bytes, &|link| Some(link.queue_bytes as f64));
    gauges("link_backlog", "Backlog of the link at present", Unit::Bytes, &|link| Some(link.backlog_bytes as f64));
    let share = "Rate of a greedy flow of weight 1 under `share`, bytes of payload; 0: the link has no such flow";
    gauges("link_share", share, per_second(), &|link| Some(link.share_bps as f64 / 8.0));
    if links.iter().any(|link| link.file_time_s.is_some()) {
        let modified = "When the file with the capacity of the link was last modified, as far as it could be used, since the Unix epoch";
        gauges("link_capacity_file_time", modified, Unit::Seconds, &|link| link.file_time_s);
    }
    let mut counters = |name: &str, help: &str, unit: Option<Unit>, value: fn(&LinkView) -> u64| {
        let family = Family::<Labels, Counter>::default();
        for link in links {
            family.get_or_create(&of(link)).inc_by(value(link));
        }
        match unit {
            Some(unit) => registry.register_with_unit(name, help, unit, family),
            None => registry.register(name, help, family),
        }
    };
    let egress = "Bytes of all packets that have left through the link, on the wire";
    counters("link_egress", egress, Some(Unit::Bytes), |link| link.egress_bytes);
    counters("link_drops", "Packets that the shaper dropped since its queue was full", None, |link| link.drops);
}

/// A link, for the reference documentation.
pub(super) fn example() -> LinkView {
    let text = r#"{"link": "sat0", "capacity_bps": 0, "egress_bps": 0, "other_bps": 0, "queue_bytes": 0, "backlog_bytes": 0, "shaped": true,
        "drops": 0, "load": 0, "give_bytes": 0, "take_bytes": 0, "share_bps": 0, "share_flows": 0, "share_scale": 1, "file_time_s": 0}"#;
    serde_json::from_str(text).unwrap_or_else(|error| unreachable!("the example of a link: {error}"))
}
