//! The flows of a proxy as of the last second, while a browser is connected.
//!
//! Every second the table takes a list of all flows in brief, which costs no system call for a
//! flow. A flow's full statistics are as old as the last time that it was shown, or that its turn
//! came.

use crate::view::{ROWS, View};
use monitor::WatchedFlow;
use proxy::{FlowBrief, FlowId, FlowStats, FlowView, Limiter};
use serde::Serialize;
use std::{cmp::Ordering, iter, time::Instant};

/// Flows whose full statistics are read each second in turn, so that every one has them at some
/// time.
const IN_TURN: usize = 128;
/// The shortest time over which the first rate of a flow is computed, seconds.
const SHORTEST_S: f64 = 0.05;
/// The shortest time over which others are, seconds: what is acknowledged is asked once a second.
const RATE_S: f64 = 0.9;
/// A flow that is younger when it is listed first carried all its bytes since its beginning,
/// seconds.
const YOUNG_S: f64 = 5.0;
/// Statistics that are older do not count for the shares of what limits flows, seconds.
const STALE_S: f64 = 120.0;

/// The flows.
#[derive(Debug, Default)]
pub(crate) struct FlowTable {
    groups: Vec<Group>,
    /// Number of flows of the last list.
    count: usize,
    listed_at: Option<Instant>,
    /// Serial number of the flow that was listed last.
    serial: u64,
    /// How many of [`Self::entries`] come before the one that is next in the rotation.
    turn: usize,
}

/// The flows of a worker, or of its bond, by their slots. A list has them in the order of their
/// slots, so that the update of thousands of flows every second reads memory sequentially, without
/// a hash for each.
#[derive(Debug)]
struct Group {
    /// [`FlowId::group`].
    name: (usize, bool),
    /// A flow that has ended stays until another one has its slot; it is not listed any more.
    slots: Vec<Option<Entry>>,
}

/// A flow of the table.
#[derive(Debug)]
struct Entry {
    id: FlowId,
    /// Its number in the browser.
    serial: u64,
    /// Its addresses and bytes are those of the last list, its rates those before `rated`;
    /// everything else is as of `sampled`.
    watched: WatchedFlow,
    /// When its full statistics were read; none: not yet.
    sampled: Option<Instant>,
    /// When it was in a list.
    listed: Instant,
    /// Since when its next rates are computed.
    rated: Instant,
    /// What was acknowledged by then, up and down, bytes.
    acknowledged: [u64; 2],
}

/// A row of the table in a browser.
#[derive(Debug, Serialize)]
pub(crate) struct Row<'a> {
    /// Its number.
    id: u64,
    /// Whether its full statistics have been read.
    sampled: bool,
    /// What limits the direction that carries more; none: it has carried nothing.
    limited_by: Option<Limiter>,
    #[serde(flatten)]
    flow: &'a WatchedFlow,
}

/// What limits flows.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(crate) struct LimiterShares {
    /// Flows, by what limits the direction that carries more, in the order of [`Limiter::ALL`].
    pub(crate) flows: [u64; 5],
    /// Their present rates, bit/s.
    pub(crate) bps: [f64; 5],
}

/// The flows that a view shows.
#[derive(Debug, Default)]
pub(crate) struct Selection {
    /// How many flows the filter selects.
    pub(crate) matching: usize,
    /// The page that is shown: the last one if the view's is beyond it.
    pub(crate) page: usize,
    /// Those on it, in order.
    pub(crate) rows: Vec<FlowId>,
    /// The open flow, if it has not ended.
    pub(crate) open: Option<FlowId>,
}

impl FlowTable {
    /// Number of flows.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// When all flows were listed last.
    pub(crate) fn listed_at(&self) -> Option<Instant> {
        self.listed_at
    }

