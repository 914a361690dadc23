//! Controllers that routers tell what to do: which routers they need.

use crate::links::QueueKind;

/// A controller that works end to end with routers that take part, as its name says: `xcp-e2e`, `vcp-e2e`, `mpcp-e2e`, and `mpcp3-e2e` whose
/// routers write a level into three packets instead of two; `-keep` at the end: it takes no loss for congestion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explicit {
    /// The routers that tell it.
    pub routers: QueueKind,
    /// Over how many packets a word of theirs goes.
    pub packets: u32,
    /// It keeps its window at a loss.
    pub keeps: bool,
}

impl Explicit {
    /// Their names.
    pub const NAMES: [&str; 8] =
        ["xcp-e2e", "vcp-e2e", "mpcp-e2e", "mpcp3-e2e", "xcp-e2e-keep", "vcp-e2e-keep", "mpcp-e2e-keep", "mpcp3-e2e-keep"];

    /// The one of this name.
    pub fn named(name: &str) -> Option<Explicit> {
        let (name, keeps) = name.strip_suffix("-keep").map_or((name, false), |name| (name, true));
        let (routers, packets) = match name {
            "xcp-e2e" => (QueueKind::Xcp, 1),
            "vcp-e2e" => (QueueKind::Vcp, 1),
            "mpcp-e2e" => (QueueKind::Mpcp, 2),
            "mpcp3-e2e" => (QueueKind::Mpcp, 3),
            _ => return None,
        };
        Some(Explicit { routers, packets, keeps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_is_needed() {
        assert!(Explicit::NAMES.iter().all(|name| Explicit::named(name).is_some()));
        assert_eq!(Explicit::named("mpcp3-e2e-keep"), Some(Explicit { routers: QueueKind::Mpcp, packets: 3, keeps: true }));
        // Those of the proxy need no router, and are others.
        assert!(["xcp", "mpcp", "share", "cubic", "xcp-e2e-", "-keep", ""].iter().all(|name| Explicit::named(name).is_none()));
    }
}
