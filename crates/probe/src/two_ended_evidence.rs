//! What follows from transfers that both ends have told of, apart from their traces. Pure: reports in, evidence out.

use crate::{
    clock_offset::Offset,
    transfer_record::{Direction, Report, Transferred},
};
use detect::{
    Evidence, Method, Says, Strength,
    text::{bytes, seconds},
};

/// Times of programs are as exact as this, s: they are waked when a processor is free.
const WAKED: f64 = 0.02;
/// Lines of a head that are shown.
const SHOWN: usize = 3;

/// Everything that a transfer's two reports show.
pub(crate) fn evidence(transferred: &Transferred) -> Vec<Evidence> {
    let mut found = Vec::new();
    found.extend(held(transferred));
    found.extend(unseen(transferred));
    if transferred.again {
        found.extend(cached(transferred));
        return found;
    }
    found.extend(carried(transferred));
    found.extend(heads(transferred));
    found.extend(agreed(transferred));
    found.extend(first_byte(transferred));
    found
}

/// The two ends' reports, the sender's first.
fn by_role(transferred: &Transferred) -> (&Report, &Report) {
    match transferred.direction {
        Direction::Down => (&transferred.there, &transferred.here),
        Direction::Up => (&transferred.here, &transferred.there),
    }
}

/// Method 3: the receiver's TCP saw no data for a time that began when the sender said that the first byte was sent; an ACK sooner is not the receiver's.
fn held(transferred: &Transferred) -> Option<Evidence> {
    let held = transferred.hold_s?;
    let (sender, _) = by_role(transferred);
    let what = format!("the receiver let no data in, and acknowledged none, for {} after they were sent", seconds(held));
    let of = |says, strength, value: f64, text| Some(Evidence::new(Method::DelayedAcks, says, strength, (value, "s"), text));
    match sender.acknowledged_s {
        Some(waited) if waited < held => {
            of(Says::Split, Strength::Strong, waited, format!("{what}; the sender had them acknowledged after {}", seconds(waited)))
        }
        // What acknowledges by itself does so within its own round trip. But a middle may wait for the receiver's ACK before it sends its own.
        Some(waited) if held >= 1.0 => of(
            Says::EndToEnd,
            Strength::Moderate,
            waited,
            format!("{what}; the sender had none acknowledged sooner, the first after {}", seconds(waited)),
        ),
        Some(waited) => {
            of(Says::Nothing, Strength::Weak, waited, format!("{what}; the sender had the first acknowledged after {}", seconds(waited)))
        }
        None => None,
    }
}

/// A connection that the prober had, and the responder had not.
fn unseen(transferred: &Transferred) -> Option<Evidence> {
    if transferred.here.connection.is_none() || transferred.there.connection.is_some() || transferred.again {
        return None;
    }
    let text = format!(
        "the prober's connection was accepted, and what it said first did not come to the responder within {} (what was lost looks the same)",
        seconds(transferred.patience_s)
    );
    Some(Evidence::new(Method::FirstByte, Says::TcpProxy, Strength::Moderate, (transferred.patience_s, "s"), text))
}

/// The same request again: whether the responder was asked.
fn cached(transferred: &Transferred) -> Option<Evidence> {
    let (here, there) = (&transferred.here, &transferred.there);
    if !here.whole || here.bytes == 0 {
        return None;
    }
    let text = format!("the same was asked for again: {} bytes came", bytes(here.bytes as f64));
    let of = |says, strength, count: f64, text| Some(Evidence::new(Method::Cache, says, strength, (count, "times asked"), text));
    if there.connection.is_none() {
        of(Says::TcpProxy, Strength::Strong, 0.0, format!("{text}, and the responder was not asked"))
    } else {
        of(Says::Nothing, Strength::Weak, 1.0, format!("{text}, from the responder"))
    }
}

