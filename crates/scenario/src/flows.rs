//! The connections of a scenario: groups of flows as a file has them, and each flow with its draws made.

use crate::{
    law::{Law, Shape, SizeLaw},
    sources::Offer,
};
use rand::RngExt;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use toml_file::inner;
use units::{Bytes, Span};

/// Connections that are alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowGroup {
    /// How many.
    #[serde(default = "one_flow")]
    pub count: u32,
    /// What each sends; absent: as much as it can until the duration ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<SizeLaw>,
    /// When each starts.
    #[serde(default)]
    pub start: Draw,
    /// Who opens the connection; data goes from sender to receiver all the same.
    #[serde(default)]
    pub opens: Opens,
    /// Extra one-way delay of each on the first link, both ways.
    #[serde(default)]
    pub access_delay: Draw,
    /// The receiver's window, where it is to be a limit; absent: larger than any path here needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Bytes>,
    /// The sender's send buffer, where it is to be a limit: payload that was sent and not acknowledged yet; absent: larger than any path
    /// here needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send_buffer: Option<Bytes>,
    /// Whether the opener's connection has TCP Fast Open (RFC 7413), with a cookie from earlier.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fast_open: bool,
    /// What the application offers, where it is that which limits the flow; absent: as much as the connection takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offers: Option<Offer>,
}

fn one_flow() -> u32 {
    1
}

/// Who opens a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Opens {
    /// The one who sends the data: an upload.
    #[default]
    Sender,
    /// The one who receives it: a download.
    Receiver,
}

/// A time for each flow of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Draw {
    /// Uniform between two, from the seed.
    Uniform([Span; 2]),
    /// One after the other: 0, this, twice this …
    Every(Span),
    /// One after the other, as a Poisson process has them: this is the mean gap, before the first, too.
    Poisson(Span),
    /// The same for all.
    #[serde(untagged)]
    Fixed(Span),
}

impl Default for Draw {
    fn default() -> Self {
        Draw::Fixed(Span::ZERO)
    }
}

impl<'de> Deserialize<'de> for Draw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Table {
            Uniform([Span; 2]),
            Every(Span),
            Poisson(Span),
        }
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) => text.parse().map(Draw::Fixed).map_err(D::Error::custom),
            value @ toml::Value::Table(_) => match value.try_into().map_err(inner)? {
                Table::Uniform([low, high]) if low <= high => Ok(Draw::Uniform([low, high])),
                Table::Uniform([low, high]) => Err(D::Error::custom(format!("{low} is after {high}: write the earlier one first"))),
                Table::Every(step) => Ok(Draw::Every(step)),
                Table::Poisson(Span::ZERO) => Err(D::Error::custom("the mean gap is 0: write \"0s\" for all at once")),
                Table::Poisson(gap) => Ok(Draw::Poisson(gap)),
            },
            _ => {
                let laws = "{ uniform = [\"0s\", \"5s\"] }, { every = \"3s\" } or { poisson = \"2s\" }";
                Err(D::Error::custom(format!("expected a time like \"2s\", {laws}")))
            }
        }
    }
}

impl Draw {
    /// The times of `count` flows.
    pub(crate) fn draw(self, count: u32, rng: &mut rand_pcg::Pcg64) -> Vec<Span> {
        let mut last = Span::ZERO;
        (0..count)
            .map(|index| match self {
                Draw::Fixed(span) => span,
                Draw::Every(step) => step * u64::from(index),
                Draw::Uniform([low, high]) => Span(rng.random_range(low.0..=high.0)),
                Draw::Poisson(mean) => {
                    last = last.saturating_add(Law { shape: Shape::Exponential, mean }.draw(rng));
                    last
                }
            })
            .collect()
    }
}

/// One connection of a scenario, with its draws made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlowSpec {
    /// Its number, from 0, over all groups.
    pub id: u32,
    /// What it sends; none: as much as it can.
    pub bytes: Option<Bytes>,
    /// When it starts.
    pub start: Span,
    /// Who opens it.
    pub opens: Opens,
    /// Its extra one-way delay on the first link.
    pub access_delay: Span,
    /// The receiver's window, where it is a limit.
    pub window: Option<Bytes>,
    /// The sender's send buffer, where it is a limit.
    pub send_buffer: Option<Bytes>,
    /// Whether its opener's connection has Fast Open.
    pub fast_open: bool,
    /// What its application offers, where that is a limit.
    pub offers: Option<Offer>,
}
