//! What can be so of the traces of one and the same run: clocks that are off, captures that begin late, end early or lose records.

use crate::conditions::label_text;
use anyhow::{Context as _, Result};
use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, fs, io::BufReader, path::Path, time::Duration};
use testbed::SplitMix64;

/// What is done to two traces after they were taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TraceEdit {
    /// Nothing.
    AsTaken,
    /// The receiver's clock is 1 s ahead and 100 ppm faster.
    Ahead,
    /// It is 1 s behind and 100 ppm slower.
    Behind,
    /// Both captures begin late, the one later than the other.
    BeginsLate,
    /// Both end early, the sender's within a record.
    EndsEarly,
    /// Each has lost 2 % of its records.
    LosesRecords,
    /// 96 bytes of each frame were captured: headers, and next to nothing else.
    HeadersAlone,
}

/// All but none, in the order of their turns.
pub(crate) const TRACE_EDITS: [TraceEdit; 6] =
    [TraceEdit::Ahead, TraceEdit::BeginsLate, TraceEdit::LosesRecords, TraceEdit::Behind, TraceEdit::EndsEarly, TraceEdit::HeadersAlone];

impl TraceEdit {
    pub(crate) fn name(self) -> String {
        label_text(self)
    }

    /// Whether times of both traces are still of one clock.
    pub(crate) fn keeps_clocks(self) -> bool {
        !matches!(self, TraceEdit::Ahead | TraceEdit::Behind)
    }

    /// Writes `from`, the trace of an end (0: the sender's), as `to`.
    pub(crate) fn apply(self, end: usize, from: &Path, to: &Path, random: &mut SplitMix64) -> Result<()> {
        let reading = || format!("cannot read {}", from.display());
        let file = fs::File::open(from).with_context(reading)?;
        let mut reader = PcapReader::new(BufReader::new(file)).with_context(reading)?;
        let header = reader.header();
        let mut records: Vec<PcapPacket<'static>> = Vec::new();
        while let Some(record) = reader.next_packet() {
            records.push(record.with_context(reading)?.into_owned());
        }
        let (first, last) = (
            records.first().map_or(Duration::ZERO, |record| record.timestamp),
            records.last().map_or(Duration::ZERO, |record| record.timestamp),
        );
        let within = |share: f64| first + last.saturating_sub(first).mul_f64(share);
        match self {
            TraceEdit::Ahead | TraceEdit::Behind if end == 1 => {
                let sign = if self == TraceEdit::Ahead { 1.0 } else { -1.0 };
                for record in &mut records {
                    let drifted = sign * (1.0 + 100e-6 * record.timestamp.saturating_sub(first).as_secs_f64());
                    record.timestamp = if drifted >= 0.0 {
                        record.timestamp + Duration::from_secs_f64(drifted)
                    } else {
                        record.timestamp - Duration::from_secs_f64(-drifted)
                    };
                }
            }
            TraceEdit::BeginsLate => {
                let from = within(random.uniform(15, 45) as f64 / 100.0);
                records.retain(|record| record.timestamp >= from);
            }
            TraceEdit::EndsEarly => {
                let to = within(random.uniform(50, 85) as f64 / 100.0);
                records.retain(|record| record.timestamp <= to);
            }
            TraceEdit::LosesRecords => records.retain(|_| !random.chance(0.02)),
            TraceEdit::HeadersAlone => {
                for record in &mut records {
                    if let Cow::Owned(data) = &mut record.data {
                        data.truncate(96);
                    }
                }
            }
            _ => {}
        }
        let writing = || format!("cannot write {}", to.display());
        let mut writer = PcapWriter::with_header(Vec::new(), header).with_context(writing)?;
        for record in &records {
            writer.write_packet(record).with_context(writing)?;
        }
        let mut bytes = writer.into_writer();
        if self == TraceEdit::EndsEarly && end == 0 {
            bytes.truncate(bytes.len().saturating_sub(21));
        }
        fs::write(to, bytes).with_context(writing)
    }
}
