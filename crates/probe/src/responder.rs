//! The responder: does what a prober orders, one prober at a time, and gives it the trace that it took meanwhile.
//!
//! It is of no use to strangers: with a token they get nowhere, and without one nothing goes to an address that has not answered a SYN and said a word that its
//! own order had; bytes, time, transfers and connections are bounded. It sets no rule and writes no file.

use crate::{
    capture::{self, Tap},
    error::ProbeError,
    pending_connections::{Lobby, listen},
    protocol::{self, Application, Challenge, Direction, Event, Hello, Order, Report, Transfer, Until, Welcome},
    transfer,
};
use socket2::Socket;
use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::{IpAddr, Shutdown, SocketAddr, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

/// A session's bounds: its time, its orders, the time between two of them.
const SESSION: Duration = Duration::from_secs(30 * 60);
const ORDERS: u32 = 300;
const IDLE: Duration = Duration::from_secs(90);
/// A word that was begun is said within this.
const WORD: Duration = Duration::from_secs(5);
/// Those who have come to speak and have not said who they are: so many of them, the oldest goes, and of each so much is heard.
const KNOCKING: usize = 32;
const HELLO: usize = 4 << 10;
/// Lines of one conversation by FTP.
const LINES: usize = 32;
const TICK: Duration = Duration::from_millis(1);

/// How to respond.
#[derive(Debug, Clone)]
pub struct Responder {
    /// Where to listen.
    pub listen: IpAddr,
    /// Where probers speak to it, by TCP and UDP.
    pub control: u16,
    /// Where they carry data.
    pub ports: Vec<u16>,
    /// What they must know.
    pub token: Option<String>,
}

/// Responds until `over`; says what happens.
pub fn respond(how: &Responder, over: &AtomicBool, mut say: impl FnMut(&str)) -> Result<(), ProbeError> {
    let (_, control) = listen(how.listen, how.control)?;
    let at = SocketAddr::new(how.listen, how.control);
    let datagrams = UdpSocket::bind(at).map_err(|why| ProbeError::Socket { what: format!("receive datagrams at {at}"), why })?;
    let (mut listeners, mut last) = (Vec::new(), None);
    for port in &how.ports {
        match listen(how.listen, *port) {
            Ok(listener) => listeners.push(listener),
            Err(why) => {
                say(&why.to_string());
                last = Some(why);
            }
        }
    }
    if let Some(why) = last.filter(|_| listeners.is_empty()) {
        return Err(why);
    }
    let ports: Vec<u16> = listeners.iter().map(|(port, _)| *port).collect();
    let data = listen(how.listen, 0)?;
    let ftp_data = data.0;
    listeners.push(data);
    let said: Vec<String> = ports.iter().map(u16::to_string).collect();
    say(&format!("ready: probers speak to port {}, data go by {}, and by {ftp_data} for FTP", how.control, said.join(", ")));
    let (mut lobby, mut knocking) = (Lobby::new(listeners), Vec::new());
    while !over.load(Relaxed) {
        lobby.tick();
        let_in(&control, &mut knocking);
        let Some((caller, hello)) = whoever_is_first(&mut knocking) else {
            thread::sleep(5 * TICK);
            continue;
        };
        let Knocking { control, nonce, from, .. } = caller;
        let session = Session { control, lobby: &mut lobby, ports: &ports, ftp_data, connections: Vec::new(), over };
        match hello.and_then(|hello| session.run(how.token.as_deref().unwrap_or(""), &nonce, &hello, &datagrams)) {
            Ok(orders) => say(&format!("{from}: {orders} orders done")),
            Err(why) => say(&format!("{from}: {why}")),
        }
    }
    Ok(())
}

/// Somebody who has come to speak, and is to prove first that the token is known. Many may be heard at once: who says nothing keeps nobody waiting.
struct Knocking {
    control: TcpStream,
    nonce: String,
    heard: Vec<u8>,
    since: Instant,
    from: String,
}

impl Knocking {
    fn new(control: TcpStream, from: Option<SocketAddr>) -> io::Result<Self> {
        control.set_nonblocking(true)?;
        control.set_nodelay(true)?;
        let nonce = protocol::secret()?;
        protocol::tell(&control, &Challenge { version: protocol::VERSION, nonce: nonce.clone() })?;
        let from = from.map_or("somebody".into(), |from| transfer::unmapped(from).to_string());
        Ok(Knocking { control, nonce, heard: Vec::new(), since: Instant::now(), from })
    }

    /// The word, once it is there; an error where none will come.
    fn hello(&mut self) -> io::Result<Option<Hello>> {
        let mut part = [0; 1024];
        loop {
            if let Some(hello) = first_word(&self.heard)? {
                return Ok(Some(hello));
            }
            match self.control.read(&mut part) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.heard.extend(&part[..count]),
                Err(why) if why.kind() == ErrorKind::WouldBlock && self.since.elapsed() < WORD => return Ok(None),
                Err(why) if why.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
                Err(why) => return Err(why),
            }
        }
    }
}

