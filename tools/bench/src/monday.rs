//! What an operator's users get, with no proxy and with the settings that Tandem writes itself:
//! short and long transfers, pages, many clients, both directions; over five kinds of link, with
//! the socket buffers that hosts have by default.
//!
//! Every setting is a configuration file of a `tandem proxy` of its own on the lab's proxy host.
//! The proxy stands before the long link, as on an operator's gateway: it sends downloads into it,
//! and receives uploads from it.

use crate::{other_program, resume_file::ResumeFile};
use advise::{USAGES, Usage};
use anyhow::{Context as _, Result, ensure};
use lab::{Host, HostMemory, Lab, OtherProxy, SocketMemory};
use measurements::{MeasurementRecord, SampleColumn, SampleStatistic, SampleTable, median};
use outcome::Engine as _;
use rustix::process::{Pid, Signal, kill_process};
use scenario::{Scenario, ScenarioFile};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufRead},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

/// How long a proxy may take to start, and to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// A long link behind a clean access link, and what its operator answers to `tandem setup`.
#[derive(Debug)]
struct LongLink {
    name: &'static str,
    links: &'static str,
    rate: &'static str,
    /// The same two links as `tandem advise --link` takes them.
    described: [&'static str; 2],
    /// What is answered when `tandem setup` asks for rate and round-trip time. Of a link that varies:
    /// "unknown", as the question says.
    answer: &'static str,
}

const LINKS: [LongLink; 5] = [
    LongLink {
        name: "GEO",
        links: "[[link]]\nrate = \"1Gbit\"\ndelay = \"5ms\"\n[[link]]\nrate = \"50Mbit\"\ndelay = \"295ms\"\nqueue = \"1BDP\"\n\
                loss = { per_packet = 0.001, reverse = { per_packet = 0.001 } }\n",
        rate: "50Mbit",
        described: ["1Gbit,5ms", "50Mbit,295ms,0.1%"],
        answer: "50Mbit,600ms",
    },
    LongLink {
        name: "LEO",
        links: "[[link]]\nrate = \"1Gbit\"\ndelay = \"10ms\"\n[[link]]\nrate = \"120Mbit\"\ndelay = \"22ms\"\nqueue = \"600pkt\"\n\
                steps = \"starlink-steps.csv\"\nrepeat = \"60s\"\n",
        rate: "120Mbit",
        described: ["1Gbit,10ms", "120Mbit,22ms"],
        answer: "120Mbit,60ms",
    },
    LongLink {
        name: "LTE",
        links: "[[link]]\nrate = \"1Gbit\"\ndelay = \"10ms\"\n[[link]]\nrate = \"15Mbit\"\ndelay = \"25ms\"\nqueue = \"200pkt\"\n\
                steps = \"lte-steps.csv\"\nrepeat = \"30s\"\njitter = { delay = { law = \"exponential\", mean = \"2ms\" } }\n",
        rate: "15Mbit",
        described: ["1Gbit,10ms", "15Mbit,25ms"],
        answer: "unknown",
    },
    LongLink {
        name: "WAN",
        links: "[[link]]\nrate = \"1Gbit\"\ndelay = \"1ms\"\n[[link]]\nrate = \"200Mbit\"\ndelay = \"39ms\"\nqueue = \"1BDP\"\n",
        rate: "200Mbit",
        described: ["1Gbit,1ms", "200Mbit,39ms"],
        answer: "200Mbit,80ms",
    },
    LongLink {
        name: "DSL",
        links: "[[link]]\nrate = \"1Gbit\"\ndelay = \"5ms\"\n[[link]]\nrate = \"16Mbit\"\ndelay = \"15ms\"\nqueue = \"400kB\"\n",
        rate: "16Mbit",
        described: ["1Gbit,5ms", "16Mbit,15ms"],
        answer: "16Mbit,40ms",
    },
];

/// Clients' socket buffers and servers' controllers. All other hosts have Debian's buffers.
#[derive(Debug)]
struct Ends {
    name: &'static str,
    /// `tcp_rmem` of the client.
    receive: &'static str,
    server: &'static str,
}

const DEBIAN: [&str; 2] = ["4096 131072 6291456", "4096 16384 4194304"];
const ENDS: [Ends; 4] = [
    Ends { name: "Debian, CUBIC", receive: DEBIAN[0], server: "cubic" },
    Ends { name: "Debian, BBR", receive: DEBIAN[0], server: "bbr" },
    // A first window of 64 kB, which grows to 16 MB.
    Ends { name: "Windows, CUBIC", receive: "4096 65536 33554432", server: "cubic" },
    Ends { name: "64 MB, CUBIC", receive: "4096 1048576 67108864", server: "cubic" },
];

/// What the proxy host runs.
#[derive(Debug)]
enum Deployment {
    /// It forwards packets.
    NoProxy,
    /// What `tandem setup` writes for the link.
    Setup,
    /// The configuration that `tandem advise` prints for the two links.
    Advice,
    /// What `tandem advise --live --apply` has made of the file of [`Deployment::Setup`].
    LiveAdvice,
    /// This file; `{rate}` stands for the link's nominal rate.
    File(&'static str),
}

macro_rules! file {
    ($buffer:literal, $leg:literal) => {
        Deployment::File(concat!(
            "buffer = \"",
            $buffer,
            "\"\n[[listen]]\ntransparent = \"[::]:5000\"\n[[leg]]\ninterface = \"link2\"\n",
            $leg
        ))
    };
}

/// The traffic that `tandem advise --live` measures: all kinds of transfers, partly at the same
/// time, for ten minutes.
const MIXED_USE: &str = "\
duration = \"10min\"
[[flow]]
opens = \"receiver\"
bytes = \"100kB\"
count = 100
start = { every = \"6s\" }
[[flow]]
opens = \"receiver\"
bytes = \"1MB\"
count = 30
start = { every = \"20s\" }
[[flow]]
opens = \"receiver\"
bytes = \"5MB\"
count = 10
start = { every = \"60s\" }
[[flow]]
opens = \"receiver\"
bytes = \"20MB\"
count = 5
start = { every = \"2min\" }
[[flow]]
direction = \"reverse\"
bytes = \"20MB\"
count = 4
start = { every = \"150s\" }
[[page]]
loads = 100
think = \"10s\"
connections = 6
request = \"500B\"
service = \"10ms\"
[[page.object]]
name = \"html\"
size = \"60kB\"
[[page.object]]
size = \"33kB\"
count = 59
needs = [\"html\"]
";
/// When the advice is asked for, and how long it watches: it has ended before the use does.
const ADVISED_AFTER: Duration = Duration::from_secs(8 * 60);
const WATCHED: &str = "1min";

/// Four settings, and the column of the best one, other than no proxy.
const NO_PROXY: &str = "no proxy";
const SETUP: &str = "setup";
const ADVICE: &str = "advise";
const LIVE: &str = "advise --live";
const BEST: &str = "best";
/// Which one it is.
const BEST_IS: &str = "which";

/// In the order of their turns. What stands behind `setup` is what a search may choose from.
const SETTINGS: [(&str, Deployment); 9] = [
    (NO_PROXY, Deployment::NoProxy),
    (SETUP, Deployment::Setup),
    (ADVICE, Deployment::Advice),
    (LIVE, Deployment::LiveAdvice),
    ("share, told, B auto", file!("auto", "control = \"share\"\ncapacity = \"{rate}\"\nshape = false\n")),
    ("share, auto, B auto", file!("auto", "control = \"share\"\ncapacity = \"auto\"\n")),
    ("share, auto, B 4 MiB", file!("4MiB", "control = \"share\"\ncapacity = \"auto\"\n")),
    ("bbr, B auto", file!("auto", "control = \"bbr\"\n")),
    ("cubic, B auto", file!("auto", "control = \"cubic\"\n")),
];

/// Measures what users get without a proxy and with the settings that Tandem writes itself, over
/// five kinds of link: seconds, less is better
#[derive(Debug, clap::Args)]
pub(crate) struct MondaySuite {
    /// Rounds; everything is measured once in each
    #[arg(long, default_value_t = 3)]
    runs: u64,
    /// Measure only the links, ends, uses and settings whose names contain one of these words, such
    /// as GEO. All of a kind are measured if no word names one of it
    #[arg(long, value_delimiter = ',', value_name = "WORD,…")]
    only: Vec<String>,
    /// Runs at the same time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    #[command(flatten)]
    resume: ResumeFile,
    /// The program under test
    #[arg(long, default_value = "tandem", value_name = "PROGRAM")]
    tandem: PathBuf,
}

/// A run, as a line of the file of runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct StoredRun {
    link: String,
    ends: String,
    usage: String,
    setting: String,
    round: u64,
    seconds: f64,
}

/// The configuration of each link with advice on the running proxy.
type LiveFiles = BTreeMap<&'static str, String>;

/// What is measured once.
#[derive(Debug, Clone, Copy)]
struct Cell {
    link: &'static LongLink,
    ends: &'static Ends,
    usage: &'static Usage,
    setting: &'static (&'static str, Deployment),
    round: u64,
}

impl MondaySuite {
    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<()> {
        record.rounds = self.runs;
        let program = testbed::resolve_program(&self.tandem);
        record.notes.push(format!("{}.", other_program::version(&program, &["--version"])?));
        let done: Vec<StoredRun> = self.resume.runs()?;
        let cells = self.cells();
        let live = self.live_advice(&cells, &program)?;
        let open: Vec<Cell> = cells.iter().copied().filter(|cell| !done.iter().any(|run| cell.is(run))).collect();
        let queue = Mutex::new(open.into_iter());
        let runs = Mutex::new(done);
        let failed = Mutex::new(Vec::new());
        let work = || -> Result<()> {
            loop {
                let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(cell) = next else { return Ok(()) };
                match cell.play(&program, &live) {
                    Ok(seconds) => {
                        let run = cell.run(seconds);
                        eprintln!("{}, {}, {}, {}, round {}: {seconds:.2} s", run.link, run.ends, run.usage, run.setting, run.round);
                        self.resume.append(std::slice::from_ref(&run))?;
                        runs.lock().unwrap_or_else(PoisonError::into_inner).push(run);
                    }
                    Err(why) => failed.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{cell}: {why:#}")),
                }
            }
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..self.jobs.max(1)).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("no run panics"))
        })?;
        let runs = runs.into_inner().unwrap_or_else(PoisonError::into_inner);
        let failed: Vec<String> = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        record.notes.extend(failed.iter().map(|why| format!("Not measured: {why}.")));
        record.tables = tables(&cells, &runs);
        ensure!(failed.is_empty(), "{}", failed.join("\n"));
        Ok(())
    }

    /// For each link of these cells: the configuration that `tandem advise --live --apply` arrives
    /// at.
    fn live_advice(&self, cells: &[Cell], program: &Path) -> Result<LiveFiles> {
        let live = cells.iter().filter(|cell| matches!(cell.setting.1, Deployment::LiveAdvice));
        let links: BTreeMap<&str, &LongLink> = live.map(|cell| (cell.link.name, cell.link)).collect();
        let queue = Mutex::new(links.into_values());
        let files = Mutex::new(LiveFiles::new());
        let work = || -> Result<()> {
            loop {
                let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(link) = next else { return Ok(()) };
                let kept = self.resume.beside(&format!("{}.toml", link.name));
                let text = match kept.as_ref().filter(|file| file.exists()) {
                    Some(file) => fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?,
                    None => advised_live(link, program).with_context(|| format!("cannot advise on {}", link.name))?,
                };
                if let Some(file) = kept {
                    fs::write(&file, &text).with_context(|| format!("cannot write {}", file.display()))?;
                }
                files.lock().unwrap_or_else(PoisonError::into_inner).insert(link.name, text);
            }
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..self.jobs.max(1)).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("no run panics"))
        })?;
        Ok(files.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Everything that is to be measured, round by round.
    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for round in 1..=self.runs {
            for link in self.chosen(&LINKS, |link| link.name) {
                for ends in self.chosen(&ENDS, |ends| ends.name) {
                    for usage in self.chosen(&USAGES, |usage| usage.name) {
                        let settings = self.chosen(&SETTINGS, |setting| setting.0);
                        cells.extend(settings.into_iter().map(|setting| Cell { link, ends, usage, setting, round }));
                    }
                }
            }
        }
        cells
    }

    fn chosen<T>(&self, all: &'static [T], name: fn(&T) -> &'static str) -> Vec<&'static T> {
        let named: Vec<&T> = all.iter().filter(|one| self.only.iter().any(|word| name(one).contains(word.as_str()))).collect();
        if named.is_empty() { all.iter().collect() } else { named }
    }
}

impl Cell {
    fn is(&self, run: &StoredRun) -> bool {
        self.run(run.seconds) == *run
    }

