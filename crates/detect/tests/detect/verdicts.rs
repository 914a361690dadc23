//! Generated transfers, end to end and split, captured in every way that occurs: the verdict and
//! the methods behind it.

use crate::common::{self, Linked, Middle, Transfer, fires, of, told};
use detect::{
    CaptureFile, ConnectionFinding, FindingOptions, Indication, MatchedBy, Method, SplitVerdict, Strength, TraceConditions, findings,
};
use std::path::Path;

fn verdict(transfer: &Transfer) -> SplitVerdict {
    transfer.finding(TraceConditions::default()).verdict
}

/// Both kinds of path, in both directions.
fn paths() -> Vec<(Transfer, SplitVerdict)> {
    let mut paths = Vec::new();
    for uplink in [false, true] {
        paths.push((Transfer { uplink, ..Transfer::default() }, SplitVerdict::EndToEnd));
        for accepts_first in [false, true] {
            let middle = Middle { accepts_first, ..Middle::default() };
            paths.push((Transfer { uplink, ..Transfer::split(middle) }, SplitVerdict::SplitTcp));
        }
        let middle = Middle { holds_all: true, ..Middle::default() };
        paths.push((Transfer { uplink, rate: 400e3, ..Transfer::split(middle) }, SplitVerdict::TcpProxy));
    }
    paths
}

/// Checks all paths after `change`.
fn all(change: impl Fn(Transfer) -> Transfer) {
    for (path, expected) in paths() {
        let transfer = change(path);
        let finding = transfer.finding(TraceConditions::default());
        assert_eq!(finding.verdict, expected, "{transfer:?}\n{}", told(&finding));
    }
}

#[test]
fn each_path_is_what_it_is() {
    all(|path| path);
}

#[test]
fn clocks_may_be_off_and_drift() {
    for (offset, drift) in [(1.0, 100e-6), (-1.0, -100e-6), (-1.0, 100e-6)] {
        all(|path| Transfer { offset, drift, ..path });
    }
}

#[test]
fn behind_nat() {
    all(|path| Transfer { nat: true, ..path });
}

#[test]
fn behind_a_firewall_that_renumbers() {
    all(|path| Transfer { renumbers: 123_456_789, ..path });
    // Changed sequence numbers do not look like another host's ACKs if the handshake is missing.
    for timestamps in [true, false] {
        for uplink in [false, true] {
            let transfer = Transfer { renumbers: 123_456_789, late: [200, 40], timestamps, uplink, ..Transfer::default() };
            let finding = transfer.finding(TraceConditions::default());
            assert!(matches!(finding.verdict, SplitVerdict::EndToEnd | SplitVerdict::CannotTell), "{transfer:?}\n{}", told(&finding));
        }
    }
}

#[test]
fn behind_a_translator_that_gives_ip_ids_anew() {
    // From IPv4 to IPv4, and between IPv4 and IPv6, which has no IDs. Without timestamps nothing
    // else distinguishes ACKs with equal sequence numbers and windows.
    for translated in [false, true] {
        for (path, expected) in paths() {
            let transfer = Transfer { timestamps: false, new_ids: true, v6: translated, v4_inside: translated, ..path };
            let finding = transfer.finding(TraceConditions::default());
            if expected == SplitVerdict::EndToEnd {
                let acks = of(&finding, Method::Acknowledgements).filter(|piece| piece.says != Indication::Nothing);
                assert!(acks.is_none(), "{transfer:?}\n{}", told(&finding));
            }
            assert_eq!(finding.verdict, expected, "{transfer:?}\n{}", told(&finding));
        }
    }
}

#[test]
fn in_large_pieces() {
    all(|path| Transfer { tso: 44, gro: 12, ..path });
}

#[test]
fn headers_alone() {
    all(|path| Transfer { snaplen: 96, ..path });
}

#[test]
fn segments_cut_short_of_pieces_of_other_sizes() {
    // The recorded part of a merged segment is not where the receiver's segments begin.
    for (snaplen, tso, gro) in [(256, 44, 1), (256, 1, 44), (400, 10, 1), (1000, 44, 2)] {
        all(|path| Transfer { snaplen, tso, gro, ..path });
    }
}

