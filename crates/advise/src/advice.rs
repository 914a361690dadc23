//! The advice: candidates, what their outcomes show, and the conclusion.

use outcome::Outcome;
use scenario::LinkCapacity;
use serde::Serialize;

/// The least gain that is worth the drawbacks of a split: acknowledgements are no longer end to
/// end, and connections end with the proxy (RFC 3135 §4).
pub(crate) const MIN_GAIN: f64 = 1.05;
/// A buffer is sufficient if it retains this fraction of the performance of an unlimited one.
const SUFFICIENT: f64 = 0.98;
/// How much larger the proxy's buffer must be than one that is sufficient in the simulator. There
/// the whole of it is the window that the proxy advertises. In the real proxy half of it or more is
/// the receive queue (`intercept::leg::Shares`), and of that only [`WINDOW_SHARE`] is payload,
/// because the kernel charges each packet with its overhead. The next power of two.
pub const REAL_BUFFER: u64 = 4;
/// The least share of a receive buffer that is payload: single packets of 1500 bytes
/// (`intercept::ReceiveBound`).
pub const WINDOW_SHARE: f64 = 0.63;

/// Why there is no advice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdviceError {
    /// The path has a single link: a proxy needs at least two.
    #[error(
        "the path is one link, and a proxy stands between two: give the part before it and the part after it a [[link]] each, or on the \
         command line a --link each"
    )]
    OneLink,
    /// The scenario has networks in parallel.
    #[error("cannot advise on networks in parallel: describe the path as [[link]]s in series")]
    Parallel,
    /// No seed has a valid outcome with the compared number.
    #[error("no seed has a valid result for {0:?}: give the flows more time, or more data to send")]
    NoAnswer(String),
}

/// The number that is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// Mean time from a flow's start to its end, s: less is better.
    MeanFlowS,
    /// Goodput of all flows, bit/s: more is better.
    GoodputBps,
    /// Mean time until a page is loaded, s.
    PageLoadS,
    /// Time until the last flow ends, s.
    LastFlowS,
}

impl Objective {
    /// The number of an outcome; absent: the outcome does not have it.
    pub fn value(self, outcome: &Outcome) -> Option<f64> {
        let last = || {
            let times = outcome.flows.iter().map(|flow| flow.end_s.map(|end| end - flow.start_s));
            times.collect::<Option<Vec<f64>>>().map(|times| times.into_iter().fold(0.0, f64::max))
        };
        let value = match self {
            Objective::MeanFlowS => outcome.mean_flow_s(),
            Objective::GoodputBps => Some(outcome.goodput_bps),
            Objective::PageLoadS => outcome.page_load_s.as_ref().map(|load| load.mean),
            Objective::LastFlowS => last(),
        };
        value.filter(|value| *value > 0.0)
    }

    /// Whether more is better.
    pub(crate) fn is_rate(self) -> bool {
        self == Objective::GoodputBps
    }
}

/// A way to carry the flows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// The proxy stands after this link, counted from 1; absent: end to end.
    pub after: Option<usize>,
    /// The controller: the sender's end to end, else the proxy's.
    pub control: String,
    /// The capacity of the next link, which the proxy must be configured with: a rate, or `auto`.
    /// Absent where its controller does not need it.
    pub capacity: Option<LinkCapacity>,
}

/// What the outcomes of a candidate show.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Assessment {
    /// The candidate.
    #[serde(rename = "way")]
    pub candidate: Candidate,
    /// Ratio of `value` to that of the path as it is, oriented so that more than 1 is better.
    pub gain: f64,
    /// Half the width of the 95 % interval of the gain.
    #[serde(rename = "half")]
    pub half_width: f64,
    /// Mean of the compared number: s or bit/s.
    pub value: f64,
    /// Mean number of packets that queues dropped.
    pub drops: f64,
    /// Mean over the seeds of the largest queue before the bottleneck, bytes.
    pub queue_max_bytes: f64,
    /// Mean of Jain's index; absent where flows did not overlap for long enough.
    pub jain: Option<f64>,
    /// The gain in the steady state according to the equations; absent where they do not apply.
    pub by_equations: Option<f64>,
}

impl Assessment {
    /// Whether the lower end of the gain's interval is worth the change.
    pub fn pays(&self) -> bool {
        self.gain - self.half_width >= MIN_GAIN
    }
}

/// Performance with a limited buffer at the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct BufferResult {
    /// The limit for each direction of a connection.
    pub buffer_bytes: u64,
    /// The performance as a fraction of that with an unlimited buffer.
    #[serde(rename = "leaves")]
    pub fraction: f64,
    /// Half the width of the fraction's 95 % interval.
    #[serde(rename = "half")]
    pub half_width: f64,
}

/// The least size from which on every size that was tried is sufficient; absent if the largest is
/// not. `results` are in ascending order of size.
pub fn sufficient(results: &[BufferResult]) -> Option<&BufferResult> {
    let last_short = results.iter().rposition(|result| result.fraction < SUFFICIENT);
    results.get(last_short.map_or(0, |index| index + 1))
}

/// The buffer to configure, bytes: the least [`sufficient`] one with the margin that the real proxy
/// needs ([`REAL_BUFFER`]); absent if none is.
pub fn buffer_to_configure(results: &[BufferResult]) -> Option<u64> {
    sufficient(results).map(|result| result.buffer_bytes * REAL_BUFFER)
}

/// The leg of the proxy that carries the data on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProxyLeg {
    /// The accepted one: the clients download.
    Near,
    /// The dialled one: the clients upload.
    Far,
}

/// The conclusion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AdviceVerdict {
    /// Split: it pays.
    Split,
    /// Do not split: it does not pay.
    DoesNotPay,
    /// Do not split: the gain cannot be told from chance.
    CannotTell,
}

/// The conclusion and what it rests on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// The conclusion.
    pub verdict: AdviceVerdict,
    /// The number that was compared.
    #[serde(rename = "aim")]
    pub objective: Objective,
    /// The number of seeds.
    pub seeds: usize,
    /// The proxy's leg that has the controller.
    pub leg: ProxyLeg,
    /// The path as it is.
    #[serde(rename = "now")]
    pub baseline: Assessment,
    /// The best split, whether it pays or not.
    pub split: Assessment,
    /// The best other controller at the sender without a proxy.
    pub sender: Option<Assessment>,
    /// All candidates, the best first.
    #[serde(rename = "findings")]
    pub assessments: Vec<Assessment>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_sufficient_if_no_larger_one_falls_short() {
        let result = |buffer_bytes, fraction| BufferResult { buffer_bytes, fraction, half_width: 0.001 };
        let results = [result(1, 0.5), result(2, 0.985), result(4, 0.97), result(8, 0.99), result(16, 1.0)];
        assert_eq!(sufficient(&results).unwrap().buffer_bytes, 8);
        assert_eq!(sufficient(&results[..3]), None);
        assert_eq!((buffer_to_configure(&results), buffer_to_configure(&results[..3])), (Some(32), None));
    }
}
