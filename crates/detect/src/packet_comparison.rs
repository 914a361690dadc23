//! What plain inspection shows: what is the same at both ends of one connection, and what a middle has made anew.

use crate::{
    endpoints::{EndpointPair, EndpointView},
    evidence::{Evidence, Indication, Method, Strength},
    sketch::{Overlap, Sketch},
    text::{bytes, seconds},
    traced_connection::{SynSegment, TimestampSpan, TracedStream},
};

/// Things compared before their share says something; fewer say something if none is the same.
const ENOUGH: usize = 8;
const FEW: usize = 4;
/// Bytes that a proxy's own header has at most.
const HEADERS: u64 = 4096;
/// The share above which things are the same, if some of them can have been missed by a capture.
const MOSTLY: f64 = 0.9;

/// One of the ways in which ACKs are remembered.
type AckSketch = fn(&TracedStream) -> &Sketch;

/// Whether the ACKs without payload that came are among those that were sent, in both directions.
pub(crate) fn acknowledgements(ends: &EndpointPair<'_>) -> Option<Evidence> {
    // A NAT changes nothing of them; a firewall may change their numbers or IP IDs; some change time stamps. Each way needs something of the stream that
    // they acknowledge: as they are, its numbers; by place, a common count.
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
    let text = |what: &str| format!("of {} ACKs compared that arrived, {} were sent so by the other end: {what}", best.of, best.same);
    let of = |says, strength, what| Some(Evidence::new(Method::Acknowledgements, says, strength, number, text(what)));
    let comparable = [0, 1].iter().all(|stream| ends.shift(*stream).is_some());
    // Without timestamps it is IP's IDs that tell ACKs apart, and who translates addresses gives them anew (RFC 7915 §4.1): then numbers and windows speak for
    // neither, where they are the same.
    let is_stamped = |stream| ends.ends.iter().all(|view| view.half(stream).clock.is_some());
    let bare = compare(|half| &half.bare, keeps_numbers);
    if best.share() < MOSTLY && bare.of >= FEW && bare.share() >= MOSTLY && !(is_stamped(0) && is_stamped(1)) {
        return of(Indication::Nothing, Strength::Weak, "their IP IDs are others, their numbers and windows the same");
    }
    // Where all can be alike, one in twenty may be by chance.
    if best.of < ENOUGH {
        // A capture that lost those few, and no others, is not likely; one of another part of the connection is.
        let says = if best.same == 0 && comparable { Indication::Split } else { Indication::Nothing };
        let what = if best.same == 0 { "something between may make its own" } else { "too few to be sure" };
        of(says, Strength::Moderate, what)
    } else if best.same * 20 <= best.of {
        of(Indication::Split, Strength::Strong, "something between makes its own")
    } else if best.share() >= MOSTLY {
        of(Indication::EndToEnd, Strength::Strong, "they came through")
    } else if best.same >= 3 && best.share() >= 0.3 {
        of(Indication::EndToEnd, Strength::Moderate, "some came through; a capture may have missed the others")
    } else {
        of(Indication::Nothing, Strength::Weak, "too few to be sure")
    }
}

/// Whether a place of a stream has the same number at both ends.
fn keeps_numbers(ends: &EndpointPair<'_>, stream: usize) -> bool {
    let base = |view: &EndpointView<'_>| view.half(stream).base();
    let (Some(here), Some(there), Some(shift)) = (base(ends.sender()), base(ends.receiver()), ends.shift(stream)) else { return false };
    here.wrapping_add(shift as u32) == there
}

/// Whether both captures have ACKs of `from` for the same part of the other stream; one that begins late may have none.
fn overlaps(ends: &EndpointPair<'_>, from: usize) -> bool {
    let shift = ends.shift(1 - from);
    let span = |end: usize| {
        let steps = ends.ends[end].half(from).acked.steps();
        Some((steps.first()?.reach, steps.last()?.reach))
    };
    let (Some(here), Some(there)) = (span(0), span(1)) else { return false };
    // Without a common count there is nothing to show that they don't.
    let there = (there.0 + shift.unwrap_or(0), there.1 + shift.unwrap_or(0));
    let common = here.1.min(there.1) - here.0.max(there.0);
    shift.is_none() || common * 10 >= (here.1 - here.0).max(there.1 - there.0) * 3
}

fn syns<'a>(ends: &EndpointPair<'a>, stream: usize) -> Option<(&'a SynSegment, &'a SynSegment)> {
    let at = |view: &EndpointView<'a>| view.half(stream).syn.as_deref();
    Some((at(ends.sender())?, at(ends.receiver())?))
}

const SIDE: [&str; 2] = ["sender", "receiver"];

