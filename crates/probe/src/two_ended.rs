//! A host probed with the help of its responder: every application, both ways, looked at from both ends.

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

/// What two machines' clocks drift apart between their comparison and the end of a transfer, s; and what time stamps may be wrong.
const DRIFTED: f64 = 0.003;
/// Between the halves of a transfer, and for how long no SYN is let in: so many round trips, and at least so long, s.
const PAUSE: (f64, f64) = (3.0, 0.7);
const DEAF: (f64, f64) = (3.0, 1.5);

/// How to probe with a responder.
#[derive(Debug, Clone)]
pub struct TwoEndedOptions {
    /// The host.
    pub host: String,
    /// Its ports.
    pub ports: Vec<u16>,
    /// Where its responder is spoken to.
    pub control: u16,
    /// What the responder wants to be known.
    pub token: Option<String>,
    /// What a transfer carries, bytes, about.
    pub bytes: u64,
    /// For how long receivers hold their ACKs, s.
    pub hold_s: f64,
}

/// What is carried by a port.
fn applications_for(port: u16) -> &'static [Application] {
    match port {
        21 => &[Application::Ftp],
        80 | 8000 | 8080 | 8888 => &[Application::HttpData, Application::HttpImage],
        _ => &[Application::Tcp],
    }
}

/// A row before it is judged.
struct ProbeCase {
    application: Application,
    direction: TransferDirection,
    /// The port that it was asked for by, and the one that the data went by.
    port: u16,
    data_port: u16,
    transferred: Vec<TransferRecord>,
}

