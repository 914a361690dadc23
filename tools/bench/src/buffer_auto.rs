//! `buffer = "auto"` beside fixed buffers, on twelve paths in the lab: rate, bytes held, and the
//! time that they are held.
//!
//! Each round plays every path with every buffer. Goals: the rate of the best fixed buffer but for
//! 2 %; and at most half of the bytes that 4 MiB holds, where that is too much.

use crate::resume_file::ResumeFile;
use anyhow::Result;
use lab::Lab;
use measurements::{MeasurementRecord, SampleColumn, SampleTable};
use outcome::{Engine as _, Outcome};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use scenario::ScenarioFile;
use serde::{Deserialize, Serialize};
use std::{
    io::BufRead,
    slice,
    sync::{Arc, Condvar, Mutex},
    thread,
};
use units::{Bytes, Rate};

/// Compares the proxy's buffer = "auto" with fixed buffers on twelve paths in the lab
#[derive(Debug, clap::Args)]
pub(crate) struct BufferAuto {
    /// Rounds
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// Fixed buffers
    #[arg(long, value_delimiter = ',', default_value = "256KiB,1MiB,4MiB,16MiB")]
    buffers: Vec<Bytes>,
    /// Only the paths whose name contains this text
    #[arg(long, default_value = "")]
    only: String,
    /// Runs at once, by the sum of the rates of their slower links
    #[arg(long, default_value = "100Mbit")]
    at_once: Rate,
    #[command(flatten)]
    resume: ResumeFile,
}

