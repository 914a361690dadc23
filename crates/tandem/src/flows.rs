//! `tandem flows` and `tandem bypass`: clients of a running proxy's control socket.

use crate::{CommandError, output};
use clap::{Args, Subcommand};
use intercept::{LinkView, Prefix};
use proxy::{
    BypassChange, DirectionView, FlowView, LegView, Limiter, MultipathView, PathView, Phase,
    control::{ControlError, ProxyStatus, Remote},
};
use report::{Alignment, TextColumn, TextStyle, TextTable};
use std::{
    io::{IsTerminal as _, Write as _, stdout},
    thread,
};
use units::{Bytes, Span};

/// List the flows of the running proxy or bond, with both legs of each
#[derive(Debug, Args)]
pub(crate) struct FlowsCommand {
    /// Repeat the list at this interval; every 2s if TIME is left out
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "2s")]
    watch: Option<Span>,
    /// Print JSON: one list per interval
    #[arg(long)]
    json: bool,
    /// Name of the proxy, if several run
    #[arg(long, value_name = "NAME", default_value = "default")]
    name: String,
}

/// List or change the prefixes that the running proxy does not split
///
/// A connection passes unsplit if its client or its server is in one of the prefixes. Changes last
/// until the proxy ends.
#[derive(Debug, Args)]
pub(crate) struct BypassCommand {
    #[command(subcommand)]
    action: Option<BypassAction>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    /// Name of the proxy, if several run
    #[arg(long, value_name = "NAME", default_value = "default", global = true)]
    name: String,
}

#[derive(Debug, Subcommand)]
enum BypassAction {
    /// List the prefixes
    List,
    /// Add prefixes
    Add {
        /// Address prefixes: 192.0.2.0/24
        #[arg(value_name = "PREFIX", required = true)]
        prefixes: Vec<Prefix>,
    },
    /// Remove prefixes
    Remove {
        /// Address prefixes: 192.0.2.0/24
        #[arg(value_name = "PREFIX", required = true)]
        prefixes: Vec<Prefix>,
    },
}

fn failed(error: ControlError) -> CommandError {
    CommandError::Failed(error.to_string())
}

impl FlowsCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let remote = Remote::named(&self.name);
        loop {
            let flows = remote.flows().map_err(failed)?;
            let text = if self.json {
                serde_json::to_string(&flows).unwrap_or_default() + "\n"
            } else {
                table(&flows, &remote.status().map_err(failed)?, output::width())
            };
            // On a terminal each list replaces the previous one.
            let clear = if self.watch.is_some() && !self.json && stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
            let written = write!(stdout(), "{clear}{text}").and_then(|()| stdout().flush());
            let Some(every) = self.watch.filter(|_| written.is_ok()) else { return Ok(()) };
            thread::sleep(every.duration());
        }
    }
}

impl BypassCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let change = match self.action {
            None | Some(BypassAction::List) => BypassChange::Nothing,
            Some(BypassAction::Add { prefixes }) => BypassChange::Add(prefixes),
            Some(BypassAction::Remove { prefixes }) => BypassChange::Remove(prefixes),
        };
        let list = Remote::named(&self.name).bypass(change).map_err(failed)?;
        if self.json {
            outln!("{}", serde_json::to_string(&list).unwrap_or_default());
        } else if list.is_empty() {
            outln!("no bypass prefixes besides those of the configuration");
        } else {
            list.iter().for_each(|prefix| outln!("{prefix}"));
        }
        Ok(())
    }
}

/// Returns the table of flows, the largest first, and a summary, for a terminal of `width`
/// characters.
fn table(flows: &[FlowView], status: &ProxyStatus, width: Option<usize>) -> String {
    let mut sorted: Vec<&FlowView> = flows.iter().collect();
    sorted.sort_by_key(|flow| std::cmp::Reverse(flow.up.bytes + flow.down.bytes));
    let both = flow_table(&sorted, false);
    // Two address columns take half of a narrow terminal: there they share one.
    let drawn = if both.fits(width) { both } else { flow_table(&sorted, true) };
    let totals = &status.totals;
    let mut text = String::new();
    text += &format!(
        "{} flows now, {} ended; carried {} up, {} down",
        totals.flows,
        totals.ended.iter().sum::<u64>(),
        human(totals.up),
        human(totals.down)
    );
    if let Some(counted) = status.counted {
        text += &format!(
            "; of new connections {} split, {} bypassed, {} unsplit (proxy full or ending), {} unsplit (firewall); {} of QUIC",
            counted.split,
            counted.bypassed,
            counted.unsplit,
            counted.not_yet_allowed + counted.stopped,
            human(counted.quic_bytes)
        );
    }
    text += "\n";
    for link in &status.links {
        text += &about(link);
    }
    let table = if flows.is_empty() { String::new() } else { drawn.render(width) + "\n" };
    table + &report::wrap(&text, width)
}

