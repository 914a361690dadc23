//! The cookies of TCP Fast Open (RFC 7413).
//!
//! Hosts are new in every run and have no cookie from an earlier connection. So there is one before
//! the clock starts, by the real TCP of the hosts and through the proxies, while the links are
//! bypassed: it takes no time, and the links' losses, queues and counters do not notice it. Another
//! connection shows that the cookies work.
//!
//! An opener's cookie is of the address that it dials. Behind a transparent proxy it is the
//! proxy's, which has answered in the server's name.

use crate::{LabError, host::Host, network::SeriesNetwork, workload};
use scenario::{Opens, Scenario};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::{
    io::{self, Read, Write},
    net::{IpAddr, Shutdown, SocketAddr},
    thread,
    time::{Duration, Instant},
};

/// Server port of these connections: below those of all flows.
const PORT: u16 = workload::FIRST_PORT - 1;
/// How long one of these connections may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Number of connections of which one must show that the cookies work.
const TRIES: usize = 10;
/// Counts connections with data in the SYN that the SYN-ACK acknowledged.
const ACTIVE: &str = "TCPFastOpenActive";

/// Gives a cookie to every host that dials with Fast Open in this scenario.
///
/// # Errors
/// If a connection fails, or a host's SYN carries no data though it has its cookie.
pub(crate) fn give_cookies(network: &SeriesNetwork, scenario: &Scenario) -> Result<(), LabError> {
    network.bypass_links(true);
    let given = [Opens::Sender, Opens::Receiver].into_iter().try_for_each(|opens| give(network, scenario, opens));
    network.bypass_links(false);
    given
}

/// Gives cookies for the connections that this end opens.
fn give(network: &SeriesNetwork, scenario: &Scenario, opens: Opens) -> Result<(), LabError> {
    let flows = || scenario.flows.iter().filter(|flow| flow.is_opened_from(opens));
    if flows().next().is_none() {
        return Ok(());
    }
    let (opener, server, address) = network.ends(opens);
    let opener_has = flows().any(|flow| flow.fast_open);
    let proxies = (0..scenario.splits.len()).filter(|&number| scenario.splits[number].fast_open).map(|number| network.proxy_host(number));
    let dialling: Vec<&Host> = opener_has.then_some(opener).into_iter().chain(proxies).collect();
    let count = || dialling.iter().map(|host| active(host)).collect::<Result<Vec<u64>, LabError>>();
    connect_once(network, opener, server, address, opener_has)?;
    let before = count()?;
    let mut lacking = None;
    // A proxy sends its SYN without data if the client's take more than a moment to arrive, which
    // happens on a busy machine.
    for _ in 0..TRIES {
        connect_once(network, opener, server, address, opener_has)?;
        let after = count()?;
        lacking = dialling.iter().zip(before.iter().zip(after)).find(|(_, (before, after))| *before == after).map(|(host, _)| host.name());
        if lacking.is_none() {
            return Ok(());
        }
    }
    lacking.map_or(Ok(()), |host| {
        let why = "its SYN carries no data, though it was given a Fast Open cookie: this kernel lacks TCP Fast Open; \
                   leave fast_open out, or use the simulator: --on sim";
        Err(LabError::Configure { host: host.into(), why: why.into() })
    })
}

/// Number of connections of `host` so far with data in the SYN.
fn active(host: &Host) -> Result<u64, LabError> {
    let read = host.enter(|| intercept::tcp_counter(ACTIVE))?;
    Ok(read.map_err(|why| LabError::System { what: "read /proc/net/netstat", why })?.unwrap_or(0))
}

