/*
 * Declarations for the baselines: BPF controllers whose callbacks only call the kernel's own, so that
 * the kernel's BPF statistics count both in the same way.
 */
#ifndef TB_KERNELS_H
#define TB_KERNELS_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define KERNEL __attribute__((preserve_access_index))

/* Only pointers to these are passed on. Each has one field, since C has no empty structs. */
struct sock {
	__u32 sk_pacing_status;
} KERNEL;

struct ack_sample {
	__u32 pkts_acked;
} KERNEL;

struct rate_sample {
	int delivered;
} KERNEL;

enum tcp_ca_event { CA_EVENT_TX_START };

/* The members that the baselines set; the kernel takes all others as unset. */
struct tcp_congestion_ops {
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
	void (*set_state)(struct sock *sk, __u8 new_state);
	void (*cwnd_event)(struct sock *sk, enum tcp_ca_event ev);
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
	__u32 (*min_tso_segs)(struct sock *sk);
	void (*cong_control)(struct sock *sk, __u32 ack, int flag, const struct rate_sample *rs);
	__u32 (*undo_cwnd)(struct sock *sk);
	__u32 (*sndbuf_expand)(struct sock *sk);
	void (*init)(struct sock *sk);
	char name[16];
};

#endif
