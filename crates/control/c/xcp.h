/*
 * XCP at the proxy: Katabi, Handley, Rohrs, SIGCOMM 2002, with router and sender in one machine as in Li and Yousefi'zadeh §III.
 * The monitor measures what leaves and what stays queued; at each ACK the flow takes its part of what the last control interval
 * found to spare or to take back. No header, no help of the receiver, and no loss changes the window.
 *
 *   once in each interval d:  phi = alpha d S - beta Q,  S = C - y            efficiency
 *                             h = max(0, gamma y d - |phi|)                   shuffled, for fairness
 *                             F+ = h + max(phi, 0),  F- = h + max(-phi, 0)
 *   each ACK of a bytes:      w = rtt a / cwnd                                the flow's share of time
 *                             cwnd += F+ (rtt / d) w / W' - F- (rtt / d) a / A'
 *
 * W' and A' are the sums of w (of window-limited flows) and of a over the last interval. What is left of F+ and F- bounds what is
 * handed out, so that a burst of ACKs takes no more than there was. d is the mean RTT, each flow counted by its time.
 *
 * Other than in the paper: y is what leaves rather than what arrives, as in RAPPEP; only
 * flows that use their window get more; the window is paced, since Linux has no other way to keep 40 % of a BDP from leaving as a
 * burst after idle time; it keeps two segments, since one waits for delayed ACKs. Where no capacity is known: NewReno.
 * With fewer than two segments a flow in C d the queue cannot be drained: more flows than that are more than XCP can hold.
 */
#ifndef TD_XCP_H
#define TD_XCP_H
#include "window.h"

struct td_xcp_state {
	struct td_window window;
	u32 present;	/* has something to send, and is counted */
	u32 reserved;
};
#define td_xcp_WANTS TD_WANTS_RESTART
#define td_xcp_LIST(T, knows)                                                          \
	T(alpha_milli, 400, "share of the spare capacity handed out in an interval, thousandths") \
	T(beta_milli, 226, "share of the queue taken back in an interval, thousandths: alpha squared times the root of 2") \
	T(gamma_milli, 100, "share of the traffic shuffled between flows, thousandths")          \
	T(known, knows, "1: flows begin with their share, and what those that end leave is had at once") \
	T(least_window, 2, "segments")                                                          \
	T(pacing_percent, 125, "pace, percent of a window each round trip; 0: none")             \
	T(capacity_milli, 1000, "share of the capacity to use, thousandths")
#define td_xcp_TUNABLES(T) td_xcp_LIST(T, 0)
TD_CONTROLLER(xcp);

#define TD_XCP_LEAST_INTERVAL_US 1000
#define TD_XCP_MOST_INTERVAL_US 2000000

/* Closes the interval, and finds what the next one hands out. Katabi et al. §3.5 */
TD_INLINE void td_xcp_close(struct td_link *l, const struct td_event *e, u32 rtt_us, const struct td_xcp_tunables *t)
{
	u64 span = td_max64(td_less(e->now_us, l->xcp.since_us), 1);
	u64 capacity = l->capacity * t->capacity_milli / 1000;
	/* Bytes in this interval; a monitor that stands still is no proof of an idle link. */
	u64 used = td_max64(l->egress - l->xcp.egress0, l->xcp.acked);
	u64 there = capacity * span / 1000000;
	/* For the next d rather than for the span of this one. */
	u64 interval = l->xcp.interval_us ? l->xcp.interval_us : rtt_us;
	/* What newcomers began with does not show in what leaves yet. */
	u64 spare = td_less(td_less(there, used) * interval / span, l->xcp.begun) * t->alpha_milli / 1000;
	u64 over = td_less(td_less(used, there) * interval / span, l->xcp.begun) * t->alpha_milli / 1000 + l->queue * t->beta_milli / 1000;
	u64 shuffled = td_less(used * interval / span * t->gamma_milli / 1000, spare > over ? spare - over : over - spare);

	l->xcp.give = l->xcp.give_left = shuffled + td_less(spare, over);
	l->xcp.take = l->xcp.take_left = shuffled + td_less(over, spare);
	l->xcp.begun = 0;
	/* Who had more than a share has heard of it by now. */
	l->xcp.owed /= 2;
	l->xcp.left /= 2;
	if (l->xcp.time)
		interval = l->xcp.weighed / l->xcp.time;
	else if (!l->xcp.interval_us)
		interval = rtt_us;
	l->xcp.interval_us = td_max64(td_min64(interval, TD_XCP_MOST_INTERVAL_US), TD_XCP_LEAST_INTERVAL_US);
	l->xcp.flows_milli = l->xcp.time * 1000 / l->xcp.interval_us;
	l->xcp.last_acked = l->xcp.acked;
	l->xcp.last_time = l->xcp.time;
	l->xcp.acked = l->xcp.time = l->xcp.weighed = 0;
	l->xcp.since_us = e->now_us;
	l->xcp.egress0 = l->egress;
}

