//! Faster convergence to the fixed point of an affine map (Anderson 1965). For these it is GMRES on
//! a window of the last iterations (Walker and Ni 2011).

/// Iterations that are combined.
const DEPTH: usize = 8;

/// The last iterations: differences of the images and of the residuals.
#[derive(Default)]
pub(super) struct FixedPoint {
    images: Vec<Vec<f64>>,
    residuals: Vec<Vec<f64>>,
    /// Products of the differences of residuals.
    products: [[f64; DEPTH]; DEPTH],
    /// Number of differences so far.
    count: usize,
    /// The last image and its residual.
    last: Option<(Vec<f64>, Vec<f64>)>,
}

impl FixedPoint {
    /// The next argument after `argument`, whose image is `image`.
    pub(super) fn next(&mut self, argument: &[f64], image: Vec<f64>) -> Vec<f64> {
        let residual = difference(&image, argument);
        if let Some((last_image, last_residual)) = self.last.take() {
            self.remember(difference(&image, &last_image), difference(&residual, &last_residual));
        }
        let mut next = image.clone();
        for (factor, step) in self.factors(&residual).iter().zip(&self.images) {
            next.iter_mut().zip(step).for_each(|(next, step)| *next -= factor * step);
        }
        self.last = Some((image, residual));
        next
    }

    fn remember(&mut self, image: Vec<f64>, residual: Vec<f64>) {
        let slot = self.count % DEPTH;
        self.count += 1;
        if slot < self.images.len() {
            (self.images[slot], self.residuals[slot]) = (image, residual);
        } else {
            self.images.push(image);
            self.residuals.push(residual);
        }
        for (other, residual) in self.residuals.iter().enumerate() {
            let product = dot(residual, &self.residuals[slot]);
            (self.products[slot][other], self.products[other][slot]) = (product, product);
        }
    }

    /// Factors of the differences that make the residual smallest: the normal equations, solved by
    /// Cholesky's method. A difference that depends on those before it is left out.
    fn factors(&self, residual: &[f64]) -> Vec<f64> {
        const DEPENDS: f64 = 1e-12;
        let count = self.residuals.len();
        let mut lower = [[0.0; DEPTH]; DEPTH];
        let mut solved = vec![0.0; count];
        for row in 0..count {
            for column in 0..row {
                let known: f64 = (0..column).map(|k| lower[row][k] * lower[column][k]).sum();
                lower[row][column] =
                    if lower[column][column] > 0.0 { (self.products[row][column] - known) / lower[column][column] } else { 0.0 };
            }
            let left = self.products[row][row] - lower[row][..row].iter().map(|value| value * value).sum::<f64>();
            if left > DEPENDS * self.products[row][row] {
                lower[row][row] = left.sqrt();
                let known: f64 = (0..row).map(|k| lower[row][k] * solved[k]).sum();
                solved[row] = (dot(&self.residuals[row], residual) - known) / lower[row][row];
            }
        }
        for row in (0..count).rev() {
            let known: f64 = (row + 1..count).map(|k| lower[k][row] * solved[k]).sum();
            solved[row] = if lower[row][row] > 0.0 { (solved[row] - known) / lower[row][row] } else { 0.0 };
        }
        solved
    }
}

fn difference(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_affine_map_is_solved_in_about_as_many_steps_as_it_has_dimensions() {
        // x → (I − A) x + b with rates from 0.001 to 1.
        let rates = [0.001, 0.01, 0.1, 1.0];
        let map = |x: &[f64]| -> Vec<f64> { x.iter().zip(rates).map(|(x, rate)| x + rate * (3.0 - x)).collect() };
        let mut solver = FixedPoint::default();
        let mut x = vec![0.0; 4];
        for _ in 0..6 {
            let image = map(&x);
            x = solver.next(&x, image);
        }
        // Six steps of the map alone would leave 2.98 of the first distance.
        assert!(x.iter().all(|x| (x - 3.0).abs() < 1e-3), "{x:?}");
    }
}
