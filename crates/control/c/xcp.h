/*
 * XCP at the proxy: Katabi, Handley, Rohrs, SIGCOMM 2002, with router and sender in one machine as
 * in Li and Yousefi'zadeh §III. The monitor measures output and persistent queue. At each ACK the
 * flow takes its part of the feedback computed for the last control interval. There is no
 * congestion header and no help by the receiver, and losses do not change the window.
 *
 *   once per interval d:   phi = alpha d S - beta Q,  S = C - y             efficiency controller
 *                          h = max(0, gamma y d - |phi|)                    bandwidth shuffling, for fairness
 *                          F+ = h + max(phi, 0),  F- = h + max(-phi, 0)
 *   each ACK of a bytes:   w = rtt a / cwnd                                 the flow's share of time
 *                          cwnd += F+ (rtt / d) w / W' - F- (rtt / d) a / A'
 *
 * W' and A' are the sums of w (of window-limited flows) and of a over the last interval. The
 * remainder of F+ and F- bounds what is handed out, so that a burst of ACKs takes no more than
 * there is. d is the mean RTT, weighted by each flow's time.
 *
 * Differences from the paper: y is the output rather than the input, as in RAPPEP; only
 * window-limited flows grow; the window is paced, as nothing else in Linux prevents a burst of 40 %
 * of a BDP after idle time; the window is at least two segments, since a single one would wait for
 * delayed ACKs. While the capacity is unknown the controller is NewReno. If C d has fewer than two
 * segments per flow the queue cannot drain: XCP cannot control more flows than that.
 */
#ifndef TD_XCP_H
#define TD_XCP_H
#include "window.h"

struct td_xcp_state {
	struct td_window window;
	u32 present;	/* the flow has data to send and is counted in `flows` */
	u32 reserved;
};
#define td_xcp_WANTS TD_WANTS_RESTART
#define td_xcp_LIST(T, knows)                                                          \
	T(alpha_milli, 400, 0, 2000, "alpha: fraction of the spare capacity handed out per interval, thousandths") \
	T(beta_milli, 226, 0, 2000, "beta: fraction of the queue taken back per interval, thousandths: alpha squared times the root of 2") \
	T(gamma_milli, 100, 0, 1000, "gamma: fraction of the traffic shuffled between flows, thousandths")          \
	T(known, knows, 0, 1, "1: new flows start with their fair window, and the window of flows that end is reused at once") \
	T(least_window, 2, 1, 1000, "smallest window, segments")                                                          \
	T(pacing_percent, 125, 0, 1000, "pacing rate, percent of a window per round trip; 0: none")             \
	T(capacity_milli, 1000, 100, 2000, "fraction of the capacity to use, thousandths")
#define td_xcp_TUNABLES(T) td_xcp_LIST(T, 0)
TD_CONTROLLER(xcp);

#define TD_XCP_MIN_INTERVAL_US 1000
#define TD_XCP_MAX_INTERVAL_US 2000000

/* Ends the interval and computes the feedback for the next one. Katabi et al. §3.5 */
TD_INLINE void td_xcp_end_interval(struct td_link *l, const struct td_event *e, u32 rtt_us, const struct td_xcp_tunables *t)
{
	u64 span = td_max64(td_sub_sat(e->now_us, l->xcp.since_us), 1);
	u64 capacity = l->capacity * t->capacity_milli / 1000;
	/* Bytes in this interval. ACKs count too, in case the monitor does not see the traffic. */
	u64 used = td_max64(l->egress - l->xcp.egress0, l->xcp.acked);
	u64 available = capacity * span / 1000000;
	/* Feedback is for the next d rather than for the length of this interval. */
	u64 interval = l->xcp.interval_us ? l->xcp.interval_us : rtt_us;
	/* Windows granted to new flows do not show in the output yet. */
	u64 spare = td_sub_sat(td_sub_sat(available, used) * interval / span, l->xcp.granted) * t->alpha_milli / 1000;
	u64 over = td_sub_sat(td_sub_sat(used, available) * interval / span, l->xcp.granted) * t->alpha_milli / 1000 + l->queue * t->beta_milli / 1000;
	u64 shuffled = td_sub_sat(used * interval / span * t->gamma_milli / 1000, spare > over ? spare - over : over - spare);

	l->xcp.give = l->xcp.give_left = shuffled + td_sub_sat(spare, over);
	l->xcp.take = l->xcp.take_left = shuffled + td_sub_sat(over, spare);
	l->xcp.granted = 0;
	/* Flows above their fair window have had an ACK by now. */
	l->xcp.owed /= 2;
	l->xcp.freed /= 2;
	if (l->xcp.time)
		interval = l->xcp.time_rtt / l->xcp.time;
	else if (!l->xcp.interval_us)
		interval = rtt_us;
	l->xcp.interval_us = td_max64(td_min64(interval, TD_XCP_MAX_INTERVAL_US), TD_XCP_MIN_INTERVAL_US);
	l->xcp.flows_milli = l->xcp.time * 1000 / l->xcp.interval_us;
	l->xcp.last_acked = l->xcp.acked;
	l->xcp.last_time = l->xcp.time;
	l->xcp.acked = l->xcp.time = l->xcp.time_rtt = 0;
	l->xcp.since_us = e->now_us;
	l->xcp.egress0 = l->egress;
}

