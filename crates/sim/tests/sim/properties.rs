//! Properties of all scenarios: every byte arrives exactly once, and equal seeds give equal
//! outcomes.

use crate::common::scenario;
use outcome::Outcome;
use proptest::prelude::*;
use scenario::{Explicit, SplitMode};
use sim::{Recovery, RunCounters, Sim, TcpSettings};
use std::fmt::Write as _;

fn loss() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        (0.0..0.2f64).prop_map(|p| format!("loss = {{ per_packet = {p:.4} }}\n")),
        // With more loss, hardly a packet would survive after a timeout.
        (0.0..3.0f64).prop_map(|rate| format!("loss = {{ per_second = {rate:.3} }}\n")),
        Just("loss = { gilbert = { good_to_bad = 0.005, bad_to_good = 0.2 } }\n".to_string()),
    ]
}

/// The kind of a link's queue, and the rest of the link.
fn link() -> impl Strategy<Value = (&'static str, String)> {
    let kind = prop::sample::select(vec!["droptail", "droptail", "droptail", "droptail", "ecn", "ecn", "xcp", "vcp", "mpcp"]);
    (1u32..60, 0u32..200, 1u32..80, loss(), kind).prop_map(|(rate, delay, queue, loss, kind)| {
        (kind, format!("rate = \"{rate}Mbit\"\ndelay = \"{delay}ms\"\nqueue.limit = \"{queue}pkt\"\n{loss}"))
    })
}

fn proxy() -> impl Strategy<Value = String> {
    let buffer = prop_oneof![(1u32..60).prop_map(|packets| format!("{packets}pkt")), Just("auto".into()), Just("unlimited".into())];
    let backpressures = prop::sample::select(vec!["window", "window", "fluid", "fluid", "window-read", "window-acked", "drop"]);
    let ways = (backpressures, prop::bool::weighted(0.3), prop::bool::weighted(0.3), prop::bool::weighted(0.3));
    (buffer, ways).prop_map(|(buffer, (backpressure, shaper, semi, fast_open))| {
        let mode = if semi { "semi" } else { "stream" };
        format!("buffer = \"{buffer}\"\nbackpressure = \"{backpressure}\"\nshaper = {shaper}\nmode = \"{mode}\"\nfast_open = {fast_open}\n")
    })
}

/// A quantity with this mean: constant, or with a distribution.
fn distribution(mean: String) -> impl Strategy<Value = String> {
    let shape = prop_oneof![
        Just(String::new()),
        Just("law = \"exponential\"".to_string()),
        (2.2..4.0f64).prop_map(|exponent| format!("law = \"pareto\", exponent = {exponent:.2}")),
        (1.0..9.0f64).prop_map(|scv| format!("law = \"hyperexponential\", scv = {scv:.2}")),
    ];
    shape.prop_map(move |shape| if shape.is_empty() { format!("\"{mean}\"") } else { format!("{{ {shape}, mean = \"{mean}\" }}") })
}

/// Optional keys of a flow.
fn flow_options() -> impl Strategy<Value = String> {
    let start = prop_oneof![Just("{ uniform = [\"0s\", \"1s\"] }"), Just("{ poisson = \"200ms\" }")];
    let offers = (distribution("5kB".into()), distribution("10ms".into()), distribution("100ms".into()))
        .prop_map(|(bytes, every, spell)| format!("offers = {{ bytes = {bytes}, every = {every}, on = {spell}, off = \"50ms\" }}\n"));
    let optional = |weight, key: &'static str| prop::bool::weighted(weight).prop_map(move |has| if has { key } else { "" });
    let fast_open = optional(0.4, "fast_open = true\n");
    let limits = (optional(0.2, "window = \"20kB\"\n"), optional(0.2, "send_buffer = \"20kB\"\n"));
    (start, fast_open, limits, prop::option::weighted(0.2, offers)).prop_map(|(start, fast_open, (window, buffer), offers)| {
        format!("start = {start}\n{fast_open}{window}{buffer}{}", offers.unwrap_or_default())
    })
}

fn cross() -> impl Strategy<Value = String> {
    (distribution("200ms".into()), distribution("300ms".into()), any::<bool>()).prop_map(|(on, off, poisson)| {
        let arrivals = if poisson { "poisson" } else { "even" };
        format!("[[cross]]\nlink = 1\nrate = \"500kbit\"\narrivals = \"{arrivals}\"\non = {on}\noff = {off}\n")
    })
}