/// Initial sequence numbers, as sent and as they came; the FINs' where a SYN was not seen at both ends.
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
    // A stream that a header was added to ends elsewhere, and its FIN says nothing of its beginning.
    let is_same =
        |(_, apart, by_fin): &&(usize, u32, bool)| if *by_fin { (*apart as i32).unsigned_abs() <= HEADERS as u32 } else { *apart == 0 };
    let changed: Vec<&str> = seen.iter().filter(|seen| !is_same(seen)).map(|(stream, ..)| SIDE[*stream]).collect();
    let number = (changed.len() as f64, "changed");
    let of = |says, strength, text| Some(Evidence::new(Method::Isn, says, strength, number, text));
    let by_syns = seen.iter().filter(|(.., by_fin)| !by_fin).count();
    match (by_syns, changed.len()) {
        _ if seen.is_empty() => None,
        (2, 0) => of(Indication::EndToEnd, Strength::Moderate, "both initial sequence numbers are the same at both ends".into()),
        (1, 0) => of(Indication::EndToEnd, Strength::Weak, "one initial sequence number was seen at both ends: it is the same".into()),
        (_, 0) => {
            of(Indication::Nothing, Strength::Weak, "the sequence numbers of the FINs are nearly or quite the same at both ends".into())
        }
        _ => of(
            Indication::Split,
            Strength::Moderate,
            format!(
                "the sequence numbers of the {} are others at the other end (some firewalls do that, too)",
                changed.join(" and of the ")
            ),
        ),
    }
}

/// Options of SYNs: MSS, window scale, which there are and in which order.
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
            // Routers clamp it where tunnels begin.
            changed(Strength::Weak, "the MSS", say(one), say(two));
        }
        if one.window != two.window {
            changed(Strength::Weak, "the window", one.window.to_string(), two.window.to_string());
        }
        same += usize::from(found.len() == before);
    }
    if found.is_empty() && same > 0 {
        let text = format!("the options of {} are the same at both ends", if same == 2 { "both SYNs" } else { "the SYN that was seen" });
        found.push(Evidence::new(Method::Options, Indication::EndToEnd, Strength::Weak, (0.0, "changed"), text));
    }
    found
}

