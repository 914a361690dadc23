//! XCP, VCP and MPCP end to end, with their routers: the claims of the papers, as traces.

use crate::common::{near, play, refused, run, scenario};
use outcome::{Engine, Outcome};
use sim::{Sim, TcpSettings};

/// The payload rate of 20 Mbit/s, bit/s, and the BDP at 100 ms, bytes.
const MOST: f64 = 20e6 * 1448.0 / 1500.0;
const BDP: f64 = 250_000.0;

/// A scenario with flows of a controller over a link of 20 Mbit/s and 100 ms with the routers that
/// it needs.
fn text(law: &str, seconds: u32, link: &str, flows: &str) -> String {
    let kind = if law.starts_with("mpcp") { "mpcp" } else { &law[..3] };
    format!(
        "duration = \"{seconds}s\"\n[control]\nsender = \"{law}\"\n[[link]]\nrate = \"20Mbit\"\ndelay = \"50ms\"\nqueue.kind = \"{kind}\"\n\
         {link}[[flow]]\n{flows}"
    )
}

/// The values of a curve between two times, s.
fn between<'a>(outcome: &'a Outcome, what: &str, whose: &str, from: f64, to: f64) -> impl Iterator<Item = f64> + 'a {
    let series = outcome.series.iter().find(|series| series.what == what && series.whose == whose).unwrap();
    series.t.iter().zip(&series.v).filter(move |(t, _)| (from..=to).contains(*t)).map(|(_, v)| *v)
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / count
}

#[test]
fn xcp_fills_a_link_in_ten_rtts_without_a_queue() {
    let outcome = run(&text("xcp-e2e", 20, "", ""));
    // The goodput curve is a mean over half a second.
    let least = between(&outcome, "goodput", "all", 1.5, 20.0).fold(f64::INFINITY, f64::min);
    assert!(least > 0.95 * MOST, "{least} of {MOST}");
    assert_eq!((outcome.queue_drops(), outcome.retransmits()), (0, 0));
    let standing = mean(between(&outcome, "queue", "link 1", 2.0, 20.0));
    assert!(standing < 0.05 * BDP, "{standing}");
}

#[test]
fn xcp_converges_to_fairness_within_25_intervals() {
    let outcome = run(&text("xcp-e2e", 40, "", "count = 5\nstart = { every = \"6s\" }\n"));
    assert_eq!((outcome.queue_drops(), outcome.retransmits()), (0, 0));
    // An interval is an RTT; the curves are means over half a second.
    assert!(outcome.converge_s.unwrap() < 2.5 + 0.5, "{:?}", outcome.converge_s);
    assert!(outcome.jain.unwrap() > 0.995 && outcome.utilization > 0.95, "{:?} {}", outcome.jain, outcome.utilization);
}

#[test]
fn xcp_does_not_favour_short_rtts() {
    // 100, 200, 300 and 400 ms.
    let outcome = run(&text("xcp-e2e", 60, "", "count = 4\naccess_delay = { every = \"50ms\" }\n"));
    let shares: Vec<f64> = (0..4).map(|flow| mean(between(&outcome, "flow_goodput", &format!("flow {flow}"), 20.0, 60.0))).collect();
    assert!(outcome::jain(&shares).unwrap() > 0.999, "{shares:?}");
    // Until the long RTTs are known, the first intervals are too short for them, and some packets
    // are dropped.
    assert!(outcome.utilization > 0.95 && outcome.queue_drops() < 50, "{} {}", outcome.utilization, outcome.queue_drops());
}

#[test]
fn xcp_yields_to_cross_traffic() {
    // UDP has no congestion header: it counts as load and gets no feedback. It takes 8 of 20 Mbit/s
    // for ten seconds.
    let cross = "[[cross]]\nlink = 1\nrate = \"8Mbit\"\nstart = \"10s\"\nstop = \"20s\"\n";
    let outcome = run(&text("xcp-e2e", 30, "", &format!("count = 2\n{cross}")));
    let goodput = |from: f64, to: f64| mean(between(&outcome, "goodput", "all", from, to));
    near(goodput(12.0, 20.0), 0.6 * MOST, 0.04);
    near(goodput(5.0, 10.0), MOST, 0.04);
    near(goodput(22.0, 30.0), MOST, 0.04);
    assert_eq!(outcome.queue_drops(), 0);
}

