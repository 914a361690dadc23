//! The text of a flow record.

use crate::measure::{FlowId, ProfileNumbers};
use intercept::sys::TcpInfo;
use relay::{DirectionStats, FlowRecord, MultipathView, PhaseTimes, ProfileId, UNKNOWN_ADDRESS};
use serde::Serialize;
use std::{net::SocketAddr, time::Duration};
use units::Phase;

/// A flow that has ended.
#[derive(Serialize)]
struct RecordLine<'a> {
    time: &'a str,
    flow: String,
    client: SocketAddr,
    /// Absent: the client never named it.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<SocketAddr>,
    seconds: f64,
    /// One of the kinds in the metrics.
    ending: &'static str,
    /// The same in words.
    why: String,
    up: DirectionLine,
    down: DirectionLine,
    near: LegLine<'a>,
    far: LegLine<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bond: Option<&'a MultipathView>,
}

#[derive(Serialize)]
struct DirectionLine {
    bytes: u64,
    /// Absent, with what follows: the flow was too short to be sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    free_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    starvation_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backpressure_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    most_held_bytes: Option<u64>,
    /// The last B, if it followed the flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    buffer_bytes: Option<u64>,
}

#[derive(Serialize)]
struct LegLine<'a> {
    profile: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    handshake_s: Option<f64>,
    rtt_s: f64,
    /// Absent: never measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    min_rtt_s: Option<f64>,
    sent_bytes: u64,
    retransmitted_bytes: u64,
    retransmits: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeouts: Option<u16>,
    /// Time with data that was not acknowledged.
    busy_s: f64,
    /// The part of it in which the receiver's window was the limit.
    window_limited_s: f64,
    /// The part of it in which the send buffer was the limit.
    buffer_limited_s: f64,
    cwnd_pkt: u32,
    mss_bytes: u32,
}

impl DirectionLine {
    fn of(direction: &DirectionStats, phases: &PhaseTimes, most_held: u64) -> Self {
        let sampled = phases.total() > Duration::ZERO;
        let time = |phase| sampled.then(|| phases.of(phase).as_secs_f64());
        DirectionLine {
            bytes: direction.moved,
            free_s: time(Phase::Free),
            starvation_s: time(Phase::Starvation),
            backpressure_s: time(Phase::Backpressure),
            most_held_bytes: sampled.then_some(most_held),
            buffer_bytes: direction.buffer,
        }
    }
}

impl<'a> LegLine<'a> {
    fn of(info: &TcpInfo, handshake: Option<Duration>, profile: &'a str) -> Self {
        let seconds = |us: u64| us as f64 / 1e6;
        LegLine {
            profile,
            handshake_s: handshake.map(|time| time.as_secs_f64()),
            rtt_s: seconds(info.rtt_us.into()),
            // The kernel's value before the first sample is all ones.
            min_rtt_s: (info.min_rtt_us != u32::MAX && info.min_rtt_us > 0).then(|| seconds(info.min_rtt_us.into())),
            sent_bytes: info.bytes_sent,
            retransmitted_bytes: info.bytes_retrans,
            retransmits: info.total_retrans,
            timeouts: info.timeouts(),
            busy_s: seconds(info.busy_time_us),
            window_limited_s: seconds(info.rwnd_limited_us),
            buffer_limited_s: seconds(info.sndbuf_limited_us),
            cwnd_pkt: info.snd_cwnd,
            mss_bytes: info.snd_mss,
        }
    }
}

/// Appends the line of a flow.
pub(crate) fn append(lines: &mut Vec<u8>, time: &str, flow: FlowId, record: &FlowRecord, profiles: &ProfileNumbers) {
    let last = &record.last;
    let measured = &last.measured;
    let name = |profile: ProfileId| profiles.name(profile);
    let line = RecordLine {
        time,
        flow: flow.to_string(),
        client: last.client,
        server: (last.server != UNKNOWN_ADDRESS).then_some(last.server),
        seconds: last.age.as_secs_f64(),
        ending: record.ending.kind(),
        why: record.ending.to_string(),
        up: DirectionLine::of(&last.up, &measured.phases[0], measured.most_held[0]),
        down: DirectionLine::of(&last.down, &measured.phases[1], measured.most_held[1]),
        near: LegLine::of(&last.near, measured.handshakes[0], name(measured.profiles[0])),
        far: LegLine::of(&last.far, measured.handshakes[1], name(measured.profiles[1])),
        bond: last.multipath.as_ref(),
    };
    // Fails for no value of these types; half a line would spoil the next one.
    let before = lines.len();
    if serde_json::to_writer(&mut *lines, &line).is_err() {
        lines.truncate(before);
        return;
    }
    lines.push(b'\n');
}
