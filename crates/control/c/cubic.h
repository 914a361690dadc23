/*
 * CUBIC: RFC 9438, with HyStart++ (RFC 9406) as recommended in its §4.10.
 *
 *   W(t) = C (t - K)^3 + W_max,  K = cbrt((W_max - cwnd_epoch) / C)            §4.2, figures 1 and 2
 *   target = W(t + RTT), no less than cwnd, no more than 1.5 cwnd              §4.2
 *   concave and convex region: cwnd += (target - cwnd) / cwnd per segment      §4.4, §4.5
 *   Reno-friendly region: W_est += alpha * segments acknowledged / cwnd        §4.3, figure 4
 *     alpha = 3 (1 - beta) / (1 + beta) until W_est reaches cwnd_prior, then 1
 *   loss: ssthresh = beta * cwnd; W_max = cwnd, or cwnd (1 + beta) / 2 if below the last W_max   §4.6, §4.7
 *   timeout: the same ssthresh, and the next epoch starts at its own W_max, K = 0                §4.8
 *
 * Windows are in 1/16 segment, times in 1/1024 s. Differences from Linux: W(t + RTT) uses the
 * smoothed RTT (Linux: the minimum RTT), alpha is 1 after cwnd_prior (Linux keeps 0.529), HyStart++
 * (Linux: HyStart), less rounding. As in Linux, beta applies to cwnd rather than to the flight
 * size, and idle time does not count (§5.8).
 */
#ifndef TD_CUBIC_H
#define TD_CUBIC_H
#include "hystart.h"

struct td_cubic_state {
	u64 epoch_us;	/* start of this congestion avoidance epoch; 0: none */
	u64 last_us;	/* time of the last ACK */
	u64 w_est;	/* 2^-20 segments */
	u32 w_max;	/* 1/16 segments; 0: none */
	u32 origin;	/* W_max of this epoch, 1/16 segments */
	u32 k;		/* 1/1024 s */
	u32 cwnd_prior;	/* segments */
	u32 credit;	/* 1/16 segments */
	u32 slow_credit; /* segments */
	struct td_hystart hystart;
};
#define td_cubic_WANTS (TD_WANTS_SAMPLE | TD_WANTS_RESTART)
#define td_cubic_TUNABLES(T)                                                    \
	T(beta_milli, 700, 100, 999, "window after a loss over the window before, thousandths")     \
	T(c_milli, 400, 1, 100000, "C, thousandths of a segment per second cubed")         \
	T(fast_convergence, 1, 0, 1, "1: fast convergence: gives way to new flows (RFC 9438 section 4.7)") \
	T(hystart, 1, 0, 1, "1: HyStart++: leaves slow start when the RTT rises (RFC 9406)")
TD_CONTROLLER(cubic);

/* The cube root, rounded down: one bit per iteration. */
TD_INLINE u32 td_cube_root(u64 a)
{
	u64 root = 0;

	/* The root is below 2^21, whose cube is 2^63. */
	for (int bit = 20; bit >= 0; bit--) {
		u64 next = root | (1ULL << bit);

		if (next * next * next <= a)
			root = next;
	}
	return root;
}

/* C |t - K|^3 in 1/16 segments; `span` is |t - K| in 1/1024 s, bounded to ten minutes. */
TD_INLINE u64 td_cubic_offset(u64 span, u32 c_milli)
{
	span = td_min64(span, 600 << 10);
	/* 16 c/1000 * span^3 / 2^30, divided by 1000 where nothing overflows and little is rounded off. */
	return ((span * span * span >> 16) * c_milli / 1000) >> 10;
}

