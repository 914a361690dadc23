//! The stationary state of a split connection with a bounded buffer, by iteration on a grid: an
//! answer without random numbers, beside the estimates from long trajectories.
//!
//! The state is the two rates and the buffer content. In a step of δ seconds the legs move as
//! without losses, which is in closed form ([`Trajectory`]), and then each has a Poisson number of
//! losses with its exposure as the mean. The grid of the rates has the width by which a rate
//! rises in a step, so that only halved rates and buffer contents fall between its points: their
//! mass is divided among the neighbours in proportion, which keeps the mean. Both errors are of
//! second order in the width, and the answers of two grids are extrapolated to the width 0.

use crate::{
    aimd::LossRate,
    error::TheoryError,
    split::{LossBasis, TandemModel},
    trajectory::{FIRST, LossClock, SECOND, TandemState, Trajectory, TrajectorySegment},
};
use units::Phase;

/// The grids end at this multiple of a leg's mean rate, by its kind of losses. Beyond it is less
/// than 10⁻⁴ of the time.
const RANGE: [f64; 2] = [5.0, 4.0];
/// Bounds of the number of cells of the buffer.
const BUFFER_CELLS: [f64; 2] = [12.0, 400.0];
/// Ratio of the numbers of cells of the two grids.
const REFINEMENT: f64 = 1.5;
/// The iteration ends when this many steps change less than [`CHANGE`] of the distribution.
const STEPS: usize = 32;
const CHANGE: f64 = 1e-6;
/// Most steps of an iteration.
const MOST_STEPS: usize = 200_000;

/// Means of the stationary state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StationaryMeans {
    /// Throughput, packets/s.
    pub rate: f64,
    /// Buffer content of the proxy, packets.
    pub queue: f64,
}

impl TandemModel {
    /// The stationary throughput and buffer content, for a bounded buffer. `cells` is the number of
    /// cells of the first leg's rate on the coarse grid: 24 gives about three digits.
    ///
    /// # Errors
    /// The buffer is not bounded, or there are fewer than 8 cells.
    pub fn stationary_means(&self, cells: usize) -> Result<StationaryMeans, TheoryError> {
        if !self.buffer.is_finite() {
            return Err(TheoryError::Outside { what: "the buffer".into(), value: self.buffer, bounds: "bounded" });
        }
        if cells < 8 {
            return Err(TheoryError::Outside { what: "the number of cells".into(), value: cells as f64, bounds: "at least 8" });
        }
        let fine = (cells as f64 * REFINEMENT).round() as usize;
        let [coarse_means, fine_means] = [cells, fine].map(|cells| StateGrid::new(self, cells).stationary());
        let weight = 1.0 / ((fine as f64 / cells as f64).powi(2) - 1.0);
        let extrapolated = |of: fn(&StationaryMeans) -> f64| of(&fine_means) + weight * (of(&fine_means) - of(&coarse_means));
        Ok(StationaryMeans { rate: extrapolated(|means| means.rate), queue: extrapolated(|means| means.queue) })
    }

    /// The state after `span` seconds without a loss, and what happened meanwhile.
    fn flow(&self, from: TandemState, span: f64) -> LosslessFlow {
        let clocks = [LossClock::at(&[], 1.0), LossClock::at(&[], 1.0)];
        let mut trajectory = Trajectory::with_clocks(*self, from, clocks);
        let mut flow = LosslessFlow { to: from, sent: 0.0, held: 0.0, exposures: [0.0; 2] };
        let mut left = span;
        loop {
            let segment = trajectory.step();
            let part = segment.span.min(left);
            flow.add(self, &segment, part);
            if segment.span >= left {
                flow.to = segment.at(left);
                return flow;
            }
            left -= segment.span;
        }
    }

    /// The intensity of a leg's losses in a state of a segment, losses/s.
    fn intensity(&self, leg: usize, phase: Phase, state: TandemState) -> f64 {
        let windows = [state.x, state.y];
        match (self.legs[leg].losses(), self.loss_basis) {
            (LossRate::PerSecond(losses), _) => losses,
            (LossRate::PerPacket(losses), LossBasis::Window) => losses * windows[leg],
            (LossRate::PerPacket(losses), LossBasis::Sending) => losses * sending(phase, state)[leg],
        }
    }
}

/// The rates at which the legs send in a phase.
fn sending(phase: Phase, state: TandemState) -> [f64; 2] {
    match phase {
        Phase::Free => [state.x, state.y],
        Phase::Starvation => [state.x; 2],
        Phase::Backpressure => [state.y; 2],
    }
}

