//! What is carried, and how either end sends and receives it: the same for prober and responder.

use crate::{
    clock::now,
    protocol::{Application, Report, Until},
    sys,
};
use jpeg_encoder::{ColorType, Encoder};
use socket2::{SockFilter, Socket};
use std::{
    io::{self, Read, Write},
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};
use xxhash_rust::xxh3::Xxh3;

/// The longest head of HTTP, and the longest line of FTP, bytes.
pub(crate) const HEAD: usize = 8 << 10;
pub(crate) const LINE: usize = 512;
/// An end that hears nothing for so long has lost the other; and a transfer takes no longer than that in all, nor a conversation about one.
pub(crate) const SILENCE: Duration = Duration::from_secs(25);
pub(crate) const LONGEST: Duration = Duration::from_secs(10 * 60);
/// After a hold the kernel tries again as late as twice the time that it has tried so far.
const AFTER_HOLD: f64 = 2.5;

/// Bytes as this application carries them, `length` of them or about that; other ones for each `nonce`.
pub(crate) fn content(application: Application, nonce: &str, length: u64) -> Vec<u8> {
    let mut state = Xxh3::new();
    state.update(nonce.as_bytes());
    let mut number = state.digest();
    let mut next = move || {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (number >> 33) as u32
    };
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    match application {
        Application::Tcp | Application::Ftp => (0..length).map(|_| next() as u8).collect(),
        Application::HttpData => {
            const WORDS: [&str; 8] = ["a", "connection", "is", "split", "or", "whole", "end", "to"];
            let mut text = String::from("<!DOCTYPE html>\n<title>probe</title>\n<pre>\n");
            while text.len() + 8 < length {
                text += WORDS[next() as usize % WORDS.len()];
                text.push(if next() % 12 == 0 { '\n' } else { ' ' });
            }
            (text + "\n</pre>\n").into_bytes()
        }
        Application::HttpImage => image(length, next),
    }
}

/// A JPEG of about so many bytes: hills with noise on them, of high quality, so that there is much to be saved.
fn image(length: usize, mut next: impl FnMut() -> u32) -> Vec<u8> {
    // Such a picture takes about half a byte a pixel.
    let side = ((2.0 * length as f64).sqrt() as u16).clamp(16, 3000);
    let shade = |x: u16, y: u16, noise: u32| {
        (f64::from(x) / 17.0).sin() * 50.0 + (f64::from(y) / 23.0).cos() * 50.0 + 128.0 + f64::from(noise % 31) - 15.0
    };
    let mut pixels = Vec::with_capacity(usize::from(side) * usize::from(side));
    for y in 0..side {
        pixels.extend((0..side).map(|x| shade(x, y, next()).clamp(0.0, 255.0) as u8));
    }
    let mut bytes = Vec::new();
    Encoder::new(&mut bytes, 95)
        .encode(&pixels, side, side, ColorType::Luma)
        .expect("the picture has as many pixels as it should, and a vector takes all");
    bytes
}

/// What comes before a body by HTTP.
pub(crate) fn request_head(application: Application, nonce: &str, host: &str, body: Option<usize>) -> String {
    let (kind, name) = kind(application);
    let (verb, rest) = match body {
        None => ("GET", "Accept: */*\r\n".to_string()),
        Some(length) => ("POST", format!("Content-Type: {kind}\r\nContent-Length: {length}\r\n")),
    };
    format!("{verb} /tandem/{nonce}.{name} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: tandem-detect\r\n{rest}Connection: close\r\n\r\n")
}

/// What comes before an answer's body.
pub(crate) fn response_head(application: Application, body: usize) -> String {
    let kind = kind(application).0;
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {body}\r\nCache-Control: public, max-age=600\r\nConnection: close\r\n\r\n"
    )
}

fn kind(application: Application) -> (&'static str, &'static str) {
    if application == Application::HttpImage { ("image/jpeg", "jpg") } else { ("text/html", "html") }
}

/// What a report's error begins with where a filter could not be set.
pub(crate) const NO_FILTER: &str = "could not set a filter on a socket of its own";

