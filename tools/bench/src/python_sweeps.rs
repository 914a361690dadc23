//! One sweep from Python, played on one core, on two, and by Dask: how long each takes, and whether
//! all give the same table.

use anyhow::{Context as _, Result, ensure};
use measurements::{MeasurementRecord, SampleColumn, SampleTable};
use serde::Deserialize;
use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Command, Stdio},
};

/// Plays one sweep from Python on one core, on two, on a cluster of Dask, and on workers of which
/// one is killed, as is the client
#[derive(Debug, clap::Args)]
pub(crate) struct PythonSweeps {
    /// Points of the sweep: a multiple of 100
    #[arg(long, default_value_t = 20_000)]
    points: u64,
    /// A Python interpreter with tandem-net and its extras arrow and dask
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    python: String,
}

/// A way to play the sweep.
#[derive(Debug, Deserialize)]
struct PlayedSweep {
    way: String,
    wall_s: f64,
    /// The hash of its Parquet file.
    digest: String,
    /// The size of that file.
    bytes: u64,
    /// Processor time of the client and the scheduler, where they are a process of their own.
    client_s: Option<f64>,
    /// Rows that were written when the client was killed.
    kept: Option<u64>,
}

const TIME: &str = "time";
const SPEED: &str = "points a second";
const OVERHEAD: &str = "over two cores, a point";

const PLANNED_POINTS: f64 = 1e7;
const PLANNED_CORES: f64 = 1e3;
const ONE_POINT: &str = "a point";
const BYTES: &str = "a point, bytes";
const ALL_POINTS: &str = "10⁷ points";
const SIZE: &str = "10⁷ points, size";

impl PythonSweeps {
    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<()> {
        record.rounds = 1;
        let columns = vec![
            SampleColumn::new(TIME, "s", 1),
            SampleColumn::new(SPEED, "", 0),
            SampleColumn::times(TIME, "one core"),
            SampleColumn::new(OVERHEAD, "ms of a core", 2),
        ];
        let mut table = SampleTable::new("sweeps", "played on", columns);
        let played = self.play()?;
        let two_cores = played.iter().find(|sweep| sweep.way == "two cores").context("the sweep was not played on two cores")?.wall_s;
        for sweep in &played {
            ensure!(sweep.digest == played[0].digest, "{} gives another table than {}", sweep.way, played[0].way);
            let row = table.row(&sweep.way);
            row.add(TIME, 0, sweep.wall_s);
            row.add(SPEED, 0, self.points as f64 / sweep.wall_s);
            if sweep.way.starts_with("Dask") {
                row.add(OVERHEAD, 0, 2.0 * (sweep.wall_s - two_cores) / self.points as f64 * 1e3);
            }
            if let Some(kept) = sweep.kept {
                record.notes.push(format!("The client was killed when {kept} rows were written; they were not played again."));
            }
        }
        record.notes.push(format!("{} points, one run each. All four Parquet files are the same, byte for byte.", self.points));
        record.tables = vec![table, self.plan(&played)?];
        Ok(())
    }

    /// What [`PLANNED_POINTS`] on [`PLANNED_CORES`] would take, by the cost of a point here.
    fn plan(&self, played: &[PlayedSweep]) -> Result<SampleTable> {
        let of_a_point = |total: f64| total / self.points as f64;
        let one_core = played.iter().find(|sweep| sweep.way == "one core").context("the sweep was not played on one core")?;
        let client_s = played.iter().find_map(|sweep| sweep.client_s).context("the client's processor time is missing")?;
        let (run_s, row_s, row_bytes) = (of_a_point(one_core.wall_s), of_a_point(client_s), of_a_point(one_core.bytes as f64));
        let columns = vec![
            SampleColumn::new(ONE_POINT, "ms of a core", 2),
            SampleColumn::new(BYTES, "", 0),
            SampleColumn::new(ALL_POINTS, "s", 0),
            SampleColumn::new(SIZE, "GB", 2),
        ];
        let mut table = SampleTable::new("plan", "", columns);
        let row = table.row("the runs, on 1,000 cores");
        row.add(ONE_POINT, 0, run_s * 1e3);
        row.add(ALL_POINTS, 0, run_s * PLANNED_POINTS / PLANNED_CORES);
        let row = table.row("scheduler and client, one core");
        row.add(ONE_POINT, 0, row_s * 1e3);
        row.add(ALL_POINTS, 0, row_s * PLANNED_POINTS);
        let row = table.row("the Parquet file");
        row.add(BYTES, 0, row_bytes);
        row.add(SIZE, 0, row_bytes * PLANNED_POINTS / 1e9);
        Ok(table)
    }

    fn play(&self) -> Result<Vec<PlayedSweep>> {
        ensure!(
            self.points > 0 && self.points.is_multiple_of(100),
            "cannot play {} points: the sweep has 100 losses; give a multiple of 100",
            self.points
        );
        // A file of its own, which the script starts again as a client.
        let mut script = tempfile::Builder::new().suffix(".py").tempfile().context("cannot make a file for the script")?;
        script.write_all(include_bytes!("python_sweeps.py"))?;
        let mut command = Command::new(&self.python);
        command.arg(script.path()).arg(self.points.to_string()).stdout(Stdio::piped());
        let mut python = command.spawn().with_context(|| format!("cannot run {}", self.python))?;
        let mut played = Vec::new();
        for line in BufReader::new(python.stdout.take().context("its output is a pipe")?).lines() {
            let line = line?;
            eprintln!("{line}");
            played.push(serde_json::from_str(&line).with_context(|| format!("the script printed {line:?}"))?);
        }
        ensure!(python.wait()?.success(), "the script failed");
        Ok(played)
    }
}
