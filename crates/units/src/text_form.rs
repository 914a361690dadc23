//! The text form of quantities: how they are parsed, how they are printed, and what an error says to
//! write instead.

/// A text is not a quantity; the message shows how one is written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnitError(String);

/// How quantities of one kind are written, for the parser and its errors.
pub(crate) struct TextForm {
    /// The kind, with its article.
    what: &'static str,
    /// The units, in a sentence.
    units: &'static str,
    /// A quantity of this kind, for errors about texts whose meaning is unknown.
    example: &'static str,
    /// Units with their factors, smallest first.
    table: &'static [(&'static str, f64)],
    /// How many of them, from the smallest on, are printed.
    printed: usize,
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
pub(crate) struct Number<'a> {
    written: &'a str,
    pub(crate) value: f64,
}

impl TextForm {
    /// Splits `text` into its number and its unit.
    pub(crate) fn split_number<'a>(&self, text: &'a str) -> Result<(Number<'a>, &'a str), UnitError> {
        let trimmed = text.trim();
        let end = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-' || c == '+')).unwrap_or(trimmed.len());
        let (written, unit) = trimmed.split_at(end);
        let value: f64 = written.parse().map_err(|_| self.no_number(text))?;
        if value < 0.0 {
            return Err(self.negative(text));
        }
        if !value.is_finite() {
            return Err(self.out_of_range(text));
        }
        Ok((Number { written, value }, unit.trim()))
    }

    /// Parses `text` as a whole number of the smallest unit.
    pub(crate) fn parse(&self, text: &str) -> Result<u64, UnitError> {
        let (number, unit) = self.split_number(text)?;
        let Some((_, factor)) = self.unit(unit) else {
            return match unit {
                // Zero needs no unit.
                "" if number.value == 0.0 => Ok(0),
                "" => Err(self.no_unit(text, &number)),
                _ => Err(self.unknown_unit(text, &number, unit)),
            };
        };
        let value = (number.value * factor).round();
        if value >= u64::MAX as f64 {
            return Err(self.out_of_range(text));
        }
        Ok(value as u64)
    }

    /// `value` smallest units as text.
    pub(crate) fn print(&self, value: u64) -> String {
        shortest(value, &self.table[..self.printed])
    }

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
    pub(crate) fn unit(&self, unit: &str) -> Option<(&'static str, f64)> {
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
    let in_bits = RATE.print(exact(number.value * unit.factor)?);
    let in_bytes = RATE.print(exact(number.value * unit.factor * 8.0)?);
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
    let in_bits = || exact(number.value * unit.factor / 8.0).map(|bytes| BYTES.print(bytes));
    match unit.noun {
        DataNoun::Bits => in_bits().map(|bits| format!("is bits, {what} is bytes: write {bits}")),
        DataNoun::Bytes | DataNoun::Absent => Some(format!("{unknown} {in_bytes}")),
        DataNoun::SmallB => match in_bits() {
            Some(bits) => Some(format!("{unknown} {in_bytes}, or {bits} for {written} {prefix}bit")),
            None => Some(format!("{unknown} {in_bytes}")),
        },
    }
}

pub(crate) const RATE: TextForm = TextForm {
    what: "a rate",
    units: "bit, kbit, Mbit or Gbit (a second)",
    example: "10Mbit",
    table: &[("bit", 1.0), ("kbit", 1e3), ("Mbit", 1e6), ("Gbit", 1e9)],
    printed: 4,
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

pub(crate) const BYTES: TextForm = TextForm {
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
    printed: 7,
    spellings: &[("byte", "B"), ("bytes", "B"), ("pkts", "pkt"), ("packet", "pkt"), ("packets", "pkt")],
    ambiguous: &[],
    without_unit: &[(0.0, &["MB"]), (10.0, &["kB", "MB"]), (1e3, &["B", "kB"]), (1e5, &["B"])],
    data_unit_cure: size_cure,
};

pub(crate) const SPAN: TextForm = TextForm {
    what: "a time",
    units: "ns, us, ms, s, min or h",
    example: "10ms",
    table: &[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9), ("min", 60e9), ("h", 3600e9)],
    printed: 4,
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

pub(crate) const LIMIT: TextForm = TextForm {
    what: "a queue limit",
    units: "pkt, BDP, B, kB, MB, GB, KiB, MiB or GiB",
    example: "10pkt",
    table: BYTES.table,
    printed: BYTES.printed,
    spellings: BYTES.spellings,
    ambiguous: &[],
    without_unit: &[(0.0, &["BDP"]), (1.0, &["pkt", "BDP"]), (10.0, &["pkt"]), (1e3, &["pkt", "B"]), (1e5, &["B"])],
    data_unit_cure: size_cure,
};

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
