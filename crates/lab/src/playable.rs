//! Which variants this kernel can play.

use scenario::Variant;

/// Variants that this kernel cannot play, for the same reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unplayable {
    /// Their cases.
    pub cases: Vec<String>,
    /// The reason and its cure.
    pub why: String,
}

/// The variants whose controllers this kernel has or takes, and those left out. Controllers of
/// Tandem's own are tried: each is loaded and unloaded again.
pub fn playable(variants: Vec<Variant>) -> (Vec<Variant>, Vec<Unplayable>) {
    let mut rest = Vec::new();
    let mut left_out: Vec<Unplayable> = Vec::new();
    for variant in variants {
        let own = variant.scenario.leg_controls().into_iter().filter_map(kernel::resolve);
        let Some(why) = own.map(try_controller).find_map(Result::err).map(|why| why.to_string()) else {
            rest.push(variant);
            continue;
        };
        match left_out.iter_mut().find(|left| left.why == why) {
            Some(left) => left.cases.push(variant.case),
            None => left_out.push(Unplayable { cases: vec![variant.case], why }),
        }
    }
    (rest, left_out)
}

/// Loads a controller, with the egress monitor if it needs that, and unloads it.
fn try_controller(controller: kernel::Controller) -> kernel::Result<()> {
    let _held = kernel::load(controller.name(), &[])?;
    if controller.needs_capacity() { kernel::Monitor::new().map(drop) } else { Ok(()) }
}
