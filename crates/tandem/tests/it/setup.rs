//! `tandem setup`, by options and on a terminal, and that the file it writes splits connections.

use crate::common::{
    TANDEM,
    routed::{Routed, SERVER, echoes},
    skip,
};
use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    process::{Output, Stdio},
};

/// Returns the exit status, stdout and stderr.
fn said(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// The proxy with this file splits a connection of the client.
fn splits(routed: &Routed, file: &str) {
    routed.echo(80);
    let proxy = routed.start(&["-c", file]);
    let before = routed.verdicts().0;
    assert!(echoes(&mut routed.connect(SERVER[0], 80).unwrap()));
    assert_eq!(routed.verdicts().0, before + 1, "{}", routed.log());
    drop(proxy);
}

#[test]
fn setup_by_options_writes_a_file_that_runs() {
    if skip("setup_by_options_writes_a_file_that_runs", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    let path = routed.path("etc/tandem.toml");
    let file = path.to_str().unwrap();
    let setup = |arguments: &[&str]| {
        let arguments = [&["setup", "-o", file], arguments].concat();
        said(&routed.router.command(TANDEM).args(arguments).stdin(Stdio::null()).output().unwrap())
    };
    let (status, _, error) = setup(&[]);
    assert!(status == 2 && error.contains("stdin is no terminal"), "{error}");
    // Two interfaces and no default route.
    let (status, _, error) = setup(&["--yes"]);
    assert!(status == 2 && error.contains("which interface is the long link cannot be told"), "{error}");
    let (status, _, error) = setup(&["--yes", "--long-link", "sat7"]);
    assert!(status == 2 && error.contains("no interface is named sat7: this host has ") && error.contains("near"), "{error}");
    assert!(!path.exists());

    let link = ["--long-link", "far", "--rate", "50Mbit,600ms", "--side", "here"];
    let answers = [&link[..], &["--nat", "none", "--clients", "10.99.1.0/24", "--metrics", "none"]].concat();
    let (status, out, error) = setup(&answers);
    assert_eq!(status, 0, "{out}{error}");
    assert!(out.contains(&format!("nothing is in the way; next: tandem proxy -c {file}")), "{out}");
    let split = "\u{2713} make a test connection from 10.99.1.1 (near) to 10.99.2.2:443 (far): split: sent to the client by ";
    assert!(out.contains(split), "{out}");
    let text = fs::read_to_string(&path).unwrap();
    let lines = ["interface = \"far\"", "buffer  = \"auto\"", "shape     = false", "from   = [\"10.99.1.0/24\"]", "#metrics"];
    for line in lines {
        assert!(text.contains(line), "{line}: {text}");
    }
    splits(&routed, file);

    // The unmodified file of the package is replaced without --force.
    let packaged = include_str!("../../../../packaging/proxy.toml");
    fs::write(&path, packaged).unwrap();
    let (status, out, error) = setup(&answers);
    let kept = routed.path("etc/tandem.toml.old");
    assert!(status == 0 && fs::read_to_string(&kept).unwrap() == packaged, "{out}{error}");
    assert!(fs::read_to_string(&path).unwrap().contains("control   = \"share\""));
    fs::remove_file(kept).unwrap();

    // An existing file stays, or is kept beside.
    let (status, _, error) = setup(&answers);
    assert!(status == 2 && error.contains("exists: --force replaces it"), "{error}");
    for old in ["tandem.toml.old", "tandem.toml.old2"] {
        let (status, out, error) = setup(&["--yes", "--long-link", "far", "--nat", "none", "--force"]);
        assert!(status == 0 && out.contains(&format!("the old file is {}", path.with_file_name(old).display())), "{out}{error}");
    }
    assert_eq!(fs::read_to_string(path.with_file_name("tandem.toml.old")).unwrap(), text);

    // Links that others have planted are not followed, and a directory of theirs is refused.
    let victim = routed.path("victim");
    fs::write(&victim, "precious").unwrap();
    for name in ["tandem.toml.new", "tandem.toml.old3"] {
        std::os::unix::fs::symlink(&victim, path.with_file_name(name)).unwrap();
    }
    let (status, out, error) = setup(&["--yes", "--long-link", "far", "--nat", "none", "--force"]);
    assert!(status == 0 && out.contains("tandem.toml.old4"), "{out}{error}");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    let directory = path.parent().unwrap();
    fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
    let (status, _, error) = setup(&["--yes", "--long-link", "far", "--nat", "none", "--force"]);
    assert!(status == 1 && error.contains(&format!("other users may write to {} (mode 777)", directory.display())), "{error}");
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();

    // What is in the way is named: NAT that is not there, a port that is taken.
    let _taken = routed.router.enter(|| std::net::TcpListener::bind("127.0.0.1:9155").unwrap()).unwrap();
    let (status, out, error) = setup(&["--yes", "--long-link", "far", "--nat", "here", "--force"]);
    assert_eq!(status, 1, "{out}");
    assert!(out.contains("\u{2717} translate addresses on far: no nftables rule translates addresses there"), "{out}");
    assert!(out.contains("127.0.0.1:9155") && error.contains("2 of ") && error.contains("something in the way"), "{out}{error}");
    let rules = "add table ip nat; add chain ip nat post { type nat hook postrouting priority srcnat; }; \
                 add rule ip nat post oifname \"far\" masquerade";
    assert!(routed.router.command("nft").arg(rules).status().unwrap().success());
    let (_, out, _) = setup(&["--yes", "--long-link", "far", "--force"]);
    assert!(out.contains("\u{2713} translate addresses on far: by the rule: oifname \"far\" masquerade"), "{out}");
}

#[test]
fn setup_asks_six_questions_on_a_terminal() {
    if skip("setup_asks_six_questions_on_a_terminal", &["nft", "ip", "script"]) {
        return;
    }
    let routed = Routed::new();
    let path = routed.path("asked.toml");
    let file = path.to_str().unwrap();
    // `script` gives the program a terminal of its own.
    let ask = |answers: &str| {
        let command = format!("{TANDEM} setup -o {file}");
        let mut script = routed.router.command("script");
        let script = script.args(["-qec", &command, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = script.spawn().unwrap();
        child.stdin.take().unwrap().write_all(answers.as_bytes()).unwrap();
        said(&child.wait_with_output().unwrap())
    };
    // A wrong answer is asked again; an empty one is the suggestion.
    let (status, out, _) = ask("sat7\nfar\nfast\n20Mbit,300ms\n\n\nall\nnone\n");
    assert_eq!(status, 0, "{out}");
    for text in [
        "1. Which interface is the long link",
        "10.99.2.1/24",
        "no interface is named \"sat7\"",
        "2. What are its rate and its round-trip time",
        "3. Where are the clients: here, on this side of far",
        "4. Where are the clients' addresses translated (NAT) on their way to the servers, which leaves this host through far",
        "nftables has no rule for it",
        "5. Whose connections may be split?",
        "10.99.1.0/24",
        "6. At which address are metrics served",
        "nothing is in the way",
    ] {
        assert!(out.contains(text), "{text}: {out}");
    }
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("interface = \"far\"") && text.contains("20Mbit, 300ms") && !text.contains("from "), "{text}");
    splits(&routed, file);
}

#[test]
fn on_a_gateway_setup_splits_the_clients_behind_the_long_link() {
    let test = "on_a_gateway_setup_splits_the_clients_behind_the_long_link";
    if skip(test, &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    // The servers are the default route's; the clients, and a host beside them, are behind "near".
    assert!(routed.router.command("ip").args(["route", "add", "default", "via", SERVER[0], "dev", "far"]).status().unwrap().success());
    let path = routed.path("gateway.toml");
    let file = path.to_str().unwrap();
    let setup = ["setup", "-o", file, "--yes", "--long-link", "near", "--rate", "50Mbit,600ms", "--metrics", "none"];
    let (status, out, error) = said(&routed.router.command(TANDEM).args(setup).stdin(Stdio::null()).output().unwrap());
    assert_eq!(status, 0, "{out}{error}");
    let text = fs::read_to_string(&path).unwrap();
    for line in ["# The clients are behind it.", "from   = [\"10.99.1.0/24\"", "in     = \"near\""] {
        assert!(text.contains(line), "{line}: {text}");
    }
    splits(&routed, file);
}
