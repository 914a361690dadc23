//! The full-screen view of a running proxy, as `tandem top` shows it.
//!
//! `state` is what the view knows, and what keys do to it; `draw` puts it on the screen. This file
//! connects them with the terminal and the proxy.

mod draw;
mod state;

use crate::{FlowFilter, FlowOrder};
use proxy::{FlowView, control::ProxyStatus};
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyEventKind},
};
use state::{AfterKey, TopState};
use std::{
    io,
    sync::mpsc::{Receiver, TryRecvError, sync_channel},
    thread,
    time::{Duration, Instant},
};
use units::Span;

/// Longest time until the screen shows a key or a sample.
const REACTION: Duration = Duration::from_millis(50);

/// What a proxy answered at one time; an error is its text.
pub type ProxySample = Result<(Vec<FlowView>, ProxyStatus), String>;

/// What is shown, and how often.
#[derive(Debug, Clone)]
pub struct TopOptions {
    /// Name of the proxy, for the head line.
    pub name: String,
    /// Time from sample to sample.
    pub every: Span,
    /// The order of the flows at the start.
    pub order: FlowOrder,
    /// The flows that are shown at the start.
    pub filter: FlowFilter,
    /// The text of `filter`.
    pub filter_text: String,
}

/// Shows the proxy that `ask` asks until the user ends it. `ask` is called from another thread, so
/// that keys work while a proxy does not answer.
///
/// # Errors
/// The terminal cannot be used, or the thread cannot be started.
pub fn run(options: TopOptions, ask: impl FnMut() -> ProxySample + Send + 'static) -> io::Result<()> {
    let samples = sample_in_background(options.every.duration(), ask)?;
    let mut terminal = ratatui::try_init()?;
    let ended = show(&mut terminal, TopState::new(options), &samples);
    ratatui::restore();
    ended
}

/// Starts the thread that asks the proxy. It ends when the receiver is dropped.
fn sample_in_background(
    every: Duration,
    mut ask: impl FnMut() -> ProxySample + Send + 'static,
) -> io::Result<Receiver<(Instant, ProxySample)>> {
    // One sample waits at most: a view that is stopped (Ctrl-Z) shall not find a row of old ones.
    let (sender, receiver) = sync_channel(1);
    thread::Builder::new().name("sampler".into()).spawn(move || {
        loop {
            let begun = Instant::now();
            let sample = ask();
            if sender.send((Instant::now(), sample)).is_err() {
                return;
            }
            thread::sleep(every.saturating_sub(begun.elapsed()));
        }
    })?;
    Ok(receiver)
}

/// Draws, and reacts to keys and samples, until the user ends the view.
fn show(terminal: &mut DefaultTerminal, mut state: TopState, samples: &Receiver<(Instant, ProxySample)>) -> io::Result<()> {
    loop {
        terminal.draw(|frame| draw::draw(&mut state, frame))?;
        loop {
            match samples.try_recv() {
                Ok((at, sample)) => {
                    state.take(at, sample);
                    break;
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return Err(io::Error::other("the thread that asks the proxy has ended")),
            }
            if !event::poll(REACTION)? {
                continue;
            }
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => match state.press(key) {
                    AfterKey::End => return Ok(()),
                    AfterKey::Draw => break,
                },
                Event::Resize(..) => break,
                _ => {}
            }
        }
    }
}
