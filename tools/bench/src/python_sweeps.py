"""Plays one sweep in several ways, as a user of tandem-net would; prints a line of JSON for each.

On one core, on two, on a cluster of Dask of two processes, and on two workers in network namespaces
of their own, of which one is killed, as is the client. The Parquet files must be the same.
Usage: python_sweeps.py POINTS, as root, with tandem-net[arrow,dask] installed."""

import hashlib
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import tandem

LOSSES = [0.0001 * 1.07**step for step in range(100)]
# The host of the scheduler and of the client is the first.
HOSTS = ["tandem-sweep", "tandem-sweep-1", "tandem-sweep-2"]
SCHEDULER = "tcp://10.66.0.1:8786"
WORKER = ["-m", "distributed.cli.dask_worker", SCHEDULER, "--nthreads", "1", "--no-nanny", "--no-dashboard"]


def study():
    return tandem.Scenario(
        link=[{"rate": "100Mbit", "delay": "5ms"}, {"rate": "20Mbit", "delay": "20ms"}],
        split={"after": 1},
        flow={"bytes": "20MB"},
        control={"sender": "reno", "proxy": "reno"},
    )


def play(points, to, **where):
    """Plays the study, and returns how long it took."""
    delays = [f"{step + 1}ms" for step in range(points // len(LOSSES))]
    begun = time.monotonic()
    tandem.sweep(study(), over={"link.2.loss.per_packet": LOSSES, "link.2.delay": delays}, seeds=1, to=to, **where)
    return time.monotonic() - begun


def tell(way, wall_s, to, **more):
    table = pathlib.Path(to).read_bytes()
    digest = hashlib.sha256(table).hexdigest()
    print(json.dumps({"way": way, "wall_s": wall_s, "digest": digest, "bytes": len(table), **more}), flush=True)


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def on(host, *arguments):
    """Runs Python on a host."""
    output = subprocess.DEVNULL
    return subprocess.Popen(["ip", "netns", "exec", host, sys.executable, *arguments], stdout=output, stderr=output)


def rows_written(to):
    """How many rows of an unfinished sweep are in files."""
    import pyarrow.parquet

    return sum(pyarrow.parquet.read_metadata(part).num_rows for part in pathlib.Path(f"{to}.parts").glob("*.parquet"))


def wait_for_rows(to, count, client):
    begun = time.monotonic()
    while rows_written(to) < count:
        if client.poll() is not None or time.monotonic() - begun > 3600:
            sys.exit(f"the client ended before {count} rows were written")
        time.sleep(0.2)


def build_hosts():
    for host in HOSTS:
        ip("netns", "add", host)
        ip("-n", host, "link", "set", "lo", "up")
    ip("-n", HOSTS[0], "link", "add", "bridge", "type", "bridge")
    for number, host in enumerate(HOSTS[1:], start=1):
        ip("-n", HOSTS[0], "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", host)
        ip("-n", HOSTS[0], "link", "set", f"port{number}", "master", "bridge", "up")
        ip("-n", host, "addr", "add", f"10.66.0.{number + 1}/24", "dev", "eth0")
        ip("-n", host, "link", "set", "eth0", "up")
    ip("-n", HOSTS[0], "addr", "add", "10.66.0.1/24", "dev", "bridge")
    ip("-n", HOSTS[0], "link", "set", "bridge", "up")


def disturbed(points, to):
    """On two workers in namespaces: one is killed after a quarter of the rows, and another one
    joins; the client is killed after half of them and started again. Returns how long all took."""
    build_hosts()
    started = [on(HOSTS[0], "-m", "distributed.cli.dask_scheduler", "--host", "10.66.0.1", "--no-dashboard")]
    started += [on(host, *WORKER) for host in HOSTS[1:]]
    begun = time.monotonic()

    def client():
        started.append(on(HOSTS[0], __file__, "--client", str(points), to))
        return started[-1]

    try:
        first = client()
        wait_for_rows(to, points // 4, first)
        started[2].send_signal(signal.SIGKILL)
        started.append(on(HOSTS[2], *WORKER))
        wait_for_rows(to, points // 2, first)
        first.send_signal(signal.SIGKILL)
        kept = rows_written(to)
        second = client()
        if second.wait() != 0:
            sys.exit("the second client failed")
        return time.monotonic() - begun, kept
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()
        for host in HOSTS:
            ip("netns", "del", host)


def main():
    if sys.argv[1] == "--client":
        import distributed

        with distributed.Client(SCHEDULER, timeout="60s") as client:
            client.wait_for_workers(2, timeout=60)
            play(int(sys.argv[2]), sys.argv[3], client=client)
        return
    import distributed

    points = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as directory:
        for way, workers in [("one core", 1), ("two cores", 2)]:
            to = f"{directory}/{workers}.parquet"
            tell(way, play(points, to, workers=workers), to)
        to = f"{directory}/dask.parquet"
        with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
            with distributed.Client(cluster) as client:
                # Of this process: the client and the scheduler.
                before = time.process_time()
                wall_s = play(points, to, client=client)
                tell("Dask, two processes", wall_s, to, client_s=time.process_time() - before)
        to = f"{directory}/disturbed.parquet"
        wall_s, kept = disturbed(points, to)
        tell("Dask, two namespaces, a worker and the client killed", wall_s, to, kept=kept)


if __name__ == "__main__":
    main()