/// A path: its name, its two links, the controllers of sender and proxy, how long a run takes, and
/// the rate of its slower link.
struct BufferPath {
    name: &'static str,
    links: [&'static str; 2],
    controls: [&'static str; 2],
    seconds: u64,
    bits_per_s: u64,
}

const LAN: &str = "rate = \"200Mbit\"\ndelay = \"500us\"\nqueue = { limit = \"2MiB\" }";
const GEO: &str = "rate = \"50Mbit\"\ndelay = \"300ms\"\nqueue = \"1BDP\"";
const GEO_LOSS: &str = "rate = \"50Mbit\"\ndelay = \"300ms\"\nqueue = \"1BDP\"\nloss = { per_packet = \"0.1%\" }";
const GEO_MORE_LOSS: &str = "rate = \"50Mbit\"\ndelay = \"300ms\"\nqueue = \"1BDP\"\nloss = { per_packet = \"1%\" }";
const LTE: &str = "rate = \"15Mbit\"\ndelay = \"25ms\"\nqueue = \"200pkt\"\nsteps = \"lte-steps.csv\"\nrepeat = \"30s\"\n\
                   jitter = { delay = { law = \"exponential\", mean = \"2ms\" } }";
const STARLINK: &str = "rate = \"120Mbit\"\ndelay = \"22ms\"\nqueue = \"600pkt\"\nsteps = \"starlink-steps.csv\"\nrepeat = \"60s\"";
const WAN: &str = "rate = \"100Mbit\"\ndelay = \"20ms\"\nqueue = \"1BDP\"";
const SLOW_WAN: &str = "rate = \"20Mbit\"\ndelay = \"20ms\"\nqueue = \"1BDP\"";
const LOSSY_WAN: &str = "rate = \"50Mbit\"\ndelay = \"10ms\"\nqueue = \"1BDP\"\nloss = { per_packet = \"0.1%\" }";
const SLOW: &str = "rate = \"10Mbit\"\ndelay = \"10ms\"\nqueue = \"2BDP\"";
const SHORT: &str = "rate = \"50Mbit\"\ndelay = \"1ms\"\nqueue = { limit = \"64KiB\" }";
const SHORT_SLOW: &str = "rate = \"20Mbit\"\ndelay = \"1ms\"\nqueue = { limit = \"64KiB\" }";

const PATHS: [BufferPath; 12] = [
    path("LAN to GEO", [LAN, GEO], ["cubic", "bbr"], [40, 50]),
    path("LAN to GEO, 0.1 % loss", [LAN, GEO_LOSS], ["cubic", "bbr"], [40, 50]),
    path("LAN to GEO, 1 % loss", [LAN, GEO_MORE_LOSS], ["cubic", "bbr"], [40, 50]),
    path("GEO to LAN", [GEO, LAN], ["bbr", "cubic"], [40, 50]),
    path("GEO, 0.1 % loss, to LAN", [GEO_LOSS, LAN], ["bbr", "cubic"], [40, 50]),
    path("GEO to 10 Mbit/s", [GEO, SLOW], ["bbr", "cubic"], [40, 10]),
    path("LAN to LTE", [LAN, LTE], ["cubic", "cubic"], [30, 15]),
    path("WAN to Starlink", [WAN, STARLINK], ["cubic", "cubic"], [30, 100]),
    path("LAN to WAN", [LAN, WAN], ["cubic", "cubic"], [20, 100]),
    path("20 Mbit/s to 100 Mbit/s", [SLOW_WAN, WAN], ["cubic", "cubic"], [20, 20]),
    path("two lossy WANs", [LOSSY_WAN, LOSSY_WAN], ["reno", "reno"], [40, 50]),
    path("two short legs", [SHORT, SHORT_SLOW], ["cubic", "cubic"], [20, 20]),
];

const fn path(name: &'static str, links: [&'static str; 2], controls: [&'static str; 2], [seconds, mbit]: [u64; 2]) -> BufferPath {
    BufferPath { name, links, controls, seconds, bits_per_s: mbit * 1_000_000 }
}

/// A run, a line of the file of results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct BufferRun {
    path: String,
    buffer: String,
    round: u64,
    /// Whether the machine was fast enough.
    valid: bool,
    goodput_bps: f64,
    held_mean_bytes: f64,
    held_max_bytes: f64,
    /// Mean time in the proxy.
    delay_s: f64,
    /// Packets that the proxy's sockets dropped for lack of receive buffer.
    overruns: u64,
}

/// The buffer that follows the flow, and the fixed one that the memory is compared with.
const AUTO: &str = "adaptive";
const LARGE: &str = "4MiB";
/// Goals: the share of the best rate, the share of the bytes that [`LARGE`] holds.
const LEAST_RATE: f64 = 0.98;
const MOST_HELD: f64 = 0.5;
/// What 4 MiB holds is not too much below this, bytes.
const LITTLE: f64 = 65536.0;
/// How often a run is tried if the machine is too slow.
const TRIES: usize = 3;

impl BufferAuto {
    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<()> {
        record.rounds = self.rounds;
        let buffers: Vec<String> = self.buffers.iter().map(Bytes::to_string).chain([AUTO.into()]).collect();
        let mut runs: Vec<BufferRun> = self.resume.runs()?;
        let paths: Vec<&BufferPath> = PATHS.iter().filter(|path| path.name.contains(&self.only)).collect();
        let mut missing = Vec::new();
        for round in 1..=self.rounds {
            for path in &paths {
                let is_there = |buffer| runs.iter().any(|run| (&*run.path, &run.buffer, run.round) == (path.name, buffer, round));
                missing.extend(buffers.iter().filter(|buffer| !is_there(buffer)).map(|buffer| (*path, buffer, round)));
            }
        }
        runs.extend(self.play_all(&missing)?);
        runs.retain(|run| paths.iter().any(|path| path.name == run.path) && run.round <= self.rounds && buffers.contains(&run.buffer));
        let invalid = runs.iter().filter(|run| !run.valid).count();
        let overruns: u64 = runs.iter().map(|run| run.overruns).sum();
        record
            .notes
            .push(format!("{invalid} of {} runs found the machine too slow. Sockets of the proxy overran {overruns} times.", runs.len()));
        record.tables = vec![goals(&paths, &runs), figures(&paths, &buffers, &runs)];
        Ok(())
    }

    /// Plays runs side by side, in their order, as far as their rates permit.
    fn play_all(&self, missing: &[(&BufferPath, &String, u64)]) -> Result<Vec<BufferRun>> {
        let (rates, fewer) = (Mutex::new(0), Condvar::new());
        thread::scope(|scope| {
            let mut playing = Vec::new();
            for (index, &(path, buffer, round)) in missing.iter().enumerate() {
                let rate = path.bits_per_s;
                let is_too_much = |sum: &mut u64| *sum > 0 && *sum + rate > self.at_once.bits_per_s();
                *fewer.wait_while(rates.lock().expect("no run panics"), is_too_much).expect("no run panics") += rate;
                let (rates, fewer) = (&rates, &fewer);
                playing.push(scope.spawn(move || {
                    keep_to_core(index);
                    let run = self.play(path, buffer, round);
                    *rates.lock().expect("no run panics") -= rate;
                    fewer.notify_one();
                    run
                }));
            }
            playing.into_iter().map(|run| run.join().expect("no run panics")).collect()
        })
    }

