//! Sweeps the proxy's data path over many paths: one download in the lab for each combination of
//! the receiver's link rate, its RTT and the proxy's buffer. The sender's link is short and
//! lossless. A point passes if no receive buffer overran, the sender had no retransmission timeout,
//! and the goodput, once it has reached the link's capacity, stays there.

use crate::resume_file::ResumeFile;
use anyhow::Result;
use lab::Lab;
use measurements::{MeasurementRecord, SampleColumn, SampleTable};
use outcome::{Engine, Outcome, Series};
use scenario::ScenarioFile;
use serde::{Deserialize, Serialize};
use std::slice;
use units::{Bytes, Rate, Span};

/// Sweeps the proxy's data path over rates, round trips and buffers: no receive buffer may overrun,
/// no sender on a lossless leg may have a retransmission timeout, the link must be filled. Exit
/// code 1 if a point fails
#[derive(Debug, clap::Args)]
pub(crate) struct PathSweep {
    /// Rates of the receiver's link
    #[arg(long, value_delimiter = ',', default_value = "1Mbit,10Mbit,100Mbit,1000Mbit")]
    rates: Vec<Rate>,
    /// Round trips of the receiver's link
    #[arg(long, value_delimiter = ',', default_value = "1ms,20ms,100ms,600ms")]
    rtts: Vec<Span>,
    /// The proxy's buffer per direction
    #[arg(long, value_delimiter = ',', default_value = "64KiB,256KiB,1MiB,4MiB,16MiB")]
    buffers: Vec<Bytes>,
    /// Congestion controller of both legs
    #[arg(long, default_value = "cubic")]
    control: String,
    #[command(flatten)]
    resume: ResumeFile,
}

/// A combination of parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct SweepPoint {
    rate_bps: u64,
    rtt_ns: u64,
    buffer_bytes: u64,
}

/// The result of a point.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct SweepResult {
    point: SweepPoint,
    /// Whether the machine was fast enough.
    valid: bool,
    /// Goodput as a fraction of the link's payload rate, see [`share_of_link`].
    share: f64,
    /// Receive buffer overruns on the proxy's host.
    overruns: u64,
    /// The sender's retransmission timeouts.
    timeouts: u64,
    /// The maximum that the proxy buffered.
    held_bytes: u64,
}

/// RTT of the near link, like that of a short cable.
const NEAR_RTT: Span = Span(200_000);
/// How far a segment may exceed the bound for a moment, bytes (docs/limitations.md).
const SEGMENT: u64 = 64 * 1024;
/// How far the goodput may be from the link's payload rate, as a fraction of it.
const TOLERANCE: f64 = 0.03;
/// How often a point is tried if the machine is too slow.
const TRIES: usize = 3;

impl PathSweep {
    /// Returns whether every point passes.
    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<bool> {
        record.rounds = 1;
        let counts = ["overruns", "timeouts"].map(|head| SampleColumn::new(head, "", 0));
        let columns =
            [&[SampleColumn::new("of the link", "%", 1)], &counts[..], &[SampleColumn::new("held", "kB", 0), SampleColumn::text("")]];
        record.tables = vec![SampleTable::new("paths", "rate, RTT, buffer", columns.concat())];
        let mut known: Vec<SweepResult> = self.resume.runs()?;
        let mut failed = 0;
        for point in self.points() {
            let came = match known.iter().position(|came| came.point == point) {
                Some(at) => known.swap_remove(at),
                None => self.play(point)?,
            };
            failed += usize::from(!came.passes());
            eprintln!("{came:?}");
            came.add_to(&mut record.tables[0]);
        }
        record.notes.push(format!("{failed} points fail."));
        Ok(failed == 0)
    }

