//! The states of congestion control, and how the window comes down and up again in them (tcp_fastretrans_alert, RFC 6937, RFC 3522).

use super::{
    EVER_RETRANS, LOST, Phase, RETRANS, Sender,
    ack::{News, Resend},
};
use crate::net::Net;
use control::{Event, EventKind as Kind};

impl Sender {
    /// Whether the window is coming down (tcp_in_cwnd_reduction).
    pub(super) fn is_reducing(&self) -> bool {
        matches!(self.phase, Phase::Cwr | Phase::Recovery)
    }

    /// Goes over to a state; the controller hears of the end of a recovery.
    pub(super) fn enter(&mut self, phase: Phase, net: &mut Net) {
        if phase < Phase::Cwr && self.phase >= Phase::Cwr && !self.whole {
            self.tell(Event { kind: Kind::Recovered, ..Event::default() }, net);
        }
        self.phase = phase;
    }

    /// An acknowledgement that is not plainly good news (tcp_fastretrans_alert).
    pub(super) fn fast_retransmit(&mut self, news: &mut News, net: &mut Net) -> Resend {
        if news.ece {
            self.prior_ssthresh = 0;
        }
        if self.phase == Phase::Open {
            self.retrans_stamp = 0;
        } else if self.una >= self.high {
            match self.phase {
                // Until something above is acknowledged, so that the CWR is known to have arrived.
                Phase::Cwr if self.una != self.high => {
                    self.end_reduction();
                    self.enter(Phase::Open, net);
                }
                Phase::Recovery => {
                    self.undo_or_recover(news, net);
                }
                _ => {}
            }
        }
        match self.phase {
            Phase::Recovery => {
                if news.advanced && self.undo_partial(news, net) {
                    return Resend::Nothing;
                }
                if self.undo_by_duplicates(net) {
                    self.try_to_open(news, net);
                }
                self.find_losses(news, net);
                if self.phase != Phase::Recovery {
                    if self.lost_out == 0 {
                        return Resend::Nothing;
                    }
                    self.enter_recovery(news.ece, net);
                }
            }
            Phase::Loss => {
                let resend = self.process_loss(news, net);
                self.find_losses(news, net);
                if !(self.phase == Phase::Open || news.lost_retransmission) {
                    return resend;
                }
                return self.time_to_recover(news, net);
            }
            _ => {
                if self.phase <= Phase::Disorder {
                    self.undo_by_duplicates(net);
                }
                self.find_losses(news, net);
                return self.time_to_recover(news, net);
            }
        }
        Resend::Lost
    }

    /// Enters recovery when something is lost.
    fn time_to_recover(&mut self, news: &News, net: &mut Net) -> Resend {
        if self.lost_out == 0 {
            self.try_to_open(news, net);
            return Resend::Nothing;
        }
        self.enter_recovery(news.ece, net);
        Resend::Lost
    }

    /// Begins to bring the window down (tcp_init_cwnd_reduction).
    pub(super) fn begin_reduction(&mut self, net: &mut Net) {
        self.high = self.nxt;
        self.probe_high = None;
        self.flow.prior_cwnd = self.flow.cwnd;
        self.prr_delivered = 0;
        self.prr_out = 0;
        self.ask_threshold(net);
        self.queue_cwr = true;
    }

    /// Asks the controller for the threshold.
    pub(super) fn ask_threshold(&mut self, net: &mut Net) {
        // Nothing is lost when an echoed mark alone begins the recovery.
        let flags = if self.lost_out > 0 || self.whole { 0 } else { control::ECN_ECHO };
        (_, self.flow.ssthresh) = self.tell(Event { kind: Kind::Loss, flags, ..Event::default() }, net);
    }

    /// From here on a reduction may turn out to have been needless (tcp_init_undo).
    pub(super) fn begin_undo(&mut self) {
        self.undo_marker = Some(self.una);
        let probe = u32::from(self.probe_high.is_some() && self.probe_was_old);
        let under_way = i64::from(self.retrans_out + probe);
        self.undo_retrans = if under_way > 0 { under_way } else { -1 };
    }

