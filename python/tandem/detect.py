"""Is a connection split? Verdicts on packet traces.

Sources: Wei, Zhang, Zang, Kurose and Towsley, *Inference and evaluation of split-connection
approaches in cellular data networks* (2005), and what a middlebox changes in sequence numbers,
options, timestamps, hop counts and segment boundaries.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np

from tandem import _tandem
from tandem._table import Table

Verdict = Literal["end-to-end", "split-tcp", "tcp-proxy", "cannot tell"]


@dataclass(frozen=True)
class Finding:
    """What the traces show of one connection."""

    verdict: Verdict
    """``"split-tcp"``: two connections, data flow on both at once. ``"tcp-proxy"``: data are held
    until they are complete, or changed."""
    reason: str
    """Why."""
    bytes: int
    """Payload of both directions, without retransmissions."""
    sender: tuple[str, str] | None
    """Addresses of the end that sends most data and of its peer, as the sender's trace has them."""
    receiver: tuple[str, str] | None
    """The same, as the receiver's trace has them."""
    evidence: Table
    """A row for each piece of evidence, the strongest first: ``says``, ``strength``, ``method``,
    ``text``."""
    json: dict[str, Any]
    """All that is known, as ``tandem detect trace --json`` prints it."""


class Findings(Sequence[Finding]):
    """The findings about the connections of traces, the largest first."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._findings = tuple(findings)

    @overload
    def __getitem__(self, index: int) -> Finding: ...
    @overload
    def __getitem__(self, index: slice) -> Findings: ...
    def __getitem__(self, index: int | slice) -> Finding | Findings:
        return Findings(self._findings[index]) if isinstance(index, slice) else self._findings[index]

    def __len__(self) -> int:
        return len(self._findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._findings)

    def table(self) -> Table:
        """A row for each connection: ``sender``, ``receiver``, ``bytes``, ``verdict``, ``reason``."""
        ends = [finding.sender or finding.receiver or ("", "") for finding in self]
        return Table(
            {
                "sender": [end[0] for end in ends],
                "receiver": [end[1] for end in ends],
                "bytes": np.array([finding.bytes for finding in self], dtype=np.uint64),
                "verdict": [finding.verdict for finding in self],
                "reason": [finding.reason for finding in self],
            }
        )

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def __repr__(self) -> str:
        return f"<{len(self)} findings>\n{self.table()!r}"


def trace(
    sender: str | os.PathLike[str] | None = None,
    receiver: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None = None,
    *,
    synchronised_s: float | None = None,
    ack_delay_s: float | None = None,
    series: bool = False,
) -> Findings:
    """Judges every connection of packet traces (pcap or pcapng) of one end or both ends.

    Args:
        sender: Trace taken at the host that sends the data.
        receiver: Trace taken at the host that receives the data, or one trace of each receiver.
        synchronised_s: Largest difference of the two clocks, in s, if they are synchronised (method
            1 of Wei et al.).
        ack_delay_s: Time by which the receiver was made to delay every ACK, in s (method 3).
        series: Whether :attr:`Finding.json` has series over time.

    Raises:
        ValueError: Neither trace was given, or one cannot be read.
    """
    receivers: list[str | os.PathLike[str]]
    if receiver is None:
        receivers = []
    elif isinstance(receiver, (str, os.PathLike)):
        receivers = [receiver]
    else:
        receivers = list(receiver)
    if sender is None and not receivers:
        raise ValueError("give the trace of the sender, of the receiver, or both")
    text = _tandem.trace(
        sender=None if sender is None else os.fspath(sender),
        receivers=[os.fspath(path) for path in receivers],
        synchronised_s=synchronised_s,
        ack_delay_s=ack_delay_s,
        series=series,
    )
    return Findings([_finding(found) for found in json.loads(text)])


def _finding(found: dict[str, Any]) -> Finding:
    def ends(name: str) -> tuple[str, str] | None:
        return None if found[name] is None else (found[name][0], found[name][1])

    pieces = found["evidence"]
    names = ("says", "strength", "method", "text")
    evidence = Table({name: [str(piece.get(name)) for piece in pieces] for name in names})
    return Finding(found["verdict"], found["reason"], found["bytes"], ends("sender"), ends("receiver"), evidence, found)
