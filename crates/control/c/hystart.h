/*
 * HyStart++ (RFC 9406): leaves slow start when the RTT of a round rises, before the queue overflows. A
 * rise first slows growth down (conservative slow start, CSS). If it persists, slow start ends; otherwise
 * slow start resumes.
 *
 * L, the limit on growth by one ACK (§4.2), is infinite, as in Linux: hosts acknowledge many segments at
 * once.
 */
#ifndef TD_HYSTART_H
#define TD_HYSTART_H
#include "reno.h"

struct td_hystart {
	u32 round_end;		/* windowEnd */
	u32 last_min_us;	/* lastRoundMinRTT; 0: infinite */
	u32 min_us;		/* currentRoundMinRTT; 0: infinite */
	u32 samples;		/* rttSampleCount */
	u32 baseline_us;	/* cssBaselineMinRtt; 0: not in CSS */
	u32 css_rounds;
};

/* RFC 9406 §4.3 */
#define TD_HYSTART_MIN_THRESH_US 4000
#define TD_HYSTART_MAX_THRESH_US 16000
#define TD_HYSTART_DIVISOR 8
#define TD_HYSTART_SAMPLES 8
#define TD_HYSTART_CSS_DIVISOR 4
#define TD_HYSTART_CSS_ROUNDS 5

TD_INLINE void td_hystart_reset(struct td_hystart *h, const struct td_flow *f)
{
	h->round_end = f->nxt;
	h->last_min_us = h->min_us = h->samples = h->baseline_us = h->css_rounds = 0;
}

TD_INLINE void td_hystart_sample(struct td_hystart *h, struct td_flow *f, u32 rtt_us)
{
	if (f->cwnd >= f->ssthresh)
		return;
	if (td_round_ended(f, &h->round_end)) {
		h->last_min_us = h->min_us;
		h->min_us = h->samples = 0;
		if (h->baseline_us && ++h->css_rounds >= TD_HYSTART_CSS_ROUNDS) {
			f->ssthresh = f->cwnd;
			return;
		}
	}
	if (!rtt_us)
		return;
	h->min_us = h->min_us ? td_min(h->min_us, rtt_us) : rtt_us;
	if (++h->samples < TD_HYSTART_SAMPLES || !h->last_min_us)
		return;
	if (h->baseline_us) {
		if (h->min_us < h->baseline_us)
			h->baseline_us = h->css_rounds = 0;
		return;
	}
	u32 thresh = td_max(TD_HYSTART_MIN_THRESH_US, td_min(h->last_min_us / TD_HYSTART_DIVISOR, TD_HYSTART_MAX_THRESH_US));

	if (h->min_us >= h->last_min_us + thresh)
		h->baseline_us = h->min_us;
}

/* Growth by one ACK in slow start; returns the acknowledged segments that are left for congestion avoidance. */
TD_INLINE u32 td_hystart_grow(const struct td_hystart *h, struct td_flow *f, u32 *credit, u32 acked)
{
	if (!h->baseline_us)
		return td_slow_start(f, acked);
	td_grow(f, credit, TD_HYSTART_CSS_DIVISOR, acked);
	return 0;
}

#endif
