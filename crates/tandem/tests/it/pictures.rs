//! The worker processes that decode images for `tandem cache`: they have no privileges, and a
//! failed worker loses only its current image.

use crate::common::{Daemon, PATIENCE, TANDEM, skip, wait_until};
use jpeg_encoder::{ColorType, Encoder};
use lab::Host;
use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

const ORIGIN: u16 = 8080;
const CACHE: u16 = 3128;

/// A host with an origin server of images, all of them `original`, and a cache in front of it.
struct Gallery {
    host: Host,
    cache: Daemon,
    original: Arc<Vec<u8>>,
    _directory: tempfile::TempDir,
}

impl Gallery {
    /// Starts an origin of images of `side` × `side` pixels, and a cache with additional arguments.
    fn new(side: u16, arguments: &[&str]) -> Self {
        let host = Host::new("gallery").unwrap();
        let original = Arc::new(photograph(side));
        let origin = host.enter(|| TcpListener::bind((Ipv4Addr::LOCALHOST, ORIGIN))).unwrap().unwrap();
        let sent = original.clone();
        thread::spawn(move || {
            for stream in origin.incoming().flatten() {
                let picture = sent.clone();
                thread::spawn(move || serve(&stream, &picture));
            }
        });
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let mut command = host.command(TANDEM);
        command.args(["cache", "--listen", &format!("forward=127.0.0.1:{CACHE}=127.0.0.1:{ORIGIN}")]).args(arguments);
        let cache = Daemon::logging(&mut command, &log);
        wait_until("the cache is up", || fs::read_to_string(&log).unwrap().contains("storing and forwarding"));
        Gallery { host, cache, original, _directory: directory }
    }

    /// Requests an image from the cache as a client that accepts WebP.
    fn get(&self, path: &str) -> Vec<u8> {
        let mut stream = self.host.enter(|| TcpStream::connect((Ipv4Addr::LOCALHOST, CACHE))).unwrap().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\nHost: gallery\r\nAccept: image/webp\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let body = answer.windows(4).position(|at| at == b"\r\n\r\n").expect("an answer") + 4;
        answer.split_off(body)
    }

    /// Returns whether an image arrives unchanged; otherwise it must be smaller.
    fn is_original(&self, path: &str) -> bool {
        let body = self.get(path);
        let smaller = body.starts_with(b"RIFF") && body.get(8..12) == Some(b"WEBP") && body.len() * 2 < self.original.len();
        assert!(smaller || body == *self.original, "{path}: neither the picture nor a smaller one, {} bytes", body.len());
        !smaller
    }

    /// The processes of picture workers.
    fn workers(&self) -> Vec<u32> {
        let parent = format!("PPid:\t{}", self.cache.0.id());
        let processes = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_worker = |process: &u32| {
            let read = |name: &str| fs::read_to_string(format!("/proc/{process}/{name}")).unwrap_or_default();
            read("status").lines().any(|line| line == parent) && read("cmdline").contains("picture-worker")
        };
        processes.filter(is_worker).collect()
    }

    fn worker(&self) -> u32 {
        let workers = self.workers();
        assert_eq!(workers.len(), 1, "workers of one picture after another");
        workers[0]
    }
}

fn serve(mut stream: &TcpStream, picture: &[u8]) -> std::io::Result<()> {
    let (mut heard, mut byte) = (Vec::new(), [0]);
    while !heard.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        heard.push(byte[0]);
    }
    let head = "HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\nContent-Type: image/jpeg\r\nConnection: close\r\n";
    write!(stream, "{head}Content-Length: {}\r\n\r\n", picture.len())?;
    stream.write_all(picture)
}

/// Returns an image with gradients and texture, like a photograph.
fn photograph(side: u16) -> Vec<u8> {
    let mut noise = 1_u32;
    let mut pixels = Vec::new();
    for y in 0..u32::from(side) {
        for x in 0..u32::from(side) {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let wave = (f64::from(x) / 31.0).sin() * 50.0 + (f64::from(x + 2 * y) / 17.0).cos() * 30.0 + f64::from(noise >> 28);
            pixels.extend([120.0, 140.0, 100.0].map(|base: f64| (base + wave) as u8));
        }
    }
    let mut bytes = Vec::new();
    Encoder::new(&mut bytes, 92).encode(&pixels, side, side, ColorType::Rgb).unwrap();
    bytes
}

