//! The page of a table that equations compute: its plots, and the table.

use crate::{
    chart::{HEIGHT, WIDTH, colour, percent, step},
    markup::escape,
    page::{WordsTable, whole, words},
    paper_tables::computed_table,
};
use papers::{ComputedFigure, ComputedPlot};
use std::fmt::Write;

/// A page with a computed table and its plots, which opens offline.
pub fn computed_page(title: &str, about: &str, figure: &ComputedFigure) -> String {
    let table = computed_table(&figure.table);
    let header: Vec<&str> = table.header.iter().map(String::as_str).collect();
    let body = plots(figure) + &words(&WordsTable { heading: "Table".into(), header: &header, rows: table.rows });
    whole(title, about, &figure.table.notes, &body)
}

/// The plots of a computed table; empty if it has none.
pub(crate) fn plots(figure: &ComputedFigure) -> String {
    let plots: String = figure.plots.iter().map(draw).collect();
    if plots.is_empty() { plots } else { format!("<section>\n<h2>Curves</h2>\n<div class=\"plots\">\n{plots}</div>\n</section>\n") }
}

/// An axis from the smallest to the largest value, and its ticks.
struct Axis {
    from: f64,
    to: f64,
    step: f64,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64>, count: f64) -> Axis {
        let (least, most) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| (least.min(value), most.max(value)));
        let (least, most) = if least <= most { (least, most) } else { (0.0, 1.0) };
        // An axis that nearly begins at zero begins there.
        let from = if least > 0.0 && least < 0.3 * most { 0.0 } else { least };
        let to = if most > from { most } else { from + 1.0 };
        Axis { from, to, step: step(to - from, count) }
    }

    fn share(&self, value: f64) -> f64 {
        (value - self.from) / (self.to - self.from)
    }

    /// Positions and texts of the ticks.
    fn ticks(&self) -> Vec<(f64, String)> {
        let decimals = (0..9).find(|decimals| (self.step * 10f64.powi(*decimals)).fract().abs() < 1e-6).unwrap_or(0) as usize;
        let [first, last] = [(self.from / self.step - 1e-9).ceil(), (self.to / self.step + 1e-9).floor()];
        let count = (last - first).max(0.0) as usize;
        // Adding zero turns −0 into 0.
        (0..=count).map(|index| (first + index as f64) * self.step + 0.0).map(|at| (at, format!("{at:.decimals$}"))).collect()
    }
}

fn draw(plot: &ComputedPlot) -> String {
    let points = || plot.lines.iter().flat_map(|line| &line.points).copied().filter(|(x, y)| x.is_finite() && y.is_finite());
    let (across, up) = (Axis::of(points().map(|point| point.0), 8.0), Axis::of(points().map(|point| point.1), 6.0));
    let mut out = format!("<figure>\n<figcaption><strong>{}</strong>, {}</figcaption>\n", escape(&plot.title), escape(&plot.y));
    out.push_str("<ul class=\"legend\">");
    for line in plot.lines.iter().filter(|line| !line.dashed) {
        let _ = write!(out, "<li data-group=\"{}\"><i class=\"{}\"></i>{}</li>", line.colour, colour(line.colour), escape(&line.name));
    }
    let spoken = format!("{}: {} over {}, {:.3} to {:.3}.", plot.title, plot.y, plot.x, across.from, across.to);
    let _ = writeln!(
        out,
        "</ul>\n<div class=\"chart\" role=\"img\" aria-label=\"{}\" data-from=\"{}\" data-end=\"{}\" data-bottom=\"{}\" data-top=\"{}\" data-unit=\"\">",
        escape(&spoken),
        across.from,
        across.to,
        up.from,
        up.to
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
        let name = if is_last { format!(" {}", escape(&plot.x)) } else { String::new() };
        let _ = write!(grid, "M{:.0} 0v{HEIGHT}", across.share(*at) * WIDTH);
        let _ = write!(out, "<span class=\"{class}\" style=\"left:{}%\">{text}{name}</span>", percent(across.share(*at)));
    }
    let _ = write!(out, "\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\"><path class=\"grid\" d=\"{grid}\"/>\n");
    for line in &plot.lines {
        let at = |(x, y): &(f64, f64)| format!("{:.0},{:.0}", across.share(*x) * WIDTH, (1.0 - up.share(*y)) * HEIGHT);
        let points: Vec<String> = line.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite()).map(at).collect();
        let class = if line.dashed { format!("{} thin dashed", colour(line.colour)) } else { colour(line.colour) };
        let (group, name) = (line.colour, escape(&line.name));
        let _ = writeln!(out, "<polyline class=\"{class}\" data-group=\"{group}\" data-name=\"{name}\" points=\"{}\"/>", points.join(" "));
    }
    out + "</svg>\n</div>\n</figure>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use papers::{ComputedLine, ComputedTable};
    use roxmltree::{Document, ParsingOptions};

    #[test]
    fn the_curves_are_drawn_with_axes_that_may_begin_below_zero() {
        let line =
            |name: &str, colour, dashed, points: &[(f64, f64)]| ComputedLine { name: name.into(), colour, dashed, points: points.to_vec() };
        let plot = ComputedPlot {
            title: "ln(−ln P) & more".into(),
            x: "ln q".into(),
            y: "ln(−ln P)".into(),
            lines: vec![
                line("here", 0, false, &[(-2.0, -1.0), (0.0, 0.0), (2.0, 1.0)]),
                line("interval", 0, true, &[(-2.0, f64::NAN), (2.0, 0.5)]),
            ],
        };
        let table = ComputedTable::new(&["of"], vec![], vec!["a note".into()]);
        let page = computed_page("A <figure>", "about", &ComputedFigure { table, plots: vec![plot] });
        let document = Document::parse_with_options(&page, ParsingOptions { allow_dtd: true, ..ParsingOptions::default() }).unwrap();
        let all = |tag: &str| document.descendants().filter(|node| node.tag_name().name() == tag).collect::<Vec<_>>();
        let points: Vec<_> = all("polyline").iter().map(|line| line.attribute("points").unwrap()).collect();
        assert_eq!(points, ["0,1000 1000,500 2000,0", "2000,250"]);
        let ticks: Vec<_> = all("span").iter().filter_map(roxmltree::Node::text).collect();
        assert!(ticks.contains(&"-2.0") && ticks.contains(&"2.0 ln q") && ticks.contains(&"-1.0"), "{ticks:?}");
    }
}
