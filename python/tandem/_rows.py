"""The rows of a sweep: in memory, and in parts on disk that a later call reads again."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem import _tandem
from tandem._plan import Plan, Run

Columns = dict[str, NDArray[Any]]

FLUSH_SECONDS = 5.0
"""How long rows wait in memory at most before they are written: what a crash loses."""


class Rows:
    """The rows of a sweep, in the order in which they came."""

    def __init__(self) -> None:
        self._chunks: list[Columns] = []
        self.done: set[Run] = set()

    def add(self, columns: Columns) -> None:
        """Adds rows with the columns ``engine``, ``point``, ``seed``, ``valid``, ``seconds`` and
        ``numbers``.
        """
        self._chunks.append(columns)
        self.done.update(zip(columns["engine"].tolist(), columns["point"].tolist(), columns["seed"].tolist()))

    def sorted(self) -> Columns:
        """All rows in the order of the command line: by engine, point and seed."""
        if not self._chunks:
            return empty()
        joined = {name: np.concatenate([chunk[name] for chunk in self._chunks]) for name in self._chunks[0]}
        order = np.lexsort((joined["seed"], joined["point"], joined["engine"]))
        return {name: np.ascontiguousarray(column[order]) for name, column in joined.items()}


def empty() -> Columns:
    """No rows."""
    return columns_of([], np.empty(0, dtype=bool), np.empty(0), np.empty((0, len(_tandem.NUMBERS))))


def columns_of(runs: Sequence[Run], valid: NDArray[Any], seconds: NDArray[Any], numbers: NDArray[Any]) -> Columns:
    """Columns of these runs with what came of them."""
    engine, point, seed = zip(*runs) if runs else ((), (), ())
    return {
        "engine": np.array(engine, dtype=np.uint32),
        "point": np.array(point, dtype=np.uint64),
        "seed": np.array(seed, dtype=np.uint64),
        "valid": valid,
        "seconds": seconds,
        "numbers": numbers,
    }


class Parts:
    """The directory of an unfinished sweep: Parquet files with rows, each written at once, and a file
    that names the sweep. Rows that are in it are not played again.
    """

    def __init__(self, directory: Path, plan: Plan, resume: bool) -> None:
        self._directory = directory
        self._plan = plan
        self._waiting: list[Columns] = []
        self._written_at = time.monotonic()
        name = directory / "sweep.json"
        if not resume:
            shutil.rmtree(directory, ignore_errors=True)
        if name.exists():
            if json.loads(name.read_text())["fingerprint"] != plan.fingerprint():
                raise ValueError(
                    f"{directory} has the rows of another sweep (or of another version): give another file, or resume=False to discard them"
                )
        else:
            directory.mkdir(parents=True, exist_ok=True)
            about = {"fingerprint": plan.fingerprint(), "version": _tandem.__version__, "engines": plan.engines}
            _write(name, json.dumps(about, indent=2).encode())
        self._next = 1 + max((int(path.stem.split("-")[1]) for path in self._files()), default=0)

    def _files(self) -> list[Path]:
        return sorted(self._directory.glob("part-*.parquet"))

    def read(self) -> list[Columns]:
        """The rows that earlier calls have left."""
        return [self._columns(path) for path in self._files()]

    def _columns(self, path: Path) -> Columns:
        part = _tandem.read_part(path.read_bytes())
        engines = [self._plan.engines.index(name) for name in part["engine"]]
        runs = list(zip(engines, part["point"].tolist(), part["seed"].tolist()))
        return columns_of(runs, part["valid"], part["seconds"], part["numbers"])

    def add(self, columns: Columns) -> None:
        """Adds rows; they are on disk a few seconds later."""
        self._waiting.append(columns)
        if time.monotonic() - self._written_at >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Writes the rows that wait."""
        if self._waiting:
            joined = {name: np.concatenate([chunk[name] for chunk in self._waiting]) for name in self._waiting[0]}
            part = self._plan.points.part(list(self._plan.engines), joined)
            _write(self._directory / f"part-{self._next:06}.parquet", part.parquet())
            self._next += 1
            self._waiting = []
        self._written_at = time.monotonic()

    def remove(self) -> None:
        """Removes the directory: the sweep is complete, and its table is written."""
        shutil.rmtree(self._directory, ignore_errors=True)


def write_table(path: Path, table: _tandem.TableData) -> None:
    """Writes a table of runs as the command line does: ``.csv`` or ``.parquet``."""
    _write(path, table.csv().encode() if path.suffix == ".csv" else table.parquet())


def check_name(path: Path) -> None:
    """Refuses names that do not tell the format.

    Raises:
        ValueError: The name ends neither in ``.csv`` nor in ``.parquet``.
    """
    if path.suffix not in (".csv", ".parquet"):
        raise ValueError(f"cannot tell the format of {path}: name it FILE.csv or FILE.parquet")


def _write(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
