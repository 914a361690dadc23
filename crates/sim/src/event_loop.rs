//! The event loop: advances the clock from event to event until a simulation is over.
//!
//! An event is a packet that a channel delivers, or an entry of the event queue. If both are due at
//! the same time, the packet comes first.

use crate::{event_queue::EventKey, network::SimNetwork};
use outcome::Progress;

/// Number of events between two reports of progress.
const EVENTS_PER_REPORT: u32 = 1 << 20;

/// What the event loop runs.
pub(crate) trait Simulation {
    /// The network with the clock and the event queue.
    fn net(&mut self) -> &mut SimNetwork;

    /// Whether the run is over. The loop asks before each event.
    fn is_over(&self) -> bool;

    /// Takes all packets that a channel has delivered by now ([`SimNetwork::take_arrived`]).
    fn deliver(&mut self, channel: usize);

    /// Handles an entry of the event queue that is due at `at` ns, which is now.
    fn handle_event(&mut self, at: u64, key: EventKey);

    /// The share of a run until `until` ns that is done, 0 to 1.
    fn progress(&self, until: u64) -> f64;
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunEnd {
    /// The simulation was over.
    Finished,
    /// It was not over at the time limit; the clock shows that limit.
    TimeLimit,
    /// It was cancelled.
    Cancelled,
    /// A controller failed ([`SimNetwork::check_controllers`]).
    Failed,
}

/// Runs a simulation until it is over, or until `until` ns.
pub(crate) fn run(simulation: &mut impl Simulation, until: u64, progress: &dyn Progress) -> RunEnd {
    let mut events_until_report = EVENTS_PER_REPORT;
    while !simulation.is_over() {
        let net = simulation.net();
        if net.has_failed_controller() {
            return RunEnd::Failed;
        }
        let (channel, arrival) = net.next_delivery();
        let due = net.events.next_due();
        let next = arrival.min(due);
        if next > until {
            net.now = until;
            return RunEnd::TimeLimit;
        }
        net.now = next;
        net.events_processed += 1;
        if arrival <= due {
            simulation.deliver(channel);
        } else if let Some((at, key)) = net.events.pop() {
            simulation.handle_event(at, key);
        }
        events_until_report -= 1;
        if events_until_report == 0 {
            events_until_report = EVENTS_PER_REPORT;
            progress.at(simulation.progress(until), "simulating");
            if progress.cancelled() {
                return RunEnd::Cancelled;
            }
        }
    }
    RunEnd::Finished
}
