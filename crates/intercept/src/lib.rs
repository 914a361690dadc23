//! Interception of TCP connections: directs connections to a proxy, and dials and tunes their legs.
//! The split proxy and the cache share it.
//!
//! `rules` and `routes` make the kernel deliver connections to a `listener`; `policy` decides which
//! connections are split and which profile each leg gets; `leg` dials and tunes legs by these
//! profiles, `controllers` and `egress` set up what the profiles need in the kernel.
//! [`Interception`] is the configuration of all this, [`ActiveInterception`] runs it, [`check`]
//! tries beforehand whether it can work on this host.
//!
//! This crate relays no data and parses no application protocol. What connects the two legs is not
//! its concern.

mod access;
mod active_interception;
mod address;
pub mod address_race;
mod capacity;
pub mod check;
mod controllers;
mod destinations;
mod egress;
mod forward_loop;
#[doc(hidden)]
pub mod fuzz_api;
mod host_counters;
pub mod host_memory;
mod interception;
pub mod kernel_setting;
mod last_delivery;
pub mod leg;
mod link_view;
mod listen;
pub mod listener;
mod packet_log;
pub mod peer;
mod policy;
pub mod receive_bound;
mod routes;
pub mod rules;
pub mod runtime_dir;
mod syn_filter;
pub mod sys;
mod users;

pub use access::{AccessOptions, ListenerAccess};
pub use active_interception::{ActiveInterception, Dialler};
pub use address::{AddressSchema, optional_address, parse_address};
pub use address_race::{AddressHistory, AddressRace, NextAttempt};
pub use capacity::{CapacityFileError, CapacitySource};
pub use controllers::{ControllerError, Controllers};
pub use destinations::{Destinations, canonical};
pub use egress::{Egress, EgressError, LinkUse, LinkUses};
pub use host_counters::{ReceiveCounters, ZeroWindows, tcp_counter};
pub use interception::{Interception, InterceptionError, OpenError, check_profile};
pub use last_delivery::LastDelivery;
pub use leg::{Dscp, LegProfile, Source, acknowledge, available_controllers};
pub use link_view::LinkView;
pub use listen::{Destination, ListenAt};
pub use listener::{AcceptedConnection, Listener, ListenerOptions};
pub use packet_log::{LoggedPacket, PacketLog, Passage, Reading};
pub use policy::{Action, Interface, LegRule, NamedProfile, OneOrList, Policy, Ports, Prefix, QuicAction, Rule, list, with_profile_keys};
pub use receive_bound::ReceiveBound;
pub use routes::{Device, Routes};
pub use rules::{Carried, Counted, Experiment, ExperimentShare, ForwardPolicy, Group, Rules, RulesError, RulesLost};
pub use syn_filter::{Accepting, ClientKey};
pub use sys::{TcpInfo, clamp_window, force_receive_buffer, tcp_info, unsent};
pub use users::{Users, UsersError, check_secrecy};
