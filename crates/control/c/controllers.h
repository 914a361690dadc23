/* All controllers: T(name, owns_window, description). For `owns_window` see window.h. */
#ifndef TD_CONTROLLERS_H
#define TD_CONTROLLERS_H
#include "bbr.h"
#include "bbr3.h"
#include "cubic.h"
#include "dctcp.h"
#include "hybla.h"
#include "mpcp.h"
#include "reno.h"
#include "share.h"
#include "vegas.h"
#include "westwood.h"
#include "xcp_known.h"

#define TD_CONTROLLERS(T)                                                                                    \
	T(reno, 0, "NewReno (RFC 5681, RFC 6582)")                                                           \
	T(cubic, 0, "CUBIC with HyStart++ (RFC 9438, RFC 9406)")                                             \
	T(vegas, 0, "Vegas: keeps a few segments in the queue (Brakmo and Peterson 1995)")                   \
	T(hybla, 0, "Hybla: grows as if the RTT were short (Caini and Firrincieli 2004)")                    \
	T(westwood, 0, "Westwood+: a loss leaves what the path carried (Mascolo et al. 2004)")               \
	T(dctcp, 0, "DCTCP: follows the share of marked segments (RFC 8257); needs ECN at both ends")        \
	T(bbr, 1, "BBR version 1, as in Linux: paces at the delivery rate of the path (Cardwell et al. 2016)") \
	T(bbr3, 1, "BBR version 3: bounded by what caused losses (draft-ietf-ccwg-bbr)")                     \
	T(xcp, 1, "XCP at the proxy: hands out what the link has to spare (Katabi et al. 2002, Li and Yousefi'zadeh)") \
	T(xcp_known, 1, "XCP at the proxy that knows how many flows there are, and when one comes or goes")   \
	T(mpcp, 1, "MPCP at the proxy: follows the link's load factor (Li and Yousefi'zadeh)")               \
	T(share, 1, "each flow has its max-min share of the link's capacity")

#endif
