//! Ports: whether they are free.

use super::{Trial, TrialResult};
use crate::listener;
use std::{io, net::SocketAddr};

/// Tries whether a listener could have this address; `running` is a proxy of the same name that
/// runs already, and may have it.
pub fn try_port(attempt: &'static str, at: SocketAddr, transparent: bool, running: Option<&str>) -> Trial {
    let result = match (listener::try_bind(at, transparent), running) {
        (Ok(()), _) => TrialResult::works("the port is free"),
        // Most likely by that one: it is asked for a second start, or before it is to read its file
        // again.
        (Err(why), Some(name)) if why.kind() == io::ErrorKind::AddrInUse => {
            TrialResult::works(format!("in use while the proxy {name} runs"))
        }
        (Err(why), _) => TrialResult::fails(why.to_string(), listener::cure(&why)),
    };
    Trial::new(attempt, at.to_string(), result)
}
