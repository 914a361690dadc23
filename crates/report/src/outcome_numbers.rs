//! The numbers of an outcome by their names: the head of their column, and the format of a value.
//! The unit is fixed, so that columns of several tables, and of a paper, can be compared.

use crate::number_format::NONE;

/// How a number of an outcome is shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NumberFormat {
    /// The head of its column, with the unit.
    pub head: &'static str,
    /// The size of the unit in base units.
    per: f64,
    decimals: usize,
}

impl NumberFormat {
    /// A ratio of two numbers.
    pub const RATIO: NumberFormat = NumberFormat { head: "ratio", per: 1.0, decimals: 3 };

    /// The number that [`Outcome::number`](outcome::Outcome::number) has under `name`. An unknown
    /// one is shown as it is.
    pub fn named(name: &str) -> NumberFormat {
        let (head, per, decimals) = match name {
            "mean_flow_s" => ("mean, s", 1.0, 2),
            "mean_acked_s" => ("sender knows, s", 1.0, 2),
            "last_acked_s" => ("last sender knows, s", 1.0, 2),
            "kept_max_bytes" => ("sender keeps, kB", 1e3, 0),
            "completion_s" => ("end, s", 1.0, 2),
            "jain" => ("Jain", 1.0, 4),
            "jain_window" => ("Jain, 5 s", 1.0, 4),
            "utilization" => ("use, %", 1e-2, 1),
            "goodput_bps" => ("goodput, Mbit/s", 1e6, 3),
            "retransmits" => ("sent again", 1.0, 0),
            "local_retransmits" => ("sent again by agents", 1.0, 0),
            "suppressed_acks" => ("acknowledgements withheld", 1.0, 0),
            "loss_notices" => ("notices of loss", 1.0, 0),
            "queue_drops" => ("drops", 1.0, 0),
            "queue_p50_bytes" => ("median queue, kB", 1e3, 1),
            "queue_max_bytes" => ("peak queue, kB", 1e3, 0),
            "queue_delay_p50_s" => ("median wait in the queue, ms", 1e-3, 1),
            "queue_delay_p95_s" => ("95 % wait in the queue up to, ms", 1e-3, 1),
            "converge_s" => ("fair again after, s", 1.0, 1),
            "phase_free" => ("free, %", 1e-2, 2),
            "phase_starvation" => ("starvation, %", 1e-2, 2),
            "phase_backpressure" => ("backpressure, %", 1e-2, 2),
            "held_bytes" => ("held, kB", 1e3, 1),
            "delay_s" => ("from end to end, ms", 1e-3, 2),
            "page_load_s" => ("page load, s", 1.0, 3),
            "page_load_p50_s" => ("page load, p50, s", 1.0, 3),
            "page_load_p95_s" => ("page load, p95, s", 1.0, 3),
            "page_load_p99_s" => ("page load, p99, s", 1.0, 3),
            "response_s" => ("response, ms", 1e-3, 1),
            "response_p50_s" => ("response, p50, ms", 1e-3, 1),
            "response_p95_s" => ("response, p95, ms", 1e-3, 1),
            "response_p99_s" => ("response, p99, ms", 1e-3, 1),
            "sojourn_0_s" => ("foreground, s", 1.0, 3),
            "sojourn_1_s" => ("background 1, s", 1.0, 3),
            "sojourn_2_s" => ("background 2, s", 1.0, 3),
            "sojourn_3_s" => ("background 3, s", 1.0, 3),
            "sojourn_4_s" => ("background 4, s", 1.0, 3),
            "over_can_0" => ("over ideal", 1.0, 3),
            "over_can_1" => ("background 1, over ideal", 1.0, 3),
            "over_can_2" => ("background 2, over ideal", 1.0, 3),
            "over_can_3" => ("background 3, over ideal", 1.0, 3),
            "over_can_4" => ("background 4, over ideal", 1.0, 3),
            _ => ("?", 1.0, 3),
        };
        NumberFormat { head, per, decimals }
    }

    /// A value in the unit.
    pub fn write(&self, value: f64) -> String {
        if value.is_finite() { format!("{:.*}", self.decimals, value / self.per) } else { NONE.into() }
    }

    /// A mean with half the width of its interval, which is left out if it is not finite; a dash
    /// for no mean.
    pub fn spread(&self, mean: Option<(f64, f64)>) -> String {
        match mean {
            None => NONE.into(),
            Some((mean, half)) if half.is_finite() => format!("{} ± {}", self.write(mean), self.write(half)),
            Some((mean, _)) => self.write(mean),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_an_outcome_has_a_name() {
        for name in outcome::NUMBERS {
            assert_ne!(NumberFormat::named(name).head, "?", "{name}");
        }
    }

    #[test]
    fn a_spread_is_in_the_unit_of_its_column() {
        let use_ = NumberFormat::named("utilization");
        assert_eq!(use_.spread(Some((0.934, 0.012))), "93.4 ± 1.2");
        assert_eq!(use_.spread(Some((0.934, f64::INFINITY))), "93.4");
        assert_eq!(use_.spread(None), NONE);
    }
}