    /// Takes a list of all flows as of `now`.
    pub(crate) fn list<'a>(&mut self, briefs: impl IntoIterator<Item = &'a FlowBrief>, now: Instant) {
        self.count = 0;
        for brief in briefs {
            let slot = slot_of(&mut self.groups, brief.id);
            let entry = match slot {
                Some(entry) if entry.id == brief.id => entry,
                _ => {
                    self.serial += 1;
                    slot.insert(Entry::new(self.serial, brief, now))
                }
            };
            entry.update(brief, now);
            self.count += 1;
        }
        for group in &mut self.groups {
            while group.slots.pop_if(|slot| slot.as_ref().is_none_or(|entry| entry.listed != now)).is_some() {}
        }
        self.listed_at = Some(now);
    }

    /// The flows of the last list.
    fn entries(&self) -> impl Iterator<Item = &Entry> {
        let entries = self.groups.iter().flat_map(|group| group.slots.iter().flatten());
        entries.filter(|entry| Some(entry.listed) == self.listed_at)
    }

    /// A flow; none: it has ended.
    fn entry(&self, id: &FlowId) -> Option<&Entry> {
        let group = self.groups.iter().find(|group| group.name == id.group())?;
        group.slots.get(id.slot())?.as_ref().filter(|entry| entry.id == *id && Some(entry.listed) == self.listed_at)
    }

    /// Takes the full statistics of some flows as of `now`.
    pub(crate) fn sample(&mut self, stats: &[(FlowId, FlowStats)], now: Instant) {
        for (id, stats) in stats {
            if let Some(entry) = slot_of(&mut self.groups, *id).as_mut().filter(|entry| entry.id == *id) {
                entry.watched.flow = FlowView::of(stats);
                entry.sampled = Some(now);
            }
        }
    }

    /// The next flows of the rotation: their full statistics are to be read.
    pub(crate) fn in_turn(&mut self) -> Vec<FlowId> {
        let chosen: Vec<FlowId> =
            self.entries().skip(self.turn).chain(self.entries()).take(IN_TURN.min(self.count)).map(|entry| entry.id).collect();
        self.turn = (self.turn.min(self.count) + chosen.len()).checked_rem(self.count).unwrap_or(0);
        chosen
    }

    /// The flows that a view shows.
    pub(crate) fn select(&self, view: &View) -> Selection {
        let filter = &view.filter;
        let is_known = |entry: &Entry| entry.sampled.is_some() || !filter.asks_for_state();
        let accepts = |entry: &Entry| filter.is_empty() || (is_known(entry) && filter.accepts(&entry.watched.flow));
        let mut matching = Vec::with_capacity(self.count);
        matching.extend(self.entries().filter(|entry| accepts(entry)));
        let order = |one: &&Entry, other: &&Entry| -> Ordering {
            let compared = view.order.compare(&one.watched, &other.watched);
            (if view.reversed { compared.reverse() } else { compared }).then(one.serial.cmp(&other.serial))
        };
        let page = view.page.min(matching.len().saturating_sub(1) / ROWS);
        let (first, end) = (page * ROWS, matching.len().min((page + 1) * ROWS));
        // Only what is shown is sorted.
        if end < matching.len() {
            matching.select_nth_unstable_by(end, order);
        }
        if first > 0 && first < end {
            matching[..end].select_nth_unstable_by(first, order);
        }
        matching[first..end].sort_unstable_by(order);
        let rows = matching[first..end].iter().map(|entry| entry.id).collect();
        let open = view.open.and_then(|open| self.entries().find(|entry| entry.serial == open)).map(|entry| entry.id);
        Selection { matching: matching.len(), page, rows, open }
    }

    /// A flow as a row; none: it has ended.
    pub(crate) fn row(&self, id: &FlowId) -> Option<Row<'_>> {
        let entry = self.entry(id)?;
        let watched = &entry.watched;
        Some(Row { id: entry.serial, sampled: entry.sampled.is_some(), limited_by: watched.limited_by(), flow: watched })
    }

    /// What limits the flows whose statistics are not too old.
    pub(crate) fn limiters(&self, now: Instant) -> LimiterShares {
        let mut shares = LimiterShares::default();
        let is_fresh = |entry: &&Entry| entry.sampled.is_some_and(|at| (now - at).as_secs_f64() < STALE_S);
        for entry in self.entries().filter(is_fresh) {
            let limiter = entry.watched.limited_by();
            let Some(kind) = Limiter::ALL.iter().position(|known| Some(*known) == limiter) else { continue };
            shares.flows[kind] += 1;
            shares.bps[kind] += entry.watched.total_bps().round();
        }
        shares
    }
}

