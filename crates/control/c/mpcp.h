/*
 * Load-factor control at the proxy: VCP (Xia, Subramanian, Stoica, Kalyanaraman, SIGCOMM 2005), and MPCP at
 * a proxy as in Li and Yousefi'zadeh (RAPPEP §III): the load factor is known exactly, since the sender is
 * the router.
 *
 *   every t_rho:  sigma = (bytes output + kappa_q Q) / (gamma_l C t)        VCP (1), with output for input
 *
 * Three control laws, chosen by `law`, for an ACK of a bytes:
 *   0 mlcp       sigma < 0.8: cwnd += a min(1, kappa (1 - sigma) / sigma), kappa = 0.35     MI
 *                sigma < 1:   cwnd += alpha mss a / cwnd                                    AI
 *                else:        once per max(RTT, t_rho): cwnd *= 0.9375 at 1.00, falling to 0.875 at 1.03; then
 *                             no change for t_rho                                           MD
 *   1 vcp        the same regions with xi = 0.0625 in MI and 0.875 in MD, and AI only for a round trip after MD
 *   2 vcp-exact  cwnd += a m + alpha mss a / cwnd, m = 0.0625 up to sigma = 0.8, then 0.25 (1 / sigma - 1)
 *
 * MPCP's mapping of load levels to increases is not in the publications available; `mlcp` has the form of
 * MLCP (Qazi and Znati, Infocom 2008), on which MPCP builds. Steps are not scaled by RTT, since all flows
 * share one hop (RAPPEP §III). Losses do not change the window. Only window-limited flows grow. Paced as in
 * xcp.h.
 */
#ifndef TD_MPCP_H
#define TD_MPCP_H
#include "window.h"

struct td_mpcp_state {
	struct td_window window;
	u64 frozen_until_us; /* the window does not change before */
	u64 cut_us;	/* time of the last reduction */
};
#define td_mpcp_WANTS TD_WANTS_RESTART
#define td_mpcp_TUNABLES(T)                                                                     \
	T(law, 0, "0: mlcp, 1: vcp, 2: vcp-exact")                                              \
	T(interval_us, 200000, "t_rho, over which the load is measured")                        \
	T(target_milli, 980, "gamma_l, the target utilization, thousandths") \
	T(queue_milli, 500, "kappa_q, the fraction of the queue that counts as load, thousandths") \
	T(kappa_milli, 350, "kappa of mlcp's MI, thousandths")                                  \
	T(least_window, 2, "smallest window, segments")                                                          \
	T(pacing_percent, 125, "pacing rate, percent of a window per round trip; 0: none")
TD_CONTROLLER(mpcp);

enum { TD_LAW_MLCP, TD_LAW_VCP, TD_LAW_VCP_EXACT };

TD_INLINE void td_mpcp_update_load(struct td_link *l, const struct td_event *e, const struct td_mpcp_tunables *t)
{
	u64 span = td_sub_sat(e->now_us, l->mpcp.since_us), used, available;

	if (l->mpcp.since_us && l->egress >= l->mpcp.egress0) {
		if (span < td_max(t->interval_us, 1000))
			return;
		used = l->egress - l->mpcp.egress0 + l->queue * t->queue_milli / 1000;
		/* The load is bounded, as it means little after a long silence. */
		available = td_max64(l->capacity * t->target_milli / 1000 * span / 1000000, 1);
		l->mpcp.load_milli = td_max64(td_min64(used * 1000 / available, 10000), 10);
	}
	l->mpcp.since_us = e->now_us;
	l->mpcp.egress0 = l->egress;
}

/* The factor of MD at a load, 1/65536: 0.9375 at 1.00, 0.875 from 1.03 on. */
TD_INLINE u64 td_mlcp_beta(u32 load_milli)
{
	u32 over = td_min(load_milli - 1000, 30);

	return 61440 - over * 4096 / 30;
}

TD_INLINE void td_mpcp_ack(struct td_flow *f, struct td_mpcp_state *s, struct td_link *l, const struct td_event *e,
			   const struct td_mpcp_tunables *t)
{
	struct td_window *w = &s->window;
	u64 acked = (u64)e->acked * f->mss << 8, load, additive, rest;
	int limited = e->flags & TD_CWND_LIMITED;

	td_window_track_flight(f, w);
	td_mpcp_update_load(l, e, t);
	load = l->mpcp.load_milli;
	if (!load || !acked || e->now_us < s->frozen_until_us)
		return;
	/* alpha = 1 segment per round trip: at most 2^32 * 2^16 */
	additive = td_min64(acked, 1ULL << 40) * f->mss / td_max64(w->bytes >> 8, 1);
	if (t->law == TD_LAW_VCP_EXACT) {
		u64 step = load <= 800 ? 62 : 250 * td_sub_sat(1000, load) / load;

		rest = td_min64(load > 1000 ? acked * (250 * (load - 1000) / load) / 1000 : 0, w->bytes / 2);
		w->bytes -= rest;
		if (limited)
			w->bytes += acked * step / 1000 + additive;
		return;
	}
	if (load >= 1000) {
		if (e->now_us - s->cut_us < td_max(f->srtt_us, t->interval_us))
			return;
		w->bytes = w->bytes / 65536 * (t->law == TD_LAW_VCP ? 57344 : td_mlcp_beta(load));
		s->cut_us = e->now_us;
		s->frozen_until_us = e->now_us + t->interval_us;
		return;
	}
	if (!limited)
		return;
	/* VCP: after MD and the freeze, AI for one round trip. */
	if (load >= 800 || (t->law == TD_LAW_VCP && s->cut_us && e->now_us - s->frozen_until_us < f->srtt_us))
		w->bytes += additive;
	else if (t->law == TD_LAW_VCP)
		w->bytes += acked / 16;
	else
		w->bytes += acked * td_min64(t->kappa_milli * (1000 - load) / load, 1000) / 1000;
}

TD_INLINE void td_mpcp(struct td_flow *f, struct td_mpcp_state *s, struct td_link *l, const struct td_event *e,
		       const struct td_mpcp_tunables *t)
{
	if (e->kind == TD_INIT) {
		td_window_init(f, &s->window);
		s->frozen_until_us = s->cut_us = 0;
	}
	if (!l || !l->capacity) {
		td_window_newreno(f, &s->window, e);
		return;
	}
	if (e->kind == TD_ACK)
		td_mpcp_ack(f, s, l, e, t);
	else if (e->kind == TD_RESTART)
		td_window_after_idle(f, &s->window);
	td_window_apply(f, &s->window, t->least_window, t->pacing_percent);
}

#endif
