//! Tries on this host what a start would need, without changing anything.

use crate::Config;
use intercept::{
    check::{Trial, TrialResult, try_controllers, try_firewall, try_interfaces, try_port, try_routed},
    leg,
};
use std::net::SocketAddr;

/// Descriptors that are not for connections of clients: files on disk, idle connections to servers,
/// picture workers.
const RESERVED_FILES: u64 = 400;

/// Tries what a cache with this configuration would need, in the network namespace of the calling
/// thread. `metrics` is the address at which metrics are to be served.
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
        open.map(|(at, why, cure)| Trial::new("restrict access to", format!("the listener at {at}"), TrialResult::doubtful(why, cure))),
    );
    trials
}

/// Whether the limit of descriptors is enough for `max_connections`: each connection takes two, one
/// for each leg.
fn try_files(config: &Config) -> Trial {
    let (files, wanted) = (leg::open_files(), config.max_connections as u64);
    let most = files.saturating_sub(RESERVED_FILES) / 2;
    let result = if most < wanted {
        TrialResult::doubtful(
            format!("the limit of {files} open files is enough for {most} connections, --max-connections is {wanted}"),
            "raise it (ulimit -Hn 65536, LimitNOFILE=), or lower --max-connections",
        )
    } else {
        TrialResult::works(format!("enough for {most} connections, --max-connections is {wanted}"))
    };
    Trial::new("find descriptors in", format!("the limit of {files} open files"), result)
}
