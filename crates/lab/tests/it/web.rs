//! Web pages and request-response over real sockets: times are those that links and requests imply.

use crate::{common, play::play};

/// 40 ms there and back over two links, of which the second has half.
const LINKS: &str = "name = \"x\"\n[[link]]\nrate = \"50Mbit\"\ndelay = \"10ms\"\n[[link]]\nrate = \"20Mbit\"\ndelay = \"10ms\"\n";

/// How much later than on an idle machine something may be, seconds.
const LATE: f64 = 0.1;

#[test]
fn a_page_takes_the_round_trips_that_its_objects_need() {
    const TEST: &str = "a_page_takes_the_round_trips_that_its_objects_need";
    if common::skip(TEST) {
        return;
    }
    let objects = "[[page.object]]\nname = \"html\"\nsize = \"5kB\"\n[[page.object]]\nsize = \"1kB\"\ncount = 8\nneeds = [\"html\"]\n";
    for (split, direction) in [("", "forward"), ("[[split]]\nafter = 1\n", "forward"), ("[[split]]\nafter = 1\n", "reverse")] {
        let page = |more: &str| {
            let text = format!(
                "{LINKS}{split}[[page]]\nloads = 3\nthink = \"20ms\"\nservice = \"5ms\"\ndirection = \"{direction}\"\n{more}{objects}"
            );
            let outcome = play(TEST, &text)?;
            let page = &outcome.pages[0];
            assert_eq!((page.error.as_ref(), page.bytes, outcome.response_s?.count), (None, 3 * 13_000, 27));
            Some((page.load_s?.p50, page.connections, outcome))
        };
        // A handshake, the html, and the rest at once; or two by two, of which one connection is
        // new.
        let Some((at_once, one, outcome)) = page("multiplexed = true\n") else { return };
        let Some((two_by_two, few, _)) = page("connections = 2\n") else { return };
        assert_eq!((one, few), (3, 6));
        assert!((0.13..0.13 + LATE).contains(&at_once), "{split}{direction}: {at_once}");
        assert!((0.265..0.31 + 3.0 * LATE).contains(&two_by_two), "{split}{direction}: {two_by_two}");
        assert!(outcome.flows.is_empty() && outcome.links[0].reverse.is_some_and(|reverse| reverse.packets > 20));
        // The response to the html contains the wait for the connection.
        let response = outcome.response_s.unwrap();
        assert!(response.p50 > 0.045 && response.max < at_once + LATE, "{response:?}");
    }
}

#[test]
fn requests_are_answered_in_both_loops_and_wait_behind_an_upload() {
    const TEST: &str = "requests_are_answered_in_both_loops_and_wait_behind_an_upload";
    if common::skip(TEST) {
        return;
    }
    let exchange = |more: &str| {
        play(TEST, &format!("duration = \"3s\"\n{LINKS}queue = \"200kB\"\n[[exchange]]\nup = \"200B\"\ndown = \"1kB\"\n{more}"))
    };
    let Some(closed) = exchange("requests = 20\nthink = \"10ms\"\n") else { return };
    let times = closed.exchanges[0].response_s.unwrap();
    assert_eq!((times.count, closed.exchanges[0].bytes), (20, 20_000));
    assert!((0.04..0.04 + LATE).contains(&times.p50) && times.max >= 0.08, "{times:?}");
    let Some(open) = exchange("requests = 50\nevery = \"10ms\"\n") else { return };
    let times = open.exchanges[0].response_s.unwrap();
    // Fifty requests in half a second, although each takes 40 ms.
    assert!(times.count == 50 && (0.04..0.04 + LATE).contains(&times.p50), "{times:?}");
    let upload = "[[flow]]\ndirection = \"reverse\"\n";
    let Some(beside) = exchange(&format!("think = \"10ms\"\n{upload}")) else { return };
    assert!(beside.flows[0].reverse && beside.flows[0].bytes > 0);
    // The queue of 200 kB takes 80 ms.
    let waited = beside.exchanges[0].response_s.unwrap();
    assert!(waited.p95 > 0.07, "{waited:?}");
}
