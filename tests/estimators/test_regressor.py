"""GPRegressor: scikit-learn's contract and numbers, promised bounds, hostile data, plain errors."""

import logging
import pickle
import re
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import reference
import torch
from direct_rows import direct_up_to
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import Tensor

from kernelcg import GPRegressor
from kernelcg.errors import ConvergenceWarning, MemoryBudgetExceeded
from kernelcg.inference.bounds.verdict import Verdict
from kernelcg.inference.gaussian.model import Noise
from kernelcg.kernels import RBF, Kernel, Matern
from kernelcg.preconditioners import recipe
from kernelcg.solvers import Status


def data(n=60, d=2, outputs=0, seed=0, noise=0.1):
    source = np.random.default_rng(seed)
    X = source.uniform(-2, 2, (n, d))
    y = np.sin(2 * X[:, 0]) + 0.3 * X[:, -1] + noise * source.standard_normal(n)
    return X, np.c_[y, 100 - 20 * y**2][:, :outputs] if outputs else y


def fixed(kernel=None, noise=0.1, **options):
    """Return a regressor that keeps its hyperparameters."""
    return GPRegressor(kernel or Matern(1.0), noise=noise, optimizer=None, **options)


def dense(kernel, noise, X, y, new, known=0.0, mean="constant"):
    """Return mean and latent standard deviation of ordinary kriging at the rows of ``new``, by NumPy."""
    A = reference.system_matrix(kernel, X, np.broadcast_to(noise + known, len(X)))
    K, H = reference.kernel_matrix(kernel, X, new), np.ones((len(X), 1 if mean == "constant" else 0))
    S = H.T @ np.linalg.solve(A, H)
    beta = np.linalg.solve(S, H.T @ np.linalg.solve(A, y)) if mean == "constant" else np.zeros(0)
    left = np.ones((len(new), H.shape[1])) - K.T @ np.linalg.solve(A, H)
    variance = np.diag(reference.kernel_matrix(kernel, new, new)) - np.sum(K * np.linalg.solve(A, K), axis=0)
    if mean == "constant":
        variance = variance + np.sum(left * np.linalg.solve(S, left.T).T, axis=1)
    return K.T @ np.linalg.solve(A, y - H @ beta) + np.sum(beta), np.sqrt(variance)


# scikit-learn's contract


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.filterwarnings("ignore::kernelcg.errors.ConvergenceWarning")
@pytest.mark.parametrize("estimator", [GPRegressor(), GPRegressor(method="iterative", optimizer=None)])
def test_it_is_an_estimator(estimator):
    check_estimator(estimator)


def test_pipeline_grid_search_and_cross_validation():
    X, y = data(80)
    model = make_pipeline(StandardScaler(), fixed(RBF(1.0)))
    search = GridSearchCV(
        model, {"gpregressor__noise": [0.01, 10.0], "gpregressor__kernel": [RBF(0.5), RBF(1.0)]}, n_jobs=2, cv=3
    ).fit(X, y)
    assert search.best_params_["gpregressor__noise"] == 0.01
    assert search.best_score_ > 0.9
    assert search.predict(X).shape == y.shape
    assert cross_val_score(GPRegressor(), X, y, cv=3).min() > 0.9
    scaled = TransformedTargetRegressor(fixed(), transformer=StandardScaler()).fit(X, y)
    assert scaled.score(X, y) > 0.9


def test_tables_with_names():
    X, y = data()
    table, target = pd.DataFrame(X, columns=["a", "b"]), pd.Series(y, name="y")
    model = fixed().fit(table, target)
    assert model.feature_names_in_.tolist() == ["a", "b"]
    assert model.n_features_in_ == 2
    np.testing.assert_array_equal(model.predict(table), fixed().fit(X, y).predict(X))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table[["b", "a"]])
    with pytest.raises(ValueError, match="feature names"):
        model.update(table.rename(columns={"a": "c"}), target)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(X)


def test_a_scaler_in_a_pipeline_may_hand_on_tables():
    X, y = data()
    table = pd.DataFrame(X, columns=["a", "b"])
    model = make_pipeline(StandardScaler(), fixed()).set_output(transform="pandas").fit(table, y)
    assert model[-1].feature_names_in_.tolist() == ["a", "b"]
    assert isinstance(model.predict(table), np.ndarray)
    assert model.score(table, y) > 0.9


def test_clones_are_unfitted_and_equal():
    kernel = RBF([1.0, 2.0]).bounded(lengthscale=(0.1, 10))
    model = GPRegressor(kernel, noise=Noise(0.2), max_iter=5, preconditioner=recipe("jacobi"), random_state=3)
    copy = clone(model)
    assert repr(copy) == repr(model)
    assert copy.kernel.restrictions() == kernel.restrictions()
    X, y = data()
    before = repr(model.get_params())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    assert repr(model.get_params()) == before, "fitting changes no parameter"
    assert not hasattr(clone(model), "posterior_")


