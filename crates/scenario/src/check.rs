//! Checks of a scenario whose values are right by themselves. Each fault names its key.

use crate::{
    agent::AgentKind,
    check_link::check_link,
    check_values::{check_offer, check_size, check_spells, check_window, need},
    control::Control,
    flows::{Draw, FlowGroup},
    foreground_arrivals::MmppPhases,
    model::{Interval, Scenario},
    networks::{Bond, Foreground, ParallelNetwork, TransferScheduler},
    split::{Buffer, LinkCapacity, Split},
};
use ::control::Controller;
use toml_file::Fault;
use units::{Bytes, PKT, Span};

/// The longest access delay of a flow.
const MOST_ACCESS_DELAY: Span = Span(4_000_000_000);

impl Scenario {
    /// The first fault of a scenario whose values are right by themselves.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        self.control.check()?;
        if self.networks.is_empty() { self.check_series() } else { self.check_parallel() }?;
        self.check_counts()
    }

    fn check_series(&self) -> Result<(), Fault> {
        for (key, is_there) in [("foreground", self.foreground.is_some()), ("bond", self.bond.is_some())] {
            need(
                !is_there,
                key.into(),
                format!("is for networks in parallel, but there is no [[network]]: add some, or leave [{key}] out"),
            )?;
        }
        let none = "is missing: a scenario has at least one [[link]], or [[network]]s in parallel";
        need(!self.links.is_empty(), "link".into(), none.into())?;
        for (index, link) in self.links.iter().enumerate() {
            check_link(&format!("link[{index}]"), link)?;
        }
        let inner_links = self.links.len() - 1;
        for (index, split) in self.splits.iter().enumerate() {
            need(
                (1..=inner_links).contains(&split.after),
                format!("split[{index}].after"),
                format!(
                    "is {}, but a proxy stands between two links: with {} it can be {}",
                    split.after,
                    counted(self.links.len(), "link"),
                    match inner_links {
                        0 => "nowhere, so add a [[link]]".into(),
                        1 => "1 only".to_string(),
                        _ => format!("1 to {inner_links}"),
                    }
                ),
            )?;
            need(
                index == 0 || self.splits[index - 1].after < split.after,
                format!("split[{index}].after"),
                "splits are listed from the sender to the receiver, one place each".into(),
            )?;
            check_buffer(&format!("split[{index}].buffer"), split.buffer)?;
            need(
                !(split.shaper && split.capacity == Some(LinkCapacity::Auto)),
                format!("split[{index}].shaper"),
                "does not go with capacity = \"auto\": a shaper needs a rate. Leave it out, or write the link's rate as the capacity"
                    .into(),
            )?;
        }
        need(
            self.control.proxy.len() == 1 || self.control.proxy.len() == self.splits.len(),
            "control.proxy".into(),
            format!(
                "lists {} controllers for {}: give one for all, or one for each",
                self.control.proxy.len(),
                counted(self.splits.len(), "split")
            ),
        )?;
        let estimated = |split: &&Split| split.capacity == Some(LinkCapacity::Auto);
        for (index, _) in self.splits.iter().enumerate().filter(|(_, split)| estimated(split)) {
            let name = self.leg_controls()[index + 1];
            let is_told = |controller: Controller| controller.needs_capacity() && !controller.estimates_capacity();
            need(
                !Controller::named(name).is_some_and(is_told),
                format!("split[{index}].capacity"),
                format!(
                    "is \"auto\", but {name:?} has to be told a rate: write one, or set control.proxy to \"share\", which estimates it"
                ),
            )?;
        }
        self.check_agents()?;
        self.tcp.check()?;
        self.check_intervals()?;
        self.check_flows()?;
        for (index, cross) in self.cross.iter().enumerate() {
            need(
                (1..=self.links.len()).contains(&cross.link),
                format!("cross[{index}].link"),
                format!("is {}, but the links are counted from 1 to {}", cross.link, self.links.len()),
            )?;
            need(cross.rate.0 > 0, format!("cross[{index}].rate"), "is 0: leave the [[cross]] out instead".into())?;
            check_spells(&format!("cross[{index}]"), cross.on, cross.off)?;
        }
        self.check_cross_flows()?;
        self.check_web()
    }

    fn check_agents(&self) -> Result<(), Fault> {
        for (index, agent) in self.agents.iter().enumerate() {
            let fault = |key: &str, message: String| Err(Fault::new(format!("agent[{index}].{key}"), message));
            let (after, inner_links) = (agent.after, self.links.len() - 1);
            if !(1..=inner_links).contains(&after) {
                let message = match inner_links {
                    0 => "stands between two links, but there is one: add a [[link]]".into(),
                    _ => format!("is {after}, but an agent stands between two links: give 1 to {inner_links}"),
                };
                return fault("after", message);
            }
            if index > 0 && self.agents[index - 1].after >= after {
                return fault("after", "agents are listed from the sender to the receiver, one place each".into());
            }
            if self.splits.iter().any(|split| split.after == after) {
                return fault("after", format!("is {after}, where a [[split]] ends the connections: leave one of them out"));
            }
            if agent.kind != AgentKind::Snoop && agent.cache != Buffer::Auto {
                return fault("cache", "is for kind = \"snoop\" only: leave it out".into());
            }
            if agent.cache == Buffer::Adaptive {
                return fault("cache", "is \"adaptive\", which only a proxy can be: give a size, \"auto\" or \"unlimited\"".into());
            }
            if matches!(agent.cache, Buffer::Bytes(bytes) if bytes < PKT) {
                return fault("cache", "is less than one packet: it could hold nothing".into());
            }
        }
        Ok(())
    }

    fn check_intervals(&self) -> Result<(), Fault> {
        for (index, interval) in self.intervals.iter().enumerate() {
            let key = format!("interval[{index}].to");
            let (from, to) = (interval.from, interval.to);
            need(to > from, key, format!("is {to}, but must be later than from, {from}"))?;
        }
        Ok(())
    }

    /// Checks that intervals end with the run at the latest, except those in `written`: a change
    /// that shortens the run leaves such intervals out of the outcome.
    pub(crate) fn check_ends_of_intervals(&self, written: &[Interval]) -> Result<(), Fault> {
        for (index, interval) in self.intervals.iter().enumerate().filter(|(_, interval)| !written.contains(interval)) {
            need(
                self.lasts_for(interval),
                format!("interval[{index}].to"),
                format!("is {}, after the end of the run: raise the duration, or end the interval earlier", interval.to),
            )?;
        }
        Ok(())
    }

    fn check_flows(&self) -> Result<(), Fault> {
        let has_traffic = !self.flows.is_empty() || self.web_key().is_some();
        need(has_traffic, "flow".into(), "is missing: a scenario has at least one [[flow]], [[page]] or [[exchange]]".into())?;
        for (index, flow) in self.flows.iter().enumerate() {
            need(flow.count > 0, format!("flow[{index}].count"), "is 0: leave the [[flow]] out instead".into())?;
            need(
                flow.bytes.is_some() || self.duration.is_some(),
                format!("flow[{index}].bytes"),
                "is absent, and so is the duration, so that the flow would never end: give one of them".into(),
            )?;
            need(
                flow.bytes != Some(Bytes(0).into()),
                format!("flow[{index}].bytes"),
                "is 0: leave it out for a flow that sends until the duration ends".into(),
            )?;
            let longest = match flow.access_delay {
                Draw::Fixed(delay) | Draw::Uniform([_, delay]) => delay,
                Draw::Every(step) => Span(step.0.saturating_mul(u64::from(flow.count.saturating_sub(1)))),
                Draw::Poisson(_) => Span::ZERO,
            };
            need(
                longest <= MOST_ACCESS_DELAY,
                format!("flow[{index}].access_delay"),
                format!("is up to {longest}, but at most {MOST_ACCESS_DELAY}: a longer delay belongs to a link"),
            )?;
            need(
                !matches!(flow.access_delay, Draw::Poisson(_)),
                format!("flow[{index}].access_delay"),
                "is a Poisson process, whose times grow from flow to flow: give a time, or { uniform = [\"0ms\", \"5ms\"] }".into(),
            )?;
            need(
                flow.send_buffer.is_none_or(|buffer| buffer >= PKT),
                format!("flow[{index}].send_buffer"),
                "is less than one packet: nothing could be sent".into(),
            )?;
            if let Some(text) = &flow.control {
                crate::control::check_text(format!("flow[{index}].control"), text)?;
            }
        }
        self.flows.iter().enumerate().try_for_each(|(index, flow)| check_offer(&format!("flow[{index}]"), flow.offers))
    }

    fn check_parallel(&self) -> Result<(), Fault> {
        let series = [
            ("agent", self.agents.is_empty()),
            ("cross", self.cross.is_empty()),
            ("cross_flow", self.cross_flows.is_empty()),
            ("page", self.pages.is_empty()),
            ("exchange", self.exchanges.is_empty()),
            ("interval", self.intervals.is_empty()),
        ];
        for (key, is_absent) in series {
            let both = format!("stands beside [[network]]s: it is for links in series only; leave [[{key}]] out");
            need(is_absent, key.into(), both)?;
        }
        let buffers = "are of the ends of links in series: leave them out; a bond's windows are bond.window";
        need(self.tcp.receive_buffers.is_none(), "tcp.receive_buffers".into(), buffers.into())?;
        self.check_links_before_networks()?;
        let count = self.networks.len();
        let most = Scenario::MOST_NETWORKS;
        need(count <= most, format!("network[{most}]"), format!("is one too many: there can be {most} networks in parallel"))?;
        for (index, network) in self.networks.iter().enumerate() {
            network.check(&format!("network[{index}]"), self.foreground.as_ref())?;
        }
        need(self.bond.is_some(), "bond".into(), "is missing: say how transfers are divided, as in [bond] scheduler = \"score\"".into())?;
        if let Some(bond) = &self.bond {
            bond.check(self.networks.len())?;
        }
        match &self.foreground {
            Some(foreground) => self.check_foreground(foreground),
            None => {
                let none = "is missing, and so is [foreground]: networks in parallel carry one or the other";
                need(!self.flows.is_empty(), "flow".into(), none.into())?;
                let delayed = self.flows.iter().position(|flow| flow.access_delay != crate::Draw::default());
                let own = "is a delay on the first link, but networks in parallel have no links: give the networks their delays";
                need(delayed.is_none(), format!("flow[{}].access_delay", delayed.unwrap_or(0)), own.into())?;
                let controlled = self.flows.iter().position(|flow| flow.control.is_some());
                let shared = "is of one group, but connections over networks in parallel have one controller: set control.sender";
                need(controlled.is_none(), format!("flow[{}].control", controlled.unwrap_or(0)), shared.into())?;
                let reverse = self.flows.iter().position(FlowGroup::has_reverse);
                let both = "is for links in series: over networks in parallel, opens = \"receiver\" makes a download";
                need(reverse.is_none(), format!("flow[{}].direction", reverse.unwrap_or(0)), both.into())?;
                self.check_flows()
            }
        }
    }

    /// Checks the links between the sender and the networks in parallel, and the proxy behind them.
    fn check_links_before_networks(&self) -> Result<(), Fault> {
        for (index, link) in self.links.iter().enumerate() {
            check_link(&format!("link[{index}]"), link)?;
        }
        let has_links = !self.links.is_empty();
        let listed =
            "stands beside a [foreground]: links before the networks carry listed flows; give [[flow]]s instead, or leave [[link]] out";
        need(!has_links || self.foreground.is_none(), "link".into(), listed.into())?;
        let loaded = self.networks.iter().position(|network| has_links && network.load > 0.0);
        let around = "stands beside [[link]]s, which the networks' own transfers would not cross: leave one of them out";
        need(loaded.is_none(), format!("network[{}].load", loaded.unwrap_or(0)), around.into())?;
        if let Some(split) = self.splits.first() {
            let nowhere = "stands between links and networks in parallel, but there is no [[link]]: add one, or leave [[split]] out";
            need(has_links, "split".into(), nowhere.into())?;
            let last = self.links.len();
            let behind = format!("is {}, but beside networks in parallel a proxy stands behind the last link: give {last}", split.after);
            need(split.after == last, "split[0].after".into(), behind)?;
            check_buffer("split[0].buffer", split.buffer)?;
            let why = "is \"adaptive\", but a bond's legs have fixed windows: give a size, \"auto\" or \"unlimited\"";
            need(split.buffer != Buffer::Adaptive, "split[0].buffer".into(), why.into())?;
        }
        let one = "is one too many: one proxy stands between links and networks in parallel";
        need(self.splits.len() <= 1, "split[1]".into(), one.into())?;
        let none = "is for proxies, but there is none: leave it out, or put a [[split]] between a [[link]] and the networks";
        let has_place = has_links || self.control.proxy == Control::default().proxy;
        need(has_place, "control.proxy".into(), none.into())?;
        let many = format!("lists {} controllers for 1 split: give one", self.control.proxy.len());
        need(self.control.proxy.len() == 1, "control.proxy".into(), many)
    }

    fn check_foreground(&self, foreground: &Foreground) -> Result<(), Fault> {
        let key = |key: &str| format!("foreground.{key}");
        need(
            self.flows.is_empty(),
            "flow".into(),
            "stands beside a [foreground]: transfers are either listed or random; leave one of them out".into(),
        )?;
        need(
            self.duration.is_none(),
            "duration".into(),
            "stands beside a [foreground], which ends with its jobs: leave one of them out".into(),
        )?;
        let load = foreground.load;
        need(load > 0.0 && load.is_finite(), key("load"), format!("is {load}, but must be above 0: a part of the first network's rate"))?;
        check_size(&key("size"), foreground.size)?;
        check_window(&key("window"), foreground.window)?;
        let weight = foreground.weight;
        need(weight > 0.0 && weight.is_finite(), key("weight"), format!("is {weight}, but must be above 0: 1 is fair"))?;
        let fault = foreground.arrivals.phases().and_then(MmppPhases::fault);
        need(fault.is_none(), key("arrivals.mmpp"), fault.unwrap_or_default())?;
        let least = Foreground::LEAST_JOBS;
        need(foreground.jobs >= least, key("jobs"), format!("is {}, but a mean with an interval takes at least {least}", foreground.jobs))?;
        let of = |load: fn(&ParallelNetwork) -> f64| {
            self.networks.iter().map(|network| load(network) * network.link.rate.bits_per_s() as f64).sum::<f64>()
        };
        let all = load * self.networks[0].link.rate.bits_per_s() as f64 + of(|network| network.load);
        let share = all / of(|_| 1.0);
        let grows = format!(
            "is {load}, which with the networks' own loads is {share:.3} of what all of them carry: transfers would take ever longer; give less than 1 in all"
        );
        need(share < 1.0, key("load"), grows)
    }
}