    fn points(&self) -> impl Iterator<Item = SweepPoint> + '_ {
        let of = |rate: &Rate, rtt: &Span, buffer: &Bytes| SweepPoint { rate_bps: rate.0, rtt_ns: rtt.0, buffer_bytes: buffer.0 };
        self.rates
            .iter()
            .flat_map(move |rate| self.rtts.iter().flat_map(move |rtt| self.buffers.iter().map(move |buffer| of(rate, rtt, buffer))))
    }

    fn play(&self, point: SweepPoint) -> Result<SweepResult> {
        let mut came = self.once(point)?;
        for _ in 1..TRIES {
            came = if came.valid { came } else { self.once(point)? };
        }
        self.resume.append(slice::from_ref(&came))?;
        Ok(came)
    }

    fn once(&self, point: SweepPoint) -> Result<SweepResult> {
        let text = self.scenario(point);
        let variant = ScenarioFile::parse(&text, "paths")?.variants(&[])?.remove(0);
        let outcome = Lab::default().run(&variant.scenario, 1, &())?;
        Ok(SweepResult::of(point, &outcome))
    }

    /// A download, in which the proxy dials the leg that fills its buffer. An accepted leg gets its
    /// bound from the listener, a dialled one when it becomes a stream. The near link is up to
    /// twenty times as fast as the far one, which fills the proxy's buffer.
    fn scenario(&self, point: SweepPoint) -> String {
        let SweepPoint { rate_bps, rtt_ns, buffer_bytes } = point;
        let (near_bps, near_delay_ns, far_delay_ns) =
            ((20 * rate_bps).min(1_000_000_000).max(rate_bps + rate_bps / 4), NEAR_RTT.0 / 2, rtt_ns / 2);
        // Slow start takes about log2(BDP) round trips. Slow links need time to average over
        // packets, and half of the time is measured.
        let seconds = 4.0 + 40.0 * rtt_ns as f64 / 1e9 + 8e6 / rate_bps as f64;
        let queue_bytes = ((rate_bps as f64 / 8.0 * rtt_ns as f64 / 1e9) as u64).max(30_000);
        format!(
            "name = \"paths\"\nduration = \"{seconds}s\"\nseed = 1\n\
             [[link]]\nrate = \"{near_bps}bit\"\ndelay = \"{near_delay_ns}ns\"\nqueue = {{ limit = \"16MiB\" }}\n\
             [[link]]\nrate = \"{rate_bps}bit\"\ndelay = \"{far_delay_ns}ns\"\nqueue = {{ limit = \"{queue_bytes}B\" }}\n\
             [[split]]\nafter = 1\nbuffer = \"{buffer_bytes}B\"\n\
             [control]\nsender = \"{0}\"\nproxy = \"{0}\"\n[[flow]]\nopens = \"receiver\"\n",
            self.control
        )
    }
}

impl SweepResult {
    fn of(point: SweepPoint, outcome: &Outcome) -> Self {
        let legs = outcome.flows.first().map(|flow| flow.legs.as_slice()).unwrap_or_default();
        SweepResult {
            point,
            valid: outcome.valid,
            share: outcome.series.iter().find(|series| series.what == "goodput").map_or(0.0, |series| share_of_link(series, point)),
            overruns: outcome.proxy.as_ref().and_then(|proxy| proxy.receive_overruns).unwrap_or(0),
            timeouts: legs.first().and_then(|leg| leg.timeouts).unwrap_or(0),
            held_bytes: outcome.proxy.as_ref().map_or(0, |proxy| proxy.buffer_bytes.max as u64),
        }
    }

    /// Whether the buffer limits the goodput: the near leg's window is less than the near link's
    /// BDP. Half of the receive buffer is window, the rest is for the overhead of packets.
    fn is_bound_by_buffer(&self) -> bool {
        let window = self.point.buffer_bytes as f64 / 4.0;
        let needed = self.point.rate_bps as f64 / 8.0 * (NEAR_RTT.secs() + 0.001);
        window < needed
    }

    fn passes(&self) -> bool {
        // If the machine was too slow, goodput says nothing.
        let is_filled = (1.0 - self.share).abs() <= TOLERANCE || self.is_bound_by_buffer() || !self.valid;
        self.overruns == 0 && self.timeouts == 0 && self.held_bytes <= self.point.buffer_bytes + SEGMENT && is_filled
    }

    fn add_to(&self, table: &mut SampleTable) {
        let SweepPoint { rate_bps, rtt_ns, buffer_bytes } = self.point;
        let row = table.row(&format!("{}, {}, {}", Rate(rate_bps), Span(rtt_ns), Bytes(buffer_bytes)));
        let figures = [
            ("of the link", self.share * 100.0),
            ("overruns", self.overruns as f64),
            ("timeouts", self.timeouts as f64),
            ("held", self.held_bytes as f64 / 1e3),
        ];
        figures.into_iter().for_each(|(head, figure)| row.add(head, 0, figure));
        row.set(
            "",
            match (self.passes(), self.valid) {
                (false, _) => "FAILS",
                (true, false) => "the machine did not keep up",
                (true, true) if self.share < 1.0 - TOLERANCE => "the buffer is less than the near leg needs",
                (true, true) => "passes",
            },
        );
    }
}

