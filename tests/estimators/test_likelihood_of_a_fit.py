"""GPRegressor.log_marginal_likelihood: one value at one θ, exact where there is a factor."""

from dataclasses import replace

import numpy as np
import pytest

from kernelcg import GPRegressor
from kernelcg.kernels import RBF, Matern
from kernelcg.planning.ranks import Sizes


def data(n=300):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (n, 3))
    return X, np.sin(2 * X[:, 0]) * X[:, 1] + 0.2 * rng.normal(size=n)


@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_one_value_at_one_theta(method):
    model = GPRegressor(Matern(0.5), noise=0.02, optimizer=None, method=method)
    plan = model.plan(*data())
    few_rows_in_P = replace(plan.pricing, sizes=Sizes(bound_rank=16, bound_work=1e4))  # probes matter
    model.fit(*data(), plan=replace(plan, pricing=few_rows_in_P))
    theta = model.posterior_.gp.log_parameters().numpy()
    value, gradient = model.log_marginal_likelihood(eval_gradient=True)
    assert value == model.log_marginal_likelihood() == model.log_marginal_likelihood_value_
    assert value == model.log_marginal_likelihood(theta)
    again = model.log_marginal_likelihood(theta, eval_gradient=True)
    assert again[0] == value
    np.testing.assert_array_equal(again[1], gradient)


def test_a_factor_that_was_needed_serves_the_likelihood_too():
    """Plain CG does not suffice at so little noise: the iterative method ends with a factor, and all is exact."""
    X, y = data(200)
    options = {"noise": 1e-9, "optimizer": None}
    exact = GPRegressor(RBF(1.5), method="direct", **options).fit(X, y)
    model = GPRegressor(RBF(1.5), method="iterative", **options).fit(X, y)
    assert model.certificate_.rests_on == "an exact factor"
    theta = 0.01 + model.posterior_.gp.log_parameters().numpy()
    found, gradient = model.log_marginal_likelihood(theta, eval_gradient=True)
    expected, slope = exact.log_marginal_likelihood(theta, eval_gradient=True)
    assert found == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(gradient, slope, rtol=1e-6)


def test_theta_is_in_the_order_of_the_names():
    model = GPRegressor(RBF([1.0, 2.0, 3.0], 0.5), noise=0.1, optimizer=None).fit(*data(40))
    names = "kernel.lengthscale[0], kernel.lengthscale[1], kernel.lengthscale[2], kernel.variance, noise.variance"
    with pytest.raises(ValueError) as caught:
        model.log_marginal_likelihood(np.zeros(3))
    assert names in str(caught.value)
    assert model.log_marginal_likelihood(np.log([1.0, 2.0, 3.0, 0.5, 0.1])) == pytest.approx(
        model.log_marginal_likelihood_value_
    )
