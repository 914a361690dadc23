"""The rows of a sweep: in memory, and in parts on disk that a later call reads again."""

from __future__ import annotations

import contextlib
import fcntl
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
"""How long rows wait in memory before they are written: what a crash loses."""


ABOUT, LOCK = "sweep.json", "lock"
"""Files of :class:`Parts` beside its rows."""


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
        """All rows in the order of the command line: by engine, point and seed, each run once."""
        if not self._chunks:
            return empty()
        joined = {name: np.concatenate([chunk[name] for chunk in self._chunks]) for name in self._chunks[0]}
        keys = [joined[name] for name in ("seed", "point", "engine")]
        order = np.lexsort(keys)
        is_first = np.ones(len(order), dtype=bool)
        is_first[1:] = np.logical_or.reduce([key[order][1:] != key[order][:-1] for key in keys])
        order = order[is_first]
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
    """The directory of an unfinished sweep: Parquet files with rows, each written at once, a file
    that names the sweep, and one that is locked while a sweep writes. Rows that are in it are not
    played again.

    The caller calls :meth:`close` at the end, in any case.

    Raises:
        RunError: Another sweep writes to the directory.
        ValueError: It has rows of another sweep.
    """

    def __init__(self, directory: Path, plan: Plan, resume: bool) -> None:
        self._directory = directory
        self._plan = plan
        self._waiting: list[Columns] = []
        self._written_at = time.monotonic()
        self._lock = _locked(directory)
        try:
            if not resume:
                for path in self._files():
                    path.unlink()
            self._take(directory / ABOUT)
        except BaseException:
            os.close(self._lock)
            raise
        self._next = 1 + max((int(path.stem.split("-")[1]) for path in self._files()), default=0)

    def _take(self, about: Path) -> None:
        """Checks of which sweep the rows are, or notes that they will be of this one."""
        known = json.loads(about.read_text())["fingerprint"] if about.exists() else None
        fingerprint = self._plan.fingerprint()
        if known == fingerprint:
            return
        if self._files():
            raise ValueError(
                f"{self._directory} has the rows of another sweep (or of another version): give another file, or resume=False to discard them"
            )
        content = {"fingerprint": fingerprint, "version": _tandem.__version__, "engines": self._plan.engines}
        _write(about, json.dumps(content, indent=2).encode())

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
        """Adds rows; :meth:`tick` or :meth:`flush` writes them."""
        self._waiting.append(columns)

    def tick(self) -> None:
        """Writes the rows that wait, if that was last done some seconds ago."""
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
        self._waiting = []
        shutil.rmtree(self._directory, ignore_errors=True)

    def close(self) -> None:
        """Lets other sweeps write to the directory. Without rows it is removed."""
        with contextlib.suppress(OSError):
            if not self._files():
                for name in (ABOUT, LOCK):
                    (self._directory / name).unlink()
                self._directory.rmdir()
        os.close(self._lock)


def _locked(directory: Path) -> int:
    """Creates a directory, and locks a file in it, until the returned descriptor is closed.

    Raises:
        RunError: Another process, or another sweep of this one, has locked it.
    """
    path = directory / LOCK
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:
            # Another sweep has just ended, and removed the directory.
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise _tandem.RunError(
                f"cannot write rows to {directory}: another sweep to the same file is running; wait for its end, or give another file"
            ) from None
        except OSError:
            # The file system has no locks.
            return lock
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), os.stat(path)):
                return lock
        # It was removed before it was locked.
        os.close(lock)


def write_table(path: Path, table: _tandem.TableData) -> None:
    """Writes a table of runs as the command line does: ``.csv`` or ``.parquet``."""
    _write(path, table.csv().encode() if path.suffix == ".csv" else table.parquet())


FORMATS = (".csv", ".parquet")
"""The endings of files for tables."""


def check_name(path: Path, formats: Sequence[str] = FORMATS) -> None:
    """Refuses names that do not tell the format.

    Raises:
        ValueError: The name ends in none of these.
    """
    if path.suffix not in formats:
        raise ValueError(f"cannot tell the format of {path}: name it {' or '.join('FILE' + ending for ending in formats)}")


def _write(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
