/*
 * NewReno: RFC 5681 (slow start, congestion avoidance), RFC 6582 (recovery, done by TCP itself),
 * RFC 3465 (appropriate byte counting, without the limit L, as in Linux).
 *
 *   slow start            cwnd += acked, up to ssthresh                    RFC 5681 (2)
 *   congestion avoidance  cwnd += 1 for each cwnd segments acknowledged    RFC 5681 (3)
 *   loss, timeout         ssthresh = max(cwnd / 2, 2)                      RFC 5681 (4)
 *
 * As in Linux and unlike RFC 5681, ssthresh is half of cwnd rather than of the flight size, and the
 * window grows only while cwnd limits the flow (RFC 7661). TCP reduces cwnd to ssthresh: at once in
 * the RFC, by PRR (RFC 6937) in Linux.
 */
#ifndef TD_RENO_H
#define TD_RENO_H
#include "intf.h"

struct td_reno_state {
	u32 credit;	/* segments acknowledged since cwnd last grew */
	u32 reserved;
};
#define td_reno_WANTS 0
#define td_reno_TUNABLES(T)                                                     \
	T(beta_milli, 500, 100, 999, "window after a loss over the window before, thousandths")
TD_CONTROLLER(reno);

/* Slow start; returns the acknowledged segments that are left for congestion avoidance. */
TD_INLINE u32 td_slow_start(struct td_flow *f, u32 acked)
{
	u32 step = td_min(acked, f->ssthresh - f->cwnd);

	f->cwnd += step;
	return acked - step;
}

/* Grows cwnd by a segment for each `every` segments acknowledged. */
TD_INLINE void td_grow(struct td_flow *f, u32 *credit, u32 every, u32 acked)
{
	/* Credit from a time of slower growth counts as one segment at most. */
	if (*credit >= every) {
		*credit = 0;
		f->cwnd++;
	}
	*credit += acked;
	if (*credit >= every) {
		u32 step = *credit / every;

		*credit -= step * every;
		f->cwnd += step;
	}
}

TD_INLINE void td_reno_ack(struct td_flow *f, u32 *credit, const struct td_event *e)
{
	u32 acked = e->acked;

	if (!(e->flags & TD_CWND_LIMITED))
		return;
	if (f->cwnd < f->ssthresh)
		acked = td_slow_start(f, acked);
	if (acked)
		td_grow(f, credit, td_max(f->cwnd, 1), acked);
}

/* Takes back a spurious reduction. */
TD_INLINE void td_undo_reduction(struct td_flow *f)
{
	f->cwnd = td_max(f->cwnd, f->prior_cwnd);
}

TD_INLINE void td_reno(struct td_flow *f, struct td_reno_state *s, struct td_link *l, const struct td_event *e,
		       const struct td_reno_tunables *t)
{
	(void)l;
	switch (e->kind) {
	case TD_INIT:
		s->credit = 0;
		break;
	case TD_ACK:
		td_reno_ack(f, &s->credit, e);
		break;
	case TD_LOSS:
	case TD_TIMEOUT:
		s->credit = 0;
		f->ssthresh = td_max((u64)f->cwnd * t->beta_milli / 1000, 2);
		break;
	case TD_UNDO:
		td_undo_reduction(f);
		break;
	}
}

#endif
