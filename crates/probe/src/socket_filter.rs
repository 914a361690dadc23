//! Filters.

use socket2::{SockFilter, Socket};
use std::io;

/// What a report's error begins with where a filter could not be set.
pub(crate) const NO_FILTER: &str = "could not set a filter on a socket of its own";

/// Some kernels allow none to who is not root, or have no room left for them.
fn no_filter(why: io::Error) -> io::Error {
    io::Error::new(why.kind(), format!("{NO_FILTER}: {why} (root may; or CAP_BPF)"))
}

/// Keeps data that come from now on from the socket's TCP: what carries some is dropped before it, so that nothing is acknowledged until [`release`]. It
/// goes with the socket.
pub(crate) fn drop_data(socket: &Socket) -> io::Result<()> {
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
pub(crate) fn drop_all(socket: &Socket) -> io::Result<()> {
    socket.attach_filter(&[SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0)]).map_err(no_filter)
}

/// Lets them come again.
pub(crate) fn detach(socket: &Socket) -> io::Result<()> {
    socket.detach_filter()
}
