//! The server in a process without free descriptors. A test program of its own, because the limit
//! applies to the whole process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    fs::File,
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};
use web_server::{Server, Site};

#[test]
fn the_server_accepts_again_when_descriptors_are_free() {
    let server = Server::start("127.0.0.1:0".parse().unwrap(), Site::default().with_metrics(|| Some("# EOF\n".into()))).unwrap();
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: before.maximum }).unwrap();
    let client = TcpStream::connect(server.address()).unwrap();
    let mut all_descriptors: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    // One descriptor for the next client, two if the server took the first for the client before.
    // The server has none left to accept the next client with.
    let idle = std::iter::from_fn(|| all_descriptors.pop()).take(2).find_map(|descriptor| {
        drop(descriptor);
        TcpStream::connect(server.address()).ok()
    });
    let idle = idle.expect("one of two descriptors is free");
    std::thread::sleep(Duration::from_millis(300));
    drop((client, idle, all_descriptors));
    let mut other = TcpStream::connect(server.address()).unwrap();
    other.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    other.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut page = String::new();
    other.read_to_string(&mut page).unwrap();
    assert!(page.ends_with("# EOF\n"), "{page}");
}
