//! Metrics for Prometheus, in base units. No label names a client or a server.

use crate::{Cache, Stats};
use intercept::OpenError;
use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family, gauge::ConstGauge, info::Info},
    registry::{Registry, Unit},
};
use std::{net::SocketAddr, sync::Arc};
use web_server::{Server, Site};

type MetricLabels = [(&'static str, &'static str); 1];

/// Serves metrics at `http://AT/metrics` until the server returned is dropped, under addresses and
/// the name of this host, and under `names`.
///
/// # Errors
/// [`OpenError::Listen`] when the address cannot be used.
pub fn serve(cache: &Arc<Cache>, at: SocketAddr, names: &[String]) -> Result<Server, OpenError> {
    let cache = Arc::downgrade(cache);
    // A weak reference: the cache must end when its owner drops it.
    Server::start(at, Site::named(names).with_metrics(move || Some(text(&cache.upgrade()?.stats()))))
        .map_err(|why| OpenError::metrics(at, why))
}

/// The page of a cache without traffic, for the reference of its metrics.
pub fn reference() -> String {
    text(&Stats::default())
}

/// The metrics in the OpenMetrics text format.
fn text(stats: &Stats) -> String {
    let mut registry = Registry::with_prefix("tandem_cache");
    registry.register("build", "The program", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
    let mut count = |name: &str, help: &str, unit: Option<Unit>, values: &[(MetricLabels, u64)]| {
        let family = Family::<MetricLabels, Counter>::default();
        for (labels, value) in values {
            family.get_or_create(labels).inc_by(*value);
        }
        match unit {
            Some(unit) => registry.register_with_unit(name, help, unit, family),
            None => registry.register(name, help, family),
        }
    };
    let answers = [
        ([("from", "hit")], stats.hits),
        ([("from", "revalidated")], stats.revalidated),
        ([("from", "stale")], stats.stale),
        ([("from", "miss")], stats.misses),
        ([("from", "pass")], stats.passed),
        ([("from", "refused")], stats.refused),
        ([("from", "tunnel")], stats.tunnels),
    ];
    count("answers", "Responses to clients, by where they came from", None, &answers);
    count(
        "aborted",
        "Responses that were not sent completely because the client or the server broke off",
        None,
        &[([("what", "answers")], stats.aborted)],
    );
    count(
        "connections",
        "Accepted connections",
        None,
        &[([("kind", "all")], stats.connections), ([("kind", "raw")], stats.raw_connections)],
    );
    let carried = [
        ([("what", "from_origins")], stats.origin_bytes),
        ([("what", "to_clients")], stats.client_bytes),
        ([("what", "raw")], stats.raw_bytes),
    ];
    count(
        "carried",
        "Bytes of bodies from origin servers and to clients; bytes of other protocols and tunnels, both directions",
        Some(Unit::Bytes),
        &carried,
    );
    let saved = [([("by", "pictures")], stats.picture_bytes_saved), ([("by", "compression")], stats.compressed_bytes_saved)];
    count("saved", "Bytes that were not sent to clients thanks to smaller pictures and compression", Some(Unit::Bytes), &saved);
    let made = [([("what", "pictures")], stats.pictures), ([("what", "compressed")], stats.compressed)];
    count("transformed", "Pictures that were transcoded to smaller ones, bodies that were compressed", None, &made);
    let events = [
        ([("event", "collapsed")], stats.collapsed),
        ([("event", "overflow")], stats.overflows),
        ([("event", "waited")], stats.waited),
        ([("event", "picture_skipped")], stats.pictures_skipped),
        ([("event", "picture_failed")], stats.pictures_failed),
    ];
    let help = "Requests that waited for the response to an equal request (collapsed); directions of connections that exceeded the storage \
                and were streamed (overflow); requests that waited for memory (waited); pictures that passed unchanged because the queue \
                was full (picture_skipped) or their worker failed (picture_failed)";
    count("events", help, None, &events);
    registry.register("kept", "Responses in the store", ConstGauge::new(stats.kept));
    registry.register_with_unit(
        "memory",
        "Memory that stored responses and messages in transit take",
        Unit::Bytes,
        ConstGauge::new(stats.memory_bytes),
    );
    let reserved = ConstGauge::new(stats.reserved_bytes);
    registry.register_with_unit("reserved", "Memory that requests in progress and connections to servers reserve", Unit::Bytes, reserved);
    registry.register_with_unit(
        "disk",
        "Disk space that stored responses and messages in transit take",
        Unit::Bytes,
        ConstGauge::new(stats.disk_bytes),
    );
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_are_encoded_as_metrics() {
        let text = text(&Stats {
            hits: 3,
            client_bytes: 7,
            picture_bytes_saved: 11,
            kept: 2,
            memory_bytes: 13,
            reserved_bytes: 17,
            waited: 19,
            ..Stats::default()
        });
        for line in [
            "tandem_cache_answers_total{from=\"hit\"} 3",
            "tandem_cache_carried_bytes_total{what=\"to_clients\"} 7",
            "tandem_cache_saved_bytes_total{by=\"pictures\"} 11",
            "tandem_cache_kept 2",
            "tandem_cache_memory_bytes 13",
            "tandem_cache_reserved_bytes 17",
            "tandem_cache_events_total{event=\"waited\"} 19",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in:\n{text}");
        }
    }
}
