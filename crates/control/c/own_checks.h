/*
 * Checks what the header of an own controller defines, and fills in what it leaves out. The builder
 * (`tandem control build`) replaces NAME by the controller's name and includes this after the
 * header.
 */
#ifndef td_NAME_WANTS
#error "the header does not define td_NAME_WANTS: #define td_NAME_WANTS 0, or the events that it wants"
#endif
#ifndef td_NAME_TUNABLES
#error "the header does not define td_NAME_TUNABLES: #define td_NAME_TUNABLES(T) T(name, default, lowest, highest, \"text\")"
#endif
#ifndef td_NAME_OWNS_WINDOW
#define td_NAME_OWNS_WINDOW 0
#endif
#ifndef td_NAME_TEXT
#define td_NAME_TEXT "an own controller"
#endif
#define TD_OWNS_WINDOW td_NAME_OWNS_WINDOW

#if (td_NAME_WANTS & TD_WANTS_RATE) && !td_NAME_OWNS_WINDOW
#error "TD_WANTS_RATE is for controllers that own the window: #define td_NAME_OWNS_WINDOW 1"
#endif
#if (td_NAME_WANTS & TD_WANTS_STORAGE) && !(td_NAME_WANTS & TD_WANTS_RATE)
#error "TD_WANTS_STORAGE is for controllers with TD_WANTS_RATE: make the state smaller"
#endif
#if (td_NAME_WANTS & TD_WANTS_ECHO) && td_NAME_OWNS_WINDOW
#error "TD_WANTS_ECHO is for controllers that do not own the window"
#endif

/* Most tunables of a controller. */
#define TD_MOST_TUNABLES 16
_Static_assert(sizeof(struct td_NAME_state) <= (td_NAME_WANTS & TD_WANTS_STORAGE ? TD_STORAGE_BYTES : TD_STATE_BYTES) -
		       (td_NAME_WANTS & TD_WANTS_ECHO ? TD_ECHO_BYTES : 0),
	       "struct td_NAME_state is too large");
_Static_assert(sizeof(struct td_NAME_tunables) > 0, "a controller has at least one tunable: T(unused, 0, 0, 0, \"has no effect\")");
_Static_assert(sizeof(struct td_NAME_tunables) <= 4 * TD_MOST_TUNABLES, "a controller has at most 16 tunables");
