"""The models of the papers as functions on arrays.

Every argument may be a number or an array; arrays are broadcast as NumPy does, and the result has
their common shape. Rates of the fluid models are in packets/s (packets of 1500 bytes: multiply by
12 000 for bit/s), buffers in packets, times in s, unless a name or a docstring says otherwise. A
parameter without a meaning, such as a negative round trip or NaN, raises ``ValueError``.

Sources:

- Baccelli, Carofiglio and Foss, *Proxy caching in split TCP: dynamics, stability and tail
  asymptotics* (2009): one connection and two in tandem.
- Wei, Zhang, Zang, Kurose and Towsley (2005): slow start.
- Hoekstra, van der Mei and Bosman (2011): the score, the CAN chain, the wireless network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tandem import _tandem

Array = NDArray[np.float64]
LossUnit = Literal["packet", "second"]
"""What a loss rate counts by. ``"packet"``: rate-dependent losses, a probability for each packet.
``"second"``: rate-independent losses, a number for each second."""

__all__ = [
    "CanMeans",
    "SplitMeans",
    "SplitRates",
    "SufficientBuffer",
    "can",
    "loss_probability",
    "mean_rate",
    "rate_density",
    "rate_moment",
    "rate_survival",
    "score",
    "slow_start_bytes",
    "slow_start_time",
    "smoothed_throughput",
    "split_load",
    "split_means",
    "split_rates",
    "splitting_gain",
    "sufficient_buffer",
    "transfer_time",
    "wlan_throughput",
]


def _broadcast(*arguments: ArrayLike) -> tuple[list[Array], tuple[int, ...]]:
    """Arrays of one dimension and equal length, and the shape that they have together."""
    arrays = np.broadcast_arrays(*(np.asarray(argument, dtype=np.float64) for argument in arguments))
    return [np.ascontiguousarray(array).ravel() for array in arrays], arrays[0].shape


def _apply(function: Callable[..., Array], *arguments: ArrayLike) -> Array:
    arrays, shape = _broadcast(*arguments)
    return function(*arrays).reshape(shape)


def _per_packet(unit: str) -> bool:
    if unit not in ("packet", "second"):
        raise ValueError(f"losses are by \"packet\" or by \"second\", not by {unit!r}")
    return unit == "packet"


def mean_rate(rtt: ArrayLike, loss: ArrayLike, *, loss_per: LossUnit = "packet") -> Array:
    """The square-root law: mean rate of a connection in congestion avoidance, in packets/s.

    Φ √(α/λ) with α = 1/rtt² and Φ = 1.3098 for losses by packet (Baccelli (19.3); Ott, Kemperman
    and Mathis 1996); 2α/λ for losses by second (§19.4.2).

    Args:
        rtt: Round-trip time, s.
        loss: Loss probability of a packet, or losses/s.
        loss_per: What ``loss`` counts by.

    >>> float(mean_rate(0.1, 0.01).round(2))
    130.98
    >>> mean_rate([0.1, 0.2], 0.01).round(2)
    array([130.98,  65.49])
    """
    return rate_moment(1, rtt, loss, loss_per=loss_per)


def rate_moment(order: int, rtt: ArrayLike, loss: ArrayLike, *, loss_per: LossUnit = "packet") -> Array:
    """``E[Xⁿ]`` of the rate X (packets/s) in steady state, for n = ``order``; from the generator of
    Baccelli (19.1). Arguments as in :func:`mean_rate`.
    """
    per_packet = _per_packet(loss_per)
    return _apply(lambda rtt, loss: _tandem.aimd_moment(rtt, loss, per_packet, order), rtt, loss)


def loss_probability(rtt: ArrayLike, loss: ArrayLike, *, loss_per: LossUnit = "packet") -> Array:
    """The share of packets that is lost. Arguments as in :func:`mean_rate`."""
    per_packet = _per_packet(loss_per)
    return _apply(lambda rtt, loss: _tandem.aimd_loss_probability(rtt, loss, per_packet), rtt, loss)


def rate_density(x: ArrayLike, rtt: ArrayLike, loss: ArrayLike, *, loss_per: LossUnit = "packet") -> Array:
    """The stationary density of the rate at ``x`` packets/s (Baccelli §19.4). Other arguments as in
    :func:`mean_rate`.
    """
    per_packet = _per_packet(loss_per)
    return _apply(lambda x, rtt, loss: _tandem.aimd_density(x, rtt, loss, per_packet), x, rtt, loss)


def rate_survival(x: ArrayLike, rtt: ArrayLike, loss: ArrayLike, *, loss_per: LossUnit = "packet") -> Array:
    """The share of time in which the rate is above ``x`` packets/s. Other arguments as in
    :func:`mean_rate`.
    """
    per_packet = _per_packet(loss_per)
    return _apply(lambda x, rtt, loss: _tandem.aimd_survival(x, rtt, loss, per_packet), x, rtt, loss)


Pair = tuple[ArrayLike, ArrayLike]


class _Paths(NamedTuple):
    """Split connections, as the extension module takes them."""

    arrays: dict[str, Array]
    kind: dict[str, bool]
    shape: tuple[int, ...]

    def named(self, found: dict[str, Array]) -> dict[str, Any]:
        return {name: array.reshape(self.shape) for name, array in found.items()}


def _paths(rtt: Pair, loss: Pair, loss_per: LossUnit | tuple[LossUnit, LossUnit], buffer: ArrayLike, capacity: Pair, loss_basis: str) -> _Paths:
    names = ["rtt_1", "loss_1", "rtt_2", "loss_2", "buffer", "capacity_1", "capacity_2"]
    (rtt_1, rtt_2), (loss_1, loss_2), (capacity_1, capacity_2) = rtt, loss, capacity
    arrays, shape = _broadcast(rtt_1, loss_1, rtt_2, loss_2, buffer, capacity_1, capacity_2)
    first, second = (loss_per, loss_per) if isinstance(loss_per, str) else loss_per
    if loss_basis not in ("window", "sending"):
        raise ValueError(f"the loss basis is \"window\" or \"sending\", not {loss_basis!r}")
    kind = {"per_packet_1": _per_packet(first), "per_packet_2": _per_packet(second), "by_sending": loss_basis == "sending"}
    return _Paths(dict(zip(names, arrays)), kind, shape)


def split_load(rtt: Pair, loss: Pair, *, loss_per: LossUnit | tuple[LossUnit, LossUnit] = "packet") -> Array:
    """The load ρ of a split connection: an unbounded buffer is stable below 1.

    αμ/(βλ) if both legs have the same kind of losses (Baccelli Lemma 19.7, §19.4.5), else the ratio
    of their mean rates.

    Args:
        rtt: Round-trip times of the leg before the proxy and of the leg behind it, s.
        loss: Their losses, as in :func:`mean_rate`.
        loss_per: What they count by: for both legs, or a pair.

    >>> float(split_load((0.04, 0.02), (0.01, 0.01)))
    0.25
    """
    paths = _paths(rtt, loss, loss_per, np.inf, (np.inf, np.inf), "window")
    return _tandem.split_load(paths.arrays, paths.kind).reshape(paths.shape)


class SplitRates(NamedTuple):
    """The stationary state of split connections. ``…_ci95``: half widths of 95 % intervals."""

    rate_pps: Array
    """Throughput, packets/s."""
    rate_pps_ci95: Array
    free: Array
    """Share of time in which bytes wait in the proxy, and there is room for more."""
    starvation: Array
    """Share of time in which the proxy has nothing to forward."""
    backpressure: Array
    """Share of time in which the proxy's buffer is full."""
    queue_pkt: Array
    """Mean buffer content, packets."""
    queue_pkt_ci95: Array
    delay_s: Array
    """Mean end-to-end delay of a packet, s."""
    delay_s_ci95: Array


