/*
 * The capacity of a bottleneck, estimated from all flows of a link together, where none is configured.
 * Its rate may vary, as that of a cellular link does. share divides the estimate among the flows at once,
 * so no flow probes for itself.
 *
 * All flows together have a window of C (base + T): the estimate C times the base RTT and a target T of the
 * queueing delay. The window, not the pacing rate, limits them: when the link fades, ACKs get rare, and
 * nothing is added to the queue. At the end of each interval (a quarter of the base RTT, 10 to 100 ms), mu is
 * the delivery rate of all flows, smoothed over a base RTT and at least 200 ms, and q the least queueing delay
 * of any packet in the interval.
 *
 *   queue     q >= T/4: the link is busy, so mu is its rate. C = mu (1 + (T - q)/(base + q)), within 1/2 and 5/4
 *             of mu, and a quarter of a packet per flow and round trip more, so that senders with estimates of
 *             their own converge to equal rates.
 *   no queue  The link may carry any amount more. C grows by a quarter per base RTT, then by a half, then it
 *             doubles; at most to twice what was delivered in the last round trips.
 *   target    T = floor + 0.8 s (idle - 2 (loss - 3 %)). The larger the fraction of the last 8 s without a queue,
 *             the longer the queue has to be, since what a varying link offers to an empty queue is lost.
 *             Loss beyond 3 % comes from a queue that overflows. At a constant rate T falls to the floor.
 *   base RTT  The minimum of each flow. If the queue was never empty in 10 s, the windows shrink for a round
 *             trip by twice the queue. The least RTT of those 10 s is then the new base RTT.
 *
 * Losses change nothing else. Neither does an outage: without ACKs an interval does not end, and it counts as
 * two intervals at most.
 *
 * A window of rate times (base + T) is that of FAST TCP (Wei, Jin, Low and Hegde 2006).
 */
#ifndef TD_ESTIMATE_H
#define TD_ESTIMATE_H
#include "window.h"

#define TD_ESTIMATE_ONE 65536U
#define TD_ESTIMATE_NO_DELAY 0xffffffffU
#ifndef TD_ESTIMATE_SMOOTH_US
/* Least time over which the delivery rate is smoothed. */
#define TD_ESTIMATE_SMOOTH_US 200000
/* Time over which an empty queue and losses are remembered. */
#define TD_ESTIMATE_MEMORY_US 8000000
/* Target of the queueing delay for a queue that is always empty. */
#define TD_ESTIMATE_RANGE_US 800000
/* Loss that says nothing about the queue, 2^-16; how many times the rest counts. */
#define TD_ESTIMATE_LINK_LOSS (TD_ESTIMATE_ONE * 3 / 100)
#define TD_ESTIMATE_LOSS_WEIGHT 2
/* Time after which the base RTT has to be seen again. */
#define TD_ESTIMATE_BASE_US 10000000
/* Growth per base RTT without a queue, 1/1024: at first, and at most. */
#define TD_ESTIMATE_GROWTH 256
#define TD_ESTIMATE_MOST_GROWTH 1024
/* Correction by the queue, 1/1024, and its bounds. */
#define TD_ESTIMATE_GAIN 1024
#define TD_ESTIMATE_LOWER 512
#define TD_ESTIMATE_RAISE 256
#define TD_ESTIMATE_START_IDLE (TD_ESTIMATE_ONE / 20)
#define TD_ESTIMATE_FLOOR_US 5000
#define TD_ESTIMATE_MOST_TARGET_US 500000
#define TD_ESTIMATE_ADD 4
#define TD_ESTIMATE_GROWTH_US 0
#define TD_ESTIMATE_MOST 1024
#define TD_ESTIMATE_MEAN 0
#define TD_ESTIMATE_MEAN_US 5000000
#define TD_ESTIMATE_RANGE_BASE 0
#define TD_ESTIMATE_EARLY_US 1000000
#endif

TD_INLINE struct td_estimate *td_estimate_of(struct td_link *l)
{
	return &l->estimate;
}

/* Whether the capacity of a link is estimated. */
TD_INLINE int td_is_estimated(const struct td_link *l)
{
	return l->estimate.enabled;
}

/* Time that a packet takes at the estimated capacity, us. */
TD_INLINE u64 td_estimate_packet_us(const struct td_flow *f, const struct td_link *l)
{
	return td_min64(td_div((u64)(f->mss + f->header + l->overhead) * 1000000, l->capacity), 1000000);
}

/* Delay up to which the queue counts as empty, us: 2 ms of noise, and a packet that is being sent. */
TD_INLINE u64 td_estimate_empty_us(const struct td_flow *f, const struct td_link *l)
{
	return 2000 + td_estimate_packet_us(f, l);
}

