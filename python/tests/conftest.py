"""What the tests share."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import tandem

ROOT = Path(os.environ.get("TANDEM_ROOT") or Path(__file__).resolve().parents[2])


@pytest.fixture(scope="session")
def command() -> Callable[..., str]:
    """Runs the program `tandem`, and returns what it prints."""
    program = os.environ.get("TANDEM_PROGRAM")
    if not program:
        pytest.skip("TANDEM_PROGRAM does not name the program that outcomes are compared with")

    def run(*arguments: str) -> str:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def path() -> tandem.Scenario:
    """A satellite link behind a fast one, with random losses: small, and different for each seed."""
    return tandem.Scenario(
        name="path",
        link=[{"rate": "100Mbit", "delay": "5ms"}, {"rate": "10Mbit", "delay": "100ms", "loss": {"per_packet": 0.01}}],
        split={"after": 1},
        control={"sender": "cubic", "proxy": "cubic"},
        flow={"bytes": "200kB", "count": 2},
    )
