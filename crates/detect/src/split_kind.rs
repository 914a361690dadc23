//! Of a connection that is split: are data passed on while they come (Split-TCP), or held until they are complete (TCP proxy)? Wei et al. §III-A; and what
//! §III-C and §III-D look at.

use crate::{
    clock_fit::{JITTER, Transit},
    endpoints::{Ends, View},
    evidence::{Evidence, Method, Says, Strength},
    series::{Burstiness, Plot, Received},
    text::{bytes, seconds},
};
use serde::Serialize;

/// Windows that shut this often alternate.
const ALTERNATES: u32 = 2;
/// A transfer shorter than so many of the sender's round trips shows no order of events.
const ROUND_TRIPS: f64 = 3.0;

/// How the connection behaved.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Character {
    /// From the first byte to the last, as sent and as received, s.
    pub sent_for_s: Option<f64>,
    /// As received.
    pub received_for_s: Option<f64>,
    /// How bursty the sender was.
    pub burstiness: Option<Burstiness>,
    /// End-to-end delay of bytes.
    pub delay_s: Option<Delay>,
    /// The window that the sender was offered.
    pub window: Option<Window>,
    /// Bytes that the sender sent again.
    pub sent_again: Option<u64>,
    /// How it ended at each end.
    pub ending: Option<Ending>,
    /// Bytes sent and the window offered over time, at the sender.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub series: Option<Plot>,
}

/// End-to-end delays, over the bytes that both ends recorded; they are as exact as the clocks' offset is known.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Delay {
    /// The least.
    pub min: f64,
    /// The middle one.
    pub median: f64,
    /// The most.
    pub max: f64,
}

/// An advertised window, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Window {
    /// The least.
    pub least: u64,
    /// The most.
    pub most: u64,
    /// How often it went from open to shut: below a tenth of the most since it was last shut.
    pub shuts: u32,
}

/// How the two ends learnt that it was over (§III-D).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ending {
    /// `fin`, `reset` or nothing that was seen, from the receiver's side, at its own end.
    pub receiver: Option<Left>,
    /// What of it came to the sender.
    pub sender: Option<Left>,
    /// How long after, s.
    pub later_s: Option<f64>,
    /// How long the sender's side went on sending after the receiver had left, s.
    pub went_on_s: Option<f64>,
}

/// How a side left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Left {
    /// It closed.
    Fin,
    /// It aborted.
    Reset,
}

/// How much later the receiver's clock is, as far as what does travel end to end tells even when the connection is split.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Offset {
    /// s.
    pub(crate) seconds: f64,
    /// Whether something was seen that cannot have been held.
    pub(crate) sure: bool,
}

/// The clocks' offset by data and the client's SYN; of the server's stream the handshake may be a splitter's own.
pub(crate) fn offset(ends: &Ends<'_>) -> Option<Offset> {
    let client = ends.sender().client();
    let least = |stream: usize| {
        let all = ends.data(stream)?;
        let real = all.iter().filter(|transit| transit.place > 0 || client == Some(stream));
        real.filter_map(|transit| transit.plain).min_by(f64::total_cmp)
    };
    let way = way(ends);
    let sure = |seconds: f64| Some(Offset { seconds, sure: true });
    match (least(0), least(1)) {
        // Where the two bounds are far apart, something was held. Of an upload, it and the client's SYN can be, and what comes back of the server's is not;
        // of a download, the client's SYN is not.
        (Some(out), Some(back)) if out + back > 3.0 * way.max(JITTER) => match client {
            Some(_) => Some(Offset { seconds: way - back, sure: client == Some(0) || called_at_once(ends, way) }),
            None => Some(Offset { seconds: (out - back) / 2.0, sure: false }),
        },
        (Some(out), Some(back)) => sure((out - back) / 2.0),
        (Some(out), None) => Some(Offset { seconds: out - way, sure: syn_late(ends, 0).is_some_and(|late| late <= 3.0 * way.max(JITTER)) }),
        (None, Some(back)) => Some(Offset { seconds: way - back, sure: client == Some(1) && called_at_once(ends, way) }),
        (None, None) => None,
    }
}

/// Of a download: whether the SYN that came to the sender can't have waited for the client's request: there was none, or it followed the client's SYN
/// at once, or it was itself seen at both ends.
fn called_at_once(ends: &Ends<'_>, way: f64) -> bool {
    let asks = ends.receiver().half(1);
    let early = match (asks.syn.as_deref(), asks.first_data) {
        (Some(_), None) => true,
        (Some(syn), Some(request)) => (request - syn.at) as f64 / 1e9 <= 3.0 * way.max(JITTER),
        (None, _) => false,
    };
    early || ends.data(1).is_some_and(|all| all.iter().any(|transit| transit.place > 0 && transit.plain.is_some()))
}

