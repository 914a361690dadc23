/*
 * share: bandwidth allocation instead of congestion control. At the proxy router, senders and the
 * set of flows are on one machine, so nothing must be probed. A flow's rate is its weighted max-min
 * fair share of the capacity (Bertsekas and Gallager, Data Networks, §6.5.2) from its first round
 * trip on. Not from a paper; designed to improve on the controllers of RAPPEP.
 *
 *   level  = (capacity - cross traffic - demand of demand-limited flows) / weight of greedy flows
 *   rate   = level * weight;  pacing rate = rate,  cwnd = 1.25 rate * RTT + 50 ms * rate + 10 segments
 *
 * Pacing enforces the rate. The window is larger than rate * RTT: when the rate falls because a
 * flow starts, data that is already in flight must not fill the window and stop the flow. A flow is
 * demand-limited when its receiver's window or its application was seen to keep it below its rate;
 * the other flows get the rest. Losses do not change the window.
 *
 * If the bottleneck queue is on this host (a shaper), the pacing rate keeps it at about a packet
 * per flow: see td_share_pace_factor().
 *
 * The configured capacity may be wrong, so it is corrected by queue and loss, once per epoch (the
 * longest round trip, at least 100 ms):
 *
 *   trim    keeps the minimum queueing delay of all flows near 2 % of the RTT: 1 % faster without a queue,
 *           slower with one. (Pacing at exactly the capacity leaves 1 to 2 % of it idle, since timers are
 *           late; gain times delay is 1/2.)
 *   scale   a delay beyond 1/16 of the RTT shows that the bottleneck is busy, so the delivery rate is its
 *           capacity. It becomes the capacity in use, reduced until the queue has drained. After epochs
 *           without queue and loss it grows back: 1 %, 2 %, 4 %, ... If it is less than 15/16 of
 *           the configured capacity, the estimate takes its place: see fallback.h.
 *   test    loss beyond 2 % may come from a short queue that overflows, or from the link itself. The flows
 *           send a sixteenth less: if the loss halves, it was the queue, and the delivery rate is the
 *           capacity; if not, the next test waits twice as long.
 *   more    without queue and loss the link may have more than is configured. The flows send a
 *           tenth more for an epoch: if a sixteenth more arrives without a queue, the estimate
 *           takes the place of the configured capacity; if not, the next try waits twice as long.
 */
#ifndef TD_SHARE_H
#define TD_SHARE_H
#include "fallback.h"
#include "return_path.h"

struct td_share_state {
	u64 rate;	/* payload bytes/s */
	u64 committed;	/* its part of the record's `committed`, payload bytes/s */
	u64 demand;	/* demand while demand-limited, with room to grow, payload bytes/s */
	u64 counted;	/* its part of the record's `demand`: smoothed sending rate, payload bytes/s */
	u64 since_us;	/* start of the current measurement interval */
	u64 sent0;	/* payload bytes sent at that time */
	u32 status;	/* TD_SHARE_ABSENT, _GREEDY, _DEMAND_LIMITED */
	u32 starved;	/* ACKs of the interval that found no unsent data */
	u32 acks;	/* ACKs of the interval */
	u32 base_us;	/* base RTT: the minimum */
	u32 weight;	/* its part of the record's `weight` */
	u32 credit;	/* of NewReno, while the capacity is unknown */
	u32 drain_us;	/* minimum RTT since the last drain of an estimated link began */
	u32 period;	/* of the estimate's base RTT, when an RTT was last measured */
	u32 born;	/* `empties` plus 1 at the first RTT; 0: the queue has been empty since */
	struct td_return_path back;
};
#define td_share_WANTS (TD_WANTS_RESTART | TD_WANTS_WEIGHT)
#define td_share_TUNABLES(T)                                                                    \
	T(capacity_milli, 1000, 100, 2000, "fraction of the capacity to use, thousandths")                     \
	T(correct, 1, 0, 1, "1: correct the capacity by queue and loss")                                  \
	T(loss_milli, 20, 1, 1000, "loss that starts a test of the capacity, thousandths")                    \
	T(exceed, 1, 0, 1, "1: try whether the link has more than the configured capacity")
