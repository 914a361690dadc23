//! A port probed from one end: what is measured, in which order, with how much patience.

use crate::{
    capture::{CapturedPacket, PacketCapture},
    error::ProbeError,
    probe_report::{ProbeReport, ProbeRow},
    single_ended_evidence::{self, PortProbe},
    traceroute::{self, NetworkPath},
    ttl_limited::{self, SynOutcome, SynProbe},
};
use detect::{
    SplitVerdict,
    packet::{self, ACK, Dissected, RST, SYN},
    trace::{CapturedFrame, LinkType},
    weigh,
};
use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    time::Duration,
};

/// Connections that are timed.
const TIMED: usize = 4;
/// Ports at which hardly anybody listens: in nobody's list of services, below where systems choose their own.
pub(crate) const UNUSED_PORTS: [u16; 3] = [23457, 27891, 31283];
/// Round trips that an answer is waited for, and the least and the most, s. A SYN is sent again after one second.
const ROUND_TRIPS: f64 = 4.0;
const PATIENCE: [f64; 2] = [1.3, 6.0];
/// Distances at which data are tried, at most.
const TRIED: usize = 12;

/// Finds a host's address.
pub(crate) fn resolve(host: &str) -> Result<IpAddr, ProbeError> {
    let no_address = |why: String| ProbeError::NoAddress { host: host.into(), why };
    if let Ok(address) = host.trim_matches(['[', ']']).parse() {
        return Ok(address);
    }
    let mut found = (host, 0).to_socket_addrs().map_err(|why| no_address(format!("{why} (is the name right?)")))?;
    found.next().map(|address| address.ip()).ok_or_else(|| no_address("the name has none".into()))
}

/// Probes ports of a host from this end alone; says what it is about to do.
pub fn probe(host: &str, ports: &[u16], mut say: impl FnMut(&str)) -> Result<ProbeReport, ProbeError> {
    let host = resolve(host)?;
    say("the way there, by UDP and ICMP");
    let way = traceroute::trace_path(host);
    let mut missing = way.missing.clone();
    let mut elsewhere = Vec::new();
    for port in UNUSED_PORTS {
        say(&format!("port {port}, where hardly anybody listens"));
        elsewhere.push(probe_port(host, port, &way, &mut missing)?);
    }
    let (mut rows, mut seen) = (Vec::new(), Vec::new());
    for port in ports {
        say(&format!("port {port}"));
        let mut missing = missing.clone();
        let looked = probe_port(host, *port, &way, &mut missing)?;
        rows.push(judge_port(&looked, &way, &elsewhere, missing));
        seen.push(looked);
    }
    Ok(ProbeReport { host, responder: false, rows, way, ports: seen, elsewhere, clocks: None, transfers: Vec::new(), traces: None })
}

/// What is said of a port, as far as one end shows.
fn judge_port(port: &PortProbe, way: &NetworkPath, elsewhere: &[PortProbe], missing: Vec<String>) -> ProbeRow {
    let mut evidence = single_ended_evidence::evidence(port, way, elsewhere);
    let (verdict, mut reason) = weigh(&mut evidence);
    match port.answer() {
        SynOutcome::Accepted => {}
        SynOutcome::Refused => reason = format!("nobody listens at port {}: {reason}", port.port),
        _ => reason = format!("port {} did not answer: {reason}", port.port),
    }
    let split = matches!(verdict, SplitVerdict::SplitTcp | SplitVerdict::TcpProxy);
    let place = single_ended_evidence::place(port, way).filter(|_| split);
    ProbeRow { application: "any".into(), port: port.port, direction: None, verdict, reason, place, evidence, missing }
}

/// How long an answer from the host is waited for.
fn answer_timeout(way: &NetworkPath) -> Duration {
    let round_trip = way.round_trip.map_or(PATIENCE[1] / ROUND_TRIPS, |round_trip| round_trip.least_s);
    Duration::from_secs_f64((ROUND_TRIPS * round_trip).clamp(PATIENCE[0], PATIENCE[1]))
}

/// What a port is asked that it is likely to understand: the first byte alone shows whether it is acknowledged.
fn request_for(port: u16) -> &'static [u8] {
    match port {
        80 | 8000 | 8080 | 8888 => b"GET / HTTP/1.0\r\n\r\n",
        _ => b"\r\n",
    }
}

