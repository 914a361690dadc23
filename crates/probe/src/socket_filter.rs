//! Filters on single sockets (classic BPF) that keep packets from TCP, so that they are not
//! acknowledged.

use socket2::{SockFilter, Socket};
use std::io;

/// Prefix of a report's error if a filter could not be attached.
pub(crate) const NO_FILTER: &str = "could not attach a filter to its socket";

/// Some kernels reserve filters to root, or have no memory left for them.
fn no_filter(why: io::Error) -> io::Error {
    io::Error::new(why.kind(), format!("{NO_FILTER}: {why} (needs root or CAP_BPF)"))
}

/// Drops incoming data before TCP sees them, so that nothing is acknowledged until [`detach`]. The
/// filter ends with the socket.
pub(crate) fn drop_data(socket: &Socket) -> io::Result<()> {
    let step = |code: u32, yes: u8, no: u8, value: u32| SockFilter::new(code as u16, yes, no, value);
    let filter = [
        // A TCP socket's filter sees segments from the TCP header on. Is the segment longer than
        // its header?
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

/// Drops every packet. A listener then ignores SYNs.
pub(crate) fn drop_all(socket: &Socket) -> io::Result<()> {
    socket.attach_filter(&[SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0)]).map_err(no_filter)
}

/// Lets packets pass again.
pub(crate) fn detach(socket: &Socket) -> io::Result<()> {
    socket.detach_filter()
}
