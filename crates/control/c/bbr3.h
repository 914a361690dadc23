/*
 * BBR, version 3: draft-ietf-ccwg-bbr, of which the names in brackets are. As version 1 it paces at
 * the delivery rate of the path and probes for more; other than version 1 it bounds rate and window
 * by what caused losses.
 *
 *   STARTUP   pacing gain 2.77: until the rate grows by less than a quarter in three round trips, or more
 *             than 2 % are lost in a round trip of recovery with six losses                      §5.3.1
 *   DRAIN     pacing gain 0.5: until a BDP is in flight, four round trips at most                §5.3.2
 *   DOWN      pacing gain 0.9: until a BDP less headroom is in flight                            §5.3.3
 *   CRUISE    pacing gain 1: 15 % below the window that caused losses; 2 to 3 s, or 63 round trips
 *   REFILL    pacing gain 1, a round trip: forgets the short-term bounds
 *   UP        pacing gain 1.25: until the rate does not grow any more, or more than 2 % are lost
 *   PROBE_RTT half of the BDP in flight for 200 ms, each 5 s                                     §5.3.4
 *
 *   a loss in DOWN or CRUISE: short-term rate and window become 0.7 of themselves, or what was delivered
 *   more than 2 % lost in REFILL or UP: the long-term window becomes that which was in flight
 *
 * Quantities are in segments, as TCP in Linux counts. What the draft takes from a record of each
 * segment, TCP does not give to a controller. The replacements:
 *
 *   P.tx_in_flight, P.lost  `sent`: what was in flight and lost at 32 points of the last round trips, found
 *                           by `prior_delivered`. It is that of the newest segment of an ACK, to 1/24.
 *   HandleLostPacket(P)     once an ACK, for all segments that it marks lost, with the values of the newest
 *                           segment that it delivers: that was sent just after them. Losses that a timer
 *                           finds count with the next ACK.
 *   sequence ranges lost    ACKs that report losses
 *   C.app_limited = …       the state remembers which samples PROBE_RTT has limited
 *   CE marks                an ACK with marks counts as a loss above the threshold (§3.5: as congestion)
 *   has_selective_acks      taken for granted
 */
#ifndef TD_BBR3_H
#define TD_BBR3_H
#include "rate.h"

enum { TD_BBR3_STARTUP, TD_BBR3_DRAIN, TD_BBR3_DOWN, TD_BBR3_CRUISE, TD_BBR3_REFILL, TD_BBR3_UP, TD_BBR3_PROBE_RTT, TD_BBR3_NONE };
enum { TD_BBR3_ACKS_INIT, TD_BBR3_ACKS_REFILLING, TD_BBR3_ACKS_STARTING, TD_BBR3_ACKS_FEEDBACK, TD_BBR3_ACKS_STOPPING };

#define TD_BBR3_SENT 32
#define TD_BBR3_UNBOUND (~0U)

struct td_bbr3_state {
	u32 mode;		/* BBR.state */
	u32 ack_phase;
	u32 max_rate[2];	/* largest delivery rate of this ProbeBW cycle and of the last one */
	u32 rate;		/* BBR.bw */
	u32 rate_short, window_short; /* bw_shortterm, inflight_shortterm */
	u32 window_long;	/* inflight_longterm */
	u32 rate_latest, window_latest; /* bw_latest, inflight_latest */
	u32 loss_round_end;	/* loss_round_delivered */
	u32 loss_events;	/* ACKs of this round trip with losses */
	u32 rounds, round_end;	/* round_count, next_round_delivered */
	u32 drain_round;	/* drain_start_round */
	u32 full_rate, full_rounds; /* full_bw, full_bw_count */
	u32 min_rtt_us, min_rtt_ms; /* and when it was measured */
	u32 probe_rtt_us, probe_rtt_ms; /* probe_rtt_min_delay, probe_rtt_min_stamp */
	u32 probe_rtt_ends_ms;	/* probe_rtt_done_stamp */
	u32 cycle_us, wait_us;	/* cycle_stamp, bw_probe_wait */
	u32 rounds_since_up;
	u32 up_acked, up_per_segment, up_rounds; /* bw_probe_up_acked, probe_up_acked_per_inc, bw_probe_up_rounds */
	u32 prior_cwnd;
	u32 undo_mode, undo_rate_short, undo_window_short, undo_window_long;
	struct td_maximum extra; /* extra_acked_filter */
	u32 extra_us, extra_acked; /* extra_acked_interval_start, extra_acked_delivered */
	u32 limited_from, limited_end; /* `delivered` between which samples are limited by PROBE_RTT */
	u32 ca_state;		/* at the last ACK */
	u32 last_delivered, last_lost, last_marked; /* at the last ACK */
	u8 full_now, full;	/* full_bw_now, full_bw_reached */
	u8 round_start, loss_round_start, loss_in_round;
	u8 probe_sample;	/* is_bw_probe_sample */
	u8 probe_too_high, probe_cautious; /* prev_probe_too_high, prev_probe_precautionary */
	u8 idle_restart, rtt_seen, limited;
	u8 probe_rtt_expired, probe_rtt_timed, probe_rtt_round;
	u16 newest;		/* index of the last entry of `sent` */
	/* What was in flight and lost when segments were sent, by what had been delivered. */
	struct {
		u32 delivered, in_flight, lost;
	} sent[TD_BBR3_SENT];
};
#define td_bbr3_WANTS (TD_WANTS_RATE | TD_WANTS_RESTART | TD_WANTS_STORAGE)
#define td_bbr3_TUNABLES(T)                                                                              \
	T(loss_milli, 20, 1, 1000, "BBR.LossThresh: loss of a round trip that ends a probe, thousandths") \
	T(beta_milli, 700, 100, 999, "BBR.Beta: least reduction of the short-term bounds in a round trip with losses, thousandths") \
	T(headroom_milli, 150, 0, 900, "BBR.Headroom: window left to others while cruising, thousandths") \
	T(startup_losses, 6, 1, 1000, "ACKs with losses in a round trip that may end STARTUP")            \
	T(wait_ms, 2000, 100, 60000, "least time between probes for bandwidth, ms; the most is 1 s more") \
	T(reno_rounds, 63, 1, 1000, "round trips between probes at most: those of Reno with this window") \
	T(min_rtt_ms, 10000, 100, 600000, "BBR.MinRTTFilterLen: window of the least RTT, ms")             \
	T(probe_rtt_interval_ms, 5000, 100, 600000, "BBR.ProbeRTTInterval, ms")                           \
	T(probe_rtt_ms, 200, 1, 10000, "BBR.ProbeRTTDuration, ms")                                        \
	T(margin_percent, 1, 0, 20, "pacing is this much slower than the delivery rate, percent")
