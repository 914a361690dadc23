//! The native controllers: the laws of each, and flows that share a bottleneck in virtual time.

mod bbr;
mod bottleneck;
mod estimate;
mod laws;
mod paced_path;
mod share;
mod xcp;
