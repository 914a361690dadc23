//! Capture files of all formats: complete, truncated, damaged, unsupported, random; more
//! connections than are kept.

use crate::common::{self, Linked, Record, SYN, Segment, Transfer, frame, pcap, read};
use detect::{CaptureFile, FindingOptions, TraceError, findings};
use pcap_file::{
    DataLink, Endianness,
    pcapng::{
        PcapNgWriter,
        blocks::{
            enhanced_packet::EnhancedPacketBlock,
            interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption},
        },
    },
};
use proptest::prelude::*;
use std::{borrow::Cow, path::Path, time::Duration};

fn try_read(file: &[u8]) -> Result<CaptureFile, TraceError> {
    CaptureFile::read_from(file, Path::new("some.pcap"))
}

fn error(file: &[u8]) -> String {
    try_read(file).unwrap_err().to_string()
}

/// The same records as pcapng, in both byte orders, with ticks of 10⁻ⁿ or 2⁻ⁿ s.
fn pcapng(records: &[Record], endianness: Endianness, resolution: u8) -> Vec<u8> {
    let mut writer = PcapNgWriter::with_endianness(Vec::new(), endianness).unwrap();
    let options = vec![InterfaceDescriptionOption::IfName(Cow::Borrowed("link1")), InterfaceDescriptionOption::IfTsResol(resolution)];
    writer.write_pcapng_block(InterfaceDescriptionBlock { linktype: DataLink::RAW, snaplen: 0, options }).unwrap();
    let second: u128 = if resolution & 0x80 == 0 { 10u128.pow(resolution.into()) } else { 1 << (resolution & 0x7f) };
    for record in records {
        // pcap-file writes nanoseconds, which count as ticks of the interface.
        let ticks = record.at as u128 * second / 1_000_000_000;
        let packet = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: Duration::from_nanos(ticks as u64),
            original_len: record.bytes.len() as u32,
            data: Cow::Borrowed(&record.bytes),
            options: vec![],
        };
        writer.write_pcapng_block(packet).unwrap();
    }
    writer.into_inner()
}

#[test]
fn every_format_tells_the_same() {
    let transfer = Transfer { links: [Linked::Raw, Linked::Raw], offset: 0.5, ..Transfer::default() };
    let [here, there] = transfer.records();
    let told = |one: &CaptureFile, two: &CaptureFile| {
        let clocks = findings(Some(one), Some(two), &FindingOptions::default())[0].clocks.unwrap();
        (clocks.offset_s * 1e4).round()
    };
    let there = read(&pcap(&there, 101, 65535, true));
    let expected = told(&read(&pcap(&here, 101, 65535, true)), &there);
    assert!((4990.0..5010.0).contains(&expected), "{expected}");
    for endianness in [Endianness::Little, Endianness::Big] {
        for resolution in [6, 9, 0x80 | 20] {
            assert_eq!(told(&read(&pcapng(&here, endianness, resolution)), &there), expected, "{endianness:?} {resolution}");
        }
    }
}

/// A pcapng file, with frames in blocks of this type.
fn blocks(records: &[Record], big_endian: bool, kind: u32, interface: u32) -> Vec<u8> {
    let word = |value: u32| if big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
    let halves =
        |one: u16, two: u16| if big_endian { [one.to_be_bytes(), two.to_be_bytes()] } else { [one.to_le_bytes(), two.to_le_bytes()] };
    let block = |kind: u32, body: &[u8]| {
        let padded = [body, &vec![0; body.len().next_multiple_of(4) - body.len()]].concat();
        let length = word(12 + padded.len() as u32);
        [&word(kind)[..], &length, &padded, &length].concat()
    };
    let mut file = block(0x0a0d_0d0a, &[&word(0x1a2b_3c4d)[..], halves(1, 0).as_flattened(), &[0xff; 8]].concat());
    // Raw IP, 200 bytes of each packet, in units of a nanosecond.
    let resolution = [halves(9, 1).as_flattened(), &[9, 0, 0, 0], &[0; 4]].concat();
    file.extend(block(1, &[halves(101, 0).as_flattened(), &word(200), &resolution].concat()));
    for record in records {
        let kept = &record.bytes[..record.bytes.len().min(200)];
        let time = [word((record.at >> 32) as u32), word(record.at as u32)].concat();
        let lengths = [word(kept.len() as u32), word(record.bytes.len() as u32)];
        file.extend(match kind {
            2 => block(2, &[halves(interface as u16, 0xffff).as_flattened(), &time, lengths.as_flattened(), kept].concat()),
            3 => block(3, &[&lengths[1][..], kept].concat()),
            _ => block(6, &[&word(interface)[..], &time, lengths.as_flattened(), kept].concat()),
        });
    }
    file
}

