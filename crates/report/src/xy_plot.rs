//! Draws numbers over another quantity than time as a fragment of a page, on linear or logarithmic
//! axes. As in [`chart`](crate::chart), lines are SVG, and words and numbers are HTML.

use crate::{
    chart::{HEIGHT, WIDTH, colour, legend, percent, step},
    markup::escape,
    number_format::short,
};
use std::fmt::Write;

/// A plot.
#[derive(Debug)]
pub(crate) struct XyPlot<'a> {
    pub(crate) title: &'a str,
    /// The horizontal axis; empty if `y` names it.
    pub(crate) x: &'a str,
    /// The vertical axis.
    pub(crate) y: &'a str,
    pub(crate) lines: Vec<XyLine<'a>>,
    /// Whether the horizontal and the vertical axis are logarithmic.
    pub(crate) log: [bool; 2],
    /// Whether it has a legend of its own.
    pub(crate) legend: bool,
}

/// A curve.
#[derive(Debug)]
pub(crate) struct XyLine<'a> {
    pub(crate) name: &'a str,
    /// The number of its colour, and of its entry in the legend.
    pub(crate) group: usize,
    pub(crate) kind: XyKind,
    /// Ascending in x.
    pub(crate) points: Vec<(f64, f64)>,
}

/// What a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum XyKind {
    /// A curve, which the legend lists.
    Curve,
    /// An end of a curve's interval.
    IntervalEnd,
    /// The interval of one point, from below to above.
    Whisker,
}

/// The part of a logarithmic axis before its smallest value, if zero stands there.
const ZERO_PART: f64 = 0.08;

/// A curve with fewer points has them far from each other.
const SPARSE: usize = 50;

/// An axis.
#[derive(Debug)]
enum Axis {
    /// From the first to the second value, with ticks at multiples of the third.
    Linear([f64; 3]),
    /// From the first to the second value, which are positive; `true`: zero stands before them.
    Log([f64; 2], bool),
}

impl Axis {
    fn of(values: impl Iterator<Item = f64> + Clone, is_log: bool, count: f64) -> Axis {
        let extremes =
            |values: &mut dyn Iterator<Item = f64>| values.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v: f64| (a.min(v), b.max(v)));
        let (least, most) = extremes(&mut values.clone().filter(|value| !is_log || *value > 0.0));
        let (least, most) = if least <= most { (least, most) } else { (0.0, 1.0) };
        if is_log && least > 0.0 && most > least {
            return Axis::Log([least, most], values.into_iter().any(|value| value == 0.0));
        }
        // An axis that nearly begins at zero begins there.
        let from = if least > 0.0 && least < 0.3 * most { 0.0 } else { least };
        let to = if most > from { most } else { from + 1.0 };
        Axis::Linear([from, to, step(to - from, count)])
    }

    fn ends(&self) -> [f64; 2] {
        match self {
            Axis::Linear([from, to, _]) | Axis::Log([from, to], _) => [*from, *to],
        }
    }

    /// The part of the axis before its first positive value; none: it is linear.
    fn zero_part(&self) -> Option<f64> {
        match self {
            Axis::Linear(_) => None,
            Axis::Log(_, has_zero) => Some(if *has_zero { ZERO_PART } else { 0.0 }),
        }
    }

    /// Where a value is, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        let [from, to] = self.ends();
        match self.zero_part() {
            None => (value - from) / (to - from),
            Some(_) if value <= 0.0 => 0.0,
            Some(before) => before + (1.0 - before) * (value / from).ln() / (to / from).ln(),
        }
    }

    /// Values and texts of the ticks.
    fn ticks(&self) -> Vec<(f64, String)> {
        match self {
            Axis::Linear([from, to, step]) => {
                let decimals = (0..9).find(|decimals| (step * 10f64.powi(*decimals)).fract().abs() < 1e-6).unwrap_or(0) as usize;
                let [first, last] = [(from / step - 1e-9).ceil(), (to / step + 1e-9).floor()];
                let count = (last - first).max(0.0) as usize;
                // Adding zero turns −0 into 0.
                (0..=count).map(|index| (first + index as f64) * step + 0.0).map(|at| (at, format!("{at:.decimals$}"))).collect()
            }
            Axis::Log([from, to], has_zero) => {
                let decades = (to / from).log10();
                let steps: &[f64] = if decades > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
                let powers = (from.log10().floor() as i32)..=(to.log10().ceil() as i32);
                let ticks = powers.flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
                let inside = ticks.filter(|at| *at >= from * (1.0 - 1e-9) && *at <= to * (1.0 + 1e-9));
                has_zero.then_some(0.0).into_iter().chain(inside).map(|at| (at, short(at))).collect()
            }
        }
    }
}

