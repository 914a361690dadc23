//! Advice on a path as text and as JSON.

use crate::{plain_table::PlainTable, terminal::wrap};
use advise::{Advice, AdviceVerdict, Assessment, BufferResult, Candidate, Objective, ProxyLeg, buffer_to_configure, sufficient};
use scenario::LinkCapacity;
use serde_json::json;
use units::Bytes;

/// The network interface in what is to be pasted: the proxy's, towards the next link.
const INTERFACE: &str = "eth1";

/// The advice in words, what to type for it, then the numbers behind it, for a terminal of `width`
/// characters. `buffers` are in ascending order of size; empty if none were tried.
pub fn advice_text(advice: &Advice, buffers: &[BufferResult], width: Option<usize>) -> String {
    let mut out = wrap(&conclusion(advice, buffers), width) + "\n\n";
    if advice.verdict == AdviceVerdict::Split {
        out += &instructions(advice.leg, &advice.split.candidate, width);
    }
    out += &candidates_table(advice).text(width);
    if !buffers.is_empty() {
        let row = |result: &BufferResult| {
            vec![Bytes(result.buffer_bytes).to_string(), format!("{:.3} ± {:.3}", result.fraction, result.half_width)]
        };
        let table = PlainTable::new(&["buffer, simulated", "of the performance with an unlimited one"], buffers.iter().map(row).collect());
        out += &format!("\n{}", table.text(width));
    }
    out
}

/// The advice as JSON. Ends with a newline.
pub fn advice_json(advice: &Advice, buffers: &[BufferResult]) -> String {
    let simulated = sufficient(buffers).map(|result| result.buffer_bytes);
    let splits = advice.verdict == AdviceVerdict::Split;
    let candidate = &advice.split.candidate;
    let command = splits.then(|| command(advice.leg, candidate));
    let config = splits.then(|| config(candidate));
    format!(
        "{:#}\n",
        json!({
            "advice": advice, "enough_bytes": buffer_to_configure(buffers), "enough_simulated_bytes": simulated, "buffers": buffers,
            "command": command, "config": config,
        })
    )
}

/// What to type for a split, and the same as a configuration file.
pub(crate) fn instructions(leg: ProxyLeg, candidate: &Candidate, width: Option<usize>) -> String {
    let end = match leg {
        ProxyLeg::Near => "clients",
        ProxyLeg::Far => "servers",
    };
    let intro = match candidate.capacity {
        Some(_) => format!("On the proxy's host, with the interface towards the {end} in place of {INTERFACE}:"),
        None => "On the proxy's host:".to_owned(),
    };
    let file = format!("Or in its configuration, with the interface towards the {end} in place of {INTERFACE}:");
    let indented = |text: &str| text.lines().map(|line| format!("    {line}").trim_end().to_owned() + "\n").collect::<String>();
    let (command, config) = (indented(&command(leg, candidate)), indented(&config(candidate)));
    format!("{}\n\n{command}\n{}\n\n{config}\n", wrap(&intro, width), wrap(&file, width))
}

/// The command that starts the proxy.
pub(crate) fn command(leg: ProxyLeg, candidate: &Candidate) -> String {
    let Candidate { control, capacity, .. } = candidate;
    let leg = match leg {
        ProxyLeg::Near => "--near",
        ProxyLeg::Far => "--far",
    };
    let capacity = capacity.map_or(String::new(), |rate| format!(",capacity={rate},link={INTERFACE}"));
    format!("tandem proxy --listen transparent=[::]:5000 {leg} control={control}{capacity} --buffer auto")
}

