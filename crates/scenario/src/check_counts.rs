//! Bounds on how much a scenario asks for. A count is one number in a file, and memory for each of
//! what it counts: without bounds a mistyped one ends the process, or fills the machine.

use crate::{check_values::need, model::Scenario};
use toml_file::Fault;

/// The most connections of a scenario: flows, cross flows, those of clients and browsers.
const MOST_CONNECTIONS: u64 = 100_000;
/// The most requests of a scenario, or objects that its browsers load.
const MOST_REQUESTS: u64 = 10_000_000;
/// The most random transfers.
const MOST_JOBS: u64 = 10_000_000;

impl Scenario {
    /// Checks that the run fits into memory, as far as counts decide that.
    pub(crate) fn check_counts(&self) -> Result<(), Fault> {
        let mut connections = Sum::new(MOST_CONNECTIONS, "connections");
        for (index, flow) in self.flows.iter().enumerate() {
            connections.add(format!("flow[{index}].count"), &[u64::from(flow.count), flow.direction.each().len() as u64])?;
        }
        for (index, cross) in self.cross_flows.iter().enumerate() {
            connections.add(format!("cross_flow[{index}].count"), &[u64::from(cross.count), cross.direction.each().len() as u64])?;
        }
        let mut requests = Sum::new(MOST_REQUESTS, "requests, counting each object of a page");
        for (index, page) in self.pages.iter().enumerate() {
            let objects: u64 = page.objects.iter().map(|object| u64::from(object.count)).sum();
            // A browser has no more connections than there are objects.
            let at_a_time = if page.multiplexed { 1 } else { u64::from(page.connections).min(objects) };
            connections.add(format!("page[{index}].count"), &[u64::from(page.count), at_a_time])?;
            requests.add(format!("page[{index}].loads"), &[u64::from(page.count), u64::from(page.loads), objects])?;
        }
        for (index, exchange) in self.exchanges.iter().enumerate() {
            connections.add(format!("exchange[{index}].count"), &[u64::from(exchange.count)])?;
            let of_each = exchange.requests.map_or(1, u64::from);
            requests.add(format!("exchange[{index}].requests"), &[u64::from(exchange.count), of_each])?;
        }
        let jobs = self.foreground.as_ref().map_or(0, |foreground| foreground.jobs);
        let many = format!("is {jobs}, but a run has at most {MOST_JOBS} transfers: give fewer, and several seeds (--seeds)");
        need(jobs <= MOST_JOBS, "foreground.jobs".into(), many)
    }
}

/// What all tables of a scenario count together.
struct Sum {
    all: u64,
    most: u64,
    what: &'static str,
}

impl Sum {
    fn new(most: u64, what: &'static str) -> Self {
        Sum { all: 0, most, what }
    }

    /// Adds the product of these numbers, which the key at `path` is one of.
    fn add(&mut self, path: String, factors: &[u64]) -> Result<(), Fault> {
        let product = factors.iter().fold(1, |product: u64, factor| product.saturating_mul(*factor));
        self.all = self.all.saturating_add(product);
        let Sum { all, most, what } = self;
        need(all <= most, path, format!("makes {all} {what} in all, but a scenario has at most {most}: give a smaller number"))
    }
}

#[cfg(test)]
mod tests {
    use crate::ScenarioFile;

    const LINKS: &str =
        "name = \"x\"\nduration = \"1s\"\n[[link]]\nrate = \"9Mbit\"\ndelay = \"1ms\"\n[[link]]\nrate = \"9Mbit\"\ndelay = \"1ms\"\n";

    #[test]
    fn counts_beyond_memory_are_refused_with_their_sum() {
        let page = |count: u32, loads: u32, objects: u32| {
            format!("[[page]]\ncount = {count}\nloads = {loads}\n[[page.object]]\nsize = \"1kB\"\ncount = {objects}\n")
        };
        let wrong = [
            (
                "[[flow]]\ncount = 1000000000\n".to_owned(),
                "flow[1].count: makes 1000000000 connections in all, but a scenario has at most 100000",
            ),
            ("[[flow]]\ncount = 50001\ndirection = \"both\"\n".into(), "flow[1].count: makes 100002 connections"),
            (
                "[[flow]]\n[[cross_flow]]\nenters = 1\nleaves = 1\ncount = 4294967295\n".into(),
                "cross_flow[1].count: makes 4294967296 connections",
            ),
            ("[[flow]]\ncount = 60000\n[[flow]]\ncount = 60000\n".into(), "flow[2].count: makes 120000 connections"),
            (page(20_000, 1, 9999), "page[1].count: makes 120000 connections"),
            (page(10, 4_000_000_000, 1000), "page[1].loads: makes 40000000000000 requests, counting each object of a page in all"),
            (
                "[[exchange]]\nrequests = 4000000000\nup = \"100B\"\ndown = \"1kB\"\n".into(),
                "exchange[1].requests: makes 4000000000 requests",
            ),
        ];
        for (tables, expected) in wrong {
            let error = ScenarioFile::parse(&format!("{LINKS}{tables}"), "x").unwrap_err().to_string();
            assert!(error.contains(expected), "{error}\nhas no: {expected}");
        }
        for tables in ["[[flow]]\ncount = 100000\n", &page(1000, 10, 1000)] {
            ScenarioFile::parse(&format!("{LINKS}{tables}"), "x").unwrap_or_else(|error| panic!("{error}"));
        }
    }
}
