//! One study in Python, by Tandem and by ns-3: NewReno over losses and round trips, end to end and
//! split. `python_study/` has the two programs.

use crate::{
    python_program::python_output,
    resume_file::ResumeFile,
    scenario_runs::{ScenarioRuns, goodput, note_invalid},
    workers::in_parallel,
};
use anyhow::{Context as _, Result, bail};
use measurements::{MeasurementRecord, SampleColumn, SampleStatistic, SampleTable};
use scenario::{ScenarioFile, Variant};
use serde::{Deserialize, Serialize};
use std::slice;

/// Compares a study in Python with the same study by ns-3: lines of code, time, results; and both
/// with the kernel's TCP on the lab
#[derive(Debug, clap::Args)]
pub(crate) struct PythonStudy {
    /// A Python interpreter with the packages tandem-net and ns3
    #[arg(long, value_name = "PROGRAM")]
    python: String,
    /// Seeds of each setting
    #[arg(long, default_value_t = 20)]
    seeds: u64,
    /// Rounds: one seed of each setting by ns-3, which takes minutes, and then all by Tandem
    #[arg(long, default_value_t = 2)]
    rounds: u64,
    /// Rounds at a time
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    #[command(flatten)]
    resume: ResumeFile,
    /// Losses, and round trips
    #[arg(long, default_value_t = 12)]
    points: usize,
    /// Seeds of the lab, and of ns-3 beside it
    #[arg(long, default_value_t = 5)]
    lab_seeds: u64,
}

const TANDEM_PROGRAM: &str = include_str!("python_study/tandem_study.py");
const NS3_PROGRAM: &str = include_str!("python_study/ns3_study.py");
/// The same with classes that count as Linux does, where ns-3 does not.
const NS3_CORRECTED_PROGRAM: &str = concat!(include_str!("python_study/ns3_corrected.py"), include_str!("python_study/ns3_study.py"));
const NS3_CORRECTED_ATTRIBUTES: [&str; 2] =
    ["ns3::TcpL4Protocol::SocketType=study::Reno", "ns3::TcpL4Protocol::RecoveryType=study::Recovery"];
const TANDEM: &str = "tandem";
const NS3: &str = "ns-3";
const NS3_CORRECTED: &str = "ns-3, corrected";
const KERNEL: &str = "the kernel";
const LAW: &str = "square-root law";
/// Results of both programs that differ by at most this count as equal.
const TOLERANCE: f64 = 0.1;

/// All settings by both programs: by ns-3 with the seed `round` alone.
#[derive(Debug, Serialize, Deserialize)]
struct StudyRound {
    round: u64,
    points: usize,
    seeds: u64,
    tandem: StudyOutput,
    ns3: StudyOutput,
}

/// What a program prints.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct StudyOutput {
    version: String,
    /// Processor time until the first run could begin, s.
    startup_s: f64,
    /// Processor time of all runs, s.
    seconds: f64,
    /// Mean goodput: end to end and split, by loss, by round trip.
    goodput_mbps: Vec<Vec<Vec<f64>>>,
}

impl PythonStudy {
    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<()> {
        record.rounds = self.rounds;
        let rounds = self.play()?;
        record.tables.push(self.cost(&rounds));
        // Tandem's results are the same in each round.
        let ours = mean_of(rounds.iter().map(|round| &round.tandem)).context("the study needs a round (--rounds)")?;
        let theirs = mean_of(rounds.iter().map(|round| &round.ns3)).context("the study needs a round (--rounds)")?;
        record.notes.push(format!("ns-3 is {} of PyPI, with {} of {} seeds.", theirs.version, self.rounds, self.seeds));
        record.notes.push(agreement(&ours, &theirs));
        for (way, name) in ["end to end", "split"].into_iter().enumerate() {
            record.tables.push(self.goodput(name, &ours.goodput_mbps[way], &theirs.goodput_mbps[way]));
        }
        let beside_kernel = self.beside_kernel(&ours, record)?;
        record.tables.push(beside_kernel);
        Ok(())
    }

    /// The rounds, without those that were played before.
    fn play(&self) -> Result<Vec<StudyRound>> {
        let mut rounds: Vec<StudyRound> = self.resume.runs()?;
        rounds.retain(|known| (known.points, known.seeds) == (self.points, self.seeds) && known.round <= self.rounds);
        let missing: Vec<u64> = (1..=self.rounds).filter(|round| rounds.iter().all(|known| known.round != *round)).collect();
        rounds.extend(in_parallel(self.jobs, &missing, |round| self.play_round(*round))?);
        Ok(rounds)
    }

    fn play_round(&self, round: u64) -> Result<StudyRound> {
        let ns3 = self.run(NS3_PROGRAM, &[round, round]).with_context(|| format!("cannot play the study by ns-3 with the seed {round}"))?;
        let tandem = self.run(TANDEM_PROGRAM, &[self.seeds]).context("cannot play the study by Tandem")?;
        eprintln!("round {round}: ns-3 {:.1} s, Tandem {:.1} s of processor time", ns3.seconds, tandem.seconds);
        let round = StudyRound { round, points: self.points, seeds: self.seeds, tandem, ns3 };
        self.resume.append(slice::from_ref(&round))?;
        Ok(round)
    }

