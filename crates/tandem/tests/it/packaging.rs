//! The files in `packaging/` match the program: the example configuration is valid, the
//! capabilities in the units suffice, and the services notify the service manager.

use crate::common::{Daemon, PATIENCE, TANDEM, skip, wait_until};
use lab::Host;
use std::{
    fs,
    os::unix::{fs::PermissionsExt, net::UnixDatagram, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
};

fn packaged(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name)
}

/// Returns the value of a directive in a unit.
fn directive(unit: &str, name: &str) -> String {
    let text = fs::read_to_string(packaged(unit)).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
    line.unwrap_or_else(|| panic!("{unit} has no {name}")).into()
}

#[test]
fn the_example_configuration_is_valid() {
    proxy::Service::read(&packaged("proxy.toml")).unwrap();
}

/// Debian's tools take the version of a package from the first entry.
#[test]
fn the_changelog_of_the_package_begins_with_its_version() {
    if skip("the_changelog_of_the_package_begins_with_its_version", &["python3"]) {
        return;
    }
    let root = packaged("..");
    let program = root.join("tools/packages/debian-changelog");
    let output = Command::new(program).arg("Somebody <a@example.net>").current_dir(root).output().unwrap();
    let (changes, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{errors}");
    assert!(changes.starts_with(concat!("tandem (", env!("CARGO_PKG_VERSION"), "-1) unstable;")), "{changes:.200}");
}

#[test]
fn the_capabilities_of_the_unit_suffice() {
    if skip("the_capabilities_of_the_unit_suffice", &["nft", "ip", "setpriv"]) {
        return;
    }
    serve(&["tandem.service"], &[]);
}

#[test]
fn the_capabilities_of_the_drop_in_suffice_for_a_capacity() {
    const TEST: &str = "the_capabilities_of_the_drop_in_suffice_for_a_capacity";
    if skip(TEST, &["nft", "ip", "tc", "setpriv"]) || skip_without_btf(TEST) {
        return;
    }
    serve(&["tandem.service", "capacity.conf"], &["--far", "control=share,capacity=10Mbit,link=lo"]);
}

#[test]
fn the_unit_can_use_a_controller_that_is_already_loaded() {
    const TEST: &str = "the_unit_can_use_a_controller_that_is_already_loaded";
    if skip(TEST, &["nft", "ip", "setpriv"]) || skip_without_btf(TEST) {
        return;
    }
    // With the capabilities of tandem-controllers.service.
    let host = Host::new("kernel").unwrap();
    let bounding = format!("-all,{}", directive("tandem-controllers.service", "CapabilityBoundingSet")).replace("CAP_", "+").to_lowercase();
    let control = |action: &str| {
        let mut command = host.command("setpriv");
        command.args(["--no-new-privs", "--bounding-set", &bounding.replace(' ', ",")]).arg(TANDEM).args(["control", action, "vegas"]);
        command.output().unwrap()
    };
    // If the controller is not loaded, the error names the command.
    let service = Service::new(&["tandem.service"]);
    let refused = service.command(&["proxy", "--far", "control=td_vegas", "--listen", "transparent=[::]:5000"]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("`tandem control load vegas`"), "{said}");
    drop(service);
    let loaded = control("load");
    assert!(loaded.status.success(), "{loaded:?}");
    serve(&["tandem.service"], &["--far", "control=td_vegas"]);
    let unloaded = control("unload");
    assert!(unloaded.status.success(), "the exit of the proxy unloaded it: {unloaded:?}");
}

#[test]
fn the_capabilities_of_the_cache_unit_suffice() {
    if skip("the_capabilities_of_the_cache_unit_suffice", &["nft", "ip", "setpriv"]) {
        return;
    }
    let service = Service::new(&["tandem-cache.service"]);
    let text = fs::read_to_string(packaged("cache.conf")).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix("TANDEM_CACHE=")).unwrap();
    let arguments: Vec<&str> = ["cache"].into_iter().chain(value.trim_matches('"').split_whitespace()).collect();
    let mut cache = Daemon::start(&mut service.command(&arguments));
    service.expect_notification("READY=1");
    assert!(service.table().contains("tproxy"));
    cache.signal("TERM");
    service.expect_notification("STOPPING=1");
    wait_until("it ends", || cache.0.try_wait().unwrap().is_some());
    assert!(cache.0.wait().unwrap().success());
    assert_eq!(service.table(), "");
}

