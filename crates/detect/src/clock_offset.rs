//! Offset between the clocks of two captures of a connection that may be split. Only packets that
//! travel end to end even then are used.

use crate::{
    clock_fit::TIMESTAMP_JITTER_S,
    endpoints::{EndpointPair, EndpointView},
};

/// How far the receiver's clock is ahead of the sender's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct InferredOffset {
    /// The offset, s.
    pub(crate) seconds: f64,
    /// Whether it rests on a packet that no middlebox can have held back.
    pub(crate) sure: bool,
}

/// Infers the offset from data and the client's SYN. The handshake of the server's stream may be a
/// splitter's own.
pub(crate) fn offset(ends: &EndpointPair<'_>) -> Option<InferredOffset> {
    let client = ends.sender().client();
    let least = |stream: usize| {
        let all = ends.data(stream)?;
        let real = all.iter().filter(|transit| transit.place > 0 || client == Some(stream));
        real.filter_map(|transit| transit.plain).min_by(f64::total_cmp)
    };
    let way = way(ends);
    let sure = |seconds: f64| Some(InferredOffset { seconds, sure: true });
    match (least(0), least(1)) {
        // When the two bounds are far apart, data in one direction were held back. In an upload,
        // data and the client's SYN can be held back, the server's response cannot. In a download,
        // the client's SYN cannot.
        (Some(out), Some(back)) if out + back > 3.0 * way.max(TIMESTAMP_JITTER_S) => match client {
            Some(_) => Some(InferredOffset { seconds: way - back, sure: client == Some(0) || called_at_once(ends, way) }),
            None => Some(InferredOffset { seconds: (out - back) / 2.0, sure: false }),
        },
        (Some(out), Some(back)) => sure((out - back) / 2.0),
        (Some(out), None) => Some(InferredOffset {
            seconds: out - way,
            sure: syn_late(ends, 0).is_some_and(|late| late <= 3.0 * way.max(TIMESTAMP_JITTER_S)),
        }),
        (None, Some(back)) => Some(InferredOffset { seconds: way - back, sure: client == Some(1) && called_at_once(ends, way) }),
        (None, None) => None,
    }
}

/// For a download: whether the SYN that reached the sender cannot have waited for the client's
/// request. That is so if there was no request, if it followed the client's SYN at once, or if it
/// was itself recorded at both ends.
fn called_at_once(ends: &EndpointPair<'_>, way: f64) -> bool {
    let asks = ends.receiver().half(1);
    let early = match (asks.syn.as_deref(), asks.first_data) {
        (Some(_), None) => true,
        (Some(syn), Some(request)) => (request - syn.at) as f64 / 1e9 <= 3.0 * way.max(TIMESTAMP_JITTER_S),
        (None, _) => false,
    };
    early || ends.data(1).is_some_and(|all| all.iter().any(|transit| transit.place > 0 && transit.plain.is_some()))
}

/// Transit time of the SYN minus that of the fastest data byte, s. A middlebox that connects only
/// when it has the data delays its SYN.
pub(crate) fn syn_late(ends: &EndpointPair<'_>, stream: usize) -> Option<f64> {
    let all = ends.data(stream).filter(|_| ends.sender().client() == Some(stream))?;
    let syn = all.iter().find(|transit| transit.place == 0)?.plain?;
    let data = all.iter().filter(|transit| transit.place > 0).filter_map(|transit| transit.plain).min_by(f64::total_cmp)?;
    Some(syn - data)
}

/// Half the sum of both ends' shortest round trips, s. That is about the one-way delay over two
/// legs, and more than the one-way delay over a single one.
pub(crate) fn way(ends: &EndpointPair<'_>) -> f64 {
    (0..2).filter_map(|end| round_trip(&ends.ends[end], end)).sum::<f64>() / 2.0
}

/// Shortest round trip that this end saw, s. It sends stream `end`.
pub(crate) fn round_trip(view: &EndpointView<'_>, end: usize) -> Option<f64> {
    // The server waits for the handshake's third packet. The time until its SYN-ACK is its own.
    let shaken = view.handshake().map(|(there, back)| if view.client() == Some(end) { there } else { back });
    view.answers_recorded(end).into_iter().chain(shaken).min().map(|least| least as f64 / 1e9)
}
