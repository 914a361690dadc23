//! Advice for all that users do over a path.

use super::trials::Trials;
use crate::CommandError;
use advise::{USAGES, UsageAdvice, UsageAdvisor};
use scenario::{Assignment, ReceiveBuffers, Scenario, ScenarioFile};

/// The `[tcp]` table of a scenario that sets these receive buffers.
pub(super) fn receive_buffers(ReceiveBuffers { first, most }: ReceiveBuffers) -> String {
    format!("[tcp]\nreceive_buffers = {{ first = \"{first}\", most = \"{most}\" }}\n")
}

/// Advises on a path: `[[link]]` tables, from the servers to the clients. Only with
/// `knows_capacity` a proxy is told one.
pub(super) fn advise(
    path: &str,
    receivers: ReceiveBuffers,
    (sets, knows_capacity): (&[Assignment], bool),
    trials: &Trials,
) -> Result<UsageAdvice, CommandError> {
    let scenario = |tables: &str| -> Result<Scenario, CommandError> {
        let text = format!("name = \"path\"\n{}{path}{tables}", receive_buffers(receivers));
        let variants = ScenarioFile::parse(&text, "the path").and_then(|file| file.variants(sets));
        Ok(variants.map_err(|error| CommandError::Usage(error.to_string()))?.remove(0).scenario)
    };
    let scenarios = USAGES.iter().map(|usage| scenario(usage.tables)).collect::<Result<Vec<_>, _>>()?;
    let advisor = UsageAdvisor::new(scenarios, knows_capacity).map_err(|why| CommandError::Usage(why.to_string()))?;
    let outcomes = trials.simulate(&advisor.variants())?;
    advisor.advice(&outcomes).map_err(|why| CommandError::CannotTell(why.to_string()))
}
