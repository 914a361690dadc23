//! The cache over loopback, between a client and an origin server.

mod caching;
mod common;
mod destinations;
mod hostile;
mod raw;
mod shares;
mod transformations;
mod users;
mod verbatim;
mod wire;
mod workers;
