//! Report.

use crate::{
    clock_offset::ClockOffset,
    single_ended_evidence::{PortProbe, SplitLocation},
    traceroute::NetworkPath,
    transfer_record::{TransferDirection, TransferRecord},
};
use detect::{Evidence, SplitVerdict};
use serde::Serialize;
use std::net::IpAddr;

/// What is said of a port.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProbeRow {
    /// What was carried.
    pub application: String,
    /// The host's port.
    pub port: u16,
    /// `down` to the prober, `up` from it; null where one end alone was looked at.
    pub direction: Option<TransferDirection>,
    /// Is it split?
    pub verdict: SplitVerdict,
    /// Why that is the verdict.
    pub reason: String,
    /// Where it is split, as far as hops answer.
    pub place: Option<SplitLocation>,
    /// What speaks for it, and what was looked at besides; the strongest first.
    pub evidence: Vec<Evidence>,
    /// What could not be had, and why.
    pub missing: Vec<String>,
}

/// What was found by probing a host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProbeReport {
    /// The host's address.
    pub host: IpAddr,
    /// Whether its responder helped.
    pub responder: bool,
    /// A row for each port, application and direction.
    pub rows: Vec<ProbeRow>,
    /// What packets that are no TCP show.
    pub way: NetworkPath,
    /// What was measured of each port from here.
    pub ports: Vec<PortProbe>,
    /// The same of ports at which hardly anybody listens.
    pub elsewhere: Vec<PortProbe>,
    /// How far the responder's clock is ahead, and the control run that no splitter of TCP touches.
    pub clocks: Option<ClockOffset>,
    /// What was carried, as both ends saw it.
    pub transfers: Vec<TransferRecord>,
    /// The prober's trace and the responder's: capture files, headers only.
    #[serde(skip)]
    pub traces: Option<[Vec<u8>; 2]>,
}
