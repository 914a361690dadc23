"""Outcomes: what an engine answers to a scenario."""

from __future__ import annotations

import webbrowser
from collections.abc import Iterable
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem import _tandem
from tandem._plots import plot_series
from tandem._table import Table


class Phases(NamedTuple):
    """Shares of time of the three phases of a split connection.

    Source: Baccelli, Carofiglio and Foss, *Proxy caching in split TCP* (2009), §19.2.
    """

    free: float
    """Bytes wait in the proxy, and there is room for more."""
    starvation: float
    """The proxy has nothing to forward."""
    backpressure: float
    """The proxy's buffer is full: the sender is held back."""


class Distribution(NamedTuple):
    """A distribution over time (buffers, in bytes) or over bytes (delays, in s)."""

    mean: float
    p50: float
    p99: float
    max: float


DISTRIBUTIONS = ("queue_bytes", "delay_s", "held_bytes", "proxy_delay_s")
"""The names of distributions."""


class Outcome:
    """The answer of an engine to a scenario with one seed.

    Numbers by name are attributes (``outcome.goodput_bps``); :meth:`numbers` has all of them.
    Flows, legs, links and series are tables of NumPy arrays. Units: bit/s, s, bytes.

    >>> from tandem import Scenario
    >>> outcome = Scenario(link={"rate": "10Mbit", "delay": "20ms"}, flow={"bytes": "1MB"}).run()
    >>> outcome.engine, outcome.seed, outcome.flows()["bytes"]
    ('sim', 1, array([1000000], dtype=uint64))
    >>> t, v = outcome.series("cwnd")
    >>> len(t) == len(v) > 0
    True
    """

    __slots__ = ("_data",)

    def __init__(self, data: _tandem.OutcomeData) -> None:
        self._data = data

    @property
    def scenario(self) -> str:
        """Name of the scenario."""
        return self._data.scenario

    @property
    def case(self) -> str:
        """Name of the case; empty if the scenario has none."""
        return self._data.case

    @property
    def set(self) -> dict[str, float | bool | str]:
        """The keys that :meth:`Scenario.with_ <tandem.Scenario.with_>` changed, in base units."""
        return self._data.set

    @property
    def engine(self) -> str:
        """Name of the engine."""
        return self._data.engine

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self._data.seed

    @property
    def valid(self) -> bool:
        """Whether the machine kept up with the scenario; if not, :attr:`warnings` tells how."""
        return self._data.valid

    @property
    def warnings(self) -> list[str]:
        """What to know before using the numbers, and which flows failed."""
        return self._data.warnings

    @property
    def ci95(self) -> dict[str, float]:
        """Half widths of 95 % confidence intervals of the engine's own means, by number."""
        return self._data.ci95

    @property
    def phases(self) -> Phases | None:
        """Shares of time of the proxy's phases; ``None`` if nothing is split."""
        phases = self._data.phases()
        return None if phases is None else Phases(*phases)

    def numbers(self) -> dict[str, float]:
        """The numbers by which outcomes are compared, by name; those that it lacks are left out."""
        found = ((name, self._data.number(name)) for name in _tandem.NUMBERS)
        return {name: number for name, number in found if number is not None}

    def number(self, name: str) -> float | None:
        """A number by its name; ``None`` if this outcome lacks it.

        Raises:
            KeyError: There is no number of this name.
        """
        check_number(name)
        return self._data.number(name)

    def __getattr__(self, name: str) -> float | None:
        if name in _tandem.NUMBERS:
            return self._data.number(name)
        raise AttributeError(f"an outcome has no {name!r}")

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *_tandem.NUMBERS]

    def distribution(self, name: str) -> Distribution | None:
        """A distribution; ``None`` if this outcome lacks it.

        Args:
            name: ``"queue_bytes"``: length of the bottleneck's queue. ``"delay_s"``: delay of bytes
                from end to end, from their first transmission by the sender's TCP until the
                receiver reads them. ``"held_bytes"``: payload held by the proxies.
                ``"proxy_delay_s"``: the same as ``"delay_s"``, if there is a proxy.

        Raises:
            KeyError: There is no distribution of this name.
        """
        if name not in DISTRIBUTIONS:
            raise KeyError(f"there is no distribution {name!r}: it can be {', '.join(DISTRIBUTIONS)}")
        found = self._data.distribution(name)
        return None if found is None else Distribution(*found)

    def flows(self, *, cross: bool = False) -> Table:
        """A row for each flow: ``flow``, ``reverse``, ``asked_bytes``, ``bytes``, ``start_s``,
        ``end_s``, ``duration_s``, ``acked_s``, ``kept_max_bytes``, ``goodput_bps``, ``error``.

        Args:
            cross: The connections of cross traffic instead.
        """
        return Table(self._data.flows(cross))

    def legs(self, *, cross: bool = False) -> Table:
        """A row for each TCP connection of each flow, from the sender on: ``flow``, ``leg`` (from
        1), ``control``, ``mean_rtt_s``, ``min_rtt_s``, ``retransmits``, ``mean_cwnd_pkt``,
        ``timeouts``.
        """
        return Table(self._data.legs(cross))

    def links(self) -> Table:
        """A row for each link: what was asked of it, and what it delivered."""
        return Table(self._data.links())

    def intervals(self) -> Table:
        """The goodput in each interval of the scenario."""
        return Table(self._data.intervals())

    def networks(self) -> Table:
        """A row for each of the networks in parallel."""
        return Table(self._data.networks())

    def series_names(self) -> Table:
        """A row for each quantity over time: ``what``, ``whose``, ``unit``."""
        names = self._data.series_names()
        return Table({key: [name[index] for name in names] for index, key in enumerate(("what", "whose", "unit"))})

    def series(self, what: str, whose: str | None = None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Times (s) and values of a quantity over time: read-only arrays, without a copy.

        Args:
            what: The quantity: ``"goodput"``, ``"flow_goodput"``, ``"cwnd"``, ``"rtt"``,
                ``"in_flight"``, ``"retransmits"``, ``"held"``, ``"queue"`` …
            whose: The object: ``"all"``, ``"flow 0"``, ``"flow 0 leg 2"``, ``"link 2"`` … Absent:
                the first one.

        Raises:
            KeyError: The outcome has no such series.
        """
        names = self._data.series_names()
        for index, (name, owner, _) in enumerate(names):
            if name == what and whose in (None, owner):
                return self._data.series_arrays(index)
        known = ", ".join(f"{name!r} of {owner!r}" for name, owner, _ in names) or "no series"
        raise KeyError(f"the outcome has no series {what!r} of {whose!r}: it has {known}")

    def all_series(self) -> Table:
        """All quantities over time in one table: ``what``, ``whose``, ``unit``, ``t``, ``v``."""
        names = self._data.series_names()
        arrays = [self._data.series_arrays(index) for index in range(len(names))]
        lengths = [len(t) for t, _ in arrays]
        texts = {}
        for index, key in enumerate(("what", "whose", "unit")):
            column = np.empty(len(names), dtype=object)
            column[:] = [name[index] for name in names]
            texts[key] = np.repeat(column, lengths)
        empty: list[NDArray[np.float64]] = [np.empty(0)]
        t = np.concatenate([t for t, _ in arrays] or empty)
        return Table({**texts, "t": t, "v": np.concatenate([v for _, v in arrays] or empty)})

    def to_json(self, *, series: bool = False) -> str:
        """The JSON that ``tandem run --json`` prints, to the byte: a list with one outcome.

        Args:
            series: Whether it has the quantities over time (``--series``).
        """
        return self._data.to_json(series)

    def plot(self, *, figure: Any = None) -> Any:
        """Goodput, windows, round trips and queues over time, as a ``matplotlib`` figure.

        Raises:
            ValueError: The engine does not compute any of them for the scenario.
        """
        case = f", {self.case}" if self.case else ""
        title = f"{self.scenario}{case} ({self.engine}, seed {self.seed})"
        names = [(what, whose) for what, whose, _ in self._data.series_names()]
        return plot_series(title, names, self.series, figure)

    def page(self) -> str:
        """A web page (HTML) with plots and tables, which loads nothing."""
        return page([self], title=self.scenario, about=self._data.about)

    def show(self) -> Any:
        """Shows the page: in a notebook below the cell, else in a browser."""
        return show(self.page())

    def _repr_html_(self) -> str:
        return frame(self.page())

    def __repr__(self) -> str:
        case = f", case {self.case!r}" if self.case else ""
        valid = "" if self.valid else ", NOT VALID"
        return f"<tandem.Outcome of {self.scenario!r}{case} on {self.engine}, seed {self.seed}: {self.goodput_bps or 0:.4g} bit/s{valid}>"

    def __str__(self) -> str:
        """The tables that ``tandem run`` prints."""
        return _tandem.table_text([self._data], 100)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.to_json(series=True), self._data.about)


def check_number(name: str) -> None:
    """Refuses names that no number of outcomes has.

    Raises:
        KeyError: There is no number of this name.
    """
    if name not in _tandem.NUMBERS:
        raise KeyError(f"there is no number {name!r}: it can be {', '.join(_tandem.NUMBERS)}")


def _restored(text: str, about: str) -> Outcome:
    return Outcome(_tandem.OutcomeData.from_json(text, about))


def page(outcomes: Iterable[Outcome], *, title: str = "Outcomes", about: str = "") -> str:
    """A web page (HTML) that compares outcomes, as ``tandem run --page``: it loads nothing."""
    return _tandem.page(title, about, [outcome._data for outcome in outcomes])


def frame(page: str, height: int = 600) -> str:
    """A page within another one, with its own style."""
    import html

    source = html.escape(page, quote=True)
    return f'<iframe srcdoc="{source}" style="width:100%;height:{height}px;border:0" sandbox="allow-scripts"></iframe>'


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook."""
    import sys

    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and shell.__class__.__name__ == "ZMQInteractiveShell"


def show(page: str) -> Any:
    """Shows a page: in a notebook below the cell, else in a browser."""
    if in_notebook():
        from IPython.display import HTML

        return HTML(frame(page))
    with NamedTemporaryFile("w", suffix=".html", prefix="tandem-", delete=False, encoding="utf-8") as file:
        file.write(page)
    webbrowser.open(Path(file.name).as_uri())
    return None
