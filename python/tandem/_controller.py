"""Congestion controllers that are written in Python, for the simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tandem._tandem import Event, Flow


class Controller:
    """A congestion controller for the simulator: NewReno, until methods are overridden.

    ``scenario.run(controllers={"mine": Mine})`` makes an object of the class ``Mine`` for each
    connection whose controller is called ``mine`` in the scenario, and calls a method for each
    event. The method reads ``flow`` and ``event``, and sets ``flow.cwnd`` (segments),
    ``flow.ssthresh`` (segments) and, if it owns the window, ``flow.pacing_rate`` (bytes/s of
    payload; 0: TCP's own pacing).

    What a flow has (:class:`tandem.Flow`):

    - ``mss``, ``unsent``, ``snd_wnd``: bytes; ``una``, ``nxt``: sequence numbers
    - ``srtt_us``, ``min_rtt_us``: µs, 0 until they are measured
    - ``in_flight``, ``prior_cwnd``, ``cwnd``, ``ssthresh``: segments
    - ``ca_state``, ``delivered``, ``lost`` (segments so far): with ``wants_rate_samples``

    What an event has (:class:`tandem.Event`):

    - ``now_us``: the time, µs; ``rtt_us``: a sample of the round trip, µs, 0 if there is none
    - ``acked``, ``marked``, ``lost``: segments
    - ``cwnd_limited``, ``ecn_echo``, ``no_more_data``, ``delayed_ack``: truths
    - ``interval_us``, ``sampled``, ``prior_delivered``, ``prior_in_flight``, ``app_limited``,
      ``random``: with ``wants_rate_samples``

    Names and units are those of the controllers in C (``crates/control/c/intf.h``), so that a
    prototype can be translated line by line: integers, windows in segments, times in µs. This is the
    slow path, for prototypes: each event costs a call into Python, and takes the GIL.

    A run stays a function of scenario and seed as long as the methods are functions of what they are
    given: use ``event.now_us`` for the time. ``event.random`` is a new number at each event of a
    controller with ``wants_rate_samples``.

    An additive increase of two segments per round trip, and a decrease to 7/10:

    >>> import tandem
    >>> class Mine(tandem.Controller):
    ...     def on_ack(self, flow, event):
    ...         if event.cwnd_limited and (acked := self.slow_start(flow, event.acked)):
    ...             self.grow(flow, acked, every=max(flow.cwnd // 2, 1))
    ...     def on_loss(self, flow, event):
    ...         flow.ssthresh = max(flow.cwnd * 7 // 10, 2)
    >>> path = tandem.Scenario(
    ...     link={"rate": "10Mbit", "delay": "20ms"}, control={"sender": "mine"}, flow={"bytes": "1MB"})
    >>> path.run(controllers={"mine": Mine}).legs()["control"]
    array(['mine'], dtype=object)
    """

    owns_window: bool = False
    """Whether it alone sets the window: :meth:`on_ack` is called at every acknowledgement, in
    recovery too, and TCP does not reduce the window at a loss."""
    wants_samples: bool = False
    """Whether :meth:`on_sample` is called."""
    wants_rate_samples: bool = False
    """Whether events have delivery rate samples, and the flow TCP's congestion state (``ca_state``,
    ``delivered``, ``lost``). It must own the window."""

    credit: int = 0
    """Segments that were acknowledged since :meth:`grow` has increased the window."""

    def on_init(self, flow: Flow, event: Event) -> None:
        """The connection is established."""

    def on_ack(self, flow: Flow, event: Event) -> None:
        """An acknowledgement after which the window may grow: ``event.acked`` segments are new."""
        if event.cwnd_limited:
            acked = self.slow_start(flow, event.acked)
            if acked:
                self.grow(flow, acked, every=max(flow.cwnd, 1))

    def on_loss(self, flow: Flow, event: Event) -> None:
        """A loss, or an ECN echo, starts a recovery: sets ``flow.ssthresh``, to which TCP then
        reduces the window."""
        self.credit = 0
        flow.ssthresh = max(flow.cwnd // 2, 2)

    def on_timeout(self, flow: Flow, event: Event) -> None:
        """The retransmission timer has expired: sets ``flow.ssthresh``. TCP resets the window."""
        self.on_loss(flow, event)

    def on_recovered(self, flow: Flow, event: Event) -> None:
        """The recovery has ended."""

    def on_undo(self, flow: Flow, event: Event) -> None:
        """The reduction was spurious: sets ``flow.cwnd``."""
        flow.cwnd = max(flow.cwnd, flow.prior_cwnd)

    def on_restart(self, flow: Flow, event: Event) -> None:
        """Data is sent after nothing was in flight."""

    def on_sample(self, flow: Flow, event: Event) -> None:
        """An acknowledgement has delivered data or measured a round trip (``event.rtt_us``), in any
        state."""

    def on_close(self, flow: Flow, event: Event) -> None:
        """The connection ends."""

    def slow_start(self, flow: Flow, acked: int) -> int:
        """Grows the window by ``acked`` segments, up to the threshold. Returns how many remain."""
        step = min(acked, max(flow.ssthresh - flow.cwnd, 0))
        flow.cwnd += step
        return acked - step

    def grow(self, flow: Flow, acked: int, every: int) -> None:
        """Grows the window by a segment for each ``every`` that are acknowledged."""
        # Credit from a time of slower growth counts as one segment at most.
        if self.credit >= every:
            self.credit = 0
            flow.cwnd += 1
        step, self.credit = divmod(self.credit + acked, every)
        flow.cwnd += step


Controllers = Mapping[str, Callable[[], Controller]]
"""Controllers by their names in the scenario: each a subclass, or a function that returns one's
object."""


def arguments(controllers: Controllers, on: str, known: list[str]) -> list[tuple[str, Any, tuple[bool, bool, bool]]]:
    """The controllers as the engine takes them.

    Raises:
        ValueError: The engine has none of its caller, or a name is taken.
    """
    if controllers and on not in ("sim", "compose"):
        raise ValueError(f'{on} cannot run controllers that are written in Python: use on="sim" or on="compose"')
    for name in controllers:
        if name in known:
            raise ValueError(f"{name!r} is a controller of Tandem: give yours another name")
    return [(name, make, _wants(name, make)) for name, make in controllers.items()]


def _wants(name: str, make: Callable[[], Controller]) -> tuple[bool, bool, bool]:
    controller = make()
    if not isinstance(controller, Controller):
        raise TypeError(f"controllers[{name!r}] makes a {type(controller).__name__}: derive its class from tandem.Controller")
    if controller.wants_rate_samples and not controller.owns_window:
        raise ValueError(f"controllers[{name!r}] wants rate samples: it must set owns_window = True, too")
    return controller.owns_window, controller.wants_samples, controller.wants_rate_samples
