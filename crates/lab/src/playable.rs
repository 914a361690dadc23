//! Sorts out the variants that this kernel cannot play for lack of a congestion controller.

use scenario::Variant;

/// Variants that this kernel cannot play, all for the same reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unplayable {
    /// Names of their cases.
    pub cases: Vec<String>,
    /// The reason and its cure.
    pub why: String,
}

/// Splits variants into those whose congestion controllers this kernel has or can load, and those
/// that must be left out. Tandem's own controllers are tried: each is loaded and unloaded again.
pub fn playable(variants: Vec<Variant>) -> (Vec<Variant>, Vec<Unplayable>) {
    let mut playable = Vec::new();
    let mut left_out: Vec<Unplayable> = Vec::new();
    for variant in variants {
        let own = variant.scenario.leg_controls().into_iter().filter_map(kernel::resolve);
        let Some(why) = own.map(try_controller).find_map(Result::err).map(|why| why.to_string()) else {
            playable.push(variant);
            continue;
        };
        match left_out.iter_mut().find(|left| left.why == why) {
            Some(left) => left.cases.push(variant.case),
            None => left_out.push(Unplayable { cases: vec![variant.case], why }),
        }
    }
    (playable, left_out)
}

/// Loads a controller, and the egress monitor if the controller needs it, and unloads both.
fn try_controller(controller: kernel::Controller) -> kernel::Result<()> {
    let _held = kernel::load(controller.name(), &[])?;
    if controller.needs_capacity() { kernel::Monitor::new().map(drop) } else { Ok(()) }
}