/* Sets the target of the queueing delay. */
TD_INLINE void td_estimate_set_target(const struct td_flow *f, struct td_link *l)
{
	struct td_estimate *s = td_estimate_of(l);
	u64 floor = td_max64(td_max(s->base_us / 32, TD_ESTIMATE_FLOOR_US), 2 * td_estimate_packet_us(f, l));
	u64 loss = td_div(s->recent_lost * TD_ESTIMATE_ONE, s->recent_lost + s->recent_delivered);
	u64 wanted = td_sub_sat(s->idle, TD_ESTIMATE_LOSS_WEIGHT * td_sub_sat(loss, TD_ESTIMATE_LINK_LOSS));

	s->target_us = td_min64(floor + (wanted * (TD_ESTIMATE_RANGE_US + TD_ESTIMATE_RANGE_BASE * s->base_us / 1024) >> 16), td_max64(floor, TD_ESTIMATE_MOST_TARGET_US));
}

/* Takes the bytes of an interval into the smoothed rate, its recent maximum, and the recent loss. */
TD_INLINE void td_estimate_take_rate(struct td_estimate *s, u64 now_us, u64 span, u64 counted)
{
	u64 rate = s->delivered * 1000000 / span, smooth = td_max(s->base_us, TD_ESTIMATE_SMOOTH_US);
	u64 part = td_min64((counted << 16) / smooth, TD_ESTIMATE_ONE), decay = td_min64((counted << 16) / TD_ESTIMATE_MEMORY_US, TD_ESTIMATE_ONE);

	if (rate >= s->rate)
		s->rate += (rate - s->rate) * part >> 16;
	else
		s->rate -= (s->rate - rate) * part >> 16;
	part = td_min64((counted << 16) / TD_ESTIMATE_MEAN_US, TD_ESTIMATE_ONE);
	if (rate >= s->mean)
		s->mean += (rate - s->mean) * part >> 16;
	else
		s->mean -= (s->mean - rate) * part >> 16;
	if (now_us - s->peak_since_us >= s->base_us * 3ULL / 2) {
		s->last_peak = s->peak;
		s->peak = 0;
		s->peak_since_us = now_us;
	}
	s->peak = td_max64(s->peak, s->rate);
	s->recent_delivered += s->delivered - (s->recent_delivered * decay >> 16);
	s->recent_lost += s->lost - (s->recent_lost * decay >> 16);
}

/* The capacity, from the queueing delay of an interval, us. */
TD_INLINE void td_estimate_set_capacity(const struct td_flow *f, struct td_link *l, u64 delay, u64 span)
{
	struct td_estimate *s = td_estimate_of(l);
	u64 base = td_max(s->base_us, 1000), target = s->target_us, most = td_max64(s->peak, s->last_peak), step;

	if (delay >= td_max64(target / 4, td_estimate_empty_us(f, l))) {
		s->queued = 1;
		s->growth = TD_ESTIMATE_GROWTH;
		step = s->rate / 1024 * TD_ESTIMATE_GAIN;
		if (delay < target)
			l->capacity = s->rate + td_min64(step * (target - delay) / (base + delay), s->rate * TD_ESTIMATE_RAISE / 1024);
		else
			l->capacity = s->rate - td_min64(step * (delay - target) / (base + delay), s->rate * TD_ESTIMATE_LOWER / 1024);
		l->capacity += (u64)l->share.flows * (f->mss + f->header + l->overhead) * 1000000 / (base + delay) / TD_ESTIMATE_ADD;
	} else if (l->share.weight) {
		base = s->queued ? td_max64(base, TD_ESTIMATE_GROWTH_US) : base;
		most += s->queued ? most * TD_ESTIMATE_MOST / 1024 : most;
		l->capacity = td_min64(l->capacity + l->capacity * s->growth / 1024 * span / base, most);
		if (s->queued)
			l->capacity = td_max64(l->capacity, s->mean * TD_ESTIMATE_MEAN / 1024);
		s->growth = td_min64(s->growth + s->growth * span / base, TD_ESTIMATE_MOST_GROWTH);
	}
	l->capacity = td_max64(l->capacity, f->mss + f->header + l->overhead);
}

/*
 * Sees to it that the queue is empty once in a while. If it is not in spite of that, the base RTT has grown:
 * then the flows renew theirs.
 */
TD_INLINE void td_estimate_check_base(const struct td_flow *f, struct td_link *l, u64 now_us, u64 delay)
{
	struct td_estimate *s = td_estimate_of(l);
	u64 since = td_sub_sat(now_us, s->base_since_us);
	/* Less and less is delivered, and yet the queue stays. */
	int sinks = delay > s->target_us && s->rate < s->mean / 2 && since >= TD_ESTIMATE_EARLY_US;

	if (delay <= td_estimate_empty_us(f, l))
		s->empty = 1;
	if (s->drain_until_us) {
		if (!s->empty && now_us < s->drain_until_us)
			return;
		s->base_period += s->empty ? -1 : 1;
		s->drain_until_us = 0;
	} else if (since < TD_ESTIMATE_BASE_US && !sinks) {
		return;
	} else if (sinks || !s->empty) {
		s->empty = 0;
		s->drained_us = delay;
		s->drain_until_us = now_us + 2 * (s->base_us + delay);
		s->base_period++;
		return;
	}
	s->empty = 0;
	s->base_since_us = now_us;
}

