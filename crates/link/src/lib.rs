//! What a link does to packets.
//!
//! A stage is a queue: packets are put in, and each comes out at its time. Stages compose: [`Way`] is one direction of a
//! scenario's link, a [`Shaper`] (drop-tail queue and rate), then [`Losses`], then a [`Delay`]. Time and randomness are
//! arguments, so that the simulator and the real-time emulator use the same stages. A stage tells the exact time at which
//! each packet left it, so that a caller who looks late loses neither rate nor order. What packets are is left to the
//! caller.

mod delay;
mod link_direction;
mod loss_process;
mod shaper;
mod time;
mod timing_wheel;

pub use delay::Delay;
pub use link_direction::{Counts, Way};
pub use loss_process::{Losses, mean_loss};
pub use shaper::Shaper;
pub use time::Time;

use units::{Bytes, Span};

/// What stages must know of a packet.
pub trait Packet {
    /// Its size in bytes of IP.
    fn wire_bytes(&self) -> u32;

    /// Extra one-way delay of the packet's flow on this link.
    fn extra_delay(&self) -> Span {
        Span::ZERO
    }
}

/// A queue that packets go through.
pub trait Stage<P> {
    /// Puts a packet in at `now`, or hands it back when there is no room, so that its buffer can be used again. Times never
    /// go backwards.
    fn enqueue(&mut self, now: Time, packet: P) -> Result<(), P>;

    /// The next packet that has left by `now`, and when it left: that is the time at which it comes to whatever follows.
    fn ready(&mut self, now: Time) -> Option<(Time, P)>;

    /// When to look next, if a packet is inside: none leaves before. At that time one may only have got from one part of the
    /// stage to the next, and `ready` may still return none.
    fn next_wakeup(&self) -> Option<Time>;
}

/// Stands at the queue of a [`Way`], as a router that takes part does: sees what comes and what leaves at the very times, and may write into
/// what leaves.
pub trait Tap<P> {
    /// Whether there is one: where there is none, nobody looks at packets on their way.
    fn is_there(&self) -> bool {
        true
    }

    /// A packet comes; whether there is room for it is not known yet.
    fn comes(&mut self, now: Time, packet: &P);

    /// A packet has left the line.
    fn leaves(&mut self, at: Time, packet: &mut P);

    /// So many bytes wait after what just happened, without the packet on the line.
    fn holds(&mut self, queued: Bytes);
}

/// None.
impl<P> Tap<P> for () {
    fn is_there(&self) -> bool {
        false
    }

    fn comes(&mut self, _: Time, _: &P) {}
    fn leaves(&mut self, _: Time, _: &mut P) {}
    fn holds(&mut self, _: Bytes) {}
}
