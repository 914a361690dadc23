//! What all connections of an event loop share: empty pipes, and a buffer for bytes that are
//! copied.

use crate::{buffer_budget::BufferBudget, pipe::Pipe};
use std::{io, time::Instant};

/// Empty pipes and a buffer, shared by all connections of an event loop.
#[derive(Debug)]
pub struct Scratch {
    pipes: Vec<Pipe>,
    /// Pipes that hold bytes which a destination did not take.
    pub(crate) lent: usize,
    pub(crate) buffer: Vec<u8>,
    /// Time at which this turn of the event loop began.
    pub now: Instant,
    /// How much every B that follows its flow may grow.
    pub budget: BufferBudget,
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Scratch {
    /// Idle pipes kept for reuse; more are closed.
    const KEPT: usize = 8;
    /// The most pipes that stalled directions keep. Beyond that their bytes are copied out, so that
    /// stalled flows do not use up descriptors.
    pub(crate) const LENT: usize = 64;
    /// Size of the buffer, bytes. A read that fills it counts as bulk data.
    const BUFFER: usize = 16 * 1024;

    /// Without pipes, which are opened on demand.
    pub fn new() -> Self {
        Scratch { pipes: Vec::new(), lent: 0, buffer: vec![0; Self::BUFFER], now: Instant::now(), budget: BufferBudget::default() }
    }

    /// Calls `work` with the buffer.
    pub fn with_buffer<T>(&mut self, work: impl FnOnce(&mut [u8]) -> T) -> T {
        work(&mut self.buffer)
    }

    pub(crate) fn take_pipe(&mut self) -> io::Result<Pipe> {
        self.pipes.pop().map_or_else(Pipe::new, Ok)
    }

    pub(crate) fn give_back(&mut self, pipe: Pipe) {
        // A small pipe is closed: a later one may be large again.
        if self.pipes.len() < Self::KEPT && pipe.is_large() {
            self.pipes.push(pipe);
        }
    }
}
