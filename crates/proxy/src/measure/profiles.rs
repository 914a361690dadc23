//! The numbers of profiles in a worker's measurements. Their names, which the operator chooses,
//! become label values, so that their number is bounded.

use relay::ProfileId;

/// The most profiles that are told apart; further ones are measured together as `other`.
const MOST: usize = 64;
/// The name of profiles beyond [`MOST`].
const OTHER: &str = "other";
/// The name of a bond's leg.
const BOND: &str = "bond";
/// The name of a leg that was never dialled, or whose profile is not known.
const UNKNOWN: &str = "unknown";

/// The numbers of the profiles. A number keeps its meaning while the worker runs: a reload only adds
/// numbers, for names that are new.
#[derive(Debug, Default)]
pub(crate) struct ProfileNumbers {
    names: Vec<String>,
    /// The number of each profile of the present policy, by its index there.
    numbers: Vec<u8>,
}

impl ProfileNumbers {
    /// Takes the names of a policy's profiles, in its order.
    pub(crate) fn set(&mut self, profiles: impl Iterator<Item = String>) {
        self.numbers.clear();
        // The first two are those of the sections [near] and [far].
        let own = ["near", "far"].map(str::to_owned);
        for name in own.into_iter().chain(profiles.skip(2)) {
            let number = self.names.iter().position(|known| *known == name).unwrap_or_else(|| {
                if self.names.len() < MOST {
                    self.names.push(name);
                    self.names.len() - 1
                } else {
                    MOST
                }
            });
            // At most MOST.
            self.numbers.push(number as u8);
        }
    }

    /// The profile with this index in the present policy.
    pub(crate) fn of(&self, index: usize) -> ProfileId {
        self.numbers.get(index).map_or(ProfileId::Unknown, |number| ProfileId::Number(*number))
    }

    /// The name of a profile.
    pub(crate) fn name(&self, profile: ProfileId) -> &str {
        match profile {
            ProfileId::Unknown => UNKNOWN,
            ProfileId::Bond => BOND,
            ProfileId::Number(number) => self.names.get(usize::from(number)).map_or(OTHER, String::as_str),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(names: &[&str], numbers: &mut ProfileNumbers) {
        numbers.set(["near leg", "far leg"].iter().chain(names).map(|name| (*name).to_owned()));
    }

    #[test]
    fn numbers_keep_their_names_when_the_policy_changes() {
        let mut profiles = ProfileNumbers::default();
        numbers(&["sat", "lte"], &mut profiles);
        let (far, sat, lte) = (profiles.of(1), profiles.of(2), profiles.of(3));
        assert_eq!([far, sat, lte].map(|id| profiles.name(id)), ["far", "sat", "lte"]);
        numbers(&["lte", "fibre"], &mut profiles);
        assert_eq!(profiles.of(2), lte);
        assert_eq!([sat, profiles.of(3)].map(|id| profiles.name(id)), ["sat", "fibre"]);
        assert_eq!([ProfileId::Bond, ProfileId::Unknown, profiles.of(9)].map(|id| profiles.name(id)), ["bond", "unknown", "unknown"]);
    }

    #[test]
    fn the_number_of_names_is_bounded() {
        let mut profiles = ProfileNumbers::default();
        let names: Vec<String> = (0..1000).map(|index| format!("leg{index}")).collect();
        numbers(&names.iter().map(String::as_str).collect::<Vec<_>>(), &mut profiles);
        assert_eq!(profiles.name(profiles.of(MOST - 1)), "leg61");
        assert_eq!((profiles.of(MOST), profiles.name(profiles.of(999))), (ProfileId::Number(64), "other"));
    }
}
