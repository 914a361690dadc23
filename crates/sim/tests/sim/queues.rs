//! TCP through queues under active management.

use crate::common::{play, run};
use outcome::Outcome;
use sim::TcpSettings;

/// Two flows of CUBIC over 20 Mbit/s and 40 ms, with this queue.
fn through(queue: &str) -> Outcome {
    run(&format!("duration = \"60s\"\n[[link]]\nrate = \"20Mbit\"\ndelay = \"20ms\"\nqueue = {queue}\n[[flow]]\ncount = 2\n"))
}

fn queueing_ms(outcome: &Outcome) -> f64 {
    outcome.flows.iter().map(|flow| flow.legs[0].mean_rtt_s).sum::<f64>() / outcome.flows.len() as f64 * 1e3 - 40.0
}

#[test]
fn managed_queues_keep_their_target_and_the_link_busy() {
    let droptail = queueing_ms(&through("{ limit = \"1000pkt\" }"));
    assert!(droptail > 200.0, "{droptail}");
    for (queue, least_ms, most_ms) in [
        ("{ kind = \"codel\" }", 1.0, 12.0),
        ("{ kind = \"fq_codel\", ecn = false }", 1.0, 12.0),
        ("{ kind = \"pie\" }", 5.0, 22.0),
        ("{ kind = \"dualpi2\", ecn = false }", 5.0, 22.0),
        ("{ kind = \"codel\", target = \"20ms\" }", 12.0, 35.0),
    ] {
        let outcome = through(queue);
        let queueing = queueing_ms(&outcome);
        assert!((least_ms..most_ms).contains(&queueing), "{queue}: {queueing} ms");
        assert!(outcome.utilization > 0.93, "{queue}: {}", outcome.utilization);
        assert!(outcome.links[0].queue_drops > 0 && outcome.flows.iter().all(|flow| flow.legs[0].retransmits > 0), "{queue}");
    }
}

#[test]
fn marks_take_the_place_of_drops() {
    for kind in ["codel", "fq_codel", "pie", "dualpi2"] {
        let [marks, drops] = [true, false].map(|ecn| through(&format!("{{ kind = \"{kind}\", ecn = {ecn} }}")));
        // In slow start the queue may fill faster than marks slow it down: PIE then drops.
        let [with, without] = [&marks, &drops].map(|outcome| outcome.links[0].queue_drops);
        assert!(with < without / 2, "{kind}: {with} {without}");
        assert!(marks.utilization > 0.93 && queueing_ms(&marks) < 22.0, "{kind}: {}", queueing_ms(&marks));
    }
}

#[test]
fn fq_codel_protects_a_sparse_flow_from_a_greedy_one() {
    let text = |queue: &str| {
        format!(
            "duration = \"30s\"\n[[link]]\nrate = \"10Mbit\"\ndelay = \"10ms\"\nqueue = {queue}\n[[flow]]\n[[flow]]\nstart = \"10s\"\n\
             offers = {{ bytes = \"200B\", every = \"50ms\" }}\n"
        )
    };
    let sparse_ms = |queue: &str| run(&text(queue)).flows[1].legs[0].mean_rtt_s * 1e3 - 20.0;
    let (fifo, fair) = (sparse_ms("\"200pkt\""), sparse_ms("{ kind = \"fq_codel\" }"));
    assert!(fifo > 50.0 && fair < 4.0, "{fifo} {fair}");
}

#[test]
fn a_managed_queue_conserves_packets_over_a_trace_as_well() {
    for kind in ["codel", "fq_codel", "pie", "dualpi2", "ecn"] {
        let text = format!(
            "duration = \"20s\"\n[[link]]\nrate = \"5Mbit\"\ndelay = \"10ms\"\nqueue = {{ kind = \"{kind}\", limit = \"50pkt\" }}\n\
             changes = [{{ at = \"5s\", rate = \"1Mbit\" }}, {{ at = \"10s\", rate = \"8Mbit\" }}]\n[[flow]]\ncount = 3\nbytes = \"1MB\"\n"
        );
        let (outcome, _) = play(&text, 3, TcpSettings::default());
        assert!(outcome.flows.iter().all(|flow| flow.bytes == 1_000_000 && flow.end_s.is_some()), "{kind}");
        assert!(outcome.utilization <= 1.0 + 1e-9, "{kind}");
    }
}
