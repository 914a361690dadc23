//! One run: a middlebox, a direction and a condition on a path.

use crate::{
    conditions::{BulkDirection, NetworkCondition, PathSpec, label_text},
    middlebox::Middlebox,
};

/// One run, which makes two traces.
#[derive(Debug, Clone)]
pub struct MiddleboxRun {
    /// Its number in a list of runs.
    pub number: usize,
    /// What stands between client and server.
    pub middle: Middlebox,
    /// The direction of the transfer.
    pub direction: BulkDirection,
    /// What the network does to packets.
    pub condition: NetworkCondition,
    /// Seed of the transferred bytes and of the link's losses.
    pub seed: u64,
    /// The links, and the size of the transfer.
    pub path: PathSpec,
}

impl MiddleboxRun {
    /// A name for files: number, middlebox, direction, condition.
    pub fn name(&self) -> String {
        format!("{:03}-{}-{}-{}", self.number, self.middle.name(), label_text(self.direction), label_text(self.condition))
    }
}
