"""Optimizers that users give, with scikit-learn's signature."""

import numpy as np
import pytest
import scipy.optimize
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from kernelcg import GPClassifier, GPGeneralizedRegressor, GPRegressor, load
from kernelcg.errors import ConvergenceWarning
from kernelcg.inference import Noise
from kernelcg.kernels import RBF


def data(n=40):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=n)


def lbfgsb(obj_func, initial_theta, bounds):
    found = scipy.optimize.minimize(obj_func, initial_theta, method="L-BFGS-B", jac=True, bounds=bounds)
    return found.x, found.fun


def test_the_optimum_of_scipy_is_that_of_scikit_learn():
    X, y = data()
    kernel = sk.ConstantKernel(1.0) * sk.RBF([1.0, 1.0]) + sk.WhiteKernel(0.1)
    theirs = GaussianProcessRegressor(kernel, alpha=0.0, normalize_y=True, optimizer=lbfgsb).fit(X, y)
    ours = GPRegressor(kernel, mean="zero", priors=None, optimizer=lbfgsb).fit(X, y)
    assert ours.log_marginal_likelihood_value_ == pytest.approx(theirs.log_marginal_likelihood_value_, abs=1e-6)
    np.testing.assert_allclose(ours.kernel_.lengthscale[0].item(), theirs.kernel_.k1.k2.length_scale[0], rtol=1e-3)
    assert ours.learning_.converged
    assert ours.learning_.evaluations > 3
    values = [step.value for step in ours.learning_.steps]
    assert values == sorted(values)


def test_the_gradient_is_that_of_the_value_and_fixed_hyperparameters_are_left_out():
    X, y = data()
    seen = []

    def optimizer(obj_func, initial_theta, bounds):
        seen.append((initial_theta, bounds))
        value, gradient = obj_func(initial_theta)
        assert value == obj_func(initial_theta, eval_gradient=False)
        errors = scipy.optimize.check_grad(
            lambda theta: obj_func(theta, eval_gradient=False), lambda theta: obj_func(theta)[1], initial_theta + 0.1
        )
        assert errors < 1e-4 * np.linalg.norm(gradient)
        return initial_theta + 0.5, value

    kernel = RBF([1.0, 2.0]).fixed("variance").bounded(lengthscale=(0.5, 10.0)).with_prior(lengthscale=(1.0, 0.5))
    model = GPRegressor(kernel, noise=Noise(0.1), optimizer=optimizer, priors=None).fit(X, y)
    (start, bounds), *_ = seen
    np.testing.assert_allclose(start, np.log([1.0, 2.0, 0.1]))
    np.testing.assert_allclose(bounds[:2], np.log([[0.5, 10.0]] * 2))
    np.testing.assert_allclose(model.kernel_.lengthscale, np.exp(0.5) * np.array([1.0, 2.0]))
    assert model.kernel_.variance == 1


def test_it_serves_other_likelihoods_and_the_iterative_method():
    X, y = data()
    for model, target in [
        (GPClassifier(RBF(1.0), optimizer=lbfgsb), y > 0),
        (GPGeneralizedRegressor(RBF(1.0), likelihood="gaussian", optimizer=lbfgsb), y),
        (GPRegressor(RBF(1.0), method="iterative", optimizer=lbfgsb), y),
    ]:
        model.fit(X, target)
        start = model.posterior_.gp.log_parameters().numpy() * 0
        assert model.log_marginal_likelihood_value_ > model.log_marginal_likelihood(start)


def test_restarts_begin_elsewhere_and_the_best_end_is_kept():
    X, y = data()
    starts = []

    def optimizer(obj_func, initial_theta, bounds):
        starts.append(initial_theta)
        return initial_theta, obj_func(initial_theta, eval_gradient=False)

    model = GPRegressor(RBF(1.0), optimizer=optimizer, n_restarts=4).fit(X, y)
    assert len({tuple(start) for start in starts}) == 5
    values = [model.log_marginal_likelihood(start) for start in starts]
    assert model.log_marginal_likelihood_value_ == pytest.approx(max(values))


@pytest.mark.parametrize("answer", [None, np.zeros(2), (np.zeros(7), 0.0), (np.full(3, np.nan), 0.0)])
def test_an_optimizer_that_returns_nonsense_is_told_so(answer):
    X, y = data()
    with pytest.raises(ValueError, match="the optimizer must"):
        GPRegressor(RBF(1.0), optimizer=lambda f, start, bounds: answer).fit(X, y)


def test_a_listener_ends_it_with_the_best_so_far():
    X, y = data()
    told = []

    def callback(event):
        told.append(event)
        return len([one for one in told if one.kind.name == "EVALUATION"]) >= 4

    with pytest.warns(ConvergenceWarning, match="learning ended early"):
        model = GPRegressor(RBF(1.0), optimizer=lbfgsb).fit(X, y, callback=callback)
    assert model.learning_.stopped
    assert model.learning_.evaluations >= 4
    np.testing.assert_allclose(
        model.posterior_.gp.log_parameters(), model.learning_.steps[-1].log_parameters, rtol=1e-12
    )


def test_saved_models_forget_the_function(tmp_path):
    X, y = data()
    model = GPRegressor(RBF(1.0), optimizer=lbfgsb).fit(X, y)
    model.save(tmp_path / "model.kcg")
    assert load(tmp_path / "model.kcg").optimizer == "lbfgs"
