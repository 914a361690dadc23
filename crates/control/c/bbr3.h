/*
 * BBR, version 3: draft-ietf-ccwg-bbr, of which the names in brackets are. As version 1 it paces at
 * the delivery rate of the path and probes for more; other than version 1 it bounds rate and window
 * by what caused losses.
 *
 *   STARTUP    pacing gain 2.77: until the rate grows by less than a quarter in three round trips,
 *              or more than 2 % are lost in a round trip of recovery with six losses    §5.3.1
 *   DRAIN      pacing gain 0.5: until a BDP is in flight, four round trips at most      §5.3.2
 *   DOWN       pacing gain 0.9: until a BDP less headroom is in flight                  §5.3.3
 *   CRUISE     pacing gain 1: 15 % below the window that caused losses; 2 to 3 s, or 63 round trips
 *   REFILL     pacing gain 1, a round trip: forgets the short-term bounds
 *   UP         pacing gain 1.25: until the rate does not grow any more, or more than 2 % are lost
 *   PROBE_RTT  half of the BDP in flight for 200 ms, each 5 s                           §5.3.4
 *
 *   a loss in DOWN or CRUISE: short-term rate and window become 0.7 of themselves, or what was
 *   delivered; more than 2 % lost in REFILL or UP: the long-term window becomes what was in flight
 *
 * Quantities are in segments, as TCP in Linux counts. What the draft takes from a record of each
 * segment, TCP does not give to a controller. The replacements:
 *
 *   P.tx_in_flight, P.lost  `sent`: what was in flight and lost at 32 points of the last round
 *                           trips, found by `prior_delivered`: that of the newest segment of an ACK
 *   HandleLostPacket(P)     once an ACK, for all segments that it marks lost, with the values of the
 *                           newest segment that it delivers, which was sent just after them. Losses
 *                           that a timer finds count with the next ACK.
 *   sequence ranges lost    ACKs that report losses
 *   C.app_limited = …       the state remembers which samples PROBE_RTT has limited
 *   CE marks                an ACK with marks counts as a loss above the threshold (§3.7)
 *   has_selective_acks      taken for granted
 */
#ifndef TD_BBR3_H
#define TD_BBR3_H
#include "bbr3_model.h"

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
