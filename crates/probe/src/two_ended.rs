//! Probes a host with the help of its responder: each application in both directions, measured at
//! both ends.

use crate::{
    capture::{self, CapturedPacket, PacketCapture},
    clock_offset::ClockOffset,
    error::ProbeError,
    probe_report::{ProbeReport, ProbeRow},
    prober_session::{ProberSession, TransferSpec},
    protocol, single_ended,
    single_ended_evidence::{self, PortProbe},
    socket_filter,
    traceroute::{self, Baseline, NetworkPath, PathRoundTrip},
    transfer_record::{Application, TransferDirection, TransferRecord},
    two_ended_evidence,
};
use detect::{CaptureFile, Evidence, FindingOptions, Indication, Method, SplitVerdict, Strength, TraceConditions, findings, weigh};

/// Error of synchronisation, s: clock drift between the comparison and the end of a transfer, plus
/// timestamp jitter.
const DRIFTED: f64 = 0.003;
/// Pause between the halves of a transfer, and time for which SYNs are dropped: in round trips, and
/// the minimum, s.
const PAUSE: (f64, f64) = (3.0, 0.7);
const DEAF: (f64, f64) = (3.0, 1.5);

/// Options of [`probe_with_responder`].
#[derive(Debug, Clone)]
pub struct TwoEndedOptions {
    /// Host name or address.
    pub host: String,
    /// Ports to probe.
    pub ports: Vec<u16>,
    /// Control port of the responder.
    pub control: u16,
    /// Token of the responder.
    pub token: Option<String>,
    /// Approximate payload of a transfer, bytes.
    pub bytes: u64,
    /// How long receivers hold their ACKs, s.
    pub hold_s: f64,
}

/// Applications that a port carries.
fn applications_for(port: u16) -> &'static [Application] {
    match port {
        21 => &[Application::Ftp],
        80 | 8000 | 8080 | 8888 => &[Application::HttpData, Application::HttpImage],
        _ => &[Application::Tcp],
    }
}

/// The measurements of one row of the report.
struct ProbeCase {
    application: Application,
    direction: TransferDirection,
    /// The port of the service, and the port of the data connection.
    port: u16,
    data_port: u16,
    transferred: Vec<TransferRecord>,
}

/// Results of the session, as far as it went.
#[derive(Default)]
struct SessionResults {
    cells: Vec<ProbeCase>,
    /// Ports that dropped SYNs: port, for how long, s, and after what time a SYN was answered
    /// nevertheless, s.
    deaf: Vec<(u16, f64, Option<f64>)>,
    clocks: Option<ClockOffset>,
}

impl SessionResults {
    fn ask(
        &mut self,
        session: &ProberSession,
        how: &TwoEndedOptions,
        offered: &[u16],
        missing: &mut Vec<String>,
        mut say: impl FnMut(&str),
    ) -> Result<(), ProbeError> {
        let round_trip = self.clocks.map_or(0.2, |clocks| clocks.round_trip_s);
        let at_least = |(times, least): (f64, f64)| (times * round_trip).max(least).min(protocol::MAX_HOLD_S);
        let hold_s = how.hold_s.max(5.0 * round_trip).min(protocol::MAX_HOLD_S);
        for port in offered {
            say(&format!("probing port {port} while the responder drops SYNs"));
            match session.syn_while_blocked(*port, at_least(DEAF))? {
                Ok(answered) => self.deaf.push((*port, at_least(DEAF), answered)),
                Err(why) => missing.push(format!("SYNs while the responder drops them: {why}")),
            }
            for application in applications_for(*port) {
                for direction in [TransferDirection::Down, TransferDirection::Up] {
                    let word = if direction == TransferDirection::Down { "down" } else { "up" };
                    say(&format!("transfer on port {port}: {application}, {word}"));
                    let wanted = TransferSpec {
                        application: *application,
                        direction,
                        port: *port,
                        bytes: how.bytes,
                        pause_s: at_least(PAUSE),
                        hold_s: None,
                    };
                    let (mut plain, mut nonce) = session.transfer(&wanted, None)?;
                    // A host or a path that stalls may be as late once; a middlebox that holds the
                    // data is as late again.
                    if two_ended_evidence::holds_data(&plain) {
                        let longer = (3.0 * wanted.pause_s).min(protocol::MAX_HOLD_S);
                        (plain, nonce) = session.transfer(&TransferSpec { pause_s: longer, ..wanted }, None)?;
                    }
                    self.clocks = self.clocks.or(plain.clocks);
                    let mut transferred = vec![plain];
                    let http = matches!(application, Application::HttpData | Application::HttpImage);
                    if http && direction == TransferDirection::Down {
                        transferred.push(session.transfer(&TransferSpec { pause_s: 0.0, ..wanted }, Some(&nonce))?.0);
                    }
                    transferred.push(session.transfer(&TransferSpec { hold_s: Some(hold_s), ..wanted }, None)?.0);
                    let data_port = if *application == Application::Ftp { session.offer.ftp_data } else { *port };
                    self.cells.push(ProbeCase { application: *application, direction, port: *port, data_port, transferred });
                }
            }
        }
        Ok(())
    }
}

