//! Failing parts of the proxy: a worker that ends without a command is reported, and a stalled
//! event loop is detected.

use crate::common::{PATIENCE, free_port, listener};
use proxy::{ListenerConfig, Proxy, ProxyConfig, ProxyFailure};
use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Interval of liveness checks.
const CHECK: Duration = Duration::from_millis(50);

/// A proxy with two workers that calls `on_end` at the end of each flow, on the worker's thread.
fn proxy(on_end: impl Fn() + Send + Sync + 'static) -> (Proxy, SocketAddr, TcpListener) {
    let (at, server) = (free_port(), listener());
    let listen = ListenerConfig::forward(at, server.local_addr().unwrap());
    let config = ProxyConfig { listen: vec![listen], threads: 2, ..ProxyConfig::default() };
    (Proxy::start(config, move |_| on_end()).unwrap(), at, server)
}

/// Opens and ends a flow.
fn flow(at: SocketAddr, server: &TcpListener) {
    let client = TcpStream::connect(at).unwrap();
    drop((server.accept().unwrap(), client));
}

#[test]
fn a_worker_that_panics_is_reported() {
    let (proxy, at, server) = proxy(|| panic!("on purpose"));
    let failures = proxy.failures().unwrap();
    flow(at, &server);
    let failure = failures.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(&failure, ProxyFailure::Worker { number: 0 | 1, why } if why == "it panicked"), "{failure}");
    // The other worker continues, and ends by a command.
    assert!(!proxy.is_idle());
    drop(proxy);
    assert!(failures.recv_timeout(PATIENCE).is_err(), "ending by a command is not a failure");
}

#[test]
fn a_stalled_event_loop_is_detected() {
    let stop = Arc::new(Mutex::new(()));
    let stall = stop.clone();
    let (mut proxy, at, server) = proxy(move || drop(stall.lock().unwrap_or_else(PoisonError::into_inner)));
    let mut liveness = proxy.liveness();
    let mut alive_for = |checks: usize| {
        (0..checks).all(|_| {
            thread::sleep(CHECK);
            liveness.check()
        })
    };
    let begun = Instant::now();
    // Idle workers turn when they are woken.
    while !alive_for(5) {
        assert!(begun.elapsed() < PATIENCE, "idle workers count as alive");
    }
    let held = stop.lock().unwrap();
    flow(at, &server);
    while alive_for(1) {
        assert!(begun.elapsed() < PATIENCE, "a stalled loop is detected");
    }
    drop(held);
    while !alive_for(5) {
        assert!(begun.elapsed() < PATIENCE, "it turns again");
    }
    proxy.drain();
    assert!(alive_for(3), "workers that have ended by a command count as alive");
}
