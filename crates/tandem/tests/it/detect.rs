//! `tandem detect trace`: output and exit status.

#[path = "../../../detect/tests/common/mod.rs"]
mod made;

use made::{Linked, Middle, Record, Transfer, encapsulation as wrap, pcap};
use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
};

const TANDEM: &str = env!("CARGO_BIN_EXE_tandem");

/// Writes the two traces of a transfer to a temporary directory.
fn traces(transfer: &Transfer) -> (tempfile::TempDir, [PathBuf; 2]) {
    let directory = tempfile::tempdir().unwrap();
    let paths = ["sender.pcap", "receiver.pcap"].map(|name| directory.path().join(name));
    for (path, file) in paths.iter().zip(transfer.files()) {
        fs::write(path, file).unwrap();
    }
    (directory, paths)
}

fn detect(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = Command::new(TANDEM).args(["detect", "trace"]).args(arguments).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn traces_of_both_ends_give_a_verdict() {
    for (transfer, verdict) in [(Transfer::default(), "end-to-end"), (Transfer::split(Middle::default()), "split-tcp")] {
        let (_directory, [sender, receiver]) = traces(&transfer);
        let files = ["--sender", sender.to_str().unwrap(), "--receiver", receiver.to_str().unwrap()];
        let (status, said, complaint) = detect(&[&files[..], &["--json"]].concat());
        assert_eq!((status, complaint.as_str()), (Some(0), ""));
        let list: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(list[0]["verdict"], verdict);
        let evidence = &list[0]["evidence"][0];
        for key in ["method", "says", "strength", "value", "unit", "text"] {
            assert!(!evidence[key].is_null(), "{key}: {evidence:#}");
        }
        assert!(list[0]["character"]["series"].is_null());
        let (status, said, _) = detect(&[&files[..], &["--verbose"]].concat());
        assert_eq!(status, Some(0));
        for what in [verdict, "method-2", "acknowledgements", "end-to-end delay: ", "192.0.2.7:80 → 10.0.0.2:40000"] {
            assert!(said.contains(what), "{what}\n{said}");
        }
    }
}

#[test]
fn each_of_several_receivers_has_a_trace() {
    let (_first, [sender, receiver]) = traces(&Transfer::default());
    let (_second, [_, other]) = traces(&Transfer { ports: [41000, 80], content: 99, bytes: 200_000, ..Transfer::default() });
    let files = ["--sender", sender.to_str().unwrap(), "--receiver", other.to_str().unwrap(), "--receiver", receiver.to_str().unwrap()];
    let (status, said, complaint) = detect(&files);
    assert_eq!((status, complaint.as_str()), (Some(0), ""));
    assert!(said.contains("receiver's trace") && said.contains(files[5]), "{said}");
}

#[test]
fn a_page_has_the_plots_and_the_evidence() {
    let (directory, [sender, receiver]) = traces(&Transfer::split(Middle::default()));
    let page = directory.path().join("page.html");
    let files =
        ["--sender", sender.to_str().unwrap(), "--receiver", receiver.to_str().unwrap(), "--page", page.to_str().unwrap(), "--json"];
    let (status, said, _) = detect(&files);
    assert_eq!(status, Some(0));
    // --page does not add the series to the JSON.
    assert!(serde_json::from_str::<serde_json::Value>(&said).unwrap()[0]["character"]["series"].is_null());
    let page = fs::read_to_string(page).unwrap();
    for what in
        ["Sender throughput", "Throughput at the receiver", "Window offered to the sender", "End-to-end delay", "split-tcp", "method-2"]
    {
        assert!(page.contains(what), "{what}");
    }
}

#[test]
fn a_trace_of_one_end_gives_a_verdict_only_with_delayed_acks() {
    let (_directory, [sender, _]) = traces(&Transfer { ack_delay: 2.0, ..Transfer::split(Middle::default()) });
    let sender = sender.to_str().unwrap();
    let (status, said, complaint) = detect(&["--sender", sender]);
    assert_eq!(status, Some(3));
    assert!(
        said.contains("cannot tell") && complaint.contains("cannot tell whether 192.0.2.7:80 → 10.0.0.2:40000 is split"),
        "{said}{complaint}"
    );
    let (status, said, _) = detect(&["--sender", sender, "--ack-delay", "2s"]);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("split-tcp"), "{said}");
}

#[test]
fn unreadable_traces_are_named() {
    let (status, _, complaint) = detect(&[]);
    assert_eq!(status, Some(2));
    assert!(complaint.contains("--sender"), "{complaint}");
    let (status, _, complaint) = detect(&["--sender", "/nonexistent.pcap"]);
    assert_eq!(status, Some(2));
    assert!(complaint.contains("could not read the trace /nonexistent.pcap: No such file"), "{complaint}");
}

#[test]
fn a_capture_without_tcp_says_what_it_has_and_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("only.pcap");
    for (link, frame, expected) in wrap::unreadable() {
        fs::write(&path, pcap(&[Record { at: 1, bytes: frame }], link, 65535, true)).unwrap();
        let (status, _, complaint) = detect(&["--sender", path.to_str().unwrap()]);
        assert!(matches!(status, Some(2 | 3)), "{status:?}");
        for part in ["only.pcap", expected[0], expected[1]] {
            assert!(complaint.contains(part), "{part} is not in: {complaint}");
        }
    }
}

#[test]
fn remarks_name_what_was_left_out_or_used_once() {
    let transfer = Transfer { links: [Linked::Raw; 2], bytes: 100_000, ..Transfer::default() };
    let [here, there] = transfer.records();
    let mut both: Vec<Record> = Vec::new();
    for record in &here {
        for interface in [1, 2] {
            both.push(Record { at: record.at, bytes: wrap::on_interface(interface, 0x0800, &record.bytes) });
        }
    }
    both.push(Record { at: here[0].at, bytes: wrap::on_interface(1, 0x0800, &wrap::ip4(50, &[9; 60])) });
    let directory = tempfile::tempdir().unwrap();
    let files = [("sender.pcap", pcap(&both, 276, 65535, true)), ("receiver.pcap", pcap(&there, 101, 65535, true))];
    let [sender, receiver] = files.map(|(name, file)| {
        let path = directory.path().join(name);
        fs::write(&path, file).unwrap();
        path
    });
    let (status, said, complaint) = detect(&["--sender", sender.to_str().unwrap(), "--receiver", receiver.to_str().unwrap()]);
    assert_eq!(status, Some(0), "{said}{complaint}");
    let [twice, count] = [2 * here.len(), here.len()];
    for part in [format!("{count} of {twice} TCP segments are there more than once"), format!("1 of {} frames are IPsec ESP", both.len())] {
        assert!(complaint.contains(&part), "{part} is not in: {complaint}");
    }
}