TD_CONTROLLER(share);

enum { TD_SHARE_ABSENT, TD_SHARE_GREEDY, TD_SHARE_DEMAND_LIMITED };
/*
 * Phases of the capacity correction: none; a queue drains; its effect is awaited; a loss test; more
 * is tried.
 */
enum { TD_SHARE_STEADY, TD_SHARE_DRAIN, TD_SHARE_SETTLE, TD_SHARE_TEST, TD_SHARE_MORE };

#define TD_SHARE_ONE 65536U
#define TD_SHARE_MIN_EPOCH_US 100000
#define TD_SHARE_NO_DELAY 0xffffffffU
/* Longest wait of a delayed ACK: Linux, macOS and Windows have 40 to 50 ms by default. */
#define TD_SHARE_ACK_DELAY_US 40000
/* The largest window that is not spread at the start of an estimate, segments, and its time. */
#define TD_SHARE_BURST 64
#define TD_SHARE_BURST_US 10000
/* A shorter delay is jitter, and no queue, µs. */
#define TD_SHARE_JITTER_US 4000
/* Epochs until more than the capacity is tried: at first, and at most. */
#define TD_SHARE_MORE_WAIT 2
#define TD_SHARE_MOST_MORE_WAIT 512

/*
 * Rate of all flows together, payload bytes/s. `drain` and `trim` apply to the whole link, cross
 * traffic included. If that has most of the link, nothing would be left for the flows, and without
 * ACKs they could not see when it ends. They keep at least half of what the cross traffic leaves,
 * and 1/64 of the link.
 */
TD_INLINE u64 td_share_payload(const struct td_flow *f, const struct td_link *l, const struct td_share_tunables *t)
{
	u64 wire = l->capacity * t->capacity_milli / 1000, least = wire / 64, own = td_sub_sat(wire, l->share.cross_rate);

	/* An estimate leaves out cross traffic, and is corrected already. */
	if (td_is_estimated(l))
		return td_max64(wire, least) * f->mss / (f->mss + f->header + l->overhead);
	if (t->correct && l->share.scale) {
		wire = wire * l->share.scale >> 16;
		own = td_sub_sat(wire, l->share.cross_rate) / 2;
		wire = (wire * l->share.drain >> 16) * l->share.trim >> 16;
		own = td_max64(own, td_sub_sat(wire, l->share.cross_rate));
	}
	return td_max64(own, least) * f->mss / (f->mss + f->header + l->overhead);
}

/* Wire bytes of one round of all flows: a packet each, or the millisecond of data that TCP sends at once. */
TD_INLINE u64 td_share_round_bytes(const struct td_flow *f, const struct td_link *l)
{
	return td_max64((u64)td_max(l->share.flows, 1) * (f->mss + f->header + l->overhead), l->capacity >> 10);
}

/* Target of the queue on this host, wire bytes: one round, and at most 1 % of the round trip. */
TD_INLINE u64 td_share_queue_target(const struct td_flow *f, const struct td_link *l)
{
	return td_min64(td_share_round_bytes(f, l), l->capacity * td_max(f->srtt_us / 100, 1000) / 1000000);
}

/*
 * Pacing rate over rate, 2^-16. Pacing at exactly the shaper's rate never makes up for late timers.
 * If the queue is on this host, and no other is seen, all flows go faster while it is short and
 * slower while it is long, by an eighth per round: the queue seen at an ACK is up to two rounds
 * old.
 */
TD_INLINE u64 td_share_pace_factor(const struct td_flow *f, const struct td_link *l)
{
	u64 target = td_share_queue_target(f, l), gain = 8 * td_share_round_bytes(f, l);

	if (!l->local || l->share.scale < TD_SHARE_ONE || l->share.drain < TD_SHARE_ONE || l->share.trim < TD_SHARE_ONE)
		return TD_SHARE_ONE;
	if (l->backlog < target)
		return TD_SHARE_ONE + ((target - l->backlog) << 16) / gain;
	return TD_SHARE_ONE - td_min64(((l->backlog - target) << 16) / gain, TD_SHARE_ONE / 8);
}

