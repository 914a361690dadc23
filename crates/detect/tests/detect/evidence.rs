//! Evidence from comparing packets, method by method: of an end-to-end connection and of a split
//! one.

use crate::common::{self, Linked, Middle, Record, Transfer, datagram, of, told};
use detect::{CloseKind, ConnectionFinding, FindingOptions, Indication, Method, SplitVerdict, Strength, TraceConditions, findings};

fn finding(transfer: &Transfer) -> ConnectionFinding {
    transfer.finding(TraceConditions::default())
}

/// All indications of a method about a transfer: for the sender's stream, the receiver's, or both
/// ends.
fn said(transfer: &Transfer, method: Method) -> Vec<(Indication, Strength, f64)> {
    let finding = finding(transfer);
    assert!(finding.evidence.iter().all(|piece| piece.value.is_finite()), "{}", told(&finding));
    let of_it = finding.evidence.iter().filter(|piece| piece.method == method);
    of_it.map(|piece| (piece.says, piece.strength, piece.value)).collect()
}

fn whole() -> Transfer {
    Transfer::default()
}

fn split() -> Transfer {
    Transfer::split(Middle::default())
}

/// A splitter that differs from the ends in one property.
fn with(change: impl Fn(&mut Middle)) -> Transfer {
    let mut middle = Middle::default();
    change(&mut middle);
    Transfer::split(middle)
}

#[test]
fn initial_sequence_numbers() {
    assert_eq!(said(&whole(), Method::Isn), [(Indication::EndToEnd, Strength::Moderate, 0.0)]);
    assert_eq!(said(&split(), Method::Isn), [(Indication::Split, Strength::Moderate, 2.0)]);
    // A firewall changes the sequence numbers of the hosts behind it.
    assert_eq!(said(&Transfer { renumbers: 12_345, ..whole() }, Method::Isn), [(Indication::Split, Strength::Moderate, 1.0)]);
}

#[test]
fn options_of_syns() {
    let says = |transfer: &Transfer| said(transfer, Method::Options);
    assert_eq!(says(&whole()), [(Indication::EndToEnd, Strength::Weak, 0.0)]);
    // Routers clamp the MSS too. No router changes a window scale.
    assert_eq!(says(&with(|middle| middle.mss = 1200)), [(Indication::Split, Strength::Weak, 1.0); 2]);
    assert_eq!(says(&with(|middle| middle.scale = 9)), [(Indication::Split, Strength::Moderate, 1.0); 2]);
    let bare = with(|middle| (middle.timestamps, middle.mss) = (false, 1460));
    assert_eq!(says(&bare), [(Indication::Split, Strength::Moderate, 1.0); 2]);
}

#[test]
fn clocks_of_timestamps() {
    let says = |transfer: &Transfer| said(transfer, Method::TimestampClock).iter().map(|piece| (piece.0, piece.1)).collect::<Vec<_>>();
    assert_eq!(says(&whole()), [(Indication::Nothing, Strength::Weak); 2]);
    assert_eq!(says(&split()), [(Indication::Split, Strength::Moderate); 2]);
    // Segments with timestamps at one end only.
    assert_eq!(says(&with(|middle| middle.timestamps = false)), [(Indication::Split, Strength::Moderate); 2]);
    assert_eq!(says(&Transfer { timestamps: false, ..split() }), []);
}

#[test]
fn hops() {
    assert_eq!(said(&whole(), Method::Ttl), [(Indication::Nothing, Strength::Weak, 7.0); 2]);
    assert_eq!(said(&with(|middle| middle.ttl = 126), Method::Ttl), [(Indication::Split, Strength::Moderate, -62.0); 2]);
    // As far from both ends as they are from each other.
    assert_eq!(said(&split(), Method::Ttl), [(Indication::Nothing, Strength::Weak, 7.0); 2]);
}

#[test]
fn numbers_of_ip_packets() {
    let says = |transfer: &Transfer| said(transfer, Method::IpId);
    assert_eq!(says(&whole()), [(Indication::EndToEnd, Strength::Moderate, 1.0)]);
    assert_eq!(says(&split()), [(Indication::Split, Strength::Weak, 0.0)]);
    // An address translator assigns new IDs to an end-to-end connection, which alone must not count
    // as a split.
    let translated = Transfer { new_ids: true, ..whole() };
    assert_eq!(says(&translated), [(Indication::Split, Strength::Weak, 0.0)]);
    assert_eq!(finding(&translated).verdict, SplitVerdict::EndToEnd);
    // A merged segment has the ID of the first one.
    assert_eq!(says(&Transfer { tso: 10, gro: 3, ..whole() }), [(Indication::EndToEnd, Strength::Moderate, 1.0)]);
    // IPv6 has no IDs, and other positions cannot be compared.
    assert_eq!(says(&Transfer { v6: true, ..whole() }), []);
    assert_eq!(says(&Transfer { bytes: 8_000, ..whole() }), []);
}