    /// Lines of code and processor time.
    fn cost(&self, rounds: &[StudyRound]) -> SampleTable {
        let columns = [("lines of code", "", 0), ("start-up", "s", 1), ("a run", "ms", 1)];
        let columns = columns.map(|(head, unit, digits)| SampleColumn::new(head, unit, digits));
        let mut table = SampleTable::new("cost", "by", [&columns[..], &[SampleColumn::times("a run", TANDEM)]].concat());
        let settings = (2 * self.points * self.points) as f64;
        for (index, round) in rounds.iter().enumerate() {
            let both = [(TANDEM, TANDEM_PROGRAM, &round.tandem, round.seeds), (NS3, NS3_PROGRAM, &round.ns3, 1)];
            for (name, program, output, seeds) in both {
                let row = table.row(name);
                if index == 0 {
                    row.add("lines of code", 0, lines_of_code(program) as f64);
                }
                row.add("start-up", index, output.startup_s);
                row.add("a run", index, 1e3 * output.seconds / (settings * seeds as f64));
            }
        }
        table
    }

    /// Both programs beside the kernel's TCP on the lab, from end to end, with the shortest delay
    /// and the larger losses.
    fn beside_kernel(&self, ours: &StudyOutput, record: &mut MeasurementRecord) -> Result<SampleTable> {
        let columns = [
            SampleColumn::new(KERNEL, "Mbit/s", 2),
            SampleColumn::new(TANDEM, "Mbit/s", 2).with(SampleStatistic::Mean),
            SampleColumn::new(NS3, "Mbit/s", 2).with(SampleStatistic::Mean),
            SampleColumn::new(NS3_CORRECTED, "Mbit/s", 2).with(SampleStatistic::Mean),
            SampleColumn::new(LAW, "Mbit/s", 2),
        ];
        let mut table = SampleTable::new("beside the kernel", "loss, %", columns.to_vec());
        let shortest_delay = |program, attributes: &[&str]| self.run_with(program, &[1, self.lab_seeds], 1, attributes);
        let theirs = shortest_delay(NS3_PROGRAM, &[]).context("cannot play the shortest delay by ns-3")?;
        let corrected = shortest_delay(NS3_CORRECTED_PROGRAM, &NS3_CORRECTED_ATTRIBUTES)
            .context("cannot play the shortest delay by ns-3 with corrections")?;
        let larger = self.points / 2..self.points;
        let variants = larger.clone().map(|index| kernel_variant(self.loss(index))).collect::<Result<Vec<_>>>()?;
        let lab = ScenarioRuns::of(self.lab_seeds).lab(&variants)?;
        for (index, variant) in larger.zip(&variants) {
            let row = table.row(&format!("{:.3}", 100.0 * self.loss(index)));
            let of_case = lab.iter().filter(|outcome| outcome.case == variant.case && outcome.valid);
            for (round, outcome) in of_case.enumerate() {
                row.add(KERNEL, round, goodput(outcome)?);
            }
            row.add(TANDEM, 0, ours.goodput_mbps[0][index][0]);
            row.add(NS3, 0, theirs.goodput_mbps[0][index][0]);
            row.add(NS3_CORRECTED, 0, corrected.goodput_mbps[0][index][0]);
            // Ott, Kemperman and Mathis: a window of Φ/√p segments in the mean; 2 × 15 ms.
            row.add(LAW, 0, theory::PHI / self.loss(index).sqrt() * 1448.0 * 8.0 / 0.03 / 1e6);
        }
        note_invalid(record, &lab);
        Ok(table)
    }

    /// Runs a program to its end, with these seeds.
    fn run(&self, program: &str, seeds: &[u64]) -> Result<StudyOutput> {
        self.run_with(program, seeds, self.points, &[])
    }

    /// Runs a program to its end, with these seeds, so many delays and these other arguments.
    fn run_with(&self, program: &str, seeds: &[u64], delays: usize, others: &[&str]) -> Result<StudyOutput> {
        let (python, points) = (&self.python, self.points);
        let numbers = [seeds, &[points as u64, delays as u64]].concat();
        let arguments = numbers.iter().map(u64::to_string).chain(others.iter().map(ToString::to_string));
        let found: StudyOutput = python_output(python, program, arguments)?;
        let is_whole = found.goodput_mbps.len() == 2
            && found.goodput_mbps.iter().all(|way| way.len() == points && way.iter().all(|row| row.len() == delays));
        if !is_whole {
            bail!("{python} printed no table of 2 × {points} × {delays} numbers");
        }
        Ok(found)
    }

