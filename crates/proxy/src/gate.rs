//! The gate between the firewall and the proxy. While it is open, the firewall's rules deliver new
//! connections to the proxy; while it is shut, new connections are forwarded unsplit. Connections
//! that the bond cannot carry pass it in no case. It has a thread of its own, because changing the
//! rules blocks; workers only send commands.

use crate::failure::ProxyFailure;
use intercept::{
    Carried, ExperimentShare, Prefix, Rule,
    rules::{Counted, Installed, RulesError, RulesHandover, RulesLost},
};
use rustix::fd::OwnedFd;
use std::{
    collections::BTreeMap,
    io, panic,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// A command to the gate's thread.
#[derive(Debug)]
pub(crate) enum GateCommand {
    /// A worker has reached its soft limit (true), or is below it again (false).
    Full(bool),
    /// What the carrier of this worker can carry: other connections for it pass unsplit.
    Carried(usize, Carried),
    /// Shut for good. The reply follows when no new connection can arrive any more.
    Shut(mpsc::Sender<()>),
    /// Memory is short (true), or no longer.
    ShortOfMemory(bool),
    /// Replace the policy's rules.
    Policy(Vec<Rule>, mpsc::Sender<Result<(), RulesError>>),
    /// Change the experiment: a new key if its share is another. The answer says whether it has
    /// changed.
    Experiment(Option<ExperimentShare>, mpsc::Sender<Result<bool, RulesError>>),
    /// Report the firewall's counters.
    Counted(mpsc::Sender<Result<Counted, RulesError>>),
    /// Change the prefixes that bypass, and report the resulting list.
    Bypass(BypassChange, mpsc::Sender<Result<Vec<Prefix>, RulesError>>),
    /// Hand the rules over to another process, and leave them alone until the decision. If its
    /// sender is dropped, the decision is to resume.
    HandOver(mpsc::Sender<io::Result<HandedRules>>, mpsc::Receiver<HandoverDecision>),
    /// The rules, which were taken over, belong to this process from now on.
    Keep,
}

/// The rules on their way to another process.
pub(crate) type HandedRules = (RulesHandover, Vec<OwnedFd>);

/// What becomes of rules that were handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandoverDecision {
    /// They belong to the other process.
    Leave,
    /// The other process has failed: they stay with this one.
    Resume,
}

/// A change of the prefixes whose connections bypass the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BypassChange {
    /// Adds these prefixes; those that are listed already stay.
    Add(Vec<Prefix>),
    /// Removes these prefixes.
    Remove(Vec<Prefix>),
    /// Changes nothing, to read the list.
    Nothing,
}

/// How often rules that have changed are looked after.
const SETTLE_CHECK: Duration = Duration::from_secs(1);
/// How often the rules are checked for loss. Until a loss is noticed, new connections pass unsplit,
/// and packets of split ones may be forwarded instead of delivered.
const RULES_CHECK: Duration = Duration::from_millis(100);

/// The state of the gate's thread.
pub(crate) struct Gate {
    /// None: another process has them.
    rules: Option<Installed>,
    short_of_memory: bool,
    /// How many workers are at their soft limit.
    full_workers: usize,
    /// What the carriers of workers can carry, as far as they have said.
    carried: BTreeMap<usize, Carried>,
    /// Shut for good: the proxy drains or stops.
    shut: bool,
}

