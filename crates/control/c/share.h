/*
 * share: allocation in place of control. At the proxy the router, the sender and the set of flows are one machine, so nothing
 * must be probed for: a flow's rate is its weighted max-min share of the capacity (Bertsekas and Gallager, Data Networks, §6.5.2),
 * from its first round trip on. Not from a paper; after RAPPEP, whose controllers it is to beat.
 *
 *   level  = (capacity - other traffic - demand of flows that want less) / weight of those that want more
 *   rate   = level * weight;  pace = rate,  cwnd = 1.25 rate * RTT + 50 ms * rate + 10 segments
 *
 * The window is loose, so that what is in flight when others come is not cut short; the pace is what binds. A flow wants less when
 * its receiver's window, or its own data, was seen to keep it under its rate; then the others get the rest. Losses change nothing.
 *
 * Where the queue is this host's own (a shaper), it is seen at once, and the pace keeps it at a packet a flow: see td_share_haste().
 *
 * The capacity may be wrong, so queue and loss are looked at, once an epoch (the longest round trip, no less than 100 ms):
 *
 *   trim    the least queueing delay of all flows is held near 2 % of the RTT: 1 % faster without a queue, slower with one.
 *           (A pace of exactly the capacity leaves 1 to 2 % of it idle, since timers are late; gain times delay is 1/2.)
 *   scale   a delay beyond 1/16 of the RTT: the bottleneck is busy, so what was delivered is what is there. That becomes the
 *           capacity, less what drains the queue within a round trip. After calm epochs it grows back: 1 %, 2 %, 4 %, ...
 *   test    loss beyond 2 % may be a short queue that overflows, or the link's own. Sending a sixteenth less tells: if loss falls to
 *           half, it was the queue, and what was delivered is what is there; if not, the next test waits twice as long.
 */
#ifndef TD_SHARE_H
#define TD_SHARE_H
#include "window.h"

struct td_share_state {
	u64 rate;	/* payload bytes/s */
	u64 committed;	/* what of that is counted as sent */
	u64 demand;	/* what it wants while that is less, with room to grow, payload bytes/s */
	u64 counted;	/* what it is counted with: what it was seen to send, smoothed */
	u64 since_us;	/* the running watch */
	u64 sent0;	/* what had been sent when it began */
	u32 status;
	u32 starved;	/* ACKs of the watch that found nothing waiting */
	u32 acks;	/* of the watch */
	u32 base_us;	/* least RTT */
	u32 weight;	/* as counted */
	u32 credit;
};
#define td_share_WANTS (TD_WANTS_RESTART | TD_WANTS_WEIGHT)
#define td_share_TUNABLES(T)                                                                    \
	T(capacity_milli, 1000, "share of the capacity to use, thousandths")                     \
	T(correct, 1, "1: queue and loss correct the capacity")                                  \
	T(loss_milli, 20, "loss beyond which it is put to the test, thousandths")
TD_CONTROLLER(share);

enum { TD_SHARE_ABSENT, TD_SHARE_GREEDY, TD_SHARE_MODEST };
/* Of the link: as configured, or known; a queue drains; the effect is awaited; less is sent to see what loss does. */
enum { TD_SHARE_STEADY, TD_SHARE_DRAIN, TD_SHARE_SETTLE, TD_SHARE_TEST };

#define TD_SHARE_ONE 65536U
#define TD_SHARE_LEAST_EPOCH_US 100000
#define TD_SHARE_NO_DELAY 0xffffffffU

/*
 * Payload bytes/s that all flows have together. What drains a queue, and what trims the pace, is of the whole link, other traffic included:
 * where that has most of it, the flows would be left with nothing, and so without the ACKs that tell when it is over. They keep half of
 * what the others leave, and a sixty-fourth of the link.
 */
TD_INLINE u64 td_share_payload(const struct td_flow *f, const struct td_link *l, const struct td_share_tunables *t)
{
	u64 wire = l->capacity * t->capacity_milli / 1000, least = wire / 64, mine = td_less(wire, l->share.other);

	if (t->correct && l->share.scale) {
		wire = wire * l->share.scale >> 16;
		mine = td_less(wire, l->share.other) / 2;
		wire = (wire * l->share.drain >> 16) * l->share.trim >> 16;
		mine = td_max64(mine, td_less(wire, l->share.other));
	}
	return td_max64(mine, least) * f->mss / (f->mss + f->header + l->overhead);
}

