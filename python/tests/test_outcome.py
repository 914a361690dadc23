"""Runs and their outcomes."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tandem


def test_json_is_that_of_the_command_line(path: tandem.Scenario, command: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "path.toml"
    file.write_text(path.to_toml())
    scenario = tandem.Scenario.load(file)
    for on in ("sim", "compose"):
        run = ("run", str(file), "--on", on, "--seed", "3", "--json")
        assert scenario.run(on=on, seed=3).to_json() == command(*run)
    assert scenario.run(seed=3).to_json(series=True) == command("run", str(file), "--on", "sim", "--seed", "3", "--json", "--series")
    changed = scenario.with_({"link.2.rate": 5e6, "control.proxy": "hybla"})
    sets = ("--set", "link.2.rate=5Mbit", "--set", "control.proxy=hybla")
    assert changed.run().to_json() == command("run", str(file), "--on", "sim", "--json", *sets)


def test_parts_are_arrays(path: tandem.Scenario) -> None:
    outcome = path.run(on="sim", seed=2)
    found = json.loads(outcome.to_json(series=True))[0]
    assert (outcome.engine, outcome.seed, outcome.valid, outcome.scenario) == ("sim", 2, True, "path")
    assert outcome.goodput_bps == found["goodput_bps"] == outcome.number("goodput_bps") == outcome.numbers()["goodput_bps"]
    flows = outcome.flows()
    assert flows["goodput_bps"].tolist() == [flow["goodput_bps"] for flow in found["flows"]]
    assert flows["bytes"].dtype == np.uint64 and flows["error"].tolist() == [None, None]
    legs = outcome.legs()
    assert legs["leg"].tolist() == [1, 2, 1, 2] and set(legs["control"]) == {"cubic"}
    assert outcome.links()["packets"].tolist() == [link["packets"] for link in found["links"]]
    assert outcome.phases is not None and sum(outcome.phases) == pytest.approx(1)
    assert outcome.distribution("queue_bytes") == tuple(found["queue_bytes"].values())
    for series in found["series"]:
        t, v = outcome.series(series["what"], series["whose"])
        assert t.tolist() == series["t"] and v.tolist() == series["v"]
    everything = outcome.all_series()
    assert everything.height == sum(len(series["t"]) for series in found["series"])
    with pytest.raises(KeyError, match="no series 'afct'"):
        outcome.series("afct")
    assert outcome.distribution("proxy_delay_s") == outcome.distribution("delay_s")
    with pytest.raises(KeyError, match="no distribution 'afct'"):
        outcome.distribution("afct")
    with pytest.raises(AttributeError):
        outcome.afct  # noqa: B018


def test_tables_are_equal_if_their_columns_are(path: tandem.Scenario) -> None:
    legs, other = path.run().legs(), path.run(seed=2).legs()
    assert legs == path.run().legs() != other and legs != dict(legs)
    assert dict(legs).keys() == legs.keys() == set(legs) and "flow" in legs and "none" not in legs
    assert len(legs) == legs.height == 4 and legs.get("none") is None
    nan, texts = np.array([np.nan, 1.0]), ["a", None]
    assert tandem.Table({"x": nan, "y": texts}) == tandem.Table({"y": texts, "x": nan.copy()})
    assert tandem.Table({"x": nan}) != tandem.Table({"x": nan[:1]}) and tandem.Table({"x": nan}) != tandem.Table({"x": texts})


def test_series_are_views_that_keep_the_outcome_alive(path: tandem.Scenario) -> None:
    outcome = path.run()
    t, _ = outcome.series("goodput")
    again, _ = outcome.series("goodput")
    assert np.shares_memory(t, again) and not t.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        t[0] = 1.0
    copy = t.copy()
    del outcome, again
    assert np.array_equal(t, copy)


def test_a_pickled_outcome_keeps_every_bit(path: tandem.Scenario) -> None:
    outcome = path.run()
    again = pickle.loads(pickle.dumps(outcome))
    assert again.to_json(series=True) == outcome.to_json(series=True)


def test_frames(path: tandem.Scenario) -> None:
    flows = path.run().flows()
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    pytest.importorskip("pyarrow")
    assert isinstance(flows.to_pandas(), pandas.DataFrame)
    assert flows.to_pandas()["goodput_bps"].tolist() == flows["goodput_bps"].tolist()
    assert flows.to_polars()["bytes"].to_list() == flows["bytes"].tolist()
    assert flows.to_polars()["kept_max_bytes"].null_count() == int(np.isnan(flows["kept_max_bytes"]).sum())
    assert flows.to_arrow().column_names == flows.columns
    assert polars.DataFrame(flows.to_arrow()).columns == flows.columns
    assert "goodput_bps" in repr(flows) and "<table>" in flows._repr_html_()


def test_pages_and_plots(path: tandem.Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = path.run()
    page = outcome.page()
    assert page.startswith("<!doctype html>") or page.startswith("<!DOCTYPE html>")
    assert "<iframe" in outcome._repr_html_() and "goodput" in str(outcome)
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    outcome.show()
    assert Path(opened[0].removeprefix("file://")).read_text() == page
    assert "path" in tandem.page([outcome, path.run(seed=2)], title="both")
    pytest.importorskip("matplotlib")
    figure = outcome.plot()
    assert len(figure.axes) >= 4 and figure.axes[0].lines


def test_engines_refuse_what_they_cannot_answer(path: tandem.Scenario) -> None:
    with pytest.raises(tandem.CannotAnswerError, match="theory cannot answer flow"):
        path.run(on="theory")
    with pytest.raises(ValueError, match="there is no engine"):
        path.run(on="ns-2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='use on="lab"'):
        path.run(pcap="capture")
    with pytest.raises(ValueError, match="tries is 0"):
        path.run(tries=0)


def test_other_threads_go_on_during_a_run(path: tandem.Scenario) -> None:
    long = path.with_({"flow.1.bytes": "50MB"})
    worker = threading.Thread(target=long.run)
    worker.start()
    turns = 0
    while worker.is_alive():
        turns += 1
        time.sleep(0.001)
    worker.join()
    assert turns > 10, "the run held the GIL"


INTERRUPTED = """
import signal
import tandem
# A shell starts its background jobs with SIGINT ignored, and their children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
endless = tandem.Scenario(link={"rate": "1Gbit", "delay": "20ms"}, flow={}, duration="100000s")
print("begun", flush=True)
try:
    endless.run()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_an_interrupt_ends_a_run() -> None:
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    try:
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (out, process.returncode) == ("interrupted\n", 0)