/// Returns the table, with a row for each direction of a flow that carried data. `joined`: client
/// and server share a column.
fn flow_table(flows: &[&FlowView], joined: bool) -> TextTable {
    let words = |head: &str| TextColumn::new(head, Alignment::Left);
    let number = |head: &str| TextColumn::new(head, Alignment::Right);
    let mut columns = if joined { vec![words("client → server")] } else { vec![words("client"), words("server")] };
    columns.extend([number("age").droppable(4), words(""), number("bytes"), number("held").droppable(2)]);
    columns.extend([words("phase").droppable(3), words("limited by").droppable(1), words("near leg"), words("far leg")]);
    let mut table = TextTable::new(TextStyle::Open, columns);
    for flow in flows {
        let ends = match joined {
            true => vec![format!("{} → {}", flow.client, flow.server)],
            false => vec![flow.client.to_string(), flow.server.to_string()],
        };
        let legs = [leg(&flow.near, flow), leg(&flow.far, flow)];
        // The direction with more data first; a direction without data has no row.
        let mut directions = [("up", &flow.up), ("down", &flow.down)];
        directions.sort_by_key(|(_, direction)| std::cmp::Reverse(direction.bytes));
        let mut first = true;
        for (name, direction) in directions.into_iter().filter(|(_, direction)| direction.bytes > 0) {
            let only_first = |text: String| if first { text } else { String::new() };
            let mut row: Vec<String> = ends.iter().cloned().map(only_first).collect();
            row.extend([only_first(age(flow.age_s)), name.into(), human(direction.bytes), human(direction.held_bytes)]);
            row.extend([phase(direction).into(), limiter(direction).into()]);
            row.extend(legs.iter().cloned().map(only_first));
            table.push(row);
            first = false;
        }
        if first {
            let empty = String::new;
            let mut row = ends;
            row.extend([age(flow.age_s), empty(), "0".into(), empty(), empty(), empty()]);
            row.extend(legs);
            table.push(row);
        }
    }
    table
}

/// Returns a line about a link with a configured capacity.
fn about(link: &LinkView) -> String {
    let mega = |bits: f64| format!("{:.2} Mbit/s", bits / 1e6);
    let mut text = format!(
        "{}: egress {} of {}{}, of which {} cross traffic; standing queue {}, backlog {}",
        link.link,
        mega(link.egress_bps),
        mega(link.capacity_bps as f64),
        if link.estimated { " (estimated)" } else { "" },
        mega(link.other_bps),
        human(link.queue_bytes),
        human(link.backlog_bytes)
    );
    if link.share_flows > 0 {
        text += &format!("; share: {} for each of {} flows", mega(link.share_bps as f64), link.share_flows);
        if !link.estimated {
            text += &format!(", capacity scaled by {:.0} %", link.share_scale * 100.0);
        }
    }
    if link.load > 0.0 {
        text += &format!("; load {:.2}", link.load);
    }
    if link.give_bytes + link.take_bytes > 0 {
        text += &format!("; feedback +{} -{} per interval", human(link.give_bytes), human(link.take_bytes));
    }
    text + "\n"
}

fn human(bytes: u64) -> String {
    // Three significant digits.
    let digits = bytes.checked_ilog10().unwrap_or(0);
    let unit = 10u64.pow(digits.saturating_sub(2));
    Bytes(bytes / unit * unit).to_string()
}

fn age(seconds: f64) -> String {
    match seconds as u64 {
        0..120 => format!("{seconds:.1}s"),
        whole @ 120..7200 => format!("{}min", whole / 60),
        whole => format!("{}h", whole / 3600),
    }
}

fn phase(direction: &DirectionView) -> &'static str {
    match direction.phase {
        Phase::Free => "free",
        Phase::Starvation => "starvation",
        Phase::Backpressure => "backpressure",
    }
}

