/*
 * XCP that uses what a router can't know and a proxy does: how many flows there are, and when one comes or goes. Not from a paper. Law,
 * record, state and tunables are xcp.h's; only one default differs.
 *
 *   a flow begins with       rtt C / n: those with more than that pay for it, each with its next ACK, down to their own share
 *   a flow that ends leaves  its window to those with less than their share, as their ACKs come
 *
 * XCP gives a newcomer an initial window, and then its part of alpha of what is to spare and of gamma of what all have; at the end, the
 * last flow alpha of what the others left: on a path of 800 ms that takes longer than most transfers.
 */
#ifndef TD_XCP_KNOWN_H
#define TD_XCP_KNOWN_H
#include "xcp.h"

struct td_xcp_known_state {
	struct td_xcp_state xcp;
};
#define td_xcp_known_WANTS td_xcp_WANTS
#define td_xcp_known_TUNABLES(T) td_xcp_LIST(T, 1)
TD_CONTROLLER(xcp_known);

TD_INLINE void td_xcp_known(struct td_flow *f, struct td_xcp_known_state *s, struct td_link *l, const struct td_event *e,
			    const struct td_xcp_known_tunables *t)
{
	/* The same list has the same layout. */
	td_xcp(f, &s->xcp, l, e, (const struct td_xcp_tunables *)t);
}

#endif
