//! Other programs' firewall rules: which of their chains may stop a connection, and whether they
//! use conntrack. Read from the kernel, for nftables (and so for iptables-nft, firewalld, ufw,
//! fw4). Of iptables-legacy the kernel only shows which tables are in use.

use super::{
    MARK, TABLE,
    family::Family,
    nfnetlink::{INET, Message, NftablesSocket, as_text, attribute, attributes},
};
use std::{collections::BTreeSet, fmt, fs, io};

/// Attributes of a chain, and of its hook (include/uapi/linux/netfilter/nf_tables.h).
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
/// Attributes of a rule, and of its expressions.
const RULE_EXPRESSIONS: u16 = 4;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
/// Attributes of an immediate value and its verdict, of a lookup (its result register is 0 for a
/// verdict), of an xtables target.
const IMMEDIATE_DATA: u16 = 2;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const LOOKUP_RESULT: u16 = 3;
const TARGET_NAME: u16 = 1;
/// Verdicts, also used as policies: NF_DROP, NF_ACCEPT, NFT_RETURN.
const DROP: [u8; 4] = 0u32.to_be_bytes();
const ACCEPT: [u8; 4] = 1u32.to_be_bytes();
const RETURN: [u8; 4] = (-5i32).to_be_bytes();
/// Families of tables: NFPROTO_IPV4, NFPROTO_IPV6.
const IPV4: u8 = 2;
const IPV6: u8 = 10;
/// Expressions that cannot stop a packet.
const HARMLESS: [&str; 25] = [
    "payload",
    "cmp",
    "bitwise",
    "meta",
    "ct",
    "counter",
    "limit",
    "log",
    "rt",
    "exthdr",
    "byteorder",
    "range",
    "fib",
    "objref",
    "dynset",
    "notrack",
    "flow_offload",
    "hash",
    "numgen",
    "socket",
    "quota",
    "connlimit",
    "last",
    "xfrm",
    "match",
];
/// Targets of xtables that cannot stop a packet.
const HARMLESS_TARGETS: [&str; 6] = ["TCPMSS", "MARK", "CONNMARK", "LOG", "NFLOG", "CT"];

/// The hook of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Hook {
    /// Packets to this host.
    Input,
    /// Packets that this host forwards.
    Forward,
}

/// A chain of another program that may stop packets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct FilterChain {
    hook: Hook,
    /// Whether it sees packets of IPv4 and of IPv6.
    sees: [bool; 2],
    /// Its name for messages.
    label: String,
}

/// The effects of other programs' rules on packets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Firewall {
    filters: BTreeSet<FilterChain>,
    /// Whether conntrack may translate addresses of IPv4 and of IPv6.
    translates: [bool; 2],
    /// Whether a rule uses conntrack, which makes it track connections.
    tracks: bool,
    /// Whether far legs are to have a conntrack zone.
    has_zone: bool,
}

impl Firewall {
    /// Reads the rules in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The kernel does not answer: the process lacks CAP_NET_ADMIN, or the kernel has no nftables.
    pub(crate) fn read() -> io::Result<Self> {
        let nftables = NftablesSocket::open()?;
        loop {
            if let Some(firewall) = Self::in_nftables(&nftables)? {
                return Ok(firewall.and_legacy());
            }
        }
    }

    /// Reads the rules in nftables. `None` if they changed meanwhile.
    fn in_nftables(nftables: &NftablesSocket) -> io::Result<Option<Self>> {
        let mut chains = Vec::new();
        if !nftables.chains(|message| chains.extend(BaseChain::read(message)))? {
            return Ok(None);
        }
        let mut firewall = Firewall::default();
        let tables: BTreeSet<_> = chains.iter().map(|chain| (chain.family, chain.table.clone())).collect();
        for (family, table) in tables {
            if !nftables.rules(family, &table, None, |rule| firewall.tracks |= asks_conntrack(rule))? {
                return Ok(None);
            }
        }
        for chain in chains {
            if chain.translates {
                firewall.translates = both(firewall.translates, chain.sees());
                continue;
            }
            let Some(hook) = chain.hook else { continue };
            let mut may_stop = chain.drops;
            if !may_stop && !nftables.rules(chain.family, &chain.table, Some(&chain.name), |rule| may_stop |= can_stop(rule))? {
                return Ok(None);
            }
            if may_stop {
                firewall.filters.insert(FilterChain { hook, sees: chain.sees(), label: chain.to_string() });
            }
        }
        Ok(Some(firewall))
    }

    /// Adds the tables of iptables-legacy, whose rules cannot be read.
    fn and_legacy(mut self) -> Self {
        for (at, (file, program)) in [("ip_tables_names", "iptables-legacy"), ("ip6_tables_names", "ip6tables-legacy")].iter().enumerate() {
            let tables = fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
            let mut sees = [false; 2];
            sees[at] = true;
            for table in tables.lines() {
                if table == "nat" {
                    self.translates = both(self.translates, sees);
                } else if matches!(table, "filter" | "mangle" | "security") {
                    let label = format!("the table {table} of {program}");
                    let filter = |hook| FilterChain { hook, sees, label: label.clone() };
                    self.filters.extend([Hook::Input, Hook::Forward].map(filter));
                }
            }
        }
        self
    }

    /// Without the chains at this hook.
    pub(super) fn without(mut self, hook: Hook) -> Self {
        self.filters.retain(|filter| filter.hook != hook);
        self
    }