/*
 * Flows adapt to a new flow at their next ACK, up to a round trip later. Until then more is sent
 * than the capacity. The excess is known exactly: the rate of all flows less the available rate,
 * over time. If the queue is on this host, the excess is at most what is queued, since TCP small
 * queues hold the rest back.
 */
TD_INLINE void td_share_update_excess(const struct td_flow *f, struct td_link *l, u64 now_us, const struct td_share_tunables *t)
{
	u64 span = td_min64(td_sub_sat(now_us, l->share.excess_us), 1000000), payload = td_share_payload(f, l, t);

	if (l->share.committed > payload)
		l->share.excess += (l->share.committed - payload) * span / 1000000;
	else
		l->share.excess = td_sub_sat(l->share.excess, (payload - l->share.committed) * span / 1000000);
	if (l->local)
		l->share.excess = td_min64(l->share.excess, td_sub_sat(l->backlog, td_share_queue_target(f, l)));
	l->share.excess_us = td_max64(l->share.excess_us, now_us);
}

/* The rate of a greedy flow of weight 1: greedy flows have this weight, others this demand. */
TD_INLINE u64 td_share_level_of(const struct td_flow *f, const struct td_link *l, u64 demand, u64 weight, const struct td_share_tunables *t)
{
	u64 payload = td_share_payload(f, l, t);
	/* The excess is taken back over two round trips, at most a quarter of the rate. */
	u64 back = td_min64(l->share.excess * 1000000 / td_max(2 * f->srtt_us, 2 * TD_SHARE_MIN_EPOCH_US), payload / 4);

	/* The measured demands may exceed the capacity for a while. */
	return td_max64(td_sub_sat(payload - back, demand), payload / (4 * ((u64)l->share.flows + 1))) / td_max64(weight, 1);
}

/*
 * The rate of this flow if it were greedy. While it is demand-limited, its own demand is not
 * subtracted: otherwise it would get only the capacity that it does not use.
 */
TD_INLINE u64 td_share_fair(const struct td_flow *f, const struct td_share_state *s, struct td_link *l, const struct td_share_tunables *t)
{
	u64 demand = l->share.demand, weight = l->share.weight;

	l->share.level = td_share_level_of(f, l, demand, weight, t);
	if (s->status == TD_SHARE_DEMAND_LIMITED) {
		demand = td_sub_sat(demand, s->counted);
		weight += s->weight;
	}
	return td_share_level_of(f, l, demand, weight, t) * td_max(f->weight, 1);
}

/* Sets the rate that a flow is counted with. */
TD_INLINE void td_share_set_committed(struct td_share_state *s, struct td_link *l, u64 rate)
{
	l->share.committed = td_sub_sat(l->share.committed + rate, s->committed);
	s->committed = rate;
}

TD_INLINE void td_share_unregister(struct td_share_state *s, struct td_link *l)
{
	if (s->status == TD_SHARE_GREEDY)
		l->share.weight = td_sub_sat(l->share.weight, s->weight);
	else if (s->status == TD_SHARE_DEMAND_LIMITED)
		l->share.demand = td_sub_sat(l->share.demand, s->counted);
	if (s->status)
		l->share.flows = td_sub_sat(l->share.flows, 1);
	s->status = TD_SHARE_ABSENT;
	td_share_set_committed(s, l, 0);
}

/* Registers the flow as greedy, or as demand-limited with a demand and a sending rate, payload bytes/s. */
TD_INLINE void td_share_register(const struct td_flow *f, struct td_share_state *s, struct td_link *l, u32 status, u64 demand, u64 sends)
{
	td_share_unregister(s, l);
	s->status = status;
	s->weight = td_max(f->weight, 1);
	s->demand = demand;
	s->counted = sends;
	l->share.flows++;
	if (status == TD_SHARE_GREEDY)
		l->share.weight += s->weight;
	else
		l->share.demand += sends;
}