fn skip_without_btf(test: &str) -> bool {
    let has = Path::new("/sys/kernel/btf/vmlinux").exists();
    if !has {
        testing::skipped(test, &"this kernel has no BTF");
    }
    !has
}

/// The name of the proxy in its configuration: not the default one.
const NAME: &str = "gateway";

/// A host on which programs run like a service of these units: as an unprivileged user with the
/// units' capabilities.
struct Service {
    host: Host,
    /// The program and its files, in a world-readable directory.
    directory: tempfile::TempDir,
    runtime: tempfile::TempDir,
    manager: UnixDatagram,
    /// In the syntax of `setpriv`.
    capabilities: String,
}

impl Service {
    fn new(units: &[&str]) -> Self {
        let host = Host::new("router").unwrap();
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        testing::copy_program(TANDEM, at("tandem"));
        let packaged = fs::read_to_string(packaged("proxy.toml")).unwrap();
        fs::write(at("proxy.toml"), format!("name = \"{NAME}\"\n{packaged}")).unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let manager = UnixDatagram::bind(at("notify")).unwrap();
        fs::set_permissions(at("notify"), fs::Permissions::from_mode(0o777)).unwrap();
        manager.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut capabilities = Vec::new();
        for unit in units {
            let ambient = directive(unit, "AmbientCapabilities");
            assert_eq!(ambient, directive(unit, "CapabilityBoundingSet"));
            capabilities.extend(ambient.split_whitespace().map(|name| name.replace("CAP_", "+").to_lowercase()));
        }
        let capabilities = format!("-all,{}", capabilities.join(","));
        // As the service manager creates it, but with another name, since a service may run on this
        // machine.
        let of_unit = directive(units[0], "RuntimeDirectory");
        let name = of_unit.strip_prefix("tandem/").expect("root trusts what is in /run/tandem");
        let mode = u32::from_str_radix(&directive(units[0], "RuntimeDirectoryMode"), 8).unwrap();
        fs::create_dir_all("/run/tandem").unwrap();
        let runtime =
            tempfile::Builder::new().prefix(name).permissions(fs::Permissions::from_mode(mode)).tempdir_in("/run/tandem").unwrap();
        std::os::unix::fs::chown(runtime.path(), Some(65534), Some(65534)).unwrap();
        Service { host, directory, runtime, manager, capabilities }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.host.command("setpriv");
        command.args(self.rights()).arg(self.directory.path().join("tandem")).args(arguments);
        command.env("NOTIFY_SOCKET", self.directory.path().join("notify")).env("RUNTIME_DIRECTORY", self.runtime.path());
        command
    }

    /// The options of `setpriv` for a process of the service.
    fn rights(&self) -> [&str; 10] {
        let capabilities = self.capabilities.as_str();
        let user = ["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"];
        let [user, group, groups, privileges] = user;
        let [bounding, inherited, ambient] = ["--bounding-set", "--inh-caps", "--ambient-caps"];
        [user, group, groups, privileges, bounding, capabilities, inherited, capabilities, ambient, capabilities]
    }

    /// Waits for a message to the service manager.
    fn expect_notification(&self, wanted: &str) {
        let text = self.notification();
        assert!(text.contains(wanted), "{text:?} instead of {wanted}");
    }

    /// Returns the next message to the service manager.
    fn notification(&self) -> String {
        let mut said = [0; 4096];
        let count = self.manager.recv(&mut said).unwrap_or_else(|why| panic!("waiting for a message: {why}"));
        String::from_utf8_lossy(&said[..count]).into_owned()
    }

    /// Returns the rule set of the host.
    fn table(&self) -> String {
        String::from_utf8(self.host.command("nft").args(["list", "ruleset"]).output().unwrap().stdout).unwrap()
    }
}

