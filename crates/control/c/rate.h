/*
 * Delivery rates and gains, for controllers that want rate samples.
 *
 * A rate is in 2^-24 segments per microsecond, as in Linux: exact from 1 kbit/s to Tbit/s in 64
 * bits. A gain is in 1/256.
 */
#ifndef TD_RATE_H
#define TD_RATE_H
#include "intf.h"

#define TD_RATE_SHIFT 24
#define TD_GAIN 256
/* The segments that are sent without an estimate: RFC 6928. */
#define TD_INITIAL_WINDOW 10
/* Pacing that loses nothing for want of data in lower layers: 2^-10 s of it, at most 64 kB. */
#define TD_QUANTUM_SHIFT 10
#define TD_QUANTUM_BYTES 65535U

/* The rate of `segments` in `us` microseconds; below 2^32 if it is below 256 segments per microsecond. */
TD_INLINE u64 td_rate(u32 segments, u64 us)
{
	return td_div((u64)segments << TD_RATE_SHIFT, us);
}

/* Segments at a rate in `us` microseconds, rounded down. */
TD_INLINE u64 td_rate_times(u64 rate, u64 us)
{
	return rate * us >> TD_RATE_SHIFT;
}

/* Payload bytes/s of a gain over a rate, less `margin` percent. */
TD_INLINE u64 td_rate_bytes(const struct td_flow *f, u64 rate, u32 gain, u32 margin)
{
	return ((rate * f->mss * gain >> 8) * (10000 * (100 - margin))) >> TD_RATE_SHIFT;
}

/* A gain over the segments of a rate in `us` microseconds, rounded up. */
TD_INLINE u32 td_rate_window(u64 rate, u64 us, u32 gain)
{
	u64 window = (rate * us * gain >> 8) + (1ULL << TD_RATE_SHIFT) - 1;

	return td_min64(window >> TD_RATE_SHIFT, TD_INFINITE);
}

/* Segments that the sender passes down in one piece (TSO) at the current pacing rate: `least` or more. */
TD_INLINE u32 td_quantum(const struct td_flow *f, u32 least)
{
	u64 bytes = td_min64(f->pacing_rate >> TD_QUANTUM_SHIFT, TD_QUANTUM_BYTES);

	return td_max64(bytes / td_max(f->mss, 1), least);
}

/* A windowed maximum: the three best samples of three parts of the window (Kathleen Nichols). */
struct td_maximum {
	struct {
		u32 at, value;
	} best[3];
};

TD_INLINE void td_maximum_reset(struct td_maximum *m, u32 at, u32 value)
{
	m->best[0].at = m->best[1].at = m->best[2].at = at;
	m->best[0].value = m->best[1].value = m->best[2].value = value;
}

/* Takes a sample at time `at`; the maximum is that of the last `length` units of time. */
TD_INLINE void td_maximum_update(struct td_maximum *m, u32 length, u32 at, u32 value)
{
	u32 age;

	if (value >= m->best[0].value || at - m->best[2].at > length) {
		td_maximum_reset(m, at, value);
		return;
	}
	if (value >= m->best[1].value) {
		m->best[1].at = m->best[2].at = at;
		m->best[1].value = m->best[2].value = value;
	} else if (value >= m->best[2].value) {
		m->best[2].at = at;
		m->best[2].value = value;
	}
	age = at - m->best[0].at;
	if (age > length) {
		/* The best has expired: the next best follows, which may have expired too. */
		m->best[0] = m->best[1];
		m->best[1] = m->best[2];
		m->best[2].at = at;
		m->best[2].value = value;
		if (at - m->best[0].at > length) {
			m->best[0] = m->best[1];
			m->best[1] = m->best[2];
		}
	} else if (m->best[1].at == m->best[0].at && age > length / 4) {
		/* A quarter of the window has no second best: this is it. */
		m->best[1].at = m->best[2].at = at;
		m->best[1].value = m->best[2].value = value;
	} else if (m->best[2].at == m->best[1].at && age > length / 2) {
		m->best[2].at = at;
		m->best[2].value = value;
	}
}

#endif
