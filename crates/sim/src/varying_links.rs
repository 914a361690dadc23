//! Links whose rate, delay or losses change: at given times, or with demand.

use crate::{
    event_queue::{EventKey, ScheduledEventKind},
    network::{SimNetwork, backward, forward},
};
use scenario::{Link, LinkChanges, RateDemand};
use std::iter::Peekable;
use units::Rate;

/// The links of a run that change, each of which has one event in the event queue.
///
/// The caller calls [`schedule_first`](Self::schedule_first) at time zero, and
/// [`handle`](Self::handle) for each event of kind `RateChange`, whose target is the number of a
/// link in here.
#[derive(Debug)]
pub(crate) struct VaryingLinks(Vec<VaryingLink>);

/// A link that changes.
#[derive(Debug)]
struct VaryingLink {
    /// Its index, from 0.
    link: usize,
    by: ChangedBy,
}

/// What changes a link.
#[derive(Debug)]
enum ChangedBy {
    /// The time: what is to come.
    Time(Peekable<LinkChanges>),
    /// The demand for its whole rate.
    Demand(RateDemand, Rate),
}

impl VaryingLinks {
    /// Those of these links that change. Their rates are IP bits a second.
    pub(crate) fn new<'a>(links: impl Iterator<Item = &'a Link> + Clone) -> Self {
        let timed = links.clone().enumerate().filter(|(_, spec)| !spec.changes.is_empty());
        let timed = timed.map(|(link, spec)| VaryingLink { link, by: ChangedBy::Time(spec.all_changes().peekable()) });
        let demanded = links.enumerate().filter_map(|(link, spec)| Some((link, spec.demand?, spec.rate)));
        let demanded = demanded.map(|(link, demand, rate)| VaryingLink { link, by: ChangedBy::Demand(demand, rate) });
        VaryingLinks(timed.chain(demanded).collect())
    }

    /// Schedules the first change of each link.
    pub(crate) fn schedule_first(&mut self, net: &mut SimNetwork) {
        for (number, link) in (0..).zip(&mut self.0) {
            let at = match &mut link.by {
                ChangedBy::Time(changes) => changes.peek().map(|change| change.at.0),
                ChangedBy::Demand(..) => Some(0),
            };
            if let Some(at) = at {
                net.events.schedule(EventKey { target: number, kind: ScheduledEventKind::RateChange }, at);
            }
        }
    }

    /// Changes the link of an event, and schedules its next change. Returns the link and its new
    /// rate if the rate changes with time; a proxy is not told of a rate that follows demand.
    pub(crate) fn handle(&mut self, key: EventKey, net: &mut SimNetwork) -> Option<(usize, Rate)> {
        let VaryingLink { link, by } = &mut self.0[key.target as usize];
        let link = *link;
        match by {
            ChangedBy::Time(changes) => {
                let change = changes.next()?;
                if let Some(next) = changes.peek() {
                    net.events.schedule(key, next.at.0);
                }
                net.change_link(link, &change);
                let rate = change.rate?;
                set_rate(net, link, rate);
                Some((link, rate))
            }
            ChangedBy::Demand(demand, whole) => {
                if let Some(rate) = assigned_rate(net, link, *demand, *whole) {
                    set_rate(net, link, rate);
                }
                net.events.schedule(key, net.now + demand.every.0);
                None
            }
        }
    }
}

/// The rate that a scheduler assigns to a link now by the queues before it; none if what was
/// assigned stays.
fn assigned_rate(net: &mut SimNetwork, link: usize, demand: RateDemand, whole: Rate) -> Option<Rate> {
    let waiting = net.queued(forward(link)).max(net.queued(backward(link)));
    match waiting {
        _ if net.now == 0 => Some(demand.least),
        0 => Some(demand.least),
        waiting if waiting >= demand.above.0 => Some(whole),
        _ => None,
    }
}

fn set_rate(net: &mut SimNetwork, link: usize, rate: Rate) {
    net.set_rate(forward(link), rate);
    net.set_rate(backward(link), rate);
}