fn signal(process: u32, name: &str) {
    // The process may have ended already.
    let _ = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).output().unwrap();
}

fn is_there(process: u32) -> bool {
    fs::read_to_string(format!("/proc/{process}/status")).is_ok_and(|status| !status.contains("\nState:\tZ"))
}

#[test]
fn images_are_decoded_by_a_process_without_privileges() {
    if skip("images_are_decoded_by_a_process_without_privileges", &[]) {
        return;
    }
    let gallery = Gallery::new(300, &[]);
    assert!(!gallery.is_original("/1") && !gallery.is_original("/2"));
    let worker = gallery.worker();
    let status = fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
    let mut wanted = vec![
        "Name:\ttandem-picture",
        "CapEff:\t0000000000000000",
        "CapPrm:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Uid:\t65534\t65534\t65534\t65534",
    ];
    if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) && rustix::thread::secure_computing_mode().is_ok() {
        wanted.push("Seccomp:\t2");
    }
    for line in wanted {
        assert!(status.lines().any(|found| found == line), "{line} is not in\n{status}");
    }
    let link = |name: &str| fs::read_link(format!("/proc/{worker}/{name}")).unwrap().display().to_string();
    assert_eq!(link("exe"), fs::canonicalize(TANDEM).unwrap().display().to_string(), "the same program");
    assert!(link("cwd").ends_with(" (deleted)") && link("root") == link("cwd"), "{} {}", link("root"), link("cwd"));
    let mut descriptors: Vec<_> = fs::read_dir(format!("/proc/{worker}/fd")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    descriptors.sort();
    assert_eq!(descriptors, ["0", "1", "2"]);
    assert_eq!(fs::read(format!("/proc/{worker}/environ")).unwrap(), b"");
}

#[test]
fn a_stalled_worker_loses_only_its_image() {
    if skip("a_stalled_worker_loses_only_its_image", &[]) {
        return;
    }
    let gallery = Gallery::new(300, &["--picture-timeout", "2s"]);
    assert!(!gallery.is_original("/1"));
    let stopped = gallery.worker();
    signal(stopped, "STOP");
    // No other worker decodes the image.
    assert!(gallery.is_original("/2"));
    wait_until("the stalled worker is gone", || !is_there(stopped));
    assert!(!gallery.is_original("/3"), "the next image has a new worker");
    assert_ne!(gallery.worker(), stopped);
    assert!(gallery.is_original("/2"), "an image that failed a worker is not tried again");
}

#[test]
fn a_killed_worker_loses_only_its_image() {
    if skip("a_killed_worker_loses_only_its_image", &[]) {
        return;
    }
    let gallery = Gallery::new(1500, &[]);
    let end = AtomicBool::new(false);
    let unchanged = thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(SeqCst) {
                gallery.workers().into_iter().for_each(|worker| signal(worker, "KILL"));
                thread::sleep(Duration::from_millis(1));
            }
        });
        // A worker may finish before it is killed.
        let unchanged = (0..50).any(|number| gallery.is_original(&format!("/{number}")));
        end.store(true, SeqCst);
        unchanged
    });
    assert!(unchanged, "images were transcoded although their workers were killed");
    assert!(!gallery.is_original("/last"));
    // A worker that dies while idle loses no image. The signal takes effect some time after `kill`
    // returns: an image sent before that is lost with the worker.
    let idle = gallery.worker();
    signal(idle, "KILL");
    wait_until("the killed worker is gone", || !is_there(idle));
    assert!(!gallery.is_original("/after"));
}

#[test]
fn the_worker_ends_with_the_cache() {
    if skip("the_worker_ends_with_the_cache", &[]) {
        return;
    }
    let mut gallery = Gallery::new(300, &[]);
    assert!(!gallery.is_original("/1"));
    let worker = gallery.worker();
    // While it is stopped, it cannot see that its socket is closed.
    signal(worker, "STOP");
    gallery.cache.0.kill().unwrap();
    gallery.cache.0.wait().unwrap();
    wait_until("the worker is gone", || !is_there(worker));
}
