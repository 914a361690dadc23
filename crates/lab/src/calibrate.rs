//! Measures what an emulated link delivers, independently of the emulator: with UDP packets between
//! two hosts and the kernel's receive timestamps.

use crate::{
    LabError, SeriesNetwork,
    network::NetworkOptions,
    probes::{ProbePlan, ProbedHosts, send_probes, trouble},
};
use scenario::{Loss, ScenarioFile};
use std::{io, time::Duration};
use units::{PKT, Rate, Span};

/// Configured and measured properties of an emulated link.
#[derive(Debug, Clone)]
pub struct Calibration {
    /// Configured rate.
    pub rate: Rate,
    /// Rate delivered under overload, in IP bits per second.
    pub delivered_rate_bps: f64,
    /// Rate sent during that measurement, in IP bits per second: 5 % above the configured rate,
    /// unless the machine is too slow.
    pub offered_rate_bps: f64,
    /// Lateness that the emulator reports for that time: 99th percentile, in seconds.
    pub late_p99_s: f64,
    /// Configured one-way delay.
    pub delay: Span,
    /// One-way delay of small packets on the idle link, minus their transmission time: median, in
    /// seconds.
    pub delivered_delay_s: f64,
    /// 99th percentile of that delay minus its median, in seconds.
    pub jitter_p99_s: f64,
    /// Packets sent to measure losses, below the link's rate.
    pub sent: u64,
    /// Packets of these that were lost.
    pub lost: u64,
    /// When lost packets were sent, in seconds.
    pub lost_at_s: Vec<f64>,
    /// Packets that the machine lost outside of the link. If there are any, the measurement is
    /// invalid.
    pub refused: u64,
}

/// Maximum duration of the measurements of rate and delay; longer ones are not more accurate.
const MAX_CLEAN_SPAN: Duration = Duration::from_secs(2);

/// Measures a link with this rate, one-way delay and loss process. Losses are measured for about
/// `span`; rate and delay for at most two seconds each.
///
/// # Errors
/// If hosts, devices or sockets cannot be made, or a packet cannot be sent.
pub fn calibrate(rate: Rate, delay: Span, loss: Option<Loss>, seed: u64, span: Duration) -> Result<Calibration, LabError> {
    let clean = build_link(rate, delay, None, seed)?;
    let clean_span = span.min(MAX_CLEAN_SPAN);
    // Idle link: 400 small packets, spaced so that they do not queue.
    let probe = ProbePlan { count: 400, ..ProbePlan::new(100, (clean_span / 400).max(Duration::from_micros(500))) };
    let idle = send_probes(ProbedHosts::of_series(&clean), probe)?;
    let transmission = rate.time_for(units::Bytes(100)).secs();
    let mut delays: Vec<f64> = idle.arrivals.iter().map(|arrival| arrival.delay_s() - transmission).collect();
    delays.sort_unstable_by(f64::total_cmp);
    let median = delays.get(delays.len() / 2).copied().unwrap_or(f64::NAN);
    let p99 = delays.get(delays.len() * 99 / 100).copied().unwrap_or(f64::NAN);
    // Overload: slightly more than the link can carry.
    let gap = rate.time_for(PKT).duration().mul_f64(0.95);
    let full = send_probes(
        ProbedHosts::of_series(&clean),
        ProbePlan { count: (clean_span.as_secs_f64() / gap.as_secs_f64()).max(100.0) as u64, ..ProbePlan::new(PKT.0, gap) },
    )?;
    let (mut refused, late_p99_s) = trouble(&clean.finish()?);
    let (mut sent, mut lost_at_s) = (0, Vec::new());
    if loss.is_some() {
        let lossy = build_link(rate, delay, loss, seed)?;
        let gap = rate.time_for(PKT).duration().mul_f64(1.5).max(Duration::from_micros(50));
        let lossy_run = send_probes(ProbedHosts::of_series(&lossy), ProbePlan::lasting(span, PKT.0, gap))?;
        sent = lossy_run.sent;
        refused += trouble(&lossy.finish()?).0;
        lost_at_s = lossy_run.lost().map(|number| number as f64 * gap.as_secs_f64()).collect();
    }
    Ok(Calibration {
        rate,
        delivered_rate_bps: full.rate_bps(),
        offered_rate_bps: full.offered_bps,
        late_p99_s,
        delay,
        delivered_delay_s: median,
        jitter_p99_s: p99 - median,
        sent,
        lost: lost_at_s.len() as u64,
        lost_at_s,
        refused,
    })
}

/// Builds a single link. Its queue never drops a packet: a sender that sleeps too long sends a
/// burst then, and what a short queue dropped of that would leave the link idle.
fn build_link(rate: Rate, delay: Span, loss: Option<Loss>, seed: u64) -> Result<SeriesNetwork, LabError> {
    let text = format!(
        "name = \"calibration\"\n[[link]]\nrate = \"{rate}\"\ndelay = \"{delay}\"\nqueue = \"100000pkt\"\n[[flow]]\nbytes = \"1B\"\n"
    );
    let file = ScenarioFile::parse(&text, "calibration")
        .and_then(|file| file.variants(&[]))
        .map_err(|why| LabError::System { what: "describe the link to calibrate", why: io::Error::other(why) })?;
    let mut scenario = file[0].scenario.clone();
    scenario.links[0].loss.forward = loss;
    SeriesNetwork::build(&scenario, seed, &NetworkOptions::default(), |_, _| {})
}
