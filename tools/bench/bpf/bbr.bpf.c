/* The kernel's BBR, called from BPF: all its callbacks except get_info, which only `ss` calls. */
#include "kernels.h"

extern void bbr_init(struct sock *sk) __ksym;
extern void bbr_main(struct sock *sk, __u32 ack, int flag, const struct rate_sample *rs) __ksym;
extern __u32 bbr_sndbuf_expand(struct sock *sk) __ksym;
extern __u32 bbr_undo_cwnd(struct sock *sk) __ksym;
extern void bbr_cwnd_event(struct sock *sk, enum tcp_ca_event event) __ksym;
extern __u32 bbr_ssthresh(struct sock *sk) __ksym;
extern __u32 bbr_min_tso_segs(struct sock *sk) __ksym;
extern void bbr_set_state(struct sock *sk, __u8 new_state) __ksym;

SEC("struct_ops")
void BPF_PROG(tb_init, struct sock *sk)
{
	bbr_init(sk);
}

SEC("struct_ops")
void BPF_PROG(tb_cong_control, struct sock *sk, __u32 ack, int flag, const struct rate_sample *rs)
{
	bbr_main(sk, ack, flag, rs);
}

SEC("struct_ops")
__u32 BPF_PROG(tb_sndbuf, struct sock *sk)
{
	return bbr_sndbuf_expand(sk);
}

SEC("struct_ops")
__u32 BPF_PROG(tb_undo_cwnd, struct sock *sk)
{
	return bbr_undo_cwnd(sk);
}

SEC("struct_ops")
void BPF_PROG(tb_cwnd_event, struct sock *sk, enum tcp_ca_event event)
{
	bbr_cwnd_event(sk, event);
}

SEC("struct_ops")
__u32 BPF_PROG(tb_ssthresh, struct sock *sk)
{
	return bbr_ssthresh(sk);
}

SEC("struct_ops")
__u32 BPF_PROG(tb_min_tso_segs, struct sock *sk)
{
	return bbr_min_tso_segs(sk);
}

SEC("struct_ops")
void BPF_PROG(tb_set_state, struct sock *sk, __u8 state)
{
	bbr_set_state(sk, state);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops tb_ops_bbr = {
	.init = (void *)tb_init,
	.cong_control = (void *)tb_cong_control,
	.sndbuf_expand = (void *)tb_sndbuf,
	.undo_cwnd = (void *)tb_undo_cwnd,
	.cwnd_event = (void *)tb_cwnd_event,
	.ssthresh = (void *)tb_ssthresh,
	.min_tso_segs = (void *)tb_min_tso_segs,
	.set_state = (void *)tb_set_state,
	.name = "tb_bbr",
};

char LICENSE[] SEC("license") = "Dual MIT/GPL";
