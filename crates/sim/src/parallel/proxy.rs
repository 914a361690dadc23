//! The proxy between the sender's links and the parallel networks. A transfer has one connection to
//! it, and its connections over the networks begin there.
//!
//! What has arrived at the proxy in order may be assigned to the connections over the networks. It
//! occupies the proxy's buffer, which the advertised window of the connection before it bounds,
//! until it is sent.

use super::{
    limits::MAX_CONNECTIONS,
    simulation::{Carries, ParallelSimulation},
};
use crate::sender::TcpSender;
use scenario::Opens;

impl ParallelSimulation<'_> {
    /// Opens the connection of a transfer from the sender to the proxy.
    pub(super) fn open_to_proxy(&mut self, transfer: u32) {
        self.open_connection(transfer, Carries::ToProxy);
    }

    /// The connection of a transfer to the proxy is established at the proxy. If the sender opened
    /// it, the proxy opens those over the networks.
    pub(super) fn on_proxy_reached(&mut self, transfer: u32) {
        if self.transfers[transfer as usize].planned.opens == Opens::Sender {
            self.open_over_networks(transfer);
        }
    }

    /// A connection of a transfer over a network is established at its sending end. If the receiver
    /// opened it, a proxy opens the connection to the sender.
    pub(super) fn on_network_reached(&mut self, transfer: u32) {
        let state = &self.transfers[transfer as usize];
        let is_first = state.to_proxy.is_none() && !state.ended;
        if self.parallel.split.is_some() && state.planned.opens == Opens::Receiver && is_first {
            self.open_to_proxy(transfer);
        }
    }

    /// More of a transfer has arrived at the proxy in order, on the connection in this slot.
    pub(super) fn on_data_at_proxy(&mut self, slot: usize) {
        let number = self.owners[slot].transfer;
        let receiver = &self.connections[slot].receiver;
        let (arrived, is_all) = (receiver.rcv_nxt, receiver.is_complete());
        self.transfers[number as usize].striped.feed(arrived, is_all);
        self.run_bond(number);
        for connection in 0..MAX_CONNECTIONS {
            let transfer = &self.transfers[number as usize];
            let Some(over_network) = transfer.slots[connection].map(|slot| slot as usize) else { continue };
            if transfer.striped.is_static() {
                let end = transfer.striped.writable(connection);
                let is_last = transfer.planned.ends && end == transfer.striped.assigned(connection);
                self.connections[over_network].sender.write(end, is_last);
            }
            self.offer_unassigned(over_network);
            self.connections[over_network].sender.push(&mut self.net);
            self.after_sending(over_network);
        }
    }

    /// Frees the proxy's buffer of what the connections of a transfer over the networks have sent.
    pub(super) fn free_proxy_buffer(&mut self, transfer: u32) {
        let transfer = &self.transfers[transfer as usize];
        let Some(to_proxy) = transfer.to_proxy else { return };
        let senders = || transfer.slots.iter().flatten().map(|slot| &self.connections[*slot as usize].sender);
        let arrived = self.connections[to_proxy as usize].receiver.rcv_nxt;
        let sent = if transfer.striped.is_static() {
            senders().map(|sender| sender.snd_nxt).sum()
        } else if transfer.striped.is_pulled() {
            arrived - transfer.striped.unassigned()
        } else {
            let written: u64 = senders().map(TcpSender::unsent).sum();
            arrived.saturating_sub(transfer.striped.unassigned() + written)
        };
        self.connections[to_proxy as usize].receiver.release(sent, &mut self.net);
    }
}
