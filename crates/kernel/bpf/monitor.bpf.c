/*
 * The egress monitor: measures what leaves an interface and the persistent queue before it (the RTM of
 * RAPPEP, Li and Yousefi'zadeh §III-B). Either by the counters of the root qdisc, which is a shaper
 * (tbf, htb), at each dequeue; or, if the queue is elsewhere (in a modem, say), by a virtual queue that
 * drains at the configured capacity.
 */
#include "link_records.h"

/* Has a member because clang 19 crashes when the address of an empty struct is taken. */
typedef struct {
	__u64 v;
} u64_stats_t;

struct gnet_stats_basic_sync {
	u64_stats_t bytes;
} KERNEL;

/* The same counter before Linux 5.16. */
struct gnet_stats_basic_packed {
	__u64 bytes;
} KERNEL;

struct gnet_stats_queue {
	__u32 backlog;
	__u32 drops;
} KERNEL;

struct Qdisc {
	struct gnet_stats_basic_sync bstats;
	struct gnet_stats_queue qstats;
} KERNEL;

struct Qdisc___packed {
	struct gnet_stats_basic_packed bstats;
} KERNEL;

struct netdev_queue {
	struct net_device *dev;
} KERNEL;

struct tcp_congestion_ops___kernel {
	char name[16];
} KERNEL;

struct inet_connection_sock___ca {
	const struct tcp_congestion_ops___kernel *icsk_ca_ops;
} KERNEL;

struct sock_common___full {
	unsigned char skc_state;
	unsigned short skc_family;
} KERNEL;

struct sock___full {
	struct sock_common___full __sk_common;
	__u16 sk_protocol;
} KERNEL;

struct sk_buff {
	struct net_device *dev;
	struct sock *sk;
	char cb[48];
} KERNEL;

/* Beginning of a packet's control block while it is in a qdisc. */
struct qdisc_skb_cb {
	struct {
		unsigned int pkt_len;
	};
} KERNEL;

/* The context of a tc program: the kernel's UAPI up to the last field that is needed. */
struct __sk_buff {
	__u32 len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto, priority, ingress_ifindex, ifindex,
		tc_index, cb[5], hash, tc_classid, data, data_end, napi_id, family, remote_ip4, local_ip4, remote_ip6[4], local_ip6[4],
		remote_port, local_port, data_meta;
	__u64 flow_keys;
	__u64 tstamp;
	__u32 wire_len, gso_segs;
	__u64 sk;
};

#define TD_PROTOCOL_TCP 6
#define TD_NEW_SYN_RECV 12
#define TD_TIME_WAIT 6

/* Whether a packet's socket uses `share`. Request sockets (in the handshake) and TIME_WAIT sockets do not. */
TD_INLINE int td_is_share(const struct sock *sk)
{
	const struct tcp_congestion_ops___kernel *ops;
	u64 name = 0;
	u8 state;

	if (!sk)
		return 0;
	state = BPF_CORE_READ((const struct sock___full *)sk, __sk_common.skc_state);
	if (state == TD_TIME_WAIT || state == TD_NEW_SYN_RECV)
		return 0;
	if (BPF_CORE_READ((const struct sock___full *)sk, sk_protocol) != TD_PROTOCOL_TCP)
		return 0;
	ops = BPF_CORE_READ((const struct inet_connection_sock___ca *)sk, icsk_ca_ops);
	bpf_core_read(&name, sizeof(name), &ops->name);
	/* Compares the eight bytes of the name. */
	return name == *(const u64 *)"td_share";
}

/*
 * The persistent queue: the minimum backlog over the last half to whole control interval (Katabi et al. §3.5,
 * as in the implementation of ISI).
 */
TD_INLINE void td_update_queue(struct td_link_record *r, u64 now_us, u64 backlog)
{
	u64 interval = td_max64(r->link.xcp.interval_us ? r->link.xcp.interval_us / 2 : 50000, 2000);

	if (now_us - r->since_us >= interval) {
		r->last_min_backlog = r->min_backlog;
		r->min_backlog = backlog;
		r->since_us = now_us;
	}
	r->min_backlog = td_min64(r->min_backlog, backlog);
	r->link.queue = td_min64(r->min_backlog, r->last_min_backlog);
	r->link.backlog = backlog;
	r->link.measured_us = now_us;
}

SEC("tp_btf/qdisc_dequeue")
int BPF_PROG(td_dequeue, struct Qdisc *qdisc, const struct netdev_queue *txq, int packets, struct sk_buff *skb)
{
	u64 now_us = bpf_ktime_get_ns() / 1000, bytes = 0, backlog, drops, foreign = 0;
	struct net_device *dev = txq->dev;
	struct td_link_record *r;
	u32 index;

	/* A shaper that has to wait is polled too, and returns no packet. */
	if (!skb)
		return 0;
	r = td_find_record(dev->nd_net.net->ns.inum, dev->ifindex, &index);
	if (!r || r->watch != TD_WATCH_QDISC)
		return 0;
	/* The event is for the root qdisc only. Its counter includes headers added by the shaper's segmentation. */
	if (bpf_core_type_exists(struct gnet_stats_basic_sync))
		bpf_core_read(&bytes, sizeof(bytes), &qdisc->bstats.bytes);
	else
		bpf_core_read(&bytes, sizeof(bytes), &((struct Qdisc___packed *)qdisc)->bstats.bytes);
	backlog = qdisc->qstats.backlog;
	drops = qdisc->qstats.drops;
	if (!td_is_share(skb->sk))
		bpf_core_read(&foreign, sizeof(u32), &((struct qdisc_skb_cb *)skb->cb)->pkt_len);
	bpf_spin_lock(&r->lock);
	/* Each proxy on this machine attaches its own copy of this program: the first one that runs counts. */
	if (r->link.egress != bytes) {
		r->link.egress = bytes;
		r->link.foreign += foreign;
		r->link.drops = drops;
		td_update_queue(r, now_us, backlog);
	}
	bpf_spin_unlock(&r->lock);
	return 0;
}

