//! `tandem advise`: whether splitting a path pays, and with which proxy settings.

mod apply;
mod live;
mod path_advice;
mod trials;
mod usages;
mod verify;

use crate::{
    CommandError, output,
    runs::{self, RunFlags},
};
use advise::{AdviceVerdict, Advisor};
use clap::Args;
use live::LiveFlags;
use scenario::{Assignment, ReceiveBuffers, ScenarioFile, Variant};
use std::{fmt::Write as _, path::PathBuf, str::FromStr};
use trials::{Trials, by_equations};

/// Advise whether to split a path: where, with which controller and buffer, and the gain
///
/// The path needs at least two links: a proxy stands between two links. Give them on the command
/// line: --link 1Gbit,4ms --link 50Mbit,600ms,0.1%. The simulator then plays what users do over
/// them: downloads of 100 kB to 20 MB, pages, 20 clients at once and an upload, with the receive
/// buffers that hosts have, and advises nothing that makes any of it slower. Or give a scenario
/// file: it is simulated as written, end to end with other controllers, and split at each position
/// with each controller, with the gain by the equations where they apply. Or take what the running
/// proxy has measured: --live.
#[derive(Debug, Args)]
pub(crate) struct AdviseCommand {
    /// Scenario file: the path, and the flows over it
    #[arg(required_unless_present_any = ["links", "live"], conflicts_with_all = ["links", "bytes", "flows"])]
    file: Option<PathBuf>,
    /// A link of the path in place of a file, from the servers' side on: its rate, its one-way
    /// delay and the share of packets that it loses, as in 50Mbit,600ms,0.1%. If the rates differ,
    /// the one to the clients first: 50Mbit/5Mbit,600ms. Give one for each link
    #[arg(long = "link", value_name = "RATE[/BACK],DELAY[,LOSS]")]
    links: Vec<LinkArgument>,
    /// With --link: only downloads of this size, with each controller [default: 20MB with --flows]
    #[arg(long, value_name = "SIZE")]
    bytes: Option<String>,
    /// With --link: only downloads, so many at the same time [default: 1 with --bytes]
    #[arg(long, value_name = "N")]
    flows: Option<u32>,
    /// Receive buffers of clients and servers, at first and at most; both numbers are those of
    /// net.ipv4.tcp_rmem
    #[arg(long, value_name = "FIRST,MOST", default_value = "128KiB,6MiB", conflicts_with = "file")]
    receivers: ReceiversArgument,
    #[command(flatten)]
    live: LiveFlags,
    /// Override a key of the scenario: link.2.loss.per_packet=0.01
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<Assignment>,
    /// Number of seeds
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(2..=1000))]
    seeds: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: RunFlags,
}

impl AdviseCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let trials = Trials { seeds: self.seeds, flags: self.flags, json: self.json };
        if self.live.live {
            return live::run(&self.live, &trials);
        }
        if self.file.is_none() && self.bytes.is_none() && self.flows.is_none() {
            return self.run_usages(&trials);
        }
        let (origin, mut variants) = self.path()?;
        if variants.len() > 1 {
            let (count, names) = (variants.len(), runs::case_names(&variants));
            let text = format!("tandem: {origin} has {count} cases; advice is given for the first one of {names}");
            eprintln!("{}", report::wrap(&text, output::width()));
        }
        let scenario = variants.remove(0).scenario;
        let advisor = Advisor::new(&scenario).map_err(|why| CommandError::Usage(format!("{origin}: {why}")))?;
        let candidates = advisor.candidates();
        let outcomes = trials.simulate(&candidates)?;
        let advice = advisor.advice(&outcomes, &by_equations(&candidates)).map_err(|why| CommandError::CannotTell(why.to_string()))?;
        let buffers = match advice.verdict {
            AdviceVerdict::Split => advisor.buffer_results(advice.objective, &trials.simulate(&advisor.buffers(&advice.split.candidate))?),
            AdviceVerdict::DoesNotPay | AdviceVerdict::CannotTell => Vec::new(),
        };
        if self.json {
            out!("{}", report::advice_json(&advice, &buffers));
        } else {
            out!("{}", report::advice_text(&advice, &buffers, output::width()));
        }
        Ok(())
    }

    /// Advises on all that users do over the links of the command line.
    fn run_usages(&self, trials: &Trials) -> Result<(), CommandError> {
        let ReceiversArgument(receivers) = self.receivers;
        let path = self.links.iter().map(LinkArgument::two_way_table).collect::<String>();
        let advice = usages::advise(&path, receivers, (&self.sets, true), trials)?;
        if self.json {
            out!("{}", report::usage_advice_json(&advice, receivers));
        } else {
            out!("{}", report::usage_advice_text(&advice, receivers, output::width()));
        }
        Ok(())
    }

    /// Returns the path with its variants, and where it is from.
    fn path(&self) -> Result<(String, Vec<Variant>), CommandError> {
        if let Some(file) = &self.file {
            return Ok((file.display().to_string(), runs::read_variants(file, &self.sets, &[])?));
        }
        let origin = "--link";
        let (count, bytes) = (self.flows.unwrap_or(1), self.bytes.as_deref().unwrap_or("20MB"));
        let ReceiversArgument(receivers) = self.receivers;
        let buffers = usages::receive_buffers(receivers);
        let mut text = format!("name = \"path\"\n{buffers}[[flow]]\ncount = {count}\nbytes = \"{bytes}\"\nopens = \"receiver\"\n");
        self.links.iter().for_each(|link| text += &link.table());
        let variants = ScenarioFile::parse(&text, origin)
            .and_then(|file| file.variants(&self.sets))
            .map_err(|error| CommandError::Usage(error.to_string()))?;
        Ok((origin.to_owned(), variants))
    }
}

