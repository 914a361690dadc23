//! Simulated measurements of many paths, and the verdicts about them.

use super::*;
use crate::traceroute::{PathRoundTrip, RouterHop};
use detect::{SplitVerdict, weigh};
use proptest::prelude::*;

/// A path of `length` hops on which every router answers. The round trip takes 20 ms per hop.
fn way(length: u8) -> NetworkPath {
    let hops = (1..length).map(|ttl| RouterHop { ttl, from: Some([10, 0, 0, ttl].into()), answers: 3 }).collect();
    let round_trip = PathRoundTrip { by: Baseline::Icmp, least_s: 0.02 * f64::from(length), of: 8 };
    NetworkPath { hops, reached: Some(length), round_trip: Some(round_trip), ttl: Some(64 - length + 1), missing: Vec::new() }
}

/// A port that answers from `at` hops away, on a host `length` hops away, with the given outcome.
fn port(number: u16, at: u8, length: u8, answer: SynOutcome) -> PortProbe {
    let after = |hops: u8| 0.02 * f64::from(hops);
    let short = |ttl: u8| {
        let (answer, from) = if ttl >= at { (answer, None) } else { (SynOutcome::Exceeded, Some([10, 0, 0, ttl].into())) };
        SynProbe { ttl: Some(ttl), answer, after_s: after(ttl.min(at)), from }
    };
    let data = |ttl: u8| match ttl >= at {
        true => DataProbe { ttl, acked_s: Some(after(at)), sent: 1, alive: None },
        false => DataProbe { ttl, acked_s: None, sent: 4, alive: Some(true) },
    };
    let accepted = answer == SynOutcome::Accepted;
    PortProbe {
        port: number,
        plain: vec![SynProbe { ttl: None, answer, after_s: after(at), from: None }; 4],
        short: (1..=length).map(short).collect(),
        data: (1..length).filter(|_| accepted).map(data).collect(),
        first_byte_s: accepted.then_some(after(length)),
        ttl: Some(64 - at + 1),
    }
}

fn verdict(seen: &PortProbe, way: &NetworkPath, elsewhere: &[PortProbe]) -> (SplitVerdict, Vec<Evidence>) {
    let mut evidence = evidence(seen, way, elsewhere);
    (weigh(&mut evidence).0, evidence)
}

fn closed(length: u8) -> Vec<PortProbe> {
    [23457, 27891, 31283].map(|number| port(number, length, length, SynOutcome::Refused)).to_vec()
}

proptest! {
    /// A node that answers before the host is found at its place. Without one there is no false
    /// alarm.
    #[test]
    fn splits_are_located(length in 2u8..30, at in 1u8..30) {
        let at = at.min(length);
        let (seen, way) = (port(80, at, length, SynOutcome::Accepted), way(length));
        let (verdict, evidence) = verdict(&seen, &way, &closed(length));
        let found = (verdict, place(&seen, &way, &closed(length)).map(|place| place.hop));
        prop_assert_eq!(found, if at < length { (SplitVerdict::SplitTcp, Some(at)) } else { (SplitVerdict::EndToEnd, None) }, "{:#?}", evidence);
    }

    /// Whatever answers are lost, the verdict is never the opposite of the truth.
    #[test]
    fn lost_answers_cause_no_wrong_verdict(
        length in 2u8..12, at in 1u8..12, silent in prop::collection::vec(any::<bool>(), 40), reached in any::<bool>(), once in any::<bool>(),
        icmp in 1.0f64..20.0, thinks in 0.0f64..2.0,
    ) {
        let at = at.min(length);
        let (mut seen, mut way) = (port(80, at, length, SynOutcome::Accepted), way(length));
        let mut lost = silent.iter().copied().cycle();
        way.hops.retain(|_| lost.next() != Some(true));
        way.hops.iter_mut().for_each(|hop| hop.answers = if once { 1 } else { hop.answers });
        way.reached = way.reached.filter(|_| reached);
        // A host that delays ICMP, and a slow server.
        way.round_trip = way.round_trip.map(|trip| PathRoundTrip { least_s: trip.least_s * icmp, ..trip });
        seen.first_byte_s = seen.first_byte_s.map(|after| after + thinks);
        for short in &mut seen.short {
            short.answer = if lost.next() == Some(true) { SynOutcome::Silent } else { short.answer };
        }
        for data in seen.data.iter_mut().filter(|data| data.acked_s.is_none()) {
            data.alive = Some(lost.next() != Some(true));
        }
        let (verdict, evidence) = verdict(&seen, &way, &[]);
        let wrong = if at < length { SplitVerdict::EndToEnd } else { SplitVerdict::SplitTcp };
        prop_assert_ne!(verdict, wrong, "{:#?}", evidence);
    }
}

#[test]
fn a_syn_flood_guard_is_no_splitter() {
    // It answers SYNs and lets data pass.
    let (mut seen, way) = (port(443, 3, 9, SynOutcome::Accepted), way(9));
    for data in &mut seen.data {
        *data = DataProbe { acked_s: None, sent: 4, alive: Some(true), ..*data };
    }
    seen.first_byte_s = None;
    let (said, evidence) = verdict(&seen, &way, &closed(9));
    assert_eq!(said, SplitVerdict::CannotTell, "{evidence:#?}");
}