#[test]
fn obsolete_and_simple_packet_blocks_are_read() {
    for middle in [None, Some(common::Middle::default())] {
        let transfer = Transfer { links: [Linked::Raw; 2], middle, ..Transfer::default() };
        let records = transfer.records();
        let judged = |kind: u32, big_endian: bool| {
            let files = [0, 1].map(|end| read(&blocks(&records[end], big_endian, kind, 0)));
            assert_eq!(files[0].tally().segments, records[0].len() as u64);
            assert_eq!(files[0].tally().untimed, if kind == 3 { records[0].len() as u64 } else { 0 });
            findings(Some(&files[0]), Some(&files[1]), &FindingOptions::default()).remove(0)
        };
        let expected = judged(6, false);
        for big_endian in [false, true] {
            assert_eq!(judged(2, big_endian), expected, "{big_endian}");
            // Without times only what packets contain can be compared.
            let untimed = judged(3, big_endian);
            assert_eq!((untimed.verdict, untimed.bytes), (expected.verdict, expected.bytes), "{}", common::told(&untimed));
            assert!(untimed.clocks.is_none() && untimed.character.sent_for_s.is_none() && untimed.character.delay_s.is_none());
            let of_time = [detect::Method::FixedOffset, detect::Method::DelayedAcks, detect::Method::Handshake, detect::Method::FirstByte];
            assert!(untimed.evidence.iter().all(|piece| !of_time.contains(&piece.method)), "{}", common::told(&untimed));
        }
    }
}

#[test]
fn packets_of_interfaces_that_are_not_described_are_counted() {
    let records = Transfer { links: [Linked::Raw; 2], bytes: 10_000, ..Transfer::default() }.records();
    for kind in [2, 6] {
        let said = error(&blocks(&records[0], false, kind, 82));
        assert!(said.contains(&format!("{} packets belong to interfaces", records[0].len())) && said.contains("mergecap"), "{said}");
        let mixed = [blocks(&records[0], false, kind, 0), blocks(&records[0], false, kind, 82)].concat();
        assert_eq!((read(&mixed).tally().orphans, read(&mixed).tally().frames), (records[0].len() as u64, records[0].len() as u64));
    }
}

#[test]
fn a_file_that_ends_within_a_record_is_read_up_to_there() {
    let [whole, _] = Transfer::default().files();
    let records = read(&whole).tally().frames;
    let cut = read(&whole[..whole.len() - 5]);
    assert_eq!(cut.tally().frames, records - 1);
    assert!(cut.tally().cut_at.is_some_and(|at| at < whole.len() as u64 && at > whole.len() as u64 - 100), "{:?}", cut.tally());
}

#[test]
fn what_is_wrong_is_said_with_its_cure() {
    assert!(error(b"").contains("some.pcap: it is empty"));
    assert!(error(&[0x1f, 0x8b, 8, 0, 0]).contains("gunzip"));
    assert!(error(b"hello, world").contains("begins with 68656c6c, and is neither pcap nor pcapng"));
    assert!(error(&[0xd4, 0xc3, 0xb2, 0xa1, 2, 0]).contains("ends within its header"));
    assert!(error(&pcap(&[], 1, 65535, false)).contains("no frame was captured"));
    let strange = [Record { at: 1, bytes: vec![0; 60] }];
    assert!(error(&pcap(&strange, 147, 65535, false)).contains("link type 147"));
    assert!(
        error(&pcap(&strange, 1, 65535, false)).contains("of 1 frames 1 are of other protocols"),
        "{}",
        error(&pcap(&strange, 1, 65535, false))
    );
    // An impossible record length in the middle of a large file.
    let [mut whole, _] = Transfer { bytes: 40_000_000, ..Transfer::default() }.files();
    let cut = read(&whole[..100_000]).tally().cut_at.unwrap() as usize;
    whole[cut + 8..cut + 12].copy_from_slice(&[0xff; 4]);
    let said = error(&whole);
    assert!(said.contains(&format!("beyond byte {cut}")) && said.contains("head -c"), "{said}");
    // A block shorter than its own header and trailer, of an unknown type (found by cargo-fuzz,
    // target trace).
    for endianness in [Endianness::Little, Endianness::Big] {
        let (kind, length) = (0x8000_0001_u32, 8_u32);
        let number = |number: u32| if endianness == Endianness::Big { number.to_be_bytes() } else { number.to_le_bytes() };
        let file = [pcapng(&strange, endianness, 9), number(kind).to_vec(), number(length).to_vec(), vec![0; 64]].concat();
        assert!(error(&file).contains(&format!("beyond byte {}", file.len() - 72)), "{}", error(&file));
    }
    let missing = CaptureFile::read(Path::new("/nonexistent/some.pcap")).unwrap_err().to_string();
    assert!(missing.contains("could not read the trace /nonexistent/some.pcap: No such file"), "{missing}");
}

