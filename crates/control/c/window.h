/*
 * A window in fractional bytes, for controllers that own the window (TD_OWNS_WINDOW): they are called at
 * every ACK, in recovery too, and a loss changes nothing unless they change it.
 */
#ifndef TD_WINDOW_H
#define TD_WINDOW_H
#include "reno.h"

struct td_window {
	u64 bytes;	/* 1/256 */
	u32 flight;	/* maximum of segments in flight in this round trip */
	u32 last_flight; /* and in the last one */
	u32 round_end;
	u32 credit;	/* of NewReno, while the capacity is unknown */
};

TD_INLINE void td_window_init(struct td_flow *f, struct td_window *w)
{
	w->bytes = (u64)f->cwnd * f->mss << 8;
	w->flight = w->last_flight = w->credit = 0;
	w->round_end = f->nxt;
}

/* Sets cwnd from the window: at least `least` segments, paced at `percent` of a window per round trip (0: not paced). */
TD_INLINE void td_window_apply(struct td_flow *f, struct td_window *w, u32 least, u32 percent)
{
	u32 mss = td_max(f->mss, 1);

	w->bytes = td_max64(w->bytes, (u64)td_max(least, 1) * mss << 8);
	f->cwnd = td_min64((w->bytes >> 8) / mss, TD_INFINITE);
	/* No slow start: the controller sets the window itself. */
	f->ssthresh = f->cwnd;
	f->pacing_rate = f->srtt_us && percent ? (w->bytes >> 8) * percent * 10000 / f->srtt_us : 0;
}

TD_INLINE void td_window_track_flight(const struct td_flow *f, struct td_window *w)
{
	if (td_round_ended(f, &w->round_end)) {
		w->last_flight = w->flight;
		w->flight = 0;
	}
	w->flight = td_max(w->flight, f->in_flight);
}

/* After idle time the window is limited to twice what was recently in flight and an initial window: no burst. */
TD_INLINE void td_window_after_idle(const struct td_flow *f, struct td_window *w)
{
	u64 most = (u64)(2 * td_max(w->flight, w->last_flight) + 10) * f->mss << 8;

	w->bytes = td_min64(w->bytes, most);
}

/* Fallback while the capacity is unknown: NewReno, which reduces cwnd at once, as PRR does not apply here. */
TD_INLINE void td_window_newreno(struct td_flow *f, struct td_window *w, const struct td_event *e)
{
	switch (e->kind) {
	case TD_ACK:
		td_reno_ack(f, &w->credit, e);
		break;
	case TD_LOSS:
		f->ssthresh = td_max(f->cwnd / 2, 2);
		f->cwnd = f->ssthresh;
		break;
	case TD_TIMEOUT:
		f->ssthresh = td_max(f->cwnd / 2, 2);
		break;
	case TD_UNDO:
		td_undo_reduction(f);
		break;
	}
	w->bytes = (u64)f->cwnd * f->mss << 8;
	f->pacing_rate = f->srtt_us ? (u64)f->cwnd * f->mss * (f->cwnd < f->ssthresh ? 2000000 : 1200000) / f->srtt_us : 0;
}

#endif
