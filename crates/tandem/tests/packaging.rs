//! What is in `packaging/` fits the program: the example configuration can be used, the service needs no more privileges than its unit
//! gives, and tells the service manager how it does.

mod common;

use common::{Daemon, PATIENCE, TANDEM, skip, wait_until};
use lab::Host;
use std::{
    fs,
    os::unix::{fs::PermissionsExt, net::UnixDatagram},
    path::{Path, PathBuf},
    process::Command,
};

fn packaged(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name)
}

/// The value of a directive in a unit.
fn directive(unit: &str, name: &str) -> String {
    let text = fs::read_to_string(packaged(unit)).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
    line.unwrap_or_else(|| panic!("{unit} has no {name}")).into()
}

#[test]
fn the_example_configuration_is_right() {
    proxy::Service::read(&packaged("proxy.toml")).unwrap();
}

#[test]
fn the_units_capabilities_are_enough() {
    if skip("the_units_capabilities_are_enough", &["nft", "ip", "setpriv"]) {
        return;
    }
    serve(&["tandem.service"], &[]);
}

#[test]
fn with_those_of_the_drop_in_they_are_enough_for_our_controllers() {
    const TEST: &str = "with_those_of_the_drop_in_they_are_enough_for_our_controllers";
    if skip(TEST, &["nft", "ip", "tc", "setpriv"]) {
        return;
    }
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return testing::skipped(TEST, &"this kernel has no BTF");
    }
    serve(&["tandem.service", "controllers.conf"], &["--far", "control=share,capacity=10Mbit,link=lo"]);
}

/// The proxy's life as a service of these units, with flags: a user without any power but their capabilities, as systemd makes one.
fn serve(units: &[&str], flags: &[&str]) {
    let host = Host::new("router").unwrap();
    // The program and its files where anybody may read them.
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::copy(TANDEM, at("tandem")).unwrap();
    fs::copy(packaged("proxy.toml"), at("proxy.toml")).unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let told = UnixDatagram::bind(at("notify")).unwrap();
    fs::set_permissions(at("notify"), fs::Permissions::from_mode(0o777)).unwrap();
    told.set_read_timeout(Some(PATIENCE)).unwrap();

    let mut capabilities = Vec::new();
    for unit in units {
        let ambient = directive(unit, "AmbientCapabilities");
        assert_eq!(ambient, directive(unit, "CapabilityBoundingSet"));
        capabilities.extend(ambient.split_whitespace().map(|name| name.replace("CAP_", "+").to_lowercase()));
    }
    let capabilities = capabilities.join(",");
    // As the service manager makes it, but by another name: a service may run on this machine.
    assert_eq!(directive("tandem.service", "RuntimeDirectory"), "tandem/service");
    let mode = u32::from_str_radix(&directive("tandem.service", "RuntimeDirectoryMode"), 8).unwrap();
    fs::create_dir_all("/run/tandem").unwrap();
    let runtime =
        tempfile::Builder::new().prefix("service").permissions(fs::Permissions::from_mode(mode)).tempdir_in("/run/tandem").unwrap();
    std::os::unix::fs::chown(runtime.path(), Some(65534), Some(65534)).unwrap();
    let mut command = host.command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs", "--bounding-set", &format!("-all,{capabilities}")]);
    command.args(["--inh-caps", &format!("-all,{capabilities}"), "--ambient-caps", &format!("-all,{capabilities}")]);
    command
        .arg(at("tandem"))
        .args(["proxy", "-c"])
        .arg(at("proxy.toml"))
        .args(flags)
        .env("NOTIFY_SOCKET", at("notify"))
        .env("RUNTIME_DIRECTORY", runtime.path());
    let mut proxy = Daemon::start(&mut command);
    let mut said = [0; 4096];
    let mut hear = |wanted: &str| {
        let count = told.recv(&mut said).unwrap_or_else(|why| panic!("waiting for {wanted}: {why}"));
        let text = String::from_utf8_lossy(&said[..count]).into_owned();
        assert!(text.contains(wanted), "{text:?} instead of {wanted}");
    };
    let signal = |name: &str| assert!(Command::new("kill").args([name, &proxy.0.id().to_string()]).status().unwrap().success());
    hear("READY=1");
    let table = || String::from_utf8(host.command("nft").args(["list", "ruleset"]).output().unwrap().stdout).unwrap();
    assert_eq!(table().matches("tproxy").count(), 4);
    let flows = host.command(TANDEM).arg("flows").output().unwrap();
    assert!(flows.status.success(), "root finds the service: {flows:?}");
    signal("-HUP");
    hear("RELOADING=1");
    hear("READY=1");
    signal("-TERM");
    hear("STOPPING=1");
    wait_until("it ends", || proxy.0.try_wait().unwrap().is_some());
    assert!(proxy.0.wait().unwrap().success());
    assert_eq!(table(), "");
    assert_eq!(fs::read_dir(runtime.path()).unwrap().count(), 0, "its socket is gone");
    let rules = String::from_utf8(host.command("ip").arg("rule").output().unwrap().stdout).unwrap();
    assert!(!rules.contains("0x5444"), "{rules}");
}

#[test]
fn the_service_manager_understands_the_unit() {
    let Ok(output) = Command::new("systemd-analyze").arg("verify").arg(packaged("tandem.service")).output() else {
        eprintln!("SKIP the_service_manager_understands_the_unit: systemd-analyze is not installed");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // Neither the program nor its manual need be installed where the unit looks for them.
    let is_wrong = |line: &&str| line.contains("tandem.service") && !line.contains("is not executable") && !line.contains("'man ");
    let wrong: Vec<&str> = said.lines().filter(is_wrong).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}
