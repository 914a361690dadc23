//! What the cases of the demonstration (`scenarios/demo.toml`) show.

use outcome::Outcome;

/// A sentence for each difference between the cases of the demonstration: what the split gains, what
/// the controller gains.
pub fn demo_findings(outcomes: &[Outcome]) -> Vec<String> {
    let time = |case: &str| outcomes.iter().find(|outcome| outcome.case == case).and_then(Outcome::completion_s);
    let (Some(cubic), Some(split_cubic), Some(bbr), Some(split_bbr)) =
        (time("end-to-end cubic"), time("split cubic/cubic"), time("end-to-end bbr"), time("split cubic/bbr"))
    else {
        return vec!["A case did not finish, so there is nothing to compare.".into()];
    };
    let mut findings = vec![
        format!(
            "Gain from the split alone (CUBIC on both legs, compared with CUBIC end to end): {}. {}",
            compared(cubic, split_cubic),
            "The far leg still has nearly the whole round trip and every loss, and CUBIC reduces its rate for each of them."
        ),
        format!(
            "Gain from the controller alone (BBR compared with CUBIC, nothing split): {}. {}",
            compared(cubic, bbr),
            "BBR does not take a random loss for congestion, but every sender has to run it."
        ),
        format!(
            "Gain from both (split CUBIC/BBR, compared with CUBIC end to end): {}. {}",
            compared(cubic, split_bbr),
            "The sender still runs plain CUBIC: with the split the satellite leg has its own controller, and no end host changes."
        ),
        format!(
            "Gain from the split if the sender runs BBR already (split CUBIC/BBR, compared with BBR end to end): {}. {}",
            compared(bbr, split_bbr),
            "Both have the same controller on the same long leg; where the short leg has no losses there is little left to gain."
        ),
    ];
    if let Some(share) = time("split cubic/share") {
        findings.push(format!(
            "Gain from configuring the link capacity (split CUBIC/share, compared with split CUBIC/BBR): {}. {}",
            compared(split_bbr, share),
            "BBR has to find the rate, separately for every flow; a proxy that knows the capacity gives each flow its share from the first \
             round trip on."
        ));
    }
    findings
}

/// How much faster `new` is than `old`, in words.
fn compared(old: f64, new: f64) -> String {
    let ratio = old / new;
    let times = format!("{new:.1} s instead of {old:.1} s");
    if ratio > 1.1 {
        format!("{ratio:.1} times as fast ({times})")
    } else if ratio < 1.0 / 1.1 {
        format!("{:.1} times as slow ({times})", 1.0 / ratio)
    } else {
        format!("no notable difference ({times})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn differences_are_put_into_words() {
        assert_eq!(compared(40.0, 10.0), "4.0 times as fast (10.0 s instead of 40.0 s)");
        assert_eq!(compared(10.0, 20.0), "2.0 times as slow (20.0 s instead of 10.0 s)");
        assert_eq!(compared(10.0, 10.5), "no notable difference (10.5 s instead of 10.0 s)");
    }

    #[test]
    fn every_difference_has_a_sentence() {
        assert_eq!(demo_findings(&samples::demo()).len(), 4);
        assert_eq!(demo_findings(&[]), ["A case did not finish, so there is nothing to compare."]);
    }
}
