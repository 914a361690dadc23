/*
 * XCP with knowledge that a router lacks and a proxy has: the number of flows, and when one starts or ends.
 * Not from a paper. Algorithm, record, state and tunables are those of xcp.h; only the default of `known`
 * differs.
 *
 *   a flow that starts   gets rtt C / n. Flows above their fair window yield it, each at its next ACK
 *   a flow that ends     frees its window for flows below their fair window, at their next ACKs
 *
 * In XCP a new flow has an initial window, and then its part of alpha of the spare capacity and of gamma
 * of the traffic; when flows end, those that remain get alpha of the spare capacity per interval. On a path of
 * 800 ms that takes longer than most transfers.
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
	/* The lists, and so the layouts, are the same. */
	td_xcp(f, &s->xcp, l, e, (const struct td_xcp_tunables *)t);
}

#endif
