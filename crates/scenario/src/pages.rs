//! Web pages and request-response: the tables of a scenario file.

use crate::{
    flows::{Draw, FlowDirection},
    law::{SizeLaw, SpanLaw},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use units::{Bytes, Span};

/// Browsers that load a page again and again. A page is a set of objects that ask for each other,
/// on one server. Servers are at the sender's end and browsers at the receiver's, unless
/// `direction` says otherwise. Every load opens new connections and closes them when it is
/// complete.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebPage {
    /// Number of browsers.
    #[serde(default = "one")]
    pub count: u32,
    /// Number of times that each of them loads the page.
    #[serde(default = "one")]
    pub loads: u32,
    /// When each begins its first load; written as `flow.start` is.
    #[serde(default)]
    pub start: Draw,
    /// Time from the end of a load to the beginning of the next one.
    #[serde(default = "no_time", skip_serializing_if = "is_no_time")]
    #[schemars(extend("default" = "0s"))]
    pub think: SpanLaw,
    /// Most connections of a browser to the server at a time. Each carries one request at a time.
    #[serde(default = "six")]
    pub connections: u32,
    /// One connection in place of several, over which a browser sends every request at once. The
    /// server sends the responses one after the other in the order of the requests.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schemars(extend("default" = false))]
    pub multiplexed: bool,
    /// Size of a request, at least 24 B.
    #[serde(default = "request_size")]
    pub request: Bytes,
    /// Time between the arrival of a request at the server and its response.
    #[serde(default = "no_time", skip_serializing_if = "is_no_time")]
    #[schemars(extend("default" = "0s"))]
    pub service: SpanLaw,
    /// Which way the objects go over the links: `forward` or `reverse`. Requests go the other way.
    #[serde(default, skip_serializing_if = "FlowDirection::is_forward")]
    #[schemars(extend("default" = "forward"))]
    pub direction: FlowDirection,
    /// The controller of servers and browsers, written as `control.sender` is. Absent:
    /// `control.sender`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<String>,
    /// The objects. Those that need no other are asked for at the beginning of a load.
    #[serde(rename = "object")]
    pub objects: Vec<PageObject>,
}

/// An object of a page, or several alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PageObject {
    /// The name by which other objects refer to it. Absent: none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Size of the response.
    pub size: SizeLaw,
    /// Number of objects that are alike.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    #[schemars(extend("default" = 1))]
    pub count: u32,
    /// Names of the objects that the browser must have before it asks for this one. They stand
    /// before it in the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
}

/// Clients that send requests and get responses, each over a connection of its own. Servers are at
/// the sender's end and clients at the receiver's, unless `direction` says otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Exchange {
    /// Number of clients.
    #[serde(default = "one")]
    pub count: u32,
    /// Number of requests of each. Absent: until the scenario's `duration` ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<u32>,
    /// Size of a request, at least 24 B.
    pub up: SizeLaw,
    /// Size of a response.
    pub down: SizeLaw,
    /// Time from one request to the next, whether or not there was a response (open loop). Absent:
    /// each request follows the response before (closed loop).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<SpanLaw>,
    /// In the closed loop: time from a response to the next request.
    #[serde(default = "no_time", skip_serializing_if = "is_no_time")]
    #[schemars(extend("default" = "0s"))]
    pub think: SpanLaw,
    /// When each client opens its connection and sends its first request; written as `flow.start`
    /// is.
    #[serde(default)]
    pub start: Draw,
    /// Time between the arrival of a request at the server and its response.
    #[serde(default = "no_time", skip_serializing_if = "is_no_time")]
    #[schemars(extend("default" = "0s"))]
    pub service: SpanLaw,
    /// Which way the responses go over the links: `forward` or `reverse`. Requests go the other
    /// way.
    #[serde(default, skip_serializing_if = "FlowDirection::is_forward")]
    #[schemars(extend("default" = "forward"))]
    pub direction: FlowDirection,
    /// The controller of servers and clients, written as `control.sender` is. Absent:
    /// `control.sender`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<String>,
}

/// The size of the smallest request: the lab's requests contain what the server is to do.
pub(crate) const LEAST_REQUEST: Bytes = Bytes(24);

fn one() -> u32 {
    1
}

fn six() -> u32 {
    6
}

fn is_one(count: &u32) -> bool {
    *count == 1
}

fn request_size() -> Bytes {
    Bytes(500)
}

fn no_time() -> SpanLaw {
    Span::ZERO.into()
}

fn is_no_time(law: &SpanLaw) -> bool {
    *law == no_time()
}
