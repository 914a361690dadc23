/* The native build of the controllers, with a table of them: for the simulator and the tests. */
#include <stddef.h>
#include "controllers.h"

struct td_tunable {
	const char *name;
	u32 value, low, high;
	const char *text;
};

struct td_native {
	const char *name;
	const char *text;
	void (*step)(struct td_flow *, void *, struct td_link *, const struct td_event *, const void *);
	const struct td_tunable *tunables;
	u32 tunable_count;
	u32 owns_window;
	u32 wants;
	u32 state_bytes;
	u32 reserved;
};

#define TUNABLE(name, value, low, high, text)                                             \
	{ #name, value, low, high, text },
#define NATIVE(name, owns_window, text)                                                                                   \
	static void step_##name(struct td_flow *f, void *s, struct td_link *l, const struct td_event *e, const void *t) \
	{                                                                                                           \
		td_##name(f, s, l, e, t);                                                                           \
	}                                                                                                           \
	static const struct td_tunable tunables_##name[] = { td_##name##_TUNABLES(TUNABLE) };                       \
	_Static_assert(sizeof(struct td_##name##_tunables) == sizeof(u32[sizeof(tunables_##name) / sizeof(struct td_tunable)]), "u32 each");
TD_CONTROLLERS(NATIVE)

#define ENTRY(name, owns_window, text) \
	{ #name, text, step_##name, tunables_##name, sizeof(tunables_##name) / sizeof(struct td_tunable), owns_window, td_##name##_WANTS, \
	  sizeof(struct td_##name##_state), 0 },
const struct td_native td_natives[] = { TD_CONTROLLERS(ENTRY) };
const u32 td_native_count = sizeof(td_natives) / sizeof(td_natives[0]);

/* The layout in C, for a test that compares it with the one in Rust. */
const u32 td_layout[] = {
	sizeof(struct td_flow), offsetof(struct td_flow, sent), offsetof(struct td_flow, cwnd), offsetof(struct td_flow, pacing_rate),
	sizeof(struct td_event), offsetof(struct td_event, kind), offsetof(struct td_event, lost), offsetof(struct td_event, random),
	sizeof(struct td_link), offsetof(struct td_link, overhead), offsetof(struct td_link, egress), offsetof(struct td_link, measured_us),
	offsetof(struct td_link, xcp), offsetof(struct td_link, mpcp), offsetof(struct td_link, share),
	offsetof(struct td_link, estimate), offsetof(struct td_estimate, enabled),
	offsetof(struct td_estimate, told),
};
const u32 td_layout_count = sizeof(td_layout) / sizeof(td_layout[0]);
