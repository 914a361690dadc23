"""Sweeps: a scenario with many values of its keys and many seeds."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tandem import _tandem
from tandem._executors import Cores, Dask, Executor
from tandem._outcome import check_number
from tandem._plan import Costs, Plan, Run, pack, pilots
from tandem._plots import plot_means
from tandem._rows import Columns, Parts, Rows, check_name, columns_of, write_table
from tandem._scenario import EngineName, Scenario
from tandem._table import Table

PILOTS = 4
"""How many runs for each worker tell what the rest costs."""

LEAST_SEEDS = 5
"""How many seeds a point has at least before ``until`` may find its intervals narrow enough: two or
three runs can agree by chance."""


class Sweep:
    """What a sweep found. It can be pickled, with its scenario."""

    def __init__(self, plan: Plan, rows: Columns, errors: list[str]) -> None:
        self._plan = plan
        self._rows = rows
        self.keys = [key for key, values in plan.over if len(values) > 1]
        """The keys that had several values."""
        self.errors = errors
        """Why runs have no row, with ``on_error="skip"``: each reason once, with its cases."""
        self.seconds = float(rows["seconds"].sum())
        """The sum of the times that the runs took, in s by the clock, those of earlier calls
        included. In the lab, where runs go side by side in one batch: the time from the end of the
        run before."""

    @functools.cached_property
    def table(self) -> Table:
        """A row for each run: ``scenario``, ``case``, ``engine``, ``seed``, ``valid``, each changed
        key in base units, and the numbers of outcomes. The table that ``tandem run --set … --to``
        writes, to the bit.
        """
        return Table(self._table().columns())

    @functools.cached_property
    def means(self) -> Table:
        """A row for each engine and point: ``seeds``, ``valid`` (whether all are), the changed keys,
        and the mean of each number over the seeds; ``…_ci95`` is half the width of its 95 %
        interval (Student's t). A number that some seed lacks is NaN. A changed key ``seed`` is the
        first seed of the point.
        """
        return Table(self._plan.points.means(list(self._plan.engines), self._rows).columns())

    def _table(self) -> _tandem.TableData:
        return self._plan.points.table(list(self._plan.engines), self._rows)

    def _cases(self) -> list[str]:
        """The case of each row of :attr:`means`, without the swept values; empty if it has none."""
        points = sorted(set(zip(self._rows["engine"].tolist(), self._rows["point"].tolist())))
        return [self._plan.case_of(point) or "" for _, point in points]

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Writes :attr:`table` to a Parquet file.

        Raises:
            ValueError: Its name does not end in ``.parquet``.
        """
        check_name(Path(path), (".parquet",))
        write_table(Path(path), self._table())

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes :attr:`table` to a CSV file.

        Raises:
            ValueError: Its name does not end in ``.csv``.
        """
        check_name(Path(path), (".csv",))
        write_table(Path(path), self._table())

    def __reduce__(self) -> tuple[Any, ...]:
        return Sweep, (self._plan, self._rows, self.errors)

    def plot(self, y: str = "goodput_bps", x: str | None = None, *, figure: Any = None) -> Any:
        """A number against a key, with intervals, as a ``matplotlib`` figure.

        Args:
            y: The number.
            x: The key. Absent: the first that was swept over numbers. There is a curve for each
                combination of the others.
            figure: A figure to draw on.
        """
        return plot_means(self.means, self._cases(), self.keys, y, x, figure)

    def _repr_html_(self) -> str:
        return self.means._repr_html_()

    def __repr__(self) -> str:
        return f"<tandem.Sweep: {self.table.height} runs, {self.means.height} points>\n{self.means!r}"


def sweep(
    scenario: Scenario,
    over: Mapping[str, Any] | None = None,
    *,
    on: EngineName | Iterable[EngineName] = "sim",
    seeds: int = 1,
    seed: int | None = None,
    until: Mapping[str, float] | None = None,
    max_seeds: int = 1000,
    tries: int = 1,
    workers: int | None = None,
    client: Any = None,
    to: str | os.PathLike[str] | None = None,
    resume: bool = True,
    on_error: Literal["raise", "skip"] = "raise",
    progress: bool = False,
) -> Sweep:
    """Plays every case of a scenario with every combination of values, each with several seeds.

    The table is the one that ``tandem run FILE --set KEY=… --seeds N --to FILE`` writes, whether it
    was played here or by Dask, and however often it was interrupted.

    Args:
        scenario: The scenario, perhaps with cases.
        over: For each key its values: a list, an array, or a text as on the command line
            (``"cubic,bbr"``, ``"10Mbit..50Mbit:10Mbit"``). ``link.2.rate`` is a key of the second
            link, ``split.*.buffer`` of all proxies.
        on: One engine, or several.
        seeds: How many seeds each point has. With ``until``: how many at first.
        seed: The first seed. Absent: that of the scenario.
        until: Adds seeds to each point until half the width of the 95 % interval of these numbers is
            at most this share of their means: ``{"goodput_bps": 0.02}``. A point has at least five
            seeds before it stops. The interval is nominal: because it is compared after each round
            of seeds, it contains the true mean somewhat less often than 95 % of the time. A number
            that some run of a point lacks has no interval; the point gets no more seeds for it, and
            a ``RuntimeWarning`` says so.
        max_seeds: With ``until``: how many seeds a point has at most.
        tries: How often a run is played at most, until the machine kept up with it (``lab``).
        workers: How many runs side by side, here. Absent: one for each core; in the lab as many as
            the machine carries. Runs in the lab are played after all others.
        client: A ``distributed.Client``: its workers play the runs. Runs in the lab need a machine
            for themselves: let a machine have one worker with one thread then.
        to: A file for the table (``.csv`` or ``.parquet``). Until it is complete, ``FILE.parts``
            has the rows so far, as Parquet files.
        resume: Whether rows in ``FILE.parts`` are kept, so that the same call continues a sweep
            that Ctrl-C, a crash or a lost cluster has ended. Otherwise they are discarded.
        on_error: ``"raise"``: the first run that fails ends the sweep. ``"skip"``: it has no row,
            and :attr:`Sweep.errors` says why.
        progress: Whether a line on stderr shows the progress; with Dask in a notebook, its bar too.

    Raises:
        ScenarioError: A value makes the scenario wrong. Nothing was played.
        ValueError, KeyError: An argument is wrong. Nothing was played.
        CannotAnswerError: An engine has no answer to a point.
        RunError: A run has failed, or Dask was lost; with ``to``, another call goes on. Or another
            sweep writes to the same file.

    >>> path = Scenario(link={"rate": "10Mbit", "delay": "20ms"}, flow={"bytes": "200kB"})
    >>> result = sweep(path, over={"link.1.rate": ["5Mbit", "10Mbit"]}, seeds=2)
    >>> result.means["link.1.rate"], result.table.height
    (array([ 5000000., 10000000.]), 4)
    """
    if on_error not in ("raise", "skip"):
        raise ValueError(f'on_error is "raise" or "skip", not {on_error!r}')
    if workers is not None and client is not None:
        raise ValueError("workers are those of this machine: leave it out, the client has workers of its own")
    _check_counts(seeds, max_seeds if until else seeds, tries, 1 if workers is None else workers)
    _check_until(until or {})
    plan = Plan.of(scenario, over or {}, on, seed, tries)
    path = None if to is None else Path(to)
    if path is not None:
        check_name(path)
    executor: Executor = Cores(workers) if client is None else Dask(client, progress)
    with contextlib.ExitStack() as at_the_end:
        parts = None
        if path is not None:
            parts = Parts(path.with_name(path.name + ".parts"), plan, resume)
            at_the_end.callback(parts.close)
            at_the_end.callback(parts.flush)
        # Ends first, and the rows are written even if another Ctrl-C comes meanwhile.
        at_the_end.callback(executor.cancel)
        playing = _Playing(plan, executor, parts, on_error, progress)
        playing.play(seeds, until or {}, max_seeds)
        result = Sweep(plan, playing.rows(), playing.error_texts())
        if path is not None and parts is not None:
            write_table(path, result._table())
            parts.remove()
    for text in playing.without_interval():
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    return result


def _check_counts(seeds: int, max_seeds: int, tries: int, workers: int) -> None:
    for name, count in {"seeds": seeds, "tries": tries, "workers": workers}.items():
        if count < 1:
            raise ValueError(f"{name} is {count}, and must be at least 1")
    if max_seeds < seeds:
        raise ValueError(f"max_seeds is {max_seeds}, and there are {seeds} seeds at first: give at least as many")


def _check_until(until: Mapping[str, float]) -> None:
    for name, share in until.items():
        check_number(name)
        if not 0 < share < math.inf:
            raise ValueError(f"until: the share of {name} is {share}: give one above 0, such as 0.02 for 2 % of the mean")


class _Playing:
    """A sweep while it is played."""

    def __init__(self, plan: Plan, executor: Executor, parts: Parts | None, on_error: str, progress: bool) -> None:
        self._plan = plan
        self._executor = executor
        self._parts = parts
        self._raises = on_error == "raise"
        self._rows = Rows()
        self._costs = Costs()
        self._errors: dict[str, list[str]] = {}
        self._failed: set[Run] = set()
        self._planned: set[Run] = set()
        self._without: dict[str, set[tuple[int, int]]] = {}
        self._bar = _Bar(progress)
        for columns in parts.read() if parts is not None else []:
            self._add(columns)

    def play(self, seeds: int, until: Mapping[str, float], max_seeds: int) -> None:
        """Plays all seeds of all points."""
        engines, points = range(len(self._plan.engines)), range(len(self._plan.points))
        counts = {(engine, point): 0 for engine in engines for point in points}
        wanted = dict.fromkeys(counts, seeds)
        while wanted:
            numbers = [(*key, number) for key, count in wanted.items() for number in range(counts[key], count)]
            self._play_all(self._plan.runs(numbers))
            counts |= wanted
            wanted = self._missing(counts, until, max_seeds) if until else {}

    def rows(self) -> Columns:
        """The planned rows; a call before may have left others."""
        rows = self._rows.sorted()
        keys = zip(rows["engine"].tolist(), rows["point"].tolist(), rows["seed"].tolist())
        kept = np.array([key in self._planned for key in keys], dtype=bool)
        return {name: column[kept] for name, column in rows.items()}

    def error_texts(self) -> list[str]:
        """Each reason once, with its cases."""
        return [f"{', '.join(map(repr, dict.fromkeys(cases)))}: {text}" if any(cases) else text for text, cases in self._errors.items()]

    def without_interval(self) -> list[str]:
        """Which numbers of ``until`` have no interval, and at how many points."""
        return [
            f"until: {name} has no interval at {len(points)} points, because some of their runs lack it; they got no more seeds for it"
            for name, points in self._without.items()
        ]

    def _play_all(self, runs: list[Run]) -> None:
        self._planned.update(runs)
        left = [run for run in runs if run not in self._rows.done and run not in self._failed]
        self._bar.expect(len(left))
        in_real_time = [engine for engine, real in enumerate(self._plan.in_real_time) if real]
        alone = [] if self._executor.packs_real_time else in_real_time
        packed = [run for run in left if run[0] not in alone]
        if packed and not self._costs.knows(packed):
            first = pilots(packed, PILOTS * self._executor.workers)
            self._play_batches([[run] for run in first])
            packed = sorted(set(packed) - set(first))
        self._play_batches(pack(packed, self._costs, self._executor.batch_seconds, self._executor.workers))
        for engine in alone:
            batch = [run for run in left if run[0] == engine]
            self._play_batches([batch] if batch else [])
        self._bar.end()

    def _play_batches(self, batches: list[list[Run]]) -> None:
        for answer in self._executor.play(self._plan, batches):
            if answer is not None:
                self._take(*answer)
            if self._parts is not None:
                self._parts.tick()

    def _take(self, batch: Sequence[Run], found: dict[str, Any]) -> None:
        """Keeps what was found about some runs."""
        errors = found["errors"]
        kept = np.array([index for index in range(len(batch)) if index not in errors], dtype=np.intp)
        runs = [batch[index] for index in kept]
        columns = columns_of(runs, found["valid"][kept], found["seconds"][kept], found["numbers"][kept])
        self._add(columns)
        if self._parts is not None and runs:
            self._parts.add(columns)
        for index, error in errors.items():
            self._fail(batch[index], error)
        self._bar.add(len(batch))

    def _add(self, columns: Columns) -> None:
        self._rows.add(columns)
        for engine, point, seconds in zip(columns["engine"].tolist(), columns["point"].tolist(), columns["seconds"].tolist()):
            self._costs.add(engine, point, seconds)

    def _fail(self, run: Run, error: Exception) -> None:
        self._failed.add(run)
        case = self._plan.points.describe(run[1])[0]
        if self._raises:
            named = type(error)(f"case {case!r}: {error}" if case else str(error))
            # The key, the reason …
            named.__dict__.update(error.__dict__)
            raise named
        self._errors.setdefault(str(error), []).append(case)

    def _missing(self, counts: Mapping[tuple[int, int], int], until: Mapping[str, float], max_seeds: int) -> dict[tuple[int, int], int]:
        """How many seeds the points need whose intervals are too wide."""
        rows = self.rows()
        keys = sorted(set(zip(rows["engine"].tolist(), rows["point"].tolist())))
        means = self._plan.points.means(list(self._plan.engines), rows).columns()
        wanted = {}
        for index, key in enumerate(keys):
            count = counts[key]
            ratio = max(self._excess(means, name, index, key, share) for name, share in until.items())
            if count < max_seeds and (ratio > 1 or count < LEAST_SEEDS):
                # The width falls with the root of the number. An estimate from few seeds is rough:
                # at most twice as many at once.
                enough = min(2 * count, max(count + 1, math.ceil(count * min(ratio, 2.0) ** 2)))
                wanted[key] = min(max_seeds, max(LEAST_SEEDS, enough))
        return wanted

    def _excess(self, means: Mapping[str, Any], name: str, index: int, key: tuple[int, int], share: float) -> float:
        """The width of an interval over the one that is wanted; 0 if a run lacks the number, so
        that no seed can give it an interval.
        """
        mean, half = (float(means[column][index]) if column in means else math.nan for column in (name, f"{name}_ci95"))
        if math.isnan(half):
            self._without.setdefault(name, set()).add(key)
            return 0.0
        if half == 0:
            return 0.0
        return half / (share * abs(mean)) if mean else math.inf


class _Bar:
    """A line on stderr: how many runs are done, and how long the rest will take."""

    def __init__(self, shown: bool) -> None:
        self._shown = shown
        self._all = self._done = 0
        self._begun = self._drawn = time.monotonic()

    def expect(self, runs: int) -> None:
        self._all += runs

    def add(self, runs: int) -> None:
        self._done += runs
        now = time.monotonic()
        if self._shown and now - self._drawn > 0.2:
            self._drawn = now
            left = (now - self._begun) / self._done * (self._all - self._done)
            print(f"\rsweep: {self._done} of {self._all} runs, {left:.0f} s left \033[K", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._shown:
            print(f"\rsweep: {self._done} of {self._all} runs\033[K", file=sys.stderr, flush=True)
