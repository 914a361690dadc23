//! What measurements with real programs share: three hosts in a row, seeded random numbers,
//! processor time of processes, nftables rules.

mod cpu_time;
mod network;
mod nftables;
mod program;
mod random;

pub use cpu_time::{CpuClocks, CpuUsage, memory_held, process_cpu_time};
pub use network::{ECHO_PORT_COUNT, FIRST_ECHO_PORT, SINK_PORT, ThreeHosts, service_ports};
pub use nftables::load_rules;
pub use program::resolve_program;
pub use random::SplitMix64;
