//! Evidence from the reports of both ends about a transfer, apart from their traces. Pure: reports
//! in, evidence out.

use crate::{
    clock_offset::ClockOffset,
    transfer_record::{TransferDirection, TransferRecord, TransferReport},
};
use detect::{
    Evidence, Indication, Method, Strength,
    text::{bytes, seconds},
};

/// Scheduling delay of a process, s. It bounds the accuracy of times taken in user space.
const WAKED: f64 = 0.02;
/// Number of header lines shown.
const SHOWN: usize = 3;

/// All evidence from the two reports of a transfer.
pub(crate) fn evidence(transferred: &TransferRecord) -> Vec<Evidence> {
    let mut found = Vec::new();
    found.extend(held_acks(transferred));
    found.extend(never_arrived(transferred));
    if transferred.again {
        found.extend(cached(transferred));
        return found;
    }
    found.extend(payload_integrity(transferred));
    found.extend(http_heads(transferred));
    found.extend(negotiated_options(transferred));
    found.extend(first_byte(transferred));
    found
}

/// The two reports, the sender's first.
fn by_role(transferred: &TransferRecord) -> (&TransferReport, &TransferReport) {
    match transferred.direction {
        TransferDirection::Down => (&transferred.there, &transferred.here),
        TransferDirection::Up => (&transferred.here, &transferred.there),
    }
}

/// Wei et al. §III-A, method 3: the receiver's TCP saw no data for a known time after the sender
/// sent them. An earlier ACK is not the receiver's.
fn held_acks(transferred: &TransferRecord) -> Option<Evidence> {
    let held = transferred.hold_s?;
    let (sender, _) = by_role(transferred);
    let what = format!("the receiver acknowledged no data for {} after they were sent", seconds(held));
    let of = |says, strength, value: f64, text| Some(Evidence::new(Method::DelayedAcks, says, strength, (value, "s"), text));
    match sender.acknowledged_s {
        Some(waited) if waited < held => {
            of(Indication::Split, Strength::Strong, waited, format!("{what}, but the sender got an ACK after {}", seconds(waited)))
        }
        // A splitter normally acknowledges within its own round trip. It may also wait for the
        // receiver's ACK.
        Some(waited) if held >= 1.0 => of(
            Indication::EndToEnd,
            Strength::Moderate,
            waited,
            format!("{what}; the sender got no earlier ACK, the first after {}", seconds(waited)),
        ),
        Some(waited) => {
            of(Indication::Nothing, Strength::Weak, waited, format!("{what}; the sender got its first ACK after {}", seconds(waited)))
        }
        None => None,
    }
}

/// A connection that was accepted and never arrived at the responder.
fn never_arrived(transferred: &TransferRecord) -> Option<Evidence> {
    if transferred.here.connection.is_none() || transferred.there.connection.is_some() || transferred.again {
        return None;
    }
    let text = format!(
        "the prober's connection was accepted, but its first data did not reach the responder within {} (packet loss looks the same)",
        seconds(transferred.patience_s)
    );
    Some(Evidence::new(Method::FirstByte, Indication::TcpProxy, Strength::Moderate, (transferred.patience_s, "s"), text))
}

/// A repeated request: whether it reached the responder.
fn cached(transferred: &TransferRecord) -> Option<Evidence> {
    let (here, there) = (&transferred.here, &transferred.there);
    if !here.whole || here.bytes == 0 {
        return None;
    }
    let text = format!("the request was repeated: {} bytes arrived", bytes(here.bytes as f64));
    let of = |says, strength, count: f64, text| Some(Evidence::new(Method::Cache, says, strength, (count, "times asked"), text));
    if there.connection.is_none() {
        of(Indication::TcpProxy, Strength::Strong, 0.0, format!("{text}, and the responder was not asked"))
    } else {
        of(Indication::Nothing, Strength::Weak, 1.0, format!("{text}, from the responder"))
    }
}

