//! Tells proxies the rates of the links that they send into, as these change.

use crate::{LabError, SeriesNetwork};
use scenario::{LinkChanges, Scenario};
use std::{iter::Peekable, time::Duration};

/// The changes of all links of a scenario that are to come.
pub(crate) struct RateChanges(Vec<Peekable<LinkChanges>>);

impl RateChanges {
    pub(crate) fn of(scenario: &Scenario) -> Self {
        RateChanges(scenario.links.iter().map(|link| link.all_changes().peekable()).collect())
    }

    /// Applies to the proxies the latest rates that are due `elapsed` after the clock of the links
    /// has started.
    ///
    /// # Errors
    /// A proxy refuses its new configuration.
    pub(crate) fn apply(&mut self, network: &mut SeriesNetwork, scenario: &Scenario, elapsed: Duration) -> Result<(), LabError> {
        for (index, changes) in self.0.iter_mut().enumerate() {
            let mut latest = None;
            while let Some(change) = changes.next_if(|change| change.at.duration() <= elapsed) {
                latest = change.rate.or(latest);
            }
            if let Some(rate) = latest {
                network.update_link_rate(scenario, index, rate)?;
            }
        }
        Ok(())
    }
}
