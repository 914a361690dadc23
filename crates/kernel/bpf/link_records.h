/*
 * The links' records, shared by controllers, monitor and user space. A socket finds its record by the namespace and interface
 * that its packets leave through.
 */
#ifndef TD_RECORDS_H
#define TD_RECORDS_H
#include "tcp.h"

#define TD_RECORDS 256

/* Maps are shared by name, between programs that have the same layout: it is in the name. */
#define TD_OF_LAYOUT_(name, layout) name##layout
#define TD_OF_LAYOUT(name, layout) TD_OF_LAYOUT_(name, layout)
#define td_records TD_OF_LAYOUT(td_rec_, TD_LAYOUT)
#define td_places TD_OF_LAYOUT(td_plc_, TD_LAYOUT)

/* Where a link is: a network namespace, by its inode number, and an interface there. */
struct td_place {
	u32 netns;
	u32 ifindex;
};

/* How the monitor watches it. */
enum td_watch {
	TD_WATCH_NONE,		/* what leaves is what ACKs say */
	TD_WATCH_QDISC,		/* by the counters of the root qdisc, at each dequeue */
	TD_WATCH_VIRTUAL,	/* by what is offered, and a queue in mind that drains at the capacity */
};

struct td_record {
	struct bpf_spin_lock lock;
	u32 watch;
	struct td_link link;
	/* The monitor's own: the running minimum of the backlog, and the one before it. */
	u64 since_us, least, before;
	/* The virtual queue. */
	u64 virtual_us, virtual_bytes, offered;
};

/* Whose record it is. */
struct td_claim {
	u32 index;
	u32 owner;	/* the process that configured it */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TD_RECORDS);
	__type(key, u32);
	__type(value, struct td_record);
} td_records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TD_RECORDS);
	__type(key, struct td_place);
	__type(value, struct td_claim);
} td_places SEC(".maps");

TD_INLINE struct td_record *td_record_at(u32 netns, u32 ifindex, u32 *index)
{
	struct td_place place = { .netns = netns, .ifindex = ifindex };
	struct td_claim *found = bpf_map_lookup_elem(&td_places, &place);

	if (!found)
		return 0;
	*index = found->index;
	return bpf_map_lookup_elem(&td_records, index);
}

#endif
