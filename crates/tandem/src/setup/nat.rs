//! Rules of nftables that translate source addresses, and whether they apply to the connections
//! that leave through an interface.
//!
//! A rule may name interfaces, with `!=` and `*`, and so may the rules that jump to its chain.
//! Other conditions, such as `ip saddr`, are not evaluated: a rule that has one applies perhaps.

use std::{fs, iter::Peekable, process::Command};

/// The most jumps from a hook to a chain that are followed: nftables allows 16.
const MOST_JUMPS: usize = 16;
/// The most ways to a chain that are followed.
const MOST_WAYS: usize = 64;

/// Whether rules translate addresses of connections that leave through an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Nat {
    /// Rules that translate.
    Rules(Vec<NatRule>),
    /// There is none.
    None,
    /// The firewall cannot be read, for this reason.
    Unknown(String),
}

/// A rule that translates addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NatRule {
    /// The rule as nft prints it.
    text: String,
    /// The ways from a hook to its chain, each with the rules that jump. The only way to a chain
    /// that is a hook's own has none.
    ways: Vec<Vec<String>>,
}

/// Whether a rule applies to the connections that leave through an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Applies {
    No,
    /// It has conditions that are not evaluated.
    Perhaps,
    Surely,
}

impl Nat {
    /// Reads the rules of this host.
    pub(super) fn of_host() -> Self {
        let output = match Command::new("nft").args(["list", "ruleset"]).output() {
            Ok(output) if output.status.success() => output,
            Ok(output) => return Nat::Unknown(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(why) => return Nat::Unknown(format!("cannot run nft: {why}")),
        };
        match Nat::parse(&String::from_utf8_lossy(&output.stdout)) {
            // Rules of the older interface are not in nftables.
            Nat::None if fs::read_to_string("/proc/net/ip_tables_names").is_ok_and(|names| names.lines().any(|name| name == "nat")) => {
                Nat::Unknown("it has rules of iptables-legacy".into())
            }
            nat => nat,
        }
    }

    /// The rules of a ruleset as nft lists it.
    pub(super) fn parse(ruleset: &str) -> Self {
        let chains = chains(ruleset);
        let is_nat = |rule: &&&str| conditions_and_statement(rule).split_whitespace().any(|word| word == "masquerade" || word == "snat");
        let owned = |way: Vec<&str>| way.into_iter().map(str::to_owned).collect();
        let rules_of = |chain: &Chain<'_>| {
            let ways: Vec<Vec<String>> = ways(&chains, chain, MOST_JUMPS).into_iter().map(owned).collect();
            let rule = |text: &&str| NatRule { text: (*text).to_owned(), ways: ways.clone() };
            chain.rules.iter().filter(is_nat).map(rule).collect::<Vec<_>>()
        };
        // A chain to which no way leads is never used.
        let rules: Vec<NatRule> = chains.iter().flat_map(rules_of).filter(|rule| !rule.ways.is_empty()).collect();
        if rules.is_empty() { Nat::None } else { Nat::Rules(rules) }
    }

    /// The texts of the rules.
    pub(super) fn texts(&self) -> Vec<&str> {
        let Nat::Rules(rules) = self else { return Vec::new() };
        rules.iter().map(|rule| rule.text.as_str()).collect()
    }

    /// Whether addresses are translated on an interface, and by which rules.
    pub(super) fn on(&self, interface: &str) -> (Applies, Vec<&str>) {
        let Nat::Rules(rules) = self else { return (Applies::No, Vec::new()) };
        let of = rules.iter().map(|rule| (rule.applies_to(interface), rule.text.as_str()));
        let most = of.clone().map(|(applies, _)| applies).max().unwrap_or(Applies::No);
        (most, of.filter(|(applies, _)| *applies == most && most != Applies::No).map(|(_, text)| text).collect())
    }
}

impl NatRule {
    fn applies_to(&self, interface: &str) -> Applies {
        let of_way = |way: &Vec<String>| way.iter().map(|jump| evaluate(jump, interface)).min().unwrap_or(Applies::Surely);
        let reached = self.ways.iter().map(of_way).max().unwrap_or(Applies::No);
        reached.min(evaluate(&self.text, interface))
    }
}

/// A chain of a ruleset.
struct Chain<'a> {
    table: &'a str,
    name: &'a str,
    /// Whether packets come to it from a hook.
    is_hooked: bool,
    rules: Vec<&'a str>,
}

