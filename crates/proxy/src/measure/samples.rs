//! What samples of an open flow add up to.

use super::accounts::DirectionAccount;
use intercept::sys::TcpInfo;
use relay::PhaseTimes;
use std::time::{Duration, Instant};
use units::Phase;

/// What a leg has sent so far, and how long it waited for what, by the kernel's count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LegProgress {
    /// Bytes sent, retransmissions included.
    pub(crate) sent: u64,
    /// Bytes retransmitted.
    pub(crate) retransmitted: u64,
    /// Time without data to send.
    idle: Duration,
    /// Time in which path and congestion control were the limit.
    path: Duration,
    /// Time in which the receiver's window was the limit.
    receiver: Duration,
    /// Time in which the send buffer was the limit.
    buffer: Duration,
}

impl LegProgress {
    /// By a leg's TCP_INFO, for a flow of this age.
    pub(crate) fn of(info: &TcpInfo, age: Duration) -> Self {
        let us = Duration::from_micros;
        let (receiver, buffer) = (us(info.rwnd_limited_us), us(info.sndbuf_limited_us));
        // The kernel's busy time includes both limits.
        let busy = us(info.busy_time_us);
        LegProgress {
            sent: info.bytes_sent,
            retransmitted: info.bytes_retrans,
            idle: age.saturating_sub(busy),
            path: busy.saturating_sub(receiver + buffer),
            receiver,
            buffer,
        }
    }

    /// What the sender waited for, in the order of `SENDING`.
    pub(crate) fn sending(&self) -> [Duration; 4] {
        [self.idle, self.path, self.receiver, self.buffer]
    }
}

/// The samples of an open flow.
#[derive(Debug)]
pub(crate) struct FlowSamples {
    /// The time of the last one, or the start of the relay.
    last: Instant,
    /// Time in each phase, up and down.
    pub(crate) phases: [PhaseTimes; 2],
    /// The most bytes held, up and down.
    pub(crate) most_held: [u64; 2],
    /// The accounts, up and down.
    pub(crate) accounts: [DirectionAccount; 2],
    /// What has been added to the measurements of the near and the far leg.
    pub(crate) counted: [LegProgress; 2],
}

impl FlowSamples {
    /// For a flow that has been relayed since `begun`, after handshakes of this length.
    pub(crate) fn new(begun: Instant, handshake: Duration) -> Self {
        let accounts = [(); 2].map(|()| DirectionAccount::begun(handshake));
        FlowSamples { last: begun, phases: Default::default(), most_held: [0; 2], accounts, counted: Default::default() }
    }

    /// The time since the last sample; `now` is the time of the next.
    pub(crate) fn since(&mut self, now: Instant) -> Duration {
        now.saturating_duration_since(std::mem::replace(&mut self.last, now))
    }

    /// Adds a sample of a direction.
    pub(crate) fn add(&mut self, direction: usize, phase: Phase, since: Duration, held: u64) {
        self.phases[direction].add(phase, since);
        self.most_held[direction] = self.most_held[direction].max(held);
    }
}
