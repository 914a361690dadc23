//! The account of transfers beside what packet captures of the same runs say.
//!
//! A capture has what was sent and advertised, and not why a sender waits. It tells apart: nothing
//! was sent yet; everything is sent and on its way; the window that the receiver advertised is
//! full; something is sent again. The rest is one part here: slow start, congestion control, a send
//! buffer, the application.

use account::{Account, AccountShares, Cause, Interval, PAYLOAD, Waits};
use anyhow::{Context as _, Result, ensure};
use lab::Lab;
use measurements::{MeasurementRecord, SampleColumn, SampleTable};
use outcome::Engine as _;
use pcap_file::pcapng::{Block, PcapNgReader};
use scenario::{Scenario, Variant};
use std::{
    fs::File,
    path::{Path, PathBuf},
};

/// Lays the account of transfers in the lab beside what a packet capture of the same run says
#[derive(Debug, clap::Args)]
pub(crate) struct AccountCaptures {
    /// The scenario
    #[arg(default_value = "scenarios/limits.toml")]
    scenario: PathBuf,
    /// Runs of each case
    #[arg(long, default_value_t = 3)]
    runs: u64,
}

/// The parts that a capture tells apart, and the causes of each.
const PARTS: [(&str, &[Cause]); 5] = [
    ("opening and distance", &[Cause::Handshake, Cause::Distance]),
    ("windows", &[Cause::ReceiverWindow, Cause::ProxyBuffer]),
    ("loss", &[Cause::Loss]),
    ("sender and controller", &[Cause::SlowStart, Cause::Control, Cause::KernelBuffer, Cause::Sender]),
    ("other traffic", &[Cause::OtherTraffic]),
];
/// The server's port of the first flow of a run in the lab.
const PORT: u16 = 10_000;
/// Length of the intervals into which a capture is cut, seconds.
const STEP: f64 = 0.005;
/// How often a run is repeated that the machine could not keep up with.
const TRIES: usize = 5;

impl AccountCaptures {
    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<()> {
        record.rounds = self.runs;
        let used = SampleColumn::new("used", "%", 0);
        let mut columns = vec![used, SampleColumn::new("used, capture", "%", 0)];
        for (part, _) in PARTS {
            columns.extend([SampleColumn::new(part, "%", 0), SampleColumn::new(&format!("{part}, capture"), "%", 0)]);
        }
        let mut table = SampleTable::new("transfers", "transfer", columns);
        for variant in crate::scenario_runs::variants(&self.scenario)? {
            for round in 0..self.runs {
                let [account, capture] = both(&variant, round + 1).with_context(|| variant.case.clone())?;
                let row = table.row(&variant.case);
                for (suffix, shares) in [("", account), (", capture", capture)] {
                    row.add(&format!("used{suffix}"), round as usize, 100.0 * shares.used.unwrap_or_default());
                    for (part, causes) in PARTS {
                        let lost: f64 = causes.iter().map(|cause| shares.lost_to(*cause)).sum();
                        row.add(&format!("{part}{suffix}"), round as usize, 100.0 * lost);
                    }
                }
            }
        }
        record.tables = vec![table];
        Ok(())
    }
}

/// The account of the first flow of a run, and that of its capture.
fn both(variant: &Variant, seed: u64) -> Result<[AccountShares; 2]> {
    let directory = tempfile::tempdir()?;
    let lab = Lab { capture: Some(directory.path().join("of-")), ..Lab::default() };
    for _ in 0..TRIES {
        let outcome = lab.run(&variant.scenario, seed, &())?;
        if outcome.valid {
            let account = outcome.flows[0].account.clone().context("the run has no account")?;
            return Ok([account, account_of_capture(&variant.scenario, directory.path())?]);
        }
    }
    anyhow::bail!("the machine did not keep up with the run: leave nothing else running")
}

/// A TCP packet of a capture, or another packet.
#[derive(Debug, Clone, Copy)]
struct Packet {
    /// Time in seconds.
    t: f64,
    ports: [u16; 2],
    is_tcp: bool,
    is_syn: bool,
    seq: u32,
    ack: u32,
    payload: u32,
    /// The window as it is in the header.
    window: u32,
    /// The shift of windows in the options.
    shift: Option<u8>,
}

impl Packet {
    fn is_of_flow(&self) -> bool {
        self.is_tcp && self.ports.contains(&PORT)
    }
}

/// The packets that a host sent and received over the link on the receiver's side (1) or on the
/// sender's side (0).
fn packets(file: &Path, interface: u32) -> Result<Vec<Packet>> {
    let open = File::open(file).with_context(|| format!("cannot open the capture {}", file.display()))?;
    let mut reader = PcapNgReader::new(open)?;
    let mut all = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(block) = block?
            && block.interface_id == interface
        {
            all.extend(parsed(block.timestamp.as_secs_f64(), &block.data));
        }
    }
    Ok(all)
}

