//! The questions on a terminal: numbered, with a suggestion that an empty line takes.

use super::{
    ClientSide, Clients, LinkAnswer, Metrics, NatPlace,
    detect::{Detected, METRICS},
    nat::Nat,
};
use crate::{CommandError, host_interfaces::HostInterface, output};
use intercept::Interface;
use std::io::{BufRead as _, Write as _, stdin, stdout};

/// A terminal on which questions are answered.
#[derive(Debug, Default)]
pub(super) struct Terminal {
    /// How many questions have been asked.
    asked: u32,
}

impl Terminal {
    /// Asks until the answer can be parsed. An empty line is the suggestion.
    fn ask<T>(&mut self, question: &str, suggestion: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<T, CommandError> {
        self.asked += 1;
        outln!("\n{}", report::wrap(&format!("{}. {question}", self.asked), output::width()));
        loop {
            out!("   [{suggestion}]: ");
            let _ = stdout().flush();
            let mut line = String::new();
            let read = stdin().lock().read_line(&mut line).map_err(|why| CommandError::Failed(format!("cannot read the answer: {why}")))?;
            if read == 0 {
                return Err(CommandError::Usage("there was no answer, so that nothing has been written".into()));
            }
            let answer = Some(line.trim()).filter(|answer| !answer.is_empty()).unwrap_or(suggestion);
            match parse(answer) {
                Ok(answer) => return Ok(answer),
                Err(why) => outln!("   {why}"),
            }
        }
    }

    /// Returns the interface, and whether it is the suggestion.
    pub(super) fn long_link(&mut self, found: &Detected) -> Result<(Interface, bool), CommandError> {
        let mut question = "Which interface is the long link (satellite, cellular)? Its name or number:".to_owned();
        for (index, interface) in found.interfaces.iter().enumerate() {
            let mark = match interface {
                HostInterface { is_default: true, .. } => " (default route)",
                HostInterface { is_up: false, .. } => " (down)",
                _ => "",
            };
            question += &format!("\n   {}) {} {}{mark}", index + 1, interface.name, found.addresses(&interface.name));
        }
        let suggestion = found.suggested_link().map_or_else(|_| String::new(), |link| link.0);
        self.ask(&question, &suggestion, |answer| {
            let numbered = answer.parse::<usize>().ok().and_then(|number| found.interfaces.get(number.checked_sub(1)?));
            let named = found.interfaces.iter().find(|interface| interface.name == answer);
            let chosen = named.or(numbered).ok_or_else(|| format!("no interface is named {answer:?}: choose one of {}", found.names()))?;
            Ok((chosen.name.parse()?, chosen.name == suggestion))
        })
    }

    pub(super) fn rate(&mut self) -> Result<LinkAnswer, CommandError> {
        let question = "What are its rate and its round-trip time (50Mbit,600ms)? If the rates differ, the one from this host first \
                        (5Mbit/50Mbit,600ms). If it varies, or nobody knows: unknown";
        self.ask(question, "unknown", str::parse)
    }

    pub(super) fn side(&mut self, link: &str, suggestion: ClientSide) -> Result<ClientSide, CommandError> {
        let name = match suggestion {
            ClientSide::Here => "here",
            ClientSide::Behind => "behind",
        };
        let question =
            format!("Where are the clients: here, on this side of {link}, or behind it (this host is its gateway to the servers)?");
        let parse = |answer: &str| <ClientSide as clap::ValueEnum>::from_str(answer, true);
        self.ask(&question, name, |answer| parse(answer).map_err(|_| "answer here or behind".to_owned()))
    }

    pub(super) fn nat(&mut self, to: Option<&str>, found: &Nat, suggestion: NatPlace) -> Result<NatPlace, CommandError> {
        let seen = match found {
            Nat::Rules(_) => format!("nftables has: {}", found.texts().join("; ")),
            Nat::None => "nftables has no rule for it".into(),
            Nat::Unknown(why) => format!("cannot see it here: {why}"),
        };
        let through = to.map_or_else(String::new, |link| format!(", which leaves this host through {link}"));
        let question = format!(
            "Where are the clients' addresses translated (NAT) on their way to the servers{through}: here, elsewhere (a modem) or none?\n   \
             ({seen})"
        );
        let name = match suggestion {
            NatPlace::Here => "here",
            NatPlace::Elsewhere => "elsewhere",
            NatPlace::None => "none",
        };
        let parse = |answer: &str| <NatPlace as clap::ValueEnum>::from_str(answer, true);
        self.ask(&question, name, |answer| parse(answer).map_err(|_| "answer here, elsewhere or none".to_owned()))
    }

    pub(super) fn clients(&mut self, suggestion: &Clients) -> Result<Clients, CommandError> {
        let question = "Whose connections may be split? Prefixes, or all; other connections pass unsplit:";
        let prefixes: Vec<String> = suggestion.0.iter().map(ToString::to_string).collect();
        let suggestion = if prefixes.is_empty() { "all".to_owned() } else { prefixes.join(",") };
        self.ask(question, &suggestion, str::parse)
    }

    pub(super) fn metrics(&mut self) -> Result<Metrics, CommandError> {
        self.ask("At which address are metrics served for Prometheus? An address with a port, or none:", &METRICS.to_string(), str::parse)
    }
}