#[test]
fn captures_that_lose_records() {
    all(|path| Transfer { loses: 50, ..path });
}

#[test]
fn without_timestamps() {
    all(|path| Transfer { timestamps: false, ..path });
}

#[test]
fn every_link_and_ipv6() {
    for links in [[Linked::Vlan, Linked::Cooked], [Linked::Cooked2, Linked::Raw]] {
        all(|path| Transfer { links, v6: true, ..path });
    }
}

#[test]
fn captures_that_begin_late() {
    // The handshake is missing at both ends.
    for late in [[200, 40], [40, 200]] {
        for (path, expected) in paths() {
            let transfer = Transfer { late, ..path };
            let finding = transfer.finding(TraceConditions::default());
            // Nothing shows whether the middlebox held everything before the trace begins.
            let kind = if expected == SplitVerdict::TcpProxy { SplitVerdict::SplitTcp } else { expected };
            assert!(finding.verdict == expected || finding.verdict == kind, "{transfer:?}\n{}", told(&finding));
        }
    }
}

#[test]
fn what_a_capture_lost_of_a_short_stream_was_there() {
    // Two segments, of which a capture may miss one. The FIN shows the length of the stream.
    for content in 0..60 {
        let transfer = Transfer { bytes: 2_896, loses: 4, content, ..Transfer::default() };
        let finding = transfer.finding(TraceConditions::default());
        let changed = of(&finding, Method::Payload).filter(|piece| piece.says != Indication::Nothing);
        assert!(changed.is_none(), "{}", told(&finding));
    }
}

#[test]
fn the_last_segments_show_whose_numbers_they_are() {
    for (path, expected) in paths() {
        // The sender's capture has only the FINs.
        let late = [path.records()[0].len() - 3, 0];
        let finding = Transfer { late, ..path }.finding(TraceConditions::default());
        let split = matches!(finding.verdict, SplitVerdict::SplitTcp | SplitVerdict::TcpProxy);
        assert_eq!(split, expected != SplitVerdict::EndToEnd, "{}", told(&finding));
        assert!(of(&finding, Method::Isn).is_some(), "{}", told(&finding));
    }
}

#[test]
fn traces_given_the_other_way_round() {
    for (path, expected) in paths() {
        let [one, two] = path.captures();
        let found = findings(Some(&two), Some(&one), &FindingOptions::default());
        assert_eq!(found[0].verdict, expected, "{}", told(&found[0]));
        assert!(found[0].reason.contains("the other way round"), "{}", found[0].reason);
    }
}

/// The confusion matrix of the methods: what each detects end to end (never anything), on downlinks
/// and on uplinks.
#[test]
fn passive_methods_see_downlinks_and_delayed_acks_show_uplinks() {
    let known = TraceConditions { synchronised_s: Some(0.001), ack_delay_s: None };
    let sees = |transfer: &Transfer, known: TraceConditions| {
        let finding = transfer.finding(known);
        [Method::SynchronisedClocks, Method::FixedOffset, Method::DelayedAcks].map(|method| fires(&finding, method))
    };
    // Downlink: a fast near leg, and a slow far one whose queue grows.
    let down = Transfer::split(Middle { far_rate: 100e3, buffer: 300_000, ..Middle::default() });
    // Uplink: the near leg is slow and has the long round trip. The far leg drains everything at
    // once.
    let up =
        Transfer { uplink: true, rate: 100e3, near: 0.06, far: 0.01, ..Transfer::split(Middle { far_rate: 10e6, ..Middle::default() }) };
    for (uplink, rate, near, far) in [(false, 1e6, 0.005, 0.04), (true, 100e3, 0.06, 0.01)] {
        let whole = Transfer { uplink, rate, near, far, ..Transfer::default() };
        assert_eq!(sees(&whole, known), [false, false, false]);
        // Not even if the receiver delays its ACKs.
        assert_eq!(sees(&Transfer { ack_delay: 2.0, ..whole }, known), [false, false, false]);
    }
    assert_eq!(sees(&down, known), [true, true, false]);
    assert_eq!(sees(&up, known), [false, false, false]);
    assert_eq!(sees(&Transfer { ack_delay: 2.0, ..up.clone() }, known), [true, true, true]);
    // Method 1 must be told that the clocks agree. Method 2 need not be, and drift does not mislead
    // it.
    let off = Transfer { offset: -0.7, drift: 100e-6, ..down };
    assert_eq!(sees(&off, TraceConditions::default()), [false, true, false]);
}

