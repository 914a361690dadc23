/*
 * Hooks of a controller that implements cong_avoid: TCP asks it for ssthresh and for window growth,
 * and does recovery (PRR), timeouts and pacing itself. Included with TD_NAME defined.
 */
#include "tcp.h"

/* Passes an event to the controller; evaluates to the flow with its decisions, which the caller applies. */
#define DISPATCH(sk, kind_, acked_, rtt_, flags_, marked_)                                                                      \
	({                                                                                                                  \
		struct td_flow f = {};                                                                                      \
		struct td_event e = { .now_us = td_tcp(sk)->tcp_mstamp, .kind = (kind_), .acked = (acked_), .rtt_us = (rtt_),              \
				      .flags = (flags_), .marked = (marked_) };                                             \
		td_read_socket(sk, &f);                                                                                            \
		TD_STEP(&f, td_state(sk), (void *)0, &e, td_tunables());                                                     \
		f;                                                                                                          \
	})

/* State of these hooks, behind the controller's state of the socket: counters at the last ACK. */
struct td_hook_state {
	u32 delivered, delivered_ce;
};

TD_INLINE struct td_hook_state *td_hook_state(struct sock *sk)
{
	return (struct td_hook_state *)((char *)td_state(sk) + TD_STATE_BYTES);
}

#if TD_WANTS_OF(TD_WANTS_ECHO)
/* State of a receiver, at the end of the controller's state. */
struct td_echo_state {
	u32 rcv_nxt;	/* end of the data that had arrived before the last segment */
	u32 marked;	/* whether that segment was marked */
};

TD_INLINE struct td_echo_state *td_echo_state(struct sock *sk)
{
	return (struct td_echo_state *)((char *)td_hook_state(sk) - TD_ECHO_BYTES);
}

TD_INLINE void td_set_echo(struct tcp_sock *tp, u32 marked)
{
	if (marked)
		tp->ecn_flags |= TCP_ECN_DEMAND_CWR;
	else
		tp->ecn_flags &= ~TCP_ECN_DEMAND_CWR;
}

/*
 * A segment has arrived, marked or not. An ACK echoes the mark of the segments that it acknowledges
 * (RFC 8257 §3.2). When a segment differs from those before it, a delayed ACK for these is sent
 * first.
 */
TD_INLINE void td_echo_segment(struct sock *sk, u32 marked)
{
	struct tcp_sock *tp = td_tcp(sk);
	struct td_echo_state *echo = td_echo_state(sk);

	if (echo->marked != marked) {
		if (tp->inet_conn.icsk_ack.pending & ICSK_ACK_TIMER) {
			td_set_echo(tp, echo->marked);
			bpf_tcp_send_ack(tp, echo->rcv_nxt);
		}
		tp->inet_conn.icsk_ack.pending |= ICSK_ACK_NOW;
	}
	echo->rcv_nxt = tp->rcv_nxt;
	echo->marked = marked;
	td_set_echo(tp, marked);
}
#endif

TD_INLINE void td_apply(struct sock *sk, const struct td_flow *f)
{
	struct tcp_sock *tp = td_tcp(sk);

	if (tp->snd_cwnd != f->cwnd)
		tp->snd_cwnd = td_max(f->cwnd, 1);
	if (tp->snd_ssthresh != f->ssthresh)
		tp->snd_ssthresh = f->ssthresh;
}

SEC("struct_ops")
void BPF_PROG(td_init, struct sock *sk)
{
	struct td_flow f = DISPATCH(sk, TD_INIT, 0, 0, 0, 0);
	struct td_hook_state *c = td_hook_state(sk);

	c->delivered = td_tcp(sk)->delivered;
	c->delivered_ce = td_tcp(sk)->delivered_ce;
#if TD_WANTS_OF(TD_WANTS_ECHO)
	td_echo_state(sk)->rcv_nxt = td_tcp(sk)->rcv_nxt;
	td_echo_state(sk)->marked = 0;
#endif
	td_apply(sk, &f);
}

