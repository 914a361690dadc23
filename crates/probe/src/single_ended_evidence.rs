//! Evidence from single-ended measurements. Pure: measurements in, evidence out.
//!
//! Cheap tests come first. The strongest evidence is data that cannot reach the host and are
//! acknowledged nevertheless.

use crate::{
    traceroute::{Baseline, NetworkPath},
    ttl_limited::{DataProbe, SynOutcome, SynProbe},
};
use detect::{Evidence, Indication, Method, Strength, text::seconds};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A time is clearly shorter than another if it is below this fraction of it and shorter by more
/// than this, s.
const SHORTER: f64 = 0.5;
const CLEARLY: f64 = 0.005;
/// Difference in hops that asymmetric paths may cause.
const HOPS_APART: u8 = 3;

/// Single-ended measurements of a port.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PortProbe {
    /// The port.
    pub port: u16,
    /// SYNs with the usual TTL.
    pub plain: Vec<SynProbe>,
    /// SYNs with a limited TTL.
    pub short: Vec<SynProbe>,
    /// Data with a limited TTL.
    pub data: Vec<DataProbe>,
    /// Time from a request to the first byte of the response, s.
    pub first_byte_s: Option<f64>,
    /// Remaining TTL of the SYN-ACK or reset.
    pub ttl: Option<u8>,
}

impl PortProbe {
    /// The most informative answer to the SYNs with the usual TTL.
    pub fn answer(&self) -> SynOutcome {
        let any = |answer: SynOutcome| self.plain.iter().any(|seen| seen.answer == answer);
        [SynOutcome::Accepted, SynOutcome::Refused, SynOutcome::Barred, SynOutcome::Exceeded]
            .into_iter()
            .find(|answer| any(*answer))
            .unwrap_or(SynOutcome::Silent)
    }

    /// Shortest time to that answer, s.
    pub(crate) fn answered_s(&self) -> Option<f64> {
        let answer = self.answer();
        self.plain
            .iter()
            .filter(|seen| seen.answer == answer && answer != SynOutcome::Silent)
            .map(|seen| seen.after_s)
            .min_by(f64::total_cmp)
    }

    /// Smallest TTL at which a SYN had this answer.
    fn nearest(&self, answer: SynOutcome) -> Option<u8> {
        self.short.iter().filter(|seen| seen.answer == answer).filter_map(|seen| seen.ttl).min()
    }

    /// Smallest TTL at which a SYN was answered by the host or on its behalf.
    pub(crate) fn nearest_answer(&self) -> Option<u8> {
        [SynOutcome::Accepted, SynOutcome::Refused].into_iter().filter_map(|answer| self.nearest(answer)).min()
    }

    /// Whether every SYN with this TTL had this answer.
    fn always(&self, ttl: u8, answer: SynOutcome) -> bool {
        self.short.iter().filter(|seen| seen.ttl == Some(ttl)).all(|seen| seen.answer == answer)
    }

    /// The probe with the smallest TTL whose data were acknowledged.
    fn data_nearest(&self) -> Option<DataProbe> {
        self.data.iter().filter(|seen| seen.acked_s.is_some()).min_by_key(|seen| seen.ttl).copied()
    }
}

/// Where a connection is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitLocation {
    /// Distance in hops.
    pub hop: u8,
    /// The node that drops packets whose TTL expires there: the splitter, or the router before it.
    pub address: Option<IpAddr>,
}

/// A number of hops in words.
fn hops(count: u8) -> String {
    format!("{count} hop{}", if count == 1 { "" } else { "s" })
}

/// Hops that a packet has travelled if its remaining TTL is `left`. The initial TTL is 64, 128 or
/// 255.
fn hops_travelled(left: u8) -> u8 {
    [64, 128, 255].into_iter().find(|begin| *begin >= left).unwrap_or(255) - left
}

fn address_text(from: Option<IpAddr>) -> String {
    from.map_or("an unknown router".into(), |from| from.to_string())
}

/// All single-ended evidence about a port. `elsewhere` are ports where no service is expected.
pub(crate) fn evidence(port: &PortProbe, way: &NetworkPath, elsewhere: &[PortProbe]) -> Vec<Evidence> {
    let mut found = Vec::new();
    if port.answer() == SynOutcome::Accepted {
        found.extend(short_data(port, way, elsewhere));
        found.extend(short_syn(port, way));
        found.extend(port_dependence(port, way, elsewhere));
        found.extend(connect_time(port, way, elsewhere));
        found.extend(first_byte(port));
        found.extend(hops_left(port, way, elsewhere));
    }
    found.extend(unused_ports(elsewhere));
    if is_syn_flood_guard(port) {
        // Distance and delay of the SYN-ACK then belong to the guard. A splitter that waits for the
        // host's ACKs before it sends its own also lets data pass. Hence neither conclusion is
        // shown.
        found.iter_mut().for_each(|piece| piece.strength = Strength::Weak);
    }
    found
}

