//! Three hosts in a row, joined by veth pairs: client, middle, server.

use anyhow::Result;
use lab::Host;
use std::{
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
};

/// Where bytes are taken and thrown away, and where messages are answered: enough ports that no four-tuple comes again
/// while the last connection that had it still waits.
pub const SINK_PORT: u16 = 9000;
pub const FIRST_ECHO_PORT: u16 = 9100;
pub const ECHO_PORT_COUNT: u16 = 16;

/// The ports that a rival has to serve.
pub fn service_ports() -> impl Iterator<Item = u16> {
    std::iter::once(SINK_PORT).chain(FIRST_ECHO_PORT..FIRST_ECHO_PORT + ECHO_PORT_COUNT)
}

pub struct ThreeHosts {
    pub client: Arc<Host>,
    pub middle: Arc<Host>,
    pub server: Arc<Host>,
    turns: AtomicU8,
}

impl ThreeHosts {
    /// Where the server is.
    pub const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 79, 2, 2));
    /// Where the middle host is, for who must be called by name.
    pub const MIDDLE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 79, 1, 2));

    pub fn new(control: &str) -> Result<Self> {
        let network = {
            let host = |name| Host::new(name).map(Arc::new);
            ThreeHosts { client: host("client")?, middle: host("middle")?, server: host("server")?, turns: AtomicU8::new(0) }
        };
        let (client, middle, server) = (&network.client, &network.middle, &network.server);
        client.join(&["10.79.1.1/24"], middle, &["10.79.1.2/24"], "near")?;
        middle.join(&["10.79.2.1/24"], server, &["10.79.2.2/24"], "far")?;
        client.ip(&["route add default via 10.79.1.2".into()])?;
        server.ip(&["route add default via 10.79.2.1".into()])?;
        for host in [client, middle, server] {
            host.sysctl(&[
                ("ipv4/tcp_congestion_control", control.into()),
                ("ipv4/ip_local_port_range", "2000 65535".into()),
                ("ipv4/tcp_tw_reuse", "1".into()),
                ("ipv4/tcp_max_syn_backlog", "16384".into()),
                ("core/somaxconn", "16384".into()),
            ])?;
        }
        // A proxy that calls from addresses of its own must not take the port that the next will listen at.
        middle.sysctl(&[("ipv4/ip_forward", "1".into()), ("ipv4/ip_local_reserved_ports", "5000".into())])?;
        Ok(network)
    }

    /// Gives the client another address. A host remembers connections that ended for a minute (TIME_WAIT), and drops packets of a
    /// forwarded one with the same addresses and ports: no turn is to meet what another left.
    pub fn change_client_address(&self) -> Result<()> {
        let number = 10 + self.turns.fetch_add(1, Relaxed) % 240;
        self.client.ip(&[
            "addr flush dev near".into(),
            format!("addr add 10.79.1.{number}/24 dev near"),
            "route replace default via 10.79.1.2".into(),
        ])?;
        Ok(())
    }
}
