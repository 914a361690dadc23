//! Flows over links with recorded rates, which change many times a second, and over a link with a
//! constant rate, in the simulator: controllers end to end and split, `share` with the mean rate,
//! half or twice as much as its capacity, and `share` with an estimated capacity.

use crate::{resume_file::ResumeFile, workers::in_parallel};
use anyhow::{Context as _, Result, bail};
use flate2::read::GzDecoder;
use measurements::{MeasurementRecord, SampleColumn, SampleTable};
use outcome::{Engine as _, Outcome};
use scenario::{DeliveryTrace, ScenarioFile};
use serde::{Deserialize, Serialize};
use sim::Sim;
use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, File},
    io::{BufRead, BufReader, Read as _},
    path::{Path, PathBuf},
    slice,
    sync::Arc,
};
use units::{Bytes, Rate, Span};

/// Payload of a packet of 1500 bytes, with timestamps.
const PAYLOAD: f64 = 1448.0;
/// Bytes of an opportunity of a trace.
const OPPORTUNITY: f64 = 1500.0;
/// Goal of an estimated capacity: this share of BBR's throughput …
const LEAST_THROUGHPUT: f64 = 0.95;
/// … at most at this share of its queueing delay …
const MOST_DELAY: f64 = 0.5;
/// … and this fairness among five flows.
const LEAST_JAIN: f64 = 0.98;

/// Plays flows over recorded links, with each controller end to end and split, in the simulator
#[derive(Debug, clap::Args)]
pub(crate) struct VaryingLinks {
    /// Directory of traces in mahimahi's format: NAME.down and NAME.up, plain or compressed (.gz)
    #[arg(long, value_name = "DIRECTORY")]
    traces: PathBuf,
    /// Duration of a run
    #[arg(long, default_value = "60s", value_name = "TIME")]
    duration: Span,
    /// Runs of each setting, each with other losses
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Runs in parallel
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    #[command(flatten)]
    resume: ResumeFile,
}

/// A sender, and what stands between it and the recorded link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct VaryingCase {
    name: &'static str,
    /// The controller of the recorded link.
    control: &'static str,
    path: VaryingPath,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VaryingPath {
    EndToEnd,
    Split,
    /// Split, with this percentage of the trace's mean rate as the capacity.
    Told(u64),
    /// Split, with an estimated capacity.
    Estimated,
}

/// The controllers that are played end to end and split.
const CONTROLLERS: [&str; 4] = ["cubic", "bbr", "bbr3", "vegas"];
/// The case that sets the goal, and the one that is to reach it.
const REFERENCE: &str = "bbr";
const ESTIMATED: &str = "share, capacity estimated";
/// The cases that are told a capacity, and the percentage of the mean rate.
const TOLD: [(&str, u64); 3] = [("share, told half the mean", 50), ("share, told the mean", 100), ("share, told twice the mean", 200)];
/// What a told capacity is to carry at least of what an estimated one does.
const LEAST_TOLD: f64 = 0.9;

fn cases() -> Vec<VaryingCase> {
    let split = ["cubic, split", "bbr, split", "bbr3, split", "vegas, split"];
    let end_to_end = CONTROLLERS.map(|control| VaryingCase { name: control, control, path: VaryingPath::EndToEnd });
    let split = split.into_iter().zip(CONTROLLERS).map(|(name, control)| VaryingCase { name, control, path: VaryingPath::Split });
    let told = TOLD.map(|(name, percent)| VaryingCase { name, control: "share", path: VaryingPath::Told(percent) });
    let estimated = VaryingCase { name: ESTIMATED, control: "share", path: VaryingPath::Estimated };
    end_to_end.into_iter().chain(split).chain(told).chain([estimated]).collect()
}

/// A recorded direction of a link, or a constant link in the same form.
#[derive(Debug)]
struct RecordedLink {
    /// Name and direction.
    name: String,
    is_constant: bool,
    /// The files of the data's direction and of the ACKs'.
    files: [PathBuf; 2],
    /// Packets of 1500 bytes that may leave in a run.
    opportunities: u64,
}

