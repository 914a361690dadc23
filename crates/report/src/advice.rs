//! Advice on a path as text and as JSON.

use crate::{plain_table::PlainTable, terminal::wrap};
use advise::{Advice, AdviceVerdict, Assessment, BufferResult, Candidate, Objective, sufficient};
use serde_json::json;
use units::Bytes;

/// The advice in words, then the numbers behind it, for a terminal of `width` characters.
/// `buffers` are in ascending order of size; empty if none were tried.
pub fn advice_text(advice: &Advice, buffers: &[BufferResult], width: Option<usize>) -> String {
    let mut out = wrap(&conclusion(advice, buffers), width) + "\n\n";
    out += &candidates_table(advice).text(width);
    if !buffers.is_empty() {
        let row = |result: &BufferResult| {
            vec![Bytes(result.buffer_bytes).to_string(), format!("{:.3} ± {:.3}", result.fraction, result.half_width)]
        };
        let table = PlainTable::new(&["buffer", "of the performance with an unlimited one"], buffers.iter().map(row).collect());
        out += &format!("\n{}", table.text(width));
    }
    out
}

/// The advice as JSON. Ends with a newline.
pub fn advice_json(advice: &Advice, buffers: &[BufferResult]) -> String {
    let enough = sufficient(buffers).map(|result| result.buffer_bytes);
    format!("{:#}\n", json!({ "advice": advice, "enough_bytes": enough, "buffers": buffers }))
}

fn candidates_table(advice: &Advice) -> PlainTable {
    let mut header = vec!["way", "gain", value_head(advice.objective), "Jain", "drops", "peak queue, kB"];
    let has_equations = advice.assessments.iter().any(|assessment| assessment.by_equations.is_some());
    if has_equations {
        header.push("gain by equations");
    }
    let row = |assessment: &Assessment| {
        let mut row = vec![
            name(&assessment.candidate, &advice.baseline.candidate),
            gain(assessment),
            format!("{:.2}", in_unit(advice.objective, assessment.value)),
            assessment.jain.map_or("–".into(), |jain| format!("{jain:.3}")),
            format!("{:.0}", assessment.drops),
            format!("{:.0}", assessment.queue_max_bytes / 1e3),
        ];
        if has_equations {
            row.push(assessment.by_equations.map_or("–".into(), |gain| format!("{gain:.2}")));
        }
        row
    };
    PlainTable::new(&header, advice.assessments.iter().map(row).collect())
}

fn conclusion(advice: &Advice, buffers: &[BufferResult]) -> String {
    let split = &advice.split;
    // A controller at the sender changes nothing on the path: if it gains as much, it comes first.
    let sender = advice.sender.as_ref().filter(|sender| sender.pays());
    let (instead, besides): (Vec<&Assessment>, Vec<&Assessment>) = sender.into_iter().partition(|sender| sender.gain >= split.gain);
    let mut text = String::new();
    if let Some(sender) = instead.first() {
        text +=
            &format!("No proxy is needed if the sender can use {}: {}. Otherwise: ", sender.candidate.control, compared(advice, sender));
    }
    text += &match advice.verdict {
        AdviceVerdict::Split => {
            let capacity =
                split.candidate.capacity.map_or(String::new(), |rate| format!(", configured with the next link's capacity of {rate}"));
            let buffer = match sufficient(buffers) {
                Some(result) => format!("a buffer of {} in each direction is enough", Bytes(result.buffer_bytes)),
                None => "no buffer that was tried is enough".into(),
            };
            format!(
                "split it after link {}, with {} at the proxy{capacity}; {buffer}. {}. The price: acknowledgements no longer come from the \
                 receiver, and connections end if the proxy does (RFC 3135 §4).",
                split.candidate.after.unwrap_or(0),
                split.candidate.control,
                capitalized(&compared(advice, split))
            )
        }
        AdviceVerdict::DoesNotPay => format!("do not split it: that does not pay. The best split: {}.", compared(advice, split)),
        AdviceVerdict::CannotTell => format!(
            "do not split it: the gain cannot be told from chance. The best split: {}. More seeds (--seeds) narrow the interval.",
            compared(advice, split)
        ),
    };
    if let Some(sender) = besides.first() {
        text += &format!(" Without a proxy, with {} at the sender: {}.", sender.candidate.control, compared(advice, sender));
    }
    capitalized(&text)
}

/// `text` with a capital first letter.
fn capitalized(text: &str) -> String {
    let first = text.chars().next().into_iter().flat_map(char::to_uppercase);
    first.chain(text.chars().skip(1)).collect()
}