/* Rate limit by the receiver's window, payload bytes/s. */
TD_INLINE u64 td_share_window_rate(const struct td_flow *f)
{
	return f->srtt_us ? (u64)f->snd_wnd * 1000000 / f->srtt_us : ~0ULL;
}

TD_INLINE void td_share_start(const struct td_flow *f, struct td_share_state *s, struct td_link *l, const struct td_event *e)
{
	td_share_register(f, s, l, TD_SHARE_GREEDY, 0, 0);
	/* Pacing starts with a segment, not with the gap before it. */
	if (!td_is_estimated(l))
		l->share.excess += f->mss;
	s->since_us = e->now_us;
	s->sent0 = f->sent;
	s->starved = s->acks = 0;
}

/* Classifies the flow as greedy or demand-limited: at the end of a measurement interval, or at once when the receiver's window binds. */
TD_INLINE void td_share_classify(const struct td_flow *f, struct td_share_state *s, struct td_link *l, const struct td_event *e, u64 fair)
{
	u64 span = e->now_us - s->since_us, window = td_share_window_rate(f), rate;

	s->acks++;
	s->starved += !f->unsent;
	if (window < fair) {
		if (s->status != TD_SHARE_DEMAND_LIMITED || s->demand != window)
			td_share_register(f, s, l, TD_SHARE_DEMAND_LIMITED, window, window);
	} else if (s->status == TD_SHARE_DEMAND_LIMITED && (s->demand >= fair || !s->starved) && s->acks > 1) {
		/* Its share has fallen to its demand, or unsent data waits at every ACK. */
		td_share_register(f, s, l, TD_SHARE_GREEDY, 0, 0);
	}
	if (span < td_max(td_min(f->srtt_us / 2, 400000), 50000))
		return;
	rate = (f->sent - s->sent0) * 1000000 / span;
	if (s->starved && window >= fair) {
		/*
		 * The demand is a quarter more than the measured rate, so that the flow can grow, and falls slowly,
		 * since applications send in bursts. The other flows get what it does not send: it is counted with
		 * its measured rate only. Its pacing is not limited to that; a burst during one interval adds a few
		 * packets to the queue.
		 */
		u64 demand = td_max64(rate + rate / 4, s->status == TD_SHARE_DEMAND_LIMITED ? s->demand - s->demand / 4 : 0);
		u64 sends = s->status == TD_SHARE_DEMAND_LIMITED ? (3 * s->counted + rate) / 4 : rate;

		td_share_register(f, s, l, demand < fair ? TD_SHARE_DEMAND_LIMITED : TD_SHARE_GREEDY, demand, sends);
	}
	s->since_us = e->now_us;
	s->sent0 = f->sent;
	s->starved = s->acks = 0;
}

/* part / whole in 2^-16, bounded to [least, 1]. */
TD_INLINE u32 td_share_ratio(u64 part, u64 whole, u32 least)
{
	return td_max64(td_min64(td_div(part << 16, whole), TD_SHARE_ONE), least);
}

/* The least delay of an epoch that is a queue, µs. */
TD_INLINE u32 td_share_least_queue(u32 rtt_us)
{
	return td_max(rtt_us / 16, TD_SHARE_JITTER_US);
}

/* The rate that all flows have had in an epoch of this length, wire bytes/s. */
TD_INLINE u64 td_share_delivery_rate(const struct td_flow *f, const struct td_link *l, u64 span)
{
	return l->share.delivered * (f->mss + f->header + l->overhead) / td_max(f->mss, 1) * 1000000 / td_max64(span, 1);
}

/* Sends less for an epoch, so that a queue of this delay drains. */
TD_INLINE void td_share_start_drain(struct td_link *l, u64 span, u32 delay_us)
{
	l->share.drain = TD_SHARE_ONE - td_min64(((u64)delay_us << 16) / td_max64(span, 1), TD_SHARE_ONE / 2);
	l->share.phase = TD_SHARE_DRAIN;
	l->share.epochs = 1;
	l->share.step = 0;
}

