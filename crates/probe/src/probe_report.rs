//! The result of probing a host. The field names are the keys of `tandem detect probe --json`.

use crate::{
    clock_offset::ClockOffset,
    single_ended_evidence::{PortProbe, SplitLocation},
    traceroute::NetworkPath,
    transfer_record::{TransferDirection, TransferRecord},
};
use detect::{Evidence, SplitVerdict};
use serde::Serialize;
use std::net::IpAddr;

/// The result for one port, application and direction.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProbeRow {
    /// The application that was carried.
    pub application: String,
    /// Port of the host.
    pub port: u16,
    /// `down` to the prober, `up` from it. `None` for a single-ended probe.
    pub direction: Option<TransferDirection>,
    /// The verdict.
    pub verdict: SplitVerdict,
    /// Why the verdict was reached.
    pub reason: String,
    /// Where the connection is split, as far as routers answer.
    pub place: Option<SplitLocation>,
    /// All evidence, the strongest first. Neutral observations come last.
    pub evidence: Vec<Evidence>,
    /// What could not be measured, and why.
    pub missing: Vec<String>,
}

/// The result of probing a host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProbeReport {
    /// Address of the host.
    pub host: IpAddr,
    /// Whether a responder helped.
    pub responder: bool,
    /// A row for each port, application and direction.
    pub rows: Vec<ProbeRow>,
    /// The network path, measured with UDP and ICMP.
    pub way: NetworkPath,
    /// Single-ended measurements of each port.
    pub ports: Vec<PortProbe>,
    /// The same for ports where no service is expected.
    pub elsewhere: Vec<PortProbe>,
    /// Offset between the clocks, and the round trip of datagrams as a baseline that no TCP
    /// splitter touches.
    pub clocks: Option<ClockOffset>,
    /// The transfers, as both ends saw them.
    pub transfers: Vec<TransferRecord>,
    /// The prober's trace and the responder's: pcap files, headers only.
    #[serde(skip)]
    pub traces: Option<[Vec<u8>; 2]>,
}
