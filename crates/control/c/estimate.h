/*
 * The capacity of a bottleneck, estimated from all flows of a link together, where none is
 * configured. Its rate may vary, as that of a cellular link does. share divides the estimate
 * among the flows at once, so no flow probes for itself.
 *
 * All flows together have a window of C (base + T): the estimate C times the base RTT and a
 * target T of the queueing delay, as in FAST TCP (Wei, Jin, Low and Hegde 2006). The window, not
 * the pacing rate, limits them: when the link fades, ACKs get rare, and nothing is added to the
 * queue. At the end of each interval (a quarter of the base RTT, 10 to 100 ms), mu is the
 * delivery rate of all flows, smoothed over a base RTT and at least 300 ms, and q the least
 * queueing delay of any packet in the interval.
 *
 *   queue     q >= T/4: the link is busy, so mu is its rate. C = mu, and a quarter of a packet
 *             per flow and round trip more, so that senders with estimates of their own converge
 *             to equal rates.
 *             In slow start it has to stay for a round trip, of at most 300 ms.
 *   no queue  The link may carry any amount more. C grows by an eighth per base RTT, then by a
 *             quarter, and so on until it doubles; at most to 7/4 of what was delivered in the
 *             last round trips. It is at least the mean of mu over 5 s: a fade has probably
 *             ended. At the start each ACK adds what it acknowledges, as in slow start.
 *   target    T grows by a quarter of the time in which the queue is empty, since what a varying
 *             link offers to an empty queue is lost, and falls by a quarter of the fraction
 *             2 % + T / 4 s of all time: so the longer the queue, the more often it may be empty.
 *             It also falls by half of the loss beyond 3 %, which comes from a queue that
 *             overflows. At a constant rate T falls to the floor.
 *   base RTT  The minimum of each flow. If the queue was never empty in 10 s, or the rate sinks
 *             while the queue stays, the windows shrink for two round trips by twice the queue.
 *             If it stays even then, the path has become longer: the least RTT of that time is
 *             the new base RTT. A new flow cannot tell a queue from a long path. So its delays do
 *             not count until the queue was empty, and some time after its start the windows are
 *             halved for two round trips. The least RTT of that time is the base RTT of a flow.
 *
 * Losses change nothing else. Neither does an outage: without ACKs an interval does not end, and
 * it counts as two intervals at most.
 */
#ifndef TD_ESTIMATE_H
#define TD_ESTIMATE_H
#include "window.h"

#define TD_ESTIMATE_ONE 65536U
#define TD_ESTIMATE_NO_DELAY 0xffffffffU
/* Least time over which the delivery rate is smoothed, and the time of its mean. */
#define TD_ESTIMATE_SMOOTH_US 300000
#define TD_ESTIMATE_MEAN_US 5000000
/* Time over which losses are remembered. */
#define TD_ESTIMATE_MEMORY_US 8000000
/* Target of the queueing delay: at the start, and its bounds. */
#define TD_ESTIMATE_START_TARGET_US 50000
#define TD_ESTIMATE_FLOOR_US 5000
#define TD_ESTIMATE_MOST_TARGET_US 700000
/* The target grows by the time without a queue, divided by this. */
#define TD_ESTIMATE_TARGET_PART 4
/*
 * Fraction of time without a queue at which the target stays, 2^-16: this, and 1 more for each
 * TD_ESTIMATE_EMPTY_TARGET_US of the target.
 */
#define TD_ESTIMATE_EMPTY_FRACTION (TD_ESTIMATE_ONE / 50)
#define TD_ESTIMATE_EMPTY_TARGET_US 4000000
/* Loss that says nothing about the queue, 2^-16, and how many times the rest counts. */
#define TD_ESTIMATE_LINK_LOSS (TD_ESTIMATE_ONE * 3 / 100)
#define TD_ESTIMATE_LOSS_WEIGHT 2
/* How long it is known after the last ACK what the link carries. */
#define TD_ESTIMATE_KNOWN_US 600000000ULL
/* Time after which the queue has to be empty once, and least time between two drains. */
#define TD_ESTIMATE_BASE_US 10000000
#define TD_ESTIMATE_DRAIN_US 1000000
/* Intervals with an empty queue after which a flow is not new any more. */
#define TD_ESTIMATE_NEW_FOR 3
/* Growth per base RTT without a queue, 1/1024: at first, and at most. */
#define TD_ESTIMATE_GROWTH 128
#define TD_ESTIMATE_MOST_GROWTH 1024

