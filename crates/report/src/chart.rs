//! Draws a plot over time as a fragment of a page. Lines are SVG that stretches with the page;
//! words and numbers are HTML, so that they keep their size on a phone and in print. Colours are
//! classes, which the page's style defines for light and dark backgrounds.

use crate::curves::{CurveLine, Figure};
use crate::group::OutcomeGroup;
use crate::markup::escape;
use crate::number_format::three;
use std::fmt::Write;

/// The size of the plot in coordinates: integers finer than any screen, which are short to write.
pub(crate) const WIDTH: f64 = 2000.0;
pub(crate) const HEIGHT: f64 = 1000.0;

/// The number of colours before they repeat.
const COLOURS: usize = 7;

/// The classes for the colour of group `index`. Past the last colour they repeat, with other
/// dashes.
pub(crate) fn colour(index: usize) -> String {
    const DASHES: [&str; 4] = ["", " again", " again2", " again3"];
    format!("c{}{}", index % COLOURS, DASHES[index / COLOURS % DASHES.len()])
}

/// The figure. `end` is the end of the time axis, the same in all figures of a page so that they
/// can be compared one above the other.
pub(crate) fn draw(figure: &Figure, groups: &[OutcomeGroup<'_>], end: f64) -> String {
    let largest = figure.lines.iter().flat_map(|line| &line.points).fold(0.0, |most: f64, (_, v)| most.max(*v)) / figure.scale.per;
    let rise = step(largest, 6.0);
    // A margin above the highest point instead of the next tick, which could waste half the height.
    let top = if largest > 0.0 { largest * 1.05 } else { 1.0 };
    let drawn = groups.iter().enumerate().filter(|(index, _)| figure.lines.iter().any(|line| line.group == *index));
    let names = if groups.len() < 2 { String::new() } else { legend(drawn.map(|(index, group)| (index, &*group.label))) };
    let mut out = format!("<figure>\n{}{names}", caption(figure));
    let _ = writeln!(
        out,
        "<div class=\"chart\" role=\"img\" aria-label=\"{}\" data-zoom=\"\" data-end=\"{end}\" data-top=\"{top}\">",
        escape(&spoken(figure, groups, end))
    );
    let mut grid = String::new();
    for (at, text) in ticks(rise, top) {
        let _ = write!(grid, "M0 {:.0}h{WIDTH}", HEIGHT - at / top * HEIGHT);
        let _ = write!(out, "<span class=\"y\" style=\"bottom:{}%\">{text}</span>", percent(at / top));
    }
    let pace = step(end, 8.0);
    let times = ticks(pace, end);
    for (index, (at, text)) in times.iter().enumerate() {
        let _ = write!(grid, "M{:.0} 0v{HEIGHT}", at / end * WIDTH);
        // Counted from the last, which has the unit: narrow pages leave out every second tick,
        // never zero.
        let from_last = times.len() - 1 - index;
        let class = if from_last % 2 == 1 && index > 0 { "x odd" } else { "x" };
        let unit = if from_last == 0 { " s" } else { "" };
        let _ = write!(out, "<span class=\"{class}\" style=\"left:{}%\">{text}{unit}</span>", percent(at / end));
    }
    let _ = write!(out, "\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\"><path class=\"grid\" d=\"{grid}\"/>\n");
    for line in &figure.lines {
        out.push_str(&polyline(line, end, top * figure.scale.per));
    }
    out + "</svg>\n</div>\n</figure>\n"
}

fn polyline(line: &CurveLine, end: f64, top: f64) -> String {
    let mut class = colour(line.group);
    class.push_str(if line.thin { " thin" } else { "" });
    class.push_str(if line.dashed { " dashed" } else { "" });
    let mut points = String::new();
    for (t, v) in &line.points {
        let _ = write!(points, "{:.0},{:.0} ", t / end * WIDTH, HEIGHT - v / top * HEIGHT);
    }
    format!(
        "<polyline class=\"{class}\" data-group=\"{}\" data-name=\"{}\" points=\"{}\"/>\n",
        line.group,
        escape(&line.name),
        points.trim_end()
    )
}

fn caption(figure: &Figure) -> String {
    let unit = if figure.scale.unit.is_empty() { String::new() } else { format!(", {}", figure.scale.unit) };
    let remarks = match figure.remarks.as_slice() {
        [] => String::new(),
        remarks => format!(" <small>{}</small>", escape(&remarks.join("; "))),
    };
    format!("<figcaption><strong>{}</strong>{unit}{remarks}</figcaption>\n", escape(&figure.title))
}

/// A legend of groups and their names.
pub(crate) fn legend<'a>(groups: impl Iterator<Item = (usize, &'a str)>) -> String {
    let entry = |(group, name)| format!("<li data-group=\"{group}\"><i class=\"{}\"></i>{}</li>", colour(group), escape(name));
    format!("<ul class=\"legend\">{}</ul>\n", groups.map(entry).collect::<String>())
}

/// The figure in words, for screen readers.
fn spoken(figure: &Figure, groups: &[OutcomeGroup<'_>], end: f64) -> String {
    let mut out = format!("{} over time, {}, 0 to {} s.", figure.title, figure.scale.unit, three(end));
    for (index, group) in groups.iter().enumerate() {
        let values: Vec<f64> =
            figure.lines.iter().filter(|line| line.group == index).flat_map(|line| &line.points).map(|(_, v)| *v).collect();
        if !values.is_empty() {
            let mean = values.iter().sum::<f64>() / values.len() as f64 / figure.scale.per;
            let largest = values.iter().copied().fold(0.0, f64::max) / figure.scale.per;
            let _ = write!(out, " {}: mean {}, largest {}.", group.label, three(mean), three(largest));
        }
    }
    out
}

/// A step of 1, 2, 2.5 or 5 times a power of ten, with which `largest` has about `count` steps at
/// most.
pub(crate) fn step(largest: f64, count: f64) -> f64 {
    if largest <= 0.0 || !largest.is_finite() {
        return 1.0;
    }
    let rough = largest / count;
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|nice| nice * power).find(|nice| *nice >= rough * (1.0 - 1e-9)).unwrap_or(10.0 * power)
}

/// The ticks from zero to `last`, and their text, with the decimals that the step needs.
fn ticks(step: f64, last: f64) -> Vec<(f64, String)> {
    let decimals = (0..9).find(|decimals| (step * 10f64.powi(*decimals)).fract().abs() < 1e-6).unwrap_or(0) as usize;
    let count = (last / step + 1e-9).floor() as usize;
    let written = |at: f64| if at == 0.0 { "0".into() } else { format!("{at:.decimals$}") };
    (0..=count).map(|index| index as f64 * step).map(|at| (at, written(at))).collect()
}

pub(crate) fn percent(share: f64) -> String {
    let text = format!("{:.2}", share * 100.0);
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        let text =
            |largest: f64, count| ticks(step(largest, count), largest).into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(" ");
        assert_eq!(text(9.6, 4.0), "0 2.5 5.0 7.5");
        assert_eq!(text(40.0, 8.0), "0 5 10 15 20 25 30 35 40");
        assert_eq!(text(37.3, 8.0), "0 5 10 15 20 25 30 35");
        assert_eq!(text(0.03, 4.0), "0 0.01 0.02 0.03");
        assert_eq!(text(1640.0, 4.0), "0 500 1000 1500");
        assert_eq!(text(0.0, 4.0), "0");
    }

    #[test]
    fn colours_repeat_with_other_dashes() {
        assert_eq!([0, 6, 7, 14, 27, 28].map(colour), ["c0", "c6", "c0 again", "c0 again2", "c6 again3", "c0"]);
    }
}
