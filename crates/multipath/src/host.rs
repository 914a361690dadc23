//! What a bond asks of the proxy that it is part of, and what that tells it of clients and servers.

use crate::settings::BondConfig;
use bond::Target;
use intercept::leg::{LegProfile, Shares};
use relay::Ending;
use socket2::Socket;
use std::{fmt, net::SocketAddr, time::Duration};

/// The configuration and the services of the proxy that a bond is part of.
pub trait BondHost: fmt::Debug {
    /// The bond as it is configured now.
    fn bond(&self) -> &BondConfig;

    /// The profiles of the near and the far leg of a connection from `client` to `server`.
    fn leg_profiles(&self, client: SocketAddr, server: SocketAddr) -> (&LegProfile, &LegProfile);

    /// Whether a rule refuses connections from `client` to `server`.
    fn is_refused(&self, client: SocketAddr, server: SocketAddr) -> bool;

    /// How B is divided; none: it is not bounded.
    fn shares(&self) -> Option<Shares>;

    /// How long a far end may take to be reached.
    fn connect_timeout(&self) -> Duration;

    /// How long nothing may move in a connection; none: for ever.
    fn idle_timeout(&self) -> Option<Duration>;

    /// How many streams there may be at once.
    fn most_streams(&self) -> usize;

    /// Has a name looked up. The answer is to be passed to [`Bonds::on_resolved`] with the same
    /// `stream` and `serial`.
    ///
    /// [`Bonds::on_resolved`]: crate::Bonds::on_resolved
    fn look_up(&self, name: String, port: u16, stream: usize, serial: u64);
}

/// What a server is to get before the bytes of a stream, from the addresses of the client and of
/// the server.
pub type Preface = fn(client: SocketAddr, server: SocketAddr) -> Vec<u8>;

/// How a client is answered that waits to hear whether its server was reached.
#[derive(Debug, Clone, Copy)]
pub struct ClientReply {
    /// What it gets before the bytes of the stream, once its server was reached.
    pub reached: fn() -> Vec<u8>,
    /// Tells it that its server was not reached.
    pub refuse: fn(&Socket, Ending),
}

/// A client whose connection is to go over a bond.
#[derive(Debug)]
pub struct StreamStart {
    /// The near leg.
    pub near: Socket,
    /// Who opened it.
    pub client: SocketAddr,
    /// Where it goes.
    pub to: Target,
    /// What the server gets before the client's bytes.
    pub preface: Vec<u8>,
    /// What the client has said already that is for the server.
    pub heard: Vec<u8>,
    /// The answer that the client waits for, if any.
    pub reply: Option<ClientReply>,
}