/* Wire bytes that a turn of all flows is: a packet of each, or what TCP sends at once at that rate, a millisecond's worth. */
TD_INLINE u64 td_share_turn(const struct td_flow *f, const struct td_link *l)
{
	return td_max64((u64)td_max(l->share.flows, 1) * (f->mss + f->header + l->overhead), l->capacity >> 10);
}

/* The queue that this host is to have, where it is its own: a turn, and no more than 1 % of the round trip. */
TD_INLINE u64 td_share_target(const struct td_flow *f, const struct td_link *l)
{
	return td_min64(td_share_turn(f, l), l->capacity * td_max(f->srtt_us / 100, 1000) / 1000000);
}

/*
 * The pace over the rate, 2^-16. A pace of exactly what a shaper lets through makes up for nothing that was late. So where the queue is
 * this host's own, and none is seen elsewhere, all go faster while it is short and slower while it is long, by an eighth a turn: what
 * ACKs tell of it is up to two turns old.
 */
TD_INLINE u64 td_share_haste(const struct td_flow *f, const struct td_link *l)
{
	u64 target = td_share_target(f, l), turn = 8 * td_share_turn(f, l);

	if (!l->local || l->share.scale < TD_SHARE_ONE || l->share.drain < TD_SHARE_ONE || l->share.trim < TD_SHARE_ONE)
		return TD_SHARE_ONE;
	if (l->backlog < target)
		return TD_SHARE_ONE + ((target - l->backlog) << 16) / turn;
	return TD_SHARE_ONE - td_min64(((l->backlog - target) << 16) / turn, TD_SHARE_ONE / 8);
}

/*
 * Flows hear of a newcomer with their next ACK, up to a round trip later; until then more is sent than there is. How much is known
 * to the byte: what the flows send together, less what they may. Where the queue is this host's own no more of it is out there than
 * stands in it: TCP holds the rest back, since it lets no more than two packets of a flow wait here.
 */
TD_INLINE void td_share_settle(const struct td_flow *f, struct td_link *l, u64 now_us, const struct td_share_tunables *t)
{
	u64 span = td_min64(td_less(now_us, l->share.settled_us), 1000000), payload = td_share_payload(f, l, t);

	if (l->share.committed > payload)
		l->share.excess += (l->share.committed - payload) * span / 1000000;
	else
		l->share.excess = td_less(l->share.excess, (payload - l->share.committed) * span / 1000000);
	if (l->local)
		l->share.excess = td_min64(l->share.excess, td_less(l->backlog, td_share_target(f, l)));
	l->share.settled_us = td_max64(l->share.settled_us, now_us);
}

/* The rate of a greedy flow of weight 1. */
TD_INLINE u64 td_share_level(const struct td_flow *f, struct td_link *l, const struct td_share_tunables *t)
{
	u64 payload = td_share_payload(f, l, t);
	/* What was sent too much is taken back over two round trips, by a quarter at most. */
	u64 back = td_min64(l->share.excess * 1000000 / td_max(2 * f->srtt_us, 2 * TD_SHARE_LEAST_EPOCH_US), payload / 4);
	/* Demands are what was measured: they may be more than there is, for a while. */
	u64 rest = td_max64(td_less(payload - back, l->share.demand), payload / (4 * ((u64)l->share.flows + 1)));

	l->share.level = rest / td_max64(l->share.weight, 1);
	return l->share.level;
}

/* Counts what a flow sends. */
TD_INLINE void td_share_commit(struct td_share_state *s, struct td_link *l, u64 rate)
{
	l->share.committed = td_less(l->share.committed + rate, s->committed);
	s->committed = rate;
}

TD_INLINE void td_share_leave(struct td_share_state *s, struct td_link *l)
{
	if (s->status == TD_SHARE_GREEDY)
		l->share.weight = td_less(l->share.weight, s->weight);
	else if (s->status == TD_SHARE_MODEST)
		l->share.demand = td_less(l->share.demand, s->counted);
	if (s->status)
		l->share.flows = td_less(l->share.flows, 1);
	s->status = TD_SHARE_ABSENT;
	td_share_commit(s, l, 0);
}

