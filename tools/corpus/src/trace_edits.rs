//! Defects that traces may have: clocks that differ, captures that begin late, end early or miss
//! packets.

use anyhow::{Context as _, Result};
use middleboxes::label_text;
use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, fs, io::BufReader, path::Path, time::Duration};
use testbed::SplitMix64;

/// A defect that is added to both traces of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TraceEdit {
    /// None.
    AsTaken,
    /// The receiver's clock is 1 s ahead and 100 ppm fast.
    Ahead,
    /// The receiver's clock is 1 s behind and 100 ppm slow.
    Behind,
    /// Both captures begin late, at different times.
    BeginsLate,
    /// Both captures end early; the sender's ends within a record.
    EndsEarly,
    /// Each capture misses 2 % of its packets.
    LosesRecords,
    /// Each packet is truncated to 96 bytes, which hold little more than headers.
    HeadersAlone,
}

/// All defects, in the order in which runs take them in turn.
pub(crate) const TRACE_EDITS: [TraceEdit; 6] =
    [TraceEdit::Ahead, TraceEdit::BeginsLate, TraceEdit::LosesRecords, TraceEdit::Behind, TraceEdit::EndsEarly, TraceEdit::HeadersAlone];

impl TraceEdit {
    pub(crate) fn name(self) -> String {
        label_text(self)
    }

    /// Whether the times of both traces are still of one clock.
    pub(crate) fn keeps_clocks(self) -> bool {
        !matches!(self, TraceEdit::Ahead | TraceEdit::Behind)
    }

    /// Writes `from`, the trace of an end (0: sender, 1: receiver), as `to` with this defect.
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
