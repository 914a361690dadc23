//! The shares of an account, and their text.

use crate::Cause;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The share of a loss for which a cure is told.
const LARGE: f64 = 0.1;

/// What was lost to a cause.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Lost {
    /// The cause.
    pub to: Cause,
    /// Part of what the link allows, from 0 to 1.
    pub share: f64,
}

/// How much of what the link allows was used, and what the rest was lost to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AccountShares {
    /// Payload that was delivered, as a part of what the link could have carried meanwhile: from 0
    /// to 1. Absent: it is not known what the link could have carried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<f64>,
    /// What the rest was lost to, or what the time went to, the largest part first. With `used`
    /// these add up to 1.
    pub lost: Vec<Lost>,
}

impl AccountShares {
    /// What was lost to a cause, from 0 to 1.
    pub fn lost_to(&self, cause: Cause) -> f64 {
        self.lost.iter().find(|part| part.to == cause).map_or(0.0, |part| part.share)
    }

    /// The largest loss; none if nothing was lost.
    pub fn most(&self) -> Option<Lost> {
        self.lost.first().copied()
    }

    /// What would make the large losses less, a sentence for each.
    pub fn cures(&self) -> impl Iterator<Item = String> + '_ {
        let large = self.lost.iter().filter(|part| part.share >= LARGE);
        large.filter_map(|part| Some(format!("Against {}: {}.", part.to.name(), part.to.cure()?)))
    }

    /// The percentages: of what was used, and of each loss that is at least one.
    pub fn percents(&self) -> (u32, Vec<(Cause, u32)>) {
        let shares: Vec<f64> = std::iter::once(self.used.unwrap_or_default()).chain(self.lost.iter().map(|part| part.share)).collect();
        let whole = percents(&shares);
        let lost = self.lost.iter().zip(&whole[1..]).filter(|(_, percent)| **percent > 0);
        (whole[0], lost.map(|(part, percent)| (part.to, *percent)).collect())
    }
}

impl fmt::Display for AccountShares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (used, lost) = self.percents();
        let lost = lost.iter().map(|(cause, percent)| format!("{} {percent} %", cause.name())).collect::<Vec<_>>().join(", ");
        match self.used {
            Some(_) if lost.is_empty() => write!(f, "{used} % of what the link allows"),
            Some(_) => write!(f, "{used} % of what the link allows; lost to: {lost}"),
            None => write!(f, "of its time: {lost}"),
        }
    }
}

/// These shares, which add up to 1, as whole percentages that add up to 100: the largest remainders
/// are rounded up.
fn percents(shares: &[f64]) -> Vec<u32> {
    let mut whole: Vec<u32> = shares.iter().map(|share| (share * 100.0) as u32).collect();
    let mut order: Vec<usize> = (0..shares.len()).collect();
    let remainder = |at: &usize| (shares[*at] * 100.0).fract();
    order.sort_by(|one, other| remainder(other).total_cmp(&remainder(one)));
    let missing = 100u32.saturating_sub(whole.iter().sum());
    order.iter().take(missing as usize).for_each(|at| whole[*at] += 1);
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_add_up_to_a_hundred() {
        assert_eq!(percents(&[1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0]).iter().sum::<u32>(), 100);
        assert_eq!(percents(&[0.995, 0.005]), [100, 0]);
        assert_eq!(percents(&[0.623, 0.374, 0.003]), [62, 38, 0]);
        assert_eq!(percents(&[1.0]), [100]);
    }
}