/// A link on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LinkArgument {
    rate: String,
    /// The rate to the servers, if it is another one.
    back: Option<String>,
    delay: String,
    loss: Option<String>,
}

impl FromStr for LinkArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        let expected = "expected RATE,DELAY or RATE,DELAY,LOSS, as in 50Mbit,600ms,0.1% or 50Mbit/5Mbit,600ms";
        let (rate, delay, loss) = match parts[..] {
            [rate, delay] => (rate, delay, None),
            [rate, delay, loss] => (rate, delay, Some(loss)),
            _ => return Err(expected.into()),
        };
        let wrong = |what: &str, why: &dyn std::fmt::Display| format!("{what}: {why}; {expected}");
        let (rate, back) = rate.split_once('/').map_or((rate, None), |(rate, back)| (rate, Some(back)));
        for rate in std::iter::once(rate).chain(back) {
            rate.parse::<units::Rate>().map_err(|why| wrong("the rate", &why))?;
        }
        delay.parse::<units::Span>().map_err(|why| wrong("the delay", &why))?;
        if let Some(loss) = loss {
            loss.parse::<scenario::Fraction>().map_err(|why| wrong("the loss", &why))?;
        }
        Ok(LinkArgument { rate: rate.into(), back: back.map(str::to_owned), delay: delay.into(), loss: loss.map(str::to_owned) })
    }
}

impl LinkArgument {
    /// The link in a scenario file, with the same losses in both directions.
    fn two_way_table(&self) -> String {
        let mut text = LinkArgument { loss: None, ..self.clone() }.table();
        if let Some(loss) = &self.loss {
            let _ = writeln!(text, "loss = {{ per_packet = \"{loss}\", reverse = {{ per_packet = \"{loss}\" }} }}");
        }
        text
    }

    /// The link in a scenario file, with losses in the direction of the data.
    fn table(&self) -> String {
        let mut text = format!("[[link]]\nrate = \"{}\"\ndelay = \"{}\"\n", self.rate, self.delay);
        if let Some(back) = &self.back {
            let _ = writeln!(text, "reverse = {{ rate = \"{back}\" }}");
        }
        if let Some(loss) = &self.loss {
            let _ = writeln!(text, "loss = {{ per_packet = \"{loss}\" }}");
        }
        text
    }
}

/// Receive buffers on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ReceiversArgument(ReceiveBuffers);

impl FromStr for ReceiversArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "expected two sizes, the first and the largest, as in 128KiB,6MiB";
        let (first, most) = text.split_once(',').ok_or(expected)?;
        let size = |text: &str| text.trim().parse::<units::Bytes>().map_err(|why| format!("{why}; {expected}"));
        Ok(ReceiversArgument(ReceiveBuffers { first: size(first)?, most: size(most)? }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_a_rate_a_delay_and_perhaps_a_loss() {
        let link: LinkArgument = "50Mbit, 600ms, 0.1%".parse().unwrap();
        assert_eq!(link.table(), "[[link]]\nrate = \"50Mbit\"\ndelay = \"600ms\"\nloss = { per_packet = \"0.1%\" }\n");
        assert_eq!("1Gbit,4ms".parse::<LinkArgument>().unwrap().loss, None);
        assert!(link.two_way_table().ends_with("loss = { per_packet = \"0.1%\", reverse = { per_packet = \"0.1%\" } }\n"));
        let slower: LinkArgument = "50Mbit/5Mbit,600ms".parse().unwrap();
        assert_eq!(slower.table(), "[[link]]\nrate = \"50Mbit\"\ndelay = \"600ms\"\nreverse = { rate = \"5Mbit\" }\n");
        let wrong = |text: &str| text.parse::<LinkArgument>().unwrap_err();
        for (text, what) in [
            ("50Mbit", "expected RATE,DELAY"),
            ("50,4ms", "the rate: "),
            ("50Mbit/5,4ms", "the rate: "),
            ("1Gbit,4", "the delay: "),
            ("1Gbit,4ms,few", "the loss: "),
        ] {
            assert!(wrong(text).contains(what), "{text}: {}", wrong(text));
        }
    }

    #[test]
    fn receivers_have_a_first_and_a_largest_buffer() {
        let ReceiversArgument(buffers) = "128KiB, 6MiB".parse().unwrap();
        assert_eq!(buffers, ReceiveBuffers::DEBIAN);
        for text in ["6MiB", "6MiB,much"] {
            assert!(text.parse::<ReceiversArgument>().unwrap_err().contains("as in 128KiB,6MiB"), "{text}");
        }
    }
}
