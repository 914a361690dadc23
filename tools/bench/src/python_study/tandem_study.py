"""NewReno over losses and delays, end to end and split, by Tandem: `STUDY SEEDS LOSSES DELAYS`."""

import json
import sys
import time

import numpy as np
import tandem

seeds, losses, delays = map(int, sys.argv[1:])
started = time.process_time()
losses = np.geomspace(1e-4, 3e-2, losses)
delays = np.geomspace(0.005, 0.3, delays)
path = tandem.Scenario(
    link=[{"rate": "20Mbit", "delay": "10ms", "queue": "250kB"}, {"rate": "10Mbit", "delay": "10ms", "queue": "250kB"}],
    control={"sender": "reno", "proxy": "reno"},
    flow={},
    duration="30s",
)
ways = [[], [{"after": 1, "buffer": "unlimited"}]]
over = {"split": ways, "link.2.loss.per_packet": losses, "link.2.delay": delays}
means = tandem.sweep(path, over=over, seeds=seeds, workers=1).means
goodput = means["goodput_bps"].reshape(len(ways), len(losses), len(delays)) / 1e6

spent = time.process_time() - started
print(json.dumps({"version": tandem.__version__, "startup_s": started, "seconds": spent, "goodput_mbps": goodput.tolist()}))