/// Some kernels allow none to who is not root, or have no room left for them.
fn no_filter(why: io::Error) -> io::Error {
    io::Error::new(why.kind(), format!("{NO_FILTER}: {why} (root may; or CAP_BPF)"))
}

/// Keeps data that come from now on from the socket's TCP: what carries some is dropped before it, so that nothing is acknowledged until [`release`]. It
/// goes with the socket.
pub(crate) fn hold(socket: &Socket) -> io::Result<()> {
    let step = |code: u32, yes: u8, no: u8, value: u32| SockFilter::new(code as u16, yes, no, value);
    let filter = [
        // A TCP socket's filter sees segments from TCP's header on: is one longer than its header?
        step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, 12),
        step(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, 0xf0),
        step(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 0, 0, 2),
        step(libc::BPF_MISC | libc::BPF_TAX, 0, 0, 0),
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_LEN, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_X, 0, 1, 0),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
    ];
    socket.attach_filter(&filter).map_err(no_filter)
}

/// Keeps everything from a socket's TCP: a listener lets no SYN in.
pub(crate) fn deafen(socket: &Socket) -> io::Result<()> {
    socket.attach_filter(&[SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0)]).map_err(no_filter)
}

/// Lets them come again.
pub(crate) fn release(socket: &Socket) -> io::Result<()> {
    socket.detach_filter()
}

/// What a connection's TCP has agreed to.
pub(crate) fn note_connection(report: &mut Report, socket: &Socket) {
    let address = |of: io::Result<socket2::SockAddr>| of.ok().and_then(|address| address.as_socket()).map(unmapped);
    report.connection = address(socket.local_addr()).zip(address(socket.peer_addr())).map(|(own, other)| [own, other]);
    if let Ok(info) = sys::tcp_info(socket) {
        report.scales = Some((info.own_scale, info.their_scale));
        report.timestamps = Some(info.options & 1 != 0);
    }
}

/// An IPv4 address as such, if a socket of IPv6 has it.
pub(crate) fn unmapped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// How a body is sent.
pub(crate) struct Manner {
    /// Between its halves.
    pub(crate) pause: Duration,
    /// The other end holds its ACKs for so long.
    pub(crate) held: Option<f64>,
}

/// Sends a head and a body; says by `sent` that the first byte is on its way.
pub(crate) fn send(
    socket: &Socket,
    head: &str,
    body: &[u8],
    manner: &Manner,
    report: &mut Report,
    sent: &mut dyn FnMut() -> io::Result<()>,
) -> io::Result<()> {
    let mut to = Until::new(socket, LONGEST, SILENCE);
    let before = acknowledgeable(socket)?;
    let half = body.len() / 2;
    report.head = head.into();
    report.first = Some(now());
    let begun = Instant::now();
    to.write_all(&[head.as_bytes(), &body[..half]].concat())?;
    sent()?;
    if let Some(held) = manner.held {
        let patience = Duration::from_secs_f64(held * AFTER_HOLD + 3.0);
        while begun.elapsed() < patience && report.acknowledged_s.is_none() {
            if sys::tcp_info(socket)?.bytes_acked > before {
                report.acknowledged_s = Some(begun.elapsed().as_secs_f64());
            }
            thread::sleep(Duration::from_micros(500));
        }
    }
    thread::sleep(manner.pause);
    report.resumed = Some(now());
    to.write_all(&body[half..])?;
    report.last = Some(now());
    report.bytes = body.len() as u64;
    report.checksum = checksum(body);
    report.whole = true;
    Ok(())
}

/// What TCP_INFO counts as acknowledged when all that was sent so far is.
fn acknowledgeable(socket: &Socket) -> io::Result<u64> {
    let begun = Instant::now();
    // What was said before is acknowledged within a round trip; then it is this.
    let mut before = sys::tcp_info(socket)?;
    while before.unacked > 0 && begun.elapsed() < Duration::from_secs(3) {
        thread::sleep(Duration::from_micros(500));
        before = sys::tcp_info(socket)?;
    }
    if before.unacked > 0 {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "what was sent before was not acknowledged"));
    }
    Ok(before.bytes_acked)
}