/* The fair window: an equal part of the BDP, payload bytes. */
TD_INLINE u64 td_xcp_fair_window(const struct td_flow *f, const struct td_link *l, const struct td_xcp_tunables *t)
{
	u64 payload = l->capacity * t->capacity_milli / 1000 * f->mss / (f->mss + f->header + l->overhead);

	return payload * td_min(f->srtt_us, TD_XCP_MAX_INTERVAL_US) / 1000000 / td_max(l->xcp.flows, 1);
}

/* The flow has data to send. With `known` it starts with the fair window, which flows above theirs will yield. */
TD_INLINE void td_xcp_add_flow(const struct td_flow *f, struct td_xcp_state *s, struct td_link *l, const struct td_xcp_tunables *t)
{
	u64 grant;

	if (s->present)
		return;
	s->present = 1;
	l->xcp.flows++;
	if (!t->known)
		return;
	grant = td_sub_sat(td_xcp_fair_window(f, l, t), s->window.bytes >> 8);
	s->window.bytes += grant << 8;
	l->xcp.owed += grant;
	l->xcp.granted += grant;
}

/* The flow has no data to send. With `known` its window is freed for flows below their fair window. */
TD_INLINE void td_xcp_remove_flow(struct td_xcp_state *s, struct td_link *l, const struct td_xcp_tunables *t)
{
	if (!s->present)
		return;
	s->present = 0;
	l->xcp.flows = td_sub_sat(l->xcp.flows, 1);
	if (t->known)
		l->xcp.freed += s->window.bytes >> 8;
}

/* Yields window to new flows, or takes freed window. */
TD_INLINE void td_xcp_redistribute(const struct td_flow *f, struct td_window *w, struct td_link *l, const struct td_event *e,
			     const struct td_xcp_tunables *t)
{
	u64 fair = td_xcp_fair_window(f, l, t), window = w->bytes >> 8;
	u64 yields = td_min64(l->xcp.owed, td_sub_sat(window, fair)), takes = 0;

	if (e->flags & TD_CWND_LIMITED)
		takes = td_min64(l->xcp.freed, td_sub_sat(fair, window));
	l->xcp.owed -= yields;
	l->xcp.freed -= takes;
	w->bytes = td_sub_sat(w->bytes + (takes << 8), yields << 8);
}

TD_INLINE void td_xcp_ack(struct td_flow *f, struct td_window *w, struct td_link *l, const struct td_event *e,
			  const struct td_xcp_tunables *t)
{
	u64 acked = (u64)e->acked * f->mss;
	u64 rtt = f->srtt_us;
	/* us. RTT below 2^24 us, 2^24 bytes: below 2^56. */
	u64 time = (rtt * acked << 8) / td_max64(w->bytes, 256);
	u64 ratio, up = 0, down = 0;

	td_window_track_flight(f, w);
	if (!rtt || !acked)
		return;
	if (!l->xcp.since_us || l->egress < l->xcp.egress0) {
		l->xcp.since_us = e->now_us;
		l->xcp.egress0 = l->egress;
	}
	l->xcp.acked += acked;
	if (e->flags & TD_CWND_LIMITED) {
		l->xcp.time += time;
		l->xcp.time_rtt += rtt * time;
	}
	if (td_sub_sat(e->now_us, l->xcp.since_us) >= td_max64(l->xcp.interval_us ? l->xcp.interval_us : rtt, TD_XCP_MIN_INTERVAL_US))
		td_xcp_end_interval(l, e, rtt, t);
	if (!l->xcp.interval_us)
		return;
	/* rtt / d in 1/1024, at most 16 */
	ratio = td_min64((rtt << 10) / l->xcp.interval_us, 16 << 10);
	/* 2^27 bytes * 2^14 >> 10 = 2^31; times 2^28 us: below 2^63. */
	if ((e->flags & TD_CWND_LIMITED) && l->xcp.last_time)
		up = td_min64(l->xcp.give_left, (td_min64(l->xcp.give, 1 << 27) * ratio >> 10) * td_min64(time, 1 << 28) / l->xcp.last_time);
	if (l->xcp.last_acked)
		down = td_min64(l->xcp.take_left, (td_min64(l->xcp.take, 1 << 27) * ratio >> 10) * acked / l->xcp.last_acked);
	l->xcp.give_left -= up;
	l->xcp.take_left -= down;
	w->bytes = td_sub_sat(w->bytes + (up << 8), down << 8);
}

TD_INLINE void td_xcp(struct td_flow *f, struct td_xcp_state *s, struct td_link *l, const struct td_event *e,
		      const struct td_xcp_tunables *t)
{
	if (e->kind == TD_INIT) {
		td_window_init(f, &s->window);
		s->present = 0;
	}
	if (!l || !l->capacity) {
		td_window_newreno(f, &s->window, e);
		return;
	}
	if (e->kind == TD_ACK) {
		if (t->known)
			td_xcp_redistribute(f, &s->window, l, e, t);
		td_xcp_ack(f, &s->window, l, e, t);
		if (!f->unsent && ((e->flags & TD_NO_MORE_DATA) || !f->in_flight))
			td_xcp_remove_flow(s, l, t);
	} else if (e->kind == TD_RESTART) {
		td_window_after_idle(f, &s->window);
		td_xcp_add_flow(f, s, l, t);
	} else if (e->kind == TD_CLOSE) {
		td_xcp_remove_flow(s, l, t);
		return;
	}
	td_window_apply(f, &s->window, t->least_window, t->pacing_percent);
}

#endif
