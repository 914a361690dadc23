"""Advice: whether to split a path, where, with which controller and how much buffer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tandem import _tandem
from tandem._scenario import Scenario
from tandem._table import Table


@dataclass(frozen=True)
class Advice:
    """The advice on a path, with what it rests on."""

    verdict: Literal["split", "does_not_pay", "cannot_tell"]
    """``"cannot_tell"``: the gain cannot be told from chance."""
    gain: float
    """What the best split gains: the ratio of mean flow times, or of goodputs, above 1 if better."""
    gain_ci95: float
    """Half the width of its 95 % interval."""
    after: int
    """The link after which the proxy of the best split stands, from 1."""
    control: str
    """Its controller."""
    buffer_bytes: int | None
    """The buffer to configure in a real proxy, if the advice is to split and one suffices."""
    candidates: Table
    """A row for each candidate, the best first."""
    buffers: Table
    """What smaller buffers leave of the performance: ``buffer_bytes``, ``fraction``, ``ci95``."""
    text: str
    """The advice in words, as ``tandem advise`` prints it."""
    json: dict[str, Any]
    """All of it, as ``tandem advise --json`` prints it."""

    def __str__(self) -> str:
        return self.text


def advise(
    path: Scenario | Iterable[Mapping[str, Any]],
    *,
    bytes: float | str | None = None,
    flows: int | None = None,
    seeds: int = 10,
    workers: int | None = None,
) -> Advice:
    """Whether splitting a path pays, and with which settings, by the simulator.

    Simulates the path as it is, end to end with other controllers, and split after each link with
    each controller, all with the same seeds.

    Args:
        path: A scenario; or links, from the servers' side on, each a dict with ``rate``, ``delay``
            (one way) and perhaps ``loss``, over which clients download.
        bytes: With links: the size of each download, in bytes. Absent: 20 MB.
        flows: With links: the number of downloads at the same time. Absent: one.
        seeds: Number of seeds, at least 2.
        workers: How many runs side by side. Absent: one for each core.

    >>> advice = advise([{"rate": "1Gbit", "delay": "4ms"}, {"rate": "50Mbit", "delay": "300ms"}], bytes="1MB", seeds=2)
    >>> advice.verdict
    'split'

    Raises:
        ValueError: The path has one link, or networks in parallel; or an argument is wrong.
        CannotAnswerError: No seed has a result that can be compared.
    """
    if seeds < 2:
        raise ValueError("an interval needs at least 2 seeds")
    if workers is not None and workers < 1:
        raise ValueError(f"workers is {workers}, and must be at least 1")
    if isinstance(path, Scenario):
        if bytes is not None or flows is not None:
            raise ValueError('a scenario has flows of its own: leave bytes and flows out, or change them by path.with_({"flow.1.bytes": "1MB"})')
    else:
        flow = {"count": 1 if flows is None else flows, "bytes": "20MB" if bytes is None else bytes, "opens": "receiver"}
        path = Scenario(name="path", link=list(path), flow=flow)
    text, words = _tandem.path_advice(path._file, case=path._case, sets=path._sets, seeds=seeds, jobs=workers)
    found = json.loads(text)
    advice = found["advice"]
    best = advice["split"]
    return Advice(
        verdict=advice["verdict"],
        gain=best["gain"],
        gain_ci95=best["half"],
        after=best["way"]["after"],
        control=best["way"]["control"],
        buffer_bytes=found["enough_bytes"],
        candidates=_candidates(advice["findings"]),
        buffers=_buffers(found["buffers"]),
        text=words,
        json=found,
    )


def _candidates(findings: list[dict[str, Any]]) -> Table:
    def numbers(key: str) -> list[float]:
        return [float("nan") if finding.get(key) is None else float(finding[key]) for finding in findings]

    ways = [finding["way"] for finding in findings]
    return Table(
        {
            "after": [float("nan") if way["after"] is None else float(way["after"]) for way in ways],
            "control": [way["control"] for way in ways],
            "capacity": [way["capacity"] for way in ways],
            "gain": numbers("gain"),
            "gain_ci95": numbers("half"),
            "value": numbers("value"),
            "drops": numbers("drops"),
            "queue_max_bytes": numbers("queue_max_bytes"),
            "jain": numbers("jain"),
            "gain_by_equations": numbers("by_equations"),
        }
    )


def _buffers(results: list[dict[str, Any]]) -> Table:
    return Table(
        {
            # With types: there may be no rows.
            "buffer_bytes": np.array([result["buffer_bytes"] for result in results], dtype=np.int64),
            "fraction": np.array([result["leaves"] for result in results], dtype=np.float64),
            "ci95": np.array([result["half"] for result in results], dtype=np.float64),
        }
    )
