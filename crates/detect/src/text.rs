//! Formats numbers for the text of evidence and reasons.

/// A number of bytes with a decimal prefix, for example `1.4 M`.
pub fn bytes(count: f64) -> String {
    match count.abs() {
        1e9.. => format!("{:.1} G", count / 1e9),
        1e6.. => format!("{:.1} M", count / 1e6),
        1e4.. => format!("{:.0} k", count / 1e3),
        _ => format!("{count:.0}"),
    }
}

/// A time in seconds with a suitable unit, for example `212 ms`.
pub fn seconds(span: f64) -> String {
    match span.abs() {
        10.0.. => format!("{span:.1} s"),
        1.0.. => format!("{span:.2} s"),
        0.01.. => format!("{:.0} ms", span * 1e3),
        1e-4.. => format!("{:.2} ms", span * 1e3),
        _ => format!("{:.0} µs", span * 1e6),
    }
}
