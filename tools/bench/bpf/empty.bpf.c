/*
 * A program that does nothing, run for every segment that an established connection receives. The time
 * that the kernel counts for it is the cost of counting.
 */
#include "kernels.h"

SEC("tp_btf/tcp_probe")
int BPF_PROG(tb_empty)
{
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
