//! Advice on a path of the running proxy: what to do, why, in words and as lines of a
//! configuration.

use crate::output;
use monitor::{MeasuredLeg, MeasuredPath, PathGroup};
use proxy::ExperimentRow;
use serde::Serialize;
use std::{fmt::Write as _, time::Duration};
use units::Rate;

/// What to do with the connections of a path.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "action")]
pub(super) enum Recommendation {
    /// Split them, with these settings.
    Split(SplitSettings),
    /// Go on to split them: with these settings, which they have.
    Keep(SplitSettings),
    /// Let them pass unsplit.
    Bypass,
    /// Change nothing: there is no advice, and why.
    None {
        /// Why not.
        why: String,
    },
}

/// The settings of a split.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct SplitSettings {
    /// `near` or `far`: the leg that sends the data.
    pub(super) leg: &'static str,
    pub(super) control: String,
    pub(super) capacity: Option<String>,
    /// The interface that has this capacity.
    pub(super) link: Option<String>,
    /// Whether the proxy limits itself to it, if that has to be said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shape: Option<bool>,
}

/// Advice on a path.
#[derive(Debug, Clone, Serialize)]
pub(super) struct PathAdvice {
    pub(super) path: MeasuredPath,
    pub(super) recommendation: Recommendation,
    /// Sentences.
    pub(super) why: Vec<String>,
    /// What the experiment has shown of this prefix; absent for an interface.
    pub(super) experiment: Option<ExperimentRow>,
    /// Lines for the configuration.
    pub(super) config: Option<String>,
}

impl PathAdvice {
    /// The name of the profile in the configuration.
    pub(super) fn profile(&self) -> String {
        format!("advice-{}", self.path.group.to_string().replace(['/', ':'], "-"))
    }

    /// What to add to the configuration.
    pub(super) fn lines(&self) -> Option<String> {
        let group = &self.path.group;
        let condition = match group {
            PathGroup::Prefix(_) => "to",
            PathGroup::Interface(_) => "in",
        };
        match &self.recommendation {
            Recommendation::Bypass => Some(format!("[[rule]]\n{condition}     = \"{group}\"\naction = \"bypass\"\n")),
            Recommendation::Split(settings) => {
                let profile = self.profile();
                let mut text = format!("[[leg]]\nname    = \"{profile}\"\ncontrol = \"{}\"\n", settings.control);
                if let Some(capacity) = &settings.capacity {
                    let _ = writeln!(text, "capacity = \"{capacity}\"");
                    text.extend(settings.link.iter().map(|link| format!("link     = \"{link}\"\n")));
                    text.extend(settings.shape.iter().map(|shape| format!("shape    = {shape}\n")));
                }
                let _ = write!(text, "\n[[rule]]\n{condition}   = \"{group}\"\n{:4} = \"{profile}\"\n", settings.leg);
                Some(text)
            }
            Recommendation::Keep(_) | Recommendation::None { .. } => None,
        }
    }
}

/// The advice in words, and the lines for the configuration.
pub(super) fn text(all: &[PathAdvice], time: Duration) -> String {
    if all.is_empty() {
        return format!(
            "No split connection carried data in {} s: try again while there is traffic, or watch longer (--for).\n",
            time.as_secs()
        );
    }
    let mut out = String::new();
    for advice in all {
        let MeasuredPath { group, flows, near, far, control, .. } = &advice.path;
        let loss = |leg: &MeasuredLeg| match (leg.loss, leg.queued_loss) {
            (None, _) => "unknown".into(),
            (Some(_), Some(queued)) => format!("unknown ({:.2} % with a queue that may have overflowed, taken for none)", queued * 100.0),
            (Some(loss), None) => format!("{:.2} %", loss * 100.0),
        };
        let split = |settings: &SplitSettings| {
            let capacity = settings.capacity.as_ref().map_or(String::new(), |capacity| format!(", capacity {capacity}"));
            format!("split, with {} on the {} leg{capacity}", settings.control, settings.leg)
        };
        let what = match &advice.recommendation {
            Recommendation::Split(settings) => split(settings),
            Recommendation::Keep(settings) => format!("{}, as it is", split(settings)),
            Recommendation::Bypass => "let them pass unsplit".into(),
            Recommendation::None { why } => format!("no advice: {why}"),
        };
        let head = format!(
            "{group}: {what}. Measured of {flows} connections: round trips {:.0} ms near and {:.0} ms far, losses {} near and {} far, at most \
             {}, now with {control}. {}",
            near.rtt_s * 1e3,
            far.rtt_s * 1e3,
            loss(near),
            loss(far),
            Rate::rounded(advice.path.peak_bps),
            advice.why.join(" ")
        );
        out += &(report::wrap(head.trim_end(), output::width()) + "\n");
        if let Some(lines) = &advice.config {
            out += &format!("\n{}", lines.lines().map(|line| format!("    {line}").trim_end().to_owned() + "\n").collect::<String>());
        }
        out += "\n";
    }
    if splits_any(all) {
        out += "For all of them, before the first [table] of the file, and a restart:\n\n    buffer = \"auto\"\n";
    }
    out
}