/// The first word of a prober, once all of it has come.
pub(super) fn first_word(heard: &[u8]) -> io::Result<Option<Hello>> {
    let Some(length) = heard.first_chunk().map(|length| u32::from_be_bytes(*length) as usize) else { return Ok(None) };
    if heard.len() - 4 >= length {
        return protocol::hear(heard).map(Some);
    }
    if length > HELLO - 4 {
        return Err(io::Error::new(ErrorKind::InvalidData, "its first word is longer than any prober's"));
    }
    Ok(None)
}

/// Lets those in who have come; of too many the oldest goes.
fn let_in(control: &Socket, knocking: &mut Vec<Knocking>) {
    while let Ok((stream, from)) = control.accept() {
        if knocking.len() >= KNOCKING {
            knocking.remove(0);
        }
        knocking.extend(Knocking::new(stream.into(), from.as_socket()));
    }
}

/// The first of those who have said their word, or from whom none will come.
fn whoever_is_first(knocking: &mut Vec<Knocking>) -> Option<(Knocking, io::Result<Hello>)> {
    let (index, hello) = knocking.iter_mut().enumerate().find_map(|(index, one)| Some((index, one.hello().transpose()?)))?;
    Some((knocking.remove(index), hello))
}

struct Session<'a> {
    control: TcpStream,
    lobby: &'a mut Lobby,
    ports: &'a [u16],
    ftp_data: u16,
    /// Those that carried what was ordered.
    connections: Vec<[SocketAddr; 2]>,
    over: &'a AtomicBool,
}