    fn run(&self, seconds: f64) -> StoredRun {
        StoredRun {
            link: self.link.name.into(),
            ends: self.ends.name.into(),
            usage: self.usage.name.into(),
            setting: self.setting.0.into(),
            round: self.round,
            seconds,
        }
    }

    fn scenario(&self) -> Result<Scenario> {
        scenario(self.link, self.ends, self.usage.tables)
    }

    /// Seconds of one run. It is repeated while the machine cannot keep up with it.
    fn play(&self, program: &Path, live: &LiveFiles) -> Result<f64> {
        let scenario = self.scenario()?;
        let directory = tempfile::tempdir()?;
        let (file, program) = (directory.path().join("proxy.toml"), program.to_owned());
        let (deployment, link, live) = (&self.setting.1, self.link, live.get(self.link.name).cloned());
        let other = OtherProxy::new(move |host| start((deployment, live.as_deref()), link, &program, &file, host));
        let lab = lab(self.ends, other);
        let mut last = None;
        for _ in 0..3 {
            let outcome = lab.run(&scenario, self.round, &())?;
            if outcome.valid {
                return self.usage.objective.value(&outcome).context("not all of it has ended");
            }
            last = outcome.warnings.into_iter().next();
        }
        anyhow::bail!("the machine did not keep up in three runs: {}", last.unwrap_or_default())
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}, {}, {}, round {}", self.link.name, self.ends.name, self.usage.name, self.setting.0, self.round)
    }
}

