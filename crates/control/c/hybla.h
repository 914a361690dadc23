/*
 * TCP Hybla: Caini and Firrincieli, International Journal of Satellite Communications and
 * Networking 22 (2004), 547-566. A flow with a long RTT grows like one with the reference RTT_0.
 *
 *   rho = max(RTT / RTT_0, 1)
 *   slow start            cwnd += 2^rho - 1     for each acknowledged segment
 *   congestion avoidance  cwnd += rho^2 / cwnd  for each acknowledged segment
 *   initial window        cwnd = rho * the usual one; loss as in NewReno
 *
 * Growth is per acknowledged segment, as in the paper. In Linux it is per ACK, and so slower with
 * delayed or stretched ACKs: `per_ack` does that. RTT is the minimum of the smoothed RTT, as in
 * Linux: queueing must not cause growth.
 *
 * 2^rho is limited to 2^max_doublings. At 800 ms rho is 32, and the paper's rule would grow by 4
 * billion segments at the first ACK. The window then grows by a factor of 2^max_doublings per round
 * trip. The paper requires pacing, since a window that opens at once is a burst; TCP's own pacing
 * (fq, or the socket's) does that.
 *
 * Linux 3.4 limits rho to 16 in this power. Up to 2.6.32 at least, and so in 2006, Linux computed
 * ((1 << rho) 2^frac - 1) in 32 bits, in 1/128 and with the fraction in eighths: `shift32` does
 * that, as on x86, where the shift count is taken modulo 32. From rho = 25 (625 ms) on the product
 * overflows: at 25 to 31 the window opens to Linux's limit of 65535 segments at the first ACK or
 * grows by a remainder; at 32 and little more it does not grow at all before the first loss.
 */
#ifndef TD_HYBLA_H
#define TD_HYBLA_H
#include "reno.h"

struct td_hybla_state {
	u32 min_srtt_us; /* minimum smoothed RTT; 0: none */
	u32 rho;	/* 1/256 */
	u32 doubled;	/* 2^rho, 1/128 */
	u32 credit;	/* growth of less than a segment, 2^-24 */
};
#define td_hybla_WANTS 0
#define td_hybla_TUNABLES(T)                                                                    \
	T(rtt0_us, 25000, 1000, 1000000, "RTT_0, the reference RTT: the flow grows like one with it")                  \
	T(max_doublings, 4, 1, 16, "slow start multiplies the window by at most 2 to this, each round trip")  \
	T(max_initial, 64, 1, 65535, "largest initial window, segments")                            \
	T(per_ack, 0, 0, 1, "1: growth is per ACK rather than per acknowledged segment, as in Linux")   \
	T(shift32, 0, 0, 1, "1: 2^rho overflows 32 bits, as in Linux 2.6.32; max_doublings has no effect")
TD_CONTROLLER(hybla);

/* 2^(x/256) in 1/128, with an integer part of at most 24: the product of 2^(1/2), 2^(1/4), ... for the bits of the fraction. */
TD_INLINE u32 td_exp2(u32 x)
{
	/* 2^(2^-n) in 1/2^16, n = 1 .. 8 */
	u64 y = 1ULL << 16;

	if (x & 128) y = y * 92682 >> 16;
	if (x & 64) y = y * 77936 >> 16;
	if (x & 32) y = y * 71468 >> 16;
	if (x & 16) y = y * 68438 >> 16;
	if (x & 8) y = y * 66971 >> 16;
	if (x & 4) y = y * 66250 >> 16;
	if (x & 2) y = y * 65892 >> 16;
	if (x & 1) y = y * 65714 >> 16;
	return (y << td_min(x >> 8, 24)) >> 9;
}

/* 2^rho in 1/128 as Linux 2.6.32 computed it on x86; rho in 1/256. */
TD_INLINE u32 td_hybla_shift32(u32 rho)
{
	/* 2^(n/8) in 1/128; constants instead of a table, which BPF would put into a map */
	u32 eighths = rho >> 5 & 7;
	u32 fraction = eighths < 4 ? (eighths < 2 ? (eighths ? 139 : 128) : (eighths == 2 ? 152 : 165))
				   : (eighths < 6 ? (eighths == 4 ? 181 : 197) : (eighths == 6 ? 215 : 234));

	return (1U << (rho >> 8 & 31)) * fraction;
}

TD_INLINE void td_hybla_update_rho(struct td_flow *f, struct td_hybla_state *s, const struct td_hybla_tunables *t)
{
	if (!f->srtt_us || (s->min_srtt_us && f->srtt_us >= s->min_srtt_us))
		return;
	s->min_srtt_us = f->srtt_us;
	/* rho^2 with 16 bits of fraction must fit into 32 bits: 255 RTT_0 are six seconds. */
	s->rho = td_min64(td_max64(td_div((u64)f->srtt_us << 8, t->rtt0_us), 256), 255 << 8);
	s->doubled = t->shift32 ? td_hybla_shift32(s->rho) : td_exp2(td_min(s->rho, td_min(t->max_doublings, 16) << 8));
}

/* The largest window that Linux's Hybla sets (snd_cwnd_clamp in hybla_init), segments. */
#define TD_HYBLA_CLAMP 65535

TD_INLINE void td_hybla_ack(struct td_flow *f, struct td_hybla_state *s, const struct td_event *e, const struct td_hybla_tunables *t)
{
	u32 acked = t->per_ack ? td_min(e->acked, 1) : e->acked, most = t->shift32 ? TD_HYBLA_CLAMP : TD_INFINITE;
	u64 growth;

	if (!(e->flags & TD_CWND_LIMITED))
		return;
	if (f->cwnd < f->ssthresh) {
		u64 room = f->ssthresh - f->cwnd;

		growth = ((u64)(u32)(s->doubled - 128) * acked << 17) + s->credit;
		if (growth >> 24 >= room) {
			f->cwnd = td_min(f->ssthresh, most);
			s->credit = 0;
			return;
		}
	} else {
		growth = ((u64)s->rho * s->rho * acked << 8) / td_max(f->cwnd, 1) + s->credit;
	}
	f->cwnd = td_min64(f->cwnd + (growth >> 24), most);
	s->credit = growth & 0xffffff;
}

TD_INLINE void td_hybla(struct td_flow *f, struct td_hybla_state *s, struct td_link *l, const struct td_event *e,
			const struct td_hybla_tunables *t)
{
	(void)l;
	switch (e->kind) {
	case TD_INIT:
		s->min_srtt_us = s->credit = 0;
		s->rho = 256;
		s->doubled = 256;
		td_hybla_update_rho(f, s, t);
		f->cwnd = td_max(f->cwnd, td_min(s->rho >> 8, t->max_initial));
		break;
	case TD_ACK:
		td_hybla_update_rho(f, s, t);
		td_hybla_ack(f, s, e, t);
		break;
	case TD_LOSS:
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