/// Whether the payload arrived unchanged.
fn payload_integrity(transferred: &TransferRecord) -> Option<Evidence> {
    let (sent, came) = by_role(transferred);
    if !sent.whole || came.connection.is_none() {
        return None;
    }
    let of =
        |says, strength, text| Some(Evidence::new(Method::Payload, says, strength, (came.bytes as f64 - sent.bytes as f64, "B"), text));
    let lengths = format!("of {} bytes sent, {} arrived", bytes(sent.bytes as f64), bytes(came.bytes as f64));
    match (came.whole, sent.bytes == came.bytes, sent.checksum == came.checksum) {
        (true, true, true) => of(Indication::Nothing, Strength::Weak, format!("{lengths} unchanged")),
        (true, ..) => of(Indication::TcpProxy, Strength::Strong, format!("{lengths}, with changed content")),
        (false, ..) => {
            let why = came.error.as_deref().unwrap_or("the connection ended early");
            of(Indication::Nothing, Strength::Weak, format!("{lengths}: the transfer failed ({why})"))
        }
    }
}

/// Whether the HTTP head arrived unchanged.
fn http_heads(transferred: &TransferRecord) -> Option<Evidence> {
    let (sent, came) = by_role(transferred);
    if sent.head.is_empty() || came.head.is_empty() {
        return None;
    }
    let of = |says, strength, count: usize, text| Some(Evidence::new(Method::Payload, says, strength, (count as f64, "lines"), text));
    if sent.head == came.head {
        return of(Indication::Nothing, Strength::Weak, 0, "the HTTP head arrived unchanged".into());
    }
    let only = |one: &TransferReport, other: &TransferReport| -> Vec<String> {
        one.head.lines().filter(|line| !other.head.lines().any(|there| there == *line)).map(|line| format!("`{line}`")).collect()
    };
    let (gone, new) = (only(sent, came), only(came, sent));
    let count = gone.len().max(new.len());
    let list = |lines: &[String]| if lines.is_empty() { "nothing".into() } else { lines[..lines.len().min(SHOWN)].join(", ") };
    of(Indication::Split, Strength::Strong, count, format!("the HTTP head was changed: {} replaced {}", list(&new), list(&gone)))
}

/// Compares the negotiated options: each end knows the other's window scale.
fn negotiated_options(transferred: &TransferRecord) -> Option<Evidence> {
    let ((own, other), (its, ours)) = (transferred.here.scales?, transferred.there.scales?);
    let stamps = (transferred.here.timestamps?, transferred.there.timestamps?);
    let mut changed = Vec::new();
    if own != ours {
        changed.push(format!("the prober's window scale is {own}, the responder negotiated {ours}"));
    }
    if its != other {
        changed.push(format!("the responder's window scale is {its}, the prober negotiated {other}"));
    }
    if stamps.0 != stamps.1 {
        changed.push(format!("only the {} negotiated timestamps", if stamps.0 { "prober" } else { "responder" }));
    }
    let of = |says, strength, text| Some(Evidence::new(Method::Options, says, strength, (changed.len() as f64, "changed"), text));
    if changed.is_empty() {
        // Two stacks of the same kind choose the same options.
        of(Indication::Nothing, Strength::Weak, format!("both ends negotiated the same window scales ({own} and {its}) and timestamps"))
    } else {
        of(Indication::Split, Strength::Moderate, changed.join("; "))
    }
}

/// Whether the first byte arrived as late as from a middlebox that stores the data first.
pub(crate) fn holds_data(transferred: &TransferRecord) -> bool {
    first_byte(transferred).is_some_and(|evidence| evidence.says == Indication::TcpProxy)
}

/// Compares the arrival of the first byte with the sender's pause. A middlebox that holds the data
/// until they are complete has nothing to forward before the pause ends.
fn first_byte(transferred: &TransferRecord) -> Option<Evidence> {
    let (sent, came) = by_role(transferred);
    let ClockOffset { offset_s, error_s, .. } = transferred.clocks?;
    // The responder's clock is ahead by the offset.
    let ahead = if transferred.direction == TransferDirection::Up { offset_s } else { -offset_s };
    let since = |at: i64, then: i64| at.saturating_sub(then) as f64 / 1e9;
    let waited = since(came.first?, sent.first?) - ahead;
    let paused = since(sent.resumed?, sent.first?);
    let text = format!(
        "the first byte arrived {} after it was sent, by clocks compared to within {}; the second half was sent after {}",
        seconds(waited),
        seconds(error_s),
        seconds(paused)
    );
    let of = |says, strength| Some(Evidence::new(Method::FirstByte, says, strength, (waited, "s"), text.clone()));
    if transferred.hold_s.is_some() || paused < 4.0 * error_s + 5.0 * WAKED {
        return None;
    }
    if waited + error_s + WAKED < paused {
        of(Indication::SplitTcp, Strength::Moderate)
    } else if waited >= paused {
        // The transit time, which is at least the error of the clocks, comes on top. A queueing
        // delay as long as the pause is implausible, and the prober repeats such a transfer.
        of(Indication::TcpProxy, Strength::Moderate)
    } else {
        of(Indication::Nothing, Strength::Weak)
    }
}