/// The fewest hops from which ports refuse where no service is expected, and the number of one such
/// port. `None` unless two of them do. All answers of the other ports come from at least as far.
pub(crate) fn refused_from(elsewhere: &[PortProbe]) -> Option<(u8, u16)> {
    let refused = |other: &PortProbe| Some((other.nearest(SynOutcome::Refused)?, other.port));
    if elsewhere.iter().filter_map(refused).count() < 2 || elsewhere.iter().any(|other| other.answer() == SynOutcome::Accepted) {
        return None;
    }
    elsewhere.iter().filter_map(refused).min()
}

/// Where the split is, if there is one.
pub(crate) fn place(port: &PortProbe, way: &NetworkPath, elsewhere: &[PortProbe]) -> Option<SplitLocation> {
    let hop = port.data_nearest().map(|seen| seen.ttl).or(port.nearest(SynOutcome::Accepted))?;
    let unreached = || way.beyond().is_some_and(|(beyond, _)| hop <= beyond) || refused_from(elsewhere).is_some_and(|(far, _)| hop < far);
    let before_host = way.reached.map_or_else(unreached, |reached| hop < reached);
    before_host.then(|| SplitLocation { hop, address: way.at(hop) })
}

/// Data whose TTL is too small to reach the host.
fn short_data(port: &PortProbe, way: &NetworkPath, elsewhere: &[PortProbe]) -> Option<Evidence> {
    let of = |says, strength, far: u8, text| Some(Evidence::new(Method::ShortData, says, strength, (f64::from(far), "hops"), text));
    let beyond = way.beyond();
    if let (Some(seen), Some((far, answers))) = (port.data_nearest(), beyond)
        && seen.ttl <= far
    {
        let text = format!(
            "data with a TTL of {} were acknowledged after {}, but the host is farther away: {} dropped {answers} packets to it at hop {far}",
            seen.ttl,
            seconds(seen.acked_s.unwrap_or_default()),
            address_text(way.at(far)),
        );
        // A single lost answer would make the host look farther away than it is.
        return of(Indication::Split, if answers >= 2 { Strength::Strong } else { Strength::Moderate }, seen.ttl, text);
    }
    // Multipath routing would deliver some of the SYNs that have the same TTL.
    if let (Some(seen), Some((far, other))) = (port.data_nearest(), refused_from(elsewhere))
        && seen.ttl < far
        && way.reached.is_none_or(|reached| far <= reached)
        && port.nearest(SynOutcome::Accepted).is_some_and(|nearest| port.always(nearest, SynOutcome::Accepted))
    {
        let text = format!(
            "data with a TTL of {} were acknowledged after {}, but port {other} is answered from {far} hops away and none from fewer",
            seen.ttl,
            seconds(seen.acked_s.unwrap_or_default())
        );
        return of(Indication::Split, if answers_as_far(port, elsewhere) { Strength::Weak } else { Strength::Moderate }, seen.ttl, text);
    }
    if let (Some(seen), Some(reached)) = (port.data_nearest(), way.reached)
        && seen.ttl < reached
    {
        let text =
            format!("data with a TTL of {} were acknowledged, but the host was not reached with fewer than {reached} hops", seen.ttl);
        return of(Indication::Split, Strength::Weak, seen.ttl, text);
    }
    let kept = port.data.iter().filter(|seen| seen.acked_s.is_none()).max_by_key(|seen| seen.ttl)?;
    let what = format!("data with a TTL of {}, sent {} times, were not acknowledged", kept.ttl, kept.sent);
    match (kept.alive, way.reached) {
        (Some(true), Some(reached)) if kept.ttl + 1 == reached && kept.sent >= 2 => {
            let text = format!("{what}. With the default TTL they were: nothing acknowledges them before the host, {reached} hops away");
            of(Indication::EndToEnd, Strength::Moderate, kept.ttl, text)
        }
        (Some(true), reached) => {
            let far = reached.map_or("the distance of the host is unknown".into(), |reached| format!("the host is {reached} hops away"));
            of(Indication::Nothing, Strength::Weak, kept.ttl, format!("{what}. With the default TTL they were; {far}"))
        }
        _ => of(Indication::Nothing, Strength::Weak, kept.ttl, format!("{what}, nor with the default TTL")),
    }
}

