"""The package as a whole."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import tandem


def imported(source: Path) -> set[str]:
    """The modules of the package that a file imports, anywhere in it and for type checkers too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "tandem":
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tandem."):
            found.add(node.module.removeprefix("tandem."))
    return found


def test_no_module_imports_in_a_circle() -> None:
    modules = {source.stem: imported(source) for source in Path(tandem.__file__).parent.glob("*.py")}
    assert "_outcome" in modules["_scenario"]
    # Raises CycleError, with the circle.
    TopologicalSorter(modules).prepare()
