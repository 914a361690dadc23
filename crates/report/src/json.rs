//! Outcomes as JSON, with the field names of `Outcome`: nothing is renamed or rounded.

use outcome::Outcome;
use serde_json::Value;

/// An indented list with an entry for each outcome. Numbers over time are left out unless `series`.
/// Numbers that are not finite are `null`, since JSON has none. Ends with a newline.
pub fn json(outcomes: &[Outcome], series: bool) -> String {
    serde_json::to_string_pretty(&self::outcomes(outcomes, series)).expect("values are text already") + "\n"
}

/// A value for each outcome.
pub(crate) fn outcomes(outcomes: &[Outcome], series: bool) -> Vec<Value> {
    let entry = |outcome: &Outcome| {
        let mut value = serde_json::to_value(outcome).expect("an outcome has only text keys");
        if let (false, Value::Object(fields)) = (series, &mut value) {
            fields.shift_remove("series");
        }
        value
    };
    outcomes.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn keys(value: &Value) -> Vec<&str> {
        value.as_object().unwrap().keys().map(String::as_str).collect()
    }

    #[test]
    fn the_fields_are_those_of_the_design() {
        let list: Value = serde_json::from_str(&json(&[samples::full()], true)).unwrap();
        let outcome = &list[0];
        assert_eq!(
            keys(outcome),
            [
                "scenario",
                "case",
                "engine",
                "seed",
                "valid",
                "warnings",
                "goodput_bps",
                "utilization",
                "flows",
                "proxy",
                "links",
                "sojourn_s",
                "sojourn_jobs",
                "networks",
                "reorder",
                "ci95",
                "series"
            ]
        );
        assert_eq!(keys(&outcome["flows"][0]), ["id", "asked_bytes", "bytes", "start_s", "end_s", "goodput_bps", "legs"]);
        assert_eq!(keys(&outcome["flows"][0]["legs"][0]), ["control", "mean_rtt_s", "min_rtt_s", "retransmits", "mean_cwnd_pkt"]);
        assert_eq!(keys(&outcome["proxy"]), ["buffer_bytes", "delay_s", "phases"]);
        assert_eq!(keys(&outcome["proxy"]["buffer_bytes"]), ["mean", "p50", "p99", "max"]);
        assert_eq!(keys(&outcome["proxy"]["phases"]), ["free", "starvation", "backpressure"]);
        assert_eq!(keys(&outcome["networks"][0]), ["network", "utilization", "share", "queue_drops"]);
        assert_eq!(keys(&outcome["reorder"]), ["mean_bytes", "max_bytes"]);
        assert_eq!(keys(&outcome["ci95"]), ["goodput_bps"]);
        assert_eq!(keys(&outcome["series"][0]), ["what", "whose", "unit", "t", "v"]);
    }

    #[test]
    fn without_series_they_are_left_out_and_the_rest_reads_back() {
        let outcome = samples::full();
        let text = json(std::slice::from_ref(&outcome), false);
        assert!(!text.contains("series"));
        let back: Vec<Outcome> = serde_json::from_str(&text).unwrap();
        // Not compared as a whole: serde_json reads floats back to within their last bit.
        assert_eq!((&back[0].case, back[0].flows.len(), &back[0].ci95), (&outcome.case, 1, &outcome.ci95));
        assert_eq!(json(&back, true), json(&back, false));
    }

    #[test]
    fn no_outcomes_are_an_empty_list() {
        assert_eq!(json(&[], true), "[]\n");
    }
}
