//! What follows from what was measured from one end. Pure: measurements in, evidence out.
//!
//! The order of ALGORITHMS' list, cheap tests first; the strongest is data that can't get as far as the host and are acknowledged all the same.

use crate::{
    traceroute::{Baseline, NetworkPath},
    ttl_limited::{DataProbe, SynOutcome, SynProbe},
};
use detect::{Evidence, Indication, Method, Strength, text::seconds};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A time is clearly shorter than another if it is below this share of it, and by more than that, s.
const SHORTER: f64 = 0.5;
const CLEARLY: f64 = 0.005;
/// Hops by which two kinds of answers may differ for other reasons.
const HOPS_APART: u8 = 3;

/// What was measured of a port from one end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PortProbe {
    /// Which.
    pub port: u16,
    /// SYNs that could go as far as usual.
    pub plain: Vec<SynProbe>,
    /// SYNs that could go so many hops.
    pub short: Vec<SynProbe>,
    /// Data that could go so many hops.
    pub data: Vec<DataProbe>,
    /// From a request to the first byte of its answer, s.
    pub first_byte_s: Option<f64>,
    /// Hops left of the SYN-ACK, or of the reset.
    pub ttl: Option<u8>,
}

impl PortProbe {
    /// How most SYNs were answered that could go as far as usual: a good answer counts more than none.
    pub fn answer(&self) -> SynOutcome {
        let any = |answer: SynOutcome| self.plain.iter().any(|seen| seen.answer == answer);
        [SynOutcome::Accepted, SynOutcome::Refused, SynOutcome::Barred, SynOutcome::Exceeded]
            .into_iter()
            .find(|answer| any(*answer))
            .unwrap_or(SynOutcome::Silent)
    }

    /// The least time to that answer, s.
    pub(crate) fn answered_s(&self) -> Option<f64> {
        let answer = self.answer();
        self.plain
            .iter()
            .filter(|seen| seen.answer == answer && answer != SynOutcome::Silent)
            .map(|seen| seen.after_s)
            .min_by(f64::total_cmp)
    }

    /// The fewest hops with which a SYN was accepted, or refused.
    fn nearest(&self, answer: SynOutcome) -> Option<u8> {
        self.short.iter().filter(|seen| seen.answer == answer).filter_map(|seen| seen.ttl).min()
    }

    /// The fewest hops with which data were acknowledged.
    fn data_nearest(&self) -> Option<DataProbe> {
        self.data.iter().filter(|seen| seen.acked_s.is_some()).min_by_key(|seen| seen.ttl).copied()
    }
}

/// Where a connection is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitLocation {
    /// So many hops away.
    pub hop: u8,
    /// Who gives up packets there that may go no further: the splitter, or the router before it.
    pub address: Option<IpAddr>,
}

/// A number of hops, in words.
fn hops(count: u8) -> String {
    format!("{count} hop{}", if count == 1 { "" } else { "s" })
}

/// How many hops something went that arrives with `left`: it began with 64, 128 or 255.
fn hops_travelled(left: u8) -> u8 {
    [64, 128, 255].into_iter().find(|begin| *begin >= left).unwrap_or(255) - left
}

fn address_text(from: Option<IpAddr>) -> String {
    from.map_or("somebody".into(), |from| from.to_string())
}

/// Everything that one end shows of a port: `elsewhere` are ports at which hardly anybody listens.
pub(crate) fn evidence(port: &PortProbe, way: &NetworkPath, elsewhere: &[PortProbe]) -> Vec<Evidence> {
    let mut found = Vec::new();
    if port.answer() == SynOutcome::Accepted {
        found.extend(short_data(port, way));
        found.extend(short_syn(port, way));
        found.extend(port_dependence(port, way, elsewhere));
        found.extend(connect_time(port, way, elsewhere));
        found.extend(first_byte(port));
        found.extend(hops_left(port, way, elsewhere));
    }
    found.extend(unused_ports(elsewhere));
    if is_syn_flood_guard(port) {
        // How near the answer to a SYN is, and how soon it comes, is the guard's then and no splitter's; and a splitter that waits for the host's ACKs before
        // it sends its own lets data pass like a guard. So neither is shown.
        found.iter_mut().for_each(|piece| piece.strength = Strength::Weak);
    }
    found
}

/// Where a split is, if there is one.
pub(crate) fn place(port: &PortProbe, way: &NetworkPath) -> Option<SplitLocation> {
    let hop = port.data_nearest().map(|seen| seen.ttl).or(port.nearest(SynOutcome::Accepted))?;
    let before_host = way.reached.map_or_else(|| way.beyond().is_some_and(|(beyond, _)| hop <= beyond), |reached| hop < reached);
    before_host.then(|| SplitLocation { hop, address: way.at(hop) })
}

