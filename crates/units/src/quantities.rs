//! Quantities with units, and their arithmetic.

use crate::text_form::{BYTES, LIMIT, RATE, SPAN, UnitError};
use std::{
    fmt,
    iter::Sum,
    ops::{Add, AddAssign, Div, Mul, Sub, SubAssign},
    str::FromStr,
};

/// Size of one packet: 1500 IP bytes.
pub const PKT: Bytes = Bytes(1500);

/// A whole number of a smallest unit, with a text form: what probability laws can be of.
pub trait Quantity: Copy + PartialEq + fmt::Debug + FromStr<Err = UnitError> + serde::Serialize + serde::de::DeserializeOwned {
    /// The number of smallest units.
    fn units(self) -> u64;
    /// So many smallest units.
    fn from_units(units: u64) -> Self;
}

macro_rules! quantity {
    ($name:ident, $form:ident, $what:literal, $example:literal) => {
        impl FromStr for $name {
            type Err = UnitError;
            fn from_str(text: &str) -> Result<Self, UnitError> {
                $form.parse(text).map($name)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&$form.print(self.0))
            }
        }
        $crate::impl_text!($name, $what, $example);
        impl Quantity for $name {
            fn units(self) -> u64 {
                self.0
            }
            fn from_units(units: u64) -> Self {
                $name(units)
            }
        }
    };
}

/// Serializes and deserializes a type by its text form, `Display` and `FromStr`, and describes it
/// so in a JSON Schema. The literals are what the text is ("a rate") and an example of it.
#[macro_export]
macro_rules! impl_text {
    ($name:ident, $what:literal, $example:literal) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl serde::de::Visitor<'_> for Text {
                    type Value = $name;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str(concat!($what, " such as \"", $example, "\""))
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }
                    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<$name, E> {
                        number.to_string().parse().map_err(E::custom)
                    }
                    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<$name, E> {
                        number.to_string().parse().map_err(E::custom)
                    }
                    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<$name, E> {
                        number.to_string().parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_any(Text)
            }
        }
        impl $crate::schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut $crate::schemars::SchemaGenerator) -> $crate::schemars::Schema {
                $crate::schemars::json_schema!({ "type": "string", "title": $what, "examples": [$example] })
            }
        }
    };
}

/// A rate, bit/s. Link rates count IP bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(pub u64);
quantity!(Rate, RATE, "a rate", "10Mbit");

