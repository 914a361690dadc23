//! A recorded link: the times at which it could carry a packet, in mahimahi's format.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{
    borrow::Cow,
    io::{BufRead, Read as _},
    sync::Arc,
};
use units::{Bytes, Rate, Span};

/// Bytes that a delivery opportunity carries.
pub const OPPORTUNITY: Bytes = Bytes(1500);
/// The longest trace. It takes 64 MiB of memory, and is 4.6 hours at 12 Mbit/s.
const MAX_OPPORTUNITIES: usize = 16 << 20;
/// Longer lines are not read: a time has ten digits at most.
const MAX_LINE: u64 = 64;

/// The delivery opportunities of a link of varying rate: at each of these times up to 1500 bytes of
/// IP packets may leave. After the last one the trace repeats. An opportunity that finds no packet
/// is lost.
///
/// The format is that of mahimahi (Netravali et al., USENIX ATC 2015): a text file with a time in
/// whole milliseconds on each line, not decreasing. A time that stands on several lines has as many
/// opportunities.
#[derive(Clone, PartialEq, Eq)]
pub struct DeliveryTrace {
    times_ms: Vec<u32>,
}

/// Why a text is no trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{what}", .line.map(|line| format!("line {line}: ")).unwrap_or_default())]
pub struct DeliveryTraceError {
    /// The line, from 1; absent if the whole file is meant.
    pub line: Option<usize>,
    /// What is wrong, and the cure.
    pub what: String,
}

impl DeliveryTraceError {
    fn whole(what: String) -> Self {
        DeliveryTraceError { line: None, what }
    }
}

impl DeliveryTrace {
    /// Reads a trace. Memory is bounded, whatever the input's size.
    ///
    /// # Errors
    /// The input cannot be read, or is no trace: empty, not a number, decreasing, longer than 16 Mi
    /// lines, or of no duration.
    pub fn read(mut input: impl BufRead) -> Result<Self, DeliveryTraceError> {
        let mut times_ms: Vec<u32> = Vec::new();
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let fault = |what: String| DeliveryTraceError { line: Some(number), what };
            let length = (&mut input).take(MAX_LINE).read_until(b'\n', &mut line);
            let length = length.map_err(|error| DeliveryTraceError::whole(format!("cannot be read: {error}")))?;
            if length == 0 {
                break;
            }
            if length as u64 == MAX_LINE {
                return Err(fault("is no time: a trace has a time in whole milliseconds on each line, such as 12".into()));
            }
            let text = String::from_utf8_lossy(&line);
            let at = parse_time(text.trim()).map_err(fault)?;
            match times_ms.last() {
                Some(before) if *before > at => {
                    return Err(fault(format!("is {at}, but the line before is {before}: times do not decrease; sort the file (sort -n)")));
                }
                _ if times_ms.len() == MAX_OPPORTUNITIES => {
                    return Err(fault(format!(
                        "a trace has at most {MAX_OPPORTUNITIES} lines: cut the file (head -n {MAX_OPPORTUNITIES}); it repeats at its end"
                    )));
                }
                _ => times_ms.push(at),
            }
        }
        match times_ms.last() {
            None => Err(DeliveryTraceError::whole("is empty: a trace has a time in whole milliseconds on each line, such as 12".into())),
            Some(0) => Err(DeliveryTraceError::whole("ends at 0 ms: it has no duration after which it could repeat".into())),
            Some(_) => Ok(DeliveryTrace { times_ms }),
        }
    }

    /// After this time it repeats.
    pub fn period(&self) -> Span {
        milliseconds(self.times_ms[self.times_ms.len() - 1].into())
    }

    /// The mean rate over a period.
    pub fn mean_rate(&self) -> Rate {
        let bits = 8 * OPPORTUNITY.0 * self.times_ms.len() as u64;
        Rate((u128::from(bits) * 1_000_000_000 / u128::from(self.period().0)) as u64)
    }

    /// The time of opportunity `number`, counted from 0 over all repetitions, since the start.
    pub fn time(&self, number: u64) -> Span {
        let count = self.times_ms.len() as u64;
        let period_ms = u64::from(self.times_ms[self.times_ms.len() - 1]);
        milliseconds(number / count * period_ms + u64::from(self.times_ms[(number % count) as usize]))
    }

    /// The first opportunity at `at` or later.
    pub fn first_from(&self, at: Span) -> u64 {
        let count = self.times_ms.len() as u64;
        let period = self.period();
        // The last opportunities of a repetition are at its end: those at a multiple of the period
        // belong to the repetition before.
        let repetition = at.0.saturating_sub(1) / period.0;
        let within = Span(at.0 - repetition * period.0);
        let index = self.times_ms.partition_point(|time| milliseconds(u64::from(*time)) < within);
        repetition * count + index as u64
    }

    /// The number of opportunities in [`from`, `to`).
    pub fn count_between(&self, from: Span, to: Span) -> u64 {
        self.first_from(to).saturating_sub(self.first_from(from))
    }
}

