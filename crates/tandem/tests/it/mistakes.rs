//! Common mistakes in files and on the command line: each error names the place and the fix.

use crate::common::TANDEM;
use std::{fs, process::Command};

const SCENARIO: &str = r#"name = "small"
[[link]]
rate = "20Mbit"
delay = "1ms"
[[link]]
rate = "10Mbit"
delay = "5ms"
[[split]]
after = 1
[[flow]]
bytes = "200kB"
"#;

const PROXY: &str = r#"threads = 2
[[listen]]
transparent = "[::]:5000"
[[leg]]
interface = "sat0"
control = "cubic"
"#;

/// Runs `tandem` on a file with `text`; returns its stderr and exit status.
fn tandem(before: &[&str], text: &str, after: &[&str]) -> (String, i32) {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("file.toml"), text).unwrap();
    let output = Command::new(TANDEM).current_dir(directory.path()).args(before).arg("file.toml").args(after).output().unwrap();
    (String::from_utf8_lossy(&output.stderr).into_owned(), output.status.code().unwrap_or(-1))
}

/// Replaces `from` in `file`, and expects that the error contains `said`.
fn expect(before: &[&str], file: &str, mistakes: &[(&str, &str, &str)], after: &[&str]) {
    for (from, to, said) in mistakes {
        assert!(file.contains(from), "{from}");
        let (text, status) = tandem(before, &file.replacen(from, to, 1), after);
        assert!(text.contains(said) && status == 2, "{to}: expected {said}\nbut the status is {status}, and it says\n{text}");
    }
}

