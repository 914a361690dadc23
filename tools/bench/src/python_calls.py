"""What calls from Python cost; prints a line of JSON.

Usage: python_calls.py RUNS POINTS, with tandem-net installed, and tandem, in the PATH."""

import json
import subprocess
import sys
import tempfile
import time

import numpy
import tandem
from tandem import equations


def study():
    return tandem.Scenario(
        link=[{"rate": "100Mbit", "delay": "5ms"}, {"rate": "20Mbit", "delay": "20ms", "loss": {"per_packet": 0.001}}],
        split={"after": 1},
        flow={"bytes": "20MB"},
        control={"sender": "reno", "proxy": "reno"},
    )


def seconds(work):
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def by_the_program(scenario, runs):
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(scenario.to_toml())
        file.flush()
        command = ["tandem", "run", file.name, "--on", "sim", "--seeds", str(runs), "--jobs", "1", "--quiet"]
        return seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))


def in_a_loop(scenario, runs):
    return seconds(lambda: [scenario.run(on="sim", seed=seed) and None for seed in range(1, runs + 1)])


def main():
    runs, points = int(sys.argv[1]), int(sys.argv[2])
    scenario = study()
    rtts, losses = numpy.linspace(0.01, 0.6, points), numpy.geomspace(1e-4, 0.03, points)
    # The first call of each compiles and allocates what the next ones have.
    scenario.run(on="sim", seed=1)
    equations.mean_rate(rtts, losses)
    found = {
        "program_s": by_the_program(scenario, runs),
        "loop_s": in_a_loop(scenario, runs),
        "array_s": seconds(lambda: equations.mean_rate(rtts, losses)),
        "each_s": seconds(lambda: [equations.mean_rate(rtt, loss) for rtt, loss in zip(rtts, losses)]),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
