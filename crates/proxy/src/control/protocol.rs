//! The protocol of the control socket: one JSON request on a line, one answer on a line.

use crate::{
    experiment::ExperimentView,
    flow_records::RecordCounts,
    memory::MemoryView,
    meter::Totals,
    running::{Proxy, ProxyLimits},
    takeover::Hello,
};
use intercept::{Counted, LinkView, Prefix, ReceiveCounters, ZeroWindows};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The longest request, bytes: some five thousand prefixes.
pub(super) const LONGEST_REQUEST: usize = 256 << 10;
/// The longest answer, bytes: some hundred thousand flows.
pub(super) const LONGEST_ANSWER: usize = 512 << 20;

/// Answer to a user that may not query this proxy.
pub(super) const DENIED: &str =
    "cannot use the proxy's control socket: only root and the proxy's own user may; run this command as one of them";

/// Answer of a proxy that ends. Another may have taken over from it.
pub(super) const STOPPING: &str = "the proxy is stopping";

/// A request to a running proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    Flows,
    Status,
    /// What the experiment has shown.
    Experiment,
    /// The prefixes that bypass.
    Bypass,
    /// Adds to the prefixes that bypass.
    BypassAdd(Vec<Prefix>),
    /// Removes from the prefixes that bypass.
    BypassRemove(Vec<Prefix>),
    /// Take over from the proxy: what follows are the messages of `takeover`.
    TakeOver(Hello),
    /// Start a process that takes over.
    Restart,
    /// Read the configuration again.
    Reload,
}

/// Counts of all flows, of the firewall and of the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProxyStatus {
    /// Totals of this proxy's flows.
    pub totals: Totals,
    /// Connections that the firewall's rules counted; none if the operator installs the rules.
    pub counted: Option<Counted>,
    /// The links whose capacity is configured.
    #[serde(default)]
    pub links: Vec<LinkView>,
    /// Receive buffer overruns of the proxy's network namespace; none if they cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive: Option<ReceiveCounters>,
    /// Processes that drain since this one took over from them. Their flows are counted.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub draining_processes: usize,
    /// What only metrics show.
    #[serde(default)]
    pub details: StatusDetails,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// Counts and limits that only metrics show.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusDetails {
    /// Open flows of the process that answers, without those of processes that drain: the limits
    /// are those of each process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_flows: Option<u64>,
    /// The limits of the proxy; none: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<ProxyLimits>,
    /// The memory of the connections of the process that answers; none: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryView>,
    /// Zero windows in the proxy's network namespace; none if they cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zero_windows: Option<ZeroWindows>,
    /// Counts of flow records; none: they are not configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow_records: Option<RecordCounts>,
    /// The experiment, without prefixes; none: there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experiment: Option<ExperimentView>,
    /// The configuration file; none: the proxy runs from flags.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<PathBuf>,
}

impl Proxy {
    /// Counts of all flows, of the firewall and of the host.
    pub fn status(&self) -> ProxyStatus {
        let (totals, draining_processes) = (self.totals(), self.draining_processes());
        let process_flows = if draining_processes == 0 { totals.flows } else { self.own_totals().flows };
        ProxyStatus {
            totals,
            counted: self.counted().and_then(Result::ok),
            links: self.links(),
            receive: ReceiveCounters::read().ok(),
            draining_processes,
            details: StatusDetails {
                process_flows: Some(process_flows),
                limits: Some(self.limits()),
                memory: Some(self.memory()),
                zero_windows: ZeroWindows::read().ok(),
                flow_records: self.flow_records(),
                configuration: self.config_file(),
                experiment: self.experiment_view().map(ExperimentView::without_prefixes),
            },
        }
    }
}

/// Whether a proxy may have this name, which becomes part of a file name.
pub(super) fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=40).contains(&name.len()) && name.bytes().all(fits)
}

/// File name of a proxy's control socket.
pub(super) fn socket_name(name: &str) -> String {
    format!("{name}.control")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_proxies_stay_within_their_directory() {
        assert!(["default", "a-b_c.9", "x"].into_iter().all(is_name));
        assert!(["", "../x", "a/b", "a b", "\u{1b}[2J", "é", &"x".repeat(41)].into_iter().all(|name| !is_name(name)));
    }
}
