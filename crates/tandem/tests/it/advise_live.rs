//! `tandem advise --live`: advice from what the running proxy has measured, and its application.

use crate::common::{
    Daemon, TANDEM,
    middle::{self, Middle},
    routed::{dial, listen},
    skip, wait_until,
};
use proxy::control::Remote;
use serde_json::Value;
use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Output,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

/// A proxy between a client and a server that sends downloads of so many bytes.
struct Running {
    middle: Middle,
    bytes: usize,
    _proxy: Daemon,
}

impl Running {
    fn new(middle: Middle, bytes: usize, arguments: &[&str]) -> Self {
        let listener = listen(middle.server(), 80);
        thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                thread::spawn(move || client.read_exact(&mut [0]).is_ok() && client.write_all(&vec![7; bytes]).is_ok());
            }
        });
        let proxy = Daemon::start(middle.router().command(TANDEM).arg("proxy").args(arguments));
        let running = Running { middle, bytes, _proxy: proxy };
        wait_until("the proxy is up", || running.remote(|remote| remote.status().is_ok()));
        running
    }

    fn remote<T: Send>(&self, ask: impl FnOnce(Remote) -> T + Send) -> T {
        self.middle.router().enter(|| ask(Remote::named("default"))).unwrap()
    }

    /// Runs `tandem advise --live` while the client downloads.
    fn advise(&self, arguments: &[&str]) -> Output {
        let is_over = AtomicBool::new(false);
        let server = self.middle.addresses()[0].to_string();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !is_over.load(Relaxed) {
                        let mut stream = dial(self.middle.client(), &server, 80, |_| Ok(())).unwrap();
                        let (mut got, mut part) = (0, vec![0; 1 << 16]);
                        stream.write_all(b"x").unwrap();
                        while let Ok(count @ 1..) = stream.read(&mut part) {
                            got += count;
                        }
                        assert!(got == self.bytes || is_over.load(Relaxed), "{got} bytes");
                    }
                });
            }
            let mut command = self.middle.router().command(TANDEM);
            let output = command.args(["advise", "--live", "--for", "8s", "--seeds", "2"]).args(arguments).output();
            is_over.store(true, Relaxed);
            output.unwrap()
        })
    }
}

#[test]
fn advice_rests_on_what_the_proxy_has_measured() {
    if skip("advice_rests_on_what_the_proxy_has_measured", &["nft", "ip"]) {
        return;
    }
    let running = Running::new(middle::plain(), 2_000_000, &["--listen", "transparent=[::]:5000"]);
    let output = running.advise(&["--rate", "100Mbit", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let advice: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [of_prefix] = &advice.as_array().unwrap()[..] else { panic!("{advice}") };
    let path = &of_prefix["path"];
    let rtt = |leg: &str| path[leg]["rtt_s"].as_f64().unwrap();
    // The least round trips: those of the links, and what a busy machine adds.
    assert!((0.0079..0.06).contains(&rtt("near")) && (0.0319..0.1).contains(&rtt("far")), "{path}");
    assert!(path["prefix"].as_str().unwrap().ends_with(".0/24") && path["flows"].as_u64().unwrap() >= 3, "{path}");
    assert!(path["near"]["loss"].as_f64().unwrap() < 0.2 && path["far"]["loss"].is_null(), "only the near leg sends: {path}");
    assert!(["split", "bypass", "none"].contains(&of_prefix["recommendation"]["action"].as_str().unwrap()), "{advice}");
    let refused = running.advise(&["--apply"]);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("the proxy runs from flags"), "{refused:?}");
}

#[test]
fn advice_is_applied_and_the_old_file_is_kept() {
    if skip("advice_is_applied_and_the_old_file_is_kept", &["nft", "ip"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("proxy.toml");
    let old = "# The gateway's file.\n[[listen]]\ntransparent = \"[::]:5000\" # all\n";
    fs::write(&file, old).unwrap();
    // Each loss halves the window of CUBIC, so that BBR on the near leg is several times as fast.
    let running = Running::new(middle::satellite(), 3_000_000, &["-c", file.to_str().unwrap()]);
    // A proxy that runs as another user could name a file of its own.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let refused = running.advise(&["--apply"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("cannot apply advice: other users may write to"), "{said}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    // The losses that a busy machine adds can make the simulated gain doubtful: ask again.
    let ask_with = |more: &[&str]| {
        let output = running.advise(&[&["--rate", "20Mbit", "--by", "interface", "--apply"], more].concat());
        let said = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output, said)
    };
    let ask = || ask_with(&[]);
    let (output, said) = (0..5).map(|_| ask()).find(|(output, _)| output.status.success()).unwrap_or_else(ask);
    let configuration = running.remote(|remote| remote.status().unwrap()).details.configuration.unwrap();
    assert_eq!(configuration, file.canonicalize().unwrap());
    let now = fs::read_to_string(&file).unwrap();
    assert!(output.status.success() && said.contains("has read"), "{said}");
    for line in ["# The gateway's file.", "# all", "# By tandem advise --live --apply.", "[[rule]]", "near = \"advice-"] {
        assert!(now.contains(line), "{line}: {now}");
    }
    let client = running.middle.client_addresses()[0].to_string();
    let interface = running.middle.router().command("ip").args(["-o", "route", "get", &client]).output().unwrap();
    let interface = String::from_utf8(interface.stdout).unwrap();
    let interface = interface.split_whitespace().skip_while(|word| *word != "dev").nth(1).unwrap();
    assert!(now.contains(&format!("in   = \"{interface}\"")), "{interface}: {now}");
    assert_eq!(fs::read_to_string(directory.path().join("proxy.toml.bak")).unwrap(), old);
    assert!(!Path::new(&directory.path().join("proxy.toml.new")).exists());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);

    // It need not be applied again.
    let is_there = |said: &str| said.contains("has these settings already: nothing was changed.");
    let (output, said) = (0..5).map(|_| ask()).find(|(_, said)| is_there(said)).unwrap_or_else(ask);
    assert!(output.status.success() && is_there(&said), "{said}");
    assert_eq!(fs::read_to_string(&file).unwrap(), now);

    // The experiment judges it: of so few connections it says nothing, and the advice stays.
    let (output, said) = ask_with(&["--verify", "3s"]);
    assert!(!output.status.success() && said.contains("the proxy runs no experiment; add experiment ="), "{said}");
    fs::write(&file, format!("experiment = \"1 in 2\"\n{old}")).unwrap();
    assert!(running.remote(|remote| remote.reload().is_ok_and(|report| report.refused.is_none())));
    let verified = || ask_with(&["--verify", "3s"]);
    let (output, said) = (0..5).map(|_| verified()).find(|(output, _)| output.status.success()).unwrap_or_else(verified);
    assert!(output.status.success() && said.contains("all connections: too few connections to compare."), "{said}");
    assert!(fs::read_to_string(&file).unwrap().contains("# By tandem advise --live --apply."));
}