fn checksum(body: &[u8]) -> u64 {
    let mut state = Xxh3::new();
    state.update(body);
    state.digest()
}

/// Receives a head (by HTTP) and a body, to the end that the head says or the connection has. `begun` is what was read already.
pub(crate) fn receive(socket: &Socket, http: bool, begun: Vec<u8>, most: u64, report: &mut Report) -> io::Result<()> {
    let mut from = Until::new(socket, LONGEST, SILENCE);
    let (mut bytes, mut buffer) = (begun, vec![0; 64 << 10]);
    let mut body_at = if http { end_of_head(&bytes) } else { Some(0) };
    let mut length = body_at.and_then(|at| length_of(&bytes[..at]));
    loop {
        if let Some(at) = body_at
            && length.is_some_and(|length| bytes.len() - at >= length)
        {
            break;
        }
        let count = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(why) => {
                report.error = Some(why.to_string());
                break;
            }
        };
        report.last = Some(now());
        bytes.extend(&buffer[..count]);
        if body_at.is_none() {
            body_at = end_of_head(&bytes);
            length = body_at.and_then(|at| length_of(&bytes[..at]));
            if body_at.is_none() && bytes.len() > HEAD {
                report.error = Some(format!("a head of more than {HEAD} bytes"));
                break;
            }
        }
        if body_at.is_some_and(|at| bytes.len() > at) {
            report.first = report.first.or(report.last);
        }
        if bytes.len() as u64 > most + HEAD as u64 {
            report.error = Some(format!("more than {most} bytes"));
            break;
        }
    }
    let at = body_at.unwrap_or(bytes.len());
    report.head = String::from_utf8_lossy(&bytes[..if http { at } else { 0 }]).into_owned();
    let body = if chunked(&report.head) { unchunk(&bytes[at..]) } else { bytes[at..].to_vec() };
    report.bytes = body.len() as u64;
    report.checksum = checksum(&body);
    report.whole = report.error.is_none() && length.is_none_or(|length| body.len() == length);
    Ok(())
}

/// Says that nothing more comes, and waits until the other end has left, for a while: who closes with something unread resets the connection.
pub(crate) fn leave(socket: &Socket) {
    let _ = socket.shutdown(std::net::Shutdown::Write);
    let _ = socket.set_read_timeout(Some(Duration::from_millis(500)));
    let begun = Instant::now();
    let mut buffer = [0; 4096];
    while begun.elapsed() < Duration::from_secs(5) && matches!((&*socket).read(&mut buffer), Ok(1..)) {}
}

/// Lines of FTP's control connection.
pub(crate) struct Lines<'a> {
    socket: Until<'a>,
    heard: Vec<u8>,
}

impl<'a> Lines<'a> {
    pub(crate) fn new(socket: &'a Socket, heard: Vec<u8>) -> Self {
        Lines { socket: Until::new(socket, LONGEST, SILENCE), heard }
    }

    pub(crate) fn say(&mut self, line: &str) -> io::Result<()> {
        self.socket.write_all(format!("{line}\r\n").as_bytes())
    }

    pub(crate) fn next(&mut self) -> io::Result<String> {
        let mut buffer = [0; LINE];
        loop {
            if let Some(line) = first_line(&mut self.heard)? {
                return Ok(line);
            }
            match self.socket.read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.heard.extend(&buffer[..count]),
            }
        }
    }

    /// Says a line, and hears an answer that begins with this number.
    pub(crate) fn ask(&mut self, line: &str, number: &str) -> io::Result<String> {
        self.say(line)?;
        self.expect(number)
    }

    pub(crate) fn expect(&mut self, number: &str) -> io::Result<String> {
        let answer = self.next()?;
        if answer.starts_with(number) { Ok(answer) } else { Err(io::Error::other(format!("{number} was to be answered, not {answer:?}"))) }
    }
}