/// Converts to 64 bits, saturating at the largest value.
fn saturate(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

impl Rate {
    /// A measured or computed rate for a message, bit/s: rounded to three significant digits.
    pub fn rounded(bits_per_s: f64) -> Rate {
        let digits = bits_per_s.max(1.0).log10().floor() as i32;
        let step = 10_f64.powi((digits - 2).max(0));
        Rate(((bits_per_s / step).round() * step).max(0.0) as u64)
    }

    /// The rate, bit/s.
    #[inline]
    pub const fn bits_per_s(self) -> u64 {
        self.0
    }

    /// Bytes sent in `span` at this rate, rounded down. Saturates at the largest size.
    pub fn bytes_in(self, span: Span) -> Bytes {
        Bytes(saturate(u128::from(self.0) * u128::from(span.0) / 8_000_000_000))
    }

    /// Time to send `bytes` at this rate, rounded down to nanoseconds. A rate of 0 counts as 1
    /// bit/s. Saturates at the longest span.
    pub fn time_for(self, bytes: Bytes) -> Span {
        Span(saturate(u128::from(bytes.0) * 8_000_000_000 / u128::from(self.0.max(1))))
    }
}

/// A size, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Bytes(pub u64);
quantity!(Bytes, BYTES, "a size", "5MB");

/// A length of time, ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Span(pub u64);
quantity!(Span, SPAN, "a time", "20ms");

impl Span {
    /// Zero.
    pub const ZERO: Span = Span(0);

    /// A time in seconds, rounded to nanoseconds. Negative values and NaN become zero, values
    /// beyond the range the largest time.
    pub fn from_secs_f64(secs: f64) -> Self {
        Span((secs * 1e9).round().max(0.0) as u64)
    }

    /// The time in seconds.
    pub fn secs(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The time as a [`std::time::Duration`].
    pub const fn duration(self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0)
    }
}

/// Addition and subtraction of quantities of one kind, multiplication and division by a number. As
/// for integers, overflow is a programming error: it panics in debug builds. `saturating_add` and
/// `saturating_sub` are for values that may exceed the range.
macro_rules! arithmetic {
    ($name:ident) => {
        impl $name {
            /// The sum, saturating at the largest value.
            #[inline]
            pub const fn saturating_add(self, other: $name) -> $name {
                $name(self.0.saturating_add(other.0))
            }

            /// The difference, saturating at 0.
            #[inline]
            pub const fn saturating_sub(self, other: $name) -> $name {
                $name(self.0.saturating_sub(other.0))
            }
        }
        impl Add for $name {
            type Output = $name;
            #[inline]
            fn add(self, other: $name) -> $name {
                $name(self.0 + other.0)
            }
        }
        impl Sub for $name {
            type Output = $name;
            #[inline]
            fn sub(self, other: $name) -> $name {
                $name(self.0 - other.0)
            }
        }
        impl Mul<u64> for $name {
            type Output = $name;
            #[inline]
            fn mul(self, times: u64) -> $name {
                $name(self.0 * times)
            }
        }
        impl Div<u64> for $name {
            type Output = $name;
            #[inline]
            fn div(self, parts: u64) -> $name {
                $name(self.0 / parts)
            }
        }
        impl AddAssign for $name {
            #[inline]
            fn add_assign(&mut self, other: $name) {
                *self = *self + other;
            }
        }
        impl SubAssign for $name {
            #[inline]
            fn sub_assign(&mut self, other: $name) {
                *self = *self - other;
            }
        }
        impl Sum for $name {
            fn sum<I: Iterator<Item = $name>>(all: I) -> $name {
                all.fold($name(0), Add::add)
            }
        }
    };
}
arithmetic!(Bytes);
arithmetic!(Rate);
arithmetic!(Span);

/// Limit of a queue, beyond which it drops.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum QueueLimit {
    /// Packets, of any size.
    Packets(u64),
    /// IP bytes.
    Bytes(Bytes),
    /// Multiples of the BDP: the link's rate × base RTT of the leg on which the queue lies.
    Bdp(f64),
}

/// Limit of a queue whose link is known: as [`QueueLimit`], without BDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueSize {
    /// Packets, of any size.
    Packets(u64),
    /// IP bytes.
    Bytes(Bytes),
}

impl QueueSize {
    /// The limit in bytes; packets count as 1500 bytes.
    pub fn bytes(self) -> Bytes {
        match self {
            QueueSize::Packets(count) => Bytes(count.saturating_mul(PKT.0)),
            QueueSize::Bytes(bytes) => bytes,
        }
    }
}

impl From<QueueSize> for QueueLimit {
    fn from(size: QueueSize) -> Self {
        match size {
            QueueSize::Packets(count) => QueueLimit::Packets(count),
            QueueSize::Bytes(bytes) => QueueLimit::Bytes(bytes),
        }
    }
}

impl FromStr for QueueLimit {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (number, unit) = LIMIT.split_number(text)?;
        if unit.eq_ignore_ascii_case("BDP") {
            return Ok(QueueLimit::Bdp(number.value));
        }
        match LIMIT.unit(unit) {
            Some(("pkt", _)) => Ok(QueueLimit::Packets(number.value as u64)),
            _ => LIMIT.parse(text).map(|bytes| QueueLimit::Bytes(Bytes(bytes))),
        }
    }
}

