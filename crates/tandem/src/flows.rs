//! `tandem flows` and `tandem bypass`: what the running proxy does, and a word in its ear.

use crate::Failure;
use clap::{Args, Subcommand};
use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use intercept::{LinkView, Prefix};
use proxy::{
    Change, DirectionView, FlowView, LegView, Limiter, MultipathView, PathView, Phase,
    control::{AskError, Remote, Status},
};
use std::{
    io::{IsTerminal as _, Write as _, stdout},
    thread,
};
use units::{Bytes, Span};

/// The running proxy's flows: a row a flow, both legs in it
#[derive(Debug, Args)]
pub(crate) struct Flows {
    /// Looks again and again: every 2s, or as often as is said
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "2s")]
    watch: Option<Span>,
    /// Prints JSON: one list a look
    #[arg(long)]
    json: bool,
    /// Which proxy, where several run
    #[arg(long, value_name = "NAME", default_value = "default")]
    name: String,
}

/// Prefixes whose connections pass unsplit, whichever end is in them; until the proxy ends
#[derive(Debug, Args)]
pub(crate) struct Bypass {
    #[command(subcommand)]
    what: Option<What>,
    /// Prints JSON
    #[arg(long, global = true)]
    json: bool,
    /// Which proxy, where several run
    #[arg(long, value_name = "NAME", default_value = "default", global = true)]
    name: String,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Prints the list
    List,
    /// Adds prefixes to the list
    Add {
        #[arg(value_name = "PREFIX", required = true)]
        prefixes: Vec<Prefix>,
    },
    /// Takes prefixes off the list
    Remove {
        #[arg(value_name = "PREFIX", required = true)]
        prefixes: Vec<Prefix>,
    },
}

fn failed(error: AskError) -> Failure {
    Failure::Failed(error.to_string())
}

impl Flows {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let remote = Remote::named(&self.name);
        loop {
            let flows = remote.flows().map_err(failed)?;
            let text = if self.json {
                serde_json::to_string(&flows).unwrap_or_default() + "\n"
            } else {
                table(&flows, &remote.status().map_err(failed)?)
            };
            // On a terminal each look takes the place of the one before.
            let clear = if self.watch.is_some() && !self.json && stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
            let written = write!(stdout(), "{clear}{text}").and_then(|()| stdout().flush());
            let Some(every) = self.watch.filter(|_| written.is_ok()) else { return Ok(()) };
            thread::sleep(every.duration());
        }
    }
}

impl Bypass {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let change = match self.what {
            None | Some(What::List) => Change::Nothing,
            Some(What::Add { prefixes }) => Change::Add(prefixes),
            Some(What::Remove { prefixes }) => Change::Remove(prefixes),
        };
        let list = Remote::named(&self.name).bypass(change).map_err(failed)?;
        if self.json {
            outln!("{}", serde_json::to_string(&list).unwrap_or_default());
        } else if list.is_empty() {
            outln!("no prefix bypasses beyond what the configuration says");
        } else {
            list.iter().for_each(|prefix| outln!("{prefix}"));
        }
        Ok(())
    }
}

/// The flows that move most first, and a line about all.
fn table(flows: &[FlowView], status: &Status) -> String {
    let mut sorted: Vec<&FlowView> = flows.iter().collect();
    sorted.sort_by_key(|flow| std::cmp::Reverse(flow.up.bytes + flow.down.bytes));
    let mut table = Table::new();
    table.load_style(TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─')));
    table.set_header(["client", "server", "age", "", "bytes", "held", "phase", "limited by", "near leg", "far leg"]);
    for flow in sorted {
        // The direction that moves more, and the other only when it moves as well.
        let mut directions = [("up", &flow.up), ("down", &flow.down)];
        directions.sort_by_key(|(_, direction)| std::cmp::Reverse(direction.bytes));
        for (index, (way, direction)) in directions.into_iter().filter(|(_, it)| it.bytes > 0).enumerate() {
            let first = |text: String| if index == 0 { text } else { String::new() };
            table.add_row([
                first(flow.client.to_string()),
                first(flow.server.to_string()),
                first(age(flow.age_s)),
                way.into(),
                human(direction.bytes),
                human(direction.held_bytes),
                phase(direction).into(),
                limiter(direction).into(),
                first(leg(&flow.near, flow)),
                first(leg(&flow.far, flow)),
            ]);
        }
        if flow.up.bytes + flow.down.bytes == 0 {
            let empty = || String::new();
            let row = [flow.client.to_string(), flow.server.to_string(), age(flow.age_s), empty(), "0".into()];
            table.add_row(row.into_iter().chain([empty(), empty(), empty(), leg(&flow.near, flow), leg(&flow.far, flow)]));
        }
    }
    for index in [2, 4, 5] {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let totals = &status.totals;
    let mut text = if flows.is_empty() { String::new() } else { format!("{table}\n\n") };
    text += &format!(
        "{} flows now, {} ended; carried {} up, {} down",
        totals.flows,
        totals.ended.iter().sum::<u64>(),
        human(totals.up),
        human(totals.down)
    );
    if let Some(counted) = status.counted {
        text += &format!(
            "; of new connections {} split, {} bypassed, {} passed unsplit for want of room, {} for the firewall; {} of QUIC",
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
    text
}

/// A line about a link whose capacity is known.
fn about(link: &LinkView) -> String {
    let mega = |bits: f64| format!("{:.2} Mbit/s", bits / 1e6);
    let mut text = format!(
        "{}: {} of {} leaves, {} of it of others; queue {} for good, {} now",
        link.link,
        mega(link.egress_bps),
        mega(link.capacity_bps as f64),
        mega(link.other_bps),
        human(link.queue_bytes),
        human(link.backlog_bytes)
    );
    if link.share_flows > 0 {
        let scale = link.share_scale * 100.0;
        text += &format!(
            "; share: {} for each of {} flows, {scale:.0} % of the capacity believed",
            mega(link.share_bps as f64),
            link.share_flows
        );
    }
    if link.load > 0.0 {
        text += &format!("; load {:.2}", link.load);
    }
    if link.give_bytes + link.take_bytes > 0 {
        text += &format!("; feedback +{} -{} an interval", human(link.give_bytes), human(link.take_bytes));
    }
    text + "\n"
}

fn human(bytes: u64) -> String {
    // Three figures are enough to the eye.
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

/// A leg; of a bond, each of its networks.
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

/// What is believed of each network of a bond, and what part of the payload goes over it, that which goes more ways first.
fn networks(bond: &MultipathView) -> String {
    let sum = |of: fn(&PathView) -> u64| bond.paths.iter().map(of).sum::<u64>();
    let [sent, received] = [sum(|path| path.sent_bytes), sum(|path| path.received_bytes)];
    let share = |path: &PathView| if sent > received { (path.sent_bytes, sent) } else { (path.received_bytes, received) };
    let line = |path: &PathView| {
        let (own, all) = share(path);
        let state = if !path.up {
            " gone"
        } else if path.stalled {
            " stalled"
        } else {
            ""
        };
        let score = path.score_s.map_or("–".to_string(), |score| format!("{:.1}", score * 1e3));
        let throughput = path.throughput_bps.map_or("–".to_string(), |bps| format!("{:.1}", bps / 1e6));
        format!(
            "{}{state}: {:.0} % score {score}ms G {throughput}Mbit/s sRTT {:.1}ms Q {} retrans {} waited for {:.1}s",
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
        lines.push(format!("{} wait for their turn", human(bond.waiting_bytes)));
    }
    if lines.is_empty() { "no network yet".into() } else { lines.join("\n") }
}
