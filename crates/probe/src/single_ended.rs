//! Probes a host from one end: what is measured, in which order, with which timeouts.

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
    trace::CapturedFrame,
    weigh,
};
use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    thread,
    time::Duration,
};

/// Number of timed connections per port.
const TIMED: usize = 4;
/// Ports where no service is expected: unassigned, and below the range of ephemeral ports.
pub(crate) const UNUSED_PORTS: [u16; 3] = [23457, 27891, 31283];
/// Timeout for an answer in round trips, and its lower and upper bound, s. A SYN is retransmitted
/// after one second.
const ROUND_TRIPS: f64 = 4.0;
const PATIENCE: [f64; 2] = [1.3, 6.0];
/// Upper bound on the TTLs tried with data.
const TRIED: usize = 12;
/// SYNs sent again at the TTL that separates answers from silence. Each has a source port of its
/// own, so that paths of different length (multipath routing) show.
const REPEATED: usize = 4;
/// TTLs beyond the last router that answered, if the host itself did not.
const BEYOND: u8 = 3;
/// Ports that are probed at the same time.
const AT_ONCE: usize = 4;

/// Resolves a host name.
///
/// # Errors
/// The name has no address.
pub(crate) fn resolve(host: &str) -> Result<IpAddr, ProbeError> {
    let no_address = |why: String| ProbeError::NoAddress { host: host.into(), why };
    if let Ok(address) = host.trim_matches(['[', ']']).parse() {
        return Ok(address);
    }
    let mut found = (host, 0).to_socket_addrs().map_err(|why| no_address(format!("{why} (check the name)")))?;
    found.next().map(|address| address.ip()).ok_or_else(|| no_address("the name resolves to nothing".into()))
}

/// Probes ports of a host from this end alone. Calls `say` before each step.
///
/// # Errors
/// The host has no address, or a socket operation fails.
pub fn probe(host: &str, ports: &[u16], mut say: impl FnMut(&str)) -> Result<ProbeReport, ProbeError> {
    let host = resolve(host)?;
    say("measuring the network path with UDP and ICMP");
    let way = traceroute::trace_path(host);
    let mut missing = way.missing.clone();
    say(&format!("probing ports {}, where no service is expected", UNUSED_PORTS.map(|port| port.to_string()).join(", ")));
    let elsewhere = probe_ports(host, &UNUSED_PORTS, &way, &[], &mut missing)?;
    let (mut rows, mut seen) = (Vec::new(), Vec::new());
    for some in ports.chunks(AT_ONCE) {
        say(&format!("probing {}", some.iter().map(|port| format!("port {port}")).collect::<Vec<_>>().join(", ")));
        for (looked, lacks) in probe_at_once(host, some, &way, &elsewhere)? {
            let mut missing = missing.clone();
            merge(&mut missing, lacks);
            rows.push(judge_port(&looked, &way, &elsewhere, missing));
            seen.push(looked);
        }
    }
    Ok(ProbeReport { host, responder: false, rows, way, ports: seen, elsewhere, clocks: None, transfers: Vec::new(), traces: None })
}

fn merge(missing: &mut Vec<String>, more: Vec<String>) {
    for what in more {
        if !missing.contains(&what) {
            missing.push(what);
        }
    }
}

/// Measures several ports. `elsewhere` are ports where no service is expected, as far as they were
/// measured. Adds what could not be measured to `missing`.
pub(crate) fn probe_ports(
    host: IpAddr,
    ports: &[u16],
    way: &NetworkPath,
    elsewhere: &[PortProbe],
    missing: &mut Vec<String>,
) -> Result<Vec<PortProbe>, ProbeError> {
    let mut seen = Vec::new();
    for some in ports.chunks(AT_ONCE) {
        for (looked, lacks) in probe_at_once(host, some, way, elsewhere)? {
            merge(missing, lacks);
            seen.push(looked);
        }
    }
    Ok(seen)
}

