//! A bar chart as a standalone SVG file, for a README. `headline` draws the bars of a page.

use crate::markup::escape;
use crate::number_format::{NONE, three};
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const ROW: f64 = 36.0;
const HEAD: f64 = 48.0;

/// The colours for light and dark backgrounds: those of Okabe and Ito, with blue and sky blue exchanged
/// on dark ones.
const STYLE: &str = "text{font:15px system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;fill:#1f2328}\
    .t{font-weight:600;font-size:16px}.v{font-variant-numeric:tabular-nums}.b{stroke:#8c959f;stroke-width:1}\
    .c0{fill:#0072b2}.c1{fill:#d55e00}.c2{fill:#009e73}.c3{fill:#cc79a7}.c4{fill:#e69f00}.c5{fill:#56b4e9}.c6{fill:#7a7a7a}\
    @media(prefers-color-scheme:dark){text{fill:#e6edf3}.c0{fill:#56b4e9}.c5{fill:#2f81c4}}";

/// Horizontal bars, each with its label before it and its value in `unit` behind it. A value that is
/// not finite has no bar and reads "–".
pub fn svg_bars(title: &str, unit: &str, bars: &[(String, f64)]) -> String {
    let written = |value: f64| if value.is_finite() { format!("{} {unit}", three(value)) } else { NONE.into() };
    // SVG does not measure text. Eight pixels per letter is more than the fonts above need at this size.
    let room = |longest: Option<usize>| longest.unwrap_or(0) as f64 * 8.0;
    let left = (room(bars.iter().map(|(label, _)| label.chars().count()).max()) + 12.0).min(WIDTH * 0.5);
    let right = room(bars.iter().map(|(_, value)| written(*value).chars().count()).max()) + 12.0;
    let longest = bars.iter().map(|(_, value)| *value).filter(|value| value.is_finite()).fold(0.0, f64::max);
    let height = HEAD + ROW * bars.len() as f64 + 8.0;

    let spoken: Vec<String> = bars.iter().map(|(label, value)| format!("{label}: {}", written(*value))).collect();
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\" \
         aria-label=\"{}\">\n<style>{STYLE}</style>\n<text class=\"t\" x=\"0\" y=\"22\">{}</text>\n",
        escape(&format!("{title}. {}.", spoken.join(", "))),
        escape(title)
    );
    for (index, (label, value)) in bars.iter().enumerate() {
        let top = HEAD + ROW * index as f64;
        let length = if longest > 0.0 && value.is_finite() { value.max(0.0) / longest * (WIDTH - left - right) } else { 0.0 };
        let base = top + ROW / 2.0 + 1.0;
        let _ = writeln!(out, "<text x=\"{:.1}\" y=\"{base:.1}\" text-anchor=\"end\">{}</text>", left - 12.0, escape(label));
        let _ = writeln!(
            out,
            "<rect class=\"c{}\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{length:.1}\" height=\"20\" rx=\"2\"/>",
            index % 7,
            top + 4.0
        );
        let _ = writeln!(out, "<text class=\"v\" x=\"{:.1}\" y=\"{base:.1}\">{}</text>", left + length + 10.0, escape(&written(*value)));
    }
    let _ = writeln!(out, "<path class=\"b\" d=\"M{left:.1} {HEAD}V{:.1}\"/>", height - 8.0);
    out + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_well_formed_and_the_longest_bar_is_the_largest_value() {
        let bars = [("end to end <cubic>".to_string(), 41.25), ("split".to_string(), 20.6), ("never".to_string(), f64::NAN)];
        let svg = svg_bars("Time to the last byte", "s", &bars);
        let document = roxmltree::Document::parse(&svg).unwrap();
        let width = |n: &roxmltree::Node<'_, '_>| n.attribute("width").unwrap().parse::<f64>().unwrap();
        let widths: Vec<f64> = document.descendants().filter(|n| n.has_tag_name("rect")).map(|n| width(&n)).collect();
        assert!((widths[0] / widths[1] - 2.0).abs() < 0.01 && widths[2] == 0.0, "{widths:?}");
        let texts: Vec<&str> = document.descendants().filter(|n| n.has_tag_name("text")).filter_map(|n| n.text()).collect();
        assert_eq!(texts, ["Time to the last byte", "end to end <cubic>", "41.2 s", "split", "20.6 s", "never", "–"]);
    }
}
