//! TCP in tunnels and in link layers of all kinds: the verdict is that of the same connection
//! without them. Packets that a capture has several times count once.

use crate::common::{
    Linked, Middle, Record, Transfer,
    encapsulation::{self as wrap, Encapsulation, Wrap},
    pcap, read, told,
};
use detect::{CaptureFile, ConnectionFinding, FindingOptions, SplitVerdict, findings};
use std::path::Path;

/// A transfer as both ends captured it, without a link layer.
fn transfer(middle: Option<Middle>, v6: bool) -> [Vec<Record>; 2] {
    Transfer { middle, v6, links: [Linked::Raw; 2], bytes: 300_000, ..Transfer::default() }.records()
}

fn wrapped(records: &[Record], wrap: impl Fn(&[u8]) -> Vec<u8>) -> Vec<Record> {
    records.iter().map(|record| Record { at: record.at, bytes: wrap(&record.bytes) }).collect()
}

fn judged(files: [&CaptureFile; 2]) -> Vec<ConnectionFinding> {
    findings(Some(files[0]), Some(files[1]), &FindingOptions::default())
}

/// The only finding about two files.
fn one(files: [&[u8]; 2]) -> ConnectionFinding {
    let files = files.map(read);
    let mut found = judged([&files[0], &files[1]]);
    assert_eq!(found.len(), 1);
    found.remove(0)
}

fn error(link: u32, frames: &[Vec<u8>], snaplen: usize) -> String {
    let records: Vec<Record> = frames.iter().map(|bytes| Record { at: 1_700_000_000_000_000_000, bytes: bytes.clone() }).collect();
    match CaptureFile::read_from(&pcap(&records, link, snaplen, true)[..], Path::new("some.pcap")) {
        Ok(read) => read.without_tcp(),
        Err(why) => why.to_string(),
    }
}

#[test]
fn every_encapsulation_has_the_verdict_of_the_plain_connection() {
    for (v6, middle) in [(false, None), (true, None), (false, Some(Middle::default()))] {
        let records = transfer(middle, v6);
        let plain = [0, 1].map(|end| pcap(&records[end], 101, 65535, true));
        let expected = one([&plain[0], &plain[1]]);
        assert_eq!(expected.verdict, if middle.is_some() { SplitVerdict::SplitTcp } else { SplitVerdict::EndToEnd });
        for (name, link, wrap) in wrap::READ {
            let files = [0, 1].map(|end| pcap(&wrapped(&records[end], wrap), *link, 65535, true));
            let found = one([&files[0], &files[1]]);
            assert_eq!(found, expected, "{name}, {}", told(&found));
        }
    }
}

#[test]
fn a_frame_cut_short_within_its_tunnel_is_too_short() {
    let records = transfer(None, false);
    // The SYN, which has no payload: 20 + 28 bytes of IP and TCP.
    let syn = &records[0][0].bytes;
    for (name, link, wrap) in wrap::READ {
        let whole = wrap(syn);
        let tcp = (0..=whole.len() - syn.len()).find(|at| whole[*at..].starts_with(syn)).unwrap() + 20;
        // 16 bytes of TCP are needed.
        assert!(read(&pcap(&[Record { at: 1, bytes: whole.clone() }], *link, tcp + 16, true)).tally().segments == 1, "{name}");
        for kept in 1..tcp + 16 {
            let said = error(*link, std::slice::from_ref(&whole), kept);
            assert!(
                ["too short to show the headers", "other protocols", "encrypted 802.11"].iter().any(|part| said.contains(part)),
                "{name}, {kept} bytes: {said}"
            );
        }
        let said = error(*link, &[whole], tcp + 8);
        assert!(said.contains("of 1 frames 1 are too short") && said.contains("snapshot length"), "{name}: {said}");
    }
}

#[test]
fn what_cannot_be_read_is_named_with_its_cure() {
    for (link, frame, expected) in wrap::unreadable() {
        let said = error(link, &[frame.clone(), frame], 65535);
        assert!(said.contains("of 2 frames 2 "), "{said}");
        for part in expected {
            assert!(said.contains(part), "{part} is not in: {said}");
        }
    }
}