#[test]
fn too_many_connections_leave_the_largest() {
    let mut records = Vec::new();
    let segment = |port: u16, low: u8, flags: u8, payload: usize| Segment {
        from: ([10, 0, 0, low], port).into(),
        to: ([10, 1, 0, 1], 80).into(),
        seq: u32::from(port) + u32::from(flags & SYN == 0),
        ack: 0,
        flags,
        window: 500,
        ttl: 64,
        id: 7,
        options: vec![],
        payload: vec![low; payload],
    };
    let mut at = 1_700_000_000_000_000_000;
    for low in 0..4 {
        for port in 1..=5000u16 {
            at += 1000;
            records.push(Record { at, bytes: frame(&segment(port, low, SYN, 0), Linked::Raw) });
            if port % 1000 == 0 {
                records.push(Record { at, bytes: frame(&segment(port, low, 0, 1000), Linked::Raw) });
            }
        }
    }
    let capture = read(&pcap(&records, 101, 65535, true));
    assert!(capture.connections() <= 8192 && capture.tally().forgotten + capture.connections() as u64 == 20_000);
    let found = findings(Some(&capture), None, &FindingOptions::default());
    assert_eq!(found.iter().filter(|finding| finding.bytes == 1000).count(), 20, "those that carried something are all kept");
}

#[test]
fn a_port_used_again_is_another_connection() {
    let first = Transfer { bytes: 100_000, ..Transfer::default() };
    let again = Transfer { begin: first.begin + 30.0, content: 99, ..first.clone() };
    let files = [0, 1].map(|end| {
        let records = [first.records()[end].clone(), again.records()[end].clone()].concat();
        read(&pcap(&records, first.links[end].number(), 65535, true))
    });
    let found = findings(Some(&files[0]), Some(&files[1]), &FindingOptions::default());
    assert_eq!(found.len(), 2);
    for finding in found {
        assert_eq!((finding.bytes, finding.verdict), (100_000, detect::SplitVerdict::EndToEnd), "{}", common::told(&finding));
    }
}

#[test]
fn memory_is_bounded_however_long_the_connection() {
    // A connection with many packets takes as much memory as one with few, and gives the same
    // result.
    let transfer = Transfer { bytes: 60_000_000, rate: 20e6, ..Transfer::split(common::Middle { far_rate: 15e6, ..Default::default() }) };
    let finding = transfer.finding(detect::TraceConditions::default());
    assert_eq!(finding.verdict, detect::SplitVerdict::SplitTcp, "{}", common::told(&finding));
    // 60 MB · (1/15 − 1/20) s, minus what the far leg's delay hides.
    let piece = common::of(&finding, detect::Method::FixedOffset).unwrap();
    assert!((0.9..1.1).contains(&piece.value), "{piece:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn garbage_is_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..4000), magic in 0usize..4, link in prop::sample::select(vec![0u8, 1, 101, 113])) {
        let mut file = match magic {
            0 => vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, link, 0, 0, 0],
            1 => vec![0xa1, 0xb2, 0x3c, 0x4d, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, link],
            2 => pcapng(&[], Endianness::Little, 9),
            _ => vec![],
        };
        file.extend(bytes);
        if let Ok(capture) = try_read(&file) {
            let _ = findings(Some(&capture), Some(&capture), &FindingOptions { series: true, ..FindingOptions::default() });
        }
    }

    /// Valid files with a few changed bytes.
    #[test]
    fn damage_anywhere_breaks_nothing(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40), cut in any::<prop::sample::Index>(), ng: bool, split: bool,
    ) {
        let middle = split.then(common::Middle::default);
        let transfer = Transfer { middle, bytes: 30_000, links: [Linked::Raw, Linked::Ethernet], ..Transfer::default() };
        let [here, there] = transfer.records();
        let mut file = if ng { pcapng(&here, Endianness::Little, 9) } else { pcap(&here, 101, 200, false) };
        for (index, value) in changes {
            let place = index.index(file.len());
            file[place] = value;
        }
        file.truncate(cut.index(file.len()).max(file.len() / 2));
        let there = read(&pcap(&there, 1, 65535, true));
        if let Ok(capture) = try_read(&file) {
            for known in [detect::TraceConditions::default(), detect::TraceConditions { synchronised_s: Some(0.0), ack_delay_s: Some(0.5) }] {
                let asked = FindingOptions { known, series: true };
                let _ = findings(Some(&capture), Some(&there), &asked);
                let _ = findings(Some(&there), Some(&capture), &asked);
            }
        }
    }
}
