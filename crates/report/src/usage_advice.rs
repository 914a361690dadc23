//! Advice for all that users do over a path, as text and as JSON.

use crate::{
    advice::{command, config, instructions, name, told},
    plain_table::PlainTable,
    terminal::wrap,
};
use advise::{AdviceVerdict, ProxyLeg, UsageAdvice, UsageResult, WayAssessment};
use scenario::{LinkCapacity, ReceiveBuffers};
use serde_json::json;

/// The advice in words, what to type for it, then the numbers behind it, for a terminal of `width`
/// characters. `receivers` is what the clients and servers were simulated with.
pub fn usage_advice_text(advice: &UsageAdvice, receivers: ReceiveBuffers, width: Option<usize>) -> String {
    let mut out = wrap(&conclusion(advice, receivers), width) + "\n\n";
    if advice.verdict == AdviceVerdict::Split {
        out += &instructions(ProxyLeg::Near, &advice.split.way, width);
    }
    out + &usages_table(advice).text(width) + "\n" + &ways_table(advice).text(width)
}

/// The advice as JSON. Ends with a newline.
pub fn usage_advice_json(advice: &UsageAdvice, receivers: ReceiveBuffers) -> String {
    let splits = advice.verdict == AdviceVerdict::Split;
    let command = splits.then(|| command(ProxyLeg::Near, &advice.split.way));
    let config = splits.then(|| config(&advice.split.way));
    format!("{:#}\n", json!({ "advice": advice, "receive_buffers": receivers, "command": command, "config": config }))
}

fn conclusion(advice: &UsageAdvice, receivers: ReceiveBuffers) -> String {
    let UsageAdvice { split, sender, .. } = advice;
    let after = split.way.after.unwrap_or(0);
    let gain = |way: &WayAssessment| format!("{:.2} ± {:.2} times as fast in the mean", way.gain, way.half_width);
    let what = format!("after link {after} with {}", told(&split.way));
    let mut sentences = vec![match advice.verdict {
        AdviceVerdict::Split => format!("Split the path {what}: what users do is {}, and nothing is slower.", gain(split)),
        AdviceVerdict::CannotTell => format!("Do not split the path: the gain may be chance. Split {what} it is {}.", gain(split)),
        AdviceVerdict::DoesNotPay => {
            let slower: Vec<String> = split.slower().map(|result| format!("{} ({:.2} times as fast)", result.name, result.gain)).collect();
            match slower.is_empty() {
                true => format!("Do not split the path: that does not pay. Split {what} it is {}.", gain(split)),
                false => {
                    format!("Do not split the path: each way makes something slower. Split {what}, that is {}.", slower.join(", "))
                }
            }
        }
    }];
    if advice.verdict == AdviceVerdict::Split && matches!(split.way.capacity, Some(LinkCapacity::Rate(_))) {
        let estimated = advice.ways.iter().find(|way| way.way.after == split.way.after && way.way.capacity == Some(LinkCapacity::Auto));
        sentences.extend(estimated.map(|way| format!("If the link's rate varies, have it estimated (capacity auto): {}.", gain(way))));
    }
    sentences.extend(sender.iter().filter(|way| way.gain - way.half_width > 1.0).map(|way| {
        let slower = way.slower().map(|result| result.name).collect::<Vec<_>>().join(", ");
        let but = if slower.is_empty() { String::new() } else { format!(", but slower: {slower}") };
        format!("Without a proxy, with {} at the senders, it is {}{but}.", told(&way.way), gain(way))
    }));
    let ReceiveBuffers { first, most } = receivers;
    sentences
        .push(format!("Receivers have buffers of {first} at first and {most} at most (--receivers), {} simulated runs.", advice.seeds));
    sentences.join(" ")
}

fn usages_table(advice: &UsageAdvice) -> PlainTable {
    let row = |result: &UsageResult| {
        vec![
            result.name.to_owned(),
            format!("{:.2}", result.now_s),
            format!("{:.2}", result.then_s),
            gain_of(result.gain, result.half_width),
        ]
    };
    PlainTable::new(&["what users do", "now, s", "then, s", "gain"], advice.split.results.iter().map(row).collect())
}