fn limiter(direction: &DirectionView) -> &'static str {
    match direction.limited_by {
        Limiter::Sender => "sender",
        Limiter::NearLeg => "near leg",
        Limiter::ProxyBuffer => "proxy buffer",
        Limiter::FarLeg => "far leg",
        Limiter::Receiver => "receiver",
    }
}

/// Returns the text of a leg; if the leg is a bond, a line for each of its networks.
fn leg(leg: &LegView, flow: &FlowView) -> String {
    if let Some(bond) = flow.multipath.as_ref().filter(|_| leg.control.starts_with("bond")) {
        return networks(bond);
    }
    let ssthresh = leg.ssthresh_pkt.map_or("–".to_string(), |segments| segments.to_string());
    format!(
        "{} {:.1}/{:.1}ms cwnd {}/{} retrans {} {:.1}Mbit/s",
        leg.control,
        leg.rtt_s * 1e3,
        leg.min_rtt_s * 1e3,
        leg.cwnd_pkt,
        ssthresh,
        leg.retransmits,
        leg.delivery_bps / 1e6
    )
}

/// Returns a line for each network of a bond: its estimates, and its share of the payload in the
/// direction that carried more.
fn networks(bond: &MultipathView) -> String {
    let sum = |of: fn(&PathView) -> u64| bond.paths.iter().map(of).sum::<u64>();
    let [sent, received] = [sum(|path| path.sent_bytes), sum(|path| path.received_bytes)];
    let share = |path: &PathView| if sent > received { (path.sent_bytes, sent) } else { (path.received_bytes, received) };
    let line = |path: &PathView| {
        let (own, all) = share(path);
        let state = if !path.up {
            " down"
        } else if path.stalled {
            " stalled"
        } else {
            ""
        };
        let score = path.score_s.map_or("–".to_string(), |score| format!("{:.1}", score * 1e3));
        let throughput = path.throughput_bps.map_or("–".to_string(), |bps| format!("{:.1}", bps / 1e6));
        format!(
            "{}{state}: {:.0} % score {score}ms G {throughput}Mbit/s sRTT {:.1}ms Q {} retrans {} head-of-line blocking {:.1}s",
            path.network,
            100.0 * own as f64 / all.max(1) as f64,
            path.srtt_s * 1e3,
            human(path.queued_bytes),
            path.retransmits,
            path.waited_s
        )
    };
    let mut lines: Vec<String> = bond.paths.iter().map(line).collect();
    if bond.waiting_bytes > 0 {
        lines.push(format!("{} in the resequencer", human(bond.waiting_bytes)));
    }
    if lines.is_empty() { "no network yet".into() } else { lines.join("\n") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn flow(client: &str, server: &str) -> FlowView {
        let leg = |control: &str| -> Value {
            json!({
                "control": control, "rtt_s": 0.6001, "min_rtt_s": 0.5993, "cwnd_pkt": 700, "ssthresh_pkt": 350, "mss_bytes": 1448,
                "retransmits": 12, "drops": 0, "delivery_bps": 8.2e6,
            })
        };
        let direction =
            |bytes: u64| json!({ "bytes": bytes, "held_bytes": 250_000, "phase": "backpressure", "limited_by": "proxy_buffer" });
        let flow = json!({
            "client": client, "server": server, "age_s": 12.3, "near": leg("cubic"), "far": leg("td_share"),
            "up": direction(77), "down": direction(3_000_205),
        });
        serde_json::from_value(flow).unwrap()
    }

    fn widest(text: &str) -> usize {
        text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
    }

    #[test]
    fn the_table_fits_the_terminal_without_breaking_words() {
        let flow = flow("192.168.100.200:54321", "203.0.113.200:443");
        let wide = flow_table(&[&flow], false).render(None);
        let known: Vec<&str> = wide.split_whitespace().collect();
        for width in [80, 120] {
            let text = flow_table(&[&flow], true).render(Some(width));
            assert!(widest(&text) <= width, "{width}:\n{text}");
            let table = text.split("Left out").next().unwrap();
            let is_whole = |word: &str| word == "→" || word.starts_with('─') || known.contains(&word);
            assert!(table.split_whitespace().all(is_whole), "{width}:\n{text}");
            assert!(table.contains("limited"), "the last column to go:\n{text}");
            assert!(table.contains("192.168.100.200:54321") && table.contains("203.0.113.200:443"), "{text}");
        }
    }
}
