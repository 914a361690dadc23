//! The prober's side of a session with a responder: says who it is, orders transfers, and does its part of each.

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

/// How long a connection to the responder is waited for, and a word of its.
const CONNECT: Duration = Duration::from_secs(10);
const WORD: Duration = Duration::from_secs(90);
/// How long the responder waits for a connection: one whose data a middle may collect first, and one that can't go on without having come.
const COLLECTED: f64 = 20.0;
const AT_ONCE: f64 = 5.0;
/// Data of a transfer that is held, bytes: few enough to be sent at once.
const HELD_BYTES: u64 = 12_000;

/// A session with a responder.
pub(crate) struct ProberSession {
    control: TcpStream,
    at: SocketAddr,
    host: IpAddr,
    pub(crate) offer: Welcome,
}

/// What a transfer is to be.
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
    /// Finds a responder at a host.
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
        let offer = greet().map_err(failed("come to terms with the responder"))?;
        if let Some(why) = &offer.refused {
            return Err(ProbeError::Refused { at, why: why.clone() });
        }
        if clock_offset::datagram_key(&offer.key).is_none() {
            return Err(ProbeError::Refused { at, why: "its word is not a responder's (does another program listen there?)".into() });
        }
        Ok(ProberSession { control, at, host, offer })
    }

    /// Compares the clocks; by none of its datagrams, none.
    pub(crate) fn clocks(&self) -> Result<Option<ClockOffset>, ProbeError> {
        Ok(clock_offset::estimate(&clock_offset::exchange(self.at, &self.offer.key)?))
    }

    fn failed(&self, why: io::Error) -> ProbeError {
        ProbeError::Socket { what: format!("go on with the responder at {}", self.at), why }
    }

    /// The responder's trace.
    pub(crate) fn trace(&self) -> Result<Vec<u8>, ProbeError> {
        let ask = || {
            framing::write_message(&self.control, &ProberOrder::Trace)?;
            framing::read_frame(&self.control, framing::MAX_TRACE_BYTES)
        };
        ask().map_err(|why| self.failed(why))
    }

    /// Sends a SYN to a port that lets none in for so long; returns after what time it was answered, or why the port is not deaf.
    pub(crate) fn syn_while_blocked(&self, port: u16, seconds: f64) -> Result<Result<Option<f64>, String>, ProbeError> {
        let ask = || -> io::Result<Result<Option<f64>, String>> {
            framing::write_message(&self.control, &ProberOrder::Deaf { port, seconds })?;
            match framing::read_message(&self.control)? {
                ResponderEvent::Ready => {}
                ResponderEvent::Done(report) => return Ok(Err(report.error.unwrap_or_default())),
                other => return Err(io::Error::other(format!("{other:?} was said instead of ready"))),
            }
            // A SYN is sent again after one second, and after three.
            let patience = Duration::from_secs_f64(seconds + 4.0);
            let dialled = ttl_limited::connect_all(SocketAddr::new(self.host, port), &[None], patience)?;
            let ResponderEvent::Done(_) = framing::read_message(&self.control)? else {
                return Err(io::Error::other("it said something else"));
            };
            Ok(Ok(dialled.iter().find(|one| one.seen.answer == SynOutcome::Accepted).map(|one| one.seen.after_s)))
        };
        ask().map_err(|why| self.failed(why))
    }

    /// Has something carried; and, with the nonce of another transfer, the same again.
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

/// A transfer that runs. What goes wrong on its connection is in the report; an error is one of the session.
struct RunningTransfer<'a> {
    session: &'a ProberSession,
    order: &'a TransferOrder,
    here: TransferReport,
    /// The responder's report, when it came sooner than was expected.
    done: Option<TransferReport>,
}

impl RunningTransfer<'_> {
    fn run(&mut self) -> io::Result<TransferReport> {
        let control = &self.session.control;
        framing::write_message(control, &ProberOrder::Transfer(self.order.clone()))?;
        match framing::read_message(control)? {
            ResponderEvent::Ready => {}
            ResponderEvent::Done(report) => return Ok(report),
            other => return Err(io::Error::other(format!("{other:?} was said instead of ready"))),
        }
        let http = matches!(self.order.application, Application::HttpData | Application::HttpImage);
        let done = if self.order.application == Application::Ftp { self.by_ftp() } else { self.directly(http) };
        if let Err(why) = done {
            self.here.error.get_or_insert(why.to_string());
        }
        // Events that nobody waits for any more come before it.
        while self.done.is_none() {
            self.event()?;
        }
        Ok(self.done.take().unwrap_or_default())
    }

    /// The responder's next word, but for the last.
    fn event(&mut self) -> io::Result<Option<ResponderEvent>> {
        match framing::read_message(&self.session.control)? {
            ResponderEvent::Done(report) => {
                self.done = Some(report);
                Ok(None)
            }
            event => Ok(Some(event)),
        }
    }

    /// Waits for a word; whether it came.
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
            return Err(io::Error::other(format!("{to} did not accept")));
        };
        one.socket.set_nonblocking(false)?;
        Ok(one.socket)
    }

    /// Lets no data in, where that is wanted.
    fn hold(&mut self, socket: &Socket) -> io::Result<()> {
        if self.order.hold.is_some() {
            // What does not come then is not a middle's doing.
            socket_filter::drop_data(socket).inspect_err(|_| self.here.connection = None)?;
        }
        Ok(())
    }

    /// By a connection that carries a word or a head before the data.
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
            // The answer says that it has come.
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
        let data = self.connect(port.ok_or_else(|| io::Error::other(format!("no port in {answer:?}")))?)?;
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

    /// Receives; where that is wanted, after no data was let in for a while.
    fn receive(&mut self, socket: &Socket, http: bool) -> io::Result<()> {
        if let Some(hold) = self.order.hold {
            if self.heard(|event| matches!(event, ResponderEvent::Sent))? {
                thread::sleep(Duration::from_secs_f64(hold));
            }
            socket_filter::detach(socket)?;
        }
        transfer::receive(socket, http, Vec::new(), protocol::MOST_BYTES * 2, &mut self.here)
    }

    /// Sends; where that is wanted, when the responder lets no data in.
    fn send(&mut self, socket: &Socket, head: &str, content: &[u8]) -> io::Result<()> {
        let hold = self.order.hold;
        if hold.is_some() && !self.heard(|event| matches!(event, ResponderEvent::Holding))? {
            return Err(io::Error::other("the responder did not see the connection"));
        }
        let manner = transfer::SendOptions { pause: Duration::from_secs_f64(self.order.pause), held: hold };
        let control = &self.session.control;
        let mut sent = || if hold.is_some() { framing::write_message(control, &ResponderEvent::Sent) } else { Ok(()) };
        let begun = Instant::now();
        let done = transfer::send(socket, head, content, &manner, &mut self.here, &mut sent);
        if done.is_err() && begun.elapsed() < Duration::from_secs_f64(hold.unwrap_or(0.0)) {
            // The responder waits for the word.
            let _ = framing::write_message(control, &ResponderEvent::Sent);
        }
        done
    }
}
