//! Sends and receives the payload of a transfer. Prober and responder use the same code.

use crate::{
    clock::now,
    framing::DeadlineSocket,
    http::{HEAD, content_length, decode_chunked, head_end, is_chunked},
    sys,
    transfer_record::TransferReport,
};
use socket2::Socket;
use std::{
    io::{self, Read, Write},
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};
use xxhash_rust::xxh3::Xxh3;

/// Timeout of a single read or write, and of a whole transfer or conversation.
pub(crate) const SILENCE: Duration = Duration::from_secs(25);
pub(crate) const LONGEST: Duration = Duration::from_secs(10 * 60);
/// Retransmission backoff: after a hold, the next retransmission may take twice the time that the
/// hold lasted.
const AFTER_HOLD: f64 = 2.5;

/// Records addresses and negotiated TCP options of a connection.
pub(crate) fn record_connection(report: &mut TransferReport, socket: &Socket) {
    let address = |of: io::Result<socket2::SockAddr>| of.ok().and_then(|address| address.as_socket()).map(canonical_address);
    report.connection = address(socket.local_addr()).zip(address(socket.peer_addr())).map(|(own, other)| [own, other]);
    if let Ok(info) = sys::tcp_info(socket) {
        report.scales = Some((info.own_scale, info.their_scale));
        report.timestamps = Some(info.options & 1 != 0);
    }
}

/// Converts an IPv4-mapped IPv6 address to IPv4.
pub(crate) fn canonical_address(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// How to send a body.
pub(crate) struct SendOptions {
    /// Pause between its halves.
    pub(crate) pause: Duration,
    /// Time for which the peer holds its ACKs, s.
    pub(crate) held: Option<f64>,
}

/// Sends a head and a body. Calls `sent` when the first byte is on its way.
///
/// # Errors
/// The connection fails or times out.
pub(crate) fn send(
    socket: &Socket,
    head: &str,
    body: &[u8],
    manner: &SendOptions,
    report: &mut TransferReport,
    sent: &mut dyn FnMut() -> io::Result<()>,
) -> io::Result<()> {
    let mut to = DeadlineSocket::new(socket, LONGEST, SILENCE);
    let before = acked_so_far(socket)?;
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

/// The value of `tcpi_bytes_acked` once everything sent so far is acknowledged.
fn acked_so_far(socket: &Socket) -> io::Result<u64> {
    let begun = Instant::now();
    // Earlier data are acknowledged within a round trip.
    let mut before = sys::tcp_info(socket)?;
    while before.unacked > 0 && begun.elapsed() < Duration::from_secs(3) {
        thread::sleep(Duration::from_micros(500));
        before = sys::tcp_info(socket)?;
    }
    if before.unacked > 0 {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "earlier data were not acknowledged"));
    }
    Ok(before.bytes_acked)
}

fn checksum(body: &[u8]) -> u64 {
    let mut state = Xxh3::new();
    state.update(body);
    state.digest()
}

/// Receives a head (for HTTP) and a body, up to the length in the head or the end of the
/// connection. `begun` holds the bytes that were already read. Failures of the connection go into
/// the report.
pub(crate) fn receive(socket: &Socket, http: bool, begun: Vec<u8>, most: u64, report: &mut TransferReport) -> io::Result<()> {
    let mut from = DeadlineSocket::new(socket, LONGEST, SILENCE);
    let (mut bytes, mut buffer) = (begun, vec![0; 64 << 10]);
    let mut body_at = if http { head_end(&bytes) } else { Some(0) };
    let mut length = body_at.and_then(|at| content_length(&bytes[..at]));
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
            body_at = head_end(&bytes);
            length = body_at.and_then(|at| content_length(&bytes[..at]));
            if body_at.is_none() && bytes.len() > HEAD {
                report.error = Some(format!("the HTTP head exceeds {HEAD} bytes"));
                break;
            }
        }
        if body_at.is_some_and(|at| bytes.len() > at) {
            report.first = report.first.or(report.last);
        }
        if bytes.len() as u64 > most + HEAD as u64 {
            report.error = Some(format!("the payload exceeds {most} bytes"));
            break;
        }
    }
    let at = body_at.unwrap_or(bytes.len());
    report.head = String::from_utf8_lossy(&bytes[..if http { at } else { 0 }]).into_owned();
    let body = if is_chunked(&report.head) { decode_chunked(&bytes[at..]) } else { bytes[at..].to_vec() };
    report.bytes = body.len() as u64;
    report.checksum = checksum(&body);
    report.whole = report.error.is_none() && length.is_none_or(|length| body.len() == length);
    Ok(())
}

/// Shuts down the sending side and waits briefly for the peer to close. Closing with unread data
/// would reset the connection.
pub(crate) fn close(socket: &Socket) {
    let _ = socket.shutdown(std::net::Shutdown::Write);
    let _ = socket.set_read_timeout(Some(Duration::from_millis(500)));
    let begun = Instant::now();
    let mut buffer = [0; 4096];
    while begun.elapsed() < Duration::from_secs(5) && matches!((&*socket).read(&mut buffer), Ok(1..)) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        payload::generate,
        socket_filter::{detach, drop_data},
        transfer_record::Application,
    };
    use std::net::{TcpListener, TcpStream};

    fn pair() -> (Socket, Socket) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one.into(), listener.accept().unwrap().0.into())
    }

    #[test]
    fn held_data_are_acknowledged_only_after_the_hold() {
        let (sender, receiver) = pair();
        drop_data(&receiver).unwrap();
        let held = 0.4;
        let (mut sending, mut receiving) = (TransferReport::default(), TransferReport::default());
        let body = generate(Application::Tcp, "x", 20_000);
        thread::scope(|scope| {
            let manner = SendOptions { pause: Duration::ZERO, held: Some(held) };
            let (sent, heard) = std::sync::mpsc::channel();
            let (receiver, receiving) = (&receiver, &mut receiving);
            scope.spawn(move || {
                heard.recv().unwrap();
                thread::sleep(Duration::from_secs_f64(held));
                detach(receiver).unwrap();
                receive(receiver, false, Vec::new(), 1 << 20, receiving).unwrap();
            });
            send(&sender, "", &body, &manner, &mut sending, &mut || sent.send(()).map_err(io::Error::other)).unwrap();
            sender.shutdown(std::net::Shutdown::Write).unwrap();
        });
        assert!(sending.acknowledged_s.unwrap() >= held, "{sending:?}");
        assert_eq!((receiving.bytes, receiving.checksum, receiving.whole), (20_000, sending.checksum, true));
    }

    #[test]
    fn http_bodies_are_decoded() {
        for head in ["HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n"] {
            let (sender, receiver) = pair();
            (&sender).write_all(&[head.as_bytes(), b"hello world"].concat()).unwrap();
            drop(sender);
            let mut report = TransferReport::default();
            receive(&receiver, true, Vec::new(), 1000, &mut report).unwrap();
            assert_eq!((report.bytes, report.checksum, report.whole, report.head.as_str()), (11, checksum(b"hello world"), true, head));
        }
        assert_eq!(decode_chunked(b"5;x=y\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"), b"hello world");
        for bad in [&b""[..], b"zz\r\n", b"5\r\nhel", b"ffffffffffffffff\r\nx", b"\r\n"] {
            assert!(decode_chunked(bad).len() < 6, "{bad:?}");
        }
    }
}
