//! The CAN model on transfers that were: what each would have taken as a fluid. Beside what it did take it shows what packets, or a bond, cost, with
//! hardly any noise: both had the same arrivals and sizes.

use scenario::{Bond, Job, Parallel, Scheduler};
use std::{cmp::Reverse, collections::BinaryHeap};

/// Parts of jobs that are served alike: a clock that runs as fast as one of them is, bits/s, and when each of them ends on it.
#[derive(Debug, Default)]
struct Queue {
    clock: f64,
    rate: f64,
    ends: BinaryHeap<Reverse<(u64, usize)>>,
}

impl Queue {
    /// How long until its next part is done, s, if nothing changes.
    fn span(&self) -> f64 {
        match self.ends.peek() {
            // A clock is never below 0, where the order of floats is that of their bits. Rounding may have passed the end by a hair.
            Some(Reverse((at, _))) if self.rate > 0.0 => ((f64::from_bits(*at) - self.clock) / self.rate).max(0.0),
            _ => f64::INFINITY,
        }
    }

    fn add(&mut self, bits: f64, job: usize) {
        if self.ends.is_empty() {
            self.clock = 0.0;
        }
        self.ends.push(Reverse(((self.clock + bits).to_bits(), job)));
    }

    fn jobs(&self) -> f64 {
        self.ends.len() as f64
    }
}

/// What each of these jobs, which come in the order of time, takes in the end, s. The foreground is split as a fluid, or by fixed parts where the
/// scheduler has such; networks share their rates out evenly among those who are there. Nothing else comes: the last ones have the networks to
/// themselves, and the first ones, so that a fair comparison leaves some at either end out.
pub fn replay(parallel: &Parallel<'_>, jobs: &[Job]) -> Vec<f64> {
    let count = parallel.networks.len();
    let parts = parallel.parts();
    let rates: Vec<f64> = parallel.networks.iter().map(|network| network.rate.bits_per_s() as f64).collect();
    // The foreground's first: one queue, or one a network.
    let foregrounds = if parts.is_some() { count } else { 1 };
    let mut queues: Vec<Queue> = (0..foregrounds + count).map(|_| Queue::default()).collect();
    let mut sojourns = vec![0.0; jobs.len()];
    // Parts of each job that are not done.
    let mut open = vec![0; jobs.len()];
    let (mut now, mut next) = (0.0, 0);
    loop {
        let (queue, span) = (0..queues.len())
            .map(|queue| (queue, queues[queue].span()))
            .fold((0, f64::INFINITY), |least, this| if this.1 < least.1 { this } else { least });
        let arrival = jobs.get(next).map(|job| job.at.secs());
        if arrival.is_none() && span == f64::INFINITY {
            return sojourns;
        }
        let arrives = arrival.filter(|at| *at <= now + span);
        let passes = arrives.map_or(span, |at| (at - now).max(0.0));
        for queue in &mut queues {
            queue.clock += queue.rate * passes;
        }
        now += passes;
        if arrives.is_some() {
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
            open[next] =
                if job.class == 0 { parts.as_ref().map_or(1, |parts| parts.iter().filter(|part| **part > 0.0).count()) } else { 1 };
            next += 1;
        } else if let Some(Reverse((_, job))) = queues[queue].ends.pop() {
            open[job] -= 1;
            if open[job] == 0 {
                sojourns[job] = now - jobs[job].at.secs();
            }
        }
        share_out(&mut queues, foregrounds, &rates);
    }
}

/// (1): each network's rate, in equal parts to the foreground's and its own.
fn share_out(queues: &mut [Queue], foregrounds: usize, rates: &[f64]) {
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

/// The mean time of each class's transfers, s, if the foreground of a run with this seed was split as a fluid: of those that an engine counts, a tenth
/// as many as count being early. As many come after them as before: none has the networks to itself. Nothing of classes that never come.
pub fn ideal(parallel: &Parallel<'_>, seed: u64) -> Vec<Option<f64>> {
    let counted = parallel.foreground.map_or(0, |foreground| foreground.jobs);
    let (early, all) = (counted / 10, counted / 10 + counted);
    let fluid = Parallel { bond: Bond::of(Scheduler::Fluid), ..*parallel };
    let mut came = 0;
    let mut jobs: Vec<(Job, bool)> = Vec::new();
    if counted > 0 {
        for job in parallel.jobs(seed) {
            let (is_foreground, before) = (job.class == 0, came);
            came += u64::from(is_foreground);
            if came > all + all / 2 {
                break;
            }
            jobs.push((job, came > early && before < all));
        }
    }
    let trace: Vec<Job> = jobs.iter().map(|(job, _)| *job).collect();
    let mut sums = vec![(0.0, 0u64); parallel.classes()];
    for ((job, counts), sojourn) in jobs.iter().zip(replay(&fluid, &trace)) {
        if *counts {
            let (sum, count) = &mut sums[job.class];
            (*sum, *count) = (*sum + sojourn, *count + 1);
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
    fn alike(found: &[f64], right: &[f64]) {
        assert!(found.len() == right.len() && found.iter().zip(right).all(|(found, right)| (found - right).abs() < 1e-9), "{found:?}");
    }

    #[test]
    fn a_few_jobs_as_one_reckons_them_by_hand() {
        // 2 MB/s alone. After 0.5 s the other takes half of network 1: 1.5 MB/s for the first, 0.5 MB/s for the second. The first has had 1 MB, and needs
        // 1 MB more: 2/3 s. Then the second, which has had 1/3 MB, has the network to itself.
        let found = replay(&scenario("fluid").parallel().unwrap(), &[job(0, 0.0, 2_000_000), job(1, 0.5, 1_000_000)]);
        alike(&found, &[0.5 + 2.0 / 3.0, 2.0 / 3.0 + 2.0 / 3.0]);
        // Fixed halves: each of 1 MB; that over network 1 is the later one.
        let found = replay(&scenario("round-robin").parallel().unwrap(), &[job(0, 0.0, 2_000_000), job(1, 0.5, 1_000_000)]);
        alike(&found, &[1.5, 1.5]);
        // All over network 1, which has more left.
        let found = replay(&scenario("single").parallel().unwrap(), &[job(0, 0.0, 1_000_000), job(2, 0.0, 1_000_000)]);
        alike(&found, &[1.0, 1.0]);
    }

    #[test]
    fn many_jobs_have_the_chains_means() {
        let scenario = scenario("fluid");
        let parallel = scenario.parallel().unwrap();
        let jobs: Vec<Job> = parallel.jobs(1).take(400_000).collect();
        let sojourns = replay(&parallel, &jobs);
        let chain = Can::new(0.5, &[0.3, 0.5]).unwrap().solve();
        for class in 0..3 {
            let of: Vec<f64> = jobs.iter().zip(&sojourns).filter(|(job, _)| job.class == class).map(|(_, sojourn)| *sojourn).collect();
            let (mean, right) = (of.iter().sum::<f64>() / of.len() as f64, chain.sojourn_s[class].unwrap().value);
            assert!((mean / right - 1.0).abs() < 0.03, "class {class}: {mean}, should be {right}");
        }
    }
}
