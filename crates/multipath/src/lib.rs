//! Carries the streams of a bond by sockets: one stream over several TCP connections, each over its
//! own network.
//!
//! The crate `bond` decides which connection carries the next piece and what is sent again; this
//! crate does it. [`Bonds`] has all streams of one event loop and shares that loop's epoll. What it
//! needs of the proxy around it (profiles, limits, name lookups) it asks of a [`BondHost`].
//!
//! The way of a byte at the end that dials: [`BondConfig`] and [`BondNetwork`] (`settings`) say
//! what is wanted; `networks` keeps connections ready, over each of which `handshake` has proven
//! that both ends have the key (with `tls` where it is to be encrypted); a `stream` takes what a
//! client sends and gives it to its connections (`member`), through pipes where there is much
//! (`zero_copy`). `life` is a stream together with the plain leg, with a table of what happens on
//! FIN, RST and failures. `linger` sends the last frames of a stream.
//!
//! `bonds` has [`Bonds`] and drives all of this: `bonds/arrivals` accepts connections and finds the
//! stream of each, `bonds/streams` begins and ends streams, `bonds/timeouts` ends what takes too
//! long or has gone silent, `bonds/view` shows it all.

mod bonds;
mod channel;
#[doc(hidden)]
pub mod fuzz_api;
mod handshake;
mod host;
mod life;
mod linger;
mod member;
mod networks;
mod settings;
mod stream;
mod tls;
mod trial;
mod zero_copy;

pub use bond::Target;
pub use bonds::Bonds;
pub use host::{BondHost, ClientReply, Preface, StreamStart};
pub use settings::{BondConfig, BondDescriptors, BondError, BondKeys, BondNetwork, NetworkSpec};
pub use trial::try_network;
