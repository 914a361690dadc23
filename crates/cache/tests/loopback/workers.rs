//! Faulty picture workers: each failure makes one picture pass unchanged.

use crate::{
    common::*,
    transformations::{photograph, serve_pictures},
};
use cache::{Cache, WorkerProgram};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// A shell script with these commands. Their standard input is the socket.
fn program(directory: &Path, commands: &str) -> PathBuf {
    let path = directory.join("worker");
    testing::write_script(&path, commands);
    path
}

fn with_worker(origin: &TestOrigin, program: PathBuf, timeout: Duration) -> Cache {
    cache_for(origin.address, |config| {
        config.picture_worker = WorkerProgram { program, arguments: Vec::new() };
        config.picture_timeout = timeout;
    })
}

/// Requests three pictures, each of which must pass unchanged.
fn all_pass_unchanged(commands: &str, timeout: Duration) {
    let directory = tempfile::tempdir().unwrap();
    let original = photograph(200, 150);
    let origin = serve_pictures(&original);
    let (cache, client) = (with_worker(&origin, program(directory.path(), commands), timeout), TestClient::new());
    for path in ["/1", "/2", "/3"] {
        let reply = client.get(cache.addresses()[0], path, &[("accept", "image/webp,*/*")]);
        assert!(reply.whole && reply.body == original, "{commands}: {path}");
        assert_eq!(reply.field("content-type"), "image/jpeg");
    }
    let stats = cache.stats();
    assert_eq!((stats.pictures, stats.pictures_failed), (0, 3), "{commands}");
}

const LONG: Duration = Duration::from_secs(60);
/// Commands of a worker: sends its hello and reads the first request header. Its reply follows.
const READY: &str = r"printf 'tandem1\001' >&0; head -c 8 >/dev/null;";

#[test]
fn workers_that_do_not_start() {
    all_pass_unchanged("exit 1", LONG);
    all_pass_unchanged("printf 'HTTP/1.1 200 OK' >&0; sleep 60", LONG);
    let original = photograph(200, 150);
    let origin = serve_pictures(&original);
    let (cache, client) = (with_worker(&origin, "/nonexistent".into(), LONG), TestClient::new());
    for _ in 0..2 {
        assert!(client.get(cache.addresses()[0], "/", &[]).body == original);
    }
    // The picture is not the cause: it is tried again.
    assert_eq!(cache.stats().pictures_failed, 2);
}

#[test]
fn workers_that_die() {
    all_pass_unchanged(&format!("{READY} exit 1"), LONG);
    all_pass_unchanged(&format!("{READY} kill -SEGV $$"), LONG);
}

#[test]
fn workers_that_hang() {
    all_pass_unchanged(&format!("{READY} exec sleep 600"), Duration::from_millis(300));
}

#[test]
fn workers_that_violate_the_protocol() {
    // An unknown code, a length out of bounds, no picture.
    all_pass_unchanged(&format!("{READY} cat /dev/zero >&0"), LONG);
    all_pass_unchanged(&format!(r"{READY} printf '\001\000\000\000\377\377\377\377' >&0; cat /dev/zero >&0"), LONG);
    all_pass_unchanged(&format!(r"{READY} printf '\001\000\000\000\014\000\000\000<script></sc' >&0; sleep 600"), LONG);
    // Half a reply.
    all_pass_unchanged(&format!(r"{READY} printf '\001\000\000\000\014\000\000\000RIFF' >&0; exit 0"), LONG);
}

#[test]
fn a_worker_process_is_reused() {
    let original = photograph(200, 150);
    let origin = serve_pictures(&original);
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let starts = format!("echo started >> {}; exec {} $*", log.display(), picture_worker().program.display());
    let (cache, client) = (with_worker(&origin, program(directory.path(), &starts), LONG), TestClient::new());
    for number in 0..10 {
        let reply = client.get(cache.addresses()[0], &format!("/{number}"), &[]);
        assert!(reply.body.len() * 3 < original.len());
    }
    assert_eq!(fs::read_to_string(log).unwrap(), "started\n");
}