/// How much longer the SYN of a stream took than the fastest of its data, s: what connects only when it has the data holds its SYN back.
fn syn_late(ends: &Ends<'_>, stream: usize) -> Option<f64> {
    let all = ends.data(stream).filter(|_| ends.sender().client() == Some(stream))?;
    let syn = all.iter().find(|transit| transit.place == 0)?.plain?;
    let data = all.iter().filter(|transit| transit.place > 0).filter_map(|transit| transit.plain).min_by(f64::total_cmp)?;
    Some(syn - data)
}

/// Half of both ends' least round trips together, s: about the way from one to the other over two legs, and more than it over one.
fn way(ends: &Ends<'_>) -> f64 {
    (0..2).filter_map(|end| round_trip(&ends.ends[end], end)).sum::<f64>() / 2.0
}

/// The least time in which the network answered this end, which sends stream `end`.
fn round_trip(view: &View<'_>, end: usize) -> Option<f64> {
    // Who was called waits for the handshake's third part; what it took to answer is its own.
    let shaken = view.handshake().map(|(there, back)| if view.client() == Some(end) { there } else { back });
    view.answers_recorded(end).into_iter().chain(shaken).min().map(|least| least as f64 / 1e9)
}

/// The delay to the first byte against the time that the sender took to send (§III-A: a TCP proxy receives all, then forwards). `synchronised` is within
/// how many seconds the clocks agree, where that is known.
pub(crate) fn first_byte(ends: &Ends<'_>, synchronised: Option<f64>) -> Option<Evidence> {
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
    // A middle that asks the server while data come can pass on none before it is answered.
    let amidst = |asked: i64| ((by_sender(asked) - begun) as f64) < 0.5 * (taken - begun) as f64;
    let from = opened(receiver).filter(|(asked, _)| amidst(*asked)).map_or(begun, |(_, ready)| by_sender(ready).max(begun));
    let (took, waited) = ((taken - from) as f64 / 1e9, (came - from) as f64 / 1e9);
    let way = way(ends);
    let short = ROUND_TRIPS * round_trip(sender, 0).unwrap_or(0.0).max(way);
    let text = format!(
        "the first byte came {} after it was sent{}, of which about {} is the way; by then {} of {} bytes were sent, which took {}",
        seconds(waited),
        if from > begun { " and could be passed on" } else { "" },
        seconds(way),
        // Counting what was on its way.
        bytes(sent.by(came) as f64),
        bytes(total as f64),
        seconds(took)
    );
    let of = |says, strength| Some(Evidence::new(Method::FirstByte, says, strength, (waited, "s"), text.clone()));
    // What an offset that was inferred can be wrong by is less than the way there and back. Where it is known, the way of a full segment is less than twice that
    // of the small ones by which it was measured.
    let unsure = synchronised.map_or(2.0 * way, |within| way + within);
    if took >= 0.01 && waited - way >= unsure.max(0.8 * took) {
        of(Says::TcpProxy, Strength::Moderate)
    } else if took >= short.max(0.01) && waited - way <= 0.5 * took && sent.by(came) < total && sender.anchored(0) {
        // A sender's trace that begins late makes both shorter.
        of(Says::SplitTcp, Strength::Moderate)
    } else {
        of(Says::Nothing, Strength::Weak)
    }
}

/// When the client's SYN of stream 0 came to the receiver, and when its handshake was over, ns by the receiver's clock.
fn opened(receiver: &View<'_>) -> Option<(i64, i64)> {
    let asked = receiver.half(0).syn.as_deref()?.at;
    let ready = receiver.half(0).acked.steps().first().filter(|step| step.reach == 0)?.at;
    (receiver.client() == Some(0) && ready >= asked).then_some((asked, ready))
}

/// Of an upload: the middle called the receiver only when it had been sent most of what it then passed on. Needs no clocks: the SYN and the data are
/// compared with each other.
pub(crate) fn late_call(ends: &Ends<'_>) -> Option<Evidence> {
    let (late, data) = (syn_late(ends, 0)?, ends.data(0)?);
    let fastest = data
        .iter()
        .filter(|transit| transit.place > 0 && transit.plain.is_some())
        .min_by(|a, b| a.plain.partial_cmp(&b.plain).unwrap_or(std::cmp::Ordering::Equal))?;
    let begun = ends.sender().half(0).first_data?;
    // When the fastest byte was sent, by the sender's clock.
    let sent = (fastest.arrived - begun) as f64 / 1e9 - fastest.plain?;
    let short = ROUND_TRIPS * round_trip(ends.sender(), 0).unwrap_or(0.0).max(way(ends));
    // What connects when the first bytes are there is a round trip late, or two.
    if sent < short.max(0.01) || late < 0.5 * sent {
        return None;
    }
    let text = format!(
        "the SYN took {} longer than byte {}, sent {} after the first: the receiver was called when that much had been sent",
        seconds(late),
        bytes(fastest.place as f64),
        seconds(sent)
    );
    Some(Evidence::new(Method::FirstByte, Says::TcpProxy, Strength::Moderate, (late, "s"), text))
}

