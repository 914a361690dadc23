//! Labels of the corpus and the files of a pair.

use crate::trace_edits::TraceEdit;
use middleboxes::{BulkDirection, NetworkCondition, PathSpec};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The label of a pair of traces.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CorpusLabel {
    /// Expected verdict: `end-to-end`, `split-tcp` or `tcp-proxy`.
    pub(crate) expected: String,
    pub(crate) middle: String,
    #[serde(rename = "way")]
    pub(crate) direction: BulkDirection,
    pub(crate) condition: NetworkCondition,
    pub(crate) change: TraceEdit,
    pub(crate) run: usize,
    pub(crate) seed: u64,
    /// The client's port at its own end, which identifies the connection in the traces.
    pub(crate) client_port: u16,
    /// Both traces were stamped by one clock.
    pub(crate) one_clock: bool,
    /// How long the receiver delayed each ACK, s.
    pub(crate) ack_delay_s: Option<f64>,
    pub(crate) path: PathSpec,
}

/// Files of a pair: sender's trace, receiver's trace, label.
pub(crate) fn files(directory: &Path, name: &str) -> [PathBuf; 3] {
    ["sender.pcap", "receiver.pcap", "json"].map(|end| directory.join(format!("{name}.{end}")))
}
