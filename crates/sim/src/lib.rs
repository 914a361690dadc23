//! Packets in virtual time: what a simulator of networks is to papers, for the same scenarios, with the same controllers and the same links as
//! the lab's real kernel.
//!
//! `net` is the links and the clock, `sender` and `receiver` are the ends of a connection as Linux has them, `conn` joins two of them by a
//! handshake, `app` is what has something to send, `relay` is the split node, `router` has routers that take part (XCP, VCP, MPCP), `heard` what
//! receivers do with what these tell, `world` lets it all happen, and `measure` makes an [`Outcome`](outcome::Outcome) of it. Where networks lie
//! in parallel, `parallel` has a world and measures of its own, with the same ends and links. A run is a function of scenario, seed and
//! [`Settings`]: no socket, no clock, no thread.
//!
//! Speed comes from what does not happen: links are rings of small packets, of which only the next to come out is an event; timers are moved
//! without touching their heap; an acknowledgement costs what is new in it.
//!
//! # What of Linux is left out
//!
//! Segmentation and receive offload (each segment is sent and acknowledged for itself), the compression of acknowledgements of what is out of
//! order, Nagle's algorithm, ticks of 4 ms (timers have microseconds), memory pressure, giving up (a connection is tried for ever), F-RTO's new data
//! in place of retransmissions, and FINs of their own: the last segment carries it. Data flow one way, so that acknowledgements never ride on data.
//! The window that an end without a limit opens is as large as the path could ever need, up to TCP's largest (1 GiB, RFC 7323), from the first
//! acknowledgement on: buffers do not grow by themselves.
//!
//! TCP Fast Open has its cookie: none is asked for, and none refused; the last byte of a stream may come with a SYN, FIN and all, which Linux sends
//! for itself. A sender under `semi` is one that knows what a receipt is.
//!
//! What runs under a controller's name is Tandem's, compiled from the same header as the kernel's program; the end-to-end ones that routers tell
//! what to do ([`Explicit`](scenario::Explicit)) are the simulator's alone. There is no BBR.
//!
//! # What is chosen of XCP, VCP and MPCP
//!
//! Their papers leave much to whoever builds them, and of MPCP the paper was not to be had. Where the numbers are from, and what is our own, stands at
//! the top of `router/xcp.rs`, `router/load.rs`, `router/mpcp.rs` and `sender/explicit.rs`. For all: a flow begins with the initial window and has no slow
//! start; the first round trip is the handshake's; receivers hold acknowledgements back as ever, and each tells of all packets since the one
//! before; losses are answered as Reno does, unless the name says that the window is kept.
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

mod connection;
mod engine;
mod event_queue;
mod feedback;
mod link_monitor;
mod network;
mod packet;
mod parallel;
mod receiver;
mod router;
mod rtt;
mod run_counters;
mod sender;
mod series;
mod settings;

pub use engine::Sim;
pub use run_counters::Effort;
pub use settings::{Recovery, Settings};
