//! Which flows are shown.

use crate::text;
use intercept::Prefix;
use proxy::{FlowView, Limiter, Phase};
use std::{net::SocketAddr, str::FromStr};

/// Conditions that a flow must meet, all of them. Text form: words with spaces between them.
///
/// | word | flows that it selects |
/// |---|---|
/// | `192.0.2.0/24`, `2001:db8::1` | the client or the server has an address of this prefix |
/// | `:443` | the client or the server has this port |
/// | `limited-by=far-leg` | a direction is limited by this |
/// | `phase=backpressure` | a direction is in this phase |
/// | `control=cubic` | a leg has this controller |
/// | any other text | the client's or the server's address, written out, contains this text |
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FlowFilter {
    conditions: Vec<Condition>,
}

/// Why a text is not a filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the filter {word:?}: {why}")]
pub struct FilterError {
    word: String,
    why: String,
}

#[derive(Debug, Clone, PartialEq)]
enum Condition {
    Prefix(Prefix),
    Port(u16),
    LimitedBy(Limiter),
    Phase(Phase),
    Control(String),
    Text(String),
}

impl FlowFilter {
    /// Whether every flow meets it.
    pub fn is_empty(&self) -> bool {
        self.conditions.is_empty()
    }

    /// Whether a condition is about more than addresses: it needs a flow's full statistics.
    pub fn asks_for_state(&self) -> bool {
        let is_state = |condition: &Condition| matches!(condition, Condition::LimitedBy(_) | Condition::Phase(_) | Condition::Control(_));
        self.conditions.iter().any(is_state)
    }

    /// Whether a flow meets every condition.
    pub fn accepts(&self, flow: &FlowView) -> bool {
        self.conditions.iter().all(|condition| condition.accepts(flow))
    }
}

impl Condition {
    fn accepts(&self, flow: &FlowView) -> bool {
        let any_end = |accepts: &dyn Fn(&SocketAddr) -> bool| [&flow.client, &flow.server].into_iter().any(accepts);
        // A direction without data is limited by nothing.
        let mut directions = [&flow.up, &flow.down].into_iter().filter(|direction| direction.bytes > 0);
        match self {
            Condition::Prefix(prefix) => any_end(&|end| prefix.contains(end.ip())),
            Condition::Port(port) => any_end(&|end| end.port() == *port),
            Condition::LimitedBy(limiter) => directions.any(|direction| direction.limited_by == *limiter),
            Condition::Phase(phase) => directions.any(|direction| direction.phase == *phase),
            Condition::Control(control) => [&flow.near, &flow.far].iter().any(|leg| leg.control.starts_with(control.as_str())),
            Condition::Text(text) => any_end(&|end| end.to_string().contains(text.as_str())),
        }
    }
}

impl FromStr for FlowFilter {
    type Err = FilterError;
    fn from_str(text: &str) -> Result<Self, FilterError> {
        let condition = |word: &str| read_word(word).map_err(|why| FilterError { word: word.into(), why });
        Ok(FlowFilter { conditions: text.split_whitespace().map(condition).collect::<Result<_, _>>()? })
    }
}

fn read_word(word: &str) -> Result<Condition, String> {
    if let Some((key, value)) = word.split_once('=') {
        return match key {
            "limited-by" => named(value, &text::LIMITERS).map(Condition::LimitedBy),
            "phase" => named(value, &text::PHASES).map(Condition::Phase),
            "control" if !value.is_empty() => Ok(Condition::Control(value.into())),
            "control" => Err("control= needs the name of a controller: control=cubic".into()),
            _ => Err(format!("there is no key {key:?}: use limited-by, phase or control")),
        };
    }
    if let Some(port) = word.strip_prefix(':').filter(|port| port.bytes().all(|byte| byte.is_ascii_digit())) {
        return port.parse().map(Condition::Port).map_err(|_| "a port is a number from 0 to 65535: :443".into());
    }
    if word.contains('/') {
        return word.parse().map(Condition::Prefix).map_err(|error| format!("{error}; a prefix looks like 192.0.2.0/24"));
    }
    Ok(word.parse().map_or_else(|_| Condition::Text(word.into()), Condition::Prefix))
}

/// The value with this name; spaces are written as hyphens.
fn named<T: Copy>(name: &str, values: &[(T, &str)]) -> Result<T, String> {
    let written = |known: &str| known.replace(' ', "-");
    values.iter().find(|(_, known)| written(known) == name).map(|(value, _)| *value).ok_or_else(|| {
        let all: Vec<String> = values.iter().map(|(_, known)| written(known)).collect();
        format!("use one of {}", all.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::example_flow;

    fn accepts(filter: &str) -> bool {
        filter.parse::<FlowFilter>().unwrap().accepts(&example_flow("192.0.2.1:1000", "198.51.100.1:443"))
    }

    #[test]
    fn a_flow_must_meet_every_condition() {
        for filter in
            ["", "192.0.2.0/24", "198.51.100.1", ":443", ":1000", "limited-by=far-leg", "phase=backpressure", "control=td_", "51.100"]
        {
            assert!(accepts(filter), "{filter}");
        }
        for filter in ["192.0.3.0/24", ":44", "limited-by=receiver", "phase=free", "control=bbr", "203.0.113", ":443 :80"] {
            assert!(!accepts(filter), "{filter}");
        }
        assert!(accepts("192.0.2.0/24 :443 control=cubic"));
        let asks = |filter: &str| filter.parse::<FlowFilter>().unwrap().asks_for_state();
        assert!(asks(":443 phase=free") && asks("control=bbr") && !asks("192.0.2.0/24 :443 example"));
    }

    #[test]
    fn an_error_names_the_word_and_the_cure() {
        let error = |filter: &str| filter.parse::<FlowFilter>().unwrap_err().to_string();
        assert_eq!(
            error("limited-by=moon"),
            "cannot read the filter \"limited-by=moon\": use one of sender, near-leg, proxy-buffer, far-leg, receiver"
        );
        assert_eq!(error(":99999"), "cannot read the filter \":99999\": a port is a number from 0 to 65535: :443");
        assert!(error("192.0.2.0/99").ends_with("a prefix looks like 192.0.2.0/24"));
        assert!(error("colour=red").contains("use limited-by, phase or control"));
    }
}