#[test]
fn xcp_follows_a_change_of_rate() {
    let changes = "queue.limit = \"4BDP\"\nchanges = [{ at = \"10s\", rate = \"5Mbit\" }, { at = \"20s\", rate = \"20Mbit\" }]\n";
    let outcome = run(&text("xcp-e2e", 30, changes, "count = 2\n"));
    let goodput = |from: f64, to: f64| mean(between(&outcome, "goodput", "all", from, to));
    near(goodput(13.0, 20.0), 0.25 * MOST, 0.04);
    near(goodput(22.0, 30.0), MOST, 0.04);
    let standing = mean(between(&outcome, "queue", "link 1", 15.0, 20.0));
    assert!(standing < 0.1 * BDP && outcome.queue_drops() == 0, "{standing}");
}

/// Three links in a row, of which the middle one is the slowest. UDP makes the last one the
/// bottleneck from 15 s on.
fn row(law: &str, kinds: [&str; 3]) -> Outcome {
    let [one, two, three] = kinds;
    run(&format!(
        "duration = \"30s\"\n[control]\nsender = \"{law}\"\n[[link]]\nrate = \"40Mbit\"\ndelay = \"10ms\"\nqueue.kind = \"{one}\"\n\
         [[link]]\nrate = \"20Mbit\"\ndelay = \"30ms\"\nqueue.kind = \"{two}\"\n[[link]]\nrate = \"25Mbit\"\ndelay = \"10ms\"\n\
         queue.kind = \"{three}\"\n[[flow]]\ncount = 2\n[[cross]]\nlink = 3\nrate = \"15Mbit\"\nstart = \"15s\"\n"
    ))
}

#[test]
fn the_bottleneck_rules_among_several_routers() {
    for (law, kind, [first, second]) in
        [("xcp-e2e", "xcp", [0.97, 0.97]), ("vcp-e2e", "vcp", [0.9, 0.88]), ("mpcp-e2e", "mpcp", [0.9, 0.88])]
    {
        let outcome = row(law, [kind; 3]);
        let goodput = |from: f64, to: f64| mean(between(&outcome, "goodput", "all", from, to));
        let (slow, slower) = (goodput(8.0, 15.0) / MOST, goodput(22.0, 30.0) / (0.5 * MOST));
        assert!(slow > first && slow <= 1.001 && slower > second && slower < 1.02, "{law}: {slow} {slower}");
        assert_eq!(outcome.queue_drops(), 0, "{law}");
    }
}

#[test]
fn links_with_other_queues_give_no_feedback() {
    // Only the middle link has a router. The last one is a plain queue and drops what it has no
    // room for.
    let outcome = row("xcp-e2e", ["droptail", "xcp", "ecn"]);
    let goodput = |from: f64, to: f64| mean(between(&outcome, "goodput", "all", from, to));
    near(goodput(8.0, 15.0), MOST, 0.04);
    assert!(outcome.links[2].queue_drops > 0, "the last link is full and gives no feedback");
}

#[test]
fn vcp_and_mpcp_fill_a_link_without_loss() {
    for (law, after, part) in [("vcp-e2e", 30.0, 0.88), ("mpcp-e2e", 10.0, 0.88), ("mpcp3-e2e", 10.0, 0.88)] {
        let outcome = run(&text(law, 60, "", ""));
        let goodput = mean(between(&outcome, "goodput", "all", after, 60.0));
        assert!(goodput > part * MOST, "{law}: {}", goodput / MOST);
        assert_eq!((outcome.queue_drops(), outcome.retransmits()), (0, 0), "{law}");
        let standing = mean(between(&outcome, "queue", "link 1", after, 60.0));
        assert!(standing < 0.05 * BDP, "{law}: {standing}");
    }
}

#[test]
fn vcp_and_mpcp_converge_slowly() {
    let flows = "count = 4\nstart = { every = \"3s\" }\n";
    let late = |law: &str| {
        let outcome = run(&text(law, 120, "", flows));
        let shares = |from: f64, to: f64| {
            let of = |flow: usize| mean(between(&outcome, "flow_goodput", &format!("flow {flow}"), from, to));
            outcome::jain(&(0..4).map(of).collect::<Vec<_>>()).unwrap()
        };
        assert!(outcome.queue_drops() <= 20, "{law}: {}", outcome.queue_drops());
        (shares(10.0, 15.0), shares(100.0, 120.0))
    };
    for law in ["vcp-e2e", "mpcp-e2e"] {
        let (early, end) = late(law);
        assert!(end > 0.95 && early < end, "{law}: {early} {end}");
    }
    assert!(late("xcp-e2e").0 > 0.99);
}

