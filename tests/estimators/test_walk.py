"""How deep the calls of one fit go, from the estimator to the compiled product (docs/architecture.md draws them)."""

import sys

import numpy as np
import pytest

from kernelcg.backends import native
from kernelcg.estimators import GPRegressor

DEEPEST = 15
"""Python calls from the fit of the estimator, which counts too, to the compiled product."""

ROWS = 3000

pytestmark = pytest.mark.skipif(native._native is None, reason="the compiled module is missing")


class ReachedTheProduct(Exception):
    """Raised in place of a compiled product; it carries the names of the functions that led there."""


class StandIn:
    """Stands for the compiled module, and raises `ReachedTheProduct` at the first product that is looked for."""

    def __init__(self, module, wanted):
        self.module, self.wanted = module, wanted

    def __getattr__(self, name):
        return getattr(self.module, name)

    def product(self, A, *arguments):
        calls = calls_since_fit()
        if A.rows == ROWS and self.wanted(calls):
            raise ReachedTheProduct(calls)
        return self.module.product(A, *arguments)


def calls_since_fit():
    """Return the names of the functions under way, from the fit of the estimator to the caller of the product."""
    frame, names = sys._getframe(2), []
    while frame is not None:
        names.append(frame.f_code.co_name)
        if names[-1] == "fit":
            return names[::-1]
        frame = frame.f_back
    return names[::-1]


def walk_of_a_fit(monkeypatch, wanted):
    monkeypatch.setattr(native, "_native", StandIn(native._native, wanted))
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(ROWS, 3))
    y = np.sin(5 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(ROWS)
    with pytest.raises(ReachedTheProduct) as reached:
        GPRegressor(method="iterative", max_iter=8).fit(X, y)
    return reached.value.args[0]


PLACES = {
    "the first product": lambda calls: "learn" in calls,
    "the automatic choice": lambda calls: "learn" in calls and "run" in calls,
    "a check of the automatic choice": lambda calls: {"learn", "run", "checked_with"} <= set(calls),
    "a kept preconditioner": lambda calls: "solve_reusing" in calls and "run" not in calls,
    "a check with a kept preconditioner": lambda calls: (
        {"learn", "solve_reusing", "checked_with"} <= set(calls) and "run" not in calls
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_the_walk_from_fit_to_the_compiled_product_is_short(monkeypatch, place):
    walk = walk_of_a_fit(monkeypatch, PLACES[place])
    assert walk[0] == "fit"
    assert len(walk) <= DEEPEST, f"{len(walk)} calls: {' > '.join(walk)}"


@pytest.mark.filterwarnings("ignore:learning ended early")
def test_no_product_of_a_fit_is_deeper(monkeypatch):
    """A whole fit to other data, learning and conditioning, ends without a product that is deeper."""
    monkeypatch.setattr(native, "_native", StandIn(native._native, lambda calls: len(calls) > DEEPEST))
    rng = np.random.default_rng(1)
    X = rng.uniform(size=(ROWS, 2))
    y = np.sin(9 * X[:, 0]) * np.cos(5 * X[:, 1]) + 0.1 * rng.standard_normal(ROWS)
    model = GPRegressor(method="iterative", max_iter=2).fit(X, y)
    assert model.certificate_.met