/// Probes a host with the help of its responder. Calls `say` before each step.
///
/// # Errors
/// The host has no address, the responder cannot be reached or refuses, or the session fails before
/// the first transfer.
pub fn probe_with_responder(how: &TwoEndedOptions, mut say: impl FnMut(&str)) -> Result<ProbeReport, ProbeError> {
    let host = single_ended::resolve(&how.host)?;
    say("connecting to the responder");
    let session = ProberSession::open(host, how.control, how.token.as_deref().unwrap_or(""))?;
    let mut missing = Vec::new();
    let offered: Vec<u16> = how.ports.iter().copied().filter(|port| session.offer.ports.contains(port)).collect();
    for port in how.ports.iter().filter(|port| !offered.contains(port)) {
        missing.push(format!("port {port}: the responder does not listen there (start it with --ports {port})"));
    }
    if offered.is_empty() {
        let has: Vec<String> = session.offer.ports.iter().map(u16::to_string).collect();
        return Err(ProbeError::Refused {
            at: std::net::SocketAddr::new(host, how.control),
            why: format!("it listens at none of the given ports, only at {}", has.join(", ")),
        });
    }
    missing.extend(session.offer.no_trace.iter().map(|why| format!("a trace at the responder: it {why}")));
    let traced: Vec<u16> = offered.iter().copied().chain([session.offer.ftp_data]).collect();
    let running_capture = PacketCapture::start(&traced);
    if let Err(why) = &running_capture {
        missing.push(format!("a trace at the prober: could not open a packet socket: {why} (needs root or CAP_NET_RAW)"));
    }
    let mut asked = SessionResults { clocks: session.clocks()?, ..SessionResults::default() };
    if asked.clocks.is_none() {
        missing.push(
            "a baseline that no splitter touches, and the clock offset: the responder's datagrams did not arrive (is its UDP port open?)"
                .into(),
        );
    }
    // Keep the results of a session that failed midway.
    if let Err(why) = asked.ask(&session, how, &offered, &mut missing, &mut say) {
        if asked.cells.is_empty() {
            return Err(why);
        }
        missing.push(format!("the remaining transfers with the responder: {why}"));
    }
    let SessionResults { cells, deaf, clocks } = asked;
    let there = session.trace().unwrap_or_else(|why| {
        missing.push(format!("the trace at the responder: {why}"));
        Vec::new()
    });
    let here = running_capture.map(PacketCapture::stop).unwrap_or_default();
    let there_packets = capture::parse_file(&there).unwrap_or_default();
    // Then the single-ended measurements. The responder's listeners remain open.
    drop(session);
    say("measuring the network path with UDP and ICMP");
    let mut way = traceroute::trace_path(host);
    missing.extend(way.missing.clone());
    if let Some(clocks) = clocks {
        way.round_trip = Some(PathRoundTrip { by: Baseline::Responder, least_s: clocks.round_trip_s, of: clocks.exchanges });
    }
    let elsewhere = single_ended::probe_ports(host, &single_ended::UNUSED_PORTS, &way, &[], &mut missing)?;
    let judged: Vec<u16> = traced.iter().copied().filter(|port| cells.iter().any(|cell| cell.data_port == *port)).collect();
    say("probing the ports from this end alone");
    let seen = single_ended::probe_ports(host, &judged, &way, &elsewhere, &mut missing)?;
    let rows = cells.iter().map(|cell| judge_case(cell, &way, &seen, &elsewhere, &deaf, [&here, &there_packets], &missing)).collect();
    Ok(ProbeReport {
        host,
        responder: true,
        rows,
        way,
        ports: seen,
        elsewhere,
        clocks,
        transfers: cells.into_iter().flat_map(|cell| cell.transferred).collect(),
        traces: Some([capture::to_pcap(&here), there]),
    })
}

