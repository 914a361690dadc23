//! The power series: its coefficients, and its extrapolation.

use super::{Can, double_double::Real};

/// The coefficients level by level: at level t those of θᵗ, b(k, t − |k|) for all |k| ≤ t, in the
/// notation of [`super`].
///
/// A state k of D classes has the index Σⱼ C(pⱼ + j − 1, j), with pⱼ the number of jobs of the
/// first j classes. So states with n jobs are contiguous, after all with fewer. States that differ
/// only in their first two numbers of jobs, with the same sum, form a *row*, k₀ = 0, 1, …. One job
/// more or less leads from a row to a row, so each term of the balance equations is a product of
/// rows.
pub(super) struct PowerSeries<R> {
    arrivals: Vec<R>,
    total_arrivals: R,
    /// `choose[n][k]`.
    choose: Vec<Vec<usize>>,
    tables: DepartureRates<R>,
    level: usize,
    before: Vec<R>,
}

/// Departure rates of each state, jobs/s.
struct DepartureRates<R> {
    /// For each network: rates of the foreground and of its background there, at
    /// `[background][foreground]`.
    by_network: Vec<Vec<Vec<[R; 2]>>>,
    /// Of the background of network 1, at `[both][foreground]`: by row.
    first: Vec<Vec<R>>,
    /// Of the other backgrounds, at `[class][background][foreground]`.
    others: Vec<Vec<Vec<R>>>,
    /// For each state: rate of the foreground, and 1 over the rate of all classes.
    foreground: Vec<R>,
    inverse: Vec<R>,
}

impl<R: Real> PowerSeries<R> {
    /// A series of levels 0 to `max_level`.
    pub(super) fn new(can: &Can, max_level: usize) -> Self {
        let classes = can.sizes.len();
        let side = max_level + classes + 2;
        let mut choose = vec![vec![0; classes + 1]; side];
        for n in 0..side {
            choose[n][0] = 1;
            for k in 1..=classes.min(n) {
                choose[n][k] = choose[n - 1][k - 1] + choose[n - 1][k];
            }
        }
        let arrivals: Vec<R> = can.arrivals.iter().map(|rate| R::from(*rate)).collect();
        let total_arrivals = arrivals.iter().fold(R::from(0.0), |sum, rate| sum + *rate);
        PowerSeries { arrivals, total_arrivals, choose, tables: DepartureRates::new(can, max_level + 1), level: 0, before: Vec::new() }
    }

    /// Index of the first state of a row, given by pⱼ for j ≥ 2; the first is k₀ + k₁.
    fn row(&self, sums: &[usize]) -> usize {
        sums.iter().enumerate().map(|(place, sum)| self.choose[sum + place + 1][place + 2]).sum()
    }

    /// Computes the next level, and returns the coefficients of E[Nᵢ] at it.
    pub(super) fn next_level(&mut self) -> Vec<R> {
        let (classes, level) = (self.arrivals.len(), self.level);
        let zero = R::from(0.0);
        let mut now = vec![zero; self.choose[level + classes][classes]];
        let mut moments = vec![zero; classes];
        let mut total = zero;
        self.add_states(level);
        let mut row = Vec::with_capacity(level + 1);
        for count in (1..=level).rev() {
            // pⱼ for j ≥ 2: the last is the number of all jobs, the first varies fastest.
            let mut sums = vec![0; classes - 1];
            sums[classes - 2] = count;
            loop {
                let (sum, first) = self.fill(&sums, count < level, &mut now, &mut row);
                total = total + sum;
                moments[0] = moments[0] + first;
                moments[1] = moments[1] + R::from(sums[0] as f64) * sum - first;
                for class in 2..classes {
                    moments[class] = moments[class] + R::from((sums[class - 1] - sums[class - 2]) as f64) * sum;
                }
                // The next row with this number of jobs.
                let Some(place) = (0..classes - 2).find(|place| sums[*place] < sums[place + 1]) else { break };
                sums[place] += 1;
                sums[..place].fill(0);
            }
        }
        now[0] = if level == 0 { R::from(1.0) } else { zero - total };
        self.before = now;
        self.level += 1;
        moments
    }