/// Whether what came is what was sent.
fn carried(transferred: &Transferred) -> Option<Evidence> {
    let (sent, came) = by_role(transferred);
    if !sent.whole || came.connection.is_none() {
        return None;
    }
    let of =
        |says, strength, text| Some(Evidence::new(Method::Payload, says, strength, (came.bytes as f64 - sent.bytes as f64, "B"), text));
    let lengths = format!("of {} bytes sent, {} came", bytes(sent.bytes as f64), bytes(came.bytes as f64));
    match (came.whole, sent.bytes == came.bytes, sent.checksum == came.checksum) {
        (true, true, true) => of(Says::Nothing, Strength::Weak, format!("{lengths}, and they are the same")),
        (true, ..) => of(Says::TcpProxy, Strength::Strong, format!("{lengths}, other ones: they were changed")),
        (false, ..) => {
            let why = came.error.as_deref().unwrap_or("the connection ended before");
            of(Says::Nothing, Strength::Weak, format!("{lengths}: it broke off ({why})"))
        }
    }
}

/// Whether the head that came is the one that was sent.
fn heads(transferred: &Transferred) -> Option<Evidence> {
    let (sent, came) = by_role(transferred);
    if sent.head.is_empty() || came.head.is_empty() {
        return None;
    }
    let of = |says, strength, count: usize, text| Some(Evidence::new(Method::Payload, says, strength, (count as f64, "lines"), text));
    if sent.head == came.head {
        return of(Says::Nothing, Strength::Weak, 0, "the head of HTTP came as it was sent".into());
    }
    let only = |one: &Report, other: &Report| -> Vec<String> {
        one.head.lines().filter(|line| !other.head.lines().any(|there| there == *line)).map(|line| format!("`{line}`")).collect()
    };
    let (gone, new) = (only(sent, came), only(came, sent));
    let count = gone.len().max(new.len());
    let list = |lines: &[String]| if lines.is_empty() { "nothing".into() } else { lines[..lines.len().min(SHOWN)].join(", ") };
    of(Says::Split, Strength::Strong, count, format!("the head of HTTP came otherwise: {} came for {}", list(&new), list(&gone)))
}

/// What the two ends' TCPs agreed to: each has the other's window scale.
fn agreed(transferred: &Transferred) -> Option<Evidence> {
    let ((own, other), (its, ours)) = (transferred.here.scales?, transferred.there.scales?);
    let stamps = (transferred.here.timestamps?, transferred.there.timestamps?);
    let mut changed = Vec::new();
    if own != ours {
        changed.push(format!("the prober's window scale is {own}, the responder has {ours}"));
    }
    if its != other {
        changed.push(format!("the responder's window scale is {its}, the prober has {other}"));
    }
    if stamps.0 != stamps.1 {
        changed.push(format!("there are timestamps at the {} alone", if stamps.0 { "prober" } else { "responder" }));
    }
    let of = |says, strength, text| Some(Evidence::new(Method::Options, says, strength, (changed.len() as f64, "changed"), text));
    if changed.is_empty() {
        // Two stacks of the same kind agree to the same.
        of(Says::Nothing, Strength::Weak, format!("both ends' TCPs agreed to the same window scales ({own} and {its}) and timestamps"))
    } else {
        of(Says::Split, Strength::Moderate, changed.join("; "))
    }
}

/// When the first byte came, against the sender's pause between its halves: who takes all before it sends on has nothing to send before that.
fn first_byte(transferred: &Transferred) -> Option<Evidence> {
    let (sent, came) = by_role(transferred);
    let Offset { offset_s, error_s, .. } = transferred.clocks?;
    // The responder's clock is ahead by the offset.
    let ahead = if transferred.direction == Direction::Up { offset_s } else { -offset_s };
    let since = |at: i64, then: i64| at.saturating_sub(then) as f64 / 1e9;
    let waited = since(came.first?, sent.first?) - ahead;
    let paused = since(sent.resumed?, sent.first?);
    let text = format!(
        "the first byte came {} after it was sent, by clocks compared within {}; the second half was sent after {}",
        seconds(waited),
        seconds(error_s),
        seconds(paused)
    );
    let of = |says, strength| Some(Evidence::new(Method::FirstByte, says, strength, (waited, "s"), text.clone()));
    if transferred.hold_s.is_some() || paused < 4.0 * error_s + 5.0 * WAKED {
        return None;
    }
    if waited + error_s + WAKED < paused {
        of(Says::SplitTcp, Strength::Moderate)
    } else if waited >= paused {
        // It takes the way besides, which is as long as the clocks' error; and a queue as long as the pause is not to be expected.
        of(Says::TcpProxy, Strength::Moderate)
    } else {
        of(Says::Nothing, Strength::Weak)
    }
}

