//! Whatever a scenario is: every byte arrives once, and the same seed gives the same outcome.

use crate::common::scenario;
use proptest::prelude::*;
use scenario::{Explicit, Outcome};
use sim::{Effort, Recovery, Settings, Sim};
use std::fmt::Write as _;

fn loss() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        (0.0..0.2f64).prop_map(|p| format!("loss = {{ per_packet = {p:.4} }}\n")),
        // More would leave hardly a packet that comes after a timeout.
        (0.0..3.0f64).prop_map(|rate| format!("loss = {{ per_second = {rate:.3} }}\n")),
        Just("loss = { gilbert = { good_to_bad = 0.005, bad_to_good = 0.2 } }\n".to_string()),
    ]
}

/// A link's kind, and the rest of it.
fn link() -> impl Strategy<Value = (&'static str, String)> {
    let kind = prop::sample::select(vec!["droptail", "droptail", "droptail", "droptail", "ecn", "ecn", "xcp", "vcp", "mpcp"]);
    (1u32..60, 0u32..200, 1u32..80, loss(), kind).prop_map(|(rate, delay, queue, loss, kind)| {
        (kind, format!("rate = \"{rate}Mbit\"\ndelay = \"{delay}ms\"\nqueue.limit = \"{queue}pkt\"\n{loss}"))
    })
}

fn proxy() -> impl Strategy<Value = String> {
    let buffer = prop_oneof![(1u32..60).prop_map(|packets| format!("{packets}pkt")), Just("auto".into()), Just("unlimited".into())];
    (buffer, any::<bool>(), prop::bool::weighted(0.3)).prop_map(|(buffer, fluid, shaper)| {
        let backpressure = if fluid { "fluid" } else { "window" };
        format!("buffer = \"{buffer}\"\nbackpressure = \"{backpressure}\"\nshaper = {shaper}\n")
    })
}

/// Which routers all links of a scenario have, and its controllers, where they are told what to send.
fn told() -> impl Strategy<Value = Option<(&'static str, String)>> {
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

/// A scenario's text: links, some of them with a proxy behind them, and flows that end.
fn any_scenario() -> impl Strategy<Value = String> {
    let places = prop::collection::vec((link(), prop::option::of(proxy())), 1..4);
    let flows = (1u32..6, 1u32..400_000, any::<bool>(), 0u32..300, prop::bool::weighted(0.2), prop::bool::weighted(0.2));
    let controls = (0..SENDERS.len(), 0..PROXIES.len(), told());
    (places, controls, flows, prop::bool::weighted(0.3)).prop_map(
        |(places, (sender, proxy, told), (count, bytes, download, access, window, offers), cross)| {
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
            let _ = write!(
                text,
                "[[flow]]\ncount = {count}\nbytes = \"{bytes}B\"\nopens = \"{opens}\"\nstart = {{ uniform = [\"0s\", \"1s\"] }}\n"
            );
            let _ = writeln!(text, "access_delay = {{ uniform = [\"0ms\", \"{access}ms\"] }}");
            if window {
                text += "window = \"20kB\"\n";
            }
            if offers {
                text += "offers = { bytes = \"5kB\", every = \"10ms\" }\n";
            }
            if cross {
                text += "[[cross]]\nlink = 1\nrate = \"500kbit\"\non = \"200ms\"\noff = \"300ms\"\n";
            }
            text
        },
    )
}

fn play(text: &str, seed: u64, settings: Settings) -> (Outcome, Effort) {
    Sim::with(settings).play(&scenario(text), seed, &()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_arrives_once(text in any_scenario(), seed: u64, newreno in prop::bool::weighted(0.2), delayed in prop::bool::weighted(0.8)) {
        let recovery = if newreno { Recovery::NewReno } else { Recovery::Sack };
        // None takes a day, so that one that hangs is found out.
        let text = format!("duration = \"24h\"\n{text}");
        let (outcome, effort) = play(&text, seed, Settings { recovery, delayed_acks: delayed, ..Settings::default() });
        for flow in &outcome.flows {
            prop_assert_eq!(Some(flow.bytes), flow.asked_bytes, "{:?}", effort);
            prop_assert!(flow.end_s.is_some());
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
    fn the_same_seed_gives_the_same_outcome(text in any_scenario(), seed: u64) {
        let text = format!("duration = \"10s\"\n{text}");
        let [one, two] = [0, 1].map(|_| play(&text, seed, Settings::default()));
        prop_assert_eq!(format!("{one:?}"), format!("{two:?}"));
    }
}
