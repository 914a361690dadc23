//! Draws the full-screen view.

use super::state::{RateCurve, Screen, TopState};
use crate::{
    WatchedFlow, table,
    text::{self, age, bytes, limiter_name, phase, rate, rate_or_dash},
};
use proxy::{LegView, Limiter};
use ratatui::{
    Frame,
    layout::{Alignment, Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Borders, Cell, Paragraph, Row, Sparkline, Table, Wrap},
};
use std::time::Instant;

/// From this height on there is room for the curve of all flows.
const TALL: u16 = 24;
/// Rows of a curve.
const CURVE_ROWS: u16 = 3;
/// Space that two IPv4 addresses with ports and an arrow between them need.
const ADDRESSES: u16 = 45;

/// A column of the list of flows.
struct FlowColumn {
    head: &'static str,
    width: u16,
    is_number: bool,
    text: fn(&WatchedFlow) -> String,
}

/// A column of numbers.
const fn number(head: &'static str, width: u16, text: fn(&WatchedFlow) -> String) -> FlowColumn {
    FlowColumn { head, width, is_number: true, text }
}

/// A column of words.
const fn words(head: &'static str, width: u16, text: fn(&WatchedFlow) -> String) -> FlowColumn {
    FlowColumn { head, width, is_number: false, text }
}

/// The columns that are always shown, besides the addresses.
const FIRST: [FlowColumn; 3] = [
    number("up", 10, |watched| rate_or_dash(watched.up_bps)),
    number("down", 10, |watched| rate_or_dash(watched.down_bps)),
    words("limited by", 12, |watched| watched.limited_by().map_or("–", limiter_name).into()),
];

/// The columns that are shown where there is room, the most useful one first.
const MORE: [FlowColumn; 8] = [
    number("held", 7, |watched| bytes(watched.flow.up.held_bytes + watched.flow.down.held_bytes)),
    number("far RTT", 8, |watched| milliseconds(watched.flow.far.rtt_s)),
    number("near RTT", 8, |watched| milliseconds(watched.flow.near.rtt_s)),
    number("retrans", 8, |watched| (u64::from(watched.flow.near.retransmits) + u64::from(watched.flow.far.retransmits)).to_string()),
    number("age", 7, |watched| age(watched.flow.age_s)),
    number("bytes", 8, |watched| bytes(watched.flow.up.bytes + watched.flow.down.bytes)),
    words("phase", 12, |watched| phase(watched.main_direction()).into()),
    words("control", 20, |watched| format!("{}, {}", watched.flow.near.control, watched.flow.far.control)),
];

fn milliseconds(seconds: f64) -> String {
    format!("{:.1}ms", seconds * 1e3)
}

/// Draws the state, and remembers in it how far the list is scrolled.
pub(super) fn draw(state: &mut TopState, frame: &mut Frame<'_>) {
    let area = frame.area();
    let about = overview(state, area.width);
    let links = state.status.as_ref().map_or(0, |status| status.links.len().min(3) as u16);
    let curve = if area.height >= TALL && !state.total.samples.is_empty() { CURVE_ROWS + 1 } else { 0 };
    let legs = match state.screen {
        Screen::Flows(true) => legs_height(state),
        _ => 0,
    };
    let rows = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(about.len() as u16),
        Constraint::Length(links),
        Constraint::Length(curve),
        Constraint::Fill(1),
        Constraint::Length(legs),
        Constraint::Length(1),
    ]);
    let [head, overview_area, links_area, curve_area, list, legs_area, foot] = rows.areas(area);
    frame.render_widget(head_line(state, head.width), head);
    frame.render_widget(Paragraph::new(about), overview_area);
    draw_links(state, frame, links_area);
    if curve > 0 {
        draw_curve(&state.total, "all flows", frame, curve_area);
    }
    if state.screen == Screen::Help {
        draw_help(frame, list);
    } else {
        draw_flows(state, frame, list);
        if legs > 0 {
            draw_legs(state, frame, legs_area);
        }
    }
    draw_foot(state, frame, foot);
}

fn head_line(state: &TopState, width: u16) -> Line<'static> {
    let left = format!(" tandem top: {}", state.options.name);
    let right = match (&state.unanswered_since, state.age_of_answer(Instant::now())) {
        _ if state.paused => "paused ".into(),
        (Some(_), Some(age)) => format!("no answer for {:.0} s ", age.as_secs_f64()),
        (Some(_), None) => "no answer yet ".into(),
        (None, _) => format!("every {} ", state.options.every),
    };
    let fill = (width as usize).saturating_sub(left.chars().count() + right.chars().count());
    Line::from(format!("{left}{}{right}", " ".repeat(fill))).style(Style::new().add_modifier(Modifier::REVERSED))
}