/// A responder that let no SYN in for `deaf_s`, and a SYN that was answered after `answered_s`, if it was.
pub(crate) fn deaf(deaf_s: f64, answered_s: Option<f64>) -> Option<Evidence> {
    let what = format!("the responder let no SYN in for {}", seconds(deaf_s));
    let of = |says, strength, value, text| Some(Evidence::new(Method::HeldSyn, says, strength, (value, "s"), text));
    match answered_s {
        Some(after) if after < deaf_s => {
            let text = format!("{what}; one was answered after {} (guards against SYN floods do that, too)", seconds(after));
            of(Says::Split, Strength::Moderate, after, text)
        }
        // A middle may ask the host before it answers.
        Some(after) => {
            of(Says::Nothing, Strength::Weak, after, format!("{what}; none was answered sooner, the first after {}", seconds(after)))
        }
        None => of(Says::Nothing, Strength::Weak, deaf_s, format!("{what}; none was answered at all")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer_record::Application;
    use proptest::prelude::*;

    const MS: i64 = 1_000_000;

    /// A transfer from end to end: half a second's pause, ten milliseconds each way.
    fn transfer(direction: Direction) -> Transferred {
        let ends = Some(["10.0.0.1:40000".parse().unwrap(), "10.0.0.2:80".parse().unwrap()]);
        let both = Report {
            connection: ends,
            head: "GET / HTTP/1.1\r\nHost: x\r\n\r\n".into(),
            bytes: 1000,
            checksum: 7,
            whole: true,
            scales: Some((7, 9)),
            timestamps: Some(true),
            ..Report::default()
        };
        let sent = Report { first: Some(1000 * MS), resumed: Some(1500 * MS), last: Some(1501 * MS), ..both.clone() };
        let came = Report { first: Some(1010 * MS), last: Some(1511 * MS), scales: Some((9, 7)), ..both };
        let (here, there) = if direction == Direction::Up { (sent, came) } else { (came, sent) };
        Transferred {
            application: Application::HttpData,
            direction,
            port: 80,
            again: false,
            hold_s: None,
            patience_s: 5.0,
            clocks: Some(Offset { offset_s: 0.0, error_s: 0.01, round_trip_s: 0.02, exchanges: 12 }),
            here,
            there,
        }
    }

    fn speaks(transferred: &Transferred) -> Vec<(Method, Says, Strength)> {
        let pieces = evidence(transferred);
        pieces.iter().filter(|piece| piece.says != Says::Nothing).map(|piece| (piece.method, piece.says, piece.strength)).collect()
    }

    const SPLIT_TCP: (Method, Says, Strength) = (Method::FirstByte, Says::SplitTcp, Strength::Moderate);

    #[test]
    fn what_comes_as_it_was_sent_speaks_for_nothing() {
        for direction in [Direction::Up, Direction::Down] {
            assert_eq!(speaks(&transfer(direction)), [SPLIT_TCP]);
        }
    }

    #[test]
    fn bytes_and_heads_that_were_changed_do() {
        let mut changed = transfer(Direction::Up);
        changed.there.checksum = 8;
        changed.there.head = "GET / HTTP/1.1\r\nHost: x\r\nVia: 1.1 y\r\n\r\n".into();
        let expected = [(Method::Payload, Says::TcpProxy, Strength::Strong), (Method::Payload, Says::Split, Strength::Strong), SPLIT_TCP];
        assert_eq!(speaks(&changed), expected);
        assert!(evidence(&changed).iter().any(|piece| piece.text.contains("`Via: 1.1 y` came for nothing")));
        // What broke off was not changed.
        changed.there = Report { whole: false, bytes: 500, head: changed.here.head.clone(), ..changed.there };
        assert_eq!(speaks(&changed), [SPLIT_TCP]);
    }

    #[test]
    fn other_stacks_in_the_middle_agree_to_other_scales() {
        let mut other = transfer(Direction::Down);
        other.there.scales = Some((9, 8));
        assert_eq!(speaks(&other), [(Method::Options, Says::Split, Strength::Moderate), SPLIT_TCP]);
    }

    #[test]
    fn a_cache_does_not_ask_again() {
        let mut again = Transferred { again: true, ..transfer(Direction::Down) };
        assert_eq!(speaks(&again), []);
        again.there = Report { error: Some("the connection did not come".into()), ..Report::default() };
        assert_eq!(speaks(&again), [(Method::Cache, Says::TcpProxy, Strength::Strong)]);
    }

    #[test]
    fn who_answers_for_a_deaf_host_is_another() {
        let said = |answered| deaf(1.5, answered).map(|piece| (piece.says, piece.strength));
        assert_eq!(said(Some(0.01)), Some((Says::Split, Strength::Moderate)));
        assert_eq!(said(Some(3.0)), Some((Says::Nothing, Strength::Weak)));
        assert_eq!(said(None), Some((Says::Nothing, Strength::Weak)));
    }

    proptest! {
        /// Method 3 needs no clock that both have.
        #[test]
        fn acks_sooner_than_they_are_held_are_anothers(held in 1.0f64..10.0, waited in 0.001f64..30.0, up in any::<bool>()) {
            let mut one = Transferred { hold_s: Some(held), ..transfer(if up { Direction::Up } else { Direction::Down }) };
            let sender = if up { &mut one.here } else { &mut one.there };
            sender.acknowledged_s = Some(waited);
            let expected = if waited < held { (Says::Split, Strength::Strong) } else { (Says::EndToEnd, Strength::Moderate) };
            let found = held_of(&one);
            prop_assert_eq!(found, Some(expected));
        }

        /// However wrong the offset is within its bound, the kind is right or not told.
        #[test]
        fn the_kind_is_never_wrong_within_the_clocks_bound(
            stores in any::<bool>(), way in 1i64..300, offset in -3000i64..3000, wrong in -1.0f64..1.0, error in 1i64..300, up in any::<bool>(),
        ) {
            let direction = if up { Direction::Up } else { Direction::Down };
            let mut one = transfer(direction);
            // Both ways are at least as long as the error: the bound is half of both.
            let error = error.min(way);
            let first = if stores { 1500 + way } else { 1000 + way };
            let (sent, came) = if up { (&mut one.here, &mut one.there) } else { (&mut one.there, &mut one.here) };
            let (theirs, ours) = if up { (0, offset) } else { (offset, 0) };
            for at in [&mut sent.first, &mut sent.resumed] {
                *at = at.map(|at| at + theirs * MS);
            }
            came.first = Some((first + ours) * MS);
            let offset_s = (offset as f64 + wrong * error as f64) / 1e3;
            one.clocks = Some(Offset { offset_s, error_s: error as f64 / 1e3, round_trip_s: 0.0, exchanges: 1 });
            let said = first_byte(&one).map(|piece| piece.says);
            // Who stores is at least as late as the pause; who does not may be, over a long way.
            let never = if stores { Says::SplitTcp } else { Says::TcpProxy };
            prop_assert_ne!(said, Some(never));
        }
    }

    fn held_of(one: &Transferred) -> Option<(Says, Strength)> {
        held(one).map(|piece| (piece.says, piece.strength))
    }
}
