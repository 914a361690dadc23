//! Shared by the tests of this crate.

use control::{Controller, TunedController};

/// Whether `test` must be skipped, because this process may not load programs or the kernel has no
/// BTF.
pub(crate) fn skip(test: &str) -> bool {
    let why = match kernel::load("reno", &[]) {
        Ok(_) => return false,
        Err(why @ (kernel::Error::Privilege | kernel::Error::NoBtf)) => why,
        Err(why) => panic!("{test}: {why}"),
    };
    testing::skipped(test, &why);
    true
}

/// A controller with its defaults, and with each of its tunables at either end of its range.
pub(crate) fn tunings(controller: Controller) -> Vec<TunedController> {
    let at = |name, value| controller.tuned(&[(name, value)]).unwrap();
    let ends = controller.tunables().flat_map(|tunable| [*tunable.range.start(), *tunable.range.end()].map(|end| at(tunable.name, end)));
    let mut all: Vec<TunedController> = std::iter::once(controller.untuned()).chain(ends).collect();
    if controller.name() == "mpcp" {
        all.extend((0..3).map(|law| controller.tuned(&[("law", law), ("rtt_scaling", 1), ("alpha_milli", 2500)]).unwrap()));
    }
    all
}
