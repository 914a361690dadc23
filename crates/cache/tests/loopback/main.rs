//! The cache over loopback, between a client and an origin.

mod bounds;
mod caching;
mod common;
mod destinations;
mod forms;
mod hostile;
mod raw;
mod users;
mod wire;
mod workers;
