//! Offset.

use crate::{
    clock_fit::TIMESTAMP_JITTER_S,
    endpoints::{EndpointPair, EndpointView},
};

/// How much later the receiver's clock is, as far as what does travel end to end tells even when the connection is split.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct InferredOffset {
    /// s.
    pub(crate) seconds: f64,
    /// Whether something was seen that cannot have been held.
    pub(crate) sure: bool,
}

/// The clocks' offset by data and the client's SYN; of the server's stream the handshake may be a splitter's own.
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
        // Where the two bounds are far apart, something was held. Of an upload, it and the client's SYN can be, and what comes back of the server's is not;
        // of a download, the client's SYN is not.
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

/// Of a download: whether the SYN that came to the sender can't have waited for the client's request: there was none, or it followed the client's SYN
/// at once, or it was itself seen at both ends.
fn called_at_once(ends: &EndpointPair<'_>, way: f64) -> bool {
    let asks = ends.receiver().half(1);
    let early = match (asks.syn.as_deref(), asks.first_data) {
        (Some(_), None) => true,
        (Some(syn), Some(request)) => (request - syn.at) as f64 / 1e9 <= 3.0 * way.max(TIMESTAMP_JITTER_S),
        (None, _) => false,
    };
    early || ends.data(1).is_some_and(|all| all.iter().any(|transit| transit.place > 0 && transit.plain.is_some()))
}

/// How much longer the SYN of a stream took than the fastest of its data, s: what connects only when it has the data holds its SYN back.
pub(crate) fn syn_late(ends: &EndpointPair<'_>, stream: usize) -> Option<f64> {
    let all = ends.data(stream).filter(|_| ends.sender().client() == Some(stream))?;
    let syn = all.iter().find(|transit| transit.place == 0)?.plain?;
    let data = all.iter().filter(|transit| transit.place > 0).filter_map(|transit| transit.plain).min_by(f64::total_cmp)?;
    Some(syn - data)
}

/// Half of both ends' least round trips together, s: about the way from one to the other over two legs, and more than it over one.
pub(crate) fn way(ends: &EndpointPair<'_>) -> f64 {
    (0..2).filter_map(|end| round_trip(&ends.ends[end], end)).sum::<f64>() / 2.0
}

/// The least time in which the network answered this end, which sends stream `end`.
pub(crate) fn round_trip(view: &EndpointView<'_>, end: usize) -> Option<f64> {
    // Who was called waits for the handshake's third part; what it took to answer is its own.
    let shaken = view.handshake().map(|(there, back)| if view.client() == Some(end) { there } else { back });
    view.answers_recorded(end).into_iter().chain(shaken).min().map(|least| least as f64 / 1e9)
}