/* The base RTT of a flow, with a new sample: its minimum. After a drain that met no empty queue it is that of the drain. */
TD_INLINE void td_estimate_base(struct td_link *l, u32 rtt_us, u32 *base_us, u32 *drain_us, u32 *period)
{
	u32 now = td_estimate_of(l)->base_period;

	if (*period != now) {
		/* Odd periods are drains. */
		if (now & 1)
			*drain_us = rtt_us;
		else if (now == *period + 1)
			*base_us = *drain_us;
		*period = now;
	}
	*drain_us = td_min(*drain_us, rtt_us);
	*base_us = *base_us ? td_min(*base_us, rtt_us) : rtt_us;
}

TD_INLINE void td_estimate_end_interval(const struct td_flow *f, struct td_link *l, u64 now_us, u64 interval)
{
	struct td_estimate *s = td_estimate_of(l);
	u64 span = now_us - s->since_us, counted = td_min64(span, 2 * interval), delay = s->min_delay_us;
	u64 decay = (counted << 16) / TD_ESTIMATE_MEMORY_US;

	s->base_us = s->next_base_us ? s->next_base_us : s->base_us;
	td_estimate_take_rate(s, now_us, span, counted);
	td_step_ends();
	if (delay != TD_ESTIMATE_NO_DELAY) {
		if (s->queued && l->share.weight) {
			s->idle -= s->idle * decay >> 16;
			if (delay <= td_estimate_empty_us(f, l))
				s->idle += decay;
		}
		td_estimate_set_target(f, l);
		if (!s->drain_until_us)
			td_estimate_set_capacity(f, l, delay, counted);
		td_estimate_check_base(f, l, now_us, delay);
	}
	s->since_us = now_us;
	s->delivered = s->lost = 0;
	s->min_delay_us = TD_ESTIMATE_NO_DELAY;
	s->next_base_us = 0;
}

/* Before the first ACK, and after a long silence, the estimate is an initial window per round trip. */
TD_INLINE void td_estimate_begin(const struct td_flow *f, struct td_link *l, u64 now_us)
{
	struct td_estimate *s = td_estimate_of(l);

	l->capacity = td_max64((u64)td_max(f->cwnd, 1) * (f->mss + f->header + l->overhead) * 1000000 / f->srtt_us, 1);
	s->rate = s->mean = s->peak = s->last_peak = l->capacity;
	s->since_us = s->peak_since_us = s->base_since_us = now_us;
	s->base_us = f->srtt_us;
	s->min_delay_us = TD_ESTIMATE_NO_DELAY;
	s->growth = TD_ESTIMATE_MOST_GROWTH;
	s->idle = TD_ESTIMATE_START_IDLE;
	s->queued = s->empty = s->drained_us = s->next_base_us = 0;
	s->delivered = s->lost = s->recent_delivered = s->recent_lost = s->drain_until_us = 0;
	td_estimate_set_target(f, l);
}

/* An ACK of a flow with this base RTT. `delay_us` is its queueing delay, or TD_ESTIMATE_NO_DELAY. */
TD_INLINE void td_estimate_ack(const struct td_flow *f, struct td_link *l, const struct td_event *e, u32 base_us, u32 delay_us)
{
	struct td_estimate *s = td_estimate_of(l);
	u32 wire = f->mss + f->header + l->overhead;
	u64 interval;

	s->delivered += (u64)e->acked * wire;
	s->lost += (u64)e->lost * wire;
	s->min_delay_us = td_min(s->min_delay_us, delay_us);
	s->next_base_us = td_max(s->next_base_us, base_us);
	interval = td_max(td_min(s->base_us / 4, 100000), 10000);
	if (td_sub_sat(e->now_us, s->since_us) >= interval)
		td_estimate_end_interval(f, l, e->now_us, interval);
}

/* The window of a flow with a share of the capacity, as time at that rate, us. */
TD_INLINE u64 td_estimate_window_us(struct td_link *l, u32 base_us)
{
	const struct td_estimate *s = td_estimate_of(l);

	if (s->drain_until_us)
		return td_max64(td_sub_sat(base_us, s->drained_us), base_us / 2);
	return (u64)base_us + s->target_us;
}

/* Whether the estimate has to begin: there is none, or it is old. */
TD_INLINE int td_estimate_is_due(const struct td_flow *f, struct td_link *l, u64 now_us)
{
	return f->srtt_us && (!l->capacity || td_sub_sat(now_us, td_estimate_of(l)->since_us) > TD_ESTIMATE_BASE_US);
}

#endif
