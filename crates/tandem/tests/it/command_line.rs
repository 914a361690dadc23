//! The command line: output, exit statuses, and one error message with a fix for each mistake.

use crate::common::{TANDEM, parse_scenario, scenario_files, skip};
use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn tandem(arguments: &[&str]) -> Output {
    Command::new(TANDEM).args(arguments).output().unwrap()
}

fn status(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const GOOD: &str = "name = \"small\"\n[[link]]\nrate = \"20Mbit\"\ndelay = \"1ms\"\n[[link]]\nrate = \"20Mbit\"\ndelay = \"5ms\"\n\
                    [[split]]\nafter = 1\n[[flow]]\nbytes = \"200kB\"\n";

/// Writes a scenario file to a temporary directory.
fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("scenario.toml");
    fs::write(&path, text).unwrap();
    (directory, path)
}

fn run_file(text: &str, more: &[&str]) -> Output {
    let (_directory, path) = file(text);
    let mut arguments = vec!["run", path.to_str().unwrap()];
    arguments.extend(more);
    tandem(&arguments)
}

#[test]
fn errors_in_a_scenario_name_line_and_key() {
    let output = run_file(&GOOD.replace("20Mbit\"\ndelay = \"5ms", "20Mbot\"\ndelay = \"5ms"), &[]);
    assert_eq!(status(&output), 2);
    assert!(said(&output).contains("scenario.toml:6: link[2].rate: \"20Mbot\" ends in the unknown unit"), "{}", said(&output));
    assert!(said(&output).contains("6 | rate = \"20Mbot\""), "{}", said(&output));

    let output = run_file(GOOD, &["--set", "split.1.after=2"]);
    assert_eq!(status(&output), 2);
    assert!(
        said(&output).contains("--set split.1.after=2: split[1].after: is 2, but a proxy stands between two links"),
        "{}",
        said(&output)
    );

    let output = tandem(&["run", "/nonexistent.toml"]);
    assert_eq!(status(&output), 2);
    assert!(said(&output).contains("cannot read the scenario /nonexistent.toml"), "{}", said(&output));

    assert_eq!(status(&tandem(&["run"])), 2, "no file");
    assert_eq!(status(&tandem(&["fly"])), 2, "no such command");
}

#[test]
fn an_unknown_controller_is_reported_with_the_known_ones() {
    let output = run_file(GOOD, &["--set", "control.proxy=cubik"]);
    assert_eq!(status(&output), 2);
    assert!(said(&output).contains("control.proxy: there is no controller \"cubik\"; this kernel has "), "{}", said(&output));

    let output = tandem(&["proxy", "--listen", "transparent=[::]:5000", "--far", "control=cubik"]);
    assert_eq!(status(&output), 2);
    assert!(said(&output).contains("far leg: there is no congestion controller \"cubik\": the kernel has "), "{}", said(&output));

    // A known controller that no kernel has: the simulator supports it, with routers.
    let output = run_file(GOOD, &["--set", "control.proxy=xcp-e2e"]);
    assert_eq!(status(&output), 3);
    assert!(said(&output).contains("lab cannot answer control.proxy") && said(&output).contains("--on sim"), "{}", said(&output));
    let output = run_file(GOOD, &["--on", "sim", "--set", "control.proxy=xcp-e2e"]);
    assert_eq!(status(&output), 2);
    assert!(said(&output).contains("control.proxy: \"xcp-e2e\" needs feedback of xcp routers"), "{}", said(&output));
}