/// The proxy's configuration.
pub(crate) fn config(candidate: &Candidate) -> String {
    let Candidate { control, capacity, .. } = candidate;
    let mut text = format!(
        "buffer = \"auto\"\n\n[[listen]]\ntransparent = \"[::]:5000\"\n\n[[leg]]\ninterface = \"{INTERFACE}\"\ncontrol   = \"{control}\"\n"
    );
    if let Some(rate) = capacity {
        text += &format!("capacity  = \"{rate}\"\n");
    }
    text
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
            shown(advice.objective, assessment.value),
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
    let mut sentences = Vec::new();
    if let Some(sender) = instead.first() {
        sentences.push(format!(
            "No proxy is needed if you can change the senders: with {} there, {}.",
            told(&sender.candidate),
            compared(advice, sender)
        ));
    }
    let after = split.candidate.after.unwrap_or(0);
    let otherwise = if instead.is_empty() { "" } else { "If you cannot: " };
    match advice.verdict {
        AdviceVerdict::Split => {
            sentences
                .push(capitalized(&format!("{otherwise}split the path after link {after}, with {} at the proxy.", told(&split.candidate))));
            sentences.push(format!("Then {}.", compared(advice, split)));
            sentences.extend(buffer_sentence(buffers));
            sentences.push(
                "The price: senders get their acknowledgements from the proxy and not from the receiver, and connections end if the proxy \
                 does (RFC 3135 §4)."
                    .into(),
            );
        }
        AdviceVerdict::DoesNotPay => {
            sentences.push("Do not split the path: that does not pay.".into());
            sentences.push(format!(
                "With the best split, after link {after} with {}, {}.",
                told(&split.candidate),
                compared(advice, split)
            ));
        }
        AdviceVerdict::CannotTell => {
            sentences.push("Do not split the path: the gain may be chance.".into());
            sentences.push(format!(
                "With the best split, after link {after} with {}, {}.",
                told(&split.candidate),
                compared(advice, split)
            ));
            sentences.push("More seeds (--seeds) narrow the interval.".into());
        }
    }
    if let Some(sender) = besides.first() {
        sentences.push(format!("Without a proxy, with {} at the senders, {}.", told(&sender.candidate), compared(advice, sender)));
    }
    sentences.join(" ")
}

/// The controller of a candidate, and what it must be told.
pub(crate) fn told(candidate: &Candidate) -> String {
    let Candidate { control, capacity, .. } = candidate;
    let capacity = match capacity {
        None => String::new(),
        Some(LinkCapacity::Rate(rate)) => format!(" and the next link's capacity of {rate}"),
        Some(LinkCapacity::Auto) => ", which estimates the next link's capacity".into(),
    };
    format!("the controller {control}{capacity}")
}

/// How much buffer the proxy needs; none: no size was tried.
fn buffer_sentence(buffers: &[BufferResult]) -> Option<String> {
    Some(match (buffer_to_configure(buffers), sufficient(buffers)) {
        (Some(bytes), Some(result)) => format!(
            "Its buffer follows each connection (auto). In the simulator, {} in each direction are enough for these transfers; a fixed one \
             needs {}, since a real proxy offers the sender less than a third of its buffer as its window.",
            Bytes(result.buffer_bytes),
            Bytes(bytes)
        ),
        _ if buffers.is_empty() => return None,
        _ => "No fixed buffer that was tried is enough: its buffer follows each connection (auto).".into(),
    })
}

/// `text` with a capital first letter.
fn capitalized(text: &str) -> String {
    let first = text.chars().next().into_iter().flat_map(char::to_uppercase);
    first.chain(text.chars().skip(1)).collect()
}

/// A candidate compared with the path as it is.
fn compared(advice: &Advice, assessment: &Assessment) -> String {
    let [now, then] = [advice.baseline.value, assessment.value].map(|value| shown(advice.objective, value));
    let (values, better) = match advice.objective {
        Objective::MeanFlowS => (format!("a transfer takes {then} s in the mean instead of {now} s"), "as fast"),
        Objective::PageLoadS => (format!("a page takes {then} s in the mean instead of {now} s"), "as fast"),
        Objective::LastFlowS => (format!("the last transfer takes {then} s in the mean instead of {now} s"), "as fast"),
        Objective::GoodputBps => (format!("{then} Mbit/s arrive in the mean instead of {now}"), "as much"),
    };
    let Assessment { gain, half_width, .. } = assessment;
    let certainty = if is_random(assessment) {
        format!(" ({:.2} to {:.2} with 95 % confidence, {} simulated runs)", (gain - half_width).max(0.0), gain + half_width, advice.seeds)
    } else {
        String::new()
    };
    format!("{values}, {gain:.2} times {better}{certainty}")
}

/// Whether the gain differs from seed to seed.
fn is_random(assessment: &Assessment) -> bool {
    assessment.half_width > 1e-9
}

pub(crate) fn name(candidate: &Candidate, baseline: &Candidate) -> String {
    match candidate.after {
        Some(after) => format!("split after link {after}, {}", candidate.control),
        None if candidate == baseline => format!("as it is: end to end, {}", candidate.control),
        None => format!("end to end, {}", candidate.control),
    }
}

