//! What a run says its bottleneck was lost to.

use crate::common::run;
use account::Cause;

/// A link of 20 Mbit/s and 100 ms, with what follows.
fn account(rest: &str) -> account::AccountShares {
    let outcome = run(&format!("[control]\nsender = \"cubic\"\n[[link]]\nrate = \"20Mbit\"\ndelay = \"100ms\"\n{rest}"));
    let account = outcome.account.unwrap();
    let sum = account.used.unwrap() + account.lost.iter().map(|part| part.share).sum::<f64>();
    assert!((sum - 1.0).abs() < 1e-9, "{account}");
    account
}

/// Checks that most of what was lost went to this cause.
#[track_caller]
fn mostly(account: &account::AccountShares, cause: Cause, least: f64) {
    assert!(account.most().unwrap().to == cause && account.lost_to(cause) > least, "{account}");
}

#[test]
fn every_limit_has_its_cause() {
    let transfer = |rest: &str| account(&format!("[[flow]]\nbytes = \"5MB\"\n{rest}"));
    mostly(&transfer("window = \"100kB\"\n"), Cause::ReceiverWindow, 0.7);
    mostly(&transfer("send_buffer = \"100kB\"\n"), Cause::KernelBuffer, 0.7);
    mostly(&transfer("offers = { every = \"100ms\", bytes = \"20kB\" }\n"), Cause::Sender, 0.7);
    mostly(&account("[[flow]]\nbytes = \"5MB\"\n[[flow]]\nbytes = \"5MB\"\nwindow = \"20kB\"\n"), Cause::ReceiverWindow, 0.3);
    mostly(&account("loss = { per_packet = 0.01 }\n[[flow]]\nbytes = \"5MB\"\n"), Cause::Loss, 0.5);
    mostly(&account("[[flow]]\nbytes = \"1MB\"\n"), Cause::SlowStart, 0.3);
    mostly(&account("[[flow]]\nbytes = \"3kB\"\n"), Cause::Handshake, 0.6);
    mostly(&account("[[cross]]\nlink = 1\nrate = \"15Mbit\"\n[[flow]]\nbytes = \"5MB\"\n"), Cause::OtherTraffic, 0.5);
    let proxy = "[[link]]\nrate = \"100Mbit\"\ndelay = \"1ms\"\n[[split]]\nafter = 1\nbuffer = \"100kB\"\n[[flow]]\nbytes = \"5MB\"\n";
    mostly(&account(proxy), Cause::ProxyBuffer, 0.7);
}

#[test]
fn the_time_before_the_first_and_after_the_last_byte_is_known() {
    // A connection that its sender opens: a round trip until it is open, and one way for its data.
    let one = account("[[flow]]\nbytes = \"1kB\"\n");
    assert!((one.lost_to(Cause::Handshake) - 2.0 / 3.0).abs() < 0.02 && (one.lost_to(Cause::Distance) - 1.0 / 3.0).abs() < 0.02, "{one}");
    // A page of one object: opening, a request and its service, and the response.
    let text = "[[page]]\nservice = \"200ms\"\n[[page.object]]\nsize = \"1kB\"\n";
    let page = account(text);
    let is = |cause, seconds: f64| assert!((page.lost_to(cause) - seconds / 0.6).abs() < 0.03, "{page}");
    is(Cause::Handshake, 0.2);
    is(Cause::Sender, 0.2);
    is(Cause::Distance, 0.2);
}

#[test]
fn flows_that_share_a_link_lose_it_to_each_other() {
    let outcome =
        run("[control]\nsender = \"cubic\"\n[[link]]\nrate = \"20Mbit\"\ndelay = \"10ms\"\n[[flow]]\ncount = 4\nbytes = \"5MB\"\n");
    for flow in &outcome.flows {
        let account = flow.account.as_ref().unwrap();
        mostly(account, Cause::OtherTraffic, 0.5);
        assert!((account.used.unwrap() - flow.goodput_bps / (20e6 * account::PAYLOAD)).abs() < 0.01, "{account}");
    }
    assert!(outcome.account.unwrap().used.unwrap() > 0.9);
}
