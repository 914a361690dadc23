//! What honest clients do.

use crate::{
    addresses::{ABORTING_CLIENT, PORTS, SERVERS},
    endpoints,
    plan::{ConnectionKind, ConnectionPlan, PlannedAbort},
    shared::SoakState,
};
use anyhow::Result;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use testbed::SplitMix64;

/// How long clients may take to end after they were told to stop.
const LONGEST_WAIT: Duration = Duration::from_secs(180);

/// What a client does again and again, and how many clients do so.
#[derive(Debug, Clone, Copy)]
enum ClientWorkload {
    Short,
    Small,
    Large,
    Aborted,
    Idle,
    Silent,
}

const WORKLOADS: [(ClientWorkload, usize); 6] = [
    (ClientWorkload::Short, 6),
    (ClientWorkload::Small, 8),
    (ClientWorkload::Large, 4),
    (ClientWorkload::Aborted, 12),
    (ClientWorkload::Idle, 150),
    (ClientWorkload::Silent, 4),
];

impl ClientWorkload {
    fn plan(self, random: &mut SplitMix64, id: u64, hostile: bool) -> ConnectionPlan {
        let mut plan = ConnectionPlan {
            kind: ConnectionKind::Transfer,
            id,
            seed: random.next_u64() as u32,
            up: 0,
            down: 0,
            rate: 0,
            early: random.chance(0.5),
            abort: None,
        };
        let mut sizes = |least, most| {
            let (way, one, other) = (random.uniform(0, 2), random.log_uniform(least, most), random.log_uniform(least, most));
            (plan.up, plan.down) = [(one, 0), (0, one), (one, other)][way as usize];
        };
        match self {
            ClientWorkload::Short => (plan.up, plan.down) = (random.uniform(1, 1000), random.uniform(1, 1000)),
            ClientWorkload::Small => sizes(1, 1_000_000),
            ClientWorkload::Large => {
                sizes(5_000_000, 200_000_000);
                plan.rate = random.log_uniform(5_000_000, 60_000_000);
            }
            ClientWorkload::Aborted => {
                sizes(1_000_000, 40_000_000);
                plan.rate = random.log_uniform(1_000_000, 20_000_000);
                let after = random.uniform(0, plan.up + plan.down);
                let (client, silent) = (random.chance(0.5), random.chance(0.4));
                // Behind NAT the server sees ports that are reused too soon to silence one of them.
                plan.abort = Some(PlannedAbort { client, silent: silent && (client || !hostile), after });
            }
            ClientWorkload::Idle => plan.kind = ConnectionKind::Conversation,
            ClientWorkload::Silent => plan.kind = ConnectionKind::Silent,
        }
        plan
    }

    /// Pauses between connections: a multiple of the pause that keeps the machine at half load.
    fn rest(self, state: &SoakState, random: &mut SplitMix64) {
        let unit = Duration::from_micros(state.pause_us.load(Relaxed));
        state.rest(match self {
            ClientWorkload::Short => unit,
            ClientWorkload::Small => unit * 4,
            ClientWorkload::Large => unit * 200,
            ClientWorkload::Aborted => Duration::from_millis(random.uniform(100, 4000)),
            ClientWorkload::Idle | ClientWorkload::Silent => Duration::from_millis(random.uniform(100, 1000)),
        });
    }
}

pub(crate) fn start_clients(state: &SoakState, random: &mut SplitMix64, hostile: bool) -> Result<Vec<thread::JoinHandle<()>>> {
    let (ids, ports) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU16::new(0)));
    let mut clients = Vec::new();
    for (workload, count) in WORKLOADS {
        for _ in 0..count {
            let (mut random, inner) = (SplitMix64::new(random.next_u64()), state.clone());
            let (ids, ports) = (ids.clone(), ports.clone());
            let work = move || {
                while !inner.is_over() {
                    let plan = workload.plan(&mut random, ids.fetch_add(1, Relaxed), hostile);
                    let server = SERVERS[usize::from(random.chance(0.25))];
                    let to = SocketAddr::new(server.into(), random.uniform(PORTS.start.into(), u64::from(PORTS.end) - 1) as u16);
                    // Ports are used in turn, so that none is reused while it is silenced.
                    let port = || 10_000 + ports.fetch_add(1, Relaxed) % 50_000;
                    let from = plan.abort.map(|_| SocketAddr::new(ABORTING_CLIENT.into(), port()));
                    endpoints::run_connection(&inner, &plan, from, to);
                    workload.rest(&inner, &mut random);
                }
            };
            clients.push(state.client.spawn("client", work)?);
        }
    }
    Ok(clients)
}

/// Waits for all clients. A client that does not end is a failure.
pub(crate) fn await_clients(clients: Vec<thread::JoinHandle<()>>, fail: &impl Fn(String)) {
    let begun = Instant::now();
    while clients.iter().any(|client| !client.is_finished()) {
        if begun.elapsed() > LONGEST_WAIT {
            let left = clients.iter().filter(|client| !client.is_finished()).count();
            return fail(format!("{left} clients never ended"));
        }
        thread::sleep(Duration::from_millis(50));
    }
    if clients.into_iter().any(|client| client.join().is_err()) {
        fail("a client panicked".into());
    }
}
