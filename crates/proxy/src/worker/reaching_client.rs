//! A client whose server has several addresses, until one of them is connected.

use crate::{config::ProxyConfig, connection::ConnectionStart};
use relay::DialRace;
use socket2::Socket;
use std::sync::Arc;

/// A client whose server is being reached.
#[derive(Debug)]
pub(super) struct ReachingClient {
    pub(super) start: ConnectionStart,
    /// The configuration that its legs are prepared for. A reload does not change it.
    pub(super) config: Arc<ProxyConfig>,
    pub(super) race: DialRace<Attempt>,
    /// Number of the next attempt.
    pub(super) next_number: u16,
}

/// An attempt to reach an address. Its number tells its events from those of other attempts.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) number: u16,
    pub(super) socket: Socket,
}
