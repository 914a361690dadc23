//! Packets and equations with the same losses: a simulated run from a time on, and the path of the
//! equations from the state of the run at that time. The randomness that both share cancels in
//! their ratio, whose error is therefore far smaller than that of either.

use crate::{embedded, error::PaperError};
use link::Time;
use outcome::Outcome;
use scenario::{Loss, Purpose, Scenario, stream};
use sim::Sim;
use theory::{Aimd, LossBasis, LossRate, TandemModel, TandemState};
use units::PKT;
use units::Phase;

/// Payload of a full packet, bytes.
pub(super) const PAYLOAD: f64 = 1448.0;

/// The scenario in a file under `papers/`, with these changes.
pub(super) fn setting(path: &str, sets: &[String]) -> Result<Scenario, PaperError> {
    Ok(embedded::variants(&format!("papers/{path}"), path, sets.iter())?.remove(0).scenario)
}

/// A simulated run of one endless flow, split at most once, which counts from a time on.
pub(super) struct PairedRun {
    scenario: Scenario,
    seed: u64,
    from_s: f64,
    until_s: f64,
    /// Until it counts.
    before: Outcome,
    /// Until its end: the same packets, and more.
    whole: Outcome,
}

/// The path of the equations over the same time.
pub(super) struct EquationPath {
    /// Packets per second that leave the last leg.
    pub(super) rate: f64,
    /// Shares of time: free, starvation, backpressure.
    pub(super) phases: [f64; 3],
    /// The state at each sample of the run.
    pub(super) states: Vec<TandemState>,
}