/// Data that can go fewer hops than the host is away.
fn short_data(port: &PortProbe, way: &NetworkPath) -> Option<Evidence> {
    let of = |says, strength, far: u8, text| Some(Evidence::new(Method::ShortData, says, strength, (f64::from(far), "hops"), text));
    let beyond = way.beyond();
    if let (Some(seen), Some((far, answers))) = (port.data_nearest(), beyond)
        && seen.ttl <= far
    {
        let text = format!(
            "data that could go {} were acknowledged after {}, and the host is farther: {} gave up {answers} packets to it after {far}",
            hops(seen.ttl),
            seconds(seen.acked_s.unwrap_or_default()),
            address_text(way.at(far)),
        );
        // One lost answer of the host would be enough for a host that is nearer than it seems.
        return of(Indication::Split, if answers >= 2 { Strength::Strong } else { Strength::Moderate }, seen.ttl, text);
    }
    if let (Some(seen), Some(reached)) = (port.data_nearest(), way.reached)
        && seen.ttl < reached
    {
        let text = format!("data that could go {} were acknowledged; the host was not reached with fewer than {reached}", hops(seen.ttl));
        return of(Indication::Split, Strength::Weak, seen.ttl, text);
    }
    let kept = port.data.iter().filter(|seen| seen.acked_s.is_none()).max_by_key(|seen| seen.ttl)?;
    let what = format!("data that could go {} were not acknowledged, sent {} times", hops(kept.ttl), kept.sent);
    match (kept.alive, way.reached) {
        (Some(true), Some(reached)) if kept.ttl + 1 == reached && kept.sent >= 2 => {
            let text = format!("{what}; then, without that limit, they were: nobody takes them before the host, {reached} hops away");
            of(Indication::EndToEnd, Strength::Moderate, kept.ttl, text)
        }
        (Some(true), reached) => {
            let far = reached.map_or("the host's distance is not known".into(), |reached| format!("the host is {reached} hops away"));
            of(Indication::Nothing, Strength::Weak, kept.ttl, format!("{what}; then, without that limit, they were; {far}"))
        }
        _ => of(Indication::Nothing, Strength::Weak, kept.ttl, format!("{what}; nor were they later, without that limit")),
    }
}

/// Whether what accepts connections at this port leaves their data to somebody farther away: data that could go as far were not acknowledged, and then,
/// without that limit, were. It is a guard against SYN floods.
fn is_syn_flood_guard(port: &PortProbe) -> bool {
    let kept = |near| port.data.iter().any(|data| data.acked_s.is_none() && data.alive == Some(true) && data.ttl >= near);
    port.data_nearest().is_none() && port.nearest(SynOutcome::Accepted).is_some_and(kept)
}

/// SYNs that can go fewer hops than the host is away.
fn short_syn(port: &PortProbe, way: &NetworkPath) -> Option<Evidence> {
    let nearest = port.nearest(SynOutcome::Accepted)?;
    let of = |says, strength, text| Some(Evidence::new(Method::ShortSyn, says, strength, (f64::from(nearest), "hops"), text));
    let what = format!("a SYN that could go {} was accepted", hops(nearest));
    match (way.beyond(), way.reached) {
        (Some((far, answers)), _) if nearest <= far => {
            let text = format!(
                "{what}, and the host is farther: {} gave up {answers} packets to it after {far} (guards against SYN floods do that, too)",
                address_text(way.at(far))
            );
            of(Indication::Split, Strength::Moderate, text)
        }
        (_, Some(reached)) if nearest == reached => {
            of(Indication::EndToEnd, Strength::Weak, format!("{what}, none that could go fewer: as far as the host is away"))
        }
        (_, Some(reached)) => of(Indication::Nothing, Strength::Weak, format!("{what}; the host was reached with {reached}")),
        (_, None) => of(Indication::Nothing, Strength::Weak, format!("{what}; how far the host is away is not known")),
    }
}

