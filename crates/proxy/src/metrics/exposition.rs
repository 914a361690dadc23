//! Writes metric families in OpenMetrics' text format. `prometheus-client` writes all metrics but
//! these: its exemplars can only come from histograms that it keeps itself, behind a lock.

use crate::measure::Histogram;
use std::fmt::Write as _;

/// The type of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FamilyType {
    Counter,
    Histogram,
}

/// A family: its name without a prefix, its unit, and its description.
#[derive(Debug, Clone, Copy)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) kind: FamilyType,
    /// A base unit, which the name ends in; empty: it has none.
    pub(super) unit: &'static str,
    pub(super) help: &'static str,
}

/// Labels of a sample. Values come from the operator's configuration at most.
pub(super) type Labels<'a> = [(&'static str, &'a str)];

/// The text of metric families. The caller begins each family once, and then adds its samples.
#[derive(Debug, Default)]
pub(super) struct Exposition {
    text: String,
    name: String,
}

impl Exposition {
    /// Begins a family.
    pub(super) fn begin(&mut self, family: &Family) {
        self.name = format!("tandem_{}", family.name);
        let kind = match family.kind {
            FamilyType::Counter => "counter",
            FamilyType::Histogram => "histogram",
        };
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(self.text, "# HELP {} {}.", self.name, family.help);
        let _ = writeln!(self.text, "# TYPE {} {kind}", self.name);
        if !family.unit.is_empty() {
            let _ = writeln!(self.text, "# UNIT {} {}", self.name, family.unit);
        }
    }

    /// Adds a sample of a counter.
    pub(super) fn counter(&mut self, labels: &Labels<'_>, value: impl std::fmt::Display) {
        let _ = write!(self.text, "{}_total", self.name);
        self.labels(labels, None);
        let _ = writeln!(self.text, " {value}");
    }

    /// Adds the samples of a histogram with these bounds. One without observations is left out.
    pub(super) fn histogram(&mut self, labels: &Labels<'_>, bounds: &[f64], histogram: &Histogram) {
        // Not the bounds of this version of the program: a worker of another one has sent it.
        if histogram.counts.len() != bounds.len() + 1 {
            return;
        }
        let mut below = 0;
        for (bucket, count) in histogram.counts.iter().enumerate() {
            below += count;
            let _ = write!(self.text, "{}_bucket", self.name);
            let bound = bounds.get(bucket).map_or("+Inf".to_owned(), |bound| format!("{bound:?}"));
            self.labels(labels, Some(&bound));
            let _ = write!(self.text, " {below}");
            if let Some(Some(seen)) = histogram.exemplars.get(bucket) {
                let _ = write!(self.text, " # {{flow=\"{}\"}} {:?} {:.3}", seen.flow, seen.value, seen.time_s);
            }
            self.text.push('\n');
        }
        for (suffix, value) in [("sum", format!("{:?}", histogram.sum)), ("count", below.to_string())] {
            let _ = write!(self.text, "{}_{suffix}", self.name);
            self.labels(labels, None);
            let _ = writeln!(self.text, " {value}");
        }
    }

    /// The text, without the line that ends a page.
    pub(super) fn into_text(self) -> String {
        self.text
    }

    fn labels(&mut self, labels: &Labels<'_>, bound: Option<&str>) {
        let all = labels.iter().copied().chain(bound.map(|bound| ("le", bound)));
        for (index, (name, value)) in all.enumerate() {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{}{name}=\"{value}\"", if index == 0 { '{' } else { ',' });
        }
        self.text.push_str(if labels.is_empty() && bound.is_none() { "" } else { "}" });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Exemplar, FlowId};

    #[test]
    fn families_are_written_as_openmetrics() {
        let mut histogram = Histogram::default();
        histogram.observe(&[0.5, 1.0], Exemplar { value: 0.75, flow: FlowId(0xf1), time_s: 1_700_000_000.25 });
        histogram.add(&[0.5, 1.0], 20.0);
        let mut page = Exposition::default();
        let family = |kind| Family { name: "rtt_seconds", kind, unit: "seconds", help: "Round-trip times" };
        page.begin(&family(FamilyType::Histogram));
        page.histogram(&[("profile", "a \"b\\\n")], &[0.5, 1.0], &histogram);
        page.histogram(&[("profile", "none")], &[0.5, 1.0], &Histogram::default());
        page.begin(&Family { name: "flows", unit: "", ..family(FamilyType::Counter) });
        page.counter(&[], 3);
        page.counter(&[("leg", "far"), ("profile", "sat")], 0.5);
        let wanted = "# HELP tandem_rtt_seconds Round-trip times.\n# TYPE tandem_rtt_seconds histogram\n# UNIT tandem_rtt_seconds seconds\n\
                      tandem_rtt_seconds_bucket{profile=\"a \\\"b\\\\\\n\",le=\"0.5\"} 0\n\
                      tandem_rtt_seconds_bucket{profile=\"a \\\"b\\\\\\n\",le=\"1.0\"} 1 # {flow=\"00000000000000f1\"} 0.75 1700000000.250\n\
                      tandem_rtt_seconds_bucket{profile=\"a \\\"b\\\\\\n\",le=\"+Inf\"} 2\n\
                      tandem_rtt_seconds_sum{profile=\"a \\\"b\\\\\\n\"} 20.75\ntandem_rtt_seconds_count{profile=\"a \\\"b\\\\\\n\"} 2\n\
                      # HELP tandem_flows Round-trip times.\n# TYPE tandem_flows counter\ntandem_flows_total 3\n\
                      tandem_flows_total{leg=\"far\",profile=\"sat\"} 0.5\n";
        assert_eq!(page.into_text(), wanted);
    }
}
