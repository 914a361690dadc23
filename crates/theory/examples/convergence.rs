//! Convergence of long simulations to exact values: the mean rate of an isolated leg under each
//! kind of losses, and a cell of the CAN tables.
//!
//!     cargo run --release -p tandem-theory --example convergence [MILLION LOSSES] [MILLION JOBS]

use std::time::Instant;
use theory::{Aimd, Can, LossRate, TandemModel};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut millions = |otherwise: u64| arguments.next().map_or(Ok(otherwise), |text| text.parse::<u64>()).map(|count| count * 1_000_000);
    let (losses, jobs) = (millions(40)?, millions(100)?);
    for (name, law) in [("RI, 0.4 per second", LossRate::PerSecond(0.4)), ("RD, 1e-4 per packet", LossRate::PerPacket(1e-4))] {
        let leg = Aimd::new(0.04, law)?;
        let rate = TandemModel::alone(leg, 1e12)?.estimate(1, losses)?.rate;
        println!("{name}: {:.6} ± {:.6} of the formula's mean", rate.mean / leg.mean(), rate.half / leg.mean());
    }
    let can = Can::new(0.1, &[0.7, 0.7])?;
    let begun = Instant::now();
    let found = can.simulation().run(1, jobs)?;
    println!(
        "(0.1; 0.7, 0.7): {:?} simulated, {:?} by the Markov chain, {:.0} s for {jobs} jobs",
        found.means.sojourn_s[0],
        can.solve().sojourn_s[0],
        begun.elapsed().as_secs_f64()
    );
    Ok(())
}
