/*
 * The kernel's TCP structs, with only the fields that the programs need: they are located in the running
 * kernel by name (CO-RE). And the view of a socket that controllers get.
 */
#ifndef TD_TCP_H
#define TD_TCP_H

/* Types that bpf_helpers.h expects. */
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
typedef _Bool bool;

enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_SK_STORAGE = 24 };
enum { BPF_F_NO_PREALLOC = 1 };

struct bpf_spin_lock {
	__u32 val;
};

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "intf.h"

#define KERNEL __attribute__((preserve_access_index))

struct ns_common {
	unsigned int inum;
} KERNEL;

struct net {
	struct ns_common ns;
} KERNEL;

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	unsigned short skc_family;
	possible_net_t skc_net;
} KERNEL;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
} KERNEL;

struct dst_entry {
	struct net_device *dev;
} KERNEL;

struct sock {
	struct sock_common __sk_common;
	struct dst_entry *sk_dst_cache;
	unsigned long sk_pacing_rate, sk_max_pacing_rate;
	__u32 sk_pacing_status;
	__u8 sk_shutdown;
} KERNEL;

struct inet_sock {
	struct sock sk;
} KERNEL;

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	struct {
		__u8 pending;
	} icsk_ack;
	__u8 icsk_ca_state : 5, icsk_ca_initialized : 1, icsk_ca_setsockopt : 1, icsk_ca_dst_locked : 1;
	__u64 icsk_ca_priv[13]; /* same size as the kernel's, or CO-RE would relocate every access */
} KERNEL;

struct minmax_sample {
	__u32 t, v;
} KERNEL;

struct minmax {
	struct minmax_sample s[3];
} KERNEL;

struct tcp_options_received {
	__u32 rcv_tsval; /* 0: no timestamps */
} KERNEL;

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	struct tcp_options_received rx_opt;
	__u16 tcp_header_len;
	__u32 rcv_nxt, snd_una, snd_nxt, write_seq, snd_wnd;
	__u8 ecn_flags;
	__u32 mss_cache;
	__u32 snd_cwnd, snd_ssthresh, prior_cwnd;
	__u32 packets_out, retrans_out, sacked_out, lost_out, max_packets_out;
	__u32 srtt_us, delivered, delivered_ce, lost, app_limited;
	__u64 bytes_sent;
	__u64 tcp_mstamp, tcp_wstamp_ns, tcp_clock_cache;
	struct minmax rtt_min;
	__u8 is_cwnd_limited : 1;
} KERNEL;

struct rate_sample {
	__u64 prior_mstamp;
	__u32 prior_delivered;
	int delivered;
	long interval_us;
	long rtt_us;
	int losses;
	__u32 acked_sacked;
	__u32 prior_in_flight;
	bool is_app_limited;
	bool is_ack_delayed;
} KERNEL;

struct ack_sample {
	__u32 pkts_acked;
	__s32 rtt_us;
	__u32 in_flight;
} KERNEL;

enum tcp_ca_event {
	CA_EVENT_TX_START,
	CA_EVENT_CWND_RESTART,
	CA_EVENT_COMPLETE_CWR,
	CA_EVENT_LOSS,
	CA_EVENT_ECN_NO_CE,
	CA_EVENT_ECN_IS_CE,
};
enum tcp_ca_state { TCP_CA_Open, TCP_CA_Disorder, TCP_CA_CWR, TCP_CA_Recovery, TCP_CA_Loss };
enum { TCP_CONG_NEEDS_ECN = 2 };
/* Of icsk_ack.pending: an ACK is delayed; an ACK is due now. Of ecn_flags: ACKs carry ECE. */
enum { ICSK_ACK_TIMER = 2, ICSK_ACK_NOW = 16, TCP_ECN_DEMAND_CWR = 4 };
enum { SK_PACING_NONE, SK_PACING_NEEDED };
enum { SEND_SHUTDOWN = 2 };
enum { AF_INET = 2 };

/* `struct tcp_congestion_ops`: the kernel takes the members that are set. */
struct tcp_congestion_ops {
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
	void (*set_state)(struct sock *sk, __u8 new_state);
	void (*cwnd_event)(struct sock *sk, enum tcp_ca_event ev);
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
	void (*cong_control)(struct sock *sk, __u32 ack, int flag, const struct rate_sample *rs);
	__u32 (*undo_cwnd)(struct sock *sk);
	void (*init)(struct sock *sk);
	void (*release)(struct sock *sk);
	char name[16];
	__u32 flags;
};

TD_INLINE struct tcp_sock *td_tcp(struct sock *sk) { return (struct tcp_sock *)sk; }
TD_INLINE void *td_state(struct sock *sk) { return td_tcp(sk)->inet_conn.icsk_ca_priv; }

/* Fills in the flow from a socket. */
TD_INLINE void td_read_socket(struct sock *sk, struct td_flow *f)
{
	struct tcp_sock *tp = td_tcp(sk);
	u32 min_rtt_us = tp->rtt_min.s[0].v;

	f->mss = tp->mss_cache;
	f->srtt_us = tp->srtt_us >> 3;
	f->min_rtt_us = min_rtt_us == ~0U ? 0 : min_rtt_us;
	f->in_flight = tp->packets_out - (tp->sacked_out + tp->lost_out) + tp->retrans_out;
	f->una = tp->snd_una;
	f->nxt = tp->snd_nxt;
	f->unsent = tp->write_seq - tp->snd_nxt;
	f->snd_wnd = tp->snd_wnd;
	f->prior_cwnd = tp->prior_cwnd;
	f->weight = 0;
	f->header = tp->tcp_header_len + (sk->__sk_common.skc_family == AF_INET ? 20 : 40);
	f->sent = tp->bytes_sent;
	f->cwnd = tp->snd_cwnd;
	f->ssthresh = tp->snd_ssthresh;
	f->pacing_rate = 0;
}

/* As tcp_is_cwnd_limited(): in slow start half a window in flight suffices. */
TD_INLINE u32 td_cwnd_limited(struct sock *sk)
{
	struct tcp_sock *tp = td_tcp(sk);

	if (BPF_CORE_READ_BITFIELD(tp, is_cwnd_limited))
		return TD_CWND_LIMITED;
	return tp->snd_cwnd < tp->snd_ssthresh && tp->snd_cwnd < 2 * tp->max_packets_out ? TD_CWND_LIMITED : 0;
}

#endif
