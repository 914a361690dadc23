/*
 * The interface between a congestion controller and its host: the kernel (BPF), the simulator, or a
 * test.
 *
 * A controller is one header with one function, `td_NAME(flow, state, link, event, tunables)`. It
 * reads the flow as TCP sees it, the link record of the egress monitor, and the event. It writes
 * the flow's cwnd, ssthresh and pacing rate, its own state, and its part of the link record. It
 * calls nothing, reads no clock and knows no socket.
 *
 * The first event of a flow is TD_INIT; from then on the state is the controller's own. The last
 * event is TD_CLOSE for a controller that owns the window; in the kernel the others are not told of
 * the end of a flow. The link may be null.
 *
 * All arithmetic is integer, without signed division, and every loop is bounded, so that the BPF
 * verifier accepts it. Times are microseconds, rates bytes/s and windows segments, unless the name
 * has another unit. The layout of the structs is the same in Rust (src/ffi.rs).
 */
#ifndef TD_INTF_H
#define TD_INTF_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define TD_INLINE static inline __attribute__((always_inline, unused))

/* An unbounded window: the initial ssthresh. */
#define TD_INFINITE 0x7fffffffU

/* One connection. */
struct td_flow {
	/* Set by TCP. */
	u32 mss;	/* payload of a full segment, bytes */
	u32 srtt_us;	/* smoothed RTT; 0: not measured yet */
	u32 min_rtt_us;	/* TCP's windowed minimum RTT; 0: not measured yet */
	u32 in_flight;	/* segments sent and neither acknowledged, SACKed nor marked lost */
	u32 una;	/* SND.UNA: first unacknowledged sequence number */
	u32 nxt;	/* SND.NXT: next sequence number to send */
	u32 unsent;	/* bytes in the socket that were never sent */
	u32 snd_wnd;	/* the receiver's window, bytes */
	u32 prior_cwnd;	/* cwnd before the last reduction */
	u32 weight;	/* weight of its share of the capacity; 0 counts as 1 */
	u32 header;	/* IP and TCP headers of a segment, bytes */
	u32 ca_state;	/* enum td_ca_state; for controllers that want rate samples, as the next five */
	u32 delivered;	/* segments delivered so far, modulo 2^32 */
	u32 lost;	/* segments marked lost so far, modulo 2^32 */
	u32 marked;	/* segments so far that were delivered by ACKs with an ECN echo, modulo 2^32 */
	u32 app_limited; /* 1: within the last round trip there was no data to send */
	u32 pacing_wait_us; /* time until pacing permits the next segment */
	u32 reserved;
	u64 sent;	/* payload bytes sent so far, retransmissions included */
	/* Set by the controller. */
	u32 cwnd;
	u32 ssthresh;
	u64 pacing_rate; /* payload bytes/s; 0: TCP's own pacing. With rate samples it comes in as it is. */
};

/* TCP's congestion state, as in Linux. */
enum td_ca_state { TD_CA_OPEN, TD_CA_DISORDER, TD_CA_CWR, TD_CA_RECOVERY, TD_CA_LOSS };

enum td_event_kind {
	TD_INIT,	/* the flow starts, or switches to this controller */
	TD_SAMPLE,	/* an ACK delivered data or measured an RTT, in any state; comes before its TD_ACK */
	TD_ACK,		/* an ACK after which the window may grow; for controllers that own the window: every ACK */
	TD_LOSS,	/* a loss, or an ECN echo, starts a recovery: set ssthresh */
	TD_TIMEOUT,	/* the retransmission timer expired: set ssthresh; TCP resets cwnd */
	TD_RECOVERED,	/* the recovery has ended */
	TD_UNDO,	/* the reduction was spurious: set cwnd */
	TD_RESTART,	/* data is sent after nothing was in flight */
	TD_CLOSE,	/* the flow ends, or switches to another controller */
};

