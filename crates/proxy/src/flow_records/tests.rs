use super::*;
use crate::{
    line_batches::LineBatches,
    measure::{FlowId, ProfileNumbers},
};
use intercept::sys::TcpInfo;
use relay::{DirectionStats, Ending, FlowRecord, FlowStats, PhaseTimes, ProfileId};
use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    os::unix::net::UnixListener,
    path::Path,
    time::Duration,
};
use units::Phase;

fn config(text: &str) -> Result<FlowRecordsConfig, String> {
    toml::from_str(text).map_err(|error| error.to_string())
}

fn file(path: &Path, more: &str) -> FlowRecordsConfig {
    config(&format!("file = {:?}\n{more}", path.display().to_string())).unwrap()
}

fn record(client_port: u16) -> FlowRecord {
    let mut last = FlowStats::unbegun(([192, 0, 2, 1], client_port).into(), ([198, 51, 100, 1], 443).into());
    last.age = Duration::from_millis(2500);
    last.far = TcpInfo { rtt_us: 612_000, bytes_sent: 3000, bytes_retrans: 100, min_rtt_us: 600_000, ..TcpInfo::default() };
    last.down = DirectionStats { moved: 7, ..DirectionStats::default() };
    last.measured.profiles = [ProfileId::Number(0), ProfileId::Number(2)];
    last.measured.handshakes[1] = Some(Duration::from_millis(620));
    let mut phases = PhaseTimes::default();
    phases.add(Phase::Free, Duration::from_secs(2));
    last.measured.phases[1] = phases;
    last.measured.most_held[1] = 5;
    FlowRecord { last, ending: Ending::FarFailed(io::ErrorKind::ConnectionReset) }
}

/// Sends records of flows from these client ports through a sink, one batch each.
fn send(sink: &RecordSink, ports: std::ops::Range<u16>) {
    let mut profiles = ProfileNumbers::default();
    profiles.set(["near leg", "far leg", "sat"].into_iter().map(str::to_owned));
    for port in ports {
        let mut records = LineBatches::new(sink.clone());
        records.add(Instant::now(), |lines, time| append(lines, time, FlowId(port.into()), &record(port), &profiles));
    }
}

/// Waits until this many records were written or dropped.
fn settle(sink: &RecordSink, count: u64) -> RecordCounts {
    let begun = Instant::now();
    while sink.counts().written + sink.counts().dropped != count {
        assert!(begun.elapsed() < Duration::from_secs(60), "the records are not through: {:?}", sink.counts());
        thread::sleep(Duration::from_millis(1));
    }
    sink.counts()
}

fn client(line: &str) -> String {
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    line["client"].as_str().unwrap().to_owned()
}

#[test]
fn a_record_has_both_legs_and_both_directions() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("flows");
    let (sink, thread) = RecordSink::start(Some(file(&path, "")), EndDeadline::default()).unwrap();
    send(&sink, 1..2);
    drop(sink);
    thread.join().unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.ends_with('\n'));
    let line: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((line["client"].as_str(), line["server"].as_str()), (Some("192.0.2.1:1"), Some("198.51.100.1:443")));
    assert_eq!((line["flow"].as_str(), line["ending"].as_str()), (Some("0000000000000001"), Some("far_failed")));
    assert_eq!(line["why"], "far leg failed: connection reset");
    assert_eq!((line["down"]["bytes"].as_u64(), line["down"]["free_s"].as_f64()), (Some(7), Some(2.0)));
    assert_eq!((line["down"]["most_held_bytes"].as_u64(), line["up"].get("free_s")), (Some(5), None));
    assert_eq!((line["far"]["profile"].as_str(), line["near"]["profile"].as_str()), (Some("sat"), Some("near")));
    assert_eq!((line["far"]["rtt_s"].as_f64(), line["far"]["handshake_s"].as_f64()), (Some(0.612), Some(0.62)));
    assert_eq!((line["far"]["retransmitted_bytes"].as_u64(), line["near"].get("handshake_s")), (Some(100), None));
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o007, 0, "records have addresses");
}