#[test]
fn one_clock_shows_a_short_hold() {
    // Held for 70 ms, on a path of 45 ms.
    let said = |holds_all: bool, known: TraceConditions| {
        let middle = Middle { holds_all, ..Middle::default() };
        Transfer { bytes: 300_000, rate: 4.3e6, ..Transfer::split(middle) }.finding(known).verdict
    };
    let known = TraceConditions { synchronised_s: Some(0.001), ack_delay_s: None };
    assert_eq!([said(true, known), said(false, known)], [SplitVerdict::TcpProxy, SplitVerdict::SplitTcp]);
    assert_eq!(said(true, TraceConditions::default()), SplitVerdict::SplitTcp);
}

#[test]
fn method_2_bounds_offset_and_drift() {
    let transfer = Transfer { offset: 0.75, drift: 80e-6, bytes: 20_000_000, ..Transfer::default() };
    let clocks = transfer.finding(TraceConditions::default()).clocks.unwrap();
    assert!((clocks.offset_s - 0.75).abs() <= clocks.error_s, "{clocks:?}");
    assert!((0.085..0.095).contains(&clocks.least_round_trip_s), "{clocks:?}");
    assert!((clocks.drift_ppm - 80.0).abs() < 60.0 && (clocks.drift_ppm - 80.0).abs() <= clocks.drift_error_ppm, "{clocks:?}");
}

#[test]
fn delays_are_those_of_the_path() {
    for uplink in [false, true] {
        let delay = Transfer { uplink, offset: -0.3, ..Transfer::default() }.finding(TraceConditions::default()).character.delay_s.unwrap();
        // 45 ms, and up to 2 ms of jitter.
        assert!((0.044..0.047).contains(&delay.min) && (0.044..0.048).contains(&delay.max), "{delay:?}");
        // Behind a queue that grows to 4 s.
        let delay = Transfer { uplink, offset: -0.3, ..Transfer::split(Middle::default()) }
            .finding(TraceConditions::default())
            .character
            .delay_s
            .unwrap();
        assert!((0.03..0.07).contains(&delay.min) && (3.8..4.2).contains(&delay.max), "{delay:?}");
    }
}

#[test]
fn the_number_of_method_2_is_that_of_the_trace() {
    // At 1 MB/s in and 100 kB/s out, byte b waits 9 b / 1e6 s. The last ACK of 1 MB is 9 s early,
    // minus the far leg's delay.
    let transfer = Transfer { offset: -0.4, ..Transfer::split(Middle { far_rate: 100e3, ..Middle::default() }) };
    let finding = transfer.finding(TraceConditions::default());
    let piece = of(&finding, Method::FixedOffset).unwrap();
    assert!((8.8..9.1).contains(&piece.value), "{piece:?}");
    assert!(piece.text.contains("before the receiver sent it") && piece.text.contains('%'), "{piece:?}");
}

#[test]
fn method_3_needs_one_end_alone() {
    let known = TraceConditions { synchronised_s: None, ack_delay_s: Some(2.0) };
    for (middle, expected) in [(None, SplitVerdict::EndToEnd), (Some(Middle::default()), SplitVerdict::SplitTcp)] {
        let transfer = Transfer { middle, ack_delay: 2.0, ..Transfer::default() };
        let [sender, _] = transfer.captures();
        let found = findings(Some(&sender), None, &FindingOptions { known, series: false });
        assert_eq!(found[0].verdict, expected, "{}", told(&found[0]));
        // Without it, one end alone cannot tell.
        let found = findings(Some(&sender), None, &FindingOptions::default());
        assert_eq!(found[0].verdict, SplitVerdict::CannotTell, "{}", told(&found[0]));
    }
}