    /// Something is lost (tcp_enter_recovery).
    pub(super) fn enter_recovery(&mut self, ece: bool, net: &mut Net) {
        self.prior_ssthresh = 0;
        self.begin_undo();
        if !self.is_reducing() {
            if !ece {
                self.prior_ssthresh = self.current_ssthresh();
            }
            self.begin_reduction(net);
        }
        self.enter(Phase::Recovery, net);
    }

    /// The receiver saw a mark (tcp_enter_cwr).
    fn enter_cwr(&mut self, net: &mut Net) {
        self.prior_ssthresh = 0;
        if self.phase < Phase::Cwr {
            self.undo_marker = None;
            self.begin_reduction(net);
            self.enter(Phase::Cwr, net);
        }
    }

    /// Brings the window down in proportion to what arrives (tcp_cwnd_reduction, RFC 6937).
    pub(super) fn reduce(&mut self, delivered: u32, lost: u32, news: &News) {
        if delivered == 0 || self.flow.prior_cwnd == 0 {
            return;
        }
        let (in_flight, ssthresh) = (i64::from(self.in_flight()), i64::from(self.flow.ssthresh));
        self.prr_delivered += delivered;
        let (arrived, sent, prior) = (i64::from(self.prr_delivered), i64::from(self.prr_out), i64::from(self.flow.prior_cwnd));
        let mut may = if in_flight > ssthresh {
            (ssthresh * arrived + prior - 1) / prior - sent
        } else {
            // Slow start, while that does good.
            let grow = i64::from(news.advanced && lost == 0);
            ((arrived - sent).max(delivered.into()) + grow).min(ssthresh - in_flight)
        };
        // The first retransmission goes at once.
        may = may.max(i64::from(self.prr_out == 0));
        self.flow.cwnd = (in_flight + may).clamp(1, control::INFINITE.into()) as u32;
    }

    /// The window has come down (tcp_end_cwnd_reduction).
    pub(super) fn end_reduction(&mut self) {
        let stands = self.phase == Phase::Cwr || self.undo_marker.is_some();
        if !self.whole && self.flow.ssthresh < control::INFINITE && stands {
            self.flow.cwnd = self.flow.ssthresh.max(1);
        }
    }

    /// Open, or disorder while something is out of order (tcp_try_keep_open).
    pub(super) fn keep_open(&mut self, net: &mut Net) {
        let amiss = self.sacked_out + self.lost_out > 0 || self.any_retransmitted();
        let phase = if amiss { Phase::Disorder } else { Phase::Open };
        if self.phase != phase {
            self.enter(phase, net);
            self.high = self.nxt;
        }
    }

    fn try_to_open(&mut self, news: &News, net: &mut Net) {
        if !self.any_retransmitted() {
            self.retrans_stamp = 0;
        }
        if news.ece {
            self.enter_cwr(net);
        }
        if self.phase != Phase::Cwr {
            self.keep_open(net);
        }
    }

    /// Whether a retransmission may still be under way (tcp_any_retrans_done).
    fn any_retransmitted(&self) -> bool {
        self.retrans_out > 0 || self.segments.front().is_some_and(|head| head.has(EVER_RETRANS))
    }

    /// What was acknowledged is what was sent first: its retransmission was needless (tcp_packet_delayed).
    fn was_only_late(&self, news: &News) -> bool {
        if self.retrans_stamp > 0 { news.echo > 0 && news.echo < self.retrans_stamp } else { !self.any_retransmitted() }
    }

    fn may_undo(&self, news: &News) -> bool {
        self.undo_marker.is_some() && (self.undo_retrans == 0 || self.was_only_late(news))
    }