fn gain(assessment: &Assessment) -> String {
    if is_random(assessment) {
        format!("{:.2} ± {:.2}", assessment.gain, assessment.half_width)
    } else {
        format!("{:.2}", assessment.gain)
    }
}

fn value_head(objective: Objective) -> &'static str {
    match objective {
        Objective::MeanFlowS => "mean flow, s",
        Objective::PageLoadS => "page, s",
        Objective::LastFlowS => "last flow, s",
        Objective::GoodputBps => "goodput, Mbit/s",
    }
}

/// A value in its unit, with three significant digits or to the whole unit.
fn shown(objective: Objective, value: f64) -> String {
    let value = match objective {
        Objective::MeanFlowS | Objective::PageLoadS | Objective::LastFlowS => value,
        Objective::GoodputBps => value / 1e6,
    };
    let decimals = match value {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::Rate;

    fn assessment(after: Option<usize>, control: &str, gain: f64, half_width: f64) -> Assessment {
        let capacity = (control == "share").then_some(LinkCapacity::Rate(Rate(10_000_000)));
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
        Advice { verdict, objective, seeds: 10, leg: ProxyLeg::Near, baseline, split, sender: Some(sender), assessments }
    }

    #[test]
    fn advice_names_the_place_the_controller_the_buffer_and_the_gain() {
        let buffers = [BufferResult { buffer_bytes: 65_536, fraction: 0.99, half_width: 0.001 }];
        let text = advice_text(&advice(), &buffers, None);
        for part in [
            "Split the path after link 1, with the controller share and the next link's capacity of 10Mbit at the proxy. Then a transfer takes \
             2.50 s in the mean instead of 10.0 s, 4.00 times as fast (3.70 to 4.30 with 95 % confidence, 10 simulated runs).",
            "In the simulator, 64KiB in each direction are enough for these transfers; a fixed one needs 256KiB, since a real proxy",
            "Without a proxy, with the controller hybla at the senders, a transfer takes 6.25 s in the mean",
            "\n    tandem proxy --listen transparent=[::]:5000 --near control=share,capacity=10Mbit,link=eth1 --buffer auto\n",
            "\n    buffer = \"auto\"\n\n    [[listen]]\n",
            "as it is: end to end, cubic",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn what_is_to_be_pasted_depends_on_the_direction_and_the_controller() {
        let mut advice = advice();
        advice.leg = ProxyLeg::Far;
        advice.split.candidate = Candidate { after: Some(1), control: "bbr".into(), capacity: None };
        assert_eq!(
            command(advice.leg, &advice.split.candidate),
            "tandem proxy --listen transparent=[::]:5000 --far control=bbr --buffer auto"
        );
        let file = "buffer = \"auto\"\n\n[[listen]]\ntransparent = \"[::]:5000\"\n\n[[leg]]\ninterface = \"eth1\"\ncontrol   = \"bbr\"\n";
        assert_eq!(config(&advice.split.candidate), file);
        advice.verdict = AdviceVerdict::DoesNotPay;
        let text = advice_text(&advice, &[], None);
        assert!(
            text.starts_with("Do not split the path: that does not pay. With the best split, after link 1") && !text.contains("--listen")
        );
    }

    #[test]
    fn values_have_three_digits() {
        let all = [0.1234, 1.234, 12.34, 123.4, 1234.5].map(|value| shown(Objective::MeanFlowS, value));
        assert_eq!(all, ["0.123", "1.23", "12.3", "123", "1234"]);
        assert_eq!(shown(Objective::GoodputBps, 19_400_000.0), "19.4");
    }

    #[test]
    fn advice_fits_80_characters_and_breaks_neither_words_nor_numbers() {
        let buffers = [BufferResult { buffer_bytes: 65_536, fraction: 0.99, half_width: 0.001 }];
        let text = advice_text(&advice(), &buffers, Some(80));
        // What is to be pasted is not wrapped.
        assert!(text.lines().all(|line| line.chars().count() <= 80 || line.starts_with("    tandem proxy ")), "{text}");
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
        assert_eq!(keys(&json["advice"]), "verdict aim seeds leg now split sender findings");
        assert_eq!(keys(&json["advice"]["now"]), "way gain half value drops queue_max_bytes jain by_equations");
        assert_eq!(keys(&json["buffers"][0]), "buffer_bytes leaves half");
        assert_eq!((&json["enough_bytes"], &json["enough_simulated_bytes"]), (&262_144.into(), &65_536.into()));
    }
}
