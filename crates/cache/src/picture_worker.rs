//! The process in which pictures are decoded and encoded. Pictures come from anywhere and libwebp
//! is C: a decoder that has been taken over by a picture must find nothing that it could use.
//!
//! The cache starts the process with a Unix stream socket as standard input. The process gives up
//! its privileges (`sandbox`), says hello, and then makes pictures smaller one after another until
//! the socket is closed. What goes over the socket is in `picture_protocol`.

mod filter;
pub mod sandbox;
mod sys;

use crate::{
    picture_protocol::{Hello, LARGEST, LONGEST_REASON, Reply, Request},
    shrink::{Wish, shrink},
};
use rustix::{
    io::{Errno, read, write},
    net::{SocketType, sockopt::socket_type},
    stdio::stdin,
    thread::set_name,
};
use sandbox::{Limits, enter};
use std::{io, panic};

/// Address space for a pixel: 16 bits of four channels as decoded, once more turned upright, what
/// decoders hold beside them (16 bytes at most), and the copies of 8 bits that encoders take.
const BYTES_PER_PIXEL: u64 = 48;
/// Address space besides: the picture as it came, what is made of it, stacks, the allocator's own.
const BYTES_BESIDES: u64 = 6 * LARGEST + (64 << 20);

/// Runs a picture worker until its socket, standard input, is closed. `cpu_seconds` bounds the
/// processor time of its life.
///
/// # Errors
/// When standard input is not a socket, when the process cannot give up its privileges, or when
/// what it is asked for makes no sense.
pub fn run(wish: Wish, cpu_seconds: u64) -> io::Result<()> {
    let socket = stdin();
    if socket_type(socket) != Ok(SocketType::STREAM) {
        let why = "a picture worker is started by `tandem cache`, with a socket as standard input: do not start it by hand";
        return Err(io::Error::other(why));
    }
    // It was started as /proc/self/exe, and would be listed as `exe`.
    set_name(c"tandem-picture")?;
    // Standard error leads nowhere, and a backtrace would read files.
    panic::set_hook(Box::new(|_| {}));
    let memory = wish.most_pixels.saturating_mul(BYTES_PER_PIXEL).saturating_add(BYTES_BESIDES);
    let protections = enter(Limits { memory, cpu_seconds })?;
    send(&Hello { filtered: protections.filtered }.encode())?;
    let mut header = [0; 8];
    while receive(&mut header)? {
        let request = Request::decode(header).ok_or_else(|| io::Error::other("the request makes no sense"))?;
        let mut picture = vec![0; request.length];
        if !receive(&mut picture)? {
            break;
        }
        match shrink(&picture, request.from, request.to, wish) {
            Ok(small) => {
                send(&Reply::Smaller(small.len()).encode())?;
                send(&small)?;
            }
            Err(why) => {
                let why = &why.as_bytes()[..why.len().min(LONGEST_REASON)];
                send(&Reply::Unchanged(why.len()).encode())?;
                send(why)?;
            }
        }
    }
    Ok(())
}

/// Fills `bytes`. Returns false when the socket is closed before the first of them.
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
