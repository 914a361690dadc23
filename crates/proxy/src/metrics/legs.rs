//! The metrics of legs, by leg and profile.

use super::exposition::{Exposition, Family, FamilyType};
use crate::measure::{
    DURATION_BOUNDS, FAILURES, HELD_BOUNDS, Histogram, LegMeasurements, Measurements, PHASES, RTT_BOUNDS, SENDING, SHARE_BOUNDS, SIZES,
    THROUGHPUT_BOUNDS,
};

/// A further label, and its value for each element of an array.
type Each = (&'static str, &'static [&'static str]);

const NO_LABEL: Each = ("", &[""]);
const SIZE: Each = ("size", &{
    let mut names = [""; SIZES.len()];
    let mut index = 0;
    while index < SIZES.len() {
        names[index] = SIZES[index].0;
        index += 1;
    }
    names
});
const PHASE: Each = ("phase", &[PHASES[0].0, PHASES[1].0, PHASES[2].0]);

/// A family of histograms.
struct HistogramFamily {
    family: Family,
    bounds: &'static [f64],
    each: Each,
    of: fn(&LegMeasurements) -> &[Histogram],
}

const fn histogram(name: &'static str, unit: &'static str, help: &'static str) -> Family {
    Family { name, kind: FamilyType::Histogram, unit, help }
}

const HISTOGRAMS: [HistogramFamily; 7] = [
    HistogramFamily {
        family: histogram(
            "handshake_seconds",
            "seconds",
            "Time of the handshake: of near legs the round trip of the SYN-ACK, of far legs the time to connect; not of bonds, nor with Fast Open",
        ),
        bounds: &RTT_BOUNDS,
        each: NO_LABEL,
        of: |leg| std::slice::from_ref(&leg.handshake),
    },
    HistogramFamily {
        family: histogram("rtt_seconds", "seconds", "Smoothed round-trip time of a leg at the end of its flow"),
        bounds: &RTT_BOUNDS,
        each: NO_LABEL,
        of: |leg| std::slice::from_ref(&leg.rtt),
    },
    HistogramFamily {
        family: histogram(
            "retransmitted_ratio",
            "ratio",
            "Share of the bytes sent by a leg that were retransmissions, at the end of its flow, if it sent at least 10 kB",
        ),
        bounds: &SHARE_BOUNDS,
        each: NO_LABEL,
        of: |leg| std::slice::from_ref(&leg.retransmitted),
    },
    HistogramFamily {
        family: histogram(
            "held_bytes",
            "bytes",
            "Payload that the proxy holds for this leg to send, in samples of flows that are older than a second",
        ),
        bounds: &HELD_BOUNDS,
        each: NO_LABEL,
        of: |leg| std::slice::from_ref(&leg.held),
    },
    HistogramFamily {
        family: histogram(
            "flow_duration_seconds",
            "seconds",
            "Duration of flows that have ended, by the payload of both directions; each flow counts once for each leg",
        ),
        bounds: &DURATION_BOUNDS,
        each: SIZE,
        of: |leg| &leg.duration,
    },
    HistogramFamily {
        family: histogram(
            "flow_throughput_bytes_per_second",
            "bytes_per_second",
            "Payload of both directions by the duration of the flow, by that payload; each flow counts once for each leg",
        ),
        bounds: &THROUGHPUT_BOUNDS,
        each: SIZE,
        of: |leg| &leg.throughput,
    },
    HistogramFamily {
        family: histogram(
            "flow_phase_seconds",
            "seconds",
            "Time that the direction towards this leg spent in each phase, at the end of a flow that was sampled",
        ),
        bounds: &DURATION_BOUNDS,
        each: PHASE,
        of: |leg| &leg.phase,
    },
];

/// A family of counters.
struct CounterFamily {
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    each: Each,
    of: fn(&LegMeasurements, usize) -> f64,
}

const COUNTERS: [CounterFamily; 6] = [
    CounterFamily {
        name: "phase_seconds",
        unit: "seconds",
        help: "Time in each phase of the direction towards this leg, by samples of flows that are older than a second: free, starvation (the \
               proxy holds nothing), backpressure (its buffer is full, the sender is held back)",
        each: PHASE,
        of: |leg, index| leg.phase_s[index],
    },
    CounterFamily {
        name: "sending_seconds",
        unit: "seconds",
        help: "What the leg's sender waited for, by the kernel's count: idle (no data), path (congestion control and the network), receiver \
               (its window), buffer (the send buffer)",
        each: ("limit", &SENDING),
        of: |leg, index| leg.sending_s[index],
    },
    CounterFamily {
        name: "sent_bytes",
        unit: "bytes",
        help: "Bytes that legs have sent, retransmissions included",
        each: NO_LABEL,
        of: |leg, _| leg.sent_bytes as f64,
    },
    CounterFamily {
        name: "retransmitted_bytes",
        unit: "bytes",
        help: "Bytes that legs have retransmitted",
        each: NO_LABEL,
        of: |leg, _| leg.retransmitted_bytes as f64,
    },
    CounterFamily {
        name: "window_limited_flows",
        unit: "",
        help: "Flows that have ended in which the leg waited for the window of its receiver",
        each: NO_LABEL,
        of: |leg, _| leg.window_limited as f64,
    },
    CounterFamily {
        name: "connect_failures",
        unit: "",
        help: "Servers that were not reached: refused, timed_out, unreachable (host), no_route (network), unresolved (name), not_permitted (by \
               a rule or firewall), no_port (source port), reset, no_room (descriptors, memory), other",
        each: ("kind", &FAILURES),
        of: |leg, index| leg.failures[index] as f64,
    },
];

/// The text of all metrics of legs.
pub(super) fn text(measured: &Measurements) -> String {
    let mut legs: Vec<&LegMeasurements> = measured.legs.iter().collect();
    legs.sort_by_key(|leg| (&leg.leg, &leg.profile));
    let mut page = Exposition::default();
    for HistogramFamily { family, bounds, each: (label, values), of } in &HISTOGRAMS {
        page.begin(family);
        for leg in &legs {
            for (value, histogram) in values.iter().zip(of(leg)) {
                let labels = [("leg", leg.leg.as_str()), ("profile", &leg.profile), (*label, value)];
                page.histogram(&labels[..if label.is_empty() { 2 } else { 3 }], bounds, histogram);
            }
        }
    }
    for CounterFamily { name, unit, help, each: (label, values), of } in &COUNTERS {
        page.begin(&Family { name, kind: FamilyType::Counter, unit, help });
        let only_far = *name == "connect_failures";
        for leg in legs.iter().filter(|leg| !only_far || leg.leg == "far") {
            for (index, value) in values.iter().enumerate() {
                let labels = [("leg", leg.leg.as_str()), ("profile", &leg.profile), (*label, value)];
                page.counter(&labels[..if label.is_empty() { 2 } else { 3 }], of(leg, index));
            }
        }
    }
    page.into_text()
}

/// Measurements of one leg with an observation of each kind, for the reference documentation.
pub(super) fn example() -> Measurements {
    let observed = |bounds: &[f64]| {
        let mut histogram = Histogram::default();
        histogram.add(bounds, 0.0);
        histogram
    };
    let sizes = |bounds: &[f64]| std::array::from_fn(|_| observed(bounds));
    let leg = |leg: &str| LegMeasurements {
        leg: leg.into(),
        profile: leg.into(),
        handshake: observed(&RTT_BOUNDS),
        rtt: observed(&RTT_BOUNDS),
        retransmitted: observed(&SHARE_BOUNDS),
        held: observed(&HELD_BOUNDS),
        duration: sizes(&DURATION_BOUNDS),
        throughput: sizes(&THROUGHPUT_BOUNDS),
        phase: std::array::from_fn(|_| observed(&DURATION_BOUNDS)),
        ..LegMeasurements::default()
    };
    Measurements { legs: vec![leg("near"), leg("far")] }
}
