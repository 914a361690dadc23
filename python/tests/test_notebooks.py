"""The notebooks of ``docs/notebooks`` run, and the book shows what they print.

Each is stored without outputs, ``NAME.ipynb``. Its page ``NAME.md`` and the pictures ``NAME-1.png`` …
are made of a run: ``scripts/python --notebooks`` (``TANDEM_NOTEBOOKS=write``) writes them, and the
test compares the page. Pictures are not compared, since they differ with the version of matplotlib.
What a notebook claims it asserts itself, in its last cell.
"""

from __future__ import annotations

import base64
import os
import re
from typing import Any

import pytest

from conftest import ROOT

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("matplotlib")

NOTEBOOKS = ROOT / "docs" / "notebooks"
WRITE = os.environ.get("TANDEM_NOTEBOOKS") == "write"
MOST_SECONDS = 600
"""After so long a cell is stuck, on the slowest machine."""
MOST_PICTURE_BYTES = 60_000


@pytest.mark.parametrize("name", sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")))
def test_a_notebook_runs_and_its_page_shows_what_it_prints(name: str) -> None:
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    outputs = [cell for cell in notebook.cells if cell.cell_type == "code" and (cell.outputs or cell.execution_count)]
    assert not outputs, f"{name}.ipynb is stored without outputs: clear them"
    assert "assert" in notebook.cells[-1].source, f"the last cell of {name}.ipynb asserts what the notebook claims"
    # An exception in a cell is raised here, with its traceback.
    nbclient.NotebookClient(notebook, timeout=MOST_SECONDS, kernel_name="python3", coalesce_streams=True, resources={"metadata": {"path": NOTEBOOKS}}).execute()
    text, pictures = page(name, notebook)
    assert all(len(picture) < MOST_PICTURE_BYTES for picture in pictures), [len(picture) for picture in pictures]
    if WRITE:
        (NOTEBOOKS / f"{name}.md").write_text(text)
        for number, picture in enumerate(pictures, 1):
            (NOTEBOOKS / f"{name}-{number}.png").write_bytes(picture)
    stored = (NOTEBOOKS / f"{name}.md").read_text()
    assert text == stored, f"docs/notebooks/{name}.md is not what the notebook gives: run scripts/python --notebooks"
    for number in range(1, len(pictures) + 1):
        assert (NOTEBOOKS / f"{name}-{number}.png").exists()


def page(name: str, notebook: Any) -> tuple[str, list[bytes]]:
    """A notebook that was run as Markdown, and its pictures."""
    parts: list[str] = []
    pictures: list[bytes] = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source.strip())
            continue
        parts.append(f"```python\n{cell.source.strip()}\n```")
        for output in cell.outputs:
            data = output.get("data", {})
            text = output.get("text") or data.get("text/plain", "")
            if "image/png" in data:
                pictures.append(base64.b64decode(data["image/png"]))
                about = cell.metadata.get("alt", "")
                assert about, f"the cell of picture {len(pictures)} of {name}.ipynb needs the metadata 'alt': what it shows"
                parts.append(f"![{about}]({name}-{len(pictures)}.png)")
            elif text:
                parts.append(f"```text\n{text.rstrip()}\n```")
    head, _, rest = "\n\n".join(parts).partition("\n")
    assert re.match("# ", head), f"the first cell of {name}.ipynb is its title"
    note = f"This page is made of a [notebook]({name}.ipynb); download it to change it."
    return f"{head}\n\n{note}\n{rest}\n", pictures
