//! Whether the interval of the proxy's experiment covers the true gain.
//!
//! Downloads over an emulated satellite link whose gateway runs the proxy. The true gain is known
//! from runs in which all connections are split, and runs in which all pass unsplit, timed by the
//! clients themselves. Then the experiment is repeated, each time with a new proxy, and its
//! intervals are compared with the true gain.
//!
//! The link is far from full: otherwise split downloads would take capacity from unsplit ones, and
//! the gain in runs of one kind alone would be another one than in a mixture.

use crate::{resume_file::ResumeFile, workers::in_parallel};
use anyhow::{Context as _, Result, ensure};
use lab::{Host, NetworkOptions, SeriesNetwork};
use measurements::{MeasurementRecord, SampleColumn, SampleStatistic, SampleTable};
use scenario::ScenarioFile;
use serde::{Deserialize, Serialize};
use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    slice, thread,
    time::{Duration, Instant},
};
use testbed::SplitMix64;

/// The network: a short link from the server to the gateway, a satellite link to the clients, which
/// loses packets on this way.
const NETWORK: &str = "name = \"experiment\"\n\
    [[link]]\nrate = \"100Mbit\"\ndelay = \"10ms\"\n\
    [[link]]\nrate = \"50Mbit\"\ndelay = \"300ms\"\nloss = { per_packet = 0.005 }\n[[flow]]\nbytes = \"1B\"\n";
/// What is downloaded, bytes: each size is in a class of its own.
const SIZES: [usize; 2] = [60_000, 400_000];
/// The classes, as the proxy names them; all together first.
const CLASSES: [&str; 3] = ["all", "<100kB", "<1MB"];
const PORT: u16 = 80;
/// Time limit for what takes seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// Repeats the proxy's experiment on an emulated satellite link, and counts how often its interval
/// covers the true gain
#[derive(Debug, clap::Args)]
pub(crate) struct ExperimentCoverage {
    /// Repetitions of the experiment
    #[arg(long, default_value_t = 20)]
    runs: u64,
    /// Downloads of each repetition, of which the experiment lets half pass unsplit
    #[arg(long, default_value_t = 48)]
    flows: usize,
    /// Runs of each kind, all split and all unsplit, that give the true gain
    #[arg(long, default_value_t = 6)]
    truths: u64,
    /// Runs at the same time, each with a network of its own
    #[arg(long, default_value_t = 4)]
    jobs: usize,
    /// Time within which the downloads of a run begin
    #[arg(long, default_value_t = 40.0, value_name = "SECONDS")]
    within: f64,
    /// Profile of the proxy's leg over the satellite, as `tandem proxy --near` takes it
    #[arg(long, default_value = "control=share,capacity=50Mbit,link=link2")]
    near: String,
    #[command(flatten)]
    resume: ResumeFile,
    /// The tandem program
    #[arg(long, default_value = "tandem")]
    tandem: PathBuf,
}

/// What becomes of the connections of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RunKind {
    Split,
    Unsplit,
    Experiment,
}

/// A run, and what came of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct CoverageRun {
    kind: RunKind,
    number: u64,
    /// The clients' own times: index of the size, seconds.
    times: Vec<(usize, f64)>,
    /// Gain, lower and upper end by class, of an experiment.
    gains: Vec<Option<[f64; 3]>>,
}

/// The part of the proxy's answer that is compared.
#[derive(Debug, Deserialize)]
struct View {
    rows: Vec<ViewRow>,
}

#[derive(Debug, Deserialize)]
struct ViewRow {
    prefix: Option<String>,
    size: Option<String>,
    unsplit: u64,
    split: u64,
    gain: Option<ViewGain>,
}

#[derive(Debug, Deserialize)]
struct ViewGain {
    ratio: f64,
    low: f64,
    high: f64,
}

impl ExperimentCoverage {
    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<()> {
        record.rounds = self.runs;
        let kinds = [(RunKind::Split, self.truths), (RunKind::Unsplit, self.truths), (RunKind::Experiment, self.runs)];
        // In turn, so that a change of the machine's load meets all kinds.
        let rounds = 0..kinds.iter().map(|(_, count)| *count).max().unwrap_or(0);
        let all: Vec<(RunKind, u64)> =
            rounds.flat_map(|number| kinds.map(|(kind, count)| (kind, number, count))).filter_map(wanted).collect();
        let mut runs: Vec<CoverageRun> = self.resume.runs()?;
        runs.retain(|run| all.contains(&(run.kind, run.number)));
        let is_missing = |wanted: &&(RunKind, u64)| !runs.iter().any(|run| (run.kind, run.number) == **wanted);
        let missing: Vec<(RunKind, u64)> = all.iter().filter(is_missing).copied().collect();
        runs.extend(in_parallel(self.jobs, &missing, |(kind, number)| {
            let run = self.play(*kind, *number)?;
            self.resume.append(slice::from_ref(&run))?;
            Ok(run)
        })?);
        fill(record, &runs)
    }

