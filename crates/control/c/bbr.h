/*
 * BBR, version 1: Cardwell, Cheng, Gunn, Yeganeh, Jacobson, ACM Queue 14 (2016);
 * draft-cardwell-iccrg-bbr-congestion-control-00. It keeps a model of the path, the largest
 * delivery rate of ten round trips and the least RTT of ten seconds, and paces at that rate.
 *
 *   STARTUP    pacing and window gain 2 / ln 2, until the rate grows by less than a quarter in three round trips
 *   DRAIN      pacing gain ln 2 / 2, until a BDP is in flight
 *   PROBE_BW   a cycle of eight phases of a least RTT each: gain 5/4, 3/4, and six times 1; window gain 2
 *   PROBE_RTT  each ten seconds in which the RTT was never as low: four segments in flight for 200 ms
 *
 * The behaviour is that of Linux 5.10 and later, beyond the draft: a window for the segments that
 * are acknowledged in bursts, the "long-term" rate of policed paths (`policers`), packet
 * conservation in the first round trip of a recovery, and the phase of the first cycle by chance.
 * Differences: times have 1 ms instead of a tick, phases end by the time of the ACK rather than that
 * of the last delivery, and the state itself remembers which samples PROBE_RTT has limited, since a
 * program in the kernel may not mark the socket before Linux 6.4.
 */
#ifndef TD_BBR_H
#define TD_BBR_H
#include "rate.h"

enum { TD_BBR_STARTUP, TD_BBR_DRAIN, TD_BBR_PROBE_BW, TD_BBR_PROBE_RTT };

struct td_bbr_state {
	struct td_maximum rate;	/* largest delivery rate, by round trips */
	u32 min_rtt_us;		/* ~0: none */
	u32 min_rtt_ms;		/* when it was measured */
	u32 probe_rtt_ends_ms;
	u32 rounds;
	u32 round_end;		/* `delivered` at which the round trip ends */
	u32 phase_us;		/* start of the phase */
	u32 full_rate;		/* rate to which growth is compared */
	u32 prior_cwnd;		/* window before a recovery or PROBE_RTT */
	u32 limited_from, limited_end; /* `delivered` between which samples are limited by PROBE_RTT */
	u32 long_rate;		/* of a policer; 0: none */
	u32 long_ms, long_delivered, long_lost; /* at the start of the interval in which it is measured */
	u32 burst_us;		/* start of a burst of ACKs */
	u16 extra, last_extra;	/* most segments acknowledged beyond the rate, in this and in the last window */
	u32 burst : 20;		/* segments acknowledged in the burst */
	u32 extra_rounds : 5;	/* round trips of this window */
	u32 full_rounds : 2;	/* round trips without growth */
	u32 phase : 3;
	u32 pacing_gain : 10;
	u32 long_rounds : 6;
	u32 ca_state : 3;	/* at the last ACK */
	u32 mode : 2;
	u32 full : 1;		/* the path has been filled once */
	u32 round_start : 1;
	u32 conserving : 1;	/* packet conservation */
	u32 idle_restart : 1;
	u32 probe_rtt_timed : 1; /* few enough segments are in flight */
	u32 probe_rtt_round : 1; /* and a round trip has passed since */
	u32 limited : 1;
	u32 long_sampling : 1;
	u32 long_used : 1;
	u32 rtt_seen : 1;
};
#define td_bbr_WANTS (TD_WANTS_RATE | TD_WANTS_RESTART)
#define td_bbr_TUNABLES(T)                                                                        \
	T(rate_rounds, 10, 2, 1000, "window of the largest delivery rate, round trips")            \
	T(min_rtt_ms, 10000, 100, 600000, "window of the least RTT, ms")                           \
	T(probe_rtt_ms, 200, 0, 10000, "time with few segments in flight that measures the RTT, ms; 0: never") \
	T(cwnd_gain, 512, 256, 2048, "window in PROBE_BW over the bandwidth-delay product, 1/256")  \
	T(margin_percent, 1, 0, 20, "pacing is this much slower than the delivery rate, percent")  \
	T(policers, 1, 0, 1, "1: keeps to the rate of a policer that drops what is faster")
TD_CONTROLLER(bbr);

