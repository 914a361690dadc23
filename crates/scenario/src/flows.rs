//! The connections of a scenario: groups of flows as a file has them, and each flow with its random
//! times and sizes drawn.

use crate::{
    law::{Law, Shape, SizeLaw},
    path::FlowPath,
    sources::Offer,
};
use rand::RngExt;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use toml_file::text_or_table;
use units::{Bytes, Span};

/// Connections that are alike. Data goes from the sender to the receiver, whichever end opens them.
/// The sender is at the beginning of the path unless `direction` says otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FlowGroup {
    /// Number of connections. All of a scenario together are at most 100000.
    #[serde(default = "one_flow")]
    pub count: u32,
    /// Payload that each sends. Absent: as much as it can until the scenario's `duration` ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<SizeLaw>,
    /// When each starts.
    #[serde(default)]
    pub start: Draw,
    /// Which way the data goes over the links.
    #[serde(default, skip_serializing_if = "FlowDirection::is_forward")]
    #[schemars(extend("default" = "forward"))]
    pub direction: FlowDirection,
    /// The end that opens the connections.
    #[serde(default)]
    pub opens: Opens,
    /// Extra one-way delay of each connection on the first link, in both directions; written as
    /// `start` is, but not `poisson`.
    #[serde(default)]
    pub access_delay: Draw,
    /// The receiver's window, if it is to be a limit. Absent: larger than any path needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Bytes>,
    /// The sender's send buffer, if it is to be a limit: payload sent and not acknowledged yet
    /// (behind a proxy with `mode = "semi"`: not delivered yet). Absent: larger than any path
    /// needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send_buffer: Option<Bytes>,
    /// Whether the connection that the opener dials has TCP Fast Open (RFC 7413), with the cookie
    /// of an earlier connection.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schemars(extend("default" = false))]
    pub fast_open: bool,
    /// What the application writes and how often, if it is to limit the flow. Absent: as much as
    /// the connection takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offers: Option<Offer>,
    /// The sender's controller for these connections, written as `control.sender` is. Absent:
    /// `control.sender`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<String>,
}

fn one_flow() -> u32 {
    1
}

impl FlowGroup {
    /// Whether data goes against the links, on all of its connections or on half of them.
    pub fn has_reverse(&self) -> bool {
        self.direction != FlowDirection::Forward
    }

    /// Whether a connection is opened from the end of the path at which a flow with `forward` data
    /// has its sender (`Opens::Sender`) or its receiver.
    pub fn is_opened_from(&self, end: Opens) -> bool {
        match self.direction {
            FlowDirection::Forward => self.opens == end,
            FlowDirection::Reverse => self.opens != end,
            FlowDirection::Both => true,
        }
    }
}

/// Which way data goes over links in series, which are listed from the sender's end to the
/// receiver's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FlowDirection {
    /// From the first link to the last
    #[default]
    Forward,
    /// From the last link to the first. The sender is behind the last link
    Reverse,
    /// Two connections in place of one, which start together: one each way, with `bytes` each
    Both,
}

impl FlowDirection {
    pub(crate) fn is_forward(&self) -> bool {
        *self == FlowDirection::Forward
    }

    /// For each connection that one of a group's `count` makes: whether its data goes in reverse.
    pub(crate) fn each(self) -> &'static [bool] {
        match self {
            FlowDirection::Forward => &[false],
            FlowDirection::Reverse => &[true],
            FlowDirection::Both => &[false, true],
        }
    }
}

/// The end that opens a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Opens {
    /// The end that sends the data: an upload
    #[default]
    Sender,
    /// The end that receives the data: a download
    Receiver,
}

/// A time for each flow of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Draw {
    /// Uniformly distributed between two times.
    Uniform([Span; 2]),
    /// One after the other: 0, this, twice this …
    Every(Span),
    /// A Poisson process with this mean gap, before the first flow too.
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

/// Times that differ from flow to flow, in place of one time for all. Exactly one of the keys is
/// given.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DrawKeys {
    /// Uniformly distributed between two times: `["0s", "5s"]`.
    uniform: Option<[Span; 2]>,
    /// One after the other at this distance, the first at 0.
    every: Option<Span>,
    /// One after the other as a Poisson process with this mean gap, before the first one too.
    poisson: Option<Span>,
}

impl TryFrom<DrawKeys> for Draw {
    type Error = String;

    fn try_from(keys: DrawKeys) -> Result<Self, String> {
        match (keys.uniform, keys.every, keys.poisson) {
            (Some([low, high]), None, None) if low <= high => Ok(Draw::Uniform([low, high])),
            (Some([low, high]), None, None) => Err(format!("{low} is after {high}: write the earlier one first")),
            (None, Some(step), None) => Ok(Draw::Every(step)),
            (None, None, Some(Span::ZERO)) => Err("the mean gap is 0: write \"0s\" for all at once".into()),
            (None, None, Some(gap)) => Ok(Draw::Poisson(gap)),
            _ => Err(format!("expected {EXPECTED}")),
        }
    }
}

const EXPECTED: &str = "a time such as \"2s\", { uniform = [\"0s\", \"5s\"] }, { every = \"3s\" } or { poisson = \"2s\" }";

impl<'de> Deserialize<'de> for Draw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_table::<D, Draw, DrawKeys>(deserializer, EXPECTED, |text| {
            text.parse().map(Draw::Fixed).map_err(|error: units::UnitError| error.to_string())
        })
    }
}

impl JsonSchema for Draw {
    fn schema_name() -> Cow<'static, str> {
        "Draw".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        crate::schema::either::<Span, DrawKeys>(generator)
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

/// One connection of a scenario, with its random values drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlowSpec {
    /// Its number over all groups, from 0.
    pub id: u32,
    /// The index of its group, from 0.
    pub group: usize,
    /// Payload that it sends; absent: as much as it can.
    pub bytes: Option<Bytes>,
    /// When it starts, from the start of the run.
    pub start: Span,
    /// The end that opens it.
    pub opens: Opens,
    /// The links that it crosses, and in which direction.
    pub path: FlowPath,
    /// Extra one-way delay on the first link.
    pub access_delay: Span,
    /// The receiver's window, if it is a limit.
    pub window: Option<Bytes>,
    /// The sender's send buffer, if it is a limit.
    pub send_buffer: Option<Bytes>,
    /// Whether the connection that its opener dials has Fast Open.
    pub fast_open: bool,
    /// What its application writes, if that is a limit.
    pub offers: Option<Offer>,
}