/// What a step without losses does.
struct LosslessFlow {
    to: TandemState,
    /// Packets that leave the proxy.
    sent: f64,
    /// Time integral of the buffer content.
    held: f64,
    /// For each leg, the integral of the intensity of its losses.
    exposures: [f64; 2],
}

impl LosslessFlow {
    /// Adds the first `part` seconds of a segment, by Simpson's rule. All integrands are smooth.
    /// Most are polynomials for which the rule is exact.
    fn add(&mut self, model: &TandemModel, segment: &TrajectorySegment, part: f64) {
        for (at, weight) in [(0.0, 1.0 / 6.0), (0.5, 4.0 / 6.0), (1.0, 1.0 / 6.0)] {
            let (state, time) = (segment.at(at * part), weight * part);
            self.sent += sending(segment.phase, state)[SECOND] * time;
            self.held += state.q * time;
            for leg in [FIRST, SECOND] {
                self.exposures[leg] += model.intensity(leg, segment.phase, state) * time;
            }
        }
    }
}

/// Points of one coordinate: multiples of `width`, the last one at most `most`.
#[derive(Debug, Clone, Copy)]
struct Axis {
    width: f64,
    points: usize,
    most: f64,
}

impl Axis {
    /// From 0 to `most` by `width`; a rest at the end is a cell too.
    fn new(width: f64, most: f64) -> Self {
        Axis { width, points: (most / width - 1e-9).ceil() as usize + 1, most }
    }

    fn at(&self, point: usize) -> f64 {
        (point as f64 * self.width).min(self.most)
    }

    /// The point below a value, and the part of its mass that the next point gets.
    fn place(&self, value: f64) -> (usize, f64) {
        let value = value.clamp(0.0, self.most);
        let below = ((value / self.width) as usize).min(self.points - 2);
        let [low, high] = [self.at(below), self.at(below + 1)];
        (below, ((value - low) / (high - low)).clamp(0.0, 1.0))
    }
}

/// What a step does to the mass at a point of the grid.
struct GridStep {
    /// Where the rates go with none, one and more losses.
    x: [(usize, f64); 3],
    y: [(usize, f64); 3],
    q: (usize, f64),
    /// For each leg, the probabilities of these numbers of losses.
    losses: [[f64; 3]; 2],
    sent: f64,
    held: f64,
}

/// The probabilities of none, one and more losses in a step: a Poisson number with this mean. More
/// than two are as rare as the square of the step's other errors.
fn loss_probabilities(exposure: f64) -> [f64; 3] {
    let none = (-exposure).exp();
    [none, exposure * none, 1.0 - none * (1.0 + exposure)]
}

/// The grid, with the step of each of its points.
struct StateGrid {
    axes: [Axis; 3],
    steps: Vec<GridStep>,
    /// Duration of a step, s.
    span: f64,
}

impl StateGrid {
    fn new(model: &TandemModel, cells: usize) -> Self {
        let most = [FIRST, SECOND].map(|leg| {
            let range = RANGE[usize::from(matches!(model.legs[leg].losses(), LossRate::PerPacket(_)))];
            (range * model.legs[leg].mean()).min(model.caps[leg])
        });
        let slopes = model.legs.map(|leg| leg.slope());
        let span = most[FIRST] / (cells as f64 * slopes[FIRST]);
        // Half of what the rates of neighbouring points send in a step.
        let content = model.buffer / (slopes[FIRST].min(slopes[SECOND]) * span * span / 2.0);
        let content = content.ceil().clamp(BUFFER_CELLS[0], BUFFER_CELLS[1]);
        let axes = [
            Axis::new(slopes[FIRST] * span, most[FIRST]),
            Axis::new(slopes[SECOND] * span, most[SECOND]),
            Axis::new(model.buffer / content, model.buffer),
        ];
        let [x, y, q] = axes;
        let mut steps = Vec::with_capacity(x.points * y.points * q.points);
        for at_x in 0..x.points {
            for at_y in 0..y.points {
                for at_q in 0..q.points {
                    let flow = model.flow(TandemState { x: x.at(at_x), y: y.at(at_y), q: q.at(at_q) }, span);
                    steps.push(GridStep {
                        x: [1.0, 0.5, 0.25].map(|factor| x.place(factor * flow.to.x)),
                        y: [1.0, 0.5, 0.25].map(|factor| y.place(factor * flow.to.y)),
                        q: q.place(flow.to.q),
                        losses: flow.exposures.map(loss_probabilities),
                        sent: flow.sent,
                        held: flow.held,
                    });
                }
            }
        }
        StateGrid { axes, steps, span }
    }