TD_CONTROLLER(bbr3);

/* BBR.MinPipeCwnd */
#define TD_BBR3_LEAST_WINDOW 4
#define TD_BBR3_EXTRA_ROUNDS 10

/* What is known of the newest segment that an ACK delivers. */
struct td_bbr3_sample {
	u32 rate;	/* RS.delivery_rate */
	u32 in_flight;	/* RS.tx_in_flight */
	u32 lost;	/* RS.lost */
	u32 limited;	/* RS.is_app_limited */
};

TD_INLINE u32 td_bbr3_ms(const struct td_event *e) { return e->now_us / 1000; }
TD_INLINE u32 td_bbr3_max_rate(const struct td_bbr3_state *s) { return td_max(s->max_rate[0], s->max_rate[1]); }
TD_INLINE int td_bbr3_in_probe_bw(const struct td_bbr3_state *s) { return s->mode >= TD_BBR3_DOWN && s->mode <= TD_BBR3_UP; }

TD_INLINE u32 td_bbr3_pacing_gain(const struct td_bbr3_state *s)
{
	switch (s->mode) {
	case TD_BBR3_STARTUP: return 709; /* 2.77 */
	case TD_BBR3_DRAIN: return 128;
	case TD_BBR3_DOWN: return 230; /* 0.9 */
	case TD_BBR3_UP: return 320;
	}
	return TD_GAIN;
}

TD_INLINE u32 td_bbr3_cwnd_gain(const struct td_bbr3_state *s)
{
	if (s->mode == TD_BBR3_UP)
		return 576;
	return s->mode == TD_BBR3_PROBE_RTT ? 128 : 512;
}

/* BDPMultiple() */
TD_INLINE u32 td_bbr3_bdp(const struct td_bbr3_state *s, u32 rate, u32 gain)
{
	return s->min_rtt_us == ~0U ? TD_INITIAL_WINDOW : td_rate_window(rate, s->min_rtt_us, gain);
}

/* QuantizationBudget() */
TD_INLINE u32 td_bbr3_with_pieces(const struct td_flow *f, const struct td_bbr3_state *s, u32 window)
{
	window = td_max(td_max(window, 3 * td_quantum(f, 2)), TD_BBR3_LEAST_WINDOW);
	return s->mode == TD_BBR3_UP ? window + 2 : window;
}

/* Inflight() */
TD_INLINE u32 td_bbr3_inflight(const struct td_flow *f, const struct td_bbr3_state *s, u32 rate, u32 gain)
{
	return td_bbr3_with_pieces(f, s, td_bbr3_bdp(s, rate, gain));
}

/* InflightWithHeadroom() */
TD_INLINE u32 td_bbr3_with_headroom(const struct td_bbr3_state *s, const struct td_bbr3_tunables *t)
{
	u32 headroom;

	if (s->window_long == TD_BBR3_UNBOUND)
		return TD_BBR3_UNBOUND;
	headroom = td_max64((u64)s->window_long * t->headroom_milli / 1000, 1);
	return td_max64(td_sub_sat(s->window_long, headroom), TD_BBR3_LEAST_WINDOW);
}