#[test]
fn a_loss_reduces_the_window_unless_it_is_kept() {
    for law in ["xcp-e2e", "vcp-e2e", "mpcp-e2e"] {
        let goodput = |name: &str| run(&text(name, 60, "loss = { per_packet = 0.005 }\n", "count = 2\n")).goodput_bps;
        let (answers, keeps) = (goodput(law), goodput(&format!("{law}-keep")));
        assert!(keeps > 1.3 * answers && keeps > 0.8 * MOST, "{law}: {answers} {keeps}");
    }
}

#[test]
fn an_application_limited_flow_leaves_the_rest() {
    // One flow offers a tenth of the capacity; the other gets the rest.
    let flows = "offers = { bytes = \"25kB\", every = \"100ms\" }\n[[flow]]\n";
    let outcome = run(&text("xcp-e2e", 30, "", flows));
    let [little, rest] = [0, 1].map(|flow| mean(between(&outcome, "flow_goodput", &format!("flow {flow}"), 5.0, 30.0)));
    near(little, 2e6, 0.03);
    assert!(rest > 0.93 * (MOST - 2e6), "{rest}");
}

#[test]
fn flows_without_a_header_are_unaffected_by_routers() {
    for kind in ["xcp", "vcp", "mpcp"] {
        let plain = text("xcp-e2e", 20, "", "").replace("xcp-e2e", "cubic");
        let (plain, routed) = (plain.replace("\"xcp\"", "\"droptail\""), plain.replace("\"xcp\"", &format!("\"{kind}\"")));
        assert_eq!(format!("{:?}", run(&plain).flows), format!("{:?}", run(&routed).flows), "{kind}");
    }
}

#[test]
fn each_leg_has_its_own_controller() {
    let text = |control: &str| {
        format!(
            "{control}[[link]]\nrate = \"50Mbit\"\ndelay = \"5ms\"\nqueue.kind = \"xcp\"\n[[link]]\nrate = \"20Mbit\"\ndelay = \"50ms\"\n\
             queue.kind = \"mpcp\"\n[[split]]\nafter = 1\n[[flow]]\ncount = 3\nbytes = \"5MB\"\n"
        )
    };
    let outcome = run(&text("[control]\nsender = \"xcp-e2e\"\nproxy = \"mpcp-e2e\"\n"));
    assert!(outcome.flows.iter().all(|flow| Some(flow.bytes) == flow.asked_bytes));
    assert_eq!(outcome.queue_drops(), 0);
    let plain = run(&text("[control]\nsender = \"cubic\"\nproxy = \"mpcp-e2e\"\n"));
    assert!(plain.completion_s().unwrap() < 9.0 && outcome.completion_s().unwrap() < 9.0);
    assert_eq!(refused(&text("[control]\nsender = \"cubic\"\nproxy = \"xcp-e2e\"\n")), "control.proxy");
}

#[test]
fn a_missing_router_is_refused_with_the_cure() {
    let text = "[control]\nsender = \"xcp-e2e\"\n[[link]]\nrate = \"20Mbit\"\ndelay = \"5ms\"\n[[link]]\nrate = \"10Mbit\"\ndelay = \"5ms\"\n\
        queue.kind = \"vcp\"\n[[flow]]\nbytes = \"1MB\"\n";
    assert_eq!(refused(text), "control.sender");
    let error = Sim::default().can_answer(&scenario(text)).unwrap_err().to_string();
    assert_eq!(
        error,
        "control.sender: \"xcp-e2e\" needs feedback of xcp routers, and none of links 1 to 2 has one: give link 2 queue = { kind = \"xcp\" }"
    );
}

#[test]
fn delayed_acknowledgements_lose_no_feedback() {
    // XCP's feedback adds up until the next acknowledgement.
    let text = text("xcp-e2e", 20, "", "count = 3\n");
    let [held, each] = [true, false].map(|delayed_acks| play(&text, 1, TcpSettings { delayed_acks, ..TcpSettings::default() }).0);
    assert!(held.utilization > 0.95 && each.utilization > 0.95, "{} {}", held.utilization, each.utilization);
    assert!(held.jain.unwrap() > 0.99 && each.jain.unwrap() > 0.99, "{:?} {:?}", held.jain, each.jain);
}