TD_INLINE struct td_estimate *td_estimate_of(struct td_link *l)
{
	return &l->estimate;
}

/* Whether the capacity of a link is estimated. */
TD_INLINE int td_is_estimated(const struct td_link *l)
{
	return l->estimate.enabled != TD_ESTIMATE_OFF;
}

/* Time that a packet takes at the estimated capacity, us. */
TD_INLINE u64 td_estimate_packet_us(const struct td_flow *f, const struct td_link *l)
{
	return td_min64(td_div((u64)(f->mss + f->header + l->overhead) * 1000000, l->capacity), 1000000);
}

/*
 * Delay up to which the queue counts as empty, us: 2 ms of noise, and a packet that is being
 * sent.
 */
TD_INLINE u64 td_estimate_empty_us(const struct td_flow *f, const struct td_link *l)
{
	return 2000 + td_estimate_packet_us(f, l);
}

/* Moves the target of the queueing delay after an interval that counts as `span`, us. */
TD_INLINE void td_estimate_move_target(const struct td_flow *f, struct td_link *l, u64 span, int is_empty)
{
	struct td_estimate *s = td_estimate_of(l);
	u64 floor = td_max64(td_max(s->base_us / 32, TD_ESTIMATE_FLOOR_US), 2 * td_estimate_packet_us(f, l));
	u64 loss = td_div(s->recent_lost * TD_ESTIMATE_ONE, s->recent_lost + s->recent_delivered);
	u64 falls = TD_ESTIMATE_EMPTY_FRACTION + ((u64)s->target_us << 16) / TD_ESTIMATE_EMPTY_TARGET_US;
	u64 target = s->target_us + (is_empty ? span / TD_ESTIMATE_TARGET_PART : 0);

	falls += TD_ESTIMATE_LOSS_WEIGHT * td_sub_sat(loss, TD_ESTIMATE_LINK_LOSS);
	target = td_sub_sat(target, (span * falls >> 16) / TD_ESTIMATE_TARGET_PART);
	s->target_us = td_min64(td_max64(target, floor), td_max64(floor, TD_ESTIMATE_MOST_TARGET_US));
}

/* A mean over `time_us`, after `span` more of it at this rate. */
TD_INLINE u64 td_estimate_smooth(u64 mean, u64 rate, u64 span, u64 time_us)
{
	u64 part = td_min64((span << 16) / time_us, TD_ESTIMATE_ONE);

	return rate >= mean ? mean + ((rate - mean) * part >> 16) : mean - ((mean - rate) * part >> 16);
}

/*
 * Takes the bytes of an interval into the smoothed rates, their recent maximum, and the recent
 * loss.
 */
TD_INLINE void td_estimate_take_rate(struct td_estimate *s, u64 now_us, u64 span, u64 counted)
{
	u64 rate = s->delivered * 1000000 / span, decay = (counted << 16) / TD_ESTIMATE_MEMORY_US;

	/* At the start the rate doubles each round trip: a mean over one would be half of it. */
	s->rate = td_estimate_smooth(s->rate, rate, counted, td_max(s->queued ? s->base_us : s->base_us / 4, TD_ESTIMATE_SMOOTH_US));
	s->mean = td_estimate_smooth(s->mean, rate, counted, TD_ESTIMATE_MEAN_US);
	if (s->queued && td_sub_sat(now_us, s->peak_since_us) >= s->base_us * 3ULL / 2) {
		s->last_peak = s->peak;
		s->peak = 0;
		s->peak_since_us = now_us;
	}
	if (s->queued)
		s->peak = td_max64(s->peak, s->rate);
	s->recent_delivered += s->delivered - (s->recent_delivered * decay >> 16);
	s->recent_lost += s->lost - (s->recent_lost * decay >> 16);
}

/*
 * Called when there is a queue in slow start: whether slow start ends. The rate is then that of the
 * last round trip. On a path below 300 ms the queue has to stay for a round trip, since a burst of
 * initial windows causes one, too. All ACKs of that time come at the rate of the link.
 */
TD_INLINE int td_estimate_end_slow_start(struct td_estimate *s, u64 now_us)
{
	u64 rate = s->last_peak;

	if (s->base_us >= TD_ESTIMATE_SMOOTH_US) {
		rate = td_max64(s->peak, s->last_peak);
	} else if (!s->met) {
		s->met = 1;
		s->peak = s->last_peak = 0;
		s->peak_since_us = now_us;
		return 0;
	} else if (!s->last_peak) {
		return 0;
	}
	s->rate = s->mean = rate;
	s->queued = 1;
	return 1;
}

