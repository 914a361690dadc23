//! A session of the responder with an authenticated prober.

use crate::{
    capture::{self, PacketCapture},
    clock_offset,
    framing::{self, DeadlineSocket},
    ftp,
    handshake::MESSAGE_TIMEOUT,
    http, payload,
    pending_connections::PendingConnections,
    protocol::{self, ProberHello, ProberOrder, ResponderEvent, TransferOrder, Welcome},
    socket_filter, token, transfer,
    transfer_record::{Application, TransferDirection, TransferReport},
};
use socket2::Socket;
use std::{
    io::{self, ErrorKind, Write as _},
    net::{Shutdown, SocketAddr, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

/// Limits of a session: its duration, its number of orders, the time between two orders.
const SESSION: Duration = Duration::from_secs(30 * 60);
const ORDERS: u32 = 300;
const IDLE: Duration = Duration::from_secs(90);
/// Upper bound on the commands of one FTP control connection.
const LINES: usize = 32;
pub(crate) const TICK: Duration = Duration::from_millis(1);

pub(crate) struct ResponderSession<'a> {
    pub(crate) control: TcpStream,
    pub(crate) pending: &'a mut PendingConnections,
    pub(crate) ports: &'a [u16],
    pub(crate) ftp_data: u16,
    /// Data connections of the orders so far.
    pub(crate) connections: Vec<[SocketAddr; 2]>,
    pub(crate) over: &'a AtomicBool,
}

impl ResponderSession<'_> {
    pub(crate) fn run(mut self, token: &str, nonce: &str, hello: &ProberHello, datagrams: &UdpSocket) -> io::Result<u32> {
        self.control.set_nonblocking(false)?;
        self.control.set_write_timeout(Some(transfer::SILENCE))?;
        let key = token::random_hex()?;
        let refused = if hello.version != protocol::VERSION {
            Some(format!(
                "the prober has protocol version {}, the responder {} (use the same release of tandem at both ends)",
                hello.version,
                protocol::VERSION
            ))
        } else if !token::verify_proof(token, nonce, &hello.proof) {
            Some("the token is wrong (give --token or TANDEM_TOKEN)".to_string())
        } else {
            None
        };
        let traced: Vec<u16> = self.ports.iter().copied().chain([self.ftp_data]).collect();
        let running_capture = if refused.is_none() { Some(PacketCapture::start(&traced)) } else { None };
        let no_trace = running_capture
            .as_ref()
            .and_then(|running_capture| running_capture.as_ref().err())
            .map(|why| format!("could not open a packet socket: {why} (needs root or CAP_NET_RAW)"));
        let welcome = Welcome { refused: refused.clone(), ports: self.ports.to_vec(), ftp_data: self.ftp_data, no_trace, key: key.clone() };
        framing::write_message(&self.control, &welcome)?;
        if let Some(why) = refused {
            return Err(io::Error::new(ErrorKind::PermissionDenied, why));
        }
        let left = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| clock_offset::answer_datagrams(datagrams, &key, &left));
            let done = self.execute_orders(running_capture.and_then(Result::ok));
            left.store(true, Relaxed);
            done
        })
    }

    /// Executes orders until the prober closes. Returns their number.
    fn execute_orders(&mut self, mut running_capture: Option<PacketCapture>) -> io::Result<u32> {
        let begun = Instant::now();
        for count in 0..ORDERS {
            let Some(order) = self.next_order()? else { return Ok(count) };
            if begun.elapsed() > SESSION {
                return Err(io::Error::new(ErrorKind::TimedOut, "the session exceeded its time limit"));
            }
            match order {
                ProberOrder::Transfer(transfer) => {
                    let mut report = TransferReport::default();
                    if let Err(why) = self.transfer(&transfer, &mut report) {
                        report.error = Some(why.to_string());
                    }
                    self.connections.extend(report.connection);
                    framing::write_message(&self.control, &ResponderEvent::Done(report))?;
                }
                ProberOrder::DropSyns { port, seconds } => self.block_syns(port, seconds)?,
                ProberOrder::Trace => {
                    let packets = running_capture.take().map(PacketCapture::stop).unwrap_or_default();
                    framing::write_frame(&self.control, &capture::to_pcap(&capture::packets_of(&packets, &self.connections)))?;
                }
            }
        }
        Err(io::Error::other(format!("the prober sent more than {ORDERS} orders")))
    }

    /// The next order. `None` when the prober has closed.
    fn next_order(&mut self) -> io::Result<Option<ProberOrder>> {
        let begun = Instant::now();
        while begun.elapsed() < IDLE && !self.over.load(Relaxed) {
            self.pending.poll();
            self.control.set_nonblocking(true)?;
            let waits = self.control.peek(&mut [0]);
            self.control.set_nonblocking(false)?;
            match waits {
                Ok(0) => return Ok(None),
                Ok(_) => return framing::read_message(DeadlineSocket::new(&self.control, MESSAGE_TIMEOUT, MESSAGE_TIMEOUT)).map(Some),
                Err(why) if why.kind() == ErrorKind::WouldBlock => thread::sleep(TICK),
                Err(why) => return Err(why),
            }
        }
        Err(io::Error::new(ErrorKind::TimedOut, "no order arrived in time"))
    }

    fn block_syns(&mut self, port: u16, seconds: f64) -> io::Result<()> {
        let mut report = TransferReport::default();
        let known = self.pending.listener(port).filter(|_| (0.0..=protocol::MAX_HOLD_S).contains(&seconds));
        match known.map(|listener| (listener, socket_filter::drop_all(listener))) {
            Some((listener, Ok(()))) => {
                framing::write_message(&self.control, &ResponderEvent::Ready)?;
                thread::sleep(Duration::from_secs_f64(seconds));
                socket_filter::detach(listener)?;
            }
            Some((_, Err(why))) => report.error = Some(why.to_string()),
            None => {
                let why = "there is no listener, or the time is too long";
                report.error = Some(format!("cannot drop SYNs at port {port} for {seconds} s: {why}"));
            }
        }
        framing::write_message(&self.control, &ResponderEvent::Done(report))
    }

    /// Polls the pending connections until `find` returns something.
    fn wait_for<T>(&mut self, seconds: f64, mut find: impl FnMut(&mut PendingConnections) -> Option<T>) -> io::Result<T> {
        let (begun, seconds) = (Instant::now(), seconds.clamp(0.0, 2.0 * protocol::MAX_HOLD_S));
        while begun.elapsed().as_secs_f64() < seconds && !self.over.load(Relaxed) {
            self.pending.poll();
            if let Some(found) = find(self.pending) {
                return Ok(found);
            }
            thread::sleep(TICK);
        }
        Err(io::Error::new(ErrorKind::TimedOut, "the data connection did not arrive"))
    }

    fn transfer(&mut self, order: &TransferOrder, report: &mut TransferReport) -> io::Result<()> {
        if !order.is_allowed() || !self.ports.contains(&order.port) {
            return Err(io::Error::new(ErrorKind::InvalidInput, "the order exceeds the responder's limits"));
        }
        framing::write_message(&self.control, &ResponderEvent::Ready)?;
        let (socket, heard) = self.wait_for(order.patience, |pending| pending.claim(order.application, order.port, &order.nonce))?;
        if order.application == Application::Ftp {
            return self.serve_ftp(order, &socket, heard, report);
        }
        self.carry_data(order, &socket, heard, report)
    }

    /// Sends or receives the payload.
    fn carry_data(&mut self, order: &TransferOrder, socket: &Socket, heard: Vec<u8>, report: &mut TransferReport) -> io::Result<()> {
        let http = matches!(order.application, Application::HttpData | Application::HttpImage);
        transfer::record_connection(report, socket);
        let control = &self.control;
        match order.direction {
            TransferDirection::Up => {
                if let Some(held) = order.hold {
                    socket_filter::drop_data(socket)?;
                    framing::write_message(control, &ResponderEvent::Holding)?;
                    let ResponderEvent::Sent = framing::read_message(DeadlineSocket::new(control, transfer::SILENCE, transfer::SILENCE))?
                    else {
                        return Err(io::Error::other("the prober did not report that it sent data"));
                    };
                    thread::sleep(Duration::from_secs_f64(held));
                    socket_filter::detach(socket)?;
                }
                transfer::receive(socket, http, heard, order.bytes * 2, report)?;
                if http {
                    let _ = (&*socket).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                }
            }
            TransferDirection::Down => {
                let content = payload::generate(order.application, &order.nonce, order.bytes);
                let head = if http { http::response_head(order.application, content.len()) } else { String::new() };
                let manner = transfer::SendOptions { pause: Duration::from_secs_f64(order.pause), held: order.hold };
                let mut sent = || if order.hold.is_some() { framing::write_message(control, &ResponderEvent::Sent) } else { Ok(()) };
                transfer::send(socket, &head, &content, &manner, report, &mut sent)?;
            }
        }
        transfer::close(socket);
        Ok(())
    }

    /// Serves FTP (RFC 959, RFC 2428) until the file is transferred.
    fn serve_ftp(&mut self, order: &TransferOrder, socket: &Socket, heard: Vec<u8>, report: &mut TransferReport) -> io::Result<()> {
        let mut lines = ftp::FtpControl::new(socket, heard);
        self.pending.drop_port(self.ftp_data);
        lines.send("331 password required")?;
        let mut carried = Ok(());
        for _ in 0..LINES {
            let line = lines.read_line()?;
            match line.split(' ').next().unwrap_or("") {
                "PASS" => lines.send("230 welcome")?,
                "TYPE" => lines.send("200 ok")?,
                "EPSV" => lines.send(&format!("229 entering extended passive mode (|||{}|)", self.ftp_data))?,
                "RETR" | "STOR" => {
                    let port = self.ftp_data;
                    let data = self.wait_for(order.patience, |pending| pending.take_any(port))?;
                    data.set_nonblocking(false)?;
                    lines.send("150 opening data connection")?;
                    carried = self.carry_data(order, &data, Vec::new(), report);
                    drop(data);
                    lines.send(if carried.is_ok() { "226 transfer complete" } else { "426 transfer aborted" })?;
                }
                "QUIT" => {
                    lines.send("221 goodbye")?;
                    transfer::close(socket);
                    return carried;
                }
                _ => lines.send("502 command not implemented")?,
            }
        }
        Err(io::Error::other(format!("the prober sent more than {LINES} FTP commands")))
    }
}

impl Drop for ResponderSession<'_> {
    fn drop(&mut self) {
        let _ = self.control.shutdown(Shutdown::Both);
    }
}