impl Gate {
    /// Starts the thread. It ends, and removes the rules, when all senders of commands have been
    /// dropped. When the rules are lost and cannot be installed again, it reports that to
    /// `failures` and ends.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(crate) fn start(
        rules: Installed,
        commands: mpsc::Receiver<GateCommand>,
        failures: mpsc::Sender<ProxyFailure>,
    ) -> std::io::Result<thread::JoinHandle<()>> {
        let gate = Gate { rules: Some(rules), short_of_memory: false, full_workers: 0, carried: BTreeMap::new(), shut: false };
        thread::Builder::new().name("tandem-gate".into()).spawn(move || {
            // A panic drops the gate and removes its rules: connections then pass unsplit.
            let failure = match panic::catch_unwind(panic::AssertUnwindSafe(|| gate.run(&commands))) {
                Ok(Ok(())) => return,
                Ok(Err(error)) => ProxyFailure::Rules(error),
                Err(_) => ProxyFailure::Gate,
            };
            let _ = failures.send(failure);
        })
    }

    fn run(mut self, commands: &mpsc::Receiver<GateCommand>) -> Result<(), RulesLost> {
        let mut settled = Instant::now();
        let mut rules_checked = settled;
        loop {
            match commands.recv_timeout(RULES_CHECK.saturating_sub(rules_checked.elapsed())) {
                Ok(command) => self.handle(command),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(()),
            }
            if rules_checked.elapsed() >= RULES_CHECK {
                // The rules are installed again: apply what could not be changed meanwhile.
                if self.rules.as_mut().map_or(Ok(false), Installed::check)? {
                    self.apply();
                    self.apply_carried();
                }
                rules_checked = Instant::now();
            }
            if settled.elapsed() >= SETTLE_CHECK {
                settled = Instant::now();
                if let Some(rules) = &mut self.rules {
                    rules.settle();
                }
            }
        }
    }

    fn handle(&mut self, command: GateCommand) {
        // Sending a reply fails when the requesting thread has given up.
        match command {
            GateCommand::Full(true) => self.full_workers += 1,
            GateCommand::Full(false) => self.full_workers = self.full_workers.saturating_sub(1),
            GateCommand::Carried(worker, carried) => {
                self.carried.insert(worker, carried);
                return self.apply_carried();
            }
            GateCommand::Shut(done) => {
                self.shut = true;
                self.apply();
                let _ = done.send(());
                return;
            }
            GateCommand::ShortOfMemory(short) => self.short_of_memory = short,
            GateCommand::Policy(policy, answer) => {
                return drop(answer.send(self.rules().and_then(|rules| rules.set_policy(policy))));
            }
            GateCommand::Experiment(share, answer) => {
                return drop(answer.send(self.rules().and_then(|rules| rules.set_experiment(share))));
            }
            GateCommand::Counted(answer) => return drop(answer.send(self.rules().and_then(|rules| rules.counted()))),
            GateCommand::HandOver(answer, decision) => return self.hand_over(&answer, &decision),
            GateCommand::Keep => {
                if let Some(rules) = &mut self.rules {
                    rules.keep();
                }
            }
            GateCommand::Bypass(change, answer) => return drop(answer.send(self.change_bypass(change))),
        }
        self.apply();
    }

    fn rules(&mut self) -> Result<&mut Installed, RulesError> {
        self.rules.as_mut().ok_or_else(|| RulesError::OwnerLost { why: "another process has taken it over".into() })
    }

    /// Hands the rules over, and waits for the decision: two processes must not change them at
    /// once.
    fn hand_over(&mut self, answer: &mpsc::Sender<io::Result<HandedRules>>, decision: &mpsc::Receiver<HandoverDecision>) {
        let handed = self.rules.as_ref().map_or_else(|| Err(io::Error::other("another process has the rules")), Installed::hand_over);
        let succeeded = handed.is_ok();
        let _ = answer.send(handed);
        if !succeeded {
            return;
        }
        match decision.recv().unwrap_or(HandoverDecision::Resume) {
            HandoverDecision::Leave => drop(self.rules.take().map(Installed::leave)),
            HandoverDecision::Resume => {
                if let Some(Err(error)) = self.rules.as_mut().map(Installed::resume) {
                    tracing::error!("cannot go on with the firewall's rules after a takeover that failed: {error}");
                }
            }
        }
    }

    fn change_bypass(&mut self, change: BypassChange) -> Result<Vec<Prefix>, RulesError> {
        let mut list = self.rules()?.bypass().to_vec();
        match change {
            BypassChange::Add(more) => more.into_iter().for_each(|prefix| {
                if !list.contains(&prefix) {
                    list.push(prefix);
                }
            }),
            BypassChange::Remove(gone) => list.retain(|prefix| !gone.contains(prefix)),
            BypassChange::Nothing => return Ok(list),
        }
        self.rules()?.set_bypass(list.clone())?;
        Ok(list)
    }

    /// Has connections pass unsplit that the carrier of a worker cannot carry: which worker would
    /// get them is not known.
    fn apply_carried(&mut self) {
        let all = self.carried.values().fold(Carried::ALL, |all, one| Carried {
            reached: all.reached && one.reached,
            ipv4: all.ipv4 && one.ipv4,
            ipv6: all.ipv6 && one.ipv6,
        });
        if let Some(Err(error)) = self.rules.as_mut().map(|rules| rules.set_carried(all)) {
            tracing::error!("cannot change which connections the bond gets: {error}");
        }
    }

    /// Opens or shuts the gate as the state demands.
    fn apply(&mut self) {
        let open = !self.shut && self.full_workers == 0 && !self.short_of_memory;
        let Some(rules) = &mut self.rules else { return };
        match rules.set_open(open) {
            Ok(true) if self.shut => {}
            Ok(true) if open => tracing::info!("below the limits again: new connections are split"),
            // The budget has logged it.
            Ok(true) if self.short_of_memory => {}
            Ok(true) => tracing::warn!("the limit of flows is reached (max_flows, open files): new connections pass unsplit"),
            Ok(false) => {}
            Err(error) => tracing::error!("cannot change whether new connections are split: {error}"),
        }
    }
}
