//! Checks of a link, which stands in a series or is a network in parallel.

use crate::{
    check_values::need,
    fraction::Fraction,
    law::SpanLaw,
    link::{Link, Medium, NO_RATE},
    losses::Loss,
    queue::{Queue, QueueKind},
};
use toml_file::Fault;
use units::{QueueLimit, Rate, Span};

/// Checks the link at `path`.
pub(crate) fn check_link(path: &str, link: &Link) -> Result<(), Fault> {
    let key = |key: &str| format!("{path}.{key}");
    need(link.rate.0 > 0, key("rate"), "is 0: nothing would ever cross this link".into())?;
    need(link.rate != NO_RATE, key("rate"), "is missing: give a rate, or a trace".into())?;
    check_trace(path, link)?;
    check_queue(&key("queue"), link.queue)?;
    check_loss(&key("loss"), link.loss.forward)?;
    check_loss(&key("loss.reverse"), link.loss.reverse)?;
    check_impairments(path, link)?;
    check_demand(path, link)?;
    check_medium(path, link)?;
    check_reverse(path, link)?;
    check_changes(path, link)
}

/// Checks that a link with a shared medium has one rate and a queue without a router.
fn check_medium(path: &str, link: &Link) -> Result<(), Fault> {
    if link.medium == Medium::FullDuplex {
        return Ok(());
    }
    let key = || format!("{path}.medium");
    let both = |other: &str| format!("stands beside {other}, but a shared medium has one rate: leave one of them out");
    need(link.trace.is_none(), key(), both("a trace"))?;
    need(link.demand.is_none(), key(), both("demand"))?;
    need(link.changes.iter().all(|change| change.rate.is_none()), key(), both("changes of the rate"))?;
    let has_router = matches!(link.queue.kind, QueueKind::Xcp | QueueKind::Vcp | QueueKind::Mpcp);
    need(!has_router, key(), "stands beside a router's queue, which tells senders its own rate: leave one of them out".into())?;
    let most = Rate(11_000_000);
    let fits = link.medium != Medium::Wifi80211b || link.rate <= most;
    need(fits, format!("{path}.rate"), format!("is {}, but 802.11b sends at {most}: about 5.3Mbit of payload get through", link.rate))
}

/// Checks that nothing else determines the rate of a direction that has its own.
fn check_reverse(path: &str, link: &Link) -> Result<(), Fault> {
    let Some(reverse) = link.reverse else { return Ok(()) };
    let key = |key: &str| format!("{path}.reverse{key}");
    need(reverse.rate.0 > 0, key(".rate"), "is 0: no acknowledgement would ever cross this link".into())?;
    check_queue(&key(".queue"), reverse.queue.unwrap_or(link.queue))?;
    let both = |other: &str| format!("stands beside {other}, which both directions have: leave one of them out");
    need(link.trace.is_none(), key(""), "stands beside a trace, which has both directions: leave one of them out".into())?;
    need(link.demand.is_none(), key(""), both("demand"))?;
    need(link.medium == Medium::FullDuplex, key(""), both("a shared medium"))?;
    need(link.changes.iter().all(|change| change.rate.is_none()), key(""), both("changes of the rate"))
}

/// Checks how a link's rate follows demand.
fn check_demand(path: &str, link: &Link) -> Result<(), Fault> {
    let Some(demand) = link.demand else { return Ok(()) };
    let key = |key: &str| format!("{path}.demand.{key}");
    let within = demand.least.0 > 0 && demand.least < link.rate;
    need(within, key("least"), format!("is {}, but must be above 0 and below the link's rate, {}", demand.least, link.rate))?;
    need(demand.every > Span::ZERO, key("every"), "is 0: give the time between two looks at the queue".into())?;
    let both = "stands beside changes of the rate: it follows demand or time; leave one of them out";
    need(link.changes.iter().all(|change| change.rate.is_none()), format!("{path}.demand"), both.into())
}

/// Checks the changes of a link, which may come from a file.
fn check_changes(path: &str, link: &Link) -> Result<(), Fault> {
    let key = |number: usize, key: &str| match &link.steps {
        Some(file) => (format!("{path}.steps"), format!("{}: line {}: {key} ", file.name, file.lines[number])),
        None => (format!("{path}.changes[{number}].{key}"), String::new()),
    };
    let need_in = |ok: bool, number: usize, name: &str, what: String| {
        let (path, place) = key(number, name);
        need(ok, path, format!("{place}{what}"))
    };
    let is_last = |number: usize| link.repeat.is_none() && link.changes[number + 1..].iter().all(|later| later.rate.is_none());
    for (number, change) in link.changes.iter().enumerate() {
        let at = if link.steps.is_some() { "time" } else { "at" };
        let is_nothing = change.rate.is_none() && change.delay.is_none() && change.loss.is_none();
        need_in(!is_nothing, number, at, "is alone: give a rate, a delay or a loss from then on".into())?;
        let ends = change.rate.is_some_and(|rate| rate.0 == 0) && is_last(number);
        need_in(!ends, number, "rate", "is 0, and nothing would ever cross this link again: give a later rate".into())?;
        let is_later = number == 0 || change.at > link.changes[number - 1].at;
        need_in(is_later, number, at, format!("is {}, but changes come one after the other", change.at))?;
        let is_before_repeat = link.repeat.is_none_or(|repeat| change.at < repeat);
        need_in(
            is_before_repeat,
            number,
            at,
            format!("is {}, but the changes come again after {}", change.at, link.repeat.unwrap_or_default()),
        )?;
        if let Some(Fraction(loss)) = change.loss {
            need_in((0.0..=1.0).contains(&loss), number, "loss", format!("is {loss}, but a probability lies between 0 and 1"))?;
        }
    }
    let nothing = "is there, but there are no changes to repeat: give changes or steps, or leave it out";
    need(link.repeat.is_none() || !link.changes.is_empty(), format!("{path}.repeat"), nothing.into())
}