#[test]
fn a_file_is_rotated_and_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let config = file(&at("flows"), "max_size = \"4KiB\"\nkeep = 2");
    let (sink, thread) = RecordSink::start(Some(config.clone()), EndDeadline::default()).unwrap();
    send(&sink, 0..60);
    assert_eq!(settle(&sink, 60), RecordCounts { written: 60, dropped: 0 });
    let size = |name: &str| fs::metadata(at(name)).map(|data| data.len()).unwrap_or(0);
    for name in ["flows", "flows.1", "flows.2"] {
        assert!((1..=4096).contains(&size(name)), "{name}: {}", size(name));
    }
    assert!(!at("flows.3").exists(), "two are kept");
    // The newest records are in the file itself, those before in .1.
    let last = |name: &str| client(fs::read_to_string(at(name)).unwrap().lines().last().unwrap());
    assert_eq!(last("flows"), "192.0.2.1:59");
    assert_ne!(last("flows.1"), last("flows.2"));
    // As logrotate does it.
    let config = file(&at("flows"), "");
    sink.configure(Some(config.clone()));
    send(&sink, 60..61);
    settle(&sink, 61);
    fs::rename(at("flows"), at("moved")).unwrap();
    send(&sink, 61..62);
    settle(&sink, 62);
    assert_eq!((last("moved").as_str(), at("flows").exists()), ("192.0.2.1:61", false), "the open file is written to");
    sink.configure(Some(config));
    send(&sink, 62..63);
    settle(&sink, 63);
    assert_eq!(last("flows"), "192.0.2.1:62");
    // A line that a crash cut off does not spoil the next one.
    fs::OpenOptions::new().append(true).open(at("flows")).unwrap().write_all(b"{\"cut").unwrap();
    sink.configure(Some(file(&at("flows"), "keep = 0")));
    send(&sink, 63..64);
    settle(&sink, 64);
    let text = fs::read_to_string(at("flows")).unwrap();
    assert_eq!(text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()).collect::<Vec<_>>(), [true, false, true]);
    drop(sink);
    thread.join().unwrap();
}

#[test]
fn sockets_get_the_same_lines() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let unix = UnixListener::bind(&path).unwrap();
    let (sink, thread) =
        RecordSink::start(Some(config(&format!("unix = {:?}", path.display().to_string())).unwrap()), EndDeadline::default()).unwrap();
    send(&sink, 5..7);
    let mut lines = BufReader::new(unix.accept().unwrap().0).lines();
    assert_eq!([client(&lines.next().unwrap().unwrap()), client(&lines.next().unwrap().unwrap())], ["192.0.2.1:5", "192.0.2.1:6"]);
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    sink.configure(Some(config(&format!("tcp = \"{}\"", tcp.local_addr().unwrap())).unwrap()));
    send(&sink, 7..8);
    let mut lines = BufReader::new(tcp.accept().unwrap().0).lines();
    assert_eq!(client(&lines.next().unwrap().unwrap()), "192.0.2.1:7");
    drop(sink);
    thread.join().unwrap();
}

#[test]
fn what_cannot_be_written_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let (sink, thread) = RecordSink::start(Some(file(&directory.path().join("absent/flows"), "")), EndDeadline::default()).unwrap();
    send(&sink, 0..3);
    assert_eq!(settle(&sink, 3), RecordCounts { written: 0, dropped: 3 });
    assert!(file(&directory.path().join("absent/flows"), "").try_output().is_err());
    assert!(file(&directory.path().join("flows"), "").try_output().is_ok());
    assert!(!directory.path().join("flows").exists(), "the attempt makes no file");
    // A configuration that works ends the pause.
    sink.configure(Some(file(&directory.path().join("flows"), "")));
    send(&sink, 3..4);
    assert_eq!(settle(&sink, 4), RecordCounts { written: 1, dropped: 3 });
    // Without a configuration there are no records.
    sink.configure(None);
    send(&sink, 4..5);
    let counts = sink.counts.clone();
    drop(sink);
    thread.join().unwrap();
    assert_eq!((counts.written.load(Relaxed), counts.dropped.load(Relaxed)), (1, 3));
}

#[test]
fn a_process_that_was_taken_over_follows_the_renaming_of_the_next_one() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let config = file(&at("flows"), "max_size = \"4KiB\"\nkeep = 1000");
    let (earlier, earlier_thread) = RecordSink::start(Some(config.clone()), EndDeadline::default()).unwrap();
    send(&earlier, 0..1);
    settle(&earlier, 1);
    earlier.leave();
    let (next, next_thread) = RecordSink::start(Some(config), EndDeadline::default()).unwrap();
    for port in 1..40 {
        send(&earlier, port..port + 1);
        settle(&earlier, u64::from(port) + 1);
        send(&next, 100 + port..101 + port);
        settle(&next, port.into());
    }
    drop((earlier, next));
    earlier_thread.join().unwrap();
    next_thread.join().unwrap();
    let names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let sizes: Vec<u64> = names.iter().map(|name| fs::metadata(name).unwrap().len()).collect();
    let line = fs::read_to_string(at("flows.1")).unwrap().lines().next().unwrap().len() as u64;
    // The size counts what both write; the earlier process may exceed it by a line.
    assert!(sizes.iter().all(|size| *size <= 4096 + 2 * line) && sizes.iter().filter(|size| **size < 4096 / 2).count() <= 1, "{sizes:?}");
    let lines: usize = names.iter().map(|name| fs::read_to_string(name).unwrap().lines().count()).sum();
    assert_eq!(lines, 79);
}

