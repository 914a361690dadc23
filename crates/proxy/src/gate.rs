//! Opens and shuts the way from the firewall to the proxy: shut, new connections pass unsplit. It
//! has a thread of its own, because the firewall takes its time to answer; workers only send a
//! command.

use crate::{config::Config, failure::Failure};
use intercept::{
    Prefix, Rule,
    rules::{Counted, Installed, RulesError, RulesLost},
};
use std::{
    fs, panic,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// What the gate may be told to do, or asked.
#[derive(Debug)]
pub(crate) enum GateCommand {
    /// A worker has no room for more flows, or has it again.
    Full(bool),
    /// No new connections from now on; answered when none can arrive any more.
    Shut(mpsc::Sender<()>),
    /// Another limit of TCP memory.
    Memory(Option<u64>),
    /// Another policy.
    Policy(Vec<Rule>, mpsc::Sender<Result<(), RulesError>>),
    /// What the firewall has counted.
    Counted(mpsc::Sender<Result<Counted, RulesError>>),
    /// A change of the prefixes that bypass, and what the list then is.
    Bypass(Change, mpsc::Sender<Result<Vec<Prefix>, RulesError>>),
}

/// A change of a list of prefixes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// These too.
    Add(Vec<Prefix>),
    /// Without these.
    Remove(Vec<Prefix>),
    /// None.
    Nothing,
}

/// How often memory is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How often the rules are looked at. Until a loss is noticed, new connections pass unsplit, and
/// packets of split ones may be forwarded instead of delivered.
const CHECK: Duration = Duration::from_millis(100);

/// The thread's work.
pub(crate) struct Gate {
    rules: Installed,
    /// TCP memory above which connections pass unsplit.
    memory_limit: Option<u64>,
    short_of_memory: bool,
    full_workers: usize,
    shut: bool,
}

impl Gate {
    /// Starts it. It ends, and removes the rules, when all senders of commands are gone. When the
    /// rules are lost and cannot be installed again, it reports that to `failures`, and ends.
    pub(crate) fn start(
        rules: Installed,
        memory_limit: Option<u64>,
        notes: mpsc::Receiver<GateCommand>,
        failures: mpsc::Sender<Failure>,
    ) -> std::io::Result<thread::JoinHandle<()>> {
        let gate = Gate { rules, memory_limit, short_of_memory: false, full_workers: 0, shut: false };
        thread::Builder::new().name("tandem-gate".into()).spawn(move || {
            // After a panic the rules are gone with the gate: connections pass unsplit.
            let failure = match panic::catch_unwind(panic::AssertUnwindSafe(|| gate.run(&notes))) {
                Ok(Ok(())) => return,
                Ok(Err(error)) => Failure::Rules(error),
                Err(_) => Failure::Gate,
            };
            let _ = failures.send(failure);
        })
    }

    fn run(mut self, notes: &mpsc::Receiver<GateCommand>) -> Result<(), RulesLost> {
        let (mut looked, mut checked) = (Instant::now(), Instant::now());
        loop {
            match notes.recv_timeout(CHECK.saturating_sub(checked.elapsed())) {
                Ok(note) => self.handle(note),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(()),
            }
            if checked.elapsed() >= CHECK {
                // What could not be changed while the rules were lost is changed now.
                if self.rules.check()? {
                    self.turn();
                }
                checked = Instant::now();
            }
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                self.look_at_memory();
                self.rules.settle();
            }
        }
    }

    fn handle(&mut self, note: GateCommand) {
        // The asking thread may be gone; then nobody needs the answer.
        match note {
            GateCommand::Full(true) => self.full_workers += 1,
            GateCommand::Full(false) => self.full_workers = self.full_workers.saturating_sub(1),
            GateCommand::Shut(done) => {
                self.shut = true;
                self.turn();
                let _ = done.send(());
                return;
            }
            GateCommand::Memory(limit) => {
                self.memory_limit = limit;
                return;
            }
            GateCommand::Policy(policy, answer) => return drop(answer.send(self.rules.set_policy(policy))),
            GateCommand::Counted(answer) => return drop(answer.send(self.rules.counted())),
            GateCommand::Bypass(change, answer) => return drop(answer.send(self.change_bypass(change))),
        }
        self.turn();
    }

    fn change_bypass(&mut self, change: Change) -> Result<Vec<Prefix>, RulesError> {
        let mut list = self.rules.bypass().to_vec();
        match change {
            Change::Add(more) => more.into_iter().for_each(|prefix| {
                if !list.contains(&prefix) {
                    list.push(prefix);
                }
            }),
            Change::Remove(gone) => list.retain(|prefix| !gone.contains(prefix)),
            Change::Nothing => return Ok(list),
        }
        self.rules.set_bypass(list.clone())?;
        Ok(list)
    }

    fn look_at_memory(&mut self) {
        // Hysteresis: open again only when there is some room.
        let short = self
            .memory_limit
            .zip(tcp_memory())
            .is_some_and(|(limit, used)| used > if self.short_of_memory { limit / 16 * 15 } else { limit });
        if short != self.short_of_memory {
            self.short_of_memory = short;
            self.turn();
        }
    }

    fn turn(&mut self) {
        let open = !self.shut && self.full_workers == 0 && !self.short_of_memory;
        match self.rules.set_open(open) {
            Ok(true) if self.shut => {}
            Ok(true) if open => tracing::info!("room again: new connections are split"),
            Ok(true) if self.short_of_memory => tracing::warn!("TCP memory is short: new connections pass unsplit"),
            Ok(true) => tracing::warn!("as many flows as there is room for: new connections pass unsplit"),
            Ok(false) => {}
            Err(error) => tracing::error!("cannot open or shut the way to the proxy: {error}"),
        }
    }
}

/// TCP memory in use on this host, in bytes: of all its network namespaces, as the kernel accounts
/// it.
pub(crate) fn tcp_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/net/sockstat").ok()?;
    let words: Vec<&str> = text.lines().find(|line| line.starts_with("TCP:"))?.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "mem")?;
    Some(words.get(at + 1)?.parse::<u64>().ok()? * page())
}

/// The TCP memory above which connections are to pass unsplit.
pub(crate) fn memory_limit(config: &Config) -> Option<u64> {
    config.memory.map(|bytes| bytes.0).or_else(memory_pressure)
}

/// Where the kernel itself begins to save TCP memory.
fn memory_pressure() -> Option<u64> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/tcp_mem").ok()?;
    Some(text.split_whitespace().nth(1)?.parse::<u64>().ok()? * page())
}

fn page() -> u64 {
    rustix::param::page_size() as u64
}
