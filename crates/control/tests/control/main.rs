//! The native controllers: the laws of each, and flows that share a bottleneck in virtual time.

mod bottleneck;
mod laws;
mod share;
mod xcp;
