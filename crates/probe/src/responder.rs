//! The responder: does what a prober orders, one prober at a time, and gives it the trace that it took meanwhile.
//!
//! It is of no use to strangers: with a token they get nowhere, and without one nothing goes to an address that has not answered a SYN and said a word that its
//! own order had; bytes, time, transfers and connections are bounded. It sets no rule and writes no file.

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

/// How to respond.
#[derive(Debug, Clone)]
pub struct ResponderOptions {
    /// Where to listen.
    pub listen: IpAddr,
    /// Where probers speak to it, by TCP and UDP.
    pub control: u16,
    /// Where they carry data.
    pub ports: Vec<u16>,
    /// What they must know.
    pub token: Option<String>,
}

/// Responds until `over`; says what happens.
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
    say(&format!("ready: probers speak to port {}, data go by {}, and by {ftp_data} for FTP", how.control, said.join(", ")));
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
            Ok(orders) => say(&format!("{from}: {orders} orders done")),
            Err(why) => say(&format!("{from}: {why}")),
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "responder_tests.rs"]
mod tests;
