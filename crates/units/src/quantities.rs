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
    /// A quantity of this kind, for errors about texts whose meaning is unknown.
    example: &'static str,
    /// Units with their factors, smallest first.
    table: &'static [(&'static str, f64)],
    /// Other spellings that are accepted because they have no second meaning, with the unit of
    /// `table` that each stands for.
    spellings: &'static [(&'static str, &'static str)],
    /// Spellings in lower case that are not accepted because they are ambiguous or unusual, with the
    /// units of `table` that may be meant.
    ambiguous: &'static [(&'static str, &'static [&'static str])],
    /// Units that a number without a unit may be in: from the number in each entry on, those in the
    /// entry.
    without_unit: &'static [(f64, &'static [&'static str])],
    /// What is wrong with a number in a unit of bits or bytes that is not accepted, and what to write
    /// instead; absent if that is unknown. The last argument is `what`. The result follows the text
    /// in the error.
    data_unit_cure: fn(&Number<'_>, &DataUnit<'_>, &str) -> Option<String>,
}

/// The number of a quantity, as it is written and as a value.
struct Number<'a> {
    written: &'a str,
    value: f64,
}

impl TextForm {
    fn no_number(&self, text: &str) -> UnitError {
        UnitError(format!("{text:?} has no number: {} is written like {}", self.what, self.example))
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

    /// The error for a number without a unit. The examples keep the number as it is written.
    fn no_unit(&self, text: &str, number: &Number<'_>) -> UnitError {
        let candidates = self.without_unit.iter().rfind(|(from, _)| *from <= number.value).map_or(&[][..], |(_, units)| *units);
        let examples: Vec<String> = candidates.iter().filter_map(|unit| self.example_of(number, unit)).collect();
        let examples = if examples.is_empty() { String::new() } else { format!(", for example {}", examples.join(" or ")) };
        UnitError(format!("{text:?} has no unit: {} takes {}{examples}", self.what, self.units))
    }

    /// The number in `unit`. A fraction is followed by the same value in a smaller unit: `0.001s
    /// (1ms)`. None if the unit cannot hold the number exactly.
    fn example_of(&self, number: &Number<'_>, unit: &str) -> Option<String> {
        let example = format!("{}{unit}", number.written);
        let Some((_, factor)) = self.unit(unit) else { return Some(example) };
        let units: Vec<(&str, f64)> = self.table.iter().copied().filter(|(name, _)| *name != "pkt").collect();
        if unit == "pkt" && number.value.fract() != 0.0 {
            return None;
        }
        let same = shortest(exact(number.value * factor)?, &units);
        Some(if number.value < 1.0 { format!("{example} ({same})") } else { example })
    }

    /// The error for an unknown unit. Where the quantity that is meant is known, it is what the error
    /// says to write; where there are two readings, it says both.
    fn unknown_unit(&self, text: &str, number: &Number<'_>, unit: &str) -> UnitError {
        if let Some(cure) = DataUnit::parse(unit).and_then(|parsed| (self.data_unit_cure)(number, &parsed, self.what)) {
            return UnitError(format!("{text:?} {cure}"));
        }
        let lower = unit.to_ascii_lowercase();
        let ambiguous = self.ambiguous.iter().find(|(spelling, _)| *spelling == lower).map(|(_, meant)| meant.to_vec());
        // A unit in the wrong case is suggested, not accepted: "M" and "m" differ.
        let other_case = || self.table.iter().filter(|(name, _)| name.to_ascii_lowercase() == lower).map(|(name, _)| *name).collect();
        let meant: Vec<String> = ambiguous.unwrap_or_else(other_case).iter().map(|name| format!("{}{name}", number.written)).collect();
        let takes = || format!("{} takes {}, for example {}", self.what, self.units, self.example);
        let cure = if meant.is_empty() { takes() } else { format!("write {}", meant.join(" or ")) };
        UnitError(format!("{text:?} ends in the unknown unit {unit:?}: {cure}"))
    }
}

/// A unit of bits or bytes in any of its spellings, such as `MB`, `mbps`, `Kbit/s` or `MiB`.
struct DataUnit<'a> {
    /// As it is written.
    written: &'a str,
    /// The prefix as the units of this crate have it: `k`, `M`, `Mi`; empty without one.
    prefix: &'static str,
    factor: f64,
    noun: DataNoun,
    /// Whether it is a unit of a rate: it ends in "/s", "/sec" or "ps".
    is_per_second: bool,
}