/* 2 / ln 2 and its inverse. */
#define TD_BBR_HIGH_GAIN 739
#define TD_BBR_DRAIN_GAIN 88
#define TD_BBR_LEAST_WINDOW 4
/* Segments in one piece are one below 1.2 Mbit/s, else two. */
#define TD_BBR_SLOW_RATE 150000
/* Windows of the burst estimate: five round trips, 100 ms of the rate at most. */
#define TD_BBR_EXTRA_ROUNDS 5
#define TD_BBR_EXTRA_US 100000
#define TD_BBR_MOST_BURST 0xfffff
/* Policers: at least 4 and at most 16 round trips, 50/256 lost, rates alike within 1/8 or 4 kbit/s; kept for 48 round trips. */
#define TD_BBR_LONG_LEAST_ROUNDS 4
#define TD_BBR_LONG_LOSS 50
#define TD_BBR_LONG_ALIKE 500
#define TD_BBR_LONG_MOST_ROUNDS 48

TD_INLINE u32 td_bbr_ms(const struct td_event *e) { return e->now_us / 1000; }
TD_INLINE u64 td_bbr_max_rate(const struct td_bbr_state *s) { return s->rate.best[0].value; }
TD_INLINE u64 td_bbr_rate(const struct td_bbr_state *s) { return s->long_used ? s->long_rate : td_bbr_max_rate(s); }

TD_INLINE u32 td_bbr_cwnd_gain(const struct td_bbr_state *s, const struct td_bbr_tunables *t)
{
	if (s->mode == TD_BBR_PROBE_BW)
		return t->cwnd_gain;
	return s->mode == TD_BBR_PROBE_RTT ? TD_GAIN : TD_BBR_HIGH_GAIN;
}

TD_INLINE u32 td_bbr_pacing_gain(const struct td_bbr_state *s)
{
	if (s->mode == TD_BBR_STARTUP)
		return TD_BBR_HIGH_GAIN;
	if (s->mode == TD_BBR_DRAIN)
		return TD_BBR_DRAIN_GAIN;
	if (s->mode == TD_BBR_PROBE_RTT || s->long_used || s->phase > 1)
		return TD_GAIN;
	return s->phase ? 192 : 320;
}

TD_INLINE u32 td_bbr_quantum(const struct td_flow *f)
{
	return td_quantum(f, f->pacing_rate < TD_BBR_SLOW_RATE ? 1 : 2);
}

/* The first pacing rate: the window in an RTT, or in 1 ms before one is measured. */
TD_INLINE void td_bbr_init_pacing(struct td_flow *f, struct td_bbr_state *s, const struct td_bbr_tunables *t)
{
	if (f->srtt_us)
		s->rtt_seen = 1;
	f->pacing_rate = td_rate_bytes(f, td_rate(f->cwnd, f->srtt_us ? f->srtt_us : 1000), TD_BBR_HIGH_GAIN, t->margin_percent);
}

/* Until the path has been filled the pacing rate only grows. */
TD_INLINE void td_bbr_pace(struct td_flow *f, struct td_bbr_state *s, u32 gain, const struct td_bbr_tunables *t)
{
	u64 rate = td_rate_bytes(f, td_bbr_rate(s), gain, t->margin_percent);

	if (!s->rtt_seen && f->srtt_us)
		td_bbr_init_pacing(f, s, t);
	if (s->full || rate > f->pacing_rate)
		f->pacing_rate = rate;
}

TD_INLINE u32 td_bbr_bdp(const struct td_bbr_state *s, u64 rate, u32 gain)
{
	return s->min_rtt_us == ~0U ? TD_INITIAL_WINDOW : td_rate_window(rate, s->min_rtt_us, gain);
}

/* A window with room for the pieces in the sender, the device and the receiver, which acknowledges every second segment. */
TD_INLINE u32 td_bbr_with_pieces(const struct td_flow *f, const struct td_bbr_state *s, u32 window)
{
	window = (window + 3 * td_bbr_quantum(f) + 1) & ~1U;
	return s->mode == TD_BBR_PROBE_BW && s->phase == 0 ? window + 2 : window;
}

