/*
 * A controller that owns the whole window: TCP calls it at the end of every ACK, and neither recovery nor TCP's own pacing touch what it
 * decided. To be included with TD_NAME set.
 */
#include "link_records.h"

/* The carrier's word at the end of a socket's state. */
struct td_carrier {
	u32 ifindex;	/* the interface whose record it is */
	__u16 record;	/* its index + 1; 0: none */
	__u16 weight;	/* 0 counts as 1 */
};

#if TD_WANTS_OF(TD_WANTS_WEIGHT)
/* What user space gave a socket before it took this controller. */
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

TD_INLINE struct td_carrier *td_carrier(struct sock *sk)
{
	return (struct td_carrier *)((char *)td_state(sk) + TD_STATE_BYTES);
}

/* The record of the link that the socket's packets leave through; looked up anew when its route goes another way. */
TD_INLINE struct td_record *td_record_of(struct sock *sk)
{
	struct td_carrier *c = td_carrier(sk);
	struct dst_entry *dst = sk->sk_dst_cache;
	u32 ifindex = dst ? dst->dev->ifindex : c->ifindex, index = 0;
	struct td_record *r;

	if (c->record && c->ifindex == ifindex) {
		index = c->record - 1;
		r = bpf_map_lookup_elem(&td_records, &index);
		if (r && r->link.capacity)
			return r;
	}
	c->ifindex = ifindex;
	c->record = 0;
	r = td_record_at(sk->__sk_common.skc_net.net->ns.inum, ifindex, &index);
	if (r)
		c->record = index + 1;
	return r;
}

TD_INLINE void td_tell(struct sock *sk, struct td_event *e)
{
	struct tcp_sock *tp = td_tcp(sk);
	struct td_record *r = td_record_of(sk);
	struct td_flow f = {};

	/* Of a SYN, and of what answers it, TCP tells before it has told of the connection: a state that is none yet would act on the link. */
	if (e->kind != TD_INIT && !BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_initialized))
		return;
	e->now_us = tp->tcp_mstamp;
	td_look(sk, &f);
	f.weight = td_carrier(sk)->weight;
	if (!f.unsent && (sk->sk_shutdown & SEND_SHUTDOWN))
		e->flags |= TD_LAST;
	if (r) {
		bpf_spin_lock(&r->lock);
		TD_STEP(&f, td_state(sk), &r->link, e, &td_tunables);
		bpf_spin_unlock(&r->lock);
	} else {
		TD_STEP(&f, td_state(sk), (struct td_link *)0, e, &td_tunables);
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
	struct td_carrier *c = td_carrier(sk);
	struct td_event e = { .kind = TD_INIT };

	c->ifindex = 0;
	c->record = 0;
	c->weight = td_weight_of(sk);
	td_tell(sk, &e);
}

SEC("struct_ops")
void BPF_PROG(td_release, struct sock *sk)
{
	struct td_event e = { .kind = TD_CLOSE };

	td_tell(sk, &e);
}

/* Set by user space: how many arguments this kernel passes to cong_control, 2 or (from Linux 6.10 on) 4. */
const volatile u32 td_cong_control_arguments SEC(".rodata.arguments") = 4;

/* The last argument is the sample. In assembly, since the compiler would make one access at a computed place of the two. */
#define TD_ARGUMENT(arguments, number)                                                                                                \
	({                                                                                                                            \
		void *argument;                                                                                                       \
		asm volatile("%0 = *(u64 *)(%1 + 8 * " #number ")" : "=r"(argument) : "r"(arguments));                                \
		argument;                                                                                                             \
	})

SEC("struct_ops")
int td_cong_control(u64 *arguments)
{
	struct sock *sk = TD_ARGUMENT(arguments, 0);
	/* The verifier knows the constant, and looks at one of the two alone. */
	const struct rate_sample *rs = td_cong_control_arguments == 2 ? TD_ARGUMENT(arguments, 1) : TD_ARGUMENT(arguments, 3);
	/* What is out of order is acknowledged at once, and every second segment. */
	u32 held = rs->acked_sacked <= 1 && !td_tcp(sk)->sacked_out ? TD_HELD : 0;
	struct td_event e = {
		.kind = TD_ACK,
		.flags = td_limited(sk) | held,
		.acked = rs->acked_sacked,
		.rtt_us = rs->rtt_us > 0 ? rs->rtt_us : 0,
		.lost = rs->losses > 0 ? rs->losses : 0,
	};

	td_tell(sk, &e);
	return 0;
}

SEC("struct_ops")
__u32 BPF_PROG(td_ssthresh, struct sock *sk)
{
	struct td_event e = { .kind = TD_LOSS };

	td_tell(sk, &e);
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
		td_tell(sk, &e);
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
