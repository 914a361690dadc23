//! Flows as a table of text.

use crate::{
    NetworkRates, WatchedFlow,
    text::{age, bytes, limiter_name, phase, rate, rate_or_dash},
};
use intercept::LinkView;
use proxy::{DirectionView, LegAccount, LegView, MultipathView, PathView, Totals, control::ProxyStatus};
use report::{Alignment, TextColumn, TextStyle, TextTable};
use std::collections::BTreeSet;

/// The flows as a table, in the given order, and a summary, for a terminal of `width` characters.
pub fn flows_text(flows: &[WatchedFlow], status: &ProxyStatus, width: Option<usize>) -> String {
    let both = flow_table(flows, false);
    // Two address columns take half of a narrow terminal: there they share one.
    let drawn = if both.fits(width) { both } else { flow_table(flows, true) };
    let table = if flows.is_empty() { String::new() } else { drawn.render(width) + "\n" };
    table + &report::wrap(&summary(flows, status), width)
}

/// Sentences about all flows, and a line for each link with a configured capacity. `flows` are
/// those that are shown.
pub fn summary(flows: &[WatchedFlow], status: &ProxyStatus) -> String {
    let totals = &status.totals;
    let sum = |of: fn(&WatchedFlow) -> Option<f64>| flows.iter().filter_map(of).sum::<f64>();
    let mut text = format!("{} flows now", totals.flows);
    if flows.len() as u64 != totals.flows {
        text += &format!(" ({} shown)", flows.len());
    }
    text += &format!(
        ", {} up, {} down; {} ended; carried {} up, {} down",
        rate(sum(|flow| flow.up_bps)),
        rate(sum(|flow| flow.down_bps)),
        totals.ended.iter().sum::<u64>(),
        bytes(totals.up),
        bytes(totals.down)
    );
    if let Some(counted) = status.counted {
        text += &format!(
            "; of new connections {} split, {} bypassed, {} unsplit (proxy full or ending), {} unsplit (firewall)",
            counted.split,
            counted.bypassed,
            counted.unsplit,
            counted.not_yet_allowed + counted.stopped,
        );
        if counted.experiment > 0 {
            text += &format!(", {} unsplit (experiment)", counted.experiment);
        }
        text += &format!("; {} of QUIC", bytes(counted.quic_bytes));
        if counted.quic_connections > 0 {
            text += &format!(" ({} connections counted", counted.quic_connections);
            if counted.quic_rejected + counted.quic_dropped > 0 {
                text += &format!("; packets: {} rejected, {} dropped", counted.quic_rejected, counted.quic_dropped);
            }
            text += ")";
        }
    }
    match status.draining_processes {
        0 => {}
        1 => text += "; 1 earlier process ends with its flows (hot restart)",
        count => text += &format!("; {count} earlier processes end with their flows (hot restart)"),
    }
    text += "\n";
    for link in &status.links {
        text += &about(link);
    }
    text + &accounts_text(totals)
}

/// A line for each leg's profile: what all flows that it sends used of its link, and what the rest
/// was lost to; and what would make large losses less.
pub fn accounts_text(totals: &Totals) -> String {
    let line = |LegAccount { leg, profile, account }: &LegAccount| match leg == profile {
        true => format!("towards the {leg} leg: {account}\n"),
        false => format!("towards the {leg} leg, {profile}: {account}\n"),
    };
    let accounts = totals.accounts();
    let cures: BTreeSet<String> = accounts.iter().flat_map(|of| of.account.cures()).collect();
    accounts.iter().map(line).chain(cures.into_iter().map(|cure| cure + "\n")).collect()
}