@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_pickles_are_small_and_complete(method):
    X, y = data(800, 3)
    model = fixed(method=method).fit(X, y)
    text = pickle.dumps(model)
    assert len(text) < 8 * 800 * 20 + 30_000
    copy = pickle.loads(text)
    new = X[:5] + 0.1
    assert copy.predict(new).tobytes() == model.predict(new).tobytes()
    assert copy.posterior_.is_lean, "a mean needs no factor"
    assert not model.posterior_.is_lean, "pickling leaves the model as it was"
    np.testing.assert_allclose(copy.predict(new, return_std=True)[1], model.predict(new, return_std=True)[1], rtol=1e-2)
    np.testing.assert_allclose(copy.sample_y(new), model.sample_y(new), rtol=1e-3, atol=1e-3)
    assert not copy.posterior_.is_lean
    copy.update(new, y[:5])
    assert copy.plan_.rows == 805


# scikit-learn's numbers

THEIR_KERNELS = {
    "rbf": 2.0 * sk.RBF(0.7) + sk.WhiteKernel(0.05),
    "ard": 2.0 * sk.RBF([0.7, 1.5]) + sk.WhiteKernel(0.05),
    "matern": 0.5 * sk.Matern(0.8, nu=2.5) + sk.WhiteKernel(0.1) + sk.WhiteKernel(0.05),
    "sum and product": sk.Matern(1.0, nu=0.5) * sk.RationalQuadratic(2.0, 0.7) + 0.3 * sk.DotProduct(1.5)
    + sk.WhiteKernel(0.1),
}  # fmt: skip


@pytest.mark.parametrize("outputs", [0, 2])
@pytest.mark.parametrize("normalize_y", [False, True])
@pytest.mark.parametrize("name", THEIR_KERNELS)
def test_the_same_as_scikit_learn_at_the_same_hyperparameters(name, normalize_y, outputs):
    (X, y), new = data(outputs=outputs), data(7, seed=1)[0]
    kernel = THEIR_KERNELS[name]
    theirs = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None, normalize_y=normalize_y).fit(X, y)
    ours = GPRegressor(kernel, optimizer=None, mean="zero", normalize_y=normalize_y).fit(X, y)
    close = {"rtol": 1e-8, "atol": 1e-8 * np.abs(y).max()}
    for option in ("return_std", "return_cov"):
        for mine, reference_value in zip(
            ours.predict(new, **{option: True}), theirs.predict(new, **{option: True}), strict=True
        ):
            np.testing.assert_allclose(mine, reference_value, **close)
    np.testing.assert_allclose(ours.predict(new), theirs.predict(new), **close)
    assert ours.score(X, y) == pytest.approx(theirs.score(X, y), rel=1e-8)
    assert ours.log_marginal_likelihood() == pytest.approx(theirs.log_marginal_likelihood(), rel=1e-8)


def test_the_gradient_of_the_likelihood_is_that_of_scikit_learn():
    X, y = data()
    theirs = GaussianProcessRegressor(THEIR_KERNELS["ard"], alpha=0.0, optimizer=None).fit(X, y)
    ours = GPRegressor(THEIR_KERNELS["ard"], optimizer=None, mean="zero", normalize_y=False).fit(X, y)
    names = ours.posterior_.gp.parameter_names()
    assert names == ["kernel.lengthscale[0]", "kernel.lengthscale[1]", "kernel.variance", "noise.variance"]
    order = [1, 2, 0, 3]  # theirs: the constant comes first
    for shift in (0.0, 0.5, -0.3):
        value, gradient = theirs.log_marginal_likelihood(theirs.kernel_.theta + shift, eval_gradient=True)
        theta = ours.posterior_.gp.log_parameters().numpy() + shift
        np.testing.assert_allclose(theta, (theirs.kernel_.theta + shift)[order], rtol=1e-12)
        mine, slope = ours.log_marginal_likelihood(theta, eval_gradient=True)
        assert mine == pytest.approx(value, rel=1e-8)
        assert ours.log_marginal_likelihood(theta) == pytest.approx(value, rel=1e-8)
        np.testing.assert_allclose(slope, gradient[order], rtol=1e-7, atol=1e-7)
    assert ours.log_marginal_likelihood(eval_gradient=True)[0] == pytest.approx(ours.log_marginal_likelihood())


def test_learning_ends_where_scikit_learn_ends():
    X, y = data(100)
    kernel = 1.0 * sk.RBF([1.0, 1.0]) + sk.WhiteKernel(0.1)
    theirs = GaussianProcessRegressor(kernel, alpha=0.0, normalize_y=True).fit(X, y)
    ours = GPRegressor(kernel, mean="zero").fit(X, y)
    assert ours.log_marginal_likelihood_value_ == pytest.approx(theirs.log_marginal_likelihood_value_, abs=1e-2)
    np.testing.assert_allclose(ours.kernel_.lengthscale, theirs.kernel_.k1.k2.length_scale, rtol=0.05)
    assert ours.noise_ == pytest.approx(theirs.kernel_.k2.noise_level, rel=0.05)
    new = data(20, seed=1)[0]
    spread = ours.predict(new, return_std=True)[1]
    assert np.abs(ours.predict(new) - theirs.predict(new)).max() < 0.05 * spread.min()
    assert ours.n_iter_ == len(ours.learning_.steps) > 1