#[test]
fn a_middle_that_changes_bytes_is_a_proxy() {
    let transfer = Transfer::split(Middle { shrinks: Some(10), ..Middle::default() });
    let finding = transfer.finding(TraceConditions::default());
    assert_eq!(finding.verdict, SplitVerdict::TcpProxy);
    let piece = of(&finding, Method::Payload).unwrap();
    assert_eq!((piece.says, piece.strength, piece.value), (Indication::TcpProxy, Strength::Strong, -900_000.0));
}

#[test]
fn a_header_written_anew_makes_no_proxy() {
    // A request through an HTTP proxy: a few hundred changed bytes, with nothing held in either
    // direction.
    let transfer = Transfer { bytes: 3_000, ..Transfer::split(Middle { shrinks: Some(2), ..Middle::default() }) };
    let finding = transfer.finding(TraceConditions::default());
    assert_eq!(finding.verdict, SplitVerdict::SplitTcp, "{}", told(&finding));
    let piece = of(&finding, Method::Payload).unwrap();
    assert_eq!((piece.says, piece.strength, piece.value), (Indication::Split, Strength::Strong, -1500.0));
}

#[test]
fn a_few_bytes_less_make_a_proxy_only_where_they_were_recorded() {
    for (snaplen, expected) in [(96, SplitVerdict::SplitTcp), (65535, SplitVerdict::TcpProxy)] {
        let transfer = Transfer { bytes: 6_000, snaplen, ..Transfer::split(Middle { shrinks: Some(2), ..Middle::default() }) };
        let finding = transfer.finding(TraceConditions::default());
        assert_eq!(finding.verdict, expected, "{}", told(&finding));
        let piece = of(&finding, Method::Payload).unwrap();
        assert_eq!((piece.strength, piece.value), (Strength::Strong, -3000.0));
    }
}

#[test]
fn a_middle_that_calls_the_server_when_it_has_all_is_a_proxy() {
    // The client's SYN is held too, and gives no clock offset.
    for (offset, ends) in [(0.0, [f64::INFINITY; 2]), (-1.0, [f64::INFINITY; 2]), (1.0, [1.2, 1.3])] {
        let middle = Middle { holds_all: true, calls_late: true, far_rate: 5e6, ..Middle::default() };
        let transfer = Transfer { uplink: true, near: 0.03, far: 0.01, offset, ends, ..Transfer::split(middle) };
        let finding = transfer.finding(TraceConditions::default());
        assert_eq!(finding.verdict, SplitVerdict::TcpProxy, "{transfer:?}\n{}", told(&finding));
    }
}

#[test]
fn a_server_that_answers_late_makes_no_proxy() {
    // Everything was sent while the middlebox waited for the server's SYN-ACK.
    let middle = Middle { accepts_first: true, far_rate: 5e6, ..Middle::default() };
    let transfer = Transfer { uplink: true, bytes: 400_000, near: 0.01, far: 0.5, ..Transfer::split(middle) };
    let finding = transfer.finding(TraceConditions::default());
    assert_eq!(finding.verdict, SplitVerdict::SplitTcp, "{}", told(&finding));
}

/// A transfer that both ends recorded, and a repetition that only the receiver recorded.
struct Again {
    first: Transfer,
    again: Transfer,
    /// Time of the last two frames of the sender's trace, which belong to another transfer, s after
    /// the start of the repetition.
    later: Option<f64>,
    /// The sender's file ends within its last record.
    cut: bool,
}

impl Again {
    /// A minute later by the receiver's clock, which is ten seconds ahead of the sender's.
    fn new() -> Self {
        let first = Transfer { bytes: 200_000, offset: 600.0, ..Transfer::split(Middle { holds_all: true, ..Middle::default() }) };
        let again = Transfer { begin: first.begin + 60.0, ports: [40001, 80], ..first.clone() };
        Again { first, again, later: Some(1.0), cut: false }
    }