#[test]
fn a_file_that_cannot_be_renamed_grows_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("flows");
    // A directory cannot be replaced by a file.
    fs::create_dir(directory.path().join("flows.1")).unwrap();
    let (sink, thread) = RecordSink::start(Some(file(&path, "max_size = \"4KiB\"\nkeep = 1")), EndDeadline::default()).unwrap();
    send(&sink, 0..20);
    assert_eq!(settle(&sink, 20), RecordCounts { written: 20, dropped: 0 });
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 20);
    drop(sink);
    thread.join().unwrap();
}

#[test]
fn a_full_queue_blocks_no_worker() {
    // A sink without its thread.
    let (messages, inbox) = mpsc::sync_channel(QUEUE);
    let sink = RecordSink { messages, counts: Arc::default() };
    send(&sink, 0..300);
    assert_eq!(sink.counts(), RecordCounts { written: 0, dropped: 300 - QUEUE as u64 });
    assert_eq!(inbox.try_iter().count(), QUEUE);
}

#[test]
fn wrong_keys_are_refused() {
    for (text, said) in [
        ("", "needs exactly one of file"),
        ("file = \"/a\"\nunix = \"/b\"", "needs exactly one of file"),
        ("unix = \"/b\"\nkeep = 3", "leave them out"),
        ("file = \"/a\"\nmax_size = \"1KiB\"", "give at least 4KiB"),
        ("file = \"/a\"\nkeep = 1001", "give at most 1000"),
        ("path = \"/a\"", "unknown field"),
    ] {
        let error = config(text).unwrap_err();
        assert!(error.contains(said), "{text}: {error}");
    }
}

/// A program that reads a little now and then: each write of the thread makes some progress.
#[test]
fn a_slow_reader_does_not_delay_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let (stop, stopped) = mpsc::channel::<()>();
    let reader = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        while stopped.recv_timeout(Duration::from_millis(100)) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = stream.read(&mut [0; 2048]);
        }
    });
    let end = EndDeadline::default();
    let target = config(&format!("unix = {:?}", path.display().to_string())).unwrap();
    let (mut sink, thread) = RecordSink::start(Some(target), end.clone()).unwrap();
    let batches = QUEUE as u64;
    (0..batches).for_each(|_| sink.send(vec![b'x'; 32 * 1024], 1));
    let taken = batches - sink.counts().dropped;
    let begun = Instant::now();
    end.set(begun + Duration::from_millis(300));
    let counts = sink.counts.clone();
    drop(sink);
    // Generous, for a machine under load. Without the deadline the reader takes minutes.
    assert!(crate::end::join_by(thread, begun + Duration::from_secs(60)), "the thread is still writing");
    let (written, dropped) = (counts.written.load(Relaxed), counts.dropped.load(Relaxed));
    assert_eq!(written + dropped, batches, "each record is written or counted as dropped");
    assert!(counts.late.load(Relaxed) > taken / 2 && counts.waiting.load(Relaxed) == 0, "{counts:?}");
    drop(stop);
    reader.join().unwrap();
}

/// A reader that makes progress, but too little for a batch, is given up after the time limit of
/// the batch, not after that of each system call.
#[test]
fn a_batch_has_one_time_limit() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let (stop, stopped) = mpsc::channel::<()>();
    let reader = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        while stopped.recv_timeout(Duration::from_millis(100)) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = stream.read(&mut [0; 2048]);
        }
    });
    let target = config(&format!("unix = {:?}", path.display().to_string())).unwrap();
    let (mut sink, thread) = RecordSink::start(Some(target), EndDeadline::default()).unwrap();
    // At 20 kB/s it would take minutes.
    sink.send(vec![b'x'; 8 << 20], 1);
    assert_eq!(settle(&sink, 1), RecordCounts { written: 0, dropped: 1 });
    drop((sink, stop));
    thread.join().unwrap();
    reader.join().unwrap();
}