/// Starts, reloads and stops the proxy as a service of these units, with options.
fn serve(units: &[&str], flags: &[&str]) {
    let service = Service::new(units);
    let configuration = service.directory.path().join("proxy.toml");
    let mut arguments = vec!["proxy", "-c", configuration.to_str().unwrap()];
    arguments.extend(flags);
    let mut proxy = Daemon::start(&mut service.command(&arguments));
    service.expect_notification("READY=1");
    assert_eq!(service.table().matches("tproxy").count(), 4);
    let flows = service.host.command(TANDEM).args(["flows", "--name", NAME]).output().unwrap();
    assert!(flows.status.success(), "root finds the service: {flows:?}");
    proxy.signal("HUP");
    service.expect_notification("RELOADING=1");
    service.expect_notification("READY=1");
    // A reload has another process take over.
    let reload = directive(units[0], "ExecReload");
    let reload = reload.replace("/etc/tandem/proxy.toml", configuration.to_str().unwrap());
    let reload: Vec<&str> = reload.strip_prefix("/usr/bin/tandem ").unwrap().split(' ').collect();
    let reloaded = service.command(&reload).output().unwrap();
    assert!(reloaded.status.success(), "{reloaded:?}");
    let notified = [service.notification(), service.notification()];
    let main = notified.iter().find_map(|text| text.trim().strip_prefix("MAINPID=")).unwrap_or_else(|| panic!("{notified:?}"));
    assert!(notified.iter().any(|text| text.trim() == "READY=1"), "{notified:?}");
    wait_until("the earlier process ends", || proxy.0.try_wait().unwrap().is_some());
    assert!(proxy.0.wait().unwrap().success());
    assert_eq!(service.table().matches("tproxy").count(), 4);
    assert!(Command::new("kill").arg(main).status().unwrap().success());
    service.expect_notification("STOPPING=1");
    wait_until("the last process removes its rules and its socket", || {
        service.table().is_empty() && fs::read_dir(service.runtime.path()).unwrap().count() == 0
    });
    assert_eq!(fs::read_dir(service.runtime.path()).unwrap().count(), 0, "its socket is gone");
    let rules = String::from_utf8(service.host.command("ip").arg("rule").output().unwrap().stdout).unwrap();
    assert!(!rules.contains("0x5444"), "{rules}");
}

