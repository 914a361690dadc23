//! What passes this machine on some TCP ports, headers only: its own trace, taken by a packet socket with a filter in the kernel. It needs CAP_NET_RAW; it
//! ends with the process, whatever becomes of that.

use super::{now, sys};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

/// Bytes of a packet that are kept: IP's and TCP's headers with all their options, and a stretch of data too short to be of use to anybody.
const KEPT: usize = 128;
/// Packets that are kept.
const MOST: usize = 200_000;
/// Room for those that wait.
const ROOM: usize = 32 << 20;

/// A packet, from its IP header on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packet {
    /// ns since 1970.
    pub(crate) at: i64,
    pub(crate) bytes: Vec<u8>,
    /// Bytes on the wire.
    pub(crate) whole: usize,
}

/// A trace that is being taken.
#[derive(Debug)]
pub(crate) struct Tap {
    over: Arc<AtomicBool>,
    thread: thread::JoinHandle<Vec<Packet>>,
}

impl Tap {
    /// Begins a trace of what comes from or goes to one of these TCP ports.
    pub(crate) fn begin(ports: &[u16]) -> io::Result<Self> {
        let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(i32::from((libc::ETH_P_ALL as u16).to_be()))))?;
        socket.attach_filter(&filter(ports)?)?;
        sys::stamp_arrivals(&socket)?;
        sys::make_room(&socket, ROOM);
        // Whatever came before the filter was there.
        while sys::receive(&socket, &mut [0; 8], false).is_ok() {}
        let over = Arc::new(AtomicBool::new(false));
        let ends = over.clone();
        let thread = thread::Builder::new().name("tap".into()).spawn(move || listen(&socket, &ends))?;
        Ok(Tap { over, thread })
    }

    /// Ends it.
    pub(crate) fn end(self) -> Vec<Packet> {
        // What has been sent last is on its way through the kernel.
        thread::sleep(Duration::from_millis(20));
        self.over.store(true, Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

fn listen(socket: &Socket, over: &AtomicBool) -> Vec<Packet> {
    let (mut packets, mut buffer) = (Vec::new(), [0; KEPT]);
    loop {
        match sys::receive(socket, &mut buffer, false) {
            Ok(got) => {
                // Of what a machine sends itself, both ways are seen.
                if packets.len() < MOST {
                    packets.push(Packet { at: got.at.unwrap_or_else(now), bytes: buffer[..got.length].to_vec(), whole: got.whole });
                }
            }
            Err(_) if over.load(Relaxed) => return packets,
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// A filter (classic BPF) that keeps TCP packets from or to one of these ports. What comes is from the IP header on.
fn filter(ports: &[u16]) -> io::Result<Vec<SockFilter>> {
    const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
    const LOAD_HALF_BEHIND: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_IND) as u16;
    const HEADER_LENGTH: u16 = (libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH) as u16;
    const SET_X: u16 = (libc::BPF_LDX | libc::BPF_IMM) as u16;
    const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
    const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let many = u8::try_from(ports.len()).ok().filter(|many| (1..=100).contains(many));
    let many = many.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("{} ports to be traced", ports.len())))?;
    let step = |code: u16, yes: u8, no: u8, value: u32| SockFilter::new(code, yes, no, value);
    let mut program = vec![
        step(LOAD_BYTE, 0, 0, 0),
        step(AND, 0, 0, 0xf0),
        step(IF_EQUAL, 0, 4, 0x40),
        // X is where TCP begins. IPv4: its header says.
        step(LOAD_BYTE, 0, 0, 9),
        step(HEADER_LENGTH, 0, 0, 0),
        step(IF_EQUAL, 6, 0, 6),
        step(RETURN, 0, 0, 0),
        step(IF_EQUAL, 0, 2, 0x60),
        // IPv6, without extensions: forty bytes.
        step(LOAD_BYTE, 0, 0, 6),
        step(IF_EQUAL, 1, 0, 6),
        step(RETURN, 0, 0, 0),
        step(SET_X, 0, 0, 40),
    ];
    for (round, at) in [0u32, 2].into_iter().enumerate() {
        program.push(step(LOAD_HALF_BEHIND, 0, 0, at));
        for (index, port) in ports.iter().enumerate() {
            // To the end: what is left of this round, the other round, and the return that keeps nothing.
            let left = many - 1 - index as u8;
            let behind = left + if round == 0 { many + 1 } else { 0 } + 1;
            program.push(step(IF_EQUAL, behind, 0, u32::from(*port)));
        }
    }
    program.push(step(RETURN, 0, 0, 0));
    // All of it: what is read says how long it was.
    program.push(step(RETURN, 0, 0, 1 << 20));
    Ok(program)
}