TD_INLINE u32 td_bbr_inflight(const struct td_flow *f, const struct td_bbr_state *s, u64 rate, u32 gain)
{
	return td_bbr_with_pieces(f, s, td_bbr_bdp(s, rate, gain));
}

/* Segments that will be in flight when pacing permits the next piece. */
TD_INLINE u32 td_bbr_inflight_at_departure(const struct td_flow *f, const struct td_bbr_state *s, u32 now)
{
	u64 leaves = td_rate_times(td_bbr_rate(s), f->pacing_wait_us);

	return td_sub_sat(now + (s->pacing_gain > TD_GAIN ? td_bbr_quantum(f) : 0), leaves);
}

TD_INLINE void td_bbr_save_cwnd(const struct td_flow *f, struct td_bbr_state *s)
{
	if (s->ca_state < TD_CA_RECOVERY && s->mode != TD_BBR_PROBE_RTT)
		s->prior_cwnd = f->cwnd;
	else
		s->prior_cwnd = td_max(s->prior_cwnd, f->cwnd);
}

TD_INLINE void td_bbr_next_phase(struct td_bbr_state *s, const struct td_event *e)
{
	s->phase = (s->phase + 1) & 7;
	s->phase_us = e->now_us;
}

/* The cycle starts in any phase but that of gain 3/4. */
TD_INLINE void td_bbr_enter_probe_bw(struct td_bbr_state *s, const struct td_event *e)
{
	s->mode = TD_BBR_PROBE_BW;
	s->phase = 7 - e->random % 7;
	td_bbr_next_phase(s, e);
}

TD_INLINE void td_bbr_leave_probe_rtt(struct td_flow *f, struct td_bbr_state *s, const struct td_event *e)
{
	if (!s->probe_rtt_timed || !td_before(s->probe_rtt_ends_ms, td_bbr_ms(e)))
		return;
	s->min_rtt_ms = td_bbr_ms(e);
	f->cwnd = td_max(f->cwnd, s->prior_cwnd);
	if (s->full)
		td_bbr_enter_probe_bw(s, e);
	else
		s->mode = TD_BBR_STARTUP;
}

TD_INLINE void td_bbr_long_interval(const struct td_flow *f, struct td_bbr_state *s, const struct td_event *e)
{
	s->long_ms = td_bbr_ms(e);
	s->long_delivered = f->delivered;
	s->long_lost = f->lost;
	s->long_rounds = 0;
}

TD_INLINE void td_bbr_long_reset(const struct td_flow *f, struct td_bbr_state *s, const struct td_event *e)
{
	s->long_rate = 0;
	s->long_used = s->long_sampling = 0;
	td_bbr_long_interval(f, s, e);
}

/* An interval ends: two in a row with much loss and the same rate reveal a policer. */
TD_INLINE void td_bbr_long_ends(const struct td_flow *f, struct td_bbr_state *s, const struct td_event *e, u64 rate)
{
	if (s->long_rate) {
		u64 apart = rate > s->long_rate ? rate - s->long_rate : s->long_rate - rate;

		if (apart << 8 <= (u64)s->long_rate << 5 || td_rate_bytes(f, apart, TD_GAIN, 1) <= TD_BBR_LONG_ALIKE) {
			s->long_rate = (rate + s->long_rate) >> 1;
			s->long_used = 1;
			s->pacing_gain = TD_GAIN;
			s->long_rounds = 0;
			return;
		}
	}
	s->long_rate = td_min64(rate, 0xffffffffU);
	td_bbr_long_interval(f, s, e);
}