/* Counts the flow as greedy, or as one that wants no more than `demand` and sends `sends`. */
TD_INLINE void td_share_count(const struct td_flow *f, struct td_share_state *s, struct td_link *l, u32 status, u64 demand, u64 sends)
{
	td_share_leave(s, l);
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

/* What the receiver's window permits, payload bytes/s. */
TD_INLINE u64 td_share_window_rate(const struct td_flow *f)
{
	return f->srtt_us ? (u64)f->snd_wnd * 1000000 / f->srtt_us : ~0ULL;
}

TD_INLINE void td_share_join(const struct td_flow *f, struct td_share_state *s, struct td_link *l, const struct td_event *e)
{
	td_share_count(f, s, l, TD_SHARE_GREEDY, 0, 0);
	/* A pace begins with a segment, not with the wait for one. */
	l->share.excess += f->mss;
	s->since_us = e->now_us;
	s->sent0 = f->sent;
	s->starved = s->acks = 0;
}

/* Decides at the end of a watch, and at any time when the window binds, whether the flow wants all that it can get. */
TD_INLINE void td_share_judge(const struct td_flow *f, struct td_share_state *s, struct td_link *l, const struct td_event *e)
{
	u64 span = e->now_us - s->since_us, window = td_share_window_rate(f), rate;
	u64 mine = l->share.level * s->weight;

	s->acks++;
	s->starved += !f->unsent;
	if (window < mine) {
		if (s->status != TD_SHARE_MODEST || s->demand != window)
			td_share_count(f, s, l, TD_SHARE_MODEST, window, window);
	} else if (s->status == TD_SHARE_MODEST && (s->demand >= mine || !s->starved) && s->acks > 1) {
		/* Its share has come down to what it wants, or data waits at every ACK. */
		td_share_count(f, s, l, TD_SHARE_GREEDY, 0, 0);
	}
	if (span < td_max(td_min(f->srtt_us / 2, 400000), 50000))
		return;
	rate = (f->sent - s->sent0) * 1000000 / span;
	if (s->starved && window >= mine) {
		/*
		 * It wants a quarter more than was seen, so that it can grow; that comes down slowly, since what applications send comes in
		 * bursts. What it does not send is the others', so it is counted with no more than it was seen to send: its own pace is not
		 * bound by that, and what it sends beyond for as long as a watch is a few packets in the queue.
		 */
		u64 demand = td_max64(rate + rate / 4, s->status == TD_SHARE_MODEST ? s->demand - s->demand / 4 : 0);
		u64 sends = s->status == TD_SHARE_MODEST ? (3 * s->counted + rate) / 4 : rate;

		td_share_count(f, s, l, demand < mine ? TD_SHARE_MODEST : TD_SHARE_GREEDY, demand, sends);
	}
	s->since_us = e->now_us;
	s->sent0 = f->sent;
	s->starved = s->acks = 0;
}

/* The 1/65536 of `ratio` bounded to [least, 1]. */
TD_INLINE u32 td_share_part(u64 part, u64 whole, u32 least)
{
	return td_max64(td_min64(td_div(part << 16, whole), TD_SHARE_ONE), least);
}

/* What was delivered becomes the capacity, less what drains a queue of this delay within an epoch. */
TD_INLINE void td_share_correct(const struct td_flow *f, struct td_link *l, u64 span, u32 delay_us, const struct td_share_tunables *t)
{
	u64 wire = l->share.delivered * (f->mss + f->header + l->overhead) / f->mss * 1000000 / span + l->share.other;

	l->share.scale = td_min(l->share.scale, td_share_part(wire, l->capacity * t->capacity_milli / 1000, TD_SHARE_ONE / 64));
	l->share.drain = TD_SHARE_ONE - td_min64(((u64)delay_us << 16) / td_max64(span, 1), TD_SHARE_ONE / 2);
	l->share.phase = TD_SHARE_DRAIN;
	l->share.epochs = 1;
	l->share.step = 0;
}

/* Sends a sixteenth less, to see what that does to the loss. */
TD_INLINE void td_share_test(struct td_link *l)
{
	l->share.phase = TD_SHARE_TEST;
	l->share.epochs = 2;
	l->share.drain = TD_SHARE_ONE - TD_SHARE_ONE / 16;
}

/* Epochs of calm that growing back takes: the less of the capacity is used, the more there is to win, and the sooner it is tried. */
TD_INLINE u32 td_share_calm(const struct td_link *l)
{
	return td_max(td_min(l->share.calm, (u64)l->share.scale * 64 >> 16), 4);
}

/* The way back to the configured capacity: steps that double while neither queue nor loss answers. */
TD_INLINE void td_share_grow(struct td_link *l, int calm, u32 loss)
{
	if (l->share.step && loss > l->share.loss + 150) {
		l->share.scale -= l->share.step;
		l->share.calm = td_min(l->share.calm * 2, 64);
	} else if (calm) {
		if (l->share.epochs)
			return;
		l->share.step = td_max(l->share.step * 2, TD_SHARE_ONE / 100);
		l->share.step = td_min(l->share.step, TD_SHARE_ONE - l->share.scale);
		l->share.scale += l->share.step;
		/* All the way back: this step is watched for as long as a calm takes. */
		l->share.epochs = l->share.step ? 2 : td_share_calm(l);
		return;
	}
	l->share.step = 0;
	l->share.epochs = td_share_calm(l);
}

TD_INLINE void td_share_epoch(const struct td_flow *f, struct td_link *l, const struct td_event *e, const struct td_share_tunables *t)
{
	u64 span = td_less(e->now_us, l->share.since_us);
	u32 rtt = td_max(l->share.most_rtt_us, 1000), delay = l->share.least_delay_us, target = td_max(rtt / 50, 1000);
	u32 loss = td_div(l->share.lost * 10000, l->share.delivered + l->share.lost);

	/* Less than 2 % of a round trip's worth was sent too much: what is lost now is not a newcomer's doing. */
	int settled = l->share.excess * 50 < l->capacity * rtt / 1000000;
	u32 epoch = td_max(delay == TD_SHARE_NO_DELAY ? rtt : rtt + delay, TD_SHARE_LEAST_EPOCH_US);

	/* A test discards the first epoch, which still has the loss of what was sent before, and takes two for one after it. */
	if (l->share.phase == TD_SHARE_TEST && l->share.epochs == 1)
		epoch *= 2;
	if (l->share.since_us && span < epoch)
		return;
	if (!l->share.since_us || !l->share.scale) {
		l->share.scale = l->share.drain = l->share.trim = TD_SHARE_ONE;
		l->share.calm = 4;
		l->share.hope = 8;
		l->share.step = l->share.epochs = l->share.loss = 0;
		l->share.patience = 4;
		l->share.phase = TD_SHARE_STEADY;
	} else if (span < 8ULL * td_max(rtt, TD_SHARE_LEAST_EPOCH_US)) {
		if (delay == TD_SHARE_NO_DELAY)
			delay = 0;
		/* 1 % up without a queue, 10 % down at most. */
		l->share.trim = TD_SHARE_ONE + 655 - td_min64((u64)delay * 655 / target, 655 + 6554);
		if (l->share.epochs)
			l->share.epochs--;
		switch (l->share.phase) {
		case TD_SHARE_STEADY:
			if (delay > td_max(rtt / 16, 4000))
				td_share_correct(f, l, span, delay, t);
			else if (td_min(loss, l->share.loss) > t->loss_milli * 10 && settled && !l->share.patience && !l->share.step)
				td_share_test(l);
			else if (l->share.scale < TD_SHARE_ONE || l->share.step)
				td_share_grow(l, delay < target, loss);
			if (!l->share.step)
				l->share.loss = l->share.loss ? (l->share.loss + loss) / 2 : loss;
			if (l->share.patience)
				l->share.patience--;
			break;
		case TD_SHARE_DRAIN:
			l->share.drain = TD_SHARE_ONE;
			l->share.phase = TD_SHARE_SETTLE;
			l->share.epochs = 1;
			break;
		case TD_SHARE_SETTLE:
			if (delay > td_max(rtt / 16, 4000)) {
				td_share_correct(f, l, span, delay, t);
			} else {
				l->share.phase = TD_SHARE_STEADY;
				l->share.epochs = td_share_calm(l);
			}
			break;
		case TD_SHARE_TEST:
			if (l->share.epochs)
				break;
			/* Of a queue's loss 6 % less sending takes nearly 6 % of what is sent, of the link's own nothing. */
			if (loss * 2 < l->share.loss || loss + 250 < l->share.loss) {
				td_share_correct(f, l, span, 0, t);
				l->share.hope = 8;
			} else {
				l->share.drain = TD_SHARE_ONE;
				l->share.phase = TD_SHARE_STEADY;
				l->share.patience = l->share.hope;
				l->share.hope = td_min(l->share.hope * 2, 512);
			}
			break;
		}
	}
	l->share.since_us = e->now_us;
	l->share.delivered = l->share.lost = 0;
	l->share.least_delay_us = TD_SHARE_NO_DELAY;
	l->share.most_rtt_us = 0;
}

/* Traffic that is not these flows'. It is made room for at once; room that it leaves is taken more slowly. */
TD_INLINE void td_share_others(struct td_link *l, const struct td_event *e)
{
	u64 span = td_less(e->now_us, l->share.looked_us), other;

	if (l->share.looked_us && span < TD_SHARE_LEAST_EPOCH_US)
		return;
	if (l->share.looked_us && l->foreign >= l->share.foreign0) {
		other = (l->foreign - l->share.foreign0) * 1000000 / span;
		l->share.other = td_max64(other, (other + l->share.other) / 2);
	}
	l->share.looked_us = e->now_us;
	l->share.foreign0 = l->foreign;
}

TD_INLINE void td_share_ack(struct td_flow *f, struct td_share_state *s, struct td_link *l, const struct td_event *e,
			    const struct td_share_tunables *t)
{
	if (e->rtt_us) {
		s->base_us = s->base_us ? td_min(s->base_us, e->rtt_us) : e->rtt_us;
		/*
		 * At a low pace every ACK is held back, which is no queue: what came of taking it for one would never end. Where segments
		 * are less than 20 ms apart the next one comes before a receiver's timer: it acknowledges each at once.
		 */
		if (!(e->flags & TD_HELD) || (u64)f->in_flight * 20000 > f->srtt_us)
			l->share.least_delay_us = td_min(l->share.least_delay_us, e->rtt_us - s->base_us);
		l->share.most_rtt_us = td_max(l->share.most_rtt_us, s->base_us);
	}
	l->share.delivered += (u64)e->acked * f->mss;
	l->share.lost += (u64)e->lost * f->mss;
	td_share_others(l, e);
	td_share_epoch(f, l, e, t);

	if (!f->unsent && ((e->flags & TD_LAST) || !f->in_flight)) {
		td_share_leave(s, l);
		return;
	}
	if (!s->status)
		td_share_join(f, s, l, e);
	td_share_level(f, l, t);
	td_share_judge(f, s, l, e);
}

TD_INLINE void td_share_apply(struct td_flow *f, struct td_share_state *s, struct td_link *l, const struct td_share_tunables *t)
{
	u32 mss = td_max(f->mss, 1);

	s->rate = td_max64(td_share_level(f, l, t) * td_max(f->weight, 1), mss);
	if (s->status)
		td_share_commit(s, l, s->status == TD_SHARE_MODEST ? td_min64(s->counted, s->rate) : s->rate);
	f->pacing_rate = s->rate * td_share_haste(f, l) >> 16;
	f->cwnd = td_min64((s->rate * 5 / 4 * f->srtt_us / 1000000 + s->rate / 20) / mss + 10, TD_INFINITE);
	f->ssthresh = f->cwnd;
}

TD_INLINE void td_share(struct td_flow *f, struct td_share_state *s, struct td_link *l, const struct td_event *e,
			const struct td_share_tunables *t)
{
	if (e->kind == TD_INIT) {
		s->rate = s->committed = s->demand = s->counted = s->since_us = s->sent0 = 0;
		s->status = s->starved = s->acks = s->base_us = s->weight = s->credit = 0;
	}
	if (!l || !l->capacity) {
		struct td_window w = { .credit = s->credit };

		td_window_unknown(f, &w, e);
		s->credit = w.credit;
		return;
	}
	td_share_settle(f, l, e->now_us, t);
	if (e->kind == TD_ACK) {
		td_share_ack(f, s, l, e, t);
	} else if (e->kind == TD_RESTART) {
		if (!s->status) {
			td_share_join(f, s, l, e);
			td_share_level(f, l, t);
			if (td_share_window_rate(f) < l->share.level * s->weight)
				td_share_count(f, s, l, TD_SHARE_MODEST, td_share_window_rate(f), td_share_window_rate(f));
		}
	} else if (e->kind == TD_CLOSE) {
		td_share_leave(s, l);
		return;
	}
	td_share_apply(f, s, l, t);
}

#endif