    fn play(&self, path: &BufferPath, buffer: &str, round: u64) -> Result<BufferRun> {
        let mut run = BufferRun::of(path, buffer, round, &play_once(path, buffer, round)?);
        for _ in 1..TRIES {
            if run.valid {
                break;
            }
            run = BufferRun::of(path, buffer, round, &play_once(path, buffer, round)?);
        }
        eprintln!("{run:?}");
        self.resume.append(slice::from_ref(&run))?;
        Ok(run)
    }
}

/// Keeps this thread, and those that it starts, on one core: a run's threads wake each other for
/// every packet.
fn keep_to_core(index: usize) {
    let Ok(usable) = sched_getaffinity(None) else { return };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| usable.is_set(*core)).collect();
    if let Some(core) = cores.get(index % cores.len().max(1)) {
        let mut set = CpuSet::new();
        set.set(*core);
        // Without permission the runs are only slower.
        let _ = sched_setaffinity(None, &set);
    }
}

fn play_once(path: &BufferPath, buffer: &str, seed: u64) -> Result<Outcome> {
    let open = |name: &str| {
        let text: &'static str = match name {
            "lte-steps.csv" => include_str!("../../../scenarios/lte-steps.csv"),
            "starlink-steps.csv" => include_str!("../../../scenarios/starlink-steps.csv"),
            _ => return Err(std::io::ErrorKind::NotFound.into()),
        };
        Ok(Box::new(text.as_bytes()) as Box<dyn BufRead>)
    };
    let variant = ScenarioFile::parse_with(&scenario(path, buffer), "buffer-auto", Arc::new(open))?.variants(&[])?.remove(0);
    Ok(Lab::default().run(&variant.scenario, seed, &())?)
}

/// The scenario file of a run: a download, in which the proxy dials the leg that fills its buffer.
fn scenario(path: &BufferPath, buffer: &str) -> String {
    let BufferPath { links: [first, second], controls: [sender, proxy], seconds, .. } = path;
    format!(
        "name = \"buffer-auto\"\nduration = \"{seconds}s\"\n[[link]]\n{first}\n[[link]]\n{second}\n\
         [[split]]\nafter = 1\nbuffer = \"{buffer}\"\n[control]\nsender = \"{sender}\"\nproxy = \"{proxy}\"\n[[flow]]\nopens = \"receiver\"\n"
    )
}

impl BufferRun {
    fn of(path: &BufferPath, buffer: &str, round: u64, outcome: &Outcome) -> Self {
        let proxy = outcome.proxy.as_ref();
        BufferRun {
            path: path.name.into(),
            buffer: buffer.into(),
            round,
            valid: outcome.valid,
            goodput_bps: outcome.goodput_bps,
            held_mean_bytes: proxy.map_or(0.0, |proxy| proxy.buffer_bytes.mean),
            held_max_bytes: proxy.map_or(0.0, |proxy| proxy.buffer_bytes.max),
            delay_s: proxy.map_or(0.0, |proxy| proxy.delay_s.mean),
            overruns: proxy.and_then(|proxy| proxy.receive_overruns).unwrap_or(0),
        }
    }
}

/// The median of a figure over the rounds.
fn median(runs: &[BufferRun], path: &str, buffer: &str, figure: impl Fn(&BufferRun) -> f64) -> f64 {
    let mut figures: Vec<f64> = runs.iter().filter(|run| run.path == path && run.buffer == buffer).map(figure).collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

/// The smallest fixed buffer whose rate is that of the best fixed one but for the goal.
fn sufficient<'a>(runs: &'a [BufferRun], path: &str) -> Option<(&'a str, f64)> {
    let mut fixed: Vec<&BufferRun> = runs.iter().filter(|run| run.path == path && run.buffer != AUTO).collect();
    fixed.sort_by_key(|run| run.buffer.parse::<Bytes>().unwrap_or_default());
    let rate = |run: &BufferRun| median(runs, path, &run.buffer, |run| run.goodput_bps);
    let best = fixed.iter().map(|run| rate(run)).fold(0.0, f64::max);
    fixed.iter().find(|run| rate(run) >= LEAST_RATE * best).map(|run| (&*run.buffer, best))
}