/// Makes a connection that carries one byte, and waits until nothing of it is left.
fn connect_once(network: &SeriesNetwork, opener: &Host, server: &Host, address: IpAddr, fast_open: bool) -> Result<(), LabError> {
    let failed = |why| LabError::System { what: "make the connection that gets a Fast Open cookie", why };
    let to = SockAddr::from(SocketAddr::new(address, PORT));
    let listener = server.enter(|| {
        let listener = socket()?;
        listener.set_reuse_address(true)?;
        listener.bind(&to)?;
        listener.listen(1)?;
        Ok(listener)
    })?;
    let listener = listener.map_err(failed)?;
    let client = opener.enter(|| {
        let client = socket()?;
        if fast_open {
            intercept::sys::set_fast_open_connect(&client)?;
        }
        client.connect(&to)?;
        (&client).write_all(b"?")?;
        Ok(client)
    })?;
    client.and_then(|client| end(&listener, &client)).map_err(failed)?;
    let begun = Instant::now();
    while network.proxy_flows().iter().any(|flows| !flows.is_empty()) && begun.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// A socket with a timeout for blocking calls.
fn socket() -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), Some(Protocol::TCP))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// Receives the byte that `client` has sent, and closes the connection.
fn end(listener: &Socket, mut client: &Socket) -> io::Result<()> {
    let (accepted, _) = listener.accept()?;
    accepted.set_read_timeout(Some(PATIENCE))?;
    (&accepted).read_exact(&mut [0])?;
    client.shutdown(Shutdown::Write)?;
    (&accepted).read_to_end(&mut Vec::new())?;
    drop(accepted);
    client.read_to_end(&mut Vec::new()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        network::NetworkOptions,
        run_context::RunContext,
        workload::{FlowGroups, Workload},
    };
    use scenario::ScenarioFile;
    use std::sync::Arc;

    /// The round trips of the two legs are 20 and 80 ms.
    const LINKS: &str = "name = \"x\"\n[[link]]\nrate = \"100Mbit\"\ndelay = \"10ms\"\n[[link]]\nrate = \"12Mbit\"\ndelay = \"40ms\"\n";

    fn variant(text: &str) -> Scenario {
        ScenarioFile::parse(text, "test").unwrap().variants(&[]).unwrap().remove(0).scenario
    }

    /// The time from the connect to the first byte, seconds, and the SYNs with data that were sent
    /// and received in it by the opener, the proxy and the server.
    fn first_byte(text: &str) -> (f64, Vec<[u64; 2]>) {
        let scenario = variant(text);
        let network = SeriesNetwork::build(&scenario, 1, &NetworkOptions::default(), |_, _| {}).unwrap();
        let used = crate::network::uses_fast_open(&scenario);
        if used {
            give_cookies(&network, &scenario).unwrap();
        }
        let counts = || -> Vec<[u64; 2]> {
            let of = |host: &Host, name| host.enter(|| intercept::tcp_counter(name)).unwrap().unwrap().unwrap();
            network.hosts().iter().map(|host| [ACTIVE, "TCPFastOpenPassive"].map(|name| of(host, name))).collect()
        };
        let before = counts();
        let context = Arc::new(RunContext::new(1, used));
        let flows = FlowGroups { specs: &scenario.flow_specs(1), controls: &["reno".into()] };
        let mut workload = Workload::start(&network, context.clone(), [flows, FlowGroups { specs: &[], controls: &[] }], &[]).unwrap();
        let flow = workload.flows[0].clone();
        let begun = Instant::now();
        while flow.read.load(std::sync::atomic::Ordering::Relaxed) == 0 && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_micros(200));
        }
        let took = context.now() - flow.result.lock().unwrap().started.expect("it has connected");
        // The opener counts its SYN when the SYN-ACK arrives.
        while !workload.is_done() && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
        let seen = counts().iter().zip(before).map(|(after, before)| [after[0] - before[0], after[1] - before[1]]).collect();
        workload.finish();
        (took, seen)
    }

    #[test]
    fn a_syn_carries_data_and_the_first_byte_comes_one_rtt_earlier() {
        if let Err(error) = Host::new("probe") {
            testing::skipped("a_syn_carries_data_and_the_first_byte_comes_one_rtt_earlier", &error);
            return;
        }
        for (split, fast_split, legs) in [("", "", 1), ("[[split]]\nafter = 1\n", "[[split]]\nafter = 1\nfast_open = true\n", 2)] {
            for opens in ["sender", "receiver"] {
                let flow = format!("[[flow]]\nbytes = \"1400B\"\nopens = \"{opens}\"\n");
                let mut seen = Vec::new();
                // A busy machine may delay a connection, or the data that a proxy's SYN is to
                // carry.
                while !seen.last().is_some_and(|(sent, saved)| *sent == [legs, legs] && (0.085..0.13).contains(saved)) {
                    assert!(seen.len() < 10, "{split}{opens}: SYNs with data sent and received, and seconds saved: {seen:?}");
                    let (slow, none) = first_byte(&format!("{LINKS}{split}{flow}"));
                    assert!(none.iter().all(|counts| *counts == [0, 0]), "{none:?}");
                    let (quick, counts) = first_byte(&format!("{LINKS}{fast_split}{flow}fast_open = true\n"));
                    seen.push(([0, 1].map(|at| counts.iter().map(|host| host[at]).sum::<u64>()), slow - quick));
                }
            }
        }
    }
}
