//! An agent between two links that helps TCP over the links behind it and does not split it: its
//! place, what it does, its cache.

use crate::split::Buffer;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An agent in front of a wireless link that sees the segments and the acknowledgements of every
/// connection that crosses it. Connections stay end to end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Agent {
    /// The link after which the agent stands, from 1. A later link must follow, and no `[[split]]`
    /// stands there.
    pub after: usize,
    /// What the agent does.
    pub kind: AgentKind,
    /// Of a `snoop` agent: the payload that it holds at most of each connection: a size;
    /// `"unlimited"`; or `"auto"`, the larger BDP of the two parts of the path that it stands
    /// between, at least 256 KiB. It forwards what finds no room without keeping it.
    #[serde(default)]
    pub cache: Buffer,
}

/// What an agent does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AgentKind {
    /// Keeps segments until they are acknowledged, retransmits what is lost behind it, and hides
    /// these losses from the sender (Snoop, Balakrishnan, Seshan, Amir and Katz 1995)
    Snoop,
    /// Tells the sender which losses happened behind it, by a flag in acknowledgements. The sender
    /// retransmits and leaves its window as it is (ACK-CLN of E-TCP; Explicit Loss Notification)
    LossNotice,
}

#[cfg(test)]
mod tests {
    use crate::{Scenario, ScenarioFile};

    fn scenario(more: &str) -> Result<Scenario, String> {
        let text = format!(
            "name = \"x\"\n[[link]]\nrate = \"100Mbit\"\ndelay = \"10ms\"\n[[link]]\nrate = \"20Mbit\"\ndelay = \"100ms\"\n\
             [[flow]]\nbytes = \"1MB\"\n{more}"
        );
        let file = ScenarioFile::parse(&text, "x").map_err(|error| error.to_string())?;
        Ok(file.variants(&[]).map_err(|error| error.to_string())?.remove(0).scenario)
    }

    #[test]
    fn an_agent_stands_between_two_links_without_a_proxy() {
        let wrong = |more: &str| scenario(more).unwrap_err();
        assert!(wrong("[[agent]]\nafter = 2\nkind = \"snoop\"\n").contains("agent[1].after: is 2, but an agent stands between two links"));
        let twice = "[[agent]]\nafter = 1\nkind = \"snoop\"\n[[agent]]\nafter = 1\nkind = \"loss-notice\"\n";
        assert!(wrong(twice).contains("agent[2].after: agents are listed from the sender"));
        assert!(wrong("[[agent]]\nafter = 1\nkind = \"snoop\"\n[[split]]\nafter = 1\n").contains("where a [[split]] ends the connections"));
    }

    #[test]
    fn only_snoop_has_a_cache_of_at_least_a_packet() {
        let wrong = |more: &str| scenario(more).unwrap_err();
        assert!(wrong("[[agent]]\nafter = 1\nkind = \"loss-notice\"\ncache = \"1MB\"\n").contains("is for kind = \"snoop\" only"));
        assert!(wrong("[[agent]]\nafter = 1\nkind = \"snoop\"\ncache = \"1kB\"\n").contains("less than one packet"));
    }

    #[test]
    fn the_cache_is_the_larger_bdp_beside_the_agent_unless_set() {
        let limit = |cache: &str| scenario(&format!("[[agent]]\nafter = 1\nkind = \"snoop\"\n{cache}")).unwrap().cache_limit(0);
        assert_eq!(limit("").map(|bytes| bytes.0), Some(500_000));
        assert_eq!(limit("cache = \"30kB\"\n").map(|bytes| bytes.0), Some(30_000));
        assert_eq!(limit("cache = \"unlimited\"\n"), None);
    }
}