/// These tables over the link, split at its near end.
fn scenario(link: &LongLink, ends: &Ends, tables: &str) -> Result<Scenario> {
    let (settings, tables) = tables.split_at(tables.find("[[").unwrap_or(0));
    let text = format!(
        "name = \"monday\"\n{settings}{}[[split]]\nafter = 1\n[control]\nsender = \"{}\"\nproxy = \"cubic\"\n{tables}",
        link.links, ends.server
    );
    let open = |name: &str| -> io::Result<Box<dyn BufRead>> {
        let steps: &'static [u8] = match name {
            "lte-steps.csv" => include_bytes!("../../../scenarios/lte-steps.csv"),
            "starlink-steps.csv" => include_bytes!("../../../scenarios/starlink-steps.csv"),
            _ => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok(Box::new(steps))
    };
    let variants = ScenarioFile::parse_with(&text, "monday", Arc::new(open))?.variants(&[])?;
    Ok(variants.into_iter().next().context("the scenario has a case")?.scenario)
}

/// The lab with these buffers, and another program on the proxy's host.
fn lab(ends: &Ends, other: OtherProxy) -> Lab {
    let [receive, send] = DEBIAN;
    let debian = SocketMemory { receive: receive.into(), send: send.into() };
    let receiver = SocketMemory { receive: ends.receive.into(), ..debian.clone() };
    Lab { other_proxy: Some(other), memory: Some(HostMemory { receiver, others: debian }), ..Lab::default() }
}

