/* A program that does nothing, at every segment that an open connection gets: what the kernel counts of it is what counting adds. */
#include "kernels.h"

SEC("tp_btf/tcp_probe")
int BPF_PROG(tb_empty)
{
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