/// What is played, besides the case.
#[derive(Debug, Clone, Copy)]
struct VaryingSetting<'a> {
    link: &'a RecordedLink,
    flows: u64,
    /// The base RTT, ms.
    rtt_ms: u64,
    /// The queue before the link, ms at its mean rate.
    buffer_ms: u64,
    /// Random loss, %.
    loss_percent: u64,
    /// Whether a client loads pages beside a flow.
    has_pages: bool,
}

impl fmt::Display for VaryingSetting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VaryingSetting { link, flows, rtt_ms, buffer_ms, loss_percent, has_pages } = self;
        let many = if *flows == 1 { "" } else { "s" };
        write!(f, "{}, {rtt_ms} ms, {flows} flow{many}, buffer {buffer_ms} ms, loss {loss_percent} %", link.name)?;
        if *has_pages { write!(f, ", pages") } else { Ok(()) }
    }
}

/// The result of a run, a line of the file of results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct VaryingResult {
    setting: String,
    case: String,
    seed: u64,
    /// Of what the trace could have carried.
    throughput_percent: f64,
    /// 95th percentile of the time in the queue.
    delay_p95_ms: f64,
    jain: Option<f64>,
    page_p50_s: Option<f64>,
}

impl VaryingLinks {
    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<()> {
        record.rounds = self.seeds;
        let unpacked = tempfile::tempdir().context("cannot make a directory for the traces")?;
        let mut links = self.links(unpacked.path())?;
        links.push(self.constant_link(&unpacked.path().join("constant"))?);
        let settings: Vec<VaryingSetting<'_>> = links.iter().flat_map(settings).collect();
        let results = self.play_all(&settings)?;
        record.notes.push(format!("The simulator, {} s a run.", self.duration.secs()));
        let on_recorded: Vec<VaryingSetting<'_>> = settings.iter().copied().filter(|setting| !setting.link.is_constant).collect();
        record.tables =
            vec![summary(&on_recorded, &results), goals(&on_recorded, &results), pages(&on_recorded, &results), told(&settings, &results)];
        Ok(())
    }

    /// A link of 12 Mbit/s: a packet each millisecond.
    fn constant_link(&self, file: &Path) -> Result<RecordedLink> {
        fs::write(file, "1\n").with_context(|| format!("cannot write {}", file.display()))?;
        let opportunities = DeliveryTrace::read(BufReader::new(File::open(file)?))?.count_between(Span::ZERO, self.duration);
        Ok(RecordedLink { name: "constant".into(), is_constant: true, files: [file.into(), file.into()], opportunities })
    }

    /// Both directions of every trace in the directory.
    fn links(&self, unpacked: &Path) -> Result<Vec<RecordedLink>> {
        let mut files: BTreeMap<String, PathBuf> = BTreeMap::new();
        let listed = fs::read_dir(&self.traces).with_context(|| format!("cannot list the traces in {}", self.traces.display()))?;
        for entry in listed {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().trim_end_matches(".gz").to_owned();
            if name.ends_with(".down") || name.ends_with(".up") {
                files.insert(name.clone(), plain(&path, &unpacked.join(&name))?);
            }
        }
        let mut links = Vec::new();
        for (file, path) in &files {
            let (name, direction) = file.rsplit_once('.').context("each name ends in a direction")?;
            let other = if direction == "down" { "up" } else { "down" };
            let Some(reverse) = files.get(&format!("{name}.{other}")) else {
                bail!("cannot play {}: {} has no {name}.{other}", path.display(), self.traces.display())
            };
            let trace =
                DeliveryTrace::read(BufReader::new(File::open(path)?)).with_context(|| format!("cannot read {}", path.display()))?;
            let opportunities = trace.count_between(Span::ZERO, self.duration);
            let name = format!("{name}, {direction}");
            links.push(RecordedLink { name, is_constant: false, files: [path.clone(), reverse.clone()], opportunities });
        }
        if links.is_empty() {
            bail!("there are no traces in {}: it needs files NAME.down and NAME.up", self.traces.display());
        }
        Ok(links)
    }