/// What is divided by what, in every table.
const QUOTIENTS: [(&str, &str); 4] = [(SETUP, NO_PROXY), (SETUP, BEST), (ADVICE, NO_PROXY), (LIVE, NO_PROXY)];

/// A summary, and a table for each link: a row for each use of each kind of ends. Its rows have the
/// other settings, too, but no columns show them.
fn tables(cells: &[Cell], runs: &[StoredRun]) -> Vec<SampleTable> {
    let mut tables: Vec<SampleTable> = Vec::new();
    let is_measured = |column: &str| is_measured(cells, column);
    for cell in cells {
        let at = tables.iter().position(|table| table.name == cell.link.name).unwrap_or_else(|| {
            let head = |head: &&'static str| SampleColumn::new(head, "s", 2).with(SampleStatistic::Median);
            let mut columns: Vec<SampleColumn> =
                [NO_PROXY, SETUP, ADVICE, LIVE, BEST].iter().filter(|head| is_measured(head)).map(head).collect();
            if is_measured(BEST) {
                columns.push(SampleColumn::text(BEST_IS));
            }
            columns.extend(quotients(cells).map(|(of, other)| SampleColumn::quotient(&format!("{of} ÷ {other}"), of, other, 2)));
            tables.push(SampleTable::new(cell.link.name, "", columns));
            tables.len() - 1
        });
        let row = tables[at].row(&format!("{}: {}", cell.ends.name, cell.usage.name));
        let Some(run) = runs.iter().find(|run| cell.is(run)) else { continue };
        row.add(cell.setting.0, cell.round as usize - 1, run.seconds);
    }
    tables.iter_mut().for_each(add_best);
    tables.insert(0, summary(cells, &tables));
    tables
}

