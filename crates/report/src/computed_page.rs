//! The page of a table that equations compute: its plots, and the table.

use crate::{
    page::{WordsTable, whole, words},
    paper_tables::computed_table,
    xy_plot::{self, XyKind, XyLine, XyPlot},
};
use papers::{ComputedFigure, ComputedPlot};

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

fn draw(plot: &ComputedPlot) -> String {
    let lines = plot.lines.iter().map(|line| XyLine {
        name: &line.name,
        group: line.colour,
        kind: if line.dashed { XyKind::IntervalEnd } else { XyKind::Curve },
        points: line.points.clone(),
    });
    let lines = lines.collect();
    xy_plot::draw(&XyPlot { title: &plot.title, x: &plot.x, y: &plot.y, lines, log: [false; 2], legend: true })
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
