"""The profile of a machine: measured by a clock one can replace, rounded, stored, and used without a store."""

import json
import math
from dataclasses import replace

import pytest
import torch

from kernelcg import backends
from kernelcg.planning import profile as module
from kernelcg.planning.costs import EFFICIENCY, Pricing
from kernelcg.planning.profile import TYPICAL, Profile, calibrated, coarse, current
from kernelcg.planning.store import CACHE


class Clock:
    """A clock that advances by what the work that is timed says."""

    def __init__(self, rate):
        self.now, self.rate = 0.0, rate

    def __call__(self):
        self.now += self.rate
        return self.now


def test_rates_are_work_divided_by_the_time_of_a_clock():
    found = calibrated(backends.Tiles(), torch.device("cpu"), Clock(1e-3), Clock(1e-3))
    assert found.multiply == coarse(module.SQUARE**3 / 1e-3)
    assert found.factorise == coarse(module.SQUARE**3 / 6 / 1e-3)
    assert found.stream == coarse(module.TALL * 64 / 1e-3)


def test_a_machine_twice_as_slow_has_half_the_rates():
    fast, slow = (calibrated(backends.Tiles(), torch.device("cpu"), Clock(rate), Clock(rate)) for rate in (1e-3, 2e-3))
    assert slow.multiply == fast.multiply / 2
    assert slow.double.base == 2 * fast.double.base


def test_work_of_others_does_not_make_a_machine_slow():
    quiet, waiting = Clock(1e-3), Clock(7e-3)
    assert module.best_of(5, lambda: torch.ones(1), waiting, quiet) == pytest.approx(1e-3)
    assert module.best_of(5, lambda: torch.ones(1), quiet, waiting) == pytest.approx(1e-3)


def test_the_processor_says_nothing_of_the_time_on_a_device():
    class Result:
        device = torch.device("meta")

        def reshape(self, *_):
            return torch.ones(1)

    assert module.best_of(5, Result, Clock(7e-3), Clock(1e-3)) == pytest.approx(7e-3)


@pytest.mark.parametrize("value", [1e-12, 3.7e-5, 1.0, 8.4e10])
def test_rounding_is_within_a_tenth_and_forgives_noise(value):
    assert abs(math.log2(coarse(value) / value)) <= 0.125 + 1e-12
    assert coarse(coarse(value) * 1.03) == coarse(value)


def test_costs_of_pairs_add_up():
    assert TYPICAL.double(9, 16) == pytest.approx(1.2e-10 + 9e-11 + 32e-11)
    assert TYPICAL.pair(torch.float32) is TYPICAL.single


def test_neighbourhoods_have_a_rate_of_their_own_where_it_was_measured():
    """On a GPU small factorisations are far from the speed of large ones; a CPU has one rate for both."""
    slow = replace(TYPICAL, local=1e6)
    assert Profile.from_json(slow.to_json()) == slow
    work = 5000 * 61**2 * 160
    usual, own = (Pricing(profile).costs(5000, 8, 9, torch.float64) for profile in (TYPICAL, slow))
    more = work / 1e6 - work / (EFFICIENCY * usual.flops)
    assert own.local(100, 60) - usual.local(100, 60) == pytest.approx(more)


@pytest.fixture
def own_machine(monkeypatch, tmp_path):
    """No setting, a store of its own, and a count of calibrations."""
    made = []

    def measured(backend, device):
        made.append(backend)
        return TYPICAL

    monkeypatch.delenv(module.SETTING, raising=False)
    monkeypatch.setenv(CACHE, str(tmp_path))
    monkeypatch.setattr(module, "calibrated", measured)
    module._of_machine.cache_clear()
    yield made, tmp_path
    module._of_machine.cache_clear()


def test_it_is_measured_once_and_stored(own_machine):
    made, folder = own_machine
    first = current(backends.default())
    (stored,) = folder.iterdir()
    assert Profile.from_json(stored.read_text()) == first
    assert "threads" in first.machine
    module._of_machine.cache_clear()  # as in another process
    assert current(backends.default()) == first
    assert len(made) == 1


def test_a_damaged_store_is_measured_again(own_machine):
    made, folder = own_machine
    current(backends.default())
    (stored,) = folder.iterdir()
    for damage in ("", "{", "[1]", "{}", stored.read_text().replace("e-10", "e999"), json.dumps({"machine": "x"})):
        stored.write_text(damage)
        module._of_machine.cache_clear()
        assert current(backends.default()).multiply == TYPICAL.multiply
        assert Profile.from_json(stored.read_text())
    assert len(made) == 7


@pytest.mark.parametrize("folder", ["", "/dev/null/kernelcg"])
def test_it_works_without_a_store(own_machine, monkeypatch, folder):
    made, _ = own_machine
    monkeypatch.setenv(CACHE, folder)
    current(backends.default())
    current(backends.default())
    assert len(made) == 1


def test_a_profile_can_be_given(own_machine, monkeypatch, tmp_path):
    made, _ = own_machine
    path = tmp_path / "given.json"
    path.write_text(TYPICAL.to_json())
    monkeypatch.setenv(module.SETTING, str(path))
    assert current(backends.default()) == TYPICAL
    monkeypatch.setenv(module.SETTING, "typical")
    assert current(backends.default()) is TYPICAL
    assert made == []
    path.write_text("nonsense")
    monkeypatch.setenv(module.SETTING, str(path))
    with pytest.raises(ValueError):
        current(backends.default())


def test_a_real_calibration_is_quick_and_sane(monkeypatch):
    found = calibrated(backends.default(), torch.device("cpu"))
    assert 1e8 < found.multiply < 1e14
    assert 1e-13 < found.single(8, 8) < 1e-6
    assert found.single.feature <= 4 * found.double.feature
