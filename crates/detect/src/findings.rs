//! Collects all evidence about each connection and derives a finding from it.

use crate::{
    ack_timing::{self, ClockEstimate, TraceConditions},
    behaviour::{self, ConnectionBehaviour},
    capture_file::CaptureFile,
    clock_offset,
    endpoints::{EndpointPair, EndpointView},
    evidence::{Evidence, Indication, Method, Strength},
    packet_comparison,
    pairing::{self, ConnectionMatch, ContentIndex, MatchedBy},
    split_kind,
    text::{bytes, seconds},
    verdict::{SplitVerdict, weigh},
};
use serde::Serialize;
use std::{collections::BTreeSet, net::SocketAddr};

/// The result for one connection.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConnectionFinding {
    /// Address of the side that sends most data, then its peer's, as the sender's trace shows them.
    pub sender: Option<[SocketAddr; 2]>,
    /// The same addresses as the receiver's trace shows them.
    pub receiver: Option<[SocketAddr; 2]>,
    /// The receiver's trace that has it, if several were given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receiver_trace: Option<String>,
    /// How the connection of one trace was matched with that of the other.
    pub matched_by: Option<MatchedBy>,
    /// Payload bytes of both directions, without retransmissions.
    pub bytes: u64,
    /// The verdict.
    pub verdict: SplitVerdict,
    /// Why the verdict was reached.
    pub reason: String,
    /// All evidence, the strongest first. Neutral observations come last.
    pub evidence: Vec<Evidence>,
    /// Bounds on the clocks. `None` if the connection is split or nothing bounds them.
    pub clocks: Option<ClockEstimate>,
    /// How the connection behaved.
    pub character: ConnectionBehaviour,
}

/// Options of [`findings`].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct FindingOptions {
    /// What is known about how the traces were taken.
    pub known: TraceConditions,
    /// Whether to include series over time.
    pub series: bool,
}

/// A connection that the sender's trace and the receiver's trace of this number contain.
#[derive(Debug, Clone, Copy)]
struct PairedAt {
    receiver: usize,
    pair: ConnectionMatch,
}

/// Judges every connection, the largest first. Among equally large ones, those seen at both ends
/// come first. Each of `receivers` is the trace of another host; their clocks may differ.
pub fn findings<'a>(
    sender: Option<&CaptureFile>,
    receivers: impl IntoIterator<Item = &'a CaptureFile>,
    asked: &FindingOptions,
) -> Vec<ConnectionFinding> {
    let receivers: Vec<&CaptureFile> = receivers.into_iter().collect();
    let paired = sender.map_or_else(Vec::new, |one| pairs_of_all(one, &receivers));
    let mut found = Vec::new();
    for (number, two) in receivers.iter().enumerate() {
        let pairs: Vec<ConnectionMatch> = paired.iter().filter(|at| at.receiver == number).map(|at| at.pair).collect();
        let mut here = sender.map_or_else(Vec::new, |one| pairs.iter().map(|pair| both(one, two, pair, asked)).collect());
        here.extend(only_at_receiver(two, sender, &pairs, asked));
        if receivers.len() > 1 {
            let trace = two.path().to_string_lossy();
            here.iter_mut().for_each(|finding| finding.receiver_trace = Some(trace.clone().into_owned()));
        }
        found.extend(here);
    }
    if let Some(one) = sender {
        let known: BTreeSet<usize> = paired.iter().map(|at| at.pair.one).collect();
        let alone = one.flows.iter().enumerate().filter(|(index, _)| !known.contains(index));
        found.extend(alone.map(|(_, flow)| single(0, EndpointView { flow, sender: flow.sender() }, (one, &receivers), None, asked)));
    }
    let is_alone = |finding: &ConnectionFinding| finding.sender.is_none() || finding.receiver.is_none();
    found.sort_by_key(|finding| (std::cmp::Reverse(finding.bytes), is_alone(finding), finding.sender, finding.receiver));
    found
}

/// Matches the sender's connections with those of all receivers. One that several receivers could
/// have belongs to the one with the surest match, or the first of these.
fn pairs_of_all(one: &CaptureFile, receivers: &[&CaptureFile]) -> Vec<PairedAt> {
    let at = |(receiver, two)| pairing::pairs(one, two).into_iter().map(move |pair| PairedAt { receiver, pair });
    let mut paired: Vec<PairedAt> = receivers.iter().copied().enumerate().flat_map(at).collect();
    // The sort keeps the order of equally sure ones.
    paired.sort_by_key(|at| at.pair.by);
    let mut taken = BTreeSet::new();
    paired.retain(|at| taken.insert(at.pair.one));
    paired
}

