//! The interface between a bond and the proxy that it is part of.

use crate::settings::BondConfig;
use bond::Target;
use intercept::{
    AddressHistory,
    leg::{LegProfile, Shares},
};
use relay::Ending;
use socket2::Socket;
use std::{fmt, net::SocketAddr, time::Duration};

/// The configuration and the services of the proxy that a bond is part of.
pub trait BondHost: fmt::Debug {
    /// The present configuration of the bond.
    fn bond(&self) -> &BondConfig;

    /// The profiles of the near and the far leg of a connection from `client` to `server`.
    fn leg_profiles(&self, client: SocketAddr, server: SocketAddr) -> (&LegProfile, &LegProfile);

    /// Whether a rule refuses connections from `client` to `server`.
    fn is_refused(&self, client: SocketAddr, server: SocketAddr) -> bool;

    /// How the bound B of a direction is divided at first; none: it has no bound.
    fn shares(&self) -> Option<Shares>;

    /// How the largest B is divided that a direction may have once it carries bulk data; none: it
    /// has no bound.
    fn bulk_shares(&self) -> Option<Shares>;

    /// Time limit for reaching a server.
    fn connect_timeout(&self) -> Duration;

    /// Time without progress after which a connection is reset; none: never.
    fn idle_timeout(&self) -> Option<Duration>;

    /// The most streams at once.
    fn most_streams(&self) -> usize;

    /// Whether this process took over from another one, which still has the streams that began
    /// there. Connections that join such a stream are closed instead of answered by a reset, which
    /// would end the stream over its other connections too.
    fn took_over(&self) -> bool {
        false
    }

    /// Which addresses of names were reached lately.
    fn history(&self) -> &AddressHistory;

    /// Requests the addresses of a name. The host passes the result to [`Bonds::on_resolved`] with
    /// the same `stream` and `serial`.
    ///
    /// [`Bonds::on_resolved`]: crate::Bonds::on_resolved
    fn look_up(&self, name: String, port: u16, stream: usize, serial: u64);

    /// Requests the addresses of the name of the bond's other end over this network. The host
    /// passes the result to [`Bonds::on_far_end_resolved`].
    ///
    /// [`Bonds::on_far_end_resolved`]: crate::Bonds::on_far_end_resolved
    fn look_up_far_end(&self, name: String, port: u16, network: usize);
}

/// Makes the bytes that a server gets before those of a stream, from the addresses of client and
/// server.
pub type Preface = fn(client: SocketAddr, server: SocketAddr) -> Vec<u8>;

/// The replies for a client that waits until its server is reached, as SOCKS clients do.
#[derive(Debug, Clone, Copy)]
pub struct ClientReply {
    /// Makes the reply that precedes the bytes of the stream, once the server was reached.
    pub reached: fn() -> Vec<u8>,
    /// Sends the reply that the server was not reached.
    pub refuse: fn(&Socket, Ending),
}

/// A client's connection that goes over a bond.
#[derive(Debug)]
pub struct StreamStart {
    /// The near leg.
    pub near: Socket,
    /// Address of the client.
    pub client: SocketAddr,
    /// The destination.
    pub to: Target,
    /// Bytes that the server gets before the client's.
    pub preface: Vec<u8>,
    /// Bytes for the server that were already read from the client.
    pub already_read: Vec<u8>,
    /// The replies, if the client waits for one.
    pub reply: Option<ClientReply>,
    /// Whether the destination, an address, may be connected to without the bond if the other end
    /// of the bond is not reached.
    pub may_return: bool,
}
