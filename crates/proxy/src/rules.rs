//! The rules that bring routed connections to a transparent listener.
//!
//! They are the proxy's own: one nftables table, one routing rule a family, one routing table. The nftables table has an
//! owner, an `nft` process whose input is a pipe from this one: when the proxy goes, however it goes, so does the table, and
//! connections pass unsplit. The routing rules do nothing without the table's mark; they are removed at the end, or, when
//! the proxy was killed, replaced at the next start. No other table, rule or route is touched.

use std::{
    fmt,
    io::{self, Write as _},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The table's name, in the family `inet`.
const TABLE: &str = "tandem";
/// The mark that routes a packet to this machine ("TD").
const MARK: u32 = 0x5444;
/// The routing table for marked packets, and the preference of the rules that name it.
const ROUTES: u32 = 0x5444;
const PREFERENCE: u32 = 0x5444;

/// What a transparent listener needs of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Where the proxy listens.
    pub listener: SocketAddr,
}

/// Why the rules could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// A program is missing.
    #[error("cannot run {program}: {why}; install it (Debian package {package})")]
    Missing {
        /// Which.
        program: &'static str,
        /// The system's reason.
        why: io::Error,
        /// Where it comes from.
        package: &'static str,
    },
    /// A program refused.
    #[error("cannot install the {what}: {said}; {cure}")]
    Refused {
        /// What was to be installed.
        what: &'static str,
        /// What the program said.
        said: String,
        /// What to do about it.
        cure: &'static str,
    },
    /// Another proxy is there.
    #[error(
        "cannot take over the traffic: another process owns the nftables table inet {TABLE} in this network namespace; stop that proxy first"
    )]
    Taken,
}

impl Rules {
    fn families(&self) -> &'static [&'static str] {
        match self.listener {
            SocketAddr::V4(_) => &["ip"],
            SocketAddr::V6(at) if at.ip().is_unspecified() => &["ip", "ip6"],
            SocketAddr::V6(_) => &["ip6"],
        }
    }

    /// The nftables commands, one a line.
    pub fn nft(&self) -> Vec<String> {
        let mut lines = vec![
            format!("add table inet {TABLE} {{ flags owner; }}"),
            format!("add chain inet {TABLE} prerouting {{ type filter hook prerouting priority mangle; policy accept; }}"),
            format!("add chain inet {TABLE} intercept"),
            format!(
                "add rule inet {TABLE} prerouting meta l4proto tcp tcp flags & (syn | ack) == syn fib daddr type unicast jump intercept"
            ),
            // Packets of connections the proxy already has, on either leg, are delivered here though their address is not ours.
            format!("add rule inet {TABLE} prerouting meta l4proto tcp socket transparent 1 meta mark set {MARK:#x} accept"),
        ];
        let port = self.listener.port();
        for family in self.families() {
            let to = match self.listener.ip() {
                address if address.is_unspecified() => String::new(),
                address => address.to_string(),
            };
            let to = if *family == "ip6" && !to.is_empty() { format!("[{to}]") } else { to };
            let protocol = if *family == "ip" { "ipv4" } else { "ipv6" };
            lines.push(format!(
                "add rule inet {TABLE} intercept meta nfproto {protocol} meta l4proto tcp tproxy {family} to {to}:{port} meta mark set {MARK:#x} accept"
            ));
        }
        lines
    }

    /// The routing commands that deliver marked packets to this machine.
    pub fn ip(&self) -> Vec<String> {
        self.families()
            .iter()
            .flat_map(|family| {
                let flag = flag(family);
                [
                    format!("ip {flag} rule add fwmark {MARK:#x} lookup {ROUTES} pref {PREFERENCE}"),
                    format!("ip {flag} route replace local default dev lo table {ROUTES}"),
                ]
            })
            .collect()
    }

    /// Installs the rules in the network namespace of the calling thread.
    pub(crate) fn install(self) -> Result<Installed, RulesError> {
        let rules = self.nft().join("\n") + "\n";
        if run("nft", "nftables", &["list", "table", "inet", TABLE], "")?.0 {
            return Err(RulesError::Taken);
        }
        let (fine, said) = run("nft", "nftables", &["-c", "-f", "-"], &rules)?;
        if !fine {
            return Err(RulesError::Refused { what: "nftables rules", cure: cure(&said), said });
        }
        self.remove_routes();
        let mut installed = Installed { rules: self, owner: start_owner()? };
        let routes: String = self.ip().iter().map(|line| format!("{}\n", line.trim_start_matches("ip "))).collect();
        for line in routes.lines() {
            let arguments: Vec<&str> = line.split_whitespace().collect();
            let (fine, said) = run("ip", "iproute2", &arguments, "")?;
            if !fine {
                return Err(RulesError::Refused { what: "routing rules", cure: cure(&said), said });
            }
        }
        installed.tell(&rules);
        installed.await_rules()?;
        Ok(installed)
    }

    /// Removes the routing rules, those of a proxy that was killed too.
    fn remove_routes(self) {
        for family in ["ip", "ip6"] {
            let flag = flag(family);
            let preference = PREFERENCE.to_string();
            // Until there is none: a rule of a killed proxy may stand beside ours.
            while run("ip", "iproute2", &[flag, "rule", "del", "pref", &preference], "").is_ok_and(|(fine, _)| fine) {}
            let _ = run("ip", "iproute2", &[flag, "route", "flush", "table", &ROUTES.to_string()], "");
        }
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.nft() {
            writeln!(f, "nft {line}")?;
        }
        for line in self.ip() {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}

fn flag(family: &str) -> &'static str {
    if family == "ip6" { "-6" } else { "-4" }
}