impl std::fmt::Debug for DeliveryTrace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeliveryTrace({} opportunities in {}, {} on average)", self.times_ms.len(), self.period(), self.mean_rate())
    }
}

/// The traces of a link's two directions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkTrace {
    /// File with the direction of the data. mahimahi's format: a time in whole milliseconds on each
    /// line, at which up to 1500 bytes may leave; it repeats at its end. A relative path starts at
    /// the scenario file.
    pub down: TraceFile,
    /// File with the other direction, that of ACKs.
    pub up: TraceFile,
}

/// A trace in a file: the file's name, and its contents once they are read. In a scenario file it
/// is the name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceFile {
    /// The file's name.
    pub name: String,
    contents: Option<Arc<DeliveryTrace>>,
}

impl TraceFile {
    /// The contents.
    ///
    /// # Panics
    /// The scenario does not come from a [`ScenarioFile`](crate::ScenarioFile), which reads them.
    pub fn trace(&self) -> &Arc<DeliveryTrace> {
        self.contents.as_ref().expect("a scenario file reads the traces of its links")
    }

    pub(crate) fn set(&mut self, trace: Arc<DeliveryTrace>) {
        self.contents = Some(trace);
    }
}

impl Serialize for TraceFile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.name.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for TraceFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(TraceFile { name: String::deserialize(deserializer)?, contents: None })
    }
}

impl JsonSchema for TraceFile {
    fn schema_name() -> Cow<'static, str> {
        "TraceFile".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        String::json_schema(generator)
    }
}

fn milliseconds(ms: u64) -> Span {
    Span(ms * 1_000_000)
}

fn parse_time(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| {
        if text.parse::<f64>().is_ok_and(|number| number < 0.0) {
            format!("is {text}, but times count from the start of the trace: none is negative")
        } else if text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
            format!("is {text}, but a time has at most {} ms", u32::MAX)
        } else if text.is_empty() {
            "is empty: delete it".into()
        } else {
            format!("{text:?} is no time: a trace has a time in whole milliseconds on each line, such as 12")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn trace(text: &str) -> DeliveryTrace {
        DeliveryTrace::read(text.as_bytes()).unwrap()
    }

    fn wrong(text: &str) -> String {
        DeliveryTrace::read(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn a_trace_repeats_after_its_last_time() {
        let trace = trace("0\n3\n3\n10\n");
        let times: Vec<u64> = (0..10).map(|number| trace.time(number).0 / 1_000_000).collect();
        assert_eq!(times, [0, 3, 3, 10, 10, 13, 13, 20, 20, 23]);
        assert_eq!(trace.mean_rate(), Rate(4 * 12_000 * 100));
        assert_eq!(trace.count_between(Span::ZERO, Span(10_000_000)), 3);
        assert_eq!(trace.count_between(Span(10_000_000), Span(20_000_000)), 4);
    }

    #[test]
    fn lines_may_end_as_on_any_system() {
        assert_eq!(trace("1\r\n2\r\n"), trace("1\n2"));
    }

    #[test]
    fn what_is_no_trace_is_refused_with_its_line() {
        assert_eq!(wrong(""), "is empty: a trace has a time in whole milliseconds on each line, such as 12");
        assert_eq!(wrong("0\n0\n"), "ends at 0 ms: it has no duration after which it could repeat");
        assert_eq!(wrong("5\n7\n6\n"), "line 3: is 6, but the line before is 7: times do not decrease; sort the file (sort -n)");
        assert_eq!(wrong("5\n-7\n"), "line 2: is -7, but times count from the start of the trace: none is negative");
        assert_eq!(wrong("5\n\n7\n"), "line 2: is empty: delete it");
        assert!(wrong("5\n1.5\n").starts_with("line 2: \"1.5\" is no time"));
        assert_eq!(wrong("99999999999\n"), "line 1: is 99999999999, but a time has at most 4294967295 ms");
        assert!(wrong(&"7".repeat(1 << 20)).starts_with("line 1: is no time"));
    }

    #[test]
    fn an_endless_input_ends_with_an_error() {
        let endless = std::io::repeat(b'\n').chain(&b""[..]);
        assert_eq!(DeliveryTrace::read(std::io::BufReader::new(endless)).unwrap_err().line, Some(1));
        let lines = b"1\n".repeat(MAX_OPPORTUNITIES + 1);
        let error = DeliveryTrace::read(&lines[..]).unwrap_err();
        assert_eq!(error.line, Some(MAX_OPPORTUNITIES + 1));
        assert!(error.what.contains("cut the file"), "{error}");
    }

    proptest! {
        #[test]
        fn the_first_opportunity_from_a_time_is_found(mut times in proptest::collection::vec(0u32..50, 1..20), at in 0u64..400_000_000) {
            times.sort_unstable();
            *times.last_mut().unwrap() += 1;
            let text: String = times.iter().map(|time| format!("{time}\n")).collect();
            let trace = trace(&text);
            let found = trace.first_from(Span(at));
            prop_assert!(trace.time(found).0 >= at);
            prop_assert!(found == 0 || trace.time(found - 1).0 < at);
        }
    }
}