impl Bond {
    fn check(&self, networks: usize) -> Result<(), Fault> {
        let alpha = self.alpha;
        for (key, value) in [("piece", self.piece_size()), ("queue", self.queue_limit())] {
            need(value.0 > 0, format!("bond.{key}"), "is 0: nothing would ever be given out".into())?;
        }
        need(
            (0.0..1.0).contains(&alpha),
            "bond.alpha".into(),
            format!("is {alpha}, but must be from 0 to below 1: how much the past counts"),
        )?;
        need(
            self.tau.is_positive(),
            "bond.tau".into(),
            "must be above 0: round trips, or a time such as \"100ms\", over which throughput is measured".into(),
        )?;
        let least = Bytes(2 * self.piece_size().0);
        let holds = self.window.is_none_or(|window| window >= least);
        need(
            holds,
            "bond.window".into(),
            format!("holds less than two pieces, so that one network would wait for the other: give at least {least}"),
        )?;
        let is_static = self.scheduler == TransferScheduler::Static;
        let unused = "is for scheduler = \"static\" only: leave it out, or take that scheduler";
        need(is_static || self.fractions.is_none(), "bond.fractions".into(), unused.into())?;
        let fault = self.fractions.and_then(|fractions| fractions.fault(networks));
        need(fault.is_none(), "bond.fractions".into(), fault.unwrap_or_default())
    }
}