    /// Plays every setting with every case, except for those whose result is there already.
    fn play_all(&self, settings: &[VaryingSetting<'_>]) -> Result<Vec<VaryingResult>> {
        let mut results: Vec<VaryingResult> = self.resume.runs()?;
        let cases = cases();
        let mut runs = Vec::new();
        for setting in settings {
            for case in &cases {
                for seed in 1..=self.seeds {
                    let name = setting.to_string();
                    let is_there = |result: &&VaryingResult| result.setting == name && result.case == case.name && result.seed == seed;
                    if !results.iter().any(|result| is_there(&result)) {
                        runs.push((*setting, *case, seed));
                    }
                }
            }
        }
        results.extend(in_parallel(self.jobs, &runs, |(setting, case, seed)| {
            let result = self.play(setting, *case, *seed).with_context(|| format!("{setting}: {}", case.name))?;
            self.resume.append(slice::from_ref(&result))?;
            Ok(result)
        })?);
        Ok(results)
    }

    fn play(&self, setting: &VaryingSetting<'_>, case: VaryingCase, seed: u64) -> Result<VaryingResult> {
        let text = self.scenario(setting, case);
        let open = |path: &str| Ok(Box::new(BufReader::new(File::open(path)?)) as Box<dyn BufRead>);
        let scenario = ScenarioFile::parse_with(&text, "varying", Arc::new(open))?.variants(&[])?.remove(0).scenario;
        let outcome: Outcome = Sim::default().run(&scenario, seed, &())?;
        let could = setting.link.opportunities as f64 * PAYLOAD * 8.0 / self.duration.secs();
        let link = outcome.links.last().context("the scenario has links")?;
        Ok(VaryingResult {
            setting: setting.to_string(),
            case: case.name.into(),
            seed,
            throughput_percent: 100.0 * outcome.goodput_bps / could,
            delay_p95_ms: 1e3 * link.queue_delay_p95_s.context("packets have crossed the link")?,
            jain: outcome.jain.filter(|_| setting.flows > 1),
            page_p50_s: outcome.page_load_s.map(|load| load.p50),
        })
    }

    /// The scenario file of a run.
    fn scenario(&self, setting: &VaryingSetting<'_>, case: VaryingCase) -> String {
        let mean = Rate((setting.link.opportunities as f64 * OPPORTUNITY * 8.0 / self.duration.secs()) as u64);
        // At least two packets.
        let queue = mean.bytes_in(Span(setting.buffer_ms * 1_000_000)).max(Bytes(3000));
        let loss =
            if setting.loss_percent > 0 { format!("loss = {{ per_packet = \"{}%\" }}\n", setting.loss_percent) } else { String::new() };
        let [data, acks] = setting.link.files.each_ref().map(|file| file.display().to_string());
        let split = match case.path {
            VaryingPath::EndToEnd => format!("[control]\nsender = \"{}\"\n", case.control),
            path => {
                let capacity = match path {
                    VaryingPath::Told(percent) => format!("capacity = \"{}\"\n", Rate(mean.0 * percent / 100)),
                    VaryingPath::Estimated => "capacity = \"auto\"\n".into(),
                    _ => String::new(),
                };
                format!("[[split]]\nafter = 1\n{capacity}[control]\nsender = \"cubic\"\nproxy = \"{}\"\n", case.control)
            }
        };
        let mut text = format!(
            "name = \"varying\"\nduration = \"{}\"\n[[link]]\nrate = \"1Gbit\"\ndelay = \"1ms\"\n[[link]]\n\
             trace = {{ down = {data:?}, up = {acks:?} }}\ndelay = \"{}ms\"\nqueue = \"{queue}\"\n{loss}{split}[[flow]]\ncount = {}\n",
            self.duration,
            setting.rtt_ms / 2 - 1,
            setting.flows
        );
        if setting.has_pages {
            text += PAGE;
        }
        text
    }
}

/// A page of 24 objects and 1.2 MB, loaded over and over.
const PAGE: &str = r#"
[[page]]
loads = 8
think = "1s"
request = "500B"
[[page.object]]
name = "html"
size = "60kB"
[[page.object]]
name = "style"
size = "40kB"
count = 3
needs = ["html"]
[[page.object]]
size = "50kB"
count = 20
needs = ["style"]
"#;

/// The path of the trace as plain text; a compressed one is unpacked to `to`.
fn plain(path: &Path, to: &Path) -> Result<PathBuf> {
    if path.extension().is_none_or(|extension| extension != "gz") {
        return Ok(path.to_owned());
    }
    let mut text = String::new();
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    GzDecoder::new(file).read_to_string(&mut text).with_context(|| format!("cannot unpack {}", path.display()))?;
    fs::write(to, text).with_context(|| format!("cannot write {}", to.display()))?;
    Ok(to.to_owned())
}

/// What is played over a link.
fn settings(link: &RecordedLink) -> Vec<VaryingSetting<'_>> {
    let mut settings = Vec::new();
    for rtt_ms in [40, 600] {
        for flows in [1, 5] {
            for buffer_ms in [50, 1000] {
                for loss_percent in [0, 1] {
                    settings.push(VaryingSetting { link, flows, rtt_ms, buffer_ms, loss_percent, has_pages: false });
                }
            }
        }
    }
    settings.push(VaryingSetting { link, flows: 1, rtt_ms: 40, buffer_ms: 1000, loss_percent: 0, has_pages: true });
    settings
}

