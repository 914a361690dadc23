//! The cost of simulation beside ns-2: processor time and memory of a process, and how both grow.

use super::{
    NS2, TANDEM,
    play::{self, PlotCurve},
    plot,
    setting::{Ns2Leg, Ns2Loss, Ns2Sender, Ns2Setting},
};
use crate::sys::ChildUsage;
use anyhow::{Context as _, Result, bail};
use measurements::{SampleColumn, SampleStatistic, SampleTable, median};
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
pub(crate) fn play(what: &str) -> Result<()> {
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
pub(super) fn speed(ns: Option<&str>, runs: usize) -> Result<SampleTable> {
    const LEAN: &str = "ns-2, lean headers";
    let column = |head| SampleColumn::new(head, "", 2);
    let times = |over| SampleColumn::quotient("×", TANDEM, over, 1).with(SampleStatistic::Median);
    let ours_column = SampleColumn::new(TANDEM, "million data segments/s", 2);
    let mut table = SampleTable::new("speed", "", vec![ours_column, column(NS2), times(NS2), column(LEAN), times(LEAN)]);
    for play in [SpeedCase::One(1000), SpeedCase::Fifty(20)] {
        let setting = play.setting();
        let lean = Ns2Setting { lean: true, ..setting.clone() };
        for round in 0..runs {
            let row = table.row(&format!("{}, {} s", setting.name, setting.seconds));
            row.add(TANDEM, round, speed_of(ours(play)?));
            if let Some(ns) = ns {
                row.add(NS2, round, speed_of(theirs(ns, &setting)?));
                row.add(LEAN, round, speed_of(theirs(ns, &lean)?));
            }
            eprintln!("round {}, {}: {:?}", round + 1, setting.name, row.cells);
        }
    }
    Ok(table)
}

/// Compares peak memory over simulated time.
pub(super) fn memory(ns: Option<&str>) -> Result<SampleTable> {
    let mut table = SampleTable::new("memory", "one flow for", [TANDEM, NS2].map(|who| SampleColumn::new(who, "MB", 1)).to_vec());
    for seconds in [100, 1000, 10_000] {
        let megabytes = |took: ChildUsage| took.most_memory as f64 / 1e6;
        let row = table.row(&format!("{seconds} s"));
        row.add(TANDEM, 0, megabytes(ours(SpeedCase::One(seconds))?.1));
        if let Some(ns) = ns {
            row.add(NS2, 0, megabytes(theirs(ns, &one(seconds))?.1));
        }
    }
    Ok(table)
}

/// Compares processor time per data segment, ns, over the number of flows.
pub(super) fn flows(ns: Option<&str>, runs: usize, plots: Option<&Path>) -> Result<SampleTable> {
    /// ns-2 computes routes between all pairs of nodes, which takes ever longer.
    const MOST_FOR_NS2: u64 = 300;
    const FLOWS: [u64; 9] = [1, 3, 10, 30, 100, 300, 1000, 3000, 10_000];
    let columns = [TANDEM, NS2].map(|who| SampleColumn::new(who, "ns a data segment", 0));
    let mut table = SampleTable::new("flows", "flows", columns.to_vec());
    for flows in FLOWS {
        let (setting, row) = (each(flows), table.row(&flows.to_string()));
        for round in 0..runs {
            row.add(TANDEM, round, 1e3 / speed_of(ours(SpeedCase::Each(flows))?));
            if let Some(ns) = ns.filter(|_| flows <= MOST_FOR_NS2) {
                row.add(NS2, round, 1e3 / speed_of(theirs(ns, &setting)?));
            }
        }
        eprintln!("{flows} flows: {:?}", row.cells);
    }
    if let Some(directory) = plots {
        let curve = |who: &str| -> PlotCurve {
            let of = |flows: &u64| table.samples(&flows.to_string(), who).iter().copied().flatten().collect::<Vec<f64>>();
            let costs = FLOWS.iter().map(|flows| (*flows as f64, of(flows)));
            costs.filter(|(_, costs)| !costs.is_empty()).map(|(flows, costs)| (flows, median(&costs))).collect()
        };
        plot::write(&directory.join("ns2-flows.svg"), &plot::costs(&curve(TANDEM), &curve(NS2)))?;
    }
    Ok(table)
}
