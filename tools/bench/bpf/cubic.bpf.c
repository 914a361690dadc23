/* The kernel's CUBIC, called from BPF: all its callbacks. */
#include "kernels.h"

extern void cubictcp_init(struct sock *sk) __ksym;
extern __u32 cubictcp_recalc_ssthresh(struct sock *sk) __ksym;
extern void cubictcp_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;
extern void cubictcp_state(struct sock *sk, __u8 new_state) __ksym;
extern void cubictcp_cwnd_event(struct sock *sk, enum tcp_ca_event event) __ksym;
extern void cubictcp_acked(struct sock *sk, const struct ack_sample *sample) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;

SEC("struct_ops")
void BPF_PROG(tb_init, struct sock *sk)
{
	cubictcp_init(sk);
}

SEC("struct_ops")
__u32 BPF_PROG(tb_ssthresh, struct sock *sk)
{
	return cubictcp_recalc_ssthresh(sk);
}

SEC("struct_ops")
void BPF_PROG(tb_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	cubictcp_cong_avoid(sk, ack, acked);
}

SEC("struct_ops")
void BPF_PROG(tb_set_state, struct sock *sk, __u8 state)
{
	cubictcp_state(sk, state);
}

SEC("struct_ops")
void BPF_PROG(tb_cwnd_event, struct sock *sk, enum tcp_ca_event event)
{
	cubictcp_cwnd_event(sk, event);
}

SEC("struct_ops")
void BPF_PROG(tb_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	cubictcp_acked(sk, sample);
}

SEC("struct_ops")
__u32 BPF_PROG(tb_undo_cwnd, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops tb_ops_cubic = {
	.init = (void *)tb_init,
	.ssthresh = (void *)tb_ssthresh,
	.cong_avoid = (void *)tb_cong_avoid,
	.set_state = (void *)tb_set_state,
	.cwnd_event = (void *)tb_cwnd_event,
	.pkts_acked = (void *)tb_pkts_acked,
	.undo_cwnd = (void *)tb_undo_cwnd,
	.name = "tb_cubic",
};

char LICENSE[] SEC("license") = "Dual MIT/GPL";
