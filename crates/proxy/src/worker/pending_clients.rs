//! Clients whose greeting is not complete yet, in the order of their arrival.

use crate::{config::ListenerConfig, greeting::Greeting};
use socket2::Socket;
use std::{collections::VecDeque, net::SocketAddr, time::Instant};

/// A client whose greeting is not complete yet.
#[derive(Debug)]
pub(super) struct PendingClient {
    pub(super) socket: Socket,
    pub(super) client: SocketAddr,
    pub(super) greeting: Greeting,
    /// Configuration of the listener that accepted it.
    pub(super) listen: ListenerConfig,
    /// Distinguishes it from earlier clients in the same slot.
    pub(super) serial: u64,
}

/// The slots of pending clients in the order of arrival, which finds late clients without a scan.
///
/// The caller calls [`push`](Self::push) when a client arrives and [`remove_one`](Self::remove_one)
/// when one is not pending any more.
#[derive(Debug, Default)]
pub(super) struct PendingQueue {
    /// Slot, serial number and time of arrival. Entries of clients that are not pending any more
    /// are removed lazily.
    arrivals: VecDeque<(usize, u64, Instant)>,
    /// Number of pending clients.
    count: usize,
}

impl PendingQueue {
    /// Whether no client is pending.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a client. `is_pending` returns whether a slot still has the pending client with this
    /// serial number.
    pub(super) fn push(&mut self, (slot, serial, since): (usize, u64, Instant), is_pending: impl Fn(usize, u64) -> bool) {
        // Stale entries stay in the queue behind a silent client: keep them to half of the queue.
        if self.arrivals.len() > 2 * self.count + 64 {
            self.arrivals.retain(|(slot, serial, _)| is_pending(*slot, *serial));
        }
        self.arrivals.push_back((slot, serial, since));
        self.count += 1;
    }

    /// Notes that a client is not pending any more.
    pub(super) fn remove_one(&mut self) {
        self.count -= 1;
    }

    /// The slot of a pending client that arrived before `since`; none: there is none.
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
    fn only_clients_that_are_still_pending_are_late() {
        let begun = Instant::now();
        let (mut queue, mut pending) = (PendingQueue::default(), HashMap::new());
        let at = |seconds| begun + Duration::from_secs(seconds);
        let arrive = |queue: &mut PendingQueue, pending: &mut HashMap<usize, u64>, slot, serial| {
            queue.push((slot, serial, at(serial)), |slot, serial| pending.get(&slot) == Some(&serial));
            pending.insert(slot, serial);
        };
        let late = |queue: &mut PendingQueue, pending: &HashMap<usize, u64>, since| {
            queue.late(since, |slot, serial| pending.get(&slot) == Some(&serial))
        };
        arrive(&mut queue, &mut pending, 0, 0);
        // Clients that complete their greeting at once, one after the other in the same slot.
        for serial in 1..1000 {
            arrive(&mut queue, &mut pending, 1, serial);
            pending.remove(&1);
            queue.remove_one();
        }
        assert!(queue.arrivals.len() <= 70, "{}", queue.arrivals.len());
        arrive(&mut queue, &mut pending, 1, 1000);
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
