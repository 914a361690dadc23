//! What a link loses at random.

use crate::fraction::{self, Fraction};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use toml_file::text_or_table;

/// What loses packets on a link.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// Each packet with this probability: rate dependent (RD).
    PerPacket(f64),
    /// A Poisson process of so many events a second, each of which drops the next packet: rate
    /// independent (RI).
    PerSecond(f64),
    /// Bursts: two states, each with its loss probability.
    Gilbert(Gilbert),
}

/// The losses of both directions.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[serde(into = "LinkLossesKeys")]
pub struct LinkLosses {
    /// In the direction of the data.
    pub forward: Option<Loss>,
    /// In the other direction: of SYN-ACKs and ACKs.
    pub reverse: Option<Loss>,
}

impl LinkLosses {
    /// Whether nothing is lost.
    pub fn is_none(&self) -> bool {
        self.forward.is_none() && self.reverse.is_none()
    }
}

/// Losses. At most one process for each direction.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LinkLossesKeys {
    /// Each packet is lost with this probability, independently of the others (rate dependent, RD).
    per_packet: Option<Fraction>,
    /// So many events a second, a Poisson process, each of which drops the next packet; an event
    /// without a packet lapses after 0.1 s (rate independent, RI).
    per_second: Option<f64>,
    /// Bursts of losses: the Gilbert–Elliott channel.
    gilbert: Option<Gilbert>,
    /// Losses in the other direction, of SYN-ACKs and ACKs, with the same keys.
    reverse: Option<Loss>,
}

impl From<LinkLosses> for LinkLossesKeys {
    fn from(LinkLosses { forward, reverse }: LinkLosses) -> Self {
        let mut keys = LinkLossesKeys { per_packet: None, per_second: None, gilbert: None, reverse };
        match forward {
            None => {}
            Some(Loss::PerPacket(probability)) => keys.per_packet = Some(Fraction(probability)),
            Some(Loss::PerSecond(events)) => keys.per_second = Some(events),
            Some(Loss::Gilbert(gilbert)) => keys.gilbert = Some(gilbert),
        }
        keys
    }
}

impl TryFrom<LinkLossesKeys> for LinkLosses {
    type Error = String;

    fn try_from(keys: LinkLossesKeys) -> Result<Self, String> {
        let LinkLossesKeys { per_packet, per_second, gilbert, reverse } = keys;
        if per_packet.is_none() && per_second.is_none() && gilbert.is_none() && reverse.is_some() {
            return Ok(LinkLosses { forward: None, reverse });
        }
        Ok(LinkLosses { forward: Some(LossKeys { per_packet, per_second, gilbert }.try_into()?), reverse })
    }
}

impl<'de> Deserialize<'de> for LinkLosses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_table::<D, LinkLosses, LinkLossesKeys>(deserializer, EXPECTED_LOSS, |text| Err(no_loss(text)))
    }
}

impl JsonSchema for LinkLosses {
    fn schema_name() -> Cow<'static, str> {
        "LinkLosses".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        LinkLossesKeys::json_schema(generator)
    }
}

/// A loss process. Exactly one of the keys is given.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LossKeys {
    /// Each packet is lost with this probability, independently of the others (rate dependent, RD).
    per_packet: Option<Fraction>,
    /// So many events a second, a Poisson process, each of which drops the next packet; an event
    /// without a packet lapses after 0.1 s (rate independent, RI).
    per_second: Option<f64>,
    /// Bursts of losses: the Gilbert–Elliott channel.
    gilbert: Option<Gilbert>,
}

impl TryFrom<LossKeys> for Loss {
    type Error = String;

    fn try_from(keys: LossKeys) -> Result<Self, String> {
        match (keys.per_packet, keys.per_second, keys.gilbert) {
            (Some(Fraction(probability)), None, None) => Ok(Loss::PerPacket(probability)),
            (None, Some(events), None) => Ok(Loss::PerSecond(events)),
            (None, None, Some(gilbert)) => Ok(Loss::Gilbert(gilbert)),
            (None, None, None) => Err("is empty: write loss = { per_packet = 0.001 }, or leave it out for no loss".into()),
            _ => Err("has several loss processes: a link has one of per_packet, per_second and gilbert".into()),
        }
    }
}

impl<'de> Deserialize<'de> for Loss {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_table::<D, Loss, LossKeys>(deserializer, EXPECTED_LOSS, |text| Err(no_loss(text)))
    }
}

const EXPECTED_LOSS: &str = "a loss process such as { per_packet = 0.001 }";

/// Why a text or a bare number is no loss process.
fn no_loss(text: &str) -> String {
    match text.parse() {
        Ok(Fraction(lost)) => format!(
            "does not say how packets are lost: write loss = {{ per_packet = {lost} }} for this share of the packets, or {{ \
             per_second = … }} for events a second"
        ),
        Err(_) => format!("cannot be {text:?}: write loss = {{ per_packet = 0.001 }}, or leave it out for no loss"),
    }
}

impl JsonSchema for Loss {
    fn schema_name() -> Cow<'static, str> {
        "Loss".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        LossKeys::json_schema(generator)
    }
}

/// The Gilbert–Elliott channel. Probabilities are per packet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Gilbert {
    /// Probability of the transition from the good state to the bad one.
    #[serde(deserialize_with = "fraction::deserialize")]
    #[schemars(with = "Fraction")]
    pub good_to_bad: f64,
    /// Probability of the transition back; its inverse is the mean length of a bad period in
    /// packets.
    #[serde(deserialize_with = "fraction::deserialize")]
    #[schemars(with = "Fraction")]
    pub bad_to_good: f64,
    /// Probability of a loss in the good state.
    #[serde(default, deserialize_with = "fraction::deserialize")]
    #[schemars(with = "Fraction")]
    pub loss_good: f64,
    /// Probability of a loss in the bad state.
    #[serde(default = "certain", deserialize_with = "fraction::deserialize")]
    #[schemars(with = "Fraction")]
    pub loss_bad: f64,
}

fn certain() -> f64 {
    1.0
}
