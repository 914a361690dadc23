//! The text of the file that `tandem setup` writes.

use super::{LinkSize, NatPlace};
use intercept::{Interface, Prefix};
use std::net::SocketAddr;
use units::Bytes;

/// The answers, and what was found besides.
#[derive(Debug, Clone)]
pub(super) struct Answers {
    pub(super) long_link: Interface,
    /// The long link's addresses, for a comment.
    pub(super) addresses: String,
    pub(super) rate: Option<LinkSize>,
    pub(super) nat: NatPlace,
    /// Empty: all.
    pub(super) clients: Vec<Prefix>,
    pub(super) metrics: Option<SocketAddr>,
    /// The controller of legs over the long link; none: the system's default.
    pub(super) controller: Option<String>,
    /// Networks on this side of the long link.
    pub(super) local: Vec<Prefix>,
}

impl Answers {
    const MIB: u64 = 1 << 20;

    /// B and the send buffer of legs over the long link: enough for twice what fills it.
    fn buffers(&self) -> (Bytes, Bytes) {
        let filled = self.rate.map_or(2 * Self::MIB, LinkSize::bdp);
        let up_to_mib = |bytes: u64| bytes.div_ceil(Self::MIB).max(4) * Self::MIB;
        // The kernel accounts for packets' overhead in the send buffer, up to as much again.
        (Bytes(up_to_mib(2 * filled)), Bytes(up_to_mib(4 * filled)))
    }

    /// The commented file.
    pub(super) fn text(&self) -> String {
        let Answers { long_link: Interface(link), addresses, .. } = self;
        let (buffer, send_buffer) = self.buffers();
        let sized = match self.rate {
            Some(LinkSize { rate, rtt }) => format!("twice what fills {rate} over {rtt}"),
            None => "twice rate times round trip is enough".into(),
        };
        let metrics = match self.metrics {
            Some(at) => format!("metrics = \"{at}\"       # for Prometheus\n"),
            None => "#metrics = \"127.0.0.1:9155\"  # for Prometheus\n".into(),
        };
        let control = match &self.controller {
            Some(name) => format!("control     = \"{name}\"          # tandem advise compares controllers\n"),
            None => "#control    = \"bbr\"          # cannot be loaded here: modprobe tcp_bbr\n".into(),
        };
        let nat = match self.nat {
            NatPlace::Here => "This host translates the clients' addresses there, those of the legs too.",
            NatPlace::Elsewhere => "Another host translates addresses: the legs have the clients' own.",
            NatPlace::None => "Addresses are not translated: the legs have the clients' own.",
        };
        let mut text = format!(
            "#:schema /usr/share/tandem/proxy.schema.json\n\
             # Written by tandem setup. `tandem config explain KEY` describes a key, `tandem\n\
             # config check --host` checks the file and this host; `tandem reload` applies most\n\
             # changes, `tandem restart` nearly all.\n\n\
             # Data buffered for each direction of a connection at most:\n\
             # {sized}.\n\
             buffer  = \"{buffer}\"\n{metrics}\n\
             # Connections that are routed through this host, IPv4 and IPv6.\n\
             [[listen]]\ntransparent = \"[::]:5000\"\n\n\
             # Legs over the long link, whichever end opened the connection. Its addresses:\n\
             # {}.\n# {nat}\n\
             [[leg]]\ninterface   = \"{link}\"\n{control}send_buffer = \"{send_buffer}\"\nkeepalive   = \"10min\"\n\
             #capacity   = \"10Mbit\"       # to have the proxy shape its packets to this rate\n\n\
             # The first rule that matches a connection decides. Management is not split.\n\
             [[rule]]\nports  = 22\naction = \"bypass\"\n",
            if addresses.is_empty() { "none yet" } else { addresses.as_str() }
        );
        if !self.local.is_empty() {
            text += &format!(
                "\n# Nor are connections that stay on this side of the long link.\n[[rule]]\nto     = {}\naction = \"bypass\"\n",
                list(&self.local)
            );
        }
        if !self.clients.is_empty() {
            text += &format!(
                "\n# These clients' connections are split, also past a forward chain of another\n\
                 # firewall that has not accepted one of their kind yet. All others pass unsplit.\n\
                 [[rule]]\nfrom   = {}\naction = \"split\"\n\n[[rule]]\naction = \"bypass\"\n",
                list(&self.clients)
            );
        }
        text
    }
}

fn list(prefixes: &[Prefix]) -> String {
    let texts: Vec<String> = prefixes.iter().map(|prefix| format!("\"{prefix}\"")).collect();
    format!("[{}]", texts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proxy::Service;

    fn answers() -> Answers {
        Answers {
            long_link: "sat0".parse().unwrap(),
            addresses: "192.0.2.7/24".into(),
            rate: Some("50Mbit,600ms".parse().unwrap()),
            nat: NatPlace::Here,
            clients: vec!["192.168.7.0/24".parse().unwrap()],
            metrics: None,
            controller: None,
            local: vec!["192.168.7.0/24".parse().unwrap()],
        }
    }

    #[test]
    fn the_file_is_valid_and_says_what_was_answered() {
        let config = Service::parse(&answers().text(), "x").unwrap().config;
        // 3.75 MB fill the link.
        assert_eq!((config.buffer, config.policy.legs[0].profile.send_buffer), (Some(Bytes(8 << 20)), Some(Bytes(15 << 20))));
        assert_eq!(config.policy.rules.len(), 4);
        let least = Answers { rate: None, clients: vec![], local: vec![], controller: Some("reno".into()), ..answers() };
        let least = Answers { metrics: Some("127.0.0.1:9155".parse().unwrap()), ..least };
        let service = Service::parse(&least.text(), "x").unwrap();
        assert_eq!((service.config.buffer, service.config.policy.rules.len()), (Some(Bytes(4 << 20)), 1));
        assert_eq!(service.config.policy.legs[0].profile.control.as_deref(), Some("reno"));
        assert!(service.metrics.is_some());
        assert!(least.text().lines().chain(answers().text().lines()).all(|line| line.chars().count() <= 82));
    }
}
