//! Controllers that take their rate or window from the feedback of routers, and the routers that each
//! needs.

use crate::queue::QueueKind;

/// A controller that works end to end with routers of its kind. Its name is `xcp-e2e`, `vcp-e2e`,
/// `mpcp-e2e`, or `mpcp3-e2e`, whose routers write a load level into three packets instead of two.
/// With the suffix `-keep` it does not take a loss for congestion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explicit {
    /// The kind of routers that it needs.
    pub routers: QueueKind,
    /// Number of packets over which a router's feedback is spread.
    pub feedback_packets: u32,
    /// Whether a loss leaves its window as it is.
    pub ignores_loss: bool,
}

impl Explicit {
    /// All names.
    pub const NAMES: [&str; 8] =
        ["xcp-e2e", "vcp-e2e", "mpcp-e2e", "mpcp3-e2e", "xcp-e2e-keep", "vcp-e2e-keep", "mpcp-e2e-keep", "mpcp3-e2e-keep"];

    /// The controller of this name, if there is one.
    pub fn named(name: &str) -> Option<Explicit> {
        let (name, ignores_loss) = name.strip_suffix("-keep").map_or((name, false), |name| (name, true));
        let (routers, feedback_packets) = match name {
            "xcp-e2e" => (QueueKind::Xcp, 1),
            "vcp-e2e" => (QueueKind::Vcp, 1),
            "mpcp-e2e" => (QueueKind::Mpcp, 2),
            "mpcp3-e2e" => (QueueKind::Mpcp, 3),
            _ => return None,
        };
        Some(Explicit { routers, feedback_packets, ignores_loss })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_is_needed() {
        assert!(Explicit::NAMES.iter().all(|name| Explicit::named(name).is_some()));
        assert_eq!(Explicit::named("mpcp3-e2e-keep"), Some(Explicit { routers: QueueKind::Mpcp, feedback_packets: 3, ignores_loss: true }));
        // The proxy's controllers of similar names need no router.
        assert!(["xcp", "mpcp", "share", "cubic", "xcp-e2e-", "-keep", ""].iter().all(|name| Explicit::named(name).is_none()));
    }
}
