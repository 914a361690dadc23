//! What is known of a pair of traces, and where it is kept.

use crate::{
    conditions::{NetworkCondition, PathSpec, TransferDirection},
    trace_edits::TraceEdit,
};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// What is known of a pair of traces.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CorpusLabel {
    /// `end-to-end`, `split-tcp` or `tcp-proxy`.
    pub(crate) expected: String,
    pub(crate) middle: String,
    #[serde(rename = "way")]
    pub(crate) direction: TransferDirection,
    pub(crate) condition: NetworkCondition,
    pub(crate) change: TraceEdit,
    pub(crate) run: usize,
    pub(crate) seed: u64,
    /// The client's port, at its own end: which of the traces' connections is meant.
    pub(crate) client_port: u16,
    /// Both traces' times are of one clock.
    pub(crate) one_clock: bool,
    /// How long the receiver held each ACK, s.
    pub(crate) ack_delay_s: Option<f64>,
    pub(crate) path: PathSpec,
}

/// The files of a pair.
pub(crate) fn files(directory: &Path, name: &str) -> [PathBuf; 3] {
    ["sender.pcap", "receiver.pcap", "json"].map(|end| directory.join(format!("{name}.{end}")))
}