/// What the buffer that follows the flow reaches on each path, beside the goals.
fn goals(paths: &[&BufferPath], runs: &[BufferRun]) -> SampleTable {
    let columns = vec![
        SampleColumn::text("enough, fixed"),
        SampleColumn::new("rate, auto", "Mbit/s", 2),
        SampleColumn::new("of the best fixed", "%", 1),
        SampleColumn::new("held, auto", "kB", 0),
        SampleColumn::new("held, 4 MiB", "kB", 0),
        SampleColumn::new("delay, auto", "ms", 1),
        SampleColumn::new("delay, 4 MiB", "ms", 1),
        SampleColumn::text("goals"),
    ];
    let mut table = SampleTable::new("goals", "path", columns);
    for path in paths {
        let Some((enough, best)) = sufficient(runs, path.name) else { continue };
        let row = table.row(path.name);
        row.set("enough, fixed", enough);
        for run in runs.iter().filter(|run| run.path == path.name) {
            let at = run.round as usize - 1;
            match run.buffer.as_str() {
                AUTO => {
                    row.add("rate, auto", at, run.goodput_bps / 1e6);
                    row.add("of the best fixed", at, 100.0 * run.goodput_bps / best);
                    row.add("held, auto", at, run.held_mean_bytes / 1e3);
                    row.add("delay, auto", at, run.delay_s * 1e3);
                }
                LARGE => {
                    row.add("held, 4 MiB", at, run.held_mean_bytes / 1e3);
                    row.add("delay, 4 MiB", at, run.delay_s * 1e3);
                }
                _ => {}
            }
        }
        let of = |buffer: &str, figure: fn(&BufferRun) -> f64| median(runs, path.name, buffer, figure);
        let reaches_rate = of(AUTO, |run| run.goodput_bps) >= LEAST_RATE * best;
        let large = of(LARGE, |run| run.held_mean_bytes);
        let is_too_much = enough.parse::<Bytes>().is_ok_and(|enough| enough.0 < 4 << 20) && large > LITTLE;
        let saves = of(AUTO, |run| run.held_mean_bytes) <= MOST_HELD * large;
        let verdict = match (reaches_rate, !is_too_much || saves) {
            (true, true) => "reached",
            (true, false) => "memory is missed",
            (false, true) => "rate is missed",
            (false, false) => "both are missed",
        };
        row.set("goals", verdict);
    }
    table
}

/// All figures.
fn figures(paths: &[&BufferPath], buffers: &[String], runs: &[BufferRun]) -> SampleTable {
    let columns = vec![
        SampleColumn::new("rate", "Mbit/s", 2),
        SampleColumn::new("held", "kB", 0),
        SampleColumn::new("at most", "kB", 0),
        SampleColumn::new("delay", "ms", 1),
    ];
    let mut table = SampleTable::new("figures", "path, buffer", columns);
    for path in paths {
        for buffer in buffers {
            let row = table.row(&format!("{}, {}", path.name, if buffer == AUTO { "auto" } else { buffer }));
            for run in runs.iter().filter(|run| run.path == path.name && run.buffer == *buffer) {
                let at = run.round as usize - 1;
                row.add("rate", at, run.goodput_bps / 1e6);
                row.add("held", at, run.held_mean_bytes / 1e3);
                row.add("at most", at, run.held_max_bytes / 1e3);
                row.add("delay", at, run.delay_s * 1e3);
            }
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lab_can_play_every_path() {
        for path in &PATHS {
            let text = scenario(path, AUTO);
            let open = |_: &str| Ok(Box::new("0, 10Mbit\n".as_bytes()) as Box<dyn BufRead>);
            let parsed = ScenarioFile::parse_with(&text, path.name, Arc::new(open));
            // The steps of the recorded links are read by `play_once`.
            if path.links.iter().any(|link| link.contains("steps")) {
                continue;
            }
            let variant = parsed.unwrap().variants(&[]).unwrap().remove(0);
            assert!(Lab::default().can_answer(&variant.scenario).is_ok(), "{}", path.name);
        }
    }

    fn run(buffer: &str, rate: f64, held: f64) -> BufferRun {
        let path = PATHS[0].name.into();
        BufferRun {
            path,
            buffer: buffer.into(),
            round: 1,
            valid: true,
            goodput_bps: rate,
            held_mean_bytes: held,
            held_max_bytes: held,
            delay_s: 0.0,
            overruns: 0,
        }
    }

    #[test]
    fn memory_counts_where_a_smaller_buffer_has_the_rate() {
        let verdict = |runs: &[BufferRun]| serde_json::to_value(&goals(&[&PATHS[0]], runs).rows[0].cells["goals"]).unwrap();
        let small_is_enough = [run("64KiB", 9.9e6, 5e4), run("4MiB", 10e6, 3e6)];
        let with = |fixed: &[BufferRun; 2], auto: BufferRun| verdict(&[fixed.as_slice(), &[auto]].concat());
        assert_eq!(with(&small_is_enough, run(AUTO, 9.9e6, 1e6)), "reached");
        assert_eq!(with(&small_is_enough, run(AUTO, 9.9e6, 2e6)), "memory is missed");
        assert_eq!(with(&small_is_enough, run(AUTO, 9.0e6, 1e6)), "rate is missed");
        let large_is_needed = [run("64KiB", 2e6, 5e4), run("4MiB", 10e6, 3e6)];
        assert_eq!(with(&large_is_needed, run(AUTO, 12e6, 4e6)), "reached");
    }
}
