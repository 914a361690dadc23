//! Ports: whether they are free, and whether strangers reach what is open to them.

use super::{Trial, TrialResult};
use crate::{Config, Way, intercept};
use std::{io, net::SocketAddr};

pub(super) fn try_all(config: &Config, metrics: Option<SocketAddr>, running: Option<&str>) -> Vec<Trial> {
    let listeners =
        config.listen.iter().flat_map(|listen| listen.sockets().into_iter().map(|at| (at, listen.way == Way::Transparent, "listen at")));
    let all = listeners.chain(metrics.map(|at| (at, false, "serve metrics at")));
    let mut trials: Vec<Trial> = all.map(|(at, transparent, attempt)| try_port(attempt, at, transparent, running)).collect();
    trials.extend(
        config
            .open_listeners()
            .into_iter()
            .map(|(at, why, cure)| Trial::new("keep strangers from", format!("the listener at {at}"), TrialResult::doubtful(why, cure))),
    );
    trials
}

fn try_port(attempt: &'static str, at: SocketAddr, transparent: bool, running: Option<&str>) -> Trial {
    let result = match (intercept::try_bind(at, transparent), running) {
        (Ok(()), _) => TrialResult::works("the port is free"),
        // Most likely by that one: it is asked for a second start, or before it is to read its file again.
        (Err(why), Some(name)) if why.kind() == io::ErrorKind::AddrInUse => {
            TrialResult::works(format!("in use while the proxy {name} runs"))
        }
        (Err(why), _) => TrialResult::fails(why.to_string(), intercept::cure(&why)),
    };
    Trial::new(attempt, at.to_string(), result)
}