/// The chains of a ruleset as nft lists it: a line for each rule.
fn chains(ruleset: &str) -> Vec<Chain<'_>> {
    let (mut chains, mut table, mut is_inside) = (Vec::<Chain<'_>>::new(), "", false);
    for line in ruleset.lines() {
        let text = line.trim();
        if let Some(name) = line.strip_prefix("table ") {
            table = name;
        } else if let Some(name) = text.strip_prefix("chain ").and_then(|rest| rest.strip_suffix(" {")) {
            chains.push(Chain { table, name, is_hooked: false, rules: Vec::new() });
            is_inside = true;
        } else if text == "}" {
            is_inside = false;
        } else if let Some(chain) = chains.last_mut().filter(|_| is_inside) {
            if text.starts_with("type ") {
                chain.is_hooked = true;
            } else {
                chain.rules.push(text);
            }
        }
    }
    chains
}

/// The ways from a hook to a chain, each with the rules that jump.
fn ways<'a>(chains: &[Chain<'a>], to: &Chain<'a>, jumps: usize) -> Vec<Vec<&'a str>> {
    if to.is_hooked {
        return vec![Vec::new()];
    }
    let Some(jumps) = jumps.checked_sub(1) else { return Vec::new() };
    let leads_there = |rule: &str| {
        let mut words = conditions_and_statement(rule).split_whitespace().map(|word| word.trim_end_matches([',', ';']));
        let is_jump = |word: &str| word == "jump" || word == "goto";
        while let Some(word) = words.next() {
            if is_jump(word) && words.next() == Some(to.name) {
                return true;
            }
        }
        false
    };
    let callers = chains.iter().filter(|caller| caller.table == to.table);
    let found = callers.flat_map(|caller| {
        let rules: Vec<&'a str> = caller.rules.iter().copied().filter(|rule| leads_there(rule)).collect();
        let before = if rules.is_empty() { Vec::new() } else { ways(chains, caller, jumps) };
        rules.into_iter().flat_map(move |rule| before.clone().into_iter().map(move |way| [way, vec![rule]].concat()))
    });
    found.take(MOST_WAYS).collect()
}

/// A rule without its comment.
fn conditions_and_statement(rule: &str) -> &str {
    rule.split(" comment \"").next().unwrap_or(rule)
}

/// Whether the conditions of a rule hold for connections that leave through an interface.
fn evaluate(rule: &str, interface: &str) -> Applies {
    let mut words = conditions_and_statement(rule).split_whitespace().peekable();
    let mut applies = Applies::Surely;
    while let Some(word) = words.next() {
        let holds = match word {
            // What follows says what is done.
            "masquerade" | "snat" | "jump" | "goto" => break,
            "oif" | "oifname" => names(&mut words, interface),
            "counter" => {
                while words.next_if(|word| ["packets", "bytes", "name"].contains(word)).is_some() {
                    words.next();
                }
                Applies::Surely
            }
            // The key of the condition follows.
            "meta" => Applies::Surely,
            "nfproto" if words.next_if_eq(&"ipv4").is_some() => Applies::Surely,
            "l4proto" if words.next_if_eq(&"tcp").is_some() => Applies::Surely,
            _ => Applies::Perhaps,
        };
        applies = applies.min(holds);
    }
    applies
}

