//! Jobs that are served at the same rate, by a virtual clock.

use std::{cmp::Ordering, collections::BinaryHeap};

/// Jobs that are served at the same rate.
#[derive(Debug, Default)]
pub(super) struct JobQueue {
    /// Virtual clock: service that a job present from the start would have had.
    pub(super) clock: f64,
    /// Rate of the clock: service of one job, size/s.
    pub(super) rate: f64,
    pub(super) departures: BinaryHeap<Departure>,
    /// Mean size of its jobs.
    pub(super) size: f64,
}

/// Departure of a job by its queue's clock, and the file it belongs to. Ordered so that the
/// earliest is the greatest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Departure {
    pub(super) at: f64,
    file: usize,
}

impl PartialEq for Departure {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Departure {}

impl PartialOrd for Departure {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Departure {
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at)
    }
}

impl JobQueue {
    /// Time until its next departure, if nothing changes, s.
    pub(super) fn time_to_departure(&self) -> f64 {
        match self.departures.peek() {
            // Rounding may put the clock slightly past it.
            Some(end) if self.rate > 0.0 => ((end.at - self.clock) / self.rate).max(0.0),
            _ => f64::INFINITY,
        }
    }

    pub(super) fn add(&mut self, size: f64, file: usize) {
        self.departures.push(Departure { at: self.clock + size, file });
    }

    /// Removes the next departing job; returns its file.
    pub(super) fn pop(&mut self) -> usize {
        /// Largest clock, in mean sizes: its rounding error is then below 10⁻⁹ of a size.
        const MAX_CLOCK: f64 = 1e6;
        let file = self.departures.pop().map_or(0, |end| end.file);
        if self.departures.is_empty() {
            self.clock = 0.0;
        } else if self.clock > MAX_CLOCK * self.size {
            let clock = std::mem::take(&mut self.clock);
            let departures = std::mem::take(&mut self.departures).into_vec();
            self.departures = departures.into_iter().map(|end| Departure { at: end.at - clock, file: end.file }).collect();
        }
        file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_clock_is_reset() {
        let mut queue = JobQueue { clock: 2e6, size: 1.0, ..JobQueue::default() };
        for (size, file) in [(1.5, 1), (0.25, 2), (1.0, 3)] {
            queue.add(size, file);
        }
        assert_eq!(queue.pop(), 2);
        assert_eq!((queue.clock, queue.departures.peek().unwrap().at), (0.0, 1.0));
        assert_eq!((queue.pop(), queue.pop(), queue.departures.len()), (3, 1, 0));
    }
}