enum td_event_flag {
	TD_CWND_LIMITED = 1,	/* cwnd limited what the flow sent */
	TD_ECN_ECHO = 2,	/* the ACK echoes a CE mark */
	TD_NO_MORE_DATA = 4,	/* the application has closed its sending side */
	TD_DELAYED_ACK = 8,	/* the receiver may have delayed the ACK (RFC 1122 §4.2.3.2): it is for one segment, in order */
	TD_APP_LIMITED = 16,	/* the rate sample is limited by the application */
	TD_LONE_RUNT = 32,	/* the ACK is for a lone segment that is not full: the receiver has probably delayed it */
	TD_TIMESTAMP = 64,	/* the ACK has a timestamp: see return_ms */
};

/* An event. */
struct td_event {
	u64 now_us;	/* a monotonic clock */
	u32 kind;	/* enum td_event_kind */
	u32 flags;	/* enum td_event_flag */
	u32 acked;	/* segments newly acknowledged or SACKed */
	u32 marked;	/* of those, segments with a CE mark, if the receiver reports it */
	u32 rtt_us;	/* RTT sample; 0: none */
	u32 lost;	/* segments newly marked lost */
	/* The rate sample of an ACK (draft-ietf-ccwg-bbr §4.1), for controllers that want it. */
	u32 interval_us; /* time over which it was measured; 0: no sample */
	u32 sampled;	/* segments delivered since its segment was sent; 0: the ACK delivered nothing */
	u32 prior_delivered; /* `delivered` of the flow when its segment was sent */
	u32 prior_in_flight; /* segments in flight before the ACK */
	u32 random;	/* a random number, new at each event */
	/*
	 * With TD_TIMESTAMP: when the ACK arrived, less the receiver's clock when it was sent
	 * (TSval, RFC 7323), ms modulo 2^32. The clocks have an unknown offset, so only
	 * differences count.
	 */
	u32 return_ms;
};

/* Whether share estimates the capacity of a link. */
enum td_estimate_use {
	TD_ESTIMATE_OFF,	/* no: it is configured, or unknown */
	TD_ESTIMATE_CONFIGURED,	/* yes, as configured */
	TD_ESTIMATE_FALLBACK,	/* yes, since the configured capacity has turned out to be wrong */
};

/* The estimate of a link's capacity, for share: see estimate.h. Bytes are wire bytes. */
struct td_estimate {
	u64 since_us;		/* start of the current interval; 0: no flow has measured an RTT yet */
	u64 delivered, lost;	/* bytes of all flows in the interval */
	u64 rate;		/* smoothed delivery rate of all flows, bytes/s */
	u64 mean;		/* the same over a longer time, bytes/s */
	/* Its maximum in the current period of 1.5 base RTTs, and in the last one. */
	u64 peak, last_peak;
	u64 peak_since_us;	/* start of that period */
	u64 recent_delivered, recent_lost; /* decaying sums, bytes */
	u64 base_since_us;	/* start of the current period of the base RTT */
	u64 drain_until_us;	/* end of the drain that ends that period; 0: it has not begun */
	u64 settle_until_us;	/* time until which an empty queue may come from the last drain */
	u32 enabled;		/* enum td_estimate_use */
	u32 min_delay_us;	/* least queueing delay in the interval, of flows that have met an empty queue */
	u32 new_delay_us;	/* the same of the other flows */
	u32 base_us;		/* largest base RTT of a flow, of those with an ACK in the last interval */
	u32 next_base_us;	/* the same for the current interval */
	u32 target_us;		/* target of the queueing delay */
	u32 growth;		/* growth of the estimate without a queue, 1/1024 per base RTT */
	u32 queued;		/* 1: a queue has been seen */
	u32 empty;		/* 1: and an empty one in the current period of the base RTT */
	u32 drained_us;		/* reduction of the windows during a drain, as time */
	u32 base_period;	/* odd during a drain; after one that met no empty queue it is another even number */
	u32 empties;		/* intervals without a queue so far */
	u32 last_delay_us;	/* min_delay_us of the last interval; 0: none */
	u32 joined;		/* 1: flows have started beside others since the last drain */
	u32 late_delay_us;	/* the same of ACKs that may be delayed, less the longest wait of one */
	u32 met;		/* 1: in slow start, a queue was measured in every interval since `peak_since_us` */
	/* A configured capacity that is wrong: see fallback.h. */
	u64 told;		/* configured capacity that the estimate replaces, bytes/s */
	/* Since when the link has had about that rate (0: it has not); once it is used again: since when. */
	u64 told_since_us;
	u64 told_wait_us;	/* how long it has to have it until it is used again */
};

