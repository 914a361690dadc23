/*
 * DCTCP: RFC 8257. The window is reduced in proportion to the fraction of marked segments.
 *
 *   each window   F = segments marked / segments acknowledged;  alpha = (1 - g) alpha + g F, g = 1/16       §3.3 (1)
 *   a mark        cwnd = cwnd (1 - alpha / 2), at most once a window                                        §3.3
 *   a loss        halves, as NewReno                                                                       §3.5
 *   growth        as NewReno
 *
 * alpha is in 1/2^20 (Linux: 1/1024) and starts at 1, so that the first marks halve the window.
 * The receiver's part, an ACK as soon as a segment's mark differs from those before (§3.2), is in
 * the hooks: the receiver's socket needs this controller too. Otherwise its echo goes on until the
 * sender has reduced its window, and the fraction of marks is too high.
 */
#ifndef TD_DCTCP_H
#define TD_DCTCP_H
#include "reno.h"

struct td_dctcp_state {
	u32 alpha;	/* 1/2^20 */
	u32 acked;	/* segments acknowledged in this window */
	u32 marked;	/* of those, marked */
	u32 round_end;
	u32 credit;
	u32 reserved;
};
#define td_dctcp_WANTS (TD_WANTS_SAMPLE | TD_WANTS_ECN | TD_WANTS_ECHO)
#define td_dctcp_TUNABLES(T)                                            \
	T(gain_shift, 4, 0, 10, "gain g = 1 / 2 to this")                           \
	T(alpha_milli, 1000, 0, 1000, "initial alpha, thousandths")
TD_CONTROLLER(dctcp);

TD_INLINE void td_dctcp_sample(struct td_flow *f, struct td_dctcp_state *s, const struct td_event *e, const struct td_dctcp_tunables *t)
{
	u32 gain = td_min(t->gain_shift, 20);

	s->acked += e->acked;
	s->marked += td_min(e->marked, e->acked);
	if (!td_round_ended(f, &s->round_end))
		return;
	if (s->acked)
		s->alpha = td_min64(s->alpha - (s->alpha >> gain) + (((u64)s->marked << (20 - gain)) / s->acked), 1 << 20);
	s->acked = s->marked = 0;
}

TD_INLINE void td_dctcp(struct td_flow *f, struct td_dctcp_state *s, struct td_link *l, const struct td_event *e,
			const struct td_dctcp_tunables *t)
{
	(void)l;
	switch (e->kind) {
	case TD_INIT:
		s->alpha = (u64)td_min(t->alpha_milli, 1000) * (1 << 20) / 1000;
		s->acked = s->marked = s->credit = 0;
		s->round_end = f->nxt;
		break;
	case TD_SAMPLE:
		td_dctcp_sample(f, s, e, t);
		break;
	case TD_ACK:
		td_reno_ack(f, &s->credit, e);
		break;
	case TD_LOSS:
		s->credit = 0;
		if (e->flags & TD_ECN_ECHO)
			f->ssthresh = td_max(f->cwnd - (u32)((u64)f->cwnd * s->alpha >> 21), 2);
		else
			f->ssthresh = td_max(f->cwnd / 2, 2);
		break;
	case TD_TIMEOUT:
		s->credit = 0;
		f->ssthresh = td_max(f->cwnd / 2, 2);
		break;
	case TD_UNDO:
		td_undo_reduction(f);
		break;
	}
}

#endif
