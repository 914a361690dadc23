//! A direction while memory is short: its B is at most the [cap](BufferCap) of the event loop, and
//! its own again when the cap is lifted.
//!
//! The cap applies to directions that carry bulk data or whose destination takes nothing: only
//! these hold more than some kilobytes. Without a cap, and while it stays the same, it costs one
//! comparison.

use crate::{BufferBudget, BufferCap, plain_leg::PlainLeg, relay_fault::RelayFault};
use intercept::leg::Shares;

/// The cap that a direction follows.
#[derive(Debug, Default)]
pub(crate) struct Squeeze {
    cap: BufferCap,
    /// The direction's B is the cap.
    applies: bool,
    /// The receive queue has not got its lower bound yet.
    is_settling: bool,
    /// How large the receive queue of the source may become, while it is not read, since the
    /// destination takes nothing, bytes.
    holds_back: u64,
}

/// What a change of the cap means for a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Squeezed {
    /// Nothing.
    Same,
    /// B is divided like this.
    To(Shares),
    /// B is its own again.
    Lifted,
}

impl Squeeze {
    /// Whether B is the cap.
    pub(crate) fn applies(&self) -> bool {
        self.applies
    }

    /// The direction's own B has been raised while it is not the cap: the present cap may be less
    /// than that.
    pub(crate) fn reconsider(&mut self) {
        self.cap = BufferCap::NONE;
    }

    /// Notes how large the receive queue of a source that is not read may become by its own B,
    /// bytes; 0: it is read.
    pub(crate) fn hold_back(&mut self, bytes: u64, budget: &mut BufferBudget) {
        if bytes == self.holds_back {
            return;
        }
        if self.holds_back == 0 {
            budget.note_growth(bytes);
        }
        budget.change_held_back(std::mem::replace(&mut self.holds_back, bytes), bytes);
    }

    /// Follows the present cap. `own` is how the direction's own B is divided; none: it has no
    /// bound.
    ///
    /// # Errors
    /// A socket's.
    pub(crate) fn follow(
        &mut self,
        cap: BufferCap,
        own: Option<Shares>,
        source: &mut PlainLeg,
        destination: &mut PlainLeg,
    ) -> Result<Squeezed, RelayFault> {
        if cap == self.cap {
            return Ok(Squeezed::Same);
        }
        self.cap = cap;
        let is_less = own.is_none_or(|own| cap.buffer < own.buffer() as u64) && cap != BufferCap::NONE;
        if is_less {
            let shares = Shares::of(usize::try_from(cap.buffer).unwrap_or(usize::MAX));
            self.is_settling = !source.squeeze_receive(shares, cap.is_strict).map_err(RelayFault::Source)?;
            destination.squeeze_send(shares).map_err(RelayFault::Destination)?;
            self.applies = true;
            return Ok(Squeezed::To(shares));
        }
        if !std::mem::replace(&mut self.applies, false) {
            return Ok(Squeezed::Same);
        }
        self.is_settling = false;
        source.release_receive(own).map_err(RelayFault::Source)?;
        destination.release_send(own).map_err(RelayFault::Destination)?;
        Ok(Squeezed::Lifted)
    }

    /// To be called after bytes were moved: the receive queue follows a lower B as far as it can.
    ///
    /// # Errors
    /// The source's.
    pub(crate) fn settle(&mut self, source: &mut PlainLeg) -> Result<(), RelayFault> {
        if self.is_settling {
            self.is_settling = !source.settle_receive().map_err(RelayFault::Source)?;
        }
        Ok(())
    }
}
