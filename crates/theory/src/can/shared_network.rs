//! One network that foreground and background jobs share fairly, with Poisson arrivals of both and
//! exponential sizes: what a foreground job costs there, in closed form.
//!
//! The cost rate is m, the number of foreground jobs; n is that of background jobs. Departures have
//! the rates μ₀m/(m + n) and μ₁n/(m + n). The Poisson equation, which the relative value v and the
//! mean cost g satisfy, is
//!
//! ```text
//! m − g + λ₀ (v(m+1, n) − v) + λ₁ (v(m, n+1) − v)
//!       + μ₀ m/(m+n) (v(m−1, n) − v) + μ₁ n/(m+n) (v(m, n−1) − v) = 0
//! ```
//!
//! With v(m, n) = a m(m+1) + b mn + d n(n+1), times m + n, it is a polynomial in m and n whose
//! coefficients vanish if
//!
//! ```text
//! 1 + 2aλ₀ + bλ₁ = 2aμ₀,   bλ₀ + 2dλ₁ = 2dμ₁,   2aμ₀ + 2dμ₁ = b(μ₀ + μ₁),   g = 2aλ₀ + 2dλ₁.
//! ```
//!
//! The expected time of a job that finds (m, n) is linear, as in a queue of one class (Sengupta and
//! Jagerman 1985). The derivation is the same.

use super::Can;

/// A network with a share of the foreground's arrivals.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedNetwork {
    /// Arrival rates of foreground and background, jobs/s.
    arrivals: [f64; 2],
    /// Departure rates of a job alone, of each, jobs/s.
    departures: [f64; 2],
    /// a, b and d of the relative value.
    value: [f64; 3],
}

impl SharedNetwork {
    /// The network with this number, from 0, to which `share` of the foreground's jobs go. It must
    /// have a stationary state.
    pub(super) fn new(can: &Can, network: usize, share: f64) -> Self {
        let arrivals = [can.arrivals[0] * share, can.arrivals[network + 1]];
        let departures = [can.speeds[network] / can.sizes[0], can.speeds[network] / can.sizes[network + 1]];
        let [free0, free1] = [0, 1].map(|class| departures[class] - arrivals[class]);
        // The first two conditions give a and d by b, and the third b.
        let part = departures[0] / free0;
        let cross = part / (departures[0] + departures[1] - arrivals[1] * part - arrivals[0] * departures[1] / free1);
        let own = (1.0 + cross * arrivals[1]) / (2.0 * free0);
        let background = cross * arrivals[0] / (2.0 * free1);
        SharedNetwork { arrivals, departures, value: [own, cross, background] }
    }

    /// v(m, n): how much more a start with these jobs costs than one without, job seconds of the
    /// foreground.
    pub(super) fn relative_value(&self, foreground: usize, background: usize) -> f64 {
        let ([own, cross, other], [m, n]) = (self.value, [foreground as f64, background as f64]);
        own * m * (m + 1.0) + cross * m * n + other * n * (n + 1.0)
    }

    /// v(m+1, n) − v(m, n): the time of a further foreground job, and what it adds to the time of
    /// the others.
    pub(super) fn price_of_foreground(&self, foreground: usize, background: usize) -> f64 {
        2.0 * self.value[0] * (foreground as f64 + 1.0) + self.value[1] * background as f64
    }

    /// The mean of [`price_of_foreground`](Self::price_of_foreground) if only the number of all
    /// jobs is known. Each of them is a foreground job with the probability that the foreground's
    /// load has in the network's, independently of the others.
    pub(super) fn price_at_total(&self, jobs: usize) -> f64 {
        let loads = [0, 1].map(|class| self.arrivals[class] / self.departures[class]);
        // Without a background all are foreground jobs.
        let part = if loads[1] > 0.0 { loads[0] / (loads[0] + loads[1]) } else { 1.0 };
        let jobs = jobs as f64;
        2.0 * self.value[0] * (jobs * part + 1.0) + self.value[1] * jobs * (1.0 - part)
    }

