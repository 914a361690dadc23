//! Clients that have not said yet where they go, and the order of their arrival.

use crate::{config::Listen, greeting::Greeting};
use socket2::Socket;
use std::{collections::VecDeque, net::SocketAddr, time::Instant};

/// A client that has not said yet where it goes.
#[derive(Debug)]
pub(super) struct PendingClient {
    pub(super) socket: Socket,
    pub(super) client: SocketAddr,
    pub(super) greeting: Greeting,
    /// What the configuration says of the listener that it came to.
    pub(super) listen: Listen,
    /// Tells it from an earlier client in the same slot.
    pub(super) serial: u64,
}

/// The slots of pending clients in the order of arrival, so that those that take too long are found
/// without a look at the others.
#[derive(Debug, Default)]
pub(super) struct PendingQueue {
    /// Slot, serial number and time of arrival. Those of clients that are pending no longer stay
    /// until they are passed over.
    arrivals: VecDeque<(usize, u64, Instant)>,
    count: usize,
}

impl PendingQueue {
    /// Whether no client is pending.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Puts a client in the queue. `is_pending` tells whether the client of a slot still is the one
    /// with this serial number.
    pub(super) fn push(&mut self, (slot, serial, since): (usize, u64, Instant), is_pending: impl Fn(usize, u64) -> bool) {
        // Clients that are pending no longer keep their place behind a silent one; at most half of
        // the places are such.
        if self.arrivals.len() > 2 * self.count + 64 {
            self.arrivals.retain(|(slot, serial, _)| is_pending(*slot, *serial));
        }
        self.arrivals.push_back((slot, serial, since));
        self.count += 1;
    }

    /// To be called when a client is pending no longer.
    pub(super) fn remove_one(&mut self) {
        self.count -= 1;
    }

    /// The slot of a client that arrived before `since`; none: all have arrived later.
    pub(super) fn late(&mut self, since: Instant, is_pending: impl Fn(usize, u64) -> bool) -> Option<usize> {
        while let Some((slot, serial, arrived)) = self.arrivals.front().copied() {
            if !is_pending(slot, serial) {
                self.arrivals.pop_front();
            } else if arrived >= since {
                return None;
            } else {
                return Some(slot);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::HashMap, time::Duration};

    #[test]
    fn only_those_who_are_still_silent_are_late() {
        let begun = Instant::now();
        let (mut queue, mut pending) = (PendingQueue::default(), HashMap::new());
        let at = |seconds| begun + Duration::from_secs(seconds);
        let come = |queue: &mut PendingQueue, pending: &mut HashMap<usize, u64>, slot, serial| {
            queue.push((slot, serial, at(serial)), |slot, serial| pending.get(&slot) == Some(&serial));
            pending.insert(slot, serial);
        };
        let late = |queue: &mut PendingQueue, pending: &HashMap<usize, u64>, since| {
            queue.late(since, |slot, serial| pending.get(&slot) == Some(&serial))
        };
        come(&mut queue, &mut pending, 0, 0);
        // One that goes on at once, again and again, in the same slot.
        for serial in 1..1000 {
            come(&mut queue, &mut pending, 1, serial);
            pending.remove(&1);
            queue.remove_one();
        }
        assert!(queue.arrivals.len() <= 70, "{}", queue.arrivals.len());
        come(&mut queue, &mut pending, 1, 1000);
        assert_eq!(late(&mut queue, &pending, at(0)), None);
        assert_eq!(late(&mut queue, &pending, at(1)), Some(0));
        pending.remove(&0);
        queue.remove_one();
        assert_eq!(late(&mut queue, &pending, at(1000)), None);
        assert_eq!(late(&mut queue, &pending, at(1001)), Some(1));
        pending.remove(&1);
        queue.remove_one();
        assert_eq!((late(&mut queue, &pending, at(2000)), queue.arrivals.len()), (None, 0));
        assert!(queue.is_empty());
    }
}
