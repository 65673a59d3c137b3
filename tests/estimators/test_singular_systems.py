"""Where A is singular to rounding, what is returned is no worse than nothing, and the advice fits what was done."""

import numpy as np
import pytest
from direct_rows import direct_up_to
from sklearn.linear_model import LinearRegression

from kernelcg import GPRegressor, KernelRidge
from kernelcg.errors import ConvergenceWarning
from kernelcg.inference import GaussianProcess
from kernelcg.inference.gaussian.conditioning import condition
from kernelcg.inference.gaussian.model import Regression
from kernelcg.kernels import Linear
from kernelcg.randomness import seeded
from kernelcg.solvers import Stopping


def data(n=60, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=n)


@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_a_singular_matrix_gives_the_predictions_of_its_pseudo_inverse(method):
    X, y = data()
    with pytest.warns(ConvergenceWarning, match="NOT exact") as caught:
        model = KernelRidge(method=method).fit(1e8 * X, y)
    theirs = LinearRegression(fit_intercept=False).fit(X, y).predict(X)
    np.testing.assert_allclose(model.predict(1e8 * X), theirs, atol=1e-6)
    assert float(model.certificate_.relative_residuals.max()) < 1
    assert any("left out" in note for note in model.report_.tried)
    assert "method='direct'" not in str(caught[0].message)
    assert "float64" not in str(caught[0].message)


def test_a_singular_matrix_beside_a_drift():
    X, y = data()
    with pytest.warns(ConvergenceWarning, match="NOT exact"):
        model = GPRegressor(Linear(1.0), noise=0.1, optimizer=None).fit(1e8 * X, y)
    theirs = y.mean() + LinearRegression(fit_intercept=False).fit(X, y - y.mean()).predict(X)
    np.testing.assert_allclose(model.predict(1e8 * X), theirs, atol=1e-6)


def test_zero_weights_where_nothing_better_is_found(monkeypatch):
    direct_up_to(monkeypatch, 10)
    X, y = data()
    problem, gp = Regression(1e8 * X, y[:, None]), GaussianProcess(Linear(1.0), 1.0)
    found = condition(problem, gp, stopping=Stopping(rtol=1e-8), generator=seeded(0))
    assert float(found.weights.R.norm()) <= np.linalg.norm(y) * (1 + 1e-12)
