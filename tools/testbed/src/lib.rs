//! What several tools need: three hosts in a row, random numbers, processor time.

mod cpu_time;
mod network;
mod pipe;
mod random;

pub use cpu_time::{Clocks, Spent, memory_held, time_of};
pub use network::{ECHO, ECHO_PORTS, Network, SINK, ports};
pub use pipe::pipe;
pub use random::{Dice, Payload};