impl Session<'_> {
    fn run(mut self, token: &str, nonce: &str, hello: &Hello, datagrams: &UdpSocket) -> io::Result<u32> {
        self.control.set_nonblocking(false)?;
        self.control.set_write_timeout(Some(transfer::SILENCE))?;
        let key = protocol::secret()?;
        let refused = if hello.version != protocol::VERSION {
            Some(format!("it speaks version {}, this is {} (use the same tandem at both ends)", hello.version, protocol::VERSION))
        } else if !protocol::proves(token, nonce, &hello.proof) {
            Some("the token is another one".to_string())
        } else {
            None
        };
        let traced: Vec<u16> = self.ports.iter().copied().chain([self.ftp_data]).collect();
        let tap = if refused.is_none() { Some(Tap::begin(&traced)) } else { None };
        let no_trace = tap
            .as_ref()
            .and_then(|tap| tap.as_ref().err())
            .map(|why| format!("could not open a packet socket: {why} (root may; or CAP_NET_RAW)"));
        let welcome = Welcome { refused: refused.clone(), ports: self.ports.to_vec(), ftp_data: self.ftp_data, no_trace, key: key.clone() };
        protocol::tell(&self.control, &welcome)?;
        if let Some(why) = refused {
            return Err(io::Error::new(ErrorKind::PermissionDenied, why));
        }
        let left = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| protocol::echo(datagrams, &key, &left));
            let done = self.obey(tap.and_then(Result::ok));
            left.store(true, Relaxed);
            done
        })
    }

    /// Does what is ordered, until the prober leaves; returns how much that was.
    fn obey(&mut self, mut tap: Option<Tap>) -> io::Result<u32> {
        let begun = Instant::now();
        for count in 0..ORDERS {
            let Some(order) = self.next()? else { return Ok(count) };
            if begun.elapsed() > SESSION {
                return Err(io::Error::new(ErrorKind::TimedOut, "the session took too long"));
            }
            match order {
                Order::Transfer(transfer) => {
                    let mut report = Report::default();
                    if let Err(why) = self.transfer(&transfer, &mut report) {
                        report.error = Some(why.to_string());
                    }
                    self.connections.extend(report.connection);
                    protocol::tell(&self.control, &Event::Done(report))?;
                }
                Order::Deaf { port, seconds } => self.deaf(port, seconds)?,
                Order::Trace => {
                    let packets = tap.take().map(Tap::end).unwrap_or_default();
                    protocol::write_bytes(&self.control, &capture::file(&capture::between(&packets, &self.connections)))?;
                }
            }
        }
        Err(io::Error::other(format!("more than {ORDERS} orders")))
    }

    /// The next order; none: the prober has left.
    fn next(&mut self) -> io::Result<Option<Order>> {
        let begun = Instant::now();
        while begun.elapsed() < IDLE && !self.over.load(Relaxed) {
            self.lobby.tick();
            self.control.set_nonblocking(true)?;
            let waits = self.control.peek(&mut [0]);
            self.control.set_nonblocking(false)?;
            match waits {
                Ok(0) => return Ok(None),
                Ok(_) => return protocol::hear(Until::new(&self.control, WORD, WORD)).map(Some),
                Err(why) if why.kind() == ErrorKind::WouldBlock => thread::sleep(TICK),
                Err(why) => return Err(why),
            }
        }
        Err(io::Error::new(ErrorKind::TimedOut, "no order came"))
    }

    fn deaf(&mut self, port: u16, seconds: f64) -> io::Result<()> {
        let mut report = Report::default();
        let known = self.lobby.listener(port).filter(|_| (0.0..=protocol::LONGEST_HOLD).contains(&seconds));
        match known.map(|listener| (listener, transfer::deafen(listener))) {
            Some((listener, Ok(()))) => {
                protocol::tell(&self.control, &Event::Ready)?;
                thread::sleep(Duration::from_secs_f64(seconds));
                transfer::release(listener)?;
            }
            Some((_, Err(why))) => report.error = Some(why.to_string()),
            None => report.error = Some(format!("nobody listens at port {port}, or {seconds} s is too long")),
        }
        protocol::tell(&self.control, &Event::Done(report))
    }

    /// Waits for what `find` finds, and lets others wait meanwhile.
    fn wait<T>(&mut self, seconds: f64, mut find: impl FnMut(&mut Lobby) -> Option<T>) -> io::Result<T> {
        let (begun, seconds) = (Instant::now(), seconds.clamp(0.0, 2.0 * protocol::LONGEST_HOLD));
        while begun.elapsed().as_secs_f64() < seconds && !self.over.load(Relaxed) {
            self.lobby.tick();
            if let Some(found) = find(self.lobby) {
                return Ok(found);
            }
            thread::sleep(TICK);
        }
        Err(io::Error::new(ErrorKind::TimedOut, "the connection did not come"))
    }

    fn transfer(&mut self, order: &Transfer, report: &mut Report) -> io::Result<()> {
        if !order.is_allowed() || !self.ports.contains(&order.port) {
            return Err(io::Error::new(ErrorKind::InvalidInput, "an order beyond what is allowed"));
        }
        protocol::tell(&self.control, &Event::Ready)?;
        let (socket, heard) = self.wait(order.patience, |lobby| lobby.known_by(order.application, order.port, &order.nonce))?;
        if order.application == Application::Ftp {
            return self.serve_files(order, &socket, heard, report);
        }
        self.carry(order, &socket, heard, report)
    }

    /// Sends or receives what was ordered.
    fn carry(&mut self, order: &Transfer, socket: &Socket, heard: Vec<u8>, report: &mut Report) -> io::Result<()> {
        let http = matches!(order.application, Application::HttpData | Application::HttpImage);
        transfer::note_connection(report, socket);
        let control = &self.control;
        match order.direction {
            Direction::Up => {
                if let Some(held) = order.hold {
                    transfer::hold(socket)?;
                    protocol::tell(control, &Event::Holding)?;
                    let Event::Sent = protocol::hear(Until::new(control, transfer::SILENCE, transfer::SILENCE))? else {
                        return Err(io::Error::other("the prober did not send"));
                    };
                    thread::sleep(Duration::from_secs_f64(held));
                    transfer::release(socket)?;
                }
                transfer::receive(socket, http, heard, order.bytes * 2, report)?;
                if http {
                    let _ = (&*socket).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                }
            }
            Direction::Down => {
                let content = transfer::content(order.application, &order.nonce, order.bytes);
                let head = if http { transfer::response_head(order.application, content.len()) } else { String::new() };
                let manner = transfer::Manner { pause: Duration::from_secs_f64(order.pause), held: order.hold };
                let mut sent = || if order.hold.is_some() { protocol::tell(control, &Event::Sent) } else { Ok(()) };
                transfer::send(socket, &head, &content, &manner, report, &mut sent)?;
            }
        }
        transfer::leave(socket);
        Ok(())
    }

    /// Speaks FTP (RFC 959, RFC 2428) until the file is there.
    fn serve_files(&mut self, order: &Transfer, socket: &Socket, heard: Vec<u8>, report: &mut Report) -> io::Result<()> {
        let mut lines = transfer::Lines::new(socket, heard);
        self.lobby.clear(self.ftp_data);
        lines.say("331 and the password")?;
        let mut carried = Ok(());
        for _ in 0..LINES {
            let line = lines.next()?;
            match line.split(' ').next().unwrap_or("") {
                "PASS" => lines.say("230 welcome")?,
                "TYPE" => lines.say("200 as you like")?,
                "EPSV" => lines.say(&format!("229 come here (|||{}|)", self.ftp_data))?,
                "RETR" | "STOR" => {
                    let port = self.ftp_data;
                    let data = self.wait(order.patience, |lobby| lobby.first(port))?;
                    data.set_nonblocking(false)?;
                    lines.say("150 it comes")?;
                    carried = self.carry(order, &data, Vec::new(), report);
                    drop(data);
                    lines.say(if carried.is_ok() { "226 done" } else { "426 it broke off" })?;
                }
                "QUIT" => {
                    lines.say("221 goodbye")?;
                    transfer::leave(socket);
                    return carried;
                }
                _ => lines.say("502 not here")?,
            }
        }
        Err(io::Error::other(format!("more than {LINES} lines by FTP")))
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        let _ = self.control.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
#[path = "responder_tests.rs"]
mod tests;