/* Looks for a policer, by intervals that begin and end with a loss. `lost`: in this ACK. */
TD_INLINE void td_bbr_long_sample(const struct td_flow *f, struct td_bbr_state *s, const struct td_event *e, int limited, u32 lost)
{
	u64 delivered = f->delivered - s->long_delivered, gone = f->lost - s->long_lost;
	u32 ms = td_bbr_ms(e) - s->long_ms;

	if (s->long_used) {
		if (s->mode != TD_BBR_PROBE_BW || !s->round_start)
			return;
		s->long_rounds++;
		if (s->long_rounds >= TD_BBR_LONG_MOST_ROUNDS) {
			td_bbr_long_reset(f, s, e);
			td_bbr_enter_probe_bw(s, e);
		}
		return;
	}
	if (!s->long_sampling) {
		if (!lost)
			return;
		td_bbr_long_interval(f, s, e);
		s->long_sampling = 1;
		delivered = gone = ms = 0;
	}
	if (limited) {
		td_bbr_long_reset(f, s, e);
		return;
	}
	if (s->round_start)
		s->long_rounds++;
	if (s->long_rounds < TD_BBR_LONG_LEAST_ROUNDS)
		return;
	if (s->long_rounds > 4 * TD_BBR_LONG_LEAST_ROUNDS) {
		td_bbr_long_reset(f, s, e);
		return;
	}
	if (!lost || !delivered || gone << 8 < TD_BBR_LONG_LOSS * delivered || !ms)
		return;
	if (ms >= ~0U / 1000) {
		td_bbr_long_reset(f, s, e);
		return;
	}
	td_bbr_long_ends(f, s, e, td_rate(delivered, (u64)ms * 1000));
}

/* Whether the sample is limited by the application, or by PROBE_RTT. */
TD_INLINE int td_bbr_limited(struct td_bbr_state *s, const struct td_event *e)
{
	if (s->limited && e->sampled && td_before(s->limited_end, e->prior_delivered))
		s->limited = 0;
	return (s->limited && !td_before(e->prior_delivered, s->limited_from)) || e->flags & TD_APP_LIMITED;
}

TD_INLINE void td_bbr_update_rate(struct td_flow *f, struct td_bbr_state *s, const struct td_event *e, int limited,
				  const struct td_bbr_tunables *t)
{
	u64 rate;

	s->round_start = 0;
	if (!e->interval_us || !e->sampled)
		return;
	if (!td_before(e->prior_delivered, s->round_end)) {
		s->round_end = f->delivered;
		s->rounds++;
		s->round_start = 1;
		s->conserving = 0;
	}
	if (t->policers)
		td_bbr_long_sample(f, s, e, limited, e->lost);
	rate = td_min64(td_rate(e->sampled, e->interval_us), 0xffffffffU);
	if (!limited || rate >= td_bbr_max_rate(s))
		td_maximum_update(&s->rate, t->rate_rounds, s->rounds, rate);
}

/* Most segments acknowledged beyond the rate: receivers and radio links acknowledge in bursts. */
TD_INLINE void td_bbr_update_extra(struct td_flow *f, struct td_bbr_state *s, const struct td_event *e)
{
	u64 expected;
	u32 extra, most;

	if (!e->acked || !e->interval_us || !e->sampled)
		return;
	if (s->round_start) {
		if (s->extra_rounds + 1 >= TD_BBR_EXTRA_ROUNDS) {
			s->extra_rounds = 0;
			s->last_extra = s->extra;
			s->extra = 0;
		} else {
			s->extra_rounds++;
		}
	}
	expected = td_rate_times(td_bbr_rate(s), (u32)e->now_us - s->burst_us);
	if (s->burst <= expected || (u64)s->burst + e->acked > TD_BBR_MOST_BURST) {
		s->burst = 0;
		s->burst_us = e->now_us;
		expected = 0;
	}
	most = td_min64((u64)s->burst + e->acked, TD_BBR_MOST_BURST);
	s->burst = most;
	extra = td_min(td_min(td_sub_sat(most, expected), f->cwnd), 0xffff);
	if (extra > s->extra)
		s->extra = extra;
}

TD_INLINE u32 td_bbr_extra(const struct td_bbr_state *s)
{
	u32 extra = td_max(s->extra, s->last_extra);

	return s->full ? td_min64(extra, td_rate_times(td_bbr_rate(s), TD_BBR_EXTRA_US)) : 0;
}

/* The gain of 5/4 lasts until it has been reached or a segment is lost, that of 3/4 until the queue is gone. */
TD_INLINE void td_bbr_update_phase(const struct td_flow *f, struct td_bbr_state *s, const struct td_event *e)
{
	int lasted = (u32)e->now_us - s->phase_us > s->min_rtt_us;
	u32 inflight;

	if (s->mode != TD_BBR_PROBE_BW)
		return;
	inflight = td_bbr_inflight_at_departure(f, s, e->prior_in_flight);
	if (s->pacing_gain > TD_GAIN)
		lasted = lasted && (e->lost || inflight >= td_bbr_inflight(f, s, td_bbr_max_rate(s), s->pacing_gain));
	else if (s->pacing_gain < TD_GAIN)
		lasted = lasted || inflight <= td_bbr_inflight(f, s, td_bbr_max_rate(s), TD_GAIN);
	if (lasted)
		td_bbr_next_phase(s, e);
}