/* The delivery rate becomes the capacity, reduced so that a queue of this delay drains within an epoch. */
TD_INLINE void td_share_correct_capacity(const struct td_flow *f, struct td_link *l, u64 span, u32 delay_us, const struct td_share_tunables *t)
{
	u64 wire = td_share_delivery_rate(f, l, span) + l->share.cross_rate;

	l->share.scale = td_min(l->share.scale, td_share_ratio(wire, l->capacity * t->capacity_milli / 1000, TD_SHARE_ONE / 64));
	td_share_start_drain(l, span, delay_us);
}

/* A queue has stayed for an epoch: the link is busy, and its rate known. */
TD_INLINE void td_share_meet_queue(const struct td_flow *f, struct td_link *l, u64 now_us, u64 span, u32 delay_us,
				   const struct td_share_tunables *t)
{
	u64 rate = td_share_delivery_rate(f, l, span);

	if (td_fallback_is_less(rate + l->share.cross_rate, l->capacity * t->capacity_milli / 1000))
		td_fallback_begin(l, now_us, rate, td_max(l->share.max_base_rtt_us, 1000), 1);
	else
		td_share_correct_capacity(f, l, span, delay_us, t);
}

/* Whether to try more than the configured capacity: all of it is used, without queue and loss. */
TD_INLINE int td_share_may_exceed(const struct td_flow *f, const struct td_link *l, u64 span, u32 delay, u32 target, u32 loss,
				  const struct td_share_tunables *t)
{
	u64 told = l->capacity * t->capacity_milli / 1000;

	return t->exceed && !l->local && l->share.weight && delay < td_max(target, TD_SHARE_JITTER_US) && loss <= t->loss_milli * 10 &&
	       !td_fallback_is_less(td_share_delivery_rate(f, l, span) + l->share.cross_rate, told);
}

/* Tries more for an epoch. Over a long round trip the ACKs of that come in the next one. */
TD_INLINE void td_share_start_more(struct td_link *l)
{
	l->share.phase = TD_SHARE_MORE;
	l->share.epochs = 2;
	l->share.drain = TD_SHARE_ONE + TD_SHARE_ONE / 10;
}

/* More was tried: has it arrived? */
TD_INLINE void td_share_end_more(const struct td_flow *f, struct td_link *l, u64 now_us, u64 span, u32 delay, u32 rtt,
				 const struct td_share_tunables *t)
{
	u64 rate = td_share_delivery_rate(f, l, span), told = l->capacity * t->capacity_milli / 1000;
	/*
	 * Whether a packet of each flow falls into this epoch or the next is chance. In a short
	 * epoch, jitter adds to that.
	 */
	u64 chance = (u64)l->share.flows * (f->mss + f->header + l->overhead) * 1000000 / td_max64(span, 1);

	if (rtt < TD_SHARE_MIN_EPOCH_US || chance > told / 32)
		chance = told / 32;
	if (delay < td_share_least_queue(rtt) && td_fallback_is_more(rate + chance + l->share.cross_rate, told)) {
		l->share.more_wait = l->share.next_more_wait = TD_SHARE_MORE_WAIT;
		td_fallback_begin(l, now_us, rate, td_max(l->share.max_base_rtt_us, 1000), 0);
		return;
	}
	l->share.more_wait = l->share.next_more_wait;
	l->share.next_more_wait = td_min(l->share.next_more_wait * 2, TD_SHARE_MOST_MORE_WAIT);
	/* What it has left in the queue drains. */
	td_share_start_drain(l, span, td_max(delay, span / 20));
}

/* Starts a loss test: sends a sixteenth less. */
TD_INLINE void td_share_start_test(struct td_link *l)
{
	l->share.phase = TD_SHARE_TEST;
	l->share.epochs = 2;
	l->share.drain = TD_SHARE_ONE - TD_SHARE_ONE / 16;
}

/* Epochs without queue and loss before the scale grows: fewer when less of the capacity is used, as more can be gained. */
TD_INLINE u32 td_share_regrow_wait(const struct td_link *l)
{
	return td_max(td_min(l->share.regrow_wait, (u64)l->share.scale * 64 >> 16), 4);
}

