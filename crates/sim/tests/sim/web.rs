//! Web pages and request-response.

use crate::common::{near, refused, run};
use outcome::{Outcome, TimePercentiles};

/// 100 ms there and back, without losses; 1.25 MB/s.
const LINK: &str = "[[link]]\nrate = \"10Mbit\"\ndelay = \"50ms\"\nqueue = \"1MB\"\n";

fn load(outcome: &Outcome) -> TimePercentiles {
    outcome.page_load_s.expect("a page was loaded")
}

/// A handshake, a request and a response of one window: two round trips, and the transmission.
#[test]
fn an_object_takes_a_handshake_a_round_trip_and_its_transmission() {
    let page = "[[page]]\n[[page.object]]\nsize = \"12kB\"\n";
    let outcome = run(&format!("{LINK}{page}"));
    // Nine segments of 12 468 bytes, of which the last arrives.
    let expected = 0.2 + 9.0 * 1500.0 / 1.25e6;
    assert!((load(&outcome).mean - expected).abs() < 0.002, "{} s, not {expected} s", load(&outcome).mean);
    assert_eq!((outcome.pages[0].bytes, outcome.pages[0].connections, outcome.pages[0].asked_loads), (12_000, 1, 1));
    assert!(outcome.flows.is_empty());
    // The server's time comes on top. Without it, the response waits for the request's
    // acknowledgement.
    let slow = run(&format!("{LINK}{}", page.replace("[[page]]\n", "[[page]]\nservice = \"30ms\"\n")));
    assert!((load(&slow).mean - load(&outcome).mean - 0.03).abs() < 1e-3, "{} s", load(&slow).mean);
    // A page in reverse is the same over the same link.
    let reverse = run(&format!("{LINK}{}", page.replace("[[page]]\n", "[[page]]\ndirection = \"reverse\"\n")));
    assert_eq!(load(&reverse), load(&outcome));
}

/// A chain of objects takes a round trip each, on a connection that is there.
#[test]
fn what_an_object_needs_comes_before_it() {
    let chain = "[[page]]\n[[page.object]]\nname = \"a\"\nsize = \"1kB\"\n[[page.object]]\nname = \"b\"\nsize = \"1kB\"\nneeds = [\"a\"]\n\
        [[page.object]]\nsize = \"1kB\"\nneeds = [\"a\", \"b\"]\n";
    let outcome = run(&format!("{LINK}{chain}"));
    assert!((load(&outcome).mean - 0.4).abs() < 0.01, "a handshake and three round trips: {}", load(&outcome).mean);
    let flat = run(&format!("{LINK}{}", chain.replace("needs = [\"a\"]\n", "").replace("needs = [\"a\", \"b\"]\n", "")));
    assert!((load(&flat).mean - 0.2).abs() < 0.01, "all at once: {}", load(&flat).mean);
    assert_eq!((outcome.pages[0].connections, flat.pages[0].connections), (1, 3));
}

#[test]
fn connections_limit_how_much_is_asked_for_at_once() {
    let page = |more: &str| format!("{LINK}[[page]]\nloads = 4\nthink = \"1s\"\n{more}[[page.object]]\nsize = \"1kB\"\ncount = 9\n");
    let times = |more: &str| {
        let outcome = run(&page(more));
        assert_eq!((load(&outcome).count, outcome.response_s.unwrap().count, outcome.pages[0].bytes), (4, 36, 36_000));
        (load(&outcome).mean, outcome.pages[0].connections)
    };
    let ((six, opened), (two, few), (at_once, one)) = (times(""), times("connections = 2\n"), times("multiplexed = true\n"));
    assert_eq!((opened, few, one), (24, 8, 4));
    // A handshake, and two or five rounds of requests. Nine segments fit the initial window.
    assert!((six - 0.3).abs() < 0.03 && (two - 0.6).abs() < 0.03 && (at_once - 0.21).abs() < 0.03, "{six} {two} {at_once}");
}