/* TargetInflight() */
TD_INLINE u32 td_bbr3_target(const struct td_flow *f, const struct td_bbr3_state *s)
{
	return td_min(td_bbr3_bdp(s, s->rate, TD_GAIN), f->cwnd);
}

TD_INLINE void td_bbr3_start_round(const struct td_flow *f, struct td_bbr3_state *s) { s->round_end = f->delivered; }

TD_INLINE void td_bbr3_reset_full(struct td_bbr3_state *s)
{
	s->full_rate = s->full_rounds = 0;
	s->full_now = 0;
}

TD_INLINE void td_bbr3_reset_short(struct td_bbr3_state *s)
{
	s->rate_short = s->window_short = TD_BBR3_UNBOUND;
}

TD_INLINE void td_bbr3_reset_congestion(struct td_bbr3_state *s)
{
	s->loss_in_round = 0;
	s->loss_events = 0;
	s->rate_latest = s->window_latest = 0;
}

/* SaveCwnd(), RestoreCwnd() */
TD_INLINE void td_bbr3_save_cwnd(const struct td_flow *f, struct td_bbr3_state *s)
{
	if (f->ca_state < TD_CA_RECOVERY && s->mode != TD_BBR3_PROBE_RTT)
		s->prior_cwnd = f->cwnd;
	else
		s->prior_cwnd = td_max(s->prior_cwnd, f->cwnd);
}

TD_INLINE void td_bbr3_restore_cwnd(struct td_flow *f, const struct td_bbr3_state *s) { f->cwnd = td_max(f->cwnd, s->prior_cwnd); }

/* SaveStateUponLoss() */
TD_INLINE void td_bbr3_save(const struct td_flow *f, struct td_bbr3_state *s)
{
	td_bbr3_save_cwnd(f, s);
	s->undo_mode = TD_BBR3_NONE;
	s->undo_rate_short = s->rate_short;
	s->undo_window_short = s->window_short;
	s->undo_window_long = s->window_long;
}

/* StartProbeBW_DOWN() with PickProbeWait() */
TD_INLINE void td_bbr3_start_down(const struct td_flow *f, struct td_bbr3_state *s, const struct td_event *e, const struct td_bbr3_tunables *t)
{
	td_bbr3_reset_congestion(s);
	s->up_per_segment = TD_BBR3_UNBOUND;
	s->rounds_since_up = e->random & 1;
	s->wait_us = t->wait_ms * 1000 + ((u64)(e->random >> 8) * 1000000 >> 24);
	s->cycle_us = e->now_us;
	s->ack_phase = TD_BBR3_ACKS_STOPPING;
	td_bbr3_start_round(f, s);
	s->mode = TD_BBR3_DOWN;
}

/* StartProbeBW_REFILL() */
TD_INLINE void td_bbr3_start_refill(const struct td_flow *f, struct td_bbr3_state *s)
{
	td_bbr3_reset_short(s);
	s->up_rounds = s->up_acked = 0;
	s->probe_cautious = 0;
	s->ack_phase = TD_BBR3_ACKS_REFILLING;
	td_bbr3_start_round(f, s);
	s->mode = TD_BBR3_REFILL;
}

/* RaiseInflightLongtermSlope() */
TD_INLINE void td_bbr3_raise_slope(const struct td_flow *f, struct td_bbr3_state *s)
{
	s->up_per_segment = td_max(f->cwnd >> (s->up_rounds & 31), 1);
	s->up_rounds = td_min(s->up_rounds + 1, 30);
}

/* StartProbeBW_UP() */
TD_INLINE void td_bbr3_start_up(const struct td_flow *f, struct td_bbr3_state *s, const struct td_bbr3_sample *rs)
{
	s->ack_phase = TD_BBR3_ACKS_STARTING;
	td_bbr3_start_round(f, s);
	td_bbr3_reset_full(s);
	s->full_rate = rs->rate;
	s->mode = TD_BBR3_UP;
	td_bbr3_raise_slope(f, s);
}

/* Remembers what was in flight while segments were sent, from the last ACK to this one. */
TD_INLINE void td_bbr3_note_sent(struct td_bbr3_state *s, const struct td_event *e)
{
	u32 at = s->newest & (TD_BBR3_SENT - 1);

	if (s->last_delivered - s->sent[at].delivered >= td_max(td_max(e->prior_in_flight, e->sampled) / 24, 1)) {
		at = (at + 1) & (TD_BBR3_SENT - 1);
		s->newest = at;
		s->sent[at].delivered = s->last_delivered;
		s->sent[at].lost = s->last_lost;
	}
	s->sent[at].in_flight = e->prior_in_flight;
}

