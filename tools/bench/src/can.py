"""The concurrent access network of Hoekstra, van der Mei and Bosman (2011, section II), as a plain
SimPy model.

Each arrival and each departure wakes one server process. It subtracts the service that every job
has received since the last event, then sleeps until the next job is finished. Sizes are exponential
with mean 1, networks have speed 1.

    python can.py FOREGROUND BACKGROUND... [--jobs N] [--seed S]
"""

import argparse
import random
import time

import simpy


class Can:
    def __init__(self, foreground, backgrounds, seed):
        self.env = simpy.Environment()
        self.random = random.Random(seed)
        # Remaining size and arrival time of each job, by class; class 0 is the foreground.
        self.left = [[] for _ in range(len(backgrounds) + 1)]
        self.came = [[] for _ in self.left]
        self.times = [0.0 for _ in self.left]
        self.done = [0 for _ in self.left]
        self.events = 0
        self.since = 0.0
        for job_class, rate in enumerate([foreground, *backgrounds]):
            if rate > 0:
                self.env.process(self.arrivals(job_class, rate))
        self.server = self.env.process(self.serve())

    def rates(self):
        """Service rate of one job of each class."""
        shares = [1 / max(1, len(self.left[0]) + len(jobs)) for jobs in self.left[1:]]
        return [sum(shares), *shares]

    def work(self):
        """Subtracts the service since the last event."""
        span, self.since = self.env.now - self.since, self.env.now
        for rate, jobs in zip(self.rates(), self.left):
            served = rate * span
            jobs[:] = [left - served for left in jobs]

    def arrivals(self, job_class, rate):
        while True:
            yield self.env.timeout(self.random.expovariate(rate))
            self.work()
            self.events += 1
            self.left[job_class].append(self.random.expovariate(1))
            self.came[job_class].append(self.env.now)
            self.server.interrupt()

    def serve(self):
        while True:
            first = [
                (min(jobs) / rate, job_class)
                for job_class, (rate, jobs) in enumerate(zip(self.rates(), self.left))
                if jobs
            ]
            span, job_class = min(first, default=(float("inf"), None))
            try:
                yield self.env.timeout(span) if first else self.env.event()
            except simpy.Interrupt:
                continue
            self.work()
            self.events += 1
            jobs = self.left[job_class]
            place = jobs.index(min(jobs))
            del jobs[place]
            self.times[job_class] += self.env.now - self.came[job_class].pop(place)
            self.done[job_class] += 1

    def play(self, jobs):
        while self.done[0] < jobs:
            self.env.step()


def main():
    arguments = argparse.ArgumentParser(description="Mean times in a concurrent access network.")
    arguments.add_argument("foreground", type=float)
    arguments.add_argument("backgrounds", type=float, nargs="+")
    arguments.add_argument("--jobs", type=int, default=20_000, help="foreground jobs")
    arguments.add_argument("--seed", type=int, default=1)
    given = arguments.parse_args()
    can = Can(given.foreground, given.backgrounds, given.seed)
    before = time.process_time()
    can.play(given.jobs)
    took = time.process_time() - before
    for job_class, (times, done) in enumerate(zip(can.times, can.done)):
        print(f"E[S{job_class}] = {times / done if done else float('nan'):.4f} of {done} jobs")
    print(f"{can.events} events in {took:.2f} CPU seconds: {can.events / took:.0f} a second")


if __name__ == "__main__":
    main()
