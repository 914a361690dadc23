/*
 * A configured capacity that is wrong, for share: the estimate (estimate.h) takes its place for as
 * long as the link has another rate.
 *
 *   begins  share.h finds that the link has less (a queue stays, and less than 15/16 of the
 *           configured capacity is delivered), or more (a rate that is a sixteenth higher arrives
 *           without a queue). The estimate begins with what is delivered.
 *   ends    The mean over 5 s, cross traffic included, is within a sixteenth of the configured
 *           capacity for 5 s. If the next fallback begins within a minute, this takes twice as
 *           long, up to 80 s: a link that varies passes the configured rate now and then. It also
 *           ends when nothing has been sent for so long that the estimate would begin anew.
 */
#ifndef TD_FALLBACK_H
#define TD_FALLBACK_H
#include "estimate.h"

/* Time with the configured rate until that is used again: at first, and at most. */
#define TD_FALLBACK_WAIT_US 5000000
#define TD_FALLBACK_MOST_WAIT_US 80000000
/* A configured capacity that was in use for less than this has been tried too early. */
#define TD_FALLBACK_TRIED_US 60000000

/* Whether a rate, wire bytes/s, is less than the configured capacity by more than a sixteenth. */
TD_INLINE int td_fallback_is_less(u64 rate, u64 told)
{
	return rate < told - told / 16;
}

/* Whether it is more by more than a sixteenth. */
TD_INLINE int td_fallback_is_more(u64 rate, u64 told)
{
	return rate > told + told / 16;
}

/*
 * The estimate takes the place of the configured capacity: it begins with this rate, wire bytes/s,
 * of a link that is `busy`, or has more.
 */
TD_INLINE void td_fallback_begin(struct td_link *l, u64 now_us, u64 rate, u32 base_us, int busy)
{
	struct td_estimate *s = td_estimate_of(l);
	int was_early = s->told_since_us && td_sub_sat(now_us, s->told_since_us) < TD_FALLBACK_TRIED_US;

	s->told_wait_us = was_early ? td_min64(2 * s->told_wait_us, TD_FALLBACK_MOST_WAIT_US) : TD_FALLBACK_WAIT_US;
	s->told_since_us = 0;
	s->told = l->capacity;
	s->enabled = TD_ESTIMATE_FALLBACK;
	td_estimate_begin_at(l, now_us, busy ? rate : 2 * rate, base_us);
	s->queued = busy;
	/* The flows know their base RTTs. */
	s->empties = td_max(s->empties, TD_ESTIMATE_NEW_FOR);
	l->share.excess = 0;
}

/* The configured capacity is in use again. */
TD_INLINE void td_fallback_end(struct td_link *l, u64 now_us)
{
	struct td_estimate *s = td_estimate_of(l);

	s->enabled = TD_ESTIMATE_OFF;
	l->capacity = s->told;
	s->told_since_us = now_us;
	l->share.excess = 0;
	/* The correction begins anew with the next ACK. */
	l->share.scale = 0;
	l->share.since_us = 0;
	l->share.delivered = l->share.lost = 0;
}

/* Ends the fallback once the link has had the configured rate, `told`, for long enough. */
TD_INLINE void td_fallback_check(struct td_link *l, u64 now_us, u64 told)
{
	struct td_estimate *s = td_estimate_of(l);
	u64 rate = s->mean + l->share.cross_rate;

	if (s->enabled != TD_ESTIMATE_FALLBACK)
		return;
	if (td_fallback_is_less(rate, told) || td_fallback_is_more(rate, told))
		s->told_since_us = 0;
	else if (!s->told_since_us)
		s->told_since_us = now_us;
	else if (td_sub_sat(now_us, s->told_since_us) >= s->told_wait_us)
		td_fallback_end(l, now_us);
}

#endif
