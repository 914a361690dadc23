"""Advice on paths, and verdicts on traces."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tandem
from tandem._advice import _buffers


def test_advice_is_that_of_the_command_line(command: Callable[..., str], path: tandem.Scenario, tmp_path: Path) -> None:
    file = tmp_path / "path.toml"
    file.write_text(path.to_toml())
    advice = tandem.advise(path, seeds=2)
    assert advice.json == json.loads(command("advise", str(file), "--seeds", "2", "--json"))
    assert advice.candidates["gain"].tolist() == sorted(advice.candidates["gain"], reverse=True)
    assert advice.verdict in ("split", "does_not_pay", "cannot_tell") and str(advice) == advice.text


def test_a_path_of_one_link_has_no_place_for_a_proxy() -> None:
    with pytest.raises(ValueError, match="the path is one link"):
        tandem.advise([{"rate": "10Mbit", "delay": "20ms"}])


def test_a_scenario_has_flows_of_its_own(path: tandem.Scenario) -> None:
    with pytest.raises(ValueError, match="leave bytes and flows out"):
        tandem.advise(path, bytes="1MB")
    with pytest.raises(ValueError, match="workers is 0"):
        tandem.advise(path, workers=0)
    empty = _buffers([])
    assert empty["buffer_bytes"].dtype == np.int64 and empty["ci95"].dtype == np.float64


def segment(source: int, sequence: int, acknowledged: int, flags: int, payload: bytes = b"") -> bytes:
    """An IPv4 packet between port 80 of 10.0.0.1 and port 5000 of 10.0.0.2."""
    ports = (80, 5000) if source == 1 else (5000, 80)
    tcp = struct.pack("!HHIIBBHHH", *ports, sequence, acknowledged, 5 << 4, flags, 65535, 0, 0) + payload
    addresses = bytes([10, 0, 0, source, 10, 0, 0, 3 - source])
    return struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0) + addresses + tcp


def capture(path: Path, shift_s: float) -> None:
    """A download of ten segments, as one end sees it."""
    packets = [(0.0, segment(2, 100, 0, 2)), (0.0, segment(1, 500, 101, 18)), (0.01, segment(2, 101, 501, 16))]
    for index in range(10):
        packets.append((0.02 + index / 100, segment(1, 501 + 1000 * index, 101, 16, bytes(1000))))
        packets.append((0.025 + index / 100, segment(2, 101, 1501 + 1000 * index, 16)))
    records = []
    for at, packet in packets:
        seconds, fraction = divmod(at + 1000 + shift_s, 1)
        records.append(struct.pack("<IIII", int(seconds), int(fraction * 1e6), len(packet), len(packet)) + packet)
    # Raw IP (101).
    path.write_bytes(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 101) + b"".join(records))


def test_a_trace_is_judged(tmp_path: Path) -> None:
    sender, receiver = tmp_path / "sender.pcap", tmp_path / "receiver.pcap"
    capture(sender, 0.0)
    capture(receiver, 0.005)
    findings = tandem.detect.trace(sender, receiver)
    (finding,) = findings
    assert finding.bytes == 10_000 and finding.sender == ("10.0.0.1:80", "10.0.0.2:5000")
    assert finding.verdict == "end-to-end" and finding.evidence.height > 0
    assert findings.table()["verdict"].tolist() == ["end-to-end"] and findings[:1][0] is finding
    assert tandem.detect.trace(sender)[0].json["matched_by"] is None
    assert "receiver_trace" not in finding.json
    (finding,) = tandem.detect.trace(sender, [receiver, receiver])[:1]
    assert finding.verdict == "end-to-end" and finding.json["receiver_trace"] == str(receiver)


def test_traces_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give the trace"):
        tandem.detect.trace()
    with pytest.raises(ValueError, match="nothing.pcap"):
        tandem.detect.trace(tmp_path / "nothing.pcap")
