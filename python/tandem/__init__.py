"""Split TCP from Python: scenarios, engines that play them, sweeps, equations and a detector.

A :class:`Scenario` is a network and the traffic over it. An engine plays it and answers with an
:class:`Outcome`:

>>> import tandem
>>> path = tandem.Scenario(
...     link=[{"rate": "100Mbit", "delay": "5ms"}, {"rate": "10Mbit", "delay": "300ms"}],
...     split={"after": 1},
...     flow={"bytes": "2MB"},
... )
>>> outcome = path.run(on="sim", seed=1)
>>> outcome.valid, len(outcome.flows())
(True, 1)

:func:`sweep` plays a scenario with many values and seeds, on all cores or on a Dask cluster.
:mod:`tandem.equations` has the models of the papers as functions on arrays, :mod:`tandem.detect`
tells from packet traces whether a connection is split, and :func:`advise` whether to split a path.

Numbers of scenarios, outcomes and tables are in base units: rates in bit/s, times in s, sizes in
bytes. Texts such as ``"10Mbit"``, ``"20ms"`` and ``"64KiB"``, quantities of ``pint``, and time
differences of Python and NumPy are converted. Equations have the units of their papers, such as
packets/s and bytes/s, and controllers those of the kernel, such as segments and µs: their
docstrings name them.
"""

from tandem import detect, equations
from tandem._advice import Advice, advise
from tandem._controller import Controller
from tandem._outcome import Distribution, Outcome, Phases, page
from tandem._scenario import Scenario
from tandem._sweep import Sweep, sweep
from tandem._table import Table
from tandem._tandem import CannotAnswerError, Event, Flow, RunError, ScenarioError, __version__
from tandem.equations import score

__all__ = [
    "Advice",
    "CannotAnswerError",
    "Controller",
    "Distribution",
    "Event",
    "Flow",
    "Outcome",
    "Phases",
    "RunError",
    "Scenario",
    "ScenarioError",
    "Sweep",
    "Table",
    "__version__",
    "advise",
    "detect",
    "equations",
    "page",
    "score",
    "sweep",
]