impl PairedRun {
    /// Plays the file at `path` under `papers/` with these changes until `until_s`; it counts from
    /// `from_s` on.
    pub(super) fn play(path: &str, sets: &[&str], [from_s, until_s]: [f64; 2], seed: u64) -> Result<PairedRun, PaperError> {
        let to = |end_s: f64| -> Result<(Scenario, Outcome), PaperError> {
            let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).chain([format!("duration={end_s}s")]).collect();
            let scenario = setting(path, &sets)?;
            let wrong = |what: String| PaperError::Wrong { experiment: format!("papers/{path}"), what };
            let (outcome, _) = Sim::default().play(&scenario, seed, &()).map_err(|error| wrong(error.to_string()))?;
            Ok((scenario, outcome))
        };
        let (_, before) = to(from_s)?;
        let (scenario, whole) = to(until_s)?;
        Ok(PairedRun { scenario, seed, from_s, until_s, before, whole })
    }

    /// The increase of a number over the time that counts, per second.
    fn per_s(&self, of: impl Fn(&Outcome) -> f64) -> f64 {
        (of(&self.whole) - of(&self.before)) / (self.until_s - self.from_s)
    }

    /// Packets per second that a leg sent, lost packets and retransmissions included.
    pub(super) fn sent(&self, leg: usize) -> f64 {
        self.per_s(|outcome| outcome.links[leg].packets as f64)
    }

    /// Shares of time: free, starvation, backpressure.
    pub(super) fn phases(&self) -> [f64; 3] {
        let times = |outcome: &Outcome, end_s: f64| {
            let phases = outcome.proxy.as_ref().map(|proxy| proxy.phases).unwrap_or_default();
            [phases.free, phases.starvation, phases.backpressure].map(|share| share * end_s)
        };
        let (before, whole) = (times(&self.before, self.from_s), times(&self.whole, self.until_s));
        [0, 1, 2].map(|phase| (whole[phase] - before[phase]) / (self.until_s - self.from_s))
    }

    /// A series from `from_s` on: `(time, value)`.
    fn curve(outcome: &Outcome, what: &str, leg: Option<usize>, from_s: f64) -> Vec<(f64, f64)> {
        let whose = |whose: &str| match leg {
            Some(leg) => whose == format!("flow 0 leg {}", leg + 1) || (leg == 0 && whose == "flow 0"),
            None => true,
        };
        let found = outcome.series.iter().find(|series| series.what == what && whose(&series.whose));
        found.map_or_else(Vec::new, |found| found.t.iter().copied().zip(found.v.iter().copied()).filter(|(t, _)| *t >= from_s).collect())
    }

    /// The window of a leg at each sample, packets.
    pub(super) fn windows(&self, leg: usize) -> Vec<(f64, f64)> {
        PairedRun::curve(&self.whole, "cwnd", Some(leg), self.from_s)
    }

    /// The proxy's buffer at each sample, packets.
    pub(super) fn held(&self) -> Vec<f64> {
        PairedRun::curve(&self.whole, "held", None, self.from_s).into_iter().map(|(_, bytes)| bytes / PAYLOAD).collect()
    }

    /// The connection in the equations, with the capacities of its links and its buffer. Losses per
    /// packet count sent packets, as in the simulation.
    pub(super) fn equations(&self) -> Result<TandemModel, PaperError> {
        let legs = self.scenario.legs();
        let leg = |at: usize| -> Result<Aimd, PaperError> {
            let losses = match self.scenario.links[at].loss.forward {
                Some(Loss::PerSecond(rate)) => LossRate::PerSecond(rate),
                Some(Loss::PerPacket(rate)) => LossRate::PerPacket(rate),
                other => return Err(self.wrong(format!("the equations have no losses of this kind: {other:?}"))),
            };
            Ok(Aimd::new(self.scenario.base_rtt(legs[at]).secs(), losses)?)
        };
        let capacity = |at: usize| self.scenario.links[at].rate.bits_per_s() as f64 / 8.0 / PKT.0 as f64;
        if legs.len() == 1 {
            return Ok(TandemModel::alone(leg(0)?, capacity(0))?);
        }
        let split = TandemModel::new(leg(0)?, leg(1)?).with_capacities(capacity(0), capacity(1))?.with_loss_basis(LossBasis::Sending);
        Ok(match self.scenario.buffer_limit(0) {
            Some(buffer) => split.with_buffer(buffer.0 as f64 / PKT.0 as f64)?,
            None => split,
        })
    }

    /// The state of the run when it begins to count.
    fn state(&self, split: &TandemModel) -> Result<TandemState, PaperError> {
        let last = |what: &str, leg: Option<usize>| PairedRun::curve(&self.before, what, leg, 0.0).last().map(|(_, value)| *value);
        let [r1, r2] = split.rtts_s();
        let none = || self.wrong("the simulator has no series of windows".into());
        let x = last("cwnd", Some(0)).ok_or_else(none)? / r1;
        if self.scenario.legs().len() == 1 {
            return Ok(TandemState { x, y: split.isolated_means()[1], q: 0.0 });
        }
        Ok(TandemState { x, y: last("cwnd", Some(1)).ok_or_else(none)? / r2, q: last("held", None).ok_or_else(none)? / PAYLOAD })
    }

    /// Solves the equations with the run's losses.
    pub(super) fn follow(&self) -> Result<EquationPath, PaperError> {
        let split = self.equations()?;
        let losses = [0, 1].map(|leg| self.losses(leg));
        let mut path = split.trajectory_with_losses(self.state(&split)?, [&losses[0], &losses[1]]);
        let samples: Vec<f64> = self.windows(0).into_iter().map(|(t, _)| t - self.from_s).collect();
        let mut gone = 0.0;
        let mut sent = 0.0;
        let mut phases = [0.0; 3];
        let mut states = Vec::new();
        while gone < self.until_s - self.from_s {
            let segment = path.step();
            while let Some(sample) = samples.get(states.len()).filter(|sample| **sample < gone + segment.span) {
                states.push(segment.at((sample - gone).max(0.0)));
            }
            gone += segment.span;
            sent += segment.sent;
            phases[match segment.phase {
                Phase::Free => 0,
                Phase::Starvation => 1,
                Phase::Backpressure => 2,
            }] += segment.span;
        }
        Ok(EquationPath { rate: sent / gone, phases: phases.map(|time| time / gone), states })
    }

    /// A leg's losses since the run counts: their times, s, or how many packets came before. More
    /// than the run had, so that the equations reach its end.
    fn losses(&self, leg: usize) -> Vec<f64> {
        /// The time between packets for losses per second, ns: far less than the time between
        /// losses.
        const STEP: u64 = 100_000;
        let Some(loss) = self.scenario.links.get(leg).and_then(|link| link.loss.forward) else { return Vec::new() };
        let mut process = link::LossProcess::new(Some(loss), stream(self.seed, Purpose::Losses, leg as u64));
        let gone = |outcome: &Outcome| (outcome.links[leg].packets - outcome.links[leg].queue_drops) as f64;
        let (unit, from, until) = match loss {
            Loss::PerSecond(_) => (STEP as f64 / 1e9, self.from_s, self.until_s),
            _ => (1.0, gone(&self.before), gone(&self.whole)),
        };
        let packets = (0..).take_while(|number| *number as f64 * unit < 2.0 * until);
        let lost = packets.filter(|number| process.drops(Time(number * STEP)));
        lost.map(|number| number as f64 * unit - from).filter(|at| *at > 0.0).collect()
    }

    fn wrong(&self, what: String) -> PaperError {
        PaperError::Wrong { experiment: self.scenario.name.clone(), what }
    }
}