/* The entry of the segment that was sent when `delivered` had been delivered: the last one before. */
TD_INLINE u32 td_bbr3_find_sent(const struct td_bbr3_state *s, u32 delivered)
{
	u32 back;

	for (back = 0; back < TD_BBR3_SENT - 1; back++) {
		u32 at = (s->newest - back) & (TD_BBR3_SENT - 1);

		if (!td_before(delivered, s->sent[at].delivered))
			return at;
	}
	return (s->newest + 1) & (TD_BBR3_SENT - 1);
}

TD_INLINE void td_bbr3_sample(const struct td_flow *f, struct td_bbr3_state *s, const struct td_event *e, struct td_bbr3_sample *rs)
{
	u32 at = td_bbr3_find_sent(s, e->sampled ? e->prior_delivered : s->last_delivered) & (TD_BBR3_SENT - 1);

	rs->rate = e->sampled ? td_min64(td_rate(e->sampled, e->interval_us), TD_BBR3_UNBOUND - 1) : 0;
	rs->in_flight = s->sent[at].in_flight;
	rs->lost = f->lost - s->sent[at].lost;
	if (s->limited && e->sampled && td_before(s->limited_end, e->prior_delivered))
		s->limited = 0;
	rs->limited = e->flags & TD_APP_LIMITED || (s->limited && !td_before(e->prior_delivered, s->limited_from));
}

/* IsInflightTooHigh() */
TD_INLINE int td_bbr3_too_high(const struct td_bbr3_sample *rs, const struct td_bbr3_tunables *t)
{
	return (u64)rs->lost * 1000 > (u64)rs->in_flight * t->loss_milli;
}

/* InflightAtLoss(): what was in flight when losses passed the threshold, within the `lost` segments of this ACK. */
TD_INLINE u32 td_bbr3_inflight_at_loss(const struct td_bbr3_sample *rs, u32 lost, const struct td_bbr3_tunables *t)
{
	u64 before = td_sub_sat(rs->in_flight, lost), lost_before = td_sub_sat(rs->lost, lost);
	u64 prefix = td_div(td_sub_sat(before * t->loss_milli, lost_before * 1000), 1000 - td_min(t->loss_milli, 999));

	return td_min64(before + prefix, TD_INFINITE);
}

/* HandleInflightTooHigh() */
TD_INLINE void td_bbr3_handle_too_high(const struct td_flow *f, struct td_bbr3_state *s, const struct td_event *e,
				       const struct td_bbr3_sample *rs, u32 in_flight, const struct td_bbr3_tunables *t)
{
	s->probe_too_high = 1;
	s->probe_sample = 0;
	if (!rs->limited)
		s->window_long = td_max64(in_flight, (u64)td_bbr3_target(f, s) * t->beta_milli / 1000);
	if (s->mode == TD_BBR3_UP) {
		s->undo_mode = TD_BBR3_UP;
		td_bbr3_start_down(f, s, e, t);
	}
}

/* HandleLostPacket(), for all that this ACK reports as lost or marked. */
TD_INLINE void td_bbr3_handle_losses(const struct td_flow *f, struct td_bbr3_state *s, const struct td_event *e,
				     const struct td_bbr3_sample *rs, const struct td_bbr3_tunables *t)
{
	u32 lost = f->lost - s->last_lost, marked = f->marked - s->last_marked;

	if (!lost && !marked)
		return;
	if (!s->loss_in_round) {
		s->loss_round_end = f->delivered;
		td_bbr3_save(f, s);
	}
	s->loss_in_round = 1;
	s->loss_events++;
	if (!s->probe_sample)
		return;
	if (marked)
		td_bbr3_handle_too_high(f, s, e, rs, rs->in_flight, t);
	else if (td_bbr3_too_high(rs, t))
		td_bbr3_handle_too_high(f, s, e, rs, td_bbr3_inflight_at_loss(rs, lost, t), t);
}

/* UpdateLatestDeliverySignals() */
TD_INLINE void td_bbr3_update_latest(const struct td_flow *f, struct td_bbr3_state *s, const struct td_event *e,
				     const struct td_bbr3_sample *rs)
{
	s->loss_round_start = 0;
	s->rate_latest = td_max(s->rate_latest, rs->rate);
	s->window_latest = td_max(s->window_latest, e->sampled);
	if (e->sampled && !td_before(e->prior_delivered, s->loss_round_end)) {
		s->loss_round_end = f->delivered;
		s->loss_round_start = 1;
	}
}

/* UpdateRound(), UpdateMaxBw() */
TD_INLINE void td_bbr3_update_rate(const struct td_flow *f, struct td_bbr3_state *s, const struct td_event *e,
				   const struct td_bbr3_sample *rs)
{
	s->round_start = 0;
	if (e->sampled && !td_before(e->prior_delivered, s->round_end)) {
		td_bbr3_start_round(f, s);
		s->rounds++;
		s->rounds_since_up++;
		s->round_start = 1;
	}
	if (rs->rate && (rs->rate >= td_bbr3_max_rate(s) || !rs->limited))
		s->max_rate[0] = td_max(s->max_rate[0], rs->rate);
}