/// The slot of a flow, which is added if the table does not have it.
fn slot_of(groups: &mut Vec<Group>, id: FlowId) -> &mut Option<Entry> {
    let known = groups.iter().position(|group| group.name == id.group());
    let group = known.unwrap_or_else(|| {
        groups.push(Group { name: id.group(), slots: Vec::new() });
        groups.len() - 1
    });
    let slots = &mut groups[group].slots;
    if slots.len() <= id.slot() {
        slots.extend(iter::repeat_with(|| None).take(id.slot() + 1 - slots.len()));
    }
    &mut slots[id.slot()]
}

impl Entry {
    /// A flow that was not listed before, without rates.
    fn new(serial: u64, brief: &FlowBrief, now: Instant) -> Self {
        let flow = FlowView::of(&FlowStats::unbegun(brief.client, brief.server));
        let watched = WatchedFlow { flow, up_bps: None, down_bps: None, networks_bps: Vec::new() };
        let is_young = (now - brief.id.born()).as_secs_f64() < YOUNG_S;
        let (rated, acknowledged) = if is_young { (brief.id.born(), [0, 0]) } else { (now, brief.acknowledged) };
        Entry { id: brief.id, serial, watched, sampled: None, listed: now, rated, acknowledged }
    }

    fn update(&mut self, brief: &FlowBrief, now: Instant) {
        let elapsed = (now - self.rated).as_secs_f64();
        let watched = &mut self.watched;
        if elapsed >= RATE_S || (watched.down_bps.is_none() && elapsed > 0.0) {
            let rate = |new: u64, old: u64| Some((new.saturating_sub(old) as f64 * 8.0 / elapsed.max(SHORTEST_S)).round());
            watched.up_bps = rate(brief.acknowledged[0], self.acknowledged[0]);
            watched.down_bps = rate(brief.acknowledged[1], self.acknowledged[1]);
            (self.rated, self.acknowledged) = (now, brief.acknowledged);
        }
        (watched.flow.up.bytes, watched.flow.down.bytes) = (brief.up, brief.down);
        watched.flow.age_s = (now - brief.id.born()).as_secs_f64();
        self.listed = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A flow in brief, the `number`th, that has carried `down` bytes.
    fn brief(number: u8, born: Instant, down: u64) -> FlowBrief {
        let client = ([192, 0, 2, number], 1000).into();
        FlowBrief {
            id: FlowId::new(0, false, number.into(), born),
            client,
            server: ([198, 51, 100, 1], 443).into(),
            up: 0,
            down,
            acknowledged: [0, down],
        }
    }

    fn stats(brief: &FlowBrief) -> (FlowId, FlowStats) {
        let mut stats = FlowStats::unbegun(brief.client, brief.server);
        stats.down.moved = brief.down;
        stats.near.rtt_us = 1000 * u32::from(brief.client.port());
        (brief.id, stats)
    }

    fn clients(table: &FlowTable, query: &str) -> Vec<String> {
        let rows = table.select(&View::of_query(query)).rows;
        rows.iter().map(|id| table.row(id).unwrap().flow.flow.client.ip().to_string()).collect()
    }

    #[test]
    fn flows_are_sorted_filtered_and_shown_in_pages() {
        let (mut table, start) = (FlowTable::default(), Instant::now());
        let list: Vec<FlowBrief> = (0..120).map(|number| brief(number, start, u64::from(number) * 1000)).collect();
        table.list(&list, start + Duration::from_secs(1));
        let first = clients(&table, "sort=bytes");
        assert_eq!((first.len(), first[0].as_str(), first[49].as_str()), (ROWS, "192.0.2.119", "192.0.2.70"));
        let last = clients(&table, "sort=bytes&page=7");
        assert_eq!((last.len(), last[0].as_str(), last[19].as_str()), (20, "192.0.2.19", "192.0.2.0"));
        let second = clients(&table, "sort=rate&page=1");
        assert_eq!((second.len(), second[0].as_str(), second[49].as_str()), (ROWS, "192.0.2.69", "192.0.2.20"));
        assert_eq!(clients(&table, "sort=bytes&reversed=1")[..2], ["192.0.2.0", "192.0.2.1"]);
        assert_eq!(clients(&table, "filter=192.0.2.7"), ["192.0.2.7"]);
        let selection = table.select(&View::of_query("filter=:443&page=2"));
        assert_eq!((selection.matching, selection.page), (120, 2));
        assert!(table.select(&View::of_query("filter=phase%3Dwrong")).matching == 120);
    }

    #[test]
    fn rates_are_those_since_the_list_before_also_for_sampled_flows() {
        let (mut table, start) = (FlowTable::default(), Instant::now());
        let (old, second) = (start.checked_sub(Duration::from_secs(100)).unwrap(), Duration::from_secs(1));
        table.list(&[brief(1, old, 5000)], start);
        assert_eq!(table.row(&brief(1, old, 0).id).unwrap().flow.down_bps, None);
        // Young: it carried all that it has since its beginning.
        table.list(&[brief(1, old, 6000), brief(2, start, 1000)], start + second);
        table.sample(&[stats(&brief(1, old, 6900))], start + second);
        assert_eq!(table.row(&brief(1, old, 0).id).unwrap().flow.down_bps, Some(8000.0));
        assert_eq!(table.row(&brief(2, start, 0).id).unwrap().flow.down_bps, Some(8000.0));
        table.list(&[brief(1, old, 7000)], start + 2 * second);
        assert_eq!(table.row(&brief(1, old, 0).id).unwrap().flow.down_bps, Some(8000.0));
        assert!(table.row(&brief(2, start, 0).id).is_none());
    }

    #[test]
    fn a_rate_is_of_what_is_acknowledged_and_not_computed_over_less_than_a_second() {
        let (mut table, start) = (FlowTable::default(), Instant::now());
        let mut flow = brief(1, start, 0);
        let mut rate_after = |ms: u64, written: u64, acknowledged: u64| {
            (flow.down, flow.acknowledged[1]) = (written, acknowledged);
            table.list(&[flow], start + Duration::from_millis(ms));
            table.row(&flow.id).unwrap().flow.down_bps
        };
        assert_eq!(rate_after(1000, 900_000, 1000), Some(8000.0));
        assert_eq!(rate_after(1400, 910_000, 9000), Some(8000.0), "a view was changed between two samples");
        assert_eq!(rate_after(2000, 910_000, 3000), Some(16000.0));
    }

    #[test]
    fn the_turn_comes_to_every_flow_and_state_filters_wait_for_it() {
        let (mut table, start) = (FlowTable::default(), Instant::now());
        let list: Vec<FlowBrief> = (0..200).map(|number| brief(number, start, 1000)).collect();
        table.list(&list, start + Duration::from_secs(1));
        assert!(clients(&table, "filter=phase%3Dstarvation").is_empty());
        let mut chosen = table.in_turn();
        assert_eq!(chosen.len(), IN_TURN);
        chosen.extend(table.in_turn());
        assert!(list.iter().all(|brief| chosen.contains(&brief.id)));
        table.sample(&list.iter().map(stats).collect::<Vec<_>>(), start + Duration::from_secs(1));
        assert_eq!(clients(&table, "filter=phase%3Dstarvation").len(), ROWS);
        let shares = table.limiters(start + Duration::from_secs(2));
        assert_eq!(shares.flows.iter().sum::<u64>(), 200);
        let limited_by = |limiter: Limiter| list.iter().filter(|brief| table.row(&brief.id).unwrap().limited_by == Some(limiter)).count();
        assert_eq!(shares.flows, Limiter::ALL.map(|limiter| limited_by(limiter) as u64), "the rows and the shares agree");
        assert_eq!(shares.bps.iter().sum::<f64>(), 200.0 * 8000.0);
        assert_eq!(table.limiters(start + Duration::from_secs(1000)), LimiterShares::default());
    }

    #[test]
    fn an_open_flow_is_found_until_it_ends() {
        let (mut table, start) = (FlowTable::default(), Instant::now());
        let flow = brief(9, start, 1);
        table.list(&[flow], start);
        let serial = table.row(&flow.id).unwrap().id;
        let view = View::of_query(&format!("flow={serial}"));
        assert_eq!(table.select(&view).open, Some(flow.id));
        // The same slot and addresses, but another flow.
        table.list(&[brief(9, start + Duration::from_millis(1), 1)], start + Duration::from_secs(1));
        assert_eq!(table.select(&view).open, None);
        table.list(&[], start + Duration::from_secs(2));
        assert_eq!((table.len(), table.select(&view).rows.len(), table.in_turn().len()), (0, 0, 0));
    }
}
