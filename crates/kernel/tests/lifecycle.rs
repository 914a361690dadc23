//! Controllers are loaded, used by a plain socket, and unloaded.

mod common;

use control::Controller;
use std::{
    io::{Read as _, Write as _},
    net,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Controllers are global to the machine: one test at a time.
static SERIAL: Mutex<()> = Mutex::new(());

#[test]
fn each_controller_carries_a_connection_and_is_unloaded_with_its_holder() {
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    if common::skip("each_controller_carries_a_connection_and_is_unloaded_with_its_holder") {
        return;
    }
    for controller in Controller::all() {
        let held = kernel::load(controller.name(), &[]).unwrap_or_else(|error| panic!("{controller:?}: {error}"));
        let name = format!("td_{}", controller.name());
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let sink = thread::spawn(move || {
            let mut bytes = Vec::new();
            listener.accept().unwrap().0.read_to_end(&mut bytes).unwrap();
            bytes.len()
        });
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_tcp_congestion(name.as_bytes()).unwrap();
        socket.connect(&address.into()).unwrap();
        let mut stream = net::TcpStream::from(socket);
        stream.write_all(&vec![7; 3_000_000]).unwrap();
        let users = kernel::controller_users(&name);
        let me = users.iter().find(|user| user.process.as_ref().is_some_and(|(pid, _)| *pid == std::process::id()));
        assert_eq!(me.map(|me| me.connections), Some(1), "{users:?}");
        drop(stream);
        assert_eq!(sink.join().unwrap(), 3_000_000);
        let listed = kernel::list().unwrap();
        assert!(listed.iter().any(|loaded| loaded.controller.name() == controller.name() && !loaded.pinned), "{listed:?}");
        drop(held);
        let left = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
        assert!(!left.split_whitespace().any(|there| there == name), "{left}");
    }
}

#[test]
fn tunables_are_set_and_shown() {
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    if common::skip("tunables_are_set_and_shown") {
        return;
    }
    let held = kernel::load("hybla", &[("rtt0_us".into(), 50_000)]).unwrap();
    let listed = kernel::list().unwrap();
    let hybla = listed.iter().find(|loaded| loaded.controller.name() == "hybla").unwrap();
    assert_eq!(hybla.tunables[0], 50_000);
    assert!(matches!(kernel::load("hybla", &[("rtt0_us".into(), 60_000)]), Err(kernel::Error::OtherTunables(_))));
    assert!(matches!(kernel::load("hybla", &[("rtt1_us".into(), 60_000)]), Err(kernel::Error::Tunable(_))));
    drop(held);
}

#[test]
fn the_kernel_takes_each_controller_at_the_ends_of_its_tunables() {
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    if common::skip("the_kernel_takes_each_controller_at_the_ends_of_its_tunables") {
        return;
    }
    for tuned in Controller::all().flat_map(common::tunings) {
        let controller = tuned.controller();
        let named = controller.tunables().zip(tuned.values()).map(|(tunable, value)| (tunable.name.to_owned(), *value));
        let named: Vec<(String, u32)> = named.collect();
        let _held = kernel::load(controller.name(), &named).unwrap_or_else(|error| panic!("{tuned:?}: {error}"));
        // The one before is listed until the kernel has released it.
        let deadline = Instant::now() + Duration::from_secs(30);
        let is_listed = || {
            let listed = kernel::list().unwrap();
            listed.iter().any(|loaded| loaded.controller.name() == controller.name() && loaded.tunables == tuned.values())
        };
        while !is_listed() {
            assert!(Instant::now() < deadline, "{tuned:?} is not listed");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_socket_keeps_the_weight_that_it_was_given() {
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    if common::skip("a_socket_keeps_the_weight_that_it_was_given") {
        return;
    }
    const LOOPBACK: u32 = 1;
    let _share = kernel::load("share", &[]).unwrap();
    let mut monitor = kernel::Monitor::new().unwrap();
    let here = kernel::LinkId::here(LOOPBACK).unwrap();
    monitor.watch(here, kernel::MonitorSettings { capacity: Some(1_000_000), overhead: 14, watch: kernel::WatchMode::Virtual }).unwrap();
    let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
    let sender = |weight| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        if let Some(weight) = weight {
            kernel::set_weight(&socket, weight).unwrap();
        }
        socket.set_tcp_congestion(b"td_share").unwrap();
        socket.connect(&listener.local_addr().unwrap().into()).unwrap();
        (net::TcpStream::from(socket), listener.accept().unwrap().0)
    };
    let ends = [Some(3), None, Some(40)].map(sender);
    // More than is sent at once, so that each sender has unsent data and is counted.
    for (sender, _) in &ends {
        sender.set_nonblocking(true).unwrap();
        while (&mut &*sender).write(&[7; 1 << 16]).is_ok() {}
    }
    let begun = std::time::Instant::now();
    let weight = || monitor.read(here).unwrap().unwrap().share.weight;
    while weight() != 44 && begun.elapsed() < std::time::Duration::from_secs(30) {
        for (_, receiver) in &ends {
            receiver.set_nonblocking(true).unwrap();
            let _ = (&mut &*receiver).read(&mut [0; 1 << 16]);
        }
        for (sender, _) in &ends {
            while (&mut &*sender).write(&[7; 1 << 16]).is_ok() {}
        }
    }
    let found = weight();
    monitor.forget(here);
    assert_eq!(found, 44);
}

#[test]
fn a_handshake_is_not_counted_by_a_controller() {
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    if common::skip("a_handshake_is_not_counted_by_a_controller") {
        return;
    }
    const LOOPBACK: u32 = 1;
    let _xcp = kernel::load("xcp", &[]).unwrap();
    let mut monitor = kernel::Monitor::new().unwrap();
    let here = kernel::LinkId::here(LOOPBACK).unwrap();
    monitor.watch(here, kernel::MonitorSettings { capacity: Some(1_000_000), overhead: 14, watch: kernel::WatchMode::Virtual }).unwrap();
    let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_tcp_congestion(b"td_xcp").unwrap();
    socket.connect(&listener.local_addr().unwrap().into()).unwrap();
    let mut receiver = listener.accept().unwrap().0;
    // A control interval that started in the handshake would end with the first ACK of data, and
    // give it all spare capacity.
    let interval = || monitor.read(here).unwrap().unwrap().xcp.since_us;
    let at_first = interval();
    net::TcpStream::from(socket).write_all(&[7; 100_000]).unwrap();
    receiver.read_to_end(&mut Vec::new()).unwrap();
    let later = interval();
    monitor.forget(here);
    assert_eq!(at_first, 0);
    assert!(later > 0, "its data is counted");
}
