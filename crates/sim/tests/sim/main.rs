//! The simulator, from scenario to outcome.

mod accounts;
mod agents;
mod bbr;
mod common;
mod explicit;
mod external;
mod fast_open;
mod golden;
mod networks;
mod one_leg;
mod own;
mod parallel;
mod properties;
mod queues;
mod semi;
mod sources;
mod split;
mod theory;
mod two_way;
mod varying_links;
mod web;