/// Measures ports at the same time. Returns with each what could not be measured.
fn probe_at_once(
    host: IpAddr,
    ports: &[u16],
    way: &NetworkPath,
    elsewhere: &[PortProbe],
) -> Result<Vec<(PortProbe, Vec<String>)>, ProbeError> {
    thread::scope(|scope| {
        let running: Vec<_> = ports.iter().map(|port| scope.spawn(|| probe_port(host, *port, way, elsewhere))).collect();
        running.into_iter().map(|one| one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// Judges a port by single-ended evidence.
fn judge_port(port: &PortProbe, way: &NetworkPath, elsewhere: &[PortProbe], missing: Vec<String>) -> ProbeRow {
    let mut evidence = single_ended_evidence::evidence(port, way, elsewhere);
    let (verdict, mut reason) = weigh(&mut evidence);
    match port.answer() {
        SynOutcome::Accepted => {}
        SynOutcome::Refused => reason = format!("port {} refuses connections: {reason}", port.port),
        _ => reason = format!("port {} does not answer: {reason}", port.port),
    }
    let split = matches!(verdict, SplitVerdict::SplitTcp | SplitVerdict::TcpProxy);
    let place = single_ended_evidence::place(port, way, elsewhere).filter(|_| split);
    ProbeRow { application: "any".into(), port: port.port, direction: None, verdict, reason, place, evidence, missing }
}

/// Timeout for an answer of the host. Where UDP and ICMP are filtered, the round trip is that of
/// TCP.
fn answer_timeout(way: &NetworkPath, tcp: Option<f64>) -> Duration {
    let round_trip = way.round_trip.map(|round_trip| round_trip.least_s).or(tcp).unwrap_or(PATIENCE[1] / ROUND_TRIPS);
    Duration::from_secs_f64((ROUND_TRIPS * round_trip).clamp(PATIENCE[0], PATIENCE[1]))
}

/// A request that the service probably understands. Already its first byte shows whether data are
/// acknowledged.
fn request_for(port: u16) -> &'static [u8] {
    match port {
        80 | 8000 | 8080 | 8888 => b"GET / HTTP/1.0\r\n\r\n",
        _ => b"\r\n",
    }
}

/// Measures a port. Returns also what could not be measured.
fn probe_port(host: IpAddr, port: u16, way: &NetworkPath, elsewhere: &[PortProbe]) -> Result<(PortProbe, Vec<String>), ProbeError> {
    let to = SocketAddr::new(host, port);
    let mut missing = Vec::new();
    let failed = |what: &str| {
        let what = format!("{what} {to}");
        move |why: io::Error| ProbeError::Socket { what, why }
    };
    let mut seen = PortProbe { port, ..PortProbe::default() };
    let capture = PacketCapture::start(&[port]);
    let others = elsewhere.iter().filter_map(PortProbe::answered_s).max_by(f64::total_cmp);
    for _ in 0..TIMED {
        let dialled = ttl_limited::connect_all(to, &[None], answer_timeout(way, others)).map_err(failed("send a SYN to"))?;
        seen.plain.extend(dialled.into_iter().map(|one| one.seen));
        if seen.plain.last().is_some_and(|last| last.answer == SynOutcome::Silent) {
            break;
        }
    }
    match capture {
        Ok(capture) => seen.ttl = answer_ttl(&capture.stop(), to),
        Err(why) => missing.push(format!("TTL of TCP packets: could not open a packet socket: {why} (needs root or CAP_NET_RAW)")),
    }
    if !matches!(seen.answer(), SynOutcome::Accepted | SynOutcome::Refused) {
        return Ok((seen, missing));
    }
    let timeout = answer_timeout(way, [seen.answered_s(), others].into_iter().flatten().max_by(f64::total_cmp));
    let mut dial = |ttls: Vec<u8>| {
        let ttls: Vec<Option<u8>> = ttls.into_iter().map(Some).collect();
        let dialled = ttl_limited::connect_all(to, &ttls, timeout).map_err(failed("send SYNs with a limited TTL to"))?;
        seen.short.extend(dialled.into_iter().map(|one| one.seen));
        Ok(seen.nearest_answer())
    };
    // As far as the host, or a little farther than the last router that answered.
    let near = way.reached.unwrap_or_else(|| {
        way.hops.iter().map(|hop| hop.ttl).max().map_or(traceroute::FARTHEST, |ttl| (ttl + BEYOND).min(traceroute::FARTHEST))
    });
    let mut nearest = dial((1..=near).collect())?;
    if nearest.is_none() && near < traceroute::FARTHEST {
        nearest = dial((near + 1..=traceroute::FARTHEST).collect())?;
    }
    // Where routers answer, they show paths of different length. Otherwise only repetition does.
    if let Some(nearest) = nearest.filter(|nearest| way.beyond().is_none_or(|(far, _)| far + 1 < *nearest)) {
        let at = if seen.answer() == SynOutcome::Accepted { nearest } else { nearest - 1 };
        if at > 0 {
            let mut dialled =
                ttl_limited::connect_all(to, &[Some(at); REPEATED], timeout).map_err(failed("send SYNs with a limited TTL to"))?;
            seen.short.extend(dialled.drain(..).map(|one| one.seen));
        }
    }
    if seen.answer() != SynOutcome::Accepted {
        return Ok((seen, missing));
    }
    let before = ttls_short_of_host(way, &seen.short, elsewhere);
    if before.is_empty() {
        missing.push(match way.reached {
            Some(1) => "data that cannot reach the host: the host is one hop away, and no packet can have a smaller TTL".into(),
            _ => "data that cannot reach the host: no TTL is known to expire before it".to_string(),
        });
    } else {
        seen.data = ttl_limited::send_data(to, request_for(port), &before, timeout).map_err(failed("send data with a limited TTL to"))?;
    }
    if request_for(port).len() > 2 {
        seen.first_byte_s = ttl_limited::time_to_first_byte(to, request_for(port), timeout).map_err(failed("send a request to"))?;
    }
    Ok((seen, missing))
}

/// TTLs that do not reach the host: the largest, and those around the first one at which a SYN was
/// accepted. If neither the host nor a router near it answered UDP and ICMP, the host is where
/// other ports refuse.
fn ttls_short_of_host(way: &NetworkPath, short: &[SynProbe], elsewhere: &[PortProbe]) -> Vec<u8> {
    let refused = single_ended_evidence::refused_from(elsewhere).map(|(hops, _)| hops - 1);
    let unreached = || way.beyond().map(|(far, _)| far).max(refused);
    let Some(last) = way.reached.map(|reached| reached - 1).or_else(unreached) else { return Vec::new() };
    let accepted = short.iter().filter(|seen| seen.answer == SynOutcome::Accepted).filter_map(|seen| seen.ttl).min().unwrap_or(last);
    // Bound the number of simultaneous connections: the largest, then from the smallest on.
    let mut ttls: Vec<u8> = (accepted.saturating_sub(1).max(1)..last).take(TRIED - 1).collect();
    ttls.extend((last > 0).then_some(last));
    ttls
}

/// TTL of the SYN-ACK or reset from this address.
fn answer_ttl(packets: &[CapturedPacket], from: SocketAddr) -> Option<u8> {
    packets.iter().find_map(|packet| {
        let frame = CapturedFrame::ip(packet.at, &packet.bytes, packet.whole);
        match packet::dissect(&frame) {
            Dissected::Tcp(segment) if segment.from == from && segment.has(ACK) && (segment.has(SYN) || segment.has(RST)) => {
                Some(segment.ttl)
            }
            _ => None,
        }
    })
}
