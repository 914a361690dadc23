//! What can be so of the traces of one and the same run: clocks that are off, captures that begin late, end early or lose records.

use crate::plan::word;
use anyhow::{Context as _, Result};
use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, fs, io::BufReader, path::Path, time::Duration};
use testbed::Dice;

/// What is done to two traces after they were taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Change {
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
pub(crate) const CHANGES: [Change; 6] =
    [Change::Ahead, Change::BeginsLate, Change::LosesRecords, Change::Behind, Change::EndsEarly, Change::HeadersAlone];

impl Change {
    pub(crate) fn name(self) -> String {
        word(self)
    }

    /// Whether times of both traces are still of one clock.
    pub(crate) fn keeps_clocks(self) -> bool {
        !matches!(self, Change::Ahead | Change::Behind)
    }

    /// Writes `from`, the trace of an end (0: the sender's), as `to`.
    pub(crate) fn apply(self, end: usize, from: &Path, to: &Path, dice: &mut Dice) -> Result<()> {
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
            Change::Ahead | Change::Behind if end == 1 => {
                let sign = if self == Change::Ahead { 1.0 } else { -1.0 };
                for record in &mut records {
                    let drifted = sign * (1.0 + 100e-6 * record.timestamp.saturating_sub(first).as_secs_f64());
                    record.timestamp = if drifted >= 0.0 {
                        record.timestamp + Duration::from_secs_f64(drifted)
                    } else {
                        record.timestamp - Duration::from_secs_f64(-drifted)
                    };
                }
            }
            Change::BeginsLate => {
                let from = within(dice.between(15, 45) as f64 / 100.0);
                records.retain(|record| record.timestamp >= from);
            }
            Change::EndsEarly => {
                let to = within(dice.between(50, 85) as f64 / 100.0);
                records.retain(|record| record.timestamp <= to);
            }
            Change::LosesRecords => records.retain(|_| !dice.chance(0.02)),
            Change::HeadersAlone => {
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
        if self == Change::EndsEarly && end == 0 {
            bytes.truncate(bytes.len().saturating_sub(21));
        }
        fs::write(to, bytes).with_context(writing)
    }
}
