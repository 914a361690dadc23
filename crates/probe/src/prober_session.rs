//! The prober's side of a session with a responder: authenticates, orders transfers, and takes part
//! in them.

use crate::{
    clock_offset::{self, ClockOffset},
    error::ProbeError,
    framing, ftp, http, payload,
    protocol::{self, ProberHello, ProberOrder, ResponderChallenge, ResponderEvent, TransferOrder, Welcome},
    socket_filter, token, transfer,
    transfer_record::{Application, TransferDirection, TransferRecord, TransferReport},
    ttl_limited::{self, SynOutcome},
};
use socket2::Socket;
use std::{
    io::{self, Write as _},
    net::{IpAddr, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

/// Timeout of connecting to the responder, and of waiting for one of its messages.
const CONNECT: Duration = Duration::from_secs(10);
const WORD: Duration = Duration::from_secs(90);
/// How long the responder waits for a data connection, s: one whose data a middlebox may collect
/// first, and one that must arrive at once.
const COLLECTED: f64 = 20.0;
const AT_ONCE: f64 = 5.0;
/// Payload of a transfer with held ACKs, bytes: small enough for the initial window.
const HELD_BYTES: u64 = 12_000;

/// A session with a responder. Dropping it ends the session.
pub(crate) struct ProberSession {
    control: TcpStream,
    at: SocketAddr,
    host: IpAddr,
    pub(crate) offer: Welcome,
}

/// Parameters of a transfer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TransferSpec {
    pub(crate) application: Application,
    pub(crate) direction: TransferDirection,
    pub(crate) port: u16,
    pub(crate) bytes: u64,
    pub(crate) pause_s: f64,
    pub(crate) hold_s: Option<f64>,
}

impl ProberSession {
    /// Connects to a responder and authenticates.
    ///
    /// # Errors
    /// The responder cannot be reached, or refuses.
    pub(crate) fn open(host: IpAddr, port: u16, token: &str) -> Result<Self, ProbeError> {
        let at = SocketAddr::new(host, port);
        let failed = |what: &'static str| {
            move |why: io::Error| ProbeError::Socket {
                what: format!("{what} at {at} (is `tandem detect respond` running there, and the port open?)"),
                why,
            }
        };
        let control = TcpStream::connect_timeout(&at, CONNECT).map_err(failed("reach the responder"))?;
        let greet = || -> io::Result<Welcome> {
            control.set_nodelay(true)?;
            control.set_read_timeout(Some(CONNECT))?;
            control.set_write_timeout(Some(CONNECT))?;
            let challenge: ResponderChallenge = framing::read_message(&control)?;
            framing::write_message(&control, &ProberHello { version: protocol::VERSION, proof: token::proof(token, &challenge.nonce) })?;
            let offer = framing::read_message(&control)?;
            control.set_read_timeout(Some(WORD))?;
            Ok(offer)
        };
        let offer = greet().map_err(failed("complete the handshake with the responder"))?;
        if let Some(why) = &offer.refused {
            return Err(ProbeError::Refused { at, why: why.clone() });
        }
        if clock_offset::datagram_key(&offer.key).is_none() {
            return Err(ProbeError::Refused { at, why: "its answer is not a responder's (does another program listen there?)".into() });
        }
        Ok(ProberSession { control, at, host, offer })
    }

    /// Compares the clocks. `None` if no datagram came back.
    pub(crate) fn clocks(&self) -> Result<Option<ClockOffset>, ProbeError> {
        Ok(clock_offset::estimate(&clock_offset::exchange(self.at, &self.offer.key)?))
    }

    fn failed(&self, why: io::Error) -> ProbeError {
        ProbeError::Socket { what: format!("continue the session with the responder at {}", self.at), why }
    }

    /// Ends the responder's capture and fetches it.
    pub(crate) fn trace(&self) -> Result<Vec<u8>, ProbeError> {
        let ask = || {
            framing::write_message(&self.control, &ProberOrder::Trace)?;
            framing::read_frame(&self.control, framing::MAX_TRACE_BYTES)
        };
        ask().map_err(|why| self.failed(why))
    }

    /// Sends a SYN to a port while the responder drops SYNs there. Returns after what time the SYN
    /// was answered, s, or why the responder could not drop SYNs.
    pub(crate) fn syn_while_blocked(&self, port: u16, seconds: f64) -> Result<Result<Option<f64>, String>, ProbeError> {
        let ask = || -> io::Result<Result<Option<f64>, String>> {
            framing::write_message(&self.control, &ProberOrder::DropSyns { port, seconds })?;
            match framing::read_message(&self.control)? {
                ResponderEvent::Ready => {}
                ResponderEvent::Done(report) => return Ok(Err(report.error.unwrap_or_default())),
                other => return Err(io::Error::other(format!("the responder sent {other:?} instead of ready"))),
            }
            // A SYN is retransmitted after one second, and again after three.
            let patience = Duration::from_secs_f64(seconds + 4.0);
            let dialled = ttl_limited::connect_all(SocketAddr::new(self.host, port), &[None], patience)?;
            let ResponderEvent::Done(_) = framing::read_message(&self.control)? else {
                return Err(io::Error::other("the responder sent an unexpected event"));
            };
            Ok(Ok(dialled.iter().find(|one| one.seen.answer == SynOutcome::Accepted).map(|one| one.seen.after_s)))
        };
        ask().map_err(|why| self.failed(why))
    }

    /// Runs a transfer. `again` repeats the request of an earlier one, given its nonce. Returns the
    /// record and the nonce.
    pub(crate) fn transfer(&self, wanted: &TransferSpec, again: Option<&str>) -> Result<(TransferRecord, String), ProbeError> {
        let nonce = again.map_or_else(token::random_hex, |nonce| Ok(nonce.to_string())).map_err(|why| self.failed(why))?;
        let clocks = self.clocks()?;
        let patience_s = if wanted.hold_s.is_some() || again.is_some() { AT_ONCE } else { COLLECTED };
        let order = TransferOrder {
            application: wanted.application,
            direction: wanted.direction,
            port: wanted.port,
            nonce: nonce.clone(),
            bytes: if wanted.hold_s.is_some() { wanted.bytes.min(HELD_BYTES) } else { wanted.bytes },
            pause: if wanted.hold_s.is_some() { 0.0 } else { wanted.pause_s },
            hold: wanted.hold_s,
            patience: patience_s,
        };
        let mut running = RunningTransfer { session: self, order: &order, here: TransferReport::default(), done: None };
        let there = running.run().map_err(|why| self.failed(why))?;
        let here = running.here;
        let TransferSpec { application, direction, port, hold_s, .. } = *wanted;
        Ok((TransferRecord { application, direction, port, again: again.is_some(), hold_s, patience_s, clocks, here, there }, nonce))
    }
}