/// Evidence from a responder that dropped SYNs for `deaf_s` and a SYN that was answered after
/// `answered_s`, both s.
pub(crate) fn blocked_syn(deaf_s: f64, answered_s: Option<f64>) -> Option<Evidence> {
    let what = format!("the responder dropped SYNs for {}", seconds(deaf_s));
    let of = |says, strength, value, text| Some(Evidence::new(Method::HeldSyn, says, strength, (value, "s"), text));
    match answered_s {
        Some(after) if after < deaf_s => {
            let text = format!("{what}, but one was answered after {} (a SYN-flood guard does that too)", seconds(after));
            of(Indication::Split, Strength::Moderate, after, text)
        }
        // A middlebox may connect to the host before it answers.
        Some(after) => {
            of(Indication::Nothing, Strength::Weak, after, format!("{what}; none was answered earlier, the first after {}", seconds(after)))
        }
        None => of(Indication::Nothing, Strength::Weak, deaf_s, format!("{what}; none was answered")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer_record::Application;
    use proptest::prelude::*;

    const MS: i64 = 1_000_000;

    /// An end-to-end transfer with a pause of 0.5 s and a transit time of 10 ms.
    fn transfer(direction: TransferDirection) -> TransferRecord {
        let ends = Some(["10.0.0.1:40000".parse().unwrap(), "10.0.0.2:80".parse().unwrap()]);
        let both = TransferReport {
            connection: ends,
            head: "GET / HTTP/1.1\r\nHost: x\r\n\r\n".into(),
            bytes: 1000,
            checksum: 7,
            whole: true,
            scales: Some((7, 9)),
            timestamps: Some(true),
            ..TransferReport::default()
        };
        let sent = TransferReport { first: Some(1000 * MS), resumed: Some(1500 * MS), last: Some(1501 * MS), ..both.clone() };
        let came = TransferReport { first: Some(1010 * MS), last: Some(1511 * MS), scales: Some((9, 7)), ..both };
        let (here, there) = if direction == TransferDirection::Up { (sent, came) } else { (came, sent) };
        TransferRecord {
            application: Application::HttpData,
            direction,
            port: 80,
            again: false,
            hold_s: None,
            patience_s: 5.0,
            clocks: Some(ClockOffset { offset_s: 0.0, error_s: 0.01, round_trip_s: 0.02, exchanges: 12 }),
            here,
            there,
        }
    }

    fn speaks(transferred: &TransferRecord) -> Vec<(Method, Indication, Strength)> {
        let pieces = evidence(transferred);
        pieces.iter().filter(|piece| piece.says != Indication::Nothing).map(|piece| (piece.method, piece.says, piece.strength)).collect()
    }

    const SPLIT_TCP: (Method, Indication, Strength) = (Method::FirstByte, Indication::SplitTcp, Strength::Moderate);

    #[test]
    fn unchanged_transfers_are_neutral() {
        for direction in [TransferDirection::Up, TransferDirection::Down] {
            assert_eq!(speaks(&transfer(direction)), [SPLIT_TCP]);
        }
    }

    #[test]
    fn changed_content_and_heads_indicate_a_split() {
        let mut changed = transfer(TransferDirection::Up);
        changed.there.checksum = 8;
        changed.there.head = "GET / HTTP/1.1\r\nHost: x\r\nVia: 1.1 y\r\n\r\n".into();
        let expected =
            [(Method::Payload, Indication::TcpProxy, Strength::Strong), (Method::Payload, Indication::Split, Strength::Strong), SPLIT_TCP];
        assert_eq!(speaks(&changed), expected);
        assert!(evidence(&changed).iter().any(|piece| piece.text.contains("`Via: 1.1 y` replaced nothing")));
        // An interrupted transfer is not a changed one.
        changed.there = TransferReport { whole: false, bytes: 500, head: changed.here.head.clone(), ..changed.there };
        assert_eq!(speaks(&changed), [SPLIT_TCP]);
    }

    #[test]
    fn a_middlebox_negotiates_other_window_scales() {
        let mut other = transfer(TransferDirection::Down);
        other.there.scales = Some((9, 8));
        assert_eq!(speaks(&other), [(Method::Options, Indication::Split, Strength::Moderate), SPLIT_TCP]);
    }

    #[test]
    fn a_cache_answers_the_repeated_request() {
        let mut again = TransferRecord { again: true, ..transfer(TransferDirection::Down) };
        assert_eq!(speaks(&again), []);
        again.there = TransferReport { error: Some("the data connection did not arrive".into()), ..TransferReport::default() };
        assert_eq!(speaks(&again), [(Method::Cache, Indication::TcpProxy, Strength::Strong)]);
    }

    #[test]
    fn an_answer_while_syns_are_dropped_indicates_a_split() {
        let said = |answered| blocked_syn(1.5, answered).map(|piece| (piece.says, piece.strength));
        assert_eq!(said(Some(0.01)), Some((Indication::Split, Strength::Moderate)));
        assert_eq!(said(Some(3.0)), Some((Indication::Nothing, Strength::Weak)));
        assert_eq!(said(None), Some((Indication::Nothing, Strength::Weak)));
    }

    proptest! {
        /// Method 3 needs no common clock.
        #[test]
        fn acks_before_the_hold_ends_indicate_a_split(held in 1.0f64..10.0, waited in 0.001f64..30.0, up in any::<bool>()) {
            let mut one = TransferRecord { hold_s: Some(held), ..transfer(if up { TransferDirection::Up } else { TransferDirection::Down }) };
            let sender = if up { &mut one.here } else { &mut one.there };
            sender.acknowledged_s = Some(waited);
            let expected = if waited < held { (Indication::Split, Strength::Strong) } else { (Indication::EndToEnd, Strength::Moderate) };
            let found = held_says(&one);
            prop_assert_eq!(found, Some(expected));
        }

        /// If the offset is within its bound, the kind of split is right or not decided.
        #[test]
        fn the_kind_is_never_wrong_within_the_clock_bound(
            stores in any::<bool>(), way in 1i64..300, offset in -3000i64..3000, wrong in -1.0f64..1.0, error in 1i64..300, up in any::<bool>(),
        ) {
            let direction = if up { TransferDirection::Up } else { TransferDirection::Down };
            let mut one = transfer(direction);
            // Both transit times are at least the error, which is half their sum.
            let error = error.min(way);
            let first = if stores { 1500 + way } else { 1000 + way };
            let (sent, came) = if up { (&mut one.here, &mut one.there) } else { (&mut one.there, &mut one.here) };
            let (theirs, ours) = if up { (0, offset) } else { (offset, 0) };
            for at in [&mut sent.first, &mut sent.resumed] {
                *at = at.map(|at| at + theirs * MS);
            }
            came.first = Some((first + ours) * MS);
            let offset_s = (offset as f64 + wrong * error as f64) / 1e3;
            one.clocks = Some(ClockOffset { offset_s, error_s: error as f64 / 1e3, round_trip_s: 0.0, exchanges: 1 });
            let said = first_byte(&one).map(|piece| piece.says);
            prop_assert_eq!(holds_data(&one), said == Some(Indication::TcpProxy));
            // A middlebox that holds data is at least as late as the pause. Without one, a long
            // path may be.
            let never = if stores { Indication::SplitTcp } else { Indication::TcpProxy };
            prop_assert_ne!(said, Some(never));
        }
    }

    fn held_says(one: &TransferRecord) -> Option<(Indication, Strength)> {
        held_acks(one).map(|piece| (piece.says, piece.strength))
    }
}
