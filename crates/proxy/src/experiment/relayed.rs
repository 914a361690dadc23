//! The relay's own count of the bytes of each flow, for the thread that measures.

use relay::FlowRecord;
use std::{
    mem,
    net::{IpAddr, SocketAddr},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

/// The most flows that wait for the thread. Further ones are left out: their connections have no
/// time.
const MOST: usize = 1 << 16;

/// A flow that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RelayedFlow {
    pub(super) client: SocketAddr,
    pub(super) server: SocketAddr,
    /// Bytes relayed from the client and to it.
    pub(super) bytes: [u64; 2],
    /// Since the Unix epoch.
    pub(super) ended_at: Duration,
}

/// Flows that have ended since they were last taken. The workers add them while an experiment runs.
#[derive(Debug, Default)]
pub(crate) struct RelayedFlows {
    is_wanted: AtomicBool,
    ended: Mutex<Vec<RelayedFlow>>,
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(IpAddr::to_canonical(&address.ip()), address.port())
}

impl RelayedFlows {
    /// Whether flows are kept from now on. Those that are kept are forgotten.
    pub(super) fn set_wanted(&self, is_wanted: bool) {
        self.is_wanted.store(is_wanted, Relaxed);
        self.take();
    }

    /// Adds a flow that has ended, if an experiment runs.
    pub(crate) fn add(&self, record: &FlowRecord) {
        if !self.is_wanted.load(Relaxed) {
            return;
        }
        let last = &record.last;
        let flow = RelayedFlow {
            client: canonical(last.client),
            server: canonical(last.server),
            bytes: [last.up.moved, last.down.moved],
            ended_at: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
        };
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if ended.len() < MOST {
            ended.push(flow);
        }
    }

    /// Takes the flows that have ended.
    pub(super) fn take(&self) -> Vec<RelayedFlow> {
        mem::take(&mut *self.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use relay::{Ending, FlowStats};

    #[test]
    fn flows_are_kept_while_an_experiment_runs() {
        let flows = RelayedFlows::default();
        let mut last = FlowStats::unbegun("[::ffff:192.0.2.1]:40000".parse().unwrap(), "198.51.100.7:443".parse().unwrap());
        (last.up.moved, last.down.moved) = (5, 7);
        let record = FlowRecord { last, ending: Ending::Idle };
        flows.add(&record);
        assert!(flows.take().is_empty());
        flows.set_wanted(true);
        (0..MOST + 3).for_each(|_| flows.add(&record));
        let taken = flows.take();
        assert_eq!((taken.len(), taken[0].client.to_string(), taken[0].bytes), (MOST, "192.0.2.1:40000".into(), [5, 7]));
        assert!(flows.take().is_empty());
        flows.add(&record);
        flows.set_wanted(false);
        assert!(flows.take().is_empty());
    }
}
