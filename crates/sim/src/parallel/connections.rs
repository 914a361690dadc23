//! The connections of transfers over parallel networks: how they are opened, found, and retired.

use super::simulation::{Carries, ParallelSimulation, SlotOwner};
use crate::{
    connection::TcpConnection,
    network::{backward, forward},
    receiver::{EcnEcho, MAX_WINDOW, TcpReceiver},
    sender::{CongestionControl, SenderConfig, TcpSender},
};
use scenario::Link;
use units::{Rate, Span};

/// The low bits of a connection's number are its slot, the others the generation.
pub(super) const SLOT_BITS: u32 = 20;

impl ParallelSimulation<'_> {
    /// Opens the connections of a transfer over the networks.
    pub(super) fn open_over_networks(&mut self, transfer: u32) {
        let networks = self.parallel.networks.len();
        let striped = &self.transfers[transfer as usize].striped;
        let count = networks * if striped.is_static() { 1 } else { self.weight() };
        for connection in 0..count {
            if self.transfers[transfer as usize].striped.uses(connection) {
                let network = connection % networks;
                self.open_connection(transfer, Carries::Share { connection, network });
            }
        }
    }

    /// Opens a connection of a transfer.
    pub(super) fn open_connection(&mut self, transfer: u32, carries: Carries) {
        let slot = self.free_slots.pop_front().unwrap_or(self.connections.len() as u32);
        if slot >> SLOT_BITS > 0 {
            self.out_of_slots = true;
            return;
        }
        let number = self.owners.get(slot as usize).map_or(slot, |free| free.number);
        let owner = SlotOwner { number, transfer, carries };
        let mut connection = self.new_connection(owner);
        let transfer = &mut self.transfers[transfer as usize];
        match carries {
            Carries::ToProxy => {
                transfer.to_proxy = Some(slot);
                connection.sender.write(transfer.planned.job.bytes.0, transfer.planned.ends);
            }
            Carries::Share { connection: number, .. } => {
                transfer.slots[number] = Some(slot);
                if transfer.striped.is_static() {
                    let end = transfer.striped.writable(number);
                    connection.sender.write(end, transfer.planned.ends && end == transfer.striped.assigned(number));
                }
            }
        }
        connection.open(&mut self.net);
        if slot as usize == self.connections.len() {
            self.connections.push(connection);
            self.owners.push(owner);
        } else {
            self.connections[slot as usize] = connection;
            self.owners[slot as usize] = owner;
        }
    }

    /// A closed connection for a slot.
    fn new_connection(&self, owner: SlotOwner) -> TcpConnection {
        let networks = self.parallel.networks.len();
        let is_split = self.parallel.split.is_some();
        let before = &self.links[networks..];
        let end = self.links.len();
        let (channels, path, control) = match owner.carries {
            Carries::ToProxy => ([forward(networks), backward(end - 1)], before.iter().collect(), self.controllers[0]),
            Carries::Share { network, .. } if is_split || before.is_empty() => {
                ([forward(network), backward(network)], vec![&self.links[network]], self.controllers[1])
            }
            Carries::Share { network, .. } => {
                let path: Vec<&Link> = before.iter().chain([&self.links[network]]).collect();
                ([forward(networks), backward(network)], path, self.controllers[1])
            }
        };
        let planned = &self.transfers[owner.transfer as usize].planned;
        let config = SenderConfig {
            connection: owner.number,
            channel: channels[0],
            monitor: None,
            ecn: path.iter().any(|link| link.queue.marks()),
            behind_shaper: false,
            end_to_end_acks: false,
            send_buffer: u64::MAX,
        };
        let receive_buffer = match owner.carries {
            Carries::ToProxy => self.parallel.buffer_limit(),
            Carries::Share { .. } => planned.window,
        };
        let windows = [receive_buffer.map_or(u64::MAX, |buffer| buffer.0), unlimited_window(&path)];
        let echo = if control.controller().name() == "dctcp" { EcnEcho::EachSegment } else { EcnEcho::UntilCwr };
        let receiver = TcpReceiver::new(owner.number, channels[1], windows, echo, self.settings);
        let sender = TcpSender::new(config, CongestionControl::Native(control), self.settings);
        TcpConnection::new(sender, receiver, (planned.opens, false), channels, self.settings)
    }

    /// The slot of the connection with this number, if the connection still has one.
    pub(super) fn slot_of(&self, number: u32) -> Option<usize> {
        let slot = (number & ((1 << SLOT_BITS) - 1)) as usize;
        self.owners.get(slot).filter(|owner| owner.number == number).map(|_| slot)
    }

    /// After the end of a transfer: frees the slots of its connections that have nothing
    /// unacknowledged.
    pub(super) fn retire_connections(&mut self, slot: usize) {
        let number = self.owners[slot].transfer;
        let transfer = &mut self.transfers[number as usize];
        if !transfer.ended {
            return;
        }
        // What a bond has written to a socket is sent, even if it is of no use any more.
        let is_bonded = transfer.striped.bonded().is_some();
        for of_connection in transfer.slots.iter_mut().chain([&mut transfer.to_proxy]) {
            let Some(slot) = *of_connection else { continue };
            let connection = &self.connections[slot as usize];
            if connection.sender.snd_una == connection.sender.snd_nxt && !(is_bonded && connection.sender.unsent() > 0) {
                *of_connection = None;
                self.retired_counters.add(connection);
                let free = &mut self.owners[slot as usize];
                free.number = free.number.wrapping_add(1 << SLOT_BITS);
                self.free_slots.push_back(slot);
            }
        }
        if transfer.slots.iter().chain([&transfer.to_proxy]).all(Option::is_none) {
            self.free_transfers.push(number);
        }
    }
}

/// The largest window of ends that are not to limit a transfer, bytes: twice what can be in flight
/// and queued on the path, as for links in series, at the highest rates and the longest delays that
/// its links ever have.
fn unlimited_window(path: &[&Link]) -> u64 {
    let rates = |link: &&Link| link.changes.iter().filter_map(|change| change.rate).fold(link.rate, Rate::max);
    let delays = |link: &&Link| link.changes.iter().filter_map(|change| change.delay).fold(link.delay, Span::max);
    let base_rtt = Span(2 * path.iter().map(|link| link.delay.0).sum::<u64>());
    let longest_rtt = Span(2 * path.iter().map(|link| delays(link).0).sum::<u64>());
    let queued = path.iter().map(|link| link.queue.size_for(link.rate, base_rtt).bytes().0).fold(0, u64::saturating_add);
    let slowest = path.iter().map(rates).min().unwrap_or(Rate(0));
    let fastest = path.iter().map(rates).max().unwrap_or(Rate(0));
    let (in_flight, burst) = (slowest.bytes_in(longest_rtt).0, fastest.bytes_in(longest_rtt).0);
    (in_flight + queued.min(burst.saturating_mul(4))).saturating_mul(2).clamp(2 << 20, MAX_WINDOW)
}
