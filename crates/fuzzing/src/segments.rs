//! Captures of TCP segments in any order: tests what follows the parsing of files and headers.

use detect::{CaptureFile, FindingOptions, TraceConditions, findings};
use std::path::Path;

/// Bytes of the input that describe one segment.
const RECIPE: usize = 12;

/// A capture file of raw IP packets, as `recipes` describe them.
fn capture(recipes: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 65535, 101] {
        file.extend(word.to_le_bytes());
    }
    let (mut at, mut seq) = (1_700_000_000_000_000_000_u64, [0xffff_f000_u32, 7]);
    for recipe in recipes.chunks_exact(RECIPE) {
        let [flags, wait, ahead, back, payload, window, ports, stamp, option, ttl, id, kind] = recipe else { continue };
        let side = usize::from(kind & 1);
        at = at.wrapping_add(u64::from(*wait) * u64::from(*wait) * 100_000);
        // Most segments follow the last one, some are far before or after it.
        let begin = seq[side].wrapping_add(u32::from(*ahead) << if kind & 2 != 0 { 20 } else { 0 });
        let acked = seq[1 - side].wrapping_sub(u32::from(*back) * 100);
        let length = usize::from(*payload) * if kind & 4 != 0 { 40 } else { 1 };
        let options: Vec<u8> = match kind >> 3 & 3 {
            0 => vec![],
            1 => [&[1, 1, 8, 10][..], &u32::from(*stamp).to_be_bytes(), &u32::from(*option).to_be_bytes()].concat(),
            2 => vec![2, 4, 5, *option, 1, 3, 3, *stamp],
            _ => vec![*option, *stamp, *ttl, *id],
        };
        let total = 40 + options.len() + length;
        let mut packet = vec![0x45, 0];
        packet.extend((total as u16).to_be_bytes());
        packet.extend([0, *id, 0, 0, *ttl, 6, 0, 0]);
        let (hosts, ports) = ([[10, 0, 0, 1], [10, 0, 0, 2]], [[0, 80 + (ports & 1)], [156, 64 + (ports >> 6)]]);
        packet.extend([hosts[side], hosts[1 - side]].concat());
        packet.extend([ports[side], ports[1 - side]].concat());
        packet.extend(begin.to_be_bytes());
        packet.extend(acked.to_be_bytes());
        packet.extend([(5 + options.len() as u8 / 4) << 4, flags & 0x3f, *window, *window, 0, 0, 0, 0]);
        packet.extend(&options);
        packet.extend((0..length).map(|place| (begin as usize + place).wrapping_mul(167).to_le_bytes()[usize::from(kind >> 7)]));
        seq[side] = begin.wrapping_add(length as u32 + u32::from(*flags & 2 != 0));
        let cut = if kind & 0x40 != 0 { packet.len().min(60) } else { packet.len() };
        let record = [(at / 1_000_000_000) as u32, (at % 1_000_000_000) as u32, cut as u32, packet.len() as u32];
        file.extend(record.iter().flat_map(|word| word.to_le_bytes()));
        file.extend(&packet[..cut]);
    }
    file
}

/// Analyses captures of arbitrary TCP segments.
///
/// # Panics
/// If the detector does.
pub fn segments(data: &[u8]) {
    let Some((&share, recipes)) = data.split_first() else { return };
    let (one, two) = recipes.split_at(recipes.len() * usize::from(share) / 256 / RECIPE * RECIPE);
    let read = |recipes| CaptureFile::read_from(&capture(recipes)[..], Path::new("fuzzed")).ok();
    let (one, two) = (read(one), read(two));
    let known = TraceConditions { synchronised_s: Some(0.001), ack_delay_s: Some(1.0) };
    for asked in [FindingOptions::default(), FindingOptions { known, series: true }] {
        for (one, two) in [(one.as_ref(), two.as_ref()), (one.as_ref(), None), (None, two.as_ref()), (one.as_ref(), one.as_ref())] {
            findings(one, two, &asked);
        }
    }
}