/* The capacity, from the queueing delay of an interval that counts as `span`, us. */
TD_INLINE void td_estimate_set_capacity(const struct td_flow *f, struct td_link *l, u64 now_us, u64 delay, u64 span)
{
	struct td_estimate *s = td_estimate_of(l);
	u64 base = td_max(s->base_us, 1000), packet = f->mss + f->header + l->overhead, peak = td_max64(s->peak, s->last_peak);

	if (delay >= td_max64(s->target_us / 4, td_estimate_empty_us(f, l))) {
		if (!s->queued && !td_estimate_end_slow_start(s, now_us))
			return;
		s->growth = TD_ESTIMATE_GROWTH;
		l->capacity = s->rate + (u64)l->share.flows * packet * 1000000 / (base + delay) / 4;
	} else if (s->queued && l->share.weight && now_us >= s->settle_until_us) {
		l->capacity = td_max64(td_min64(l->capacity + l->capacity * s->growth / 1024 * span / base, peak * 7 / 4), s->mean);
		s->growth = td_min64(s->growth + s->growth * span / base, TD_ESTIMATE_MOST_GROWTH);
	}
	if (!s->queued)
		s->met = 0;
	l->capacity = td_max64(l->capacity, packet);
}

/*
 * Drains the queue at intervals. If it does not become empty, the base RTT has grown:
 * then the flows renew theirs.
 */
TD_INLINE void td_estimate_check_base(const struct td_flow *f, struct td_link *l, u64 now_us, u64 delay)
{
	struct td_estimate *s = td_estimate_of(l);
	u64 since = td_sub_sat(now_us, s->base_since_us);
	/* Less and less is delivered, and yet the queue stays. */
	int sinks = delay > s->target_us && s->rate < s->mean / 4 && since >= td_max64(10ULL * s->base_us, TD_ESTIMATE_DRAIN_US);

	if (delay <= td_estimate_empty_us(f, l)) {
		s->empty = 1;
		s->empties++;
	}
	if (s->drain_until_us) {
		if (now_us < s->drain_until_us && (s->joined || !s->empty))
			return;
		s->base_period += s->empty && !s->joined ? -1 : 1;
		s->drain_until_us = 0;
		s->joined = 0;
	} else if (s->joined && since >= td_max64(30ULL * s->base_us, TD_ESTIMATE_DRAIN_US)) {
		/*
		 * The base RTTs of new flows may have a queue in them: with half of their windows
		 * that is emptied, too.
		 */
		s->drained_us = TD_ESTIMATE_NO_DELAY;
		s->drain_until_us = now_us + 2 * (s->base_us + delay);
		s->settle_until_us = s->drain_until_us + 3ULL * s->base_us;
		s->base_period++;
		return;
	} else if (sinks || (since >= TD_ESTIMATE_BASE_US && !s->empty)) {
		s->joined = s->empty = 0;
		s->drained_us = delay;
		s->drain_until_us = now_us + 2 * (s->base_us + delay);
		s->settle_until_us = sinks ? 0 : s->drain_until_us + 3ULL * s->base_us;
		s->base_period++;
		return;
	} else if (since < TD_ESTIMATE_BASE_US) {
		return;
	}
	s->empty = 0;
	s->base_since_us = now_us;
}

/*
 * Whether a flow has not met an empty queue yet: not for some intervals since its first RTT, when
 * `empties` was one less than `born`. 0: it has.
 */
TD_INLINE int td_estimate_is_new(const struct td_estimate *s, u32 born)
{
	return born && s->empties + 1 - born < TD_ESTIMATE_NEW_FOR;
}

/*
 * The base RTT of a flow, with a new sample: its minimum, that of the handshake included. As long
 * as the flow has not met an empty queue, the queueing delay of the other flows is subtracted
 * from its samples, but not in slow start, where a queue of initial windows soon drains. After a
 * drain for new flows, or one that met no empty queue, it is the minimum of the drain.
 */