def test_the_iterative_method_learns_what_the_direct_one_does():
    X, y = data(500)
    direct = GPRegressor(RBF(1.0), method="direct").fit(X, y)
    iterative = GPRegressor(RBF(1.0), method="iterative").fit(X, y)
    reached = direct.log_marginal_likelihood(iterative.posterior_.gp.log_parameters())
    assert reached > direct.log_marginal_likelihood_value_ - 0.5
    certificate = iterative.certificate_
    assert certificate.met
    assert abs(certificate.log_marginal_likelihood - reached) < max(4 * certificate.standard_error, 1e-2)
    np.testing.assert_allclose(iterative.predict(X[:20]), direct.predict(X[:20]), atol=0.02)


def test_the_stochastic_optimizers_improve():
    X, y = data()
    start = fixed(RBF(5.0), 1.0).fit(X, y).log_marginal_likelihood_value_
    for optimizer in ("adagrad", "adam"):
        model = GPRegressor(RBF(5.0), noise=1.0, optimizer=optimizer, max_iter=20).fit(X, y)
        assert model.log_marginal_likelihood_value_ > start + 10
        assert model.n_iter_ == 20
    assert GPRegressor(RBF(5.0), noise=1.0, n_restarts=2).fit(X, y).log_marginal_likelihood_value_ > start + 10


# restrictions


def test_fixed_hyperparameters_stay():
    X, y = data()
    model = GPRegressor(RBF(0.3, 2.0).fixed("lengthscale"), noise=Noise(0.25).fixed()).fit(X, y)
    assert model.kernel_.lengthscale.item() == pytest.approx(0.3, rel=1e-14)
    assert model.noise_ == pytest.approx(0.25, rel=1e-14)
    assert model.kernel_.variance.item() != pytest.approx(2.0, rel=1e-3)
    everything = GPRegressor(RBF(0.3).fixed(), noise=Noise(0.25).fixed()).fit(X, y)
    assert everything.learning_.reason == "nothing to learn"


def test_bounds_hold():
    X, y = data()
    model = GPRegressor(RBF(20.0).bounded(lengthscale=(6.0, 12.0)), noise=Noise(0.5).bounded(variance=(0.3, 1.0)))
    with pytest.warns(ConvergenceWarning, match="kernel.lengthscale ended at its lower bound 6"):
        model.fit(X, y)  # left alone the lengthscale is below 2 and the noise below 0.1
    assert 6.0 * (1 - 1e-12) <= model.kernel_.lengthscale.item() <= 12.0 * (1 + 1e-12)
    assert model.noise_ >= 0.3 * (1 - 1e-12)


def test_priors_pull():
    X, y = data()
    free = GPRegressor(RBF(1.0)).fit(X, y).kernel_.lengthscale.item()
    weak = GPRegressor(RBF(1.0).with_prior(lengthscale=(10.0, 0.3))).fit(X, y).kernel_.lengthscale.item()
    strong = GPRegressor(RBF(1.0).with_prior(lengthscale=(10.0, 0.001))).fit(X, y).kernel_.lengthscale.item()
    assert free < weak < strong
    assert strong == pytest.approx(10.0, rel=0.02)


# shapes and numbers of predictions


@pytest.mark.parametrize("method", ["direct", "iterative"])
@pytest.mark.parametrize("outputs", [0, 1, 2])
def test_shapes(outputs, method):
    (X, y), new = data(outputs=outputs), data(7, seed=1)[0]
    own = (2,) if outputs == 2 else ()  # one column counts as a vector, as in scikit-learn
    model = fixed(method=method).fit(X, y)
    assert model.predict(new).shape == (7, *own)
    mean, std = model.predict(new, return_std=True)
    assert mean.shape == std.shape == (7, *own)
    mean, covariance = model.predict(new, return_cov=True)
    assert covariance.shape == (7, 7, *own)
    mean, bounds = model.predict(new, return_bound=True)
    assert mean.shape == bounds.mean.shape == (7, *own)
    assert bounds.std_lower is None
    mean, std, bounds = model.predict(new, return_std=True, return_bound=True)
    assert std.shape == bounds.std_lower.shape == bounds.std_upper.shape == (7, *own)
    mean, covariance, bounds = model.predict(new, return_cov=True, return_bound=True)
    assert covariance.shape == (7, 7, *own)
    assert model.sample_y(new).shape == (7, *own, 1)
    assert model.sample_y(new, 4).shape == (7, *own, 4)
    assert model.loo().residuals.shape == (60, *own)
    assert model.update(X[:5], y[:5]).predict(new).shape == (7, *own)
    with pytest.raises(RuntimeError, match="At most one of"):
        model.predict(new, return_std=True, return_cov=True)