#[test]
fn an_unsupported_key_exits_with_status_3() {
    let output = run_file(GOOD, &["--set", "split.1.mode=store", "--json"]);
    assert_eq!(status(&output), 3);
    assert!(said(&output).contains("lab cannot answer split[1].mode"), "{}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "[]");
}

#[test]
fn missing_privileges_are_reported() {
    if skip("missing_privileges_are_reported", &[]) {
        return;
    }
    // The binary and the file in a world-readable directory.
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    // By another program: a process that another test starts meanwhile would inherit the open file,
    // and a file that is open for writing cannot be executed.
    assert!(Command::new("cp").arg(TANDEM).arg(at("tandem")).status().unwrap().success());
    fs::write(at("scenario.toml"), GOOD).unwrap();
    fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let as_nobody = |arguments: &[&str]| {
        Command::new(at("tandem")).args(arguments).current_dir(directory.path()).uid(65534).gid(65534).output().unwrap()
    };
    let output = as_nobody(&["run", "scenario.toml"]);
    assert_eq!(status(&output), 1);
    assert!(said(&output).contains("cannot make the host sender") && said(&output).contains("sudo"), "{}", said(&output));

    let output = as_nobody(&["proxy", "--listen", "transparent=[::]:5000"]);
    assert_eq!(status(&output), 1);
    assert!(said(&output).contains("cannot listen on [::]:5000") && said(&output).contains("CAP_NET_ADMIN"), "{}", said(&output));

    let allowed = fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control").unwrap();
    if !allowed.split_whitespace().any(|name| name == "cubic") {
        let output = as_nobody(&["proxy", "--listen", "forward=127.0.0.1:0=127.0.0.1:9", "--far", "control=cubic"]);
        assert_eq!(status(&output), 2);
        assert!(said(&output).contains("far leg: the congestion controller \"cubic\" may be used only with"), "{}", said(&output));
    }

    let output = as_nobody(&["doctor"]);
    assert_eq!(status(&output), 1);
    assert!(String::from_utf8_lossy(&output.stdout).contains('✗'), "{output:?}");
}

#[test]
fn missing_kernel_features_and_programs_are_reported() {
    if skip("missing_kernel_features_and_programs_are_reported", &["unshare"]) {
        return;
    }
    let (_directory, path) = file(GOOD);
    // A mount namespace that hides the device.
    let hide = |target: &str, command: &str| {
        let script = format!("mount --bind /var/empty {target} 2>/dev/null || mount -t tmpfs none {target}; exec {TANDEM} {command}");
        Command::new("unshare").args(["-m", "sh", "-c", &script]).output().unwrap()
    };
    let output = hide("/dev/net", &format!("run {}", path.display()));
    assert_eq!(status(&output), 1);
    assert!(
        said(&output).contains("cannot make the TUN device link1 on host sender") && said(&output).contains("modprobe tun"),
        "{}",
        said(&output)
    );

    // No nft in the path.
    let bin = tempfile::tempdir().unwrap();
    let ip = ["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"].into_iter().find(|path| Path::new(path).exists()).unwrap();
    std::os::unix::fs::symlink(ip, bin.path().join("ip")).unwrap();
    let output = Command::new(TANDEM).arg("run").arg(&path).env("PATH", bin.path()).output().unwrap();
    assert_eq!(status(&output), 1);
    assert!(said(&output).contains("cannot run nft") && said(&output).contains("Debian package nftables"), "{}", said(&output));
}

#[test]
fn a_port_in_use_is_reported_with_a_fix() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    let output = tandem(&["proxy", "--listen", &format!("forward={at}=127.0.0.1:9")]);
    assert_eq!(status(&output), 1);
    assert!(
        said(&output).contains(&format!("cannot listen on {at}")) && said(&output).contains("choose another port"),
        "{}",
        said(&output)
    );
}

#[test]
fn a_run_writes_json_captures_and_a_page() {
    if skip("a_run_writes_json_captures_and_a_page", &[]) {
        return;
    }
    let (directory, path) = file(GOOD);
    let (page, captures) = (directory.path().join("pages/page.html"), directory.path().join("pcap"));
    let run = Command::new(TANDEM)
        .arg("run")
        .arg(&path)
        .args(["--json", "--series", "--seeds", "2", "--page"])
        .arg(&page)
        .arg("--pcap")
        .arg(&captures)
        .output()
        .unwrap();
    assert_eq!(status(&run), 0, "{}", said(&run));
    let outcomes: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(outcomes.as_array().map(Vec::len), Some(2));
    for (seed, outcome) in (1..).zip(outcomes.as_array().unwrap()) {
        assert_eq!(outcome["scenario"], "small");
        assert_eq!(outcome["engine"], "lab");
        assert_eq!(outcome["seed"], seed);
        assert_eq!(outcome["flows"][0]["bytes"], 200_000);
        assert!(outcome["flows"][0]["end_s"].as_f64().unwrap() > outcome["flows"][0]["start_s"].as_f64().unwrap());
        assert_eq!(outcome["flows"][0]["legs"].as_array().map(Vec::len), Some(2));
        assert!(outcome["proxy"]["buffer_bytes"]["p99"].is_number() && outcome["proxy"]["phases"]["free"].is_number());
        assert!(outcome["ci95"]["goodput_bps"].is_number());
        assert!(outcome["series"].as_array().is_some_and(|series| !series.is_empty()));
    }
    assert!(fs::read_to_string(&page).unwrap().contains("<svg"));
    for host in ["sender", "proxy", "receiver"] {
        let capture = captures.join(format!("small-seed1-{host}.pcapng"));
        let length = fs::metadata(&capture).unwrap().len();
        // Every host captured the file and the ACKs.
        assert!(length > 200_000, "{}: {length} bytes", capture.display());
    }
}

