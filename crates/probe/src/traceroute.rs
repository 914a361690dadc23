//! Measures the network path with UDP and ICMP: routers, distance of the host, round trip. A TCP
//! splitter touches none of it. Each hop is asked at least twice, slowly enough for hosts that
//! limit their ICMP rate.

use crate::{
    clock::now,
    icmp::{EchoSocket, Fate, fate},
    sys,
};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    thread,
    time::{Duration, Instant},
};

/// Largest TTL tried.
pub(crate) const FARTHEST: u8 = 30;
/// TTLs probed at a time, and the time to wait for answers.
const TOGETHER: u8 = 4;
const PATIENCE: Duration = Duration::from_millis(1200);
/// First UDP port, where no service is expected (the port of traceroute).
const UNLIKELY: u16 = 33434;
/// Number of round trips measured, and the time between them.
const ROUND_TRIPS: u16 = 8;
const BETWEEN: Duration = Duration::from_millis(30);

/// A router that answered for packets whose TTL expired at it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterHop {
    /// TTL of the packets.
    pub ttl: u8,
    /// Address of the router.
    pub from: Option<IpAddr>,
    /// Number of answers.
    pub answers: u32,
}

/// A baseline that no TCP splitter touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Baseline {
    /// ICMP echo, or UDP that the host refuses by ICMP.
    Icmp,
    /// UDP datagrams that the responder answers.
    Responder,
}

/// Shortest round trip.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PathRoundTrip {
    /// How it was measured.
    pub by: Baseline,
    /// Shortest round trip, s.
    pub least_s: f64,
    /// Number of measurements.
    pub of: u32,
}

/// The network path to a host, as measured with UDP and ICMP.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NetworkPath {
    /// Routers, the nearest first.
    pub hops: Vec<RouterHop>,
    /// Smallest TTL with which the host was reached.
    pub reached: Option<u8>,
    /// By ICMP echo, or by UDP to a closed port.
    pub round_trip: Option<PathRoundTrip>,
    /// Remaining TTL of ICMP from the host.
    pub ttl: Option<u8>,
    /// What could not be measured, and why.
    pub missing: Vec<String>,
}

impl NetworkPath {
    /// The router at a distance.
    pub(crate) fn at(&self, ttl: u8) -> Option<IpAddr> {
        self.hops.iter().filter(|hop| hop.ttl == ttl).max_by_key(|hop| hop.answers)?.from
    }

    /// The farthest router before the host, and how many packets expired at it.
    pub(crate) fn beyond(&self) -> Option<(u8, u32)> {
        let short_of = |hop: &&RouterHop| self.reached.is_none_or(|reached| hop.ttl < reached);
        let ttl = self.hops.iter().filter(short_of).map(|hop| hop.ttl).max()?;
        Some((ttl, self.hops.iter().filter(|hop| hop.ttl == ttl).map(|hop| hop.answers).sum()))
    }

    fn note_hop(&mut self, ttl: u8, from: Option<IpAddr>) {
        match self.hops.iter_mut().find(|hop| hop.ttl == ttl && hop.from == from) {
            Some(hop) => hop.answers += 1,
            None => self.hops.push(RouterHop { ttl, from, answers: 1 }),
        }
    }

    fn note_reached(&mut self, ttl: u8, left: Option<u8>) {
        self.reached = Some(self.reached.map_or(ttl, |before| before.min(ttl)));
        self.ttl = left.or(self.ttl);
    }

    fn note_round_trip(&mut self, took: i64) {
        let took = took.max(0) as f64 / 1e9;
        let before = self.round_trip.unwrap_or(PathRoundTrip { by: Baseline::Icmp, least_s: f64::INFINITY, of: 0 });
        self.round_trip = Some(PathRoundTrip { least_s: before.least_s.min(took), of: before.of + 1, ..before });
    }
}

/// A datagram in flight.
struct ProbeDatagram {
    ttl: u8,
    at: i64,
    socket: Socket,
    done: bool,
}

fn send_datagram(host: IpAddr, port: u16, hops: Option<u8>) -> io::Result<ProbeDatagram> {
    let to = SocketAddr::new(host, port);
    let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))?;
    sys::enable_error_queue(&socket, host.is_ipv6())?;
    sys::set_hops(&socket, host.is_ipv6(), hops)?;
    socket.connect(&to.into())?;
    let at = now();
    socket.send(&[0; 8])?;
    Ok(ProbeDatagram { ttl: hops.unwrap_or(u8::MAX), at, socket, done: false })
}

/// Measures the path to a host. Failures are listed in [`NetworkPath::missing`].
pub(crate) fn trace_path(host: IpAddr) -> NetworkPath {
    let mut way = NetworkPath::default();
    let echo = match EchoSocket::new(host) {
        Ok(echo) => Some(echo),
        Err(why) => {
            way.missing
                .push(format!("ICMP echo: could not open an ICMP socket: {why} (needs root, or a group in net.ipv4.ping_group_range)"));
            None
        }
    };
    let mut nearest = 1;
    while nearest <= FARTHEST && way.reached.is_none() {
        let farthest = (nearest + TOGETHER - 1).min(FARTHEST);
        if let Err(why) = probe_ttls(host, nearest..=farthest, echo.as_ref(), &mut way) {
            way.missing.push(format!("routers beyond {} hops: could not send to {host}: {why}", nearest - 1));
            break;
        }
        // After two silent groups in a row, farther routers will probably not answer either.
        let silent = (nearest..=farthest).all(|ttl| way.at(ttl).is_none())
            && nearest > 1
            && (nearest - TOGETHER..nearest).all(|ttl| way.at(ttl).is_none());
        if silent {
            break;
        }
        nearest = farthest + 1;
    }
    round_trips(host, echo.as_ref(), &mut way);
    way.hops.sort_by_key(|hop| (hop.ttl, hop.from));
    if way.hops.is_empty() && way.reached.is_none() {
        way.missing.push("network path: neither the host nor a router answered UDP or ICMP".into());
    } else if way.reached.is_none() {
        way.missing.push("distance of the host: it answered neither UDP to closed ports nor ICMP echo".into());
    }
    way
}

