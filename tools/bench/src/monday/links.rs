//! The links, and the hosts at their ends.

use anyhow::{Context as _, Result};
use lab::{HostMemory, Lab, OtherProxy, SocketMemory};
use scenario::{Scenario, ScenarioFile};
use std::{
    io::{self, BufRead},
    sync::Arc,
};

/// A long link behind a clean access link, and what its operator answers to `tandem setup`.
#[derive(Debug)]
pub(super) struct LongLink {
    pub(super) name: &'static str,
    links: &'static str,
    pub(super) rate: &'static str,
    /// The same two links as `tandem advise --link` takes them.
    pub(super) described: [&'static str; 2],
    /// What is answered when `tandem setup` asks for rate and round-trip time. Of a link that
    /// varies: "unknown", as the question says.
    pub(super) answer: &'static str,
}

pub(super) const LINKS: [LongLink; 5] = [
    LongLink {
        name: "GEO",
        links: "[[link]]\nrate = \"1Gbit\"\ndelay = \"5ms\"\n[[link]]\nrate = \"50Mbit\"\ndelay = \"295ms\"\nqueue = \"1BDP\"\n\
                loss = { per_packet = 0.001, reverse = { per_packet = 0.001 } }\n",
        rate: "50Mbit",
        described: ["1Gbit,5ms", "50Mbit,295ms,0.1%"],
        answer: "50Mbit,600ms",
    },
    LongLink {
        name: "LEO",
        links: "[[link]]\nrate = \"1Gbit\"\ndelay = \"10ms\"\n[[link]]\nrate = \"120Mbit\"\ndelay = \"22ms\"\nqueue = \"600pkt\"\n\
                steps = \"starlink-steps.csv\"\nrepeat = \"60s\"\n",
        rate: "120Mbit",
        described: ["1Gbit,10ms", "120Mbit,22ms"],
        answer: "120Mbit,60ms",
    },
    LongLink {
        name: "LTE",
        links: "[[link]]\nrate = \"1Gbit\"\ndelay = \"10ms\"\n[[link]]\nrate = \"15Mbit\"\ndelay = \"25ms\"\nqueue = \"200pkt\"\n\
                steps = \"lte-steps.csv\"\nrepeat = \"30s\"\njitter = { delay = { law = \"exponential\", mean = \"2ms\" } }\n",
        rate: "15Mbit",
        described: ["1Gbit,10ms", "15Mbit,25ms"],
        answer: "unknown",
    },
    LongLink {
        name: "WAN",
        links: "[[link]]\nrate = \"1Gbit\"\ndelay = \"1ms\"\n[[link]]\nrate = \"200Mbit\"\ndelay = \"39ms\"\nqueue = \"1BDP\"\n",
        rate: "200Mbit",
        described: ["1Gbit,1ms", "200Mbit,39ms"],
        answer: "200Mbit,80ms",
    },
    LongLink {
        name: "DSL",
        links: "[[link]]\nrate = \"1Gbit\"\ndelay = \"5ms\"\n[[link]]\nrate = \"16Mbit\"\ndelay = \"15ms\"\nqueue = \"400kB\"\n",
        rate: "16Mbit",
        described: ["1Gbit,5ms", "16Mbit,15ms"],
        answer: "16Mbit,40ms",
    },
];

/// Clients' socket buffers and servers' controllers. All other hosts have Debian's buffers.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) name: &'static str,
    /// `tcp_rmem` of the client.
    receive: &'static str,
    server: &'static str,
}

const DEBIAN: [&str; 2] = ["4096 131072 6291456", "4096 16384 4194304"];
pub(super) const ENDS: [Ends; 4] = [
    Ends { name: "Debian, CUBIC", receive: DEBIAN[0], server: "cubic" },
    Ends { name: "Debian, BBR", receive: DEBIAN[0], server: "bbr" },
    // A first window of 64 kB, which grows to 16 MB.
    Ends { name: "Windows, CUBIC", receive: "4096 65536 33554432", server: "cubic" },
    Ends { name: "64 MB, CUBIC", receive: "4096 1048576 67108864", server: "cubic" },
];

/// These tables over the link, split at its near end.
pub(super) fn scenario(link: &LongLink, ends: &Ends, tables: &str) -> Result<Scenario> {
    let (settings, tables) = tables.split_at(tables.find("[[").unwrap_or(0));
    let text = format!(
        "name = \"monday\"\n{settings}{}[[split]]\nafter = 1\n[control]\nsender = \"{}\"\nproxy = \"cubic\"\n{tables}",
        link.links, ends.server
    );
    let open = |name: &str| -> io::Result<Box<dyn BufRead>> {
        let steps: &'static [u8] = match name {
            "lte-steps.csv" => include_bytes!("../../../../scenarios/lte-steps.csv"),
            "starlink-steps.csv" => include_bytes!("../../../../scenarios/starlink-steps.csv"),
            _ => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok(Box::new(steps))
    };
    let variants = ScenarioFile::parse_with(&text, "monday", Arc::new(open))?.variants(&[])?;
    Ok(variants.into_iter().next().context("the scenario has a case")?.scenario)
}

/// The lab with these buffers, and another program on the proxy's host.
pub(super) fn lab(ends: &Ends, other: OtherProxy) -> Lab {
    let [receive, send] = DEBIAN;
    let debian = SocketMemory { receive: receive.into(), send: send.into() };
    let receiver = SocketMemory { receive: ends.receive.into(), ..debian.clone() };
    Lab { other_proxy: Some(other), memory: Some(HostMemory { receiver, others: debian }), ..Lab::default() }
}
