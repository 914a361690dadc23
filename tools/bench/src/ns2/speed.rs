//! The cost of simulation beside ns-2: processor time and memory of a process, and how both grow.

use super::{
    play::{self, PlotCurve},
    plot,
    setting::{Ns2Leg, Ns2Loss, Ns2Sender, Ns2Setting},
};
use crate::{
    statistics::{median, spread},
    sys::ChildUsage,
};
use anyhow::{Context as _, Result, bail};
use std::{path::Path, process::Command};

/// One flow that fills 100 Mbit/s at 40 ms.
fn one(seconds: u64) -> Ns2Setting {
    let one =
        Ns2Setting::new("one flow, 100 Mbit/s, 40 ms", Ns2Sender::NewReno, seconds, vec![Ns2Leg::new(100, 20, 333, Ns2Loss::Nothing)]);
    Ns2Setting { lean: false, ..one }
}

/// This number of flows over a dumbbell of 1 Gbit/s, with round trips of 40 to 60 ms.
fn dumbbell(flows: u64, seconds: u64) -> Ns2Setting {
    let legs = vec![Ns2Leg::new(1000, 20, 3333, Ns2Loss::Nothing)];
    let setting = Ns2Setting::new("50 flows on a dumbbell, 1 Gbit/s, 40 to 60 ms", Ns2Sender::NewReno, seconds, legs);
    Ns2Setting { flows, starts_ms: 1000, access_ms: 10, lean: false, ..setting }
}

/// This number of flows on a dumbbell with 10 Mbit/s for each: the link grows with them, so that
/// only their number changes. The run is long enough for two million segments.
fn each(flows: u64) -> Ns2Setting {
    let legs = vec![Ns2Leg::new(10 * flows, 20, 34 * flows, Ns2Loss::Nothing)];
    Ns2Setting { legs, ..dumbbell(flows, (2400 / flows).max(5)) }
}

/// A setting that is played in a process of its own.
#[derive(Debug, Clone, Copy)]
enum SpeedCase {
    /// One flow, for this many seconds.
    One(u64),
    /// Fifty flows, for this many seconds.
    Fifty(u64),
    /// This many flows with 10 Mbit/s each.
    Each(u64),
}

impl SpeedCase {
    fn setting(self) -> Ns2Setting {
        match self {
            SpeedCase::One(seconds) => one(seconds),
            SpeedCase::Fifty(seconds) => dumbbell(50, seconds),
            SpeedCase::Each(flows) => each(flows),
        }
    }

    /// The value of `--play`.
    fn word(self) -> String {
        match self {
            SpeedCase::One(seconds) => format!("one={seconds}"),
            SpeedCase::Fifty(seconds) => format!("fifty={seconds}"),
            SpeedCase::Each(flows) => format!("each={flows}"),
        }
    }

    fn parse(word: &str) -> Option<SpeedCase> {
        let (kind, number) = word.split_once('=')?;
        let number = number.parse().ok().filter(|number| *number > 0)?;
        match kind {
            "one" => Some(SpeedCase::One(number)),
            "fifty" => Some(SpeedCase::Fifty(number)),
            "each" => Some(SpeedCase::Each(number)),
            _ => None,
        }
    }
}

/// Plays a setting in this process and prints how many segments were sent.
pub(super) fn play(what: &str) -> Result<()> {
    let Some(play) = SpeedCase::parse(what) else { bail!("--play {what}: it takes one=SECONDS, fifty=SECONDS or each=FLOWS") };
    let played = play::here(&play.setting(), 1)?;
    println!("{}", played.segments);
    Ok(())
}

/// Plays a setting in a process of its own. Returns segments and resources used.
fn ours(play: SpeedCase) -> Result<(u64, ChildUsage)> {
    let myself = std::env::current_exe().context("cannot find this program")?;
    let (text, took) = play::run(Command::new(myself).args(["ns2", "--play", &play.word()]))?;
    let segments = text.trim().parse().with_context(|| format!("it printed {text:?}"))?;
    Ok((segments, took))
}

