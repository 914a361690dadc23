//! The account of each direction of an open flow: how much of the capacity of the destination
//! leg's link it uses, and what the rest is lost to.

use account::{Account, Cause, Interval, LegTime, PAYLOAD, SenderWait, Waits};
use intercept::{LinkUse, sys::TcpInfo};
use relay::{DirectionStats, ProfileId};
use std::time::Duration;

/// `TCP_CLOSE_WAIT`: the peer has sent its FIN.
const CLOSE_WAIT: u8 = 8;

/// What is known of the legs with a profile.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ProfileUse {
    /// How their link is used.
    pub(crate) link: Option<LinkUse>,
    /// Their controller is `share`, which the link's record counts.
    pub(crate) is_share: bool,
    /// Their controller sets the window by a model of the path.
    pub(crate) by_model: bool,
}

/// What is known of the legs with each profile.
#[derive(Debug, Default)]
pub(crate) struct ProfileUses(pub(crate) Vec<(ProfileId, ProfileUse)>);

impl ProfileUses {
    pub(super) fn of(&self, profile: ProfileId) -> ProfileUse {
        self.0.iter().find(|(known, _)| *known == profile).map_or(ProfileUse::default(), |(_, profile_use)| *profile_use)
    }
}

/// The account of a direction, and what was counted for it so far.
#[derive(Debug, Default)]
pub(crate) struct DirectionAccount {
    pub(crate) account: Account,
    /// The time until it was connected, until it is added.
    handshake: Duration,
    delivered: u64,
    sent: u64,
    receiver_us: u64,
    buffer_us: u64,
}

impl DirectionAccount {
    /// Before the first sample: it took `handshake` to connect.
    pub(super) fn begun(handshake: Duration) -> Self {
        DirectionAccount { handshake, ..DirectionAccount::default() }
    }

    /// Adds a sample `since` the last one, to the account of the profile of the destination's leg
    /// too, if it is given. `of` is what is known of that profile. The flows of a profile share its
    /// link: none is other traffic to the profile, and each adds the part of the link that belongs
    /// to it.
    pub(super) fn add(
        &mut self,
        direction: &DirectionStats,
        [source, destination]: [&TcpInfo; 2],
        of: ProfileUse,
        since: Duration,
        profile: Option<&mut Account>,
    ) {
        let seconds = since.as_secs_f64();
        let counts = self.advance(direction, destination, seconds);
        let waits = waits(direction, [source, destination], of.by_model, &counts);
        let handshake = std::mem::take(&mut self.handshake).as_secs_f64();
        let dialling = Waits::all(Cause::Handshake);
        let sent = counts.sent / seconds.max(1e-9) / PAYLOAD;
        let add = |account: &mut Account, others: f64, part: f64| match of.link.filter(|link| link.capacity > 0.0) {
            None => {
                account.add_time(handshake, dialling);
                account.add_time(seconds, waits);
            }
            Some(link) => {
                let of_link = |rate: f64| (rate * seconds * PAYLOAD * part).max(0.0);
                let unused = link.capacity * handshake * PAYLOAD * part;
                account.add(Interval { allowed: unused, delivered: 0.0, others: 0.0, waits: dialling });
                account.add(Interval { allowed: of_link(link.capacity), delivered: counts.delivered, others: of_link(others), waits });
            }
        };
        add(&mut self.account, of.link.map_or(0.0, |link| others(link, of.is_share, sent)), 1.0);
        if let Some(profile) = profile {
            let foreign = of.link.filter(|_| of.is_share).map_or(0.0, |link| link.other);
            add(profile, foreign, of.link.map_or(1.0, |link| part_of_profile(link, foreign, sent)));
        }
    }

    /// What was counted in these seconds since the last sample.
    fn advance(&mut self, direction: &DirectionStats, destination: &TcpInfo, seconds: f64) -> Counts {
        let advance = |counted: &mut u64, now: u64| now.saturating_sub(std::mem::replace(counted, now.max(*counted))) as f64;
        let limited = |us: f64| (us / 1e6).min(seconds);
        let receiver = limited(advance(&mut self.receiver_us, destination.rwnd_limited_us));
        let buffer = limited(advance(&mut self.buffer_us, destination.sndbuf_limited_us)).min(seconds - receiver);
        Counts {
            receiver,
            buffer,
            rest: seconds - receiver - buffer,
            delivered: advance(&mut self.delivered, direction.acknowledged().unwrap_or(direction.moved)),
            sent: advance(&mut self.sent, destination.bytes_sent),
        }
    }
}

/// What an interval between two samples has added to the counts of a direction.
#[derive(Debug)]
struct Counts {
    /// Seconds in which the receiver's window was the limit.
    receiver: f64,
    /// Those in which the kernel's send buffer was.
    buffer: f64,
    /// All others.
    rest: f64,
    /// Payload, bytes.
    delivered: f64,
    /// With retransmissions.
    sent: f64,
}

/// The part of a profile's use of a link that belongs to a leg that sends `sent`, bytes/s of IP:
/// `foreign` is the traffic of other senders. While nothing is sent, flows with unsent data count
/// equally.
fn part_of_profile(link: LinkUse, foreign: f64, sent: f64) -> f64 {
    let all = link.egress - foreign;
    if all > 0.0 || sent > 0.0 { (sent / all.max(sent)).min(1.0) } else { 1.0 / f64::from(link.share_flows.max(1)) }
}

