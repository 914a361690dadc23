//! The OpenWrt package: its init script and its translation of UCI to TOML, in OpenWrt's shell
//! (BusyBox ash), with stubs for OpenWrt's own scripts.

use crate::common::TANDEM;
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// Stubs of OpenWrt's `functions.sh` and `procd.sh`: a UCI file is a shell script that calls
/// `config`, `option` and `list`; calls of procd are printed.
const OPENWRT: &str = r#"
reset_cb() {
    config_cb() { return 0; }
    option_cb() { return 0; }
    list_cb() { return 0; }
}
reset_cb
config() { SECTION=${2:-unnamed}; config_cb "$@"; }
option() { eval "CONFIG_${SECTION}_$1=\$2"; option_cb "$@"; }
list() { list_cb "$@"; }
config_load() { . "$ROOT/etc/config/$1" && config_cb; }
config_get_bool() { eval "$1=\${CONFIG_${2}_$3:-$4}"; }
logger() { echo "log: $(cat)"; }
procd_open_instance() { echo "open"; }
procd_set_param() { echo "param $*"; }
procd_close_instance() { echo "close"; }
procd_send_signal() { echo "signal $*"; }
procd_running() { [ -e "$ROOT/running" ]; }
procd_add_reload_trigger() { echo "trigger $*"; }
start() { start_service; echo "told procd"; }
"#;
/// A stub of `network.sh` with one network: `wan` is the loopback interface.
const NETWORK: &str = r#"network_get_device() { [ "$2" = wan ] && eval "$1=lo"; }"#;

/// The part of a root file system that the scripts use, with the package installed.
struct Router(tempfile::TempDir);

impl Router {
    /// `None` if BusyBox is missing.
    fn new(test: &str) -> Option<Self> {
        if let Some(program) = testing::missing(&["busybox"]) {
            testing::skipped(test, &format!("{program} is not installed"));
            return None;
        }
        let router = Router(tempfile::tempdir().unwrap());
        for directory in ["lib/functions", "usr/lib/tandem", "etc/init.d", "etc/config"] {
            fs::create_dir_all(router.at(directory)).unwrap();
        }
        router.write("lib/functions.sh", OPENWRT);
        router.write("lib/functions/network.sh", NETWORK);
        router.install("uci-to-toml.sh", "usr/lib/tandem/uci-to-toml.sh");
        router.install("tandem.init", "etc/init.d/tandem");
        router.install("tandem.config", "etc/config/tandem");
        Some(router)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.at(path), text).unwrap();
    }

    /// Copies a file of the package to `path`, with its absolute paths prefixed by the temporary
    /// root.
    fn install(&self, name: &str, path: &str) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/openwrt/tandem/files").join(name);
        let mut text = fs::read_to_string(source).unwrap().replace("/usr/bin/tandem", TANDEM);
        for place in ["/lib/functions/", "/usr/lib/", "/var/etc/"] {
            text = text.replace(place, &format!("{}{place}", self.0.path().display()));
        }
        self.write(path, &text);
    }

    /// Runs `commands` after the init script has been read, as OpenWrt's rc.common does.
    fn run(&self, commands: &str) -> Output {
        let script = format!(". $ROOT/lib/functions.sh; . $ROOT/etc/init.d/tandem; . $ROOT/usr/lib/tandem/uci-to-toml.sh; {commands}");
        Command::new("busybox").args(["ash", "-c", &script]).env("ROOT", self.0.path()).output().unwrap()
    }

    fn says(&self, commands: &str) -> String {
        let output = self.run(commands);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{commands}: {}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }
}