impl ParallelNetwork {
    fn check(&self, path: &str, foreground: Option<&Foreground>) -> Result<(), Fault> {
        let key = |key: &str| format!("{path}.{key}");
        check_link(path, &self.link)?;
        let load = self.load;
        need(
            (0.0..1.0).contains(&load),
            key("load"),
            format!("is {load}, but a network's own load is from 0 to below 1, such as 0.3 or \"30%\""),
        )?;
        let sized = load == 0.0 || self.size.is_some() || foreground.is_some();
        need(
            sized,
            key("size"),
            "is absent, and there is no [foreground] to take it from: give the size of the transfers that make up the load".into(),
        )?;
        self.size.map_or(Ok(()), |size| check_size(&key("size"), size))?;
        if let Some(streams) = self.streams {
            for (name, span) in [("every", streams.every), ("lasts", streams.lasts)] {
                need(span > Span::ZERO, key(&format!("streams.{name}")), "is 0: give the mean time".into())?;
            }
            let (rate, most) = (streams.rate, streams.most);
            let all = u128::from(rate.bits_per_s()) * u128::from(most);
            need(rate.0 > 0 && most > 0, key("streams"), "has no rate: give rate and most above 0".into())?;
            let fits = all <= u128::from(self.link.rate.bits_per_s());
            need(fits, key("streams.most"), format!("is {most}, but as many streams of {rate} do not fit into the network: give fewer"))?;
        }
        check_window(&key("window"), self.window)
    }
}