    /// Takes a reduction back (tcp_undo_cwnd_reduction).
    fn undo(&mut self, forgive: bool, net: &mut Net) {
        if forgive {
            for segment in &mut self.segments {
                segment.flags &= !LOST;
            }
            self.lost_out = 0;
            self.again.clear();
        }
        if self.prior_ssthresh > 0 {
            if self.whole {
                self.flow.cwnd = self.flow.cwnd.max(self.flow.prior_cwnd);
            } else {
                (self.flow.cwnd, _) = self.tell(Event { kind: Kind::Undo, ..Event::default() }, net);
            }
            if self.prior_ssthresh > self.flow.ssthresh {
                self.flow.ssthresh = self.prior_ssthresh;
                self.queue_cwr = false;
            }
        }
        self.tally.undone += 1;
        self.cwnd_stamp = net.now;
        self.undo_marker = None;
        self.rack.look_again();
    }

    /// All that was sent when recovery began is acknowledged (tcp_try_undo_recovery).
    fn undo_or_recover(&mut self, news: &News, net: &mut Net) {
        if self.may_undo(news) {
            self.undo(false, net);
        }
        self.end_reduction();
        self.enter(Phase::Open, net);
    }

    /// A part was acknowledged (tcp_try_undo_partial); true: nothing more is to be done.
    fn undo_partial(&mut self, news: &News, net: &mut Net) -> bool {
        if self.undo_marker.is_none() || !self.was_only_late(news) {
            return false;
        }
        self.note_reordering(news.prior_una, self.highest_sacked);
        // While retransmissions are out the next acknowledgements will tell more.
        if self.retrans_out > 0 {
            return true;
        }
        if !self.any_retransmitted() {
            self.retrans_stamp = 0;
        }
        self.undo(true, net);
        self.keep_open(net);
        false
    }

    /// Every retransmission came twice (tcp_try_undo_dsack).
    fn undo_by_duplicates(&mut self, net: &mut Net) -> bool {
        if self.undo_marker.is_none() || self.undo_retrans != 0 {
            return false;
        }
        self.undo(false, net);
        true
    }

    /// The timeout was needless (tcp_try_undo_loss).
    fn undo_loss(&mut self, sure: bool, news: &News, net: &mut Net) -> bool {
        if !sure && !self.may_undo(news) {
            return false;
        }
        self.undo(true, net);
        self.timeouts_in_row = 0;
        self.enter(Phase::Open, net);
        true
    }

    /// After a timeout (tcp_process_loss). Of F-RTO (RFC 5682) there is what selective acknowledgements show.
    fn process_loss(&mut self, news: &News, net: &mut Net) -> Resend {
        if news.advanced && self.undo_loss(false, news, net) {
            return Resend::Nothing;
        }
        if self.frto {
            if news.original && self.undo_loss(true, news, net) {
                return Resend::Nothing;
            }
            self.frto = false;
        }
        if self.una >= self.high {
            self.undo_or_recover_from_loss(news, net);
            return Resend::Nothing;
        }
        Resend::Lost
    }

    fn undo_or_recover_from_loss(&mut self, news: &News, net: &mut Net) {
        if self.may_undo(news) {
            self.undo(false, net);
        }
        self.enter(Phase::Open, net);
    }

    /// The segment is lost, or its retransmission is (tcp_mark_skb_lost).
    pub(super) fn mark_lost(&mut self, index: usize) {
        let number = self.base + index as u64;
        let segment = &mut self.segments[index];
        if segment.has(LOST) {
            if !segment.has(RETRANS) {
                return;
            }
            segment.flags &= !RETRANS;
            self.retrans_out -= 1;
        } else {
            segment.flags |= LOST;
            self.lost_out += 1;
        }
        self.lost += 1;
        // Mostly they are found in order.
        match self.again.back() {
            Some(back) if *back >= number => {
                let at = self.again.partition_point(|other| *other < number);
                if self.again.get(at) != Some(&number) {
                    self.again.insert(at, number);
                }
            }
            _ => self.again.push_back(number),
        }
    }
}