/* UpdateCongestionSignals() */
TD_INLINE void td_bbr3_update_congestion(const struct td_flow *f, struct td_bbr3_state *s, const struct td_event *e,
					 const struct td_bbr3_sample *rs, const struct td_bbr3_tunables *t)
{
	int probing = s->mode == TD_BBR3_STARTUP || s->mode == TD_BBR3_REFILL || s->mode == TD_BBR3_UP;

	td_bbr3_update_rate(f, s, e, rs);
	if (!s->loss_round_start)
		return;
	if (s->loss_in_round && !probing) {
		if (s->rate_short == TD_BBR3_UNBOUND)
			s->rate_short = td_bbr3_max_rate(s);
		if (s->window_short == TD_BBR3_UNBOUND)
			s->window_short = f->cwnd;
		s->rate_short = td_max64(s->rate_latest, (u64)s->rate_short * t->beta_milli / 1000);
		s->window_short = td_max64(s->window_latest, (u64)s->window_short * t->beta_milli / 1000);
	}
	s->loss_in_round = 0;
}

/* UpdateACKAggregation() */
TD_INLINE void td_bbr3_update_extra(const struct td_flow *f, struct td_bbr3_state *s, const struct td_event *e)
{
	u64 expected = td_rate_times(s->rate, (u32)e->now_us - s->extra_us);
	u32 extra;

	if (s->extra_acked <= expected) {
		s->extra_acked = 0;
		s->extra_us = e->now_us;
		expected = 0;
	}
	s->extra_acked += e->acked;
	extra = td_min64(td_sub_sat(s->extra_acked, expected), f->cwnd);
	td_maximum_update(&s->extra, s->full ? TD_BBR3_EXTRA_ROUNDS : 1, s->rounds, extra);
}

/* CheckFullBWReached() */
TD_INLINE void td_bbr3_check_full(struct td_bbr3_state *s, const struct td_bbr3_sample *rs)
{
	if (s->full_now || !s->round_start || rs->limited)
		return;
	if (rs->rate >= (u64)s->full_rate * 320 >> 8) {
		td_bbr3_reset_full(s);
		s->full_rate = rs->rate;
		return;
	}
	s->full_rounds++;
	s->full_now = s->full_rounds >= 3;
	if (s->full_now)
		s->full = 1;
}

/* CheckStartupDone(), with CheckStartupHighLoss() */
TD_INLINE void td_bbr3_check_startup(const struct td_flow *f, struct td_bbr3_state *s, const struct td_bbr3_sample *rs,
				     const struct td_bbr3_tunables *t)
{
	if (s->mode != TD_BBR3_STARTUP)
		return;
	if (!s->full && s->loss_round_start && s->loss_events >= t->startup_losses && f->ca_state == TD_CA_RECOVERY &&
	    td_bbr3_too_high(rs, t)) {
		s->undo_mode = TD_BBR3_STARTUP;
		s->full = s->full_now = 1;
		s->window_long = td_max(td_bbr3_bdp(s, s->rate, TD_GAIN), s->window_latest);
	}
	if (s->full) {
		s->mode = TD_BBR3_DRAIN;
		s->drain_round = s->rounds;
	}
}

/* CheckDrainDone() */
TD_INLINE void td_bbr3_check_drain(const struct td_flow *f, struct td_bbr3_state *s, const struct td_event *e, const struct td_bbr3_tunables *t)
{
	if (s->mode == TD_BBR3_DRAIN && (f->in_flight <= td_bbr3_inflight(f, s, s->rate, TD_GAIN) || s->rounds - s->drain_round > 3))
		td_bbr3_start_down(f, s, e, t);
}

/* ProbeInflightLongtermUpward() */
TD_INLINE void td_bbr3_probe_upward(const struct td_flow *f, struct td_bbr3_state *s, const struct td_event *e)
{
	if (!(e->flags & TD_CWND_LIMITED) || f->cwnd < s->window_long)
		return;
	s->up_acked += e->acked;
	if (s->up_acked >= s->up_per_segment) {
		u32 more = td_div(s->up_acked, s->up_per_segment);

		s->up_acked -= more * s->up_per_segment;
		s->window_long = td_min64((u64)s->window_long + more, TD_INFINITE);
	}
	if (s->round_start)
		td_bbr3_raise_slope(f, s);
}