    /// v(m, n+1) − v(m, n): what a further background job adds to the time of foreground jobs.
    pub(super) fn price_of_background(&self, foreground: usize, background: usize) -> f64 {
        self.value[1] * foreground as f64 + 2.0 * self.value[2] * (background as f64 + 1.0)
    }

    /// Expected time of a foreground job that finds these jobs, s.
    pub(super) fn expected_delay(&self, foreground: usize, background: usize) -> f64 {
        let ([arrivals, others], [own, other]) = (self.arrivals, self.departures);
        let alone = 1.0 / (own * (1.0 - arrivals / (2.0 * own) - others / (own + other)));
        alone * (1.0 + foreground as f64 / 2.0 + background as f64 * own / (own + other))
    }

    /// Rate of a foreground job that joins these jobs, jobs/s.
    pub(super) fn rate_on_arrival(&self, foreground: usize, background: usize) -> f64 {
        self.departures[0] / (foreground + background + 1) as f64
    }

    /// g: mean number of foreground jobs.
    pub(super) fn mean_foreground(&self) -> f64 {
        2.0 * (self.arrivals[0] * self.value[0] + self.arrivals[1] * self.value[2])
    }
}

impl Can {
    /// Fractions of the foreground's jobs that go to each network at random, whatever its state,
    /// which minimize their mean time.
    ///
    /// A network with free capacity fᵢ = cᵢ − λᵢβᵢ, which gets yᵢ of the foreground's work, has
    /// yᵢ/(fᵢ − yᵢ) foreground jobs. The sum is smallest where fᵢ − yᵢ is in proportion to √fᵢ;
    /// networks for which yᵢ would be negative get nothing. Without a foreground there are no
    /// fractions, and each is not a number.
    pub fn best_random_assignment(&self) -> Vec<f64> {
        let free: Vec<f64> = (1..self.sizes.len()).map(|class| self.speeds[class - 1] - self.work(class)).collect();
        let is_used = |free: f64, factor: f64| free.sqrt() > factor;
        let mut factor = 0.0;
        // Each pass leaves at least one network out, or changes nothing.
        for _ in 0..free.len() {
            let used = free.iter().filter(|free| is_used(**free, factor));
            let (all, roots) = used.fold((0.0, 0.0), |(all, roots), free| (all + free, roots + free.sqrt()));
            factor = (all - self.work(0)) / roots;
        }
        let work = |free: &f64| if is_used(*free, factor) { free - free.sqrt() * factor } else { 0.0 };
        free.iter().map(|free| work(free) / self.work(0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_satisfies_the_poisson_equation() {
        let can = Can::with(&[0.4, 0.4, 0.2], &[1.0, 1.5, 0.5], &[1.3, 0.9]).unwrap();
        let network = SharedNetwork::new(&can, 0, 0.5);
        let ([a0, a1], [d0, d1]) = (network.arrivals, network.departures);
        for (m, n) in (0..6).flat_map(|m| (0..6).map(move |n| (m, n))) {
            let all = (m + n).max(1) as f64;
            let mut flow = m as f64 + a0 * network.price_of_foreground(m, n) + a1 * network.price_of_background(m, n);
            if m > 0 {
                flow -= d0 * m as f64 / all * network.price_of_foreground(m - 1, n);
            }
            if n > 0 {
                flow -= d1 * n as f64 / all * network.price_of_background(m, n - 1);
            }
            assert!((flow - network.mean_foreground()).abs() < 1e-12, "{m} {n}: {flow}");
            let step = network.relative_value(m + 1, n) - network.relative_value(m, n);
            assert!((step - network.price_of_foreground(m, n)).abs() < 1e-12);
        }
        // The mean of a class of a processor-sharing queue is its load over what is free.
        let (load, all) = (a0 / d0, a0 / d0 + a1 / d1);
        assert!((network.mean_foreground() - load / (1.0 - all)).abs() < 1e-12);
    }

    #[test]
    fn a_price_by_the_total_is_the_mean_over_the_classes() {
        let can = Can::with(&[0.4, 0.4, 0.2], &[1.0, 1.5, 0.5], &[1.3, 0.9]).unwrap();
        let network = SharedNetwork::new(&can, 0, 0.5);
        // π(m, n) is in proportion to (m + n)!/(m! n!) r₀ᵐ r₁ⁿ.
        let loads = [0, 1].map(|class| network.arrivals[class] / network.departures[class]);
        let jobs = 5;
        let mut binomial = 1.0;
        let (mut sum, mut all) = (0.0, 0.0);
        for m in 0..=jobs {
            let weight = binomial * loads[0].powi(m as i32) * loads[1].powi((jobs - m) as i32);
            sum += weight * network.price_of_foreground(m, jobs - m);
            all += weight;
            binomial *= (jobs - m) as f64 / (m + 1) as f64;
        }
        assert!((network.price_at_total(jobs) - sum / all).abs() < 1e-12);
    }

    #[test]
    fn an_expected_delay_satisfies_its_equation_and_has_the_known_mean() {
        let can = Can::with(&[0.4, 0.4, 0.2], &[1.0, 1.5, 0.5], &[1.3, 0.9]).unwrap();
        let network = SharedNetwork::new(&can, 0, 0.5);
        let ([a0, a1], [d0, d1]) = (network.arrivals, network.departures);
        let delay = |m: usize, n: usize| network.expected_delay(m, n);
        for (m, n) in (0..6).flat_map(|m| (0..6).map(move |n| (m, n))) {
            let all = (m + n + 1) as f64;
            let mut drift = 1.0 + a0 * (delay(m + 1, n) - delay(m, n)) + a1 * (delay(m, n + 1) - delay(m, n)) - d0 / all * delay(m, n);
            if m > 0 {
                drift += d0 * m as f64 / all * (delay(m - 1, n) - delay(m, n));
            }
            if n > 0 {
                drift += d1 * n as f64 / all * (delay(m, n - 1) - delay(m, n));
            }
            assert!(drift.abs() < 1e-12, "{m} {n}: {drift}");
        }
        // Arrivals see the stationary means, and the delay is linear.
        let free = 1.0 - a0 / d0 - a1 / d1;
        let means = [a0 / d0 / free, a1 / d1 / free];
        let mean = delay(0, 0) + means[0] * (delay(1, 0) - delay(0, 0)) + means[1] * (delay(0, 1) - delay(0, 0));
        assert!((mean - 1.0 / d0 / free).abs() < 1e-12, "{mean}");
    }

    #[test]
    fn the_best_random_fractions_are_a_minimum() {
        let time = |can: &Can, share: f64| {
            let jobs = [share, 1.0 - share]
                .into_iter()
                .enumerate()
                .map(|(network, share)| SharedNetwork::new(can, network, share).mean_foreground());
            jobs.sum::<f64>() / can.arrivals[0]
        };
        for (foreground, backgrounds) in [(0.9, [0.1, 0.5]), (0.5, [0.3, 0.3]), (0.1, [0.1, 0.9])] {
            let can = Can::new(foreground, &backgrounds).unwrap();
            let fractions = can.best_random_assignment();
            assert!((fractions.iter().sum::<f64>() - 1.0).abs() < 1e-12 && fractions[0] >= fractions[1], "{fractions:?}");
            let best = time(&can, fractions[0]);
            for other in [0.05f64, 0.3, 0.5, 0.7, 1.0] {
                let is_stable = foreground * other + backgrounds[0] < 1.0 && foreground * (1.0 - other) + backgrounds[1] < 1.0;
                assert!(!is_stable || best <= time(&can, other) + 1e-12, "{can:?} {other}");
            }
        }
        // A busy network gets nothing of a light foreground.
        let fractions = Can::new(0.1, &[0.1, 0.9]).unwrap().best_random_assignment();
        assert!((fractions[0] - 1.0).abs() < 1e-12 && fractions[1] == 0.0, "{fractions:?}");
    }
}