/// Measures a port.
pub(crate) fn probe_port(host: IpAddr, port: u16, way: &NetworkPath, missing: &mut Vec<String>) -> Result<PortProbe, ProbeError> {
    let to = SocketAddr::new(host, port);
    let failed = |what: &str| {
        let what = format!("{what} {to}");
        move |why: io::Error| ProbeError::Socket { what, why }
    };
    let mut once = |what: String| {
        if !missing.contains(&what) {
            missing.push(what);
        }
    };
    let mut seen = PortProbe { port, ..PortProbe::default() };
    let capture = PacketCapture::start(&[port]);
    for _ in 0..TIMED {
        let dialled = ttl_limited::connect_all(to, &[None], answer_timeout(way)).map_err(failed("send a SYN to"))?;
        seen.plain.extend(dialled.into_iter().map(|one| one.seen));
        if seen.plain.last().is_some_and(|last| last.answer == SynOutcome::Silent) {
            break;
        }
    }
    match capture {
        Ok(capture) => seen.ttl = answer_ttl(&capture.stop(), to),
        Err(why) => once(format!("hops left of TCP's packets: could not open a packet socket: {why} (root may; or CAP_NET_RAW)")),
    }
    if !matches!(seen.answer(), SynOutcome::Accepted | SynOutcome::Refused) {
        return Ok(seen);
    }
    // As far as the host, or a little farther than anybody answered.
    let far = way.reached.unwrap_or_else(|| {
        way.hops.iter().map(|hop| hop.ttl).max().map_or(traceroute::FARTHEST, |ttl| (ttl + 3).min(traceroute::FARTHEST))
    });
    let ttls: Vec<Option<u8>> = (1..=far).map(Some).collect();
    let dialled = ttl_limited::connect_all(to, &ttls, answer_timeout(way)).map_err(failed("send SYNs that go only so far to"))?;
    seen.short = dialled.into_iter().map(|one| one.seen).collect();
    if seen.answer() != SynOutcome::Accepted {
        return Ok(seen);
    }
    let before = ttls_short_of_host(way, &seen.short);
    if before.is_empty() {
        once(match way.reached {
            Some(1) => "data that can't reach the host: it is this machine's neighbour, and nothing with fewer hops is ever sent".into(),
            _ => "data that can't reach the host: no distance is known to be before it".to_string(),
        });
    } else {
        seen.data = ttl_limited::send_data(to, request_for(port), &before, answer_timeout(way))
            .map_err(failed("send data that go only so far to"))?;
    }
    if request_for(port).len() > 2 {
        seen.first_byte_s = ttl_limited::time_to_first_byte(to, request_for(port), answer_timeout(way)).map_err(failed("ask"))?;
    }
    Ok(seen)
}

/// Distances that are before the host, the farthest and those from which a SYN was accepted on.
fn ttls_short_of_host(way: &NetworkPath, short: &[SynProbe]) -> Vec<u8> {
    let Some(last) = way.reached.map(|reached| reached - 1).or(way.beyond().map(|(far, _)| far)) else { return Vec::new() };
    let accepted = short.iter().filter(|seen| seen.answer == SynOutcome::Accepted).filter_map(|seen| seen.ttl).min().unwrap_or(last);
    // Not many connections at once: the farthest, and from the nearest on.
    let mut ttls: Vec<u8> = (accepted.saturating_sub(1).max(1)..last).take(TRIED - 1).collect();
    ttls.extend((last > 0).then_some(last));
    ttls
}

/// Hops left of the SYN-ACK or reset that came from there.
fn answer_ttl(packets: &[CapturedPacket], from: SocketAddr) -> Option<u8> {
    packets.iter().find_map(|packet| {
        let frame = CapturedFrame { at: packet.at, link: LinkType::Ip, bytes: &packet.bytes, length: packet.whole };
        match packet::dissect(&frame) {
            Dissected::Tcp(segment) if segment.from == from && segment.has(ACK) && (segment.has(SYN) || segment.has(RST)) => {
                Some(segment.ttl)
            }
            _ => None,
        }
    })
}
