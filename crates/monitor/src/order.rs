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
    /// Present rate from client to server.
    Up,
    /// Present rate from server to client.
    Down,
    /// Smoothed round-trip time of the near leg.
    NearRtt,
    /// Smoothed round-trip time of the far leg.
    FarRtt,
    /// Segments retransmitted on the near leg.
    NearRetransmits,
    /// Segments retransmitted on the far leg.
    FarRetransmits,
}

impl FlowOrder {
    /// All orders and their names: first those of whole flows, then those of a direction or a leg.
    pub const ALL: [(FlowOrder, &str); 14] = [
        (FlowOrder::Rate, "rate"),
        (FlowOrder::Bytes, "bytes"),
        (FlowOrder::Held, "held"),
        (FlowOrder::Age, "age"),
        (FlowOrder::Retransmits, "retrans"),
        (FlowOrder::Rtt, "rtt"),
        (FlowOrder::Client, "client"),
        (FlowOrder::Server, "server"),
        (FlowOrder::Up, "up"),
        (FlowOrder::Down, "down"),
        (FlowOrder::NearRtt, "near-rtt"),
        (FlowOrder::FarRtt, "far-rtt"),
        (FlowOrder::NearRetransmits, "near-retrans"),
        (FlowOrder::FarRetransmits, "far-retrans"),
    ];
    /// How many of them are of whole flows: a key steps through these.
    const WHOLE: usize = 8;

    /// The next of the orders of whole flows, and after the last one the first.
    #[must_use]
    pub fn next(self) -> Self {
        let whole = &Self::ALL[..Self::WHOLE];
        let at = whole.iter().position(|(order, _)| *order == self);
        at.and_then(|at| whole.get(at + 1)).map_or(whole[0].0, |(order, _)| *order)
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
        // In the first sample, which has no rates, by bytes.
        let by_rate = |rate: fn(&WatchedFlow) -> Option<f64>, bytes: fn(&WatchedFlow) -> u64| {
            let rates = [one, other].map(|watched| rate(watched).unwrap_or(0.0));
            rates[1].total_cmp(&rates[0]).then_with(|| descending(bytes))
        };
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
            FlowOrder::Up => by_rate(|watched| watched.up_bps, |watched| watched.flow.up.bytes),
            FlowOrder::Down => by_rate(|watched| watched.down_bps, |watched| watched.flow.down.bytes),
            FlowOrder::NearRtt => second.near.rtt_s.total_cmp(&first.near.rtt_s),
            FlowOrder::FarRtt => second.far.rtt_s.total_cmp(&first.far.rtt_s),
            FlowOrder::NearRetransmits => descending(|watched| watched.flow.near.retransmits.into()),
            FlowOrder::FarRetransmits => descending(|watched| watched.flow.far.retransmits.into()),
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
    fn flows_are_sorted_by_a_direction_or_a_leg() {
        let mut one = example_flow("192.0.2.1:1", "198.51.100.1:80");
        (one.up.bytes, one.down.bytes, one.near.rtt_s, one.far.rtt_s) = (9000, 10, 0.1, 0.9);
        (one.near.retransmits, one.far.retransmits) = (5, 50);
        let mut two = example_flow("192.0.2.2:1", "198.51.100.1:80");
        (two.up.bytes, two.down.bytes, two.near.rtt_s, two.far.rtt_s) = (10, 5000, 0.5, 0.1);
        (two.near.retransmits, two.far.retransmits) = (6, 0);
        let (mut tracker, start) = (RateTracker::default(), Instant::now());
        let mut flows = tracker.take(vec![one.clone(), two.clone()], start);
        let first = |flows: &mut [WatchedFlow], order: &str| {
            order.parse::<FlowOrder>().unwrap().sort(flows);
            flows[0].flow.client.ip().to_string()
        };
        let orders = ["up", "down", "near-rtt", "far-rtt", "near-retrans", "far-retrans"];
        let expected = ["192.0.2.1", "192.0.2.2", "192.0.2.2", "192.0.2.1", "192.0.2.2", "192.0.2.1"];
        assert_eq!(orders.map(|order| first(&mut flows, order)), expected);
        // Present rates come before what was carried so far.
        one.down.bytes += 1000;
        flows = tracker.take(vec![one, two], start + std::time::Duration::from_secs(1));
        assert_eq!(first(&mut flows, "down"), "192.0.2.1");
    }

    #[test]
    fn the_key_steps_through_the_orders_of_whole_flows() {
        assert_eq!(FlowOrder::FarRtt.next(), FlowOrder::default());
        let mut order = FlowOrder::default();
        for (expected, name) in FlowOrder::ALL.into_iter().take(8) {
            assert_eq!((order, order.to_string().as_str()), (expected, name));
            order = order.next();
        }
        assert_eq!(order, FlowOrder::default());
        assert!("x".parse::<FlowOrder>().unwrap_err().contains("rate, bytes"));
    }
}
