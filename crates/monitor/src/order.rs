//! In which order flows are shown.

use crate::WatchedFlow;
use std::{
    cmp::{Ordering, Reverse},
    fmt,
    str::FromStr,
};

/// By what flows are sorted. Numbers descend: the largest flow is the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlowOrder {
    /// Present rate of both directions.
    #[default]
    Rate,
    /// Bytes carried in both directions.
    Bytes,
    /// Bytes that the proxy holds in both directions.
    Held,
    /// Time since the start.
    Age,
    /// Segments retransmitted on both legs.
    Retransmits,
    /// Smoothed round-trip time of both legs together.
    Rtt,
    /// Address of the client, ascending.
    Client,
    /// Address of the server, ascending.
    Server,
}

impl FlowOrder {
    /// All orders and their names, in the order in which a key steps through them.
    pub const ALL: [(FlowOrder, &str); 8] = [
        (FlowOrder::Rate, "rate"),
        (FlowOrder::Bytes, "bytes"),
        (FlowOrder::Held, "held"),
        (FlowOrder::Age, "age"),
        (FlowOrder::Retransmits, "retrans"),
        (FlowOrder::Rtt, "rtt"),
        (FlowOrder::Client, "client"),
        (FlowOrder::Server, "server"),
    ];

    /// The next of [`ALL`](Self::ALL), and after the last one the first.
    #[must_use]
    pub fn next(self) -> Self {
        let at = Self::ALL.iter().position(|(order, _)| *order == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()].0
    }

    /// Sorts flows. Equal ones stand in the order of their addresses, so that none moves from list
    /// to list without reason.
    pub fn sort(self, flows: &mut [WatchedFlow]) {
        flows.sort_by(|one, other| self.compare(one, other).then_with(|| addresses(one).cmp(&addresses(other))));
    }

    /// Which of two flows comes first.
    pub fn compare(self, one: &WatchedFlow, other: &WatchedFlow) -> Ordering {
        let [first, second] = [one, other].map(|watched| &watched.flow);
        let descending = |of: fn(&WatchedFlow) -> u64| Reverse(of(one)).cmp(&Reverse(of(other)));
        match self {
            FlowOrder::Rate => other.total_bps().total_cmp(&one.total_bps()).then_with(|| FlowOrder::Bytes.compare(one, other)),
            FlowOrder::Bytes => descending(|watched| watched.flow.up.bytes + watched.flow.down.bytes),
            FlowOrder::Held => descending(|watched| watched.flow.up.held_bytes + watched.flow.down.held_bytes),
            FlowOrder::Age => second.age_s.total_cmp(&first.age_s),
            FlowOrder::Retransmits => {
                descending(|watched| u64::from(watched.flow.near.retransmits) + u64::from(watched.flow.far.retransmits))
            }
            FlowOrder::Rtt => (second.near.rtt_s + second.far.rtt_s).total_cmp(&(first.near.rtt_s + first.far.rtt_s)),
            FlowOrder::Client => first.client.cmp(&second.client),
            FlowOrder::Server => first.server.cmp(&second.server),
        }
    }
}

/// The addresses of a flow.
fn addresses(watched: &WatchedFlow) -> [std::net::SocketAddr; 2] {
    [watched.flow.client, watched.flow.server]
}

impl fmt::Display for FlowOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(order, _)| order == self).map_or("", |(_, name)| name);
        f.pad(name)
    }
}

impl FromStr for FlowOrder {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.iter().find(|(_, name)| *name == text).map(|(order, _)| *order).ok_or_else(|| {
            let names = Self::ALL.map(|(_, name)| name).join(", ");
            format!("flows cannot be sorted by {text:?}: use one of {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RateTracker, text::example_flow};
    use std::time::Instant;

    #[test]
    fn flows_are_sorted_by_numbers_descending_and_by_addresses_ascending() {
        let mut small = example_flow("192.0.2.9:1", "198.51.100.2:80");
        (small.down.bytes, small.age_s, small.far.retransmits) = (10, 500.0, 99);
        let large = example_flow("192.0.2.10:1", "198.51.100.1:80");
        let mut flows = RateTracker::default().take(vec![small, large], Instant::now());
        let mut first = |order: &str| {
            order.parse::<FlowOrder>().unwrap().sort(&mut flows);
            flows[0].flow.client.to_string()
        };
        // In the first sample, which has no rates, by bytes.
        let orders = ["rate", "bytes", "age", "retrans", "client", "server"];
        let expected = ["192.0.2.10:1", "192.0.2.10:1", "192.0.2.9:1", "192.0.2.9:1", "192.0.2.9:1", "192.0.2.10:1"];
        assert_eq!(orders.map(&mut first), expected);
    }

    #[test]
    fn the_key_steps_through_all_orders() {
        let mut order = FlowOrder::default();
        for (expected, name) in FlowOrder::ALL {
            assert_eq!((order, order.to_string().as_str()), (expected, name));
            order = order.next();
        }
        assert_eq!(order, FlowOrder::default());
        assert!("x".parse::<FlowOrder>().unwrap_err().contains("rate, bytes"));
    }
}