TD_INLINE void td_estimate_base(const struct td_flow *f, struct td_link *l, u32 rtt_us, u32 *base_us, u32 *drain_us, u32 *period, u32 *born)
{
	struct td_estimate *s = td_estimate_of(l);
	u32 now = s->base_period, least = rtt_us;

	if (*period != now) {
		/* Odd periods are drains. */
		if (now & 1)
			*drain_us = rtt_us;
		else if (now == *period + 1)
			*base_us = *drain_us;
		*period = now;
	}
	if (!*base_us) {
		*drain_us = least = f->min_rtt_us ? td_min(least, f->min_rtt_us) : least;
		*born = s->empties + 1;
	}
	*drain_us = td_min(*drain_us, rtt_us);
	if (td_estimate_is_new(s, *born)) {
		if (s->queued)
			least -= td_min(td_min(s->last_delay_us, s->min_delay_us), least / 2);
	} else if (*born) {
		/* The queue has been empty since: the minimum of the samples needs no correction. */
		*base_us = *drain_us;
		*born = 0;
	}
	*base_us = *base_us ? td_min(*base_us, least) : least;
}

TD_INLINE void td_estimate_end_interval(const struct td_flow *f, struct td_link *l, u64 now_us, u64 interval)
{
	struct td_estimate *s = td_estimate_of(l);
	u64 span = now_us - s->since_us, counted = td_min64(span, 2 * interval);
	u64 delay = s->min_delay_us == TD_ESTIMATE_NO_DELAY ? s->new_delay_us : s->min_delay_us;

	/* At a low rate, such as at the start, every ACK may be delayed. */
	if (delay == TD_ESTIMATE_NO_DELAY)
		delay = s->late_delay_us;

	s->base_us = s->next_base_us ? s->next_base_us : s->base_us;
	td_estimate_take_rate(s, now_us, span, counted);
	td_step_ends();
	if (delay != TD_ESTIMATE_NO_DELAY) {
		/* A drain empties the queue by itself. */
		if (s->queued && l->share.weight && !s->drain_until_us && now_us >= s->settle_until_us)
			td_estimate_move_target(f, l, counted, delay <= td_estimate_empty_us(f, l));
		if (!s->drain_until_us)
			td_estimate_set_capacity(f, l, now_us, delay, counted);
		td_estimate_check_base(f, l, now_us, delay);
	} else if (s->drain_until_us && now_us >= s->drain_until_us) {
		/* All ACKs were of retransmissions, so no RTT is known: the drain has no result. */
		s->empty = s->joined = 0;
		s->base_period--;
		s->drain_until_us = 0;
		s->base_since_us = now_us;
	}
	s->since_us = now_us;
	s->delivered = s->lost = 0;
	s->last_delay_us = s->min_delay_us == TD_ESTIMATE_NO_DELAY ? 0 : s->min_delay_us;
	l->share.last_delay_us = delay;
	s->min_delay_us = s->new_delay_us = s->late_delay_us = TD_ESTIMATE_NO_DELAY;
	s->next_base_us = 0;
}

/* The estimate begins with this capacity, wire bytes/s, and base RTT. */
TD_INLINE void td_estimate_begin_at(struct td_link *l, u64 now_us, u64 capacity, u32 base_us)
{
	struct td_estimate *s = td_estimate_of(l);

	l->capacity = td_max64(capacity, 1);
	s->rate = s->mean = s->last_peak = l->capacity;
	s->peak = 0;
	s->since_us = s->peak_since_us = s->base_since_us = now_us;
	s->base_us = base_us;
	s->min_delay_us = s->new_delay_us = s->late_delay_us = TD_ESTIMATE_NO_DELAY;
	s->growth = TD_ESTIMATE_GROWTH;
	s->target_us = TD_ESTIMATE_START_TARGET_US + s->base_us / 16;
	s->queued = s->met = s->empty = s->drained_us = s->next_base_us = s->last_delay_us = s->joined = 0;
	s->delivered = s->lost = s->recent_delivered = s->recent_lost = s->drain_until_us = s->settle_until_us = 0;
	/* A drain of an earlier estimate has no result. */
	s->base_period -= s->base_period & 1;
}

/*
 * Before the first ACK, the estimate is an initial window per round trip. After a silence it is
 * half of what the link carried before, as RFC 9959 has a connection resume: over 600 ms that
 * saves up to six round trips. If the link has become slower, the queue says so after one.
 */
TD_INLINE void td_estimate_begin(const struct td_flow *f, struct td_link *l, u64 now_us)
{
	const struct td_estimate *s = td_estimate_of(l);
	u64 first = (u64)td_max(f->cwnd, 1) * (f->mss + f->header + l->overhead) * 1000000 / f->srtt_us;

	if (s->queued && td_sub_sat(now_us, s->since_us) < TD_ESTIMATE_KNOWN_US)
		first = td_max64(first, td_min64(l->capacity, s->mean) / 2);
	td_estimate_begin_at(l, now_us, first, f->srtt_us);
}

