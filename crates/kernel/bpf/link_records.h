/*
 * The link records, shared by controllers, monitor and user space. A socket finds its record by the
 * network namespace and the interface of its route.
 */
#ifndef TD_RECORDS_H
#define TD_RECORDS_H
#include "tcp.h"

#define TD_RECORDS 256

/* Programs share maps by name. The name includes a hash of the layout, so that only equal layouts match. */
#define TD_OF_LAYOUT_(name, layout) name##layout
#define TD_OF_LAYOUT(name, layout) TD_OF_LAYOUT_(name, layout)
#define td_records TD_OF_LAYOUT(td_rec_, TD_LAYOUT)
#define td_claims TD_OF_LAYOUT(td_clm_, TD_LAYOUT)

/* Identifies a link: a network namespace, by its inode number, and an interface in it. */
struct td_link_id {
	u32 netns;
	u32 ifindex;
};

/* How the monitor measures a link. */
enum td_watch {
	TD_WATCH_NONE,		/* not at all: controllers go by ACKs alone */
	TD_WATCH_QDISC,		/* by the counters of the root qdisc, at each dequeue */
	TD_WATCH_VIRTUAL,	/* by a virtual queue that takes what is sent and drains at the capacity */
};

struct td_link_record {
	struct bpf_spin_lock lock;
	u32 watch;		/* enum td_watch */
	struct td_link link;
	/* Windowed minimum of the backlog: start of the interval, its minimum, and that of the last one. */
	u64 since_us, min_backlog, last_min_backlog;
	/* The virtual queue: time of the last drain, bytes in it, all bytes sent to it. */
	u64 virtual_us, virtual_bytes, offered;
};

/* The record of a link, and its owner. */
struct td_claim {
	u32 index;
	u32 owner;	/* id of the process that configured it */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TD_RECORDS);
	__type(key, u32);
	__type(value, struct td_link_record);
} td_records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TD_RECORDS);
	__type(key, struct td_link_id);
	__type(value, struct td_claim);
} td_claims SEC(".maps");

TD_INLINE struct td_link_record *td_find_record(u32 netns, u32 ifindex, u32 *index)
{
	struct td_link_id place = { .netns = netns, .ifindex = ifindex };
	struct td_claim *found = bpf_map_lookup_elem(&td_claims, &place);

	if (!found)
		return 0;
	*index = found->index;
	return bpf_map_lookup_elem(&td_records, index);
}

#endif