/// Over a lossy satellite link, a proxy recovers losses of the far leg faster, and starts faster.
#[test]
fn a_proxy_shortens_page_loads_over_a_lossy_link() {
    let page = |split: &str| {
        let outcome = run(&format!(
            "[control]\nsender = \"cubic\"\nproxy = \"bbr\"\n[[link]]\nrate = \"100Mbit\"\ndelay = \"40ms\"\n\
             [[link]]\nrate = \"20Mbit\"\ndelay = \"200ms\"\nloss = {{ per_packet = 0.01 }}\n{split}\
             [[page]]\nloads = 10\nthink = \"1s\"\n[[page.object]]\nname = \"html\"\nsize = \"50kB\"\n\
             [[page.object]]\nsize = \"100kB\"\ncount = 20\nneeds = [\"html\"]\n"
        ));
        assert_eq!(outcome.pages[0].bytes, 10 * 2_050_000);
        load(&outcome)
    };
    let (whole, split) = (page(""), page("[[split]]\nafter = 1\n"));
    assert!(split.p50 < 0.9 * whole.p50 && split.p95 < whole.p95, "{split:?} beside {whole:?}");
}

#[test]
fn a_closed_loop_takes_a_round_trip_for_each_request() {
    let outcome = run(&format!("{LINK}[[exchange]]\nrequests = 50\nup = \"100B\"\ndown = \"1kB\"\nthink = \"200ms\"\n"));
    let times = outcome.exchanges[0].response_s.unwrap();
    assert_eq!((times.count, outcome.exchanges[0].asked_requests), (50, Some(50)));
    // The first one waits for the connection.
    assert!((times.p50 - 0.101).abs() < 0.002 && (times.p95 - 0.101).abs() < 0.002 && (times.max - 0.201).abs() < 0.002, "{times:?}");
}

/// At a load of 0.8, responses wait for each other; the mean wait of M/D/1 is 2 services.
#[test]
fn an_open_loop_counts_the_wait_behind_other_responses() {
    let exchange = |every: &str| {
        let more = format!("requests = 3000\nup = \"100B\"\ndown = \"14480B\"\nevery = {{ law = \"exponential\", mean = \"{every}\" }}\n");
        run(&format!("[tcp]\nvalidation = false\n{LINK}[[exchange]]\n{more}")).response_s.unwrap()
    };
    let (light, heavy) = (exchange("120ms"), exchange("15ms"));
    // Ten segments take 12 ms.
    assert!(light.p50 < 0.13 && heavy.mean - light.mean > 0.012 && heavy.mean - light.mean < 0.05, "{light:?} {heavy:?}");
    assert!(heavy.p99 > heavy.p95 && heavy.p95 > 1.2 * heavy.p50, "{heavy:?}");
}

/// An exchange without a number of requests lasts as long as the run, and its requests share the
/// queue of a flow in their direction.
#[test]
fn requests_wait_in_the_queue_of_an_upload() {
    let exchange = "[[exchange]]\nup = \"100B\"\ndown = \"100B\"\nthink = \"50ms\"\n";
    let p50 = |more: &str| run(&format!("duration = \"30s\"\n{LINK}{exchange}{more}")).response_s.unwrap().p50;
    let (alone, beside, other_way) = (p50(""), p50("[[flow]]\ndirection = \"reverse\"\n"), p50("[[flow]]\n"));
    assert!(alone < 0.102 && beside > alone + 0.2, "{alone} {beside}");
    near(other_way, beside, 0.35);
}

#[test]
fn equal_seeds_have_equal_pages_and_others_do_not() {
    let text =
        format!("{LINK}[[page]]\nloads = 5\n[[page.object]]\nsize = {{ law = \"pareto\", exponent = 2.2, mean = \"30kB\" }}\ncount = 10\n");
    let play = |seed| crate::common::play(&text, seed, sim::TcpSettings::default()).0;
    assert_eq!(play(7), play(7));
    assert_ne!(play(7).pages, play(8).pages);
}

#[test]
fn a_proxy_that_carries_pages_forwards_a_stream_and_dials_without_fast_open() {
    let page = "[[page]]\n[[page.object]]\nsize = \"1kB\"\n";
    let split = |more: &str| refused(&format!("{LINK}{LINK}[[split]]\nafter = 1\n{more}{page}"));
    assert_eq!(split("mode = \"semi\"\n"), "split[1].mode");
    assert_eq!(split("fast_open = true\n"), "split[1].fast_open");
    let agent = format!("{LINK}{LINK}[[agent]]\nafter = 1\nkind = \"snoop\"\n{page}");
    assert_eq!(refused(&agent), "page");
}