/* A packet of `length` wire bytes is about to be queued at an interface: adds it to the virtual queue. */
TD_INLINE void td_virtual_enqueue(struct td_link_record *r, u32 length, u32 foreign)
{
	u64 now_us = bpf_ktime_get_ns() / 1000, drained, span;

	bpf_spin_lock(&r->lock);
	span = td_min64(now_us - r->virtual_us, 10000000);
	drained = r->link.capacity * span / 1000000;
	r->virtual_bytes = td_sub_sat(r->virtual_bytes, drained);
	/* If less than a byte has drained, the time is kept for the next packet. */
	if (drained || !r->virtual_bytes)
		r->virtual_us = now_us;
	r->virtual_bytes += length;
	r->offered += length;
	r->link.egress = td_max64(r->link.egress, r->offered - td_min64(r->virtual_bytes, r->offered));
	r->link.foreign += foreign;
	td_update_queue(r, now_us, r->virtual_bytes);
	bpf_spin_unlock(&r->lock);
}

/* Attached to one interface (tcx, Linux 6.6 and later). */
SEC("?tcx/egress")
int td_egress(struct __sk_buff *ctx)
{
	const struct sk_buff *skb = (const struct sk_buff *)ctx;
	u32 index, length = ctx->wire_len;
	struct td_link_record *r = td_find_record(BPF_CORE_READ(skb, dev, nd_net.net, ns.inum), ctx->ifindex, &index);

	if (r && r->watch == TD_WATCH_VIRTUAL)
		td_virtual_enqueue(r, length, td_is_share(BPF_CORE_READ(skb, sk)) ? 0 : length);
	return -1;
}

/* For older kernels: sees the packets of every interface. */
SEC("?tp_btf/net_dev_queue")
int BPF_PROG(td_queue, struct sk_buff *skb)
{
	struct net_device *dev = skb->dev;
	struct td_link_record *r;
	u32 index, length = 0;

	r = td_find_record(dev->nd_net.net->ns.inum, dev->ifindex, &index);
	if (!r || r->watch != TD_WATCH_VIRTUAL)
		return 0;
	bpf_core_read(&length, sizeof(length), &((struct qdisc_skb_cb *)skb->cb)->pkt_len);
	td_virtual_enqueue(r, length, td_is_share(skb->sk) ? 0 : length);
	return 0;
}

/* Configuration of a record. */
struct td_configuration {
	u64 capacity;
	u32 overhead;
	u32 local;
	u32 watch;
	u32 index;
	u32 fresh;	/* 1: clears the record */
	u32 estimated;	/* 1: share estimates the capacity */
};

/* Offset of the configuration in the packet: behind an Ethernet header, which the kernel requires. */
#define TD_CONFIGURATION_AT 16

/*
 * Configures a record under its lock. User space cannot do that itself, as it can only replace a whole
 * record. It runs this program with the configuration in a packet. Of the program types that user space
 * can run, tc programs may take locks on every kernel.
 */
SEC("tc")
int td_configure(struct __sk_buff *skb)
{
	static const struct td_link nothing;
	struct td_configuration c;
	struct td_link_record *r;
	int fallback;

	if (bpf_skb_load_bytes(skb, TD_CONFIGURATION_AT, &c, sizeof(c)))
		return 1;
	r = bpf_map_lookup_elem(&td_records, &c.index);
	if (!r)
		return 1;
	bpf_spin_lock(&r->lock);
	if (c.fresh) {
		r->link = nothing;
		r->since_us = r->min_backlog = r->last_min_backlog = 0;
		r->virtual_us = r->virtual_bytes = r->offered = 0;
	}
	/*
	 * An estimate outlives a change of the other settings; so does one that takes the place of this
	 * configured capacity.
	 */
	fallback = r->link.estimate.enabled == TD_ESTIMATE_FALLBACK && !c.estimated && r->link.estimate.told == c.capacity;
	if (!fallback) {
		if (!c.estimated || r->link.estimate.enabled != TD_ESTIMATE_CONFIGURED)
			r->link.capacity = c.capacity;
		r->link.estimate.enabled = c.estimated ? TD_ESTIMATE_CONFIGURED : TD_ESTIMATE_OFF;
	}
	r->link.overhead = c.overhead;
	r->link.local = c.local;
	r->watch = c.watch;
	bpf_spin_unlock(&r->lock);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