/*
 * The record of one egress link, shared by its flows: its configuration, the monitor's
 * measurements, and a part for each controller.
 */
struct td_link {
	/* Configured. */
	u64 capacity;	/* wire bytes/s, or the estimate; 0: unknown, controllers that need it then behave as NewReno */
	u32 overhead;	/* link-layer overhead of a packet, bytes */
	u32 local;	/* 1: the bottleneck queue is on this host */
	/* Measured by the monitor. */
	u64 egress;	/* wire bytes that have left */
	u64 foreign;	/* of those, bytes of flows that do not use share */
	u64 queue;	/* persistent queue: recent minimum of the backlog, bytes */
	u64 backlog;	/* bytes queued now */
	u64 drops;	/* packets dropped at the queue on this host */
	u64 measured_us; /* time of the last measurement */
	/* XCP: the current control interval, and the feedback of the last one. */
	struct {
		u64 since_us, egress0;		/* start of the interval; egress at that time */
		u64 acked, time, time_rtt;	/* bytes acknowledged; sum of time shares, us; the same times RTT, us^2 */
		u64 last_acked, last_time;	/* A' and W': those of the last interval */
		u64 give, take;			/* F+ and F-, bytes */
		u64 give_left, take_left;	/* not yet handed out, bytes */
		u32 interval_us;		/* d */
		u32 flows_milli;		/* window-limited flows, thousandths (N' = W'/d) */
		u64 granted;			/* windows granted to new flows in this interval, bytes */
		u64 owed, freed;		/* bytes that other flows must still yield to them; bytes freed by flows that ended */
		u32 flows;			/* flows with data to send */
		u32 reserved;
	} xcp;
	/* VCP, MLCP, MPCP. */
	struct {
		u64 since_us, egress0;		/* start of the interval; egress at that time */
		u32 load_milli;			/* load factor sigma, thousandths */
		u32 reserved;
	} mpcp;
	/* share: see share.h. */
	struct {
		u64 weight;		/* sum of the weights of greedy flows */
		u64 demand;		/* sum of the demands of demand-limited flows, payload bytes/s */
		u64 level;		/* rate of a greedy flow of weight 1, payload bytes/s */
		u64 committed;		/* rate of all flows together, payload bytes/s */
		u64 excess, excess_us;	/* payload bytes sent beyond the capacity, and when that was computed */
		u64 cross_rate;		/* cross traffic, wire bytes/s */
		u64 since_us;		/* start of the current epoch */
		u64 measured_us, foreign0; /* last measurement of cross traffic: time, `foreign` */
		u64 delivered, lost;	/* payload bytes of all flows in the epoch */
		u32 min_delay_us;	/* minimum queueing delay in the epoch */
		u32 max_base_rtt_us;	/* largest base RTT of a flow in the epoch */
		u32 flows;		/* flows with data to send */
		u32 scale;		/* estimated over configured capacity, 2^-16 */
		u32 drain;		/* fraction of that in use: a queue drains, or more is tried, 2^-16 */
		u32 trim;		/* factor that keeps a small queue, 2^-16 */
		u32 phase, epochs;	/* phase of the capacity correction, and its remaining epochs */
		u32 regrow_wait;	/* epochs without queue and loss before the scale grows back */
		u32 test_wait, next_test_wait; /* epochs until the next loss test, and the wait after that */
		u32 loss;		/* recent loss before a step or test, 1/10000 */
		u32 step;		/* last step by which the scale grew back, 2^-16 */
		u32 more_wait, next_more_wait; /* epochs until more is tried, and the wait after that */
		u32 last_delay_us;	/* delay in the last epoch or interval; TD_SHARE_NO_DELAY: none */
		/* One-way delay of ACKs less the least one, of recent flows, and when: return_path.h. */
		u32 longer_us, longer_ms;
	} share;
	struct td_estimate estimate;	/* see estimate.h */
};

