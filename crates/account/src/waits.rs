//! What senders wait for, and which of the senders of a chain of connections holds the receiver up.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the sender of a connection waits for before it sends more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SenderWait {
    /// The connection is not established.
    Handshake,
    /// Data: all that it has is sent.
    Data,
    /// The receiver's window.
    Receiver,
    /// The kernel's send buffer, which has no room for more.
    SendBuffer,
    /// The congestion window or the pacing rate, since a loss: during recovery, or because the
    /// window was reduced.
    Recovery,
    /// The congestion window or the pacing rate, before the first loss or the controller's own end
    /// of slow start.
    SlowStart,
    /// The congestion window or the pacing rate, which the controller has set by what it measured.
    Control,
}

impl SenderWait {
    /// All of them.
    pub const ALL: [SenderWait; 7] = [
        SenderWait::Handshake,
        SenderWait::Data,
        SenderWait::Receiver,
        SenderWait::SendBuffer,
        SenderWait::Recovery,
        SenderWait::SlowStart,
        SenderWait::Control,
    ];
}

/// The parts of an interval in which the sender of a connection waited for what; their sum is 1.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LegTime([f64; SenderWait::ALL.len()]);

impl LegTime {
    /// All of it for one thing.
    pub fn all(wait: SenderWait) -> Self {
        let mut time = LegTime::default();
        time.0[wait as usize] = 1.0;
        time
    }

    /// Of these times, in any unit; none if they are all zero.
    pub fn of(times: &[(SenderWait, f64)]) -> Option<Self> {
        let mut time = LegTime::default();
        let whole: f64 = times.iter().map(|(_, length)| length).sum();
        times.iter().for_each(|(wait, length)| time.0[*wait as usize] += length / whole);
        (whole > 0.0).then_some(time)
    }
}

/// What the part of a link that a transfer does not use is lost to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The opening of the connections.
    Handshake,
    /// The propagation delay, once: before the first byte arrives, and after the last one was sent.
    Distance,
    /// Slow start, or the start of another controller.
    SlowStart,
    /// The rate or window that the controller chose.
    Control,
    /// Losses: their recovery, and windows reduced because of them.
    Loss,
    /// The window of the receiver.
    ReceiverWindow,
    /// The proxy's buffer, which ended in a window too small for the leg to the proxy.
    ProxyBuffer,
    /// The send buffer of a kernel.
    KernelBuffer,
    /// The sender had nothing to send.
    Sender,
    /// Others used the link.
    OtherTraffic,
}

impl Cause {
    /// All of them.
    pub const ALL: [Cause; 10] = [
        Cause::Handshake,
        Cause::Distance,
        Cause::SlowStart,
        Cause::Control,
        Cause::Loss,
        Cause::ReceiverWindow,
        Cause::ProxyBuffer,
        Cause::KernelBuffer,
        Cause::Sender,
        Cause::OtherTraffic,
    ];

    /// As it is shown.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Handshake => "handshake",
            Cause::Distance => "distance",
            Cause::SlowStart => "slow start",
            Cause::Control => "congestion control",
            Cause::Loss => "loss",
            Cause::ReceiverWindow => "the receiver's window",
            Cause::ProxyBuffer => "the proxy's buffer",
            Cause::KernelBuffer => "the kernel's buffer",
            Cause::Sender => "the sender",
            Cause::OtherTraffic => "other traffic",
        }
    }

    /// What would make it less; none if nothing does.
    pub fn cure(self) -> Option<&'static str> {
        match self {
            Cause::Handshake => Some("persistent connections, TCP Fast Open, or a bond, which opens its connections in advance"),
            Cause::Distance => Some("fewer round trips of the application: nothing shortens the way"),
            Cause::SlowStart => Some("share on the long leg, with the link's capacity or \"auto\""),
            Cause::Loss => Some("a controller that does not take losses for congestion (share, bbr) at the sender of the lossy leg"),
            Cause::ReceiverWindow => {
                Some("larger receive buffers of the receiving host (net.ipv4.tcp_rmem), or a proxy beside it; no sender can cure it")
            }
            Cause::ProxyBuffer => Some("buffer = \"auto\", or a larger one"),
            Cause::KernelBuffer => Some("larger send buffers (net.ipv4.tcp_wmem, or the leg's send_buffer)"),
            Cause::Control | Cause::Sender | Cause::OtherTraffic => None,
        }
    }

    /// The cause, if the sender of a connection waits for this. `is_last`: the transfer's receiver
    /// is at its end. The window of another connection is that of a proxy.
    fn of(wait: SenderWait, is_last: bool) -> Option<Self> {
        Some(match wait {
            SenderWait::Handshake => Cause::Handshake,
            SenderWait::Data => return None,
            SenderWait::Receiver if is_last => Cause::ReceiverWindow,
            SenderWait::Receiver => Cause::ProxyBuffer,
            SenderWait::SendBuffer => Cause::KernelBuffer,
            SenderWait::Recovery => Cause::Loss,
            SenderWait::SlowStart => Cause::SlowStart,
            SenderWait::Control => Cause::Control,
        })
    }
}