/// Whether the node that accepts connections leaves their data to a node farther away, as a
/// SYN-flood guard does: data with a TTL that reaches it were not acknowledged, and then were,
/// without that limit.
fn is_syn_flood_guard(port: &PortProbe) -> bool {
    let kept = |near| port.data.iter().any(|data| data.acked_s.is_none() && data.alive == Some(true) && data.ttl >= near);
    port.data_nearest().is_none() && port.nearest(SynOutcome::Accepted).is_some_and(kept)
}

/// SYNs whose TTL is too small to reach the host.
fn short_syn(port: &PortProbe, way: &NetworkPath) -> Option<Evidence> {
    let nearest = port.nearest(SynOutcome::Accepted)?;
    let of = |says, strength, text| Some(Evidence::new(Method::ShortSyn, says, strength, (f64::from(nearest), "hops"), text));
    let what = format!("a SYN with a TTL of {nearest} was accepted");
    match (way.beyond(), way.reached) {
        (Some((far, answers)), _) if nearest <= far => {
            let text = format!(
                "{what}, but the host is farther away: {} dropped {answers} packets to it at hop {far} (a SYN-flood guard does that too)",
                address_text(way.at(far))
            );
            of(Indication::Split, Strength::Moderate, text)
        }
        (_, Some(reached)) if nearest == reached => {
            of(Indication::EndToEnd, Strength::Weak, format!("{what}, none with a smaller one: the same distance as the host"))
        }
        (_, Some(reached)) => of(Indication::Nothing, Strength::Weak, format!("{what}; the host was reached with a TTL of {reached}")),
        (_, None) => of(Indication::Nothing, Strength::Weak, format!("{what}; the distance of the host is unknown")),
    }
}

/// What looks like a splitter that is nearer than the host's other ports.
const ELSEWHERE: &str = " (a router that sends this port to a nearer machine, or over a shorter path, looks the same)";

/// Whether the SYN-ACK travelled as many hops as the refusals of other ports, or more: then the
/// same machine probably sent both, and only the path to it is shorter.
fn answers_as_far(port: &PortProbe, elsewhere: &[PortProbe]) -> bool {
    let refusals = elsewhere.iter().filter(|other| other.answer() == SynOutcome::Refused);
    let far = refusals.filter_map(|other| other.ttl).map(hops_travelled).min();
    port.ttl.map(hops_travelled).zip(far).is_some_and(|(came, far)| came >= far)
}

/// Distance of the answer compared with other ports. The only measure of distance if neither the
/// host nor a router near it answers. A port that is forwarded to a server behind the host, or that
/// a firewall refuses on its behalf, makes the port in question look farther, not nearer.
fn port_dependence(port: &PortProbe, way: &NetworkPath, elsewhere: &[PortProbe]) -> Option<Evidence> {
    let nearest = port.nearest(SynOutcome::Accepted)?;
    // Routers that answer show the distance better (`short_syn`).
    if way.beyond().is_some_and(|(beyond, _)| beyond >= nearest) {
        return None;
    }
    let refusals = elsewhere.iter().filter_map(|other| Some((other.nearest(SynOutcome::Refused)?, other.port)));
    let (far, other) = refusals.min()?;
    let sooner = refused_after(elsewhere).zip(port.answered_s()).map(|(refused, took)| refused - took).filter(|sooner| *sooner > CLEARLY);
    let text = format!(
        "port {} answers from {} away{}, port {other} refuses from {far}",
        port.port,
        hops(nearest),
        sooner.map_or(String::new(), |sooner| format!(" and {} sooner", seconds(sooner)))
    );
    let of = |says, strength, text| {
        Some(Evidence::new(Method::PortDependence, says, strength, (f64::from(far) - f64::from(nearest), "hops"), text))
    };
    if nearest >= far || refused_from(elsewhere).is_none() {
        of(Indication::Nothing, Strength::Weak, text)
    } else if !port.always(nearest, SynOutcome::Accepted) {
        of(Indication::Nothing, Strength::Weak, text + "; other SYNs with the same TTL were not answered: paths of different length")
    } else if answers_as_far(port, elsewhere) {
        of(Indication::Split, Strength::Weak, text + "; both answers travelled as far: the path to the host may be shorter for this port")
    } else {
        of(Indication::Split, Strength::Moderate, text + ELSEWHERE)
    }
}

/// Shortest time to a refusal, s.
fn refused_after(elsewhere: &[PortProbe]) -> Option<f64> {
    elsewhere.iter().filter(|other| other.answer() == SynOutcome::Refused).filter_map(PortProbe::answered_s).min_by(f64::total_cmp)
}