    /// Whether a chain at this hook may stop packets of this family.
    pub(super) fn filters(&self, hook: Hook, family: Family) -> bool {
        self.filters.iter().any(|filter| filter.hook == hook && filter.sees[family.index()])
    }

    /// Whether conntrack may translate addresses of this family.
    pub(super) fn translates(&self, family: Family) -> bool {
        self.translates[family.index()]
    }

    /// Whether conntrack tracks connections, as it also does to translate addresses.
    pub(super) fn tracks(&self) -> bool {
        self.tracks || self.translates != [false; 2]
    }

    /// Sets whether far legs are to have a conntrack zone.
    pub(super) fn with_zone(mut self, has_zone: bool) -> Self {
        self.has_zone = has_zone;
        self
    }

    /// Whether far legs are to have a conntrack zone.
    pub(super) fn has_zone(&self) -> bool {
        self.has_zone
    }

    /// The names of the chains at this hook that may stop packets, for messages. `None` if there
    /// are none.
    pub(crate) fn named(&self, hook: Hook) -> Option<String> {
        let labels: Vec<&str> = self.filters.iter().filter(|filter| filter.hook == hook).map(|filter| &filter.label[..]).collect();
        (!labels.is_empty()).then(|| labels.join(" and "))
    }
}

/// Whether a rule in an nftables table with an input chain contains the mark of split connections.
/// It then most likely accepts them.
///
/// # Errors
/// The kernel does not answer.
pub(crate) fn input_knows_mark() -> io::Result<bool> {
    let nftables = NftablesSocket::open()?;
    let mut tables = BTreeSet::new();
    nftables.chains(|message| {
        tables.extend(BaseChain::read(message).filter(|chain| chain.hook == Some(Hook::Input)).map(|chain| (chain.family, chain.table)));
    })?;
    let mut known = false;
    for (family, table) in tables {
        nftables.rules(family, &table, None, |rule| {
            let expressions = rule.attribute(RULE_EXPRESSIONS).unwrap_or_default();
            known |= expressions.windows(4).any(|bytes| bytes == MARK.to_ne_bytes());
        })?;
    }
    Ok(known)
}

fn both(one: [bool; 2], other: [bool; 2]) -> [bool; 2] {
    [one[0] | other[0], one[1] | other[1]]
}

/// A chain of another program at a hook.
struct BaseChain {
    family: u8,
    table: String,
    name: String,
    hook: Option<Hook>,
    drops: bool,
    translates: bool,
}

impl BaseChain {
    /// `None` for a chain without a hook, one of our own table, or one of another family, such as
    /// bridge.
    fn read(message: &Message<'_>) -> Option<Self> {
        let (family, table) = (message.family(), message.text(CHAIN_TABLE)?);
        let number = attribute(message.attribute(CHAIN_HOOK)?, HOOK_NUMBER)?;
        let hook = match u32::from_be_bytes(number.try_into().ok()?) {
            1 => Some(Hook::Input),
            2 => Some(Hook::Forward),
            _ => None,
        };
        if !matches!(family, INET | IPV4 | IPV6) || (family, table) == (INET, TABLE) {
            return None;
        }
        Some(BaseChain {
            family,
            table: table.into(),
            name: message.text(CHAIN_NAME)?.into(),
            hook,
            drops: message.attribute(CHAIN_POLICY) == Some(&DROP),
            translates: message.text(CHAIN_TYPE) == Some("nat"),
        })
    }

    fn sees(&self) -> [bool; 2] {
        [self.family != IPV6, self.family != IPV4]
    }
}

impl fmt::Display for BaseChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = match self.family {
            IPV4 => "ip",
            IPV6 => "ip6",
            _ => "inet",
        };
        write!(f, "the chain {} of the table {family} {}", self.name, self.table)
    }
}

/// Whether a rule uses conntrack, by an expression of nftables or a match of xtables.
fn asks_conntrack(rule: &Message<'_>) -> bool {
    attributes(rule.attribute(RULE_EXPRESSIONS).unwrap_or_default()).any(|(_, expression)| {
        match attribute(expression, EXPRESSION_NAME).and_then(as_text) {
            Some("ct") => true,
            Some("match") => {
                let data = attribute(expression, EXPRESSION_DATA).unwrap_or_default();
                attribute(data, TARGET_NAME).and_then(as_text).is_some_and(|name| matches!(name, "conntrack" | "state"))
            }
            _ => false,
        }
    })
}

/// Whether a rule may stop a packet, by itself or by a jump to another chain.
fn can_stop(rule: &Message<'_>) -> bool {
    let expressions = rule.attribute(RULE_EXPRESSIONS).unwrap_or_default();
    attributes(expressions).any(|(_, expression)| {
        let data = attribute(expression, EXPRESSION_DATA).unwrap_or_default();
        match attribute(expression, EXPRESSION_NAME).and_then(as_text) {
            Some("immediate") => {
                let verdict = attribute(data, IMMEDIATE_DATA).and_then(|data| attribute(data, DATA_VERDICT));
                let code = verdict.and_then(|verdict| attribute(verdict, VERDICT_CODE));
                code.is_some_and(|code| code != ACCEPT && code != RETURN)
            }
            Some("lookup") => attribute(data, LOOKUP_RESULT).is_some_and(|register| register == [0; 4]),
            Some("target") => attribute(data, TARGET_NAME).and_then(as_text).is_none_or(|name| !HARMLESS_TARGETS.contains(&name)),
            Some(name) => !HARMLESS.contains(&name),
            None => true,
        }
    })
}
