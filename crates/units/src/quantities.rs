//! Quantities with units: their text form, and their arithmetic.

use std::{
    fmt,
    iter::Sum,
    ops::{Add, AddAssign, Div, Mul, Sub, SubAssign},
    str::FromStr,
};

/// Size of one packet: 1500 IP bytes.
pub const PKT: Bytes = Bytes(1500);

/// A text is not a quantity; the message shows how one is written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnitError(String);

/// How quantities of one kind are written, for the parser and its errors.
struct TextForm {
    /// The kind, with its article.
    what: &'static str,
    /// The units, in a sentence.
    units: &'static str,
    /// A unit for the examples in errors.
    example: &'static str,
    /// Units with their factors, smallest first.
    table: &'static [(&'static str, f64)],
    /// Other spellings that are accepted because they have no second meaning, with the unit of
    /// `table` that each stands for.
    spellings: &'static [(&'static str, &'static str)],
    /// Spellings in lower case that are not accepted because they are ambiguous, with the units of
    /// `table` that may be meant.
    ambiguous: &'static [(&'static str, &'static [&'static str])],
}

impl TextForm {
    fn no_number(&self, text: &str) -> UnitError {
        UnitError(format!("{text:?} has no number: {} is written like 10{}", self.what, self.example))
    }

    fn negative(&self, text: &str) -> UnitError {
        UnitError(format!("{text:?} is negative: {} is 0 or more", self.what))
    }

    fn out_of_range(&self, text: &str) -> UnitError {
        UnitError(format!("{text:?} is out of range for {}", self.what))
    }

    /// The unit of `table` that `unit` stands for, if it is certain.
    fn unit(&self, unit: &str) -> Option<(&'static str, f64)> {
        let meant = self.spellings.iter().find(|(spelling, _)| *spelling == unit).map_or(unit, |(_, meant)| meant);
        self.table.iter().find(|(name, _)| *name == meant).copied()
    }

    /// The error for a unit that is unknown or missing. `number` is the number before it, as it was
    /// written.
    fn unknown_unit(&self, text: &str, number: &str, unit: &str) -> UnitError {
        let TextForm { what, units, .. } = self;
        // A long number is likely one of the smallest units.
        let example = if number.len() > 4 { self.table[0].0 } else { self.example };
        if unit.is_empty() {
            return UnitError(format!("{text:?} has no unit: {what} takes {units}, for example {number}{example}"));
        }
        let lower = unit.to_ascii_lowercase();
        let ambiguous = self.ambiguous.iter().find(|(spelling, _)| *spelling == lower).map(|(_, meant)| meant.to_vec());
        // A unit in the wrong case is suggested, not accepted: "M" and "m" differ.
        let other_case = || self.table.iter().filter(|(name, _)| name.to_ascii_lowercase() == lower).map(|(name, _)| *name).collect();
        let meant: Vec<String> = ambiguous.unwrap_or_else(other_case).iter().map(|name| format!("{number}{name}")).collect();
        let takes = || format!("{what} takes {units}, for example {number}{example}");
        let cure = if meant.is_empty() { takes() } else { format!("write {}", meant.join(" or ")) };
        UnitError(format!("{text:?} ends in the unknown unit {unit:?}: {cure}"))
    }
}

const RATE: TextForm = TextForm {
    what: "a rate",
    units: "bit, kbit, Mbit or Gbit (a second)",
    example: "Mbit",
    table: &[("bit", 1.0), ("kbit", 1e3), ("Mbit", 1e6), ("Gbit", 1e9)],
    // "bit" in full is no byte, so that its prefix may be in either case.
    spellings: &[
        ("bit/s", "bit"),
        ("kbit/s", "kbit"),
        ("Mbit/s", "Mbit"),
        ("Gbit/s", "Gbit"),
        ("Kbit", "kbit"),
        ("mbit", "Mbit"),
        ("gbit", "Gbit"),
        ("Kbit/s", "kbit"),
        ("mbit/s", "Mbit"),
        ("gbit/s", "Gbit"),
        ("bps", "bit"),
        ("kbps", "kbit"),
        ("Kbps", "kbit"),
        ("Mbps", "Mbit"),
        ("Gbps", "Gbit"),
        ("kb/s", "kbit"),
        ("Mb/s", "Mbit"),
        ("Gb/s", "Gbit"),
    ],
    // tc reads "mbps" as bytes a second.
    ambiguous: &[
        ("b", &["bit"]),
        ("k", &["kbit"]),
        ("kb", &["kbit"]),
        ("m", &["Mbit"]),
        ("mb", &["Mbit"]),
        ("mbps", &["Mbit"]),
        ("g", &["Gbit"]),
        ("gb", &["Gbit"]),
        ("gbps", &["Gbit"]),
    ],
};

const BYTES: TextForm = TextForm {
    what: "a size",
    units: "B, kB, MB, GB, KiB, MiB, GiB or pkt (1500 bytes)",
    example: "MB",
    table: &[
        ("B", 1.0),
        ("kB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("KiB", 1024.0),
        ("MiB", 1024.0 * 1024.0),
        ("GiB", 1024.0 * 1024.0 * 1024.0),
        ("pkt", 1500.0),
    ],
    spellings: &[("byte", "B"), ("bytes", "B"), ("pkts", "pkt"), ("packet", "pkt"), ("packets", "pkt")],
    ambiguous: &[
        ("b", &["B"]),
        ("k", &["kB", "KiB"]),
        ("kb", &["kB", "KiB"]),
        ("m", &["MB", "MiB"]),
        ("mb", &["MB", "MiB"]),
        ("g", &["GB", "GiB"]),
        ("gb", &["GB", "GiB"]),
    ],
};

const SPAN: TextForm = TextForm {
    what: "a time",
    units: "ns, us, ms, s, min or h",
    example: "ms",
    table: &[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9), ("min", 60e9), ("h", 3600e9)],
    // Both forms of µ: the micro sign and the Greek letter.
    spellings: &[("µs", "us"), ("μs", "us"), ("usec", "us"), ("msec", "ms"), ("sec", "s")],
    ambiguous: &[
        ("m", &["ms", "min"]),
        ("secs", &["s"]),
        ("second", &["s"]),
        ("seconds", &["s"]),
        ("mins", &["min"]),
        ("minute", &["min"]),
        ("minutes", &["min"]),
        ("hour", &["h"]),
        ("hours", &["h"]),
    ],
};

