//! The CAN model on recorded transfers: how long each would take as a fluid. Compared with the
//! measured times this shows the cost of packets, or of a bond, with little noise, since arrivals
//! and sizes are the same.

use scenario::{Bond, Job, Parallel, TransferScheduler};
use std::{cmp::Reverse, collections::BinaryHeap};

/// Parts of jobs that are served at the same rate.
#[derive(Debug, Default)]
struct PartQueue {
    /// Virtual clock: service of a part that was present from the start, bits.
    clock: f64,
    /// Rate of the clock, bits/s.
    rate: f64,
    /// Departures by the clock (as bits of a float), with the job.
    departures: BinaryHeap<Reverse<(u64, usize)>>,
}

impl PartQueue {
    /// Time until its next departure, if nothing changes, s.
    fn time_to_departure(&self) -> f64 {
        match self.departures.peek() {
            // For non-negative floats the order of the bits is that of the values. Rounding may put
            // the clock slightly past the departure.
            Some(Reverse((at, _))) if self.rate > 0.0 => ((f64::from_bits(*at) - self.clock) / self.rate).max(0.0),
            _ => f64::INFINITY,
        }
    }

    fn add(&mut self, bits: f64, job: usize) {
        if self.departures.is_empty() {
            self.clock = 0.0;
        }
        self.departures.push(Reverse(((self.clock + bits).to_bits(), job)));
    }

    fn jobs(&self) -> f64 {
        self.departures.len() as f64
    }
}

/// Sojourn time of each of these jobs, which must be in order of arrival, s. The foreground is
/// split as a fluid, or by fixed parts if the scheduler has them; networks share their capacity
/// equally among the jobs present.
///
/// There are no other jobs: the first and the last ones have the networks to themselves, so a fair
/// comparison leaves out some at either end.
pub fn replay(parallel: &Parallel<'_>, jobs: &[Job]) -> Vec<f64> {
    let count = parallel.networks.len();
    let parts = parallel.parts();
    let rates: Vec<f64> = parallel.networks.iter().map(|network| network.link.rate.bits_per_s() as f64).collect();
    // Queues of the foreground, one or one per network, then of the backgrounds.
    let foregrounds = if parts.is_some() { count } else { 1 };
    let mut queues: Vec<PartQueue> = (0..foregrounds + count).map(|_| PartQueue::default()).collect();
    let mut sojourns = vec![0.0; jobs.len()];
    // Unfinished parts of each job.
    let mut unfinished = vec![0; jobs.len()];
    let (mut now, mut next) = (0.0, 0);
    loop {
        let (queue, span) = (0..queues.len())
            .map(|queue| (queue, queues[queue].time_to_departure()))
            .fold((0, f64::INFINITY), |least, this| if this.1 < least.1 { this } else { least });
        let arrival = jobs.get(next).map(|job| job.at.secs());
        if arrival.is_none() && span == f64::INFINITY {
            return sojourns;
        }
        let arriving = arrival.filter(|at| *at <= now + span);
        let elapsed = arriving.map_or(span, |at| (at - now).max(0.0));
        for queue in &mut queues {
            queue.clock += queue.rate * elapsed;
        }
        now += elapsed;
        if arriving.is_some() {
            let (job, bits) = (&jobs[next], jobs[next].bytes.0 as f64 * 8.0);
            match (job.class.checked_sub(1), &parts) {
                (Some(network), _) => queues[foregrounds + network].add(bits, next),
                (None, None) => queues[0].add(bits, next),
                (None, Some(parts)) => {
                    for (queue, part) in queues.iter_mut().zip(parts).filter(|(_, part)| **part > 0.0) {
                        queue.add(bits * part, next);
                    }
                }
            }
            unfinished[next] =
                if job.class == 0 { parts.as_ref().map_or(1, |parts| parts.iter().filter(|part| **part > 0.0).count()) } else { 1 };
            next += 1;
        } else if let Some(Reverse((_, job))) = queues[queue].departures.pop() {
            unfinished[job] -= 1;
            if unfinished[job] == 0 {
                sojourns[job] = now - jobs[job].at.secs();
            }
        }
        set_rates(&mut queues, foregrounds, &rates);
    }
}

/// Hoekstra (1): each network's capacity in equal parts to the foreground and background jobs.
fn set_rates(queues: &mut [PartQueue], foregrounds: usize, rates: &[f64]) {
    let mut of_all = 0.0;
    for (network, rate) in rates.iter().enumerate() {
        let foreground = if foregrounds > 1 { network } else { 0 };
        let jobs = queues[foreground].jobs() + queues[foregrounds + network].jobs();
        let each = rate / jobs.max(1.0);
        queues[foregrounds + network].rate = each;
        of_all += each;
        if foregrounds > 1 {
            queues[network].rate = each;
        }
    }
    if foregrounds == 1 {
        queues[0].rate = of_all;
    }
}

