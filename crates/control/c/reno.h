/*
 * NewReno: RFC 5681 (slow start, congestion avoidance), RFC 6582 (recovery, which is TCP's own here), RFC 3465 (counts what an ACK
 * acknowledges, without a limit on it, as Linux does).
 *
 *   slow start            cwnd += acked, up to ssthresh                    RFC 5681 (2)
 *   congestion avoidance  cwnd += 1 for each cwnd segments acknowledged    RFC 5681 (3)
 *   loss, timeout         ssthresh = max(cwnd / 2, 2)                      RFC 5681 (4)
 *
 * As Linux and unlike RFC 5681, ssthresh is half of cwnd, not of what is in flight, and the window grows only while the flow
 * uses it (RFC 7661 has why). How cwnd comes down to ssthresh is TCP's affair: at once in the RFC, by PRR (RFC 6937) in Linux.
 */
#ifndef TD_RENO_H
#define TD_RENO_H
#include "intf.h"

struct td_reno_state {
	u32 credit;	/* segments acknowledged that have not yet made a whole segment of growth */
	u32 reserved;
};
#define td_reno_WANTS 0
#define td_reno_TUNABLES(T)                                                     \
	T(beta_milli, 500, "what a loss leaves of the window, thousandths")
TD_CONTROLLER(reno);

/* Slow start; tells how much of what was acknowledged is left for congestion avoidance. */
TD_INLINE u32 td_slow_start(struct td_flow *f, u32 acked)
{
	u32 step = td_min(acked, f->ssthresh - f->cwnd);

	f->cwnd += step;
	return acked - step;
}

/* One segment of growth for each `every` acknowledged. */
TD_INLINE void td_grow(struct td_flow *f, u32 *credit, u32 every, u32 acked)
{
	/* A credit saved while growth was slower is worth one segment now, not several. */
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

	if (!(e->flags & TD_LIMITED))
		return;
	if (f->cwnd < f->ssthresh)
		acked = td_slow_start(f, acked);
	if (acked)
		td_grow(f, credit, td_max(f->cwnd, 1), acked);
}

/* A reduction that was needless is taken back. */
TD_INLINE void td_undo(struct td_flow *f)
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
		td_undo(f);
		break;
	}
}

#endif
