//! Which congestion control each connection has.

use crate::sender::CongestionControl;

/// The congestion control of all connections.
#[derive(Debug)]
pub(crate) struct SeriesControls {
    /// Of each leg from the first link on.
    pub(crate) legs: Vec<CongestionControl>,
    /// Of the senders of each group of flows.
    pub(crate) flows: Vec<CongestionControl>,
    /// Of the senders of each group of TCP cross traffic.
    pub(crate) cross_flows: Vec<CongestionControl>,
    /// Of both ends of each table of web traffic: pages, and then exchanges.
    pub(crate) web: Vec<CongestionControl>,
}
