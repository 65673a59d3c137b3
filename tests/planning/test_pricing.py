"""Prices of formulas: measured once on a machine and remembered, however busy it is later."""

import pytest
import torch
from torch import Tensor

from kernelcg import backends
from kernelcg.kernels import RBF, Kernel, Matern, OnColumns, squared_distances
from kernelcg.planning import pricing as module
from kernelcg.planning.pricing import TYPICAL_ENTRY, priced
from kernelcg.planning.profile import SETTING
from kernelcg.planning.remembered import remembered
from kernelcg.planning.store import CACHE

X = torch.linspace(0, 1, 300, dtype=torch.float64).reshape(100, 3)


class Cauchy(Kernel):
    """1 / (1 + |x − y|² / w²)."""

    width: Tensor

    def covariance(self, X, Y):
        return 1 / (1 + squared_distances(X / self.width, Y / self.width))


class Slower(Cauchy):
    """The same with more to do."""

    def covariance(self, X, Y):
        return super().covariance(X, Y).exp().log()


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with a store of its own, whose busy moments a list of seconds describes."""
    taken = []
    monkeypatch.delenv(SETTING, raising=False)
    monkeypatch.setenv(CACHE, str(tmp_path))
    monkeypatch.setattr(module, "best_of", lambda repeats, work: taken.pop(0))
    remembered.cache_clear()
    yield taken, tmp_path
    remembered.cache_clear()


def price(kernel, X=X):
    return priced(kernel, X, backends.Tiles())


def test_a_formula_is_timed_once_and_its_price_kept(machine):
    taken, folder = machine
    taken += [2.0**-10 * 1.3, 2.0**-3]  # the second one would be that of a busy machine
    first = price(Cauchy(1.0))
    assert first.seconds == 2.0 ** round(torch.tensor(2.0**-10 * 1.3 / 100**2).log2().item())
    assert price(Cauchy(2.5)) == first, "hyperparameters do not matter"
    remembered.cache_clear()  # as in another process
    assert price(Cauchy(1.0)) == first
    assert len(taken) == 1
    (stored,) = folder.iterdir()
    for damage in ("", "nan", "-1", "{}"):
        stored.write_text(damage)
        remembered.cache_clear()
        taken[:] = [2.0**-10]
        assert price(Cauchy(1.0)).seconds > 0
        assert taken == []


def test_other_formulas_and_other_features_have_prices_of_their_own(machine):
    taken, _ = machine
    taken += [2.0**-10, 2.0**-8, 2.0**-6, 2.0**-4]
    some = [price(Cauchy(1.0)), price(Slower(1.0)), price(Cauchy(1.0) * RBF(1.0)), price(Cauchy(1.0), X[:, :2])]
    assert [one.seconds / some[0].seconds for one in some] == [1, 4, 16, 64]


@pytest.mark.parametrize("backend", ["native", "tiles"])
def test_what_is_left_after_constants_sums_and_mapped_columns_is_priced(machine, backend):
    taken, _ = machine
    if not backends.available()[backend].usable:
        pytest.skip("the compiled module is missing")
    own = backends.named(backend)
    for kernel, fused in (
        (2.0 * RBF(1.0), 1),
        (2.0 * (RBF(1.0) + 3.0 * Matern([1.0, 2.0, 3.0])), 2),
        (OnColumns(RBF(1.0), (0, 2)), 1),
    ):
        found = priced(kernel, X, own)
        assert (found.fused, found.seconds) == (fused, 0.0), kernel
    taken += [2.0**-10]
    both = priced(2.0 * Cauchy(1.0) + 3.0 * RBF(1.0), X, own)
    assert both.fused == 1
    assert both.seconds > 0
    assert taken == []


def test_it_works_without_a_store(machine, monkeypatch):
    taken, folder = machine
    monkeypatch.setenv(CACHE, "")
    taken += [2.0**-10, 2.0**-3]
    assert price(Cauchy(1.0)) == price(Cauchy(1.0))
    assert not list(folder.iterdir())


def test_typical_prices_are_the_same_everywhere(machine, monkeypatch):
    monkeypatch.setenv(SETTING, "typical")
    assert price(Cauchy(1.0)).seconds == TYPICAL_ENTRY
    both = price(Cauchy(1.0) + RBF(1.0))
    assert (both.fused, both.seconds) == (1, TYPICAL_ENTRY)