def split_rates(
    rtt: Pair,
    loss: Pair,
    *,
    buffer: ArrayLike = np.inf,
    capacity: Pair = (np.inf, np.inf),
    loss_per: LossUnit | tuple[LossUnit, LossUnit] = "packet",
    loss_basis: Literal["window", "sending"] = "window",
    seed: int = 1,
    losses: int = 100_000,
) -> SplitRates:
    """Throughput, phases, buffer content and delay of a split connection.

    From a trajectory of the fluid model of Baccelli (19.4) to (19.8), without a time step, on all
    cores. Ctrl-C ends it.

    Args:
        rtt: Round-trip times of the leg before the proxy and of the leg behind it, s.
        loss: Their losses, as in :func:`mean_rate`.
        buffer: The proxy's buffer, packets.
        capacity: Capacities of the legs, packets/s.
        loss_per: What the losses count by: for both legs, or a pair.
        loss_basis: What the intensity of losses by packet is proportional to while a leg sends less
            than its window permits: the window (as printed), or what is sent.
        seed: Seed of the trajectory.
        losses: Its length, in losses of both legs.

    Raises:
        ValueError: An unbounded buffer is not stable (:func:`split_load` is not below 1).

    >>> rates = split_rates((0.04, 0.02), (0.01, 0.01), buffer=[20, 1000], losses=20_000)
    >>> bool(rates.rate_pps[0] < rates.rate_pps[1])
    True
    """
    paths = _paths(rtt, loss, loss_per, buffer, capacity, loss_basis)
    return SplitRates(**paths.named(_tandem.split_rates(paths.arrays, paths.kind, seed, losses)))


class SplitMeans(NamedTuple):
    """Means of the stationary state of split connections."""

    rate_pps: Array
    """Throughput, packets/s."""
    queue_pkt: Array
    """Mean buffer content, packets."""