/// The kind of the routers at all links, and the controllers that need them.
fn router_assisted() -> impl Strategy<Value = Option<(&'static str, String)>> {
    let name = (prop::sample::select(Explicit::NAMES.to_vec()), any::<bool>());
    prop::option::weighted(
        0.3,
        name.prop_map(|(name, both)| {
            let kind = if name.starts_with("mpcp") { "mpcp" } else { &name[..3] };
            (kind, format!("[control]\nsender = \"{name}\"\nproxy = \"{}\"\n", if both { name } else { "cubic" }))
        }),
    )
}

const SENDERS: [&str; 6] = ["reno", "cubic", "vegas", "hybla", "westwood", "dctcp"];
const PROXIES: [&str; 9] = ["reno", "cubic", "vegas", "hybla", "westwood", "dctcp", "xcp", "mpcp", "share"];

/// A scenario with links, proxies after some of them, and finite flows.
fn any_scenario() -> impl Strategy<Value = String> {
    let places = prop::collection::vec((link(), prop::option::of(proxy())), 1..4);
    let bytes = prop_oneof![
        (1u32..400_000).prop_map(|bytes| format!("\"{bytes}B\"")),
        (1u32..100_000).prop_flat_map(|bytes| distribution(format!("{bytes}B"))),
    ];
    let flows = (1u32..6, bytes, any::<bool>(), 0u32..300, flow_options());
    let controls = (0..SENDERS.len(), 0..PROXIES.len(), router_assisted());
    (places, controls, flows, prop::option::weighted(0.3, cross())).prop_map(
        |(places, (sender, proxy, told), (count, bytes, download, access, more), cross)| {
            let plain = format!("[control]\nsender = \"{}\"\nproxy = \"{}\"\n", SENDERS[sender], PROXIES[proxy]);
            let mut text = told.as_ref().map_or(plain, |(_, control)| control.clone());
            let last = places.len();
            for ((kind, link), _) in &places {
                let kind = told.as_ref().map_or(kind, |(kind, _)| kind);
                let _ = write!(text, "[[link]]\nqueue.kind = \"{kind}\"\n{link}");
            }
            for (number, (_, proxy)) in (1..last).zip(&places) {
                if let Some(proxy) = proxy {
                    let _ = write!(text, "[[split]]\nafter = {number}\n{proxy}");
                }
            }
            let opens = if download { "receiver" } else { "sender" };
            let _ = write!(text, "[[flow]]\ncount = {count}\nbytes = {bytes}\nopens = \"{opens}\"\n{more}");
            let _ = writeln!(text, "access_delay = {{ uniform = [\"0ms\", \"{access}ms\"] }}");
            text + &cross.unwrap_or_default()
        },
    )
}

fn play(text: &str, seed: u64, settings: TcpSettings) -> (Outcome, RunCounters) {
    Sim::with(settings).play(&scenario(text), seed, &()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_arrives_once(text in any_scenario(), seed: u64, newreno in prop::bool::weighted(0.2), delayed in prop::bool::weighted(0.8)) {
        let recovery = if newreno { Recovery::NewReno } else { Recovery::Sack };
        // No run takes a day, so one that hangs is detected.
        let text = format!("duration = \"24h\"\n{text}");
        let (outcome, counters) = play(&text, seed, TcpSettings { recovery, delayed_acks: delayed, ..TcpSettings::default() });
        let splits = scenario(&text).splits;
        let from_end_to_end = splits.iter().all(|split| split.mode == SplitMode::Semi);
        for flow in &outcome.flows {
            prop_assert_eq!(Some(flow.bytes), flow.asked_bytes, "{:?}", counters);
            let (Some(end), Some(acked)) = (flow.end_s, flow.acked_s) else { panic!("it never ended, or never knew: {flow:?}") };
            prop_assert!(acked > flow.start_s && (acked > end || !from_end_to_end), "{} {}", acked, end);
        }
        for link in &outcome.links {
            prop_assert!(link.queue_drops + link.losses <= link.packets);
        }
        prop_assert!(outcome.utilization <= 1.000_001, "{}", outcome.utilization);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn equal_seeds_give_equal_outcomes(text in any_scenario(), seed: u64) {
        let text = format!("duration = \"10s\"\n{text}");
        let [one, two] = [0, 1].map(|_| play(&text, seed, TcpSettings::default()));
        prop_assert_eq!(format!("{one:?}"), format!("{two:?}"));
    }
}
