//! Metrics for Prometheus: totals of all flows and measurements of their legs, in base units. No
//! label has a flow or an address as its value; only exemplars have the numbers of flows.

mod experiment;
mod exposition;
mod host;
mod legs;

use crate::{
    control::{ProxyStatus, StatusDetails},
    flow_records::RecordCounts,
    memory::MemoryView,
    meter::{NetworkTotals, Totals},
    running::{Proxy, ProxyLimits},
};
use intercept::{Counted, ReceiveCounters, ZeroWindows};
use prometheus_client::{
    encoding::text::encode,
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::{ConstGauge, Gauge},
        info::Info,
    },
    registry::{Registry, Unit},
};
use relay::Ending;
use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock, atomic::AtomicU64},
    time::SystemTime,
};

/// The label of a counter; its values are few and fixed.
type Labels = [(&'static str, &'static str); 1];

/// Renders the metrics of a proxy, for a [`web_server::Site`]; none while the proxy ends.
pub fn render(proxy: &Arc<Proxy>) -> impl Fn() -> Option<String> + Send + Sync + use<> {
    started_s();
    let proxy = Arc::downgrade(proxy);
    // The reference to the proxy is kept only while the page is made: the proxy ends when its last
    // reference is dropped.
    move || Some(text(&proxy.upgrade()?.status()))
}

/// When metrics were first served, seconds since the Unix epoch: a moment after the process
/// started.
fn started_s() -> f64 {
    static STARTED: OnceLock<f64> = OnceLock::new();
    *STARTED.get_or_init(|| SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64())
}

/// The metrics page of an idle proxy with a bond, a link with a capacity and flow records, for the
/// reference documentation.
pub fn reference() -> String {
    let network = NetworkTotals { up: Some(true), ..NetworkTotals::default() };
    let totals = Totals { networks: [("wlan0".to_owned(), network)].into(), measured: legs::example(), ..Totals::default() };
    let (counted, receive) = (Some(Counted::default()), Some(ReceiveCounters::default()));
    let details = StatusDetails {
        process_flows: Some(0),
        limits: Some(ProxyLimits { flows: 0, memory: Some(0) }),
        memory: Some(MemoryView { budget: Some(0), ..MemoryView::default() }),
        zero_windows: Some(ZeroWindows::default()),
        flow_records: Some(RecordCounts::default()),
        experiment: Some(experiment::example()),
        configuration: None,
    };
    text(&ProxyStatus { totals, counted, links: vec![host::example()], receive, draining_processes: 0, details })
}