/// Connect time compared with the round trip of other protocols, which a TCP splitter does not
/// touch.
fn connect_time(port: &PortProbe, way: &NetworkPath, elsewhere: &[PortProbe]) -> Option<Evidence> {
    let took = port.answered_s()?;
    // A reset from the host is the better baseline, since it is the same protocol.
    let refused = refused_after(elsewhere);
    let unsplit = way.round_trip.filter(|round_trip| round_trip.of >= 3);
    let (base, what) = match (refused, unsplit) {
        (Some(refused), Some(unsplit)) if refused < unsplit.least_s => (refused, "a refusal at another port"),
        (_, Some(unsplit)) if unsplit.by == Baseline::Responder => (unsplit.least_s, "the round trip of UDP"),
        (_, Some(unsplit)) => (unsplit.least_s, "the round trip of ICMP"),
        (Some(refused), None) => (refused, "a refusal at another port"),
        (None, None) => return None,
    };
    let text = format!("connecting took at least {}, {what} {}", seconds(took), seconds(base));
    let of = |says, strength, text| Some(Evidence::new(Method::ConnectTime, says, strength, (took / base.max(1e-9), "ratio"), text));
    if took < SHORTER * base && base - took > CLEARLY {
        let besides = if what.ends_with("ICMP") { " (a host that delays ICMP looks the same)" } else { "" };
        of(Indication::Split, Strength::Moderate, text + besides)
    } else {
        of(Indication::Nothing, Strength::Weak, text)
    }
}

/// Time to the first byte of a response compared with the connect time.
fn first_byte(port: &PortProbe) -> Option<Evidence> {
    let (took, waited) = (port.answered_s()?, port.first_byte_s?);
    let text = format!("the first byte of a response arrived after {}, connecting took {}", seconds(waited), seconds(took));
    let of = |says, text| Some(Evidence::new(Method::FirstByte, says, Strength::Weak, (waited / took.max(1e-9), "ratio"), text));
    if took < SHORTER * SHORTER * waited && waited - took > 10.0 * CLEARLY {
        of(Indication::Split, format!("{text} (a slow server looks the same)"))
    } else {
        of(Indication::Nothing, text)
    }
}

/// Hops that the SYN-ACK travelled compared with other packets from the host.
fn hops_left(port: &PortProbe, way: &NetworkPath, elsewhere: &[PortProbe]) -> Option<Evidence> {
    let came = hops_travelled(port.ttl?);
    let reset = elsewhere.iter().filter(|other| other.answer() == SynOutcome::Refused).find_map(|other| other.ttl);
    let (other, what) = match (reset, way.ttl) {
        (Some(reset), _) => (hops_travelled(reset), "a reset of another port"),
        (None, Some(icmp)) => (hops_travelled(icmp), "ICMP from the host"),
        (None, None) => return None,
    };
    let ttl = port.ttl.unwrap_or_default();
    let text = format!("by its TTL of {ttl} the SYN-ACK travelled {}; {what} travelled {}", hops(came), hops(other));
    let apart = f64::from(other) - f64::from(came);
    let of = |says, strength| Some(Evidence::new(Method::Ttl, says, strength, (apart, "hops"), text));
    match other.saturating_sub(came) {
        0 => of(Indication::Nothing, Strength::Weak),
        few if few < HOPS_APART => of(Indication::Split, Strength::Weak),
        _ => of(Indication::Split, Strength::Moderate),
    }
}

/// Whether ports accept connections where no service is expected.
fn unused_ports(elsewhere: &[PortProbe]) -> Option<Evidence> {
    let accepted: Vec<String> =
        elsewhere.iter().filter(|other| other.answer() == SynOutcome::Accepted).map(|other| other.port.to_string()).collect();
    let refused = elsewhere.iter().filter(|other| other.answer() == SynOutcome::Refused).count();
    let of = |says, strength, text| Some(Evidence::new(Method::ClosedPort, says, strength, (accepted.len() as f64, "accepted"), text));
    match accepted.len() {
        0 if refused == 0 => None,
        0 => of(
            Indication::Nothing,
            Strength::Weak,
            format!("of {} ports where no service is expected, {refused} refused and none accepted", elsewhere.len()),
        ),
        1 => of(
            Indication::Nothing,
            Strength::Weak,
            format!("of {} ports where no service is expected, {} accepted", elsewhere.len(), accepted[0]),
        ),
        _ => of(
            Indication::Split,
            Strength::Moderate,
            format!(
                "of {} ports where no service is expected, {} accepted: {} (SYN-flood guards and honeypots do that too)",
                elsewhere.len(),
                accepted.len(),
                accepted.join(", ")
            ),
        ),
    }
}

#[cfg(test)]
#[path = "single_ended_evidence_tests.rs"]
mod tests;
