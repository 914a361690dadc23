//! Client and server of a run: one HTTP exchange on one connection, whose bulk goes up (PUT) or
//! down (GET). Every middlebox understands it.

use crate::conditions::BulkDirection;
use anyhow::{Context as _, Result, bail, ensure};
use socket2::Socket;
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, SystemTime},
};
use testbed::SplitMix64;

/// How long an endpoint waits for the other.
const PATIENCE: Duration = Duration::from_secs(40);
/// How long the server waits for room to send: longer than any middlebox keeps its window shut.
const SEND_PATIENCE: Duration = Duration::from_secs(900);
/// Maximum length of a head, bytes.
const LONGEST_HEAD: usize = 64 * 1024;

/// The body of a run. Bodies of two seeds have no stretch in common.
pub(crate) fn body(seed: u64, bytes: u64) -> Vec<u8> {
    let mut random = SplitMix64::new(seed ^ 0xb0d1);
    let mut body: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes()).collect();
    body.truncate(bytes as usize);
    body
}

/// A message as received.
pub(crate) struct HttpMessage {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl HttpMessage {
    /// Reads a message. Its body has the length that its head gives; without one it extends to the
    /// end of the stream if `to_the_end`, and is empty otherwise.
    pub(crate) fn read(stream: &mut impl Read, to_the_end: bool) -> Result<HttpMessage> {
        let (mut bytes, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
        let mut more = |bytes: &mut Vec<u8>| -> Result<bool> {
            let count = stream.read(&mut buffer).context("cannot read a message")?;
            bytes.extend(&buffer[..count]);
            Ok(count > 0)
        };
        let end = loop {
            if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            ensure!(bytes.len() < LONGEST_HEAD, "a head longer than {LONGEST_HEAD} bytes");
            ensure!(more(&mut bytes)?, "a connection ended within a head");
        };
        let mut body = bytes.split_off(end);
        let head = String::from_utf8(bytes).context("a head that is no text")?;
        let length = field(&head, "content-length").map(str::parse::<usize>).transpose()?;
        match length {
            Some(length) => {
                while body.len() < length {
                    ensure!(more(&mut body)?, "a connection ended after {} of {length} bytes", body.len());
                }
                body.truncate(length);
            }
            None if to_the_end => while more(&mut body)? {},
            None => {}
        }
        Ok(HttpMessage { head, body })
    }
}

/// Value of a header field.
pub(crate) fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

/// The server of a run; stopped when dropped.
pub(crate) struct HttpServer {
    stop: Arc<AtomicBool>,
    connections: Arc<AtomicUsize>,
    thread: Option<thread::JoinHandle<()>>,
}

impl HttpServer {
    /// Starts a server that answers GET with `body`, and PUT with a short confirmation.
    pub(crate) fn start(host: &lab::Host, at: SocketAddr, body: Vec<u8>) -> Result<Self> {
        HttpServer::start_with(host, at, "", vec![body])
    }

    /// Starts a server with several bodies, which are requested by number. `lines` are added to the
    /// heads of its answers.
    pub(crate) fn start_with(host: &lab::Host, at: SocketAddr, lines: &'static str, bodies: Vec<Vec<u8>>) -> Result<Self> {
        let listener = host.enter(|| TcpListener::bind(at))?.with_context(|| format!("cannot listen on {at}"))?;
        listener.set_nonblocking(true)?;
        let (stop, connections) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (over, served, bodies) = (stop.clone(), connections.clone(), Arc::new(bodies));
        let thread = thread::spawn(move || {
            while !over.load(Relaxed) {
                let Ok((stream, _)) = listener.accept() else {
                    thread::sleep(Duration::from_millis(2));
                    continue;
                };
                served.fetch_add(1, Relaxed);
                let bodies = bodies.clone();
                // The client notices failures of this thread.
                thread::spawn(move || answer(stream, lines, &bodies));
            }
        });
        Ok(HttpServer { stop, connections, thread: Some(thread) })
    }