/// Sentences about all flows, wrapped.
fn overview(state: &TopState, width: u16) -> Vec<Line<'static>> {
    if let Some((_, why)) = &state.unanswered_since {
        let text = report::wrap(&format!("{why}; asking again until it answers"), Some(width as usize));
        return text.lines().map(|line| Line::styled(line.to_owned(), Style::new().fg(Color::Yellow))).collect();
    }
    let Some(status) = &state.status else { return vec![Line::from("asking the proxy …")] };
    let [up, down] = state.total_rates();
    let mut text = format!("{} flows, {} up, {} down", status.totals.flows, rate(up), rate(down));
    text += &format!(
        "; {} ended; carried {} up, {} down",
        status.totals.ended.iter().sum::<u64>(),
        bytes(status.totals.up),
        bytes(status.totals.down)
    );
    text += "\n";
    text += &limits(state.all_flows());
    report::wrap(&text, Some(width as usize)).lines().map(|line| Line::from(line.to_owned())).collect()
}

/// What limits the flows: how many each, and which part of the present rate they have.
fn limits(flows: &[WatchedFlow]) -> String {
    let total: f64 = flows.iter().map(WatchedFlow::total_bps).sum();
    let part = |limiter: Limiter, name: &str| {
        let limited = || flows.iter().filter(move |watched| watched.limited_by() == Some(limiter));
        let count = limited().count();
        let share = 100.0 * limited().map(WatchedFlow::total_bps).sum::<f64>() / total.max(1.0);
        (count > 0).then(|| format!("{name} {count} ({share:.0} % of the rate)"))
    };
    let parts: Vec<String> = text::LIMITERS.iter().filter_map(|(limiter, name)| part(*limiter, name)).collect();
    if parts.is_empty() { String::new() } else { format!("limited by {}\n", parts.join(", ")) }
}

fn draw_links(state: &TopState, frame: &mut Frame<'_>, area: Rect) {
    let links = state.status.iter().flat_map(|status| &status.links);
    let line = |link: &intercept::LinkView| {
        let (egress, capacity) = (rate(link.egress_bps), table::capacity(link));
        Line::from(format!("{}: {egress} of {capacity}, queue {}", link.link, bytes(link.backlog_bytes)))
    };
    frame.render_widget(Paragraph::new(links.map(line).collect::<Vec<_>>()), area);
}

/// Draws a curve of both directions together, with its largest value above it.
fn draw_curve(curve: &RateCurve, what: &str, frame: &mut Frame<'_>, area: Rect) {
    let [head, bars] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    let shown: Vec<f64> = curve.samples.iter().rev().take(area.width as usize).rev().map(|[up, down]| up + down).collect();
    let most = shown.iter().copied().fold(0.0, f64::max);
    frame.render_widget(Line::styled(format!("{what}, up to {}", rate(most)), Style::new().fg(Color::DarkGray)), head);
    // The latest sample at the right edge.
    let before = (area.width as usize).saturating_sub(shown.len());
    let data: Vec<u64> = std::iter::repeat_n(0, before).chain(shown.iter().map(|bps| *bps as u64)).collect();
    frame.render_widget(Sparkline::default().data(&data).max(most.max(1.0) as u64).style(Style::new().fg(Color::Cyan)), bars);
}

/// The columns that fit, besides the addresses.
fn columns(width: u16) -> Vec<&'static FlowColumn> {
    let first: u16 = FIRST.iter().map(|column| column.width + 1).sum();
    let mut left = width.saturating_sub(ADDRESSES + first);
    let fitting = MORE.iter().take_while(|column| {
        let fits = left > column.width;
        left = left.saturating_sub(column.width + 1);
        fits
    });
    FIRST.iter().chain(fitting).collect()
}

fn draw_flows(state: &mut TopState, frame: &mut Frame<'_>, area: Rect) {
    let columns = columns(area.width);
    let others: u16 = columns.iter().map(|column| column.width + 1).sum();
    let addresses = area.width.saturating_sub(others);
    let aligned = |column: &FlowColumn, text: String| {
        let line = Line::from(text);
        Cell::from(if column.is_number { line.alignment(Alignment::Right) } else { line })
    };
    let heads = columns.iter().map(|column| aligned(column, column.head.into()));
    let header = Row::new(std::iter::once(Cell::from("client → server")).chain(heads)).style(Style::new().add_modifier(Modifier::BOLD));
    let rows = state.shown.iter().map(|watched| {
        let first = Cell::from(both_ends(watched, addresses as usize));
        Row::new(std::iter::once(first).chain(columns.iter().map(|column| aligned(column, (column.text)(watched)))))
    });
    let widths = std::iter::once(Constraint::Length(addresses)).chain(columns.iter().map(|column| Constraint::Length(column.width)));
    let list = Table::new(rows, widths).header(header).column_spacing(1).row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_stateful_widget(list, area, &mut state.table);
    if state.shown.is_empty() && state.status.is_some() {
        let why = if state.all_flows().is_empty() { "no flows" } else { "no flow meets the filter (Esc removes it)" };
        let below = Rect { y: area.y + 1.min(area.height), height: area.height.saturating_sub(1), ..area };
        frame.render_widget(Paragraph::new(why), below);
    }
}

