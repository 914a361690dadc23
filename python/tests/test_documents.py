"""The examples of the documentation run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conftest import ROOT


@pytest.mark.parametrize("page", ["docs/how-to/python.md", "python/README.md"])
def test_the_examples_of_a_page_run_in_order(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python(?: run=(\w+))?\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
    assert blocks
    names: dict[str, object] = {"__name__": "example"}
    for needed, block in blocks:
        if needed == "dask":
            distributed = pytest.importorskip("distributed")
            distributed_cluster = distributed.LocalCluster

            def local(**options: object) -> object:
                return distributed_cluster(dashboard_address=None, **options)

            monkeypatch.setattr(distributed, "LocalCluster", local)
        exec(compile(block, page, "exec"), names)
