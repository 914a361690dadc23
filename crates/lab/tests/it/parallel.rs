//! Networks in parallel that are held up for other programs, as `tandem lab` does.

use crate::{ALONE, common};
use lab::{Host, Lab, LabError, NetworkOptions, ParallelNetworks, SeriesNetwork};
use outcome::Engine;
use scenario::{Scenario, ScenarioFile};
use std::{
    io::{self, BufRead, Cursor, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, PoisonError},
    thread,
};

const NETWORKS: &str = "name = \"two\"\n[[network]]\nrate = \"50Mbit\"\ndelay = \"2ms\"\n[[network]]\nrate = \"20Mbit\"\ndelay = \"10ms\"\n\
                        [[flow]]\nbytes = \"1MB\"\n[bond]\nscheduler = \"score\"\n";
const LINK: &str = "name = \"one\"\n[[link]]\nrate = \"50Mbit\"\ndelay = \"2ms\"\n[[flow]]\nbytes = \"1MB\"\n";
const PAYLOAD: usize = 200_000;

fn scenario(text: &str) -> Scenario {
    ScenarioFile::parse(text, "test").unwrap().variants(&[]).unwrap().remove(0).scenario
}

/// Sends a payload from one host to another, and a byte back. `listen` is where the receiving
/// program listens, `connect` where the sending one connects.
fn transfer(from: &Host, connect: SocketAddr, to: &Host, listen: SocketAddr) {
    let listener = to.enter(|| TcpListener::bind(listen)).unwrap().unwrap();
    let sent: Vec<u8> = (0..PAYLOAD).map(|at| ((at * 167) >> 3) as u8).collect();
    let receiving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        stream.write_all(&[7]).unwrap();
        received
    });
    let mut stream = from.enter(|| TcpStream::connect(connect)).unwrap().unwrap();
    stream.write_all(&sent).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, [7]);
    assert!(receiving.join().unwrap() == sent, "the payload was changed");
}

#[test]
fn networks_in_parallel_and_their_bond_carry_data_between_the_hosts() {
    if common::skip("networks_in_parallel_and_their_bond_carry_data_between_the_hosts") {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let options = NetworkOptions { published: true, ..NetworkOptions::default() };
    let networks = ParallelNetworks::build(&scenario(NETWORKS), 1, &options).unwrap();
    let [sender, receiver] = networks.hosts();
    assert!([sender, receiver].iter().all(|host| host.published_name().is_some()));
    let addresses = networks.receiver_addresses();
    assert_eq!(addresses.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.77.1.2", "10.77.2.2"]);
    for address in addresses {
        let at = SocketAddr::new(address, 8000);
        transfer(sender, at, receiver, at);
    }
    let bonds: Vec<_> = networks.bonds().collect();
    assert_eq!(bonds.len(), 1, "{bonds:?}");
    let bond = &bonds[0];
    assert_eq!((bond.from.name(), bond.to.name()), ("sender", "receiver"));
    transfer(bond.from, bond.entry, bond.to, bond.exit);
}

#[test]
fn only_a_bond_has_entries() {
    if common::skip("only_a_bond_has_entries") {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let single = scenario(&NETWORKS.replace("\"score\"", "\"single\""));
    let networks = ParallelNetworks::build(&single, 1, &NetworkOptions::default()).unwrap();
    assert_eq!(networks.bonds().count(), 0);
}

#[test]
fn a_network_of_the_wrong_kind_is_an_error() {
    let options = NetworkOptions::default();
    let series = SeriesNetwork::build(&scenario(NETWORKS), 1, &options, |_, _| {}).unwrap_err();
    assert!(matches!(&series, LabError::NoLinks { scenario } if scenario == "two"), "{series}");
    let parallel = ParallelNetworks::build(&scenario(LINK), 1, &options).unwrap_err();
    assert!(matches!(&parallel, LabError::NoNetworks { scenario } if scenario == "one"), "{parallel}");
}

#[test]
fn a_bond_carries_the_flow_of_a_scenario() {
    const TEST: &str = "a_bond_carries_the_flow_of_a_scenario";
    if common::skip(TEST) {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let outcome = Lab::default().run(&scenario(NETWORKS), 1, &()).unwrap();
    let flow = &outcome.flows[0];
    assert_eq!((flow.bytes, &flow.error), (1_000_000, &None), "{:?}", outcome.warnings);
    let shares: Vec<f64> = outcome.networks.iter().filter_map(|network| network.share).collect();
    assert_eq!(shares.len(), 2);
    assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{shares:?}");
}

/// A cellular network by a trace of 8.6 Mbit/s on average and a satellite one whose rate and delay
/// change within the run.
#[test]
fn a_bond_uses_a_network_with_a_trace_and_one_that_changes() {
    const TEST: &str = "a_bond_uses_a_network_with_a_trace_and_one_that_changes";
    if common::skip(TEST) {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let text = "name = \"two\"\nduration = \"4s\"\n[[network]]\ndelay = \"10ms\"\nqueue = \"100pkt\"\ntrace = { down = \"down\", up = \"up\" }\n\
                [[network]]\nrate = \"20Mbit\"\ndelay = \"10ms\"\nqueue = { limit = \"100pkt\", kind = \"fq_codel\" }\n\
                changes = [{ at = \"1s\", rate = \"10Mbit\", delay = \"25ms\" }, { at = \"1900ms\", rate = \"20Mbit\", delay = \"10ms\" }]\n\
                repeat = \"2s\"\n[[flow]]\n[bond]\nscheduler = \"score\"\n";
    let open = |name: &str| -> io::Result<Box<dyn BufRead>> {
        // 400 ms at 12 Mbit/s, 200 ms at 1.2 Mbit/s, a gap; upwards 2.4 Mbit/s.
        let times: Vec<u32> = match name {
            "down" => (1..=400).chain((410..=600).step_by(10)).chain([700]).collect(),
            _ => (5..=700).step_by(5).collect(),
        };
        let text: String = times.iter().map(|at| format!("{at}\n")).collect();
        Ok(Box::new(Cursor::new(text)))
    };
    let file = ScenarioFile::parse_with(text, "test", Arc::new(open)).unwrap();
    let scenario = file.variants(&[]).unwrap().remove(0).scenario;
    let outcome = Lab::default().run(&scenario, 1, &()).unwrap();
    if !outcome.valid {
        return testing::skipped(TEST, &format!("this machine did not keep up: {:?}", outcome.warnings));
    }
    // 421 opportunities of 1448 bytes of payload in 700 ms, and 15 Mbit/s.
    let carried = 421.0 * 1448.0 * 8.0 / 0.7 + 15e6;
    assert!(outcome.goodput_bps < 1.02 * carried && outcome.goodput_bps > 0.6 * carried, "{} of {carried}", outcome.goodput_bps);
    let used: Vec<f64> = outcome.networks.iter().map(|network| network.utilization).collect();
    assert!(used.iter().all(|used| (0.5..1.03).contains(used)), "{used:?}");
}
