//! The tables of the terminal as they look.

use crate::{PlainTable, accounts_table, links_table, samples, table};
use account::{AccountShares, Cause, Lost};
use insta::assert_snapshot;
use outcome::{FlowOutcome, Outcome, PageOutcome, TimePercentiles, add_ci95};

#[test]
fn the_four_cases_of_a_demonstration() {
    assert_snapshot!(table(&samples::demo(), None), @r"
    ────────────────────────────────────────────────────────────────────────────────────────────────────────────
     case               done in  goodput  utilization  retransmits      proxy held                 phases  valid
                              s   Mbit/s            %               mean / max, MB  free/starv./backp., %
    ────────────────────────────────────────────────────────────────────────────────────────────────────────────
     end-to-end cubic      38.4     5.20         53.9          212               –                      –  ✓
     split cubic/cubic     24.2     8.26         85.6          148   0.127 / 0.410            72 / 4 / 24  ✓
     end-to-end bbr        23.5     8.50         88.1          631               –                      –  ✓
     split cubic/bbr       21.9     9.13         94.6          574    0.384 / 1.24            72 / 4 / 24  ✓
    ────────────────────────────────────────────────────────────────────────────────────────────────────────────
    ");
}

#[test]
fn links_as_configured_and_as_delivered() {
    assert_snapshot!(links_table(&samples::demo()[..2], None), @r"
    ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
     case               link  rate asked  delivered  delay asked  delay delivered  late, p99  loss asked  loss seen  queue drops  wait, p95  queue, max
                                  Mbit/s     Mbit/s           ms               ms         µs           %          %                      ms          kB
    ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
     end-to-end cubic      1        1000          –         5.00             5.04       90.0           –          0            0       4.00        45.0
     end-to-end cubic      2        10.0       9.99          400              400       90.0       0.100      0.104          212       4.00        1000
     split cubic/cubic     1        1000          –         5.00             5.04       90.0           –          0            0       4.00        45.0
     split cubic/cubic     2        10.0       9.99          400              400       90.0       0.100      0.104          148       4.00        1000
    ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
    ");
    assert_eq!(links_table(&[], None), "");
}

#[test]
fn what_is_lost_is_told_with_what_would_make_it_less() {
    let mut outcomes = samples::demo();
    let lost = |parts: &[(Cause, f64)]| parts.iter().map(|(to, share)| Lost { to: *to, share: *share }).collect();
    outcomes[0].account = Some(AccountShares { used: Some(0.124), lost: lost(&[(Cause::Loss, 0.6), (Cause::Handshake, 0.276)]) });
    outcomes[1].account = Some(AccountShares { used: Some(0.5), lost: lost(&[(Cause::ReceiverWindow, 0.5)]) });
    assert_snapshot!(accounts_table(&outcomes[..2], Some(80)), @r"
    ────────────────────────────────────────────────────────────────────────────────
     case               used of the link  lost to loss        lost to the    lost to
                                       %             %  receiver's window  handshake
                                                                        %          %
    ────────────────────────────────────────────────────────────────────────────────
     end-to-end cubic                 12            60                  0         28
     split cubic/cubic                50             0                 50          0
    ────────────────────────────────────────────────────────────────────────────────
    Against handshake: persistent connections, TCP Fast Open, or a bond, which opens
    its connections in advance.
    Against loss: a controller that does not take losses for congestion (share, bbr)
    at the sender of the lossy leg.
    Against the receiver's window: larger receive buffers of the receiving host
    (net.ipv4.tcp_rmem), or a proxy beside it; no sender can cure it.
    ");
    assert_eq!(accounts_table(&samples::demo(), None), "");
}

#[test]
fn seeds_are_combined() {
    let mut outcomes = Vec::new();
    for seed in 1..=5 {
        for mut outcome in samples::demo().drain(..2) {
            outcome.seed = seed;
            outcome.goodput_bps *= 1.0 + 0.01 * seed as f64;
            outcome.flows[0].end_s = outcome.flows[0].end_s.map(|end| end - 0.3 * seed as f64);
            outcome.flows[0].legs[0].retransmits += seed % 2;
            outcomes.push(outcome);
        }
    }
    add_ci95(&mut outcomes);
    assert_snapshot!(table(&outcomes, None), @r"
    ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────
     case                  done in      goodput  utilization  retransmits      proxy held                 phases  valid
                                 s       Mbit/s            %               mean / max, kB  free/starv./backp., %
    ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────
     end-to-end cubic   37.5 ± 0.6  5.36 ± 0.10   53.9 ± 0.0          213               –                      –  ✓
     split cubic/cubic  23.3 ± 0.6  8.51 ± 0.16   85.6 ± 0.0          149       127 / 410            72 / 4 / 24  ✓
    ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────
    Means over 5 seeds; ± is half the width of the 95 % interval of the mean.
    ");
}

#[test]
fn the_reason_why_an_outcome_is_not_valid_comes_once() {
    let mut outcomes = samples::demo();
    let late = "link 2 handed packets over 9.2 ms late (99th percentile)";
    for outcome in &mut outcomes[..2] {
        outcome.valid = false;
        outcome.warnings = vec![late.into()];
    }
    outcomes[2].valid = false;
    outcomes[3].warnings = vec!["the kernel has no bbr: ours was taken".into(), "two\nlines \u{1b}[31m".into()];
    outcomes.push(Outcome { seed: 2, valid: true, warnings: Vec::new(), ..outcomes[0].clone() });
    assert_snapshot!(table(&outcomes, None), @r"
    ───────────────────────────────────────────────────────────────────────────────────────────────────────────────
     case               done in  goodput  utilization  retransmits      proxy held                 phases  valid
                              s   Mbit/s            %               mean / max, MB  free/starv./backp., %
    ───────────────────────────────────────────────────────────────────────────────────────────────────────────────
     end-to-end cubic      38.4     5.20         53.9          212               –                      –  ✗ 1 of 2
     split cubic/cubic     24.2     8.26         85.6          148   0.127 / 0.410            72 / 4 / 24  ✗
     end-to-end bbr        23.5     8.50         88.1          631               –                      –  ✗
     split cubic/bbr       21.9     9.13         94.6          574    0.384 / 1.24            72 / 4 / 24  ✓
    ───────────────────────────────────────────────────────────────────────────────────────────────────────────────
    ✗ end-to-end cubic, split cubic/cubic: link 2 handed packets over 9.2 ms late (99th percentile)
    ✗ end-to-end bbr: not valid, and the engine did not say why
    ! split cubic/bbr: the kernel has no bbr: ours was taken
    ! split cubic/bbr: two lines �[31m
    ");
}

#[test]
fn flows_that_did_not_end_are_counted() {
    let mut outcomes: Vec<Outcome> = samples::demo().drain(..2).collect();
    for outcome in &mut outcomes {
        let flow = |id| FlowOutcome { id, start_s: f64::from(id), ..outcome.flows[0].clone() };
        outcome.flows = (0..5).map(flow).collect();
    }
    for flow in &mut outcomes[1].flows[3..] {
        flow.end_s = None;
        flow.error = Some("connect: connection refused".into());
    }
    assert_snapshot!(table(&outcomes, None), @r"
    ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
     case                         done in  mean flow  goodput  utilization  retransmits      proxy held                 phases  valid
                                        s          s   Mbit/s            %               mean / max, kB  free/starv./backp., %
    ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
     end-to-end cubic                38.4       36.4     5.20         53.9         1060               –                      –  ✓
     split cubic/cubic  not done (2 of 5)          –     8.26         85.6          740       127 / 410            72 / 4 / 24  ✓
    ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
    ! split cubic/cubic: 2 flows failed: connect: connection refused
    ");
}

#[test]
fn engines_and_parallel_networks_get_their_columns() {
    let answer = |engine: &str, sojourn: [f64; 3]| Outcome {
        scenario: "two-wlans".into(),
        engine: engine.into(),
        valid: true,
        goodput_bps: 5.1e6,
        utilization: 0.48,
        sojourn_s: sojourn.map(Some).into(),
        ..Outcome::default()
    };
    assert_snapshot!(table(&[answer("theory", [2.41, 4.43, 4.97]), answer("sim", [2.44, 4.4, 5.01])], None), @r"
    ─────────────────────────────────────────────────────────────
     engine  foreground   background  goodput  utilization  valid
                      s            s   Mbit/s            %
    ─────────────────────────────────────────────────────────────
     theory        2.41  4.43 / 4.97     5.10         48.0  ✓
     sim           2.44  4.40 / 5.01     5.10         48.0  ✓
    ─────────────────────────────────────────────────────────────
    ");
    assert_eq!(table(&[], None), "");
    let mut own = answer("sim", [2.44, 4.4, 5.01]);
    own.sojourn_s[1] = None;
    own.ci95.insert("sojourn_0_s".into(), 0.052);
    let table = table(&[own], None);
    assert!(table.contains("2.44 ± 0.05") && table.contains("– / 5.01"), "{table}");
    assert!(table.ends_with("± is half the width of the 95 % interval that the engine itself gives its mean.\n"), "{table}");
}

#[test]
fn web_traffic_and_reverse_flows_get_their_columns() {
    let times = |p50: f64| TimePercentiles { count: 30, mean: p50, p50, p95: 2.0 * p50, p99: 3.0 * p50, max: 4.0 * p50 };
    let answer = |case: &str, p50: f64| Outcome {
        scenario: "web".into(),
        case: case.into(),
        engine: "sim".into(),
        valid: true,
        utilization: 0.12,
        page_load_s: Some(times(p50)),
        response_s: Some(times(p50 / 10.0)),
        pages: vec![PageOutcome::default()],
        ..Outcome::default()
    };
    let alone = table(&[answer("end to end", 6.0), answer("split", 3.5)], None);
    let all = ["page load", "response", "p50 / p95 / p99, s", "6.00 / 12.0 / 18.0", "3.50 / 7.00 / 10.5", "0.600 / 1.20 / 1.80"];
    assert!(all.iter().all(|text| alone.contains(text)) && !alone.contains("goodput"), "{alone}");
    // A flow beside the page has a goodput, and the page has none.
    let mut beside = answer("split", 3.5);
    let flow = |id, reverse, goodput_bps| FlowOutcome { id, reverse, goodput_bps, end_s: Some(9.0), ..FlowOutcome::default() };
    beside.flows = vec![flow(0, false, 4e6), flow(1, true, 3e6)];
    beside.cross_flows = vec![flow(2, false, 1e6)];
    beside.goodput_bps = 7e6;
    let both = table(&[answer("page alone", 3.5), beside], None);
    let all = ["goodput", "7.00", "reverse flows", "3.00", "cross flows", "1.00"];
    assert!(all.iter().all(|text| both.contains(text)), "{both}");
}

#[test]
fn a_table_of_markdown_keeps_its_columns() {
    let table = PlainTable::new(&["what", "n"], vec![vec!["a|b".to_owned(), "1".to_owned()]]);
    assert_eq!(table.markdown(), "| what | n |\n| --- | --- |\n| a\\|b | 1 |\n");
}

/// A sweep over one key, and flows whose names are long.
fn sweep() -> Vec<Outcome> {
    let mut outcomes = samples::demo();
    for (outcome, loss) in outcomes.iter_mut().zip(["0", "0.001", "0.01", "0.1"]) {
        outcome.case = format!("link.2.loss.per_packet={loss}");
    }
    outcomes
}

#[test]
fn a_sweep_of_one_key_has_a_column_for_it() {
    assert_snapshot!(table(&sweep(), Some(120)), @r"
    ─────────────────────────────────────────────────────────────────────────────────────────────────────
     per_packet  done in  goodput  utilization  retransmits      proxy held                 phases  valid
                       s   Mbit/s            %               mean / max, MB  free/starv./backp., %
    ─────────────────────────────────────────────────────────────────────────────────────────────────────
     0              38.4     5.20         53.9          212               –                      –  ✓
     0.001          24.2     8.26         85.6          148   0.127 / 0.410            72 / 4 / 24  ✓
     0.01           23.5     8.50         88.1          631               –                      –  ✓
     0.1            21.9     9.13         94.6          574    0.384 / 1.24            72 / 4 / 24  ✓
    ─────────────────────────────────────────────────────────────────────────────────────────────────────
    ");
}

#[test]
fn the_demonstration_fits_80_and_120_characters() {
    assert_snapshot!(table(&samples::demo(), Some(80)), @r"
    ────────────────────────────────────────────────────────────────────────────────
     case           done in  goodput  utilization  retransmits     proxy held  valid
                          s   Mbit/s            %                 mean / max,
                                                                           MB
    ────────────────────────────────────────────────────────────────────────────────
     end-to-end        38.4     5.20         53.9          212              –  ✓
     cubic
     split             24.2     8.26         85.6          148  0.127 / 0.410  ✓
     cubic/cubic
     end-to-end        23.5     8.50         88.1          631              –  ✓
     bbr
     split             21.9     9.13         94.6          574   0.384 / 1.24  ✓
     cubic/bbr
    ────────────────────────────────────────────────────────────────────────────────
    Left out to fit the width: phases (free/starv./backp., %).
    ");
    assert_snapshot!(table(&samples::demo(), Some(120)), @r"
    ────────────────────────────────────────────────────────────────────────────────────────────────────────────
     case               done in  goodput  utilization  retransmits      proxy held                 phases  valid
                              s   Mbit/s            %               mean / max, MB  free/starv./backp., %
    ────────────────────────────────────────────────────────────────────────────────────────────────────────────
     end-to-end cubic      38.4     5.20         53.9          212               –                      –  ✓
     split cubic/cubic     24.2     8.26         85.6          148   0.127 / 0.410            72 / 4 / 24  ✓
     end-to-end bbr        23.5     8.50         88.1          631               –                      –  ✓
     split cubic/bbr       21.9     9.13         94.6          574    0.384 / 1.24            72 / 4 / 24  ✓
    ────────────────────────────────────────────────────────────────────────────────────────────────────────────
    ");
    assert_snapshot!(links_table(&samples::demo()[..2], Some(80)), @r"
    ────────────────────────────────────────────────────────────────────────────────
     case         link    rate  delivered      delay    loss   queue   wait,  queue,
                         asked     Mbit/s  delivered    seen   drops     p95     max
                        Mbit/s                    ms       %              ms      kB
    ────────────────────────────────────────────────────────────────────────────────
     end-to-end      1    1000          –       5.04       0       0    4.00    45.0
     cubic
     end-to-end      2    10.0       9.99        400   0.104     212    4.00    1000
     cubic
     split           1    1000          –       5.04       0       0    4.00    45.0
     cubic/cubic
     split           2    10.0       9.99        400   0.104     148    4.00    1000
     cubic/cubic
    ────────────────────────────────────────────────────────────────────────────────
    Left out to fit the width: delay asked (ms); late, p99 (µs); loss asked (%).
    ");
    assert_snapshot!(links_table(&samples::demo()[..2], Some(120)), @r"
    ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
     case               link  rate asked  delivered  delay asked  delay delivered  late,   loss   loss  queue  wait,  queue,
                                  Mbit/s     Mbit/s           ms               ms    p99  asked   seen  drops    p95     max
                                                                                      µs      %      %            ms      kB
    ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
     end-to-end cubic      1        1000          –         5.00             5.04   90.0      –      0      0   4.00    45.0
     end-to-end cubic      2        10.0       9.99          400              400   90.0  0.100  0.104    212   4.00    1000
     split cubic/cubic     1        1000          –         5.00             5.04   90.0      –      0      0   4.00    45.0
     split cubic/cubic     2        10.0       9.99          400              400   90.0  0.100  0.104    148   4.00    1000
    ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
    ");
}
