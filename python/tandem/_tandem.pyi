"""The parts of the package that are written in Rust. Private: the package documents them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[np.float64]
_Sets = list[tuple[str, list[str]]]

__version__: str
NUMBERS: list[str]
CONTROLLERS: list[str]

class ScenarioError(ValueError):
    key: str | None
    line: int | None
    reason: str

class CannotAnswerError(Exception):
    engine: str | None
    key: str | None
    reason: str

class RunError(RuntimeError): ...

class ScenarioFile:
    def __new__(cls, text: str, origin: str, directory: str | None, files: dict[str, bytes]) -> ScenarioFile: ...
    @property
    def text(self) -> str: ...
    @property
    def origin(self) -> str: ...
    @property
    def files(self) -> dict[str, bytes]: ...
    def case_names(self) -> list[str]: ...
    def toml(self, case: str | None, sets: _Sets) -> str: ...

class OutcomeData:
    @staticmethod
    def from_json(text: str, about: str) -> OutcomeData: ...
    @property
    def scenario(self) -> str: ...
    @property
    def about(self) -> str: ...
    @property
    def case(self) -> str: ...
    @property
    def engine(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def valid(self) -> bool: ...
    @property
    def warnings(self) -> list[str]: ...
    @property
    def set(self) -> dict[str, float | bool | str]: ...
    @property
    def ci95(self) -> dict[str, float]: ...
    def number(self, name: str) -> float | None: ...
    def distribution(self, name: str) -> tuple[float, float, float, float] | None: ...
    def phases(self) -> tuple[float, float, float] | None: ...
    def flows(self, cross: bool) -> dict[str, Any]: ...
    def legs(self, cross: bool) -> dict[str, Any]: ...
    def links(self) -> dict[str, Any]: ...
    def intervals(self) -> dict[str, Any]: ...
    def networks(self) -> dict[str, Any]: ...
    def series_names(self) -> list[tuple[str, str, str]]: ...
    def series_arrays(self, index: int) -> tuple[_Array, _Array]: ...
    def to_json(self, series: bool) -> str: ...

class Cancel:
    def __new__(cls) -> Cancel: ...
    def cancel(self) -> None: ...

class Flow:
    """A connection as its congestion controller sees it. It sets ``cwnd``, ``ssthresh`` and
    ``pacing_rate``."""

    @property
    def mss(self) -> int:
        """Payload of a full segment, bytes."""
    @property
    def srtt_us(self) -> int:
        """Smoothed round-trip time, µs; 0: not measured yet."""
    @property
    def min_rtt_us(self) -> int:
        """TCP's windowed minimum of the round-trip time, µs; 0: not measured yet."""
    @property
    def in_flight(self) -> int:
        """Segments that were sent and are neither acknowledged, SACKed nor marked lost."""
    @property
    def una(self) -> int:
        """First unacknowledged sequence number, modulo 2³²."""
    @property
    def nxt(self) -> int:
        """Next sequence number to send, modulo 2³²."""
    @property
    def unsent(self) -> int:
        """Bytes that wait and were never sent."""
    @property
    def snd_wnd(self) -> int:
        """The receiver's window, bytes."""
    @property
    def prior_cwnd(self) -> int:
        """The congestion window before the last reduction, segments."""
    @property
    def ca_state(self) -> int:
        """TCP's congestion state as in Linux: 0 open, 1 disorder, 2 CWR, 3 recovery, 4 loss. With
        ``wants_rate_samples``, as the next two."""
    @property
    def delivered(self) -> int:
        """Segments delivered so far, modulo 2³²."""
    @property
    def lost(self) -> int:
        """Segments marked lost so far, modulo 2³²."""
    cwnd: int
    """The congestion window, segments. Can be set."""
    ssthresh: int
    """The slow start threshold, segments. Can be set."""
    pacing_rate: int
    """Pacing rate, bytes/s of payload; 0: TCP's own pacing. Can be set by a controller that owns
    the window."""

