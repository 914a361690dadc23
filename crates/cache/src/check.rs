//! Tries what a start would need of this host, and changes nothing of it.

use crate::Config;
use intercept::{
    check::{Trial, TrialResult, try_controllers, try_firewall, try_interfaces, try_port, try_routed},
    leg,
};
use std::net::SocketAddr;

/// Descriptors that are not for connections: files on disk, idle connections, picture workers.
const RESERVED_FILES: u64 = 400;

/// Tries everything that a cache with this configuration would need, in the network namespace of
/// the calling thread. `metrics` is where metrics are to be served.
pub fn try_start(config: &Config, metrics: Option<SocketAddr>) -> Vec<Trial> {
    let mut interception = config.interception();
    interception.without_absent_families();
    let profiles: Vec<_> = interception.policy.profiles().collect();
    let mut trials = try_interfaces(&interception, &profiles);
    trials.extend([try_files(config), try_controllers(profiles.iter().cloned())]);
    trials.extend(try_routed(&interception, Some(config.max_connections as u64), None));
    trials.extend(interception.rules().map_or(Vec::new(), |rules| try_firewall(&rules)));
    for listen in &interception.listen {
        trials.extend(listen.sockets().into_iter().map(|at| try_port("listen at", at, listen.is_transparent(), None)));
    }
    trials.extend(metrics.map(|at| try_port("serve metrics at", at, false, None)));
    let open = config.open_listeners().into_iter();
    trials.extend(
        open.map(|(at, why, cure)| Trial::new("keep strangers from", format!("the listener at {at}"), TrialResult::doubtful(why, cure))),
    );
    trials
}

/// A connection has two descriptors: the client's and the server's.
fn try_files(config: &Config) -> Trial {
    let (files, wanted) = (leg::open_files(), config.max_connections as u64);
    let most = files.saturating_sub(RESERVED_FILES) / 2;
    let result = if most < wanted {
        TrialResult::doubtful(
            format!("the limit of {files} open files is enough for {most} connections, {wanted} are let in (--max-connections)"),
            "raise it (ulimit -Hn 65536, LimitNOFILE=), or let in fewer",
        )
    } else {
        TrialResult::works(format!("enough for {most} connections, of which {wanted} are let in (--max-connections)"))
    };
    Trial::new("find descriptors in", format!("the limit of {files} open files"), result)
}