def split_means(
    rtt: Pair,
    loss: Pair,
    *,
    buffer: ArrayLike,
    capacity: Pair = (np.inf, np.inf),
    loss_per: LossUnit | tuple[LossUnit, LossUnit] = "packet",
    loss_basis: Literal["window", "sending"] = "window",
    cells: int = 24,
) -> SplitMeans:
    """Throughput and buffer content of a split connection with a bounded buffer, without chance.

    From the stationary distribution of the model of :func:`split_rates` on a grid, on all cores.

    Args:
        buffer: The proxy's buffer, packets, bounded.
        cells: Cells of the first leg's rate on the coarse grid; 24 give about three digits.
    """
    paths = _paths(rtt, loss, loss_per, buffer, capacity, loss_basis)
    return SplitMeans(**paths.named(_tandem.split_means(paths.arrays, paths.kind, cells)))


class SufficientBuffer(NamedTuple):
    """Buffers that suffice."""

    buffer_pkt: Array
    """Size, packets."""
    buffer_pkt_ci95: Array
    """Half the width of its 95 % interval."""
    wait_s: Array
    """Mean queueing delay in it, s."""


def sufficient_buffer(
    rtt: Pair,
    loss: Pair,
    *,
    share: float = 0.99,
    loss_per: LossUnit | tuple[LossUnit, LossUnit] = "packet",
    seed: int = 1,
    losses: int = 200_000,
) -> SufficientBuffer:
    """The smallest buffer that leaves a share of the throughput with an unbounded one.

    Open in the paper (Baccelli §19.5); found by bisection with common random numbers, on all cores.

    Args:
        rtt: Round-trip times of the leg before the proxy and of the leg behind it, s.
        loss: Their losses, as in :func:`mean_rate`.
        share: The share, below 1.
        loss_per: What the losses count by: for both legs, or a pair.
        seed: Seed of the trajectories.
        losses: Their length, in losses of both legs.

    Raises:
        ValueError: The losses are too few for a result.
    """
    paths = _paths(rtt, loss, loss_per, np.inf, (np.inf, np.inf), "window")
    return SufficientBuffer(**paths.named(_tandem.sufficient_buffer(paths.arrays, paths.kind, share, seed, losses)))


Downstream = Literal["slow-start", "full"]
"""The leg behind the proxy at the start: in slow start, or with a window that fills it."""


def _slow_start(what: str, rtt: Pair, rate: ArrayLike, packet: ArrayLike, growth: ArrayLike, size: ArrayLike, downstream: str) -> Array:
    if downstream not in ("slow-start", "full"):
        raise ValueError(f"the leg behind the proxy is in \"slow-start\" or \"full\", not {downstream!r}")
    full = downstream == "full"

    def of(upstream: Array, below: Array, rate: Array, packet: Array, growth: Array, size: Array) -> Array:
        return _tandem.slow_start(what, upstream, below, rate, packet, growth, size, full)

    return _apply(of, rtt[0], rtt[1], rate, packet, growth, size)


def slow_start_time(
    rtt: Pair, rate: ArrayLike, *, split: bool, packet: ArrayLike = 1500, growth: ArrayLike = 2, downstream: Downstream = "slow-start"
) -> Array:
    """Time until a transfer sends at the rate that its bottleneck assigns, s (Wei et al. §IV-A).

    End to end: (r₁ + r₂) log₂((r₁ + r₂) v/s). Split: r₂ log₂(r₂ v/s), or r₁ log₂(r₂ v/s) if the leg
    behind the proxy is full from the start.

    Args:
        rtt: Round-trip times before and behind the proxy, s.
        rate: The assigned rate v, bytes/s.
        split: Whether the proxy splits the connection.
        packet: Size of a packet s, bytes.
        growth: Factor by which the window grows each round trip; 1.5 with delayed acknowledgements.
        downstream: How the leg behind the proxy starts.

    >>> float(slow_start_time((0.03, 0.8), 16_000, split=False).round(2))
    2.61
    """
    return _slow_start("split" if split else "regular", rtt, rate, packet, growth, 0.0, downstream)


def slow_start_bytes(rtt: Pair, rate: ArrayLike, *, packet: ArrayLike = 1500, growth: ArrayLike = 2) -> Array:
    """Bytes sent end to end before the assigned rate is reached. Arguments as in
    :func:`slow_start_time`.
    """
    return _slow_start("bytes_before", rtt, rate, packet, growth, 0.0, "slow-start")


def transfer_time(
    size: ArrayLike, rtt: Pair, rate: ArrayLike, *, split: bool, packet: ArrayLike = 1500, growth: ArrayLike = 2, downstream: Downstream = "slow-start"
) -> Array:
    """Time to send a file of ``size`` bytes, s. Other arguments as in :func:`slow_start_time`."""
    return _slow_start("transfer_split" if split else "transfer_regular", rtt, rate, packet, growth, size, downstream)