#[test]
fn evidence_from_a_syn_flood_guard_is_weak() {
    // The host itself answers nothing. Its distance follows only from other ports and from routers.
    let mut far = way(9);
    (far.reached, far.round_trip, far.ttl) = (None, None, None);
    let open: Vec<PortProbe> = [1000, 2000, 3000].map(|number| port(number, 3, 9, SynOutcome::Accepted)).to_vec();
    for elsewhere in [closed(9), open] {
        let mut seen = PortProbe { first_byte_s: None, ..port(443, 3, 9, SynOutcome::Accepted) };
        let splitter = verdict(&seen, &far, &elsewhere);
        assert_eq!(splitter.0, SplitVerdict::SplitTcp, "{:#?}", splitter.1);
        for data in &mut seen.data {
            *data = DataProbe { acked_s: None, sent: 4, alive: Some(true), ..*data };
        }
        let (said, evidence) = verdict(&seen, &far, &elsewhere);
        assert_eq!(said, SplitVerdict::CannotTell, "{evidence:#?}");
        assert!(evidence.iter().any(|piece| piece.method == Method::ShortSyn && piece.says == Indication::Split), "{evidence:#?}");
        let strong = evidence.iter().find(|piece| piece.says != Indication::Nothing && piece.strength > Strength::Weak);
        assert!(strong.is_none(), "{strong:#?}");
    }
}

#[test]
fn without_routers_another_port_shows_the_split() {
    let silent = NetworkPath::default();
    let seen = PortProbe { data: Vec::new(), first_byte_s: None, ..port(80, 2, 9, SynOutcome::Accepted) };
    let (said, evidence) = verdict(&seen, &silent, &closed(9));
    // By distance, connect time and TTL.
    assert_eq!(said, SplitVerdict::SplitTcp, "{evidence:#?}");
    let (said, _) = verdict(&PortProbe { data: Vec::new(), ..port(80, 9, 9, SynOutcome::Accepted) }, &silent, &closed(9));
    assert_eq!(said, SplitVerdict::CannotTell);
}

/// A path on which only the first router answers, because ICMP and UDP are filtered.
fn filtered() -> NetworkPath {
    let hops = vec![RouterHop { ttl: 1, from: Some([10, 0, 0, 1].into()), answers: 3 }];
    NetworkPath { hops, ..NetworkPath::default() }
}

/// A port on a host three hops away that is answered from two, 20 ms sooner.
fn one_hop_nearer() -> PortProbe {
    PortProbe { first_byte_s: None, ..port(80, 2, 3, SynOutcome::Accepted) }
}

#[test]
fn with_filtered_icmp_another_port_shows_the_split_and_its_place() {
    for way in [filtered(), NetworkPath::default()] {
        let seen = one_hop_nearer();
        let (said, evidence) = verdict(&seen, &way, &closed(3));
        assert_eq!(said, SplitVerdict::SplitTcp, "{evidence:#?}");
        assert_eq!(place(&seen, &way, &closed(3)).map(|place| place.hop), Some(2));
        let piece = evidence.iter().find(|piece| piece.method == Method::PortDependence).unwrap();
        assert!(piece.text.contains("from 2 hops away and 20 ms sooner") && piece.text.contains("looks the same"), "{}", piece.text);
    }
    // Without data that were acknowledged, the distance alone does not decide.
    let seen = PortProbe { data: Vec::new(), ..one_hop_nearer() };
    assert_eq!(verdict(&seen, &filtered(), &closed(3)).0, SplitVerdict::CannotTell);
}

#[test]
fn innocent_causes_of_port_dependence_are_no_splits() {
    let way = filtered();
    let is_no_split = |seen: &PortProbe, elsewhere: &[PortProbe]| {
        let (said, evidence) = verdict(seen, &way, elsewhere);
        assert_eq!(said, SplitVerdict::CannotTell, "{evidence:#?}");
        assert!(evidence.iter().all(|piece| piece.says == Indication::Nothing || piece.strength == Strength::Weak), "{evidence:#?}");
    };
    // A plain path; a port that is forwarded to a server behind the host; a firewall that refuses
    // the other ports on the host's behalf.
    let plain = |at: u8| PortProbe { first_byte_s: None, ..port(80, at, at, SynOutcome::Accepted) };
    is_no_split(&plain(3), &closed(3));
    is_no_split(&plain(4), &closed(3));
    is_no_split(&plain(3), &closed(2));
    // A SYN proxy: it answers the SYN and leaves the data to the host.
    let mut guarded = one_hop_nearer();
    for data in &mut guarded.data {
        *data = DataProbe { acked_s: None, sent: 4, alive: Some(true), ..*data };
    }
    is_no_split(&guarded, &closed(3));
    // Multipath routing: of several SYNs with the same TTL only some arrive.
    let mut multipath = one_hop_nearer();
    multipath.short.push(SynProbe { ttl: Some(2), answer: SynOutcome::Silent, after_s: 1.3, from: None });
    is_no_split(&multipath, &closed(3));
    // A shorter path to the same machine: its answers travel as far as those of other ports.
    is_no_split(&PortProbe { ttl: Some(64 - 3 + 1), ..one_hop_nearer() }, &closed(3));
    // One port that refuses, or none, shows too little.
    is_no_split(&one_hop_nearer(), &closed(3)[..1]);
    is_no_split(&one_hop_nearer(), &[]);
}

#[test]
fn open_unused_ports_indicate_a_splitter() {
    let open: Vec<PortProbe> = [1000, 2000, 3000].map(|number| port(number, 1, 3, SynOutcome::Accepted)).to_vec();
    let found = unused_ports(&open).unwrap();
    assert_eq!((found.says, found.strength, found.value), (Indication::Split, Strength::Moderate, 3.0));
    assert_eq!(unused_ports(&open[..1]).unwrap().says, Indication::Nothing);
    assert_eq!(unused_ports(&closed(3)).unwrap().says, Indication::Nothing);
    assert_eq!(unused_ports(&[]), None);
}
