//! Numbers for readers: three significant digits and a suitable unit.

/// Stands where there is no number.
pub(crate) const NONE: &str = "–";

/// The kind of a quantity, which decides its units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum QuantityKind {
    /// Seconds; shown in seconds from one second on.
    Time,
    /// Seconds; shown in milliseconds up to ten seconds, since round-trip times are compared in
    /// milliseconds.
    Delay,
    /// Bits per second.
    Rate,
    /// Bytes.
    Bytes,
    /// A fraction; shown in percent.
    Share,
    /// A count, or any other number that is shown as it is.
    Count,
}

/// A unit and its size in base units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scale {
    pub(crate) unit: &'static str,
    pub(crate) per: f64,
}

impl QuantityKind {
    /// Its units, largest first.
    fn scales(self) -> &'static [Scale] {
        const fn s(unit: &'static str, per: f64) -> Scale {
            Scale { unit, per }
        }
        match self {
            QuantityKind::Time => const { &[s("s", 1.0), s("ms", 1e-3), s("µs", 1e-6)] },
            QuantityKind::Delay => const { &[s("ms", 1e-3), s("µs", 1e-6)] },
            QuantityKind::Rate => const { &[s("Gbit/s", 1e9), s("Mbit/s", 1e6), s("kbit/s", 1e3), s("bit/s", 1.0)] },
            QuantityKind::Bytes => const { &[s("GB", 1e9), s("MB", 1e6), s("kB", 1e3), s("B", 1.0)] },
            QuantityKind::Share => const { &[s("%", 1e-2)] },
            QuantityKind::Count => const { &[s("", 1.0)] },
        }
    }

    /// The largest unit that suits all of `values`, so that a column or an axis has a single unit.
    pub(crate) fn scale(self, values: impl IntoIterator<Item = f64>) -> Scale {
        let sizes: Vec<f64> = values.into_iter().map(f64::abs).filter(|size| size.is_finite() && *size > 0.0).collect();
        let scales = self.scales();
        let largest = sizes.iter().copied().fold(0.0, f64::max);
        if largest == 0.0 {
            // Without values: the unit that readers expect.
            return scales[usize::from(matches!(self, QuantityKind::Rate | QuantityKind::Bytes))];
        }
        if self == QuantityKind::Delay && largest >= 10.0 {
            return QuantityKind::Time.scale([largest]);
        }
        // A value below a ten-thousandth of the largest must not push the others into a smaller unit.
        let smallest = sizes.iter().copied().filter(|size| *size > largest * 1e-4).fold(largest, f64::min);
        *scales.iter().find(|scale| largest >= scale.per && smallest >= scale.per * 0.1).unwrap_or(&scales[scales.len() - 1])
    }
}

/// The decimals with which `value` has three significant digits.
fn decimals(value: f64) -> usize {
    if value == 0.0 {
        return 0;
    }
    // The exponent after rounding: 9.999 has to become 10.0, not 10.00.
    let exponent: i32 = format!("{value:.2e}").rsplit('e').next().and_then(|e| e.parse().ok()).unwrap_or(0);
    (2 - exponent).clamp(0, 9) as usize
}

/// `value` with three significant digits, or with all digits before the point.
pub(crate) fn three(value: f64) -> String {
    if !value.is_finite() {
        return NONE.into();
    }
    // Zero has no sign, whether a sum of nothing is −0 or the digits of a small number are cut.
    let text = format!("{value:.*}", decimals(value));
    match text.strip_prefix('-') {
        Some(digits) if digits.bytes().all(|digit| matches!(digit, b'0' | b'.')) => digits.into(),
        _ => text,
    }
}

/// The same without trailing zeros, for running text.
pub(crate) fn short(value: f64) -> String {
    let text = three(value);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

/// A count, without decimals if it is whole; a mean over seeds may not be.
pub(crate) fn count(value: f64) -> String {
    if value.fract() == 0.0 && value != 0.0 { format!("{value:.0}") } else { three(value) }
}

/// `mean` with half the width of its interval, with the decimals of the mean, or more if the half would
/// round to zero.
pub(crate) fn spread(mean: f64, half: Option<f64>) -> String {
    match half {
        Some(half) if half.is_finite() && mean.is_finite() => {
            // Below a ten-thousandth of the mean it may be rounding error.
            let first_digit = if half > mean.abs() * 1e-4 { decimals(half).saturating_sub(2) } else { 0 };
            format!("{} ± {half:.*}", three(mean), decimals(mean).max(first_digit))
        }
        _ => three(mean),
    }
}

/// A duration in the unit that suits it.
pub fn duration(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 100.0 => format!("{seconds:.1} s"),
        seconds if seconds < 6000.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_or_all_whole_ones() {
        let text = [0.0, 0.001_234, 0.5, 9.994, 9.996, 22.34, 99.96, 431.2, 1234.4, f64::NAN].map(three);
        assert_eq!(text, ["0", "0.00123", "0.500", "9.99", "10.0", "22.3", "100", "431", "1234", "–"]);
        assert_eq!([0.2, 2.0, 100.0, 0.125].map(short), ["0.2", "2", "100", "0.125"]);
        assert_eq!([3.0, 2.5, 12345.0].map(count), ["3", "2.50", "12345"]);
        // Without a sign: a sum of no numbers, and a number whose digits are cut.
        assert_eq!(([-0.0, -1e-12].map(three), count(-0.0)), (["0".into(), "0.000000000".into()], "0".into()));
    }

    #[test]
    fn an_interval_never_rounds_to_nothing() {
        assert_eq!(spread(22.34, Some(0.42)), "22.3 ± 0.4");
        assert_eq!(spread(22.34, Some(0.0042)), "22.3 ± 0.004");
        assert_eq!(spread(22.34, Some(4e-15)), "22.3 ± 0.0");
        assert_eq!(spread(22.34, Some(0.0)), "22.3 ± 0.0");
        assert_eq!(spread(431.0, Some(12.3)), "431 ± 12");
        assert_eq!(spread(22.34, Some(f64::INFINITY)), "22.3");
    }

    #[test]
    fn one_unit_suits_the_whole_column() {
        let unit = |kind: QuantityKind, values: &[f64]| kind.scale(values.iter().copied()).unit;
        assert_eq!(unit(QuantityKind::Rate, &[1e9, 10e6]), "Mbit/s");
        assert_eq!(unit(QuantityKind::Rate, &[2e9, 1e9]), "Gbit/s");
        assert_eq!(unit(QuantityKind::Time, &[0.4, 22.0]), "s");
        assert_eq!(unit(QuantityKind::Time, &[0.0004, 22.0]), "s");
        assert_eq!(unit(QuantityKind::Delay, &[1.2, 0.8]), "ms");
        assert_eq!(unit(QuantityKind::Delay, &[12.0, 0.8]), "s");
        assert_eq!(unit(QuantityKind::Bytes, &[]), "MB");
        assert_eq!(unit(QuantityKind::Bytes, &[12.0]), "B");
    }
}
