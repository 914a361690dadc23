//! The binary from outside: what it prints, and what it does to the hosts and networks that the
//! tests make. One program for all of them, because linking the crates under test takes longer than
//! compiling a test.
//!
//! Tests run in parallel. Each makes network namespaces of its own, and what it starts in the
//! machine's namespace has a loopback address and a name of its own. A test that measures the whole
//! machine, fills it, or compares its namespaces before and after is a program of its own, beside
//! this directory.

#[path = "../common/mod.rs"]
mod common;

mod accounts;
mod advise_live;
mod bond;
mod cache;
mod capacity;
mod check;
mod clients;
mod command_line;
mod config;
mod detect;
mod events;
mod experiment;
mod forward;
mod hazards;
mod lab_network;
mod legs;
mod live_page;
mod mistakes;
mod modes;
mod names;
mod nat;
mod no_owner;
mod observers;
mod openwrt;
mod own_controller;
mod owner_killed;
mod packaging;
mod path_mtu;
mod pictures;
mod pid_namespaces;
mod probe;
mod prometheus;
mod quic;
mod reference;
mod report_page;
mod routed;
mod router;
mod service;
mod setup;
mod takeover;
mod tutorials;
mod watchdog;
