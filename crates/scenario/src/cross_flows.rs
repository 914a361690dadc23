//! TCP cross traffic: connections over some of the links.

use crate::{
    flows::{Draw, FlowDirection, FlowSpec, Opens},
    law::SizeLaw,
    path::{FlowPath, LegLinks},
    random::{Purpose, stream},
    sources::Offer,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use units::{Bytes, Span};

/// TCP connections that share some of the links with the flows. They are real connections with a
/// controller, not packets at a given rate. A proxy between two of their links splits them as it
/// splits every connection; one at the end of their links does not. They do not prolong a run, and
/// count in no number but `cross_flows`, those of links and what proxies hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CrossFlow {
    /// Number of the link before which they enter, from 1.
    pub enters: usize,
    /// Number of the link behind which they leave, from `enters` on.
    pub leaves: usize,
    /// Number of connections.
    #[serde(default = "one_flow")]
    pub count: u32,
    /// Payload that each sends. Absent: as much as it can until the run ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<SizeLaw>,
    /// When each starts; written as `flow.start` is.
    #[serde(default)]
    pub start: Draw,
    /// Which way the data goes over the links; `reverse`: it enters behind `leaves` and leaves
    /// before `enters`.
    #[serde(default, skip_serializing_if = "FlowDirection::is_forward")]
    #[schemars(extend("default" = "forward"))]
    pub direction: FlowDirection,
    /// The end that opens the connections.
    #[serde(default)]
    pub opens: Opens,
    /// The receiver's window, if it is to be a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Bytes>,
    /// What the application writes and how often, if it is to limit the flow. Absent: as much as
    /// the connection takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offers: Option<Offer>,
    /// The sender's controller, written as `control.sender` is. Absent: `control.sender`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<String>,
}

fn one_flow() -> u32 {
    1
}

impl CrossFlow {
    /// Appends the connections of group `group` to `specs`, with the numbers that follow those
    /// before.
    pub(crate) fn add_specs(&self, seed: u64, group: usize, first_id: u32, specs: &mut Vec<FlowSpec>) {
        let links = LegLinks { first: self.enters - 1, end: self.leaves };
        let index = group as u64;
        let starts = self.start.draw(self.count, &mut stream(seed, Purpose::CrossFlowStarts, index));
        let sizes = &mut stream(seed, Purpose::CrossFlowSizes, index);
        for start in starts {
            for &is_reverse in self.direction.each() {
                specs.push(FlowSpec {
                    id: first_id + specs.len() as u32,
                    group,
                    bytes: self.bytes.map(|law| law.draw(sizes)),
                    start,
                    opens: self.opens,
                    path: FlowPath { links, is_reverse },
                    access_delay: Span::ZERO,
                    window: self.window,
                    send_buffer: None,
                    fast_open: false,
                    offers: self.offers,
                });
            }
        }
    }
}
