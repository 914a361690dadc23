//! Two capture files of arbitrary bytes, up to their verdicts.

use detect::{CaptureFile, FindingOptions, TraceConditions, findings};
use std::path::Path;

/// Splits an input into two files. Its first two bytes are the length of the first.
fn files(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = data.split_at_checked(2)?;
    let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
    Some(rest.split_at(length.min(rest.len())))
}

/// Analyses two capture files.
///
/// # Panics
/// If the detector does, or finds more connections than there are.
pub fn trace(data: &[u8]) {
    let Some((one, two)) = files(data) else { return };
    let read = |bytes| CaptureFile::read_from(bytes, Path::new("fuzzed")).ok();
    let (one, two) = (read(one), read(two));
    let known = TraceConditions { synchronised_s: Some(0.001), ack_delay_s: Some(1.0) };
    for asked in [FindingOptions::default(), FindingOptions { known, series: true }] {
        let found = findings(one.as_ref(), two.as_ref(), &asked);
        let most = one.iter().chain(&two).map(CaptureFile::connections).sum();
        assert!(found.len() <= most, "more findings than connections");
        assert_eq!(found.is_empty(), most == 0);
    }
}
