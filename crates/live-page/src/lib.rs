//! A page that shows a running proxy in a browser: its throughput, what limits its flows, its links
//! and networks, and its flows.
//!
//! The page is a few static files, and a stream of events, one a second, that a script draws. The
//! browser tells in the query of the stream which flows it shows (`view`); the server sorts,
//! filters, and sends these alone. A thread samples the proxy (`sampler`): the totals always, for
//! the `history` of the last hour; the `table` of flows only while a browser is connected. What
//! costs system calls is read for the flows that are shown, and for a few others in turn.

mod files;
mod history;
mod sampler;
mod table;
mod view;

use proxy::Proxy;
use sampler::{Sampler, SamplerCommand};
use std::{
    io,
    sync::{Arc, mpsc},
    thread,
};
use view::View;
use web_server::{PageAnswer, Pages, event_stream};

/// The live page of a proxy. Dropping it ends its thread and closes its streams.
#[derive(Debug)]
pub struct LivePage {
    commands: mpsc::Sender<SamplerCommand>,
    thread: Option<thread::JoinHandle<()>>,
}

impl LivePage {
    /// Begins to sample a proxy. `name` is its name, for the title.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(proxy: &Arc<Proxy>, name: &str) -> io::Result<Self> {
        let (commands, inbox) = mpsc::channel();
        let sampler = Sampler::new(Arc::downgrade(proxy), name);
        let thread = thread::Builder::new().name("tandem-page".into()).spawn(move || sampler.run(&inbox))?;
        Ok(LivePage { commands, thread: Some(thread) })
    }

    /// The page for a web server.
    pub fn pages(&self) -> impl Pages + use<> {
        LivePages(self.commands.clone())
    }
}

impl Drop for LivePage {
    fn drop(&mut self) {
        let _ = self.commands.send(SamplerCommand::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct LivePages(mpsc::Sender<SamplerCommand>);

impl Pages for LivePages {
    fn answer(&self, path: &str, query: &str) -> Option<PageAnswer> {
        if path != "/events" {
            return files::file(path);
        }
        let (sender, events) = event_stream();
        // Fails only while the program ends: the stream then ends at once.
        let _ = self.0.send(SamplerCommand::Show(View::of_query(query), sender));
        Some(PageAnswer::Events(events))
    }
}
