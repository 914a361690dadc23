//! The messages of a hot restart, and the version of their protocol.
//!
//! The *next* proxy is the one that starts; the *present* one is in charge until it reads
//! [`FromNext::Taken`].
//!
//! | from | message | then |
//! |---|---|---|
//! | next | [`Hello`], as a request of the control socket | |
//! | present | [`FromPresent::Offer`], with listening sockets | the next one starts, without accepting |
//! | next | [`FromNext::Ready`] | |
//! | present | [`FromPresent::Yours`], with the rules, the control socket, earlier proxies | the next one accepts |
//! | next | [`FromNext::Taken`] | the present one leaves: it drains |
//!
//! Either may send a refusal instead. If the connection ends before `Taken`, the present proxy goes
//! on. After it, the connection serves queries ([`ToEarlier`], [`FromEarlier`]).

use crate::{experiment::Results, meter::Totals};
use intercept::rules::RulesHandover;
use serde::{Deserialize, Serialize};
use std::{net::SocketAddr, path::PathBuf};
use units::Bytes;

/// The version of the protocol. Increase it with every change of a message, also of a type within
/// it, that leaves a next proxy unable to read what an earlier version sends: proxies of different
/// versions refuse each other. The tests below notice a change.
pub(crate) const PROTOCOL: u32 = 1;

/// How the next proxy begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) protocol: u32,
    /// The version of the program, for messages to people.
    pub(crate) version: String,
    pub(crate) pid: u32,
}

impl Hello {
    pub(crate) fn of_this_process() -> Self {
        Hello { protocol: PROTOCOL, version: env!("CARGO_PKG_VERSION").into(), pid: std::process::id() }
    }
}

/// A message of the present proxy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FromPresent {
    /// The takeover may begin. With a descriptor for each listener.
    Offer(Offer),
    /// The next proxy is in charge as soon as it answers. With descriptors in the order of the
    /// fields.
    Yours(Box<Charge>),
    /// The takeover is refused, and the reason.
    Refused(String),
}

/// What the next proxy needs to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    pub(crate) version: String,
    pub(crate) pid: u32,
    pub(crate) listeners: Vec<OfferedListener>,
    /// Where the web servers listen.
    pub(crate) web: Vec<SocketAddr>,
    /// Whether firewall rules are installed.
    pub(crate) rules: bool,
}

/// A listening socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OfferedListener {
    /// Its configured address.
    pub(crate) at: SocketAddr,
    pub(crate) transparent: bool,
    pub(crate) fixed: FixedOptions,
}

/// Options of a listening socket that cannot be changed while it listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FixedOptions {
    /// The buffer, if it is so small that listeners set it on their sockets, or the largest one if
    /// it follows each flow.
    pub(crate) buffer: Option<Bytes>,
    /// The bound of the receive window of a bond's connections.
    pub(crate) window: Option<Bytes>,
    pub(crate) mss: Option<u16>,
}

/// What the next proxy gets when it is ready.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Charge {
    /// The firewall's rules; none: the present proxy has none. With
    /// [`descriptors`](RulesHandover::descriptors).
    pub(crate) rules: Option<RulesHandover>,
    /// The path of the control socket. With two descriptors.
    pub(crate) control: PathBuf,
    /// The number of listening sockets of web servers, in the order of the offer. With a descriptor
    /// for each.
    pub(crate) web: usize,
    /// The number of earlier proxies that still drain. With a descriptor for each.
    pub(crate) earlier: usize,
    /// Totals of earlier proxies that have ended.
    pub(crate) past: Totals,
    /// What an experiment has measured. A version that measures otherwise has another field, so
    /// that either begins anew after the other.
    #[serde(default, skip_serializing_if = "Results::is_empty")]
    pub(crate) measured_by_client: Results,
}

/// A message of the next proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FromNext {
    /// It has started, except for what it needs the rules for.
    Ready,
    /// It accepts connections, and is in charge.
    Taken,
    /// It cannot start, and the reason.
    Failed(String),
}

/// A query to a proxy that drains, after a takeover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToEarlier {
    Flows,
    Totals,
    /// Reset the remaining flows, and end.
    Stop,
}

/// What a proxy that drains sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FromEarlier {
    /// The answer to a query.
    Answer(serde_json::Value),
    /// It ends, with these totals of its flows.
    Ended(Totals),
}

/// What a restart has done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartReport {
    /// The process that is in charge.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// The process that drains.
    pub earlier_pid: u32,
    /// Its version.
    pub earlier_version: String,
    /// Flows that end at the earlier process.
    pub flows: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of an example of each message. A change of a type changes it.
    fn examples() -> String {
        let fixed = FixedOptions { buffer: Some(Bytes(4096)), window: None, mss: Some(1400) };
        let listener = OfferedListener { at: "[::]:5000".parse().unwrap(), transparent: true, fixed };
        let web = vec!["127.0.0.1:9155".parse().unwrap()];
        let rules = RulesHandover::example();
        let charge = Charge {
            rules: Some(rules),
            control: "/run/tandem/root/7.x".into(),
            web: 1,
            earlier: 1,
            past: Totals::default(),
            measured_by_client: Results::default(),
        };
        let json = |value: serde_json::Result<String>| value.unwrap();
        [
            json(serde_json::to_string(&Hello { protocol: PROTOCOL, version: "1.0".into(), pid: 7 })),
            json(serde_json::to_string(&FromPresent::Offer(Offer {
                version: "1.0".into(),
                pid: 7,
                listeners: vec![listener],
                web,
                rules: true,
            }))),
            json(serde_json::to_string(&FromPresent::Yours(charge.into()))),
            json(serde_json::to_string(&FromPresent::Refused("why".into()))),
            json(serde_json::to_string(&[FromNext::Ready, FromNext::Taken, FromNext::Failed("why".into())])),
            json(serde_json::to_string(&[ToEarlier::Flows, ToEarlier::Totals, ToEarlier::Stop])),
            json(serde_json::to_string(&[FromEarlier::Answer(7.into()), FromEarlier::Ended(Totals::default())])),
        ]
        .join("\n")
            + "\n"
    }

    /// What a proxy of version 0.2.0 sends is understood.
    #[test]
    fn messages_of_the_first_version_are_read() {
        let lines: Vec<&str> = include_str!("protocol-1-of-0.2.0.txt").lines().collect();
        let offered: Vec<FromPresent> = [1, 2, 3].map(|line| serde_json::from_str(lines[line]).unwrap()).into();
        let FromPresent::Yours(charge) = &offered[1] else { panic!("{offered:?}") };
        assert_eq!(charge.past, Totals::default());
        let queried: Vec<FromEarlier> = serde_json::from_str(lines[6]).unwrap();
        assert_eq!(queried[1], FromEarlier::Ended(Totals::default()));
    }

    /// If this fails, a message has changed: see [`PROTOCOL`]. Replace the file by the text that
    /// the failure shows.
    #[test]
    fn a_change_of_a_message_changes_the_version() {
        let expected = include_str!("protocol-1.txt");
        let examples = examples();
        assert!(examples == expected, "the messages are now:\n{examples}");
        // The snapshot is of this version.
        assert!(expected.contains(&format!("\"protocol\":{PROTOCOL},")), "protocol-1.txt is of another version than {PROTOCOL}");
    }
}