TD_INLINE void td_bbr_check_full(struct td_bbr_state *s, int limited)
{
	if (s->full || !s->round_start || limited)
		return;
	if (td_bbr_max_rate(s) >= (u64)s->full_rate * 320 >> 8) {
		s->full_rate = td_bbr_max_rate(s);
		s->full_rounds = 0;
		return;
	}
	s->full_rounds++;
	s->full = s->full_rounds >= 3;
}

TD_INLINE void td_bbr_check_drained(struct td_flow *f, struct td_bbr_state *s, const struct td_event *e)
{
	if (s->mode == TD_BBR_STARTUP && s->full) {
		s->mode = TD_BBR_DRAIN;
		f->ssthresh = td_bbr_inflight(f, s, td_bbr_max_rate(s), TD_GAIN);
	}
	if (s->mode == TD_BBR_DRAIN &&
	    td_bbr_inflight_at_departure(f, s, f->in_flight) <= td_bbr_inflight(f, s, td_bbr_max_rate(s), TD_GAIN))
		td_bbr_enter_probe_bw(s, e);
}

TD_INLINE void td_bbr_update_min_rtt(struct td_flow *f, struct td_bbr_state *s, const struct td_event *e,
				     const struct td_bbr_tunables *t)
{
	u32 now = td_bbr_ms(e);
	int expired = td_before(s->min_rtt_ms + t->min_rtt_ms, now);

	if (e->rtt_us && (e->rtt_us < s->min_rtt_us || (expired && !(e->flags & TD_LONE_RUNT)))) {
		s->min_rtt_us = e->rtt_us;
		s->min_rtt_ms = now;
	}
	if (t->probe_rtt_ms && expired && !s->idle_restart && s->mode != TD_BBR_PROBE_RTT) {
		/* As in Linux the window before an earlier recovery counts too. */
		s->mode = TD_BBR_PROBE_RTT;
		td_bbr_save_cwnd(f, s);
		s->probe_rtt_timed = 0;
		s->limited_from = f->delivered;
	}
	if (s->mode == TD_BBR_PROBE_RTT) {
		/* Its samples do not show what the path can carry. */
		s->limited = 1;
		s->limited_end = f->delivered + f->in_flight;
		if (!s->probe_rtt_timed) {
			if (f->in_flight <= TD_BBR_LEAST_WINDOW) {
				s->probe_rtt_timed = 1;
				s->probe_rtt_ends_ms = now + t->probe_rtt_ms;
				s->probe_rtt_round = 0;
				s->round_end = f->delivered;
			}
		} else {
			if (s->round_start)
				s->probe_rtt_round = 1;
			if (s->probe_rtt_round)
				td_bbr_leave_probe_rtt(f, s, e);
		}
	}
	if (e->sampled)
		s->idle_restart = 0;
}

/*
 * The window in and after a recovery. Returns whether it is kept: in the first round trip of a
 * recovery a segment is sent for each that is acknowledged.
 */
TD_INLINE int td_bbr_recover(struct td_flow *f, struct td_bbr_state *s, const struct td_event *e)
{
	u32 kept = f->in_flight + e->acked;

	if (e->lost)
		f->cwnd = td_max64(td_sub_sat(f->cwnd, e->lost), 1);
	if (f->ca_state == TD_CA_RECOVERY && s->ca_state != TD_CA_RECOVERY) {
		s->conserving = 1;
		s->round_end = f->delivered;
		f->cwnd = kept;
	} else if (s->ca_state >= TD_CA_RECOVERY && f->ca_state < TD_CA_RECOVERY) {
		f->cwnd = td_max(f->cwnd, s->prior_cwnd);
		s->conserving = 0;
	}
	s->ca_state = f->ca_state;
	if (s->conserving)
		f->cwnd = td_max(f->cwnd, kept);
	return s->conserving;
}