const THROUGHPUT: &str = "throughput";
const DELAY: &str = "queueing delay, 95 %";
const JAIN: &str = "Jain, five flows";
const PAGE_LOAD: &str = "page load, median";

/// Every case over all settings.
fn summary(settings: &[VaryingSetting<'_>], results: &[VaryingResult]) -> SampleTable {
    let columns =
        vec![SampleColumn::new(THROUGHPUT, "% of the trace's bytes", 0), SampleColumn::new(DELAY, "ms", 0), SampleColumn::new(JAIN, "", 3)];
    let mut table = SampleTable::new("summary", "", columns);
    for case in cases() {
        let row = table.row(case.name);
        let names = settings.iter().filter(|setting| !setting.has_pages).map(ToString::to_string);
        for (at, result) in names.flat_map(|name| of(results, &name, case.name)).enumerate() {
            row.add(THROUGHPUT, at, result.throughput_percent);
            row.add(DELAY, at, result.delay_p95_ms);
            if let Some(jain) = result.jain {
                row.add(JAIN, at, jain);
            }
        }
    }
    // A sender that knows when each packet may leave lets it arrive then.
    let ideal = table.row("a sender that knows the trace");
    ideal.add(THROUGHPUT, 0, 100.0);
    ideal.add(DELAY, 0, 0.0);
    ideal.add(JAIN, 0, 1.0);
    table
}

/// The results of a setting and a case, over the seeds.
fn of<'a>(results: &'a [VaryingResult], setting: &str, case: &str) -> Vec<&'a VaryingResult> {
    results.iter().filter(|result| result.setting == setting && result.case == case).collect()
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// An estimated capacity beside BBR end to end: for each link, RTT and buffer the settings of
/// flows and losses, and how many of them reach the goal.
fn goals(settings: &[VaryingSetting<'_>], results: &[VaryingResult]) -> SampleTable {
    const RATE_RATIO: &str = "throughput ÷ BBR's";
    const DELAY_RATIO: &str = "delay ÷ BBR's";
    let columns = vec![
        SampleColumn::new(RATE_RATIO, "", 2),
        SampleColumn::new(DELAY_RATIO, "", 2),
        SampleColumn::new(JAIN, "", 3),
        SampleColumn::text("goal reached"),
    ];
    let mut table = SampleTable::new("goals", "link, RTT, buffer", columns);
    let mut counts: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    for setting in settings.iter().filter(|setting| !setting.has_pages) {
        let name = setting.to_string();
        let group = format!("{}, {} ms, {} ms", setting.link.name, setting.rtt_ms, setting.buffer_ms);
        let (reference, estimated) = (of(results, &name, REFERENCE), of(results, &name, ESTIMATED));
        let Some(ratios) = GoalRatios::of(&reference, &estimated) else { continue };
        let [reached, settings] = counts.entry(group.clone()).or_default();
        *reached += usize::from(ratios.is_reached());
        *settings += 1;
        let row = table.row(&group);
        row.add(RATE_RATIO, *settings - 1, ratios.throughput);
        row.add(DELAY_RATIO, *settings - 1, ratios.delay);
        if let Some(jain) = ratios.jain {
            row.add(JAIN, *settings - 1, jain);
        }
    }
    for (group, [reached, settings]) in counts {
        table.row(&group).set("goal reached", format!("{reached} of {settings}"));
    }
    table
}

/// A case beside the one that it is compared with, in a setting.
struct GoalRatios {
    /// Throughput over that of the reference.
    throughput: f64,
    /// 95th percentile of the queueing delay over the reference's.
    delay: f64,
    /// Jain's index of five flows.
    jain: Option<f64>,
}

impl GoalRatios {
    /// Of the means over the seeds; none without results.
    fn of(reference: &[&VaryingResult], measured: &[&VaryingResult]) -> Option<Self> {
        let ratio = |of: fn(&VaryingResult) -> f64| {
            Some(mean(measured.iter().map(|result| of(result)))? / mean(reference.iter().map(|result| of(result)))?)
        };
        Some(GoalRatios {
            throughput: ratio(|result| result.throughput_percent)?,
            delay: ratio(|result| result.delay_p95_ms)?,
            jain: mean(measured.iter().filter_map(|result| result.jain)),
        })
    }

    fn is_reached(&self) -> bool {
        self.throughput >= LEAST_THROUGHPUT && self.delay <= MOST_DELAY && self.jain.is_none_or(|jain| jain >= LEAST_JAIN)
    }
}

/// A told capacity beside an estimated one: for recorded and constant links and each RTT, the
/// settings of links, flows, buffers and losses, and how many of them have less than nine tenths.
fn told(settings: &[VaryingSetting<'_>], results: &[VaryingResult]) -> SampleTable {
    const RATE_RATIO: &str = "throughput ÷ that of an estimate";
    const DELAY_RATIO: &str = "delay ÷ that of an estimate";
    const BELOW: &str = "below 0.9";
    let columns = vec![SampleColumn::new(RATE_RATIO, "", 2), SampleColumn::new(DELAY_RATIO, "", 2), SampleColumn::text(BELOW)];
    let mut table = SampleTable::new("told", "links, RTT", columns);
    for (is_constant, kind) in [(false, "recorded"), (true, "constant")] {
        for rtt_ms in [40, 600] {
            for (case, _) in TOLD {
                let is_of = |setting: &&VaryingSetting<'_>| {
                    setting.link.is_constant == is_constant && setting.rtt_ms == rtt_ms && !setting.has_pages
                };
                let ratios = settings.iter().filter(is_of).filter_map(|setting| {
                    let name = setting.to_string();
                    GoalRatios::of(&of(results, &name, ESTIMATED), &of(results, &name, case))
                });
                let ratios: Vec<GoalRatios> = ratios.collect();
                let row = table.row(&format!("{kind}, {rtt_ms} ms: {}", case.trim_start_matches("share, ")));
                for (at, ratio) in ratios.iter().enumerate() {
                    row.add(RATE_RATIO, at, ratio.throughput);
                    row.add(DELAY_RATIO, at, ratio.delay);
                }
                let below = ratios.iter().filter(|ratio| ratio.throughput < LEAST_TOLD).count();
                row.set(BELOW, format!("{below} of {}", ratios.len()));
            }
        }
    }
    table
}

/// Page load times beside a flow.
fn pages(settings: &[VaryingSetting<'_>], results: &[VaryingResult]) -> SampleTable {
    let mut table = SampleTable::new("pages", "", vec![SampleColumn::new(PAGE_LOAD, "s", 2)]);
    for case in cases() {
        let row = table.row(case.name);
        let names = settings.iter().filter(|setting| setting.has_pages).map(ToString::to_string);
        for (at, load) in names.flat_map(|name| of(results, &name, case.name)).filter_map(|result| result.page_p50_s).enumerate() {
            row.add(PAGE_LOAD, at, load);
        }
    }
    table
}