/// Answers from nearer than at other ports: where routers are silent, the only measure of distance.
fn port_dependence(port: &PortProbe, way: &NetworkPath, elsewhere: &[PortProbe]) -> Option<Evidence> {
    if way.beyond().is_some() {
        return None;
    }
    let nearest = port.nearest(SynOutcome::Accepted)?;
    let others: Vec<(u16, u8)> = elsewhere.iter().filter_map(|other| Some((other.port, other.nearest(SynOutcome::Refused)?))).collect();
    let (other, far) = others.iter().copied().min_by_key(|(_, far)| *far)?;
    let text = format!("port {} is answered {nearest} hops away, port {other} refuses from {far} hops away", port.port);
    let says = if nearest < far && others.len() >= 2 { Indication::Split } else { Indication::Nothing };
    Some(Evidence::new(Method::PortDependence, says, Strength::Moderate, (f64::from(far) - f64::from(nearest), "hops"), text))
}

/// The time to connect against the time that packets take which no splitter of TCP touches.
fn connect_time(port: &PortProbe, way: &NetworkPath, elsewhere: &[PortProbe]) -> Option<Evidence> {
    let took = port.answered_s()?;
    // A reset that comes from as far as the host, by the same protocol, is the better measure.
    let refused =
        elsewhere.iter().filter(|other| other.answer() == SynOutcome::Refused).filter_map(PortProbe::answered_s).min_by(f64::total_cmp);
    let unsplit = way.round_trip.filter(|round_trip| round_trip.of >= 3);
    let (base, what) = match (refused, unsplit) {
        (Some(refused), Some(unsplit)) if refused < unsplit.least_s => (refused, "a refusal at another port"),
        (_, Some(unsplit)) if unsplit.by == Baseline::Responder => (unsplit.least_s, "UDP there and back"),
        (_, Some(unsplit)) => (unsplit.least_s, "ICMP there and back"),
        (Some(refused), None) => (refused, "a refusal at another port"),
        (None, None) => return None,
    };
    let text = format!("connecting took {} at the least, {what} {}", seconds(took), seconds(base));
    let of = |says, strength, text| Some(Evidence::new(Method::ConnectTime, says, strength, (took / base.max(1e-9), "ratio"), text));
    if took < SHORTER * base && base - took > CLEARLY {
        let besides = if what.starts_with("ICMP") { " (hosts that put off ICMP look the same)" } else { "" };
        of(Indication::Split, Strength::Moderate, text + besides)
    } else {
        of(Indication::Nothing, Strength::Weak, text)
    }
}

/// The time to the first byte of an answer against the time to connect.
fn first_byte(port: &PortProbe) -> Option<Evidence> {
    let (took, waited) = (port.answered_s()?, port.first_byte_s?);
    let text = format!("the first byte of an answer came after {}, connecting took {}", seconds(waited), seconds(took));
    let of = |says, text| Some(Evidence::new(Method::FirstByte, says, Strength::Weak, (waited / took.max(1e-9), "ratio"), text));
    if took < SHORTER * SHORTER * waited && waited - took > 10.0 * CLEARLY {
        of(Indication::Split, format!("{text} (a server that thinks looks the same)"))
    } else {
        of(Indication::Nothing, text)
    }
}

/// Hops that the SYN-ACK has come against those that the host's other packets have come.
fn hops_left(port: &PortProbe, way: &NetworkPath, elsewhere: &[PortProbe]) -> Option<Evidence> {
    let came = hops_travelled(port.ttl?);
    let reset = elsewhere.iter().filter(|other| other.answer() == SynOutcome::Refused).find_map(|other| other.ttl);
    let (other, what) = match (reset, way.ttl) {
        (Some(reset), _) => (hops_travelled(reset), "a reset of another port"),
        (None, Some(icmp)) => (hops_travelled(icmp), "ICMP from the host"),
        (None, None) => return None,
    };
    let text =
        format!("the SYN-ACK has come {}, by its TTL of {}; {what} has come {}", hops(came), port.ttl.unwrap_or_default(), hops(other));
    let apart = f64::from(other) - f64::from(came);
    let of = |says, strength| Some(Evidence::new(Method::Ttl, says, strength, (apart, "hops"), text));
    match other.saturating_sub(came) {
        0 => of(Indication::Nothing, Strength::Weak),
        few if few < HOPS_APART => of(Indication::Split, Strength::Weak),
        _ => of(Indication::Split, Strength::Moderate),
    }
}

/// Whether ports are open at which hardly anybody listens.
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
            format!("of {} ports where hardly anybody listens, {refused} refused and none accepted", elsewhere.len()),
        ),
        1 => of(
            Indication::Nothing,
            Strength::Weak,
            format!("of {} ports where hardly anybody listens, {} accepted", elsewhere.len(), accepted[0]),
        ),
        _ => of(
            Indication::Split,
            Strength::Moderate,
            format!(
                "of {} ports where hardly anybody listens, {} accepted: {} (guards and traps for intruders do that, too)",
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