    fn play(&self, kind: RunKind, number: u64) -> Result<CoverageRun> {
        let run = self.once(kind, number).with_context(|| format!("{kind:?}, run {number}"))?;
        eprintln!("{kind:?} {number}: mean times {:.2?} s, gains {:.2?}", means(&run.times), run.gains);
        Ok(run)
    }

    fn once(&self, kind: RunKind, number: u64) -> Result<CoverageRun> {
        let variant = ScenarioFile::parse(NETWORK, "experiment")?.variants(&[])?.remove(0);
        // Each run has losses of its own.
        let seed = number * 3 + kind as u64 + 1;
        let network = SeriesNetwork::build(&variant.scenario, seed, &NetworkOptions::default(), |_, _| {})?;
        serve(network.sender())?;
        let gateway = &network.hosts()[1];
        let arguments = match kind {
            RunKind::Split => Some(&[][..]),
            RunKind::Unsplit => None,
            RunKind::Experiment => Some(&["--experiment", "1 in 2"][..]),
        };
        let proxy = arguments.map(|arguments| RunningProxy::start(&testbed::resolve_program(&self.tandem), gateway, &self.near, arguments));
        let proxy = proxy.transpose()?;
        let mut random = SplitMix64::new(seed);
        let server = network.sender_addresses()[(number % 2) as usize];
        let plan: Vec<(usize, Duration)> = (0..self.flows)
            .map(|flow| (flow % SIZES.len(), Duration::from_secs_f64(self.within).mul_f64(random.uniform(0, 1_000_000) as f64 / 1e6)))
            .collect();
        let client = network.receiver();
        let times = thread::scope(|scope| {
            let downloads: Vec<_> =
                plan.into_iter().map(|(size, start)| scope.spawn(move || download(client, server, size, start))).collect();
            downloads.into_iter().map(|download| download.join().expect("no download panics")).collect::<Result<Vec<_>>>()
        })?;
        let gains = match (&proxy, kind) {
            (Some(proxy), RunKind::Experiment) => proxy.gains(self.flows as u64)?,
            _ => Vec::new(),
        };
        Ok(CoverageRun { kind, number, times, gains })
    }
}

/// A run that is to be played, of `(kind, number, count)`.
fn wanted((kind, number, count): (RunKind, u64, u64)) -> Option<(RunKind, u64)> {
    (number < count).then_some((kind, number))
}

/// Serves as many bytes as a client asks for.
fn serve(host: &Host) -> Result<()> {
    let listener = host.enter(|| TcpListener::bind(("::", PORT)))??;
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut index = [0];
                client.read_exact(&mut index)?;
                client.write_all(&vec![7; SIZES[usize::from(index[0]) % SIZES.len()]])
            });
        }
    });
    Ok(())
}

/// Downloads, and returns the size and the time from the call of connect to the last byte.
fn download(client: &Host, server: IpAddr, size: usize, start: Duration) -> Result<(usize, f64)> {
    client.enter(|| {
        thread::sleep(start);
        let begun = Instant::now();
        let mut stream = TcpStream::connect_timeout(&SocketAddr::new(server, PORT), PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&[size as u8])?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        ensure!(bytes.len() == SIZES[size], "{} of {} bytes", bytes.len(), SIZES[size]);
        Ok((size, begun.elapsed().as_secs_f64()))
    })?
}

/// The proxy on the gateway, killed when dropped.
struct RunningProxy<'a> {
    gateway: &'a Host,
    tandem: PathBuf,
    child: Child,
}

impl<'a> RunningProxy<'a> {
    fn start(tandem: &Path, gateway: &'a Host, near: &str, arguments: &[&str]) -> Result<Self> {
        let mut command = gateway.command(&tandem.to_string_lossy());
        command.args(["proxy", "--listen", "transparent=[::]:5000", "--near", near]).args(arguments);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("cannot run tandem")?;
        let proxy = RunningProxy { gateway, tandem: tandem.to_owned(), child };
        let begun = Instant::now();
        while proxy.ask("flows").is_err() {
            ensure!(begun.elapsed() < PATIENCE, "the proxy does not answer");
            thread::sleep(Duration::from_millis(50));
        }
        Ok(proxy)
    }