/// What a [`DataUnit`] counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DataNoun {
    /// "bit", "bits".
    Bits,
    /// "B", "byte", "bytes".
    Bytes,
    /// "b": bits by convention, often bytes where all letters are lower case.
    SmallB,
    /// A prefix alone.
    Absent,
}

impl<'a> DataUnit<'a> {
    fn parse(written: &'a str) -> Option<Self> {
        let lower = written.to_ascii_lowercase();
        let name = ["/sec", "/s", "ps"].iter().find_map(|end| lower.strip_suffix(*end)).unwrap_or(&lower);
        let b = if written.contains('B') { DataNoun::Bytes } else { DataNoun::SmallB };
        let nouns = [
            ("bits", DataNoun::Bits),
            ("bit", DataNoun::Bits),
            ("bytes", DataNoun::Bytes),
            ("byte", DataNoun::Bytes),
            ("b", b),
            ("", DataNoun::Absent),
        ];
        let (prefix, noun) = nouns.iter().find_map(|(end, noun)| Some((name.strip_suffix(*end)?, *noun)))?;
        let (prefix, factor) = match prefix {
            "" if noun != DataNoun::Absent => ("", 1.0),
            "k" => ("k", 1e3),
            "m" => ("M", 1e6),
            "g" => ("G", 1e9),
            "ki" => ("Ki", 1024.0),
            "mi" => ("Mi", 1024.0 * 1024.0),
            "gi" => ("Gi", 1024.0 * 1024.0 * 1024.0),
            _ => return None,
        };
        Some(DataUnit { written, prefix, factor, noun, is_per_second: name.len() < lower.len() })
    }
}

/// `value` as an integer, if it is one, up to the error of floating-point numbers.
fn exact(value: f64) -> Option<u64> {
    let integer = value.round();
    ((value - integer).abs() <= value * 1e-9 && integer < u64::MAX as f64).then_some(integer as u64)
}

/// What to write for a rate in an unknown unit of bits or bytes. Two readings differ by a factor of 8.
fn rate_cure(number: &Number<'_>, unit: &DataUnit<'_>, what: &str) -> Option<String> {
    let in_bits = Rate(exact(number.value * unit.factor)?);
    let in_bytes = Rate(exact(number.value * unit.factor * 8.0)?);
    let bytes = format!("{} {}B/s", number.written, unit.prefix);
    let is_capital = unit.written.starts_with(['M', 'G']);
    Some(match unit.noun {
        DataNoun::Bits => format!("ends in the unknown unit {:?}: write {in_bits}", unit.written),
        DataNoun::SmallB if is_capital => format!("ends in the unknown unit {:?}: write {in_bits}", unit.written),
        DataNoun::Bytes if unit.written.contains('/') => format!("is bytes, {what} is bits: write {in_bytes}"),
        DataNoun::Bytes => format!("is bytes, {what} is bits: write {in_bytes} ({bytes}) or {in_bits}"),
        // tc reads "mbps" as bytes a second, iperf "10M" as bits, and curl as bytes.
        DataNoun::SmallB | DataNoun::Absent => {
            format!("ends in the ambiguous unit {:?}: write {in_bits}, or {in_bytes} for {bytes}", unit.written)
        }
    })
}

/// What to write for a size in an unknown unit of bits or bytes.
fn size_cure(number: &Number<'_>, unit: &DataUnit<'_>, what: &str) -> Option<String> {
    if unit.is_per_second {
        return None;
    }
    let (written, prefix) = (number.written, unit.prefix);
    // "M" and "MB" stand for powers of 1000 or of 1024.
    let in_bytes = match prefix {
        "" | "Ki" | "Mi" | "Gi" => format!("{written}{prefix}B"),
        "k" => format!("{written}kB or {written}KiB"),
        _ => format!("{written}{prefix}B or {written}{prefix}iB"),
    };
    let unknown = format!("ends in the unknown unit {:?}: write", unit.written);
    let in_bits = || exact(number.value * unit.factor / 8.0).map(Bytes);
    match unit.noun {
        DataNoun::Bits => in_bits().map(|bits| format!("is bits, {what} is bytes: write {bits}")),
        DataNoun::Bytes | DataNoun::Absent => Some(format!("{unknown} {in_bytes}")),
        DataNoun::SmallB => match in_bits() {
            Some(bits) => Some(format!("{unknown} {in_bytes}, or {bits} for {written} {prefix}bit")),
            None => Some(format!("{unknown} {in_bytes}")),
        },
    }
}

