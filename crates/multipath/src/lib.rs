//! The sockets of bonds: carries one stream over several TCP connections, each over its own
//! network.
//!
//! The crate `bond` decides which path carries the next piece and what is retransmitted or
//! reinjected; this crate does the I/O. [`Bonds`] has all streams of one event loop and shares that
//! loop's reactor. It gets profiles, limits and name lookups from the proxy around it, by
//! [`BondHost`].
//!
//! The way of a byte at the end that dials: [`BondConfig`] and [`BondNetwork`] (`settings`) are the
//! configuration; `networks` keeps a pool of ready connections to the `far_end`, each authenticated
//! by `handshake` and encrypted by `tls` if configured; `reach` judges whether the other end is
//! reached, and `own_routes` tells it where this end has routes to; a `stream` reads from the
//! client and writes to its connections (`member`), by the zero-copy path (`zero_copy`) if there is
//! enough data. `life` is the state machine of a stream and its plain leg, with a table of what
//! happens on FIN, RST and failures; `plain_buffer` has B of that leg follow the stream. `linger`
//! sends the last frames of a stream.
//!
//! `bonds` has [`Bonds`], which drives all of this: `bonds/arrivals` accepts connections and
//! assigns them to streams, `bonds/streams` begins and ends streams, `bonds/timeouts` has the
//! timeouts, `bonds/view` the statistics.

mod bonds;
mod channel;
mod far_end;
#[doc(hidden)]
pub mod fuzz_api;
mod handshake;
mod host;
mod life;
mod linger;
mod member;
mod networks;
mod own_routes;
mod plain_buffer;
mod reach;
mod settings;
mod stream;
mod tls;
mod trial;
mod zero_copy;

pub use bond::Target;
pub use bonds::{Bonds, StreamBrief};
pub use far_end::FarEnd;
pub use host::{BondHost, ClientReply, Preface, StreamStart};
pub use settings::{BondConfig, BondDescriptors, BondError, BondKeys, BondNetwork, NetworkSpec};
pub use trial::try_network;
