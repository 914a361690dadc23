//! The responder: serves one prober at a time, carries data as ordered, and hands over its capture.
//!
//! Without the token a peer obtains nothing. Even without a token, nothing is sent to an address
//! that has not completed a TCP handshake and repeated the nonce of its own order. Bytes, time,
//! transfers and connections are bounded. The responder sets no firewall rule and writes no file.

use crate::{
    error::ProbeError,
    handshake::{PendingProber, accept_probers, take_ready},
    pending_connections::{PendingConnections, listen},
    responder_session::{ResponderSession, TICK},
};
use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

/// Options of [`respond`].
#[derive(Debug, Clone)]
pub struct ResponderOptions {
    /// Address to listen at.
    pub listen: IpAddr,
    /// Control port, TCP and UDP.
    pub control: u16,
    /// Ports that carry data.
    pub ports: Vec<u16>,
    /// Token that probers must know. `None` admits everyone.
    pub token: Option<String>,
}

/// Serves probers until `over` is set. Calls `say` with progress messages.
///
/// # Errors
/// The control port, or every data port, cannot be opened.
pub fn respond(how: &ResponderOptions, over: &AtomicBool, mut say: impl FnMut(&str)) -> Result<(), ProbeError> {
    let (_, control) = listen(how.listen, how.control)?;
    let at = SocketAddr::new(how.listen, how.control);
    let datagrams = UdpSocket::bind(at).map_err(|why| ProbeError::Socket { what: format!("receive datagrams at {at}"), why })?;
    let (mut listeners, mut last) = (Vec::new(), None);
    for port in &how.ports {
        match listen(how.listen, *port) {
            Ok(listener) => listeners.push(listener),
            Err(why) => {
                say(&why.to_string());
                last = Some(why);
            }
        }
    }
    if let Some(why) = last.filter(|_| listeners.is_empty()) {
        return Err(why);
    }
    let ports: Vec<u16> = listeners.iter().map(|(port, _)| *port).collect();
    let data = listen(how.listen, 0)?;
    let ftp_data = data.0;
    listeners.push(data);
    let said: Vec<String> = ports.iter().map(u16::to_string).collect();
    say(&format!("ready: control port {}, data ports {}, FTP data port {ftp_data}", how.control, said.join(", ")));
    let (mut connections, mut pending) = (PendingConnections::new(listeners), Vec::new());
    while !over.load(Relaxed) {
        connections.poll();
        accept_probers(&control, &mut pending);
        let Some((caller, hello)) = take_ready(&mut pending) else {
            thread::sleep(5 * TICK);
            continue;
        };
        let PendingProber { control, nonce, from, .. } = caller;
        let session = ResponderSession { control, pending: &mut connections, ports: &ports, ftp_data, connections: Vec::new(), over };
        match hello.and_then(|hello| session.run(how.token.as_deref().unwrap_or(""), &nonce, &hello, &datagrams)) {
            Ok(orders) => say(&format!("{from}: completed {orders} orders")),
            Err(why) => say(&format!("{from}: {why}")),
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "responder_tests.rs"]
mod tests;