/// An upgrade beside a proxy that is taken over, beside a process of the service's user that is no
/// proxy any more, and with a file that the new program cannot use. The process has chosen its
/// environment so that a program of its own runs wherever that is used.
#[test]
fn an_upgrade_takes_nothing_from_the_process_of_the_service() {
    if skip("an_upgrade_takes_nothing_from_the_process_of_the_service", &["nft", "ip", "setpriv", "xargs"]) {
        return;
    }
    let service = Service::new(&["tandem.service"]);
    let directory = service.directory.path().to_owned();
    let at = |name: &str| directory.join(name).display().to_string();
    let script = |name: &str, text: &str| {
        fs::write(at(name), format!("#!/bin/sh\n{text}")).unwrap();
        fs::set_permissions(at(name), fs::Permissions::from_mode(0o755)).unwrap();
    };
    script("hostile", &format!("id -u > {}\n", at("marks/hostile")));
    fs::create_dir(at("marks")).unwrap();
    fs::set_permissions(at("marks"), fs::Permissions::from_mode(0o777)).unwrap();
    let mut hostile = Command::new("sleep");
    // A root shell's `env` takes the first for an option, and any program the others.
    hostile.arg("600").env_clear().env("--split-string", at("hostile")).env("ENV", at("hostile")).env("LD_PRELOAD", at("hostile"));
    let hostile = Daemon::start(hostile.uid(65534));
    // What systemd and Debian's tools do, as far as the script asks for it. `reload` runs the
    // command of the unit as the service.
    let reload = directive("tandem.service", "ExecReload");
    let reload = reload.replace("/usr/bin/tandem", &at("tandem")).replace("/etc/tandem/proxy.toml", &at("proxy.toml"));
    fs::create_dir(at("bin")).unwrap();
    let shown = "ExecReload={ path=/usr/bin/tandem ; argv[]=/usr/bin/tandem restart -c FILE ; ignore_errors=no ; start_time=[n/a] ; \
                 stop_time=[n/a] ; pid=7 ; code=exited ; status=%s }";
    script(
        "bin/systemctl",
        &format!(
            "echo \"systemctl $*\" >> {calls}\ncase \"$*\" in\n\
             'reload tandem.service') NOTIFY_SOCKET={notify} RUNTIME_DIRECTORY={runtime} setpriv {rights} {reload}; status=$?\n\
             echo $status > {status}; [ $status -eq 0 ] ;;\n\
             'show -p ExecReload tandem.service') printf '{shown}\\n' \"$(cat {status})\" ;;\n\
             'show -p MainPID --value tandem.service') echo {pid} ;;\nesac\n",
            calls = at("calls"),
            notify = at("notify"),
            runtime = service.runtime.path().display(),
            rights = service.rights().join(" "),
            status = at("status"),
            pid = hostile.0.id(),
        ),
    );
    script("bin/deb-systemd-invoke", &format!("echo \"deb-systemd-invoke $*\" >> {}\n", at("calls")));
    let postinst = fs::read_to_string(packaged("debian/postinst")).unwrap();
    let postinst = postinst.replace("/run/systemd/system", &at("bin")).replace("/usr/bin/tandem", &at("tandem"));
    script("postinst", &postinst.replace("/etc/tandem/proxy.toml", &at("proxy.toml")));
    let upgrade = || {
        let _ = fs::remove_file(at("calls"));
        let path = format!("{}:{}", at("bin"), std::env::var("PATH").unwrap());
        let output = service.host.command("sh").args([&at("postinst"), "configure", "0.1-1"]).env("PATH", path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(
            !Path::new(&at("marks/hostile")).exists(),
            "a program of the service ran as user {:?}",
            fs::read_to_string(at("marks/hostile"))
        );
        let restarted = fs::read_to_string(at("calls")).unwrap().contains("deb-systemd-invoke restart tandem.service");
        (restarted, String::from_utf8_lossy(&output.stderr).into_owned())
    };

    let (restarted, said) = upgrade();
    assert!(restarted, "there is no proxy to take over from: {said}");
    let configuration = at("proxy.toml");
    let mut proxy = Daemon::start(&mut service.command(&["proxy", "-c", &configuration]));
    service.expect_notification("READY=1");
    let (restarted, said) = upgrade();
    assert!(!restarted, "{said}");
    wait_until("the earlier process ends", || proxy.0.try_wait().unwrap().is_some());
    let notified = [service.notification(), service.notification()];
    let main = notified.iter().find_map(|text| text.trim().strip_prefix("MAINPID=")).unwrap_or_else(|| panic!("{notified:?}"));
    // Root does not take over from a process of the service: it would act on its messages.
    let refused = service.host.command(TANDEM).args(["proxy", "-c", &configuration, "--take-over"]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("cannot take over: the proxy that runs is user 65534's"), "{said}");
    // A file that the new program cannot use: the proxy that runs goes on.
    let text = fs::read_to_string(&configuration).unwrap();
    fs::write(&configuration, text.replace("[[listen]]", "[[listening]]")).unwrap();
    let (restarted, said) = upgrade();
    assert!(!restarted && said.contains("the proxy of the previous version still runs; correct its configuration"), "{said}");
    assert!(Command::new("kill").arg(main).status().unwrap().success());
    service.expect_notification("STOPPING=1");
    wait_until("the last process removes its rules", || service.table().is_empty());
}

#[test]
fn the_units_pass_systemd_analyze() {
    for unit in ["tandem.service", "tandem-cache.service", "tandem-controllers.service"] {
        let Ok(output) = Command::new("systemd-analyze").arg("verify").arg(packaged(unit)).output() else {
            return testing::skipped("the_units_pass_systemd_analyze", &"systemd-analyze is not installed");
        };
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // The program and its manual page need not be installed.
        let is_wrong = |line: &&str| line.contains(unit) && !line.contains("is not executable") && !line.contains("'man ");
        let wrong: Vec<&str> = said.lines().filter(is_wrong).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}
