//! Hot restarts of either end of a bond: streams end at the process that began them.

use crate::{
    bond::bench::{Bench, bytes},
    common::{TANDEM, skip, wait_until},
    takeover::Successor,
};
use lab::Host;
use proxy::takeover::RestartReport;
use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    thread,
};

fn restart(host: &Host) -> Successor {
    let output = host.command(TANDEM).args(["restart", "--json"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: RestartReport = serde_json::from_slice(&output.stdout).unwrap();
    Successor(report.pid)
}

/// Sends bytes and reads them back.
fn talk(stream: &mut TcpStream, count: usize) {
    let said = bytes(count);
    let (mut writer, mut heard) = (stream.try_clone().unwrap(), vec![0; count]);
    thread::scope(|scope| {
        scope.spawn(|| writer.write_all(&said).unwrap());
        stream.read_exact(&mut heard).unwrap();
    });
    assert!(heard == said);
}

fn finish(mut stream: TcpStream) {
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "a clean end");
}

/// Sends everything back at once.
fn reflect(mut stream: TcpStream) {
    let mut part = vec![0; 64 << 10];
    while let Ok(count @ 1..) = stream.read(&mut part) {
        if stream.write_all(&part[..count]).is_err() {
            return;
        }
    }
}

#[test]
fn streams_end_at_the_process_that_began_them() {
    if skip("streams_end_at_the_process_that_began_them", &["ss"]) {
        return;
    }
    for more in [&[][..], &["--tls"]] {
        let mut bench = Bench::new(more, more).whole();
        bench.server(reflect);
        let mut kept = bench.call();
        talk(&mut kept, 1_000_000);
        let serves = restart(&bench.far);
        talk(&mut kept, 3_000_000);
        let mut after_serve = bench.call();
        talk(&mut after_serve, 1_000_000);
        let connects = restart(&bench.near);
        assert_eq!(bench.flows().as_array().unwrap().len(), 2, "those of the earlier process");
        let mut after_both = bench.call();
        for stream in [&mut kept, &mut after_serve, &mut after_both] {
            talk(stream, 3_000_000);
        }
        [kept, after_serve, after_both].into_iter().for_each(finish);
        for daemon in &mut bench.daemons {
            wait_until("an earlier process ends", || daemon.0.try_wait().unwrap().is_some());
        }
        assert!(serves.runs() && connects.runs());
    }
}

#[test]
fn new_streams_succeed_after_each_restart_of_the_accepting_end() {
    if skip("new_streams_succeed_after_each_restart_of_the_accepting_end", &["ss"]) {
        return;
    }
    let bench = Bench::new(&[], &[]).whole();
    bench.server(reflect);
    let mut serves = Vec::new();
    for _ in 0..4 {
        serves.push(restart(&bench.far));
        for _ in 0..10 {
            let mut stream = bench.call();
            talk(&mut stream, 20_000);
            finish(stream);
        }
    }
}
