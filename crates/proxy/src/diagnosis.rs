//! Diagnoses likely faults around a proxy from its counters and flows, and whether a host's
//! settings suffice for a link. Pure: the caller collects the numbers.

use crate::{
    control::ProxyStatus,
    memory::LimitKind,
    meter::{FlowView, Limiter},
};
use intercept::{Counted, ReceiveCounters, rules::MARK};
use units::{Bytes, Rate, Span};

/// One diagnosed aspect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The aspect, such as "windows of the flows".
    pub what: &'static str,
    /// What was found, or else what is wrong and its cure.
    pub result: Result<String, String>,
}

/// Smaller counts are not significant.
const FEW: u64 = 10;

/// Diagnoses a running proxy by its counters and its flows.
pub fn of_proxy(status: &ProxyStatus, flows: &[FlowView]) -> Vec<Finding> {
    vec![
        Finding { what: "both directions pass this host", result: both_directions(status) },
        Finding { what: "the firewall lets connections be split", result: firewall(status) },
        Finding { what: "windows of the flows", result: windows(flows) },
        Finding { what: "memory of the connections", result: memory_of(status) },
        Finding { what: "receive buffers hold what they admit", result: receive_buffers(status, flows) },
    ]
}

fn both_directions(status: &ProxyStatus) -> Result<String, String> {
    let oneway = status.counted.map_or(0, |counted| counted.oneway);
    let ended: u64 = status.totals.ended.iter().sum();
    let timed_out = status.totals.ended_as("far_timed_out");
    let seen = ended + status.totals.flows;
    if oneway >= FEW && oneway > seen / 20 {
        return Err(format!(
            "{oneway} connections were answered through this host but not opened through it: their clients' packets take another \
             route (asymmetric routing), so that they cannot be split; route both directions over this host, or neither"
        ));
    }
    if timed_out >= FEW && timed_out > ended / 2 {
        return Err(format!(
            "{timed_out} of {ended} connections got no answer from their server: it does not exist, or its answers do not pass this \
             host (asymmetric routing); see whether they arrive (tcpdump 'tcp[tcpflags] & tcp-syn != 0'), and if not, route both \
             directions over this host or let these connections bypass"
        ));
    }
    Ok(format!("no sign of another route in {seen} connections"))
}

fn firewall(status: &ProxyStatus) -> Result<String, String> {
    let Some(counted) = status.counted else { return Ok("not checked: the operator installs the rules".into()) };
    let Counted { split, not_yet_allowed, stopped, .. } = counted;
    if stopped >= FEW {
        return Err(format!(
            "{stopped} connections passed unsplit because an input chain of this host dropped earlier ones: let that chain accept \
             packets with the mark {MARK:#x} (nft: meta mark {MARK:#x} accept)"
        ));
    }
    if not_yet_allowed >= FEW && not_yet_allowed > split / 10 {
        return Err(format!(
            "{not_yet_allowed} connections passed unsplit, {split} were split: a forward chain of this host may drop connections, so \
             that the first connection of a client to each port of a server passes unsplit; to split these too, give a rule with \
             `in` or `from`, or set forward_policy = \"ignore\""
        ));
    }
    Ok(format!("{split} connections were split, {} passed unsplit because of a firewall", not_yet_allowed + stopped))
}

fn windows(flows: &[FlowView]) -> Result<String, String> {
    // Young flows are still in slow start.
    let lasting = flows.iter().filter(|flow| flow.age_s > 5.0);
    let limiters: Vec<(Limiter, f64)> = lasting
        .flat_map(|flow| [(&flow.up, &flow.far), (&flow.down, &flow.near)])
        .filter(|(direction, _)| direction.bytes > 1_000_000)
        .map(|(direction, leg)| (direction.limited_by, leg.rtt_s))
        .collect();
    let limited_by = |limiter| limiters.iter().filter(move |(by, _)| *by == limiter);
    let (receiver, buffer) = (limited_by(Limiter::Receiver).count(), limited_by(Limiter::ProxyBuffer).count());
    if receiver * 2 > limiters.len() {
        let slowest = limited_by(Limiter::Receiver).map(|(_, rtt)| *rtt).fold(0.0, f64::max);
        return Err(format!(
            "{receiver} of {} busy directions are limited by the window of their receiver (at round trips of up to {:.0} ms): it does \
             not read fast enough, or the maximum of its net.ipv4.tcp_rmem is below the BDP of the path; raise that maximum",
            limiters.len(),
            slowest * 1e3
        ));
    }
    if buffer * 2 > limiters.len() {
        return Err(format!("{buffer} of {} busy directions are limited by the proxy's buffer: raise it (buffer)", limiters.len()));
    }
    Ok(format!("{} busy directions: {receiver} limited by their receiver, {buffer} by the proxy's buffer", limiters.len()))
}

