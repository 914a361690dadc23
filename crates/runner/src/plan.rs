//! The list of runs.

use outcome::Engine;
use scenario::Variant;

/// One run: an engine plays a variant with a seed.
pub struct PlannedRun<'a> {
    /// The engine.
    pub engine: Box<dyn Engine + Send + 'a>,
    /// The variant.
    pub variant: &'a Variant,
    /// The seed of all random numbers.
    pub seed: u64,
}

/// With which seeds each variant is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeedRange {
    /// The first seed; absent: the variant's own.
    pub first: Option<u64>,
    /// How many, one after the other.
    pub count: u64,
}

/// The order of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunOrder {
    /// All seeds of a variant before the next variant.
    ByVariant,
    /// All variants with one seed before the next seed: what disturbs the machine for a while then
    /// disturbs all variants alike.
    BySeed,
}

/// Every variant with every seed, by the engine that `engine` makes for a variant and a seed.
pub fn plan<'a>(
    variants: &'a [Variant],
    seeds: SeedRange,
    order: RunOrder,
    engine: impl Fn(&Variant, u64) -> Box<dyn Engine + Send>,
) -> Vec<PlannedRun<'a>> {
    let run = |variant: &'a Variant, number: u64| {
        let seed = seeds.first.unwrap_or(variant.scenario.seed) + number;
        PlannedRun { engine: engine(variant, seed), variant, seed }
    };
    match order {
        RunOrder::ByVariant => {
            variants.iter().flat_map(|variant| (0..seeds.count).map(|number| run(variant, number)).collect::<Vec<_>>()).collect()
        }
        RunOrder::BySeed => {
            (0..seeds.count).flat_map(|number| variants.iter().map(|variant| run(variant, number)).collect::<Vec<_>>()).collect()
        }
    }
}