/// The window that the sender is offered: a splitter's fills and empties, a TCP proxy's stays open.
pub(crate) fn window(sender: &View<'_>, receiver: Option<&View<'_>>) -> Option<Evidence> {
    let windows = sender.half(1).windows;
    let half = sender.half(0);
    if windows.count < 10 || half.length() < 10_000 {
        return None;
    }
    let number = (f64::from(windows.shuts), "times shut");
    let said =
        format!("the window offered to the sender was between {} and {} bytes", bytes(windows.least as f64), bytes(windows.most as f64));
    if windows.shuts >= ALTERNATES {
        let text = format!("{said}, and went from open to shut {} times (a slow reader does that, too)", windows.shuts);
        return Some(Evidence::new(Method::Window, Says::SplitTcp, Strength::Weak, number, text));
    }
    let span = |view: &View<'_>| Some((view.half(0).last_data? - view.half(0).first_data?) as f64 / 1e9);
    let (took, got) = (span(sender)?, receiver.and_then(span));
    let open = windows.shuts == 0 && windows.least * 2 >= windows.most;
    let (says, text) = match got {
        Some(got) if open && got > 3.0 * took => {
            (Says::TcpProxy, format!("{said}: it stayed open, while sending took {} and receiving {}", seconds(took), seconds(got)))
        }
        _ => (Says::Nothing, format!("{said}, and was shut {} times", windows.shuts)),
    };
    Some(Evidence::new(Method::Window, says, Strength::Weak, number, text))
}

/// How the connection behaved; with `plots` its series, too. Between two ends times are compared by the clocks' `offset`.
pub(crate) fn character(
    sender: Option<&View<'_>>,
    receiver: Option<&View<'_>>,
    ends: Option<(&Ends<'_>, Option<f64>)>,
    plots: bool,
) -> Character {
    let span = |view: &View<'_>| Some((view.half(0).last_data? - view.half(0).first_data?) as f64 / 1e9);
    let ends = ends.and_then(|(ends, offset)| Some((ends, offset?)));
    let delays = ends.and_then(|(ends, offset)| {
        let mut delays: Vec<f64> = ends.data(0)?.iter().filter(|transit| transit.place > 0).filter_map(|transit| transit.plain).collect();
        delays.iter_mut().for_each(|delay| *delay -= offset);
        delays.sort_by(f64::total_cmp);
        Some(Delay { min: *delays.first()?, median: delays[delays.len() / 2], max: *delays.last()? })
    });
    let windows = sender.map(|view| view.half(1).windows).filter(|windows| windows.count > 0);
    Character {
        sent_for_s: sender.and_then(span),
        received_for_s: receiver.and_then(span),
        burstiness: sender.and_then(|view| view.half(0).series.burstiness()),
        delay_s: delays,
        window: windows.map(|windows| Window { least: windows.least, most: windows.most, shuts: windows.shuts }),
        sent_again: sender.map(|view| view.half(0).again),
        ending: ends.and_then(|(ends, offset)| ending(ends, offset)),
        series: sender.filter(|_| plots).map(|view| plot(view, ends)),
    }
}

/// Numbers over time; between two ends times are compared by the clocks' offset.
fn plot(sender: &View<'_>, ends: Option<(&Ends<'_>, f64)>) -> Plot {
    let (sent, offered) = (&sender.half(0).series, &sender.half(1).series);
    let ((step_s, from_s), (window_step_s, window_from_s)) = (sent.grid(), offered.grid());
    let received = ends.map(|(ends, offset)| {
        let series = &ends.receiver().half(0).series;
        let (step_s, from_s) = series.grid();
        Received { step_s, from_s: from_s - offset, bytes: series.bytes() }
    });
    let delays = ends.map_or_else(Vec::new, |(ends, offset)| {
        let data = ends.data(0).unwrap_or_default();
        let of = |transit: &Transit| Some((transit.arrived as f64 / 1e9 - transit.plain?, transit.plain? - offset));
        data.iter().filter(|transit| transit.place > 0).filter_map(of).collect()
    });
    Plot { step_s, from_s, bytes: sent.bytes(), window_step_s, window_from_s, window: offered.windows(), received, delays }
}

fn ending(ends: &Ends<'_>, offset: f64) -> Option<Ending> {
    let left = |view: &View<'_>| {
        let half = view.half(1);
        match (half.fin, half.reset) {
            (Some(fin), Some(reset)) if reset < fin => Some((Left::Reset, reset)),
            (Some(fin), _) => Some((Left::Fin, fin)),
            (None, Some(reset)) => Some((Left::Reset, reset)),
            (None, None) => None,
        }
    };
    let (receiver, sender) = (left(ends.receiver()), left(ends.sender()));
    // By the sender's clock.
    let since = |at: i64, then: i64| (at - then) as f64 / 1e9 + offset;
    Some(Ending {
        receiver: receiver.map(|(how, _)| how),
        sender: sender.map(|(how, _)| how),
        later_s: receiver.zip(sender).map(|((_, there), (_, here))| since(here, there)),
        went_on_s: receiver.zip(ends.sender().half(0).last).map(|((_, there), last)| since(last, there).max(0.0)),
    })
}