    /// Computes a row; returns the sums of b and of k₀ b over it. `inner`: the states have fewer
    /// jobs than the level.
    fn fill(&self, sums: &[usize], inner: bool, now: &mut [R], row: &mut Vec<R>) -> (R, R) {
        let zero = R::from(0.0);
        let both = sums[0];
        let at = self.row(sums);
        // The row with one job more or less of a class; the same for classes 0 and 1.
        let neighbour = |class: usize, step: isize| {
            let mut moved = [0; Can::MAX_NETWORKS];
            for (place, sum) in sums.iter().enumerate() {
                moved[place] = if place + 1 >= class { sum.wrapping_add_signed(step) } else { *sum };
            }
            self.row(&moved[..sums.len()])
        };
        row.clear();
        row.resize(both + 1, zero);
        if both > 0 {
            let below = neighbour(1, -1);
            add(&mut row[1..], &self.before[below..below + both], self.arrivals[0]);
            add(&mut row[..both], &self.before[below..below + both], self.arrivals[1]);
        }
        for class in 2..=sums.len() {
            if sums[class - 1] > sums[class - 2] {
                let below = neighbour(class, -1);
                add(row, &self.before[below..=below + both], self.arrivals[class]);
            }
        }
        if inner {
            add(row, &self.before[at..=at + both], zero - self.total_arrivals);
            let above = neighbour(1, 1);
            add_each(row, &now[above + 1..=above + both + 1], &self.tables.foreground[above + 1..]);
            add_each(row, &now[above..=above + both], &self.tables.first[both + 1]);
            for class in 2..=sums.len() {
                let above = neighbour(class, 1);
                add_each(row, &now[above..=above + both], &self.tables.others[class][sums[class - 1] - sums[class - 2] + 1]);
            }
        }
        let (mut total, mut first) = (zero, zero);
        let states = now[at..=at + both].iter_mut().zip(&self.tables.inverse[at..]);
        for (jobs, ((state, inverse), sum)) in states.zip(row).enumerate() {
            *state = sum.normalized() * *inverse;
            total = total + *state;
            first = first.plus_product(R::from(jobs as f64), *state);
        }
        (total, first.normalized())
    }

    /// Adds the departure rates of the states with `count` jobs.
    fn add_states(&mut self, count: usize) {
        let classes = self.arrivals.len();
        let mut sums = vec![0; classes - 1];
        sums[classes - 2] = count;
        loop {
            for foreground in 0..=sums[0] {
                let (mut of_foreground, mut of_all) = (R::from(0.0), R::from(0.0));
                for (network, lost) in self.tables.by_network.iter().enumerate() {
                    let background = if network == 0 { sums[0] - foreground } else { sums[network] - sums[network - 1] };
                    let [mine, its] = lost[background][foreground];
                    of_foreground = of_foreground + mine;
                    of_all = of_all + its;
                }
                self.tables.foreground.push(of_foreground);
                self.tables.inverse.push(R::from(1.0) / (of_foreground + of_all));
            }
            let Some(place) = (0..classes - 2).find(|place| sums[*place] < sums[place + 1]) else { break };
            sums[place] += 1;
            sums[..place].fill(0);
        }
    }
}

impl<R: Real> DepartureRates<R> {
    fn new(can: &Can, most: usize) -> Self {
        let number = |count: usize| R::from(count as f64);
        let weight = R::from(can.weight);
        let lost: Vec<Vec<Vec<[R; 2]>>> = (1..can.sizes.len())
            .map(|class| {
                let speed = R::from(can.speeds[class - 1]);
                let of = [speed / R::from(can.sizes[0]), speed / R::from(can.sizes[class])];
                let pair = |background: usize, foreground: usize| {
                    if background + foreground == 0 {
                        return [R::from(0.0); 2];
                    }
                    let weighed = weight * number(foreground);
                    let all = weighed + number(background);
                    [of[0] * weighed / all, of[1] * number(background) / all]
                };
                (0..=most).map(|background| (0..=most - background).map(|foreground| pair(background, foreground)).collect()).collect()
            })
            .collect();
        let first = (0..=most).map(|both| (0..=both).map(|foreground| lost[0][both - foreground][foreground][1]).collect()).collect();
        let of_background = |lost: &Vec<Vec<[R; 2]>>| lost.iter().map(|row| row.iter().map(|pair| pair[1]).collect()).collect();
        let mut others = vec![Vec::new(); 2];
        others.extend(lost[1..].iter().map(of_background));
        DepartureRates { by_network: lost, first, others, foreground: Vec::new(), inverse: Vec::new() }
    }
}

/// Adds `factor` times `states`.
fn add<R: Real>(sums: &mut [R], states: &[R], factor: R) {
    for (sum, state) in sums.iter_mut().zip(states) {
        *sum = sum.plus_product(*state, factor);
    }
}

/// Adds `states`, each times its own factor.
fn add_each<R: Real>(sums: &mut [R], states: &[R], factors: &[R]) {
    for ((sum, state), factor) in sums.iter_mut().zip(states).zip(factors) {
        *sum = sum.plus_product(*state, *factor);
    }
}

/// Wynn's epsilon algorithm; keeps the last antidiagonal of its table.
#[derive(Debug, Clone)]
pub(super) struct Epsilon<R> {
    sum: R,
    diagonal: Vec<R>,
}

impl<R: Real> Epsilon<R> {
    pub(super) fn new() -> Self {
        Epsilon { sum: R::from(0.0), diagonal: Vec::new() }
    }

    /// Adds a term of the series; returns the estimate of the sum, from the highest even column.
    pub(super) fn add(&mut self, term: R) -> R {
        self.sum = self.sum + term;
        let mut next = vec![self.sum];
        for (column, above) in self.diagonal.iter().enumerate() {
            let beside = if column > 0 { self.diagonal[column - 1] } else { R::from(0.0) };
            let difference = next[column] - *above;
            let value = beside + R::from(1.0) / difference;
            if difference == R::from(0.0) || !value.rounded().is_finite() {
                // Converged to the last bit: further columns would divide by 0.
                break;
            }
            next.push(value);
        }
        self.diagonal = next;
        self.diagonal[(self.diagonal.len() - 1) / 2 * 2]
    }
}