    /// What a command prints as JSON.
    fn ask(&self, command: &str) -> Result<Vec<u8>> {
        let output = self.gateway.command(&self.tandem.to_string_lossy()).args([command, "--json"]).output()?;
        ensure!(output.status.success(), "tandem {command}: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(output.stdout)
    }

    /// The gains of an experiment, by class, when it has so many connections.
    fn gains(&self, flows: u64) -> Result<Vec<Option<[f64; 3]>>> {
        let begun = Instant::now();
        loop {
            let answer = self.ask("experiment")?;
            let view: View = serde_json::from_slice(&answer)?;
            let row = |class: &str| view.rows.iter().find(|row| row.prefix.is_none() && row.size.as_deref().unwrap_or("all") == class);
            let complete = row("all").map_or(0, |row| row.unsplit + row.split);
            if complete == flows {
                let gain = |class| row(class)?.gain.as_ref().map(|gain| [gain.ratio, gain.low, gain.high]);
                return Ok(CLASSES.map(gain).into());
            }
            let said = String::from_utf8_lossy(&answer);
            ensure!(begun.elapsed() < PATIENCE, "{complete} of {flows} connections have a time: {}", said.trim());
            thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for RunningProxy<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Mean logarithm of the times of each size.
fn log_means(times: &[(usize, f64)]) -> [f64; SIZES.len()] {
    std::array::from_fn(|size| {
        let logs: Vec<f64> = times.iter().filter(|(of, _)| *of == size).map(|(_, time)| time.ln()).collect();
        logs.iter().sum::<f64>() / logs.len() as f64
    })
}

/// Geometric mean of the times of each size, seconds.
fn means(times: &[(usize, f64)]) -> [f64; SIZES.len()] {
    log_means(times).map(f64::exp)
}

/// Writes the tables: the true gain and how often it is covered, by class.
fn fill(record: &mut MeasurementRecord, runs: &[CoverageRun]) -> Result<()> {
    let of = |kind| runs.iter().filter(move |run| run.kind == kind);
    let times = |kind| of(kind).flat_map(|run| run.times.iter().copied()).collect::<Vec<_>>();
    let (split, unsplit) = (times(RunKind::Split), times(RunKind::Unsplit));
    let differences: Vec<f64> = log_means(&unsplit).iter().zip(log_means(&split)).map(|(unsplit, split)| unsplit - split).collect();
    // Both sizes are downloaded equally often.
    let all = differences.iter().sum::<f64>() / differences.len() as f64;
    let truths: Vec<f64> = std::iter::once(all).chain(differences).map(f64::exp).collect();
    let columns = vec![
        SampleColumn::new("true gain", "", 2),
        SampleColumn::new("gain", "", 2).with(SampleStatistic::Mean),
        SampleColumn::new("width of the interval", "%", 0),
        SampleColumn::new("covered", "", 0).with(SampleStatistic::Sum),
        SampleColumn::new("of", "", 0).with(SampleStatistic::Sum),
    ];
    let mut table = SampleTable::new("coverage", "size", columns);
    for (index, (class, truth)) in CLASSES.iter().zip(&truths).enumerate() {
        let row = table.row(class);
        row.add("true gain", 0, *truth);
        for (round, run) in of(RunKind::Experiment).enumerate() {
            let Some([gain, low, high]) = run.gains.get(index).copied().flatten() else { continue };
            row.add("gain", round, gain);
            row.add("width of the interval", round, (high / low - 1.0) * 100.0);
            row.add("covered", round, f64::from(u8::from(low <= *truth && *truth <= high)));
            row.add("of", round, 1.0);
        }
    }
    let [unsplit_s, split_s] = [means(&unsplit), means(&split)];
    record.tables.push(table);
    record.notes.push(format!(
        "The true gain is of {} unsplit and {} split downloads, timed by the clients: {:.2} s and {:.2} s for 60 kB, {:.2} s and {:.2} s for \
         400 kB (geometric means).",
        unsplit.len(),
        split.len(),
        unsplit_s[0],
        split_s[0],
        unsplit_s[1],
        split_s[1]
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_true_gain_and_how_often_it_is_covered_are_counted_by_class() {
        let run = |kind, times: &[(usize, f64)], gains: Vec<Option<[f64; 3]>>| CoverageRun { kind, number: 0, times: times.into(), gains };
        let runs = [
            run(RunKind::Unsplit, &[(0, 4.0), (1, 16.0)], Vec::new()),
            run(RunKind::Split, &[(0, 2.0), (1, 2.0)], Vec::new()),
            run(RunKind::Experiment, &[], vec![Some([4.1, 3.9, 4.2]), Some([2.0, 1.0, 1.9]), None]),
        ];
        let mut record = MeasurementRecord::default();
        fill(&mut record, &runs).unwrap();
        let cell = |row: &str, column: &str| match &record.tables[0].rows.iter().find(|it| it.name == row).unwrap().cells.get(column) {
            Some(measurements::SampleCell::Samples(samples)) => samples[0].unwrap(),
            other => panic!("{other:?}"),
        };
        assert!((cell("all", "true gain") - 4.0).abs() < 1e-9 && (cell("<1MB", "true gain") - 8.0).abs() < 1e-9);
        assert_eq!((cell("all", "covered"), cell("<100kB", "covered")), (1.0, 0.0));
    }
}