/// Whether a column has values; the best is one of several.
fn is_measured(cells: &[Cell], column: &str) -> bool {
    let has = |setting: &str| cells.iter().any(|cell| cell.setting.0 == setting);
    if column == BEST { SETTINGS.iter().filter(|(setting, _)| *setting != NO_PROXY && has(setting)).count() > 1 } else { has(column) }
}

/// Those of which both parts are measured.
fn quotients(cells: &[Cell]) -> impl Iterator<Item = (&'static str, &'static str)> {
    QUOTIENTS.into_iter().filter(|(of, other)| is_measured(cells, of) && is_measured(cells, other))
}

/// Fills the column of the best with the samples of the setting that has the least median.
fn add_best(table: &mut SampleTable) {
    let rows: Vec<String> = table.rows.iter().map(|row| row.name.clone()).collect();
    for row in rows {
        let settings = SETTINGS.iter().map(|(setting, _)| *setting).filter(|setting| *setting != NO_PROXY);
        let measured = settings.filter_map(|setting| Some((setting, median_of(table, &row, setting)?)));
        let Some((best, _)) = measured.min_by(|a, b| a.1.total_cmp(&b.1)) else { continue };
        let samples = table.samples(&row, best).to_vec();
        let row = table.row(&row);
        row.set(BEST_IS, best);
        for (round, value) in samples.into_iter().enumerate() {
            if let Some(value) = value {
                row.add(BEST, round, value);
            }
        }
    }
}

/// The median of what was measured.
fn median_of(table: &SampleTable, row: &str, column: &str) -> Option<f64> {
    let samples: Vec<f64> = table.samples(row, column).iter().copied().flatten().collect();
    (!samples.is_empty()).then(|| median(&samples))
}

/// For each link the quotients of all its rows, and how many rows are beyond a limit.
fn summary(cells: &[Cell], tables: &[SampleTable]) -> SampleTable {
    let head = |(of, other): (&str, &str)| format!("{of} ÷ {other}");
    let beyond = |quotient: (&str, &str)| if quotient.1 == BEST { "more than 1.10" } else { "more than 1.05" };
    let columns = quotients(cells).flat_map(|quotient| {
        let head = head(quotient);
        [SampleColumn::new(&head, "", 2), SampleColumn::text(&format!("{head}: {}", beyond(quotient)))]
    });
    let mut summary = SampleTable::new("summary", "", columns.collect());
    for table in tables {
        for quotient in quotients(cells) {
            let of_rows = table.rows.iter().filter_map(|row| {
                let [of, other] = [quotient.0, quotient.1].map(|column| median_of(table, &row.name, column));
                Some(of? / other?)
            });
            let of_rows: Vec<f64> = of_rows.collect();
            let limit = if quotient.1 == BEST { 1.10 } else { 1.05 };
            let count = of_rows.iter().filter(|value| **value > limit).count();
            let row = summary.row(&table.name);
            for (at, value) in of_rows.iter().enumerate() {
                row.add(&head(quotient), at, *value);
            }
            row.set(&format!("{}: {}", head(quotient), beyond(quotient)), format!("{count} of {}", of_rows.len()));
        }
    }
    summary
}

