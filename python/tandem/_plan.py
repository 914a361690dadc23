"""The plan of a sweep: its points, the runs of each, and how runs are packed into batches."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tandem import _tandem
from tandem._plain import plain_values
from tandem._scenario import Scenario, Sets

Run = tuple[int, int, int]
"""A run: the index of its engine, the number of its point, its seed."""

Variant = tuple["str | None", Sets]
"""A point for :func:`play_batch`: its case, and a value for each changed key."""


@dataclass(frozen=True)
class Plan:
    """Every point of a sweep, in the order of the command line: each case with every combination of
    the values, the last key fastest.
    """

    scenario: Scenario
    engines: tuple[str, ...]
    over: Sets
    first_seed: int | None
    tries: int
    points: _tandem.Points
    seeds: list[int]
    """The seed that each point has in the scenario."""
    in_real_time: tuple[bool, ...]
    """Whether each engine takes the time that it simulates."""

    @classmethod
    def of(cls, scenario: Scenario, over: Mapping[str, Any], on: str | Iterable[str], seed: int | None, tries: int) -> Plan:
        """The plan of the arguments of a sweep.

        Raises:
            ValueError: There is no such engine, or it comes twice.
            ScenarioError: A value makes the scenario wrong.
        """
        engines = (on,) if isinstance(on, str) else tuple(on)
        if not engines or len(set(engines)) < len(engines):
            raise ValueError(f"on is {list(engines)}: give at least one engine, and each once")
        swept = [(key, _values(key, values)) for key, values in over.items()]
        sets = [(key, values) for key, values in scenario._sets if key not in over] + swept
        return cls._of(scenario, engines, sets, seed, tries)

    @classmethod
    def _of(cls, scenario: Scenario, engines: tuple[str, ...], sets: Sets, seed: int | None, tries: int) -> Plan:
        in_real_time = tuple(_tandem.runs_in_real_time(name) for name in engines)
        points = _tandem.Points(scenario._file, scenario._case, sets)
        return cls(scenario, engines, sets, seed, tries, points, points.seeds(), in_real_time)

    def __reduce__(self) -> tuple[Any, ...]:
        return Plan._of, (self.scenario, self.engines, self.over, self.first_seed, self.tries)

    @property
    def combinations(self) -> int:
        """The number of combinations of the values of all keys."""
        return math.prod(len(values) for _, values in self.over)

    def case_of(self, point: int) -> str | None:
        """The case of a point; ``None`` if the scenario has none."""
        cases = self.scenario.cases
        return cases[point // self.combinations] if cases else None

    def variant(self, point: int) -> Variant:
        """A point with the one value of each key that it has."""
        rest = point % self.combinations
        chosen: Sets = []
        for key, values in reversed(self.over):
            rest, index = divmod(rest, len(values))
            chosen.append((key, [values[index]]))
        return self.case_of(point), chosen[::-1]

    def seed(self, point: int, number: int) -> int:
        """The seed of a point's run with this number, from 0."""
        first = self.seeds[point] if self.first_seed is None else self.first_seed
        return first + number

    def runs(self, numbers: Iterable[tuple[int, int, int]]) -> list[Run]:
        """Runs by engine, point and the number of the seed."""
        return [(engine, point, self.seed(point, number)) for engine, point, number in numbers]

    def fingerprint(self) -> str:
        """What tells sweeps apart whose rows must not be mixed. The number of seeds is not part of
        it: a sweep can be continued with more of them.
        """
        scenario = self.scenario
        # Of the files that the scenario knows only those that the points name: it shares them with
        # all scenarios that were made of it.
        hashes = {name: hashlib.sha256(content).hexdigest() for name, content in self.points.files.items()}
        parts = [_tandem.__version__, scenario._file.text, hashes, scenario._case, self.over, self.engines, self.first_seed, self.tries]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _values(key: str, values: Any) -> list[str]:
    """The values of a key as TOML: of a list, an array, or a text as on the command line."""
    found = _tandem.range_literals(key, values) if isinstance(values, str) else _tandem.literals(key, plain_values(values))
    if not found:
        raise ValueError(f"{key} has no values")
    return found


@dataclass
class Costs:
    """What runs have taken, s: of each point, and of each engine."""

    points: dict[tuple[int, int], tuple[float, int]] = field(default_factory=dict)
    engines: dict[int, tuple[float, int]] = field(default_factory=dict)

    def add(self, engine: int, point: int, seconds: float) -> None:
        """Notes what a run took."""
        known, count = self.points.get((engine, point), (0.0, 0))
        self.points[engine, point] = known + seconds, count + 1
        known, count = self.engines.get(engine, (0.0, 0))
        self.engines[engine] = known + seconds, count + 1

    def of(self, run: Run) -> float:
        """What a run will take: as others of its point did, else as those of its engine did."""
        known, count = self.points.get(run[:2]) or self.engines.get(run[0]) or (0.0, 1)
        return known / count

    def knows(self, runs: Iterable[Run]) -> bool:
        """Whether there is an estimate for all of these."""
        return all(engine in self.engines for engine in {run[0] for run in runs})


def pack(runs: Sequence[Run], costs: Costs, seconds: float, workers: int) -> list[list[Run]]:
    """Runs in batches that take about so long each, but at least four for each worker, so that all
    workers end at about the same time.

    >>> costs = Costs()
    >>> costs.add(0, 0, 0.5)
    >>> [len(batch) for batch in pack([(0, 0, seed) for seed in range(16)], costs, 2.0, 1)]
    [4, 4, 4, 4]
    """
    whole = sum(costs.of(run) for run in runs)
    most = min(seconds, whole / (4 * workers))
    batches: list[list[Run]] = []
    filled = math.inf
    for run in runs:
        cost = costs.of(run)
        # A batch takes half of a run more rather than less.
        if filled + cost / 2 > most:
            batches.append([])
            filled = 0.0
        batches[-1].append(run)
        filled += cost
    return batches


def pilots(runs: Sequence[Run], count: int) -> list[Run]:
    """So many runs, evenly spaced, and one of each engine at least: their cost is that of the rest."""
    step = max(1, len(runs) // count)
    first = {run[0]: run for run in reversed(runs)}
    return sorted({*first.values(), *runs[::step][:count]})


def play_batch(
    scenario: Scenario,
    variants: list[Variant],
    items: list[tuple[str, int, int]],
    jobs: int | None,
    tries: int,
    cancel: Any = None,
    each: Callable[[int, dict[str, Any]], object] | None = None,
) -> dict[str, Any]:
    """Plays a batch: its runs by engine, index of the variant and seed. Runs on any thread, process
    or machine with the same version of this package, which it returns as ``version``.

    With ``each``, that function gets what came of each run as soon as it has ended, with its place
    in ``items``, on any thread; nothing else is returned then.
    """
    cancel = cancel or _tandem.Cancel()
    found = _tandem.play(scenario._file, variants=variants, items=items, jobs=jobs, tries=tries, cancel=cancel, each=each)
    return {**found, "version": _tandem.__version__}


def arguments(plan: Plan, batch: Sequence[Run]) -> tuple[list[Variant], list[tuple[str, int, int]]]:
    """The arguments of :func:`play_batch` for a batch, after the scenario."""
    points = list(dict.fromkeys(point for _, point, _ in batch))
    index = {point: position for position, point in enumerate(points)}
    items = [(plan.engines[engine], index[point], seed) for engine, point, seed in batch]
    return [plan.variant(point) for point in points], items
