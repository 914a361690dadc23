/*
 * Load-factor control at the proxy: VCP (Xia, Subramanian, Stoica, Kalyanaraman, SIGCOMM 2005), and
 * MPCP at a proxy as in Li and Yousefi'zadeh (RAPPEP §III): the load factor is known exactly, since
 * the sender is the router.
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
 * MPCP's mapping of load levels to increases is not in the publications available; `mlcp` has the
 * form of MLCP (Qazi and Znati, Infocom 2008), on which MPCP builds. Whether the increases depend
 * on the RTT R is a tunable, since the publications leave it open: by default they do not, as all
 * flows share one hop (RAPPEP §III). With `rtt_scaling` they are as end to end (VCP §4.3, and the
 * simulator's mpcp-e2e):
 *
 *   MI per acknowledged segment: (1 + xi)^(R / t_rho) - 1 for an unscaled xi, at most 1; VCP's laws take
 *                                R / t_rho as at most 2.5
 *   AI: alpha times (R / 100 ms) min(max(R / 100 ms, 0.2), 5), which is 40 at 800 ms
 *
 * Losses do not change the window. Only window-limited flows grow. Paced as in xcp.h.
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
	T(law, 0, 0, 2, "0: mlcp, 1: vcp, 2: vcp-exact")                                              \
	T(interval_us, 200000, 1000, 10000000, "t_rho, over which the load is measured")                        \
	T(target_milli, 980, 100, 2000, "gamma_l, the target utilization, thousandths") \
	T(queue_milli, 500, 0, 10000, "kappa_q, the fraction of the queue that counts as load, thousandths") \
	T(alpha_milli, 1000, 0, 1000000, "alpha of AI, thousandths of a segment per round trip")    \
	T(rtt_scaling, 0, 0, 1, "1: the increases grow with the RTT, as end to end")             \
	T(kappa_milli, 350, 0, 10000, "kappa of mlcp's MI, thousandths")                                  \
	T(least_window, 2, 1, 1000, "smallest window, segments")                                                          \
	T(pacing_percent, 125, 0, 1000, "pacing rate, percent of a window per round trip; 0: none")
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

/* AI: segments per round trip, thousandths; at most 2^27. */
TD_INLINE u64 td_mpcp_alpha(const struct td_flow *f, const struct td_mpcp_tunables *t)
{
	/* R / 100 ms, thousandths */
	u64 ratio = f->srtt_us / 100;

	if (!t->rtt_scaling)
		return t->alpha_milli;
	return td_min64(ratio * td_min64(td_max64(ratio, 200), 5000) / 1000 * t->alpha_milli / 1000, 1 << 27);
}

/*
 * (1 + xi)^r - 1, at most 1; xi at most 1 and the result in 2^-16, r in 2^-8. The binary logarithm
 * by repeated squaring, the power by the series of e^z; in 2^-30, with an error below 2^-15 for r
 * up to 16. The loops have no branches: the verifier would follow every combination of them.
 */
TD_INLINE u64 td_compound(u64 xi, u64 r)
{
	u64 y = (65536 + td_min64(xi, 65536)) << 14, digit = y >> 31, log = digit, power = 0, z;
	u32 place, term;

	y >>= digit;
	for (place = 20; place; place--) {
		y = y * y >> 30;
		digit = y >> 31;
		y >>= digit;
		log = log << 1 | digit;
	}
	z = log * td_min64(r, 1 << 20) >> 8;
	if (z >> 20)
		return 65536;
	/* z ln 2, 2^-30 */
	z = z * 744261118 >> 20;
	for (term = 8; term; term--)
		power = (z + (z * power >> 30)) / term;
	return power >> 14;
}

/* MI: the increase per acknowledged byte of an increase of xi per t_rho, both 2^-16. */
TD_INLINE u64 td_mpcp_scaled(const struct td_flow *f, u64 xi, u32 most_r, const struct td_mpcp_tunables *t)
{
	u64 r = ((u64)f->srtt_us << 8) / td_max(t->interval_us, 1000);

	return td_compound(xi, td_min64(r, most_r));
}

/* VCP's largest R / t_rho, and none for MLCP; 2^-8. */
#define TD_VCP_MOST_R 640
#define TD_MLCP_MOST_R (1 << 20)

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
	/* At most 2^36 * 2^27. */
	additive = td_min64(td_min64(acked, 1ULL << 40) * f->mss / td_max64(w->bytes >> 8, 1), 1ULL << 36) * td_mpcp_alpha(f, t) / 1000;
	if (t->law == TD_LAW_VCP_EXACT) {
		u64 step = load <= 800 ? 62 : 250 * td_sub_sat(1000, load) / load;

		rest = td_min64(load > 1000 ? acked * (250 * (load - 1000) / load) / 1000 : 0, w->bytes / 2);
		w->bytes -= rest;
		if (limited && t->rtt_scaling)
			w->bytes += (acked * td_mpcp_scaled(f, step * 65536 / 1000, TD_VCP_MOST_R, t) >> 16) + additive;
		else if (limited)
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
	else if (t->rtt_scaling && t->law == TD_LAW_VCP)
		w->bytes += acked * td_mpcp_scaled(f, 65536 / 16, TD_VCP_MOST_R, t) >> 16;
	else if (t->rtt_scaling)
		w->bytes += acked * td_mpcp_scaled(f, t->kappa_milli * (1000 - load) * 65536 / (load * 1000), TD_MLCP_MOST_R, t) >> 16;
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
