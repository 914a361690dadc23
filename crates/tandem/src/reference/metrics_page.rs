//! The reference page of the metrics, from the text that the metrics server returns.

use report::PlainTable;
use std::collections::{BTreeMap, BTreeSet};

/// A row of the page.
#[derive(Default)]
struct MetricRow {
    kind: String,
    help: String,
    /// The labels and their values, sorted: their order in the text is arbitrary.
    labels: BTreeMap<String, BTreeSet<String>>,
    /// The name in samples, with the suffix of its type.
    name: String,
}

/// Returns the page of the metrics in two texts in the OpenMetrics format.
pub(super) fn markdown(proxy: &str, cache: &str) -> String {
    let introduction = "Every metric that `--metrics ADDRESS:PORT` (`metrics` in the proxy's file) serves for Prometheus. \
                        [Monitoring](../operation.md#metrics) says how. Counters begin at 0 when the process starts.";
    let header = ["metric", "type", "labels", "meaning"];
    super::schema_page::head("Metrics", introduction)
        + "\n## Proxy and bond\n\n"
        + &PlainTable::new(&header, rows(proxy)).markdown()
        + "\n## Cache\n\n"
        + &PlainTable::new(&header, rows(cache)).markdown()
}

fn rows(text: &str) -> Vec<Vec<String>> {
    let mut metrics: Vec<(String, MetricRow)> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            // prometheus-client ends every text with a period.
            metrics.push((name.into(), MetricRow { help: help.trim_end_matches('.').into(), ..MetricRow::default() }));
        } else if let (Some(rest), Some((_, metric))) = (line.strip_prefix("# TYPE "), metrics.last_mut()) {
            metric.kind = rest.rsplit(' ').next().unwrap_or_default().into();
        } else if let (false, Some((family, metric))) = (line.starts_with('#'), metrics.last_mut()) {
            let sample = line.split_once(" # ").map_or(line, |(sample, _exemplar)| sample);
            let sample = sample.rsplit_once(' ').map_or(sample, |(sample, _)| sample);
            let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
            // The samples of a histogram have several suffixes: the page has the name of the family.
            metric.name = if metric.kind == "histogram" { family.clone() } else { name.into() };
            let labels = labels.trim_end_matches('}').split(',').filter_map(|label| label.split_once('='));
            for (label, value) in labels.filter(|(label, _)| *label != "le") {
                metric.labels.entry(label.into()).or_default().insert(value.trim_matches('"').to_owned());
            }
        }
    }
    metrics.into_iter().map(|(_, metric)| row(&metric)).collect()
}

fn row(metric: &MetricRow) -> Vec<String> {
    let label = |(label, values): (&String, &BTreeSet<String>)| {
        let shown: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
        // The values of these labels are only examples.
        let is_free = ["link", "network", "profile", "version"].contains(&label.as_str());
        if is_free { format!("`{label}`") } else { format!("`{label}`: {}", shown.join(", ")) }
    };
    let labels: Vec<String> = metric.labels.iter().map(label).collect();
    vec![format!("`{}`", metric.name), metric.kind.clone(), labels.join("; "), metric.help.clone()]
}