/// Returns the table, with a row for each direction of a flow that carried data. `joined`: client
/// and server share a column.
fn flow_table(flows: &[WatchedFlow], joined: bool) -> TextTable {
    let words = |head: &str| TextColumn::new(head, Alignment::Left);
    let number = |head: &str| TextColumn::new(head, Alignment::Right);
    let mut columns = if joined { vec![words("client → server")] } else { vec![words("client"), words("server")] };
    columns.extend([number("age").droppable(4), words(""), number("rate"), number("bytes").droppable(5), number("held").droppable(3)]);
    columns.extend([words("phase").droppable(6), words("limited by").droppable(1)]);
    let has_accounts = flows.iter().any(|watched| watched.flow.up.account.is_some() || watched.flow.down.account.is_some());
    columns.extend(has_accounts.then(|| words("of the link, most lost to").droppable(7)));
    columns.extend([words("near leg").droppable(2), words("far leg").droppable(2)]);
    let mut table = TextTable::new(TextStyle::Open, columns);
    for watched in flows {
        let flow = &watched.flow;
        let ends = match joined {
            true => vec![format!("{} → {}", flow.client, flow.server)],
            false => vec![flow.client.to_string(), flow.server.to_string()],
        };
        let legs = [leg(&flow.near, watched), leg(&flow.far, watched)];
        // The direction with more data first; a direction without data has no row.
        let mut directions = [("up", &flow.up, watched.up_bps), ("down", &flow.down, watched.down_bps)];
        directions.sort_by_key(|(_, direction, _)| std::cmp::Reverse(direction.bytes));
        let mut first = true;
        for (name, direction, bps) in directions.into_iter().filter(|(_, direction, _)| direction.bytes > 0) {
            let only_first = |text: String| if first { text } else { String::new() };
            let mut row: Vec<String> = ends.iter().cloned().map(only_first).collect();
            row.extend([only_first(age(flow.age_s)), name.into(), rate_or_dash(bps)]);
            row.extend([bytes(direction.bytes), held(direction), phase(direction).into(), limiter_name(direction.limited_by).into()]);
            row.extend(has_accounts.then(|| used(direction)));
            row.extend(legs.iter().cloned().map(only_first));
            table.push(row);
            first = false;
        }
        if first {
            let empty = String::new;
            let mut row = ends;
            row.extend([age(flow.age_s), empty(), empty(), "0".into(), empty(), empty(), empty()]);
            row.extend(has_accounts.then(empty));
            row.extend(legs);
            table.push(row);
        }
    }
    table
}

/// Returns what a direction has used of its link, and the largest loss.
fn used(direction: &DirectionView) -> String {
    let Some((used, lost)) = direction.account.as_ref().map(|account| (account.used, account.percents())) else { return "–".into() };
    let most = lost.1.first().map_or(String::new(), |(cause, percent)| format!("{} {percent} %", cause.name()));
    if used.is_some() { format!("{} %, {most}", lost.0) } else { most }
}

/// Returns what a direction holds, and B if it follows the flow.
pub(crate) fn held(direction: &DirectionView) -> String {
    let held = bytes(direction.held_bytes);
    direction.buffer_bytes.map_or_else(|| held.clone(), |buffer| format!("{held} of {}", bytes(buffer)))
}

/// Returns the capacity in use, and where it is from if it is not the configured one.
pub(crate) fn capacity(link: &LinkView) -> String {
    let used = rate(link.capacity_bps as f64);
    match link.configured_bps {
        Some(configured) => format!("{used} (estimated; {} is configured)", rate(configured as f64)),
        None if link.estimated && link.capacity_bps == 0 => "a capacity not estimated yet".into(),
        None if link.estimated => format!("{used} (estimated)"),
        None => used,
    }
}

/// Returns a line about a link with a configured capacity.
fn about(link: &LinkView) -> String {
    let mut text = format!(
        "{}: egress {} of {}, of which {} cross traffic; standing queue {}, backlog {}",
        link.link,
        rate(link.egress_bps),
        capacity(link),
        rate(link.other_bps),
        bytes(link.queue_bytes),
        bytes(link.backlog_bytes)
    );
    if link.share_flows > 0 {
        text += &format!("; share: {} for each of {} flows", rate(link.share_bps as f64), link.share_flows);
        if !link.estimated && link.configured_bps.is_none() {
            text += &format!(", capacity scaled by {:.0} %", link.share_scale * 100.0);
        }
    }
    if link.load > 0.0 {
        text += &format!("; load {:.2}", link.load);
    }
    if link.give_bytes + link.take_bytes > 0 {
        text += &format!("; feedback +{} -{} per interval", bytes(link.give_bytes), bytes(link.take_bytes));
    }
    text + "\n"
}

/// Returns the text of a leg; if the leg is a bond, a line for each of its networks.
fn leg(leg: &LegView, watched: &WatchedFlow) -> String {
    match bond_of(leg, watched) {
        Some(bond) => networks(bond, &watched.networks_bps).join("\n"),
        None => tcp_leg(leg),
    }
}

/// The bond that a leg is; `None` if it is one TCP connection.
pub(crate) fn bond_of<'a>(leg: &LegView, watched: &'a WatchedFlow) -> Option<&'a MultipathView> {
    watched.flow.multipath.as_ref().filter(|_| leg.control.starts_with("bond"))
}

