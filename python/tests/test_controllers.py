"""Congestion controllers that are written in Python."""

from __future__ import annotations

from typing import Any

import pytest

import tandem


def lossy(control: str) -> tandem.Scenario:
    """A split path with losses, whose senders both have this controller."""
    return tandem.Scenario(
        name="lossy",
        link=[{"rate": "20Mbit", "delay": "5ms"}, {"rate": "10Mbit", "delay": "30ms", "loss": {"per_packet": 0.01}}],
        split={"after": 1},
        control={"sender": control, "proxy": control},
        flow={"bytes": "1MB", "count": 2},
    )


class Paced(tandem.Controller):
    """Owns the window, and paces at a rate that is random."""

    owns_window = True
    wants_rate_samples = True

    def on_ack(self, flow: Any, event: Any) -> None:
        flow.cwnd = 20 + event.random % 10
        flow.pacing_rate = 10**6


def test_a_controller_without_methods_is_newreno_to_the_bit() -> None:
    class Mine(tandem.Controller):
        pass

    for on in ("sim", "compose"):
        ours = lossy("reno").run(on=on, seed=2).to_json(series=True)
        assert lossy("mine").run(on=on, seed=2, controllers={"mine": Mine}).to_json(series=True).replace('"mine"', '"reno"') == ours


def test_a_run_is_a_function_of_scenario_and_seed() -> None:
    runs = [lossy("paced").run(seed=seed, controllers={"paced": Paced}).to_json(series=True) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    # Some of the numbers are random ones.
    _, window = lossy("paced").run(seed=1, controllers={"paced": Paced}).series("cwnd", "flow 0 leg 2")
    assert len(set(window.tolist())) > 3 and window.max() < 30


def test_every_connection_has_an_object_of_its_own_and_gets_its_events() -> None:
    made: list[Counting] = []

    class Counting(tandem.Controller):
        wants_samples = True

        def __init__(self) -> None:
            self.events: list[str] = []
            made.append(self)

        def __getattribute__(self, name: str) -> Any:
            if name.startswith("on_"):
                self.events.append(name)
            return super().__getattribute__(name)

    lossy("counting").run(seed=1, controllers={"counting": Counting})
    # One is made to learn which events it wants.
    assert len(made) == 1 + 4
    for controller in made[1:]:
        events = controller.events
        assert events[0] == "on_init" and events.count("on_init") == 1
        assert events.count("on_sample") >= events.count("on_ack") > 0
    assert any({"on_loss", "on_recovered"} <= set(controller.events) for controller in made)


def test_an_exception_ends_the_run_and_reaches_the_caller() -> None:
    calls = 0

    class Broken(tandem.Controller):
        def on_loss(self, flow: Any, event: Any) -> None:
            nonlocal calls
            calls += 1
            raise ZeroDivisionError("of the controller")

    with pytest.raises(ZeroDivisionError, match="of the controller"):
        lossy("broken").run(controllers={"broken": Broken})
    assert calls == 1

    class Fractional(tandem.Controller):
        def on_ack(self, flow: Any, event: Any) -> None:
            flow.cwnd = 10.5

    with pytest.raises(TypeError):
        lossy("broken").run(controllers={"broken": Fractional})


def test_fields_are_documented_and_exported() -> None:
    for kind, count in ((tandem.Flow, 15), (tandem.Event, 15)):
        fields = [name for name in vars(kind) if not name.startswith("_")]
        assert len(fields) == count and kind.__module__ == "tandem"
        assert all(getattr(kind, name).__doc__ for name in fields)
        assert tandem.Controller.__doc__ is not None and all(f"``{name}``" in tandem.Controller.__doc__ for name in fields if name != "pacing_rate")


def test_what_cannot_be_run_is_refused() -> None:
    with pytest.raises(ValueError, match='use on="sim"'):
        lossy("paced").run(on="theory", controllers={"paced": Paced})
    with pytest.raises(ValueError, match="'reno' is a controller of Tandem"):
        lossy("reno").run(controllers={"reno": Paced})
    with pytest.raises(tandem.ScenarioError, match="no controller \"other\".*paced"):
        lossy("other").run(controllers={"paced": Paced})
    with pytest.raises(TypeError, match="derive its class from tandem.Controller"):
        lossy("mine").run(controllers={"mine": dict})  # type: ignore[dict-item]

    class Wrong(tandem.Controller):
        wants_rate_samples = True

    with pytest.raises(ValueError, match="owns_window = True"):
        lossy("mine").run(controllers={"mine": Wrong})