    /// The verdict about the repetition, and the evidence from its content.
    fn said(&self) -> (SplitVerdict, Option<Strength>) {
        let ([mut sent, came], [_, again]) = (self.first.records(), self.again.records());
        if let Some(later) = self.later {
            let [mut other, _] =
                Transfer { begin: self.again.begin + later, ports: [50000, 22], content: 99, ..self.first.clone() }.records();
            other.truncate(2);
            sent.extend(other);
        }
        let mut file = common::pcap(&sent, self.first.links[0].number(), 65535, true);
        file.truncate(file.len() - usize::from(self.cut));
        let sender = common::read(&file);
        let receiver = common::read(&common::pcap(&[came, again].concat(), self.first.links[1].number(), 65535, false));
        let found = findings(Some(&sender), Some(&receiver), &FindingOptions::default());
        let is_again = |finding: &&ConnectionFinding| finding.receiver.is_some_and(|ends| ends[1].port() == self.again.ports[0]);
        let finding = found.iter().find(is_again).unwrap();
        assert_eq!(finding.sender, None, "{}", told(finding));
        (finding.verdict, of(finding, Method::Cache).map(|piece| piece.strength))
    }
}

#[test]
fn what_comes_again_without_the_sender_is_from_a_cache() {
    assert_eq!(Again::new().said(), (SplitVerdict::TcpProxy, Some(Strength::Strong)));
}

#[test]
fn what_came_after_the_senders_trace_may_be_the_senders() {
    // The trace ended with the first connection, or with another one before the repetition.
    for later in [None, Some(-30.0), Some(-0.5)] {
        assert_eq!(Again { later, ..Again::new() }.said(), (SplitVerdict::CannotTell, Some(Strength::Moderate)), "{later:?}");
    }
    // A sender's clock that is ahead, which shifts all its times, does not show it either.
    let mut behind = Again { later: None, ..Again::new() };
    (behind.first.offset, behind.again.offset) = (-600.0, -600.0);
    assert_eq!(behind.said(), (SplitVerdict::CannotTell, Some(Strength::Moderate)));
}

#[test]
fn a_senders_trace_that_is_cut_may_lack_what_came_again() {
    // The records before the truncated one are late enough.
    assert_eq!(Again { cut: true, ..Again::new() }.said(), (SplitVerdict::CannotTell, Some(Strength::Moderate)));
}

#[test]
fn the_same_from_another_server_is_not_from_a_cache() {
    let mut again = Again::new();
    again.again.v6 = true;
    assert_eq!(again.said(), (SplitVerdict::CannotTell, None));
}

#[test]
fn what_came_in_part_before_is_not_from_a_cache() {
    // The first five of eight parts.
    let mut again = Again::new();
    again.again.bytes = again.first.bytes / 5 * 8;
    assert_eq!(again.said(), (SplitVerdict::CannotTell, None));
}

/// What matched two connections of which one was sent through a splitter behind NAT, and one
/// received so many seconds later, with that `content` and so many bytes of each segment captured.
/// Both captures have another connection, whose addresses tell the clocks' offset.
fn matched(seconds: f64, content: u64, snaplen: usize) -> Option<MatchedBy> {
    let split = Transfer { nat: true, bytes: 200_000, offset: 5000.0, ..Transfer::split(Middle::default()) };
    let late = Transfer { begin: split.begin + seconds, content, ..split.clone() };
    let other = Transfer { ports: [41000, 80], content: 99, nat: false, ..split.clone() };
    let ([mut one, mut two], [sent, _], [_, came]) = (other.records(), split.records(), late.records());
    one.extend(sent);
    two.extend(came);
    let captures = [common::read(&common::pcap(&one, 101, snaplen, true)), common::read(&common::pcap(&two, 1, snaplen, false))];
    let found = findings(Some(&captures[0]), Some(&captures[1]), &FindingOptions::default());
    let (known, others): (Vec<_>, Vec<_>) =
        found.iter().filter_map(|finding| finding.matched_by).partition(|by| *by == MatchedBy::Addresses);
    assert!(known.len() == 1 && others.len() <= 1, "{found:#?}");
    others.first().copied()
}

#[test]
fn the_same_content_at_another_time_is_anothers() {
    for (seconds, is_it) in [(0.0, true), (30.0, true), (-30.0, true), (120.0, false), (-120.0, false)] {
        assert_eq!(matched(seconds, 7, 65535), is_it.then_some(MatchedBy::Content), "{seconds}");
        // Of headers alone, only the length can be compared.
        assert_eq!(matched(seconds, 7, 96), is_it.then_some(MatchedBy::Lengths), "{seconds}");
    }
}