const RATE: TextForm = TextForm {
    what: "a rate",
    units: "bit, kbit, Mbit or Gbit (a second)",
    example: "10Mbit",
    table: &[("bit", 1.0), ("kbit", 1e3), ("Mbit", 1e6), ("Gbit", 1e9)],
    // The word "bit" cannot be taken for bytes, so that its prefix is accepted in either case.
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
    ambiguous: &[],
    without_unit: &[(0.0, &["Mbit"]), (1e3, &["kbit", "Mbit"]), (1e5, &["bit", "kbit"]), (1e7, &["bit"])],
    data_unit_cure: rate_cure,
};

const BYTES: TextForm = TextForm {
    what: "a size",
    units: "B, kB, MB, GB, KiB, MiB, GiB or pkt (1500 bytes)",
    example: "10MB",
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
    ambiguous: &[],
    without_unit: &[(0.0, &["MB"]), (10.0, &["kB", "MB"]), (1e3, &["B", "kB"]), (1e5, &["B"])],
    data_unit_cure: size_cure,
};

const SPAN: TextForm = TextForm {
    what: "a time",
    units: "ns, us, ms, s, min or h",
    example: "10ms",
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
    without_unit: &[(0.0, &["s"]), (1.0, &["ms", "s"]), (1e4, &["us", "ms"]), (1e6, &["ns", "us"])],
    data_unit_cure: |_, _, _| None,
};

const LIMIT: TextForm = TextForm {
    what: "a queue limit",
    units: "pkt, BDP, B, kB, MB, GB, KiB, MiB or GiB",
    example: "10pkt",
    table: BYTES.table,
    spellings: BYTES.spellings,
    ambiguous: &[],
    without_unit: &[(0.0, &["BDP"]), (1.0, &["pkt", "BDP"]), (10.0, &["pkt"]), (1e3, &["pkt", "B"]), (1e5, &["B"])],
    data_unit_cure: size_cure,
};

/// A whole number of a smallest unit, with a text form: what probability laws can be of.
pub trait Quantity: Copy + PartialEq + fmt::Debug + FromStr<Err = UnitError> + serde::Serialize + serde::de::DeserializeOwned {
    /// The number of smallest units.
    fn units(self) -> u64;
    /// So many smallest units.
    fn from_units(units: u64) -> Self;
}

/// Splits `text` into its number and its unit.
fn split_number<'a>(text: &'a str, form: &TextForm) -> Result<(Number<'a>, &'a str), UnitError> {
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-' || c == '+')).unwrap_or(trimmed.len());
    let (written, unit) = trimmed.split_at(end);
    let value: f64 = written.parse().map_err(|_| form.no_number(text))?;
    if value < 0.0 {
        return Err(form.negative(text));
    }
    if !value.is_finite() {
        return Err(form.out_of_range(text));
    }
    Ok((Number { written, value }, unit.trim()))
}

/// Parses `text` as a whole number of the smallest unit.
fn parse(text: &str, form: &TextForm) -> Result<u64, UnitError> {
    let (number, unit) = split_number(text, form)?;
    let Some((_, factor)) = form.unit(unit) else {
        return match unit {
            // Zero needs no unit.
            "" if number.value == 0.0 => Ok(0),
            "" => Err(form.no_unit(text, &number)),
            _ => Err(form.unknown_unit(text, &number, unit)),
        };
    };
    let value = (number.value * factor).round();
    if value >= u64::MAX as f64 {
        return Err(form.out_of_range(text));
    }
    Ok(value as u64)
}

/// `value` in the unit with the fewest digits that parses back to the same value.
fn shortest(value: u64, units: &[(&str, f64)]) -> String {
    let shortest = units
        .iter()
        .map(|(name, factor)| format!("{}{name}", value as f64 / factor))
        .zip(units)
        .filter(|(text, (name, factor))| {
            let number: f64 = text[..text.len() - name.len()].parse().unwrap_or(f64::NAN);
            !text.contains('e') && (number * factor).round() == value as f64 && (number >= 1.0 || value == 0)
        })
        .min_by_key(|(text, (name, _))| text.len() - name.len());
    shortest.map_or_else(|| format!("{value}{}", units[0].0), |(text, _)| text)
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
                f.pad(&shortest(self.0, $units))
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
        let (number, unit) = split_number(text, &LIMIT)?;
        if unit.eq_ignore_ascii_case("BDP") {
            return Ok(QueueLimit::Bdp(number.value));
        }
        match LIMIT.unit(unit) {
            Some(("pkt", _)) => Ok(QueueLimit::Packets(number.value as u64)),
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
