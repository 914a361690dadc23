/*
 * One controller as a congestion control of the kernel. Compiled once for each controller: TD_NAME
 * is its name, TD_OWNS_WINDOW whether it owns the window. An own controller's header is included
 * before (TD_OWN). The kernel's names of its maps are TD_OPS_KEY and TD_VALUES_KEY, because the
 * kernel truncates names: two long names could be the same.
 */
#define TD_CAT2(a, b) a##b
#define TD_CAT(a, b) TD_CAT2(a, b)
#define TD_TEXT2(a) #a
#define TD_TEXT(a) TD_TEXT2(a)
#define TD_STEP TD_CAT(td_, TD_NAME)
#define TD_KERNEL_NAME TD_TEXT(TD_STEP)
#ifndef TD_OWN
#define TD_OPS_KEY TD_NAME
#define TD_VALUES_KEY TD_NAME
#endif
#define TD_OPS TD_CAT(td_ops_, TD_OPS_KEY)
#define TD_WANTS_OF(kind) (TD_CAT(TD_STEP, _WANTS) & (kind))
#define TD_FLAGS (TD_WANTS_OF(TD_WANTS_ECN) ? TCP_CONG_NEEDS_ECN : 0)

#include "tcp.h"
#ifndef TD_OWN
#include "controllers.h"
#endif

/* The build of Tandem's controllers; own controllers have theirs in TD_VALUES_KEY. */
#ifndef TD_BUILD
#define TD_BUILD 0
#endif

/* User space finds the tunables by the section's name, and behind them the build. */
const volatile struct {
	struct TD_CAT(TD_STEP, _tunables) tunables;
	u32 build;
} td_tunable_values SEC(".rodata." TD_TEXT(TD_VALUES_KEY)) = { { TD_CAT(TD_STEP, _TUNABLES)(TD_TUNABLE_VALUE) }, TD_BUILD };

/*
 * The tunables, for TD_STEP. User space changes them before the program is loaded. The barrier
 * hides the address from the compiler, which would otherwise take the initial values for constants:
 * a controller reads them by a pointer that is not volatile. The verifier knows the final values,
 * since the map is frozen, and removes branches that they exclude.
 */
TD_INLINE const struct TD_CAT(TD_STEP, _tunables) *td_tunables(void)
{
	const struct TD_CAT(TD_STEP, _tunables) *tunables = (const void *)&td_tunable_values.tunables;

	barrier_var(tunables);
	return tunables;
}

#if TD_WANTS_OF(TD_WANTS_RATE)
#include "rate_control.h"
#elif TD_OWNS_WINDOW
#include "cong_control.h"
#else
#include "cong_avoid.h"
#endif

/*
 * Replays one event a run on the BPF build of the controller. User space writes all of it and reads
 * the result. Only tests load it.
 */
struct {
	struct td_flow flow;
	u64 state[TD_STORAGE_BYTES / 8];
	struct td_link link;
	struct td_event event;
	u32 has_link;
	u32 reserved;
} td_replayed;

SEC("?syscall")
int td_replay(void *ctx)
{
	struct td_event e = td_replayed.event;

#define REPLAY(kind_) case kind_: e.kind = kind_; TD_STEP(&td_replayed.flow, (void *)td_replayed.state, td_replayed.has_link ? &td_replayed.link : (void *)0, &e, td_tunables()); break
	/* A constant kind in each branch, as in the hooks, so that the verifier sees the same code. */
	switch (td_replayed.event.kind) {
	REPLAY(TD_INIT);
	REPLAY(TD_SAMPLE);
	REPLAY(TD_ACK);
	REPLAY(TD_LOSS);
	REPLAY(TD_TIMEOUT);
	REPLAY(TD_RECOVERED);
	REPLAY(TD_UNDO);
	REPLAY(TD_RESTART);
	REPLAY(TD_CLOSE);
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
