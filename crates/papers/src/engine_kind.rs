//! The engines that an experiment can name.

use serde::Deserialize;
use std::{fmt, str::FromStr};

/// An engine that plays an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineKind {
    /// The equations.
    Theory,
    /// Packets in virtual time.
    Sim,
    /// The slowest segment of a split path, each alone in virtual time.
    Compose,
    /// The real kernel.
    Lab,
}

impl EngineKind {
    const ALL: [EngineKind; 4] = [EngineKind::Theory, EngineKind::Sim, EngineKind::Compose, EngineKind::Lab];

    /// The engine's name, as outcomes have it.
    pub fn name(self) -> &'static str {
        match self {
            EngineKind::Theory => "theory",
            EngineKind::Sim => "sim",
            EngineKind::Compose => "compose",
            EngineKind::Lab => "lab",
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for EngineKind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let there = || EngineKind::ALL.map(EngineKind::name).join(", ");
        EngineKind::ALL
            .into_iter()
            .find(|engine| engine.name() == text)
            .ok_or_else(|| format!("there is no engine {text:?} for papers; there are {}", there()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_engine_is_named_with_the_known_ones() {
        let error = "bound".parse::<EngineKind>().unwrap_err();
        assert!(error.contains("\"bound\"") && error.contains("theory, sim, compose, lab"), "{error}");
    }
}
