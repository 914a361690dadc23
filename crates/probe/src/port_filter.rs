//! A classic BPF program that selects TCP packets by port.

use socket2::SockFilter;
use std::io;

/// Builds a filter that keeps TCP packets from or to one of these ports. The packet begins with its
/// IP header.
///
/// # Errors
/// There are no ports, or more than 100.
pub(crate) fn port_filter(ports: &[u16]) -> io::Result<Vec<SockFilter>> {
    const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
    const LOAD_HALF_BEHIND: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_IND) as u16;
    const HEADER_LENGTH: u16 = (libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH) as u16;
    const SET_X: u16 = (libc::BPF_LDX | libc::BPF_IMM) as u16;
    const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
    const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let many = u8::try_from(ports.len()).ok().filter(|many| (1..=100).contains(many));
    let many = many.ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("cannot capture on {} ports: between 1 and 100 are possible", ports.len()))
    })?;
    let step = |code: u16, yes: u8, no: u8, value: u32| SockFilter::new(code, yes, no, value);
    let mut program = vec![
        step(LOAD_BYTE, 0, 0, 0),
        step(AND, 0, 0, 0xf0),
        step(IF_EQUAL, 0, 4, 0x40),
        // X is the offset of the TCP header. IPv4: from the header length.
        step(LOAD_BYTE, 0, 0, 9),
        step(HEADER_LENGTH, 0, 0, 0),
        step(IF_EQUAL, 6, 0, 6),
        step(RETURN, 0, 0, 0),
        step(IF_EQUAL, 0, 2, 0x60),
        // IPv6 without extension headers: 40 bytes.
        step(LOAD_BYTE, 0, 0, 6),
        step(IF_EQUAL, 1, 0, 6),
        step(RETURN, 0, 0, 0),
        step(SET_X, 0, 0, 40),
    ];
    for (round, at) in [0u32, 2].into_iter().enumerate() {
        program.push(step(LOAD_HALF_BEHIND, 0, 0, at));
        for (index, port) in ports.iter().enumerate() {
            // Jump over the rest of this round, the other round, and the return that drops the
            // packet.
            let left = many - 1 - index as u8;
            let behind = left + if round == 0 { many + 1 } else { 0 } + 1;
            program.push(step(IF_EQUAL, behind, 0, u32::from(*port)));
        }
    }
    program.push(step(RETURN, 0, 0, 0));
    // Keep the whole packet. The receive call reports its length.
    program.push(step(RETURN, 0, 0, 1 << 20));
    Ok(program)
}
