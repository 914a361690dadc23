//! The text of the file that `tandem setup` writes.

use super::{ClientSide, LinkSize, NatPlace};
use intercept::{
    Interface, Prefix,
    check::{Trial, TrialResult},
};
use std::net::SocketAddr;

/// The controller of legs over the long link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkController {
    /// `share`, which divides the link's capacity.
    Share,
    /// The kernel's BBR, where the kernel cannot load `share`.
    Bbr,
    /// The system's default, where it has neither.
    SystemDefault,
}

impl LinkController {
    /// What this kernel can load. If only this process cannot load `share` now, the checks that
    /// follow say why.
    pub(super) fn of_host() -> Self {
        match kernel::load("share", &[]) {
            Err(why) if why.is_of_kernel() && kernel::has_congestion_control("bbr") => LinkController::Bbr,
            Err(why) if why.is_of_kernel() => LinkController::SystemDefault,
            Ok(_) | Err(_) => LinkController::Share,
        }
    }
}

/// The answers, and what was found besides.
#[derive(Debug, Clone)]
pub(super) struct Answers {
    pub(super) long_link: Interface,
    /// The long link's addresses, for a comment.
    pub(super) addresses: String,
    /// The interfaces that could be the long link as well, if that was only suggested.
    pub(super) others: Vec<String>,
    pub(super) rate: Option<LinkSize>,
    pub(super) side: ClientSide,
    /// The interface through which the clients' connections leave towards the servers, if it is
    /// known.
    pub(super) to_servers: Option<String>,
    pub(super) nat: NatPlace,
    /// Empty: all.
    pub(super) clients: Vec<Prefix>,
    pub(super) metrics: Option<SocketAddr>,
    pub(super) controller: LinkController,
}

impl Answers {
    /// What may have been answered otherwise than it was meant.
    pub(super) fn doubts(&self) -> Vec<Trial> {
        let mut doubts = Vec::new();
        let Interface(link) = &self.long_link;
        if !self.others.is_empty() {
            let why = "it was suggested because the default route leads through it".to_owned();
            let cure = format!("if the satellite or cellular link is {}, run tandem setup again and name it", self.others.join(" or "));
            doubts.push(Trial::new("take for the long link", link, TrialResult::doubtful(why, cure)));
        }
        let to_clients = |size: &LinkSize| match self.side {
            ClientSide::Behind => (size.rate, size.rate_here),
            ClientSide::Here => (size.rate_here, size.rate),
        };
        if let Some((down, up)) = self.rate.as_ref().map(to_clients).filter(|(down, up)| down < up) {
            let why = format!("{down} towards the clients is less than {up} from them");
            let cure = "if that is the wrong way round, run tandem setup again: the rate from this host comes first";
            doubts.push(Trial::new("take the rates of", link, TrialResult::doubtful(why, cure)));
        }
        doubts
    }

    /// Controller and capacity of legs over the long link.
    fn control(&self) -> String {
        match (self.controller, self.rate) {
            (LinkController::Share, Some(LinkSize { rate, .. })) => format!(
                "control   = \"share\"\n\
                 # As answered. Where the link has another rate, share estimates it, and the log says so.\n\
                 capacity  = \"{rate}\"\n\
                 shape     = false           # true has the proxy limit itself to this rate\n"
            ),
            (LinkController::Share, None) => "control   = \"share\"\ncapacity  = \"auto\"          # or the link's rate: 50Mbit\n".into(),
            (LinkController::Bbr, _) => "control   = \"bbr\"            # share is better, but this kernel cannot load it\n".into(),
            (LinkController::SystemDefault, _) => "#control   = \"bbr\"           # cannot be loaded here: modprobe tcp_bbr\n".into(),
        }
    }

    /// The commented file.
    pub(super) fn text(&self) -> String {
        let Answers { long_link: Interface(link), addresses, .. } = self;
        let sized = match self.rate {
            Some(LinkSize { rate, rate_here, rtt }) => {
                let rates = if rate == rate_here { rate.to_string() } else { format!("{rate} from here, {rate_here} to here") };
                rates + &rtt.map_or(String::new(), |rtt| format!(", {rtt}"))
            }
            None => "an unknown rate".into(),
        };
        let metrics = match self.metrics {
            Some(at) => format!("metrics = \"{at}\"       # for Prometheus\n"),
            None => "#metrics = \"127.0.0.1:9155\"  # for Prometheus\n".into(),
        };
        let nat = match self.nat {
            NatPlace::Here => "This host translates the clients' addresses, those of the legs too.",
            NatPlace::Elsewhere => "Another host translates addresses: the legs have the clients' own.",
            NatPlace::None => "Addresses are not translated: the legs have the clients' own.",
        };
        let side = match self.side {
            ClientSide::Here => "The clients are on this side of it.",
            ClientSide::Behind => "The clients are behind it.",
        };
        format!(
            "#:schema /usr/share/tandem/proxy.schema.json\n\
             # Written by tandem setup. `tandem config explain KEY` describes a key, `tandem\n\
             # config check --host` checks the file and this host; `tandem reload` applies most\n\
             # changes, `tandem restart` nearly all.\n\n\
             # What is held of each direction of a connection follows its legs.\n\
             buffer  = \"auto\"\n{metrics}\n\
             # Connections that are routed through this host, IPv4 and IPv6.\n\
             [[listen]]\ntransparent = \"[::]:5000\"\n\n\
             # Legs over the long link, whichever end opened the connection.\n\
             # It has {sized}; its addresses: {}.\n# {side}\n# {nat}\n\
             [[leg]]\ninterface = \"{link}\"\n{}keepalive = \"10min\"\n\n{}",
            if addresses.is_empty() { "none yet" } else { addresses.as_str() },
            self.control(),
            self.rules()
        )
    }

