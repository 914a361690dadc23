//! Two connections in tandem, with a buffer between them: the parameters of equations (19.4) to (19.8).

use crate::{
    Aimd, Estimate, Losses, Path, State, TheoryError,
    aimd::positive,
    estimate,
    trajectory::{Chances, FIRST, SECOND},
};

/// The three phases of §19.4.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The buffer is neither empty nor full: both go on by themselves (19.4).
    Free,
    /// The buffer is empty: the second sends what the first brings, and its window grows by as many ACKs (19.5).
    Starvation,
    /// The buffer is full: the first is held to what the second takes (19.6).
    Backpressure,
}

/// What losses per packet go by while a connection sends less than its window permits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Follows {
    /// The window's rate, as the paper prints it.
    #[default]
    Window,
    /// What is sent: packets that are not there can't be lost.
    Sending,
}

/// A split connection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Split {
    pub(crate) legs: [Aimd; 2],
    pub(crate) buffer: f64,
    pub(crate) caps: [f64; 2],
    pub(crate) follows: Follows,
}

impl Split {
    /// From the source to the proxy, and from there on; no bound on the buffer, none on the rates.
    pub fn new(first: Aimd, second: Aimd) -> Self {
        Split { legs: [first, second], buffer: f64::INFINITY, caps: [f64::INFINITY; 2], follows: Follows::default() }
    }

    /// With a buffer of so many packets.
    pub fn with_buffer(self, packets: f64) -> Result<Self, TheoryError> {
        Ok(Split { buffer: positive("the buffer", packets)?, ..self })
    }

    /// With links of so many packets a second: a rate that reaches its link's stays there until the next loss.
    pub fn with_capacities(self, first: f64, second: f64) -> Result<Self, TheoryError> {
        Ok(Split { caps: [positive("the first link's capacity", first)?, positive("the second link's capacity", second)?], ..self })
    }

    /// With losses per packet that go by this.
    pub fn with_losses_by(self, follows: Follows) -> Self {
        Split { follows, ..self }
    }

    /// The load, below 1 where an unbounded buffer is stable: αμ/(βλ) where both legs are alike, as in Lemma 19.7 (RI) and §19.4.5 (RD);
    /// the ratio of the mean rates where they are not.
    pub fn rho(&self) -> f64 {
        let [first, second] = self.legs;
        let slopes = first.slope() / second.slope();
        match (first.losses(), second.losses()) {
            (Losses::PerSecond(lambda), Losses::PerSecond(mu)) | (Losses::PerPacket(lambda), Losses::PerPacket(mu)) => slopes * mu / lambda,
            _ => first.mean() / second.mean(),
        }
    }

    /// The means of the legs in isolation, packets/s.
    pub fn alone_means(&self) -> [f64; 2] {
        self.legs.map(|leg| leg.mean())
    }

    /// The round trips of the legs, s.
    pub fn rtts_s(&self) -> [f64; 2] {
        self.legs.map(|leg| leg.rtt_s())
    }

    /// Plays it: from a state, with losses that follow from `seed`, each leg's by themselves. The n-th loss of a leg has the same share of
    /// chance in every path of that seed, so that paths can be compared loss by loss.
    pub fn path(&self, from: State, seed: u64) -> Path {
        Path::new(*self, from, seed)
    }

    /// Plays it with losses of each leg at these places from the beginning, which rise: seconds of losses by time, packets of those that go by
    /// packets (as [`Follows`] has it). After the last of them there is none.
    pub fn path_with_losses(&self, from: State, places: [&[f64]; 2]) -> Path {
        let chances = |leg: usize| match self.legs[leg].losses() {
            Losses::PerSecond(losses) | Losses::PerPacket(losses) => Chances::at(places[leg], losses),
        };
        Path::by(*self, from, [chances(FIRST), chances(SECOND)])
    }

    /// One leg alone, on a link of so many packets a second: the first of two, of which the second takes all at once.
    pub fn alone(leg: Aimd, capacity: f64) -> Result<Self, TheoryError> {
        let second = Aimd::new(1e-6, Losses::PerSecond(1e-6))?;
        Split::new(leg, second).with_capacities(capacity, f64::MAX)
    }

    /// The stationary figures, by so many losses of both legs together. An unbounded buffer that is not stable has none (Lemma 19.7).
    pub fn estimate(&self, seed: u64, losses: u64) -> Result<Estimate, TheoryError> {
        let rho = if self.buffer.is_finite() { 0.0 } else { self.load(seed, losses)? };
        if rho < 1.0 { Ok(estimate::estimate(self, seed, losses)) } else { Err(TheoryError::Unstable { rho }) }
    }

    /// What decides whether an unbounded buffer is stable: rho, or with capacities the ratio of what the legs do alone, which is played.
    fn load(&self, seed: u64, losses: u64) -> Result<f64, TheoryError> {
        // Of a link as wide as this nothing is ever clipped.
        let wide = |leg: usize| self.caps[leg] > 1e3 * self.legs[leg].mean();
        if wide(0) && wide(1) {
            return Ok(self.rho());
        }
        let mean = |leg: usize| -> Result<f64, TheoryError> {
            if wide(leg) {
                return Ok(self.legs[leg].mean());
            }
            Ok(estimate::estimate(&Split::alone(self.legs[leg], self.caps[leg])?, seed, losses).rate.mean)
        };
        Ok(mean(0)? / mean(1)?)
    }
}
