"""Tables: named columns of one length."""

from __future__ import annotations

import html
import itertools
from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = NDArray[Any]

LINE = 120
"""The most characters of a row on a terminal; columns that do not fit are counted."""


class Table:
    """Named columns of one length, each a NumPy array.

    ``table["goodput_bps"]`` is a column. Numbers that are missing are NaN, texts that are missing
    ``None``. As for a data frame, ``for name in table`` goes over the names of the columns, ``name
    in table`` looks for one, and ``len(table)`` is the number of rows. ``dict(table)`` has all
    columns. Tables are equal if they have the same columns with the same values, in any order.
    :meth:`to_pandas`, :meth:`to_polars` and :meth:`to_arrow` make a frame of it, where that package
    is installed; columns of numbers go there without a copy, where the package can.

    >>> table = Table({"seed": np.array([1, 2]), "case": ["split", None]})
    >>> int(table["seed"].sum()), table.height, list(table)
    (3, 2, ['seed', 'case'])
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = {name: _array(values) for name, values in columns.items()}
        heights = {len(column) for column in self._columns.values()}
        if len(heights) > 1:
            raise ValueError("the columns of a table have one length")

    def __getitem__(self, name: str) -> Column:
        return self._columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table):
            return NotImplemented
        return self._columns.keys() == other._columns.keys() and all(_equal(column, other[name]) for name, column in self.items())

    def keys(self) -> KeysView[str]:
        """The names of the columns."""
        return self._columns.keys()

    def values(self) -> ValuesView[Column]:
        """The columns."""
        return self._columns.values()

    def items(self) -> ItemsView[str, Column]:
        """The columns with their names."""
        return self._columns.items()

    def get(self, name: str, default: Any = None) -> Any:
        """A column; ``default`` if there is none of this name."""
        return self._columns.get(name, default)

    def __len__(self) -> int:
        """The number of rows."""
        return self.height

    @property
    def height(self) -> int:
        """The number of rows."""
        return max((len(column) for column in self._columns.values()), default=0)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._columns)

    def row(self, index: int) -> dict[str, Any]:
        """A row as a dict of plain values."""
        return {name: column[index].item() if column.dtype != object else column[index] for name, column in self.items()}

    def where(self, mask: Any) -> Table:
        """The rows that a mask or a list of indices selects."""
        return Table({name: column[mask] for name, column in self.items()})

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame``."""
        import pandas

        return pandas.DataFrame(dict(self), copy=False)

    def to_polars(self) -> Any:
        """A ``polars.DataFrame``; numbers that are missing are null."""
        import polars

        return polars.DataFrame({name: _series(column) for name, column in self.items()}, nan_to_null=True)

    def to_arrow(self) -> Any:
        """A ``pyarrow.Table``; numbers that are missing are null."""
        import pyarrow

        return pyarrow.table({name: pyarrow.array(column, from_pandas=True) for name, column in self.items()})

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The Arrow C stream of the table, for every package that reads one; needs ``pyarrow``."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        shown, rest = self._cells(10)
        widths = [max(len(row[index]) for row in shown) for index in range(len(self._columns))]
        fitting = sum(end <= LINE for end in itertools.accumulate(width + 2 for width in widths)) or len(widths)
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths[:fitting])) for row in shown]
        more = [f"{count} more {what}" for count, what in ((rest, "rows"), (len(widths) - fitting, "columns")) if count]
        return "\n".join([*lines, *(["… " + ", ".join(more)] if more else [])])

    def _repr_html_(self) -> str:
        shown, rest = self._cells(20)
        head, *body = [[html.escape(cell) for cell in row] for row in shown]
        rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in body)
        more = f"<caption>{rest} more rows</caption>" if rest else ""
        return f"<table>{more}<tr>{''.join(f'<th>{cell}</th>' for cell in head)}</tr>{rows}</table>"

    def _cells(self, most: int) -> tuple[list[list[str]], int]:
        """The header and the first rows as texts, and how many rows there are more."""
        height = min(most, self.height)
        rows = [[_text(column[index]) for column in self.values()] for index in range(height)]
        return [self.columns, *rows], self.height - height


def _array(values: Any) -> Column:
    if isinstance(values, np.ndarray):
        return values
    if isinstance(values, Sequence) and all(value is None or isinstance(value, str) for value in values):
        texts = np.empty(len(values), dtype=object)
        texts[:] = values
        return texts
    return np.asarray(values)


def _equal(column: Column, other: Column) -> bool:
    """Whether two columns have the same values; missing ones are equal."""
    return bool(np.array_equal(column, other, equal_nan=column.dtype.kind == other.dtype.kind == "f"))


def _series(column: Column) -> Any:
    """Texts as a list, which polars knows the type of."""
    return column.tolist() if column.dtype == object else column


def _text(value: Any) -> str:
    if value is None or (isinstance(value, (float, np.floating)) and np.isnan(value)):
        return "–"
    return f"{value:.5g}" if isinstance(value, (float, np.floating)) else str(value)