    /// Number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(mut stream: TcpStream, lines: &str, bodies: &[Vec<u8>]) -> Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(SEND_PATIENCE))?;
    let asked = HttpMessage::read(&mut stream, false)?;
    let number = asked.head.split(' ').nth(1).and_then(|target| target.rsplit('/').next()?.parse().ok());
    let body = bodies.get(number.unwrap_or(0)).context("the client requested a body that does not exist")?;
    let body = if asked.head.starts_with("GET ") { body } else { &b"stored\n"[..] };
    // Caches store nothing without a date.
    let date = httpdate::fmt_http_date(SystemTime::now());
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{lines}Date: {date}\r\nCache-Control: max-age=600\r\nConnection: close\r\n\r\n",
        body.len()
    );
    // Like many servers, send the head together with the first part of the body.
    let first = body.len().min(8192);
    stream.write_all(&[head.as_bytes(), &body[..first]].concat())?;
    stream.write_all(&body[first..])?;
    stream.shutdown(std::net::Shutdown::Write)?;
    // Wait for the client's FIN before closing.
    while stream.read(&mut [0; 4096])? > 0 {}
    Ok(())
}

/// How a client reaches the server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerAccess {
    /// The address to which it connects.
    pub(crate) to: SocketAddr,
    /// The server that it requests.
    pub(crate) server: SocketAddr,
    /// It requests the server by SOCKS 5 first.
    pub(crate) socks: bool,
    /// It sends the absolute URL, as HTTP proxies require.
    pub(crate) whole_url: bool,
}

/// Connects; returns the stream and the client's port.
fn dial(access: ServerAccess) -> Result<(TcpStream, u16)> {
    let mut stream = TcpStream::connect_timeout(&access.to, PATIENCE).with_context(|| format!("cannot connect to {}", access.to))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let port = stream.local_addr()?.port();
    if access.socks {
        socks5_connect(&mut stream, access.server)?;
    }
    Ok((stream, port))
}

/// Head of a request for the body with this number; `lines` are added to it.
fn head(access: ServerAccess, method: &str, number: usize, lines: &str) -> String {
    let host = access.server;
    let target = if access.whole_url { format!("http://{host}/body/{number}") } else { format!("/body/{number}") };
    format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{lines}Connection: close\r\n\r\n")
}

/// Requests the body, reads `bytes` of the answer and resets the connection. Returns the client's
/// port.
pub(crate) fn abort_download(host: &lab::Host, access: ServerAccess, bytes: usize) -> Result<u16> {
    host.enter(|| -> Result<u16> {
        let (mut stream, port) = dial(access)?;
        stream.write_all(head(access, "GET", 0, "").as_bytes())?;
        stream.read_exact(&mut vec![0; bytes])?;
        Socket::from(stream).set_linger(Some(Duration::ZERO))?;
        Ok(port)
    })?
}

/// Requests the body with this number, with `lines` in the request. Returns the answer.
pub(crate) fn fetch(host: &lab::Host, access: ServerAccess, number: usize, lines: &str) -> Result<HttpMessage> {
    host.enter(|| -> Result<HttpMessage> {
        let (mut stream, _) = dial(access)?;
        stream.write_all(head(access, "GET", number, lines).as_bytes())?;
        let answer = HttpMessage::read(&mut stream, true)?;
        ensure!(answer.head.lines().next().is_some_and(|line| line.contains(" 200 ")), "the server answered {:?}", answer.head);
        Ok(answer)
    })?
}

/// Runs one exchange. Returns the client's port.
pub(crate) fn exchange(host: &lab::Host, access: ServerAccess, direction: BulkDirection, body: &[u8]) -> Result<u16> {
    host.enter(|| -> Result<u16> {
        let (mut stream, port) = dial(access)?;
        match direction {
            BulkDirection::Down => stream.write_all(head(access, "GET", 0, "").as_bytes())?,
            BulkDirection::Up => {
                stream.write_all(head(access, "PUT", 0, &format!("Content-Length: {}\r\n", body.len())).as_bytes())?;
                stream.write_all(body)?;
            }
        }
        let answer = HttpMessage::read(&mut stream, true)?;
        ensure!(answer.head.lines().next().is_some_and(|line| line.contains(" 200 ")), "the server answered {:?}", answer.head);
        let expected = if direction == BulkDirection::Down { body } else { b"stored\n" };
        if answer.body != expected {
            bail!("received {} bytes instead of the {} that were sent", answer.body.len(), expected.len());
        }
        // Wait for the server's FIN.
        while stream.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {}
        Ok(port)
    })?
}

/// Requests a connection by SOCKS 5 without a password (RFC 1928).
fn socks5_connect(stream: &mut TcpStream, server: SocketAddr) -> Result<()> {
    let SocketAddr::V4(to) = server else { bail!("the lab's servers have IPv4") };
    let mut answer = [0; 10];
    stream.write_all(&[5, 1, 0])?;
    stream.read_exact(&mut answer[..2])?;
    ensure!(answer[..2] == [5, 0], "SOCKS answered {:?}", &answer[..2]);
    stream.write_all(&[&[5, 1, 0, 1][..], &to.ip().octets(), &to.port().to_be_bytes()].concat())?;
    stream.read_exact(&mut answer)?;
    ensure!(answer[1] == 0, "SOCKS answered {answer:?}");
    Ok(())
}
