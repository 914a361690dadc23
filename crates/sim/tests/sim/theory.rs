//! Comparison with formulas for the rate of one connection that is limited by losses alone.

use crate::common::{near, play};
use sim::{Recovery, TcpSettings};

/// Mean packets/s and losses/s of NewReno over some seeds, on a link that is never full, with one
/// acknowledgement for each segment, so that the window grows by one segment an RTT. The unusually
/// large receive window only ends the first slow start before it dominates the mean.
fn mean_rate(loss: &str, [rtt_ms, window]: [u32; 2], seconds: u32, seeds: u64, recovery: Recovery) -> (f64, f64) {
    let settings = TcpSettings { delayed_acks: false, recovery, ..TcpSettings::default() };
    let text = format!(
        "duration = \"{seconds}s\"\n[control]\nsender = \"reno\"\n[[link]]\nrate = \"1Gbit\"\ndelay = \"{}ms\"\nqueue = \"100000pkt\"\n\
         loss = {{ {loss} }}\n[[flow]]\nwindow = \"{}B\"\n",
        rtt_ms / 2,
        window * 1448
    );
    let (mut packets, mut losses) = (0.0, 0.0);
    for seed in 1..=seeds {
        let (outcome, _) = play(&text, seed, settings);
        packets += outcome.goodput_bps / 8.0 / 1448.0;
        losses += outcome.links[0].losses as f64 / f64::from(seconds);
    }
    (packets / seeds as f64, losses / seeds as f64)
}

#[test]
fn rate_independent_losses_give_the_rate_of_baccelli() {
    // Baccelli et al. §19.4.2: 2 / (R² λ), with the losses that occurred. An RTT is shorter than
    // the time for which a loss event waits for a packet. The window does not grow during a
    // recovery of one RTT, which takes λ R of the rate, 1.6 %.
    let (rate, losses) = mean_rate("per_second = 0.2", [80, 600], 4000, 4, Recovery::Sack);
    near(losses, 0.2, 0.1);
    near(rate, 2.0 / (0.08f64.powi(2) * losses), 0.03);
}

#[test]
fn rate_dependent_losses_give_the_inverse_square_root_law() {
    // (19.3): Φ / (R √p).
    let (rate, _) = mean_rate("per_packet = 0.0002", [200, 1000], 4000, 4, Recovery::Sack);
    near(rate, 1.309_833 / (0.2 * 0.0002f64.sqrt()), 0.03);
}

#[test]
fn newreno_without_sack_has_the_same_rate() {
    let (rate, _) = mean_rate("per_packet = 0.0002", [200, 1000], 3000, 3, Recovery::NewReno);
    near(rate, 1.309_833 / (0.2 * 0.0002f64.sqrt()), 0.05);
}