/* Grows back towards the configured capacity, by steps that double until queue or loss appears. */
TD_INLINE void td_share_regrow(struct td_link *l, int no_queue, u32 loss)
{
	if (l->share.step && loss > l->share.loss + 150) {
		l->share.scale -= l->share.step;
		l->share.regrow_wait = td_min(l->share.regrow_wait * 2, 64);
	} else if (no_queue) {
		if (l->share.epochs)
			return;
		l->share.step = td_max(l->share.step * 2, TD_SHARE_ONE / 100);
		l->share.step = td_min(l->share.step, TD_SHARE_ONE - l->share.scale);
		l->share.scale += l->share.step;
		/* At the full capacity this last step is observed for a whole wait. */
		l->share.epochs = l->share.step ? 2 : td_share_regrow_wait(l);
		return;
	}
	l->share.step = 0;
	l->share.epochs = td_share_regrow_wait(l);
}

TD_INLINE void td_share_end_epoch(const struct td_flow *f, struct td_link *l, const struct td_event *e, const struct td_share_tunables *t)
{
	u64 span = td_sub_sat(e->now_us, l->share.since_us);
	u32 rtt = td_max(l->share.max_base_rtt_us, 1000), delay = l->share.min_delay_us, target = td_max(rtt / 50, 1000);
	u32 loss = td_div(l->share.lost * 10000, l->share.delivered + l->share.lost);

	/* The excess is below 2 % of a BDP: losses now are not caused by a new flow. */
	int settled = l->share.excess * 50 < l->capacity * rtt / 1000000;
	u32 epoch = td_max(delay == TD_SHARE_NO_DELAY ? rtt : rtt + delay, TD_SHARE_MIN_EPOCH_US);

	/* A test ignores its first epoch, which has losses of data sent before, and its second one is twice as long. */
	if (l->share.phase == TD_SHARE_TEST && l->share.epochs == 1)
		epoch *= 2;
	if (l->share.since_us && span < epoch)
		return;
	if (!l->share.since_us || !l->share.scale) {
		l->share.scale = l->share.drain = l->share.trim = TD_SHARE_ONE;
		l->share.regrow_wait = 4;
		l->share.next_test_wait = 8;
		l->share.step = l->share.epochs = l->share.loss = 0;
		l->share.test_wait = 4;
		if (!l->share.next_more_wait)
			l->share.more_wait = l->share.next_more_wait = TD_SHARE_MORE_WAIT;
		l->share.phase = TD_SHARE_STEADY;
	} else if (span < 8ULL * td_max(rtt, TD_SHARE_MIN_EPOCH_US)) {
		if (delay == TD_SHARE_NO_DELAY)
			delay = 0;
		/* 1 % faster without a queue, at most 10 % slower with one. */
		l->share.trim = TD_SHARE_ONE + 655 - td_min64((u64)delay * 655 / target, 655 + 6554);
		if (l->share.epochs)
			l->share.epochs--;
		switch (l->share.phase) {
		case TD_SHARE_STEADY:
			if (delay > td_share_least_queue(rtt))
				td_share_meet_queue(f, l, e->now_us, span, delay, t);
			else if (td_min(loss, l->share.loss) > t->loss_milli * 10 && settled && !l->share.test_wait && !l->share.step)
				td_share_start_test(l);
			else if (l->share.scale < TD_SHARE_ONE || l->share.step)
				td_share_regrow(l, delay < target, loss);
			else if (td_share_may_exceed(f, l, span, delay, target, loss, t) && !l->share.more_wait--)
				td_share_start_more(l);
			if (!l->share.step)
				l->share.loss = l->share.loss ? (l->share.loss + loss) / 2 : loss;
			if (l->share.test_wait)
				l->share.test_wait--;
			break;
		case TD_SHARE_DRAIN:
			l->share.drain = TD_SHARE_ONE;
			l->share.phase = TD_SHARE_SETTLE;
			l->share.epochs = 1;
			break;
		case TD_SHARE_SETTLE:
			if (delay > td_share_least_queue(rtt)) {
				td_share_meet_queue(f, l, e->now_us, span, delay, t);
			} else {
				l->share.phase = TD_SHARE_STEADY;
				l->share.epochs = td_share_regrow_wait(l);
			}
			break;
		case TD_SHARE_TEST:
			if (l->share.epochs)
				break;
			/* Sending 6 % less removes nearly that much loss at a full queue, and none of the link's own. */
			if (loss * 2 < l->share.loss || loss + 250 < l->share.loss) {
				td_share_correct_capacity(f, l, span, 0, t);
				l->share.next_test_wait = 8;
			} else {
				l->share.drain = TD_SHARE_ONE;
				l->share.phase = TD_SHARE_STEADY;
				l->share.test_wait = l->share.next_test_wait;
				l->share.next_test_wait = td_min(l->share.next_test_wait * 2, 512);
			}
			break;
		case TD_SHARE_MORE:
			/*
			 * Where an epoch is longer than a round trip, most ACKs of the second
			 * epoch are of data sent in it.
			 */
			if (!l->share.epochs || rtt >= TD_SHARE_MIN_EPOCH_US)
				l->share.drain = TD_SHARE_ONE;
			if (!l->share.epochs)
				td_share_end_more(f, l, e->now_us, span, delay, rtt, t);
			break;
		}
	}
	l->share.since_us = e->now_us;
	l->share.last_delay_us = l->share.min_delay_us;
	l->share.delivered = l->share.lost = 0;
	l->share.min_delay_us = TD_SHARE_NO_DELAY;
	l->share.max_base_rtt_us = 0;
}