/*
 * Slow start: before a queue was seen, every ACK without one adds what it acknowledges, at once,
 * since the ACKs of a round trip come together. But not if its window has not limited the flow and
 * less than half of it is used. `peak` and `last_peak` are the rates of this round trip and the
 * last. On a path of 300 ms or more the ACKs of one window arrive in such a period, even if it
 * lasts longer than a round trip: then the rate is that window per base RTT.
 */
TD_INLINE void td_estimate_slow_start(const struct td_flow *f, struct td_link *l, const struct td_event *e, u32 delay_us)
{
	struct td_estimate *s = td_estimate_of(l);
	u64 rate = (u64)e->acked * (f->mss + f->header + l->overhead) * 1000000 / td_max(s->base_us, 1000);
	u64 period = td_max(s->base_us, 10000), span = td_sub_sat(e->now_us, s->peak_since_us);
	int is_limited = e->flags & TD_CWND_LIMITED || 2 * (f->in_flight + e->acked) >= f->cwnd;

	s->peak += rate;
	if (span >= period) {
		s->last_peak = s->base_us >= TD_ESTIMATE_SMOOTH_US ? s->peak : s->peak * td_max(s->base_us, 1000) / span;
		s->peak = 0;
		s->peak_since_us = e->now_us;
	}
	if (delay_us < td_max64(s->target_us / 4, td_estimate_empty_us(f, l)) && is_limited)
		l->capacity += rate;
}

/*
 * An ACK of a flow with this base RTT. `delay_us` is its queueing delay, or TD_ESTIMATE_NO_DELAY;
 * `late_us` is the same of an ACK that may be delayed, less the longest wait of one. `born` is as
 * for td_estimate_is_new().
 */
TD_INLINE void td_estimate_ack(const struct td_flow *f, struct td_link *l, const struct td_event *e, u32 base_us, u32 delay_us, u32 late_us,
			       u32 born)
{
	struct td_estimate *s = td_estimate_of(l);
	u32 wire = f->mss + f->header + l->overhead;
	u64 interval;

	s->delivered += (u64)e->acked * wire;
	s->lost += (u64)e->lost * wire;
	if (td_estimate_is_new(s, born))
		s->new_delay_us = td_min(s->new_delay_us, delay_us);
	else
		s->min_delay_us = td_min(s->min_delay_us, delay_us);
	s->late_delay_us = td_min(s->late_delay_us, late_us);
	s->next_base_us = td_max(s->next_base_us, base_us);
	if (!s->queued && !s->drain_until_us && e->now_us >= s->settle_until_us)
		td_estimate_slow_start(f, l, e, delay_us != TD_ESTIMATE_NO_DELAY ? delay_us : late_us);
	interval = td_max(td_min(s->base_us / 4, 100000), 10000);
	if (td_sub_sat(e->now_us, s->since_us) >= interval)
		td_estimate_end_interval(f, l, e->now_us, interval);
}

/*
 * The window of a flow with this rate, payload bytes/s: segments. Rounded up, and a millisecond
 * more, since TCP sends that at once; but not during a drain.
 */
TD_INLINE u64 td_estimate_window(const struct td_flow *f, struct td_link *l, u64 rate, u32 base_us)
{
	const struct td_estimate *s = td_estimate_of(l);
	u64 mss = td_max(f->mss, 1);

	if (s->drain_until_us)
		return td_max64(rate * td_max64(td_sub_sat(base_us, s->drained_us), base_us / 2) / 1000000 / mss, 2);
	/* Slow start has little of the target on a short path. */
	return td_max64((rate * ((u64)base_us + (s->queued ? s->target_us : td_min(s->target_us, base_us / 4))) / 1000000 + (rate >> 10)) / mss + 1, 2);
}

/* A flow starts beside others. As long as no queue has been seen, it has its initial window. */
TD_INLINE void td_estimate_join(const struct td_flow *f, struct td_link *l)
{
	td_estimate_of(l)->joined = l->share.flows > 0;
	if (f->srtt_us && !td_estimate_of(l)->queued)
		l->capacity += (u64)td_max(f->cwnd, 1) * (f->mss + f->header + l->overhead) * 1000000 / f->srtt_us;
}

/* Whether the estimate has to begin: there is none, or it is old. */
TD_INLINE int td_estimate_is_due(const struct td_flow *f, struct td_link *l, u64 now_us)
{
	return f->srtt_us && (!l->capacity || td_sub_sat(now_us, td_estimate_of(l)->since_us) > TD_ESTIMATE_BASE_US);
}

#endif
