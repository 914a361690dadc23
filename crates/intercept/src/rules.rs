//! The rules that bring routed connections to a transparent listener.
//!
//! They are the proxy's own: one nftables table, one routing rule a family, one routing table. The nftables table has an
//! owner, an `nft` process whose input is a pipe from this one: when the proxy goes, however it goes, so does the table, and
//! connections pass unsplit. The routing rules do nothing without the table's mark; they are removed at the end, or, when
//! the proxy was killed, replaced at the next start. One setting of the kernel is changed at times, and put back: see `SETTING`. No other table, rule or route is touched.
//!
//! A new connection goes through the chain `intercept`, where the policy's rules let some bypass, to `split`, which hands it
//! to the proxy as long as the chain `open` says so. That one is emptied when the proxy is full or ending.
//! Between them the chain `guard` heeds the forward chains of other programs, and in `open` the
//! chain `admit` heeds their input chains: see `guard`. Where they use conntrack, `zone`
//! lets it tell both legs of a connection apart.

mod family;
mod foreign;
mod guard;
mod installed;
pub(crate) mod nfnetlink;
mod nft;
mod owner;
mod table;
mod watch;
mod zone;

pub(crate) use foreign::{Firewall, Hook, input_knows_mark};
pub use guard::ForwardPolicy;
pub use installed::{Counted, Installed, RulesLost};

use crate::{
    kernel_setting::KernelSetting,
    policy::{Action, Rule},
    routes::Delivery,
};
use family::Family;
use std::{fmt, io, net::SocketAddr, path::PathBuf};
use table::conditions;

/// The table's name, in the family `inet`.
const TABLE: &str = "tandem";
/// The mark that routes a packet to this machine ("TD").
pub const MARK: u32 = 0x5444;
/// How marked packets are delivered.
const DELIVERY: Delivery = Delivery { mark: MARK, table: 0x5444, preference: 0x5444 };
/// The setting under which a packet is matched with a socket of this host before it is routed, which makes split connections much
/// cheaper. But the kernel drops a packet to be forwarded that fits a socket, and what is left of a leg that has ended (TIME_WAIT)
/// fits packets of a later connection of the same addresses and ports that passes unsplit: it would stall for a minute. So it is off
/// while connections pass unsplit that a moment ago would have been split.
const SETTING: KernelSetting = KernelSetting { name: "net.ipv4.tcp_early_demux", value: "0" };

/// What a transparent listener needs of the system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Where the proxy listens.
    pub listener: SocketAddr,
    /// What is split and what bypasses.
    pub policy: Vec<Rule>,
    /// Whether other programs' forward chains decide what may be split.
    pub forward_policy: ForwardPolicy,
}

/// Why the rules could not be installed or changed.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// nft cannot be run.
    #[error("cannot run nft: {0}; install it (Debian package nftables)")]
    Missing(io::Error),
    /// nft refused.
    #[error("cannot install the nftables rules: {said}; {cure}")]
    Refused {
        /// What it said.
        said: String,
        /// What to do about it.
        cure: &'static str,
    },
    /// The kernel refused a routing rule or route.
    #[error("cannot install the routing rules: {why}; {cure}")]
    Routing {
        /// The kernel's reason.
        why: io::Error,
        /// What to do about it.
        cure: &'static str,
    },
    /// Another proxy is there.
    #[error(
        "cannot take over the traffic: another process owns the nftables table inet {TABLE} in this network namespace; stop that proxy first"
    )]
    Taken,
    /// Where the table has no owner, a proxy shows by a socket that it lives. There is none.
    #[error(
        "cannot take over the traffic: on this kernel a proxy with rules needs a socket in {}, which cannot be made: {why}; let this user \
         write there (in a container with a read-only root: a tmpfs at /run)",
        at.display()
    )]
    NoSocket {
        /// Where it would be.
        at: PathBuf,
        /// The system's reason.
        why: io::Error,
    },
    /// The kernel does not tell what the table has counted.
    #[error("cannot read the counters of the nftables table inet {TABLE}: {0}; see `tandem doctor`")]
    Unread(io::Error),
    /// The table's owner has ended, or does not answer.
    #[error("cannot change the nftables table inet {TABLE}: the nft process that owns it does not answer: {why}")]
    Lost {
        /// What was seen.
        why: String,
    },
}