SEC("struct_ops")
void BPF_PROG(td_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	struct td_flow f = DISPATCH(sk, TD_ACK, acked, 0, td_cwnd_limited(sk), 0);

	td_apply(sk, &f);
}

#if TD_WANTS_OF(TD_WANTS_SAMPLE)
SEC("struct_ops")
void BPF_PROG(td_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	struct tcp_sock *tp = td_tcp(sk);
	struct td_hook_state *c = td_hook_state(sk);
	/* By `delivered`, segments count when they are SACKed, and not again when they are acknowledged. */
	u32 acked = tp->delivered - c->delivered, marked = tp->delivered_ce - c->delivered_ce;
	struct td_flow f;

	c->delivered = tp->delivered;
	c->delivered_ce = tp->delivered_ce;
	f = DISPATCH(sk, TD_SAMPLE, acked, sample->rtt_us > 0 ? sample->rtt_us : 0, 0, marked);
	td_apply(sk, &f);
}
#endif

SEC("struct_ops")
__u32 BPF_PROG(td_ssthresh, struct sock *sk)
{
	/* If nothing is lost, an ECN echo alone started the recovery. */
	struct td_flow f = DISPATCH(sk, TD_LOSS, 0, 0, td_tcp(sk)->lost_out ? 0 : TD_ECN_ECHO, 0);

	return f.ssthresh;
}

SEC("struct_ops")
__u32 BPF_PROG(td_undo_cwnd, struct sock *sk)
{
	struct td_flow f = DISPATCH(sk, TD_UNDO, 0, 0, 0, 0);

	return f.cwnd;
}

SEC("struct_ops")
void BPF_PROG(td_cwnd_event, struct sock *sk, enum tcp_ca_event ev)
{
	if (ev == CA_EVENT_LOSS) {
		/* TCP has just called ssthresh, as for any loss. The window is still unchanged. */
		struct td_flow f = DISPATCH(sk, TD_TIMEOUT, 0, 0, 0, 0);

		td_tcp(sk)->snd_ssthresh = f.ssthresh;
	}
#if TD_WANTS_OF(TD_WANTS_RESTART)
	if (ev == CA_EVENT_TX_START)
		DISPATCH(sk, TD_RESTART, 0, 0, 0, 0);
#endif
#if TD_WANTS_OF(TD_WANTS_ECHO)
	if (ev == CA_EVENT_ECN_IS_CE || ev == CA_EVENT_ECN_NO_CE)
		td_echo_segment(sk, ev == CA_EVENT_ECN_IS_CE);
#endif
}

#if TD_WANTS_OF(TD_WANTS_RECOVERED)
SEC("struct_ops")
void BPF_PROG(td_set_state, struct sock *sk, __u8 state)
{
	struct inet_connection_sock *icsk = &td_tcp(sk)->inet_conn;

	if (state < TCP_CA_CWR && BPF_CORE_READ_BITFIELD(icsk, icsk_ca_state) >= TCP_CA_CWR)
		DISPATCH(sk, TD_RECOVERED, 0, 0, 0, 0);
}
#endif

SEC(".struct_ops.link")
struct tcp_congestion_ops TD_OPS = {
	.init = (void *)td_init,
	.cong_avoid = (void *)td_cong_avoid,
#if TD_WANTS_OF(TD_WANTS_SAMPLE)
	.pkts_acked = (void *)td_pkts_acked,
#endif
	.ssthresh = (void *)td_ssthresh,
	.undo_cwnd = (void *)td_undo_cwnd,
	.cwnd_event = (void *)td_cwnd_event,
#if TD_WANTS_OF(TD_WANTS_RECOVERED)
	.set_state = (void *)td_set_state,
#endif
	.name = TD_KERNEL_NAME,
	.flags = TD_FLAGS,
};