class Event:
    """An event of a connection, for its congestion controller."""

    @property
    def now_us(self) -> int:
        """A monotonic time, µs."""
    @property
    def acked(self) -> int:
        """Segments newly acknowledged or SACKed."""
    @property
    def marked(self) -> int:
        """Of those, segments with a CE mark, if the receiver reports it."""
    @property
    def rtt_us(self) -> int:
        """Sample of the round-trip time, µs; 0: none."""
    @property
    def lost(self) -> int:
        """Segments newly marked lost."""
    @property
    def interval_us(self) -> int:
        """Time over which the delivery rate was measured, µs; 0: no sample. With
        ``wants_rate_samples``, as the next four."""
    @property
    def sampled(self) -> int:
        """Segments delivered since the segment of the sample was sent; 0: none."""
    @property
    def prior_delivered(self) -> int:
        """``delivered`` of the flow when that segment was sent."""
    @property
    def prior_in_flight(self) -> int:
        """Segments in flight before the acknowledgement."""
    @property
    def random(self) -> int:
        """A random number of 32 bits, new at each event."""
    @property
    def cwnd_limited(self) -> bool:
        """Whether the congestion window limits what the flow sends."""
    @property
    def ecn_echo(self) -> bool:
        """Whether the acknowledgement echoes a CE mark."""
    @property
    def no_more_data(self) -> bool:
        """Whether the application has closed its sending side, and all is sent. For controllers
        that own the window."""
    @property
    def delayed_ack(self) -> bool:
        """Whether the receiver may have delayed the acknowledgement (RFC 1122 §4.2.3.2)."""
    @property
    def app_limited(self) -> bool:
        """Whether the rate sample is limited by the application."""

class TableData:
    def columns(self) -> dict[str, Any]: ...
    def csv(self) -> str: ...
    def parquet(self) -> bytes: ...

class Points:
    def __new__(cls, file: ScenarioFile, case: str | None, sets: _Sets) -> Points: ...
    def __len__(self) -> int: ...
    @property
    def files(self) -> dict[str, bytes]: ...
    def seeds(self) -> list[int]: ...
    def describe(self, point: int) -> tuple[str, dict[str, float | bool | str]]: ...
    def table(self, engines: list[str], rows: dict[str, NDArray[Any]]) -> TableData: ...
    def part(self, engines: list[str], rows: dict[str, NDArray[Any]]) -> TableData: ...
    def means(self, engines: list[str], rows: dict[str, NDArray[Any]]) -> TableData: ...

def runs_in_real_time(name: str) -> bool: ...
def literals(key: str, values: list[Any]) -> list[str]: ...
def range_literals(key: str, values: str) -> list[str]: ...
def quantity_text(kind: str, number: float) -> str: ...
def file_text(keys: dict[str, Any]) -> str: ...
def run(
    file: ScenarioFile,
    *,
    case: str | None,
    sets: _Sets,
    on: str,
    seed: int | None,
    tries: int,
    capture: str | None,
    progress: bool,
    controllers: list[tuple[str, Any, tuple[bool, bool, bool]]],
) -> OutcomeData: ...
def play(
    file: ScenarioFile,
    *,
    variants: list[tuple[str | None, _Sets]],
    items: list[tuple[str, int, int]],
    jobs: int | None,
    tries: int,
    cancel: Cancel,
    each: Callable[[int, dict[str, Any]], object] | None,
) -> dict[str, Any]: ...
def read_part(file: bytes) -> dict[str, Any]: ...
def page(title: str, about: str, outcomes: Sequence[OutcomeData]) -> str: ...
def table_text(outcomes: Sequence[OutcomeData], width: int | None) -> str: ...
def trace(
    *, sender: str | None, receivers: list[str], synchronised_s: float | None, ack_delay_s: float | None, series: bool
) -> str: ...
def path_advice(file: ScenarioFile, *, case: str | None, sets: _Sets, seeds: int, jobs: int | None) -> tuple[str, str]: ...
def aimd_moment(rtt: _Array, loss: _Array, per_packet: bool, order: int) -> _Array: ...
def aimd_loss_probability(rtt: _Array, loss: _Array, per_packet: bool) -> _Array: ...
def aimd_density(x: _Array, rtt: _Array, loss: _Array, per_packet: bool) -> _Array: ...
def aimd_survival(x: _Array, rtt: _Array, loss: _Array, per_packet: bool) -> _Array: ...
def slow_start(
    what: str,
    upstream: _Array,
    downstream: _Array,
    rate: _Array,
    packet: _Array,
    growth: _Array,
    size: _Array,
    full: bool,
) -> _Array: ...
def score(queued: _Array, rate: _Array, srtt: _Array) -> _Array: ...
def smoothed(last: _Array, measured: _Array, alpha: float) -> _Array: ...
def wlan_throughput(segments: _Array, rate: _Array, all_backoffs: bool) -> _Array: ...
def split_load(paths: dict[str, _Array], kind: dict[str, bool]) -> _Array: ...
def split_rates(paths: dict[str, _Array], kind: dict[str, bool], seed: int, losses: int) -> dict[str, _Array]: ...
def split_means(paths: dict[str, _Array], kind: dict[str, bool], cells: int) -> dict[str, _Array]: ...
def sufficient_buffer(
    paths: dict[str, _Array], kind: dict[str, bool], share: float, seed: int, losses: int
) -> dict[str, _Array]: ...
def can(arrivals: list[_Array], sizes: list[_Array], speeds: list[_Array], weight: _Array) -> dict[str, _Array]: ...
