//! Does the proxy's data path hold on every path? One download on the lab over each combination of the
//! receiver's link, its round trip and the proxy's buffer; the sender's link is short and loses nothing. A point
//! passes if no receive buffer overran, the sender met no retransmission timeout, and the goodput
//! reached what the link carries.

use anyhow::{Context as _, Result};
use lab::Lab;
use scenario::{Bytes, Engine, Outcome, Rate, ScenarioFile, Series, Span};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    path::PathBuf,
    process::ExitCode,
};

/// Tries the proxy's data path over rates, round trips and buffers: no receive buffer may overrun, no
/// sender on a lossless leg may meet a timeout, the link is to be filled. Exit code 1 if a point fails
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
    /// Results go here, a line of JSON a point; points that it has are not played again
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
}

/// A combination that is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct SweepPoint {
    rate_bps: u64,
    rtt_ns: u64,
    buffer_bytes: u64,
}

/// What one came to.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct SweepResult {
    point: SweepPoint,
    /// The machine kept up.
    valid: bool,
    /// Goodput over the last half of the time, over the most that the link can carry.
    share: f64,
    /// Times that a receive buffer on the proxy's host overran.
    overruns: u64,
    /// The sender's retransmission timeouts.
    timeouts: u64,
    /// The most that the proxy held.
    held_bytes: u64,
}

/// The near link's round trip: that of a short cable.
const NEAR_RTT: Span = Span(200_000);
/// A segment may pass the bound for a moment (docs/limitations.md).
const SEGMENT: u64 = 64 * 1024;
/// A machine that did not keep up is given another try so often.
const TRIES: usize = 3;

impl PathSweep {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let mut known = self.known()?;
        println!("{:>10} {:>8} {:>8} {:>8} {:>9} {:>9} {:>10}", "rate", "RTT", "buffer", "of link", "overruns", "timeouts", "held");
        let mut failed = 0;
        for point in self.points() {
            let came = match known.iter().position(|came| came.point == point) {
                Some(at) => known.swap_remove(at),
                None => self.play(point)?,
            };
            failed += usize::from(!came.passes());
            println!("{}", came.row());
        }
        println!("{failed} points fail");
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn points(&self) -> impl Iterator<Item = SweepPoint> + '_ {
        let of = |rate: &Rate, rtt: &Span, buffer: &Bytes| SweepPoint { rate_bps: rate.0, rtt_ns: rtt.0, buffer_bytes: buffer.0 };
        self.rates
            .iter()
            .flat_map(move |rate| self.rtts.iter().flat_map(move |rtt| self.buffers.iter().map(move |buffer| of(rate, rtt, buffer))))
    }

    fn known(&self) -> Result<Vec<SweepResult>> {
        let Some(path) = self.resume.as_ref().filter(|path| path.exists()) else { return Ok(Vec::new()) };
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        text.lines().map(|line| serde_json::from_str(line).with_context(|| format!("{}: {line:?}", path.display()))).collect()
    }

    fn play(&self, point: SweepPoint) -> Result<SweepResult> {
        let mut came = self.once(point)?;
        for _ in 1..TRIES {
            came = if came.valid { came } else { self.once(point)? };
        }
        if let Some(path) = &self.resume {
            let mut file = OpenOptions::new().create(true).append(true).open(path)?;
            writeln!(file, "{}", serde_json::to_string(&came)?)?;
        }
        Ok(came)
    }

    fn once(&self, point: SweepPoint) -> Result<SweepResult> {
        let text = self.scenario(point);
        let variant = ScenarioFile::parse(&text, "paths")?.variants(&[])?.remove(0);
        let outcome = Lab::default().run(&variant.scenario, 1, &())?;
        Ok(SweepResult::of(point, &outcome))
    }

    /// A download, so that the proxy has dialled the leg that fills its buffer: an accepted leg has its
    /// bound from its listener, a dialled one when it has become a stream.
    /// The near link is up to twenty times as fast as the far one, so that the proxy's buffer is full.
    fn scenario(&self, point: SweepPoint) -> String {
        let SweepPoint { rate_bps, rtt_ns, buffer_bytes } = point;
        let (near_bps, near_delay_ns, far_delay_ns) =
            ((20 * rate_bps).min(1_000_000_000).max(rate_bps + rate_bps / 4), NEAR_RTT.0 / 2, rtt_ns / 2);
        // Slow start takes about log2(BDP) round trips, slow links need time to average over their
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
            share: outcome.series.iter().find(|series| series.what == "goodput").map_or(0.0, late_mean) / payload_rate(point.rate_bps),
            overruns: outcome.proxy.as_ref().and_then(|proxy| proxy.receive_overruns).unwrap_or(0),
            timeouts: legs.first().and_then(|leg| leg.timeouts).unwrap_or(0),
            held_bytes: outcome.proxy.as_ref().map_or(0, |proxy| proxy.buffer_bytes.max as u64),
        }
    }

    /// Goodput cannot reach the link's where the near leg's window is less than what the near link
    /// holds; half of the receive buffer is a window, the rest is for the overhead of its packets.
    fn is_bound_by_buffer(&self) -> bool {
        let window = self.point.buffer_bytes as f64 / 4.0;
        let needed = self.point.rate_bps as f64 / 8.0 * (NEAR_RTT.secs() + 0.001);
        window < needed
    }

    fn passes(&self) -> bool {
        // What a machine does that did not keep up says nothing of the goodput.
        let is_filled = self.share >= 0.97 || self.is_bound_by_buffer() || !self.valid;
        self.overruns == 0 && self.timeouts == 0 && self.held_bytes <= self.point.buffer_bytes + SEGMENT && is_filled
    }

    fn row(&self) -> String {
        let SweepPoint { rate_bps, rtt_ns, buffer_bytes } = self.point;
        let note = match (self.passes(), self.valid) {
            (false, _) => "  FAILS",
            (true, false) => "  (the machine did not keep up)",
            (true, true) if self.share < 0.97 => "  (the buffer is less than the near leg needs)",
            (true, true) => "",
        };
        format!(
            "{:>10} {:>8} {:>8} {:>7.1}% {:>9} {:>9} {:>10}{note}",
            Rate(rate_bps).to_string(),
            Span(rtt_ns).to_string(),
            Bytes(buffer_bytes).to_string(),
            self.share * 100.0,
            self.overruns,
            self.timeouts,
            Bytes(self.held_bytes).to_string(),
        )
    }
}

/// Payload that a link of this rate carries in full packets: 1448 bytes of 1500 (RFC 7323 timestamps).
fn payload_rate(rate_bps: u64) -> f64 {
    rate_bps as f64 * 1448.0 / 1500.0
}

/// Mean over the last half of the time.
fn late_mean(series: &Series) -> f64 {
    let end = series.t.last().copied().unwrap_or(0.0);
    let late = series.t.iter().zip(&series.v).filter(|(t, _)| **t >= end / 2.0);
    let (sum, count) = late.fold((0.0, 0), |(sum, count), (_, value)| (sum + value, count + 1));
    if count == 0 { 0.0 } else { sum / f64::from(count) }
}
