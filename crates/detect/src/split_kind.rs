//! For a split connection: does the middlebox forward data while they arrive (Split-TCP), or hold
//! them until they are complete (TCP proxy)? See Wei et al. §III-A.

use crate::{
    clock_offset::{offset, round_trip, syn_late, way},
    endpoints::{EndpointPair, EndpointView},
    evidence::{Evidence, Indication, Method, Strength},
    text::{bytes, seconds},
};

/// Number of closures from which a window counts as alternating.
const ALTERNATES: u32 = 2;
/// A transfer must last this many of the sender's round trips, or the order of events is not
/// visible.
const ROUND_TRIPS: f64 = 3.0;

/// Compares the delay to the first byte with the time that the sender took to send (Wei et al.
/// §III-A: a TCP proxy receives everything, then forwards). `synchronised` is the tolerance of
/// synchronised clocks, s.
pub(crate) fn first_byte(ends: &EndpointPair<'_>, synchronised: Option<f64>) -> Option<Evidence> {
    let (sender, receiver) = (ends.sender(), ends.receiver());
    let offset = synchronised.map(|_| 0.0).or_else(|| offset(ends).filter(|offset| offset.sure).map(|offset| offset.seconds))?;
    if !receiver.anchored(0) {
        return None;
    }
    let by_sender = |at: i64| at - (offset * 1e9) as i64;
    let (sent, acked) = (&sender.half(0).sent, &sender.half(1).acked);
    let total = sender.half(0).length() as i64;
    let begun = sender.half(0).first_data?;
    let taken = sent.reached(total)?.at.max(acked.reached(total - 1).map_or(i64::MIN, |done| done.at));
    let came = by_sender(receiver.half(0).first_data?);
    // A middlebox that connects to the server while data arrive cannot forward any before the
    // server answers.
    let amidst = |asked: i64| ((by_sender(asked) - begun) as f64) < 0.5 * (taken - begun) as f64;
    let from = opened(receiver).filter(|(asked, _)| amidst(*asked)).map_or(begun, |(_, ready)| by_sender(ready).max(begun));
    let (took, waited) = ((taken - from) as f64 / 1e9, (came - from) as f64 / 1e9);
    let way = way(ends);
    let short = ROUND_TRIPS * round_trip(sender, 0).unwrap_or(0.0).max(way);
    let text = format!(
        "the first byte arrived {} after it was sent{}, of which about {} is the transit time; by then {} of {} bytes were sent, which took {}",
        seconds(waited),
        if from > begun { " and could be forwarded" } else { "" },
        seconds(way),
        // Includes data in flight.
        bytes(sent.by(came) as f64),
        bytes(total as f64),
        seconds(took)
    );
    let of = |says, strength| Some(Evidence::new(Method::FirstByte, says, strength, (waited, "s"), text.clone()));
    // The error of an inferred offset is less than a round trip. If the offset is known, a full
    // segment takes less than twice as long as the small ones by which it was measured.
    let unsure = synchronised.map_or(2.0 * way, |within| way + within);
    if took >= 0.01 && waited - way >= unsure.max(0.8 * took) {
        of(Indication::TcpProxy, Strength::Moderate)
    } else if took >= short.max(0.01) && waited - way <= 0.5 * took && sent.by(came) < total && sender.anchored(0) {
        // A sender's trace that begins late would shorten both times.
        of(Indication::SplitTcp, Strength::Moderate)
    } else {
        of(Indication::Nothing, Strength::Weak)
    }
}

/// When the client's SYN of stream 0 arrived at the receiver, and when its handshake was complete,
/// ns by the receiver's clock.
fn opened(receiver: &EndpointView<'_>) -> Option<(i64, i64)> {
    let asked = receiver.half(0).syn.as_deref()?.at;
    let ready = receiver.half(0).acked.steps().first().filter(|step| step.reach == 0)?.at;
    (receiver.client() == Some(0) && ready >= asked).then_some((asked, ready))
}

/// For an upload: whether the middlebox connected to the receiver only when it had most of the
/// data. Compares the SYN with the data, so that no clock offset is needed.
pub(crate) fn late_call(ends: &EndpointPair<'_>) -> Option<Evidence> {
    let (late, data) = (syn_late(ends, 0)?, ends.data(0)?);
    let fastest = data
        .iter()
        .filter(|transit| transit.place > 0 && transit.plain.is_some())
        .min_by(|a, b| a.plain.partial_cmp(&b.plain).unwrap_or(std::cmp::Ordering::Equal))?;
    let begun = ends.sender().half(0).first_data?;
    // When the fastest byte was sent, by the sender's clock.
    let sent = (fastest.arrived - begun) as f64 / 1e9 - fastest.plain?;
    let short = ROUND_TRIPS * round_trip(ends.sender(), 0).unwrap_or(0.0).max(way(ends));
    // A middlebox that connects on the first data byte is late by one or two round trips.
    if sent < short.max(0.01) || late < 0.5 * sent {
        return None;
    }
    let text = format!(
        "the SYN took {} longer than byte {}, sent {} after the first: the middlebox connected to the receiver only after that much had been sent",
        seconds(late),
        bytes(fastest.place as f64),
        seconds(sent)
    );
    Some(Evidence::new(Method::FirstByte, Indication::TcpProxy, Strength::Moderate, (late, "s"), text))
}

/// The window advertised to the sender: behind a splitter it closes and opens, behind a TCP proxy
/// it stays open.
pub(crate) fn window(sender: &EndpointView<'_>, receiver: Option<&EndpointView<'_>>) -> Option<Evidence> {
    let windows = sender.half(1).windows;
    let half = sender.half(0);
    if windows.count < 10 || half.length() < 10_000 {
        return None;
    }
    let number = (f64::from(windows.shuts), "times shut");
    let said =
        format!("the window advertised to the sender was between {} and {} bytes", bytes(windows.least as f64), bytes(windows.most as f64));
    if windows.shuts >= ALTERNATES {
        let text = format!("{said}, and closed {} times (behind a slow reader it does that too)", windows.shuts);
        return Some(Evidence::new(Method::Window, Indication::SplitTcp, Strength::Weak, number, text));
    }
    let span = |view: &EndpointView<'_>| Some((view.half(0).last_data? - view.half(0).first_data?) as f64 / 1e9);
    let (took, got) = (span(sender)?, receiver.and_then(span));
    let open = windows.shuts == 0 && windows.least * 2 >= windows.most;
    let (says, text) = match got {
        Some(got) if open && got > 3.0 * took => {
            (Indication::TcpProxy, format!("{said}: it stayed open, while sending took {} and receiving {}", seconds(took), seconds(got)))
        }
        _ => (Indication::Nothing, format!("{said}, and closed {} times", windows.shuts)),
    };
    Some(Evidence::new(Method::Window, says, Strength::Weak, number, text))
}
