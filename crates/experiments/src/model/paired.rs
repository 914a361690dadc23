//! Packets and equations with the same losses: a simulated run from a time on, and the path of the equations from the state that it is in then.
//! What both share of chance goes out of their ratio, so that it is known far better than either.

use crate::{PaperError, index::PAPERS};
use link::Time;
use outcome::Outcome;
use scenario::{Assignment, Loss, Purpose, Scenario, ScenarioFile, stream};
use sim::Sim;
use theory::{Aimd, LossBasis as Follows, LossProcess as Losses, TandemModel as Split, TandemState as State};
use units::PKT;
use units::Phase;

/// Payload of a full packet.
pub(super) const PAYLOAD: f64 = 1448.0;

/// The scenario in a file under `papers/`, with these changes.
pub(super) fn setting(path: &str, sets: &[String]) -> Result<Scenario, PaperError> {
    let wrong = |what: String| PaperError::Wrong { experiment: format!("papers/{path}"), what };
    let text = PAPERS.get_file(path).and_then(include_dir::File::contents_utf8).ok_or_else(|| wrong("there is no such file".into()))?;
    let sets: Vec<Assignment> = sets.iter().map(|set| set.parse()).collect::<Result<_, String>>().map_err(wrong)?;
    Ok(ScenarioFile::parse(text, path)?.variants(&sets)?.remove(0).scenario)
}

/// A simulated run of one flow without an end, split at most once, of which what comes before a time does not count.
pub(super) struct Run {
    scenario: Scenario,
    seed: u64,
    from_s: f64,
    until_s: f64,
    /// Up to where it counts, and up to its end: the same packets in both.
    before: Outcome,
    whole: Outcome,
}

/// The equations over the same stretch.
pub(super) struct Followed {
    /// Packets a second that leave the last leg.
    pub(super) rate: f64,
    /// Shares of time: free, starvation, backpressure.
    pub(super) phases: [f64; 3],
    /// At the times of the run's looks.
    pub(super) states: Vec<State>,
}

