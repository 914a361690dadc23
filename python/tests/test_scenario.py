"""Scenarios: how they are made, and what is wrong with those that cannot be played."""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tandem
from conftest import ROOT
from tandem._plan import Plan

TOML = """name = "path"
[[link]]
rate = "10Mbit"
delay = "20ms"
loss = { per_packet = 0.01 }
[[flow]]
bytes = "1MB"
"""


def toml(**link: object) -> str:
    return tandem.Scenario(link={"rate": "10Mbit", "delay": "20ms", **link}, flow={"bytes": "1MB"}).to_toml()


def test_keywords_dict_and_text_are_alike() -> None:
    keys: dict[str, Any] = {"name": "path", "link": [{"rate": "10Mbit", "delay": "20ms", "loss": {"per_packet": 0.01}}], "flow": [{"bytes": "1MB"}]}
    text = tandem.Scenario.from_toml(TOML)
    for other in (tandem.Scenario(**keys), tandem.Scenario.from_dict(keys)):
        assert other.with_({"seed": 1}).to_toml() == text.with_({"seed": 1}).to_toml()


def test_bare_numbers_are_in_base_units() -> None:
    written = toml()
    assert toml(rate=10e6, delay=0.02) == written
    assert toml(rate=np.float64(1e7), delay=datetime.timedelta(milliseconds=20)) == written
    assert 'bytes = "1MB"' in tandem.Scenario(link={"rate": 1e7, "delay": 0.02}, flow={"bytes": 1_000_000}).to_toml()
    assert "per_packet = 0.01" in toml(loss={"per_packet": 0.01})
    split: dict[str, Any] = {"link": [{"rate": 1e7, "delay": 0.01}] * 2, "flow": {"bytes": 1e6}}
    assert 'buffer = "64KiB"' in tandem.Scenario(split={"after": 1, "buffer": 65536}, **split).to_toml()


@pytest.mark.parametrize("unit", ["ns", "us", "ms"])
def test_times_of_numpy_are_times(unit: str) -> None:
    delay = np.timedelta64(20, "ms").astype(f"timedelta64[{unit}]")
    assert toml(delay=delay) == toml(delay=np.array(delay)) == toml()
    delays = np.array([delay, 2 * delay])
    path = tandem.Scenario.from_toml(TOML)
    for values in (delays, list(delays)):
        assert tandem.sweep(path, {"link.1.delay": values}).table["link.1.delay"].tolist() == [0.02, 0.04]
    for wrong in (np.timedelta64(1, "Y"), np.timedelta64("NaT", "s")):
        with pytest.raises(ValueError, match="no number of seconds"):
            toml(delay=wrong)


def test_arrays_are_values_or_lists_of_them() -> None:
    assert toml(rate=np.array(1e7), delay=np.array("20ms")) == toml()
    path = tandem.Scenario.from_toml(TOML)
    mixed = np.array(["10Mbit", 2e7, datetime.timedelta(seconds=1)], dtype=object)
    assert tandem.sweep(path, {"link.1.rate": mixed[:2]}).table["link.1.rate"].tolist() == [1e7, 2e7]
    with pytest.raises(TypeError, match="give a list"):
        tandem.sweep(path, {"link.1.rate": np.array(1e7)})


def test_quantities_of_pint() -> None:
    pint = pytest.importorskip("pint")
    units = pint.UnitRegistry()
    assert toml(rate=10 * units.Mbit / units.s, delay=20 * units.ms) == toml()
    assert toml(rate=units.Quantity(1.25e6, "byte/s")) == toml()
    loss = tandem.Scenario(link={"rate": "1Mbit", "delay": "1ms"}, flow={"bytes": 1 * units.megabyte})
    assert 'bytes = "1MB"' in loss.to_toml()
    path = tandem.Scenario.from_toml(TOML).with_({"link.1.loss.per_packet": 2 * units.percent})
    assert path.run(on="sim").set == {"link.1.loss.per_packet": 0.02}
    with pytest.raises(TypeError, match="neither a rate"):
        toml(delay=20 * units.meter)


@pytest.mark.parametrize(
    ("change", "key", "message"),
    [
        ({"link.1.rate": "10Mbot"}, "link[1].rate", 'ends in the unknown unit "Mbot"'),
        ({"link.1.rate": -5}, "link[1].rate", "is negative"),
        ({"link.2.rate": "5Mbit"}, "link.2.rate", "there is 1 of link: say which"),
        ({"link.1.bandwidth": "5Mbit"}, "link[1].bandwidth", "did you mean rate"),
    ],
)
def test_errors_are_those_of_the_command_line(change: dict[str, object], key: str, message: str) -> None:
    with pytest.raises(tandem.ScenarioError, match="--set") as caught:
        tandem.Scenario.from_toml(TOML).with_(change)
    assert caught.value.key == key and message in caught.value.reason and message in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_an_error_in_a_text_names_the_line() -> None:
    with pytest.raises(tandem.ScenarioError, match=r"mine\.toml:3: link\[1\]\.rate") as caught:
        tandem.Scenario.from_toml(TOML.replace("10Mbit", "0bit"), origin="mine.toml")
    assert caught.value.line == 3
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is tandem.ScenarioError and again.key == "link[1].rate"


