//! Evidence from comparing packets at both ends: what arrives unchanged, and what a middlebox has
//! made anew.

use crate::{
    endpoints::{EndpointPair, EndpointView},
    evidence::{Evidence, Indication, Method, Strength},
    sketch::{Overlap, Sketch},
    text::{bytes, seconds},
    traced_connection::{SynSegment, TimestampSpan, TracedStream},
};

/// Number of items to compare before their overlap counts. With fewer, only an empty overlap
/// counts.
const ENOUGH: usize = 8;
const FEW: usize = 4;
/// Upper bound on the size of a header that a proxy adds, bytes.
const HEADERS: u64 = 4096;
/// Overlap above which two sets count as equal, since a capture may have missed a few items.
const MOSTLY: f64 = 0.9;

/// Selects one of the sketches in which ACKs are kept.
type AckSketch = fn(&TracedStream) -> &Sketch;

/// Whether the pure ACKs that arrived are the ones that were sent, in both directions.
pub(crate) fn acknowledgements(ends: &EndpointPair<'_>) -> Option<Evidence> {
    // NAT changes none of these fields. A firewall may change sequence numbers or IP IDs, some
    // devices change timestamps. Each sketch needs something of the stream being acknowledged:
    // equal sequence numbers, or a common origin.
    type Comparable = fn(&EndpointPair<'_>, usize) -> bool;
    let kinds: [(AckSketch, Comparable); 3] = [
        (|half| &half.as_sent, keeps_numbers),
        (|half| &half.by_clock, |_, _| true),
        (|half| &half.by_number, |ends, of| ends.shift(of) == Some(0)),
    ];
    let compare = |sketch: AckSketch, comparable: Comparable| {
        let mut total = Overlap { same: 0, of: 0 };
        for from in [0, 1] {
            if !comparable(ends, 1 - from) || !overlaps(ends, from) {
                continue;
            }
            let (there, here) = (sketch(ends.ends[1 - from].half(from)), sketch(ends.ends[from].half(from)));
            let part = there.within(here);
            total = Overlap { same: total.same + part.same, of: total.of + part.of };
        }
        total
    };
    let mut best: Option<Overlap> = None;
    for (sketch, comparable) in kinds {
        let total = compare(sketch, comparable);
        if total.of >= FEW && best.is_none_or(|best| total.share() > best.share()) {
            best = Some(total);
        }
    }
    let best = best?;
    let number = (best.share(), "share");
    let text = |what: &str| format!("of {} arrived ACKs that were compared, {} were sent by the other end: {what}", best.of, best.same);
    let of = |says, strength, what| Some(Evidence::new(Method::Acknowledgements, says, strength, number, text(what)));
    let comparable = [0, 1].iter().all(|stream| ends.shift(*stream).is_some());
    // Without timestamps only the IP IDs distinguish ACKs, and an address translator may assign new
    // ones (RFC 7915 §4.1). If sequence numbers and windows still agree, the result is neutral.
    let is_stamped = |stream| ends.ends.iter().all(|view| view.half(stream).clock.is_some());
    let bare = compare(|half| &half.bare, keeps_numbers);
    if best.share() < MOSTLY && bare.of >= FEW && bare.share() >= MOSTLY && !(is_stamped(0) && is_stamped(1)) {
        return of(Indication::Nothing, Strength::Weak, "their IP IDs differ, their sequence numbers and windows agree");
    }
    // One item in twenty may agree by chance.
    if best.of < ENOUGH {
        // A capture is unlikely to miss exactly those few, unless it covers another part of the
        // connection.
        let says = if best.same == 0 && comparable { Indication::Split } else { Indication::Nothing };
        let what = if best.same == 0 { "a middlebox may send its own" } else { "too few to be sure" };
        of(says, Strength::Moderate, what)
    } else if best.same * 20 <= best.of {
        of(Indication::Split, Strength::Strong, "a middlebox sends its own")
    } else if best.share() >= MOSTLY {
        of(Indication::EndToEnd, Strength::Strong, "they passed unchanged")
    } else if best.same >= 3 && best.share() >= 0.3 {
        of(Indication::EndToEnd, Strength::Moderate, "some passed unchanged; a capture may have missed the others")
    } else {
        of(Indication::Nothing, Strength::Weak, "too few to be sure")
    }
}

/// Whether a position of a stream has the same sequence number at both ends.
fn keeps_numbers(ends: &EndpointPair<'_>, stream: usize) -> bool {
    let base = |view: &EndpointView<'_>| view.half(stream).base();
    let (Some(here), Some(there), Some(shift)) = (base(ends.sender()), base(ends.receiver()), ends.shift(stream)) else { return false };
    here.wrapping_add(shift as u32) == there
}

/// Whether both captures contain ACKs of `from` for the same part of the other stream. A capture
/// that began late may not.
fn overlaps(ends: &EndpointPair<'_>, from: usize) -> bool {
    let shift = ends.shift(1 - from);
    let span = |end: usize| {
        let steps = ends.ends[end].half(from).acked.steps();
        Some((steps.first()?.reach, steps.last()?.reach))
    };
    let (Some(here), Some(there)) = (span(0), span(1)) else { return false };
    // Without a common origin, assume that they do.
    let there = (there.0 + shift.unwrap_or(0), there.1 + shift.unwrap_or(0));
    let common = here.1.min(there.1) - here.0.max(there.0);
    shift.is_none() || common * 10 >= (here.1 - here.0).max(there.1 - there.0) * 3
}

fn syns<'a>(ends: &EndpointPair<'a>, stream: usize) -> Option<(&'a SynSegment, &'a SynSegment)> {
    let at = |view: &EndpointView<'a>| view.half(stream).syn.as_deref();
    Some((at(ends.sender())?, at(ends.receiver())?))
}