/// Client and server in this many characters.
fn both_ends(watched: &WatchedFlow, width: usize) -> String {
    let (client, server) = (watched.flow.client.to_string(), watched.flow.server.to_string());
    if client.len() + server.len() + 3 <= width {
        return format!("{client} → {server}");
    }
    let half = width.saturating_sub(3) / 2;
    format!("{} → {}", shortened(&client, half), shortened(&server, half))
}

/// A text with an ellipsis in place of its middle, if it is longer than `width` characters.
fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.into();
    }
    let (head, tail) = (width / 2, width.saturating_sub(width / 2 + 1));
    let all: Vec<char> = text.chars().collect();
    all[..head].iter().chain(&['…']).chain(&all[all.len() - tail..]).collect()
}

/// The lines about the selected flow.
fn leg_lines(watched: &WatchedFlow) -> Vec<String> {
    let flow = &watched.flow;
    let of_leg = |name: &str, leg: &LegView| match table::bond_of(leg, watched) {
        Some(bond) => table::networks(bond, &watched.networks_bps).into_iter().map(|line| format!("{name}: {line}")).collect(),
        None => vec![format!("{name}: {}, delivers {}", table::tcp_leg(leg), rate(leg.delivery_bps))],
    };
    let direction = |name: &str, direction: &proxy::DirectionView, bps: Option<f64>| {
        format!(
            "{name}: {}, {} carried, {} held, {}, limited by {}",
            rate_or_dash(bps),
            bytes(direction.bytes),
            table::held(direction),
            phase(direction),
            limiter_name(direction.limited_by)
        )
    };
    let mut lines = of_leg("near leg", &flow.near);
    lines.extend(of_leg("far leg", &flow.far));
    for (name, of, bps) in [("up", &flow.up, watched.up_bps), ("down", &flow.down, watched.down_bps)] {
        lines.push(direction(name, of, bps));
        lines.extend(of.account.as_ref().filter(|_| of.bytes > 0).map(|account| format!("{name}: {account}")));
    }
    lines
}

/// Rows that the legs of the selected flow need: frame, text and curve.
fn legs_height(state: &TopState) -> u16 {
    state.selected_flow().map_or(3, |watched| leg_lines(watched).len() as u16 + CURVE_ROWS + 3)
}

fn draw_legs(state: &TopState, frame: &mut Frame<'_>, area: Rect) {
    let Some(watched) = state.selected_flow() else {
        let ended = Block::new().borders(Borders::TOP).title("the flow has ended; choose another one with the arrow keys");
        return frame.render_widget(ended, area);
    };
    let title = format!("{} → {}, {}", watched.flow.client, watched.flow.server, age(watched.flow.age_s));
    let block = Block::new().borders(Borders::TOP).title(title);
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let lines: Vec<Line<'_>> = leg_lines(watched).into_iter().map(Line::from).collect();
    let [above, below] = Layout::vertical([Constraint::Length(lines.len() as u16), Constraint::Fill(1)]).areas(inside);
    frame.render_widget(Paragraph::new(lines), above);
    if let Some(curve) = state.curve_of(watched) {
        draw_curve(curve, "this flow", frame, below);
    }
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    const KEYS: [(&str, &str); 9] = [
        ("↑ ↓, k j", "select a flow"),
        ("PgUp PgDn Home End", "ten flows up or down, the first, the last"),
        ("Enter", "both legs of the selected flow, or close them"),
        ("s", "sort by the next quantity"),
        ("/", "write a filter"),
        ("Esc", "close what is open, or remove the filter"),
        ("p, Space", "pause and go on"),
        ("?, h", "these keys"),
        ("q, Ctrl-C", "end"),
    ];
    let mut lines: Vec<Line<'_>> = KEYS.iter().map(|(keys, what)| Line::from(format!("{keys:<20}{what}"))).collect();
    lines.push(Line::default());
    lines.push(Line::from(
        "A filter is a row of words, all of which a flow must meet: 192.0.2.0/24, :443, limited-by=far-leg, phase=backpressure, \
         control=cubic, or a part of an address.",
    ));
    lines.push(Line::from("Rates are those since the sample before. The direction that carries more has the limit and the phase."));
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: true }), area);
}