/// Judges the connections that a receiver's trace has and the sender's has not.
fn only_at_receiver<'a>(
    two: &'a CaptureFile,
    sender: Option<&'a CaptureFile>,
    pairs: &[ConnectionMatch],
    asked: &'a FindingOptions,
) -> impl Iterator<Item = ConnectionFinding> {
    // Time up to which the sender's trace is complete, by the receiver's clock. If the client opens
    // the connection, the offset includes the transit of its SYN, so that a connection that began
    // before this time would be in the sender's trace.
    let until = sender.and_then(|one| {
        let apart = asked.known.synchronised_s.map(|_| 0).or_else(|| pairing::offset(&one.flows, &two.flows, pairs));
        Some(one.complete_until()? + apart?)
    });
    let known: BTreeSet<usize> = pairs.iter().map(|pair| pair.two).collect();
    let contents = ContentIndex::new(&two.flows, &known);
    let others: Vec<&CaptureFile> = sender.into_iter().collect();
    two.flows.iter().enumerate().filter(move |(index, _)| !known.contains(index)).map(move |(index, flow)| {
        let again = from_cache(&contents, index, until.is_some_and(|until| flow.first < until));
        single(1, EndpointView { flow, sender: flow.sender() }, (two, &others), again, asked)
    })
}

/// Content hashes that a repeated transfer must share.
const SAME_CONTENT: usize = 16;

/// Judges a connection that both traces contain.
fn both(one: &CaptureFile, two: &CaptureFile, pair: &ConnectionMatch, asked: &FindingOptions) -> ConnectionFinding {
    let (here, there) = (&one.flows[pair.one], &two.flows[pair.two]);
    // Stream 0 is the direction that carried more. It belongs to the end that sent it, whichever
    // trace was named the sender's.
    let side = if here.bytes() >= there.bytes() { here.sender() } else { there.sender() ^ usize::from(pair.crossed) };
    let (here, there) = (EndpointView { flow: here, sender: side }, EndpointView { flow: there, sender: side ^ usize::from(pair.crossed) });
    // A receiver that delays its ACKs cannot be told from a sender that waits for them.
    let delays = asked.known.ack_delay_s.is_some();
    let swapped =
        matches!((here.at(), there.at()), (Some(1), Some(0) | None)) || (!delays && matches!((here.at(), there.at()), (None, Some(0))));
    let ends = EndpointPair::new(if swapped { [there, here] } else { [here, there] });
    let (mut evidence, mut clocks) = (Vec::new(), None);
    let timed = one.is_timed() && two.is_timed();
    for stream in [0, 1].into_iter().filter(|_| timed) {
        if let Some(within) = asked.known.synchronised_s {
            evidence.extend(ack_timing::synchronised(&ends, stream, within));
        }
        if let Some((found, known)) = ack_timing::fixed_offset(&ends, stream) {
            clocks = clocks.or(known);
            evidence.push(found);
        }
        evidence.extend(ack_timing::delays_seen(&ends, stream));
    }
    if timed {
        evidence.extend(asked.known.ack_delay_s.and_then(|delay| ack_timing::delayed_acks(ends.sender(), delay)));
        evidence.extend(packet_comparison::handshake(ends.sender(), "sender"));
        evidence.extend(packet_comparison::handshake(ends.receiver(), "receiver"));
        evidence.extend(split_kind::first_byte(&ends, asked.known.synchronised_s));
        evidence.extend(split_kind::late_call(&ends));
    }
    evidence.extend(packet_comparison::acknowledgements(&ends));
    evidence.extend(packet_comparison::isn(&ends));
    evidence.extend(packet_comparison::options(&ends));
    evidence.extend(packet_comparison::timestamp_clock(&ends));
    evidence.extend(packet_comparison::ttl(&ends));
    evidence.extend(packet_comparison::ip_ids(&ends));
    evidence.extend(packet_comparison::segments(&ends));
    evidence.extend(packet_comparison::addresses(&ends));
    evidence.extend(packet_comparison::payload(&ends));
    evidence.extend(split_kind::window(ends.sender(), Some(ends.receiver())));
    let (verdict, mut reason) = weigh(&mut evidence);
    if verdict == SplitVerdict::EndToEnd {
        evidence.retain(|piece| {
            !matches!(piece.says, Indication::SplitTcp) && (piece.method != Method::Window || piece.says != Indication::TcpProxy)
        });
    }
    if swapped {
        reason += "; the traces were given the other way round: the one given as the receiver's was taken at the sender";
    }
    // If the connection is end to end, every packet bounds the offset. If it is split, only packets
    // that travel end to end do.
    let clocks = clocks.filter(|_| verdict != SplitVerdict::SplitTcp && verdict != SplitVerdict::TcpProxy);
    // Synchronised clocks have an offset of zero.
    let known = asked.known.synchronised_s.map(|_| 0.0);
    let offset = known.or(clocks.map(|clocks| clocks.offset_s)).or_else(|| clock_offset::offset(&ends).map(|offset| offset.seconds));
    let mut character = behaviour::character(Some(ends.sender()), Some(ends.receiver()), Some((&ends, offset)), asked.series);
    if !timed {
        character.remove_times();
    }
    ConnectionFinding {
        sender: Some(pairing::names(ends.sender().flow, ends.sender().sender)),
        receiver: Some(pairing::names(ends.receiver().flow, ends.receiver().sender)),
        receiver_trace: None,
        matched_by: Some(pair.by),
        bytes: ends.sender().flow.bytes().max(ends.receiver().flow.bytes()),
        verdict,
        reason,
        evidence,
        clocks,
        character,
    }
}