fn check_buffer(path: &str, buffer: Buffer) -> Result<(), Fault> {
    let holds = !matches!(buffer, Buffer::Bytes(bytes) if bytes < PKT);
    need(holds, path.into(), "is less than one packet: nothing could pass".into())
}

/// "1 link", "2 links".
fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use crate::ScenarioFile;

    /// The fault of a scenario with one link and these further lines.
    fn fault(link: &str, more: &str) -> Option<String> {
        let text = format!("name = \"x\"\nduration = \"60s\"\n[[link]]\nrate = \"1Mbit\"\ndelay = \"1ms\"\n{link}\n[[flow]]\n{more}\n");
        let parsed = ScenarioFile::parse(&text, "x").and_then(|file| file.variants(&[]));
        parsed.err().map(|error| error.to_string())
    }

    #[test]
    fn an_interval_is_within_the_run() {
        let of = |from: &str, to: &str| fault("", &format!("[[interval]]\nfrom = \"{from}\"\nto = \"{to}\""));
        assert_eq!(of("5s", "60s"), None);
        assert!(of("5s", "5s").unwrap().contains("interval[1].to: is 5s, but must be later than from, 5s"));
        assert!(of("5s", "61s").unwrap().contains("after the end of the run"));
    }

    #[test]
    fn a_run_can_be_shortened_to_end_before_an_interval() {
        let text = "name = \"x\"\nduration = \"60s\"\n[[link]]\nrate = \"1Mbit\"\ndelay = \"1ms\"\n[[flow]]\n\
                    [[interval]]\nfrom = \"5s\"\nto = \"35s\"\n[[interval]]\nfrom = \"1s\"\nto = \"9s\"\n";
        let file = ScenarioFile::parse(text, "x").unwrap();
        let lasting = |set: &str| {
            let scenario = file.variants(&[set.parse().unwrap()]).map_err(|error| error.to_string())?.remove(0).scenario;
            Ok::<_, String>(scenario.intervals.iter().map(|interval| scenario.lasts_for(interval)).collect::<Vec<_>>())
        };
        assert_eq!(lasting("duration=35s"), Ok(vec![true, true]));
        assert_eq!(lasting("duration=10s"), Ok(vec![false, true]));
        // An interval that a change itself makes wrong is an error, and so is one of a case.
        assert!(lasting("interval.1.to=61s").unwrap_err().contains("--set interval.1.to=61s: interval[1].to: is 61s, after"));
        let case = format!("{text}[[case]]\nname = \"short\"\nset = {{ duration = \"10s\" }}\n");
        let error = ScenarioFile::parse(&case, "x").unwrap_err().to_string();
        assert!(error.contains("in case \"short\", interval[1].to: is 35s, after the end of the run"), "{error}");
    }
}
