"""Plots by matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem._table import Table

Curve = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Times, s, and values."""

PANELS = [
    ("goodput", "goodput, Mbit/s", 1e-6),
    ("flow_goodput", "goodput of flows, Mbit/s", 1e-6),
    ("cwnd", "congestion window, packets", 1.0),
    ("rtt", "round trip, ms", 1e3),
    ("queue", "queue, kB", 1e-3),
    ("held", "held by the proxy, kB", 1e-3),
]
"""The quantities over time that are drawn, each with its label and factor."""

MOST_CURVES = 10
"""Most curves of a panel that the legend names."""


def plot_series(title: str, names: Sequence[tuple[str, str]], curve: Callable[[str, str], Curve], figure: Any) -> Any:
    """A panel for each quantity over time. ``names`` are what there is, and of what: ``curve``
    returns each of them."""
    panels = [panel for panel in PANELS if any(name == panel[0] for name, _ in names)]
    if not panels:
        raise ValueError(f"cannot plot {title}: it has no series, because its engine does not compute any for this scenario")
    figure = figure or _figure(2.2 * len(panels))
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (what, label, factor) in zip(axes, panels):
        owners = [owner for name, owner in names if name == what]
        for owner in owners:
            t, v = curve(what, owner)
            axis.plot(t, v * factor, label=owner, linewidth=1)
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        if 1 < len(owners) <= MOST_CURVES:
            axis.legend(fontsize="small", ncols=min(len(owners), 4))
    axes[-1].set_xlabel("time, s")
    figure.suptitle(title, fontsize="medium")
    return figure


def plot_means(means: Table, cases: Sequence[str], keys: Sequence[str], y: str, x: str | None, figure: Any) -> Any:
    """A number against a key, a curve for each combination of the others, with intervals. ``cases``
    are those of the rows."""
    keys = [key for key in keys if key in means]
    x = x or next((key for key in keys if means[key].dtype.kind == "f"), None)
    if x is None:
        raise ValueError("no key that was swept has numbers: give x")
    if y not in means:
        raise ValueError(f"the sweep has no number {y!r}")
    others = [key for key in ["engine", *keys] if key != x and len(set(means[key].tolist())) > 1]
    names = [_curve_name(row, others, case) for case, row in zip(cases, zip(*(means[key] for key in others)) if others else [()] * means.height)]
    figure = figure or _figure(4.5)
    axis = figure.subplots()
    for name in dict.fromkeys(names):
        rows = np.flatnonzero([other == name for other in names])
        rows = rows[np.argsort(means[x][rows])]
        axis.errorbar(means[x][rows], means[y][rows], yerr=_finite(means[f"{y}_ci95"][rows]), label=name, marker="o", markersize=3, capsize=2, linewidth=1)
    if _spans_decades(means[x]):
        axis.set_xscale("log")
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    if len(set(names)) > 1:
        axis.legend(fontsize="small")
    return figure


def _curve_name(values: tuple[Any, ...], keys: list[str], case: str) -> str:
    parts = [str(value) if key == "engine" else f"{key.split('.')[-1]}={value:g}" if isinstance(value, float) else str(value) for key, value in zip(keys, values)]
    return ", ".join([*([case] if case else []), *parts])


def _finite(half: Any) -> Any:
    """Intervals that are known; a single seed has none."""
    return np.where(np.isfinite(half), half, 0.0)


def _spans_decades(values: Any) -> bool:
    return bool(np.min(values) > 0 and np.max(values) / np.min(values) >= 30)


def _figure(height: float) -> Any:
    """A figure that pyplot does not keep: it is freed with its last reference, and a notebook shows
    it once, as the value of its cell."""
    from matplotlib.figure import Figure

    return Figure(figsize=(8, height), layout="constrained")