@pytest.mark.parametrize("method", ["direct", "iterative"])
@pytest.mark.parametrize("include_noise", [False, True])
def test_predictions_are_within_their_bounds_of_the_dense_truth(method, include_noise):
    (X, y), new = data(200), data(15, seed=1)[0]
    kernel, noise = Matern(0.5, 2.0, nu=2.5), 0.01
    mean, std = dense(kernel, noise, X, y, new)
    std = np.sqrt(std**2 + noise * include_noise)
    model = fixed(kernel, noise, method=method, normalize_y=False, rtol=1e-4).fit(X, y)
    answer = model.predict(new, return_std=True, return_bound=True, include_noise=include_noise)
    assert (np.abs(answer[0] - mean) <= answer[2].mean).all()
    assert (answer[2].std_lower <= std * (1 + 1e-9)).all()
    assert (std <= answer[2].std_upper * (1 + 1e-9)).all()
    np.testing.assert_allclose(answer[1], std, rtol=1e-2)
    covariance = model.predict(new, return_cov=True, include_noise=include_noise)[1]
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std, rtol=2e-2)
    assert np.abs(model.predict(new) - mean).max() <= model.certificate_.mean_error + answer[2].mean.max()


def test_noise_is_included_unless_declined():
    X, y = data(outputs=2)
    model = fixed(noise=0.3).fit(X, y)
    scale = y.std(axis=0)
    with_noise, without = (model.predict(X, return_std=True, include_noise=choice)[1] for choice in (True, False))
    np.testing.assert_allclose(with_noise**2 - without**2, np.broadcast_to(0.3 * scale**2, y.shape), rtol=1e-8)
    covariances = [model.predict(X[:4], return_cov=True, include_noise=choice)[1] for choice in (True, False)]
    excess = np.diagonal(covariances[0] - covariances[1]).T
    np.testing.assert_allclose(excess, np.broadcast_to(0.3 * scale**2, (4, 2)), rtol=1e-8)


def test_outputs_do_not_disturb_each_other():
    X, Y = data(outputs=2)
    together = fixed().fit(X, Y)
    for column in (0, 1):
        alone = fixed().fit(X, Y[:, column])
        for mine, single in zip(together.predict(X, return_std=True), alone.predict(X, return_std=True), strict=True):
            np.testing.assert_allclose(mine[:, column], single, rtol=1e-9)
        np.testing.assert_allclose(together.loo().residuals[:, column], alone.loo().residuals, rtol=1e-9)


def test_samples_have_the_predictive_moments():
    X, y = data()
    model, new = fixed(noise=0.3).fit(X, y), data(4, seed=1)[0]
    for include_noise in (False, True):
        mean, covariance = model.predict(new, return_cov=True, include_noise=include_noise)
        draws = model.sample_y(new, 4000, include_noise=include_noise)
        spread = np.sqrt(np.diag(covariance))
        assert (np.abs(draws.mean(axis=1) - mean) < 4.5 * spread / np.sqrt(4000)).all()
        assert np.abs(np.cov(draws) - covariance).max() < 0.1 * spread.max() ** 2
    np.testing.assert_array_equal(model.sample_y(new, 3, random_state=1), model.sample_y(new, 3, random_state=1))
    assert (model.sample_y(new, 3, random_state=1) != model.sample_y(new, 3, random_state=2)).all()


def test_leaving_one_out_is_leaving_one_out():
    X, y = data(30)
    model = fixed(noise=0.2, normalize_y=False).fit(X, y)
    found = model.loo()
    for i in (0, 7, 29):
        others = np.arange(30) != i
        mean, std = dense(Matern(1.0), 0.2, X[others], y[others], X[i : i + 1])
        assert found.residuals[i] == pytest.approx(y[i] - mean[0], rel=1e-8)
        assert found.std[i] ** 2 == pytest.approx(std[0] ** 2 + 0.2, rel=1e-8)


def test_leave_one_out_is_in_the_units_of_y():
    X, y = data(30)
    a, b = fixed().fit(X, y).loo(), fixed().fit(X, 1000 * y + 5).loo()
    np.testing.assert_allclose(b.residuals, 1000 * a.residuals, rtol=1e-8)
    np.testing.assert_allclose(b.std, 1000 * a.std, rtol=1e-8)
    np.testing.assert_allclose(b.log_densities, a.log_densities - np.log(1000), rtol=1e-8)


# known noise


@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_known_noise_is_added_to_the_learned_one(method):
    (X, y), new = data(), data(9, seed=1)[0]
    known = np.random.default_rng(2).uniform(0, 0.5, len(y))
    scale = y.std()
    model = fixed(noise=0.05, method=method, rtol=1e-10).fit(X, y, noise_variance=known)
    mean, std = dense(Matern(1.0), 0.05, X, (y - y.mean()) / scale, new, known / scale**2)
    found = model.predict(new, return_std=True, include_noise=False)
    np.testing.assert_allclose(found[0], y.mean() + scale * mean, rtol=1e-7)
    np.testing.assert_allclose(found[1], scale * std, rtol=1e-8 if method == "direct" else 1e-2)
    everywhere = fixed(noise=0.05).fit(X, y, noise_variance=0.1).predict(new)
    np.testing.assert_allclose(everywhere, fixed(noise=0.05 + 0.1 / scale**2).fit(X, y).predict(new), rtol=1e-9)


