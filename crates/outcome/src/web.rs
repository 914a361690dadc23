//! Results of web pages and request-response.

use account::{Account, AccountShares, Waits};
use scenario::{Scenario, WebTable, WebTimes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A distribution of times in seconds, over loads or over responses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimePercentiles {
    /// How many there are.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile: the least value that at least 95 % of all do not exceed.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

impl TimePercentiles {
    /// The distribution of `times`; none if there are none.
    pub fn of(mut times: Vec<f64>) -> Option<Self> {
        times.sort_unstable_by(f64::total_cmp);
        let (count, max) = (times.len(), *times.last()?);
        // Nearest rank.
        let at = |percent: usize| times[(count * percent).div_ceil(100).max(1) - 1];
        let mean = times.iter().sum::<f64>() / count as f64;
        Some(TimePercentiles { count: count as u64, mean, p50: at(50), p95: at(95), p99: at(99), max })
    }
}

/// A `[[page]]`: all loads of all its browsers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PageOutcome {
    /// Number of the page in the scenario, from 1.
    pub page: usize,
    /// Loads that were to be made, by all browsers together.
    pub asked_loads: u64,
    /// Page load time: from the beginning of a load until its last object was read, over the loads
    /// that were complete at the end of the run. Absent: none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_s: Option<TimePercentiles>,
    /// Time from when a browser wanted an object until it was read. Absent: none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_s: Option<TimePercentiles>,
    /// Payload of the objects that were read.
    pub bytes: u64,
    /// Connections that the browsers opened.
    pub connections: u64,
    /// While a load lasted: how much of what the bottleneck allows the browsers used, on average,
    /// and what the rest was lost to. Absent: nothing was loaded, or the engine does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<AccountShares>,
    /// Why a browser failed. Absent: none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// An `[[exchange]]`: all requests of all its clients.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExchangeOutcome {
    /// Number of the exchange in the scenario, from 1.
    pub exchange: usize,
    /// Requests that were to be sent, by all clients together. Absent: as many as there is time
    /// for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_requests: Option<u64>,
    /// Response time: from when a request was due until its response was read, over the responses
    /// that were there at the end of the run. The first request waits for the connection. Absent:
    /// there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_s: Option<TimePercentiles>,
    /// Payload of these responses.
    pub bytes: u64,
    /// While a client waited for a response: how much of what the bottleneck allows it used, on
    /// average, and what the rest was lost to. Absent: there was no response, or the engine does
    /// not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<AccountShares>,
    /// Why a client failed. Absent: none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A sample of a web client.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WebProgress {
    /// Time in seconds from the start of the run.
    pub t: f64,
    /// Payload of responses that it has read.
    pub read: u64,
    /// What its responses wait for; none if it waits for no response.
    pub waits: Option<Waits>,
}

/// What an engine has measured of a web client.
#[derive(Debug, Clone, PartialEq)]
pub struct WebSamples {
    /// Its table.
    pub table: WebTable,
    /// Its times.
    pub times: WebTimes,
    /// Its samples, in the order of time.
    pub progress: Vec<WebProgress>,
    /// Why it failed.
    pub error: Option<String>,
}

impl WebSamples {
    /// Of a client of this table, before anything was measured.
    pub fn of(table: WebTable) -> Self {
        WebSamples { table, times: WebTimes::default(), progress: Vec::new(), error: None }
    }
}

/// All results of web traffic.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct WebResults {
    pub(crate) pages: Vec<PageOutcome>,
    pub(crate) exchanges: Vec<ExchangeOutcome>,
    /// Over all pages.
    pub(crate) page_load_s: Option<TimePercentiles>,
    /// Over all pages and exchanges.
    pub(crate) response_s: Option<TimePercentiles>,
}

impl WebResults {
    /// `accounts` has one for each client, if they are known.
    pub(crate) fn of(scenario: &Scenario, samples: &[WebSamples], accounts: &[Account]) -> Self {
        let account = |table: WebTable| {
            let mut all = Account::default();
            samples.iter().zip(accounts).filter(|(client, _)| client.table == table).for_each(|(_, account)| all.join(account));
            all.shares()
        };
        let page = |table: usize| {
            let of: Vec<&WebSamples> = samples.iter().filter(|client| client.table == WebTable::Page(table)).collect();
            PageOutcome {
                page: table + 1,
                asked_loads: u64::from(scenario.pages[table].count) * u64::from(scenario.pages[table].loads),
                load_s: loads(&of),
                response_s: responses(&of),
                bytes: of.iter().map(|client| client.times.bytes).sum(),
                connections: of.iter().map(|client| u64::from(client.times.connections)).sum(),
                account: account(WebTable::Page(table)),
                error: of.iter().find_map(|client| client.error.clone()),
            }
        };
        let exchange = |table: usize| {
            let of: Vec<&WebSamples> = samples.iter().filter(|client| client.table == WebTable::Exchange(table)).collect();
            let exchange = &scenario.exchanges[table];
            ExchangeOutcome {
                exchange: table + 1,
                asked_requests: exchange.requests.map(|requests| u64::from(exchange.count) * u64::from(requests)),
                response_s: responses(&of),
                bytes: of.iter().map(|client| client.times.bytes).sum(),
                account: account(WebTable::Exchange(table)),
                error: of.iter().find_map(|client| client.error.clone()),
            }
        };
        let all: Vec<&WebSamples> = samples.iter().collect();
        WebResults {
            pages: (0..scenario.pages.len()).map(page).collect(),
            exchanges: (0..scenario.exchanges.len()).map(exchange).collect(),
            page_load_s: loads(&all),
            response_s: responses(&all),
        }
    }
}

fn loads(clients: &[&WebSamples]) -> Option<TimePercentiles> {
    TimePercentiles::of(clients.iter().flat_map(|client| client.times.loads_s.iter().copied()).collect())
}

fn responses(clients: &[&WebSamples]) -> Option<TimePercentiles> {
    TimePercentiles::of(clients.iter().flat_map(|client| client.times.responses_s.iter().copied()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let times = |count: u32| TimePercentiles::of((1..=count).rev().map(f64::from).collect()).unwrap();
        let hundred = times(100);
        assert_eq!((hundred.count, hundred.p50, hundred.p95, hundred.p99, hundred.max), (100, 50.0, 95.0, 99.0, 100.0));
        assert_eq!(hundred.mean, 50.5);
        let ten = times(10);
        assert_eq!((ten.p50, ten.p95, ten.p99), (5.0, 10.0, 10.0));
        assert_eq!((times(1).p50, times(1).p99), (1.0, 1.0));
        assert_eq!(TimePercentiles::of(Vec::new()), None);
    }
}
