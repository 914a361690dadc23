//! Plots as SVG files, with colours for light and dark mode.

use super::play::PlotCurve;
use anyhow::{Context as _, Result};
use std::{fmt::Write as _, path::Path};

/// Size of a plot's area and of its margins, pixels.
const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 130.0;
const LEFT: f64 = 44.0;
const TOP: f64 = 34.0;
const BELOW: f64 = 22.0;

const STYLE: &str = "<style>\n\
    text { font: 11px ui-sans-serif, system-ui, sans-serif; fill: #24292f }\n\
    .title { font-weight: 600 }\n\
    .frame { fill: none; stroke: #8c959f }\n\
    .grid { stroke: #d0d7de; stroke-width: .5 }\n\
    .theirs { fill: none; stroke: #d55e00; stroke-width: 2.6; opacity: .55 }\n\
    .ours { fill: none; stroke: #0072b2; stroke-width: 1 }\n\
    @media (prefers-color-scheme: dark) {\n\
    svg { background: #0d1117 } text { fill: #e6edf3 } .grid { stroke: #30363d } .ours { stroke: #56b4e9 } .theirs { stroke: #e69f00 }\n\
    }\n</style>\n";

/// Windows over time in one setting.
#[derive(Debug)]
pub(super) struct CwndPanel {
    pub(super) title: String,
    pub(super) end_s: f64,
    /// One curve for each leg, segments.
    pub(super) ours: Vec<PlotCurve>,
    pub(super) theirs: Vec<PlotCurve>,
}

/// Writes a plot.
pub(super) fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Windows over time: one plot for each setting and leg.
pub(super) fn windows(panels: &[CwndPanel]) -> String {
    let plots: Vec<(String, f64, &PlotCurve, &PlotCurve)> = panels.iter().flat_map(plots).collect();
    let (columns, rows) = (2, plots.len().div_ceil(2));
    let (wide, high) = (LEFT + WIDTH + 16.0, TOP + HEIGHT + BELOW);
    let label = "Windows over time, in segments: Tandem's simulator in blue over ns-2 in orange";
    let mut out = begin(wide * f64::from(columns), high * rows as f64 + 24.0, label);
    out += &legend();
    for (index, (title, end_s, ours, theirs)) in plots.into_iter().enumerate() {
        let (x, y) = (wide * (index % 2) as f64, 24.0 + high * (index / 2) as f64);
        let most = axis(ours.iter().chain(theirs).map(|(_, window)| *window));
        let _ = write!(
            out,
            "<g transform=\"translate({:.0},{:.0})\">\n<text class=\"title\" x=\"0\" y=\"-7\">{title}</text>\n",
            x + LEFT,
            y + TOP
        );
        let step = nice(most / 3.0);
        for tick in (0..).map(|number| f64::from(number) * step).take_while(|tick| *tick <= most) {
            level(&mut out, HEIGHT * (1.0 - tick / most), tick);
        }
        for second in [0.0, end_s / 2.0, end_s] {
            let at = second / end_s * WIDTH;
            let _ = writeln!(out, "<text x=\"{at:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{second} s</text>", HEIGHT + 14.0);
        }
        let place = |(t, window): &(f64, f64)| (t / end_s * WIDTH, HEIGHT * (1.0 - window.min(most) / most));
        line(&mut out, "theirs", theirs.iter().map(place));
        line(&mut out, "ours", ours.iter().map(place));
        let _ = writeln!(out, "<rect class=\"frame\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n</g>");
    }
    out + "</svg>\n"
}

/// Upper end of the axis. It shows all windows, except that slow start is cut off at 1.5 times the
/// 90th percentile, so that the rest is not flat.
fn axis(windows: impl Iterator<Item = f64>) -> f64 {
    let mut windows: Vec<f64> = windows.collect();
    windows.sort_by(f64::total_cmp);
    let at = |share: f64| windows.get((share * windows.len() as f64) as usize).or(windows.last()).copied().unwrap_or(1.0);
    at(1.0).min(1.5 * at(0.9)).max(1.0) * 1.05
}

