/* The kernel's Reno, called from BPF: all its callbacks. */
#include "kernels.h"

extern __u32 tcp_reno_ssthresh(struct sock *sk) __ksym;
extern void tcp_reno_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;

SEC("struct_ops")
__u32 BPF_PROG(tb_ssthresh, struct sock *sk)
{
	return tcp_reno_ssthresh(sk);
}

SEC("struct_ops")
void BPF_PROG(tb_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	tcp_reno_cong_avoid(sk, ack, acked);
}

SEC("struct_ops")
__u32 BPF_PROG(tb_undo_cwnd, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops tb_ops_reno = {
	.ssthresh = (void *)tb_ssthresh,
	.cong_avoid = (void *)tb_cong_avoid,
	.undo_cwnd = (void *)tb_undo_cwnd,
	.name = "tb_reno",
};

char LICENSE[] SEC("license") = "Dual MIT/GPL";