fn ways_table(advice: &UsageAdvice) -> PlainTable {
    let baseline = &advice.ways[0].way;
    let row = |way: &WayAssessment| {
        let least = way.results.iter().min_by(|a, b| a.gain.total_cmp(&b.gain));
        let capacity = way.way.capacity.map_or(String::new(), |capacity| format!(", capacity {capacity}"));
        vec![
            name(&way.way, baseline) + &capacity,
            gain_of(way.gain, way.half_width),
            least.map_or(String::new(), |result| format!("{:.2}, {}", result.gain, result.name)),
        ]
    };
    let mut ways: Vec<&WayAssessment> = advice.ways.iter().collect();
    ways.sort_by(|a, b| b.gain.total_cmp(&a.gain));
    PlainTable::new(&["way", "gain in the mean", "least gain"], ways.into_iter().map(row).collect())
}

fn gain_of(gain: f64, half_width: f64) -> String {
    if half_width > 1e-9 { format!("{gain:.2} ± {half_width:.2}") } else { format!("{gain:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use advise::Candidate;
    use units::Rate;

    fn way(after: Option<usize>, control: &str, capacity: Option<LinkCapacity>, gains: [f64; 2]) -> WayAssessment {
        let result = |name, gain: f64| UsageResult { name, now_s: 10.0, then_s: 10.0 / gain, gain, half_width: 0.01 };
        let results = vec![result("1 MB", gains[0]), result("upload of 20 MB", gains[1])];
        WayAssessment {
            way: Candidate { after, control: control.into(), capacity },
            gain: (gains[0] * gains[1]).sqrt(),
            half_width: 0.02,
            results,
        }
    }

    fn advice(verdict: AdviceVerdict, upload: f64) -> UsageAdvice {
        let told = way(Some(1), "share", Some(LinkCapacity::Rate(Rate(50_000_000))), [2.0, upload]);
        let estimated = way(Some(1), "share", Some(LinkCapacity::Auto), [1.5, 1.0]);
        let ways = vec![way(None, "cubic", None, [1.0, 1.0]), estimated, told.clone()];
        UsageAdvice { verdict, seeds: 10, split: told, sender: Some(way(None, "bbr", None, [1.4, 0.9])), ways }
    }

    #[test]
    fn advice_says_what_to_type_what_each_usage_gains_and_the_alternatives() {
        let text = usage_advice_text(&advice(AdviceVerdict::Split, 1.0), ReceiveBuffers::DEBIAN, None);
        for part in [
            "Split the path after link 1 with the controller share and the next link's capacity of 50Mbit: what users do is 1.41 ± 0.02 times",
            "If the link's rate varies, have it estimated (capacity auto): 1.22 ± 0.02 times",
            "Without a proxy, with the controller bbr at the senders, it is 1.12 ± 0.02 times as fast in the mean, but slower: upload of 20 MB.",
            "Receivers have buffers of 128KiB at first and 6MiB at most",
            "    tandem proxy --listen transparent=[::]:5000 --near control=share,capacity=50Mbit,link=eth1 --buffer auto\n",
            "1.00, upload of 20 MB",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        let narrow = usage_advice_text(&advice(AdviceVerdict::Split, 1.0), ReceiveBuffers::DEBIAN, Some(80));
        assert!(narrow.lines().all(|line| line.chars().count() <= 80 || line.starts_with("    tandem proxy ")), "{narrow}");
    }

    #[test]
    fn what_would_be_slower_is_named() {
        let text = usage_advice_text(&advice(AdviceVerdict::DoesNotPay, 0.5), ReceiveBuffers::DEBIAN, None);
        assert!(text.contains("each way makes something slower") && text.contains("upload of 20 MB (0.50 times as fast)"), "{text}");
        assert!(!text.contains("tandem proxy"), "{text}");
        let json: serde_json::Value =
            serde_json::from_str(&usage_advice_json(&advice(AdviceVerdict::DoesNotPay, 0.5), ReceiveBuffers::DEBIAN)).unwrap();
        assert_eq!((&json["command"], &json["advice"]["verdict"]), (&serde_json::Value::Null, &"does_not_pay".into()));
    }
}
