//! What has been done, for Prometheus: base units, no label a client or a server.

use crate::{Cache, Stats};
use intercept::OpenError;
use metrics_server::Server;
use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family, gauge::ConstGauge, info::Info},
    registry::{Registry, Unit},
};
use std::{net::SocketAddr, sync::Arc};

type Labels = [(&'static str, &'static str); 1];

/// Serves metrics at `http://AT/metrics` until what it returns is dropped.
///
/// # Errors
/// [`OpenError::Listen`] when the address cannot be used.
pub fn serve(cache: &Arc<Cache>, at: SocketAddr) -> Result<Server, OpenError> {
    let cache = Arc::downgrade(cache);
    // The cache is held no longer than the page takes to make: it ends when its last reference is dropped.
    Server::start(at, move || Some(text(&cache.upgrade()?.stats()))).map_err(|why| OpenError::metrics(at, why))
}

/// The page of a cache that has done nothing yet, for the reference of its metrics.
pub fn reference() -> String {
    text(&Stats::default())
}

/// Numbers as Prometheus reads them.
fn text(stats: &Stats) -> String {
    let mut registry = Registry::with_prefix("tandem_cache");
    registry.register("build", "The program", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
    let mut count = |name: &str, help: &str, unit: Option<Unit>, values: &[(Labels, u64)]| {
        let family = Family::<Labels, Counter>::default();
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
    count(
        "answers",
        "Answers by where they came from: hit, from the cache; revalidated, confirmed by the server; stale, since the server did not answer; miss, \
         from the server; pass, not for a cache; refused; tunnel",
        None,
        &answers,
    );
    count("aborted", "Answers that broke off on either side", None, &[([("what", "answers")], stats.aborted)]);
    count(
        "connections",
        "Connections that came in, all and those that were not HTTP (raw)",
        None,
        &[([("kind", "all")], stats.connections), ([("kind", "raw")], stats.raw_connections)],
    );
    let carried = [
        ([("what", "from_origins")], stats.origin_bytes),
        ([("what", "to_clients")], stats.client_bytes),
        ([("what", "raw")], stats.raw_bytes),
    ];
    count("carried", "Bodies from servers and to clients; raw, what was not HTTP, in both directions", Some(Unit::Bytes), &carried);
    let saved = [([("by", "pictures")], stats.picture_bytes_saved), ([("by", "compression")], stats.compressed_bytes_saved)];
    count("saved", "What was not sent to clients because pictures were made smaller or bodies compressed", Some(Unit::Bytes), &saved);
    let made = [([("what", "pictures")], stats.pictures), ([("what", "compressed")], stats.compressed)];
    count("transformed", "Pictures that were made smaller, bodies that were compressed", None, &made);
    let events = [
        ([("event", "collapsed")], stats.collapsed),
        ([("event", "overflow")], stats.overflows),
        ([("event", "waited")], stats.waited),
        ([("event", "picture_skipped")], stats.pictures_skipped),
        ([("event", "picture_failed")], stats.pictures_failed),
    ];
    let help = "Events: collapsed, a request waited for the answer to another; overflow, a direction no longer fitted and was streamed; waited, a \
                request waited for room; picture_skipped, a picture passed unchanged since too many waited; picture_failed, one passed \
                unchanged since its worker died, took too long or did not start";
    count("events", help, None, &events);
    registry.register("kept", "Answers that are kept", ConstGauge::new(stats.kept));
    registry.register_with_unit("memory", "Memory that messages take", Unit::Bytes, ConstGauge::new(stats.memory_bytes));
    let reserved = ConstGauge::new(stats.reserved_bytes);
    registry.register_with_unit(
        "reserved",
        "Memory that requests in progress and connections to servers reserve of --memory",
        Unit::Bytes,
        reserved,
    );
    registry.register_with_unit("disk", "Disk that messages take", Unit::Bytes, ConstGauge::new(stats.disk_bytes));
    let mut text = String::new();
    // Writing to a string can't fail.
    let _ = encode(&mut text, &registry);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_metrics() {
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
