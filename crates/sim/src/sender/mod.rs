//! The sending end of a connection, as in Linux (net/ipv4/tcp_output.c, tcp_input.c,
//! tcp_recovery.c, tcp_timer.c). Comments name the Linux function that the code follows.
//!
//! | file | contents |
//! |---|---|
//! | `state` | the sender's state, and what its controller sees of it |
//! | `segment` | the scoreboard's segments |
//! | `congestion_control`, `router_assisted` | Tandem's and the caller's controllers; those with router feedback |
//! | `output` | what is sent and when |
//! | `ack`, `ack_summary` | what acknowledgements do |
//! | `recovery` | the congestion states, and the window in them |
//! | `loss_detection`, `rack` | how losses are found, and the timers |
//! | `rate_sample`, `rate_sampling` | delivery rate samples |
//! | `newreno` | recovery without selective acknowledgements |
//! | `delivery_receipt` | end-to-end acknowledgement past a proxy in `semi` mode |
//! | `fast_open` | data before the handshake is complete |
//!
//! Segments keep the boundaries of their first transmission. Not modelled: segmentation offload,
//! Nagle's algorithm, new data in place of retransmissions in F-RTO, urgent data, and jiffies
//! (timers have a resolution of 1 µs).

mod ack;
mod ack_summary;
mod congestion_control;
mod delivery_receipt;
mod fast_open;
mod loss_detection;
mod newreno;
mod output;
mod pacing;
mod rack;
mod rate_sample;
mod rate_sampling;
mod recovery;
mod router_assisted;
mod segment;
mod state;

pub(crate) use congestion_control::CongestionControl;
pub(crate) use state::{SenderConfig, TcpSender};