#[test]
fn mistakes_in_scenario_files() {
    let mistakes = [
        (
            r#"delay = "5ms""#,
            "delay = \"5ms\"\nloss = 0.001",
            "file.toml:8: link[2].loss: does not say how packets are lost: write loss = { per_packet = 0.001 }",
        ),
        (r#"delay = "5ms""#, "delay = \"5ms\"\nloss = \"1%\"", "write loss = { per_packet = 0.01 }"),
        (
            r#"delay = "5ms""#,
            "delay = \"5ms\"\nloss = { per_pkt = 0.1 }",
            "file.toml:8: link[2].loss.per_pkt: is not a key here: did you mean per_packet?",
        ),
        ("[[flow]]", "[flow]", "file.toml:10: flow: is one table, but there can be several: write [[flow]] instead of [flow]"),
        (
            "[[flow]]",
            "[[control]]\nsender = \"bbr\"\n[[flow]]",
            "file.toml:10: control: is a list of tables, but there is only one: write [control] instead of [[control]]",
        ),
        (
            "[[link]]\nrate = \"10Mbit\"",
            "[link]\nrate = \"10Mbit\"",
            "file.toml:5: is not TOML: there is more than one [link]: write [[link]] for each where there can be several",
        ),
        ("\"20Mbit\"", "20Mbit", "file.toml:3: is not TOML: a text needs quotation marks: rate = \"20Mbit\""),
        (
            "\"20Mbit\"",
            "20",
            "file.toml:3: link[1].rate: \"20\" has no unit: a rate takes bit, kbit, Mbit or Gbit (a second), for example 20Mbit",
        ),
        (
            "\"20Mbit\"",
            "\"20mbps\"",
            "file.toml:3: link[1].rate: \"20mbps\" ends in the ambiguous unit \"mbps\": write 20Mbit, or 160Mbit for 20 MB/s",
        ),
        ("\"20Mbit\"", "\"50MB\"", "file.toml:3: link[1].rate: \"50MB\" is bytes, a rate is bits: write 400Mbit (50 MB/s) or 50Mbit"),
        (
            "\"1ms\"",
            "0.001",
            "file.toml:4: link[1].delay: \"0.001\" has no unit: a time takes ns, us, ms, s, min or h, for example 0.001s (1ms)",
        ),
        ("\"200kB\"", "\"4M\"", "file.toml:11: flow[1].bytes: \"4M\" ends in the unknown unit \"M\": write 4MB or 4MiB"),
        ("rate = \"20Mbit\"", "bandwidth = \"20Mbit\"", "file.toml:3: link[1].bandwidth: is not a key here: did you mean rate?"),
        ("delay = \"1ms\"", "rtt = \"1ms\"", "did you mean delay, which is one way: half of the round trip?"),
        (
            "after = 1",
            "after = \"1\"",
            "file.toml:9: split[1].after: is the text \"1\", but a whole number of 0 or more is expected: leave the quotation marks out",
        ),
        (
            "after = 1",
            "after = 1\nmode = \"streem\"",
            "file.toml:10: split[1].mode: cannot be \"streem\": did you mean \"stream\"? It can be stream, store or semi",
        ),
        ("after = 1", "", "file.toml:8: split[1].after: is missing"),
        ("after = 1", "after = 1\nshaper = True", "file.toml:10: is not TOML: true and false are in lower case: shaper = true"),
        (
            "after = 1",
            "after = 1\nbuffer = \"Auto\"",
            "file.toml:10: split[1].buffer: cannot be \"Auto\": write \"auto\", \"adaptive\", \"unlimited\" or a size such as \"1MiB\"",
        ),
        (
            "after = 1",
            "after = 1\ncapacity = \"Auto\"",
            "file.toml:10: split[1].capacity: cannot be \"Auto\": write a rate such as \"10Mbit\", or \"auto\"",
        ),
        (
            "after = 1",
            "after = 1\ncapacity = \"auto\"\nshaper = true",
            "file.toml:11: split[1].shaper: does not go with capacity = \"auto\": a shaper needs a rate",
        ),
        ("bytes = \"200kB\"", "", "flow[1].bytes: is absent, and so is the duration, so that the flow would never end: give one of them"),
        ("[[flow]]", "[[flow]]\nopens = \"client\"", "flow[1].opens: cannot be \"client\": it can be sender or receiver"),
        ("[[flow]]", "[[flow]]\nstart = { uniform = [\"1s\"] }", "flow[1].start.uniform: has 1 values, but 2 are expected"),
        (
            "delay = \"5ms\"",
            "delay = \"5ms\"\nchanges = { at = \"1s\", rate = \"1Mbit\" }",
            "link[2].changes: is one table, but a list of tables is expected: write changes = [{ … }]",
        ),
        ("[[flow]]", "[case]\nname = \"x\"\n[[flow]]", "file.toml:10: case: has to be a list of tables: write [[case]] for each"),
        ("name = \"small\"", "", "file.toml: name: is missing"),
    ];
    expect(&["run"], SCENARIO, &mistakes, &["--on", "sim"]);
}

#[test]
fn the_first_mistake_of_a_file_is_reported_first() {
    let rate = SCENARIO.replace("20Mbit", "20Mbot");
    for other in ["loss = 0.1\ndelay = \"1ms\"", "dealy = \"1ms\""] {
        let (text, _) = tandem(&["run"], &rate.replace("delay = \"1ms\"", other), &[]);
        assert!(text.contains("file.toml:3: link[1].rate: \"20Mbot\""), "{text}");
    }
    for (from, to) in [("[[flow]]", "[flow]"), ("[[flow]]", "[case]\nname = 3\n[[flow]]")] {
        let (text, _) = tandem(&["run"], &rate.replace(from, to), &[]);
        assert!(text.contains("file.toml:3: link[1].rate: \"20Mbot\""), "{text}");
    }
}

#[test]
fn alternative_spellings_of_units_are_accepted() {
    for (from, to) in [
        ("20Mbit", "20Mbps"),
        ("20Mbit", "20mbit"),
        ("rate = \"10Mbit\"", "rate = \"10Mbit\"\nloss = { per_packet = \"0.1%\" }"),
        ("1ms", "1000µs"),
    ] {
        let (text, status) = tandem(&["run"], &SCENARIO.replacen(from, to, 1), &["--on", "sim", "--quiet"]);
        assert_eq!(status, 0, "{to}: {text}");
    }
}

#[test]
fn mistakes_in_set_options() {
    for (set, said) in [
        ("link.rate=5Mbit", "there are 2 of link: say which, as in link.1.…"),
        ("link.3.rate=5Mbit", "there are 2 of link: say which"),
        ("link.2.rate:5Mbit", "has no \"=\": write KEY=VALUE"),
        ("link.2.loss=0.01", "write loss = { per_packet = 0.01 }"),
        ("cross.1.rate=1Mbit", "there is no cross here"),
        ("seed=abc", "--set seed=abc: seed: is the text \"abc\", but a whole number of 0 or more is expected"),
    ] {
        let (text, status) = tandem(&["run"], SCENARIO, &["--on", "sim", "--set", set]);
        assert!(text.contains(said) && status == 2, "{set}: {status} {text}");
    }
}

#[test]
fn a_case_that_an_engine_does_not_support_is_named() {
    let cases = "[[case]]\nname = \"plain\"\n[[case]]\nname = \"with share\"\nset = { \"control.sender\" = \"share\" }\n";
    let (text, status) = tandem(&["run"], &format!("{SCENARIO}{cases}"), &["--on", "sim", "--quiet"]);
    assert!(text.contains("case \"with share\": sim cannot answer control.sender") && status == 3, "{status} {text}");
}

#[test]
fn mistakes_in_configuration_files() {
    let mistakes = [
        ("[[listen]]", "[listen]", "file.toml:2: listen: is one table, but there can be several: write [[listen]] instead of [listen]"),
        ("\"[::]:5000\"", "5000", "file.toml:3: listen[1].transparent: \"5000\" has no address: write [::]:5000"),
        ("\"[::]:5000\"", "\":5000\"", "file.toml:3: listen[1].transparent: \":5000\" has no address: write [::]:5000"),
        ("\"[::]:5000\"", "[::]:5000", "file.toml:3: is not TOML: a text needs quotation marks: transparent = \"[::]:5000\""),
        (
            "transparent = \"[::]:5000\"",
            "forward = \"127.0.0.1:80\"\nto = \"example.com:80\"",
            "listen[1].to: \"example.com:80\" is a name, and names are not looked up here: write an address of it",
        ),
        ("transparent = \"[::]:5000\"", "forward = \"127.0.0.1:80\"", "file.toml:2: listen[1]: needs exactly one of transparent"),
        (
            "threads = 2",
            "threads = \"2\"",
            "file.toml:1: threads: is the text \"2\", but a whole number of 0 or more is expected: leave the quotation marks out",
        ),
        ("threads = 2", "buffer = \"4M\"", "file.toml:1: buffer: \"4M\" ends in the unknown unit \"M\": write 4MB or 4MiB"),
        ("control = \"cubic\"", "controll = \"cubic\"", "file.toml:6: leg[1].controll: is not a key here: did you mean control?"),
        ("control = \"cubic\"", "control = 5", "file.toml:6: leg[1].control: is the number 5, but a text is expected: write \"5\""),
        ("interface = \"sat0\"", "", "file.toml:4: leg[1]: matches no leg: give it an interface"),
        (
            "[[leg]]\ninterface = \"sat0\"",
            "[[far]]",
            "file.toml:4: far: is a list of tables, but there is only one: write [far] instead of [[far]]",
        ),
        ("threads = 2", "far = \"bbr\"", "file.toml:1: far: is the text \"bbr\", but a table is expected: write far = { … }"),
        ("[[leg]]", "[[rule]]\nto = \"10.0.0.0/33\"\n[[leg]]", "file.toml:5: rule[1].to: cannot parse address prefix \"10.0.0.0/33\""),
    ];
    expect(&["proxy", "-c"], PROXY, &mistakes, &["--check=config"]);
}

#[test]
fn mistakes_in_options() {
    let mistakes: &[(&[&str], &str)] = &[
        (&["proxy", "--listen", "5000"], "cannot parse listener \"5000\": expected transparent=ADDRESS:PORT"),
        (&["proxy", "--listen", "transparent=:5000"], "write [::]:5000 for all addresses of this host"),
        (&["proxy", "--listen", "socks5=localhost:1080"], "write its address, 127.0.0.1:1080 or [::1]:1080"),
        (&["proxy", "--listen", "forward=127.0.0.1:8080=example.com:80"], "names are not looked up here: write an address of it"),
        (
            &["proxy", "--listen", "transparent=[::]:5000", "--far", "bbr"],
            "cannot read the profile \"bbr\": if this is a congestion controller, write control=bbr",
        ),
        (&["proxy", "--listen", "transparent=[::]:5000", "--far", "contrl=bbr"], "did you mean control?"),
        (
            &["proxy", "--listen", "transparent=[::]:5000", "--far", "capacity=10M"],
            "capacity \"10M\" ends in the ambiguous unit \"M\": write 10Mbit, or 80Mbit for 10 MB/s",
        ),
        (
            &["proxy", "--listen", "transparent=[::]:5000", "--metrics", "9155"],
            "write [::]:9155 for all addresses of this host, or 127.0.0.1:9155",
        ),
        (
            &["bond", "connect", "--listen", "socks5=127.0.0.1:1080", "--network", "wlan0", "--key", "k", "--to", "example.com"],
            "\"example.com\" has no port: write example.com:7000",
        ),
        (
            &["bond", "connect", "--listen", "socks5=127.0.0.1:1080", "--network", "wlan0", "--key", "k", "--to", "192.0.2.1"],
            "has no port: write 192.0.2.1:5000",
        ),
        (&["flows", "--watch", "0s"], "give at least 100ms: collecting all flows more often keeps the proxy from its work"),
        (&["top", "--every", "99ms"], "give at least 100ms"),
        (&["cache", "--listen", "3128"], "cannot parse listener \"3128\": expected transparent=ADDRESS:PORT"),
    ];
    for (arguments, said) in mistakes {
        let output = Command::new(TANDEM).args(*arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(said) && output.status.code() == Some(2), "{arguments:?}: {text}");
    }
}

/// What a scenario names or counts must neither fill the memory, nor end or hold the program, nor
/// be printed.
#[test]
fn scenario_files_have_bounds() {
    let run = ["run", "--on", "theory"];
    let line = "root:$6$saltsalt$Zc0tWvVhlJ5dZ1cYbUu4Lq9pXk2mB7eT3nR8sG6fH0:19000:0:99999:7:::";
    let mistakes = [
        ("bytes = \"200kB\"", "bytes = \"200kB\"\ncount = 1000000000", "flow[1].count: makes 1000000000 connections in all"),
        (
            "delay = \"5ms\"",
            "delay = \"5ms\"\nsteps = \"/dev/zero\"",
            "link[2].steps: cannot open \"/dev/zero\": it is not a regular file, but a device",
        ),
        (
            "rate = \"10Mbit\"",
            "trace = { down = \"/dev/zero\", up = \"/dev/zero\" }",
            "link[2].trace.down: cannot open \"/dev/zero\": it is not a regular file, but a device",
        ),
    ];
    expect(&run, SCENARIO, &mistakes, &[]);
    let (said, status) = tandem(&run, line, &[]);
    assert!(status == 2 && said.contains("is not TOML") && !said.contains(&line[..45]) && !said.contains(&line[30..]), "{said}");
    let (said, status) = tandem(&run, SCENARIO, &["--set", "seed=1..10000:1", "--set", "flow.1.count=1..10000:1"]);
    assert!(status == 2 && said.contains("has 100000000 variants (cases: 1, values of --set: 10000 × 10000)"), "{said}");
    let (said, status) = tandem(&run, SCENARIO, &["--set", "seed=1..1000:1", "--seeds", "10000"]);
    assert!(status == 2 && said.contains("1000 variants × 10000 seeds × 1 engines are 10000000 runs"), "{said}");

    // The first line of a file that is no list of steps.
    let directory = tempfile::tempdir().unwrap();
    let (secret, fifo) = (directory.path().join("secret"), directory.path().join("fifo"));
    fs::write(&secret, format!("{line}\n{line}\n")).unwrap();
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for (file, expected) in [(&secret, "link[2].steps: "), (&fifo, "it is not a regular file, but a pipe")] {
        let steps = SCENARIO.replace("delay = \"5ms\"", &format!("delay = \"5ms\"\nsteps = {:?}", file.to_str().unwrap()));
        let (said, status) = tandem(&run, &steps, &[]);
        assert!(status == 2 && said.contains(expected) && !said.contains(&line[..45]) && !said.contains(&line[30..]), "{said}");
    }
    // The same for the proxy's file, and files that it names.
    let (said, status) = tandem(&["proxy", "--check=config", "-c"], line, &[]);
    assert!(status == 2 && said.contains("is not TOML") && !said.contains(&line[..45]) && !said.contains(&line[30..]), "{said}");
    for (keys, key) in [
        ("[bond]\nkey_file = \"/dev/zero\"\n", "the key"),
        ("[page]\nlisten = \"127.0.0.1:1\"\ntoken_file = \"/dev/zero\"\n", "the page's token"),
    ] {
        let (said, status) = tandem(&["proxy", "--check=config", "-c"], &format!("{PROXY}{keys}"), &[]);
        assert!(status == 2 && said.contains(key) && said.contains("it is not a regular file, but a device"), "{said}");
    }
    let output = Command::new(TANDEM).args(["proxy", "--check=config", "-c", "/dev/zero"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("it is not a regular file, but a device"), "{output:?}");
}