/* Size of a controller's state of a flow: the 104 bytes of ICSK_CA_PRIV_SIZE less 8 for the hooks. */
#define TD_STATE_BYTES 96
/* The same for a controller that wants more, which the kernel keeps in a map of sockets. */
#define TD_STORAGE_BYTES 640

/*
 * td_NAME_WANTS: which optional events a controller needs, whether it needs ECN, and whether flows
 * have weights. With TD_WANTS_RATE it owns the window, does not know the link, and is told what
 * Linux tells a controller with cong_control: rate samples, the congestion state, the expired
 * timer (TD_TIMEOUT, when cwnd has been reset) and spurious losses (TD_UNDO).
 */
#define TD_WANTS_SAMPLE 1
#define TD_WANTS_RESTART 2
#define TD_WANTS_RECOVERED 4
#define TD_WANTS_ECN 8
#define TD_WANTS_WEIGHT 16
#define TD_WANTS_RATE 32
#define TD_WANTS_STORAGE 64
/* A receiver under this controller echoes the mark of each segment (RFC 8257 §3.2). */
#define TD_WANTS_ECHO 128
/* What the hooks keep for such a receiver, at the end of the controller's state, bytes. */
#define TD_ECHO_BYTES 8

/*
 * A controller's tunables are u32, listed once as `#define td_NAME_TUNABLES(T) T(name, default,
 * lowest, highest, "text")`. The struct, its defaults, and the table of names and ranges come from
 * this list.
 */
#define TD_TUNABLE_FIELD(name, value, low, high, text) u32 name;
#define TD_TUNABLE_VALUE(name, value, low, high, text) .name = (value),
#define TD_CONTROLLER(name)                                                                     \
	struct td_##name##_tunables {                                                           \
		td_##name##_TUNABLES(TD_TUNABLE_FIELD)                                          \
	};                                                                                      \
	_Static_assert(sizeof(struct td_##name##_state) + (td_##name##_WANTS & TD_WANTS_ECHO ? TD_ECHO_BYTES : 0) <= \
			       (td_##name##_WANTS & TD_WANTS_STORAGE ? TD_STORAGE_BYTES : TD_STATE_BYTES), \
		       "too much state")

TD_INLINE u32 td_min(u32 a, u32 b) { return a < b ? a : b; }
TD_INLINE u32 td_max(u32 a, u32 b) { return a > b ? a : b; }
TD_INLINE u64 td_min64(u64 a, u64 b) { return a < b ? a : b; }
TD_INLINE u64 td_max64(u64 a, u64 b) { return a > b ? a : b; }
/* a - b, saturating at 0. */
TD_INLINE u64 td_sub_sat(u64 a, u64 b) { return a > b ? a - b : 0; }
/* a / b, or 0 if b is 0. */
TD_INLINE u64 td_div(u64 a, u64 b) { return b ? a / b : 0; }
/* Whether sequence number a is before b, modulo 2^32 (RFC 9293 §3.4). */
TD_INLINE int td_before(u32 a, u32 b) { return (u32)(a - b) > 0x7fffffffU; }

/*
 * Between the steps of a long computation: what follows reads its state anew. The BPF verifier would
 * otherwise follow every combination of the values that it knows from the branches before.
 */
#define td_step_ends() __asm__ volatile("" : : : "memory")

/* Whether a round trip has ended: all data sent before the end of the last one is acknowledged. `end` is kept by the caller. */
TD_INLINE int td_round_ended(const struct td_flow *f, u32 *end)
{
	if (td_before(f->una, *end))
		return 0;
	*end = f->nxt;
	return 1;
}

#endif