impl fmt::Display for QueueLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueueLimit::Packets(count) => write!(f, "{count}pkt"),
            QueueLimit::Bytes(bytes) => write!(f, "{bytes}"),
            QueueLimit::Bdp(times) => write!(f, "{times}BDP"),
        }
    }
}
crate::impl_text!(QueueLimit, "a queue limit", "1BDP");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_parse_from_text() {
        assert_eq!("10Mbit".parse(), Ok(Rate(10_000_000)));
        assert_eq!("5.28 Mbit/s".parse(), Ok(Rate(5_280_000)));
        assert_eq!("20ms".parse(), Ok(Span(20_000_000)));
        assert_eq!("5MB".parse(), Ok(Bytes(5_000_000)));
        assert_eq!("256KiB".parse(), Ok(Bytes(262_144)));
        assert_eq!("64pkt".parse(), Ok(QueueLimit::Packets(64)));
        assert_eq!("0.5BDP".parse(), Ok(QueueLimit::Bdp(0.5)));
        assert_eq!("64kB".parse(), Ok(QueueLimit::Bytes(Bytes(64_000))));
        assert_eq!("0".parse(), Ok(Span::ZERO));
    }

    #[test]
    fn rates_of_messages_have_three_significant_digits() {
        for (bits_per_s, text) in
            [(27_962_026.0, "28Mbit"), (1_234_567.0, "1230kbit"), (999.6, "1kbit"), (47.2, "47bit"), (0.0, "0bit"), (-3.0, "0bit")]
        {
            assert_eq!(Rate::rounded(bits_per_s).to_string(), text);
        }
    }

    #[test]
    fn spellings_with_one_meaning_are_accepted() {
        for text in ["50Mbps", "50mbit", "50Mbit/s", "50 Mb/s", "50000kbps"] {
            assert_eq!(text.parse(), Ok(Rate(50_000_000)), "{text}");
        }
        for text in ["20µs", "20μs", "20usec", "0.02msec"] {
            assert_eq!(text.parse(), Ok(Span(20_000)), "{text}");
        }
        assert_eq!("3packets".parse(), Ok(Bytes(4500)));
        assert_eq!("64packets".parse(), Ok(QueueLimit::Packets(64)));
        assert_eq!("2bdp".parse(), Ok(QueueLimit::Bdp(2.0)));
    }

    #[test]
    fn wrong_texts_say_what_would_be_right() {
        let rate = |text: &str| text.parse::<Rate>().unwrap_err().to_string();
        let size = |text: &str| text.parse::<Bytes>().unwrap_err().to_string();
        let time = |text: &str| text.parse::<Span>().unwrap_err().to_string();
        let limit = |text: &str| text.parse::<QueueLimit>().unwrap_err().to_string();
        insta::assert_snapshot!(rate("10Mbot"),
            @r#""10Mbot" ends in the unknown unit "Mbot": a rate takes bit, kbit, Mbit or Gbit (a second), for example 10Mbit"#);
        insta::assert_snapshot!(rate("fast"), @r#""fast" has no number: a rate is written like 10Mbit"#);
        insta::assert_snapshot!(rate("50mbps"),
            @r#""50mbps" ends in the ambiguous unit "mbps": write 50Mbit, or 400Mbit for 50 MB/s"#);
        insta::assert_snapshot!(size("4M"),
            @r#""4M" ends in the unknown unit "M": write 4MB or 4MiB"#);
        insta::assert_snapshot!(size("4mib"),
            @r#""4mib" ends in the unknown unit "mib": write 4MiB, or 512KiB for 4 Mibit"#);
        insta::assert_snapshot!(time("-1ms"), @r#""-1ms" is negative: a time is 0 or more"#);
        insta::assert_snapshot!(time("5m"),
            @r#""5m" ends in the unknown unit "m": write 5ms or 5min"#);
        insta::assert_snapshot!(limit("3Mbot"),
            @r#""3Mbot" ends in the unknown unit "Mbot": a queue limit takes pkt, BDP, B, kB, MB, GB, KiB, MiB or GiB, for example 10pkt"#);
    }

    #[test]
    fn bits_and_bytes_are_not_exchanged_without_their_factor() {
        let rate = |text: &str| text.parse::<Rate>().unwrap_err().to_string();
        let size = |text: &str| text.parse::<Bytes>().unwrap_err().to_string();
        insta::assert_snapshot!(rate("50MB"), @r#""50MB" is bytes, a rate is bits: write 400Mbit (50 MB/s) or 50Mbit"#);
        insta::assert_snapshot!(rate("50MBps"), @r#""50MBps" is bytes, a rate is bits: write 400Mbit (50 MB/s) or 50Mbit"#);
        insta::assert_snapshot!(rate("50MB/s"), @r#""50MB/s" is bytes, a rate is bits: write 400Mbit"#);
        insta::assert_snapshot!(rate("5B"), @r#""5B" is bytes, a rate is bits: write 40bit (5 B/s) or 5bit"#);
        insta::assert_snapshot!(rate("1MiB/s"), @r#""1MiB/s" is bytes, a rate is bits: write 8388608bit"#);
        insta::assert_snapshot!(rate("50Mb"), @r#""50Mb" ends in the unknown unit "Mb": write 50Mbit"#);
        insta::assert_snapshot!(rate("50Mbits"), @r#""50Mbits" ends in the unknown unit "Mbits": write 50Mbit"#);
        insta::assert_snapshot!(rate("10M"), @r#""10M" ends in the ambiguous unit "M": write 10Mbit, or 80Mbit for 10 MB/s"#);
        insta::assert_snapshot!(size("4Mb"), @r#""4Mb" ends in the unknown unit "Mb": write 4MB or 4MiB, or 500kB for 4 Mbit"#);
        insta::assert_snapshot!(size("3Mbit"), @r#""3Mbit" is bits, a size is bytes: write 375kB"#);
        insta::assert_snapshot!("3Mbit".parse::<QueueLimit>().unwrap_err(), @r#""3Mbit" is bits, a queue limit is bytes: write 375kB"#);
        insta::assert_snapshot!(size("4KB"), @r#""4KB" ends in the unknown unit "KB": write 4kB or 4KiB"#);
        insta::assert_snapshot!(size("4MB/s"),
            @r#""4MB/s" ends in the unknown unit "MB/s": a size takes B, kB, MB, GB, KiB, MiB, GiB or pkt (1500 bytes), for example 10MB"#);
        insta::assert_snapshot!(size("1bit"),
            @r#""1bit" ends in the unknown unit "bit": a size takes B, kB, MB, GB, KiB, MiB, GiB or pkt (1500 bytes), for example 10MB"#);
    }

    #[test]
    fn a_number_without_a_unit_keeps_its_digits() {
        let of = |text: &str| {
            let errors = [
                text.parse::<Rate>().map(drop).unwrap_err(),
                text.parse::<Bytes>().map(drop).unwrap_err(),
                text.parse::<Span>().map(drop).unwrap_err(),
                text.parse::<QueueLimit>().map(drop).unwrap_err(),
            ];
            errors.map(|error| error.to_string().split_once(", for example ").unwrap().1.to_owned()).join("; ")
        };
        insta::assert_snapshot!("0.001".parse::<Span>().unwrap_err(),
            @r#""0.001" has no unit: a time takes ns, us, ms, s, min or h, for example 0.001s (1ms)"#);
        insta::assert_snapshot!(of("0.5"), @"0.5Mbit (500kbit); 0.5MB (500kB); 0.5s (500ms); 0.5BDP");
        insta::assert_snapshot!(of("1.5"), @"1.5Mbit; 1.5MB; 1.5ms or 1.5s; 1.5BDP");
        insta::assert_snapshot!(of("20"), @"20Mbit; 20kB or 20MB; 20ms or 20s; 20pkt");
        insta::assert_snapshot!(of("1500"), @"1500kbit or 1500Mbit; 1500B or 1500kB; 1500ms or 1500s; 1500pkt or 1500B");
        insta::assert_snapshot!(of("20000000"), @"20000000bit; 20000000B; 20000000ns or 20000000us; 20000000B");
        // Less than a nanosecond: no unit holds it.
        insta::assert_snapshot!("0.0000000001".parse::<Span>().unwrap_err(),
            @r#""0.0000000001" has no unit: a time takes ns, us, ms, s, min or h"#);
    }

    #[test]
    fn quantities_of_one_kind_add_up() {
        let mut time = Span(5) + Span(3) - Span(2);
        time += Span(10);
        time -= Span(1);
        assert_eq!((time, time * 2, time / 5), (Span(15), Span(30), Span(3)));
        assert_eq!(Span(1).saturating_sub(Span(2)), Span::ZERO);
        assert_eq!(Bytes(u64::MAX).saturating_add(PKT), Bytes(u64::MAX));
        assert_eq!([Bytes(1), Bytes(2)].into_iter().sum::<Bytes>(), Bytes(3));
        assert_eq!(QueueSize::Packets(2).bytes(), Bytes(3000));
    }

    /// Checks that what the error about `text` says to write is a `T`, and returns how many that are.
    fn check_suggestions<T: FromStr<Err = UnitError>>(text: &str) -> usize {
        let Err(error) = text.parse::<T>() else { return 0 };
        let message = error.to_string();
        let Some((_, cure)) = message.rsplit_once(": write ").or_else(|| message.rsplit_once(", for example ")) else { return 0 };
        let cure = cure.replace([',', '(', ')'], " ");
        // In "for 50 MB/s" and "(50 MB/s)", which explain a suggestion, a blank precedes the unit.
        let is_quantity = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.ends_with(char::is_alphabetic);
        let suggestions: Vec<&str> = cure.split_whitespace().filter(is_quantity).collect();
        assert!(suggestions.iter().all(|suggestion| suggestion.parse::<T>().is_ok()), "{message}");
        suggestions.len()
    }

    #[test]
    fn what_an_error_says_to_write_can_be_parsed() {
        let units = [
            "", "B", "b", "k", "K", "kb", "KB", "kB", "m", "M", "mb", "Mb", "MB", "mB", "MBps", "mbps", "MB/s", "mb/s", "g", "G", "GB",
            "gb", "gbps", "Mbits", "MBit", "Mibit", "KiB/s", "mib", "kbyte", "Mbytes", "bits", "PKT", "S", "MS", "secs", "m", "d", "mbot",
        ];
        let mut count = 0;
        for number in ["1", "0.5", "2.25", "50", "1500", "123456789"] {
            for text in units.map(|unit| format!("{number}{unit}")) {
                count += check_suggestions::<Rate>(&text) + check_suggestions::<Bytes>(&text);
                count += check_suggestions::<Span>(&text) + check_suggestions::<QueueLimit>(&text);
            }
        }
        assert!(count > 800, "{count}");
    }

    #[test]
    fn results_beyond_the_range_saturate() {
        let longest = Span(u64::MAX);
        assert_eq!(Rate(8).bytes_in(longest), Bytes(u64::MAX / 1_000_000_000));
        assert_eq!(Rate(8_000_000_000).bytes_in(longest), Bytes(u64::MAX));
        assert_eq!(Rate(8_000_000_001).bytes_in(longest), Bytes(u64::MAX));
        assert_eq!(Rate(u64::MAX).bytes_in(longest), Bytes(u64::MAX));
        assert_eq!(Rate(u64::MAX).time_for(Bytes(u64::MAX)), Span(8_000_000_000));
        assert_eq!(Rate(8).time_for(Bytes(u64::MAX / 1_000_000_000 + 1)), longest);
        assert_eq!(Rate(0).time_for(Bytes(u64::MAX)), longest);
    }

    proptest! {
        #[test]
        fn printed_quantities_parse_back(value in 0u64..(1 << 50)) {
            prop_assert_eq!(Rate(value).to_string().parse(), Ok(Rate(value)));
            prop_assert_eq!(Bytes(value).to_string().parse(), Ok(Bytes(value)));
            prop_assert_eq!(Span(value).to_string().parse(), Ok(Span(value)));
        }
    }
}