/* Measures cross traffic. An increase counts at once, a decrease is smoothed. */
TD_INLINE void td_share_measure_cross_traffic(struct td_link *l, const struct td_event *e)
{
	u64 span = td_sub_sat(e->now_us, l->share.measured_us), rate;

	if (l->share.measured_us && span < TD_SHARE_MIN_EPOCH_US)
		return;
	if (l->share.measured_us && l->foreign >= l->share.foreign0) {
		rate = (l->foreign - l->share.foreign0) * 1000000 / span;
		l->share.cross_rate = td_max64(rate, (rate + l->share.cross_rate) / 2);
	}
	l->share.measured_us = e->now_us;
	l->share.foreign0 = l->foreign;
}

TD_INLINE void td_share_ack(struct td_flow *f, struct td_share_state *s, struct td_link *l, const struct td_event *e,
			    const struct td_share_tunables *t)
{
	u32 delay = TD_SHARE_NO_DELAY, late = TD_SHARE_NO_DELAY, back = td_return_longer(f, &s->back, l, e), rtt = td_return_rtt(f, e, back);

	if (e->rtt_us) {
		if (td_is_estimated(l))
			td_estimate_base(f, l, rtt, &s->base_us, &s->drain_us, &s->period, &s->born);
		else
			s->base_us = s->base_us ? td_min(s->base_us, rtt) : rtt;
		/*
		 * At a low rate every ACK is delayed. Taken for queueing delay, that would lower the rate for ever. If
		 * segments are less than 20 ms apart, the next one arrives before the receiver's timer expires.
		 * An estimate cannot grow before a delay is known: it takes what is certain of such an ACK
		 * if it has no other. While ACKs are late, flows with timestamps tell how long the queue is.
		 */
		if (back && !td_return_is_measured(&s->back))
			delay = TD_SHARE_NO_DELAY;
		else if (!(e->flags & TD_DELAYED_ACK) || (u64)f->in_flight * 20000 > f->srtt_us)
			delay = td_sub_sat(rtt, s->base_us);
		else
			late = td_sub_sat(rtt, s->base_us + TD_SHARE_ACK_DELAY_US);
		l->share.min_delay_us = td_min(l->share.min_delay_us, delay);
		l->share.max_base_rtt_us = td_max(l->share.max_base_rtt_us, s->base_us + back);
	}
	td_share_measure_cross_traffic(l, e);
	if (td_is_estimated(l)) {
		td_estimate_ack(f, l, e, s->base_us + back, delay, late, s->born);
		td_fallback_check(l, e->now_us, l->estimate.told * t->capacity_milli / 1000);
	} else {
		l->share.delivered += (u64)e->acked * f->mss;
		l->share.lost += (u64)e->lost * f->mss;
		td_share_end_epoch(f, l, e, t);
	}

	/* What it has not used is the others' at once, and not only when all has been acknowledged. */
	if (!f->unsent) {
		td_share_unregister(s, l);
		return;
	}
	if (!s->status)
		td_share_start(f, s, l, e);
	td_share_classify(f, s, l, e, td_share_fair(f, s, l, t));
}