fn draw_foot(state: &TopState, frame: &mut Frame<'_>, area: Rect) {
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    if let Some(line) = &state.filter_line {
        let mut spans = vec![Span::styled(" filter ", reversed), Span::from(format!(" {}_", line.text))];
        let what = line.error.clone().unwrap_or_else(|| "Enter applies, Esc leaves".into());
        let color = if line.error.is_some() { Color::Red } else { Color::DarkGray };
        spans.push(Span::styled(format!("  {what}"), Style::new().fg(color)));
        return frame.render_widget(Line::from(spans), area);
    }
    let mut keys =
        vec![("q", "end".to_owned()), ("s", format!("by {}", state.options.order)), ("/", "filter".into()), ("⏎", "legs".into())];
    keys.extend([("p", if state.paused { "go on".to_owned() } else { "pause".into() }), ("?", "keys".into())]);
    let mut spans: Vec<Span<'_>> =
        keys.into_iter().flat_map(|(key, what)| [Span::styled(format!(" {key} "), reversed), Span::from(format!(" {what}  "))]).collect();
    if !state.options.filter.is_empty() {
        spans.push(Span::styled(
            format!("{} of {}: {}", state.shown.len(), state.all_flows().len(), state.options.filter_text),
            Style::new().fg(Color::Yellow),
        ));
    }
    frame.render_widget(Line::from(spans), area);
}

#[cfg(test)]
mod tests {
    use super::{super::TopOptions, *};
    use crate::{FlowFilter, FlowOrder, text::example_flow};
    use proxy::control::ProxyStatus;
    use ratatui::{
        Terminal,
        backend::TestBackend,
        crossterm::event::{KeyCode, KeyEvent},
    };
    use std::time::Duration;
    use units::Span;

    fn options() -> TopOptions {
        TopOptions {
            name: "default".into(),
            every: Span(1_000_000_000),
            order: FlowOrder::default(),
            filter: FlowFilter::default(),
            filter_text: String::new(),
        }
    }

    fn status() -> ProxyStatus {
        serde_json::from_value(serde_json::json!({
            "totals": { "flows": 2, "ended": [5, 0, 0, 0, 0, 0, 0, 0, 0], "up": 1000, "down": 2_000_000, "near_retransmits": 0, "far_retransmits": 0 },
            "counted": null,
        }))
        .unwrap()
    }

    /// Two flows, one of which carries 12 Mbit/s, after two samples.
    fn state() -> TopState {
        let (mut state, start) = (TopState::new(options()), Instant::now());
        let mut fast = example_flow("192.168.100.200:54321", "203.0.113.200:443");
        let mut slow = example_flow("[2001:db8:0:1:0:0:0:1]:40000", "[2001:db8:0:2:ffff:ffff:ffff:ffff]:443");
        slow.down.limited_by = Limiter::Receiver;
        state.take(start, Ok((vec![slow.clone(), fast.clone()], status())));
        fast.down.bytes += 1_500_000;
        slow.down.bytes += 1_000;
        state.take(start + Duration::from_secs(1), Ok((vec![slow, fast], status())));
        state
    }