/* AdaptLongTermModel(): whether it has changed the state. */
TD_INLINE int td_bbr3_adapt_long(const struct td_flow *f, struct td_bbr3_state *s, const struct td_event *e,
				 const struct td_bbr3_sample *rs, const struct td_bbr3_tunables *t)
{
	if (s->ack_phase == TD_BBR3_ACKS_STARTING && s->round_start)
		s->ack_phase = TD_BBR3_ACKS_FEEDBACK;
	if (s->ack_phase == TD_BBR3_ACKS_STOPPING && s->round_start) {
		s->probe_sample = 0;
		s->ack_phase = TD_BBR3_ACKS_INIT;
		/* AdvanceMaxBwFilter(); a cycle without a sample forgets nothing. */
		if (td_bbr3_in_probe_bw(s) && !rs->limited && s->max_rate[0]) {
			s->max_rate[1] = s->max_rate[0];
			s->max_rate[0] = 0;
		}
		if (td_bbr3_in_probe_bw(s) && s->probe_cautious && !s->probe_too_high) {
			td_bbr3_start_refill(f, s);
			return 1;
		}
	}
	if (td_bbr3_too_high(rs, t) || s->window_long == TD_BBR3_UNBOUND)
		return 0;
	if (e->sampled && rs->in_flight > s->window_long)
		s->window_long = rs->in_flight;
	if (s->mode == TD_BBR3_UP)
		td_bbr3_probe_upward(f, s, e);
	return 0;
}

/* IsTimeToProbeBW(), IsRenoCoexistenceProbeTime() */
TD_INLINE int td_bbr3_is_time_to_probe(const struct td_flow *f, const struct td_bbr3_state *s, const struct td_event *e,
				       const struct td_bbr3_tunables *t)
{
	return (u32)e->now_us - s->cycle_us > s->wait_us || s->rounds_since_up >= td_min(td_bbr3_target(f, s), t->reno_rounds);
}

/* IsTimeToCruise() */
TD_INLINE int td_bbr3_is_time_to_cruise(const struct td_flow *f, const struct td_bbr3_state *s, const struct td_bbr3_tunables *t)
{
	return f->in_flight <= td_bbr3_with_headroom(s, t) && f->in_flight <= td_bbr3_inflight(f, s, td_bbr3_max_rate(s), TD_GAIN);
}

/* IsTimeToGoDown() */
TD_INLINE int td_bbr3_is_time_to_go_down(const struct td_flow *f, struct td_bbr3_state *s, const struct td_event *e,
					 const struct td_bbr3_sample *rs)
{
	if (s->probe_too_high && f->in_flight >= s->window_long) {
		s->probe_cautious = 1;
		return 1;
	}
	if (e->flags & TD_CWND_LIMITED && f->cwnd >= s->window_long) {
		td_bbr3_reset_full(s);
		s->full_rate = rs->rate;
		return 0;
	}
	return s->full_now;
}

/* UpdateProbeBWCyclePhase() */
TD_INLINE void td_bbr3_update_cycle(const struct td_flow *f, struct td_bbr3_state *s, const struct td_event *e,
				    const struct td_bbr3_sample *rs, const struct td_bbr3_tunables *t)
{
	if (!s->full || td_bbr3_adapt_long(f, s, e, rs, t))
		return;
	switch (s->mode) {
	case TD_BBR3_DOWN:
	case TD_BBR3_CRUISE:
		if (td_bbr3_is_time_to_probe(f, s, e, t))
			td_bbr3_start_refill(f, s);
		else if (s->mode == TD_BBR3_DOWN && td_bbr3_is_time_to_cruise(f, s, t))
			s->mode = TD_BBR3_CRUISE;
		break;
	case TD_BBR3_REFILL:
		if (s->round_start) {
			s->probe_sample = 1;
			td_bbr3_start_up(f, s, rs);
		}
		break;
	case TD_BBR3_UP:
		if (td_bbr3_is_time_to_go_down(f, s, e, rs)) {
			s->probe_too_high = 0;
			td_bbr3_start_down(f, s, e, t);
		}
		break;
	}
}

/* UpdateMinRTT() */
TD_INLINE void td_bbr3_update_min_rtt(struct td_bbr3_state *s, const struct td_event *e, const struct td_bbr3_tunables *t)
{
	u32 now = td_bbr3_ms(e);

	s->probe_rtt_expired = td_before(s->probe_rtt_ms + t->probe_rtt_interval_ms, now);
	if (e->rtt_us && (e->rtt_us < s->probe_rtt_us || s->probe_rtt_expired)) {
		s->probe_rtt_us = e->rtt_us;
		s->probe_rtt_ms = now;
	}
	if (s->probe_rtt_us < s->min_rtt_us || td_before(s->min_rtt_ms + t->min_rtt_ms, now)) {
		s->min_rtt_us = s->probe_rtt_us;
		s->min_rtt_ms = s->probe_rtt_ms;
	}
}

