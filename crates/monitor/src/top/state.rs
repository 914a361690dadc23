//! What the full-screen view knows, and what keys do to it.

use super::{ProxySample, TopOptions};
use crate::{FlowFilter, RateTracker, WatchedFlow};
use proxy::control::ProxyStatus;
use ratatui::{
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
    widgets::TableState,
};
use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    time::{Duration, Instant},
};

/// Number of samples that a curve has.
const CURVE: usize = 240;
/// Maximum number of flows for which curves are kept.
const MOST_CURVES: usize = 2000;
/// Rows that a page key moves by.
const PAGE: isize = 10;

/// What tells a flow from others that are open.
pub(super) type FlowKey = [SocketAddr; 2];

/// Rates up and down, bit/s, from the oldest sample to the latest.
#[derive(Debug, Clone, Default)]
pub(super) struct RateCurve {
    pub(super) samples: VecDeque<[f64; 2]>,
}

impl RateCurve {
    fn push(&mut self, rates: [f64; 2]) {
        if self.samples.len() == CURVE {
            self.samples.pop_front();
        }
        self.samples.push_back(rates);
    }
}

/// What fills the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Screen {
    /// The list of flows, and with `true` the legs of the selected one below it.
    Flows(bool),
    /// The keys.
    Help,
}

/// What is to be done after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterKey {
    /// The view ends.
    End,
    /// The screen is drawn again.
    Draw,
}

/// A filter that the user writes.
#[derive(Debug, Clone, Default)]
pub(super) struct FilterLine {
    pub(super) text: String,
    /// Why the text is not a filter.
    pub(super) error: Option<String>,
}

/// The state of the view.
#[derive(Debug)]
pub(super) struct TopState {
    pub(super) options: TopOptions,
    tracker: RateTracker,
    /// The latest sample, all flows.
    flows: Vec<WatchedFlow>,
    pub(super) status: Option<ProxyStatus>,
    /// Since when the proxy has not answered, and why; absent while it answers.
    pub(super) unanswered_since: Option<(Instant, String)>,
    /// When the latest answer came.
    last_answer: Option<Instant>,
    /// The flows that the filter accepts, in order.
    pub(super) shown: Vec<WatchedFlow>,
    selected: Option<FlowKey>,
    /// The position of the selected flow, and how far the list is scrolled.
    pub(super) table: TableState,
    pub(super) screen: Screen,
    pub(super) filter_line: Option<FilterLine>,
    pub(super) paused: bool,
    /// All flows together.
    pub(super) total: RateCurve,
    curves: HashMap<FlowKey, RateCurve>,
}

fn key_of(watched: &WatchedFlow) -> FlowKey {
    [watched.flow.client, watched.flow.server]
}

impl TopState {
    pub(super) fn new(options: TopOptions) -> Self {
        TopState {
            options,
            tracker: RateTracker::default(),
            flows: Vec::new(),
            status: None,
            unanswered_since: None,
            last_answer: None,
            shown: Vec::new(),
            selected: None,
            table: TableState::default(),
            screen: Screen::Flows(false),
            filter_line: None,
            paused: false,
            total: RateCurve::default(),
            curves: HashMap::new(),
        }
    }

    /// Takes a sample, unless the view is paused.
    pub(super) fn take(&mut self, at: Instant, sample: ProxySample) {
        if self.paused {
            return;
        }
        match sample {
            Ok((flows, status)) => {
                self.flows = self.tracker.take(flows, at);
                self.status = Some(status);
                self.unanswered_since = None;
                self.last_answer = Some(at);
                self.extend_curves();
                self.arrange();
            }
            Err(why) => {
                let since = self.unanswered_since.take().map_or(at, |(since, _)| since);
                self.unanswered_since = Some((since, why));
            }
        }
    }

    /// How long ago the proxy answered; `None` before its first answer.
    pub(super) fn age_of_answer(&self, now: Instant) -> Option<Duration> {
        self.last_answer.map(|at| now.saturating_duration_since(at))
    }

    /// Sum of all flows, whether they are shown or not: up and down, bit/s.
    pub(super) fn total_rates(&self) -> [f64; 2] {
        let sum = |of: fn(&WatchedFlow) -> Option<f64>| self.flows.iter().filter_map(of).sum();
        [sum(|flow| flow.up_bps), sum(|flow| flow.down_bps)]
    }

    pub(super) fn all_flows(&self) -> &[WatchedFlow] {
        &self.flows
    }