/// Controller, smoothed and least RTT, window and threshold in segments, retransmissions.
pub(crate) fn tcp_leg(leg: &LegView) -> String {
    let ssthresh = leg.ssthresh_pkt.map_or("–".to_string(), |segments| segments.to_string());
    format!(
        "{} {:.1}/{:.1}ms cwnd {}/{ssthresh} retrans {}",
        leg.control,
        leg.rtt_s * 1e3,
        leg.min_rtt_s * 1e3,
        leg.cwnd_pkt,
        leg.retransmits
    )
}

/// Returns a line for each network of a bond: its rates, its estimates, and its share of the
/// payload in the direction that carried more.
pub(crate) fn networks(bond: &MultipathView, rates: &[NetworkRates]) -> Vec<String> {
    let sum = |of: fn(&PathView) -> u64| bond.paths.iter().map(of).sum::<u64>();
    let [sent, received] = [sum(|path| path.sent_bytes), sum(|path| path.received_bytes)];
    let share = |path: &PathView| if sent > received { (path.sent_bytes, sent) } else { (path.received_bytes, received) };
    let line = |(at, path): (usize, &PathView)| {
        let (own, all) = share(path);
        let state = if !path.up {
            " down"
        } else if path.stalled {
            " stalled"
        } else {
            ""
        };
        let score = path.score_s.map_or("–".to_string(), |score| format!("{:.1}", score * 1e3));
        let now = rates.get(at).map_or(String::new(), |now| format!(" sends {} receives {}", rate(now.sent_bps), rate(now.received_bps)));
        format!(
            "{}{state}: {:.0} %{now} score {score}ms G {} sRTT {:.1}ms Q {} retrans {} head-of-line blocking {:.1}s",
            path.network,
            100.0 * own as f64 / all.max(1) as f64,
            rate_or_dash(path.throughput_bps),
            path.srtt_s * 1e3,
            bytes(path.queued_bytes),
            path.retransmits,
            path.waited_s
        )
    };
    let mut lines: Vec<String> = bond.paths.iter().enumerate().map(line).collect();
    if bond.waiting_bytes > 0 {
        lines.push(format!("{} in the resequencer", bytes(bond.waiting_bytes)));
    }
    if lines.is_empty() { vec!["no network yet".into()] } else { lines }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RateTracker, text::example_flow};
    use std::time::{Duration, Instant};

    fn watched() -> WatchedFlow {
        let (mut tracker, start) = (RateTracker::default(), Instant::now());
        let mut flow = example_flow("192.168.100.200:54321", "203.0.113.200:443");
        tracker.take(vec![flow.clone()], start);
        (flow.up.bytes, flow.down.bytes) = (flow.up.bytes + 100, flow.down.bytes + 1_500_000);
        tracker.take(vec![flow], start + Duration::from_secs(1)).remove(0)
    }

    fn widest(text: &str) -> usize {
        text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
    }

    #[test]
    fn the_table_fits_the_terminal_without_breaking_words() {
        let flow = watched();
        let wide = flow_table(std::slice::from_ref(&flow), false).render(None);
        let known: Vec<&str> = wide.split_whitespace().collect();
        for width in [80, 120] {
            let text = flow_table(std::slice::from_ref(&flow), true).render(Some(width));
            assert!(widest(&text) <= width, "{width}:\n{text}");
            let table = text.split("Left out").next().unwrap();
            let is_whole = |word: &str| word == "→" || word.starts_with('─') || known.contains(&word);
            assert!(table.split_whitespace().all(is_whole), "{width}:\n{text}");
            assert!(table.contains("12.0Mbit/s"), "the present rate:\n{text}");
            assert!(table.contains("192.168.100.200:54321") && table.contains("203.0.113.200:443"), "{text}");
        }
    }

    #[test]
    fn the_summary_has_present_rates_of_what_is_shown() {
        let status: ProxyStatus = serde_json::from_value(serde_json::json!({
            "totals": { "flows": 2, "ended": [5, 0, 0, 0, 0, 0, 0, 0, 0], "up": 1000, "down": 2_000_000, "near_retransmits": 0, "far_retransmits": 0 },
            "counted": null,
        }))
        .unwrap();
        let text = summary(&[watched()], &status);
        assert_eq!(text, "2 flows now (1 shown), 800bit/s up, 12.0Mbit/s down; 5 ended; carried 1kB up, 2MB down\n");
    }
}