/// Whether any of these paths is to be split.
fn splits_any(all: &[PathAdvice]) -> bool {
    all.iter().any(|advice| matches!(advice.recommendation, Recommendation::Split(_)))
}

#[cfg(test)]
pub(super) fn example(group: &str, recommendation: Recommendation) -> PathAdvice {
    use monitor::MeasuredLeg;
    use proxy::Limiter;
    use std::net::IpAddr;
    let leg = |rtt_s, loss| MeasuredLeg { rtt_s, loss, queued_loss: None, window_bytes: 3 << 20 };
    let path = MeasuredPath {
        ends: [[10, 0, 0, 1], [192, 0, 2, 9]].map(IpAddr::from),
        group: group.parse().map_or_else(|_| PathGroup::Interface(group.into()), PathGroup::Prefix),
        flows: 7,
        down_bytes: 7_000_000,
        up_bytes: 1000,
        near: leg(0.6, Some(0.005)),
        far: leg(0.02, None),
        control: "cubic".into(),
        peak_bps: 2.5e6,
        concurrent: 3.6,
        limits: vec![(Limiter::NearLeg, 0.9), (Limiter::Sender, 0.1)],
        mean_bytes: 1_000_000,
    };
    let mut advice = PathAdvice { path, recommendation, why: vec!["Because.".into()], experiment: None, config: None };
    advice.config = advice.lines();
    advice
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_has_the_lines_of_the_configuration() {
        let settings = SplitSettings {
            leg: "near",
            control: "bbr".into(),
            capacity: Some("20Mbit".into()),
            link: Some("sat0".into()),
            shape: Some(false),
        };
        let kept = example("203.0.113.0/24", Recommendation::Keep(settings.clone()));
        let split = example("2001:db8::/48", Recommendation::Split(settings));
        let bypass = example("192.0.2.0/24", Recommendation::Bypass);
        let of_interface = example("sat0", Recommendation::Bypass);
        let lines = [&split, &bypass, &of_interface].map(|advice| advice.config.as_deref().unwrap()).join("\n");
        let file = format!("{lines}\n[[listen]]\ntransparent = \"[::]:5000\"\n");
        let config = proxy::Service::parse(&file, "test").unwrap().config;
        assert_eq!(config.policy.rules[0].near.as_deref(), config.policy.legs[0].name.as_deref());
        assert_eq!(config.policy.legs[0].profile.control.as_deref(), Some("bbr"));
        assert_eq!(config.policy.rules[1].action, intercept::Action::Bypass);
        assert_eq!(config.policy.rules[2].inward.len(), 1);
        assert_eq!(config.policy.legs[0].profile.shape, Some(false));
        assert_eq!(kept.config, None);
        let said = text(&[kept], Duration::from_secs(10));
        assert!(said.starts_with("203.0.113.0/24: split, with bbr on the near leg, capacity 20Mbit, as it is."), "{said}");
        assert!(!said.contains("buffer"), "{said}");
        let all = [split, bypass];
        let shown = text(&all, Duration::from_secs(10));
        assert!(shown.contains("split, with bbr on the near leg, capacity 20Mbit.") && shown.contains("    buffer = \"auto\""), "{shown}");
    }
}