@pytest.mark.parametrize("each", [False, True])
def test_known_noise_of_several_outputs_is_in_the_units_of_each(each):
    X, Y = data(outputs=2)
    known = np.linspace(0.1, 40.0, len(X))
    given = np.c_[known, 2 * known] if each else known
    model = fixed(noise=0.05).fit(X, Y, noise_variance=given)
    for column in (0, 1):
        y, own = Y[:, column], given[:, column] if each else given
        scale = y.std()
        mean = dense(Matern(1.0), 0.05, X, (y - y.mean()) / scale, X, own / scale**2)[0]
        np.testing.assert_allclose(model.predict(X)[:, column], y.mean() + scale * mean, rtol=1e-8)


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (np.ones(3), "one number or 60"),
        (-np.ones(60), "not negative"),
        (np.full(60, np.nan), "finite"),
        ("much", "much"),
    ],
)
def test_known_noise_that_makes_no_sense_is_refused(known, words):
    with pytest.raises(ValueError, match=words):
        fixed().fit(*data(), noise_variance=known)


# updates


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
def test_an_update_is_a_fit_to_all_data(mean, known):
    X, y = data(60, outputs=2)
    variance = np.linspace(0.1, 0.5, 60) if known else None
    first, last = (None, None) if variance is None else (variance[:40], variance[40:])
    options = {"mean": mean, "normalize_y": False}
    fresh = fixed(**options).fit(X, y, noise_variance=variance)
    model = fixed(**options).fit(X[:40], y[:40], noise_variance=first).update(X[40:], y[40:], noise_variance=last)
    for mine, theirs in zip(model.predict(X, return_std=True), fresh.predict(X, return_std=True), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-8, atol=1e-10)
    assert model.log_marginal_likelihood_value_ == pytest.approx(fresh.log_marginal_likelihood_value_, rel=1e-9)
    assert model.plan_.rows == 60


def test_an_update_keeps_hyperparameters_unless_told_to_learn():
    X, y = data(60)
    model = GPRegressor(RBF(1.0)).fit(X[:30], y[:30])
    kept, units = repr(model.kernel_), model.y_scale_.copy()
    model.update(X[30:45], y[30:45])
    assert repr(model.kernel_) == kept
    before = clone(model).set_params(kernel=model.kernel_, noise=model.noise_, optimizer=None)
    model.update(X[45:], y[45:], learn=True)
    assert repr(model.kernel_) != kept
    np.testing.assert_array_equal(model.y_scale_, units)
    standardised = (y - model.y_mean_) / model.y_scale_
    assert (
        model.log_marginal_likelihood_value_
        > before.set_params(normalize_y=False).fit(X, standardised).log_marginal_likelihood()
    )


def test_an_update_of_an_iterative_model_costs_fewer_products():
    X, y = data(4100)
    fit = fixed(RBF(0.5), 0.01, probes=2)
    model = clone(fit).fit(X[:4000], y[:4000])
    assert model.plan_.method == "iterative"
    model.update(X[4000:], y[4000:])
    fresh = clone(fit).set_params(normalize_y=False).fit(X, (y - model.y_mean_) / model.y_scale_)
    assert model.report_.products < fresh.report_.products
    assert model.certificate_.met
    new = X[:20] + 0.01
    allowed = model.certificate_.mean_error + model.y_scale_[0] * fresh.certificate_.mean_error
    assert np.abs(model.predict(new) - model.y_mean_ - model.y_scale_ * fresh.predict(new)).max() <= allowed


def test_an_update_may_change_the_method(monkeypatch):
    direct_up_to(monkeypatch, 50)
    X, y = data(60)
    model = fixed().fit(X[:40], y[:40])
    assert model.plan_.method == "direct"
    model.update(X[40:], y[40:])
    assert model.plan_.method == "iterative"
    pickle.loads(pickle.dumps(model)).predict(X[:3], return_std=True)


def test_an_update_must_fit_the_model():
    X, y = data()
    model = fixed().fit(X, y)
    with pytest.raises(ValueError, match="1 features"):
        model.update(X[:, :1], y)
    with pytest.raises(ValueError, match="outputs"):
        model.update(X, np.c_[y, y])
    np.testing.assert_array_equal(model.predict(X), fixed().fit(X, y).predict(X))  # nothing has changed


# missing observations


@pytest.mark.parametrize("kind", ["array", "table"])
def test_rows_without_y_are_dropped_and_counted_if_asked(kind):
    X, y = data()
    known, present = np.linspace(0.1, 1, 60), np.ones(60, dtype=bool)
    present[[3, 17]] = False
    holes = np.where(present, y, np.nan)
    expected = fixed().fit(X[present], y[present], noise_variance=known[present]).predict(X)
    counted = pytest.warns(UserWarning, match="2 of 60 rows are left out")
    if kind == "table":
        table = pd.DataFrame(X, columns=["a", "b"])
        holes = pd.Series(holes)
        with counted:
            model = fixed(missing="drop").fit(table, holes, noise_variance=known)
        assert model.feature_names_in_.tolist() == ["a", "b"]
        np.testing.assert_array_equal(model.predict(table), expected)
    else:
        with counted:
            model = fixed(missing="drop").fit(X, holes, noise_variance=known)
        np.testing.assert_array_equal(model.predict(X), expected)
        with counted:
            model.update(X, holes, noise_variance=known)
        assert model.plan_.rows == 2 * 58
    with pytest.raises(ValueError, match="contains NaN"):
        fixed().fit(X, holes)
    with pytest.raises(ValueError, match="nothing to fit"):
        fixed(missing="drop").fit(X, np.full(60, np.nan))
    np.testing.assert_array_equal(
        fixed(missing="drop").fit(X.tolist(), list(range(60))).predict(X), fixed().fit(X, np.arange(60)).predict(X)
    )