/* CheckProbeRTTDone(), ExitProbeRTT() */
TD_INLINE void td_bbr3_leave_probe_rtt(struct td_flow *f, struct td_bbr3_state *s, const struct td_event *e, const struct td_bbr3_tunables *t)
{
	if (!s->probe_rtt_timed || !td_before(s->probe_rtt_ends_ms, td_bbr3_ms(e)))
		return;
	s->probe_rtt_ms = td_bbr3_ms(e);
	td_bbr3_restore_cwnd(f, s);
	td_bbr3_reset_short(s);
	if (s->full) {
		td_bbr3_start_down(f, s, e, t);
		s->mode = TD_BBR3_CRUISE;
	} else {
		s->mode = TD_BBR3_STARTUP;
	}
}

/* ProbeRTTCwnd() */
TD_INLINE u32 td_bbr3_probe_rtt_window(const struct td_bbr3_state *s)
{
	return td_max(td_bbr3_bdp(s, s->rate, 128), TD_BBR3_LEAST_WINDOW);
}

/* CheckProbeRTT(), HandleProbeRTT() */
TD_INLINE void td_bbr3_check_probe_rtt(struct td_flow *f, struct td_bbr3_state *s, const struct td_event *e, const struct td_bbr3_tunables *t)
{
	if (s->mode != TD_BBR3_PROBE_RTT && s->probe_rtt_expired && !s->idle_restart) {
		s->mode = TD_BBR3_PROBE_RTT;
		td_bbr3_save_cwnd(f, s);
		s->probe_rtt_timed = 0;
		s->ack_phase = TD_BBR3_ACKS_STOPPING;
		s->limited_from = f->delivered;
		td_bbr3_start_round(f, s);
	}
	if (s->mode == TD_BBR3_PROBE_RTT) {
		s->limited = 1;
		s->limited_end = f->delivered + f->in_flight;
		if (s->probe_rtt_timed) {
			s->probe_rtt_round |= s->round_start;
			if (s->probe_rtt_round)
				td_bbr3_leave_probe_rtt(f, s, e, t);
		} else if (f->in_flight <= td_bbr3_probe_rtt_window(s)) {
			s->probe_rtt_timed = 1;
			s->probe_rtt_ends_ms = td_bbr3_ms(e) + t->probe_rtt_ms;
			s->probe_rtt_round = 0;
			td_bbr3_start_round(f, s);
		}
	}
	if (e->sampled)
		s->idle_restart = 0;
}

/* InitPacingRate(), SetPacingRateWithGain() */
TD_INLINE void td_bbr3_init_pacing(struct td_flow *f, struct td_bbr3_state *s, const struct td_bbr3_tunables *t)
{
	if (f->srtt_us)
		s->rtt_seen = 1;
	f->pacing_rate = td_rate_bytes(f, td_rate(f->cwnd, f->srtt_us ? f->srtt_us : 1000), 709, t->margin_percent);
}

TD_INLINE void td_bbr3_pace(struct td_flow *f, struct td_bbr3_state *s, u32 gain, const struct td_bbr3_tunables *t)
{
	u64 rate = td_rate_bytes(f, s->rate, gain, t->margin_percent);

	if (!s->rtt_seen && f->srtt_us)
		td_bbr3_init_pacing(f, s, t);
	if (s->full || rate > f->pacing_rate)
		f->pacing_rate = rate;
}

/* SetCwnd(), BoundCwndForProbeRTT(), BoundCwndForModel() */
TD_INLINE void td_bbr3_set_window(struct td_flow *f, struct td_bbr3_state *s, const struct td_event *e, const struct td_bbr3_tunables *t)
{
	u32 target = td_bbr3_bdp(s, s->rate, td_bbr3_cwnd_gain(s)) + s->extra.best[0].value, most = TD_BBR3_UNBOUND;

	target = td_bbr3_with_pieces(f, s, target);
	if (s->full)
		f->cwnd = td_min(f->cwnd + e->acked, target);
	else if (f->cwnd < target || f->delivered < TD_INITIAL_WINDOW)
		f->cwnd += e->acked;
	f->cwnd = td_max(f->cwnd, TD_BBR3_LEAST_WINDOW);
	if (s->mode == TD_BBR3_PROBE_RTT)
		f->cwnd = td_min(f->cwnd, td_bbr3_probe_rtt_window(s));
	if (s->mode == TD_BBR3_PROBE_RTT || s->mode == TD_BBR3_CRUISE)
		most = td_bbr3_with_headroom(s, t);
	else if (td_bbr3_in_probe_bw(s))
		most = s->window_long;
	most = td_max(td_min(most, s->window_short), TD_BBR3_LEAST_WINDOW);
	f->cwnd = td_min(td_min(f->cwnd, most), TD_INFINITE);
}