const SIDE: [&str; 2] = ["sender", "receiver"];

/// Compares initial sequence numbers, or those of the FINs where a SYN is missing at one end.
pub(crate) fn isn(ends: &EndpointPair<'_>) -> Option<Evidence> {
    let last = |view: &EndpointView<'_>, stream: usize| {
        let half = view.half(stream);
        Some(half.base()?.wrapping_add(half.end? as u32))
    };
    let apart = |stream: usize| match syns(ends, stream) {
        Some((one, two)) => Some((two.isn.wrapping_sub(one.isn), false)),
        None => Some((last(ends.receiver(), stream)?.wrapping_sub(last(ends.sender(), stream)?), true)),
    };
    let seen: Vec<(usize, u32, bool)> =
        [0, 1].into_iter().filter_map(|stream| apart(stream).map(|(apart, by_fin)| (stream, apart, by_fin))).collect();
    // A stream that gained a header ends at another number. Its FIN does not tell where it began.
    let is_same =
        |(_, apart, by_fin): &&(usize, u32, bool)| if *by_fin { (*apart as i32).unsigned_abs() <= HEADERS as u32 } else { *apart == 0 };
    let changed: Vec<&str> = seen.iter().filter(|seen| !is_same(seen)).map(|(stream, ..)| SIDE[*stream]).collect();
    let number = (changed.len() as f64, "changed");
    let of = |says, strength, text| Some(Evidence::new(Method::Isn, says, strength, number, text));
    let by_syns = seen.iter().filter(|(.., by_fin)| !by_fin).count();
    match (by_syns, changed.len()) {
        _ if seen.is_empty() => None,
        (2, 0) => of(Indication::EndToEnd, Strength::Moderate, "both initial sequence numbers are the same at both ends".into()),
        (1, 0) => of(Indication::EndToEnd, Strength::Weak, "the one initial sequence number recorded at both ends is the same".into()),
        (_, 0) => {
            of(Indication::Nothing, Strength::Weak, "the sequence numbers of the FINs are nearly or exactly the same at both ends".into())
        }
        _ => of(
            Indication::Split,
            Strength::Moderate,
            format!(
                "the sequence numbers of the {} differ between the ends (some firewalls change them too)",
                changed.join(" and of the ")
            ),
        ),
    }
}