impl Rules {
    fn families(&self) -> &'static [Family] {
        match self.listener {
            SocketAddr::V4(_) => &[Family::V4],
            SocketAddr::V6(at) if at.ip().is_unspecified() => &[Family::V4, Family::V6],
            SocketAddr::V6(_) => &[Family::V6],
        }
    }

    /// The nftables commands, one a line, for a host without other programs' forward and input
    /// chains.
    pub fn nft(&self) -> Vec<String> {
        [vec![format!("add table inet {TABLE} {{ flags owner; }}")], self.contents(&Firewall::default())].concat()
    }

    /// Has nft and the kernel check the table's contents, and changes nothing.
    pub fn try_out(&self) -> Result<(), RulesError> {
        // Under a name of its own: the table of a proxy that runs takes no commands from others.
        let (table, trial) = (format!(" inet {TABLE} "), format!(" inet {TABLE}-check "));
        let contents: Vec<String> =
            self.contents(&Firewall::look().unwrap_or_default()).iter().map(|line| line.replacen(&table, &trial, 1)).collect();
        let script = format!("add table{trial}\n{}\n", contents.join("\n"));
        let (fine, said) = nft::run_with(&["-c", "-f", "-"], &script)?;
        if fine { Ok(()) } else { Err(RulesError::Refused { cure: nft::cure(&said), said }) }
    }

    /// Whether there are connections that are split only when the forward chains of other programs
    /// have let one of their kind pass.
    pub fn heeds_forward_chains(&self) -> bool {
        let is_split = |rule: &Rule| matches!(rule.action, Action::Split | Action::Carry);
        // Rules behind one without conditions decide nothing, and neither does the default.
        let last = self.policy.iter().position(|rule| conditions(rule) == [""]);
        let deciding = &self.policy[..last.map_or(self.policy.len(), |last| last + 1)];
        let unnamed = deciding.iter().any(|rule| is_split(rule) && !rule.names_clients());
        self.forward_policy == ForwardPolicy::Heed && (unnamed || last.is_none())
    }

    /// What delivers marked packets to this machine, as commands of `ip` for people to read.
    pub fn ip(&self) -> Vec<String> {
        self.families()
            .iter()
            .flat_map(|family| {
                let (flag, Delivery { mark, table, preference }) = (family.flag(), DELIVERY);
                [
                    format!("ip {flag} rule add iif lo fwmark {mark:#x} lookup main pref {}", preference - 1),
                    format!("ip {flag} rule add fwmark {mark:#x} lookup {table} pref {preference}"),
                    format!("ip {flag} route replace local default dev lo table {table}"),
                ]
            })
            .collect()
    }

    /// The settings without which routed connections neither come nor pass: set by whoever runs this router.
    pub fn sysctls(&self) -> Vec<&'static str> {
        let setting = |family: &Family| match family {
            Family::V4 => "net.ipv4.ip_forward=1",
            Family::V6 => "net.ipv6.conf.all.forwarding=1",
        };
        self.families().iter().map(setting).collect()
    }

    /// The setting that the proxy itself changes.
    pub fn own_sysctl(&self) -> String {
        format!("{}={}", SETTING.name, SETTING.value)
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for setting in self.sysctls() {
            writeln!(f, "# needed, and left to you: sysctl -w {setting}")?;
        }
        writeln!(f, "# set while connections pass unsplit for want of room or by a new rule: sysctl -w {}", self.own_sysctl())?;
        for line in self.ip() {
            writeln!(f, "{line}")?;
        }
        for line in self.nft() {
            // Quoted, so that a shell takes it as it stands.
            writeln!(f, "nft '{line}'")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(listener: &str, policy: Vec<Rule>) -> String {
        Rules { listener: listener.parse().unwrap(), policy, forward_policy: ForwardPolicy::Heed }.to_string()
    }

    #[test]
    fn both_families_when_any_address_will_do() {
        let both = rules("[::]:5000", vec![]);
        assert!(both.contains("tproxy ip to :5000") && both.contains("tproxy ip6 to :5000"), "{both}");
        assert!(both.contains("ip -6 route replace local default dev lo"), "{both}");
        let one = rules("192.0.2.1:5000", vec![]);
        assert!(one.contains("tproxy ip to 192.0.2.1:5000") && !one.contains("tproxy ip6") && !one.contains("ip -6"), "{one}");
    }

    #[test]
    fn a_rule_becomes_a_line_a_family_that_it_can_fit() {
        let rule = Rule {
            from: vec!["10.1.0.0/16".parse().unwrap(), "10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()],
            to: vec!["192.0.2.1".parse().unwrap()],
            ports: vec!["8000-8999".parse().unwrap(), "443".parse().unwrap(), "8500-9000".parse().unwrap()],
            inward: vec!["eth*".parse().unwrap()],
            action: Action::Bypass,
            ..Rule::default()
        };
        let wanted = "ip saddr { 10.0.0.0/8 } ip daddr { 192.0.2.1/32 } iifname { \"eth*\" } tcp dport { 443, 8000-9000 } ";
        assert_eq!(conditions(&rule), [wanted]);
        let all = rules("[::]:5000", vec![rule, Rule::default()]);
        assert!(all.contains(&format!("intercept {wanted}counter name bypassed goto direct'\n")), "{all}");
        assert_eq!(conditions(&Rule::default()), [""]);
        let refuse = Rule { to: vec!["10.0.0.0/8".parse().unwrap()], action: Action::Refuse, ..Rule::default() };
        let all = rules("[::]:5000", vec![refuse]);
        assert!(all.contains("intercept ip daddr { 10.0.0.0/8 } reject with tcp reset'\n"), "{all}");
    }
}
