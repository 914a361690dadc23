"""Scenarios: a network and the traffic over it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tandem import _tandem
from tandem._controller import Controllers, arguments
from tandem._outcome import Outcome
from tandem._plain import plain

if TYPE_CHECKING:
    from typing_extensions import Self

EngineName = Literal["sim", "theory", "lab", "bound", "compose"]
"""``"sim"``: packets in virtual time. ``"theory"``: equations. ``"lab"``: the real kernel and the
real proxy, in network namespaces, as root. ``"bound"``: the best that fair sharing permits.
``"compose"``: the slowest segment of a split path, each played alone by the simulator."""

Sets = list[tuple[str, list[str]]]


class Scenario:
    """A network and the traffic over it, checked when it is made.

    Keywords are the keys of a scenario file (``docs/reference/scenario.md``): ``link``, ``split``,
    ``flow``, ``control``, ``duration`` … Lists of tables are lists of dicts; a dict stands for a
    list of one. Values are texts with units (``"10Mbit"``, ``"20ms"``, ``"64KiB"``), quantities of
    ``pint``, or numbers in base units: rates in bit/s, times in s, sizes in bytes.

    >>> path = Scenario(
    ...     name="satellite",
    ...     link=[{"rate": 100e6, "delay": 0.005}, {"rate": "10Mbit", "delay": "300ms", "loss": {"per_packet": 0.01}}],
    ...     flow={"bytes": "2MB", "count": 3},
    ... )
    >>> print(path.to_toml().splitlines()[0])
    name = "satellite"

    A scenario never changes; :meth:`with_` and :meth:`case` return another one. It can be pickled,
    with the files that it names (traces of links). It is equal to a scenario of the same text,
    case, changes and files.

    Raises:
        ScenarioError: The scenario cannot be played. The message names the key and the cure; the
            exception has ``key``, ``line`` and ``reason``; the first two are ``None`` where the
            error is about none.
    """

    __slots__ = ("_case", "_file", "_sets")

    _file: _tandem.ScenarioFile
    _case: str | None
    _sets: Sets

    def __init__(self, name: str = "scenario", *, directory: str | os.PathLike[str] | None = None, **keys: Any) -> None:
        text = _tandem.file_text(plain({"name": name, **keys}))
        self._init(_tandem.ScenarioFile(text, "scenario", _directory(directory), {}), None, [])

    def _init(self, file: _tandem.ScenarioFile, case: str | None, sets: Sets) -> None:
        object.__setattr__(self, "_file", file)
        object.__setattr__(self, "_case", case)
        object.__setattr__(self, "_sets", sets)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a scenario never changes: scenario.with_({name}=…) returns another one")

    @classmethod
    def _of(cls, file: _tandem.ScenarioFile, case: str | None, sets: Sets) -> Self:
        scenario = cls.__new__(cls)
        scenario._init(file, case, sets)
        return scenario

    @classmethod
    def from_dict(cls, keys: Mapping[str, Any], *, directory: str | os.PathLike[str] | None = None) -> Self:
        """A scenario of these keys, as the keywords of :class:`Scenario`."""
        return cls(directory=directory, **dict(keys))

    @classmethod
    def from_toml(cls, text: str, *, origin: str = "scenario", directory: str | os.PathLike[str] | None = None) -> Self:
        """A scenario of the text of a scenario file.

        Args:
            text: The text (TOML).
            origin: What errors call it.
            directory: Where the files are that it names. Absent: it names none.
        """
        return cls._of(_tandem.ScenarioFile(text, origin, _directory(directory), {}), None, [])

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The scenario of a file, as ``tandem run FILE`` reads it."""
        file = Path(path)
        return cls.from_toml(file.read_text(encoding="utf-8"), origin=str(file), directory=file.parent)

    @property
    def cases(self) -> list[str]:
        """The names of the variants in the file (``[[case]]``); empty if there are none."""
        return [self._case] if self._case is not None else self._file.case_names()

    def case(self, name: str) -> Self:
        """The variant of this name alone."""
        self._file.toml(name, self._sets)
        return self._of(self._file, name, self._sets)

    def with_(self, changes: Mapping[str, Any] | None = None, /, **keys: Any) -> Self:
        """The scenario with other values for some keys, as ``tandem run --set KEY=VALUE``.

        Members of lists are counted from 1; ``*`` stands for all of them. Keys with dots go into a
        dict: ``path.with_({"link.2.rate": "5Mbit", "split.*.buffer": "1MiB"}, duration="10s")``.
        Outcomes and tables name the changed keys.

        >>> path = Scenario(link={"rate": "10Mbit", "delay": "20ms"}, flow={"bytes": "1MB"})
        >>> path.with_({"link.1.rate": 5e6}).run(on="sim").set
        {'link.1.rate': 5000000.0}
        """
        changed = {**(changes or {}), **keys}
        kept = [(key, values) for key, values in self._sets if key not in changed]
        made = [(key, _tandem.literals(key, [plain(value)])) for key, value in changed.items()]
        sets = [*kept, *made]
        _tandem.Points(self._file, self._case, sets)
        return self._of(self._file, self._case, sets)

    set = with_

    def to_toml(self) -> str:
        """The text of a scenario file that plays alike.

        Without changes and with all cases it is the text that the scenario was made of.
        """
        return self._file.text if self._case is None and not self._sets else self._file.toml(self._case, self._sets)

    def run(
        self,
        on: EngineName = "sim",
        *,
        seed: int | None = None,
        tries: int = 1,
        pcap: str | os.PathLike[str] | None = None,
        progress: bool = False,
        controllers: Controllers | None = None,
    ) -> Outcome:
        """Plays the scenario on an engine.

        Other threads go on meanwhile: the engine runs without the GIL. Ctrl-C ends the run.

        Args:
            on: The engine.
            seed: Seed of all random numbers. Absent: that of the scenario, 1 if it has none.
            tries: How often the run is played at most, until the machine kept up with it (``lab``).
            pcap: Path prefix of the captures of each host; only the lab has them.
            progress: Whether a bar on a terminal shows the progress.
            controllers: Congestion controllers in Python by their names in the scenario, for the
                simulator (:class:`tandem.Controller`). An exception in one of them ends the run, and
                is raised here.

        Raises:
            CannotAnswerError: The engine has no answer to a key of the scenario.
            ScenarioError: The scenario has several cases: choose one by :meth:`case`.
            RunError: The run failed.
            ValueError: There is no such engine, or it has no use for an argument.
        """
        if pcap is not None and on != "lab":
            raise ValueError(f'{on} has no packets to capture: use on="lab", or leave pcap out')
        if tries < 1:
            raise ValueError(f"tries is {tries}, and must be at least 1")
        data = _tandem.run(
            self._file,
            case=self._case,
            sets=self._sets,
            on=on,
            seed=None if seed is None else int(seed),
            tries=tries,
            capture=None if pcap is None else os.fspath(pcap),
            progress=progress,
            controllers=arguments(controllers or {}, on, _tandem.CONTROLLERS),
        )
        return Outcome(data)

    def __reduce__(self) -> tuple[Any, ...]:
        file = self._file
        return _restored, (type(self), file.text, file.origin, file.files, self._case, self._sets)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scenario) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash((self._file.text, self._case, repr(self._sets)))

    def _identity(self) -> tuple[str, dict[str, bytes], str | None, Sets]:
        # Not all files that are known: those of scenarios that were made of this one are, too.
        files = _tandem.Points(self._file, self._case, self._sets).files
        return self._file.text, files, self._case, self._sets

    def __repr__(self) -> str:
        lines = [f"<tandem.Scenario from {self._file.origin}"]
        lines += [f"case {self._case!r}"] if self._case is not None else []
        lines += [f"with {key} = {', '.join(values)}" for key, values in self._sets]
        return ", ".join(lines) + ">"


def _directory(directory: str | os.PathLike[str] | None) -> str | None:
    return None if directory is None else os.fspath(directory)


def _restored(
    cls: type[Scenario], text: str, origin: str, files: dict[str, bytes], case: str | None, sets: Sets
) -> Scenario:
    return cls._of(_tandem.ScenarioFile(text, origin, None, files), case, sets)