/// Compares the options of SYNs: MSS, window scale, presence and order.
pub(crate) fn options(ends: &EndpointPair<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    let mut same = 0;
    for stream in [0, 1] {
        let Some((one, two)) = syns(ends, stream) else { continue };
        let before = found.len();
        let mut changed = |strength, what: &str, was: String, is: String| {
            let text = format!("{what} in the {}'s SYN: {was} at the sender's end, {is} at the receiver's", SIDE[stream]);
            found.push(Evidence::new(Method::Options, Indication::Split, strength, (1.0, "changed"), text));
        };
        let say = |value: Option<String>| value.unwrap_or_else(|| "none".into());
        if one.scale != two.scale {
            let say = |syn: &SynSegment| say(syn.scale.map(|scale| scale.to_string()));
            changed(Strength::Moderate, "the window scale", say(one), say(two));
        }
        if one.order != two.order {
            changed(Strength::Moderate, "the options", format!("`{}`", one.order), format!("`{}`", two.order));
        }
        if one.mss != two.mss {
            let say = |syn: &SynSegment| say(syn.mss.map(|mss| mss.to_string()));
            // Routers clamp the MSS at the entrance of a tunnel.
            changed(Strength::Weak, "the MSS", say(one), say(two));
        }
        if one.window != two.window {
            changed(Strength::Weak, "the window", one.window.to_string(), two.window.to_string());
        }
        same += usize::from(found.len() == before);
    }
    if found.is_empty() && same > 0 {
        let text =
            format!("the options of {} are the same at both ends", if same == 2 { "both SYNs" } else { "the SYN that was recorded" });
        found.push(Evidence::new(Method::Options, Indication::EndToEnd, Strength::Weak, (0.0, "changed"), text));
    }
    found
}

/// Whether the timestamps that arrive come from the sender's clock (RFC 7323).
pub(crate) fn timestamp_clock(ends: &EndpointPair<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for stream in [0, 1] {
        let (here, there) = (ends.ends[stream].half(stream).clock, ends.ends[1 - stream].half(stream).clock);
        let of = |says, strength, value: f64, text: String| Evidence::new(Method::TimestampClock, says, strength, (value, "ticks"), text);
        match (here, there) {
            (Some(here), Some(there)) => {
                let apart = f64::from(there.first.1.wrapping_sub(here.first.1) as i32);
                // The start times of the captures may differ by their duration, plus a margin of a
                // minute.
                let span = (spans(&here).0.max(spans(&there).0) + 60.0) * rate(&here).max(rate(&there));
                found.push(if apart.abs() > span {
                    let text = format!(
                        "timestamps of the {} differ by {apart:.0} ticks between the ends, of which time explains {span:.0}: another clock (few firewalls shift them)",
                        SIDE[stream]
                    );
                    of(Indication::Split, Strength::Moderate, apart, text)
                } else {
                    // Two machines' clocks may agree by chance. A single clock always agrees with
                    // itself.
                    let text = format!("timestamps of the {} may come from one clock, {apart:.0} ticks apart", SIDE[stream]);
                    of(Indication::Nothing, Strength::Weak, apart, text)
                });
            }
            (None, None) => {}
            (here, _) => {
                let end = if here.is_some() { SIDE[stream] } else { SIDE[1 - stream] };
                let text = format!("segments of the {} have timestamps only at the {end}'s end", SIDE[stream]);
                let span = here.or(there).map_or(0.0, |clock| spans(&clock).1);
                found.push(of(Indication::Split, Strength::Moderate, span, text));
            }
        }
    }
    found
}

/// How long a timestamp clock was observed, s, and by how many ticks it advanced.
fn spans(clock: &TimestampSpan) -> (f64, f64) {
    let ticks = f64::from(clock.last.1.wrapping_sub(clock.first.1) as i32);
    ((clock.last.0 - clock.first.0).max(0) as f64 / 1e9, ticks.max(0.0))
}

/// Ticks per second. 1000 where the observation is too short, since nearly all stacks use it.
fn rate(clock: &TimestampSpan) -> f64 {
    let (seconds, ticks) = spans(clock);
    if seconds >= 1.0 && ticks > 0.0 { (ticks / seconds).min(1e6) } else { 1000.0 }
}

