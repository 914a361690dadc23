"""The equations on arrays, against the papers' numbers and closed forms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tandem
from tandem import equations


def test_the_square_root_laws() -> None:
    rtt, loss = np.array([[0.1], [0.05]]), np.array([0.001, 0.01, 0.1])
    found = equations.mean_rate(rtt, loss)
    assert found.shape == (2, 3)
    # Φ of Ott, Kemperman and Mathis.
    np.testing.assert_allclose(found, 1.309833 / rtt / np.sqrt(loss), rtol=1e-6)
    np.testing.assert_allclose(equations.mean_rate(rtt, loss, loss_per="second"), 2 / rtt**2 / loss)
    np.testing.assert_allclose(equations.loss_probability(0.1, loss), loss)
    x = np.linspace(0, 400, 4001)
    density = equations.rate_density(x, 0.1, 0.01)
    assert float(np.sum(density) * 0.1) == pytest.approx(1, abs=1e-3)
    assert float(np.sum(density * x) * 0.1) == pytest.approx(float(equations.mean_rate(0.1, 0.01)), rel=1e-3)
    assert equations.rate_survival(0.0, 0.1, 0.01) == pytest.approx(1)
    assert float(equations.rate_moment(2, 0.1, 0.01)) == pytest.approx(2 * 100 / 0.01)


def test_a_parameter_without_a_meaning_is_refused() -> None:
    with pytest.raises(ValueError, match="round-trip time is -1"):
        equations.mean_rate([0.1, -1], 0.01)
    with pytest.raises(ValueError, match='by "packet" or by "second"'):
        equations.mean_rate(0.1, 0.01, loss_per="minute")  # type: ignore[arg-type]
    rtt = (0.03, 0.8)
    functions: list[Callable[[float], object]] = [
        lambda wrong: tandem.score(wrong, 1e6, 0.02),
        lambda wrong: tandem.score(1e6, wrong, 0.02),
        lambda wrong: tandem.score(1e6, 1e6, wrong),
        lambda wrong: equations.smoothed_throughput(1e6, wrong),
        lambda wrong: equations.smoothed_throughput(1e6, 1e6, alpha=wrong),
        lambda wrong: equations.rate_density(wrong, 0.1, 0.01),
        lambda wrong: equations.rate_survival(wrong, 0.1, 0.01),
        lambda wrong: equations.transfer_time(wrong, rtt, 1e6, split=True),
        lambda wrong: equations.splitting_gain(wrong, rtt, 1e6),
        lambda wrong: equations.wlan_throughput(2, wrong),
    ]
    for of in functions:
        for wrong in (-1.0, np.nan, np.inf):
            with pytest.raises(ValueError, match="must be"):
                of(wrong)


def test_split_rates_lie_below_those_of_the_slower_leg() -> None:
    rtt, loss, buffers = (0.04, 0.02), (0.01, 0.01), np.array([10.0, 100.0, 1000.0])
    assert equations.split_load(rtt, loss) == pytest.approx(0.25)
    alone = float(equations.mean_rate(0.04, 0.01))
    rates = equations.split_rates(rtt, loss, buffer=buffers, losses=40_000)
    assert rates.rate_pps.shape == (3,) and (np.diff(rates.rate_pps) > 0).all()
    assert (rates.rate_pps < alone + 3 * rates.rate_pps_ci95).all()
    np.testing.assert_allclose(rates.free + rates.starvation + rates.backpressure, 1)
    with pytest.raises(ValueError, match="stable for rho < 1"):
        equations.split_rates((0.02, 0.04), loss)
    means = equations.split_means(rtt, loss, buffer=buffers[:2])
    assert (abs(means.rate_pps - rates.rate_pps[:2]) < 4 * rates.rate_pps_ci95[:2] + 0.01 * alone).all()


def test_a_sufficient_buffer_leaves_its_share() -> None:
    rtt, loss = (0.04, 0.04), ([0.4, 0.4], [0.4, 0.2])
    found = equations.sufficient_buffer(rtt, loss, share=0.9, loss_per="second", losses=100_000)
    assert found.buffer_pkt.shape == (2,) and (found.buffer_pkt > 0).all()
    rates = equations.split_rates(rtt, loss, buffer=found.buffer_pkt, loss_per="second")
    slower = equations.mean_rate(0.04, 0.4, loss_per="second")
    assert (abs(rates.rate_pps / slower - 0.9) < 0.05).all()


def test_slow_start_is_that_of_the_paper() -> None:
    # 128 kbit/s, 1500 bytes, 30 and 800 ms (Wei et al. §IV-A).
    rtt, rate = (0.03, 0.8), 16_000
    assert equations.slow_start_time(rtt, rate, split=False) == pytest.approx(0.83 * np.log2(0.83 * rate / 1500))
    assert equations.slow_start_time(rtt, rate, split=True) == pytest.approx(0.8 * np.log2(0.8 * rate / 1500))
    assert equations.slow_start_time(rtt, rate, split=True, downstream="full") == pytest.approx(0.03 * np.log2(0.8 * rate / 1500))
    sizes = np.array([1e3, 1e5, 1e7])
    regular, split = (equations.transfer_time(sizes, rtt, rate, split=split, downstream="full") for split in (False, True))
    np.testing.assert_allclose(equations.splitting_gain(sizes, rtt, rate, downstream="full"), 1 - split / regular)
    assert equations.slow_start_bytes(rtt, rate) > 1500


def test_the_score() -> None:
    np.testing.assert_allclose(tandem.score([66_000, 0], 660_000, 0.02), [0.11, 0.01])
    np.testing.assert_allclose(equations.smoothed_throughput([500e3, np.nan], 1e6), [800e3, 1e6])
    # At least a segment a second.
    np.testing.assert_allclose(tandem.score(2896, [0.0, 1448.0], 0.02), 2.01)


def test_the_can_chain() -> None:
    # One network is a processor-sharing queue: E[S] = 1/(1 − ρ).
    loads = np.array([0.2, 0.5])
    found = equations.can(loads, [0.2])
    np.testing.assert_allclose(found.sojourn_s, np.broadcast_to((1 / (1 - loads - 0.2))[:, None], (2, 2)), rtol=1e-9)
    both = equations.can(0.5, [0.3, [0.3, 0.4]])
    assert both.sojourn_s.shape == (2, 3) and both.sojourn_s[0, 1] == pytest.approx(both.sojourn_s[0, 2])
    assert (both.jobs_error < 1e-8).all()
    assert np.isnan(equations.can(0.0, [0.5]).sojourn_s[0])
    with pytest.raises(ValueError, match="load"):
        equations.can(0.9, [0.3])


def test_a_wireless_network() -> None:
    # One acknowledgement for two segments: 5.11 to 5.48 Mbit/s.
    assert equations.wlan_throughput(2) == pytest.approx(5.48e6, rel=2e-3)
    assert equations.wlan_throughput([1, 2], backoffs="all")[1] == pytest.approx(5.11e6, rel=2e-3)
