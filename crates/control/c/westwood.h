/*
 * TCP Westwood+: Mascolo, Grieco, Ferorelli, Camarda, Piscitelli, Performance Evaluation 55 (2004),
 * 93-111; Grieco and Mascolo, ACM CCR 34 (2004), 25-38. A loss reduces the window to the estimated
 * BDP rather than to half.
 *
 *   every max(RTT, 50 ms)  b = bytes delivered / time;  estimate = 0.9 estimate + 0.1 b
 *   loss                   ssthresh = max(estimate * RTT_min / mss, 2), at the third duplicate ACK
 *   timeout                the same, and RTT_min is reset
 *   growth                 as NewReno
 *
 * Linux filters twice (7/8 and 7/8), halves at the beginning of recovery and sets ssthresh and cwnd
 * to the estimate at its end. This is the paper's version: one filter, at the beginning. Duplicate
 * ACKs count by what they SACK.
 */
#ifndef TD_WESTWOOD_H
#define TD_WESTWOOD_H
#include "reno.h"

struct td_westwood_state {
	u64 since_us;	/* start of the current sample; 0: none */
	u64 bytes;	/* bytes delivered in it */
	u64 estimate;	/* bytes/s; 0: none */
	u32 min_rtt_us;	/* 0: none */
	u32 credit;
};
#define td_westwood_WANTS (TD_WANTS_SAMPLE | TD_WANTS_RESTART)
#define td_westwood_TUNABLES(T)                                                         \
	T(filter_milli, 900, 0, 999, "weight of the previous estimate, thousandths")            \
	T(least_interval_us, 50000, 1000, 10000000, "shortest sample")
TD_CONTROLLER(westwood);

TD_INLINE void td_westwood_sample(struct td_flow *f, struct td_westwood_state *s, const struct td_event *e,
				  const struct td_westwood_tunables *t)
{
	u64 span, rate;

	if (e->rtt_us)
		s->min_rtt_us = s->min_rtt_us ? td_min(s->min_rtt_us, e->rtt_us) : e->rtt_us;
	s->bytes += (u64)e->acked * f->mss;
	if (!s->since_us) {
		s->since_us = e->now_us;
		s->bytes = 0;
		return;
	}
	span = e->now_us - s->since_us;
	if (span < td_max(f->srtt_us, td_max(t->least_interval_us, 1)))
		return;
	rate = s->bytes * 1000000 / span;
	s->estimate = s->estimate ? (s->estimate * t->filter_milli + rate * (1000 - td_min(t->filter_milli, 1000))) / 1000 : rate;
	s->since_us = e->now_us;
	s->bytes = 0;
}

TD_INLINE void td_westwood(struct td_flow *f, struct td_westwood_state *s, struct td_link *l, const struct td_event *e,
			   const struct td_westwood_tunables *t)
{
	(void)l;
	switch (e->kind) {
	case TD_INIT:
		s->since_us = s->bytes = s->estimate = 0;
		s->min_rtt_us = s->credit = 0;
		break;
	case TD_SAMPLE:
		td_westwood_sample(f, s, e, t);
		break;
	case TD_ACK:
		td_reno_ack(f, &s->credit, e);
		break;
	case TD_LOSS:
	case TD_TIMEOUT:
		s->credit = 0;
		/* Before the first sample as NewReno. */
		if (s->estimate && s->min_rtt_us)
			f->ssthresh = td_max64(td_min64(s->estimate * s->min_rtt_us / 1000000 / td_max(f->mss, 1), TD_INFINITE), 2);
		else
			f->ssthresh = td_max(f->cwnd / 2, 2);
		if (e->kind == TD_TIMEOUT)
			s->min_rtt_us = 0;
		break;
	case TD_RESTART:
		/* A sample must not include idle time. */
		s->since_us = 0;
		break;
	case TD_UNDO:
		td_undo_reduction(f);
		break;
	}
}

#endif
