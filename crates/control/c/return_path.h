/*
 * The one-way delay of ACKs. Where an upload fills the other direction of a link, ACKs wait in its
 * queue: the RTT grows although the queue of the data does not. TCP timestamps (RFC 7323) tell the
 * two apart. An ACK has the receiver's clock when it was sent (TSval); the arrival time less TSval
 * is the one-way delay of the ACK plus a constant, as in LEDBAT (RFC 6817).
 *
 * The receiver's clock has to count milliseconds, as Linux's does. With a slower clock the one-way
 * delay seems to grow more than the RTT does: then timestamps are ignored. With a faster one no
 * delay is seen.
 */
#ifndef TD_RETURN_PATH_H
#define TD_RETURN_PATH_H
#include "intf.h"

/* A shorter delay may be jitter, us. */
#define TD_RETURN_LEAST_US 10000
/* The clocks of the hosts drift apart by at most a millisecond in this time, ms: 122 ppm. */
#define TD_RETURN_DRIFT_MS 8192
/* The longest delay, ms. */
#define TD_RETURN_MOST_MS 1000000
/* How long other flows take a delay for theirs, ms. */
#define TD_RETURN_SHARED_MS 500

struct td_return_path {
	u32 longer_us;	/* one-way delay of the last ACK less the least one, or that of other flows */
	u32 least_ms;	/* least `return_ms` */
	/* When that was last changed; 0: no ACK yet; TD_INFINITE: the clock is too slow. */
	u32 since_ms;
};

/* Whether the flow measures the one-way delay of its ACKs. */
TD_INLINE int td_return_is_measured(const struct td_return_path *p)
{
	return p->since_ms && p->since_ms != TD_INFINITE;
}

/* Measures the one-way delay of this ACK less the least one of the flow. */
TD_INLINE void td_return_measure(const struct td_flow *f, struct td_return_path *p, const struct td_event *e, u32 now_ms)
{
	u32 longer;

	if (!(e->flags & TD_TIMESTAMP) || p->since_ms == TD_INFINITE)
		return;
	/* An ACK at the least one shows that the clocks have not drifted apart. */
	if (!p->since_ms || !td_before(p->least_ms, e->return_ms)) {
		p->least_ms = e->return_ms;
		p->since_ms = now_ms;
	} else if (now_ms - p->since_ms >= TD_RETURN_DRIFT_MS) {
		p->least_ms++;
		p->since_ms = now_ms;
	}
	longer = td_min(e->return_ms - p->least_ms, TD_RETURN_MOST_MS) * 1000;
	p->longer_us = longer < TD_RETURN_LEAST_US ? 0 : longer;
	if (e->rtt_us && f->min_rtt_us && longer > td_sub_sat(e->rtt_us, f->min_rtt_us) + 2 * TD_RETURN_LEAST_US)
		p->since_ms = TD_INFINITE;
}

/* The one-way delay of ACKs less the least one: as this ACK tells it, or else other flows of the link, us. */
TD_INLINE u32 td_return_longer(const struct td_flow *f, struct td_return_path *p, struct td_link *l, const struct td_event *e)
{
	u32 now_ms = td_max(e->now_us / 1000 % TD_INFINITE, 1), recent = now_ms - l->share.longer_ms < TD_RETURN_SHARED_MS;

	td_return_measure(f, p, e, now_ms);
	if (!td_return_is_measured(p)) {
		/* An ACK without an RTT sample tells nothing new. */
		if (!recent)
			p->longer_us = 0;
		else if (e->rtt_us)
			p->longer_us = td_min(l->share.longer_us, td_sub_sat(e->rtt_us, td_max(f->min_rtt_us, 1)));
	} else if (!recent || p->longer_us >= l->share.longer_us) {
		l->share.longer_us = p->longer_us;
		l->share.longer_ms = now_ms;
	}
	return p->longer_us;
}

/*
 * The RTT sample without `longer_us`. A clock of milliseconds is not exact, so the result is at
 * least the minimum RTT.
 */
TD_INLINE u32 td_return_rtt(const struct td_flow *f, const struct td_event *e, u32 longer_us)
{
	return longer_us ? td_max(td_sub_sat(e->rtt_us, longer_us), td_min(e->rtt_us, td_max(f->min_rtt_us, 1))) : e->rtt_us;
}

#endif