# determinism


def test_two_fits_give_the_same_numbers():
    X, y = data()
    first, second = (GPRegressor().fit(X, y) for _ in range(2))
    assert first.predict(X).tobytes() == second.predict(X).tobytes()
    assert first.log_marginal_likelihood_value_ == second.log_marginal_likelihood_value_
    assert torch.equal(first.posterior_.gp.log_parameters(), second.posterior_.gp.log_parameters())


@pytest.mark.parametrize("preconditioner", ["low_rank_vecchia", "auto"])
def test_two_iterative_fits_give_the_same_numbers(preconditioner):
    X, y = data(3000)
    model = fixed(Matern(1.0), 0.01, preconditioner=preconditioner, probes=2)
    first, second = (clone(model).fit(X, y) for _ in range(2))
    assert first.plan_.method == "iterative"
    if preconditioner == "auto":  # chosen by cost: what is chosen may differ, the answer may not
        np.testing.assert_allclose(first.predict(X[:50]), second.predict(X[:50]), atol=1e-4)
        return
    assert first.predict(X[:50]).tobytes() == second.predict(X[:50]).tobytes()
    assert first.log_marginal_likelihood_value_ == second.log_marginal_likelihood_value_
    np.testing.assert_array_equal(*(each.predict(X[:2], return_std=True)[1] for each in (first, second)))


def test_nothing_global_is_touched():
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    X, y = data()
    GPRegressor(method="iterative", random_state=5).fit(X, y).sample_y(X)
    assert torch.equal(before[0], torch.get_rng_state())
    np.testing.assert_array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002
    assert torch.get_default_dtype() is torch.float32


# hostile data


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_are_refused(bad):
    X, y = data()
    for spoil in ("X", "y"):
        values = {"X": X.copy(), "y": y.copy()}
        values[spoil].flat[3] = bad
        with pytest.raises(ValueError, match=f"Input {spoil} contains (NaN|infinity)"):
            fixed().fit(**values)
    X[3, 0] = bad
    with pytest.raises(ValueError, match="Input X contains"):
        fixed().fit(*data()).predict(X)