    fn screen(state: &mut TopState, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(state, frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let row = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(row).collect::<Vec<_>>().join("\n")
    }

    fn press(state: &mut TopState, code: KeyCode) {
        state.press(KeyEvent::from(code));
    }

    #[test]
    fn the_list_fits_80_columns() {
        insta::assert_snapshot!(screen(&mut state(), 80, 12), @r"
         tandem top: default                                                   every 1s
        2 flows, 0bit/s up, 12.0Mbit/s down; 5 ended; carried 1kB up, 2MB down
        limited by far leg 1 (100 % of the rate), receiver 1 (0 % of the rate)
        client → server                                       up       down limited by
        192.168.100.200:54321 → 203.0.113.200:443         0bit/s 12.0Mbit/s far leg
        [2001:db8:…::1]:40000 → [2001:db8:…:ffff]:443     0bit/s 8.00kbit/s receiver





         q  end   s  by rate   /  filter   ⏎  legs   p  pause   ?  keys
        ");
    }

    #[test]
    fn a_wide_terminal_has_more_columns() {
        insta::assert_snapshot!(screen(&mut state(), 160, 26), @r"
         tandem top: default                                                                                                                                   every 1s
        2 flows, 0bit/s up, 12.0Mbit/s down; 5 ended; carried 1kB up, 2MB down
        limited by far leg 1 (100 % of the rate), receiver 1 (0 % of the rate)
        all flows, up to 12.0Mbit/s
                                                                                                                                                                       █
                                                                                                                                                                       █
                                                                                                                                                                       █
        client → server                                                      up       down limited by      held  far RTT near RTT  retrans     age    bytes phase
        192.168.100.200:54321 → 203.0.113.200:443                        0bit/s 12.0Mbit/s far leg        500kB  600.1ms  600.1ms       24   12.3s    4.5MB backpressure
        [2001:db8:0:1::1]:40000 → [2001:db8:0:2:…fff:ffff]:443           0bit/s 8.00kbit/s receiver       500kB  600.1ms  600.1ms       24   12.3s      3MB backpressure















         q  end   s  by rate   /  filter   ⏎  legs   p  pause   ?  keys
        ");
    }

    #[test]
    fn enter_shows_the_legs_of_the_selected_flow() {
        let mut state = state();
        press(&mut state, KeyCode::Enter);
        insta::assert_snapshot!(screen(&mut state, 80, 24), @r"
         tandem top: default                                                   every 1s
        2 flows, 0bit/s up, 12.0Mbit/s down; 5 ended; carried 1kB up, 2MB down
        limited by far leg 1 (100 % of the rate), receiver 1 (0 % of the rate)
        all flows, up to 12.0Mbit/s
                                                                                       █
                                                                                       █
                                                                                       █
        client → server                                       up       down limited by
        192.168.100.200:54321 → 203.0.113.200:443         0bit/s 12.0Mbit/s far leg
        [2001:db8:…::1]:40000 → [2001:db8:…:ffff]:443     0bit/s 8.00kbit/s receiver



        192.168.100.200:54321 → 203.0.113.200:443, 12.3s────────────────────────────────
        near leg: cubic 600.1/599.3ms cwnd 700/350 retrans 12, delivers 8.20Mbit/s
        far leg: td_share 600.1/599.3ms cwnd 700/350 retrans 12, delivers 8.20Mbit/s
        up: 0bit/s, 77B carried, 250kB held, backpressure, limited by proxy buffer
        down: 12.0Mbit/s, 4.5MB carried, 250kB held, backpressure, limited by far leg
        this flow, up to 12.0Mbit/s
                                                                                       █
                                                                                       █
                                                                                       █
                                                                                       █
         q  end   s  by rate   /  filter   ⏎  legs   p  pause   ?  keys
        ");
    }

    #[test]
    fn the_filter_is_checked_before_it_applies() {
        let mut state = state();
        press(&mut state, KeyCode::Char('/'));
        "limited-by=moon".chars().for_each(|key| press(&mut state, KeyCode::Char(key)));
        press(&mut state, KeyCode::Enter);
        assert!(screen(&mut state, 160, 12).contains("use one of sender, near-leg"));
        assert_eq!(state.shown.len(), 2);
        "moon".chars().for_each(|_| press(&mut state, KeyCode::Backspace));
        "receiver".chars().for_each(|key| press(&mut state, KeyCode::Char(key)));
        press(&mut state, KeyCode::Enter);
        assert!(screen(&mut state, 160, 12).contains("1 of 2: limited-by=receiver"));
        press(&mut state, KeyCode::Esc);
        assert_eq!(state.shown.len(), 2);
    }

    #[test]
    fn a_proxy_that_does_not_answer_leaves_the_last_list() {
        let mut state = state();
        state.take(Instant::now(), Err("no proxy named \"default\" runs".into()));
        let text = screen(&mut state, 80, 12);
        assert!(text.contains("no answer for") && text.contains("asking again") && text.contains("203.0.113.200:443"), "{text}");
        state.take(Instant::now(), Ok((Vec::new(), status())));
        assert!(screen(&mut state, 80, 12).contains("no flows"));
    }

    #[test]
    fn the_selection_follows_its_flow() {
        let mut state = state();
        press(&mut state, KeyCode::End);
        let before = state.selected_flow().unwrap().flow.client;
        press(&mut state, KeyCode::Char('s'));
        press(&mut state, KeyCode::Char('s'));
        assert_eq!(state.selected_flow().unwrap().flow.client, before);
        state.take(Instant::now(), Ok((Vec::new(), status())));
        assert!(state.selected_flow().is_none());
    }

    #[test]
    fn long_addresses_lose_their_middle() {
        assert_eq!(shortened("[2001:db8::1]:443", 9), "[200…:443");
        assert_eq!(shortened("10.0.0.1:1", 10), "10.0.0.1:1");
    }
}
