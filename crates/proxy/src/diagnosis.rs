//! What is likely wrong around a proxy, from what it counts and what its flows do; and whether a
//! host's settings are enough for a link. Pure.

use crate::{
    control::Status,
    meter::{FlowView, Limiter},
};
use intercept::{Counted, ReceiveCounters, rules::MARK};
use units::{Bytes, Rate, Span};

/// Something that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub what: &'static str,
    /// What was found, or else what is wrong and how to mend it.
    pub said: Result<String, String>,
}

/// Fewer than these say nothing.
const FEW: u64 = 10;

/// Looks at what a running proxy counts and does.
pub fn of_proxy(status: &Status, flows: &[FlowView]) -> Vec<Finding> {
    vec![
        Finding { what: "both directions pass this host", said: both_directions(status) },
        Finding { what: "the firewall lets connections be split", said: firewall(status) },
        Finding { what: "windows of the flows", said: windows(flows) },
        Finding { what: "receive buffers hold what they admit", said: receive_buffers(status, flows) },
    ]
}

fn both_directions(status: &Status) -> Result<String, String> {
    let oneway = status.counted.map_or(0, |counted| counted.oneway);
    let ended: u64 = status.totals.ended.iter().sum();
    let timed_out = status.totals.ended_as("far_timed_out");
    let seen = ended + status.totals.flows;
    if oneway >= FEW && oneway > seen / 20 {
        return Err(format!(
            "{oneway} connections were answered through this host that were not opened through it: their clients' packets take \
             another way (asymmetric routing), and they can't be split. Route both directions over this host, or neither"
        ));
    }
    if timed_out >= FEW && timed_out > ended / 2 {
        return Err(format!(
            "of {ended} connections {timed_out} got no answer from their server: it does not exist, or its answers take another way \
             than this host (asymmetric routing). See whether they come (tcpdump 'tcp[tcpflags] & tcp-syn != 0'); where they do \
             not, route both directions over this host, or let those connections bypass"
        ));
    }
    Ok(format!("of {seen} connections nothing says otherwise"))
}

fn firewall(status: &Status) -> Result<String, String> {
    let Some(counted) = status.counted else { return Ok("the rules are the operator's own".into()) };
    let Counted { split, not_yet_allowed, stopped, .. } = counted;
    if stopped >= FEW {
        return Err(format!(
            "{stopped} connections passed unsplit because an input chain of this host stopped those before them: let it accept packets \
             with the mark {MARK:#x} (nft: meta mark {MARK:#x} accept)"
        ));
    }
    if not_yet_allowed >= FEW && not_yet_allowed > split / 10 {
        return Err(format!(
            "{not_yet_allowed} connections passed unsplit, {split} were split: where a forward chain may stop connections, the first of \
             a client to a port of a server passes unsplit. To split them name whose (a rule with `in` or `from`), or set \
             forward_policy = \"ignore\""
        ));
    }
    Ok(format!("{split} split, {} not, because of it", not_yet_allowed + stopped))
}

fn windows(flows: &[FlowView]) -> Result<String, String> {
    // Short ones have not got far enough to be held by anything.
    let lasting = flows.iter().filter(|flow| flow.age_s > 5.0);
    let limiters: Vec<(Limiter, f64)> = lasting
        .flat_map(|flow| [(&flow.up, &flow.far), (&flow.down, &flow.near)])
        .filter(|(direction, _)| direction.bytes > 1_000_000)
        .map(|(direction, leg)| (direction.limited_by, leg.rtt_s))
        .collect();
    let held_by = |limiter| limiters.iter().filter(move |(by, _)| *by == limiter);
    let (receiver, buffer) = (held_by(Limiter::Receiver).count(), held_by(Limiter::ProxyBuffer).count());
    if receiver * 2 > limiters.len() {
        let slowest = held_by(Limiter::Receiver).map(|(_, rtt)| *rtt).fold(0.0, f64::max);
        return Err(format!(
            "{receiver} of {} busy directions are held by the window of their receiver (at round trips of up to {:.0} ms): it does not \
             read, or its net.ipv4.tcp_rmem allows less than the link's rate times that",
            limiters.len(),
            slowest * 1e3
        ));
    }
    if buffer * 2 > limiters.len() {
        return Err(format!("{buffer} of {} busy directions are held by the proxy's buffer: give it more (buffer)", limiters.len()));
    }
    Ok(format!("{} busy directions, {receiver} held by their receiver, {buffer} by the proxy's buffer", limiters.len()))
}