def test_every_error_of_a_scenario_has_its_attributes() -> None:
    path = tandem.Scenario.from_toml(TOML)
    demo = tandem.Scenario.load(ROOT / "scenarios/demo.toml")
    unknown = path.with_({"control.sender": "nothing"})
    wrong: list[tuple[Callable[[], object], str | None, str]] = [
        (lambda: path.case("nothing"), "case", "there is no case"),
        (demo.run, "case", "has the cases"),
        (unknown.run, "control.sender", "there is no controller"),
        (lambda: tandem.sweep(unknown, {"link.1.rate": [1e6, 2e6]}), "control.sender", "there is no controller"),
        (lambda: tandem.Scenario.from_toml("name ="), None, "is not TOML"),
    ]
    for make, key, reason in wrong:
        with pytest.raises(tandem.ScenarioError) as caught:
            make()
        assert caught.value.key == key and reason in caught.value.reason
        assert caught.value.line == (1 if key is None else None)
    web = path.with_({"flow.1.bytes": "300kB"})
    unanswered: list[Callable[[], object]] = [
        lambda: web.run(on="theory"),
        lambda: tandem.sweep(web, {"duration": ["9s", "10s"]}, on="theory"),
    ]
    for ask in unanswered:
        with pytest.raises(tandem.CannotAnswerError) as refused:
            ask()
        error = refused.value
        assert error.engine == "theory" and str(error).endswith(f"theory cannot answer {error.key}: {error.reason}")


def test_values_that_no_scenario_has() -> None:
    with pytest.raises(TypeError, match="no values of type"):
        toml(rate=object())


def test_changes_and_cases() -> None:
    demo = tandem.Scenario.load(ROOT / "scenarios/demo.toml")
    assert demo.to_toml() == (ROOT / "scenarios/demo.toml").read_text()
    assert len(demo.cases) > 1
    with pytest.raises(tandem.ScenarioError, match="has the cases"):
        demo.run(on="sim")
    with pytest.raises(tandem.ScenarioError, match="there is no case"):
        demo.case("nothing")
    one = demo.case(demo.cases[0])
    assert one.cases == [demo.cases[0]] and tandem.Scenario.from_toml(one.to_toml()).cases == []
    path = tandem.Scenario.from_toml(TOML)
    changed = path.with_({"link.1.rate": "5Mbit"}).with_({"link.1.rate": "6Mbit"}, duration="3s")
    assert 'rate = "6Mbit"' in changed.to_toml() and 'duration = "3s"' in changed.to_toml()
    assert path.with_(seed=3) == path.set(seed=3) != path
    with pytest.raises(AttributeError, match="never changes"):
        path.name = "other"


def test_a_pickled_scenario_has_the_files_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text("time,rate\n1s,2Mbit\n")
    named = TOML.replace('delay = "20ms"', 'delay = "20ms"\nsteps = "steps.csv"')
    with pytest.raises(tandem.ScenarioError, match="directory"):
        tandem.Scenario.from_toml(named)
    (tmp_path / "path.toml").write_text(named)
    try:
        path = tandem.Scenario.load(tmp_path / "path.toml")
    except tandem.ScenarioError as error:
        pytest.fail(str(error))
    pickled = pickle.dumps(path)
    (tmp_path / "steps.csv").unlink()
    again = pickle.loads(pickled)
    assert again == path and again.run(on="sim").to_json() == path.run(on="sim").to_json()


def test_files_of_other_scenarios_make_no_difference(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("time,rate\n1s,2Mbit\n")
    text = TOML.replace('delay = "20ms"', 'delay = "20ms"\nsteps = "a.csv"')
    path, again = (tandem.Scenario.from_toml(text, directory=tmp_path) for _ in range(2))
    plans = [Plan.of(path, {}, "sim", None, 1).fingerprint()]
    assert path.with_({"link.1.steps": "b.csv"}) != path == again
    plans.append(Plan.of(path, {}, "sim", None, 1).fingerprint())
    (tmp_path / "a.csv").write_text("time,rate\n1s,3Mbit\n")
    changed = tandem.Scenario.from_toml(text, directory=tmp_path)
    plans.append(Plan.of(changed, {}, "sim", None, 1).fingerprint())
    assert plans[0] == plans[1] != plans[2] and changed != path