/// Compares the TTL of a stream's packets at both ends.
pub(crate) fn ttl(ends: &EndpointPair<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for stream in [0, 1] {
        let (here, there) = (ends.ends[stream].half(stream).ttl, ends.ends[1 - stream].half(stream).ttl);
        let (Some((least, _)), Some((low, high))) = (here, there) else { continue };
        let hops = f64::from(least) - f64::from(high);
        let of = |says, strength, text| Evidence::new(Method::Ttl, says, strength, (hops, "hops"), text);
        let from_to = format!("from the {}: TTL {least} at its own end, {high} at the other", SIDE[stream]);
        if high > least {
            found.push(of(Indication::Split, Strength::Moderate, format!("{from_to}: a middlebox set it")));
        } else if high - low >= 2 {
            found.push(of(Indication::Nothing, Strength::Weak, format!("{from_to}, down to {low}: the path varied")));
        } else {
            found.push(of(Indication::Nothing, Strength::Weak, format!("{from_to}, {hops:.0} hops")));
        }
    }
    found
}

/// Compares IPv4 identification numbers (RFC 791 §3.1) of data that begin at the same position. A
/// host that sends the data anew uses a counter of its own.
pub(crate) fn ip_ids(ends: &EndpointPair<'_>) -> Vec<Evidence> {
    let compare = |stream: usize| {
        let (here, there) = (ends.ends[stream].half(stream), ends.ends[1 - stream].half(stream));
        let overlap = there.cuts.agreed(&here.cuts);
        if ends.shift(stream) != Some(0) || overlap.of < ENOUGH {
            return None;
        }
        let of = |says, strength, what: &str| {
            let text = format!(
                "of {} segments of the {} that begin at the same place, {} have the same IP ID: {what}",
                overlap.of, SIDE[stream], overlap.same
            );
            Some(Evidence::new(Method::IpId, says, strength, (overlap.share(), "share"), text))
        };
        match overlap.same {
            0 => of(Indication::Split, Strength::Weak, "they were assigned anew (some firewalls and translators do that too)"),
            // Both counters advance by one. Two of them agree over a run only as often as two
            // random numbers do. Retransmissions advance the counter too.
            _ if overlap.share() >= 0.5 => of(Indication::EndToEnd, Strength::Moderate, "they passed unchanged"),
            _ => of(Indication::Nothing, Strength::Weak, "too few to be sure"),
        }
    };
    [0, 1].into_iter().filter_map(compare).collect()
}

/// Compares segment boundaries and sizes.
pub(crate) fn segments(ends: &EndpointPair<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for stream in [0, 1] {
        let (here, there) = (ends.ends[stream].half(stream), ends.ends[1 - stream].half(stream));
        let mss = ends.ends[stream].half(1 - stream).syn.as_deref().and_then(|syn| syn.mss);
        // A sender with TSO hands large chunks to its network card, so that its capture shows no
        // segments.
        if ends.shift(stream) != Some(0) || here.sizes.largest > u32::from(mss.unwrap_or(1460)) {
            continue;
        }
        let overlap = there.cuts.within(&here.cuts);
        let (was, is) = (here.sizes.usual().unwrap_or(0), there.sizes.usual().unwrap_or(0));
        if overlap.of < ENOUGH {
            continue;
        }
        let of = |says, strength, what: &str| {
            let text = format!(
                "of {} segments of the {} compared, {} begin where one was sent{what} (usual size {was} where sent, {is} where received)",
                overlap.of, SIDE[stream], overlap.same
            );
            Evidence::new(Method::Segments, says, strength, (overlap.share(), "share"), text)
        };
        if overlap.share() < 0.5 {
            found.push(of(Indication::Split, Strength::Moderate, ": the stream was segmented anew"));
        } else if overlap.share() >= MOSTLY {
            // Two stacks with the same MSS segment bulk data alike.
            found.push(of(Indication::Nothing, Strength::Weak, ""));
        }
    }
    found
}

