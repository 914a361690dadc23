//! Sampled quantities, with linear interpolation between samples.

/// Samples in the order of time: time in seconds, and value.
pub(crate) type Curve = [(f64, f64)];

/// The value at `t` by linear interpolation; before the first and after the last sample, the value of
/// that sample.
pub(crate) fn value_at(curve: &Curve, t: f64) -> f64 {
    let after = curve.partition_point(|(at, _)| *at < t);
    match (after.checked_sub(1).map(|before| curve[before]), curve.get(after)) {
        (Some((t0, v0)), Some(&(t1, v1))) => v0 + (v1 - v0) * (t - t0) / (t1 - t0),
        (Some((_, value)), None) | (None, Some(&(_, value))) => value,
        (None, None) => 0.0,
    }
}

/// The time at which a rising curve reaches `value`, by linear interpolation; none if it does not, or
/// starts above.
pub(crate) fn time_of(curve: &Curve, value: f64) -> Option<f64> {
    let after = curve.partition_point(|(_, v)| *v < value);
    let (t1, v1) = *curve.get(after)?;
    let (t0, v0) = *curve.get(after.checked_sub(1)?)?;
    Some(t0 + (t1 - t0) * (value - v0) / (v1 - v0))
}

/// The rate of a curve of bytes in bits a second, over `window` seconds before each sample.
pub(crate) fn rate(bytes: &Curve, window: f64) -> Vec<(f64, f64)> {
    let at = |(t, now): &(f64, f64)| {
        let since = (t - window).max(0.0);
        let span = t - since;
        (*t, if span > 0.0 { (now - value_at(bytes, since)) * 8.0 / span } else { 0.0 })
    };
    bytes.iter().map(at).collect()
}

/// Delays of bytes from the curve `sent` to the curve `read`, at up to `points` equal steps of the bytes
/// that both have reached.
pub(crate) fn delays(sent: &Curve, read: &Curve, points: usize) -> Vec<f64> {
    let reached = |curve: &Curve| curve.last().map_or(0.0, |(_, bytes)| *bytes);
    let most = reached(read).min(reached(sent));
    (1..points)
        .filter(|_| most > 0.0)
        .filter_map(|step| {
            let bytes = most * step as f64 / points as f64;
            Some(time_of(read, bytes)? - time_of(sent, bytes)?)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_read_both_ways() {
        let curve = [(0.0, 0.0), (1.0, 10.0), (2.0, 10.0), (3.0, 20.0)];
        assert_eq!(time_of(&curve, 5.0), Some(0.5));
        assert_eq!(time_of(&curve, 15.0), Some(2.5));
        assert_eq!(time_of(&curve, 25.0), None);
        assert_eq!(value_at(&curve, 0.5), 5.0);
        assert_eq!(value_at(&curve, 9.0), 20.0);
        assert_eq!(value_at(&[], 1.0), 0.0);
    }

    #[test]
    fn a_rate_is_a_mean_over_its_window() {
        let bytes: Vec<(f64, f64)> = (0..30).map(|i| (f64::from(i) * 0.1, f64::from(i) * 1000.0)).collect();
        let rates = rate(&bytes, 0.5);
        assert_eq!(rates[0], (0.0, 0.0));
        assert!(rates[1..].iter().all(|(_, rate)| (rate - 80_000.0).abs() < 1e-6));
    }

    #[test]
    fn a_byte_takes_the_distance_between_the_curves() {
        let curve = |late: f64| (0..100).map(|i| (f64::from(i) * 0.1 + late, f64::from(i) * 1000.0)).collect::<Vec<_>>();
        let delays = delays(&curve(0.0), &curve(0.4), 400);
        assert!(delays.len() > 300 && delays.iter().all(|delay| (delay - 0.4).abs() < 1e-9));
    }
}