/* UpdateOnACK() */
TD_INLINE void td_bbr3_ack(struct td_flow *f, struct td_bbr3_state *s, const struct td_event *e, const struct td_bbr3_tunables *t)
{
	struct td_bbr3_sample rs;

	td_bbr3_note_sent(s, e);
	td_bbr3_sample(f, s, e, &rs);
	td_bbr3_handle_losses(f, s, e, &rs, t);
	if (s->ca_state >= TD_CA_RECOVERY && f->ca_state < TD_CA_RECOVERY)
		td_bbr3_restore_cwnd(f, s);
	s->ca_state = f->ca_state;

	td_bbr3_update_latest(f, s, e, &rs);
	td_bbr3_update_congestion(f, s, e, &rs, t);
	td_bbr3_update_extra(f, s, e);
	td_bbr3_check_full(s, &rs);
	td_bbr3_check_startup(f, s, &rs, t);
	td_bbr3_check_drain(f, s, e, t);
	td_bbr3_update_cycle(f, s, e, &rs, t);
	td_bbr3_update_min_rtt(s, e, t);
	td_bbr3_check_probe_rtt(f, s, e, t);
	/* AdvanceLatestDeliverySignals(), BoundBWForModel() */
	if (s->loss_round_start) {
		s->rate_latest = rs.rate;
		s->window_latest = e->sampled;
		s->loss_events = 0;
	}
	s->rate = td_min(td_bbr3_max_rate(s), s->rate_short);

	td_bbr3_pace(f, s, td_bbr3_pacing_gain(s), t);
	td_bbr3_set_window(f, s, e, t);
	s->last_delivered = f->delivered;
	s->last_lost = f->lost;
	s->last_marked = f->marked;
}

/* HandleSpuriousLossDetection() */
TD_INLINE void td_bbr3_undo(struct td_flow *f, struct td_bbr3_state *s)
{
	td_bbr3_restore_cwnd(f, s);
	s->loss_in_round = 0;
	td_bbr3_reset_full(s);
	s->rate_short = td_max(s->rate_short, s->undo_rate_short);
	s->window_short = td_max(s->window_short, s->undo_window_short);
	s->window_long = td_max(s->window_long, s->undo_window_long);
	if (s->undo_mode == TD_BBR3_STARTUP && s->mode != TD_BBR3_STARTUP) {
		s->full = 0;
		if (s->mode != TD_BBR3_PROBE_RTT)
			s->mode = TD_BBR3_STARTUP;
	} else if (s->undo_mode == TD_BBR3_UP && s->mode != TD_BBR3_UP && s->mode != TD_BBR3_PROBE_RTT) {
		td_bbr3_start_refill(f, s);
	}
	s->undo_mode = TD_BBR3_NONE;
}

/* HandleRestartFromIdle() */
TD_INLINE void td_bbr3_restart(struct td_flow *f, struct td_bbr3_state *s, const struct td_event *e, const struct td_bbr3_tunables *t)
{
	if (!f->app_limited && !s->limited)
		return;
	s->idle_restart = 1;
	s->extra_us = e->now_us;
	if (td_bbr3_in_probe_bw(s))
		td_bbr3_pace(f, s, TD_GAIN, t);
	else if (s->mode == TD_BBR3_PROBE_RTT)
		td_bbr3_leave_probe_rtt(f, s, e, t);
}

/* OnInit() */
TD_INLINE void td_bbr3_init(struct td_flow *f, struct td_bbr3_state *s, const struct td_event *e, const struct td_bbr3_tunables *t)
{
	*s = (struct td_bbr3_state){
		.min_rtt_us = f->srtt_us ? f->srtt_us : ~0U,
		.probe_rtt_us = f->srtt_us ? f->srtt_us : ~0U,
		.min_rtt_ms = td_bbr3_ms(e),
		.probe_rtt_ms = td_bbr3_ms(e),
		.rate_short = TD_BBR3_UNBOUND,
		.window_short = TD_BBR3_UNBOUND,
		.window_long = TD_BBR3_UNBOUND,
		.up_per_segment = TD_BBR3_UNBOUND,
		.undo_mode = TD_BBR3_NONE,
		.extra_us = e->now_us,
		.round_end = f->delivered,
		.loss_round_end = f->delivered,
		.last_delivered = f->delivered,
		.last_lost = f->lost,
		.last_marked = f->marked,
	};
	s->sent[0].delivered = f->delivered;
	s->sent[0].lost = f->lost;
	f->ssthresh = TD_INFINITE;
	td_bbr3_init_pacing(f, s, t);
}

TD_INLINE void td_bbr3(struct td_flow *f, struct td_bbr3_state *s, struct td_link *l, const struct td_event *e, const struct td_bbr3_tunables *t)
{
	(void)l;
	switch (e->kind) {
	case TD_INIT:
		td_bbr3_init(f, s, e, t);
		break;
	case TD_ACK:
		td_bbr3_ack(f, s, e, t);
		break;
	case TD_LOSS:
		td_bbr3_save(f, s);
		break;
	case TD_TIMEOUT:
		s->ca_state = TD_CA_LOSS;
		break;
	case TD_UNDO:
		td_bbr3_undo(f, s);
		break;
	case TD_RESTART:
		td_bbr3_restart(f, s, e, t);
		break;
	}
}

#endif