#[test]
fn ports_of_tunnels_that_carry_something_else_are_datagrams() {
    for port in [4789, 8472, 6081, 2152, 1701, 3544, 51820, 4500, 1194] {
        let frame = wrap::in_udp(port, &[0xff; 40]);
        let file = pcap(&[Record { at: 1, bytes: frame }], 1, 65535, true);
        assert_eq!(read(&file).tally().datagrams, 1, "{port}");
    }
}

#[test]
fn an_amsdu_has_several_segments() {
    let records = transfer(None, false);
    let packets: Vec<&[u8]> = records[0].iter().take(3).map(|record| &record.bytes[..]).collect();
    let capture = read(&pcap(&[Record { at: 1, bytes: wrap::amsdu(&packets) }], 105, 65535, true));
    assert_eq!((capture.tally().frames, capture.tally().segments, capture.connections()), (1, 3, 1));
}

#[test]
fn the_first_fragment_of_a_tunnel_is_enough() {
    let records = transfer(None, false);
    // Routers divide each outer packet after 1000 bytes.
    let divided = |records: &[Record]| -> Vec<Record> {
        let divide = |record: &Record| {
            let whole = wrap::ip4(47, &[&[0, 0, 0x08, 0x00], &record.bytes[..]].concat());
            let (header, payload) = whole.split_at(20);
            let parts = payload.chunks(1000).enumerate().map(|(index, part)| {
                let mut header = header.to_vec();
                header[2..4].copy_from_slice(&(20 + part.len() as u16).to_be_bytes());
                let more = if (index + 1) * 1000 < payload.len() { 0x2000 } else { 0 };
                header[6..8].copy_from_slice(&(more | (index as u16 * 125)).to_be_bytes());
                Record { at: record.at, bytes: [header, part.to_vec()].concat() }
            });
            parts.collect::<Vec<_>>()
        };
        records.iter().flat_map(divide).collect()
    };
    let plain = [0, 1].map(|end| read(&pcap(&records[end], 101, 65535, true)));
    let files = [0, 1].map(|end| read(&pcap(&divided(&records[end]), 101, 65535, true)));
    for end in [0, 1] {
        assert_eq!(files[end].tally().segments, plain[end].tally().segments);
        assert!(files[end].tally().fragments > 100);
    }
    let (found, expected) = (&judged([&files[0], &files[1]])[0], &judged([&plain[0], &plain[1]])[0]);
    assert_eq!((found.verdict, found.bytes, found.character.sent_again), (expected.verdict, expected.bytes, Some(0)), "{}", told(found));
    // Fragments of the inner packet have no length to rely on.
    let mut inner = records[0][0].bytes.clone();
    inner[6] = 0x20;
    let said = error(1, &[wrap::vxlan(1, &inner)], 65535);
    assert!(said.contains("1 are fragments") && said.contains("ends of a tunnel"), "{said}");
}

/// Every packet as several places of capture have it, in this order, each 3 µs after the other.
fn several(records: &[Record], places: &[Wrap]) -> Vec<Record> {
    let each = |record: &Record| {
        let at = |index: usize| record.at + 3000 * index as i64;
        places.iter().enumerate().map(|(index, wrap)| Record { at: at(index), bytes: wrap(&record.bytes) }).collect::<Vec<_>>()
    };
    records.iter().flat_map(each).collect()
}

fn tunnel_over_ethernet(ip: &[u8]) -> Vec<u8> {
    let whole = wrap::vxlan(42, ip);
    wrap::on_interface(2, 0x0800, &whole[14..])
}

fn inside(ip: &[u8]) -> Vec<u8> {
    wrap::on_interface(5, 0x0800, ip)
}

fn bridge(ip: &[u8]) -> Vec<u8> {
    wrap::on_interface(6, 0x0800, ip)
}