/// A status in Prometheus' text format.
fn text(status: &ProxyStatus) -> String {
    let mut registry = Registry::with_prefix("tandem");
    let totals = &status.totals;
    registry.register("build", "The program", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
    registry.register("flows", "Connections that are split now, by all processes", ConstGauge::new(totals.flows));
    let ended = Ending::KINDS.into_iter().zip(totals.ended).map(|(kind, count)| ([("ending", kind)], count));
    counters(
        &mut registry,
        "flows_ended",
        "Connections that have ended, by how: both ends closed and all was delivered, a leg failed, the far end was not reached or timed out, \
                     nothing moved for too long, the client did not name its destination, no descriptor or memory was left, the proxy stopped, memory was short and \
                     nothing had moved for a while",
        None,
        ended,
    );
    let carried = [([("direction", "up")], totals.up), ([("direction", "down")], totals.down)];
    counters(&mut registry, "carried", "Payload carried, up to servers and down to clients", Some(Unit::Bytes), carried);
    let again = [([("leg", "near")], totals.near_retransmits), ([("leg", "far")], totals.far_retransmits)];
    counters(&mut registry, "retransmitted_segments", "Segments that were retransmitted, of connections that have ended", None, again);
    let help = "Connections to listeners for a bond that did not prove that they have its key";
    registry.register("bond_refused", help, ConstCounter::new(totals.refused));
    networks(&mut registry, &totals.networks);
    if let Some(counted) = status.counted {
        let verdicts = [
            ([("verdict", "split")], counted.split),
            ([("verdict", "bypassed")], counted.bypassed),
            ([("verdict", "unsplit")], counted.unsplit),
            ([("verdict", "not_yet_allowed")], counted.not_yet_allowed),
            ([("verdict", "stopped")], counted.stopped),
            ([("verdict", "experiment")], counted.experiment),
            ([("verdict", "oneway")], counted.oneway),
        ];
        let help = "Connections by what became of them: split; bypassed by a rule or the list; unsplit, since there was no room; \
                    not_yet_allowed, unsplit until the forward chain has let one of their kind pass; stopped, unsplit since an input \
                    chain stops their kind (SYNs, retransmitted ones too); experiment, unsplit as a group of the experiment \
                    (SYNs, retransmitted ones too); oneway, answered through this host but not opened through it \
                    (packets, retransmitted ones too)";
        counters(&mut registry, "connections", help, None, verdicts);
        registry.register("quic_packets", "Packets of UDP port 443, which cannot be split", ConstCounter::new(counted.quic_packets));
        registry.register_with_unit(
            "quic",
            "Bytes of UDP port 443, which cannot be split",
            Unit::Bytes,
            ConstCounter::new(counted.quic_bytes),
        );
        let help = "Connections of QUIC that a rule counts or rejects (quic)";
        registry.register("quic_connections", help, ConstCounter::new(counted.quic_connections));
        let refused = [([("verdict", "rejected")], counted.quic_rejected), ([("verdict", "dropped")], counted.quic_dropped)];
        let help = "First packets of QUIC that a rule refuses: rejected, with an ICMP error; dropped, above the rate of these errors";
        counters(&mut registry, "quic_refused_packets", help, None, refused);
    }
    if let Some(receive) = status.receive {
        let counts = [
            ([("kind", "pruned")], receive.pruned),
            ([("kind", "dropped")], receive.dropped),
            ([("kind", "collapsed")], receive.collapsed),
        ];
        let help = "Receive buffers of this network namespace without room for what they had admitted: pruned, buffers without room even after \
                    packets were merged; dropped, packets; collapsed, packets that were merged";
        counters(&mut registry, "receive_buffer_overruns", help, None, counts);
    }
    if let Some(view) = &status.details.experiment {
        experiment::register(&mut registry, view);
    }
    host::register(&mut registry, status, started_s());
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &registry);
    // The last line ends the page.
    let end = text.rfind("# EOF").unwrap_or(text.len());
    text.insert_str(end, &legs::text(&totals.measured));
    text
}

