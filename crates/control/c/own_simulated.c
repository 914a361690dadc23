/*
 * An own controller as the simulator runs it: one BPF program without calls, maps and variables,
 * which an interpreter executes, and a description of the controller. Compiled with TD_NAME
 * defined, after the header and own_checks.h.
 */
#define TD_CAT2(a, b) a##b
#define TD_CAT(a, b) TD_CAT2(a, b)
#define TD_STEP TD_CAT(td_, TD_NAME)

/* What the program works on; the layout is the same in Rust (src/ffi.rs). */
struct td_simulated {
	struct td_flow flow;
	struct td_event event;
	u64 state[TD_STORAGE_BYTES / 8];
	struct td_link link;
	u32 tunables[TD_MOST_TUNABLES];
	u32 has_link;
	u32 reserved;
};

__attribute__((section("td_step"), used)) int td_simulate(struct td_simulated *s)
{
	TD_STEP(&s->flow, (void *)s->state, s->has_link ? &s->link : (void *)0, &s->event, (const void *)s->tunables);
	return 0;
}

/* Texts are in place rather than behind pointers, so that the section needs no relocation. */
struct td_described_tunable {
	char name[32];
	u32 value, low, high;
	char text[256];
};

struct td_description {
	u32 owns_window, wants, state_bytes, tunable_count;
	char text[256];
	struct td_described_tunable tunables[TD_MOST_TUNABLES];
};

#define TD_DESCRIBED(name_, value_, low_, high_, text_) { .name = #name_, .value = (value_), .low = (low_), .high = (high_), .text = text_ },
__attribute__((section("td_description"), used)) const struct td_description td_described = {
	.owns_window = TD_OWNS_WINDOW,
	.wants = TD_CAT(TD_STEP, _WANTS),
	.state_bytes = sizeof(struct TD_CAT(TD_STEP, _state)),
	.tunable_count = sizeof(struct TD_CAT(TD_STEP, _tunables)) / sizeof(u32),
	.text = TD_CAT(TD_STEP, _TEXT),
	.tunables = { TD_CAT(TD_STEP, _TUNABLES)(TD_DESCRIBED) },
};
