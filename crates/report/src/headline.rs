//! The bars at the head of a page: the time to the last byte of each case. They are HTML instead of SVG,
//! so that long names wrap.

use crate::chart::colour;
use crate::grid::written;
use crate::group::OutcomeGroup;
use crate::markup::escape;
use crate::number_format::QuantityKind;
use crate::results::not_done;
use std::fmt::Write;

/// A bar for each group, proportional to its time; empty if no group came to an end.
pub(crate) fn draw(groups: &[OutcomeGroup<'_>]) -> String {
    let times: Vec<_> = groups.iter().map(OutcomeGroup::completion).collect();
    // With space for the upper ends of the intervals.
    let longest = times.iter().flatten().map(|time| time.mean + time.half.unwrap_or(0.0)).fold(0.0, f64::max);
    if longest <= 0.0 || !longest.is_finite() {
        return String::new();
    }
    let scale = QuantityKind::Time.scale(times.iter().flatten().map(|time| time.mean));
    let mut bars = String::new();
    let mut spoken = format!("Time to the last byte, {}.", scale.unit);
    for (index, (group, time)) in groups.iter().zip(&times).enumerate() {
        let mut text = match time {
            Some(_) => format!("{} {}", written(*time, scale), scale.unit),
            None => not_done(group).unwrap_or("no flows".into()),
        };
        if group.valid() < group.outcomes.len() {
            text.push_str(", not valid");
        }
        let _ = write!(spoken, " {}: {text}.", group.label);
        let share = |seconds: f64| format!("{:.2}%", (seconds / longest * 100.0).clamp(0.0, 100.0));
        let bar = match time {
            Some(time) => format!("<b class=\"{}\" style=\"width:{}\"></b>", colour(index), share(time.mean)),
            None => format!("<b class=\"{} open\" style=\"width:100%\"></b>", colour(index)),
        };
        let whisker = match time.and_then(|time| Some((time.mean, time.half?))) {
            Some((mean, half)) => {
                format!("<i style=\"left:{};width:{}\"></i>", share(mean - half), share(mean + half - (mean - half).max(0.0)))
            }
            None => String::new(),
        };
        let _ = writeln!(
            bars,
            "<span class=\"who\">{}</span><span class=\"track\">{bar}{whisker}</span><span class=\"value\">{}</span>",
            escape(&group.label),
            escape(&text)
        );
    }
    format!(
        "<figure class=\"headline\">\n<figcaption><strong>Time to the last byte</strong></figcaption>\n\
         <div class=\"bars\" role=\"img\" aria-label=\"{}\">\n{bars}</div>\n</figure>\n",
        escape(&spoken)
    )
}