fn receive_buffers(status: &Status, flows: &[FlowView]) -> Result<String, String> {
    let Some(ReceiveCounters { pruned, dropped, collapsed }) = status.receive else {
        return Ok("this kernel does not say (/proc/net/netstat)".into());
    };
    if pruned == 0 && dropped == 0 {
        return Ok("no packet was dropped for lack of room".into());
    }
    let of_flows = flows.iter().filter(|flow| flow.near.drops + flow.far.drops > 0).count();
    Err(format!(
        "on this host receive buffers had no room for what their windows had admitted: {pruned} times, {dropped} packets dropped, \
         {collapsed} merged ({of_flows} of {} flows have dropped segments). Their senders stood still until a timeout. Raise the \
         maximum of net.ipv4.tcp_rmem to three times the proxy's buffer, or give the proxy less (buffer); before Linux 5.14 only \
         the latter helps. The counts are of all sockets since boot (nstat -az TcpExtRcvPruned TcpExtTCPRcvQDrop)",
        flows.len()
    ))
}

/// Settings of a host that bound a connection's windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The maximum of `net.ipv4.tcp_rmem`.
    pub receive: Bytes,
    /// The maximum of `net.ipv4.tcp_wmem`.
    pub send: Bytes,
}

/// Whether they are enough for a leg of this rate and round trip.
pub fn of_link(rate: Rate, rtt: Span, bounds: Bounds) -> Vec<Finding> {
    let bdp = rate.bytes_in(rtt).0;
    let need = |what, setting: &str, found: Bytes, wanted: u64, why: &str| Finding {
        what,
        said: if found.0 >= wanted {
            Ok(format!("{found} is enough for {rate} at {rtt}"))
        } else {
            // What is counted besides payload goes with it: at the bound a connection does as much
            // less than the link.
            let at_most = Rate((rate.0 as f64 * found.0 as f64 / wanted as f64) as u64);
            Err(format!(
                "{found} holds a connection to about {at_most} of {rate} at {rtt}: {why}; sysctl -w {setting}=\"4096 131072 {wanted}\""
            ))
        },
    };
    vec![
        need("window for the link, receiving", "net.ipv4.tcp_rmem", bounds.receive, 2 * bdp, "the BDP twice, since half of it is overhead"),
        need(
            "window for the link, sending",
            "net.ipv4.tcp_wmem",
            bounds.send,
            2 * bdp,
            "the BDP twice, for what is in flight and what waits",
        ),
    ]
}

/// The bounds of this host.
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
    use crate::meter::Totals;

    fn status(ended: [u64; 9], oneway: u64) -> Status {
        Status {
            totals: Totals { ended, ..Totals::default() },
            counted: Some(Counted { oneway, ..Counted::default() }),
            links: Vec::new(),
            receive: None,
        }
    }

    #[test]
    fn one_way_traffic_is_told_from_two_way() {
        let said = |ended, oneway| both_directions(&status(ended, oneway));
        assert!(said([500, 0, 0, 0, 0, 0, 0, 0, 0], 3).is_ok());
        assert!(said([10, 0, 0, 40, 0, 0, 0, 0, 0], 0).unwrap_err().contains("of 50 connections 40 got no answer"));
        assert!(said([0; 9], 12).unwrap_err().starts_with("12 connections were answered through this host"));
    }

    #[test]
    fn connections_that_the_firewall_keeps_from_being_split_are_told() {
        let said = |split, not_yet_allowed, stopped| {
            let counted = Some(Counted { split, not_yet_allowed, stopped, ..Counted::default() });
            firewall(&Status { counted, ..status([0; 9], 0) })
        };
        assert!(said(1000, 20, 0).is_ok());
        assert!(said(50, 20, 0).unwrap_err().contains("20 connections passed unsplit, 50 were split"));
        assert!(said(1000, 0, 12).unwrap_err().contains("meta mark 0x5444 accept"));
    }

    #[test]
    fn a_satellite_needs_more_than_the_default_windows() {
        let bounds = Bounds { receive: Bytes(6_291_456), send: Bytes(4_194_304) };
        let (fast, near) = ("100Mbit".parse().unwrap(), "600ms".parse().unwrap());
        let findings = of_link(fast, near, bounds);
        // 100 Mbit/s × 0.6 s = 7.5 MB
        assert!(findings.iter().all(|finding| finding.said.as_ref().unwrap_err().contains("15000000")), "{findings:?}");
        assert!(of_link(fast, "20ms".parse().unwrap(), bounds).iter().all(|finding| finding.said.is_ok()));
    }
}