fn cure(said: &str) -> &'static str {
    if said.contains("not permitted") || said.contains("you must be root") {
        "run as root, or with CAP_NET_ADMIN"
    } else if said.contains("No such file") || said.contains("not supported") {
        "the kernel lacks a part of nftables (CONFIG_NFT_TPROXY, CONFIG_NFT_SOCKET, CONFIG_NFT_FIB_INET); see `tandem doctor`"
    } else {
        "see `tandem doctor`"
    }
}

/// Rules that are in place. Dropping takes them away.
#[derive(Debug)]
pub(crate) struct Installed {
    rules: Rules,
    owner: Child,
}

/// Starts the process that is to own the table: it lives as long as this end of its input.
fn start_owner() -> Result<Child, RulesError> {
    Command::new("nft")
        .arg("-i")
        // It would keep a history of its commands there.
        .env("HOME", "/nonexistent")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|why| RulesError::Missing { program: "nft", why, package: "nftables" })
}

impl Installed {
    fn tell(&mut self, commands: &str) {
        if let Some(pipe) = &mut self.owner.stdin {
            // Whether it heard is seen by what it does.
            let _ = pipe.write_all(commands.as_bytes()).and_then(|()| pipe.flush());
        }
    }

    /// Waits until the last rule stands. They were checked before, so that only a rival can be in the way.
    fn await_rules(&mut self) -> Result<(), RulesError> {
        let begun = Instant::now();
        let wanted = self.rules.families().len();
        while begun.elapsed() < Duration::from_secs(10) {
            let (fine, said) = run("nft", "nftables", &["list", "chain", "inet", TABLE, "intercept"], "")?;
            if fine && said.matches("tproxy").count() == wanted {
                return Ok(());
            }
            if !matches!(self.owner.try_wait(), Ok(None)) {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
        Err(RulesError::Taken)
    }

    /// Lets new connections pass unsplit; those the proxy has go on.
    pub(crate) fn stop_intercepting(&mut self) {
        self.tell(&format!("flush chain inet {TABLE} intercept\n"));
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(2) {
            match run("nft", "nftables", &["list", "chain", "inet", TABLE, "intercept"], "") {
                Ok((true, said)) if said.contains("tproxy") => thread::sleep(Duration::from_millis(2)),
                _ => return,
            }
        }
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        drop(self.owner.stdin.take());
        // The end of its input ends it; one that does not see it is made to.
        let begun = Instant::now();
        while matches!(self.owner.try_wait(), Ok(None)) {
            if begun.elapsed() > Duration::from_secs(2) {
                let _ = self.owner.kill();
                let _ = self.owner.wait();
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        self.rules.remove_routes();
    }
}

/// Runs a program with `input`: whether it was content, and what it said.
fn run(program: &'static str, package: &'static str, arguments: &[&str], input: &str) -> Result<(bool, String), RulesError> {
    let missing = |why| RulesError::Missing { program, why, package };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(missing)?;
    if let Some(mut pipe) = child.stdin.take() {
        let _ = pipe.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(missing)?;
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        said = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("it gave no reason").to_string();
    }
    Ok((output.status.success(), said))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_when_any_address_will_do() {
        let rules = Rules { listener: "[::]:5000".parse().unwrap() }.to_string();
        assert!(rules.contains("tproxy ip to :5000") && rules.contains("tproxy ip6 to :5000"), "{rules}");
        assert!(rules.contains("ip -6 route replace local default dev lo"), "{rules}");
        let rules = Rules { listener: "192.0.2.1:5000".parse().unwrap() }.to_string();
        assert!(rules.contains("tproxy ip to 192.0.2.1:5000") && !rules.contains("ip6"), "{rules}");
    }
}