/// Compares addresses and ports.
pub(crate) fn addresses(ends: &EndpointPair<'_>) -> Option<Evidence> {
    let names = |view: &EndpointView<'_>| crate::pairing::names(view.flow, view.sender);
    let (one, two) = (names(ends.sender()), names(ends.receiver()));
    let changed: Vec<String> = one
        .iter()
        .zip(&two)
        .filter(|(one, two)| one != two)
        .map(|(one, two)| format!("{one} at the sender's end is {two} at the receiver's"))
        .collect();
    if changed.is_empty() {
        return None;
    }
    let text = format!("{} (NAT does that too)", changed.join(", "));
    Some(Evidence::new(Method::Addresses, Indication::Split, Strength::Weak, (changed.len() as f64, "changed"), text))
}

/// Compares the amount and the content of the payload.
pub(crate) fn payload(ends: &EndpointPair<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for stream in [0, 1] {
        let (here, there) = (ends.ends[stream].half(stream), ends.ends[1 - stream].half(stream));
        let anchored = ends.ends.iter().all(|view| view.anchored(stream));
        let whole = [0, 1].iter().all(|end| anchored && ends.ends[*end].half(stream).fin.is_some());
        let clean = ends.ends.iter().all(|view| view.flow.halves.iter().all(|half| half.reset.is_none()));
        // The FIN's sequence number includes bytes that the capture missed.
        let length = |half: &TracedStream| half.end.filter(|_| anchored).map_or(half.length(), |end| end.max(0) as u64);
        let (sent, came) = (length(here), length(there));
        // In truncated segments the two captures hold different parts if the boundaries differ.
        let overlap = if here.is_cut { Overlap { same: 0, of: 0 } } else { there.content.within(&here.content) };
        let of = |says, strength, text| Evidence::new(Method::Payload, says, strength, (came as f64 - sent as f64, "B"), text);
        let lengths = format!("of {} bytes of the {}, {} arrived", bytes(sent as f64), SIDE[stream], bytes(came as f64));
        // Two captures of different parts of a stream have no content in common either.
        let alike = anchored && sent.min(came) * 2 >= sent.max(came);
        if overlap.of >= ENOUGH && overlap.same == 0 && sent.max(came) > HEADERS && (alike || (whole && clean)) {
            found.push(of(
                Indication::TcpProxy,
                Strength::Strong,
                format!("{lengths}, with other content: of {} hashes compared, none agrees", overlap.of),
            ));
        } else if whole && clean && sent != came && sent.max(came) <= HEADERS {
            // A rewritten request header does not show that data were held until they were
            // complete.
            found.push(of(Indication::Split, Strength::Strong, format!("{lengths}: rewritten, possibly only a header")));
        } else if whole && clean && sent != came && sent.abs_diff(came) <= HEADERS && overlap.same >= 3 {
            found.push(of(Indication::Split, Strength::Strong, format!("{lengths}, otherwise unchanged: a header was added or removed")));
        } else if whole && clean && sent != came && sent.abs_diff(came) <= HEADERS && overlap.of < ENOUGH {
            // The capture holds headers only.
            let text = format!("{lengths}: a header was added or removed, if the rest, which was not recorded, is unchanged");
            found.push(of(Indication::Split, Strength::Strong, text));
        } else if whole && clean && sent != came {
            found.push(of(
                Indication::TcpProxy,
                Strength::Strong,
                format!("{lengths}, though both ends saw the end of the stream: the content was changed"),
            ));
        }
    }
    found
}

/// Compares the round trip of the handshake with that of data, at one end. If data are acknowledged
/// much sooner than the SYN was, another host acknowledges them.
pub(crate) fn handshake(view: &EndpointView<'_>, end: &str) -> Option<Evidence> {
    let (answered, _) = view.handshake().filter(|_| view.at() == view.client())?;
    // Only data that the client sends: the server's round trip is not on the path in question.
    let least = view.answers(view.client()?).into_iter().min()?;
    let (answered, least) = (answered as f64 / 1e9, least as f64 / 1e9);
    let sooner = least < 0.5 * answered && answered - least > 0.02;
    let text = format!("at the {end}: the SYN was answered after {}, data after at least {}", seconds(answered), seconds(least));
    let says = if sooner { Indication::Split } else { Indication::Nothing };
    Some(Evidence::new(Method::Handshake, says, Strength::Weak, (least / answered.max(1e-9), "ratio"), text))
}
