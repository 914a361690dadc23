//! What an acknowledgement was found to report.

/// What an acknowledgement reports, filled in while it is processed (struct tcp_sacktag_state,
/// rate_sample, and the flags of tcp_ack).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AckSummary {
    /// SND.UNA before it.
    pub(super) prior_snd_una: u64,
    /// The sender was in recovery when it arrived.
    pub(super) in_recovery: bool,
    /// It advanced SND.UNA.
    pub(super) advanced: bool,
    /// It newly SACKed a segment.
    pub(super) sacked: bool,
    /// It has a DSACK.
    pub(super) has_dsack: bool,
    /// It echoes a CE mark.
    pub(super) ece: bool,
    /// It changed the advertised window.
    pub(super) window_changed: bool,
    /// It delivered a segment that was never retransmitted and was sent before recovery began
    /// (FLAG_ORIG_SACK_ACKED).
    pub(super) delivered_original: bool,
    /// It acknowledged a retransmitted segment, whose RTT is ambiguous.
    pub(super) acked_retransmission: bool,
    /// Retransmissions were found lost.
    pub(super) lost_retransmission: bool,
    /// The retransmission timer is to be restarted.
    pub(super) restart_timer: bool,
    /// When the first newly acknowledged segment was sent, ns; only of segments that were never
    /// retransmitted.
    pub(super) first_acked_ns: Option<u64>,
    /// When the last newly acknowledged segment was sent, ns.
    pub(super) last_acked_ns: u64,
    /// When the first newly SACKed segment was sent, ns.
    pub(super) first_sacked_ns: Option<u64>,
    /// When the last newly SACKed segment was sent, ns.
    pub(super) last_sacked_ns: u64,
    /// The first byte that was delivered later than a byte sent after it.
    pub(super) reordered_from: Option<u64>,
    /// The timestamp that it echoes, ns.
    pub(super) echo_ns: u64,
    /// When it was sent, by the receiver's clock, µs modulo 2^32.
    pub(super) sent_us: u32,
    /// RTT sample for the controller, µs; 0 if there is none.
    pub(super) rtt_us: u32,
}

/// What to retransmit after an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retransmit {
    Nothing,
    /// The segments that are marked lost.
    LostSegments,
}
