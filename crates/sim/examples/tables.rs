//! Plays the rows of the paper's Tables V and VI (Hoekstra et al. 2011), and says what packets take over what the CAN model makes of the very same
//! transfers: mean times, and their ratio, class by class. With several seeds the ratio has its 95 % interval.
//!
//!     cargo run --release -p tandem-sim --example tables -- papers/hoekstra/tables-5-6.csv [KEY=VALUE …]
//!
//! Keys, with their defaults: jobs=1000, seeds=1, window=8760B (none: as large as is of use), queue=2000pkt, delay=2ms, law=shifted-exponential,
//! scheduler=fluid, control=cubic, rows=all (or 1,5,10), first=1 (seed), bond= (further keys of the bond, as "alpha=0.2;piece='4kB'").

use scenario::{Engine as _, Scenario, ScenarioFile, half_width};
use sim::Sim;
use std::{collections::BTreeMap, error::Error, time::Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("which table? say it: tables -- papers/hoekstra/tables-5-6.csv")?;
    let mut keys: BTreeMap<String, String> = [
        ("jobs", "1000"),
        ("seeds", "1"),
        ("window", "8760B"),
        ("queue", "2000pkt"),
        ("delay", "2ms"),
        ("law", "shifted-exponential"),
        ("scheduler", "fluid"),
        ("control", "cubic"),
        ("rows", "all"),
        ("first", "1"),
        ("bond", ""),
    ]
    .map(|(key, value)| (key.to_string(), value.to_string()))
    .into();
    for argument in arguments {
        let (key, value) = argument.split_once('=').ok_or_else(|| format!("{argument:?} is not KEY=VALUE"))?;
        *keys.get_mut(key).ok_or_else(|| format!("there is no key {key:?}"))? = value.into();
    }
    println!("{:20} {:>10} {:>10} {:>8} {:>8} {:>8} {:>8}", "loads", "class", "packets, s", "CAN, s", "ratio", "±", "played, s");
    for (number, line) in std::fs::read_to_string(&path)?.lines().skip(1).enumerate() {
        if keys["rows"] != "all" && !keys["rows"].split(',').any(|row| row == (number + 1).to_string()) {
            continue;
        }
        let loads: Vec<f64> = line.split(',').take(3).map(str::parse).collect::<Result<_, _>>()?;
        row(&loads, &keys)?;
    }
    Ok(())
}

fn scenario(loads: &[f64], keys: &BTreeMap<String, String>) -> Result<Scenario, Box<dyn Error>> {
    let networks: String = loads[1..]
        .iter()
        .map(|load| {
            format!("[[network]]\nrate = \"5.28Mbit\"\ndelay = \"{}\"\nqueue = \"{}\"\nload = {load}\n", keys["delay"], keys["queue"])
        })
        .collect();
    let law = match keys["law"].as_str() {
        "shifted-exponential" => "\"shifted-exponential\", constant = 0.5".to_string(),
        other => format!("{other:?}"),
    };
    let window = if keys["window"] == "none" { String::new() } else { format!("window = {:?}\n", keys["window"]) };
    let text = format!(
        "name = \"row\"\n{networks}[control]\nsender = {:?}\n[foreground]\nload = {}\nsize = {{ law = {law}, mean = \"2MB\" }}\njobs = {}\n{window}[bond]\nscheduler = {:?}\n{}\n",
        keys["control"],
        loads[0],
        keys["jobs"],
        keys["scheduler"],
        keys["bond"].replace(';', "\n")
    );
    Ok(ScenarioFile::parse(&text, "row")?.variants(&[])?.remove(0).scenario)
}

/// A row of the tables.
fn row(loads: &[f64], keys: &BTreeMap<String, String>) -> Result<(), Box<dyn Error>> {
    let scenario = scenario(loads, keys)?;
    let began = Instant::now();
    let mut measured: Vec<Vec<f64>> = vec![Vec::new(); loads.len()];
    let mut modelled = measured.clone();
    let (first, seeds): (u64, u64) = (keys["first"].parse()?, keys["seeds"].parse()?);
    for seed in first..first + seeds {
        let outcome = Sim::default().run(&scenario, seed, &())?;
        let model = scenario.parallel().map(|parallel| theory::ideal(&parallel, seed)).unwrap_or_default();
        for (class, time) in outcome.sojourn_s.iter().enumerate().filter_map(|(class, time)| Some((class, (*time)?))) {
            measured[class].push(time);
            modelled[class].extend(model[class]);
        }
    }
    let name = loads.iter().map(f64::to_string).collect::<Vec<_>>().join(" ");
    for (class, (measured, modelled)) in measured.iter().zip(&modelled).enumerate().filter(|(_, (measured, _))| !measured.is_empty()) {
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let ratios: Vec<f64> = measured.iter().zip(modelled).map(|(measured, modelled)| measured / modelled).collect();
        println!(
            "{name:20} {class:>10} {:>10.3} {:>8.3} {:>8.4} {:>8.4} {:>8.1}",
            mean(measured),
            mean(modelled),
            mean(&ratios),
            half_width(&ratios),
            began.elapsed().as_secs_f64()
        );
    }
    Ok(())
}
