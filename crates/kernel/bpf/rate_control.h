/*
 * Hooks of a controller that wants rate samples (TD_WANTS_RATE): as cong_control.h, without a link,
 * and with what TCP tells such a controller of Linux. Included with TD_NAME defined.
 *
 * TCP has no per-segment record for a controller: what it did not keep of a segment in flight the
 * controller has to keep itself.
 */
#include "cong_control_call.h"

#if TD_WANTS_OF(TD_WANTS_STORAGE)
/* States that are too large for the socket. */
struct td_storage {
	u64 words[TD_STORAGE_BYTES / 8];
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct td_storage);
} td_states SEC(".maps");

#define TD_STATE_OF(sk, flags) ((void *)bpf_sk_storage_get(&td_states, sk, 0, flags))
#else
#define TD_STATE_OF(sk, flags) td_state(sk)
#endif
#define TD_CREATE 1 /* BPF_SK_STORAGE_GET_F_CREATE */

TD_INLINE void td_dispatch(struct sock *sk, struct td_event *e)
{
	struct tcp_sock *tp = td_tcp(sk);
	struct td_flow f = {};
	void *state;

	/* TCP calls hooks for the SYN and its answer before init. */
	if (e->kind != TD_INIT && !BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_initialized))
		return;
	state = TD_STATE_OF(sk, e->kind == TD_INIT ? TD_CREATE : 0);
	if (!state)
		return;
	e->now_us = tp->tcp_mstamp;
	e->random = bpf_get_prandom_u32();
	td_read_socket(sk, &f);
	f.ca_state = BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_state);
	f.delivered = tp->delivered;
	f.lost = tp->lost;
	f.marked = tp->delivered_ce;
	f.app_limited = !!tp->app_limited;
	f.pacing_wait_us = td_sub_sat(tp->tcp_wstamp_ns, tp->tcp_clock_cache) / 1000;
	f.pacing_rate = sk->sk_pacing_rate;
	TD_STEP(&f, state, (struct td_link *)0, e, td_tunables());

	if (tp->snd_cwnd != f.cwnd)
		tp->snd_cwnd = td_max(f.cwnd, 1);
	if (tp->snd_ssthresh != f.ssthresh)
		tp->snd_ssthresh = f.ssthresh;
	sk->sk_pacing_rate = td_min64(f.pacing_rate, sk->sk_max_pacing_rate);
	if (sk->sk_pacing_status == SK_PACING_NONE)
		sk->sk_pacing_status = SK_PACING_NEEDED;
}

SEC("struct_ops")
void BPF_PROG(td_init, struct sock *sk)
{
	struct td_event e = { .kind = TD_INIT };

	td_dispatch(sk, &e);
}

SEC("struct_ops")
int td_cong_control(u64 *arguments)
{
	struct sock *sk = TD_ARG(arguments, 0);
	const struct rate_sample *rs = TD_RATE_SAMPLE(arguments);
	int delivered = rs->delivered;
	long interval_us = rs->interval_us;
	struct td_event e = {
		.kind = TD_ACK,
		.flags = (BPF_CORE_READ_BITFIELD(td_tcp(sk), is_cwnd_limited) ? TD_CWND_LIMITED : 0) |
			 (rs->is_app_limited ? TD_APP_LIMITED : 0) | (rs->is_ack_delayed ? TD_LONE_RUNT : 0),
		.acked = rs->acked_sacked,
		.rtt_us = rs->rtt_us > 0 ? rs->rtt_us : 0,
		.lost = rs->losses > 0 ? rs->losses : 0,
		.interval_us = delivered > 0 && interval_us > 0 ? td_min64(interval_us, ~0U) : 0,
		.sampled = delivered > 0 ? delivered : 0,
		.prior_delivered = rs->prior_delivered,
		.prior_in_flight = rs->prior_in_flight,
	};

	td_dispatch(sk, &e);
	return 0;
}

SEC("struct_ops")
__u32 BPF_PROG(td_ssthresh, struct sock *sk)
{
	struct td_event e = { .kind = TD_LOSS };

	td_dispatch(sk, &e);
	return td_tcp(sk)->snd_ssthresh;
}

SEC("struct_ops")
__u32 BPF_PROG(td_undo_cwnd, struct sock *sk)
{
	struct td_event e = { .kind = TD_UNDO };

	td_dispatch(sk, &e);
	return td_tcp(sk)->snd_cwnd;
}

SEC("struct_ops")
void BPF_PROG(td_cwnd_event, struct sock *sk, enum tcp_ca_event ev)
{
	struct td_event e = { .kind = TD_RESTART };

	if (ev == CA_EVENT_TX_START)
		td_dispatch(sk, &e);
}

SEC("struct_ops")
void BPF_PROG(td_set_state, struct sock *sk, __u8 state)
{
	struct td_event e = { .kind = TD_TIMEOUT };

	if (state == TCP_CA_Loss)
		td_dispatch(sk, &e);
}

/* Segments in one piece at least (TSO): below 1.2 Mbit/s a second one would be a burst. */
SEC("struct_ops")
__u32 BPF_PROG(td_min_tso_segs, struct sock *sk)
{
	return sk->sk_pacing_rate < 150000 ? 1 : 2;
}

/* Send buffer over window: a round trip of recovery beyond what others have. */
SEC("struct_ops")
__u32 BPF_PROG(td_sndbuf_expand, struct sock *sk)
{
	return 3;
}

SEC(".struct_ops.link")
struct tcp_congestion_ops TD_OPS = {
	.init = (void *)td_init,
	.cong_control = (void *)td_cong_control,
	.ssthresh = (void *)td_ssthresh,
	.undo_cwnd = (void *)td_undo_cwnd,
	.cwnd_event = (void *)td_cwnd_event,
	.set_state = (void *)td_set_state,
	.min_tso_segs = (void *)td_min_tso_segs,
	.sndbuf_expand = (void *)td_sndbuf_expand,
	.name = TD_KERNEL_NAME,
	.flags = TD_FLAGS,
};