impl Run {
    /// Plays a file under `papers/` with these changes, from 0 to the second of these times (s); what counts begins at the first.
    pub(super) fn play(path: &str, sets: &[&str], [from_s, until_s]: [f64; 2], seed: u64) -> Result<Run, PaperError> {
        let to = |end_s: f64| -> Result<(Scenario, Outcome), PaperError> {
            let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).chain([format!("duration={end_s}s")]).collect();
            let scenario = setting(path, &sets)?;
            let wrong = |what: String| PaperError::Wrong { experiment: format!("papers/{path}"), what };
            let (outcome, _) = Sim::default().play(&scenario, seed, &()).map_err(|error| wrong(error.to_string()))?;
            Ok((scenario, outcome))
        };
        let (_, before) = to(from_s)?;
        let (scenario, whole) = to(until_s)?;
        Ok(Run { scenario, seed, from_s, until_s, before, whole })
    }

    /// Of how much it was at either end, so much a second.
    fn per_s(&self, of: impl Fn(&Outcome) -> f64) -> f64 {
        (of(&self.whole) - of(&self.before)) / (self.until_s - self.from_s)
    }

    /// Packets a second that a leg sent, those that were lost and those sent again among them.
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

    /// A number over time: of the whole run where it counts.
    fn curve(outcome: &Outcome, what: &str, leg: Option<usize>, from_s: f64) -> Vec<(f64, f64)> {
        let whose = |whose: &str| match leg {
            Some(leg) => whose == format!("flow 0 leg {}", leg + 1) || (leg == 0 && whose == "flow 0"),
            None => true,
        };
        let found = outcome.series.iter().find(|series| series.what == what && whose(&series.whose));
        found.map_or_else(Vec::new, |found| found.t.iter().copied().zip(found.v.iter().copied()).filter(|(t, _)| *t >= from_s).collect())
    }

    /// The window of a leg at each look, packets.
    pub(super) fn windows(&self, leg: usize) -> Vec<(f64, f64)> {
        Run::curve(&self.whole, "cwnd", Some(leg), self.from_s)
    }

    /// What the proxy holds at each look, packets.
    pub(super) fn held(&self) -> Vec<f64> {
        Run::curve(&self.whole, "held", None, self.from_s).into_iter().map(|(_, bytes)| bytes / PAYLOAD).collect()
    }

    /// The connection as the equations have it, with what its links carry and its buffer. Losses per packet go by what is sent, as they do there.
    pub(super) fn equations(&self) -> Result<Split, PaperError> {
        let legs = self.scenario.legs();
        let leg = |at: usize| -> Result<Aimd, PaperError> {
            let losses = match self.scenario.links[at].loss {
                Some(Loss::PerSecond(rate)) => Losses::PerSecond(rate),
                Some(Loss::PerPacket(rate)) => Losses::PerPacket(rate),
                other => return Err(self.wrong(format!("losses of another kind on a leg: {other:?}"))),
            };
            Ok(Aimd::new(self.scenario.base_rtt(legs[at]).secs(), losses)?)
        };
        let capacity = |at: usize| self.scenario.links[at].rate.bits_per_s() as f64 / 8.0 / PKT.0 as f64;
        if legs.len() == 1 {
            return Ok(Split::alone(leg(0)?, capacity(0))?);
        }
        let split = Split::new(leg(0)?, leg(1)?).with_capacities(capacity(0), capacity(1))?.with_loss_basis(Follows::Sending);
        Ok(match self.scenario.buffer_limit(0) {
            Some(buffer) => split.with_buffer(buffer.0 as f64 / PKT.0 as f64)?,
            None => split,
        })
    }

    /// Where the run stands when it begins to count, as the equations have it.
    fn state(&self, split: &Split) -> Result<State, PaperError> {
        let last = |what: &str, leg: Option<usize>| Run::curve(&self.before, what, leg, 0.0).last().map(|(_, value)| *value);
        let [r1, r2] = split.rtts_s();
        let none = || self.wrong("the simulator shows no windows".into());
        let x = last("cwnd", Some(0)).ok_or_else(none)? / r1;
        if self.scenario.legs().len() == 1 {
            return Ok(State { x, y: split.isolated_means()[1], q: 0.0 });
        }
        Ok(State { x, y: last("cwnd", Some(1)).ok_or_else(none)? / r2, q: last("held", None).ok_or_else(none)? / PAYLOAD })
    }

    /// Follows the run by the equations, loss by loss.
    pub(super) fn follow(&self) -> Result<Followed, PaperError> {
        let split = self.equations()?;
        let losses = [0, 1].map(|leg| self.losses(leg));
        let mut path = split.trajectory_with_losses(self.state(&split)?, [&losses[0], &losses[1]]);
        let looks: Vec<f64> = self.windows(0).into_iter().map(|(t, _)| t - self.from_s).collect();
        let (mut gone, mut sent, mut phases, mut states) = (0.0, 0.0, [0.0; 3], Vec::new());
        while gone < self.until_s - self.from_s {
            let segment = path.step();
            while let Some(look) = looks.get(states.len()).filter(|look| **look < gone + segment.span) {
                states.push(segment.at((look - gone).max(0.0)));
            }
            gone += segment.span;
            sent += segment.sent;
            phases[match segment.phase {
                Phase::Free => 0,
                Phase::Starvation => 1,
                Phase::Backpressure => 2,
            }] += segment.span;
        }
        Ok(Followed { rate: sent / gone, phases: phases.map(|time| time / gone), states })
    }

    /// A leg's losses since the run counts: when they were, s, or after how many packets. Some more than it had, so that the equations come to its end.
    fn losses(&self, leg: usize) -> Vec<f64> {
        /// From one packet to the next, ns, where losses go by time: far less than a loss waits for one.
        const STEP: u64 = 100_000;
        let Some(loss) = self.scenario.links.get(leg).and_then(|link| link.loss) else { return Vec::new() };
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
