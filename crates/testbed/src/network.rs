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

/// Port of the server that reads and discards.
pub const SINK_PORT: u16 = 9000;
/// First port of the servers that answer each message.
pub const FIRST_ECHO_PORT: u16 = 9100;
/// Number of such ports: enough that no four-tuple is used again while its last connection is in
/// TIME_WAIT.
pub const ECHO_PORT_COUNT: u16 = 16;

/// All ports of the server.
pub fn service_ports() -> impl Iterator<Item = u16> {
    std::iter::once(SINK_PORT).chain(FIRST_ECHO_PORT..FIRST_ECHO_PORT + ECHO_PORT_COUNT)
}

/// Client, middle host and server. The middle host forwards.
pub struct ThreeHosts {
    /// Interface `near`, 10.79.1.1.
    pub client: Arc<Host>,
    /// Interfaces `near` (10.79.1.2) and `far` (10.79.2.1).
    pub middle: Arc<Host>,
    /// Interface `far`, 10.79.2.2.
    pub server: Arc<Host>,
    turns: AtomicU8,
}

impl ThreeHosts {
    /// Address of the server.
    pub const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 79, 2, 2));
    /// Address of the middle host, for proxies that clients must address explicitly.
    pub const MIDDLE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 79, 1, 2));

    /// Makes the hosts, with this congestion control as their default.
    ///
    /// # Errors
    ///
    /// If namespaces, links or settings cannot be made, which takes root.
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
        // A proxy that dials from its own address must not take the port at which the next one
        // listens.
        middle.sysctl(&[("ipv4/ip_forward", "1".into()), ("ipv4/ip_local_reserved_ports", "5000".into())])?;
        Ok(network)
    }

    /// Gives the client another address. A host remembers ended connections for a minute
    /// (TIME_WAIT) and drops packets of a forwarded connection with the same addresses and ports.
    /// With a new address no measurement meets connections of the one before.
    ///
    /// # Errors
    ///
    /// If `ip` refuses.
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