/// The IPv4 packet with these bytes.
fn parsed(t: f64, bytes: &[u8]) -> Option<Packet> {
    let (word, long) = (
        |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?)),
        |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?)),
    );
    let begin = usize::from(*bytes.first()? & 15) * 4;
    let length = usize::from(word(2)?);
    let ports = [word(begin)?, word(begin + 2)?];
    let other = Packet { t, ports, is_tcp: false, is_syn: false, seq: 0, ack: 0, payload: length as u32, window: 0, shift: None };
    if *bytes.get(9)? != 6 {
        return Some(other);
    }
    let data = begin + usize::from(bytes.get(begin + 12)? >> 4) * 4;
    let mut options = bytes.get(begin + 20..data)?;
    let mut shift = None;
    while let Some(kind) = options.first().filter(|kind| **kind != 0) {
        let length = if *kind == 1 { 1 } else { usize::from(*options.get(1)?).max(2) };
        shift = if *kind == 3 { options.get(2).copied() } else { shift };
        options = options.get(length..).unwrap_or_default();
    }
    let (seq, ack, window) = (long(begin + 4)?, long(begin + 8)?, u32::from(word(begin + 14)?));
    let payload = length.checked_sub(data)? as u32;
    Some(Packet { is_tcp: true, is_syn: bytes.get(begin + 13)? & 2 != 0, seq, ack, payload, window, shift, ..other })
}

/// What is known of the sender on the long leg.
#[derive(Debug, Default)]
struct Sender {
    first: Option<u32>,
    /// Payload sent at least once, and acknowledged.
    sent: u32,
    acknowledged: u32,
    /// Payload up to which nothing is to be repaired.
    repaired: u32,
    has_retransmitted: bool,
    window: u32,
}

impl Sender {
    /// What it waits for. `asked`: all that it is to send. `by_loss`: a loss reduces its window.
    fn waits(&self, asked: u32, mss: u32, by_loss: bool) -> Cause {
        let is_recovering = self.acknowledged < self.repaired;
        match () {
            () if self.sent == 0 => Cause::Handshake,
            () if self.sent >= asked => {
                if is_recovering {
                    Cause::Loss
                } else {
                    Cause::Distance
                }
            }
            () if self.sent - self.acknowledged + mss > self.window => Cause::ReceiverWindow,
            () if by_loss && self.has_retransmitted => Cause::Loss,
            () => Cause::Control,
        }
    }
}

/// The account of the first flow by the captures of a run.
fn account_of_capture(scenario: &Scenario, directory: &Path) -> Result<AccountShares> {
    let bottleneck = scenario.bottleneck();
    let (link, leg) = (&scenario.links[bottleneck], scenario.leg_of_link(bottleneck));
    let names = ["sender", if scenario.splits.is_empty() { "router" } else { "proxy" }, "receiver"];
    let file = |host: usize| directory.join(format!("of-{}.pcapng", names[host]));
    let (at_sender, at_link, at_receiver) = (packets(&file(leg.first), 1)?, packets(&file(bottleneck), 1)?, packets(&file(2), 0)?);
    let is_data = |packet: &&Packet| packet.is_of_flow() && packet.payload > 1;
    let start =
        at_receiver.iter().chain(&at_sender).filter(|packet| packet.is_of_flow()).map(|packet| packet.t).fold(f64::INFINITY, f64::min);
    let end = at_receiver.iter().filter(is_data).map(|packet| packet.t).fold(0.0, f64::max);
    ensure!(end > start, "the captures have no data of the flow");
    let data_ports = at_sender.iter().find(is_data).context("nothing was sent")?.ports;
    let spec = scenario.flow_specs(1)[0];
    let asked = spec.bytes.map_or(u64::MAX, |bytes| bytes.0).min(u32::MAX.into()) as u32;
    let mss = at_sender.iter().map(|packet| packet.payload).filter(|payload| *payload < 1460).max().unwrap_or(1448);
    let control = &scenario.flow_leg_settings(spec.path, None);
    let own = control.get(usize::from(leg.first > 0)).context("the leg has a controller")?;
    let by_loss = !intercept::leg::sets_window_by_model(&own.name);

    let (mut account, mut sender, mut shift) = (Account::default(), Sender::default(), 0);
    let (mut next, mut next_other) = (at_sender.iter().peekable(), at_link.iter().peekable());
    let mut t = start;
    // What is sent after this arrives after the end.
    while t < end {
        let until = (t + STEP).min(end);
        let before = sender.sent;
        while let Some(packet) = next.next_if(|packet| packet.t < until) {
            if !packet.is_of_flow() {
                continue;
            }
            if packet.ports != data_ports {
                shift = packet.shift.filter(|_| packet.is_syn).map_or(shift, u32::from);
                sender.window = if packet.is_syn { packet.window } else { packet.window << shift };
                if let Some(first) = sender.first {
                    sender.acknowledged = sender.acknowledged.max(packet.ack.wrapping_sub(first)).min(sender.sent);
                }
            } else if packet.payload > 0 {
                let from = packet.seq.wrapping_sub(*sender.first.get_or_insert(packet.seq));
                if from < sender.sent {
                    (sender.has_retransmitted, sender.repaired) = (true, sender.sent);
                }
                sender.sent = sender.sent.max(from + packet.payload);
            }
        }
        let mut others = 0.0;
        while let Some(packet) = next_other.next_if(|packet| packet.t < until) {
            others += match packet.is_tcp {
                true if packet.is_of_flow() => 0.0,
                true => f64::from(packet.payload),
                false => f64::from(packet.payload) * PAYLOAD,
            };
        }
        let allowed = link.capacity_between(0.0, until - t) * PAYLOAD;
        let waits = Waits::all(sender.waits(asked, mss, by_loss));
        account.add(Interval { allowed, delivered: f64::from(sender.sent - before), others, waits });
        t = until;
    }
    account.shares().context("the captures are empty")
}