TD_INLINE void td_cubic_start_epoch(struct td_flow *f, struct td_cubic_state *s, u64 now_us, const struct td_cubic_tunables *t)
{
	u32 cwnd = f->cwnd * 16;

	s->epoch_us = now_us;
	s->credit = 0;
	s->w_est = (u64)f->cwnd << 20;
	s->origin = td_max(s->w_max, cwnd);
	/* K^3 = (W_max - cwnd) / C with K in 1/1024 s: 2^30 * (1/16 segments / 16) * 1000 / c_milli */
	s->k = td_cube_root(td_div(((u64)(s->origin - cwnd) << 26) * 1000, t->c_milli));
}

TD_INLINE void td_cubic_grow(struct td_flow *f, struct td_cubic_state *s, const struct td_event *e, u32 acked,
			      const struct td_cubic_tunables *t)
{
	u64 at, cwnd, target, alpha;

	if (!s->epoch_us)
		td_cubic_start_epoch(f, s, e->now_us, t);
	cwnd = (u64)f->cwnd * 16;

	at = ((e->now_us - s->epoch_us + f->srtt_us) << 10) / 1000000;
	if (at >= s->k)
		target = s->origin + td_cubic_offset(at - s->k, t->c_milli);
	else
		target = td_sub_sat(s->origin, td_cubic_offset(s->k - at, t->c_milli));

	alpha = f->cwnd >= s->cwnd_prior ? 1000 : 3000ULL * (1000 - t->beta_milli) / (1000 + t->beta_milli);
	s->w_est += ((alpha * acked << 20) / 1000) / f->cwnd;
	if (target < s->w_est >> 16) {
		/* RFC 9438 §4.3 */
		f->cwnd = td_max(f->cwnd, s->w_est >> 20);
		return;
	}
	target = td_min64(target, cwnd * 3 / 2);
	/* (target - cwnd) / cwnd per segment; at the target nearly no growth, as in Linux. */
	td_grow(f, &s->credit, target > cwnd ? td_max64(cwnd * 16 / (target - cwnd), 1) : 100 * cwnd, acked * 16);
}

TD_INLINE void td_cubic_reduce(struct td_flow *f, struct td_cubic_state *s, const struct td_cubic_tunables *t)
{
	u32 cwnd = f->cwnd * 16;

	s->epoch_us = 0;
	s->cwnd_prior = f->cwnd;
	s->w_max = t->fast_convergence && cwnd < s->w_max ? (u64)cwnd * (1000 + t->beta_milli) / 2000 : cwnd;
	f->ssthresh = td_max((u64)f->cwnd * t->beta_milli / 1000, 2);
}

TD_INLINE void td_cubic(struct td_flow *f, struct td_cubic_state *s, struct td_link *l, const struct td_event *e,
			const struct td_cubic_tunables *t)
{
	u32 acked = e->acked;

	(void)l;
	switch (e->kind) {
	case TD_INIT:
		s->epoch_us = s->last_us = s->w_est = 0;
		s->w_max = s->origin = s->k = s->cwnd_prior = s->credit = s->slow_credit = 0;
		td_hystart_reset(&s->hystart, f);
		break;
	case TD_SAMPLE:
		if (t->hystart)
			td_hystart_sample(&s->hystart, f, e->rtt_us);
		break;
	case TD_ACK:
		s->last_us = e->now_us;
		if (!(e->flags & TD_CWND_LIMITED))
			break;
		if (f->cwnd < f->ssthresh)
			acked = td_hystart_grow(&s->hystart, f, &s->slow_credit, acked);
		if (acked)
			td_cubic_grow(f, s, e, acked, t);
		break;
	case TD_LOSS:
		td_cubic_reduce(f, s, t);
		break;
	case TD_TIMEOUT:
		td_cubic_reduce(f, s, t);
		s->w_max = 0;
		td_hystart_reset(&s->hystart, f);
		break;
	case TD_UNDO:
		td_undo_reduction(f);
		break;
	case TD_RESTART:
		if (s->epoch_us && e->now_us > s->last_us)
			s->epoch_us += e->now_us - s->last_us;
		s->last_us = e->now_us;
		break;
	}
}

#endif
