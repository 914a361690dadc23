/*
 * Load-factor control at the proxy: VCP (Xia, Subramanian, Stoica, Kalyanaraman, SIGCOMM 2005), and MPCP as Li and Yousefi'zadeh
 * put it into a proxy (RAPPEP §III): the load factor is known exactly, since the sender is the router.
 *
 *   every t_rho:  sigma = (bytes that left + kappa_q Q) / (gamma_l C t)        VCP (1), with output in place of input
 *
 * Three laws, chosen by `law`, for an ACK of a bytes:
 *   0 mlcp       sigma < 0.8: cwnd += a min(1, kappa (1 - sigma) / sigma), kappa = 0.35     MI
 *                sigma < 1:   cwnd += alpha mss a / cwnd                                    AI
 *                else:        once in max(RTT, t_rho): cwnd *= 0.9375 at 1.00, falling to 0.875 at 1.03; then still for t_rho   MD
 *   1 vcp        the same regions with xi = 0.0625 in MI and 0.875 in MD, and AI only for a round trip after MD
 *   2 vcp-exact  cwnd += a m + alpha mss a / cwnd, m = 0.0625 up to sigma = 0.8, then 0.25 (1 / sigma - 1)
 *
 * The map of MPCP's levels to increases was not published in what could be read; `mlcp` has the form of MLCP (Qazi and
 * Znati, Infocom 2008), on which it builds, so this is its idea and not its table. RTTs do not scale the steps, since
 * all flows cross one hop (RAPPEP §III). A loss changes nothing. Only flows that use their window grow. Paced as xcp.h.
 */
#ifndef TD_MPCP_H
#define TD_MPCP_H
#include "window.h"

struct td_mpcp_state {
	struct td_window window;
	u64 still_us;	/* until then nothing changes */
	u64 cut_us;	/* the last reduction */
};
#define td_mpcp_WANTS TD_WANTS_RESTART
#define td_mpcp_TUNABLES(T)                                                                     \
	T(law, 0, "0: mlcp, 1: vcp, 2: vcp-exact")                                              \
	T(interval_us, 200000, "t_rho, over which the load is measured")                        \
	T(target_milli, 980, "gamma_l, the share of the capacity that counts as full, thousandths") \
	T(queue_milli, 500, "kappa_q, the share of the queue that counts as load, thousandths") \
	T(kappa_milli, 350, "kappa of mlcp's MI, thousandths")                                  \
	T(least_window, 2, "segments")                                                          \
	T(pacing_percent, 125, "pace, percent of a window each round trip; 0: none")
TD_CONTROLLER(mpcp);

enum { TD_LAW_MLCP, TD_LAW_VCP, TD_LAW_VCP_EXACT };

TD_INLINE void td_mpcp_measure(struct td_link *l, const struct td_event *e, const struct td_mpcp_tunables *t)
{
	u64 span = td_less(e->now_us, l->mpcp.since_us), used, there;

	if (l->mpcp.since_us && l->egress >= l->mpcp.egress0) {
		if (span < td_max(t->interval_us, 1000))
			return;
		used = l->egress - l->mpcp.egress0 + l->queue * t->queue_milli / 1000;
		/* After a long silence the load of the silence says nothing: a whole part of it at most. */
		there = td_max64(l->capacity * t->target_milli / 1000 * span / 1000000, 1);
		l->mpcp.load_milli = td_max64(td_min64(used * 1000 / there, 10000), 10);
	}
	l->mpcp.since_us = e->now_us;
	l->mpcp.egress0 = l->egress;
}

/* What MD leaves at a load, 1/65536: 0.9375 at 1.00, 0.875 from 1.03 on. */
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
	int limited = e->flags & TD_LIMITED;

	td_window_watch(f, w);
	td_mpcp_measure(l, e, t);
	load = l->mpcp.load_milli;
	if (!load || !acked || e->now_us < s->still_us)
		return;
	/* alpha = 1 segment a round trip: 2^32 * 2^16 at most */
	additive = td_min64(acked, 1ULL << 40) * f->mss / td_max64(w->bytes >> 8, 1);
	if (t->law == TD_LAW_VCP_EXACT) {
		u64 step = load <= 800 ? 62 : 250 * td_less(1000, load) / load;

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
		s->still_us = e->now_us + t->interval_us;
		return;
	}
	if (!limited)
		return;
	/* VCP: after MD, AI for one round trip beyond the stillness. */
	if (load >= 800 || (t->law == TD_LAW_VCP && s->cut_us && e->now_us - s->still_us < f->srtt_us))
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
		td_window_begin(f, &s->window);
		s->still_us = s->cut_us = 0;
	}
	if (!l || !l->capacity) {
		td_window_unknown(f, &s->window, e);
		return;
	}
	if (e->kind == TD_ACK)
		td_mpcp_ack(f, s, l, e, t);
	else if (e->kind == TD_RESTART)
		td_window_restart(f, &s->window);
	td_window_apply(f, &s->window, t->least_window, t->pacing_percent);
}

#endif