fn memory_of(status: &ProxyStatus) -> Result<String, String> {
    let Some(memory) = &status.details.memory else { return Ok("not checked: the proxy does not tell".into()) };
    let used = Bytes(memory.used);
    let Some((budget, kind)) = memory.budget.map(Bytes).zip(memory.limited_by.as_deref()) else {
        return Ok(format!("{used}, without a limit that is known"));
    };
    let stuck = status.totals.ended_as("stuck");
    let ended = if stuck > 0 { format!("; {stuck} flows have ended since they were stuck while memory was short") } else { String::new() };
    let cure = LimitKind::cure(kind);
    let cap = memory.buffer_cap.map_or(String::new(), |cap| format!("B of a direction is at most {}; ", Bytes(cap)));
    match memory.level.as_str() {
        "free" => Ok(format!("at most {used} of {budget}{ended}")),
        "tight" => Err(format!(
            "{used} of {budget} are in use, which is limited {cure}; {cap}clients share the connections from three quarters on{ended}"
        )),
        _ => Err(format!("{used} of {budget} are in use, which is limited {cure}; {cap}new connections pass unsplit, or wait{ended}")),
    }
}

fn receive_buffers(status: &ProxyStatus, flows: &[FlowView]) -> Result<String, String> {
    let Some(ReceiveCounters { pruned, dropped, collapsed }) = status.receive else {
        return Ok("not checked: this kernel has no such counters (/proc/net/netstat)".into());
    };
    if pruned == 0 && dropped == 0 {
        return Ok("no packet was dropped for lack of space".into());
    }
    let of_flows = flows.iter().filter(|flow| flow.near.drops + flow.far.drops > 0).count();
    Err(format!(
        "receive buffers of this host overflowed although their windows had admitted the data: {pruned} times, {dropped} packets \
         dropped, {collapsed} merged ({of_flows} of {} flows have dropped segments), so that their senders stalled until a timeout; \
         raise the maximum of net.ipv4.tcp_rmem to three times the proxy's buffer, or lower the proxy's buffer (buffer), which is \
         the only cure before Linux 5.14. The counts are of all sockets since boot (nstat -az TcpExtRcvPruned TcpExtTCPRcvQDrop)",
        flows.len()
    ))
}

/// Settings of a host that limit the windows of its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The maximum of `net.ipv4.tcp_rmem`.
    pub receive: Bytes,
    /// The maximum of `net.ipv4.tcp_wmem`.
    pub send: Bytes,
}

/// Whether these settings suffice for a leg of this rate and round-trip time.
pub fn of_link(rate: Rate, rtt: Span, bounds: Bounds) -> Vec<Finding> {
    let bdp = rate.bytes_in(rtt).0;
    let need = |what, setting: &str, found: Bytes, wanted: u64, why: &str| Finding {
        what,
        result: if found.0 >= wanted {
            Ok(format!("{found} is enough for {rate} at {rtt}"))
        } else {
            // Overhead is proportional to payload, so that the attainable rate scales with the
            // limit.
            let at_most = Rate::rounded(rate.0 as f64 * found.0 as f64 / wanted as f64);
            Err(format!(
                "{found} limits a connection to about {at_most} of {rate} at {rtt}: it needs {why}; sysctl -w {setting}=\"4096 131072 {wanted}\""
            ))
        },
    };
    vec![
        need(
            "window for the link, receiving",
            "net.ipv4.tcp_rmem",
            bounds.receive,
            8 * bdp / 5,
            "1.6 BDP, since of a packet as little as 63 % is payload; twice as much keeps the rate while \
             losses are repaired",
        ),
        need(
            "window for the link, sending",
            "net.ipv4.tcp_wmem",
            bounds.send,
            2 * bdp,
            "twice the BDP, for data in flight and data that waits; with buffer = \"auto\" the proxy's own legs have that without it",
        ),
    ]
}