#[test]
fn uci_sections_become_toml_tables() {
    let Some(router) = Router::new("uci_sections_become_toml_tables") else { return };
    router.write(
        "etc/config/tandem",
        r#"
config listen
	option forward '127.0.0.1:8080'
	option to '192.0.2.10:80'
	option accept_proxy '1'

config proxy 'proxy'
	option enabled '1'
	option threads '2'
	option name 'a \ and a quote '\''"'\'''
	option log_flows 'off'

config near
	option keepalive '10min'

config leg
	option network 'wan'
	option mss '1400'
	option ecn 'perhaps'

config leg
	option network 'eth7'

config rule
	list to '10.0.0.0/8'
	list to 'fd00::/8'
	list ports '443'
	list ports '8000-8999'
	option action 'bypass'

config listen
	option socks5 '127.0.0.1:1080'
	list allow '10.0.0.0/8'
	list allow '192.0.2.0/24'
	option deny '10.1.0.0/16'
	list users 'alice:a "quoted" \ secret'

config listen
	option socks5 '127.0.0.1:1081'
	option users '/etc/tandem.users'

config bond
	option tls '1'
	option allow '10.0.0.0/8'
	list deny '10.1.0.0/16'

config bond_network
	option network 'wan'
	option tier '1'
"#,
    );
    let expected = r#"threads = 2
name = "a \\ and a quote '\"'"
log_flows = false
[[listen]]
forward = "127.0.0.1:8080"
to = "192.0.2.10:80"
accept_proxy = true
[near]
keepalive = "10min"
[[leg]]
interface = "lo"
mss = 1400
ecn = "perhaps"
[[leg]]
interface = "eth7"
[[rule]]
to = ["10.0.0.0/8", "fd00::/8"]
ports = [443, "8000-8999"]
action = "bypass"
[[listen]]
socks5 = "127.0.0.1:1080"
allow = ["10.0.0.0/8", "192.0.2.0/24"]
deny = "10.1.0.0/16"
users = ["alice:a \"quoted\" \\ secret"]
[[listen]]
socks5 = "127.0.0.1:1081"
users = "/etc/tandem.users"
[bond]
tls = true
allow = "10.0.0.0/8"
deny = ["10.1.0.0/16"]
[[bond.network]]
interface = "lo"
tier = 1
"#;
    assert_eq!(router.says("uci_to_toml tandem"), expected);
    // The proxy accepts single values for its lists.
    let text = expected.replace("ecn = \"perhaps\"", "ecn = true").replace("[bond]", "[bond]\nkey_file = \"/k\"\nto = \"192.0.2.1:7000\"");
    let config = proxy::Service::parse(&text, "uci").unwrap().config;
    let destinations = &config.listen[1].destinations;
    assert_eq!((destinations.allow.len(), destinations.deny.len()), (2, 1));
    assert!(config.listen[1].users.have(b"alice", b"a \"quoted\" \\ secret") && config.listen[2].users.are_required());
    assert_eq!(config.bond.unwrap().destinations.allow.len(), 1);
}

#[test]
fn the_packaged_configuration_works_once_enabled() {
    let Some(router) = Router::new("the_packaged_configuration_works_once_enabled") else { return };
    assert_eq!(router.says("start; service_triggers"), "told procd\ntrigger tandem\n");
    let text = fs::read_to_string(router.at("etc/config/tandem")).unwrap();
    router.write("etc/config/tandem", &text.replace("enabled '0'", "enabled '1'"));
    let said = router.says("start");
    let file = router.at("var/etc/tandem.toml");
    assert!(said.contains(&format!("open\nparam command {TANDEM} proxy -c {}\n", file.display())), "{said}");
    assert!(said.ends_with("close\ntold procd\n"), "{said}");
    let service = proxy::Service::read(&file).unwrap();
    assert!(matches!(service.config.buffer, proxy::Buffer::Adaptive { .. }));
}

#[test]
fn an_invalid_configuration_does_not_stop_a_running_proxy() {
    let Some(router) = Router::new("an_invalid_configuration_does_not_stop_a_running_proxy") else { return };
    let running = |how: &str| {
        let text = format!(
            "config proxy 'proxy'\n\toption enabled '1'\n\toption buffer '{how}'\nconfig listen\n\toption socks5 '127.0.0.1:1080'\n"
        );
        router.write("etc/config/tandem", &text);
    };
    running("4MiB");
    router.says("start");
    let mode = fs::metadata(router.at("var/etc/tandem.toml")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "it may have passwords");
    router.write("running", "");
    let file = || fs::read_to_string(router.at("var/etc/tandem.toml")).unwrap();
    assert!(file().contains("4MiB"));
    running("8MiB");
    assert_eq!(router.says("reload_service"), "signal tandem * HUP\n");
    assert!(file().contains("8MiB"));
    running("much");
    for command in ["start", "reload_service"] {
        let output = router.run(command);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!output.status.success() && !said.contains("told procd") && !said.contains("signal"), "{said}");
        assert!(said.starts_with("log: ") && said.contains("buffer"), "{said}");
        assert!(file().contains("8MiB"));
    }
    router.write("etc/config/tandem", "config proxy 'proxy'\n\toption enabled '0'\n");
    assert_eq!(router.says("reload_service"), "told procd\n");
}
