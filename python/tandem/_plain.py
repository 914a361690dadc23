"""Values of users as plain values: quantities as texts, scalars of NumPy as numbers."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tandem import _tandem


def _quantity(quantity: Any) -> Any:
    """A quantity of pint: a rate, a time or a size as text, a ratio as a number.

    Pint counts bits and bytes as numbers. What is in bits or bytes is therefore told by its name.
    """
    names = str(quantity.units)
    is_data = "bit" in names or "byte" in names
    if quantity.check("[time]"):
        return _tandem.quantity_text("time", quantity.to("second").magnitude)
    if is_data and quantity.check("1/[time]"):
        return _tandem.quantity_text("rate", quantity.to("bit/second").magnitude)
    if is_data and quantity.check("[]"):
        return _tandem.quantity_text("size", quantity.to("byte").magnitude)
    if quantity.check("[]"):
        return float(quantity.to("dimensionless").magnitude)
    raise TypeError(f"{quantity} is neither a rate (bit/s), a time, a size (byte) nor a ratio")


def is_quantity(value: Any) -> bool:
    """Whether a value is a quantity of pint, which need not be installed."""
    pint = sys.modules.get("pint")
    return pint is not None and isinstance(value, pint.Quantity)


def _span(value: np.timedelta64) -> Any:
    """A time of NumPy as text."""
    if np.isnat(value) or np.datetime_data(value.dtype)[0] in ("generic", "Y", "M"):
        raise ValueError(f"{value!r} is no number of seconds: give it a unit from weeks to attoseconds, and a value")
    return _tandem.quantity_text("time", float(value / np.timedelta64(1, "s")))


def plain(value: Any) -> Any:
    """The value with what a scenario file can have: texts, numbers, truths, lists, dicts.

    >>> plain({"delay": datetime.timedelta(milliseconds=20), "loss": {"per_packet": np.float64(0.01)}})
    {'delay': '20ms', 'loss': {'per_packet': 0.01}}
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    # It is a kind of np.signedinteger.
    if isinstance(value, np.timedelta64):
        return _span(value)
    if isinstance(value, (np.bool_, np.number)):
        return value.item()
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, datetime.timedelta):
        return _tandem.quantity_text("time", value.total_seconds())
    if is_quantity(value):
        return _quantity(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value[()]) if value.ndim == 0 else [plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    return value


def plain_values(values: Any) -> list[Any]:
    """The plain values of a list, an array or a quantity that is an array."""
    if is_quantity(values):
        magnitudes = np.atleast_1d(values.magnitude)
        return [plain(type(values)(magnitude, values.units)) for magnitude in magnitudes.tolist()]
    if isinstance(values, (str, Mapping)) or not hasattr(values, "__iter__") or getattr(values, "ndim", 1) == 0:
        raise TypeError(f"{values!r} is one value: give a list of values")
    return [plain(value) for value in values]
