//! Streams that fail to allocate memory end without affecting others.

use crate::{
    bond::bench::{Bench, bytes, echo},
    common::{skip, wait_until},
};
use proxy::control::Remote;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, TcpStream},
};

/// Limits the address space of a process to its current size plus half a block of a stream's window
/// (a block is a quarter of the window); returns the previous limit.
fn bound_memory(process: u32) -> (Pid, Rlimit) {
    let text = fs::read_to_string(format!("/proc/{process}/statm")).unwrap();
    let pages: u64 = text.split_whitespace().next().unwrap().parse().unwrap();
    let limit = pages * rustix::param::page_size() as u64 + (1 << 20);
    let pid = Pid::from_raw(process as i32).unwrap();
    let before = prlimit(Some(pid), Resource::As, Rlimit { current: Some(limit), maximum: None }).unwrap();
    (pid, before)
}

/// Returns whether a new stream carries data and closes cleanly.
fn works(bench: &Bench) -> bool {
    let mut client = bench.call();
    let sent = bytes(100_000);
    let mut back = Vec::new();
    let said = client.write_all(&sent).and_then(|()| client.shutdown(Shutdown::Write));
    said.and_then(|()| client.read_to_end(&mut back)).is_ok() && back == sent
}

#[test]
fn a_stream_without_memory_ends_and_others_continue() {
    if skip("a_stream_without_memory_ends_and_others_continue", &["ss"]) {
        return;
    }
    let more = &["--window", "8MiB"];
    // First the accepting end, then the dialling end.
    for end in 0..2 {
        let bench = Bench::new(more, more).whole();
        // A client that sends "held" gets each line back at once, others get everything at the end.
        bench.server(|mut stream: TcpStream| {
            let mut first = [0; 4];
            stream.read_exact(&mut first).unwrap();
            if first == *b"held" {
                while stream.write_all(&first).is_ok() && stream.read_exact(&mut first).is_ok() {}
            } else {
                stream.write_all(&first).unwrap();
                echo(stream);
            }
        });
        assert!(works(&bench));
        let mut held = bench.call();
        let mut still_works = || {
            let mut back = [0; 4];
            held.write_all(b"held").unwrap();
            held.read_exact(&mut back).unwrap();
            assert_eq!(&back, b"held");
        };
        still_works();
        // Before the limit: the process has allocated all permanent memory.
        wait_until("flows are listed", || !bench.flows().as_array().unwrap().is_empty());
        let (pid, before) = bound_memory(bench.daemons[end].0.id());
        for _ in 0..3 {
            assert!(!works(&bench), "end {end}: a stream worked without memory");
            still_works();
        }
        prlimit(Some(pid), Resource::As, before).unwrap();
        still_works();
        wait_until("streams work again", || works(&bench));
        let host = [&bench.far, &bench.near][end];
        let status = host.enter(|| Remote::named("default").status().unwrap()).unwrap();
        assert!(status.totals.ended_as("no_room") >= 3, "end {end}: {:?}", status.totals);
    }
}
