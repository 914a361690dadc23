"""Sweeps by Dask: the same table, whatever dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tandem
from tandem._executors import Dask, _check_version

distributed = pytest.importorskip("distributed")

OVER = {"link.2.loss.per_packet": [0.0, 0.01, 0.02], "control.proxy": ["cubic", "hybla"]}


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def test_the_table_is_that_of_this_machine(path: tandem.Scenario, client: Any, tmp_path: Path) -> None:
    files = tmp_path / "here.parquet", tmp_path / "there.parquet"
    tandem.sweep(path, OVER, seeds=5, to=files[0])
    tandem.sweep(path, OVER, seeds=5, to=files[1], client=client)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_files_of_a_scenario_go_along(client: Any, tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text("time,rate\n100ms,2Mbit\n")
    path = tandem.Scenario(
        directory=tmp_path, link={"rate": "10Mbit", "delay": "5ms", "steps": "steps.csv"}, flow={"bytes": "200kB"}
    )
    here = tandem.sweep(path, {"link.1.rate": [1e6, 2e6]}, seeds=2)
    (tmp_path / "steps.csv").unlink()
    assert tandem.sweep(path, {"link.1.rate": [1e6, 2e6]}, seeds=2, client=client).table == here.table


def test_a_worker_of_another_version_is_an_error() -> None:
    _check_version(tandem.__version__)
    for version in ("0.0.1", None):
        with pytest.raises(tandem.RunError, match="install the same version"):
            _check_version(version)


def test_the_bar_is_shown_on_demand(path: tandem.Scenario, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[int] = []
    monkeypatch.setattr(Dask, "_show_progress", lambda dask: shown.append(len(dask._futures)))
    tandem.sweep(path, client=client)
    assert not shown
    tandem.sweep(path, client=client, progress=True)
    assert shown and all(shown)


def test_errors_of_workers_arrive(path: tandem.Scenario, client: Any) -> None:
    with pytest.raises(tandem.CannotAnswerError, match="theory cannot answer"):
        tandem.sweep(path, OVER, on="theory", client=client)
    found = tandem.sweep(path, {"flow.1.bytes": ["200kB"]}, on=["sim", "theory"], client=client, on_error="skip")
    assert found.table.height == 1 and len(found.errors) == 1


def test_a_killed_worker_changes_nothing(path: tandem.Scenario, client: Any, tmp_path: Path) -> None:
    long = path.with_({"flow.1.bytes": "5MB"})
    here = tandem.sweep(long, OVER, seeds=5)
    pids = client.run(os.getpid)

    def kill() -> None:
        # Once a worker is busy.
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            busy = [address for address, keys in client.processing().items() if keys]
            if busy:
                os.kill(pids[busy[0]], signal.SIGKILL)
                return
            time.sleep(0.02)

    killer = threading.Thread(target=kill)
    killer.start()
    there = tandem.sweep(long, OVER, seeds=5, client=client, to=tmp_path / "there.csv")
    killer.join()
    assert there.table["goodput_bps"].tolist() == here.table["goodput_bps"].tolist()
    assert set(client.run(os.getpid).values()) != set(pids.values()), "no worker was killed"


LOST = """
import sys, dask, distributed, tandem
dask.config.set({"distributed.comm.timeouts.connect": "2s"})
path = tandem.Scenario.from_toml(open(sys.argv[1]).read())
tandem._rows.FLUSH_SECONDS = 0
client = distributed.Client(sys.argv[2], timeout=20)
try:
    tandem.sweep(path, {"link.2.loss.per_packet": [0.0, 0.01]}, seeds=100000, to=sys.argv[3], client=client)
except tandem.RunError as error:
    print("lost:", error, flush=True)
"""


def test_a_lost_scheduler_is_an_error_and_the_rows_remain(path: tandem.Scenario, tmp_path: Path) -> None:
    scenario, file = tmp_path / "path.toml", tmp_path / "sweep.parquet"
    scenario.write_text(path.to_toml())
    address = tmp_path / "scheduler.json"
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    scheduler = subprocess.Popen([*dask, "--scheduler-file", str(address)], stderr=subprocess.DEVNULL)
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(address), "--nthreads", "1"]
    worker_process = subprocess.Popen([*worker, "--no-dashboard", "--death-timeout", "60"], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not address.exists() or not address.read_text().strip():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        where = json.loads(address.read_text())["address"]
        errors = tmp_path / "errors"
        lost = [sys.executable, "-c", LOST, str(scenario), where, str(file)]
        client = subprocess.Popen(lost, stdout=subprocess.PIPE, stderr=errors.open("w"), text=True)
        parts = Path(f"{file}.parts")
        while not list(parts.glob("part-*.parquet")):
            assert client.poll() is None and time.monotonic() < deadline, errors.read_text()
            time.sleep(0.05)
        scheduler.kill()
        out, _ = client.communicate(timeout=120)
        assert out.startswith("lost: "), errors.read_text()
    finally:
        for process in (scheduler, worker_process):
            process.kill()
            process.wait()
    over = {"link.2.loss.per_packet": [0.0, 0.01]}
    result = tandem.sweep(path, over, seeds=5, to=file)
    assert result.table["goodput_bps"].tolist() == tandem.sweep(path, over, seeds=5).table["goodput_bps"].tolist()