#[test]
fn packets_that_a_capture_has_several_times_count_once() {
    for middle in [None, Some(Middle::default())] {
        let records = transfer(middle, false);
        let plain = [0, 1].map(|end| pcap(&records[end], 101, 65535, true));
        let expected = one([&plain[0], &plain[1]]);
        let places: [&[Wrap]; 4] =
            [&[inside, tunnel_over_ethernet], &[tunnel_over_ethernet, inside], &[tunnel_over_ethernet, inside, bridge], &[inside, bridge]];
        for places in places {
            let files = [0, 1].map(|end| read(&pcap(&several(&records[end], places), 276, 65535, true)));
            for end in [0, 1] {
                let tally = files[end].tally();
                assert_eq!((tally.segments, tally.copies), (tally.frames, tally.frames - records[end].len() as u64));
            }
            let found = judged([&files[0], &files[1]]);
            assert_eq!(found, std::slice::from_ref(&expected), "{}", told(&found[0]));
        }
    }
}

#[test]
fn merged_packets_beside_their_tunnel_are_no_retransmissions() {
    // The sender's host has segments that are not divided yet, then their parts in the tunnel. The
    // kernel merges and divides only what has one timestamp; this transfer has none.
    let transfer = Transfer { timestamps: false, links: [Linked::Raw; 2], bytes: 300_000, ..Transfer::default() };
    let (parts, merged) = (transfer.records(), Transfer { tso: 8, ..transfer }.records());
    let mut both: Vec<Record> = wrapped(&merged[0], inside);
    both.extend(wrapped(&parts[0], tunnel_over_ethernet).into_iter().map(|record| Record { at: record.at + 3000, ..record }));
    both.sort_by_key(|record| record.at);
    let files = [read(&pcap(&both, 276, 65535, true)), read(&pcap(&parts[1], 101, 65535, true))];
    let found = judged([&files[0], &files[1]]);
    assert_eq!((found.len(), found[0].verdict, found[0].character.sent_again), (1, SplitVerdict::EndToEnd, Some(0)), "{}", told(&found[0]));
}

#[test]
fn each_direction_may_have_a_tunnel_of_its_own() {
    // As behind a load balancer that forwards by IP in IP, while servers answer directly.
    let records = transfer(None, false);
    let wrap = |ip: &[u8]| if ip[12] == 10 { wrap::ether(&wrap::ip4(4, ip)) } else { wrap::ether(ip) };
    let files = [0, 1].map(|end| read(&pcap(&wrapped(&records[end], wrap), 1, 65535, true)));
    let found = judged([&files[0], &files[1]]);
    assert_eq!((found.len(), found[0].verdict, files[0].tally().copies), (1, SplitVerdict::EndToEnd, 0), "{}", told(&found[0]));
}

#[test]
fn equal_addresses_in_two_tunnels_are_two_connections() {
    let one = Transfer { links: [Linked::Raw; 2], bytes: 200_000, ..Transfer::default() };
    let two = Transfer { content: 99, bytes: 300_000, begin: one.begin + 0.003, ..one.clone() };
    let three = Transfer { content: 123, bytes: 100_000, begin: one.begin + 0.004, ..one.clone() };
    let files = [0, 1].map(|end| {
        let mut records = wrapped(&one.records()[end], |ip| wrap::vxlan(1, ip));
        records.extend(wrapped(&two.records()[end], |ip| wrap::vxlan(2, ip)));
        records.extend(wrapped(&three.records()[end], wrap::ether));
        records.sort_by_key(|record| record.at);
        read(&pcap(&records, 1, 65535, true))
    });
    let found = judged([&files[0], &files[1]]);
    let told: Vec<(u64, SplitVerdict, Option<u64>)> =
        found.iter().map(|found| (found.bytes, found.verdict, found.character.sent_again)).collect();
    assert_eq!(told, [300_000, 200_000, 100_000].map(|bytes| (bytes, SplitVerdict::EndToEnd, Some(0))));
    assert_eq!(files[0].tally().copies, 0);
}

/// Names of encapsulations, so that a removed one is noticed.
#[test]
fn no_encapsulation_is_listed_twice() {
    let mut names: Vec<&str> = wrap::READ.iter().map(|(name, ..): &Encapsulation| *name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), wrap::READ.len());
}