/// The plots of a setting, one for each leg.
fn plots(panel: &CwndPanel) -> Vec<(String, f64, &PlotCurve, &PlotCurve)> {
    let legs = panel.ours.iter().zip(&panel.theirs).enumerate();
    let title = |leg: usize| if panel.ours.len() > 1 { format!("{}, leg {}", panel.title, leg + 1) } else { panel.title.clone() };
    legs.map(|(leg, (ours, theirs))| (title(leg), panel.end_s, ours, theirs)).collect()
}

/// Processor time per segment, ns, over the number of flows on a logarithmic axis.
pub(super) fn costs(ours: &PlotCurve, theirs: &PlotCurve) -> String {
    let all = || ours.iter().chain(theirs);
    let most_flows = all().fold(10.0f64, |most, (flows, _)| most.max(*flows));
    let most = all().fold(1.0f64, |most, (_, cost)| most.max(*cost)) * 1.1;
    let (width, height) = (1.6 * WIDTH, 1.8 * HEIGHT);
    let mut out = begin(LEFT + width + 24.0, TOP + height + 40.0, "Processor time a data segment, over the number of flows");
    let _ = writeln!(out, "{}<g transform=\"translate({LEFT},{TOP})\">", legend());
    let step = nice(most / 5.0);
    for tick in (0..).map(|number| f64::from(number) * step).take_while(|tick| *tick <= most) {
        let _ = writeln!(out, "<path class=\"grid\" d=\"M0 {0:.1}h{width}\"/>", height * (1.0 - tick / most));
        let _ = writeln!(out, "<text x=\"-5\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>", height * (1.0 - tick / most) + 4.0);
    }
    let across = |flows: f64| flows.ln() / most_flows.ln() * width;
    for flows in (0..).map(|power| 10f64.powi(power)).take_while(|flows| *flows <= most_flows) {
        let _ = writeln!(out, "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{flows}</text>", across(flows), height + 14.0);
    }
    let _ = writeln!(out, "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">flows</text>", width / 2.0, height + 30.0);
    let _ = writeln!(out, "<text x=\"{width}\" y=\"-18\" text-anchor=\"end\">up: processor time a data segment, ns</text>");
    let place = |(flows, cost): &(f64, f64)| (across(*flows), height * (1.0 - cost / most));
    line(&mut out, "theirs", theirs.iter().map(place));
    line(&mut out, "ours", ours.iter().map(place));
    out + &format!("<rect class=\"frame\" width=\"{width}\" height=\"{height}\"/>\n</g>\n</svg>\n")
}

fn begin(width: f64, height: f64, label: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{label}\">\n{STYLE}"
    )
}

fn legend() -> String {
    format!(
        "<path class=\"ours\" d=\"M{LEFT} 12h24\"/><text x=\"{}\" y=\"16\">Tandem</text>\n\
         <path class=\"theirs\" d=\"M{} 12h24\"/><text x=\"{}\" y=\"16\">ns-2</text>\n",
        LEFT + 30.0,
        LEFT + 90.0,
        LEFT + 120.0
    )
}

fn level(out: &mut String, y: f64, value: f64) {
    let _ = writeln!(
        out,
        "<path class=\"grid\" d=\"M0 {y:.1}h{WIDTH}\"/><text x=\"-5\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
        y + 4.0
    );
}

fn line(out: &mut String, class: &str, points: impl Iterator<Item = (f64, f64)>) {
    let points: Vec<String> = points.map(|(x, y)| format!("{x:.0},{y:.0}")).collect();
    let _ = writeln!(out, "<polyline class=\"{class}\" points=\"{}\"/>", points.join(" "));
}

/// 1, 2 or 5 times a power of ten, at least `rough`.
fn nice(rough: f64) -> f64 {
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0].into_iter().map(|step| step * power).find(|step| *step >= rough * (1.0 - 1e-9)).unwrap_or(10.0 * power)
}
