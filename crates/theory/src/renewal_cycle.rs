//! The renewal reward Δ of the isolated legs, which the proof of Baccelli Lemma 19.8 uses.

use crate::{
    split::TandemModel,
    trajectory::{FIRST, LossClock, SECOND},
};

impl TandemModel {
    /// Δ = ∫ X − Yᶠ over successive cycles, packets, of both legs in isolation. A cycle lasts from
    /// one loss of the first leg after which neither rate is above its mean to the next such loss.
    /// These are returns to a compact set (§19.4.4.2): renewals except for the dependence on the
    /// two rates at the start.
    pub fn renewal_cycles(&self, seed: u64) -> impl Iterator<Item = f64> {
        let legs = self.legs;
        let means = self.isolated_means();
        let mut clocks = [FIRST, SECOND].map(|leg| LossClock::new(seed, leg));
        let mut left = [FIRST, SECOND].map(|leg| legs[leg].time_to_loss(means[leg], clocks[leg].draw()));
        let mut rates = means;
        std::iter::repeat_with(move || {
            let mut delta = 0.0;
            loop {
                let loser = if left[FIRST] <= left[SECOND] { FIRST } else { SECOND };
                let span = left[loser];
                for leg in [FIRST, SECOND] {
                    let sent = (rates[leg] + legs[leg].slope() * span / 2.0) * span;
                    delta += if leg == FIRST { sent } else { -sent };
                    rates[leg] += legs[leg].slope() * span;
                    left[leg] -= span;
                }
                rates[loser] /= 2.0;
                left[loser] = legs[loser].time_to_loss(rates[loser], clocks[loser].draw());
                if loser == FIRST && rates[FIRST] <= means[FIRST] && rates[SECOND] <= means[SECOND] {
                    return delta;
                }
            }
        })
    }
}
