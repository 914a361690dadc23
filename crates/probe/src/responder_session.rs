//! Session.

use crate::{
    capture::{self, Tap},
    clock_offset,
    framing::{self, Until},
    ftp,
    handshake::WORD,
    http, payload,
    pending_connections::Lobby,
    protocol::{self, Event, Hello, Order, Transfer, Welcome},
    socket_filter, token, transfer,
    transfer_record::{Application, Direction, Report},
};
use socket2::Socket;
use std::{
    io::{self, ErrorKind, Write as _},
    net::{Shutdown, SocketAddr, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

/// A session's bounds: its time, its orders, the time between two of them.
const SESSION: Duration = Duration::from_secs(30 * 60);
const ORDERS: u32 = 300;
const IDLE: Duration = Duration::from_secs(90);
/// Lines of one conversation by FTP.
const LINES: usize = 32;
pub(crate) const TICK: Duration = Duration::from_millis(1);

pub(crate) struct Session<'a> {
    pub(crate) control: TcpStream,
    pub(crate) lobby: &'a mut Lobby,
    pub(crate) ports: &'a [u16],
    pub(crate) ftp_data: u16,
    /// Those that carried what was ordered.
    pub(crate) connections: Vec<[SocketAddr; 2]>,
    pub(crate) over: &'a AtomicBool,
}

impl Session<'_> {
    pub(crate) fn run(mut self, token: &str, nonce: &str, hello: &Hello, datagrams: &UdpSocket) -> io::Result<u32> {
        self.control.set_nonblocking(false)?;
        self.control.set_write_timeout(Some(transfer::SILENCE))?;
        let key = token::secret()?;
        let refused = if hello.version != protocol::VERSION {
            Some(format!("it speaks version {}, this is {} (use the same tandem at both ends)", hello.version, protocol::VERSION))
        } else if !token::proves(token, nonce, &hello.proof) {
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
        framing::tell(&self.control, &welcome)?;
        if let Some(why) = refused {
            return Err(io::Error::new(ErrorKind::PermissionDenied, why));
        }
        let left = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| clock_offset::echo(datagrams, &key, &left));
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
                    framing::tell(&self.control, &Event::Done(report))?;
                }
                Order::Deaf { port, seconds } => self.deaf(port, seconds)?,
                Order::Trace => {
                    let packets = tap.take().map(Tap::end).unwrap_or_default();
                    framing::write_bytes(&self.control, &capture::file(&capture::between(&packets, &self.connections)))?;
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
                Ok(_) => return framing::hear(Until::new(&self.control, WORD, WORD)).map(Some),
                Err(why) if why.kind() == ErrorKind::WouldBlock => thread::sleep(TICK),
                Err(why) => return Err(why),
            }
        }
        Err(io::Error::new(ErrorKind::TimedOut, "no order came"))
    }

    fn deaf(&mut self, port: u16, seconds: f64) -> io::Result<()> {
        let mut report = Report::default();
        let known = self.lobby.listener(port).filter(|_| (0.0..=protocol::LONGEST_HOLD).contains(&seconds));
        match known.map(|listener| (listener, socket_filter::deafen(listener))) {
            Some((listener, Ok(()))) => {
                framing::tell(&self.control, &Event::Ready)?;
                thread::sleep(Duration::from_secs_f64(seconds));
                socket_filter::release(listener)?;
            }
            Some((_, Err(why))) => report.error = Some(why.to_string()),
            None => report.error = Some(format!("nobody listens at port {port}, or {seconds} s is too long")),
        }
        framing::tell(&self.control, &Event::Done(report))
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
        framing::tell(&self.control, &Event::Ready)?;
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
                    socket_filter::hold(socket)?;
                    framing::tell(control, &Event::Holding)?;
                    let Event::Sent = framing::hear(Until::new(control, transfer::SILENCE, transfer::SILENCE))? else {
                        return Err(io::Error::other("the prober did not send"));
                    };
                    thread::sleep(Duration::from_secs_f64(held));
                    socket_filter::release(socket)?;
                }
                transfer::receive(socket, http, heard, order.bytes * 2, report)?;
                if http {
                    let _ = (&*socket).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                }
            }
            Direction::Down => {
                let content = payload::content(order.application, &order.nonce, order.bytes);
                let head = if http { http::response_head(order.application, content.len()) } else { String::new() };
                let manner = transfer::Manner { pause: Duration::from_secs_f64(order.pause), held: order.hold };
                let mut sent = || if order.hold.is_some() { framing::tell(control, &Event::Sent) } else { Ok(()) };
                transfer::send(socket, &head, &content, &manner, report, &mut sent)?;
            }
        }
        transfer::leave(socket);
        Ok(())
    }

    /// Speaks FTP (RFC 959, RFC 2428) until the file is there.
    fn serve_files(&mut self, order: &Transfer, socket: &Socket, heard: Vec<u8>, report: &mut Report) -> io::Result<()> {
        let mut lines = ftp::Lines::new(socket, heard);
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