/* An equal part of what fills the path, payload bytes. */
TD_INLINE u64 td_xcp_share(const struct td_flow *f, const struct td_link *l, const struct td_xcp_tunables *t)
{
	u64 payload = l->capacity * t->capacity_milli / 1000 * f->mss / (f->mss + f->header + l->overhead);

	return payload * td_min(f->srtt_us, TD_XCP_MOST_INTERVAL_US) / 1000000 / td_max(l->xcp.flows, 1);
}

/* A flow has something to send: if what it knows is used, it begins with its share, which those with more than theirs owe. */
TD_INLINE void td_xcp_join(const struct td_flow *f, struct td_xcp_state *s, struct td_link *l, const struct td_xcp_tunables *t)
{
	u64 more;

	if (s->present)
		return;
	s->present = 1;
	l->xcp.flows++;
	if (!t->known)
		return;
	more = td_less(td_xcp_share(f, l, t), s->window.bytes >> 8);
	s->window.bytes += more << 8;
	l->xcp.owed += more;
	l->xcp.begun += more;
}

/* It has nothing to send any more, for now: what it had is for those with less than their share. */
TD_INLINE void td_xcp_leave(struct td_xcp_state *s, struct td_link *l, const struct td_xcp_tunables *t)
{
	if (!s->present)
		return;
	s->present = 0;
	l->xcp.flows = td_less(l->xcp.flows, 1);
	if (t->known)
		l->xcp.left += s->window.bytes >> 8;
}

/* Settles what newcomers are owed, and what was left. */
TD_INLINE void td_xcp_settle(const struct td_flow *f, struct td_window *w, struct td_link *l, const struct td_event *e,
			     const struct td_xcp_tunables *t)
{
	u64 share = td_xcp_share(f, l, t), has = w->bytes >> 8, pays = td_min64(l->xcp.owed, td_less(has, share)), gets = 0;

	if (e->flags & TD_LIMITED)
		gets = td_min64(l->xcp.left, td_less(share, has));
	l->xcp.owed -= pays;
	l->xcp.left -= gets;
	w->bytes = td_less(w->bytes + (gets << 8), pays << 8);
}

TD_INLINE void td_xcp_ack(struct td_flow *f, struct td_window *w, struct td_link *l, const struct td_event *e,
			  const struct td_xcp_tunables *t)
{
	u64 acked = (u64)e->acked * f->mss;
	u64 rtt = f->srtt_us;
	/* us; 2^24 us of RTT, 2^24 bytes: below 2^56. */
	u64 time = (rtt * acked << 8) / td_max64(w->bytes, 256);
	u64 ratio, up = 0, down = 0;

	td_window_watch(f, w);
	if (!rtt || !acked)
		return;
	if (!l->xcp.since_us || l->egress < l->xcp.egress0) {
		l->xcp.since_us = e->now_us;
		l->xcp.egress0 = l->egress;
	}
	l->xcp.acked += acked;
	if (e->flags & TD_LIMITED) {
		l->xcp.time += time;
		l->xcp.weighed += rtt * time;
	}
	if (td_less(e->now_us, l->xcp.since_us) >= td_max64(l->xcp.interval_us ? l->xcp.interval_us : rtt, TD_XCP_LEAST_INTERVAL_US))
		td_xcp_close(l, e, rtt, t);
	if (!l->xcp.interval_us)
		return;
	/* rtt / d, 1/1024, no more than 16 */
	ratio = td_min64((rtt << 10) / l->xcp.interval_us, 16 << 10);
	/* 2^27 bytes * 2^14 >> 10 = 2^31; times 2^28 us: below 2^63. */
	if ((e->flags & TD_LIMITED) && l->xcp.last_time)
		up = td_min64(l->xcp.give_left, (td_min64(l->xcp.give, 1 << 27) * ratio >> 10) * td_min64(time, 1 << 28) / l->xcp.last_time);
	if (l->xcp.last_acked)
		down = td_min64(l->xcp.take_left, (td_min64(l->xcp.take, 1 << 27) * ratio >> 10) * acked / l->xcp.last_acked);
	l->xcp.give_left -= up;
	l->xcp.take_left -= down;
	w->bytes = td_less(w->bytes + (up << 8), down << 8);
}

TD_INLINE void td_xcp(struct td_flow *f, struct td_xcp_state *s, struct td_link *l, const struct td_event *e,
		      const struct td_xcp_tunables *t)
{
	if (e->kind == TD_INIT) {
		td_window_begin(f, &s->window);
		s->present = 0;
	}
	if (!l || !l->capacity) {
		td_window_unknown(f, &s->window, e);
		return;
	}
	if (e->kind == TD_ACK) {
		if (t->known)
			td_xcp_settle(f, &s->window, l, e, t);
		td_xcp_ack(f, &s->window, l, e, t);
		if (!f->unsent && ((e->flags & TD_LAST) || !f->in_flight))
			td_xcp_leave(s, l, t);
	} else if (e->kind == TD_RESTART) {
		td_window_restart(f, &s->window);
		td_xcp_join(f, s, l, t);
	} else if (e->kind == TD_CLOSE) {
		td_xcp_leave(s, l, t);
		return;
	}
	td_window_apply(f, &s->window, t->least_window, t->pacing_percent);
}

#endif
