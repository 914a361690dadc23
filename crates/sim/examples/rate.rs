//! The speed of the simulator: packets, user CPU seconds and packets per second, for one long flow
//! and for fifty flows on a dumbbell; with an argument, for that number of flows.
//!
//!     cargo run --release -p tandem-sim --example rate

use scenario::{Scenario, ScenarioFile};
use sim::Sim;

const ONE: &str = "name = \"one\"\nduration = \"1000s\"\n[[link]]\nrate = \"100Mbit\"\ndelay = \"20ms\"\n[[flow]]\n";
const FIFTY: &str = "name = \"fifty\"\nduration = \"20s\"\n\
    [[link]]\nrate = \"1Gbit\"\ndelay = \"20ms\"\n\
    [[flow]]\ncount = 50\nstart = { uniform = [\"0s\", \"1s\"] }\naccess_delay = { uniform = [\"0ms\", \"10ms\"] }\n";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    match std::env::args().nth(1) {
        None => {
            measure(&parse(ONE)?)?;
            measure(&parse(FIFTY)?)?;
        }
        Some(flows) => measure(&parse(&FIFTY.replace("count = 50", &format!("count = {flows}")))?)?,
    }
    Ok(())
}

fn parse(text: &str) -> Result<Scenario, Box<dyn std::error::Error>> {
    Ok(ScenarioFile::parse(text, "example")?.variants(&[])?.remove(0).scenario)
}

fn measure(scenario: &Scenario) -> Result<(), Box<dyn std::error::Error>> {
    let before = user_seconds();
    let (outcome, counters) = Sim::default().play(scenario, 1, &())?;
    let seconds = user_seconds() - before;
    println!(
        "{}: {} data packets, {} acknowledgements, {} events in {seconds:.2} s of user CPU: {:.2} million data packets a second; \
         {:.2} Mbit/s, {} retransmitted, {} timeouts, {} undone",
        outcome.scenario,
        counters.segments,
        counters.acks,
        counters.events,
        counters.segments as f64 / seconds.max(1e-9) / 1e6,
        outcome.goodput_bps / 1e6,
        outcome.retransmits(),
        counters.timeouts,
        counters.undone,
    );
    Ok(())
}

/// User CPU time of this process, s: the 14th field of /proc/self/stat, in ticks of 10 ms.
fn user_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default();
    fields.split_whitespace().nth(11).and_then(|ticks| ticks.parse::<f64>().ok()).unwrap_or(0.0) / 100.0
}
