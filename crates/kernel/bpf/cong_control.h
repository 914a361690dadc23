/*
 * Hooks of a controller that implements cong_control and owns the window: TCP calls it at the end
 * of every ACK, and neither recovery nor TCP's own pacing changes its decisions. Included with
 * TD_NAME defined.
 */
#include "cong_control_call.h"
#include "link_records.h"

/* State of these hooks, behind the controller's state of the socket. */
struct td_hook_state {
	u32 ifindex;	/* interface of the route when the record was looked up */
	__u16 record;	/* index of its record + 1; 0: none */
	__u16 weight;	/* 0 counts as 1 */
};

#if TD_WANTS_OF(TD_WANTS_WEIGHT)
/* Weights that user space has set on sockets before they took this controller. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, u32);
} td_weights SEC(".maps");

TD_INLINE u32 td_weight_of(struct sock *sk)
{
	u32 *weight = bpf_sk_storage_get(&td_weights, sk, 0, 0);

	return weight ? td_min(*weight, 0xffff) : 0;
}
#else
TD_INLINE u32 td_weight_of(struct sock *sk)
{
	(void)sk;
	return 0;
}
#endif

TD_INLINE struct td_hook_state *td_hook_state(struct sock *sk)
{
	return (struct td_hook_state *)((char *)td_state(sk) + TD_STATE_BYTES);
}

/* The record of the socket's egress link. It is cached, and looked up again when the route changes. */
TD_INLINE struct td_link_record *td_socket_record(struct sock *sk)
{
	struct td_hook_state *c = td_hook_state(sk);
	struct dst_entry *dst = sk->sk_dst_cache;
	u32 ifindex = dst ? dst->dev->ifindex : c->ifindex, index = 0;
	struct td_link_record *r;

	if (c->record && c->ifindex == ifindex) {
		index = c->record - 1;
		r = bpf_map_lookup_elem(&td_records, &index);
		if (r && r->link.capacity)
			return r;
	}
	c->ifindex = ifindex;
	c->record = 0;
	r = td_find_record(sk->__sk_common.skc_net.net->ns.inum, ifindex, &index);
	if (r)
		c->record = index + 1;
	return r;
}

TD_INLINE void td_dispatch(struct sock *sk, struct td_event *e)
{
	struct tcp_sock *tp = td_tcp(sk);
	struct td_link_record *r = td_socket_record(sk);
	struct td_flow f = {};

	/* TCP calls hooks for the SYN and its answer before init: an uninitialised state must not change the record. */
	if (e->kind != TD_INIT && !BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_initialized))
		return;
	e->now_us = tp->tcp_mstamp;
	td_read_socket(sk, &f);
	f.weight = td_hook_state(sk)->weight;
	if (!f.unsent && (sk->sk_shutdown & SEND_SHUTDOWN))
		e->flags |= TD_NO_MORE_DATA;
	if (r) {
		bpf_spin_lock(&r->lock);
		TD_STEP(&f, td_state(sk), &r->link, e, td_tunables());
		bpf_spin_unlock(&r->lock);
	} else {
		TD_STEP(&f, td_state(sk), (struct td_link *)0, e, td_tunables());
	}

	if (tp->snd_cwnd != f.cwnd)
		tp->snd_cwnd = td_max(f.cwnd, 1);
	if (tp->snd_ssthresh != f.ssthresh)
		tp->snd_ssthresh = f.ssthresh;
	if (f.pacing_rate) {
		sk->sk_pacing_rate = f.pacing_rate;
		if (sk->sk_pacing_status == SK_PACING_NONE)
			sk->sk_pacing_status = SK_PACING_NEEDED;
	}
}

SEC("struct_ops")
void BPF_PROG(td_init, struct sock *sk)
{
	struct td_hook_state *c = td_hook_state(sk);
	struct td_event e = { .kind = TD_INIT };

	c->ifindex = 0;
	c->record = 0;
	c->weight = td_weight_of(sk);
	td_dispatch(sk, &e);
}

SEC("struct_ops")
void BPF_PROG(td_release, struct sock *sk)
{
	struct td_event e = { .kind = TD_CLOSE };

	td_dispatch(sk, &e);
}

SEC("struct_ops")
int td_cong_control(u64 *arguments)
{
	struct sock *sk = TD_ARG(arguments, 0);
	const struct rate_sample *rs = TD_RATE_SAMPLE(arguments);
	/* Receivers acknowledge at once out of order and at every second segment. */
	u32 delayed_ack = rs->acked_sacked <= 1 && !td_tcp(sk)->sacked_out ? TD_DELAYED_ACK : 0;
	struct td_event e = {
		.kind = TD_ACK,
		.flags = td_cwnd_limited(sk) | delayed_ack,
		.acked = rs->acked_sacked,
		.rtt_us = rs->rtt_us > 0 ? rs->rtt_us : 0,
		.lost = rs->losses > 0 ? rs->losses : 0,
	};

	if (td_tcp(sk)->rx_opt.rcv_tsval) {
		e.flags |= TD_TIMESTAMP;
		e.return_ms = (u32)(td_tcp(sk)->tcp_mstamp / 1000) - td_tcp(sk)->rx_opt.rcv_tsval;
	}
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
	return td_max(td_tcp(sk)->snd_cwnd, td_tcp(sk)->prior_cwnd);
}

SEC("struct_ops")
void BPF_PROG(td_cwnd_event, struct sock *sk, enum tcp_ca_event ev)
{
	struct td_event e = { .kind = TD_RESTART };

	if (ev == CA_EVENT_TX_START)
		td_dispatch(sk, &e);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops TD_OPS = {
	.init = (void *)td_init,
	.release = (void *)td_release,
	.cong_control = (void *)td_cong_control,
	.ssthresh = (void *)td_ssthresh,
	.undo_cwnd = (void *)td_undo_cwnd,
	.cwnd_event = (void *)td_cwnd_event,
	.name = TD_KERNEL_NAME,
	.flags = TD_FLAGS,
};