/// Evaluates the rest of a condition on the outgoing interface, and takes its words.
fn names<'a>(words: &mut Peekable<impl Iterator<Item = &'a str>>, interface: &str) -> Applies {
    let is_negated = words.next_if_eq(&"!=").is_some();
    let first = words.next().unwrap_or_default();
    let listed: Vec<&str> = if first == "{" { words.take_while(|word| *word != "}").collect() } else { vec![first] };
    let mut is_named = false;
    for name in listed.into_iter().map(|name| name.trim_end_matches(',')) {
        let bare = name.trim_matches('"');
        // Neither a name nor a pattern: a set with a name, a map, a key of several parts, a number.
        if bare == name && (name.starts_with('@') || name == "vmap" || name == "." || name.parse::<u32>().is_ok()) {
            return Applies::Perhaps;
        }
        is_named |= bare == interface || bare.strip_suffix('*').is_some_and(|start| interface.starts_with(start));
    }
    if is_named == is_negated { Applies::No } else { Applies::Surely }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rules of a chain for source addresses, to which packets come from the hook.
    fn postrouting(rules: &[&str]) -> Nat {
        let rules: String = rules.iter().map(|rule| format!("\t\t{rule}\n")).collect();
        let base = "type nat hook postrouting priority srcnat; policy accept;";
        Nat::parse(&format!("table ip nat {{\n\tchain post {{\n\t\t{base}\n{rules}\t}}\n}}\n"))
    }

    #[test]
    fn conditions_on_the_interface_are_evaluated() {
        for (rule, expected) in [
            ("oifname \"sat0\" masquerade", Applies::Surely),
            ("oifname \"sat*\" counter packets 7 bytes 420 masquerade", Applies::Surely),
            ("oifname != \"lan0\" masquerade", Applies::Surely),
            ("oifname != { \"lan0\", \"lan1\" } snat to 192.0.2.1", Applies::Surely),
            ("oifname { \"lan0\", \"sat0\" } masquerade", Applies::Surely),
            ("meta nfproto ipv4 oif \"sat0\" masquerade fully-random comment \"oifname lan0\"", Applies::Surely),
            ("meta l4proto tcp masquerade to :1024-65535", Applies::Surely),
            ("masquerade", Applies::Surely),
            ("oifname \"lan0\" masquerade", Applies::No),
            ("oifname \"sat0.7\" masquerade", Applies::No),
            ("oifname != \"sat0\" masquerade", Applies::No),
            ("oifname != \"sat*\" masquerade", Applies::No),
            ("ip saddr 10.0.0.0/8 oifname { \"lan0\", \"lan1\" } masquerade", Applies::No),
            ("ip saddr 172.17.0.0/16 oifname != \"docker0\" masquerade", Applies::Perhaps),
            ("oifname @uplinks masquerade", Applies::Perhaps),
            ("oif 7 masquerade", Applies::Perhaps),
            ("meta mark 0x00000001 masquerade", Applies::Perhaps),
        ] {
            let (nat, shown) = (postrouting(&[rule]), if expected == Applies::No { vec![] } else { vec![rule] });
            assert_eq!(nat.on("sat0"), (expected, shown), "{rule}");
        }
        let several = postrouting(&["ip saddr 10.0.0.0/8 masquerade", "oifname \"lan0\" masquerade", "oifname \"sat*\" masquerade"]);
        assert_eq!(several.on("sat0"), (Applies::Surely, vec!["oifname \"sat*\" masquerade"]));
        assert_eq!(several.on("lan1"), (Applies::Perhaps, vec!["ip saddr 10.0.0.0/8 masquerade"]));
        assert_eq!(postrouting(&["oifname \"sat0\" accept comment \"no masquerade here\""]), Nat::None);
    }

    #[test]
    fn the_rules_that_jump_to_a_chain_have_conditions_too() {
        let ruleset = "table inet fw4 {\n\tset masquerade {\n\t\ttype ipv4_addr\n\t}\n\
                       \tchain srcnat {\n\t\ttype nat hook postrouting priority srcnat; policy accept;\n\
                       \t\toifname \"sat0\" jump srcnat_wan comment \"!fw4\"\n\t\toifname vmap { \"lan0\" : jump srcnat_lan }\n\t}\n\
                       \tchain srcnat_wan {\n\t\tjump masks\n\t}\n\tchain masks {\n\t\tmeta nfproto ipv4 masquerade\n\t}\n\
                       \tchain srcnat_lan {\n\t\tsnat to 192.0.2.1\n\t}\n\tchain unused {\n\t\toifname \"wlan0\" masquerade\n\t}\n}\n\
                       table ip other {\n\tchain masks {\n\t\tsnat to 192.0.2.9\n\t}\n}\n";
        let nat = Nat::parse(ruleset);
        assert_eq!(nat.on("sat0"), (Applies::Surely, vec!["meta nfproto ipv4 masquerade"]));
        assert_eq!(nat.on("lan0"), (Applies::Perhaps, vec!["snat to 192.0.2.1"]));
        assert_eq!(nat.texts(), ["meta nfproto ipv4 masquerade", "snat to 192.0.2.1"]);
        // The map is not evaluated.
        assert_eq!(nat.on("wlan0"), (Applies::Perhaps, vec!["snat to 192.0.2.1"]));
    }
}