/// A running transfer. Failures of its data connection go into the report. An error means that the
/// session failed.
struct RunningTransfer<'a> {
    session: &'a ProberSession,
    order: &'a TransferOrder,
    here: TransferReport,
    /// The responder's report, if it came earlier than expected.
    done: Option<TransferReport>,
}

impl RunningTransfer<'_> {
    fn run(&mut self) -> io::Result<TransferReport> {
        let control = &self.session.control;
        framing::write_message(control, &ProberOrder::Transfer(self.order.clone()))?;
        match framing::read_message(control)? {
            ResponderEvent::Ready => {}
            ResponderEvent::Done(report) => return Ok(report),
            other => return Err(io::Error::other(format!("the responder sent {other:?} instead of ready"))),
        }
        let http = matches!(self.order.application, Application::HttpData | Application::HttpImage);
        let done = if self.order.application == Application::Ftp { self.by_ftp() } else { self.directly(http) };
        if let Err(why) = done {
            self.here.error.get_or_insert(why.to_string());
        }
        // Skip events that are no longer awaited.
        while self.done.is_none() {
            self.event()?;
        }
        Ok(self.done.take().unwrap_or_default())
    }

    /// The responder's next event. `None` for the last one, which is stored in `done`.
    fn event(&mut self) -> io::Result<Option<ResponderEvent>> {
        match framing::read_message(&self.session.control)? {
            ResponderEvent::Done(report) => {
                self.done = Some(report);
                Ok(None)
            }
            event => Ok(Some(event)),
        }
    }

    /// Waits for an event that matches. False if the transfer ended before.
    fn heard(&mut self, what: fn(&ResponderEvent) -> bool) -> io::Result<bool> {
        while self.done.is_none() {
            if self.event()?.is_some_and(|event| what(&event)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn connect(&mut self, port: u16) -> io::Result<Socket> {
        let to = SocketAddr::new(self.session.host, port);
        let dialled = ttl_limited::connect_all(to, &[None], CONNECT)?;
        let Some(one) = dialled.into_iter().find(|one| one.seen.answer == SynOutcome::Accepted) else {
            return Err(io::Error::other(format!("{to} did not accept the connection")));
        };
        one.socket.set_nonblocking(false)?;
        Ok(one.socket)
    }

    /// Drops incoming data if the order says so.
    fn hold(&mut self, socket: &Socket) -> io::Result<()> {
        if self.order.hold.is_some() {
            // If the filter fails, data that are missing prove nothing.
            socket_filter::drop_data(socket).inspect_err(|_| self.here.connection = None)?;
        }
        Ok(())
    }

    /// Carries the data after a nonce or a head on the same connection.
    fn directly(&mut self, http: bool) -> io::Result<()> {
        let TransferOrder { application, direction, port, ref nonce, bytes, .. } = *self.order;
        let socket = self.connect(port)?;
        transfer::record_connection(&mut self.here, &socket);
        let host = &SocketAddr::new(self.session.host, port).to_string();
        if direction == TransferDirection::Down {
            self.hold(&socket)?;
            let first = if http { http::request_head(application, nonce, host, None) } else { format!("{nonce}\n") };
            (&socket).write_all(first.as_bytes())?;
            self.receive(&socket, http)?;
            transfer::close(&socket);
            return Ok(());
        }
        let content = payload::generate(application, nonce, bytes);
        let first = if http { http::request_head(application, nonce, host, Some(content.len())) } else { format!("{nonce}\n") };
        if self.order.hold.is_some() {
            (&socket).write_all(first.as_bytes())?;
            self.send(&socket, "", &content)?;
        } else {
            self.send(&socket, &first, &content)?;
        }
        self.here.head = if http { first } else { String::new() };
        if http {
            // The response confirms that the data arrived.
            let mut answer = TransferReport::default();
            transfer::receive(&socket, true, Vec::new(), http::HEAD as u64, &mut answer)?;
        }
        transfer::close(&socket);
        Ok(())
    }

    fn by_ftp(&mut self) -> io::Result<()> {
        let TransferOrder { application, direction, port, ref nonce, bytes, .. } = *self.order;
        let speaking = self.connect(port)?;
        let mut lines = ftp::FtpControl::new(&speaking, Vec::new());
        lines.expect("220")?;
        lines.command(&format!("USER {nonce}"), "331")?;
        lines.command("PASS tandem", "230")?;
        lines.command("TYPE I", "200")?;
        let answer = lines.command("EPSV", "229")?;
        let port = answer.split('|').nth(3).and_then(|port| port.parse().ok());
        let data = self.connect(port.ok_or_else(|| io::Error::other(format!("no port in the FTP reply {answer:?}")))?)?;
        transfer::record_connection(&mut self.here, &data);
        if direction == TransferDirection::Down {
            self.hold(&data)?;
            lines.command("RETR probe.bin", "150")?;
            self.receive(&data, false)?;
            transfer::close(&data);
        } else {
            lines.command("STOR probe.bin", "150")?;
            self.send(&data, "", &payload::generate(application, nonce, bytes))?;
            transfer::close(&data);
        }
        drop(data);
        lines.expect("226")?;
        lines.command("QUIT", "221")?;
        Ok(())
    }

    /// Receives. If the order says so, drops incoming data for a while before.
    fn receive(&mut self, socket: &Socket, http: bool) -> io::Result<()> {
        if let Some(hold) = self.order.hold {
            if self.heard(|event| matches!(event, ResponderEvent::Sent))? {
                thread::sleep(Duration::from_secs_f64(hold));
            }
            socket_filter::detach(socket)?;
        }
        transfer::receive(socket, http, Vec::new(), protocol::MAX_TRANSFER_BYTES * 2, &mut self.here)
    }

    /// Sends. If the order says so, waits until the responder drops incoming data.
    fn send(&mut self, socket: &Socket, head: &str, content: &[u8]) -> io::Result<()> {
        let hold = self.order.hold;
        if hold.is_some() && !self.heard(|event| matches!(event, ResponderEvent::Holding))? {
            return Err(io::Error::other("the data connection did not reach the responder"));
        }
        let manner = transfer::SendOptions { pause: Duration::from_secs_f64(self.order.pause), held: hold };
        let control = &self.session.control;
        let mut sent = || if hold.is_some() { framing::write_message(control, &ResponderEvent::Sent) } else { Ok(()) };
        let begun = Instant::now();
        let done = transfer::send(socket, head, content, &manner, &mut self.here, &mut sent);
        if done.is_err() && begun.elapsed() < Duration::from_secs_f64(hold.unwrap_or(0.0)) {
            // The responder still waits for this message.
            let _ = framing::write_message(control, &ResponderEvent::Sent);
        }
        done
    }
}
