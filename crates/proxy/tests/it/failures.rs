//! Parts of the proxy that fail: a worker that ends unasked is told of, one that does not turn its
//! event loop is noticed.

use crate::common::{PATIENCE, free_port, listener};
use proxy::{Config, Failure, Listen, Proxy};
use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// How often event loops are looked at.
const CHECK: Duration = Duration::from_millis(50);

/// A proxy of two workers that does this at the end of each flow, on the worker's thread.
fn proxy(on_end: impl Fn() + Send + Sync + 'static) -> (Proxy, SocketAddr, TcpListener) {
    let (at, server) = (free_port(), listener());
    let listen = Listen::forward(at, server.local_addr().unwrap());
    let config = Config { listen: vec![listen], threads: 2, ..Config::default() };
    (Proxy::start(config, move |_| on_end()).unwrap(), at, server)
}

/// Has a flow begin and end.
fn flow(at: SocketAddr, server: &TcpListener) {
    let client = TcpStream::connect(at).unwrap();
    drop((server.accept().unwrap(), client));
}

#[test]
fn a_worker_that_panics_is_told_of() {
    let (proxy, at, server) = proxy(|| panic!("on purpose"));
    let failures = proxy.failures().unwrap();
    flow(at, &server);
    let failure = failures.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(&failure, Failure::Worker { number: 0 | 1, why } if why == "it panicked"), "{failure}");
    // The other one goes on, and ends when it is told to.
    assert!(!proxy.is_idle());
    drop(proxy);
    assert!(failures.recv_timeout(PATIENCE).is_err(), "an end that was wanted is no failure");
}

#[test]
fn an_event_loop_that_stands_still_is_noticed() {
    let stop = Arc::new(Mutex::new(()));
    let stands = stop.clone();
    let (mut proxy, at, server) = proxy(move || drop(stands.lock().unwrap_or_else(PoisonError::into_inner)));
    let mut liveness = proxy.liveness();
    let mut alive_for = |checks: usize| {
        (0..checks).all(|_| {
            thread::sleep(CHECK);
            liveness.check()
        })
    };
    let begun = Instant::now();
    // Idle workers turn when they are woken: soon, and then always, however busy this machine is.
    while !alive_for(5) {
        assert!(begun.elapsed() < PATIENCE, "idle workers count as alive");
    }
    let held = stop.lock().unwrap();
    flow(at, &server);
    while alive_for(1) {
        assert!(begun.elapsed() < PATIENCE, "a loop that stands still is noticed");
    }
    drop(held);
    while !alive_for(5) {
        assert!(begun.elapsed() < PATIENCE, "it turns again");
    }
    proxy.drain();
    assert!(alive_for(3), "workers that have ended as they were told to are not missed");
}
