//! How quantities and states of flows are written.

use proxy::{DirectionView, Limiter, Phase};
use units::Bytes;

/// What limits a direction, with names, in the order of a path.
pub(crate) const LIMITERS: [(Limiter, &str); 5] = [
    (Limiter::Sender, "sender"),
    (Limiter::NearLeg, "near leg"),
    (Limiter::ProxyBuffer, "proxy buffer"),
    (Limiter::FarLeg, "far leg"),
    (Limiter::Receiver, "receiver"),
];

/// The phases of a direction, with names.
pub(crate) const PHASES: [(Phase, &str); 3] =
    [(Phase::Free, "free"), (Phase::Starvation, "starvation"), (Phase::Backpressure, "backpressure")];

/// The name of what limits a direction.
pub fn limiter_name(limiter: Limiter) -> &'static str {
    name_of(limiter, &LIMITERS)
}

pub(crate) fn phase(direction: &DirectionView) -> &'static str {
    name_of(direction.phase, &PHASES)
}

fn name_of<T: PartialEq>(value: T, names: &[(T, &'static str)]) -> &'static str {
    names.iter().find(|(known, _)| *known == value).map_or("", |(_, name)| name)
}

/// Bytes with three significant digits: `1.23MB`.
pub(crate) fn bytes(bytes: u64) -> String {
    let digits = bytes.checked_ilog10().unwrap_or(0);
    let unit = 10u64.pow(digits.saturating_sub(2));
    Bytes(bytes / unit * unit).to_string()
}

/// A rate with three significant digits: `12.3Mbit/s`.
pub(crate) fn rate(bits_per_s: f64) -> String {
    // The sum of no floating-point numbers is −0, which would be printed with its sign.
    let bits_per_s = if bits_per_s > 0.0 { bits_per_s } else { 0.0 };
    let units = [(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")];
    // From 999.5 of a unit on, the next one has fewer digits.
    let (unit, name) = units.into_iter().find(|(unit, _)| bits_per_s >= 0.9995 * unit).unwrap_or((1.0, "bit/s"));
    let value = bits_per_s / unit;
    let decimals = match value {
        _ if unit == 1.0 => 0,
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}{name}")
}

/// A rate, or a dash if it is not known yet.
pub(crate) fn rate_or_dash(bits_per_s: Option<f64>) -> String {
    bits_per_s.map_or("–".into(), rate)
}

/// A time in seconds, minutes or hours.
pub(crate) fn age(seconds: f64) -> String {
    match seconds as u64 {
        0..120 => format!("{seconds:.1}s"),
        whole @ 120..7200 => format!("{}min", whole / 60),
        whole => format!("{}h", whole / 3600),
    }
}

/// A flow for tests: a download over a long link.
#[cfg(test)]
pub(crate) fn example_flow(client: &str, server: &str) -> proxy::FlowView {
    use serde_json::json;
    let leg = |control: &str| {
        json!({
            "control": control, "rtt_s": 0.6001, "min_rtt_s": 0.5993, "cwnd_pkt": 700, "ssthresh_pkt": 350, "mss_bytes": 1448,
            "retransmits": 12, "drops": 0, "delivery_bps": 8.2e6,
        })
    };
    let direction =
        |bytes: u64, limiter: &str| json!({ "bytes": bytes, "held_bytes": 250_000, "phase": "backpressure", "limited_by": limiter });
    let flow = json!({
        "client": client, "server": server, "age_s": 12.3, "near": leg("cubic"), "far": leg("td_share"),
        "up": direction(77, "proxy_buffer"), "down": direction(3_000_205, "far_leg"),
    });
    serde_json::from_value(flow).expect("it has every field")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limiter_has_a_name() {
        assert_eq!(LIMITERS.map(|(limiter, _)| limiter), Limiter::ALL);
    }

    #[test]
    fn rates_have_three_digits() {
        let rates = [0.0, 999.0, 999.6, 1234.0, 9_994.0, 9_996.0, 123_456.0, 999_700.0, 24e6, 1.5e9, 123e9];
        let expected = [
            "0bit/s",
            "999bit/s",
            "1.00kbit/s",
            "1.23kbit/s",
            "9.99kbit/s",
            "10.0kbit/s",
            "123kbit/s",
            "1.00Mbit/s",
            "24.0Mbit/s",
            "1.50Gbit/s",
            "123Gbit/s",
        ];
        assert_eq!(rates.map(rate), expected);
    }

    #[test]
    fn no_rate_has_a_sign() {
        let of_no_flows = std::iter::empty::<f64>().sum();
        assert_eq!([of_no_flows, -0.0, -0.4, -8000.0].map(rate), ["0bit/s"; 4]);
    }
}