/// A candidate compared with the path as it is.
fn compared(advice: &Advice, assessment: &Assessment) -> String {
    let (now, then) = (in_unit(advice.objective, advice.baseline.value), in_unit(advice.objective, assessment.value));
    let values = match advice.objective {
        Objective::MeanFlowS => format!("a flow takes {then:.2} s instead of {now:.2} s in the mean"),
        Objective::GoodputBps => format!("{then:.2} Mbit/s instead of {now:.2}"),
    };
    // Without an interval all seeds gave the same result.
    let seeds = if assessment.half_width > 0.0 { format!("{} seeds", advice.seeds) } else { "nothing here is random".into() };
    format!("{values}, {} times as good ({seeds})", gain(assessment))
}

fn name(candidate: &Candidate, baseline: &Candidate) -> String {
    match candidate.after {
        Some(after) => format!("split after link {after}, {}", candidate.control),
        None if candidate == baseline => format!("as it is: end to end, {}", candidate.control),
        None => format!("end to end, {}", candidate.control),
    }
}

fn gain(assessment: &Assessment) -> String {
    if assessment.half_width > 0.0 {
        format!("{:.2} ± {:.2}", assessment.gain, assessment.half_width)
    } else {
        format!("{:.2}", assessment.gain)
    }
}

fn value_head(objective: Objective) -> &'static str {
    match objective {
        Objective::MeanFlowS => "mean flow, s",
        Objective::GoodputBps => "goodput, Mbit/s",
    }
}

fn in_unit(objective: Objective, value: f64) -> f64 {
    match objective {
        Objective::MeanFlowS => value,
        Objective::GoodputBps => value / 1e6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::Rate;

    fn assessment(after: Option<usize>, control: &str, gain: f64, half_width: f64) -> Assessment {
        let capacity = (control == "share").then_some(Rate(10_000_000));
        Assessment {
            candidate: Candidate { after, control: control.into(), capacity },
            gain,
            half_width,
            value: 10.0 / gain,
            drops: 1234.0,
            queue_max_bytes: 1e6,
            jain: Some(0.987),
            by_equations: Some(1.5),
        }
    }

    fn advice() -> Advice {
        let baseline = assessment(None, "cubic", 1.0, 0.0);
        let split = assessment(Some(1), "share", 4.0, 0.3);
        let sender = assessment(None, "hybla", 1.6, 0.1);
        let assessments = vec![split.clone(), sender.clone(), baseline.clone()];
        let (verdict, objective) = (AdviceVerdict::Split, Objective::MeanFlowS);
        Advice { verdict, objective, seeds: 10, baseline, split, sender: Some(sender), assessments }
    }

    #[test]
    fn advice_names_the_place_the_controller_the_buffer_and_the_gain() {
        let buffers = [BufferResult { buffer_bytes: 65_536, fraction: 0.99, half_width: 0.001 }];
        let text = advice_text(&advice(), &buffers, None);
        for part in [
            "Split it after link 1, with share at the proxy, configured with the next link's capacity of 10Mbit; a buffer of ",
            " in each direction is enough. A flow takes 2.50 s instead of 10.00 s in the mean, 4.00 ± 0.30 times as good (10 seeds)",
            "Without a proxy, with hybla at the sender: a flow takes ",
            "as it is: end to end, cubic",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn advice_fits_80_characters_and_breaks_neither_words_nor_numbers() {
        let buffers = [BufferResult { buffer_bytes: 65_536, fraction: 0.99, half_width: 0.001 }];
        let text = advice_text(&advice(), &buffers, Some(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let unwrapped = advice_text(&advice(), &buffers, None);
        let known: Vec<&str> = unwrapped.split_whitespace().collect();
        let is_line = |word: &str| word.starts_with('─');
        assert!(text.split_whitespace().all(|word| is_line(word) || known.contains(&word)), "{text}");
        assert!(text.contains("0.990 ± 0.001") && text.lines().all(|line| !line.trim_end().ends_with('±')), "{text}");
    }

    #[test]
    fn the_json_keeps_its_keys() {
        let buffers = [BufferResult { buffer_bytes: 65_536, fraction: 0.99, half_width: 0.001 }];
        let json: serde_json::Value = serde_json::from_str(&advice_json(&advice(), &buffers)).unwrap();
        let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!(keys(&json["advice"]), "verdict aim seeds now split sender findings");
        assert_eq!(keys(&json["advice"]["now"]), "way gain half value drops queue_max_bytes jain by_equations");
        assert_eq!(keys(&json["buffers"][0]), "buffer_bytes leaves half");
    }
}