/// The parts of an interval in which a transfer was held up by what; their sum is 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Waits([f64; Cause::ALL.len()]);

impl Waits {
    /// All of it by one cause.
    pub fn all(cause: Cause) -> Self {
        let mut waits = Waits([0.0; Cause::ALL.len()]);
        waits.0[cause as usize] = 1.0;
        waits
    }

    /// Of the connections of a transfer, from its sender to its receiver.
    ///
    /// The last connection with data to send is the one that holds the receiver up: those behind it
    /// wait for its data. If none has, the sender does; `is_written` says that it has no more, and
    /// that the last bytes are on their way.
    pub fn of(legs: &[LegTime], is_written: bool) -> Self {
        let mut waits = Waits([0.0; Cause::ALL.len()]);
        // The part in which all connections behind waited for data.
        let mut left = 1.0;
        for (number, leg) in legs.iter().enumerate().rev() {
            for wait in SenderWait::ALL {
                if let Some(cause) = Cause::of(wait, number + 1 == legs.len()) {
                    waits.0[cause as usize] += left * leg.0[wait as usize];
                }
            }
            left *= leg.0[SenderWait::Data as usize];
        }
        waits.0[if is_written { Cause::Distance } else { Cause::Sender } as usize] += left;
        waits
    }

    /// The mean of several transfers at once; none if there are none.
    pub fn mean(all: impl IntoIterator<Item = Waits>) -> Option<Self> {
        let (mut sum, mut count) = ([0.0; Cause::ALL.len()], 0.0);
        for waits in all {
            sum.iter_mut().zip(waits.0).for_each(|(sum, share)| *sum += share);
            count += 1.0;
        }
        (count > 0.0).then(|| Waits(sum.map(|sum| sum / count)))
    }

    pub(crate) fn shares(&self) -> impl Iterator<Item = (Cause, f64)> + '_ {
        Cause::ALL.into_iter().map(|cause| (cause, self.0[cause as usize]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(legs: &[SenderWait], is_written: bool) -> Cause {
        let legs: Vec<LegTime> = legs.iter().map(|wait| LegTime::all(*wait)).collect();
        let waits = Waits::of(&legs, is_written);
        Cause::ALL.into_iter().find(|cause| waits == Waits::all(*cause)).unwrap()
    }

    #[test]
    fn the_last_leg_with_data_holds_the_receiver_up() {
        use SenderWait::{Control, Data, Handshake, Receiver, Recovery, SendBuffer, SlowStart};
        assert_eq!(cause(&[Receiver], false), Cause::ReceiverWindow);
        assert_eq!(cause(&[Receiver, Control], false), Cause::Control);
        assert_eq!(cause(&[Receiver, Data], false), Cause::ProxyBuffer);
        assert_eq!(cause(&[Control, Receiver], false), Cause::ReceiverWindow);
        assert_eq!(cause(&[SlowStart, Data, Data], false), Cause::SlowStart);
        assert_eq!(cause(&[Recovery, Data], false), Cause::Loss);
        assert_eq!(cause(&[SendBuffer, Data], false), Cause::KernelBuffer);
        assert_eq!(cause(&[Data, Handshake], false), Cause::Handshake);
        assert_eq!(cause(&[Data, Data], false), Cause::Sender);
        assert_eq!(cause(&[Data, Data], true), Cause::Distance);
    }

    #[test]
    fn times_of_legs_are_weighed() {
        let first = LegTime::of(&[(SenderWait::Receiver, 3.0), (SenderWait::Data, 1.0)]).unwrap();
        let last = LegTime::of(&[(SenderWait::Data, 2.0), (SenderWait::Control, 2.0)]).unwrap();
        let waits = Waits::of(&[first, last], false);
        let shares: Vec<(Cause, f64)> = waits.shares().filter(|(_, share)| *share > 0.0).collect();
        assert_eq!(shares, [(Cause::Control, 0.5), (Cause::ProxyBuffer, 0.375), (Cause::Sender, 0.125)]);
        assert_eq!(LegTime::of(&[(SenderWait::Data, 0.0)]), None);
    }
}