/// Payload rate of a link in full packets: 1448 of 1500 bytes (RFC 7323 timestamps).
fn payload_rate(rate_bps: u64) -> f64 {
    rate_bps as f64 * 1448.0 / 1500.0
}

/// Mean goodput from when the link was filled first until it was filled last, as a fraction of the
/// link's payload rate. If it was not filled near the end, or if that is less than a third of the
/// run: the mean over its second half.
///
/// A receiver reads nothing while a segment is missing, and then everything that arrived behind it.
/// A period that begins or ends within such a gap has a mean that is too small or too large. So the
/// period begins and ends where the mean over two round trips is the link's rate.
fn share_of_link(goodput: &Series, point: SweepPoint) -> f64 {
    let rate = payload_rate(point.rate_bps);
    let window = (2.0 * Span(point.rtt_ns).secs()).max(1.0);
    let read = cumulative(goodput);
    let mean = |from: &(f64, f64), to: &(f64, f64)| (to.1 - from.1) / (to.0 - from.0) / rate;
    let (Some(&begin), Some(&end)) = (read.first(), read.last()) else { return 0.0 };
    let at = |t: f64| &read[read.partition_point(|(then, _)| *then < t).min(read.len() - 1)];
    let is_filled = |to: &&(f64, f64)| to.0 - begin.0 > window && (1.0 - mean(at(to.0 - window), to)).abs() <= TOLERANCE;
    let filled = read.iter().find(is_filled).zip(read.iter().rev().find(is_filled));
    // A recovery that the end of the run cuts off takes a few round trips.
    let is_late = |last: &(f64, f64)| end.0 - last.0 <= 4.0 * window;
    match filled.map(|(first, last)| (at(first.0 - window), last)) {
        Some((from, to)) if to.0 - from.0 > (end.0 - begin.0) / 3.0 && is_late(to) => mean(from, to),
        _ => mean(at((begin.0 + end.0) / 2.0), &end),
    }
}

/// Times (s) and what had been read by then (bits).
fn cumulative(goodput: &Series) -> Vec<(f64, f64)> {
    let mut read = Vec::with_capacity(goodput.t.len());
    let (mut before, mut bits) = (0.0, 0.0);
    for (&t, &rate) in goodput.t.iter().zip(&goodput.v) {
        bits += rate * (t - before);
        before = t;
        read.push((t, bits));
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINT: SweepPoint = SweepPoint { rate_bps: 10_000_000, rtt_ns: 600_000_000, buffer_bytes: 1 << 20 };

    /// Goodput of 30 s in samples of 20 ms; `share` of the link's payload rate at a time in
    /// seconds.
    fn series(share: impl Fn(f64) -> f64) -> Series {
        let t: Vec<f64> = (1..=1500).map(|sample| f64::from(sample) / 50.0).collect();
        let v = t.iter().map(|&t| share(t) * payload_rate(POINT.rate_bps)).collect();
        Series { what: "goodput".to_string(), t, v, ..Series::default() }
    }

    #[test]
    fn a_gap_in_the_middle_leaves_the_mean_as_it_is() {
        let gap = |t: f64| match t {
            ..4.0 => t / 4.0,
            14.0..15.0 => 0.0,
            15.0..16.0 => 2.0,
            28.8.. => 0.0,
            _ => 1.0,
        };
        let share = share_of_link(&series(gap), POINT);
        assert!((share - 1.0).abs() < 0.01, "{share}");
    }

    #[test]
    fn a_rate_that_drops_for_good_is_seen() {
        let share = share_of_link(&series(|t| if t < 16.0 { 1.0 } else { 0.5 }), POINT);
        assert!(share < 0.6, "{share}");
    }

    #[test]
    fn a_link_that_is_filled_at_times_alone_is_not_filled() {
        let share = share_of_link(&series(|t| if t % 6.0 < 3.0 { 1.0 } else { 0.7 }), POINT);
        assert!((share - 0.85).abs() < 0.02, "{share}");
        let share = share_of_link(&series(|_| 0.9), POINT);
        assert!((share - 0.9).abs() < 0.001, "{share}");
    }
}
