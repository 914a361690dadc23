/*
 * TCP Vegas: Brakmo and Peterson, IEEE JSAC 13 (1995), 1465-1480. Keeps alpha to beta segments of
 * its own in the queue.
 *
 *   diff = cwnd - cwnd * base / rtt: segments in the queue; here cwnd (rtt - base) / base, as in Linux
 *   once per round trip, in slow start: ends if diff > gamma; else the window doubles, in every second round
 *   afterwards: diff < alpha: cwnd += 1; diff > beta: cwnd -= 1
 *
 * base is the minimum RTT since the flow started or was idle, rtt the minimum of the round. In a
 * round with fewer than three samples growth is that of NewReno (as in Linux). The paper's early
 * retransmission by a fine-grained timer is not implemented: TCP's RACK does that. A loss halves
 * the window, as in Linux; the paper reduces by a quarter (beta_milli = 750).
 */
#ifndef TD_VEGAS_H
#define TD_VEGAS_H
#include "reno.h"

struct td_vegas_state {
	u32 base_us;	/* minimum RTT; 0: none */
	u32 round_min_us; /* minimum RTT of this round; 0: none */
	u32 samples;	/* RTT samples of this round */
	u32 round_end;
	u32 rounds;
	u32 credit;
};
#define td_vegas_WANTS (TD_WANTS_SAMPLE | TD_WANTS_RESTART | TD_WANTS_RECOVERED)
#define td_vegas_TUNABLES(T)                                                                    \
	T(alpha, 2, 1, 1000, "segments in the queue below which the window grows")                       \
	T(beta, 4, 1, 1000, "segments in the queue above which the window shrinks")                              \
	T(gamma, 1, 1, 1000, "segments in the queue that end slow start")                                \
	T(slow_start_every, 2, 1, 16, "slow start doubles the window in one of this many rounds (Linux: 1)") \
	T(beta_milli, 500, 100, 999, "window after a loss over the window before, thousandths")
TD_CONTROLLER(vegas);

TD_INLINE void td_vegas_reset(struct td_flow *f, struct td_vegas_state *s)
{
	s->base_us = s->round_min_us = s->samples = s->rounds = s->credit = 0;
	s->round_end = f->nxt;
}

/* Adjusts the window at the end of a round; returns whether the delay decided. */
TD_INLINE int td_vegas_end_round(struct td_flow *f, struct td_vegas_state *s, const struct td_event *e, const struct td_vegas_tunables *t)
{
	u64 diff;

	if (s->samples < 3 || !s->base_us)
		return 0;
	diff = (u64)f->cwnd * (s->round_min_us - s->base_us) / s->base_us;
	if (f->cwnd < f->ssthresh) {
		if (diff <= t->gamma)
			return 0;
		f->cwnd = td_min(f->cwnd, (u64)f->cwnd * s->base_us / s->round_min_us + 1);
		f->ssthresh = td_min(f->ssthresh, f->cwnd);
	} else if (diff > t->beta) {
		f->cwnd--;
		f->ssthresh = td_min(f->ssthresh, f->cwnd);
	} else if (diff < t->alpha && (e->flags & TD_CWND_LIMITED)) {
		f->cwnd++;
	}
	f->cwnd = td_max(f->cwnd, 2);
	f->ssthresh = td_max(f->ssthresh, f->cwnd / 4 * 3);
	return 1;
}

TD_INLINE void td_vegas_ack(struct td_flow *f, struct td_vegas_state *s, const struct td_event *e, const struct td_vegas_tunables *t)
{
	int grows = s->rounds % td_max(t->slow_start_every, 1) == 0;

	if (td_round_ended(f, &s->round_end)) {
		int decided = td_vegas_end_round(f, s, e, t);
		u32 samples = s->samples;

		s->round_min_us = s->samples = 0;
		s->rounds++;
		if (decided)
			return;
		if (samples < 3) {
			td_reno_ack(f, &s->credit, e);
			return;
		}
	}
	if (f->cwnd < f->ssthresh && grows && (e->flags & TD_CWND_LIMITED))
		td_slow_start(f, e->acked);
}

TD_INLINE void td_vegas(struct td_flow *f, struct td_vegas_state *s, struct td_link *l, const struct td_event *e,
			const struct td_vegas_tunables *t)
{
	(void)l;
	switch (e->kind) {
	case TD_INIT:
	case TD_RESTART:
		td_vegas_reset(f, s);
		break;
	case TD_SAMPLE:
		if (!e->rtt_us)
			break;
		s->base_us = s->base_us ? td_min(s->base_us, e->rtt_us) : e->rtt_us;
		s->round_min_us = s->round_min_us ? td_min(s->round_min_us, e->rtt_us) : e->rtt_us;
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
		/* Samples taken in recovery do not show the queue. The base is kept. */
		s->round_min_us = s->samples = 0;
		s->round_end = f->nxt;
		break;
	case TD_UNDO:
		td_undo_reduction(f);
		break;
	}
}

#endif