/// Judges one row.
fn judge_case(
    cell: &ProbeCase,
    way: &NetworkPath,
    seen: &[PortProbe],
    elsewhere: &[PortProbe],
    deaf: &[(u16, f64, Option<f64>)],
    packets: [&[CapturedPacket]; 2],
    missing: &[String],
) -> ProbeRow {
    let mut evidence = Vec::new();
    for transferred in &cell.transferred {
        evidence.extend(trace_evidence(transferred, packets));
        evidence.extend(two_ended_evidence::evidence(transferred));
    }
    let port = seen.iter().find(|seen| seen.port == cell.data_port);
    evidence.extend(port.map(|port| single_ended_evidence::evidence(port, way, elsewhere)).unwrap_or_default());
    // FTP data use another port.
    let deafened = deaf.iter().find(|(port, ..)| *port == cell.data_port);
    evidence.extend(deafened.and_then(|(_, seconds, answered)| two_ended_evidence::blocked_syn(*seconds, *answered)));
    let mut evidence = strongest_per_method(evidence);
    let (verdict, mut reason) = weigh(&mut evidence);
    if verdict == SplitVerdict::EndToEnd {
        // An end-to-end connection has no kind of split.
        let kind = |piece: &Evidence| {
            matches!(piece.says, Indication::SplitTcp)
                || (piece.says == Indication::TcpProxy && matches!(piece.method, Method::Window | Method::FirstByte))
        };
        evidence.retain(|piece| !kind(piece));
    }
    if let (SplitVerdict::CannotTell, Some(why)) =
        (verdict, cell.transferred.iter().find_map(|one| one.here.error.as_ref().or(one.there.error.as_ref())))
    {
        reason += &format!("; a transfer failed: {why}");
    }
    let mut missing = missing.to_vec();
    let errors = cell.transferred.iter().flat_map(|one| [&one.here.error, &one.there.error]).flatten();
    missing.extend(errors.filter(|why| why.starts_with(socket_filter::NO_FILTER)).map(|why| format!("held ACKs (method 3): {why}")));
    missing.sort();
    missing.dedup();
    let split = matches!(verdict, SplitVerdict::SplitTcp | SplitVerdict::TcpProxy);
    ProbeRow {
        application: cell.application.to_string(),
        port: cell.port,
        direction: Some(cell.direction),
        verdict,
        reason,
        place: port.and_then(|port| single_ended_evidence::place(port, way, elsewhere)).filter(|_| split),
        evidence,
        missing,
    }
}

/// Evidence from the traces of both ends, as `detect trace` finds it.
fn trace_evidence(transferred: &TransferRecord, packets: [&[CapturedPacket]; 2]) -> Vec<Evidence> {
    let (Some(here), Some(there)) = (transferred.here.connection, transferred.there.connection) else { return Vec::new() };
    let (own, mut theirs) = (capture::packets_of(packets[0], &[here]), capture::packets_of(packets[1], &[there]));
    let mut known = TraceConditions::default();
    if let Some(clocks) = transferred.clocks {
        let ahead = (clocks.offset_s * 1e9) as i64;
        theirs.iter_mut().for_each(|packet| packet.at = packet.at.saturating_sub(ahead));
        known.synchronised_s = Some(clocks.error_s + DRIFTED);
    }
    let read = |packets: &[CapturedPacket], name: &str| CaptureFile::read_from(capture::to_pcap(packets).as_slice(), name.as_ref()).ok();
    let (own, theirs) = (read(&own, "the prober's"), read(&theirs, "the responder's"));
    let (sender, receiver) = if transferred.direction == TransferDirection::Up { (own, theirs) } else { (theirs, own) };
    let found = findings(sender.as_ref(), receiver.as_ref(), &FindingOptions { known, series: false });
    // Single-ended evidence comes from the single-ended measurements. Traces do not show where the
    // head ends and the data begin. The reports do if the clocks were compared.
    let told = transferred.clocks.is_some() || transferred.hold_s.is_some();
    let both = found.into_iter().filter(|finding| finding.matched_by.is_some());
    both.flat_map(|finding| finding.evidence).filter(|piece| !(told && piece.method == Method::FirstByte)).collect()
}

/// Keeps the strongest piece per method and indication, the first of equally strong ones.
fn strongest_per_method(evidence: Vec<Evidence>) -> Vec<Evidence> {
    let rank = |piece: &Evidence| if piece.says == Indication::Nothing { None } else { Some(piece.strength) };
    let mut kept: Vec<Evidence> = Vec::new();
    for piece in evidence {
        match kept.iter_mut().find(|known| known.method == piece.method && known.says == piece.says) {
            Some(known) if rank(known) < rank(&piece) || (rank(known) == rank(&piece) && is_stronger(&piece, known)) => *known = piece,
            Some(_) => {}
            None => kept.push(piece),
        }
    }
    kept
}

/// Between pieces of equal strength: an ACK that was held longer shows more.
fn is_stronger(piece: &Evidence, known: &Evidence) -> bool {
    piece.method == Method::DelayedAcks
        && piece.strength >= Strength::Moderate
        && piece.says == Indication::EndToEnd
        && piece.value > known.value
}
