//! What an engine plays of an experiment, and which engines do so when nobody says.

use crate::Experiment;
use outcome::{Engine, EngineError};
use scenario::Variant;
use serde::Deserialize;
use std::{fmt, str::FromStr};

/// Who plays an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Player {
    /// The equations.
    Theory,
    /// Packets in virtual time.
    Sim,
    /// The real kernel.
    Lab,
}

impl Player {
    const ALL: [Player; 3] = [Player::Theory, Player::Sim, Player::Lab];

    /// The engine's name.
    pub fn name(self) -> &'static str {
        match self {
            Player::Theory => "theory",
            Player::Sim => "sim",
            Player::Lab => "lab",
        }
    }
}

impl fmt::Display for Player {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Player {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let there = || Player::ALL.map(Player::name).join(", ");
        Player::ALL
            .into_iter()
            .find(|player| player.name() == text)
            .ok_or_else(|| format!("there is no engine {text:?} for papers; there are {}", there()))
    }
}

/// What an engine is to play.
#[derive(Debug, Clone)]
pub struct Part {
    /// Which.
    pub player: Player,
    /// The cases, those under other settings after the others.
    pub variants: Vec<Variant>,
    /// With how many seeds.
    pub seeds: u64,
}

impl Part {
    /// Leaves out what `engine` cannot answer as it is written, and tells which cases and why.
    pub fn answerable(mut self, engine: &dyn Engine) -> (Part, Vec<(String, String)>) {
        let mut left_out = Vec::new();
        self.variants.retain(|variant| match engine.can_answer(&variant.scenario) {
            Err(why @ EngineError::CannotAnswer { .. }) => {
                left_out.push((variant.case.clone(), why.to_string()));
                false
            }
            // What is wrong with it otherwise is said by the engine when it is asked.
            _ => true,
        });
        (self, left_out)
    }
}

impl Experiment {
    /// Who plays it when nobody says: all that it names but the lab, which needs root and as long as the scenarios last; the lab where it names no other.
    pub fn players(&self) -> Vec<Player> {
        let quick: Vec<Player> = self.on.iter().copied().filter(|player| *player != Player::Lab).collect();
        if quick.is_empty() { self.on.clone() } else { quick }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Entry, Paper};
    use theory::Theory;

    fn experiment(id: &str) -> (Paper, Experiment) {
        match Paper::find(id).unwrap() {
            (paper, Entry::Experiment(experiment)) => (paper, experiment),
            (_, Entry::Model(_)) => panic!("{id} is an experiment"),
        }
    }

    #[test]
    fn the_lab_plays_by_itself_only_what_nobody_else_does() {
        assert_eq!(experiment("li/fig-3").1.players(), [Player::Lab]);
        assert_eq!(experiment("baccelli/table-19.1").1.players(), [Player::Theory, Player::Sim]);
    }

    #[test]
    fn what_an_engine_cannot_answer_is_left_out_with_its_reason() {
        let (paper, experiment) = experiment("baccelli/table-19.1");
        let part = paper.parts(&experiment, &[Player::Theory]).unwrap().remove(0);
        let all = part.variants.len();
        let (part, left_out) = part.answerable(&Theory);
        assert!(!left_out.is_empty() && left_out.len() + part.variants.len() == all);
        assert!(left_out.iter().any(|(case, why)| case.ends_with(", window") && why.contains("split[1].backpressure")), "{left_out:?}");
        assert!(part.variants.iter().all(|variant| !variant.case.ends_with(", window")));
    }

    /// Two cores do not carry 1 Gbit/s over two links: the lab has a tenth of it, and queues to match.
    #[test]
    fn the_lab_plays_joshis_cases_as_they_stand_and_a_gigabit_at_a_tenth() {
        let paper = crate::papers().unwrap().into_iter().find(|paper| paper.key == "joshi").unwrap();
        let mut tenths = 0;
        for experiment in paper.experiments.iter().filter(|experiment| experiment.on.contains(&Player::Lab)) {
            let parts = paper.parts(experiment, &[Player::Sim, Player::Lab]).unwrap();
            let (sim, lab) = (&parts[0], &parts[1]);
            assert_eq!(lab.variants.len() * (1 + experiment.variations.len()), sim.variants.len(), "{}", experiment.id);
            for (sim, lab) in sim.variants.iter().zip(&lab.variants) {
                assert_eq!(sim.case, lab.case);
                let scale = if sim.scenario.links[0].rate.bits_per_s() == 1_000_000_000 { 10 } else { 1 };
                tenths += u32::from(scale == 10);
                for (index, (there, here)) in sim.scenario.links.iter().zip(&lab.scenario.links).enumerate() {
                    assert_eq!(here.rate.bits_per_s() * scale, there.rate.bits_per_s(), "{}: {}", experiment.id, lab.case);
                    let [there, here] = [&sim.scenario, &lab.scenario].map(|scenario| match scenario.queue_size(index) {
                        units::QueueSize::Bytes(bytes) => bytes.0,
                        other => panic!("{}: {other:?}", experiment.id),
                    });
                    assert_eq!(here * scale, there, "{}: {}", experiment.id, lab.case);
                }
            }
        }
        assert!(tenths > 0);
    }

    #[test]
    fn an_engine_nobody_knows_is_named_with_those_there_are() {
        let error = "bound".parse::<Player>().unwrap_err();
        assert!(error.contains("\"bound\"") && error.contains("theory, sim, lab"), "{error}");
    }
}
