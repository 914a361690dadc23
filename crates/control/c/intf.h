/*
 * The border between a congestion controller and whatever carries it out: the kernel (BPF), the simulator, a test.
 *
 * A controller is one header with one function, `td_NAME(flow, state, link, event, tunables)`. It reads what TCP says of the
 * flow, what the monitor says of the link and what just happened, and writes the flow's cwnd, ssthresh and pacing rate, its own
 * state, and the controllers' part of the link's record. It calls nothing, reads no clock and knows no socket.
 *
 * All is integer: no floats, no signed division, every loop bounded, so that BPF takes it. Times are microseconds, rates bytes a
 * second, windows segments, unless a name says otherwise. The structs are plain, their layout is the same in Rust (src/ffi.rs).
 */
#ifndef TD_INTF_H
#define TD_INTF_H

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define TD_INLINE static inline __attribute__((always_inline, unused))

/* A window without bound, as ssthresh is at the start. */
#define TD_INFINITE 0x7fffffffU

/* One connection. */
struct td_flow {
	/* What TCP says. */
	u32 mss;	/* payload of a full segment, bytes */
	u32 srtt_us;	/* smoothed RTT; 0: none was measured yet */
	u32 min_rtt_us;	/* least RTT as TCP remembers it; 0: none was measured yet */
	u32 in_flight;	/* segments sent that are neither acknowledged nor SACKed nor counted lost */
	u32 una;	/* sequence number of the first byte that is not acknowledged */
	u32 nxt;	/* sequence number of the next byte that was never sent */
	u32 unsent;	/* bytes that wait in the socket to be sent for the first time */
	u32 snd_wnd;	/* bytes that the receiver lets be in flight */
	u32 prior_cwnd;	/* cwnd before the last reduction */
	u32 weight;	/* of its share; 0 counts as 1 */
	u32 header;	/* bytes of the IP and TCP headers of a segment */
	u32 reserved;
	u64 sent;	/* payload bytes sent so far, again or for the first time */
	/* What the controller decides. */
	u32 cwnd;
	u32 ssthresh;
	u64 pacing_rate; /* payload bytes/s; 0: as TCP paces by itself */
};

enum td_kind {
	TD_INIT,	/* the flow begins, or takes this controller in mid-flight */
	TD_SAMPLE,	/* an ACK delivered something or measured an RTT, whatever the state; before TD_ACK of the same ACK */
	TD_ACK,		/* an ACK after which the window may grow; for controllers of the whole window (TD_WHOLE): every ACK */
	TD_LOSS,	/* a loss, or an echoed CE mark, begins a recovery: sets ssthresh */
	TD_TIMEOUT,	/* the retransmission timer fired: sets ssthresh; cwnd is TCP's to reset */
	TD_RECOVERED,	/* recovery is over */
	TD_UNDO,	/* the reduction was needless: sets cwnd */
	TD_RESTART,	/* data is sent when nothing was in flight */
	TD_CLOSE,	/* the flow ends, or takes another controller */
};

enum td_flag {
	TD_LIMITED = 1,	 /* cwnd kept the flow from sending more */
	TD_ECHO = 2,	 /* the ACK echoes a CE mark */
	TD_LAST = 4,	 /* no byte will ever follow those that were written */
	TD_HELD = 8,	 /* the receiver may have held the ACK back (RFC 1122 §4.2.3.2): one segment, in order */
};

/* What happened. */
struct td_event {
	u64 now_us;	/* a clock that only goes forward */
	u32 kind;	/* enum td_kind */
	u32 flags;	/* enum td_flag */
	u32 acked;	/* segments delivered by it, by acknowledgement or SACK */
	u32 marked;	/* of those: marked CE on their way, where the receiver tells */
	u32 rtt_us;	/* RTT that it measured; 0: none */
	u32 lost;	/* segments that it showed to be lost */
};

/*
 * One egress link, shared by its flows. Whoever configures the link sets the first part, the monitor writes the second;
 * the rest is the controllers' own, each with its part.
 */