BAD_DATA = {
    "words for X": (np.array([["a", "b"]] * 5), np.arange(5.0), "could not convert string"),
    "words for y": (np.ones((5, 2)), np.array(["a"] * 5), "could not convert string"),
    "one-dimensional X": (np.arange(5.0), np.arange(5.0), "Expected 2D array"),
    "three-dimensional X": (np.ones((5, 2, 2)), np.arange(5.0), "dim 3"),
    "three-dimensional y": (np.ones((5, 2)), np.ones((5, 2, 2)), "dim 3"),
    "too few y": (np.ones((5, 2)), np.arange(4.0), "inconsistent numbers of samples"),
    "no rows": (np.ones((0, 2)), np.ones(0), "0 sample"),
    "no features": (np.ones((5, 0)), np.arange(5.0), "0 feature"),
    "no y": (np.ones((5, 2)), None, "requires y"),
    "complex X": (np.ones((5, 2)) * 1j, np.arange(5.0), "[Cc]omplex"),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_data_that_make_no_sense_are_refused(name):
    X, y, words = BAD_DATA[name]
    with pytest.raises(ValueError, match=words):
        GPRegressor().fit(X, y)


def test_prediction_needs_a_fit_and_the_same_features():
    X, y = data()
    calls = [
        lambda model: model.predict(X),
        lambda model: model.sample_y(X),
        lambda model: model.loo(),
        lambda model: model.update(X, y),
        lambda model: model.log_marginal_likelihood(),
        lambda model: model.save("nowhere"),
    ]
    for call in calls:
        with pytest.raises(NotFittedError):
            call(GPRegressor())
    model = fixed().fit(X, y)
    for use in (model.predict, model.sample_y):
        with pytest.raises(ValueError, match="X has 1 features, but GPRegressor is expecting 2"):
            use(X[:, :1])
        with pytest.raises(ValueError, match="0 sample"):
            use(X[:0])


EVERYDAY = {
    "one row": (np.array([[1.0, 2.0]]), np.array([3.0])),
    "two rows": (np.array([[1.0, 2.0], [2.0, 0.0]]), np.array([3.0, -1.0])),
    "more features than rows": data(5, 20),
    "a constant feature": (np.c_[data()[0], np.full(60, 7.0)], data()[1]),
    "nothing but constant features": (np.ones((20, 2)), data(20)[1]),
    "a constant y": (data()[0], np.full(60, 5.0)),
    "zero y": (data()[0], np.zeros(60)),
    "a constant output beside another": (data()[0], np.c_[data()[1], np.full(60, 5.0)]),
    "rows that contradict each other": (np.repeat(data(20)[0], 3, axis=0), data(60)[1]),
    "whole numbers": (np.arange(40).reshape(20, 2), np.arange(20) % 7),
    "lists": (data()[0].tolist(), data()[1].tolist()),
    "float32": (data()[0].astype(np.float32), data()[1].astype(np.float32)),
    "column order": (np.asfortranarray(data()[0]), data()[1]),
    "far from the origin": (data()[0] + 1e6, data()[1] + 1e8),
}


@pytest.mark.filterwarnings("ignore:learning ended early:kernelcg.errors.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:nothing was learned:kernelcg.errors.ConvergenceWarning")
@pytest.mark.parametrize("mean", ["constant", "linear", "zero"])
@pytest.mark.parametrize("name", EVERYDAY)
def test_awkward_data_give_sensible_numbers(name, mean):
    X, y = EVERYDAY[name]
    model = GPRegressor(mean=mean).fit(X, y)
    found, std = model.predict(X, return_std=True)
    low, high = np.min(y, axis=0), np.max(y, axis=0)
    margin = 0.5 * (high - low) + 1e-2
    assert found.shape == np.shape(y)
    assert ((found >= low - margin) & (found <= high + margin)).all()
    assert (std > 0).all()
    assert np.isfinite(std).all()
    assert np.isfinite(model.certificate_.mean_error)


def test_rows_that_contradict_each_other_are_averaged():
    X = np.repeat(np.array([[0.0], [1.0], [2.0]]), 40, axis=0)
    y = X[:, 0] + np.random.default_rng(0).standard_normal(120)
    model = GPRegressor(RBF(1.0)).fit(X, y)
    assert model.noise_ * y.var() == pytest.approx(1.0, rel=0.4)
    np.testing.assert_allclose(model.predict(X[::40]), [y[:40].mean(), y[40:80].mean(), y[80:].mean()], atol=0.3)


@pytest.mark.parametrize("of_X", [1e-8, 1e8])
@pytest.mark.parametrize("of_y", [1e-8, 1e8])
def test_units_do_not_matter(of_X, of_y):
    (X, y), new = data(), data(8, seed=1)[0]
    mean, std = GPRegressor().fit(X, y).predict(new, return_std=True)
    scaled = GPRegressor().fit(of_X * X, of_y * y + 3 * of_y)
    found, spread, bounds = scaled.predict(of_X * new, return_std=True, return_bound=True)
    np.testing.assert_allclose(found / of_y - 3, mean, rtol=1e-3, atol=1e-3)  # learned to 1e-5 nats
    np.testing.assert_allclose(spread / of_y, std, rtol=1e-3)
    assert (bounds.mean < 1e-4 * of_y).all()
    assert scaled.certificate_.mean_error < 1e-3 * of_y


@pytest.mark.parametrize("of_y", [1e-250, 1e250])
def test_extreme_units_of_y_do_not_matter(of_y):
    X, y = data()
    np.testing.assert_allclose(fixed().fit(X, of_y * y).predict(X) / of_y, fixed().fit(X, y).predict(X), rtol=1e-8)


# options


class Untouchable(Kernel):
    width: Tensor

    def covariance(self, X: Tensor, Y: Tensor) -> Tensor:
        raise AssertionError("the work has begun")


@pytest.mark.parametrize("method", ["auto", "direct", "iterative"])
def test_too_little_memory_is_noticed_before_the_work(method):
    X, y = data(5000)
    with pytest.raises(MemoryBudgetExceeded, match="5000 rows"):
        GPRegressor(Untouchable(1.0), memory="1MB", method=method).fit(X, y)
    model = fixed(memory="64MB").fit(*data(50))
    model.memory = "1MB"
    with pytest.raises(MemoryBudgetExceeded, match=r"50[05]0 rows"):
        model.update(X, y)
    assert model.plan_.rows == 50


BAD_OPTIONS = {
    "method": ["magic", None, 3],
    "preconditioner": ["magic", 3],
    "optimizer": ["magic", 3],
    "max_iter": [-1, 1.5, "many", True],
    "step_size": [0.0, -1.0, "long", np.nan],
    "probes": [0, -1, 2.5, "some"],
    "n_restarts": [-1, 0.5, "some"],
    "rtol": [-1e-6, 1.0, "small", np.nan, None],
    "mean": ["cubic", None, 0],
    "normalize_y": ["yes", 2],
    "missing": ["ignore", None],
    "device": ["moon", "cuda:99", 2.5],
    "dtype": ["float16", "int8", "magic", 3.5],
    "memory": ["much", -3, 0],
    "n_jobs": [0, 1.5, "all"],
    "random_state": ["a", -1.5],
    "verbose": ["loud", -1, None],
    "noise": [0.0, -1.0, np.nan, [1.0, 2.0]],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD_OPTIONS.items() for value in values], ids=str
)
def test_bad_options_are_named(name, value):
    words = "[Nn]oise" if name == "noise" else name
    with pytest.raises(ValueError, match=words):
        GPRegressor(**{name: value}).fit(*data(10))


@pytest.mark.parametrize("option", [{"kernel": 3}, {"noise": "much"}])
def test_options_of_the_wrong_kind_are_named(option):
    with pytest.raises(TypeError, match=next(iter(option))):
        GPRegressor(**option).fit(*data(10))