/// Mean sojourn time of each class, s, if the foreground of a run with this seed were split as a
/// fluid; `None` for a class without jobs. It is over the jobs that an engine counts, after a
/// warm-up of a tenth as many. Jobs go on arriving after the last counted one, so none has the
/// networks to itself.
pub fn ideal(parallel: &Parallel<'_>, seed: u64) -> Vec<Option<f64>> {
    let counted = parallel.foreground.map_or(0, |foreground| foreground.jobs);
    let (warm_up, end) = (counted / 10, counted / 10 + counted);
    let fluid = Parallel { bond: Bond::of(TransferScheduler::Fluid), ..*parallel };
    let mut arrived = 0;
    let mut jobs: Vec<(Job, bool)> = Vec::new();
    if counted > 0 {
        for job in parallel.jobs(seed) {
            let (is_foreground, before) = (job.class == 0, arrived);
            arrived += u64::from(is_foreground);
            if arrived > end + end / 2 {
                break;
            }
            jobs.push((job, arrived > warm_up && before < end));
        }
    }
    let trace: Vec<Job> = jobs.iter().map(|(job, _)| *job).collect();
    let mut sums = vec![(0.0, 0u64); parallel.classes()];
    for ((job, counts), sojourn) in jobs.iter().zip(replay(&fluid, &trace)) {
        if *counts {
            let (sum, count) = &mut sums[job.class];
            *sum += sojourn;
            *count += 1;
        }
    }
    sums.into_iter().map(|(sum, count)| (count > 0).then(|| sum / count as f64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Can;
    use scenario::{Scenario, ScenarioFile};
    use units::{Bytes, Span};

    fn scenario(scheduler: &str) -> Scenario {
        let network = |load| format!("[[network]]\nrate = \"8Mbit\"\ndelay = \"1ms\"\nload = {load}\n");
        let text = format!(
            "name = \"x\"\n{}{}[foreground]\nload = 0.5\nsize = {{ law = \"exponential\", mean = \"1MB\" }}\n[bond]\nscheduler = \"{scheduler}\"\n",
            network(0.3),
            network(0.5)
        );
        ScenarioFile::parse(&text, "x").unwrap().variants(&[]).unwrap().remove(0).scenario
    }

    fn job(class: usize, at: f64, bytes: u64) -> Job {
        Job { class, at: Span::from_secs_f64(at), bytes: Bytes(bytes) }
    }

    #[track_caller]
    fn assert_close(found: &[f64], right: &[f64]) {
        assert!(found.len() == right.len() && found.iter().zip(right).all(|(found, right)| (found - right).abs() < 1e-9), "{found:?}");
    }

    #[test]
    fn a_few_jobs_match_values_computed_by_hand() {
        // 2 MB/s alone. From 0.5 s on the second job takes half of network 1: 1.5 MB/s and 0.5
        // MB/s. The first job has transferred 1 MB and needs 2/3 s for the rest. Then the second
        // job, with 1/3 MB done, is alone.
        let found = replay(&scenario("fluid").parallel().unwrap(), &[job(0, 0.0, 2_000_000), job(1, 0.5, 1_000_000)]);
        assert_close(&found, &[0.5 + 2.0 / 3.0, 2.0 / 3.0 + 2.0 / 3.0]);
        // Fixed halves of 1 MB each; the one over network 1 ends later.
        let found = replay(&scenario("round-robin").parallel().unwrap(), &[job(0, 0.0, 2_000_000), job(1, 0.5, 1_000_000)]);
        assert_close(&found, &[1.5, 1.5]);
        // All over network 1, which has more capacity left.
        let found = replay(&scenario("single").parallel().unwrap(), &[job(0, 0.0, 1_000_000), job(2, 0.0, 1_000_000)]);
        assert_close(&found, &[1.0, 1.0]);
    }

    #[test]
    fn many_jobs_have_the_means_of_the_chain() {
        let scenario = scenario("fluid");
        let parallel = scenario.parallel().unwrap();
        let jobs: Vec<Job> = parallel.jobs(1).take(400_000).collect();
        let sojourns = replay(&parallel, &jobs);
        let chain = Can::new(0.5, &[0.3, 0.5]).unwrap().solve();
        for class in 0..3 {
            let of: Vec<f64> = jobs.iter().zip(&sojourns).filter(|(job, _)| job.class == class).map(|(_, sojourn)| *sojourn).collect();
            let (mean, right) = (of.iter().sum::<f64>() / of.len() as f64, chain.sojourn_s[class].unwrap().value);
            assert!((mean / right - 1.0).abs() < 0.03, "class {class}: {mean}, expected {right}");
        }
    }
}
