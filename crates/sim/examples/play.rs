//! Runs the cases of a scenario file and prints one line for each, with the time that the run took.
//!
//!     cargo run --release -p tandem-sim --example play -- scenarios/demo.toml [SEED]

use outcome::Engine as _;
use scenario::ScenarioFile;
use sim::Sim;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("no scenario file given: play -- scenarios/demo.toml [SEED]")?;
    let seed = arguments.next().map_or(Ok(1), |seed| seed.parse())?;
    println!(
        "{:24} {:>9} {:>9} {:>7} {:>9} {:>7} {:>7} {:>7} {:>9} {:>9} {:>9}",
        "case", "done, s", "mean, s", "Jain", "Mbit/s", "used, %", "again", "drops", "queue, kB", "held, kB", "played, s"
    );
    for variant in ScenarioFile::parse(&std::fs::read_to_string(&path)?, &path)?.variants(&[])? {
        if let Err(why) = Sim::default().can_answer(&variant.scenario) {
            println!("{:24} {why}", variant.case);
            continue;
        }
        let began = Instant::now();
        let outcome = Sim::default().run(&variant.scenario, seed, &())?;
        let number = |name: &str, unit: f64| outcome.number(name).map_or("-".into(), |value| format!("{:.3}", value / unit));
        println!(
            "{:24} {:>9} {:>9} {:>7} {:>9} {:>7} {:>7} {:>7} {:>9} {:>9} {:>9.2}",
            variant.case,
            number("completion_s", 1.0),
            number("mean_flow_s", 1.0),
            number("jain", 1.0),
            number("goodput_bps", 1e6),
            number("utilization", 0.01),
            outcome.retransmits(),
            outcome.queue_drops(),
            number("queue_max_bytes", 1e3),
            number("held_bytes", 1e3),
            began.elapsed().as_secs_f64(),
        );
    }
    Ok(())
}
