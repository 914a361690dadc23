//! The process that decodes and encodes pictures. Pictures are untrusted and libwebp is written in
//! C: a picture that compromises the decoder must gain nothing.
//!
//! The cache starts the process with a Unix stream socket as standard input. The process gives up
//! its privileges (`sandbox`), sends a hello, and then transcodes one picture after another until
//! the socket is closed. `picture_protocol` has the messages.

mod filter;
pub mod sandbox;
mod sys;

use crate::{
    picture_protocol::{MAX_PICTURE_BYTES, MAX_REASON_BYTES, TranscodeReply, TranscodeRequest, WorkerHello},
    shrink::{ShrinkOptions, shrink},
};
use rustix::{
    io::{Errno, read, write},
    net::{SocketType, sockopt::socket_type},
    stdio::stdin,
    thread::set_name,
};
use sandbox::{SandboxLimits, enter};
use std::{io, panic};

/// Address space per pixel, bytes: four channels of 16 bits as decoded, a copy with the orientation
/// applied, the decoder's own buffers (at most 16), and copies of 8 bits a channel for the encoder.
const BYTES_PER_PIXEL: u64 = 48;
/// Further address space, bytes: the original, the result, stacks, the allocator.
const BASE_BYTES: u64 = 6 * MAX_PICTURE_BYTES + (64 << 20);

/// Runs a picture worker until its socket, which is standard input, is closed. `cpu_seconds` bounds
/// the processor time of the process.
///
/// # Errors
/// When standard input is not a socket, when the process cannot give up its privileges, or when a
/// request is invalid.
pub fn run(options: ShrinkOptions, cpu_seconds: u64) -> io::Result<()> {
    let socket = stdin();
    if socket_type(socket) != Ok(SocketType::STREAM) {
        let why = "standard input is not a socket: picture workers are started by `tandem cache`, not by hand";
        return Err(io::Error::other(why));
    }
    // Started as /proc/self/exe, it would be listed as `exe`.
    set_name(c"tandem-picture")?;
    // Standard error is /dev/null, and a backtrace would need to read files.
    panic::set_hook(Box::new(|_| {}));
    let memory = options.most_pixels.saturating_mul(BYTES_PER_PIXEL).saturating_add(BASE_BYTES);
    let protections = enter(SandboxLimits { memory, cpu_seconds })?;
    send(&WorkerHello { filtered: protections.filtered }.encode())?;
    let mut header = [0; 8];
    while receive(&mut header)? {
        let request = TranscodeRequest::decode(header).ok_or_else(|| io::Error::other("a request for a picture worker is invalid"))?;
        let mut picture = vec![0; request.length];
        if !receive(&mut picture)? {
            break;
        }
        match shrink(&picture, request.from, request.to, options) {
            Ok(small) => {
                send(&TranscodeReply::Smaller(small.len()).encode())?;
                send(&small)?;
            }
            Err(why) => {
                let why = &why.as_bytes()[..why.len().min(MAX_REASON_BYTES)];
                send(&TranscodeReply::Unchanged(why.len()).encode())?;
                send(why)?;
            }
        }
    }
    Ok(())
}

/// Fills `bytes`. Returns false when the socket is closed before the first byte.
fn receive(bytes: &mut [u8]) -> io::Result<bool> {
    let mut filled = 0;
    while filled < bytes.len() {
        match read(stdin(), &mut bytes[filled..]) {
            Ok(0) if filled == 0 => return Ok(false),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(why) => return Err(why.into()),
        }
    }
    Ok(true)
}

fn send(mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match write(stdin(), bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(why) => return Err(why.into()),
        }
    }
    Ok(())
}
