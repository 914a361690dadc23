//! Checks that ports are free.

use super::{Trial, TrialResult};
use crate::listener;
use std::{io, net::SocketAddr};

/// Checks that a listener could bind this address. `running` names a proxy of the same name that
/// already runs and may have it.
pub fn try_port(attempt: &'static str, at: SocketAddr, transparent: bool, running: Option<&str>) -> Trial {
    let result = match (listener::try_bind(at, transparent), running) {
        (Ok(()), _) => TrialResult::works("the port is free"),
        // Most likely the running proxy has the address: the check is for a restart or a reload.
        (Err(why), Some(name)) if why.kind() == io::ErrorKind::AddrInUse => {
            TrialResult::works(format!("in use while the proxy {name} runs"))
        }
        (Err(why), _) => TrialResult::fails(why.to_string(), listener::cure(&why)),
    };
    Trial::new(attempt, at.to_string(), result)
}