/// Whether what arrives has the sender's clock in its timestamps (RFC 7323).
pub(crate) fn timestamp_clock(ends: &EndpointPair<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for stream in [0, 1] {
        let (here, there) = (ends.ends[stream].half(stream).clock, ends.ends[1 - stream].half(stream).clock);
        let of = |says, strength, value: f64, text: String| Evidence::new(Method::TimestampClock, says, strength, (value, "ticks"), text);
        match (here, there) {
            (Some(here), Some(there)) => {
                let apart = f64::from(there.first.1.wrapping_sub(here.first.1) as i32);
                // The captures may have begun as far apart as they are long, and a minute more.
                let span = (spans(&here).0.max(spans(&there).0) + 60.0) * rate(&here).max(rate(&there));
                found.push(if apart.abs() > span {
                    let text = format!(
                        "timestamps of the {} are {apart:.0} ticks apart at the two ends, of which {span:.0} can be time: another clock's (few firewalls shift them)",
                        SIDE[stream]
                    );
                    of(Indication::Split, Strength::Moderate, apart, text)
                } else {
                    // Two machines' clocks may be as near by chance, one's are always.
                    let text = format!("timestamps of the {} can be of one clock at both ends, {apart:.0} ticks apart", SIDE[stream]);
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

/// How long a clock was seen, s, and how far it went.
fn spans(clock: &TimestampSpan) -> (f64, f64) {
    let ticks = f64::from(clock.last.1.wrapping_sub(clock.first.1) as i32);
    ((clock.last.0 - clock.first.0).max(0) as f64 / 1e9, ticks.max(0.0))
}

/// Ticks a second; 1000 where too little was seen, as nearly all have.
fn rate(clock: &TimestampSpan) -> f64 {
    let (seconds, ticks) = spans(clock);
    if seconds >= 1.0 && ticks > 0.0 { (ticks / seconds).min(1e6) } else { 1000.0 }
}

/// Hops left of what the sender of a stream sent.
pub(crate) fn ttl(ends: &EndpointPair<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for stream in [0, 1] {
        let (here, there) = (ends.ends[stream].half(stream).ttl, ends.ends[1 - stream].half(stream).ttl);
        let (Some((least, _)), Some((low, high))) = (here, there) else { continue };
        let hops = f64::from(least) - f64::from(high);
        let of = |says, strength, text| Evidence::new(Method::Ttl, says, strength, (hops, "hops"), text);
        let from_to = format!("from the {}: TTL {least} at its own end, {high} at the other", SIDE[stream]);
        if high > least {
            found.push(of(Indication::Split, Strength::Moderate, format!("{from_to}: it was set anew")));
        } else if high - low >= 2 {
            found.push(of(Indication::Nothing, Strength::Weak, format!("{from_to}, down to {low}: not all came the same way")));
        } else {
            found.push(of(Indication::Nothing, Strength::Weak, format!("{from_to}, {hops:.0} hops")));
        }
    }
    found
}

/// The numbers that IPv4 gives packets (RFC 791 §3.1), of data that begin at the same place: who sends them anew counts for itself.
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
            0 => of(Indication::Split, Strength::Weak, "they were given anew (some firewalls and translators do that, too)"),
            // Both count one by one: that two do from the same number on is as likely as one number is to be like another. What is sent again counts on.
            _ if overlap.share() >= 0.5 => of(Indication::EndToEnd, Strength::Moderate, "they came through"),
            _ => of(Indication::Nothing, Strength::Weak, "too few to be sure"),
        }
    };
    [0, 1].into_iter().filter_map(compare).collect()
}

/// Where segments begin and how large they are.
pub(crate) fn segments(ends: &EndpointPair<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for stream in [0, 1] {
        let (here, there) = (ends.ends[stream].half(stream), ends.ends[1 - stream].half(stream));
        let mss = ends.ends[stream].half(1 - stream).syn.as_deref().and_then(|syn| syn.mss);
        // A sender that hands large pieces to its network card (TSO) shows no segments.
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
            found.push(of(Indication::Split, Strength::Moderate, ": they were cut anew"));
        } else if overlap.share() >= MOSTLY {
            // Two stacks with the same MSS cut bulk data alike.
            found.push(of(Indication::Nothing, Strength::Weak, ""));
        }
    }
    found
}

/// Addresses and ports.
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
    let text = format!("{} (NAT does that, too)", changed.join(", "));
    Some(Evidence::new(Method::Addresses, Indication::Split, Strength::Weak, (changed.len() as f64, "changed"), text))
}

/// Which bytes arrived, and how many.
pub(crate) fn payload(ends: &EndpointPair<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for stream in [0, 1] {
        let (here, there) = (ends.ends[stream].half(stream), ends.ends[1 - stream].half(stream));
        let anchored = ends.ends.iter().all(|view| view.anchored(stream));
        let whole = [0, 1].iter().all(|end| anchored && ends.ends[*end].half(stream).fin.is_some());
        let clean = ends.ends.iter().all(|view| view.flow.halves.iter().all(|half| half.reset.is_none()));
        // What a capture failed to record was there if the FIN says so.
        let length = |half: &TracedStream| half.end.filter(|_| anchored).map_or(half.length(), |end| end.max(0) as u64);
        let (sent, came) = (length(here), length(there));
        // Of segments that were cut short other parts were recorded at the other end, where it has them in other pieces.
        let overlap = if here.is_cut { Overlap { same: 0, of: 0 } } else { there.content.within(&here.content) };
        let of = |says, strength, text| Evidence::new(Method::Payload, says, strength, (came as f64 - sent as f64, "B"), text);
        let lengths = format!("of {} bytes of the {}, {} arrived", bytes(sent as f64), SIDE[stream], bytes(came as f64));
        // Two captures of different parts of a stream share nothing, either.
        let alike = anchored && sent.min(came) * 2 >= sent.max(came);
        if overlap.of >= ENOUGH && overlap.same == 0 && sent.max(came) > HEADERS && (alike || (whole && clean)) {
            found.push(of(
                Indication::TcpProxy,
                Strength::Strong,
                format!("{lengths}, other ones: of {} stretches compared, none is the same", overlap.of),
            ));
        } else if whole && clean && sent != came && sent.max(came) <= HEADERS {
            // A request whose header was written anew: what is held until it is complete is not that.
            found.push(of(Indication::Split, Strength::Strong, format!("{lengths}: it was written anew, and may be a header alone")));
        } else if whole && clean && sent != came && sent.abs_diff(came) <= HEADERS && overlap.same >= 3 {
            found.push(of(Indication::Split, Strength::Strong, format!("{lengths}, the rest as it was: a header more or less")));
        } else if whole && clean && sent != came && sent.abs_diff(came) <= HEADERS && overlap.of < ENOUGH {
            // A capture of headers alone.
            let text = format!("{lengths}: a header more or less, if the rest is as it was, which was not recorded");
            found.push(of(Indication::Split, Strength::Strong, text));
        } else if whole && clean && sent != came {
            found.push(of(
                Indication::TcpProxy,
                Strength::Strong,
                format!("{lengths}, and both ends had come to the end: they were changed"),
            ));
        }
    }
    found
}

/// The handshake against data, at one end alone: what answers data much sooner than it answered the SYN is not what answered the SYN.
pub(crate) fn handshake(view: &EndpointView<'_>, end: &str) -> Option<Evidence> {
    let (answered, _) = view.handshake().filter(|_| view.at() == view.client())?;
    // Data that the client sends: what it answers itself says nothing of the way.
    let least = view.answers(view.client()?).into_iter().min()?;
    let (answered, least) = (answered as f64 / 1e9, least as f64 / 1e9);
    let sooner = least < 0.5 * answered && answered - least > 0.02;
    let text = format!("at the {end}: the SYN was answered after {}, data after {} at the soonest", seconds(answered), seconds(least));
    let says = if sooner { Indication::Split } else { Indication::Nothing };
    Some(Evidence::new(Method::Handshake, says, Strength::Weak, (least / answered.max(1e-9), "ratio"), text))
}