    /// What is split: what crosses the long link, as far as the clients' connections go.
    fn rules(&self) -> String {
        let Interface(link) = &self.long_link;
        let mut text = String::from(
            "# The first rule that matches a connection decides. Management is not split.\n\
             [[rule]]\nports  = 22\naction = \"bypass\"\n",
        );
        let clients = if self.clients.is_empty() {
            "# Connections over the long link are split, whichever end opens them.\n".to_owned()
        } else {
            "# These clients' connections over the long link are split, also past a forward chain\n\
             # of another firewall that has not accepted one of their kind yet.\n"
                .to_owned()
        };
        let rule = |lines: &str| format!("[[rule]]\n{lines}action = \"split\"\n");
        let crossing: Vec<String> = match (self.clients.is_empty(), self.side) {
            (true, _) => ["in ", "out"].map(|way| rule(&format!("{way}    = \"{link}\"\n"))).to_vec(),
            (false, ClientSide::Here) => vec![rule(&format!("from   = {}\nout    = \"{link}\"\n", list(&self.clients)))],
            (false, ClientSide::Behind) => vec![rule(&format!("from   = {}\nin     = \"{link}\"\n", list(&self.clients)))],
        };
        text += &format!("\n{clients}{}\n", crossing.join("\n"));
        text + "# All others pass unsplit: they do not cross it, or are of other clients.\n[[rule]]\naction = \"bypass\"\n"
    }
}

fn list(prefixes: &[Prefix]) -> String {
    let texts: Vec<String> = prefixes.iter().map(|prefix| format!("\"{prefix}\"")).collect();
    format!("[{}]", texts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proxy::{Buffer, Service};

    fn answers() -> Answers {
        Answers {
            long_link: "sat0".parse().unwrap(),
            addresses: "192.0.2.7/24".into(),
            others: Vec::new(),
            rate: Some("50Mbit/20Mbit,600ms".parse().unwrap()),
            side: ClientSide::Here,
            to_servers: Some("sat0".into()),
            nat: NatPlace::Here,
            clients: vec!["192.168.7.0/24".parse().unwrap()],
            metrics: None,
            controller: LinkController::Share,
        }
    }

    #[test]
    fn the_file_is_valid_and_says_what_was_answered() {
        let config = Service::parse(&answers().text(), "x").unwrap().config;
        let profile = &config.policy.legs[0].profile;
        assert_eq!((profile.control.as_deref(), profile.send_buffer), (Some("share"), None));
        assert!(matches!(config.buffer, Buffer::Adaptive { .. }));
        assert_eq!((profile.shape, config.policy.rules.len()), (Some(false), 3));
        assert_eq!(profile.capacity.as_ref().map(ToString::to_string).as_deref(), Some("\"50Mbit\""));
        assert!(answers().text().contains("50Mbit from here, 20Mbit to here, 600ms;"));
        let least = Answers { rate: None, clients: vec![], metrics: Some("127.0.0.1:9155".parse().unwrap()), ..answers() };
        let service = Service::parse(&least.text(), "x").unwrap();
        assert_eq!(service.config.policy.rules.len(), 4);
        assert_eq!(service.config.policy.legs[0].profile.capacity.as_ref().map(ToString::to_string).as_deref(), Some("\"auto\""));
        assert!(service.metrics.is_some());
        let bbr = Answers { controller: LinkController::Bbr, side: ClientSide::Behind, ..answers() };
        let config = Service::parse(&bbr.text(), "x").unwrap().config;
        assert_eq!(
            (config.policy.legs[0].profile.control.as_deref(), config.policy.legs[0].profile.capacity.is_none()),
            (Some("bbr"), true)
        );
        let other = Answers { controller: LinkController::SystemDefault, ..bbr.clone() };
        // The clients are on this side, so that downloads come to this host.
        let said = |doubts: Vec<Trial>| doubts.iter().map(|doubt| format!("{doubt:?}")).collect::<String>();
        assert!(said(answers().doubts()).contains("20Mbit towards the clients is less than 50Mbit from them"));
        assert!(Answers { side: ClientSide::Behind, ..answers() }.doubts().is_empty());
        let guessed = Answers { others: vec!["lan0".into()], rate: None, ..answers() };
        assert!(said(guessed.doubts()).contains("if the satellite or cellular link is lan0, run tandem setup again"));
        let short = Answers { rate: Some("50Mbit".parse().unwrap()), ..answers() };
        assert!(short.text().contains("# It has 50Mbit; its"), "{}", short.text());
        for answers in [answers(), least, bbr, other] {
            let text = answers.text();
            assert!(text.lines().all(|line| line.chars().count() <= 90), "{text}");
        }
    }
}