/// What the two legs of a direction wait for.
fn waits(direction: &DirectionStats, [source, destination]: [&TcpInfo; 2], by_model: bool, counts: &Counts) -> Waits {
    let has_data = direction.unsent > 0 || direction.in_hand > 0;
    let rest = if has_data { destination.path_wait(by_model) } else { SenderWait::Data };
    let times = [(SenderWait::Receiver, counts.receiver), (SenderWait::SendBuffer, counts.buffer), (rest, counts.rest)];
    let sending = LegTime::of(&times).unwrap_or(LegTime::all(rest));
    Waits::of(&[LegTime::all(waits_of_peer(direction, source)), sending], source.state == CLOSE_WAIT)
}

/// What others send over the link of a leg that sends `own`, bytes/s of IP.
fn others(link: LinkUse, is_share: bool, own: f64) -> f64 {
    if is_share && link.share_flows <= 1 { link.other } else { link.egress - own }
}

/// What the peer at the other end of the source's leg waits for, as far as it can be told from
/// here: nothing of its window is known.
fn waits_of_peer(direction: &DirectionStats, source: &TcpInfo) -> SenderWait {
    if source.holds_back() {
        SenderWait::Receiver
    } else if direction.has_hole {
        SenderWait::Recovery
    } else if source.peer_is_silent() {
        SenderWait::Data
    } else {
        SenderWait::Control
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A link of 8 Mbit/s of payload that carries nothing else.
    fn link() -> ProfileUse {
        let link = LinkUse { capacity: 1e6 / PAYLOAD, egress: 0.0, other: 0.0, share_flows: 1 };
        ProfileUse { link: Some(link), is_share: true, by_model: true }
    }

    #[test]
    fn what_is_left_goes_to_what_the_legs_waited_for() {
        let source = TcpInfo { rcv_wnd: 1 << 20, rcv_mss: 1448, rtt_us: 1000, ..TcpInfo::default() };
        let mut destination = TcpInfo { rtt_us: 600_000, snd_cwnd: 10, snd_ssthresh: u32::MAX, ..TcpInfo::default() };
        let direction = |moved| DirectionStats { moved, unsent: 5000, unacknowledged: Some(0), ..DirectionStats::default() };
        let mut account = DirectionAccount::default();
        account.add(&direction(250_000), [&source, &destination], link(), SECOND, None);
        // In the next second it is the receiver's window for half a second, and then nothing comes.
        destination.rwnd_limited_us = 500_000;
        let quiet = TcpInfo { last_data_recv_ms: 500, ..source };
        let idle = DirectionStats { moved: 500_000, unacknowledged: Some(0), ..DirectionStats::default() };
        account.add(&idle, [&quiet, &destination], link(), SECOND, None);
        let shares = account.account.shares().unwrap();
        assert_eq!(shares.used, Some(0.25));
        assert_eq!(
            (shares.lost_to(Cause::SlowStart), shares.lost_to(Cause::ReceiverWindow), shares.lost_to(Cause::Sender)),
            (0.375, 0.1875, 0.1875)
        );
    }

    #[test]
    fn without_a_capacity_it_is_an_account_of_time() {
        let source = TcpInfo { rcv_wnd: 1448, rcv_mss: 1448, ..TcpInfo::default() };
        let mut account = DirectionAccount::begun(Duration::from_millis(500));
        account.add(&DirectionStats::default(), [&source, &TcpInfo::default()], ProfileUse::default(), SECOND, None);
        assert_eq!(account.account.shares().unwrap().to_string(), "of its time: the proxy's buffer 67 %, handshake 33 %");
    }

    #[test]
    fn the_share_of_others_is_not_the_flows_own_loss() {
        let busy = LinkUse { egress: 1e6, share_flows: 2, ..link().link.unwrap() };
        let (mut account, source) = (DirectionAccount::default(), TcpInfo { rcv_wnd: 1 << 20, rcv_mss: 1448, ..TcpInfo::default() });
        let destination = TcpInfo { bytes_sent: 500_000, snd_cwnd: 1, ..TcpInfo::default() };
        let direction = DirectionStats { moved: 482_666, unsent: 1, unacknowledged: Some(0), ..DirectionStats::default() };
        account.add(&direction, [&source, &destination], ProfileUse { link: Some(busy), ..link() }, SECOND, None);
        let shares = account.account.shares().unwrap();
        assert!((shares.lost_to(Cause::OtherTraffic) - 0.4653).abs() < 1e-3, "{shares}");
    }

    #[test]
    fn the_flows_of_a_profile_are_not_other_traffic_to_it() {
        let busy = LinkUse { egress: 1e6, share_flows: 2, ..link().link.unwrap() };
        let (mut profile, source) = (Account::default(), TcpInfo { rcv_wnd: 1 << 20, rcv_mss: 1448, ..TcpInfo::default() });
        // Each of two flows sends half; a third one has nothing to send.
        for sent in [500_000.0, 500_000.0, 0.0] {
            let mut account = DirectionAccount::default();
            let destination = TcpInfo { bytes_sent: (sent * PAYLOAD) as u64, snd_cwnd: 1, ..TcpInfo::default() };
            let direction = DirectionStats { moved: (sent * PAYLOAD) as u64, unacknowledged: Some(0), ..DirectionStats::default() };
            account.add(&direction, [&source, &destination], ProfileUse { link: Some(busy), ..link() }, SECOND, Some(&mut profile));
        }
        let shares = profile.shares().unwrap();
        assert!((shares.used.unwrap() - PAYLOAD).abs() < 1e-3 && shares.lost_to(Cause::OtherTraffic) == 0.0, "{shares}");
    }
}