TD_INLINE void td_share_apply(struct td_flow *f, struct td_share_state *s, struct td_link *l, const struct td_share_tunables *t)
{
	u32 mss = td_max(f->mss, 1);

	s->rate = td_max64(td_share_fair(f, s, l, t), mss);
	if (s->status)
		td_share_set_committed(s, l, s->status == TD_SHARE_DEMAND_LIMITED ? td_min64(s->counted, s->rate) : s->rate);
	if (td_is_estimated(l)) {
		f->cwnd = td_min64(td_estimate_window(f, l, s->rate, s->base_us ? s->base_us + s->back.longer_us : f->srtt_us), TD_INFINITE);
		f->ssthresh = f->cwnd;
		/*
		 * The window limits the flow. Pacing only spreads what ACKs that come together would
		 * release. Small windows of the start are not spread: that would cost a part of a round
		 * trip.
		 */
		f->pacing_rate = (u64)f->cwnd * mss * 2000000 / td_max(f->srtt_us, 1000);
		if (!td_estimate_of(l)->queued && f->cwnd <= TD_SHARE_BURST)
			f->pacing_rate = td_max64(f->pacing_rate, (u64)f->cwnd * mss * 1000000 / TD_SHARE_BURST_US);
		return;
	}
	f->pacing_rate = s->rate * td_share_pace_factor(f, l) >> 16;
	f->cwnd = td_min64((s->rate * 5 / 4 * f->srtt_us / 1000000 + s->rate / 20) / mss + 10, TD_INFINITE);
	f->ssthresh = f->cwnd;
}

TD_INLINE void td_share(struct td_flow *f, struct td_share_state *s, struct td_link *l, const struct td_event *e,
			const struct td_share_tunables *t)
{
	if (e->kind == TD_INIT) {
		s->rate = s->committed = s->demand = s->counted = s->since_us = s->sent0 = 0;
		s->status = s->starved = s->acks = s->base_us = s->weight = s->credit = s->drain_us = 0;
		s->period = l ? td_estimate_of(l)->base_period : 0;
		s->born = 0;
		s->back = (struct td_return_path){ 0 };
	}
	if (l && td_is_estimated(l)) {
		if (td_estimate_is_due(f, l, e->now_us)) {
			if (l->estimate.enabled == TD_ESTIMATE_FALLBACK)
				td_fallback_end(l, e->now_us);
			else
				td_estimate_begin(f, l, e->now_us);
		} else if (e->kind == TD_INIT && l->capacity)
			td_estimate_join(f, l);
	}
	if (!l || !l->capacity) {
		struct td_window w = { .credit = s->credit };

		td_window_newreno(f, &w, e);
		s->credit = w.credit;
		return;
	}
	if (!td_is_estimated(l))
		td_share_update_excess(f, l, e->now_us, t);
	if (e->kind == TD_ACK) {
		td_share_ack(f, s, l, e, t);
	} else if (e->kind == TD_RESTART) {
		if (!s->status) {
			td_share_start(f, s, l, e);
			if (td_share_window_rate(f) < td_share_fair(f, s, l, t))
				td_share_register(f, s, l, TD_SHARE_DEMAND_LIMITED, td_share_window_rate(f), td_share_window_rate(f));
		}
	} else if (e->kind == TD_CLOSE) {
		td_share_unregister(s, l);
		return;
	}
	td_share_apply(f, s, l, t);
}

#endif