    /// The means of the stationary distribution.
    fn stationary(&self) -> StationaryMeans {
        let mut mass = vec![1.0 / self.steps.len() as f64; self.steps.len()];
        let mut next = vec![0.0; mass.len()];
        for _ in 0..MOST_STEPS / STEPS {
            let before = mass.clone();
            for _ in 0..STEPS {
                self.step(&mass, &mut next);
                std::mem::swap(&mut mass, &mut next);
            }
            if before.iter().zip(&mass).map(|(old, new)| (old - new).abs()).sum::<f64>() < CHANGE {
                break;
            }
        }
        let mean = |of: fn(&GridStep) -> f64| self.steps.iter().zip(&mass).map(|(step, mass)| of(step) * mass).sum::<f64>() / self.span;
        StationaryMeans { rate: mean(|step| step.sent), queue: mean(|step| step.held) }
    }

    /// Moves all mass by one step.
    fn step(&self, from: &[f64], to: &mut [f64]) {
        let [_, y, q] = self.axes;
        to.fill(0.0);
        for (step, mass) in self.steps.iter().zip(from) {
            if *mass < f64::MIN_POSITIVE {
                continue;
            }
            let [first, second] = step.losses;
            let (at_q, above_q) = step.q;
            for (part_x, (at_x, above_x)) in first.into_iter().zip(step.x) {
                for (x, share_x) in [(at_x, 1.0 - above_x), (at_x + 1, above_x)] {
                    for (part_y, (at_y, above_y)) in second.into_iter().zip(step.y) {
                        for (y_point, share_y) in [(at_y, 1.0 - above_y), (at_y + 1, above_y)] {
                            let moved = mass * part_x * share_x * part_y * share_y;
                            let cell = (x * y.points + y_point) * q.points + at_q;
                            to[cell] += moved * (1.0 - above_q);
                            to[cell + 1] += moved * above_q;
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Aimd;

    /// Legs with the slope 1 and `slope`, which lose once a second or a packet.
    fn model(losses: fn(f64) -> LossRate, slope: f64, buffer: f64) -> TandemModel {
        let leg = |slope: f64| Aimd::new(slope.powf(-0.5), losses(1.0)).unwrap();
        TandemModel::new(leg(1.0), leg(slope)).with_buffer(buffer).unwrap()
    }

    #[test]
    fn a_fast_second_leg_leaves_the_first_one_its_own_rate() {
        for losses in [LossRate::PerSecond as fn(f64) -> LossRate, LossRate::PerPacket] {
            let model = model(losses, 16.0, 20.0);
            let means = model.stationary_means(24).unwrap();
            let alone = model.isolated_means()[0];
            assert!((means.rate / alone - 1.0).abs() < 0.005, "{} of {alone}", means.rate);
        }
    }

    #[test]
    fn equal_legs_fill_half_of_the_buffer() {
        for losses in [LossRate::PerSecond as fn(f64) -> LossRate, LossRate::PerPacket] {
            let means = model(losses, 1.0, 3.0).stationary_means(12).unwrap();
            // The duality of Q and B - Q, which holds on the grid as well.
            assert!((means.queue - 1.5).abs() < 1e-3, "{}", means.queue);
        }
    }

    #[test]
    fn it_agrees_with_long_trajectories() {
        for (losses, slope, buffer) in
            [(LossRate::PerSecond as fn(f64) -> LossRate, 1.0, 1.0), (LossRate::PerSecond, 1.5, 5.0), (LossRate::PerPacket, 1.21, 1.0)]
        {
            let model = model(losses, slope, buffer);
            let (means, estimate) = (model.stationary_means(24).unwrap(), model.estimate(1, 4_000_000).unwrap());
            assert!((means.rate / estimate.rate.mean - 1.0).abs() < 0.01, "{} and {:?}", means.rate, estimate.rate);
            assert!((means.queue / estimate.queue.mean - 1.0).abs() < 0.02, "{} and {:?}", means.queue, estimate.queue);
        }
    }

    #[test]
    fn an_unbounded_buffer_is_refused() {
        let leg = Aimd::new(1.0, LossRate::PerSecond(1.0)).unwrap();
        assert!(TandemModel::new(leg, leg).stationary_means(24).unwrap_err().to_string().contains("bounded"));
    }
}