/// Registers the totals of a bond's networks. Their names, which become label values, are few and
/// trusted: the operator or the authenticated other end chooses them.
fn networks(registry: &mut Registry, networks: &BTreeMap<String, NetworkTotals>) {
    type NetworkLabels = Vec<(&'static str, String)>;
    let (carried, waited, connections, up) = (
        Family::<NetworkLabels, Counter>::default(),
        Family::<NetworkLabels, Counter<f64, AtomicU64>>::default(),
        Family::<NetworkLabels, Gauge>::default(),
        Family::<NetworkLabels, Gauge>::default(),
    );
    for (network, totals) in networks {
        let of = |more: &[(&'static str, &str)]| {
            let more = more.iter().map(|(key, value)| (*key, (*value).to_owned()));
            std::iter::once(("network", network.clone())).chain(more).collect::<NetworkLabels>()
        };
        carried.get_or_create(&of(&[("direction", "sent")])).inc_by(totals.sent);
        carried.get_or_create(&of(&[("direction", "received")])).inc_by(totals.received);
        waited.get_or_create(&of(&[])).inc_by(totals.waited_s);
        connections.get_or_create(&of(&[])).set(totals.connections as i64);
        if let Some(is_up) = totals.up {
            up.get_or_create(&of(&[])).set(i64::from(is_up));
        }
    }
    if !networks.is_empty() {
        registry.register_with_unit(
            "bond_carried",
            "Payload over each network of the bond, sent and received by this end, copies included",
            Unit::Bytes,
            carried,
        );
        let help = "Time that payload which arrived over other networks waited for payload over this one, of all streams together";
        registry.register_with_unit("bond_waited", help, Unit::Seconds, waited);
        registry.register("bond_connections", "Connections of streams over each network of the bond, now", connections);
        let help = "Whether the other end of the bond is reached over each network (1), at the end that dials";
        registry.register("bond_network_up", help, up);
    }
}

/// Registers a counter with one label.
fn counters(registry: &mut Registry, name: &str, help: &str, unit: Option<Unit>, values: impl IntoIterator<Item = (Labels, u64)>) {
    let family = Family::<Labels, Counter>::default();
    for (labels, value) in values {
        family.get_or_create(&labels).inc_by(value);
    }
    match unit {
        Some(unit) => registry.register_with_unit(name, help, unit, family),
        None => registry.register(name, help, family),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use intercept::LinkView;

    #[test]
    fn a_status_is_written_as_metrics() {
        let network = NetworkTotals { connections: 2, sent: 5, received: 8, waited_s: 0.5, up: Some(false) };
        let totals = Totals {
            flows: 3,
            ended: [5, 0, 1, 0, 0, 0, 0, 0, 0, 0],
            up: 7,
            acknowledged: [0; 2],
            down: 11,
            near_retransmits: 0,
            far_retransmits: 2,
            refused: 4,
            memory: 0,
            networks: [("wlan0".to_string(), network)].into(),
            measured: legs::example(),
        };
        let counted = Counted { split: 9, bypassed: 4, unsplit: 2, not_yet_allowed: 8, quic_bytes: 6000, ..Counted::default() };
        let link = LinkView { queue_bytes: 3000, capacity_bps: 8000, ..host::example() };
        let details = StatusDetails {
            process_flows: Some(2),
            memory: Some(MemoryView { used: 9, budget: Some(10), level: "tight".into(), ..MemoryView::default() }),
            flow_records: Some(RecordCounts { written: 6, dropped: 7 }),
            experiment: Some(experiment::example()),
            ..StatusDetails::default()
        };
        let text = text(&ProxyStatus { totals, counted: Some(counted), links: vec![link], receive: None, draining_processes: 0, details });
        for line in [
            "tandem_flows 3",
            "tandem_process_flows 2",
            "tandem_memory_bytes 9.0",
            "tandem_memory_budget_bytes 10.0",
            "tandem_memory_level{level=\"tight\"} 1.0",
            "tandem_memory_level{level=\"full\"} 0.0",
            "tandem_flows_ended_total{ending=\"stuck\"} 0",
            "tandem_flows_ended_total{ending=\"finished\"} 5",
            "tandem_flows_ended_total{ending=\"far_not_reached\"} 1",
            "tandem_carried_bytes_total{direction=\"down\"} 11",
            "tandem_retransmitted_segments_total{leg=\"far\"} 2",
            "tandem_connections_total{verdict=\"unsplit\"} 2",
            "tandem_connections_total{verdict=\"not_yet_allowed\"} 8",
            "tandem_bond_refused_total 4",
            "tandem_bond_carried_bytes_total{network=\"wlan0\",direction=\"received\"} 8",
            "tandem_bond_waited_seconds_total{network=\"wlan0\"} 0.5",
            "tandem_bond_connections{network=\"wlan0\"} 2",
            "tandem_quic_bytes_total 6000",
            "tandem_bond_network_up{network=\"wlan0\"} 0",
            "tandem_flow_records_total{fate=\"dropped\"} 7",
            "tandem_link_queue_bytes{link=\"sat0\"} 3000.0",
            "tandem_link_capacity_bytes_per_second{link=\"sat0\"} 1000.0",
            "tandem_rtt_seconds_bucket{leg=\"far\",profile=\"far\",le=\"+Inf\"} 1",
            "tandem_flow_duration_seconds_count{leg=\"near\",profile=\"near\",size=\"<10kB\"} 1",
            "tandem_connect_failures_total{leg=\"far\",profile=\"far\",kind=\"refused\"} 0",
            "tandem_rules_restored_total 0",
            "tandem_experiment_connections_total{group=\"split\",fate=\"complete\"} 0",
            "tandem_experiment_gain_low{size=\"all\"} 1.0",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in:\n{text}");
        }
        assert!(text.ends_with("\n# EOF\n") && text.matches("# EOF").count() == 1, "{text}");
    }
}
