//! The sending end of a connection.

mod ack;
mod ack_summary;
mod congestion_control;
mod delivery_receipt;
mod fast_open;
mod loss_detection;
mod newreno;
mod output;
mod rack;
mod recovery;
mod router_assisted;
mod segment;
mod state;

pub(crate) use congestion_control::Law;
pub(crate) use state::{Place, Sender};