    /// The selected flow, while it is open and shown.
    pub(super) fn selected_flow(&self) -> Option<&WatchedFlow> {
        self.shown.iter().find(|watched| Some(key_of(watched)) == self.selected)
    }

    /// The rates of a flow since the view began, or since it was first seen.
    pub(super) fn curve_of(&self, watched: &WatchedFlow) -> Option<&RateCurve> {
        self.curves.get(&key_of(watched))
    }

    fn extend_curves(&mut self) {
        // The first sample has no rates.
        if !self.flows.is_empty() && self.flows.iter().all(|flow| flow.down_bps.is_none()) {
            return;
        }
        self.total.push(self.total_rates());
        let open: std::collections::HashSet<FlowKey> = self.flows.iter().map(key_of).collect();
        self.curves.retain(|key, _| open.contains(key));
        for watched in &self.flows {
            let (Some(up), Some(down)) = (watched.up_bps, watched.down_bps) else { continue };
            let key = key_of(watched);
            if self.curves.len() < MOST_CURVES || self.curves.contains_key(&key) {
                self.curves.entry(key).or_default().push([up, down]);
            }
        }
    }

    /// Filters and sorts the flows, and finds the selected one again.
    fn arrange(&mut self) {
        self.shown = self.flows.iter().filter(|watched| self.options.filter.accepts(&watched.flow)).cloned().collect();
        self.options.order.sort(&mut self.shown);
        let found = self.shown.iter().position(|watched| Some(key_of(watched)) == self.selected);
        // If it has ended, the flow that now has its place is selected.
        let at = found.or_else(|| self.table.selected().filter(|_| self.selected.is_some()));
        self.select(at);
    }

    /// Selects the flow at a position, or the last one if there are fewer.
    fn select(&mut self, at: Option<usize>) {
        let at = at.and_then(|at| Some(at.min(self.shown.len().checked_sub(1)?)));
        self.table.select(at);
        self.selected = at.map(|at| key_of(&self.shown[at]));
    }

    fn move_by(&mut self, rows: isize) {
        let at = match self.table.selected() {
            Some(at) => at.saturating_add_signed(rows),
            None => 0,
        };
        self.select(Some(at));
    }

    /// Handles a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> AfterKey {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return AfterKey::End;
        }
        if self.filter_line.is_some() {
            self.write_filter(key.code);
            return AfterKey::Draw;
        }
        match key.code {
            KeyCode::Char('q') => return AfterKey::End,
            KeyCode::Esc => self.leave(),
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1),
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1),
            KeyCode::PageUp => self.move_by(-PAGE),
            KeyCode::PageDown => self.move_by(PAGE),
            KeyCode::Home => self.select(Some(0)),
            KeyCode::End => self.select(Some(usize::MAX)),
            KeyCode::Enter => self.show_legs(),
            KeyCode::Char('s') => {
                self.options.order = self.options.order.next();
                self.arrange();
            }
            KeyCode::Char('/') => self.filter_line = Some(FilterLine { text: self.options.filter_text.clone(), error: None }),
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('?' | 'h') => self.screen = if self.screen == Screen::Help { Screen::Flows(false) } else { Screen::Help },
            _ => {}
        }
        AfterKey::Draw
    }

    /// Closes what is open: help, legs, the filter, in this order.
    fn leave(&mut self) {
        match self.screen {
            Screen::Help | Screen::Flows(true) => self.screen = Screen::Flows(false),
            Screen::Flows(false) => self.set_filter(FlowFilter::default(), String::new()),
        }
    }

    fn show_legs(&mut self) {
        self.screen = match self.screen {
            Screen::Flows(legs) => Screen::Flows(!legs),
            Screen::Help => Screen::Flows(false),
        };
        if self.screen == Screen::Flows(true) && self.table.selected().is_none() {
            self.select(Some(0));
        }
    }

    fn set_filter(&mut self, filter: FlowFilter, text: String) {
        (self.options.filter, self.options.filter_text) = (filter, text);
        self.arrange();
    }

    /// Handles a key while the filter is written.
    fn write_filter(&mut self, code: KeyCode) {
        let Some(mut line) = self.filter_line.take() else { return };
        match code {
            KeyCode::Esc => return,
            KeyCode::Enter => match line.text.parse() {
                Ok(filter) => return self.set_filter(filter, line.text),
                Err(error) => line.error = Some(error.to_string()),
            },
            KeyCode::Backspace => {
                line.text.pop();
                line.error = None;
            }
            KeyCode::Char(character) => {
                line.text.push(character);
                line.error = None;
            }
            _ => {}
        }
        self.filter_line = Some(line);
    }
}
