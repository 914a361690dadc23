//! The native controllers: the laws of each, and flows that share a bottleneck in virtual time.

mod laws;
mod path;
mod share;
mod xcp;
