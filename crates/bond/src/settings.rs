//! Settings of the sending end.

use crate::{scheduler::Scheduler, score::Smoothing};
use units::{Bytes, Span};

/// How a stream is shared out over its paths.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BondSettings {
    /// Which path carries the next piece.
    pub scheduler: Scheduler,
    /// How the throughput of a path is smoothed.
    pub smoothing: Smoothing,
    /// Size of a piece; at least [`MIN_PIECE`](BondSettings::MIN_PIECE). `lookahead` may enlarge
    /// it.
    pub piece: Bytes,
    /// Queue limit of a path: it is assigned no further piece while this much waits unsent there.
    /// A short queue lets the scheduler decide late, on fresh measurements. `lookahead` may enlarge
    /// it.
    pub queue: Bytes,
    /// Lower bound on the time that queued data must cover. Piece size and queue limit grow until
    /// they hold at least this much time of data, because the next piece cannot be scheduled
    /// instantly.
    pub lookahead: Span,
    /// Time of its path that a piece may last, and its queue, where that is more and much data
    /// waits: up to three TLS records. Each piece then costs both ends a wake-up, and fewer, longer
    /// ones cost less. 0: only `lookahead` enlarges pieces.
    pub batch: Span,
    /// Whether a piece waits rather than go over a path where it would arrive late, and late pieces
    /// are reinjected over another path. Without it Hoekstra (7) alone decides.
    pub foresight: bool,
    /// Whether idle paths get probe duplicates.
    pub probes: bool,
}

impl BondSettings {
    /// The smallest piece. With smaller ones the headers, and the gaps that the receiver tracks,
    /// would cost too much.
    pub const MIN_PIECE: Bytes = Bytes(1024);

    /// The paper's smoothing, pieces and queues of 16 KiB, a lookahead of 1 ms, no batches,
    /// foresight on.
    pub fn new(scheduler: Scheduler) -> Self {
        let piece = Bytes(16 * 1024);
        BondSettings {
            scheduler,
            smoothing: Smoothing::default(),
            piece,
            queue: piece,
            lookahead: Span(1_000_000),
            batch: Span::ZERO,
            foresight: true,
            probes: true,
        }
    }
}
