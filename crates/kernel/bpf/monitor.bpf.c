/*
 * The monitor: what leaves an interface, and the queue that stays before it. RAPPEP's RTM (Li and Yousefi'zadeh §III-B), twice: by the
 * counters of a root qdisc that shapes (tbf, htb), at each dequeue; or, where the queue is elsewhere (a modem further on), by a queue in
 * mind that drains at the configured capacity.
 */
#include "link_records.h"

/* One member: clang 19 crashes where the address of an empty struct is taken. */
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

/* The head of a packet's control block while it is in a qdisc. */
struct qdisc_skb_cb {
	struct {
		unsigned int pkt_len;
	};
} KERNEL;

/* The context of a tc program, as the kernel's UAPI has it up to the field that is needed. */
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

/* Whether a packet's socket is under `share`. Sockets that are no full ones (in the handshake, in TIME_WAIT) are not. */
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
	/* Its eight letters. */
	return name == *(const u64 *)"td_share";
}

/* The least backlog of the last half to whole interval: what persists (Katabi et al. §3.5 by way of the ISI's implementation). */
TD_INLINE void td_persist(struct td_record *r, u64 now_us, u64 backlog)
{
	u64 interval = td_max64(r->link.xcp.interval_us ? r->link.xcp.interval_us / 2 : 50000, 2000);

	if (now_us - r->since_us >= interval) {
		r->before = r->least;
		r->least = backlog;
		r->since_us = now_us;
	}
	r->least = td_min64(r->least, backlog);
	r->link.queue = td_min64(r->least, r->before);
	r->link.backlog = backlog;
	r->link.seen_us = now_us;
}

SEC("tp_btf/qdisc_dequeue")
int BPF_PROG(td_dequeue, struct Qdisc *qdisc, const struct netdev_queue *txq, int packets, struct sk_buff *skb)
{
	u64 now_us = bpf_ktime_get_ns() / 1000, bytes = 0, backlog, drops, foreign = 0;
	struct net_device *dev = txq->dev;
	struct td_record *r;
	u32 index;

	/* A shaper that has to wait is asked, too, and lets nothing go. */
	if (!skb)
		return 0;
	r = td_record_at(dev->nd_net.net->ns.inum, dev->ifindex, &index);
	if (!r || r->watch != TD_WATCH_QDISC)
		return 0;
	/* Of the root alone this event is told. Its counter has what a shaper's own segmentation adds. */
	if (bpf_core_type_exists(struct gnet_stats_basic_sync))
		bpf_core_read(&bytes, sizeof(bytes), &qdisc->bstats.bytes);
	else
		bpf_core_read(&bytes, sizeof(bytes), &((struct Qdisc___packed *)qdisc)->bstats.bytes);
	backlog = qdisc->qstats.backlog;
	drops = qdisc->qstats.drops;
	if (!td_is_share(skb->sk))
		bpf_core_read(&foreign, sizeof(u32), &((struct qdisc_skb_cb *)skb->cb)->pkt_len);
	bpf_spin_lock(&r->lock);
	/* Every proxy of the machine has its own copy of this program at the event: the first that sees it counts it. */
	if (r->link.egress != bytes) {
		r->link.egress = bytes;
		r->link.foreign += foreign;
		r->link.drops = drops;
		td_persist(r, now_us, backlog);
	}
	bpf_spin_unlock(&r->lock);
	return 0;
}

/* A packet of `length` wire bytes is about to be queued at an interface: the queue in mind takes it. */
TD_INLINE void td_offered(struct td_record *r, u32 length, u32 foreign)
{
	u64 now_us = bpf_ktime_get_ns() / 1000, drained, span;

	bpf_spin_lock(&r->lock);
	span = td_min64(now_us - r->virtual_us, 10000000);
	drained = r->link.capacity * span / 1000000;
	r->virtual_bytes = td_less(r->virtual_bytes, drained);
	/* A remainder of the division is time that is not lost. */
	if (drained || !r->virtual_bytes)
		r->virtual_us = now_us;
	r->virtual_bytes += length;
	r->offered += length;
	r->link.egress = td_max64(r->link.egress, r->offered - td_min64(r->virtual_bytes, r->offered));
	r->link.foreign += foreign;
	td_persist(r, now_us, r->virtual_bytes);
	bpf_spin_unlock(&r->lock);
}

/* Attached to one interface alone, where the kernel can (Linux 6.6 and later). */
SEC("?tcx/egress")
int td_egress(struct __sk_buff *ctx)
{
	const struct sk_buff *skb = (const struct sk_buff *)ctx;
	u32 index, length = ctx->wire_len;
	struct td_record *r = td_record_at(BPF_CORE_READ(skb, dev, nd_net.net, ns.inum), ctx->ifindex, &index);

	if (r && r->watch == TD_WATCH_VIRTUAL)
		td_offered(r, length, td_is_share(BPF_CORE_READ(skb, sk)) ? 0 : length);
	return -1;
}

/* Sees the packets of every interface, on other kernels. */
SEC("?tp_btf/net_dev_queue")
int BPF_PROG(td_queue, struct sk_buff *skb)
{
	struct net_device *dev = skb->dev;
	struct td_record *r;
	u32 index, length = 0;

	r = td_record_at(dev->nd_net.net->ns.inum, dev->ifindex, &index);
	if (!r || r->watch != TD_WATCH_VIRTUAL)
		return 0;
	bpf_core_read(&length, sizeof(length), &((struct qdisc_skb_cb *)skb->cb)->pkt_len);
	td_offered(r, length, td_is_share(skb->sk) ? 0 : length);
	return 0;
}

/* What is configured of a record. */
struct td_configured {
	u64 capacity;
	u32 overhead;
	u32 local;
	u32 watch;
	u32 index;
	u32 fresh;	/* 1: nothing of what it was stays */
	u32 reserved;
};

/* Where a packet that is to configure has it: behind an Ethernet header, which the kernel demands. */
#define TD_CONFIGURED_AT 16

/*
 * Sets it under the record's lock, which user space can't take for a part of a record. Run by user space with a packet of its own: of
 * the kinds of programs that can be run so, this one may take locks on every kernel.
 */
SEC("tc")
int td_configure(struct __sk_buff *skb)
{
	static const struct td_link nothing;
	struct td_configured c;
	struct td_record *r;

	if (bpf_skb_load_bytes(skb, TD_CONFIGURED_AT, &c, sizeof(c)))
		return 1;
	r = bpf_map_lookup_elem(&td_records, &c.index);
	if (!r)
		return 1;
	bpf_spin_lock(&r->lock);
	if (c.fresh) {
		r->link = nothing;
		r->since_us = r->least = r->before = 0;
		r->virtual_us = r->virtual_bytes = r->offered = 0;
	}
	r->link.capacity = c.capacity;
	r->link.overhead = c.overhead;
	r->link.local = c.local;
	r->watch = c.watch;
	bpf_spin_unlock(&r->lock);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
