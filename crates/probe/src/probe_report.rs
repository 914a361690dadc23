//! Report.

use crate::{
    clock_offset::Offset,
    single_ended_evidence::{Place, PortSeen},
    traceroute::Way,
    transfer_record::{Direction, Transferred},
};
use detect::{Evidence, Verdict};
use serde::Serialize;
use std::net::IpAddr;

/// What is said of a port.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// What was carried.
    pub application: String,
    /// The host's port.
    pub port: u16,
    /// `down` to the prober, `up` from it; null where one end alone was looked at.
    pub direction: Option<Direction>,
    /// Is it split?
    pub verdict: Verdict,
    /// Why that is the verdict.
    pub reason: String,
    /// Where it is split, as far as hops answer.
    pub place: Option<Place>,
    /// What speaks for it, and what was looked at besides; the strongest first.
    pub evidence: Vec<Evidence>,
    /// What could not be had, and why.
    pub missing: Vec<String>,
}

/// What was found by probing a host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Probed {
    /// The host's address.
    pub host: IpAddr,
    /// Whether its responder helped.
    pub responder: bool,
    /// A row for each port, application and direction.
    pub rows: Vec<Row>,
    /// What packets that are no TCP show.
    pub way: Way,
    /// What was measured of each port from here.
    pub ports: Vec<PortSeen>,
    /// The same of ports at which hardly anybody listens.
    pub elsewhere: Vec<PortSeen>,
    /// How far the responder's clock is ahead, and the control run that no splitter of TCP touches.
    pub clocks: Option<Offset>,
    /// What was carried, as both ends saw it.
    pub transfers: Vec<Transferred>,
    /// The prober's trace and the responder's: capture files, headers only.
    #[serde(skip)]
    pub traces: Option<[Vec<u8>; 2]>,
}
