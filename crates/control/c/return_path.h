/*
 * The way of the ACKs. Where an upload fills the other direction of a link, ACKs wait in its queue:
 * round trips become longer, and no queue of the data has grown. Timestamps (RFC 7323) tell the two
 * apart, since an ACK carries the receiver's clock of the time at which it was sent: the arrival time
 * less that clock is, but for a constant, how long the ACK was on its way. (LEDBAT, RFC 6817, measures
 * one-way delays likewise.)
 *
 * Clocks count milliseconds on Linux, Windows and macOS. A slower clock is recognised, since the way of
 * the ACKs then seems to become longer than the round trips do; a faster one shows no delay.
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

struct td_return_path {
	u32 longer_us;	/* how much longer than the fastest ACK the last one was on its way */
	u32 least_ms;	/* `return_ms` of the fastest ACK */
	u32 since_ms;	/* when that was last changed; 0: there was no ACK; TD_INFINITE: the clock is slower */
};

/* How much longer than the fastest ACK this one was on its way, us. */
TD_INLINE u32 td_return_longer(const struct td_flow *f, struct td_return_path *p, const struct td_event *e)
{
	u32 now_ms = td_max(e->now_us / 1000 % TD_INFINITE, 1), longer;

	if (!(e->flags & TD_TIMESTAMP) || p->since_ms == TD_INFINITE)
		return 0;
	if (!p->since_ms || td_before(e->return_ms, p->least_ms)) {
		p->least_ms = e->return_ms;
		p->since_ms = now_ms;
	} else if (now_ms - p->since_ms >= TD_RETURN_DRIFT_MS) {
		p->least_ms++;
		p->since_ms = now_ms;
	}
	longer = td_min(e->return_ms - p->least_ms, TD_RETURN_MOST_MS) * 1000;
	p->longer_us = longer < TD_RETURN_LEAST_US ? 0 : longer;
	if (e->rtt_us && f->min_rtt_us && longer > td_sub_sat(e->rtt_us, f->min_rtt_us) + 2 * TD_RETURN_LEAST_US) {
		p->since_ms = TD_INFINITE;
		p->longer_us = 0;
	}
	return p->longer_us;
}

/*
 * The round trip of an ACK, if its way back had been as short as that of the fastest one. Clocks of
 * milliseconds are not exact: it is at least the least round trip.
 */
TD_INLINE u32 td_return_rtt(const struct td_flow *f, const struct td_event *e, u32 longer_us)
{
	return longer_us ? td_max(td_sub_sat(e->rtt_us, longer_us), td_min(e->rtt_us, td_max(f->min_rtt_us, 1))) : e->rtt_us;
}

#endif