/// The figure.
pub(crate) fn draw(plot: &XyPlot<'_>) -> String {
    let points = || plot.lines.iter().flat_map(|line| &line.points).copied().filter(is_finite);
    let across = Axis::of(points().map(|point| point.0), plot.log[0], 8.0);
    let up = Axis::of(points().map(|point| point.1), plot.log[1], 6.0);
    let mut out = format!("<figure>\n<figcaption><strong>{}</strong>, {}</figcaption>\n", escape(plot.title), escape(plot.y));
    if plot.legend {
        let listed = plot.lines.iter().filter(|line| line.kind == XyKind::Curve).map(|line| (line.group, line.name));
        out += &legend(listed);
    }
    let ([from, to], [bottom, top]) = (across.ends(), up.ends());
    let over = if plot.x.is_empty() { String::new() } else { format!(" over {}", plot.x) };
    let spoken = format!("{}: {}{over}, {} to {}.", plot.title, plot.y, short(from), short(to));
    // Single points are read from half-way to the next one.
    let most = plot.lines.iter().map(|line| line.points.len()).max().unwrap_or(0);
    let reach = if (2..SPARSE).contains(&most) { format!(" data-reach=\"{:.0}\"", WIDTH / (most - 1) as f64 / 2.0) } else { String::new() };
    let log = |axis: &Axis, name: &str| axis.zero_part().map_or(String::new(), |part| format!(" data-{name}=\"{part}\""));
    let _ = writeln!(
        out,
        "<div class=\"chart\" role=\"img\" aria-label=\"{}\" data-zoom=\"\" data-from=\"{from}\" data-end=\"{to}\" \
         data-bottom=\"{bottom}\" data-top=\"{top}\" data-unit=\"\"{reach}{}{}>",
        escape(&spoken),
        log(&across, "log"),
        log(&up, "log-up")
    );
    let mut grid = String::new();
    for (at, text) in up.ticks() {
        let _ = write!(grid, "M0 {:.0}h{WIDTH}", (1.0 - up.share(at)) * HEIGHT);
        let _ = write!(out, "<span class=\"y\" style=\"bottom:{}%\">{text}</span>", percent(up.share(at)));
    }
    let ticks = across.ticks();
    for (index, (at, text)) in ticks.iter().enumerate() {
        let is_last = index + 1 == ticks.len();
        let class = if (ticks.len() - 1 - index) % 2 == 1 { "x odd" } else { "x" };
        let name = if is_last && !plot.x.is_empty() { format!(" {}", escape(plot.x)) } else { String::new() };
        let _ = write!(grid, "M{:.0} 0v{HEIGHT}", across.share(*at) * WIDTH);
        let _ = write!(out, "<span class=\"{class}\" style=\"left:{}%\">{text}{name}</span>", percent(across.share(*at)));
    }
    let _ = write!(out, "\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\"><path class=\"grid\" d=\"{grid}\"/>\n");
    for line in &plot.lines {
        let at = |(x, y): (f64, f64)| format!("{:.0},{:.0}", across.share(x) * WIDTH, (1.0 - up.share(y)) * HEIGHT);
        let points: Vec<String> = line.points.iter().copied().filter(is_finite).map(at).collect();
        let kind = match line.kind {
            XyKind::Curve => "",
            XyKind::IntervalEnd => " thin dashed",
            XyKind::Whisker => " thin whisker",
        };
        let (group, name) = (line.group, escape(line.name));
        let _ = writeln!(
            out,
            "<polyline class=\"{}{kind}\" data-group=\"{group}\" data-name=\"{name}\" points=\"{}\"/>",
            colour(group),
            points.join(" ")
        );
    }
    out + "</svg>\n</div>\n</figure>\n"
}

fn is_finite((x, y): &(f64, f64)) -> bool {
    x.is_finite() && y.is_finite()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis) -> Vec<String> {
        axis.ticks().into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn a_logarithmic_axis_has_zero_before_its_values() {
        let axis = Axis::of([0.0, 0.001, 0.01, 0.1].into_iter(), true, 8.0);
        assert_eq!(texts(&axis), ["0", "0.001", "0.002", "0.005", "0.01", "0.02", "0.05", "0.1"]);
        let shares: Vec<f64> = [0.0, 0.001, 0.01, 0.1].map(|value| axis.share(value)).into();
        assert!(shares[0] == 0.0 && (shares[1] - ZERO_PART).abs() < 1e-9 && (shares[3] - 1.0).abs() < 1e-9, "{shares:?}");
        assert!((shares[2] - (shares[1] + shares[3]) / 2.0).abs() < 1e-9, "{shares:?}");
        let wide = Axis::of([1.0, 1e6].into_iter(), true, 8.0);
        assert_eq!(texts(&wide), ["1", "10", "100", "1000", "10000", "100000", "1000000"]);
    }

    #[test]
    fn a_logarithmic_axis_of_one_value_is_linear() {
        let axis = Axis::of([5.0, 5.0].into_iter(), true, 8.0);
        assert!(axis.zero_part().is_none() && axis.share(5.0) == 0.0);
        assert!(Axis::of([0.0, 0.0].into_iter(), true, 8.0).zero_part().is_none());
    }
}
