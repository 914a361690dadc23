//! A fixed B that begins small: what the windows of all connections admit at first must fit into
//! memory, also where an event loop comes too late to limit them.
//!
//! B begins at [`START`]. Once the direction carries bulk data, it is on trial: B is what it is
//! configured to be, or [`TRIAL`], or as before, by the room that memory has for all directions on
//! trial. Once the destination has acknowledged [`PROVEN`], B is what it is configured to be
//! anyway: the destination takes what comes. A peer that never reads has acknowledged less.
//!
//! Each step comes before the window of the source limits a slow start, which doubles what is in
//! flight in a round trip: a trial begins after 32 KiB, when the window is 64 KiB, and ends after
//! 160 KiB, when it is about 300 KiB.

use crate::{buffer_budget::BufferBudget, buffer_law::START, plain_leg::PlainLeg};
use intercept::leg::Shares;
use std::io;

/// B on trial where memory has no room for more, bytes.
const TRIAL: usize = 4 * START as usize;
/// What the destination has to acknowledge, bytes: more than the receive buffer that a kernel gives
/// to a socket that is not read.
const PROVEN: u64 = 160 * 1024;
/// After how many further bytes it is asked again what the destination has acknowledged.
const AGAIN: u64 = 32 * 1024;

/// How far the B of a direction has risen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BufferRise {
    /// B is what it is configured to be.
    Complete,
    /// B begins small. It rises to so many bytes.
    Small { most: usize },
    /// B is on trial: it was raised to `present` bytes. The destination is asked once so many bytes
    /// have been moved.
    Trial { most: usize, present: usize, asks_at: u64 },
}

impl BufferRise {
    /// To this many bytes; none: B does not rise.
    pub(crate) fn to(most: Option<usize>) -> Self {
        most.map_or(BufferRise::Complete, |most| BufferRise::Small { most })
    }

    /// Takes the next step, if it is due; returns how the new B is divided. To be called for a
    /// direction that carries bulk data, which has `moved` so many bytes.
    ///
    /// # Errors
    /// The destination's.
    pub(crate) fn step(&mut self, moved: u64, destination: &PlainLeg, budget: &mut BufferBudget) -> io::Result<Option<Shares>> {
        match *self {
            BufferRise::Complete => Ok(None),
            BufferRise::Small { most } => {
                // Half of the room stays for directions that need less.
                let has_room =
                    [(most, 2), (most.min(TRIAL), 1)].into_iter().find(|(buffer, part)| budget.begin_trial(extra(*buffer), *part));
                let Some((present, _)) = has_room else { return Ok(None) };
                *self = BufferRise::Trial { most, present, asks_at: PROVEN };
                Ok(Some(Shares::of(present)))
            }
            BufferRise::Trial { asks_at, .. } if moved < asks_at => Ok(None),
            BufferRise::Trial { most, present, .. } => {
                if moved.saturating_sub(destination.unacknowledged()? as u64) < PROVEN {
                    *self = BufferRise::Trial { most, present, asks_at: moved + AGAIN };
                    return Ok(None);
                }
                budget.end_trial(extra(present));
                *self = BufferRise::Complete;
                Ok((most > present).then(|| Shares::of(most)))
            }
        }
    }

    /// To be called when the direction ends.
    pub(crate) fn release(&mut self, budget: &mut BufferBudget) {
        if let BufferRise::Trial { present, .. } = std::mem::replace(self, BufferRise::Complete) {
            budget.end_trial(extra(present));
        }
    }
}

/// What a B on trial takes over that at first, bytes.
fn extra(buffer: usize) -> u64 {
    (buffer as u64).saturating_sub(START)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BufferCap, BufferRoom};
    use intercept::leg::{self, LegProfile};
    use socket2::Socket;
    use std::{
        io::{Read as _, Write as _},
        net::{Ipv4Addr, TcpListener, TcpStream},
        time::{Duration, Instant},
    };

    /// A leg, and its peer.
    fn connect() -> (PlainLeg, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let socket = Socket::from(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        leg::prepare(&socket, None).unwrap();
        (PlainLeg::new(socket, &LegProfile::default(), None), listener.accept().unwrap().0)
    }

    #[test]
    fn b_rises_once_the_destination_takes_what_comes() {
        let (leg, mut peer) = connect();
        let mut budget = BufferBudget::default();
        let room = |for_trials| BufferRoom { for_trials, ..BufferRoom::UNLIMITED };
        // Where memory has room, B is not held back by a destination that takes nothing.
        assert_eq!(BufferRise::to(Some(4 << 20)).step(1, &leg, &mut budget).unwrap(), Some(Shares::of(4 << 20)));
        budget.set_cap(BufferCap::NONE, room(8 << 20));
        let mut rise = BufferRise::to(Some(4 << 20));
        let mut step = |moved: u64, budget: &mut BufferBudget| rise.step(moved, &leg, budget).unwrap().map(|shares| shares.buffer());
        assert_eq!(step(1, &mut budget), Some(TRIAL));
        assert_eq!(step(PROVEN - 1, &mut budget), None);
        // A byte that is not acknowledged: the peer gets none of what was only counted.
        leg.socket().send(&[0; 1000]).unwrap();
        peer.read_exact(&mut [0; 1000]).unwrap();
        let begun = Instant::now();
        let mut moved = PROVEN + 1000;
        let risen = loop {
            if let Some(buffer) = step(moved, &mut budget) {
                break buffer;
            }
            moved += AGAIN;
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(risen, 4 << 20);
        assert_eq!(step(u64::MAX, &mut budget), None);
        assert_eq!(BufferRise::to(None).step(u64::MAX, &leg, &mut budget).unwrap(), None);
    }

    #[test]
    fn a_peer_that_does_not_read_keeps_b_on_trial() {
        let (mut leg, _peer) = connect();
        leg.socket().set_nonblocking(true).unwrap();
        let mut moved = 0;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(300) {
            moved += leg.socket().write(&[0; 16 * 1024]).unwrap_or(0) as u64;
        }
        leg.writable = false;
        assert!(moved > 2 * PROVEN, "{moved} bytes");
        let mut rise = BufferRise::Trial { most: 4 << 20, present: TRIAL, asks_at: 0 };
        assert_eq!(rise.step(moved, &leg, &mut BufferBudget::default()).unwrap(), None);
        assert_eq!(rise, BufferRise::Trial { most: 4 << 20, present: TRIAL, asks_at: moved + AGAIN });
    }

    #[test]
    fn trials_share_what_memory_has_left() {
        let (leg, _peer) = connect();
        let mut budget = BufferBudget::default();
        let extra = extra(TRIAL);
        budget.set_cap(BufferCap::NONE, BufferRoom { for_trials: 5 * extra / 2, ..BufferRoom::UNLIMITED });
        let mut rises = [BufferRise::to(Some(1 << 30)); 3];
        let on_trial = |rises: &mut [BufferRise], budget: &mut BufferBudget| {
            for rise in rises.iter_mut() {
                rise.step(1, &leg, budget).unwrap();
            }
            rises.iter().filter(|rise| matches!(rise, BufferRise::Trial { .. })).count()
        };
        assert_eq!(on_trial(&mut rises, &mut budget), 2);
        // A measurement alone makes no room: queues may fill later.
        budget.measured();
        assert_eq!(on_trial(&mut rises, &mut budget), 2);
        rises[0].release(&mut budget);
        rises[0].release(&mut budget);
        assert_eq!((on_trial(&mut rises, &mut budget), rises[0]), (2, BufferRise::Complete));
    }
}
