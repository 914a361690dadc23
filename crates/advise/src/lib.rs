//! Advice on a path: whether to split it, where, with which controller at the proxy and how much
//! buffer, with the numbers behind the answer.
//!
//! [`Advisor::candidates`] lists the variants to compare: the path as it is, end to end with each
//! other controller at the sender, and split at each place with each controller at the proxy. The
//! caller runs all of them with the same seeds, so that a gain is a mean over pairs, and hands the
//! outcomes to [`Advisor::advice`]. For the chosen candidate [`Advisor::buffers`] lists the buffer
//! sizes to try and [`Advisor::buffer_results`] evaluates them; [`buffer_to_configure`] adds the
//! margin that the real proxy needs.
//!
//! [`UsageAdvisor`] does the same for several kinds of transfers ([`USAGES`]), with the settings that
//! an operator would deploy. It advises no setting that makes one of them slower.
//!
//! Queues keep the size that they have end to end: a limit given in BDP would shrink on a shorter
//! leg, and its effect would be attributed to the proxy. Candidates have one proxy, no chains.
//!
//! This crate runs nothing and formats nothing: crate `runner` runs the variants, crate `report`
//! formats the advice.

mod advice;
mod advisor;
mod compare;
mod usage;

pub use advice::{
    Advice, AdviceError, AdviceVerdict, Assessment, BufferResult, Candidate, Objective, ProxyLeg, REAL_BUFFER, WINDOW_SHARE,
    buffer_to_configure, sufficient,
};
pub use advisor::Advisor;
pub use usage::{USAGES, Usage, UsageAdvice, UsageAdvisor, UsageResult, WayAssessment};
