"""Sweeps on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tandem
from tandem import _plan
from tandem._plan import Costs, Plan, pack

OVER = {"link.2.loss.per_packet": [0.0, 0.01, 0.02], "control.proxy": ["cubic", "hybla"]}
SETS = ["--set", "link.2.loss.per_packet=0.0,0.01,0.02", "--set", "control.proxy=cubic,hybla"]


def test_the_file_is_that_of_the_command_line(path: tandem.Scenario, command: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "path.toml"
    cases = '\n[[case]]\nname = "end to end"\nset = { split = [] }\n[[case]]\nname = "split"\n'
    file.write_text(path.to_toml() + cases)
    scenario = tandem.Scenario.load(file)
    for ending in ("parquet", "csv"):
        here, there = tmp_path / f"here.{ending}", tmp_path / f"there.{ending}"
        command("run", str(file), "--on", "sim,compose", *SETS, "--seeds", "3", "--to", str(there))
        tandem.sweep(scenario, OVER, on=["sim", "compose"], seeds=3, to=here)
        assert here.read_bytes() == there.read_bytes()
        assert not Path(f"{here}.parts").exists()


def test_the_table_and_its_means(path: tandem.Scenario) -> None:
    result = tandem.sweep(path, OVER, seeds=4, seed=7)
    table, means = result.table, result.means
    assert table.height == 24 and means.height == 6 and result.keys == list(OVER)
    assert table["seed"].tolist() == [7, 8, 9, 10] * 6
    assert table["control.proxy"].tolist() == (["cubic"] * 4 + ["hybla"] * 4) * 3
    rows = table.where(np.flatnonzero(table["case"] == means["case"][3]))
    assert means["goodput_bps"][3] == pytest.approx(rows["goodput_bps"].mean())
    # t(3) = 3.182
    assert means["goodput_bps_ci95"][3] == pytest.approx(3.1824463 * rows["goodput_bps"].std(ddof=1) / 2)
    point = path.with_({"link.2.loss.per_packet": 0.01, "control.proxy": "hybla"}).run(seed=9)
    assert rows["goodput_bps"][2] == point.goodput_bps
    assert tandem.sweep(path, seeds=1).means["goodput_bps_ci95"].tolist() == [float("inf")]


def test_values_are_lists_arrays_or_as_on_the_command_line(path: tandem.Scenario) -> None:
    def rates(values: object) -> list[float]:
        plan = Plan.of(path, {"link.2.rate": values}, "sim", None, 1)
        found = [plan.points.describe(point)[1]["link.2.rate"] for point in range(len(plan.points))]
        return [float(value) for value in found]

    for values in ("10Mbit..30Mbit:10Mbit", ["10Mbit", 2e7, 30_000_000], np.array([1e7, 2e7, 3e7])):
        assert rates(values) == [1e7, 2e7, 3e7]
    with pytest.raises(tandem.ScenarioError, match=r"--set link\.2\.rate=0bit"):
        tandem.sweep(path, {"link.2.rate": ["1Mbit", "0bit"]})
    with pytest.raises(TypeError, match="give a list"):
        tandem.sweep(path, {"link.2.rate": 1e6})


def test_a_failing_point_ends_the_sweep_or_is_left_out(path: tandem.Scenario) -> None:
    over = {"flow.1.bytes": ["200kB", "300kB"]}
    with pytest.raises(tandem.CannotAnswerError, match="theory cannot answer"):
        tandem.sweep(path, over, on=["sim", "theory"])
    result = tandem.sweep(path, over, on=["sim", "theory"], on_error="skip")
    assert result.table["engine"].tolist() == ["sim", "sim"]
    assert len(result.errors) == 1 and "flow.1.bytes=300kB" in result.errors[0]


def test_sampling_stops_at_the_wanted_interval(path: tandem.Scenario) -> None:
    result = tandem.sweep(path, {"link.2.loss.per_packet": [0.0, 0.02]}, seeds=3, until={"goodput_bps": 0.1}, max_seeds=200)
    means = result.means
    assert (means["goodput_bps_ci95"] <= 0.1 * means["goodput_bps"]).all()
    assert means["seeds"][0] == 3 < means["seeds"][1] < 200
    again = tandem.sweep(path, {"link.2.loss.per_packet": [0.0, 0.02]}, seeds=3, until={"goodput_bps": 0.1}, max_seeds=200)
    assert again.table["goodput_bps"].tolist() == result.table["goodput_bps"].tolist()
    with pytest.raises(KeyError, match="no number 'afct'"):
        tandem.sweep(path, seeds=2, until={"afct": 0.1})


def test_batches_take_the_time_that_was_asked() -> None:
    costs = Costs()
    for point, seconds in enumerate([0.1, 0.4]):
        costs.add(0, point, seconds)
    runs = [(0, point, seed) for point in (0, 1) for seed in range(100)]
    batches = pack(runs, costs, 2.0, 2)
    assert [run for batch in batches for run in batch] == runs
    assert {len(batch) for batch in batches[:-1]} <= {20, 19, 21, 5, 12, 6, 13, 14, 8}
    assert max(sum(costs.of(run) for run in batch) for batch in batches) <= 2.3
    # A small sweep is divided among all workers.
    assert len(pack(runs[:8], costs, 2.0, 2)) == 8


def test_an_interrupted_sweep_goes_on(path: tandem.Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, file = tandem.sweep(path, OVER, seeds=3), tmp_path / "sweep.parquet"
    played: list[int] = []

    def counted(*arguments: Any) -> dict[str, Any]:
        found = play(*arguments)
        played.append(len(found["valid"]))
        return found

    def counting(*arguments: Any) -> dict[str, Any]:
        if sum(played) >= 5:
            raise KeyboardInterrupt
        return counted(*arguments)

    play = _plan.play_batch
    monkeypatch.setattr("tandem._executors.play_batch", counting)
    with pytest.raises(KeyboardInterrupt):
        tandem.sweep(path, OVER, seeds=3, workers=1, to=file)
    parts = Path(f"{file}.parts")
    first = sum(played)
    assert 5 <= first < 18 and list(parts.glob("part-*.parquet"))
    with pytest.raises(ValueError, match="another sweep"):
        tandem.sweep(path, {**OVER, "control.sender": ["reno"]}, to=file)
    # A file that was cut by a crash has another name.
    (parts / ".part-000009.parquet.1").write_bytes(b"PAR1")
    played.clear()
    monkeypatch.setattr("tandem._executors.play_batch", counted)
    again = tandem.sweep(path, OVER, seeds=3, workers=1, to=file)
    assert again.table["goodput_bps"].tolist() == whole.table["goodput_bps"].tolist()
    assert sum(played) == 18 - first and not parts.exists()
    expected = tmp_path / "whole.parquet"
    whole.to_parquet(expected)
    assert file.read_bytes() == expected.read_bytes()


KILLED = """
import sys, tandem
path = tandem.Scenario.from_toml(open(sys.argv[1]).read())
tandem._rows.FLUSH_SECONDS = 0
tandem.sweep(path, {"link.2.loss.per_packet": [0.0, 0.01]}, seeds=int(sys.argv[3]), to=sys.argv[2])
"""


def test_a_killed_sweep_goes_on(path: tandem.Scenario, tmp_path: Path) -> None:
    scenario, file = tmp_path / "path.toml", tmp_path / "sweep.parquet"
    scenario.write_text(path.to_toml())
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(scenario), str(file), "100000"])
    parts = Path(f"{file}.parts")
    deadline = time.monotonic() + 60
    while not list(parts.glob("part-*.parquet")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    seconds_before = [os.stat(part).st_mtime_ns for part in sorted(parts.glob("part-*.parquet"))]
    assert json.loads((parts / "sweep.json").read_text())["version"] == tandem.__version__
    # With fewer seeds: rows of others are left out.
    over = {"link.2.loss.per_packet": [0.0, 0.01]}
    result = tandem.sweep(path, over, seeds=5, to=file)
    assert seconds_before and result.table.height == 10
    assert result.table["goodput_bps"].tolist() == tandem.sweep(path, over, seeds=5).table["goodput_bps"].tolist()


def test_plots_of_sweeps(path: tandem.Scenario) -> None:
    pytest.importorskip("matplotlib")
    result = tandem.sweep(path, OVER, seeds=2)
    axis = result.plot().axes[0]
    assert axis.get_xlabel() == "link.2.loss.per_packet"
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["cubic", "hybla"]
    assert "<table>" in result._repr_html_() and "12 runs, 6 points" in repr(result)


def test_files_are_named_by_their_format(path: tandem.Scenario) -> None:
    with pytest.raises(ValueError, match=r"name it FILE\.csv or FILE\.parquet"):
        tandem.sweep(path, to="sweep.json")
