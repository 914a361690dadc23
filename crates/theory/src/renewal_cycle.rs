//! What a renewal cycle of both legs alone brings: Δ, by which Lemma 19.8 is proved.

use crate::{
    Split,
    trajectory::{Chances, FIRST, SECOND},
};

impl Split {
    /// Δ = ∫ X − Yᶠ over cycles, packets, of both legs in isolation. A cycle is from one loss of the first leg after which neither rate is above
    /// its mean to the next such: returns to a compact set, as §19.4.4.2 has them, which are renewals but for what is still known of the two
    /// rates there.
    pub fn cycles(&self, seed: u64) -> impl Iterator<Item = f64> {
        let legs = self.legs;
        let means = self.alone_means();
        let mut chances = [FIRST, SECOND].map(|leg| Chances::new(seed, leg));
        let mut left = [FIRST, SECOND].map(|leg| legs[leg].loses_after(means[leg], chances[leg].draw()));
        let mut rates = means;
        std::iter::repeat_with(move || {
            let mut delta = 0.0;
            loop {
                let who = if left[FIRST] <= left[SECOND] { FIRST } else { SECOND };
                let span = left[who];
                for leg in [FIRST, SECOND] {
                    let sent = (rates[leg] + legs[leg].slope() * span / 2.0) * span;
                    delta += if leg == FIRST { sent } else { -sent };
                    rates[leg] += legs[leg].slope() * span;
                    left[leg] -= span;
                }
                rates[who] /= 2.0;
                left[who] = legs[who].loses_after(rates[who], chances[who].draw());
                if who == FIRST && rates[FIRST] <= means[FIRST] && rates[SECOND] <= means[SECOND] {
                    return delta;
                }
            }
        })
    }
}