TD_INLINE void td_bbr_set_window(struct td_flow *f, struct td_bbr_state *s, const struct td_event *e, const struct td_bbr_tunables *t)
{
	if (e->acked && !td_bbr_recover(f, s, e)) {
		u32 target = td_bbr_bdp(s, td_bbr_rate(s), td_bbr_cwnd_gain(s, t)) + td_bbr_extra(s);

		target = td_bbr_with_pieces(f, s, target);
		if (s->full)
			f->cwnd = td_min(f->cwnd + e->acked, target);
		else if (f->cwnd < target || f->delivered < TD_INITIAL_WINDOW)
			f->cwnd += e->acked;
		f->cwnd = td_max(f->cwnd, TD_BBR_LEAST_WINDOW);
	}
	f->cwnd = td_min(f->cwnd, TD_INFINITE);
	if (s->mode == TD_BBR_PROBE_RTT)
		f->cwnd = td_min(f->cwnd, TD_BBR_LEAST_WINDOW);
}

TD_INLINE void td_bbr_ack(struct td_flow *f, struct td_bbr_state *s, const struct td_event *e, const struct td_bbr_tunables *t)
{
	int limited = td_bbr_limited(s, e);

	td_bbr_update_rate(f, s, e, limited, t);
	td_step_ends();
	td_bbr_update_extra(f, s, e);
	td_step_ends();
	td_bbr_update_phase(f, s, e);
	td_step_ends();
	td_bbr_check_full(s, limited);
	td_step_ends();
	td_bbr_check_drained(f, s, e);
	td_step_ends();
	td_bbr_update_min_rtt(f, s, e, t);
	td_step_ends();
	s->pacing_gain = td_bbr_pacing_gain(s);
	td_step_ends();
	td_bbr_pace(f, s, s->pacing_gain, t);
	td_step_ends();
	td_bbr_set_window(f, s, e, t);
}

TD_INLINE void td_bbr_init(struct td_flow *f, struct td_bbr_state *s, const struct td_event *e, const struct td_bbr_tunables *t)
{
	*s = (struct td_bbr_state){
		.min_rtt_us = f->min_rtt_us ? f->min_rtt_us : ~0U,
		.min_rtt_ms = td_bbr_ms(e),
		.round_end = f->delivered,
		.burst_us = e->now_us,
		.pacing_gain = TD_BBR_HIGH_GAIN,
	};
	f->ssthresh = TD_INFINITE;
	td_bbr_long_reset(f, s, e);
	td_bbr_init_pacing(f, s, t);
}

/* Data is sent after idle time: at the rate of the path. */
TD_INLINE void td_bbr_restart(struct td_flow *f, struct td_bbr_state *s, const struct td_event *e, const struct td_bbr_tunables *t)
{
	if (!f->app_limited && !s->limited)
		return;
	s->idle_restart = 1;
	s->burst_us = e->now_us;
	s->burst = 0;
	if (s->mode == TD_BBR_PROBE_BW)
		td_bbr_pace(f, s, TD_GAIN, t);
	else if (s->mode == TD_BBR_PROBE_RTT)
		td_bbr_leave_probe_rtt(f, s, e);
}

TD_INLINE void td_bbr(struct td_flow *f, struct td_bbr_state *s, struct td_link *l, const struct td_event *e, const struct td_bbr_tunables *t)
{
	(void)l;
	switch (e->kind) {
	case TD_INIT:
		td_bbr_init(f, s, e, t);
		break;
	case TD_ACK:
		td_bbr_ack(f, s, e, t);
		break;
	case TD_LOSS:
		td_bbr_save_cwnd(f, s);
		break;
	case TD_TIMEOUT:
		s->ca_state = TD_CA_LOSS;
		s->full_rate = 0;
		/* As after a round trip. */
		s->round_start = 1;
		if (t->policers)
			td_bbr_long_sample(f, s, e, 0, 1);
		break;
	case TD_UNDO:
		/* A spurious loss may have kept the rate from growing. */
		s->full_rate = 0;
		s->full_rounds = 0;
		td_bbr_long_reset(f, s, e);
		break;
	case TD_RESTART:
		td_bbr_restart(f, s, e, t);
		break;
	}
}

#endif
