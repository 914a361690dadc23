/*
 * TCP Vegas: Brakmo and Peterson, IEEE JSAC 13 (1995), 1465-1480. It keeps between alpha and beta segments of its own in the queue.
 *
 *   diff = cwnd - cwnd * base / rtt, in segments: what is in the queue; here cwnd (rtt - base) / base, as in Linux
 *   once a round trip, in slow start: diff > gamma ends it; else the window doubles, in every second round only
 *   afterwards: diff < alpha: cwnd += 1; diff > beta: cwnd -= 1
 *
 * base is the least RTT since the flow began or was idle, rtt the least of the round. A round with fewer than three samples says
 * nothing, and growth in it is NewReno's (as in Linux). The paper's early retransmission by a fine timer is not here: RACK is TCP's.
 * A loss halves the window, as in Linux; the paper takes a quarter (set beta_milli to 750).
 */
#ifndef TD_VEGAS_H
#define TD_VEGAS_H
#include "reno.h"

struct td_vegas_state {
	u32 base_us;	/* 0: none */
	u32 least_us;	/* of this round; 0: none */
	u32 samples;	/* of this round */
	u32 round_end;
	u32 rounds;
	u32 credit;
};
#define td_vegas_WANTS (TD_WANTS_SAMPLE | TD_WANTS_RESTART | TD_WANTS_RECOVERED)
#define td_vegas_TUNABLES(T)                                                                    \
	T(alpha, 2, "segments in the queue below which the window grows")                       \
	T(beta, 4, "segments in the queue above which it shrinks")                              \
	T(gamma, 1, "segments in the queue that end slow start")                                \
	T(slow_start_every, 2, "slow start doubles the window in one round of so many (Linux: 1)") \
	T(beta_milli, 500, "what a loss leaves of the window, thousandths")
TD_CONTROLLER(vegas);

TD_INLINE void td_vegas_begin(struct td_flow *f, struct td_vegas_state *s)
{
	s->base_us = s->least_us = s->samples = s->rounds = s->credit = 0;
	s->round_end = f->nxt;
}

/* At the end of a round; tells whether delay had a say in the window. */
TD_INLINE int td_vegas_decide(struct td_flow *f, struct td_vegas_state *s, const struct td_event *e, const struct td_vegas_tunables *t)
{
	u64 diff;

	if (s->samples < 3 || !s->base_us)
		return 0;
	diff = (u64)f->cwnd * (s->least_us - s->base_us) / s->base_us;
	if (f->cwnd < f->ssthresh) {
		if (diff <= t->gamma)
			return 0;
		f->cwnd = td_min(f->cwnd, (u64)f->cwnd * s->base_us / s->least_us + 1);
		f->ssthresh = td_min(f->ssthresh, f->cwnd);
	} else if (diff > t->beta) {
		f->cwnd--;
		f->ssthresh = td_min(f->ssthresh, f->cwnd);
	} else if (diff < t->alpha && (e->flags & TD_LIMITED)) {
		f->cwnd++;
	}
	f->cwnd = td_max(f->cwnd, 2);
	f->ssthresh = td_max(f->ssthresh, f->cwnd / 4 * 3);
	return 1;
}

TD_INLINE void td_vegas_ack(struct td_flow *f, struct td_vegas_state *s, const struct td_event *e, const struct td_vegas_tunables *t)
{
	int grows = s->rounds % td_max(t->slow_start_every, 1) == 0;

	if (td_round_over(f, &s->round_end)) {
		int decided = td_vegas_decide(f, s, e, t);
		u32 samples = s->samples;

		s->least_us = s->samples = 0;
		s->rounds++;
		if (decided)
			return;
		if (samples < 3) {
			td_reno_ack(f, &s->credit, e);
			return;
		}
	}
	if (f->cwnd < f->ssthresh && grows && (e->flags & TD_LIMITED))
		td_slow_start(f, e->acked);
}

TD_INLINE void td_vegas(struct td_flow *f, struct td_vegas_state *s, struct td_link *l, const struct td_event *e,
			const struct td_vegas_tunables *t)
{
	(void)l;
	switch (e->kind) {
	case TD_INIT:
	case TD_RESTART:
		td_vegas_begin(f, s);
		break;
	case TD_SAMPLE:
		if (!e->rtt_us)
			break;
		s->base_us = s->base_us ? td_min(s->base_us, e->rtt_us) : e->rtt_us;
		s->least_us = s->least_us ? td_min(s->least_us, e->rtt_us) : e->rtt_us;
		s->samples++;
		break;
	case TD_ACK:
		td_vegas_ack(f, s, e, t);
		break;
	case TD_LOSS:
	case TD_TIMEOUT:
		f->ssthresh = td_max((u64)f->cwnd * t->beta_milli / 1000, 2);
		break;
	case TD_RECOVERED:
		/* What was measured in recovery is not the round trip's. The base stays. */
		s->least_us = s->samples = 0;
		s->round_end = f->nxt;
		break;
	case TD_UNDO:
		td_undo(f);
		break;
	}
}

#endif
