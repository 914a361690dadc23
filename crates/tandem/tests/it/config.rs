//! `tandem config` and `tandem reload`, and configurations of several files.

use crate::common::{TANDEM, routed::Routed, skip, wait_until};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

/// Returns the exit status, stdout and stderr of `tandem` with these arguments.
fn tandem(arguments: &[&str], variables: &[(&str, &str)]) -> (i32, String, String) {
    let output = Command::new(TANDEM).args(arguments).env_remove("TANDEM_TEST_KEY").envs(variables.iter().copied()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

const MAIN: &str = "include = [\"conf.d/*.toml\"]\nbuffer = \"8MiB\"\n\n[[listen]]\nsocks5 = \"127.0.0.1:1080\"\n\
                    users = [\"alice:${TANDEM_TEST_KEY}\"]\n\n[[rule]]\nto = \"192.0.2.0/24\"\naction = \"refuse\"\n";
const KEY: (&str, &str) = ("TANDEM_TEST_KEY", "correct horse battery staple");

/// Writes a configuration of three files, and returns the first one.
fn files() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    fs::create_dir(directory.path().join("conf.d")).unwrap();
    write("conf.d/20-second.toml", "[[rule]]\nto = \"198.51.100.0/24\"\naction = \"refuse\"\n");
    write("conf.d/10-first.toml", "threads = 2\n[bond]\nkey = \"${TANDEM_TEST_KEY}\"\nto = \"127.0.0.1:9\"\n");
    write("proxy.toml", MAIN);
    let main = directory.path().join("proxy.toml");
    (directory, main)
}

#[test]
fn check_reads_included_files_and_variables() {
    let (directory, main) = files();
    let file = main.to_str().unwrap();
    let (status, out, error) = tandem(&["config", "check", file], &[KEY]);
    assert_eq!((status, out.as_str()), (0, "the configuration can be used\n"), "{error}");

    let (status, _, error) = tandem(&["config", "check", file], &[]);
    assert_eq!(status, 2);
    assert!(
        error.contains("10-first.toml:3: bond.key: names the variable TANDEM_TEST_KEY of the environment, which is not set"),
        "{error}"
    );
    let (status, _, error) = tandem(&["config", "check", file], &[("TANDEM_TEST_KEY", "swordfish")]);
    assert!(status == 2 && error.contains("10-first.toml:3: bond.key: ") && !error.contains("swordfish"), "{error}");

    let second = directory.path().join("conf.d/20-second.toml");
    fs::write(&second, "[[rule]]\nto = \"198.51.100.0/24\"\nactoin = \"refuse\"\n").unwrap();
    let (status, _, error) = tandem(&["config", "check", file], &[KEY]);
    assert!(status == 2 && error.contains("20-second.toml:3: rule[1].actoin: is not a key here: did you mean action?"), "{error}");
    fs::write(&second, "threads = 3\n").unwrap();
    let (status, _, error) = tandem(&["config", "check", file], &[KEY]);
    let first = directory.path().join("conf.d/10-first.toml");
    let expected = format!("20-second.toml:1: threads: is set at {}:1 too", first.display());
    assert!(status == 2 && error.contains(&expected), "{error}");

    // A secret in a file that others can read is refused, wherever it is.
    fs::write(&second, "[page]\nlisten = \"127.0.0.1:9\"\ntoken = \"0123456789abcdef\"\n").unwrap();
    fs::set_permissions(&second, fs::Permissions::from_mode(0o644)).unwrap();
    let (status, _, error) = tandem(&["config", "check", file], &[KEY]);
    assert!(status == 2 && error.contains("20-second.toml: it has passwords, and every user"), "{error}");
    fs::set_permissions(&second, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(tandem(&["config", "check", file], &[KEY]).0, 0);
}

#[test]
fn show_prints_a_file_that_has_the_same_effect() {
    let (directory, main) = files();
    let (status, out, error) = tandem(&["config", "show", main.to_str().unwrap()], &[KEY]);
    assert_eq!(status, 0, "{error}");
    assert!(!out.contains("horse"), "{out}");
    let line = |start: &str| out.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}: {out}"));
    for (key, place) in [
        ("threads = 2 ", "/conf.d/10-first.toml:1"),
        ("buffer = \"8MiB\" ", "/proxy.toml:2"),
        ("connect_timeout = \"30s\" ", "# default"),
        ("key = \"${TANDEM_TEST_KEY}\"", "/conf.d/10-first.toml:3"),
        ("spares = 2 ", "# default"),
        ("to = \"198.51.100.0/24\"", "/conf.d/20-second.toml:2"),
        ("[[listen]]", "/proxy.toml:4"),
    ] {
        assert!(line(key).ends_with(place), "{key}: {}", line(key));
    }
    assert!(out.find("198.51.100.0/24") < out.find("192.0.2.0/24"), "included rules come first: {out}");
    let whole = directory.path().join("whole.toml");
    fs::write(&whole, &out).unwrap();
    assert_eq!(tandem(&["config", "check", whole.to_str().unwrap()], &[KEY]).0, 0, "{out}");

    fs::write(&main, MAIN.replace("alice:${TANDEM_TEST_KEY}", "alice:swordfish")).unwrap();
    fs::set_permissions(&main, fs::Permissions::from_mode(0o600)).unwrap();
    let (status, out, error) = tandem(&["config", "show", "--json", main.to_str().unwrap()], &[KEY]);
    assert!(status == 0 && !out.contains("swordfish"), "{out}{error}");
    let keys: Vec<serde_json::Value> = serde_json::from_str(&out).unwrap();
    let users = keys.iter().find(|key| key["key"] == "listen[1].users").unwrap();
    assert_eq!((&users["value"], &users["line"]), (&"[\"(secret)\"]".into(), &6.into()));
    assert!(keys.iter().any(|key| key["key"] == "log_flows" && key.get("file").is_none()), "{out}");
}

#[test]
fn show_prints_every_key_of_the_example() {
    let keys = tempfile::tempdir().unwrap();
    let secret = |name: &str, text: &str| {
        let path = keys.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    };
    secret("bond.key", "a key of more than sixteen bytes");
    secret("users", "alice:secret\n");
    secret("page.token", "0123456789abcdef0123456789abcdef\n");
    let example = include_str!("../../../proxy/tests/proxy.toml").replace("/etc/tandem/", &format!("{}/", keys.path().display()));
    let main = keys.path().join("proxy.toml");
    fs::write(&main, &example).unwrap();
    let (status, out, error) = tandem(&["config", "show", main.to_str().unwrap()], &[]);
    assert_eq!(status, 0, "{error}");
    // Without the defaults it is the file itself.
    let set: String = out.lines().filter(|line| !line.ends_with("# default")).map(|line| format!("{line}\n")).collect();
    let mut written = example.parse::<toml::Table>().unwrap();
    written.remove("include");
    assert_eq!(set.parse::<toml::Table>().unwrap(), written, "{out}");
}

#[test]
fn explain_describes_keys_and_knows_what_is_meant() {
    let (status, out, _) = tandem(&["config", "explain", "connect_timeout"], &[]);
    assert_eq!(status, 0);
    for text in
        ["connect_timeout: time: \"20ms\"\ndefault: \"30s\"\n", "Time that a dialled leg may take", "after a change: a reload applies it"]
    {
        assert!(out.contains(text), "{out}");
    }
    for (key, text) in [
        ("[[listen]]", "Exactly one of"),
        ("rule[2].action", "bypass: the connection passes unsplit"),
        ("threads", "after a change: tandem restart"),
        ("near.mss", "after a change: it needs a stop and a new start"),
        ("bond", "bond.network"),
    ] {
        let (status, out, error) = tandem(&["config", "explain", key], &[]);
        let flat = out.split_whitespace().collect::<Vec<_>>().join(" ").replace('`', "");
        assert!(status == 0 && (flat.contains(text) || key == "[[listen]]"), "{key}: {out}{error}");
    }
    let (status, out, _) = tandem(&["config", "explain"], &[]);
    assert!(status == 0 && ["threads", "rule", "bond"].into_iter().all(|key| out.contains(key)), "{out}");
    for (key, cure) in [
        ("treads", "did you mean threads?"),
        ("leg.contrl", "did you mean leg.control?"),
        ("keepalive", "keepalive is a key of near.keepalive, far.keepalive, leg.keepalive or bond.network.keepalive"),
        ("nothing.at.all", "tandem config explain lists all tables and keys"),
    ] {
        let (status, _, error) = tandem(&["config", "explain", key], &[]);
        assert!(status == 2 && error.contains(cure), "{key}: {error}");
    }
}

#[test]
fn reload_says_what_changed_and_what_it_takes() {
    if skip("reload_says_what_changed_and_what_it_takes", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    let rules = routed.write("").with_file_name("rules.toml");
    let main = |more: &str| format!("include = \"rules.toml\"\n{more}\n[[listen]]\ntransparent = \"[::]:5000\"\n");
    fs::write(&rules, "[[rule]]\nports = 22\naction = \"bypass\"\n").unwrap();
    let path = routed.write(&main("idle_timeout = \"1h\""));
    let _proxy = routed.start(&["-c", path.to_str().unwrap()]);
    let reload = |arguments: &[&str]| {
        let output = routed.router.command(TANDEM).arg("reload").args(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
    };
    assert_eq!(reload(&[]), (0, "no key has changed\n".into(), String::new()));

    let write_rules = |text: &str| fs::write(&rules, text).unwrap();
    write_rules("[[rule]]\nports = 23\naction = \"bypass\"\n[[rule]]\nports = 25\naction = \"bypass\"\n");
    routed.write(&main("idle_timeout = \"2h\""));
    let (status, out, error) = reload(&[]);
    assert_eq!(status, 0, "{error}");
    let expected = "rule[1].ports: 22 → 23 (a reload applies it to new connections)\n\
                    rule[2]: { ports = 25, action = \"bypass\" } added (a reload applies it to new connections)\n\
                    idle_timeout: \"1h\" → \"2h\" (a reload applies it to new connections)\n";
    assert_eq!(out, expected);
    wait_until("the log says it", || routed.log().contains("reload: rule[1].ports: 22 → 23"));
    let nft = routed.router.command("nft").args(["list", "chain", "inet", "tandem", "intercept"]).output().unwrap();
    let chain = String::from_utf8_lossy(&nft.stdout).into_owned();
    assert!(chain.contains("23") && chain.contains("25") && !chain.contains("dport 22 "), "{chain}");

    // One key that a reload cannot change keeps all others from being applied.
    routed.write(&main("idle_timeout = \"3h\"\nthreads = 2\nname = \"other\""));
    let (status, out, error) = reload(&["--json"]);
    assert!(status == 1 && error.is_empty(), "{error}");
    let report: proxy::ReloadReport = serde_json::from_str(&out).unwrap();
    let refused = report.refused.unwrap();
    assert!(refused.contains("threads: 2 added (tandem restart has a new process take over with it)"), "{refused}");
    assert!(refused.contains("name: \"other\" added (it needs a stop and a new start)"), "{refused}");
    assert!(!refused.contains("idle_timeout") && report.changes.len() == 3, "{refused}");

    write_rules("[[rule]]\nports = \"x\"\n");
    let (status, _, error) = reload(&[]);
    assert!(status == 1 && error.contains("rules.toml:2: rule[1].ports"), "{error}");
    let (status, _, error) = reload(&["--name", "absent"]);
    assert!(status == 1 && error.contains("no proxy named \"absent\" runs"), "{error}");
}

#[test]
fn the_packaged_file_names_its_schema() {
    let packaged = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name);
    let text = fs::read_to_string(packaged("proxy.toml")).unwrap();
    let schema = text.lines().next().unwrap().strip_prefix("#:schema ").expect("the first line is for editors");
    let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    let directory = schema.trim_start_matches('/').rsplit_once('/').unwrap().0;
    assert!(manifest.contains(&format!("[\"../../docs/reference/proxy.schema.json\", \"{directory}/\", \"644\"]")), "{schema}");
}