def splitting_gain(
    size: ArrayLike, rtt: Pair, rate: ArrayLike, *, packet: ArrayLike = 1500, growth: ArrayLike = 2, downstream: Downstream = "slow-start"
) -> Array:
    """The time that a split saves for a file of ``size`` bytes, over the time end to end; negative if
    it is slower. Other arguments as in :func:`slow_start_time`.
    """
    return _slow_start("gain", rtt, rate, packet, growth, size, downstream)


def score(queued: ArrayLike, throughput: ArrayLike, srtt: ArrayLike) -> Array:
    """The score of a path of a bond, s: the estimated time until data that it is assigned now
    reaches the peer. Q/G + sRTT/2 (Hoekstra (7)).

    Args:
        queued: Bytes that wait before the path (Q).
        throughput: Its estimated throughput, bytes/s (G). Below 1448 it counts as 1448, a segment a
            second.
        srtt: Its smoothed round-trip time, s.

    >>> float(score(66_000, 660_000, 0.020))
    0.11
    """
    return _apply(_tandem.score, queued, throughput, srtt)


def smoothed_throughput(last: ArrayLike, measured: ArrayLike, *, alpha: float = 0.4) -> Array:
    """The next estimate of a path's throughput, bytes/s: α·last + (1 − α)·measured (Hoekstra (8)),
    at least 1448, a segment a second.

    Args:
        last: The estimate before, bytes/s; NaN: there is none.
        measured: The throughput of an interval, bytes/s.
        alpha: Weight of the estimate before, below 1; the paper's value is 0.4 (§V-A).

    >>> smoothed_throughput([500e3, np.nan], 1000e3)
    array([ 800000., 1000000.])
    """
    return _apply(lambda last, measured: _tandem.smoothed(last, measured, alpha), last, measured)


class CanMeans(NamedTuple):
    """Stationary means of the CAN chain. The last axis is the class: the foreground, then the
    background of each network. Errors are absolute, of the power series.
    """

    jobs: Array
    """Mean number of jobs."""
    jobs_error: Array
    sojourn_s: Array
    """Mean sojourn time, s; NaN for a class without arrivals."""
    sojourn_s_error: Array


def can(
    foreground: ArrayLike,
    backgrounds: Sequence[ArrayLike],
    *,
    sizes: Sequence[ArrayLike] | None = None,
    speeds: Sequence[ArrayLike] | None = None,
    weight: ArrayLike = 1.0,
) -> CanMeans:
    """Files that are split over several networks, each shared with files of its own: the concurrent
    access network of Hoekstra et al. (§II), solved by a power series to ten digits.

    Args:
        foreground: Arrival rate of the split files, 1/s.
        backgrounds: Arrival rate of the own files of each network, 1/s; one to four networks.
        sizes: Mean size of the files of each class, the foreground's first. Absent: 1, so that
            arrival rates are loads, as in the paper's tables.
        speeds: Capacity of each network, size/s. Absent: 1.
        weight: Weight of a split file in a network against an own file; 1 is fair (§VII).

    Raises:
        ValueError: A load is not below 1.

    >>> can(0.5, [0.3, 0.3]).sojourn_s.round(4).tolist()
    [0.9941, 2.0133, 2.0133]
    """
    count = len(backgrounds)
    classes = [foreground, *backgrounds]
    sizes = [1.0] * (count + 1) if sizes is None else list(sizes)
    speeds = [1.0] * count if speeds is None else list(speeds)
    arrays, shape = _broadcast(*classes, *sizes, *speeds, weight)
    cut = [len(classes), len(classes) + len(sizes)]
    found = _tandem.can(arrays[: cut[0]], arrays[cut[0] : cut[1]], arrays[cut[1] : -1], arrays[-1])
    return CanMeans(**{name: matrix.reshape(*shape, count + 1) for name, matrix in found.items()})


def wlan_throughput(segments: ArrayLike = 2, rate_bps: ArrayLike = 11e6, *, backoffs: Literal["segments", "all"] = "segments") -> Array:
    """Payload throughput of a long download over an IEEE 802.11b network without collisions, bit/s
    (the parameters of Hoekstra et al., Table IV).

    Args:
        segments: Segments that one TCP acknowledgement answers.
        rate_bps: Rate of the network, bit/s.
        backoffs: Which backoffs take time: those before segments, or those before acknowledgements
            too.
    """
    if backoffs not in ("segments", "all"):
        raise ValueError(f"backoffs are of \"segments\" or of \"all\", not {backoffs!r}")
    return _apply(lambda segments, rate: _tandem.wlan_throughput(segments, rate, backoffs == "all"), segments, rate_bps)
