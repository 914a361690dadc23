//! `tandem setup`: six questions, a commented configuration file, and what is in the way of it.

mod detect;
mod file;
mod nat;
mod questions;
mod unit;

use crate::{CommandError, check, service::usage};
use clap::{Args, ValueEnum};
use detect::Detected;
use file::{Answers, LinkController};
use files::Draft;
use intercept::{Interface, Prefix, parse_address};
use proxy::Service;
use questions::Terminal;
use std::{
    fs,
    io::{IsTerminal as _, stdin},
    net::SocketAddr,
    path::PathBuf,
    str::FromStr,
};
use units::{Rate, Span};

/// The file that the packages install.
const PACKAGED: &str = include_str!("../../../packaging/proxy.toml");

/// Write a configuration file for this host, by six questions
///
/// Asks for what options do not say; --yes takes the suggestions instead. Then checks this host
/// against the file, and prints what is in the way and the next command. Without --force an
/// existing file is not replaced, unless it is the unmodified file of the package. Exits with 1 if
/// something is in the way.
#[derive(Debug, Args)]
pub(crate) struct SetupCommand {
    /// File to write
    #[arg(short, long, value_name = "FILE", default_value = "/etc/tandem/proxy.toml")]
    output: PathBuf,
    /// Take the suggested answers to all questions that have no option
    #[arg(short, long)]
    yes: bool,
    /// Replace the file if it exists; the old one is kept beside it
    #[arg(long)]
    force: bool,
    /// Question 1: interface of the long link, such as that to the modem
    #[arg(long, value_name = "INTERFACE")]
    long_link: Option<Interface>,
    /// Question 2: rate of the long link and its round-trip time: 50Mbit,600ms; if it differs, the
    /// rate from this host before that to it: 5Mbit/50Mbit,600ms; or "unknown"
    #[arg(long, value_name = "RATE,RTT")]
    rate: Option<LinkAnswer>,
    /// Question 3: where the clients are: on this side of the long link, or behind it
    #[arg(long, value_name = "WHERE")]
    side: Option<ClientSide>,
    /// Question 4: where the addresses of clients are translated on their way to the servers
    #[arg(long, value_name = "WHERE")]
    nat: Option<NatPlace>,
    /// Question 5: prefixes of the clients whose connections are split; "all" for every client
    #[arg(long, value_name = "PREFIX,…")]
    clients: Option<Clients>,
    /// Question 6: address at which metrics are served, or "none"
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<Metrics>,
}

/// Rates and round-trip time of the long link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkSize {
    /// From this host.
    rate: Rate,
    /// To this host.
    rate_here: Rate,
    rtt: Option<Span>,
}

/// What is known of the long link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkAnswer(Option<LinkSize>);

impl FromStr for LinkAnswer {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == "unknown" { Ok(LinkAnswer(None)) } else { text.parse().map(|size| LinkAnswer(Some(size))) }
    }
}

impl FromStr for LinkSize {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (rate, rtt) = text.split_once(',').unzip();
        let wrong = |error: units::UnitError| error.to_string();
        let rates = rate.unwrap_or(text);
        let (from, to) = rates.split_once('/').unwrap_or((rates, rates));
        let [rate, rate_here] = [from, to].map(|rate| rate.trim().parse::<Rate>().map_err(wrong));
        let (rate, rate_here) = (rate?, rate_here?);
        let rtt = rtt.map(|rtt| rtt.trim().parse::<Span>()).transpose().map_err(wrong)?;
        if rate.bits_per_s() == 0 || rate_here.bits_per_s() == 0 || rtt.is_some_and(|rtt| rtt == Span::ZERO) {
            return Err("give rates and a round-trip time of more than 0, such as 50Mbit,600ms or 5Mbit/50Mbit,600ms".into());
        }
        Ok(LinkSize { rate, rate_here, rtt })
    }
}

/// Where the clients are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClientSide {
    /// On this side of the long link: this host is their router to it
    Here,
    /// Behind the long link: this host is the gateway between it and the servers
    Behind,
}

/// Where addresses of clients are translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NatPlace {
    /// On this host
    Here,
    /// On another host on the way to the servers, such as the modem
    Elsewhere,
    /// Nowhere
    None,
}

/// The clients whose connections are split; empty: all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Clients(Vec<Prefix>);

impl FromStr for Clients {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == "all" {
            return Ok(Clients::default());
        }
        let prefixes: Vec<Prefix> = text.split([',', ' ']).filter(|part| !part.is_empty()).map(str::parse).collect::<Result<_, _>>()?;
        if prefixes.is_empty() { Err("name prefixes such as 192.168.1.0/24, or all".into()) } else { Ok(Clients(prefixes)) }
    }
}

/// Where metrics are served, if anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Metrics(Option<SocketAddr>);