/// Starts what a setting has on the proxy host. `live` is the file of [`Deployment::LiveAdvice`].
fn start(
    (deployment, live): (&Deployment, Option<&str>),
    link: &LongLink,
    program: &Path,
    file: &Path,
    host: &Host,
) -> io::Result<lab::RunningProgram> {
    let program = program.to_string_lossy();
    match deployment {
        Deployment::NoProxy => return Ok(Box::new(())),
        Deployment::Setup => {
            let mut command = host.command(&program);
            command.args([
                "setup",
                "--force",
                "--long-link",
                "link2",
                "--rate",
                link.answer,
                "--side",
                "behind",
                "--nat",
                "none",
                "--clients",
                "all",
            ]);
            let made = command.args(["--metrics", "none", "-o"]).arg(file).stdin(Stdio::null()).output()?;
            if !made.status.success() {
                let said = format!("{}{}", String::from_utf8_lossy(&made.stdout), String::from_utf8_lossy(&made.stderr));
                return Err(io::Error::other(format!("tandem setup failed: {said}")));
            }
        }
        Deployment::Advice => match advised(link, &program, host)? {
            Some(config) => fs::write(file, config)?,
            None => return Ok(Box::new(())),
        },
        Deployment::LiveAdvice => fs::write(file, live.unwrap_or_default())?,
        Deployment::File(text) => fs::write(file, text.replace("{rate}", link.rate))?,
    }
    let mut command = host.command(&program);
    command.args(["proxy", "-c"]).arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = RunningProxy(command.spawn()?);
    let begun = Instant::now();
    let listens = || host.command("ss").args(["-Hltn", "sport = :5000"]).output().is_ok_and(|listed| !listed.stdout.is_empty());
    while !listens() {
        if let Some(status) = running.0.try_wait()? {
            return Err(io::Error::other(format!("the proxy ended at once ({status}): {}", file.display())));
        }
        if begun.elapsed() > PATIENCE {
            return Err(io::Error::other("the proxy does not listen"));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(Box::new(running))
}

/// The configuration that `tandem advise` prints; none: it advises no proxy.
fn advised(link: &LongLink, program: &str, host: &Host) -> io::Result<Option<String>> {
    static KNOWN: Mutex<BTreeMap<&str, Option<String>>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(config) = known.get(link.name) {
        return Ok(config.clone());
    }
    let mut command = host.command(program);
    command.args(["advise", "--json"]).args(link.described.iter().flat_map(|link| ["--link", link]));
    let output = command.stdin(Stdio::null()).output()?;
    let said = || format!("tandem advise failed: {}", String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return Err(io::Error::other(said()));
    }
    let advice: serde_json::Value = serde_json::from_slice(&output.stdout).map_err(|_| io::Error::other(said()))?;
    let config = advice["config"].as_str().map(|config| config.replace("eth1", "link2"));
    known.insert(link.name, config.clone());
    Ok(config)
}

/// The configuration that `tandem advise --live --apply` makes of the file of `tandem setup`, after
/// mixed use of the link by Debian's clients.
fn advised_live(link: &'static LongLink, program: &Path) -> Result<String> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("proxy.toml");
    let scenario = scenario(link, &ENDS[0], MIXED_USE)?;
    let (of_proxy, program) = (file.clone(), program.to_owned());
    let other = OtherProxy::new(move |host| {
        let proxy = start((&Deployment::Setup, None), link, &program, &of_proxy, host)?;
        let mut command = host.command(&program.to_string_lossy());
        command.args(["advise", "--live", "--by", "interface", "--for", WATCHED, "--apply"]).stdin(Stdio::null());
        Ok(Box::new((LateCommand::start(ADVISED_AFTER, command, link.name), proxy)))
    });
    lab(&ENDS[0], other).run(&scenario, 1, &())?;
    Ok(fs::read_to_string(file)?)
}

/// A command that runs after some time, unless this is dropped before.
#[derive(Debug)]
struct LateCommand(Option<(mpsc::Sender<()>, thread::JoinHandle<()>)>);

impl LateCommand {
    fn start(after: Duration, mut command: Command, title: &'static str) -> Self {
        let (is_dropped, dropped) = mpsc::channel();
        let run = move || {
            if dropped.recv_timeout(after) == Err(mpsc::RecvTimeoutError::Timeout) {
                match command.output() {
                    Ok(output) => {
                        let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
                        eprintln!("{title}, advice on the running proxy ({}):\n{said}{errors}", output.status);
                    }
                    Err(why) => eprintln!("{title}: cannot ask for advice: {why}"),
                }
            }
        };
        LateCommand(Some((is_dropped, thread::spawn(run))))
    }
}

impl Drop for LateCommand {
    fn drop(&mut self) {
        if let Some((is_dropped, running)) = self.0.take() {
            drop(is_dropped);
            let _ = running.join();
        }
    }
}

/// A proxy that ends when this is dropped, and removes its controllers.
#[derive(Debug)]
struct RunningProxy(Child);

impl Drop for RunningProxy {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let begun = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) {
            if begun.elapsed() > PATIENCE {
                let _ = self.0.kill();
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_PROXY: &str = SETTINGS[0].0;

    fn suite(only: &[&str]) -> MondaySuite {
        MondaySuite {
            runs: 2,
            only: only.iter().map(ToString::to_string).collect(),
            jobs: 1,
            resume: ResumeFile::default(),
            tandem: "tandem".into(),
        }
    }

    #[test]
    fn every_cell_has_a_scenario() {
        let cells = suite(&[]).cells();
        assert_eq!(cells.len(), 2 * LINKS.len() * ENDS.len() * USAGES.len() * SETTINGS.len());
        for cell in cells.iter().filter(|cell| cell.round == 1 && cell.setting.0 == NO_PROXY) {
            let scenario = cell.scenario().unwrap_or_else(|why| panic!("{cell}: {why:#}"));
            assert_eq!((scenario.links.len(), scenario.splits.len()), (2, 1), "{cell}");
        }
    }

    #[test]
    fn mixed_use_is_a_scenario_of_every_link() {
        for link in &LINKS {
            let scenario = scenario(link, &ENDS[0], MIXED_USE).unwrap_or_else(|why| panic!("{}: {why:#}", link.name));
            assert_eq!(scenario.duration, Some("10min".parse().unwrap()));
            assert!(ADVISED_AFTER + WATCHED.parse::<units::Span>().unwrap().duration() < Duration::from_secs(600));
        }
    }

    #[test]
    fn every_file_is_valid() {
        for (name, deployment) in &SETTINGS {
            if let Deployment::File(text) = deployment {
                let text = text.replace("{rate}", "50Mbit");
                assert!(proxy::Service::parse(&text, name).is_ok(), "{name}: {text}");
            }
        }
    }

    #[test]
    fn runs_become_a_table_of_each_link() {
        let cells = suite(&["GEO", "WAN", "CUBIC", "100 kB", NO_PROXY, SETUP, "bbr"]).cells();
        assert_eq!(cells.len(), 2 * 2 * 3 * 3);
        let seconds = |cell: &Cell| match cell.setting.0 {
            NO_PROXY => 3.0,
            SETUP => 1.5,
            _ => 1.0 + cell.round as f64 / 6.0,
        };
        let runs: Vec<StoredRun> = cells.iter().map(|cell| cell.run(seconds(cell))).collect();
        let tables = tables(&cells, &runs);
        let names: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
        assert_eq!(names, ["summary", "GEO", "WAN"]);
        let text = tables[1].markdown();
        assert!(
            text.contains("| Debian, CUBIC: 100 kB | 3.00 | 1.50 | 1.25 | bbr, B auto | 0.50 (0.50 … 0.50) | 1.21 (1.12 … 1.29) |"),
            "{text}"
        );
        assert_eq!(tables[1].samples("Debian, CUBIC: 100 kB", "bbr, B auto").len(), 2);
        let text = tables[0].markdown();
        assert!(text.contains("| GEO | 0.50 (0.50 … 0.50) | 0 of 3 | 1.20 (1.20 … 1.20) | 3 of 3 |"), "{text}");
    }
}
