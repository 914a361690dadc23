/*
 * One controller as a congestion control of the kernel. Built once for each: TD_NAME is its name, TD_WHOLE whether it owns the whole
 * window.
 */
#define TD_CAT2(a, b) a##b
#define TD_CAT(a, b) TD_CAT2(a, b)
#define TD_TEXT2(a) #a
#define TD_TEXT(a) TD_TEXT2(a)
#define TD_STEP TD_CAT(td_, TD_NAME)
#define TD_KERNEL_NAME TD_TEXT(TD_STEP)
#define TD_OPS TD_CAT(td_ops_, TD_NAME)
#define TD_WANTS_OF(kind) (TD_CAT(TD_STEP, _WANTS) & (kind))
#define TD_FLAGS (TD_WANTS_OF(TD_WANTS_ECN) ? TCP_CONG_NEEDS_ECN : 0)

#include "tcp.h"
#include "controllers.h"

/* The section's name is what those who look on find it by. */
const volatile struct TD_CAT(TD_STEP, _tunables) td_tunables_set SEC(".rodata." TD_TEXT(TD_NAME)) = { TD_CAT(TD_STEP, _TUNABLES)(TD_TUNABLE_VALUE) };
#define td_tunables (*(const struct TD_CAT(TD_STEP, _tunables) *)&td_tunables_set)

#if TD_WHOLE
#include "cong_control.h"
#else
#include "cong_avoid.h"
#endif

/*
 * What was recorded is played again, one event a run: the same header through the kernel's compiler. User space writes the event and
 * reads the rest. Only tests load it.
 */
struct {
	struct td_flow flow;
	u64 state[TD_STATE_BYTES / 8];
	struct td_link link;
	struct td_event event;
	u32 has_link;
	u32 reserved;
} td_replayed;

SEC("?syscall")
int td_replay(void *ctx)
{
	struct td_event e = td_replayed.event;

#define PLAY(kind_) case kind_: e.kind = kind_; TD_STEP(&td_replayed.flow, (void *)td_replayed.state, td_replayed.has_link ? &td_replayed.link : (void *)0, &e, &td_tunables); break
	/* Each kind by itself, as the hooks have it: the verifier sees what they see. */
	switch (td_replayed.event.kind) {
	PLAY(TD_INIT);
	PLAY(TD_SAMPLE);
	PLAY(TD_ACK);
	PLAY(TD_LOSS);
	PLAY(TD_TIMEOUT);
	PLAY(TD_RECOVERED);
	PLAY(TD_UNDO);
	PLAY(TD_RESTART);
	PLAY(TD_CLOSE);
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