    /// The goodput for each loss; the samples are those of the round trips.
    fn goodput(&self, name: &str, ours: &[Vec<f64>], theirs: &[Vec<f64>]) -> SampleTable {
        let columns = [
            SampleColumn::new(TANDEM, "Mbit/s", 2),
            SampleColumn::new(NS3, "Mbit/s", 2),
            SampleColumn::quotient("ratio", TANDEM, NS3, 2).with(SampleStatistic::Spread),
        ];
        let mut table = SampleTable::new(name, "loss, %", columns.to_vec());
        for (index, (here, there)) in ours.iter().zip(theirs).enumerate() {
            let row = table.row(&format!("{:.3}", 100.0 * self.loss(index)));
            for (rtt, (here, there)) in here.iter().zip(there).enumerate() {
                row.add(TANDEM, rtt, *here);
                row.add(NS3, rtt, *there);
            }
        }
        table
    }

    /// The loss of a row, as both programs choose it.
    fn loss(&self, index: usize) -> f64 {
        let (least, most) = (1e-4_f64, 3e-2_f64);
        least * (most / least).powf(index as f64 / (self.points.max(2) - 1) as f64)
    }
}

/// One study of several rounds: the means. None without any.
fn mean_of<'a>(mut outputs: impl ExactSizeIterator<Item = &'a StudyOutput>) -> Option<StudyOutput> {
    let count = outputs.len() as f64;
    let mut mean = outputs.next()?.clone();
    let cells = |output: &'a StudyOutput| output.goodput_mbps.iter().flatten().flatten();
    for output in outputs {
        mean.startup_s += output.startup_s;
        mean.seconds += output.seconds;
        mean.goodput_mbps.iter_mut().flatten().flatten().zip(cells(output)).for_each(|(sum, more)| *sum += more);
    }
    mean.startup_s /= count;
    mean.seconds /= count;
    mean.goodput_mbps.iter_mut().flatten().flatten().for_each(|sum| *sum /= count);
    Some(mean)
}

/// The path of the study end to end, with the shortest delay and this loss.
fn kernel_variant(loss: f64) -> Result<Variant> {
    let text = format!(
        "name = \"study\"\nduration = \"30s\"\n[control]\nsender = \"reno\"\n\
         [[link]]\nrate = \"20Mbit\"\ndelay = \"10ms\"\nqueue = \"250kB\"\n\
         [[link]]\nrate = \"10Mbit\"\ndelay = \"5ms\"\nqueue = \"250kB\"\nloss = {{ per_packet = {loss} }}\n[[flow]]\n"
    );
    Ok(Variant::new(format!("{loss}"), ScenarioFile::parse(&text, "the path of the study")?.variants(&[])?.remove(0).scenario))
}

/// In how many settings the programs agree, and on how much splitting gains.
fn agreement(ours: &StudyOutput, theirs: &StudyOutput) -> String {
    let flat = |output: &StudyOutput, way: usize| output.goodput_mbps[way].concat();
    let within =
        |ours: &[f64], theirs: &[f64]| ours.iter().zip(theirs).filter(|(here, there)| (*here / *there - 1.0).abs() <= TOLERANCE).count();
    let gains =
        |output: &StudyOutput| -> Vec<f64> { flat(output, 1).iter().zip(flat(output, 0)).map(|(split, whole)| split / whole).collect() };
    let equal = |way: usize| within(&flat(ours, way), &flat(theirs, way));
    let (here, there) = (gains(ours), gains(theirs));
    let all = here.len();
    let median = measurements::median;
    format!(
        "Within {:.0} % of each other are {} of {all} settings end to end, {} of {all} split, and {} of {all} gains; the median gain is {:.2} \
         by Tandem and {:.2} by ns-3.",
        100.0 * TOLERANCE,
        equal(0),
        equal(1),
        within(&here, &there),
        median(&here),
        median(&there)
    )
}

/// Lines that are neither empty nor comments nor the docstring of the file.
fn lines_of_code(program: &str) -> usize {
    let counts = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#') && !line.starts_with("\"\"\"NewReno");
    program.lines().filter(counts).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_empty_lines_do_not_count() {
        assert_eq!(lines_of_code("\"\"\"NewReno over …\"\"\"\n\nimport json\n# Why.\nfor x in y:\n    # Why.\n    f(x)\n"), 3);
    }

    #[test]
    fn the_kernels_path_is_a_scenario() {
        let scenario = kernel_variant(0.01).unwrap().scenario;
        assert_eq!((scenario.links.len(), scenario.links[1].loss.forward.is_some()), (2, true));
    }

    #[test]
    fn rounds_are_one_study() {
        let mean = mean_of([output(1.0, 2.0), output(3.0, 4.0)].iter()).unwrap();
        assert_eq!((mean.seconds, mean.startup_s), (1.0, 0.5));
        assert_eq!(mean.goodput_mbps, output(2.0, 3.0).goodput_mbps);
        assert!(mean_of([].iter()).is_none());
    }

    fn output(whole: f64, split: f64) -> StudyOutput {
        let goodput_mbps = vec![vec![vec![whole, 2.0]], vec![vec![split, 4.0]]];
        StudyOutput { version: "1".into(), startup_s: 0.5, seconds: 1.0, goodput_mbps }
    }

    #[test]
    fn agreement_counts_settings() {
        let said = agreement(&output(1.0, 1.0), &output(1.05, 2.0));
        assert!(said.contains("are 2 of 2 settings end to end, 1 of 2 split, and 1 of 2 gains"), "{said}");
    }
}
