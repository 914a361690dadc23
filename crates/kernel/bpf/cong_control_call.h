/*
 * The call of cong_control, whose arguments differ between kernels. Included by the hooks of
 * controllers that implement it.
 */
#ifndef TD_CONG_CONTROL_CALL_H
#define TD_CONG_CONTROL_CALL_H
#include "tcp.h"

/* Set by user space: number of arguments of this kernel's cong_control, 2 or (from Linux 6.10 on) 4. */
const volatile u32 td_cong_control_arguments SEC(".rodata.arguments") = 4;

/* Loads an argument. In assembly, as the compiler would merge two loads into one at a computed offset. */
#define TD_ARG(arguments, number)                                                                                                \
	({                                                                                                                            \
		void *argument;                                                                                                       \
		asm volatile("%0 = *(u64 *)(%1 + 8 * " #number ")" : "=r"(argument) : "r"(arguments));                                \
		argument;                                                                                                             \
	})

/* The rate sample is the last argument. The verifier knows the constant and checks only that branch. */
#define TD_RATE_SAMPLE(arguments) \
	((const struct rate_sample *)(td_cong_control_arguments == 2 ? TD_ARG(arguments, 1) : TD_ARG(arguments, 3)))

#endif
