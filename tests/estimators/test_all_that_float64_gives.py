"""rtol=0 asks for as much as float64 has to give: that is met, and nothing is warned of."""

import numpy as np
import pytest

from kernelcg import GPClassifier, GPGeneralizedRegressor, GPRegressor, KernelRidge
from kernelcg.inference.bounds.verdict import Verdict
from kernelcg.kernels import RBF

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 2))
Y = np.sin(X[:, 0]) + 0.1 * RNG.standard_normal(60)
NEW = RNG.standard_normal((7, 2))
COUNTS = np.round(np.exp(Y))
CLASSES = np.digitize(Y, [-0.5, 0.5])

MACHINES = {
    "regression": (lambda **o: GPRegressor(RBF(1.0), noise=0.1, optimizer=None, **o), Y),
    "little noise": (lambda **o: GPRegressor(RBF(1.0), noise=1e-8, optimizer=None, **o), Y),
    "drift": (lambda **o: GPRegressor(RBF(1.0), noise=0.1, mean="linear", optimizer=None, **o), Y),
    "several outputs": (lambda **o: GPRegressor(RBF(1.0), noise=0.1, optimizer=None, **o), np.stack([Y, Y**2], 1)),
    "ridge": (lambda **o: KernelRidge(kernel=RBF(1.0), alpha=0.1, **o), Y),
    "two classes": (lambda **o: GPClassifier(RBF(1.0), optimizer=None, **o), Y > 0),
    "three classes": (lambda **o: GPClassifier(RBF(1.0), optimizer=None, **o), CLASSES),
    "counts": (lambda **o: GPGeneralizedRegressor(RBF(1.0), likelihood="poisson", optimizer=None, **o), COUNTS),
}


@pytest.mark.parametrize("method", ["direct", "iterative"])
@pytest.mark.parametrize("name", MACHINES)
def test_it_is_met_without_a_warning(name, method):
    """Warnings are errors here."""
    machine, y = MACHINES[name]
    model, usual = (machine(method=method, rtol=rtol).fit(X, y) for rtol in (0.0, 1e-9))
    assert model.certificate_.met
    assert model.certificate_.verdict is Verdict.CERTIFIED
    np.testing.assert_allclose(model.predict(NEW), usual.predict(NEW), rtol=1e-5, atol=1e-5)
    if name != "ridge":
        shift = np.zeros_like(model.posterior_.gp.log_parameters().numpy())
        found = [one.log_marginal_likelihood(shift, eval_gradient=True) for one in (model, usual)]
        np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-6)
        np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["regression", "two classes", "counts"])
def test_a_tolerance_that_no_residual_meets_is_not_met_but_certified(name):
    """The same rule for all: the bound of the error holds, and it is small."""
    machine, y = MACHINES[name]
    model = machine(method="direct", rtol=1e-30).fit(X, y)
    assert not model.certificate_.met
    assert model.certificate_.verdict is Verdict.CERTIFIED
