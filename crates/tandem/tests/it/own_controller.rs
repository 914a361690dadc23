//! An own controller from its header to the simulator, the lab, the kernel and the proxy, by the
//! commands of the documentation.

use crate::common::{TANDEM, skip};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const SATELLITE: &str = "name = \"satellite\"\n[[link]]\nrate = \"100Mbit\"\ndelay = \"2ms\"\n\
    [[link]]\nrate = \"20Mbit\"\ndelay = \"20ms\"\nqueue = \"1BDP\"\nloss = { per_packet = 0.001 }\n\
    [[split]]\nafter = 1\n[[flow]]\nbytes = \"2MB\"\n";

/// A directory with the example of the documentation under a name of its own, so that tests do not
/// meet in the kernel, and with a scenario.
struct Bench {
    directory: tempfile::TempDir,
}

impl Bench {
    fn new(name: &str) -> Bench {
        let page = include_str!("../../../../docs/how-to/own-controller.md");
        let (_, rest) = page.split_once("```c\n").unwrap();
        let header = rest.split_once("```").unwrap().0.replace("aimd", name);
        let bench = Bench { directory: tempfile::tempdir().unwrap() };
        fs::write(bench.path(&format!("{name}.h")), header).unwrap();
        fs::write(bench.path("satellite.toml"), SATELLITE).unwrap();
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Exit status and output of a command in the directory.
    fn run(&self, command: &mut Command) -> (i32, String) {
        let output = command.current_dir(self.directory.path()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap_or(-1), text(&output.stdout) + &text(&output.stderr))
    }

    fn tandem(&self, arguments: &[&str]) -> (i32, String) {
        self.run(Command::new(TANDEM).args(arguments))
    }

    /// Output of a command that must succeed.
    fn must(&self, arguments: &[&str]) -> String {
        let (status, text) = self.tandem(arguments);
        assert_eq!(status, 0, "{arguments:?}: {text}");
        text
    }

    /// Outcomes of the scenario with this controller behind the proxy.
    fn outcomes(&self, engine: &str, control: &str) -> serde_json::Value {
        let output = Command::new(TANDEM)
            .args(["run", "satellite.toml", "--on", engine, "--json", "--set"])
            .arg(format!("control.proxy={control}"))
            .current_dir(self.directory.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// Whether this process may load programs into the kernel.
fn may_load(test: &str) -> bool {
    match kernel::load("reno", &[]) {
        Ok(_) => true,
        Err(why) => {
            testing::skipped(test, &why);
            false
        }
    }
}

#[test]
fn the_example_runs_in_the_simulator_and_in_the_lab() {
    const TEST: &str = "the_example_runs_in_the_simulator_and_in_the_lab";
    if skip(TEST, &["clang"]) {
        return;
    }
    let bench = Bench::new("aimd_run");
    let text = bench.must(&["control", "build", "aimd_run.h", "--to", "."]);
    assert!(text.contains("built ./aimd_run.ctl") && text.contains("control = \"./aimd_run.ctl\""), "{text}");

    // At its defaults it is NewReno.
    let own = bench.outcomes("sim", "./aimd_run.ctl");
    assert_eq!(own[0]["valid"], true, "{own}");
    assert_eq!(own, bench.outcomes("sim", "./aimd_run.ctl"), "the same each time");
    assert_eq!(own[0]["flows"][0]["end_s"], bench.outcomes("sim", "td_reno")[0]["flows"][0]["end_s"], "{own}");
    let fast = bench.outcomes("sim", "./aimd_run.ctl,add=8");
    assert_ne!(own[0]["flows"][0]["end_s"], fast[0]["flows"][0]["end_s"], "{fast}");

    let (status, text) = bench.tandem(&["run", "satellite.toml", "--on", "sim", "--set", "control.proxy=./aimd_run.ctl,gain=8"]);
    assert_eq!(status, 2, "{text}");
    assert!(text.contains("its tunables are add (1 to 100, default 1), keep_milli (100 to 999, default 500)"), "{text}");

    if may_load(TEST) {
        let played = bench.outcomes("lab", "./aimd_run.ctl,add=8");
        assert!(played[0]["goodput_bps"].as_f64().unwrap() > 0.0, "{played}");
    }
}

#[test]
fn the_example_is_loaded_listed_and_unloaded() {
    const TEST: &str = "the_example_is_loaded_listed_and_unloaded";
    if skip(TEST, &["clang"]) || !may_load(TEST) {
        return;
    }
    let bench = Bench::new("aimd_load");
    let text = bench.must(&["control", "build", "aimd_load.h", "--to", "."]);
    assert!(text.contains("the verifier of this kernel accepts it"), "{text}");
    let text = bench.must(&["control", "load", "./aimd_load.ctl", "--set", "aimd_load.add=3"]);
    assert_eq!(text, "td_aimd_load is loaded\n");
    let available = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
    assert!(available.split_whitespace().any(|name| name == "td_aimd_load"), "{available}");

    // The proxy uses it; another build of the same name is not mixed up with it.
    let listen = ["proxy", "--listen", "forward=127.0.0.1:0=127.0.0.1:9", "--far", "control=./aimd_load.ctl", "--check"];
    let text = bench.must(&listen);
    assert!(text.contains("td_aimd_load") || text.contains("aimd_load"), "{text}");
    let header = fs::read_to_string(bench.path("aimd_load.h")).unwrap();
    fs::write(bench.path("aimd_load.h"), header.replace("/ 1000, 2)", "/ 1000, 4)")).unwrap();
    bench.must(&["control", "build", "aimd_load.h", "--to", "."]);
    let (status, text) = bench.tandem(&["control", "load", "./aimd_load.ctl"]);
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("another build of td_aimd_load is loaded in this kernel: unload it first"), "{text}");

    // Without its file it is unloaded by its name.
    fs::remove_file(bench.path("aimd_load.ctl")).unwrap();
    assert_eq!(bench.must(&["control", "unload", "aimd_load"]), "td_aimd_load is unloaded\n");
    let available = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
    assert!(!available.split_whitespace().any(|name| name == "td_aimd_load"), "{available}");
}

#[test]
fn a_file_that_others_may_change_is_simulated_but_not_loaded() {
    const TEST: &str = "a_file_that_others_may_change_is_simulated_but_not_loaded";
    if skip(TEST, &["clang", "chmod"]) || !may_load(TEST) {
        return;
    }
    let bench = Bench::new("aimd_open");
    bench.must(&["control", "build", "aimd_open.h", "--to", "open"]);
    let open = bench.path("open");
    assert!(Command::new("chmod").args(["777"]).arg(&open).status().unwrap().success());
    assert_eq!(bench.outcomes("sim", "open/aimd_open.ctl")[0]["valid"], true);
    let (status, text) = bench.tandem(&["control", "load", "open/aimd_open.ctl"]);
    assert_eq!(status, 2, "{text}");
    let cure = format!("chmod go-w {}", open.canonicalize().unwrap().display());
    assert!(text.contains("other users may write to") && text.contains(&cure), "{text}");
    let listen = ["proxy", "--listen", "forward=127.0.0.1:0=127.0.0.1:9", "--far", "control=open/aimd_open.ctl", "--check"];
    let (status, text) = bench.tandem(&listen);
    assert!(status != 0 && text.contains("other users may write to"), "{text}");
}

#[test]
fn controllers_are_found_by_name_in_the_directory_of_the_system() {
    const TEST: &str = "controllers_are_found_by_name_in_the_directory_of_the_system";
    if skip(TEST, &["clang", "unshare", "mount"]) {
        return;
    }
    let bench = Bench::new("aimd_name");
    // A mount namespace with a /var/lib of its own: the test installs nothing on this machine.
    let script = format!(
        "set -e; mount -t tmpfs none /var/lib; {TANDEM} control build aimd_name.h; {TANDEM} control list --json > list.json; \
         {TANDEM} run satellite.toml --on sim --set control.proxy=aimd_name; \
         mv aimd_name.h renamed.h; sed 's/\"interface\":\"/&x/' /var/lib/tandem/controllers/aimd_name.ctl > other; \
         mv other /var/lib/tandem/controllers/aimd_name.ctl; \
         ! {TANDEM} run satellite.toml --on sim --set control.proxy=aimd_name"
    );
    let (status, text) = bench.run(Command::new("unshare").args(["--mount", "sh", "-c", &script]));
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("built /var/lib/tandem/controllers/aimd_name.ctl") && text.contains("control = \"aimd_name\""), "{text}");
    assert!(text.contains("for another version of the interface") && text.contains("tandem control build aimd_name.h"), "{text}");
    if may_load(TEST) {
        let rows: serde_json::Value = serde_json::from_slice(&fs::read(bench.path("list.json")).unwrap()).unwrap();
        let row = rows.as_array().unwrap().iter().find(|row| row["name"] == "td_aimd_name").unwrap();
        assert_eq!(row["file"], "/var/lib/tandem/controllers/aimd_name.ctl");
        assert_eq!(row["tunables"][0]["name"], "add");
    }
}

#[test]
fn errors_of_the_header_and_a_missing_compiler_are_said() {
    let bench = Bench::new("aimd_bad");
    let (status, text) =
        bench.run(Command::new(TANDEM).args(["control", "build", "aimd_bad.h", "--to", "."]).env("CLANG", "/nowhere/clang"));
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("cannot run /nowhere/clang") && text.contains("apt install clang"), "{text}");
    let (status, text) = bench.tandem(&["run", "satellite.toml", "--on", "sim", "--set", "control.proxy=./none.ctl"]);
    assert_eq!(status, 2, "{text}");
    assert!(text.contains("cannot read the controller ./none.ctl: there is no such file"), "{text}");

    if testing::missing(&["clang"]).is_some() {
        return testing::skipped("errors_of_the_header_and_a_missing_compiler_are_said", &"clang is not installed");
    }
    let header = fs::read_to_string(bench.path("aimd_bad.h")).unwrap();
    let line = header.lines().position(|line| line.contains("s->credit = 0;")).unwrap() + 1;
    fs::write(bench.path("aimd_bad.h"), header.replacen("s->credit = 0;", "s->credits = 0;", 1)).unwrap();
    let (status, text) = bench.tandem(&["control", "build", "aimd_bad.h", "--to", "."]);
    assert_eq!(status, 2, "{text}");
    assert!(text.contains(&format!("aimd_bad.h:{line}:")) && text.contains("no member named 'credits'"), "{text}");
    assert!(!Path::new(&bench.path("aimd_bad.ctl")).exists());

    let text = bench.must(&["control", "headers", "headers"]);
    assert!(text.contains("intf.h") && bench.path("headers/intf.h").exists(), "{text}");
}