/// The settings of this host; none if they cannot be read.
pub fn bounds_of_host() -> Option<Bounds> {
    let most = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()?;
        Some(Bytes(text.split_whitespace().nth(2)?.parse().ok()?))
    };
    Some(Bounds { receive: most("tcp_rmem")?, send: most("tcp_wmem")? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::StatusDetails;
    use crate::memory::MemoryView;
    use crate::meter::Totals;

    fn status(ended: [u64; 10], oneway: u64) -> ProxyStatus {
        ProxyStatus {
            totals: Totals { ended, ..Totals::default() },
            counted: Some(Counted { oneway, ..Counted::default() }),
            links: Vec::new(),
            receive: None,
            details: StatusDetails::default(),
            draining_processes: 0,
        }
    }

    #[test]
    fn asymmetric_routing_is_reported() {
        let diagnose = |ended, oneway| both_directions(&status(ended, oneway));
        assert!(diagnose([500, 0, 0, 0, 0, 0, 0, 0, 0, 0], 3).is_ok());
        assert!(diagnose([10, 0, 0, 40, 0, 0, 0, 0, 0, 0], 0).unwrap_err().contains("40 of 50 connections got no answer"));
        assert!(diagnose([0; 10], 12).unwrap_err().starts_with("12 connections were answered through this host"));
    }

    #[test]
    fn firewalls_that_prevent_splitting_are_reported() {
        let diagnose = |split, not_yet_allowed, stopped| {
            let counted = Some(Counted { split, not_yet_allowed, stopped, ..Counted::default() });
            firewall(&ProxyStatus { counted, ..status([0; 10], 0) })
        };
        assert!(diagnose(1000, 20, 0).is_ok());
        assert!(diagnose(50, 20, 0).unwrap_err().contains("20 connections passed unsplit, 50 were split"));
        assert!(diagnose(1000, 0, 12).unwrap_err().contains("meta mark 0x5444 accept"));
    }

    #[test]
    fn a_shortage_of_memory_is_reported_with_what_limits_it() {
        let at = |level: &str, kind: &str| {
            let memory = MemoryView {
                used: 50 << 20,
                budget: Some(64 << 20),
                limited_by: Some(kind.to_owned()),
                level: level.to_owned(),
                buffer_cap: (level != "free").then_some(1 << 20),
                host_used: 0,
            };
            let details = StatusDetails { memory: Some(memory), ..StatusDetails::default() };
            memory_of(&ProxyStatus { details, ..status([0, 0, 0, 0, 0, 0, 0, 0, 0, 3], 0) })
        };
        assert!(at("free", "host").unwrap().contains("3 flows have ended"));
        let short = at("full", "host").unwrap_err();
        assert!(short.contains("net.ipv4.tcp_mem") && short.contains("new connections pass unsplit"), "{short}");
        assert!(at("tight", "configured").unwrap_err().contains("raise memory"));
        assert!(at("critical", "group").unwrap_err().contains("memory.max"));
    }

    #[test]
    fn a_satellite_needs_more_than_the_default_windows() {
        let bounds = Bounds { receive: Bytes(6_291_456), send: Bytes(4_194_304) };
        let (fast, near) = ("100Mbit".parse().unwrap(), "600ms".parse().unwrap());
        let findings = of_link(fast, near, bounds);
        // 100 Mbit/s × 0.6 s = 7.5 MB
        let wrong: Vec<&str> = findings.iter().map(|finding| finding.result.as_ref().unwrap_err().as_str()).collect();
        assert!(wrong[0].contains("131072 12000000") && wrong[1].contains("131072 15000000"), "{findings:?}");
        assert!(of_link(fast, "20ms".parse().unwrap(), bounds).iter().all(|finding| finding.result.is_ok()));
    }
}
