//! Two connections in tandem with a buffer between them: the parameters of Baccelli (19.4) to
//! (19.8).

use crate::{
    aimd::{Aimd, LossRate},
    error::{TheoryError, positive},
};

/// What the intensity of rate-dependent losses is proportional to, while a connection sends less
/// than its window permits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LossBasis {
    /// The rate that the window permits, as printed in the paper.
    #[default]
    Window,
    /// The rate at which packets are sent: only packets that are sent can be lost.
    Sending,
}

/// A split connection: two legs, the buffer between them, and their capacities.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TandemModel {
    pub(crate) legs: [Aimd; 2],
    pub(crate) buffer: f64,
    pub(crate) caps: [f64; 2],
    pub(crate) loss_basis: LossBasis,
}

impl TandemModel {
    /// A tandem of the leg from the source to the proxy and the leg from there on, with an
    /// unbounded buffer and unbounded rates.
    pub fn new(first: Aimd, second: Aimd) -> Self {
        TandemModel { legs: [first, second], buffer: f64::INFINITY, caps: [f64::INFINITY; 2], loss_basis: LossBasis::default() }
    }

    /// Sets the buffer size, packets.
    ///
    /// # Errors
    /// When it is not positive.
    pub fn with_buffer(self, packets: f64) -> Result<Self, TheoryError> {
        Ok(TandemModel { buffer: positive("the buffer", packets)?, ..self })
    }

    /// Sets the capacities of the legs, packets/s. A rate that reaches its capacity stays there
    /// until the next loss.
    ///
    /// # Errors
    /// When one is not positive.
    pub fn with_capacities(self, first: f64, second: f64) -> Result<Self, TheoryError> {
        Ok(TandemModel { caps: [positive("the first link's capacity", first)?, positive("the second link's capacity", second)?], ..self })
    }

    /// Sets what the intensity of rate-dependent losses is proportional to.
    pub fn with_loss_basis(self, loss_basis: LossBasis) -> Self {
        TandemModel { loss_basis, ..self }
    }

    /// The load ρ; an unbounded buffer is stable below 1. αμ/(βλ) if both legs have the same kind
    /// of losses (Baccelli Lemma 19.7 for RI, §19.4.5 for RD); otherwise the ratio of the mean
    /// rates.
    pub fn rho(&self) -> f64 {
        let [first, second] = self.legs;
        let slopes = first.slope() / second.slope();
        match (first.losses(), second.losses()) {
            (LossRate::PerSecond(lambda), LossRate::PerSecond(mu)) | (LossRate::PerPacket(lambda), LossRate::PerPacket(mu)) => {
                slopes * mu / lambda
            }
            _ => first.mean() / second.mean(),
        }
    }

    /// Mean rates of the legs in isolation, packets/s.
    pub fn isolated_means(&self) -> [f64; 2] {
        self.legs.map(|leg| leg.mean())
    }

    /// Round-trip times of the legs, s.
    pub fn rtts_s(&self) -> [f64; 2] {
        self.legs.map(|leg| leg.rtt_s())
    }

    /// A single leg with a capacity, packets/s: a tandem whose second leg is never a limit.
    ///
    /// # Errors
    /// When the capacity is not positive.
    pub fn alone(leg: Aimd, capacity: f64) -> Result<Self, TheoryError> {
        let second = Aimd::new(1e-6, LossRate::PerSecond(1e-6))?;
        TandemModel::new(leg, second).with_capacities(capacity, f64::MAX)
    }
}
