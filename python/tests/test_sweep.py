"""Sweeps on this machine."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tandem
from tandem import _executors, _plan, _rows
from tandem._plan import Costs, Plan, arguments, pack
from tandem._rows import Parts, Rows, columns_of

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


def test_a_changed_seed_is_no_second_column(path: tandem.Scenario, command: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "path.toml"
    file.write_text(path.to_toml())
    scenario = tandem.Scenario.load(file)
    for ending in ("parquet", "csv"):
        here, there = tmp_path / f"here.{ending}", tmp_path / f"there.{ending}"
        command("run", str(file), "--on", "sim", "--set", "seed=1,11", "--seeds", "2", "--to", str(there))
        result = tandem.sweep(scenario, {"seed": [1, 11]}, seeds=2, to=here)
        assert here.read_bytes() == there.read_bytes()
    assert result.table["seed"].tolist() == [1, 2, 11, 12] and list(result.table).count("seed") == 1
    assert result.means["seeds"].tolist() == [2, 2] and result.means["seed"].tolist() == [1.0, 11.0]
    assert path.with_(seed=3).run().seed == 3
    assert tandem.sweep(path.with_(seed=3), seeds=3).table["seed"].tolist() == [3, 4, 5]


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
    assert means["seeds"][0] == 5 < means["seeds"][1] < 200
    again = tandem.sweep(path, {"link.2.loss.per_packet": [0.0, 0.02]}, seeds=3, until={"goodput_bps": 0.1}, max_seeds=200)
    assert again.table["goodput_bps"].tolist() == result.table["goodput_bps"].tolist()


def fake(number: Callable[[str, int], float | None], log: list[Any] | None = None) -> Callable[..., dict[str, Any]]:
    """In place of ``play_batch``: goodputs by engine and seed; ``None``: the run fails."""

    def play(scenario: Any, variants: Any, items: Any, jobs: Any, tries: Any, cancel: Any, each: Any = None) -> dict[str, Any]:
        if log is not None:
            log.append((items, jobs))
        goodputs = [number(engine, seed) for engine, _, seed in items]
        found: dict[str, Any] = {
            "valid": np.ones(len(items), dtype=bool),
            "seconds": np.full(len(items), 1e-4),
            "numbers": np.full((len(items), len(tandem._tandem.NUMBERS)), np.nan),
            "errors": {index: tandem.RunError("failed") for index, goodput in enumerate(goodputs) if goodput is None},
        }
        found["numbers"][:, tandem._tandem.NUMBERS.index("goodput_bps")] = [np.nan if goodput is None else goodput for goodput in goodputs]
        if each is not None:
            for index in range(len(items)):
                one = {name: found[name][index : index + 1] for name in ("valid", "seconds", "numbers")}
                each(index, {**one, "errors": {0: found["errors"][index]} if index in found["errors"] else {}})
        return found

    return play


@pytest.mark.parametrize(
    ("goodput", "seeds"),
    [
        # Two seeds that agree, and zeros: enough once there are five.
        (lambda seed: 1e6, 5),
        (lambda seed: 0.0, 5),
        # A mean of zero has no relative width.
        (lambda seed: (-1.0) ** seed, 12),
        # One of five: the interval becomes narrow, but not from the first five.
        (lambda seed: 2e6 if seed == 3 else 1e6, 12),
    ],
)
def test_a_point_stops_with_a_narrow_interval(
    path: tandem.Scenario, monkeypatch: pytest.MonkeyPatch, goodput: Callable[[int], float], seeds: int
) -> None:
    monkeypatch.setattr("tandem._executors.play_batch", fake(lambda _, seed: goodput(seed)))
    means = tandem.sweep(path, seeds=2, until={"goodput_bps": 0.02}, max_seeds=12).means
    assert means["seeds"].tolist() == [seeds]


def test_a_point_with_one_row_or_a_missing_number(path: tandem.Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem._executors.play_batch", fake(lambda _, seed: 1e6 if seed == 1 else None))
    result = tandem.sweep(path, seeds=2, until={"goodput_bps": 0.1}, max_seeds=9, on_error="skip")
    assert result.table.height == 1 and result.means["goodput_bps_ci95"].tolist() == [float("inf")]
    # No number of seeds gives an interval to what a run lacks.
    monkeypatch.setattr("tandem._executors.play_batch", fake(lambda _, seed: float("nan") if seed == 2 else 1e6 * seed))
    with pytest.warns(RuntimeWarning, match="goodput_bps has no interval at 1 points"):
        result = tandem.sweep(path, seeds=2, until={"goodput_bps": 0.1}, max_seeds=100)
    assert result.means["seeds"].tolist() == [5]


@pytest.mark.parametrize(
    ("wrong", "kind", "text"),
    [
        ({"until": {"afct": 0.1}}, KeyError, "no number 'afct'"),
        ({"until": {"goodput_bps": 0}}, ValueError, "give one above 0"),
        ({"until": {"goodput_bps": 0.1}, "seeds": 9, "max_seeds": 8}, ValueError, "max_seeds is 8"),
        ({"on_error": "raises"}, ValueError, 'on_error is "raise" or "skip"'),
        ({"on": "simm"}, ValueError, 'there is no engine "simm"'),
        ({"on": ["sim", "sim"]}, ValueError, "each once"),
        ({"on": []}, ValueError, "at least one engine"),
        ({"workers": 0}, ValueError, "workers is 0"),
        ({"workers": -1}, ValueError, "workers is -1"),
        ({"workers": 2, "client": object()}, ValueError, "leave it out"),
        ({"tries": 0}, ValueError, "tries is 0"),
        ({"seeds": 0}, ValueError, "seeds is 0"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_played(
    path: tandem.Scenario, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: dict[str, Any], kind: type[Exception], text: str
) -> None:
    log: list[Any] = []
    monkeypatch.setattr("tandem._executors.play_batch", fake(lambda *_: 1e6, log))
    with pytest.raises(kind, match=text):
        tandem.sweep(path, to=tmp_path / "sweep.csv", **wrong)
    assert not log and not list(tmp_path.iterdir())


def test_runs_in_real_time_are_one_batch_after_the_others(path: tandem.Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[Any] = []
    monkeypatch.setattr("tandem._executors.play_batch", fake(lambda *_: 1e6, log))
    for workers in (None, 3):
        log.clear()
        result = tandem.sweep(path, OVER, on=["lab", "sim"], seeds=4, workers=workers)
        assert result.table["engine"].tolist() == ["lab"] * 24 + ["sim"] * 24
        *others, (items, jobs) = log
        assert len(items) == 24 and {engine for engine, _, _ in items} == {"lab"} and jobs == workers
        assert len(others) > 4 and {(engine, jobs) for items, jobs in others for engine, _, _ in items} == {("sim", 1)}
        assert _executors.Cores(workers).workers == (workers or len(os.sched_getaffinity(0)))


def test_answers_come_one_by_one(path: tandem.Scenario) -> None:
    plan = Plan.of(path, OVER, "sim", None, 1)
    runs = plan.runs((0, point, number) for point in range(6) for number in range(2))
    whole = _plan.play_batch(path, *arguments(plan, runs), 1, 1)
    answers: dict[int, dict[str, Any]] = {}
    rest = _plan.play_batch(path, *arguments(plan, runs), 3, 1, None, answers.__setitem__)
    assert sorted(answers) == list(range(12)) and len(rest["valid"]) == 0
    together = np.concatenate([answers[index]["numbers"] for index in range(12)])
    assert np.array_equal(together, whole["numbers"], equal_nan=True) and whole["version"] == tandem.__version__
    failing = Plan.of(path, {}, "theory", None, 1)
    _plan.play_batch(path, *arguments(failing, failing.runs([(0, 0, 0)])), 1, 1, None, answers.__setitem__)
    assert isinstance(answers[0]["errors"][0], tandem.CannotAnswerError)


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


def test_a_sweep_over_seeds_goes_on(path: tandem.Scenario, tmp_path: Path) -> None:
    plan = Plan.of(path, {"seed": [1, 11]}, "sim", None, 1)
    runs = plan.runs([(0, 0, 1), (0, 1, 0)])
    found = _plan.play_batch(path, *arguments(plan, runs), 1, 1)
    parts = Parts(tmp_path / "sweep.csv.parts", plan, True)
    parts.add(columns_of(runs, found["valid"], found["seconds"], found["numbers"]))
    parts.flush()
    parts.close()
    again = Parts(tmp_path / "sweep.csv.parts", plan, True)
    (columns,) = again.read()
    again.close()
    assert columns["seed"].tolist() == [2, 11] and columns["point"].tolist() == [0, 1]
    result = tandem.sweep(path, {"seed": [1, 11]}, seeds=2, to=tmp_path / "sweep.csv")
    assert result.table == tandem.sweep(path, {"seed": [1, 11]}, seeds=2).table


def test_rows_are_written_while_a_batch_goes_on(path: tandem.Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rows, "FLUSH_SECONDS", 0.2)
    monkeypatch.setattr(_executors, "PATIENCE_SECONDS", 0.05)
    file, other = tmp_path / "sweep.csv", threading.Event()
    play = fake(lambda *_: 1e6)

    def waiting(*batch: Any) -> dict[str, Any]:
        if batch[2][0][2] == 2:
            # The first is done, and its row waits.
            deadline = time.monotonic() + 30
            while not list(tmp_path.glob("sweep.csv.parts/part-*.parquet")) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert time.monotonic() < deadline
            other.set()
        return play(*batch)

    monkeypatch.setattr("tandem._executors.play_batch", waiting)
    assert tandem.sweep(path, seeds=2, workers=1, to=file).table.height == 2 and other.is_set()
    assert os.listdir(tmp_path) == ["sweep.csv"]


def test_rows_are_written_whatever_comes_at_the_end(path: tandem.Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cancel = _executors.Cores.cancel

    def interrupted(cores: _executors.Cores) -> None:
        cancel(cores)
        raise KeyboardInterrupt

    monkeypatch.setattr(_executors.Cores, "cancel", interrupted)
    play = fake(lambda _, seed: 1e6 if seed < 4 else None)
    monkeypatch.setattr("tandem._executors.play_batch", play)
    with pytest.raises(KeyboardInterrupt):
        tandem.sweep(path, seeds=4, workers=1, to=tmp_path / "sweep.csv")
    assert list(tmp_path.glob("sweep.csv.parts/part-*.parquet"))
    # The lock is open again.
    monkeypatch.undo()
    assert tandem.sweep(path, seeds=5, to=tmp_path / "sweep.csv").table.height == 5


def test_a_failed_call_leaves_nothing_in_the_way(path: tandem.Scenario, tmp_path: Path) -> None:
    file = tmp_path / "sweep.csv"
    with pytest.raises(tandem.CannotAnswerError):
        tandem.sweep(path, on="theory", to=file)
    assert not list(tmp_path.iterdir())
    # One of an earlier version, or that was killed.
    parts = tmp_path / "sweep.csv.parts"
    parts.mkdir()
    (parts / "sweep.json").write_text('{"fingerprint": "another"}')
    assert tandem.sweep(path, to=file).table.height == 1 and not parts.exists()


def test_a_file_has_one_sweep_at_a_time(path: tandem.Scenario, tmp_path: Path) -> None:
    file = tmp_path / "sweep.csv"
    other = Parts(tmp_path / "sweep.csv.parts", Plan.of(path, {}, "sim", None, 1), True)
    for resume in (True, False):
        with pytest.raises(tandem.RunError, match=r"sweep\.csv\.parts: another sweep to the same file is running"):
            tandem.sweep(path, to=file, resume=resume)
    other.close()
    assert tandem.sweep(path, to=file).table.height == 1


def test_a_run_has_one_row() -> None:
    rows, numbers = Rows(), len(tandem._tandem.NUMBERS)

    def add(runs: list[tuple[int, int, int]]) -> None:
        rows.add(columns_of(runs, np.ones(len(runs), dtype=bool), np.ones(len(runs)), np.ones((len(runs), numbers))))

    add([])
    assert rows.sorted()["seed"].tolist() == []
    add([(0, 1, 2), (0, 0, 2), (0, 0, 1)])
    add([(0, 0, 1), (1, 0, 1)])
    found = rows.sorted()
    assert [found[name].tolist() for name in ("engine", "point", "seed")] == [[0, 0, 0, 1], [0, 0, 1, 0], [1, 2, 2, 1]]


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
    result = tandem.sweep(path)
    with pytest.raises(ValueError, match=r"results\.2026-01: name it FILE\.csv"):
        result.to_csv("results.2026-01")
    with pytest.raises(ValueError, match=r"results\.csv: name it FILE\.parquet"):
        result.to_parquet("results.csv")


def test_a_sweep_is_pickled(path: tandem.Scenario, tmp_path: Path) -> None:
    result = tandem.sweep(path, OVER, seeds=2)
    again = pickle.loads(pickle.dumps(result))
    assert again.table == result.table and again.means == result.means
    assert (again.keys, again.errors, again.seconds) == (result.keys, result.errors, result.seconds)
    assert result.table is result.table
    again.to_csv(tmp_path / "again.csv")
    result.to_csv(tmp_path / "first.csv")
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "first.csv").read_bytes()
