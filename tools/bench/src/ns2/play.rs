//! Plays a setting in the simulator, or by ns-2 in a process of its own.

use super::setting::Ns2Setting;
use crate::{
    other_program,
    sys::{self, ChildUsage},
};
use anyhow::{Context as _, Result, bail};
use sim::Sim;
use std::{
    io::{Read as _, Write as _},
    path::Path,
    process::{Command, Stdio},
};

/// A curve: time in seconds, and value.
pub(super) type PlotCurve = Vec<(f64, f64)>;

/// The result of a setting.
#[derive(Debug, Clone, Default)]
pub(super) struct SettingResult {
    /// Payload of all flows divided by the duration, bit/s.
    pub(super) goodput_bps: f64,
    /// Data segments that all senders sent, including retransmissions.
    pub(super) segments: u64,
    /// Windows of the first flow, one curve for each leg, if samples were requested.
    pub(super) cwnd: Vec<PlotCurve>,
}

/// Plays a setting in Tandem's simulator, in this process.
pub(super) fn here(setting: &Ns2Setting, seed: u64) -> Result<SettingResult> {
    let (outcome, effort) = Sim::with(setting.settings()).play(&setting.scenario()?, seed, &())?;
    let bytes: u64 = outcome.flows.iter().map(|flow| flow.bytes).sum();
    let mut cwnd: Vec<PlotCurve> = Vec::new();
    if setting.samples > 0 {
        let first = |whose: &str| whose == "flow 0" || whose.starts_with("flow 0 leg");
        let curves = outcome.series.iter().filter(|series| series.what == "cwnd" && first(&series.whose));
        cwnd = curves.map(|series| series.t.iter().copied().zip(series.v.iter().copied()).collect()).collect();
    }
    Ok(SettingResult { goodput_bps: bytes as f64 * 8.0 / setting.seconds as f64, segments: effort.segments, cwnd })
}

/// The version of ns-2.
pub(super) fn version(ns: &str) -> Result<String> {
    let script = tempfile::NamedTempFile::new().context("cannot make a script for ns-2")?;
    std::fs::write(script.path(), "puts [ns-version]\n")?;
    other_program::version(Path::new(ns), &[&script.path().to_string_lossy()])
}

/// Plays a setting by ns-2; also returns the resources it used.
pub(super) fn by_ns2(ns: &str, setting: &Ns2Setting, seed: u64) -> Result<(SettingResult, ChildUsage)> {
    let directory = tempfile::tempdir().context("cannot make a directory for ns-2's script")?;
    let write = |name: &str, text: &str| -> Result<_> {
        let path = directory.path().join(name);
        std::fs::File::create(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| format!("cannot write {name}"))?;
        Ok(path)
    };
    let script = write("play.tcl", include_str!("play.tcl"))?;
    let list = write("setting", &setting.list(seed)?)?;
    let (text, took) = run(Command::new(ns).arg(script).arg(list))
        .with_context(|| format!("cannot run {ns:?}, which is ns-2's (the Debian package ns2); `--ns PROGRAM` names another"))?;
    if !took.success() || text.lines().last() != Some("done") {
        bail!("ns-2 did not complete {:?}; it printed {text:?}", setting.name);
    }
    Ok((parse(&text, setting).with_context(|| format!("cannot parse the output of ns-2 for {:?}", setting.name))?, took))
}

/// Runs a program. Returns its standard output and the resources it used.
pub(super) fn run(command: &mut Command) -> Result<(String, ChildUsage)> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut text = String::new();
    let read = child.stdout.take().map_or(Ok(0), |mut out| out.read_to_string(&mut text));
    let took = sys::wait(&child)?;
    read?;
    Ok((text, took))
}

fn parse(text: &str, setting: &Ns2Setting) -> Result<SettingResult> {
    let mut played = SettingResult::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let kind = words.next();
        let numbers = words.map(str::parse).collect::<Result<Vec<f64>, _>>().with_context(|| format!("the line {line:?}"))?;
        match (kind, numbers.as_slice()) {
            (Some("flow"), &[bytes, segments]) => {
                played.goodput_bps += bytes * 8.0 / setting.seconds as f64;
                played.segments += segments as u64;
            }
            (Some("cwnd"), [t, windows @ ..]) => {
                played.cwnd.resize(windows.len().max(played.cwnd.len()), Vec::new());
                for (curve, window) in played.cwnd.iter_mut().zip(windows) {
                    curve.push((*t, *window));
                }
            }
            _ => {}
        }
    }
    Ok(played)
}