impl FromStr for Metrics {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == "none" { Ok(Metrics(None)) } else { parse_address(text.trim()).map(|at| Metrics(Some(at))) }
    }
}

impl SetupCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        if self.output.exists() && !self.force && fs::read(&self.output).ok().is_none_or(|text| text != PACKAGED.as_bytes()) {
            let path = self.output.display();
            return Err(CommandError::Usage(format!("{path} exists: --force replaces it and keeps it beside, -o FILE writes another one")));
        }
        let found = Detected::of_host().map_err(CommandError::Failed)?;
        let answers = self.answers(&found)?;
        self.write(&answers.text())?;
        outln!("wrote {}", self.output.display());
        if answers.controller == LinkController::Share {
            unit::allow_capacity(&self.output)?;
        }
        let service = Service::read(&self.output).map_err(usage)?;
        service.check().map_err(usage)?;
        let mut trials = check::try_proxy(&service);
        trials.extend(answers.doubts());
        trials.extend(answers.to_servers.as_ref().and_then(|link| detect::try_nat(answers.nat, link, &found.nat)));
        check::print(&trials);
        let failed = trials.iter().filter(|trial| trial.fails()).count();
        let next = unit::next_command(&self.output);
        if failed > 0 {
            return Err(CommandError::Failed(format!(
                "{failed} of {} checks found something in the way; mend it, then: {next}",
                trials.len()
            )));
        }
        outln!("nothing is in the way; next: {next}");
        Ok(())
    }

    fn answers(&self, found: &Detected) -> Result<Answers, CommandError> {
        let mut terminal = match (self.yes, stdin().is_terminal()) {
            (true, _) => None,
            (false, true) => Some(Terminal::default()),
            // Every question has its option.
            (false, false) if self.has_all() => None,
            (false, false) => {
                let why = "stdin is no terminal: answer by options (--long-link, --rate, --side, --nat, --clients, --metrics), or take the \
                           suggestions (--yes)";
                return Err(CommandError::Usage(why.into()));
            }
        };
        let (long_link, is_suggested) = match (&self.long_link, &mut terminal) {
            (Some(name), _) => (name.clone(), false),
            (None, Some(terminal)) => terminal.long_link(found)?,
            (None, None) => (found.suggested_link().map_err(CommandError::Usage)?, true),
        };
        if !found.interfaces.iter().any(|interface| long_link.matches(&interface.name)) {
            return Err(CommandError::Usage(format!("no interface is named {}: this host has {}", long_link.0, found.names())));
        }
        let mut ask = Asked(terminal);
        let rate = ask.one(self.rate, LinkAnswer(None), Terminal::rate)?.0;
        let side = found.suggested_side(&long_link.0);
        let side = ask.one(self.side, side, |terminal| terminal.side(&long_link.0, side))?;
        let to_servers = found.to_servers(&long_link.0, side);
        let nat = to_servers.as_ref().map_or(NatPlace::None, |link| found.suggested_nat(link));
        let nat = ask.one(self.nat, nat, |terminal| terminal.nat(to_servers.as_deref(), &found.nat, nat))?;
        let clients = Clients(found.suggested_clients(&long_link.0, side));
        Ok(Answers {
            rate,
            side,
            nat,
            clients: ask.one(self.clients.clone(), clients.clone(), |terminal| terminal.clients(&clients))?.0,
            metrics: ask.one(self.metrics, Metrics(Some(detect::METRICS)), Terminal::metrics)?.0,
            controller: LinkController::of_host(),
            addresses: found.addresses(&long_link.0),
            others: if is_suggested { found.others(&long_link.0) } else { Vec::new() },
            to_servers,
            long_link,
        })
    }

    fn has_all(&self) -> bool {
        let has_link = self.long_link.is_some() && self.rate.is_some() && self.side.is_some();
        has_link && self.nat.is_some() && self.clients.is_some() && self.metrics.is_some()
    }

    /// Writes the file, whole or not at all, and keeps an old one.
    fn write(&self, text: &str) -> Result<(), CommandError> {
        let failed = |why: std::io::Error| CommandError::Failed(format!("cannot write {}: {why}", self.output.display()));
        let draft = Draft::beside(&self.output, text).map_err(failed)?;
        if let Some(old) = draft.put("old").map_err(failed)? {
            outln!("the old file is {}", old.display());
        }
        Ok(())
    }
}

/// Asks, or takes what an option says, or the suggestion.
struct Asked(Option<Terminal>);

impl Asked {
    fn one<T>(
        &mut self,
        said: Option<T>,
        suggestion: T,
        ask: impl FnOnce(&mut Terminal) -> Result<T, CommandError>,
    ) -> Result<T, CommandError> {
        match (said, &mut self.0) {
            (Some(said), _) => Ok(said),
            (None, Some(terminal)) => ask(terminal),
            (None, None) => Ok(suggestion),
        }
    }
}