fn check_impairments(path: &str, link: &Link) -> Result<(), Fault> {
    let probability = |key: &str, probability: Option<Fraction>| {
        let Fraction(p) = probability.unwrap_or(Fraction(0.0));
        need((0.0..=1.0).contains(&p), format!("{path}.{key}"), format!("is {p}, but a probability lies between 0 and 1"))
    };
    probability("bit_errors", link.bit_errors)?;
    probability("duplication", link.duplication)?;
    probability("reordering.share", link.reordering.map(|reordering| reordering.share))?;
    let never = |law: SpanLaw| law.mean == Span::ZERO;
    let key = format!("{path}.outages.every");
    need(!link.outages.is_some_and(|outages| never(outages.every)), key, "is 0: the link would never carry anything".into())
}

/// Checks that nothing else changes the rate of a link with a trace.
fn check_trace(path: &str, link: &Link) -> Result<(), Fault> {
    if link.trace.is_none() {
        return Ok(());
    }
    let both = |key: &str| format!("stands beside {key}, but the trace determines the rate: leave one of them out");
    need(link.changes.iter().all(|change| change.rate.is_none()), format!("{path}.trace"), both("changes of the rate"))?;
    need(link.demand.is_none(), format!("{path}.trace"), both("demand"))
}

fn check_queue(path: &str, queue: Queue) -> Result<(), Fault> {
    let holds = !matches!(queue.limit, QueueLimit::Packets(0));
    need(holds, path.into(), "holds no packet: give it at least \"1pkt\"".into())
}

fn check_loss(path: &str, loss: Option<Loss>) -> Result<(), Fault> {
    let probability = |name: &str, p: f64| {
        let is_probability = (0.0..=1.0).contains(&p);
        need(is_probability, format!("{path}.{name}"), format!("is {p}, but a probability lies between 0 and 1"))
    };
    match loss {
        None => Ok(()),
        Some(Loss::PerPacket(p)) => probability("per_packet", p),
        Some(Loss::PerSecond(rate)) => {
            let is_rate = rate.is_finite() && rate >= 0.0;
            need(is_rate, format!("{path}.per_second"), format!("is {rate}, but a number of events a second is 0 or more"))
        }
        Some(Loss::Gilbert(gilbert)) => {
            probability("gilbert.good_to_bad", gilbert.good_to_bad)?;
            probability("gilbert.bad_to_good", gilbert.bad_to_good)?;
            probability("gilbert.loss_good", gilbert.loss_good)?;
            probability("gilbert.loss_bad", gilbert.loss_bad)
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::ScenarioFile;

    /// The fault of a scenario with one link that has these further keys.
    fn fault(link: &str) -> Option<String> {
        let text = format!("name = \"x\"\nduration = \"60s\"\n[[link]]\nrate = \"1Mbit\"\ndelay = \"1ms\"\n{link}\n[[flow]]\n");
        let parsed = ScenarioFile::parse(&text, "x").and_then(|file| file.variants(&[]));
        parsed.err().map(|error| error.to_string())
    }

    #[test]
    fn a_shared_medium_has_one_rate_and_no_router() {
        assert_eq!(fault("medium = \"half-duplex\"\n"), None);
        let of = |more: &str| fault(&format!("medium = \"802.11b\"\n{more}")).unwrap_or_default();
        assert!(of("changes = [ { at = \"1s\", rate = \"1Mbit\" } ]\n").contains("link[1].medium: stands beside changes of the rate"));
        assert!(of("queue = { limit = \"9pkt\", kind = \"xcp\" }\n").contains("link[1].medium: stands beside a router's queue"));
    }

    #[test]
    fn a_direction_with_a_rate_of_its_own_has_no_other() {
        let of = |rate: &str, more: &str| fault(&format!("reverse = {{ rate = \"{rate}\", queue = \"9pkt\" }}\n{more}"));
        assert_eq!(of("64kbit", ""), None);
        assert!(of("0bit", "").unwrap().contains("link[1].reverse.rate: is 0"));
        assert!(of("64kbit", "medium = \"half-duplex\"\n").unwrap().contains("link[1].reverse: stands beside a shared medium"));
        let changes = "changes = [{ at = \"1s\", rate = \"2Mbit\" }]";
        assert!(of("64kbit", changes).unwrap().contains("link[1].reverse: stands beside changes of the rate"));
    }

    #[test]
    fn a_rate_that_follows_demand_has_room_to_rise() {
        let of =
            |least: &str, more: &str| fault(&format!("demand = {{ least = \"{least}\", above = \"6kB\", every = \"100ms\" }}\n{more}"));
        assert_eq!(of("64kbit", ""), None);
        assert!(of("1Mbit", "").unwrap().contains("link[1].demand.least: is 1Mbit, but must be above 0 and below"));
        let changes = "changes = [{ at = \"1s\", rate = \"2Mbit\" }]";
        assert!(of("64kbit", changes).unwrap().contains("link[1].demand: stands beside changes"));
    }
}