/// Plays a setting by ns-2.
fn theirs(ns: &str, setting: &Ns2Setting) -> Result<(u64, ChildUsage)> {
    let (played, took) = play::by_ns2(ns, setting, 1)?;
    Ok((played.segments, took))
}

/// Million segments per second of processor time.
fn speed_of((segments, took): (u64, ChildUsage)) -> f64 {
    segments as f64 / took.cpu_s / 1e6
}

/// Compares packets per second of processor time, in turn.
pub(super) fn speed(ns: &str, runs: usize) -> Result<()> {
    println!("\n| | tandem, million data segments/s | ns-2 | × | ns-2, lean headers | × |\n|---|---|---|---|---|---|");
    for play in [SpeedCase::One(1000), SpeedCase::Fifty(20)] {
        let setting = play.setting();
        let lean = Ns2Setting { lean: true, ..setting.clone() };
        let mut speeds: [Vec<f64>; 3] = Default::default();
        for round in 1..=runs {
            let turn = [speed_of(ours(play)?), speed_of(theirs(ns, &setting)?), speed_of(theirs(ns, &lean)?)];
            eprintln!("round {round}, {}: {turn:.3?} million data segments a second", setting.name);
            speeds.iter_mut().zip(turn).for_each(|(all, speed)| all.push(speed));
        }
        let ratio = |of: &[f64]| median(speeds[0].iter().zip(of).map(|(ours, theirs)| ours / theirs));
        let [tandem, full, lean] = speeds.each_ref().map(|all| spread(all.iter().copied(), 2));
        println!("| {} | {tandem} | {full} | {:.1} | {lean} | {:.1} |", setting.name, ratio(&speeds[1]), ratio(&speeds[2]));
    }
    Ok(())
}

/// Compares peak memory over simulated time.
pub(super) fn memory(ns: &str) -> Result<()> {
    println!("\n| one flow for | tandem, MB | ns-2, MB |\n|---|---|---|");
    for seconds in [100, 1000, 10_000] {
        let megabytes = |took: ChildUsage| took.most_memory as f64 / 1e6;
        let (ours, theirs) = (megabytes(ours(SpeedCase::One(seconds))?.1), megabytes(theirs(ns, &one(seconds))?.1));
        println!("| {seconds} s | {ours:.1} | {theirs:.1} |");
    }
    Ok(())
}

/// Compares processor time per data segment, ns, over the number of flows.
pub(super) fn flows(ns: &str, runs: usize, plots: Option<&Path>) -> Result<()> {
    /// ns-2 computes routes between all pairs of nodes, which takes ever longer.
    const MOST_FOR_NS2: u64 = 300;
    const FLOWS: [u64; 9] = [1, 3, 10, 30, 100, 300, 1000, 3000, 10_000];
    println!("\n| flows | tandem, ns a data segment | ns-2 |\n|---|---|---|");
    let (mut ours_by_flows, mut theirs_by_flows): (PlotCurve, PlotCurve) = (Vec::new(), Vec::new());
    for flows in FLOWS {
        let setting = each(flows);
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for _ in 0..runs {
            here.push(1e3 / speed_of(ours(SpeedCase::Each(flows))?));
            if flows <= MOST_FOR_NS2 {
                there.push(1e3 / speed_of(theirs(ns, &setting)?));
            }
        }
        let cost = median(here.iter().copied());
        ours_by_flows.push((flows as f64, cost));
        let of_ns2 = if there.is_empty() {
            "–".into()
        } else {
            let cost = median(there.iter().copied());
            theirs_by_flows.push((flows as f64, cost));
            format!("{cost:.0}")
        };
        println!("| {flows} | {cost:.0} | {of_ns2} |");
    }
    match plots {
        Some(directory) => plot::write(&directory.join("ns2-flows.svg"), &plot::costs(&ours_by_flows, &theirs_by_flows)),
        None => Ok(()),
    }
}
