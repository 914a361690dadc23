//! The memory that B of all directions of an event loop may take together.

use crate::buffer_law::START;

/// How much every B together exceeds the value at which it starts, and the limit of that, bytes.
///
/// B is a bound, not memory in use, and most connections stay below the start. Only what was
/// granted beyond it is counted.
#[derive(Debug, Clone, Copy, Default)]
pub struct BufferBudget {
    limit: Option<u64>,
    granted: u64,
}

impl BufferBudget {
    /// Sets the limit; none: there is no limit. What was granted before stays granted.
    pub fn set_limit(&mut self, limit: Option<u64>) {
        self.limit = limit;
    }

    /// How much this B may grow now, bytes.
    pub(crate) fn spare(&self, buffer: u64) -> u64 {
        self.limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.granted) + START.saturating_sub(buffer))
    }

    /// A B has changed.
    pub(crate) fn change(&mut self, before: u64, now: u64) {
        let beyond = |buffer: u64| buffer.saturating_sub(START);
        self.granted = (self.granted + beyond(now)).saturating_sub(beyond(before));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_granted_is_bounded_and_comes_back() {
        let mut budget = BufferBudget::default();
        assert_eq!(budget.spare(START), u64::MAX);
        budget.set_limit(Some(1 << 20));
        budget.change(START, 3 * START);
        assert_eq!(budget.spare(START), (1 << 20) - 2 * START);
        // Below the start nothing is granted, and nothing given back.
        budget.change(START, START / 4);
        budget.change(START / 4, START);
        assert_eq!(budget.spare(START), (1 << 20) - 2 * START);
        budget.change(3 * START, START);
        assert_eq!(budget.spare(START), 1 << 20);
    }
}