/// What was asked of the responder, as far as that went.
#[derive(Default)]
struct SessionResults {
    cells: Vec<ProbeCase>,
    /// Ports that let no SYN in for so long, s, and when one was answered.
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
        let at_least = |(times, least): (f64, f64)| (times * round_trip).max(least).min(protocol::LONGEST_HOLD);
        let hold_s = how.hold_s.max(5.0 * round_trip).min(protocol::LONGEST_HOLD);
        for port in offered {
            say(&format!("port {port}, while the responder lets no SYN in"));
            match session.syn_while_blocked(*port, at_least(DEAF))? {
                Ok(answered) => self.deaf.push((*port, at_least(DEAF), answered)),
                Err(why) => missing.push(format!("SYNs while the responder lets none in: {why}")),
            }
            for application in applications_for(*port) {
                for direction in [TransferDirection::Down, TransferDirection::Up] {
                    let word = if direction == TransferDirection::Down { "down" } else { "up" };
                    say(&format!("port {port}: {application}, {word}"));
                    let wanted = TransferSpec {
                        application: *application,
                        direction,
                        port: *port,
                        bytes: how.bytes,
                        pause_s: at_least(PAUSE),
                        hold_s: None,
                    };
                    let (plain, nonce) = session.transfer(&wanted, None)?;
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

/// Probes a host with the help of its responder; says what it is about to do.
pub fn probe_with_responder(how: &TwoEndedOptions, mut say: impl FnMut(&str)) -> Result<ProbeReport, ProbeError> {
    let host = single_ended::resolve(&how.host)?;
    say("the responder");
    let session = ProberSession::open(host, how.control, how.token.as_deref().unwrap_or(""))?;
    let mut missing = Vec::new();
    let offered: Vec<u16> = how.ports.iter().copied().filter(|port| session.offer.ports.contains(port)).collect();
    for port in how.ports.iter().filter(|port| !offered.contains(port)) {
        missing.push(format!("port {port}: the responder does not listen there (give it --ports {port})"));
    }
    if offered.is_empty() {
        let has: Vec<String> = session.offer.ports.iter().map(u16::to_string).collect();
        return Err(ProbeError::Refused {
            at: std::net::SocketAddr::new(host, how.control),
            why: format!("it listens at none of the ports asked for, but at {}", has.join(", ")),
        });
    }
    missing.extend(session.offer.no_trace.iter().map(|why| format!("a trace at the responder: it {why}")));
    let traced: Vec<u16> = offered.iter().copied().chain([session.offer.ftp_data]).collect();
    let tap = PacketCapture::start(&traced);
    if let Err(why) = &tap {
        missing.push(format!("a trace at the prober: could not open a packet socket: {why} (root may; or CAP_NET_RAW)"));
    }
    let mut asked = SessionResults { clocks: session.clocks()?, ..SessionResults::default() };
    if asked.clocks.is_none() {
        missing.push("a run that is known to be unsplit, and the clocks: the responder's datagrams did not come".into());
    }
    // What has been seen before it broke off is worth as much as if it had not.
    if let Err(why) = asked.ask(&session, how, &offered, &mut missing, &mut say) {
        if asked.cells.is_empty() {
            return Err(why);
        }
        missing.push(format!("whatever was still to be asked of the responder: {why}"));
    }
    let SessionResults { cells, deaf, clocks } = asked;
    let there = session.trace().unwrap_or_else(|why| {
        missing.push(format!("the trace at the responder: {why}"));
        Vec::new()
    });
    let here = tap.map(PacketCapture::stop).unwrap_or_default();
    let there_packets = capture::parse_file(&there).unwrap_or_default();
    // From this end alone, besides; the responder listens as long as it runs.
    drop(session);
    say("the way there, by UDP and ICMP");
    let mut way = traceroute::trace_path(host);
    missing.extend(way.missing.clone());
    if let Some(clocks) = clocks {
        way.round_trip = Some(PathRoundTrip { by: Baseline::Responder, least_s: clocks.round_trip_s, of: clocks.exchanges });
    }
    let (mut elsewhere, mut seen) = (Vec::new(), Vec::new());
    for port in single_ended::UNUSED_PORTS {
        elsewhere.push(single_ended::probe_port(host, port, &way, &mut missing)?);
    }
    for port in &traced {
        if cells.iter().any(|cell| cell.data_port == *port) {
            say(&format!("port {port}, from this end alone"));
            seen.push(single_ended::probe_port(host, *port, &way, &mut missing)?);
        }
    }
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

/// What is said of a cell.
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
    // FTP's data go by a port of their own.
    let deafened = deaf.iter().find(|(port, ..)| *port == cell.data_port);
    evidence.extend(deafened.and_then(|(_, seconds, answered)| two_ended_evidence::blocked_syn(*seconds, *answered)));
    let mut evidence = strongest_per_method(evidence);
    let (verdict, mut reason) = weigh(&mut evidence);
    if verdict == SplitVerdict::EndToEnd {
        // Of what is not split there is no kind.
        let kind = |piece: &Evidence| {
            matches!(piece.says, Indication::SplitTcp)
                || (piece.says == Indication::TcpProxy && matches!(piece.method, Method::Window | Method::FirstByte))
        };
        evidence.retain(|piece| !kind(piece));
    }
    if let (SplitVerdict::CannotTell, Some(why)) =
        (verdict, cell.transferred.iter().find_map(|one| one.here.error.as_ref().or(one.there.error.as_ref())))
    {
        reason += &format!("; a transfer did not come to its end: {why}");
    }
    let mut missing = missing.to_vec();
    let errors = cell.transferred.iter().flat_map(|one| [&one.here.error, &one.there.error]).flatten();
    missing
        .extend(errors.filter(|why| why.starts_with(socket_filter::NO_FILTER)).map(|why| format!("ACKs that are held (method 3): {why}")));
    missing.sort();
    missing.dedup();
    let split = matches!(verdict, SplitVerdict::SplitTcp | SplitVerdict::TcpProxy);
    ProbeRow {
        application: cell.application.to_string(),
        port: cell.port,
        direction: Some(cell.direction),
        verdict,
        reason,
        place: port.and_then(|port| single_ended_evidence::place(port, way)).filter(|_| split),
        evidence,
        missing,
    }
}

/// What the traces of both ends show of a transfer: all that `detect trace` looks at.
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
    // One end's alone is in what one end shows. Traces don't know where words end and data begin: the reports do, where clocks were compared.
    let told = transferred.clocks.is_some() || transferred.hold_s.is_some();
    let both = found.into_iter().filter(|finding| finding.matched_by.is_some());
    both.flat_map(|finding| finding.evidence).filter(|piece| !(told && piece.method == Method::FirstByte)).collect()
}

/// The strongest piece of each method that says the same, the first of those that are as strong.
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

/// Of two that are as strong and say the same: an ACK that is held for longer shows more.
fn is_stronger(piece: &Evidence, known: &Evidence) -> bool {
    piece.method == Method::DelayedAcks
        && piece.strength >= Strength::Moderate
        && piece.says == Indication::EndToEnd
        && piece.value > known.value
}