const LIMIT: TextForm = TextForm {
    what: "a queue limit",
    units: "pkt, BDP, B, kB, MB, GB, KiB, MiB or GiB",
    example: "pkt",
    table: BYTES.table,
    spellings: BYTES.spellings,
    ambiguous: BYTES.ambiguous,
};

/// A whole number of a smallest unit, with a text form: what probability laws can be of.
pub trait Quantity: Copy + PartialEq + fmt::Debug + FromStr<Err = UnitError> + serde::Serialize + serde::de::DeserializeOwned {
    /// The number of smallest units.
    fn units(self) -> u64;
    /// So many smallest units.
    fn from_units(units: u64) -> Self;
}

/// Splits `text` into its number, as it is written and as a value, and its unit.
fn split_number<'a>(text: &'a str, form: &TextForm) -> Result<(&'a str, f64, &'a str), UnitError> {
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-' || c == '+')).unwrap_or(trimmed.len());
    let (written, unit) = trimmed.split_at(end);
    let number: f64 = written.parse().map_err(|_| form.no_number(text))?;
    if number < 0.0 {
        return Err(form.negative(text));
    }
    if !number.is_finite() {
        return Err(form.out_of_range(text));
    }
    Ok((written, number, unit.trim()))
}

/// Parses `text` as a whole number of the smallest unit.
fn parse(text: &str, form: &TextForm) -> Result<u64, UnitError> {
    let (written, number, unit) = split_number(text, form)?;
    let Some((_, factor)) = form.unit(unit) else {
        // A bare zero needs no unit.
        if unit.is_empty() && number == 0.0 {
            return Ok(0);
        }
        return Err(form.unknown_unit(text, written, unit));
    };
    let value = (number * factor).round();
    if value >= u64::MAX as f64 {
        return Err(form.out_of_range(text));
    }
    Ok(value as u64)
}

/// Prints `value` in the unit with the fewest digits that parses back to the same value.
fn print(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, f64)]) -> fmt::Result {
    let shortest = units
        .iter()
        .map(|(name, factor)| format!("{}{name}", value as f64 / factor))
        .zip(units)
        .filter(|(text, (name, factor))| {
            let number: f64 = text[..text.len() - name.len()].parse().unwrap_or(f64::NAN);
            !text.contains('e') && (number * factor).round() == value as f64 && (number >= 1.0 || value == 0)
        })
        .min_by_key(|(text, (name, _))| text.len() - name.len());
    match shortest {
        Some((text, _)) => f.pad(&text),
        None => f.pad(&format!("{value}{}", units[0].0)),
    }
}

macro_rules! quantity {
    ($name:ident, $form:ident, $units:expr, $what:literal, $example:literal) => {
        impl FromStr for $name {
            type Err = UnitError;
            fn from_str(text: &str) -> Result<Self, UnitError> {
                parse(text, &$form).map($name)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                print(f, self.0, $units)
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
quantity!(Rate, RATE, &[RATE.table[0], RATE.table[1], RATE.table[2], RATE.table[3]], "a rate", "10Mbit");

/// Converts to 64 bits, saturating at the largest value.
fn saturate(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

impl Rate {
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
quantity!(
    Bytes,
    BYTES,
    &[BYTES.table[0], BYTES.table[1], BYTES.table[2], BYTES.table[3], BYTES.table[4], BYTES.table[5], BYTES.table[6]],
    "a size",
    "5MB"
);

/// A length of time, ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Span(pub u64);
quantity!(Span, SPAN, &[SPAN.table[0], SPAN.table[1], SPAN.table[2], SPAN.table[3]], "a time", "20ms");

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
        let (_, number, unit) = split_number(text, &LIMIT)?;
        if unit.eq_ignore_ascii_case("BDP") {
            return Ok(QueueLimit::Bdp(number));
        }
        match LIMIT.unit(unit) {
            Some(("pkt", _)) => Ok(QueueLimit::Packets(number as u64)),
            _ => parse(text, &LIMIT).map(|bytes| QueueLimit::Bytes(Bytes(bytes))),
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
            @r#""50mbps" ends in the unknown unit "mbps": write 50Mbit"#);
        insta::assert_snapshot!(size("4M"),
            @r#""4M" ends in the unknown unit "M": write 4MB or 4MiB"#);
        insta::assert_snapshot!(size("4mib"),
            @r#""4mib" ends in the unknown unit "mib": write 4MiB"#);
        insta::assert_snapshot!(time("-1ms"), @r#""-1ms" is negative: a time is 0 or more"#);
        insta::assert_snapshot!(time("20"), @r#""20" has no unit: a time takes ns, us, ms, s, min or h, for example 20ms"#);
        insta::assert_snapshot!(time("5m"),
            @r#""5m" ends in the unknown unit "m": write 5ms or 5min"#);
        insta::assert_snapshot!(limit("3Mbit"),
            @r#""3Mbit" ends in the unknown unit "Mbit": a queue limit takes pkt, BDP, B, kB, MB, GB, KiB, MiB or GiB, for example 3pkt"#);
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
