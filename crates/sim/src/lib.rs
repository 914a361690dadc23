//! A packet-level TCP simulator in virtual time. It answers the same scenarios as the lab's real
//! kernel, with the same congestion controllers and the same link model.
//!
//! [`Sim`] is the engine. A run is a function of scenario, seed and [`TcpSettings`]: the crate uses
//! no socket, no clock and no thread.
//!
//! | module | contents |
//! |---|---|
//! | `event_loop`, `event_queue` | the clock; timers and one-shot events |
//! | `network`, `packet`, `link_monitor` | links and shapers, packets, a proxy's view of a link |
//! | `connection`, `sender`, `receiver`, `rtt` | TCP as in Linux |
//! | `router`, `feedback` | XCP, VCP and MPCP routers; the return of their feedback |
//! | `series` | links in series: flows, split nodes, applications, cross traffic, web pages |
//! | `agent` | agents on the way of connections: Snoop, notices of loss |
//! | `parallel` | networks in parallel: striped transfers |
//! | `engine`, `external`, `settings`, `run_counters` | the interface |
//!
//! The simulator is fast because most work is avoided: of the packets on a link only the next
//! delivery is an event, moving a timer does not touch the heap, and an acknowledgement costs time
//! in proportion to what it newly reports.
//!
//! # What is not modelled of Linux
//!
//! - Segmentation and receive offload: each segment is sent and acknowledged by itself.
//! - Compression of acknowledgements for out-of-order data.
//! - Nagle's algorithm, and data in place of retransmissions in F-RTO.
//! - Timer ticks of 4 ms: timers have a resolution of 1 µs.
//! - Memory pressure, and giving up: a connection retries for ever.
//! - A FIN segment of its own: the last data segment carries the FIN.
//! - The wake-up of a receiving application, after which Linux acknowledges data in order, unless
//!   `tcp.read_delay` is set: acknowledgements are sent at once.
//! - Acknowledgements on data: a connection with requests and responses acknowledges either by
//!   packets of their own.
//! - Receive buffer autotuning: from the first acknowledgement on, an end without a configured
//!   limit advertises a window as large as the path can need, up to TCP's largest (1 GiB, RFC
//!   7323).
//!
//! TCP Fast Open starts with a valid cookie; cookies are neither requested nor refused. The last
//! byte of a stream may be in a SYN, together with the FIN, which Linux sends separately. In `semi`
//! mode senders understand delivery receipts.
//!
//! Congestion controllers are Tandem's, compiled from the headers that are also the kernel's
//! programs. The end-to-end controllers that need feedback from routers
//! ([`Explicit`](scenario::Explicit)) exist in the simulator only, as do those that a caller brings
//! ([`ExternalController`]).
//!
//! # XCP, VCP and MPCP
//!
//! The papers leave much to the implementer, and MPCP's paper was not available. The sources of the
//! constants, and the choices of our own, are documented in `router/xcp.rs`,
//! `router/load_factor.rs`, `router/mpcp.rs` and `sender/router_assisted.rs`. In all three, a flow
//! begins with the initial window and has no slow start; the first RTT sample is that of the
//! handshake; receivers delay acknowledgements as usual, and each acknowledgement returns the
//! feedback of all packets since the one before; losses are answered as by Reno, unless the
//! controller's name says that it keeps its window.
//!
//! ```
//! use outcome::Engine as _;
//! use scenario::ScenarioFile;
//! let text = "name = \"x\"\n[[link]]\nrate = \"10Mbit\"\ndelay = \"20ms\"\n[[flow]]\nbytes = \"1MB\"\n";
//! let scenario = ScenarioFile::parse(text, "x")?.variants(&[])?.remove(0).scenario;
//! let outcome = sim::Sim::default().run(&scenario, 1, &())?;
//! assert_eq!(outcome.flows[0].bytes, 1_000_000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod agent;
mod connection;
mod engine;
mod event_loop;
mod event_queue;
mod external;
mod feedback;
mod link_monitor;
mod network;
mod packet;
mod parallel;
mod receive_tuning;
mod receiver;
mod router;
mod rtt;
mod run_counters;
mod sender;
mod series;
mod settings;
mod varying_links;

pub use engine::Sim;
pub use external::{ExternalController, ExternalControllerState};
pub use run_counters::RunCounters;
pub use settings::{Recovery, TcpSettings};
