"""y of 1e-200 or 1e200: numbers in the units of y are right, and where there are none that is said."""

import numpy as np
import pytest

from kernelcg import GPRegressor, load
from kernelcg.errors import ConvergenceWarning
from kernelcg.kernels import RBF

X = np.random.default_rng(0).normal(size=(30, 2))
Y = np.sin(X[:, 0]) + 0.5


def fitted(unit):
    return GPRegressor(RBF(1.0), noise=0.01, optimizer=None).fit(X, unit * Y)


@pytest.mark.parametrize("unit", [2.0**-660, 2.0**660])
def test_a_model_of_extreme_units_can_be_kept(unit, tmp_path):
    model = fitted(unit)
    model.save(tmp_path / "model.kcg")
    again, usual = load(tmp_path / "model.kcg"), fitted(1.0)
    for found, exact in zip(again.predict(X, return_std=True), usual.predict(X, return_std=True), strict=True):
        np.testing.assert_allclose(found / unit, exact, rtol=1e-12)
    np.testing.assert_allclose(again.loo().std / unit, usual.loo().std, rtol=1e-12)


@pytest.mark.parametrize("unit", [2.0**-660, 2.0**660])
def test_covariances_beyond_float64_are_warned_of(unit):
    with pytest.warns(ConvergenceWarning, match="other units"):
        fitted(unit).predict(X, return_cov=True)