#[test]
fn a_dry_run_prints_the_rules_and_installs_none() {
    let output = tandem(&["proxy", "--listen", "transparent=[::]:5000", "--dry-run"]);
    assert_eq!(status(&output), 0, "{}", said(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    for part in [
        "nft 'add table inet tandem",
        "flags owner",
        "tproxy ip to :5000",
        "tproxy ip6 to :5000",
        "ip -4 rule add fwmark",
        "ip -6 rule add iif lo",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn doctor_finds_no_missing_requirement() {
    if skip("doctor_finds_no_missing_requirement", &["nft", "ip"]) {
        return;
    }
    let output = tandem(&["doctor", "--json"]);
    assert_eq!(status(&output), 0, "{}", String::from_utf8_lossy(&output.stdout));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found["needs"].as_array().unwrap().len() >= 5);
}

/// Every scenario file of the project is valid.
#[test]
fn every_scenario_file_parses() {
    let files = scenario_files();
    assert!(!files.is_empty());
    for path in files {
        parse_scenario(&path);
    }
}

#[test]
fn advice_is_to_split_only_where_that_pays() {
    let path = |rate: &str, delay: &str| {
        format!(
            "name = \"x\"\n[[link]]\nrate = \"100Mbit\"\ndelay = \"5ms\"\n[[link]]\nrate = \"{rate}\"\ndelay = \"{delay}\"\n\
             loss = {{ per_packet = 0.01 }}\n[[flow]]\nbytes = \"5MB\"\n"
        )
    };
    let advice = |text: &str| {
        let (_directory, file) = file(text);
        let output = tandem(&["advise", file.to_str().unwrap(), "--seeds", "8", "--json"]);
        assert_eq!(status(&output), 0, "{}", said(&output));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let satellite = advice(&path("10Mbit", "300ms"));
    assert_eq!((&satellite["advice"]["verdict"], &satellite["advice"]["split"]["way"]["after"]), (&"split".into(), &1.into()));
    assert!(satellite["advice"]["split"]["gain"].as_f64().unwrap() > 2.0 && satellite["enough_bytes"].is_u64(), "{satellite}");
    let lan = advice(&path("100Mbit", "100us").replace("loss = { per_packet = 0.01 }\n", ""));
    assert_eq!((&lan["advice"]["verdict"], &lan["enough_bytes"]), (&"does_not_pay".into(), &serde_json::Value::Null), "{lan}");
}

/// The advised buffer's receive queue has, in payload, the window that is enough in the simulator:
/// however the proxy divides the buffer, and whatever its packets take of the kernel's memory.
#[test]
fn the_advised_buffer_has_the_window_that_is_enough_in_the_simulator() {
    for enough in (16..28).map(|power| 1_u64 << power) {
        let result = |buffer_bytes, fraction| advise::BufferResult { buffer_bytes, fraction, half_width: 0.0 };
        let advised = advise::buffer_to_configure(&[result(enough / 2, 0.9), result(enough, 1.0)]).unwrap();
        let receive = intercept::leg::Shares::of(advised as usize).receive;
        let window = receive as f64 * advise::WINDOW_SHARE;
        assert!(window >= enough as f64, "{enough}: {advised} has a window of {window}");
    }
}

#[test]
fn a_path_on_the_command_line_gives_advice_that_can_be_pasted() {
    let path = ["advise", "--link", "1Gbit,4ms", "--link", "50Mbit,300ms,0.1%", "--bytes", "5MB", "--seeds", "3"];
    let output = tandem(&[&path[..], &["--json"]].concat());
    assert_eq!(status(&output), 0, "{}", said(&output));
    let advice: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&advice["advice"]["verdict"], &advice["advice"]["leg"]), (&"split".into(), &"near".into()));
    let ways = advice["advice"]["findings"].as_array().unwrap();
    for control in ["bbr", "bbr3"] {
        assert!(ways.iter().any(|one| one["way"]["control"] == control && one["way"]["after"] == 1), "{control}");
    }
    for one in ways {
        let [gain, now, then] = [&one["gain"], &advice["advice"]["now"]["value"], &one["value"]].map(|number| number.as_f64().unwrap());
        assert!((gain - now / then).abs() < 1e-9, "{one}");
    }
    // The command and the file are what `tandem proxy` reads.
    let command = advice["command"].as_str().unwrap();
    let mut arguments: Vec<&str> = command.strip_prefix("tandem ").unwrap().split(' ').collect();
    arguments.push("--check=config");
    let checked = tandem(&arguments);
    assert_eq!(status(&checked), 0, "{command}: {}", said(&checked));
    let (_directory, config) = file(advice["config"].as_str().unwrap());
    let checked = tandem(&["proxy", "-c", config.to_str().unwrap(), "--check=config"]);
    assert_eq!(status(&checked), 0, "{}: {}", advice["config"], said(&checked));
    let text = String::from_utf8(tandem(&path).stdout).unwrap();
    assert!(text.contains(command), "{text}");
}

#[test]
fn advice_for_what_users_do_makes_none_of_it_slower() {
    let path = ["advise", "--link", "1Gbit,4ms", "--link", "50Mbit,300ms,0.1%", "--seeds", "3"];
    let advised = |more: &[&str]| -> serde_json::Value {
        let output = tandem(&[&path[..], &["--json"], more].concat());
        assert_eq!(status(&output), 0, "{}", said(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let advice = advised(&[]);
    assert_eq!(advice["advice"]["verdict"], "split");
    let usages = advice["advice"]["split"]["usages"].as_array().unwrap();
    assert_eq!(usages.len(), 8);
    for usage in usages {
        let [gain, half, now, then] = ["gain", "half", "now_s", "then_s"].map(|key| usage[key].as_f64().unwrap());
        assert!(gain + half > 0.97 && (gain - now / then).abs() < 1e-9, "{usage}");
    }
    // Small windows leave less to gain.
    let small = advised(&["--receivers", "64KiB,256KiB"]);
    let gain = |advice: &serde_json::Value| advice["advice"]["split"]["gain"].as_f64().unwrap();
    assert!(gain(&advice) > 1.2 && gain(&small) < gain(&advice), "{} {}", gain(&small), gain(&advice));
    let command = advice["command"].as_str().unwrap();
    let mut arguments: Vec<&str> = command.strip_prefix("tandem ").unwrap().split(' ').collect();
    arguments.push("--check=config");
    assert_eq!(status(&tandem(&arguments)), 0, "{command}");
    assert!(String::from_utf8(tandem(&path).stdout).unwrap().contains(command));
    let refused = tandem(&["advise", "--link", "1Gbit,4ms", "--link", "50Mbit,300ms", "--receivers", "6MiB"]);
    assert!(said(&refused).contains("as in 128KiB,6MiB"), "{}", said(&refused));
}

#[test]
fn a_wrong_link_is_refused_with_what_is_expected() {
    for (links, what) in [
        (&["--link", "50Mbit"][..], "expected RATE,DELAY or RATE,DELAY,LOSS, as in 50Mbit,600ms,0.1%"),
        (&["--link", "50Mbit,600"], "the delay: "),
        (&["--link", "50Mbit,600ms,0.1%"], "on the command line a --link each"),
        (&["--link", "1Gbit,4ms", "path.toml"], "cannot be used with"),
        (&[], "<FILE"),
    ] {
        let output = tandem(&[&["advise"], links].concat());
        assert_eq!(status(&output), 2, "{links:?}");
        assert!(said(&output).contains(what), "{links:?}: {}", said(&output));
    }
}

#[test]
fn advice_needs_a_path_of_two_links() {
    let (_directory, file) = file("name = \"x\"\n[[link]]\nrate = \"10Mbit\"\ndelay = \"5ms\"\n[[flow]]\nbytes = \"1MB\"\n");
    let output = tandem(&["advise", file.to_str().unwrap()]);
    assert_eq!(status(&output), 2);
    assert!(said(&output).contains("give the part before it and the part after it a [[link]] each"), "{}", said(&output));
}

/// The reader of stdout closes the pipe at once.
#[test]
fn a_closed_pipe_is_not_a_failure() {
    for arguments in [&["completions", "bash"][..], &["paper"], &["control", "list"], &["doctor", "--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(TANDEM).args(arguments).stdout(writer).output().unwrap();
        assert_eq!((status(&output), said(&output)), (0, String::new()), "{arguments:?}");
    }
}

#[test]
fn papers_are_listed_and_found() {
    let list = tandem(&["paper"]);
    assert_eq!(status(&list), 0);
    assert!(String::from_utf8_lossy(&list.stdout).contains("li/fig-3"));
    let json: serde_json::Value = serde_json::from_slice(&tandem(&["paper", "--json"]).stdout).unwrap();
    assert!(json.as_array().unwrap().iter().any(|experiment| experiment["id"] == "li/fig-4"));

    let none = tandem(&["paper", "li/fig-99"]);
    assert_eq!(status(&none), 2);
    assert!(said(&none).contains("there is no table or figure \"li/fig-99\": did you mean li/fig-9?"), "{}", said(&none));
    // The simulator needs no privileges.
    let simulated = tandem(&["paper", "li/fig-6", "--case", "end-to-end xcp", "--seeds", "1", "--json"]);
    assert_eq!(status(&simulated), 0, "{}", said(&simulated));
    let json: serde_json::Value = serde_json::from_slice(&simulated.stdout).unwrap();
    let outcome = &json[0]["outcomes"][0];
    assert_eq!((&outcome["engine"], &outcome["flows"][0]["bytes"]), (&"sim".into(), &5_000_000.into()));
    assert_eq!((&json[0]["id"], &json[0]["runs"][0]["seeds"]), (&"li/fig-6".into(), &1.into()));

    // Names of cases have commas. The name of a case selects it and its variation, not
    // `score-paper`.
    let one = ["paper", "hoekstra/tables-5-6", "--on", "sim", "--case", "1.2 0.0 0.0, bond.scheduler=score", "--seeds", "1", "--json"];
    let json: serde_json::Value = serde_json::from_slice(&tandem(&one).stdout).unwrap();
    let cases: Vec<&str> = json[0]["outcomes"].as_array().unwrap().iter().map(|outcome| outcome["case"].as_str().unwrap()).collect();
    assert_eq!(cases, ["1.2 0.0 0.0, bond.scheduler=score", "1.2 0.0 0.0, bond.scheduler=score, own parameters"]);

    // Tables from equations have no seeds.
    let sheet: serde_json::Value = serde_json::from_slice(&tandem(&["paper", "wei/startup", "--json"]).stdout).unwrap();
    assert_eq!(
        (&sheet[0]["id"], &sheet[0]["rows"][1]["printed"], &sheet[0]["rows"][1]["holds"]),
        (&"wei/startup".into(), &2.5.into(), &true.into())
    );
    let seeds = tandem(&["paper", "wei/startup", "--seeds", "3"]);
    assert_eq!(status(&seeds), 2, "{}", said(&seeds));

    // Their curves are drawn on a page.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("page.html");
    let drawn = tandem(&["paper", "baccelli/fig-19.7", "--page", path.to_str().unwrap()]);
    assert_eq!(status(&drawn), 0, "{}", said(&drawn));
    // Two laws, each with the two ends of its band.
    assert_eq!(std::fs::read_to_string(&path).unwrap().matches("<polyline").count(), 6);
}

/// A prefix answers several entries: each claim has a verdict, and JSON has one shape.
#[test]
fn several_entries_of_a_paper_are_summarized() {
    let directory = tempfile::tempdir().unwrap();
    let [page, records] = ["papers.html", "papers"].map(|name| directory.path().join(name));
    let arguments = ["paper", "li/fig-", "--on", "sim", "--seeds", "2", "--quiet"];
    let paths = ["--page", page.to_str().unwrap(), "--record", records.to_str().unwrap()];
    let output = tandem(&[&arguments[..], &paths].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(status(&output), 0, "{}", said(&output));
    assert!(text.contains("li/fig-6") && text.contains("XCP PEP is significantly fairer") && text.contains("cannot tell"), "{text}");
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("id=\"li/fig-6\"") && page.contains("tandem paper li/fig-6") && page.contains("<svg"));
    assert!(records.join("li/outcomes/fig-6.json.zst").is_file());

    let json = tandem(&["paper", "wei/s", "--json"]);
    let entries: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&entries[0]["id"], &entries[0]["claims"][0]["verdict"]), (&"wei/startup".into(), &"in-part".into()));
}

/// Without root nothing is measured, and the error says what is missing.
#[test]
fn measured_tables_need_root() {
    if skip("measured_tables_need_root", &["setpriv"]) {
        return;
    }
    for id in ["wei/table-1", "wei/figure-3", "wei/termination", "wei/picture"] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all", TANDEM, "paper", id]);
        let output = command.output().unwrap();
        assert_eq!(status(&output), 1, "{id}: {}", said(&output));
        assert!(said(&output).contains("the lab needs root"), "{id}: {}", said(&output));
    }
}

/// Outcomes in a file give the same table and verdicts as new ones.
#[test]
fn stored_outcomes_give_the_same_verdicts() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("outcomes.json");
    let outcome = |case: &str, seed: u64, seconds: f64| {
        let flows = serde_json::json!([{ "id": 0, "bytes": 1, "start_s": 0.0, "end_s": seconds, "goodput_bps": 1.0, "legs": [] }]);
        serde_json::json!({ "scenario": "li/fig-4", "case": case, "engine": "lab", "seed": seed, "valid": true, "warnings": [],
            "goodput_bps": 1.0, "utilization": 0.9, "flows": flows })
    };
    let pairs = [(1, 20.0, 40.0), (2, 21.0, 42.5), (3, 22.0, 43.5)];
    let outcomes: Vec<_> =
        pairs.iter().flat_map(|(seed, mpcp, hybla)| [outcome("PEP mpcp", *seed, *mpcp), outcome("PEP hybla", *seed, *hybla)]).collect();
    fs::write(&path, serde_json::to_string(&outcomes).unwrap()).unwrap();
    let output = tandem(&["paper", "li/fig-4", "--from", path.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(status(&output), 0, "{}", said(&output));
    assert!(text.contains("21.00 ± ") && text.contains("holds") && text.contains("cannot tell"), "{text}");

    fs::write(&path, "no outcomes").unwrap();
    let output = tandem(&["paper", "li/fig-4", "--from", path.to_str().unwrap()]);
    assert_eq!(status(&output), 2);
    assert!(said(&output).contains("cannot read outcomes from"), "{}", said(&output));
}

/// An experiment on several engines: --on selects them, and their outcomes are shown separately.
#[test]
fn a_paper_runs_on_the_engines_given() {
    let unknown = tandem(&["paper", "joshi/base", "--on", "ns2"]);
    assert_eq!(status(&unknown), 2);
    assert!(said(&unknown).contains("there is no engine \"ns2\" for papers; there are theory, sim, compose, lab"), "{}", said(&unknown));
    let none = tandem(&["paper", "joshi/base", "--on", "theory"]);
    assert_eq!(status(&none), 3, "{}", said(&none));

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("outcomes.json");
    let papers = papers::papers().unwrap();
    let experiment = papers.iter().flat_map(|paper| &paper.experiments).find(|experiment| experiment.id == "table-19.1").unwrap();
    let variations = &experiment.variations;
    let case = ["paper", "baccelli/table-19.1", "--seeds", "1", "--case", "split.1.buffer=10pkt"];
    let json = tandem(&[&case[..], &["--on", "theory,sim", "--json"]].concat());
    assert_eq!(status(&json), 0, "{}", said(&json));
    // A note for each reason, with the number of variations that theory cannot answer for it.
    let backpressure = variations.iter().filter(|variation| variation.sets[0].starts_with("split.1.backpressure=")).count();
    let note = |cases, key| format!("theory leaves out {cases} of the cases: theory cannot answer {key}");
    assert!(said(&json).contains(&note(backpressure, "split[1].backpressure")), "{}", said(&json));
    assert!(said(&json).contains(&note(variations.len() - backpressure, "tcp.validation")), "{}", said(&json));
    fs::write(&path, &json.stdout).unwrap();
    let entries: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let outcomes = entries[0]["outcomes"].as_array().unwrap();
    let engines: Vec<&str> = outcomes.iter().map(|outcome| outcome["engine"].as_str().unwrap()).collect();
    // The case itself on both engines, and its variations on the simulator.
    assert_eq!(engines, [&["theory"][..], &vec!["sim"; 1 + variations.len()]].concat());

    let from = |on: &[&str]| {
        let output = tandem(&[&["paper", "baccelli/table-19.1", "--from", path.to_str().unwrap()], on].concat());
        assert_eq!(status(&output), 0, "{}", said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let both = from(&[]);
    assert!(both.contains("theory") && both.contains("window") && both.contains("plays with --on lab"), "{both}");
    assert!(!from(&["--on", "theory"]).contains("unused windows grow"), "the simulator's rows are left out");
}