def test_options_are_checked_before_the_data_are_looked_at():
    with pytest.raises(ValueError, match="probes"):
        GPRegressor(probes=0).fit("nonsense", None)


def test_options_of_every_kind_are_taken():
    X, y = data(30)
    expected = fixed().fit(X, y).predict(X)
    for option in (
        {"dtype": np.float64},
        {"dtype": "float32"},
        {"random_state": np.random.RandomState(0)},
        {"random_state": None},
        {"device": torch.device("cpu")},
        {"memory": 10**8},
        {"n_jobs": -1},
        {"verbose": False},
        {"rtol": np.float32(1e-7)},
        {"preconditioner": None, "method": "iterative"},
        {"preconditioner": recipe("nystrom", rank=10), "method": "iterative"},
        {"preconditioner": "vecchia", "method": "iterative"},
        {"method": "iterative", "dtype": "float32"},
    ):
        np.testing.assert_allclose(fixed(**option).fit(X, y).predict(X), expected, atol=1e-4)


# what the user is told


def told(work):
    """Return the warnings that some work gives."""
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        work()
    return record


@pytest.mark.parametrize("method", ["predict", "log_predictive_density"])
def test_warnings_of_answers_name_the_line_that_asked(method, monkeypatch):
    X, y = data()
    model = fixed().fit(X, y)
    answer = type(model.posterior_).predict

    def unconverged(self, *args, **options):
        return replace(answer(self, *args, **options), status=Status.STAGNATED)

    monkeypatch.setattr(type(model.posterior_), "predict", unconverged)
    asked = {"predict": lambda: model.predict(X, return_std=True)}.get(method, lambda: getattr(model, method)(X, y))
    (warning,) = told(asked)
    assert warning.filename == __file__
    assert "did not reach its tolerance" in str(warning.message)


def test_one_warning_says_that_learning_ended_early():
    X, y = data()
    (warning,) = told(lambda: GPRegressor(max_iter=1).fit(X, y))
    assert warning.category is ConvergenceWarning
    assert warning.filename == __file__
    for words in ("learning ended early", "max_iter", "learning_"):
        assert words in str(warning.message)


def test_one_warning_says_that_the_certificate_is_not_met():
    """Without noise a smooth function cannot explain rough data: the weights are 1e11, and rounding is visible."""
    X, y = data()
    for method in ("direct", "iterative"):
        model = fixed(RBF(3.0), 1e-12, rtol=0.0, method=method)
        (warning,) = told(lambda model=model: model.fit(X, y))
        assert warning.category is ConvergenceWarning
        assert "the fit is NOT exact" in str(warning.message)
        assert not model.certificate_.met
        assert str(model.certificate_).startswith("NOT exact: ")
        (warning,) = told(lambda model=model: model.update(X[:3] + 0.1, y[:3]))
        assert "the fit is NOT exact" in str(warning.message)


def test_a_good_fit_warns_of_nothing_and_says_what_it_did():
    X, y = data()
    model = GPRegressor()
    assert told(lambda: model.fit(X, y).predict(X, return_std=True)) == []
    assert model.certificate_.met
    assert model.certificate_.verdict is Verdict.CERTIFIED
    assert re.match(
        r"certified: (the|at the data the) mean is exact to \S+ \(.* % of the noise\)", str(model.certificate_)
    )
    assert "60 rows, 2 features" in str(model.plan_)
    assert "direct" in str(model.plan_)
    assert model.certificate_.relative_residuals.max() <= model.rtol
    assert model.log_marginal_likelihood_value_ == model.certificate_.log_marginal_likelihood


def test_verbose_shows_the_plan_and_the_steps(capsys):
    X, y = data()
    GPRegressor(verbose=1).fit(X, y)
    shown = capsys.readouterr().err
    assert "[kernelcg] plan: 60 rows" in shown
    assert "step 1:" in shown
    assert "learned: GaussianProcess(kernel=Matern(lengthscale=" in shown
    assert "mean is exact to" in shown
    assert logging.getLogger("kernelcg").handlers == []
    GPRegressor().fit(X, y)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("optimizer", ["lbfgs", "adagrad", "adam"])
def test_steps_of_iterative_learning_are_shown_with_a_predicted_gain(optimizer, capsys):
    X, y = data()
    model = GPRegressor(method="iterative", verbose=1, optimizer=optimizer).fit(X, y)
    steps = [line for line in capsys.readouterr().err.splitlines() if "] step " in line]
    assert len(steps) == len(model.learning_.steps)
    assert all("criterion" in line or "predicted gain" in line for line in steps)
    assert any("iterative, predicted gain" in line for line in steps)


def test_a_fitted_model_prints_what_it_learned():
    X, y = data()
    assert str(GPRegressor()) == "GPRegressor()"
    model = GPRegressor(verbose=0).fit(X, y)
    shown = str(model)
    assert shown.startswith(repr(model))
    for words in ("kernel_     Matern(lengthscale=", "noise_      0.0", "backend     ", " on cpu, direct"):
        assert words in shown
    assert "alpha_" not in shown
