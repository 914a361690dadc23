//! Captures the process's own traffic on some TCP ports, headers only. Uses a packet socket with a
//! filter in the kernel, which needs CAP_NET_RAW and ends with the process.

use crate::{clock::now, port_filter::port_filter, sys};
use detect::{
    TraceError, packet,
    trace::{self, CapturedFrame},
};
use pcap_file::{
    DataLink, Endianness, TsResolution,
    pcap::{PcapHeader, PcapPacket, PcapWriter},
};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    borrow::Cow,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

/// Bytes of a packet that are read: the IP and TCP headers with all options. Only the headers are
/// kept.
const LOOKED_AT: usize = 128;
/// Upper bound on the packets kept.
const MOST: usize = 200_000;
/// Receive buffer of the packet socket, bytes.
const ROOM: usize = 32 << 20;

/// A captured packet, from its IP header on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CapturedPacket {
    /// Time of capture, ns since 1970.
    pub(crate) at: i64,
    pub(crate) bytes: Vec<u8>,
    /// Length on the wire, bytes.
    pub(crate) whole: usize,
}

/// A running capture.
#[derive(Debug)]
pub(crate) struct PacketCapture {
    over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<Vec<CapturedPacket>>>,
}

impl Drop for PacketCapture {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        self.thread.take().map(thread::JoinHandle::join);
    }
}

impl PacketCapture {
    /// Starts to capture packets from or to one of these TCP ports.
    pub(crate) fn start(ports: &[u16]) -> io::Result<Self> {
        let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(i32::from((libc::ETH_P_ALL as u16).to_be()))))?;
        socket.attach_filter(&port_filter(ports)?)?;
        sys::enable_timestamps(&socket)?;
        sys::set_receive_buffer(&socket, ROOM);
        // Discard packets that arrived before the filter was attached.
        while sys::receive(&socket, &mut [0; 8], false).is_ok() {}
        let over = Arc::new(AtomicBool::new(false));
        let ends = over.clone();
        let thread = thread::Builder::new().name("capture".into()).spawn(move || receive_packets(&socket, &ends))?;
        Ok(PacketCapture { over, thread: Some(thread) })
    }

    /// Stops the capture and returns the packets.
    pub(crate) fn stop(mut self) -> Vec<CapturedPacket> {
        // Wait for the last packets to pass the network stack.
        thread::sleep(Duration::from_millis(20));
        self.over.store(true, Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

fn receive_packets(socket: &Socket, over: &AtomicBool) -> Vec<CapturedPacket> {
    let (mut packets, mut buffer) = (Vec::new(), [0; LOOKED_AT]);
    loop {
        match sys::receive(socket, &mut buffer, false) {
            Ok(got) => {
                // A packet between two sockets of this machine is seen twice.
                if packets.len() < MOST {
                    packets.push(CapturedPacket {
                        at: got.at.unwrap_or_else(now),
                        bytes: headers_only(&buffer[..got.length]).to_vec(),
                        whole: got.whole,
                    });
                }
            }
            Err(_) if over.load(Relaxed) => return packets,
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// The IP and TCP headers of a packet.
fn headers_only(packet: &[u8]) -> &[u8] {
    let Some(first) = packet.first() else { return packet };
    let ip = if first >> 4 == 4 { usize::from(first & 15) * 4 } else { 40 };
    let tcp = packet.get(ip + 12).map_or(0, |offset| usize::from(offset >> 4) * 4);
    &packet[..(ip + tcp).min(packet.len())]
}

/// The packets of the given connections.
pub(crate) fn packets_of(packets: &[CapturedPacket], connections: &[[SocketAddr; 2]]) -> Vec<CapturedPacket> {
    let of = |packet: &&CapturedPacket| {
        let frame = CapturedFrame::ip(packet.at, &packet.bytes, packet.whole);
        let packet::Dissected::Tcp(segment) = packet::dissect(&frame) else { return false };
        let ends = [segment.from, segment.to];
        connections.iter().any(|known| *known == ends || *known == [ends[1], ends[0]])
    };
    packets.iter().filter(of).cloned().collect()
}

/// Parses a capture file.
pub(crate) fn parse_file(file: &[u8]) -> Result<Vec<CapturedPacket>, TraceError> {
    let mut found = Vec::new();
    trace::frames_of(file, "the responder's trace".as_ref(), |frame| {
        found.push(CapturedPacket { at: frame.at, bytes: frame.bytes.to_vec(), whole: frame.length });
    })?;
    Ok(found)
}

/// Writes packets as a capture file (pcap, ns, raw IP).
pub(crate) fn to_pcap(packets: &[CapturedPacket]) -> Vec<u8> {
    let header = PcapHeader {
        snaplen: 1 << 20,
        datalink: DataLink::RAW,
        ts_resolution: TsResolution::NanoSecond,
        endianness: Endianness::Little,
        ..PcapHeader::default()
    };
    let mut writer = PcapWriter::with_header(Vec::new(), header).expect("a vector takes all");
    for packet in packets {
        let record = PcapPacket {
            timestamp: Duration::from_nanos(packet.at.max(0) as u64),
            orig_len: packet.whole as u32,
            data: Cow::Borrowed(&packet.bytes),
        };
        writer.write_packet(&record).expect("a vector takes all");
    }
    writer.into_writer()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::Write as _,
        net::{TcpListener, TcpStream},
    };

    #[test]
    fn dropping_a_capture_ends_its_thread() {
        let running = match PacketCapture::start(&[1]) {
            Ok(running) => running,
            Err(why) => return eprintln!("SKIP dropping_a_capture_ends_its_thread: {why}"),
        };
        let over = running.over.clone();
        drop(running);
        // The thread held the other reference: it has ended and closed its socket.
        assert!(over.load(Relaxed));
        assert_eq!(Arc::strong_count(&over), 1);
    }

    #[test]
    fn only_headers_of_a_connection_are_kept() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let running = match PacketCapture::start(&[1, to.port()]) {
            Ok(running) => running,
            Err(why) => return eprintln!("SKIP only_headers_of_a_connection_are_kept: {why}"),
        };
        let mut stream = TcpStream::connect(to).unwrap();
        stream.write_all(&[7; 500]).unwrap();
        let other = TcpStream::connect(to).unwrap();
        let seen = running.stop();
        let known = [stream.local_addr().unwrap(), to];
        let own = packets_of(&seen, &[known]);
        assert!(own.len() >= 4 && own.len() < seen.len(), "{} of {}", own.len(), seen.len());
        assert!(own.iter().all(|packet| packet.bytes.len() <= 80 && !packet.bytes.ends_with(&[7; 20])), "{own:?}");
        assert!(own.iter().any(|packet| packet.whole > 500));
        assert_eq!(parse_file(&to_pcap(&own)).unwrap(), own);
        drop(other);
    }
}