/// Evidence for a cache: a connection that only the receiver's trace contains brought the same
/// content as earlier ones. It proves that the sender was not asked only if the sender's trace
/// `ran_on` past the start of the connection and is complete.
fn from_cache(contents: &ContentIndex<'_>, index: usize, ran_on: bool) -> Option<Evidence> {
    let times = contents.before(index, SAME_CONTENT);
    let (strength, why) = if ran_on {
        (Strength::Strong, "lacks this one, though it ran on")
    } else {
        (Strength::Moderate, "lacks this one, and may have ended before or be incomplete")
    };
    let text = format!("the same content came from that server in {times} earlier connections, and the sender's trace {why}");
    (times > 0).then(|| Evidence::new(Method::Cache, Indication::TcpProxy, strength, (times as f64, "times"), text))
}

/// Judges a connection that one trace contains. `end` is 0 for the sender's trace, 1 for the
/// receiver's. `again` is the evidence from its content.
fn single(
    end: usize,
    view: EndpointView<'_>,
    (own, others): (&CaptureFile, &[&CaptureFile]),
    again: Option<Evidence>,
    asked: &FindingOptions,
) -> ConnectionFinding {
    let mut evidence = Vec::new();
    let timed = own.is_timed() && others.iter().all(|other| other.is_timed());
    let at_sender = view.at().map_or(end == 0, |stream| stream == 0);
    if at_sender && timed {
        evidence.extend(asked.known.ack_delay_s.and_then(|delay| ack_timing::delayed_acks(&view, delay)));
    }
    if at_sender {
        evidence.extend(split_kind::window(&view, None));
    }
    if timed {
        evidence.extend(packet_comparison::handshake(&view, ["sender", "receiver"][end]));
    }
    if timed {
        evidence.extend(others.iter().find_map(|other| tunnelled(&view, other)));
    }
    evidence.extend(again);
    let (verdict, mut reason) = weigh(&mut evidence);
    if verdict == SplitVerdict::CannotTell {
        reason += match others.len() {
            1 => "; the other trace does not have this connection",
            2.. => "; no other trace has this connection",
            0 => "; one end alone shows little: give the traces of both ends, or delay the receiver's ACKs and give --ack-delay",
        };
    }
    let names = Some(pairing::names(view.flow, view.sender));
    let (sender, receiver) = if end == 0 { (names, None) } else { (None, names) };
    let (as_sender, as_receiver) = if at_sender { (Some(&view), None) } else { (None, Some(&view)) };
    let mut character = behaviour::character(as_sender, as_receiver, None, asked.series);
    if !timed {
        character.remove_times();
    }
    ConnectionFinding {
        sender,
        receiver,
        receiver_trace: None,
        matched_by: None,
        bytes: view.flow.bytes(),
        verdict,
        reason,
        evidence,
        clocks: None,
        character,
    }
}

/// Looks for a UDP stream in the other trace that carries about as much as this connection does
/// here. One operator in Wei et al. tunnelled over UDP.
fn tunnelled(view: &EndpointView<'_>, other: &CaptureFile) -> Option<Evidence> {
    let (length, took) = (view.half(0).bytes, view.flow.last - view.flow.first);
    if length < 100_000 {
        return None;
    }
    let fits = |bytes: u64, span: i64| (length..length + length / 4).contains(&bytes) && (span - took).abs() <= took / 5 + 1_000_000_000;
    let ((from, to), stream) = other.datagrams.iter().find(|(_, stream)| fits(stream.bytes, stream.last - stream.first))?;
    let text = format!(
        "the other trace has datagrams instead, from {from} to {to}: {} bytes in {} (a tunnel looks the same)",
        bytes(stream.bytes as f64),
        seconds((stream.last - stream.first) as f64 / 1e9)
    );
    Some(Evidence::new(Method::Transport, Indication::Split, Strength::Moderate, (stream.bytes as f64, "B"), text))
}
