//! What an acknowledgement says.

/// What an acknowledgement was found to say.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct News {
    /// The first byte not acknowledged, before it.
    pub(super) prior_una: u64,
    /// It found the sender in recovery.
    pub(super) in_recovery: bool,
    /// It acknowledged something.
    pub(super) advanced: bool,
    /// It SACKed something.
    pub(super) sacked: bool,
    /// It says that something came twice.
    pub(super) twice: bool,
    /// It echoes a mark.
    pub(super) ece: bool,
    /// It changed the window.
    pub(super) window: bool,
    /// It delivered a segment that was never sent again, from before the recovery.
    pub(super) original: bool,
    /// Something retransmitted is acknowledged, so that the time of its first sending says nothing.
    pub(super) retransmitted: bool,
    /// Retransmissions were found lost.
    pub(super) lost_retransmission: bool,
    /// The retransmission timer is to start anew.
    pub(super) restart_timer: bool,
    /// When the first and the last segment that it delivered were sent.
    pub(super) first_acked: Option<u64>,
    pub(super) last_acked: u64,
    pub(super) first_sacked: Option<u64>,
    pub(super) last_sacked: u64,
    /// Where reordering began that it shows.
    pub(super) reordered_from: Option<u64>,
    /// When that was sent which it answers.
    pub(super) echo: u64,
    /// RTT for the controller, µs; 0: none.
    pub(super) rtt_us: u32,
}

/// What is to be sent because of an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resend {
    Nothing,
    Lost,
}
