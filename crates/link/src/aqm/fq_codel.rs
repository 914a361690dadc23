//! FQ-CoDel (RFC 8290): flows take turns by deficit round robin, each with a queue under CoDel; a
//! flow that was idle comes before those that have a queue.

use super::{Discipline, Dropped, Fifo, Limit, codel::Codel};
use crate::{stage::LinkPacket, time::Time};
use scenario::QueueParameters;
use std::{collections::VecDeque, fmt};

/// Number of queues (section 5.2.1).
const FLOWS: usize = 1024;
/// Bytes of a flow's turn: a packet with its link-layer header (section 5.2.4).
const QUANTUM: i64 = 1514;

#[derive(Debug)]
struct FlowQueue<P> {
    fifo: Fifo<P>,
    codel: Codel,
    /// Bytes that it may still send in its turn.
    deficit: i64,
    /// Whether it is in one of the lists.
    is_listed: bool,
}

#[derive(Debug)]
pub(super) struct FqCodelQueue<P> {
    flows: Vec<FlowQueue<P>>,
    new_flows: VecDeque<usize>,
    old_flows: VecDeque<usize>,
    backlog: (u64, u64),
    limit: Limit,
}

impl<P: LinkPacket> FqCodelQueue<P> {
    pub(super) fn new(limit: Limit, parameters: QueueParameters) -> Self {
        let flow = |_| FlowQueue { fifo: Fifo::new(), codel: Codel::new(parameters), deficit: 0, is_listed: false };
        FqCodelQueue {
            flows: (0..FLOWS).map(flow).collect(),
            new_flows: VecDeque::new(),
            old_flows: VecDeque::new(),
            backlog: (0, 0),
            limit,
        }
    }

    /// The queue of a flow. Multiplication by 2⁶⁴/φ spreads numbers that follow each other (Knuth,
    /// TAOCP 6.4).
    fn queue_of(flow: u64) -> usize {
        (flow.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % FLOWS
    }

    /// Drops the first packet of the longest queue (section 4.1).
    fn drop_from_longest(&mut self, dropped: &mut Dropped) {
        let longest = self.flows.iter_mut().max_by_key(|flow| flow.fifo.bytes);
        if let Some((_, packet)) = longest.and_then(|flow| flow.fifo.pop()) {
            self.backlog.0 -= 1;
            self.backlog.1 -= u64::from(packet.wire_bytes());
            dropped.count(&packet);
        }
    }
}

impl<P: LinkPacket + fmt::Debug> Discipline<P> for FqCodelQueue<P> {
    fn enqueue(&mut self, now: Time, packet: P, dropped: &mut Dropped) -> Result<(), P> {
        let index = Self::queue_of(packet.flow());
        let flow = &mut self.flows[index];
        self.backlog.0 += 1;
        self.backlog.1 += u64::from(packet.wire_bytes());
        flow.fifo.push(now, packet);
        if !flow.is_listed {
            flow.is_listed = true;
            flow.deficit = QUANTUM;
            self.new_flows.push_back(index);
        }
        while self.limit.is_exceeded_by(self.backlog) {
            self.drop_from_longest(dropped);
        }
        Ok(())
    }

    fn dequeue(&mut self, now: Time, dropped: &mut Dropped) -> Option<(Time, P)> {
        loop {
            let is_new = !self.new_flows.is_empty();
            let list = if is_new { &mut self.new_flows } else { &mut self.old_flows };
            let index = *list.front()?;
            let flow = &mut self.flows[index];
            if flow.deficit <= 0 {
                flow.deficit += QUANTUM;
                list.pop_front();
                self.old_flows.push_back(index);
                continue;
            }
            let before = flow.fifo.backlog();
            let packet = flow.codel.dequeue(now, &mut flow.fifo, dropped);
            let after = flow.fifo.backlog();
            self.backlog.0 -= before.0 - after.0;
            self.backlog.1 -= before.1 - after.1;
            let Some((arrived, packet)) = packet else {
                list.pop_front();
                // An empty new flow has one turn as an old one, so that it cannot starve the others
                // by coming back at once (section 4.2).
                if is_new && !self.old_flows.is_empty() {
                    self.old_flows.push_back(index);
                } else {
                    flow.is_listed = false;
                }
                continue;
            };
            flow.deficit -= i64::from(packet.wire_bytes());
            return Some((arrived, packet));
        }
    }

    fn backlog(&self) -> (u64, u64) {
        self.backlog
    }
}