#[test]
fn as_many_other_bytes_are_anothers() {
    assert_eq!(matched(0.0, 8, 65535), None);
    assert_eq!(matched(0.0, 8, 96), Some(MatchedBy::Lengths));
}

/// Two receivers with different clocks: each connection is judged by the trace of its receiver.
#[test]
fn several_receivers_of_one_sender_have_their_own_traces() {
    let split = Transfer { offset: 5000.0, ..Transfer::split(Middle::default()) };
    let whole = Transfer { offset: -3000.0, ports: [41000, 80], bytes: 500_000, content: 99, ..Transfer::default() };
    let alone = Transfer { ports: [42000, 80], bytes: 200_000, content: 5, ..Transfer::default() };
    let ([mut sent, one], [more, two], [rest, _]) = (split.records(), whole.records(), alone.records());
    sent.extend(more);
    sent.extend(rest);
    sent.sort_by_key(|record| record.at);
    let sender = common::read(&common::pcap(&sent, 101, 65535, true));
    let named = |records, name: &str| CaptureFile::read_from(&common::pcap(records, 1, 65535, false)[..], Path::new(name)).unwrap();
    let [one, two] = [named(&one, "one"), named(&two, "two")];
    for receivers in [[&one, &two], [&two, &one]] {
        let found = findings(Some(&sender), receivers, &FindingOptions::default());
        let said: Vec<_> = found.iter().map(|finding| (finding.bytes, finding.verdict, finding.receiver_trace.as_deref())).collect();
        let expected = [
            (split.bytes, SplitVerdict::SplitTcp, Some("one")),
            (whole.bytes, SplitVerdict::EndToEnd, Some("two")),
            (alone.bytes, SplitVerdict::CannotTell, None),
        ];
        assert_eq!(said, expected);
        assert!(found[2].reason.ends_with("no other trace has this connection"), "{}", found[2].reason);
    }
    assert!(findings(Some(&sender), [&one], &FindingOptions::default()).iter().all(|finding| finding.receiver_trace.is_none()));
}

#[test]
fn many_connections_find_each_other() {
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for index in 0..60u16 {
        let middle = (index % 3 == 0).then(Middle::default);
        let transfer = Transfer {
            middle,
            nat: true,
            bytes: 50_000 + u64::from(index) * 1000,
            begin: 1.7e9 + f64::from(index) * 0.05,
            ports: [41000 + index, 80],
            content: u64::from(index) * 1000 + 5,
            ..Transfer::default()
        };
        let [sender, receiver] = transfer.records();
        one.extend(sender);
        two.extend(receiver);
    }
    one.sort_by_key(|record| record.at);
    two.sort_by_key(|record| record.at);
    let captures = [common::read(&common::pcap(&one, 101, 65535, true)), common::read(&common::pcap(&two, 1, 65535, false))];
    let found = findings(Some(&captures[0]), Some(&captures[1]), &FindingOptions::default());
    assert_eq!(found.len(), 60);
    assert!(found.windows(2).all(|pair| pair[0].bytes >= pair[1].bytes), "the largest comes first");
    for finding in &found {
        let index = (finding.bytes - 50_000) / 1000;
        let expected = if index % 3 == 0 { SplitVerdict::SplitTcp } else { SplitVerdict::EndToEnd };
        assert_eq!(finding.verdict, expected, "{}", told(finding));
        let (here, there) = (finding.sender.unwrap()[1], finding.receiver.unwrap()[1]);
        assert_eq!(here.port() ^ 0x1111, there.port());
    }
}

#[test]
fn verdicts_have_their_names_in_json() {
    let finding = Transfer::default().finding(TraceConditions::default());
    let json = serde_json::to_value(&finding).unwrap();
    assert_eq!(json["verdict"], "end-to-end");
    assert_eq!(json["evidence"][0]["says"], "end-to-end");
    assert_eq!(json["evidence"][0]["strength"], "strong");
    assert!(json["evidence"].as_array().unwrap().iter().any(|piece| piece["method"] == "method-2"), "{json:#}");
    assert_eq!(verdict(&Transfer::split(Middle::default())).to_string(), "split-tcp");
}