#[test]
fn where_segments_begin() {
    let says = |transfer: &Transfer| said(transfer, Method::Segments).iter().map(|piece| (piece.0, piece.1)).collect::<Vec<_>>();
    assert_eq!(says(&whole()), [(Indication::Nothing, Strength::Weak)]);
    assert_eq!(says(&with(|middle| middle.mss = 1200)), [(Indication::Split, Strength::Moderate)]);
    // Two stacks with the same MSS segment alike. Nothing is known about segments that are split on
    // the way.
    assert_eq!(says(&split()), [(Indication::Nothing, Strength::Weak)]);
    assert_eq!(says(&Transfer { tso: 10, ..with(|middle| middle.mss = 1200) }), []);
}

#[test]
fn addresses_and_ports() {
    assert_eq!(said(&whole(), Method::Addresses), []);
    assert_eq!(said(&Transfer { nat: true, ..whole() }, Method::Addresses), [(Indication::Split, Strength::Weak, 1.0)]);
}

#[test]
fn the_handshake_against_data() {
    // The middlebox connects to a server 200 ms away before it answers, then acknowledges data
    // itself.
    let far = |transfer: Transfer| Transfer { uplink: true, near: 0.005, far: 0.2, ..transfer };
    let seen = |transfer: Transfer| {
        let found = finding(&far(transfer));
        let piece = found.evidence.iter().find(|piece| piece.method == Method::Handshake && piece.text.starts_with("at the sender"));
        piece.map(|piece| (piece.says, piece.strength, piece.value < 0.1))
    };
    assert_eq!(seen(whole()), Some((Indication::Nothing, Strength::Weak, false)));
    assert_eq!(seen(split()), Some((Indication::Split, Strength::Weak, true)));
    // A middlebox that answers SYNs itself cannot be detected this way.
    assert_eq!(seen(with(|middle| middle.accepts_first = true)), Some((Indication::Nothing, Strength::Weak, false)));
}

#[test]
fn the_window_that_the_sender_is_offered() {
    let says = |transfer: &Transfer| said(transfer, Method::Window).iter().map(|piece| (piece.0, piece.1)).collect::<Vec<_>>();
    assert_eq!(says(&whole()), [(Indication::Nothing, Strength::Weak)]);
    assert_eq!(says(&with(|middle| middle.shuts = true)), [(Indication::SplitTcp, Strength::Weak)]);
    assert_eq!(says(&with(|middle| middle.holds_all = true)), [(Indication::TcpProxy, Strength::Weak)]);
}

/// A receiver's trace that has the sender's connection as datagrams, with the given bytes per
/// datagram and duration in seconds.
fn through_datagrams(each: u16, seconds: f64) -> ConnectionFinding {
    let transfer = whole();
    let [sent, _] = transfer.records();
    let count = transfer.bytes.div_ceil(1_400);
    let (from, to) = ("198.51.100.1:4500".parse().unwrap(), "10.0.0.2:4500".parse().unwrap());
    let at = |index: u64| ((transfer.begin + seconds * index as f64 / count as f64) * 1e6) as i64 * 1000;
    let came: Vec<Record> = (0..count).map(|index| Record { at: at(index), bytes: datagram(from, to, each, Linked::Ethernet) }).collect();
    let captures = [common::read(&common::pcap(&sent, 101, 65535, true)), common::read(&common::pcap(&came, 1, 65535, false))];
    findings(Some(&captures[0]), Some(&captures[1]), &FindingOptions::default()).remove(0)
}

#[test]
fn datagrams_instead() {
    let tunnel = through_datagrams(1_440, 1.1);
    let piece = of(&tunnel, Method::Transport).unwrap();
    assert_eq!((piece.says, piece.strength), (Indication::Split, Strength::Moderate), "{}", told(&tunnel));
    // A hint that decides nothing alone.
    assert_eq!(tunnel.verdict, SplitVerdict::CannotTell);
    // Much fewer bytes or a much longer time belong to something else.
    for other in [through_datagrams(700, 1.1), through_datagrams(1_440, 9.0)] {
        assert!(of(&other, Method::Transport).is_none(), "{}", told(&other));
    }
}

#[test]
fn how_bursty_the_sender_was() {
    let burstiness = |transfer: &Transfer| finding(transfer).character.burstiness.unwrap();
    let steady = burstiness(&whole());
    assert!(steady.idle < 0.2 && steady.peak_to_mean < 2.0, "{steady:?}");
    // The buffer fills at once, then the transfer follows its draining.
    let bursty = burstiness(&with(|middle| middle.buffer = 300_000));
    assert!(bursty.peak_to_mean > 2.0 * steady.peak_to_mean, "{bursty:?}");
}

#[test]
fn how_it_ended() {
    // The receiver's FIN takes 45 ms. Through a splitter the sender gets one long before the
    // receiver closes.
    let whole = finding(&Transfer { offset: 0.4, ..whole() }).character.ending.unwrap();
    assert_eq!((whole.receiver, whole.sender), (Some(CloseKind::Fin), Some(CloseKind::Fin)));
    assert!((0.03..0.06).contains(&whole.later_s.unwrap()), "{whole:?}");
    let split = finding(&split()).character.ending.unwrap();
    assert!(split.later_s.unwrap() < -1.0, "{split:?}");
}