/// Sends two datagrams and an echo request per TTL.
fn probe_ttls(host: IpAddr, ttls: std::ops::RangeInclusive<u8>, echo: Option<&EchoSocket>, way: &mut NetworkPath) -> io::Result<()> {
    let (begun, mut sent, mut echoes) = (Instant::now(), Vec::new(), Vec::new());
    for ttl in ttls {
        for copy in 0..2 {
            sent.push(send_datagram(host, UNLIKELY + u16::from(ttl) * 2 + copy, Some(ttl))?);
        }
        // A local refusal counts as no answer.
        if echo.is_some_and(|echo| echo.send(u16::from(ttl), Some(ttl)).is_ok()) {
            echoes.push((u16::from(ttl), false));
        }
        thread::sleep(Duration::from_millis(2));
    }
    let mut buffer = [0; 64];
    while begun.elapsed() < PATIENCE && !(sent.iter().all(|one| one.done) && echoes.iter().all(|(_, done)| *done)) {
        for one in sent.iter_mut().filter(|one| !one.done) {
            let Ok(got) = sys::receive(&one.socket, &mut buffer, true) else { continue };
            let Some(icmp_error) = got.icmp_error else { continue };
            one.done = true;
            match fate(host, &icmp_error) {
                Fate::Exceeded => way.note_hop(one.ttl, icmp_error.from),
                Fate::Reached => {
                    way.note_reached(one.ttl, got.ttl);
                    way.note_round_trip(got.at.unwrap_or_else(now) - one.at);
                }
                Fate::Barred => {}
            }
        }
        for reply in echo.map(EchoSocket::replies).unwrap_or_default() {
            let Some((number, done)) = echoes.iter_mut().find(|(number, done)| *number == reply.number && !done) else { continue };
            *done = true;
            match reply.fate {
                Fate::Exceeded => way.note_hop(*number as u8, reply.from),
                Fate::Reached => way.note_reached(*number as u8, reply.ttl),
                Fate::Barred => {}
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Measures round trips with echo requests and datagrams of the usual TTL.
fn round_trips(host: IpAddr, echo: Option<&EchoSocket>, way: &mut NetworkPath) {
    let (mut datagrams, mut echoes, mut buffer) = (Vec::new(), Vec::new(), [0; 64]);
    let begun = Instant::now();
    let mut number = 0;
    while begun.elapsed() < PATIENCE && !(number == ROUND_TRIPS && datagrams.is_empty() && echoes.is_empty()) {
        if number < ROUND_TRIPS && begun.elapsed() >= BETWEEN * u32::from(number) {
            number += 1;
            // Few hosts refuse more than one datagram per second.
            if number % 4 == 1 {
                datagrams.extend(send_datagram(host, UNLIKELY + 100 + number, None));
            }
            echoes.extend(echo.and_then(|echo| Some((1000 + number, echo.send(1000 + number, None).ok()?))));
        }
        datagrams.retain(|one| {
            let Ok(got) = sys::receive(&one.socket, &mut buffer, true) else { return true };
            if got.icmp_error.is_some_and(|icmp_error| fate(host, &icmp_error) == Fate::Reached) {
                way.note_round_trip(got.at.unwrap_or_else(now) - one.at);
                way.ttl = got.ttl.or(way.ttl);
            }
            false
        });
        for reply in echo.map(EchoSocket::replies).unwrap_or_default() {
            let Some(index) = echoes.iter().position(|(number, _)| *number == reply.number) else { continue };
            let (_, at) = echoes.swap_remove(index);
            if reply.fate == Fate::Reached {
                way.note_round_trip(reply.at - at);
                way.ttl = reply.ttl.or(way.ttl);
            }
        }
        thread::sleep(Duration::from_micros(300));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_beyond_the_farthest_router() {
        let hop = |ttl, answers| RouterHop { ttl, from: Some([10, 0, 0, ttl].into()), answers };
        let mut way = NetworkPath { hops: vec![hop(1, 3), hop(2, 1), hop(4, 2)], reached: Some(4), ..NetworkPath::default() };
        assert_eq!(way.beyond(), Some((2, 1)));
        way.reached = None;
        assert_eq!(way.beyond(), Some((4, 2)));
        way.reached = Some(1);
        assert_eq!(way.beyond(), None);
    }

    #[test]
    fn loopback_is_one_hop_away() {
        let way = trace_path("127.0.0.1".parse().unwrap());
        assert_eq!((way.reached, way.hops.len()), (Some(1), 0), "{way:?}");
        assert!(way.round_trip.unwrap().least_s < 1.0 && way.ttl.is_some(), "{way:?}");
    }
}