/// Takes the first line of FTP out of what was heard, once it is over.
pub(super) fn first_line(heard: &mut Vec<u8>) -> io::Result<Option<String>> {
    let end = heard.windows(2).position(|two| two == b"\r\n");
    if end.unwrap_or(heard.len()) > LINE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a line of FTP longer than {LINE} bytes")));
    }
    Ok(end.map(|end| {
        let line = String::from_utf8_lossy(&heard[..end]).into_owned();
        heard.drain(..end + 2);
        line
    }))
}

/// Where the head ends, and the body begins.
pub(crate) fn end_of_head(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.split_once(':').filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()))
}

pub(super) fn length_of(head: &[u8]) -> Option<usize> {
    field(&String::from_utf8_lossy(head), "content-length")?.parse().ok()
}

pub(super) fn chunked(head: &str) -> bool {
    field(head, "transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked"))
}

/// What is in chunks (RFC 9112 §7.1), as far as they make sense.
pub(super) fn unchunk(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let line = String::from_utf8_lossy(&rest[..end]).into_owned();
        let Ok(length) = usize::from_str_radix(line.split(';').next().unwrap_or("").trim(), 16) else { break };
        let Some(chunk) = rest.get(end + 2..).and_then(|behind| behind.get(..length)).filter(|_| length > 0) else { break };
        body.extend(chunk);
        rest = rest.get(end + 2 + length + 2..).unwrap_or_default();
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn pair() -> (Socket, Socket) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one.into(), listener.accept().unwrap().0.into())
    }

    #[test]
    fn what_is_carried_is_what_it_is_said_to_be() {
        for application in [Application::Tcp, Application::HttpData, Application::HttpImage, Application::Ftp] {
            let (one, again, other) =
                (content(application, "a", 50_000), content(application, "a", 50_000), content(application, "b", 50_000));
            assert!(one == again && one != other, "{application}");
            assert!((25_000..100_000).contains(&one.len()), "{application}: {}", one.len());
        }
        let image = content(Application::HttpImage, "a", 50_000);
        assert!(image.starts_with(&[0xff, 0xd8, 0xff]) && image.ends_with(&[0xff, 0xd9]));
        assert!(content(Application::HttpData, "a", 5000).is_ascii());
    }

    #[test]
    fn a_receiver_that_holds_is_not_heard_until_it_releases() {
        let (sender, receiver) = pair();
        hold(&receiver).unwrap();
        let held = 0.4;
        let (mut sending, mut receiving) = (Report::default(), Report::default());
        let body = content(Application::Tcp, "x", 20_000);
        thread::scope(|scope| {
            let manner = Manner { pause: Duration::ZERO, held: Some(held) };
            let (sent, heard) = std::sync::mpsc::channel();
            let (receiver, receiving) = (&receiver, &mut receiving);
            scope.spawn(move || {
                heard.recv().unwrap();
                thread::sleep(Duration::from_secs_f64(held));
                release(receiver).unwrap();
                receive(receiver, false, Vec::new(), 1 << 20, receiving).unwrap();
            });
            send(&sender, "", &body, &manner, &mut sending, &mut || sent.send(()).map_err(io::Error::other)).unwrap();
            sender.shutdown(std::net::Shutdown::Write).unwrap();
        });
        assert!(sending.acknowledged_s.unwrap() >= held, "{sending:?}");
        assert_eq!((receiving.bytes, receiving.checksum, receiving.whole), (20_000, sending.checksum, true));
    }

    #[test]
    fn a_body_by_http_is_found_however_it_comes() {
        for head in ["HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n"] {
            let (sender, receiver) = pair();
            (&sender).write_all(&[head.as_bytes(), b"hello world"].concat()).unwrap();
            drop(sender);
            let mut report = Report::default();
            receive(&receiver, true, Vec::new(), 1000, &mut report).unwrap();
            assert_eq!((report.bytes, report.checksum, report.whole, report.head.as_str()), (11, checksum(b"hello world"), true, head));
        }
        assert_eq!(unchunk(b"5;x=y\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"), b"hello world");
        for bad in [&b""[..], b"zz\r\n", b"5\r\nhel", b"ffffffffffffffff\r\nx", b"\r\n"] {
            assert!(unchunk(bad).len() < 6, "{bad:?}");
        }
    }
}