struct td_link {
	/* Configured. */
	u64 capacity;	/* wire bytes/s; 0: not known, and controllers that need it behave as NewReno */
	u32 overhead;	/* wire bytes of a packet beside IP's */
	u32 local;	/* 1: the queue before the bottleneck is this host's own */
	/* The monitor's. */
	u64 egress;	/* wire bytes that have left */
	u64 foreign;	/* of those: not of flows under share */
	u64 queue;	/* persistent queue: least backlog lately, bytes */
	u64 backlog;	/* bytes that wait now */
	u64 drops;	/* packets that found no room, where the queue is this host's own */
	u64 seen_us;	/* when it last looked */
	/* XCP: the running control interval, what the last one handed out, what is left of that. */
	struct {
		u64 since_us, egress0;
		u64 acked, time, weighed;	/* bytes acknowledged; sum of time shares, us; the same weighed by RTT, us^2 */
		u64 last_acked, last_time;
		u64 give, take;			/* F+ and F-, bytes */
		u64 give_left, take_left;
		u32 interval_us;		/* d */
		u32 flows_milli;		/* window-limited flows, thousandths (N' = W'/d) */
		u64 begun;			/* what newcomers of this interval began with, bytes */
		u64 owed, left;			/* what the others owe them yet; what those that ended left and nobody has yet */
		u32 flows;			/* that have something to send */
		u32 reserved;
	} xcp;
	/* VCP, MLCP, MPCP. */
	struct {
		u64 since_us, egress0;
		u32 load_milli;			/* sigma, thousandths */
		u32 reserved;
	} mpcp;
	/* share: see share.h. */
	struct {
		u64 weight;		/* sum of the weights of the flows that take what they get */
		u64 demand;		/* sum of what the others want, payload bytes/s */
		u64 level;		/* rate of a greedy flow of weight 1, payload bytes/s */
		u64 committed;		/* what the flows send together, payload bytes/s */
		u64 excess, settled_us;	/* what was sent beyond what is there, payload bytes */
		u64 other;		/* wire bytes/s of traffic that is not these flows' */
		u64 since_us;		/* the running epoch */
		u64 looked_us, foreign0; /* when other traffic was last measured */
		u64 delivered, lost;	/* payload bytes of all flows in it */
		u32 least_delay_us;	/* least queueing delay seen in it */
		u32 most_rtt_us;	/* largest of the flows' least RTTs seen in it */
		u32 flows;		/* that have something to send */
		u32 scale;		/* what is there over what was configured, 2^-16 */
		u32 drain;		/* what of that is used, so that a queue goes away, 2^-16 */
		u32 trim;		/* and what more or less keeps a trace of a queue, 2^-16 */
		u32 phase, epochs;	/* what is being done about a wrong capacity, for how many epochs more */
		u32 calm;		/* epochs of calm that growing back takes */
		u32 patience, hope;	/* epochs until loss is put to the test again, and how many the next time */
		u32 loss;		/* what it is lately, before a step or a test, 1/10000 */
		u32 step;		/* the last that it grew back by, 2^-16 */
		u32 reserved;
	} share;
};

/* A controller's own state of a flow: of the 104 bytes that Linux grants (ICSK_CA_PRIV_SIZE) all but the carrier's own 8. */
#define TD_STATE_BYTES 96

/*
 * Which of the events that cost something a controller wants to hear of, and whether it can't do without ECN or asks for weights:
 * td_NAME_WANTS.
 */
#define TD_WANTS_SAMPLE 1
#define TD_WANTS_RESTART 2
#define TD_WANTS_RECOVERED 4
#define TD_WANTS_ECN 8
#define TD_WANTS_WEIGHT 16

/*
 * A controller's tunables are u32, listed once as `#define td_NAME_TUNABLES(T) T(name, default, "what it is")`. From the
 * list come the struct, its defaults, and the table that tells names and defaults to those who set them.
 */
#define TD_TUNABLE_FIELD(name, value, text) u32 name;
#define TD_TUNABLE_VALUE(name, value, text) .name = (value),
#define TD_CONTROLLER(name)                                                                     \
	struct td_##name##_tunables {                                                           \
		td_##name##_TUNABLES(TD_TUNABLE_FIELD)                                          \
	};                                                                                      \
	_Static_assert(sizeof(struct td_##name##_state) <= TD_STATE_BYTES, "too much state")

TD_INLINE u32 td_min(u32 a, u32 b) { return a < b ? a : b; }
TD_INLINE u32 td_max(u32 a, u32 b) { return a > b ? a : b; }
TD_INLINE u64 td_min64(u64 a, u64 b) { return a < b ? a : b; }
TD_INLINE u64 td_max64(u64 a, u64 b) { return a > b ? a : b; }
/* a - b, no less than 0. */
TD_INLINE u64 td_less(u64 a, u64 b) { return a > b ? a - b : 0; }
/* a / b, and 0 where there is nothing to divide by. */
TD_INLINE u64 td_div(u64 a, u64 b) { return b ? a / b : 0; }
/* Whether sequence number a is before b (RFC 9293 §3.4: modulo 2^32). */
TD_INLINE int td_before(u32 a, u32 b) { return (u32)(a - b) > 0x7fffffffU; }

/* Whether a round trip is over: what was sent when the last one ended is acknowledged. `end` is the caller's to keep. */
TD_INLINE int td_round_over(const struct td_flow *f, u32 *end)
{
	if (td_before(f->una, *end))
		return 0;
	*end = f->nxt;
	return 1;
}

#endif
