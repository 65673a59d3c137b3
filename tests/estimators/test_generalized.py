"""GPGeneralizedRegressor: scikit-learn's contract, counts and outliers, exact where it can be compared."""

import math
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.base import clone
from sklearn.gaussian_process import kernels as sk
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import Tensor

from kernelcg import GPGeneralizedRegressor, GPRegressor
from kernelcg.errors import ConvergenceWarning
from kernelcg.inference.bounds import laplace_certificate
from kernelcg.kernels import RBF, Linear, Matern
from kernelcg.likelihoods import Gaussian, Likelihood, NegativeBinomial, Poisson, StudentT


def counts(n=80, seed=0, exposure=1.0):
    source = np.random.default_rng(seed)
    X = source.uniform(-2, 2, (n, 1))
    return X, source.poisson(exposure * rate(X)).astype(float)


def rate(X):
    return np.exp(1.5 + np.sin(2 * X[:, 0]))


def with_outliers(n=100, seed=0):
    source = np.random.default_rng(seed)
    X = source.uniform(-2, 2, (n, 1))
    y = np.sin(2 * X[:, 0]) + 0.1 * source.standard_normal(n)
    y[::12] += source.choice([-10, 15], len(y[::12]))
    return X, y


def fixed(likelihood="poisson", kernel=None, **options):
    return GPGeneralizedRegressor(kernel or Matern(1.0), likelihood=likelihood, optimizer=None, **options)


def told(work):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = work()
    return result, [str(one.message) for one in caught if one.category is ConvergenceWarning]


class HyperbolicSecant(Likelihood):
    """Errors with exponential tails; the example of the documentation."""

    SCALARS = ("width",)

    width: Tensor

    def log_density(self, y, f, exposure):
        z = (y - f) / self.width
        return math.log(2 / math.pi) - z + torch.nn.functional.logsigmoid(2 * z) - self.width.log()


# scikit-learn's contract


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.filterwarnings("ignore::kernelcg.errors.ConvergenceWarning")
@pytest.mark.parametrize("estimator", [GPGeneralizedRegressor(max_iter=3), GPGeneralizedRegressor(optimizer=None)])
def test_it_is_an_estimator(estimator):
    check_estimator(estimator)


def test_pipeline_grid_search_and_cross_validation():
    X, y = counts()
    model = make_pipeline(StandardScaler(), fixed())
    grid = {"gpgeneralizedregressor__likelihood": ["poisson", "gaussian"]}
    search = GridSearchCV(model, grid, n_jobs=2, cv=3).fit(X, y)
    assert search.best_score_ > 0.2
    assert cross_val_score(fixed(), X, y, cv=3, scoring="neg_mean_poisson_deviance").min() > -3


def test_tables_with_names():
    X, y = counts()
    table = pd.DataFrame(X, columns=["a"])
    model = fixed().fit(table, pd.Series(y), exposure=pd.Series(np.ones(len(y))))
    assert model.feature_names_in_.tolist() == ["a"]
    np.testing.assert_array_equal(model.predict(table), fixed().fit(X, y).predict(X))


def test_clones_keep_the_likelihood_with_its_restrictions():
    likelihood = NegativeBinomial(0.5).fixed("dispersion")
    copy = clone(GPGeneralizedRegressor(likelihood=likelihood, mean="zero", max_iter=4))
    assert copy.likelihood.restrictions() == likelihood.restrictions()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        assert copy.fit(*counts()).likelihood_.dispersion.item() == pytest.approx(0.5)


# what it learns


def test_a_known_intensity_is_recovered():
    X, y = counts(200)
    model = GPGeneralizedRegressor(likelihood="poisson").fit(X, y)
    new = np.linspace(-1.9, 1.9, 50)[:, None]
    mean, std = model.latent(new, return_std=True)
    z = (mean - np.log(rate(new))) / std
    assert np.abs(z).max() < 4
    assert (np.abs(z) < 2).mean() > 0.8
    np.testing.assert_allclose(model.predict(new), rate(new), rtol=0.4)
    assert model.certificate_.met


def test_exposure_is_what_was_observed():
    source = np.random.default_rng(1)
    X = source.uniform(-2, 2, (150, 1))
    exposure = source.uniform(0.2, 20, 150)
    y = source.poisson(exposure * rate(X))
    model = GPGeneralizedRegressor(likelihood="poisson").fit(X, y, exposure=exposure)
    new = np.linspace(-1.8, 1.8, 20)[:, None]
    np.testing.assert_allclose(model.predict(new), rate(new), rtol=0.3)
    np.testing.assert_allclose(model.predict(new, exposure=3.0), 3 * model.predict(new))
    assert model.score(X, y, exposure=exposure) > 0.9


def test_proportions_of_trials():
    source = np.random.default_rng(2)
    X = source.uniform(-2, 2, (120, 1))
    p = 1 / (1 + np.exp(-2 * np.sin(2 * X[:, 0])))
    trials = source.integers(1, 20, 120)
    model = GPGeneralizedRegressor(likelihood="binomial").fit(X, source.binomial(trials, p), exposure=trials)
    np.testing.assert_allclose(model.predict(X), p, atol=0.15)
    np.testing.assert_allclose(model.predict(X, exposure=trials), trials * model.predict(X))


def test_overdispersion_is_learned():
    source = np.random.default_rng(3)
    X = source.uniform(-2, 2, (250, 1))
    mu = 5 * rate(X)
    y = source.poisson(mu * source.gamma(2.0, 0.5, 250))  # dispersion ½
    model = GPGeneralizedRegressor(likelihood="negative_binomial").fit(X, y)
    assert model.likelihood_.dispersion.item() == pytest.approx(0.5, rel=0.4)
    poisson = GPGeneralizedRegressor(likelihood="poisson").fit(X, y)
    assert model.log_marginal_likelihood_value_ > poisson.log_marginal_likelihood_value_ + 50


def test_positive_amounts():
    source = np.random.default_rng(4)
    X = source.uniform(-2, 2, (150, 1))
    y = rate(X) * source.gamma(4.0, 0.25, 150)
    model = GPGeneralizedRegressor(likelihood="gamma").fit(X, y)
    assert model.likelihood_.shape.item() == pytest.approx(4.0, rel=0.4)
    np.testing.assert_allclose(model.predict(X), rate(X), rtol=0.4)


def test_heavy_tails_beat_the_gaussian_under_outliers():
    X, y = with_outliers()
    new = np.linspace(-1.9, 1.9, 60)[:, None]
    errors = {}
    for likelihood in ("student_t", "gaussian"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = GPGeneralizedRegressor(likelihood=likelihood).fit(X, y)
        errors[likelihood] = np.sqrt(np.mean((model.predict(new) - np.sin(2 * new[:, 0])) ** 2))
    assert errors["student_t"] < 0.1
    assert errors["student_t"] < errors["gaussian"] / 3


def test_the_gaussian_likelihood_is_regression():
    source = np.random.default_rng(5)
    X = source.uniform(-2, 2, (50, 2))
    y = np.sin(X[:, 0]) + 0.1 * source.standard_normal(50)
    ours = fixed(Gaussian(0.05), RBF(1.0), rtol=1e-10).fit(X, y)
    exact = GPRegressor(RBF(1.0), noise=0.05, optimizer=None, normalize_y=False).fit(X, y)
    assert ours.log_marginal_likelihood_value_ == pytest.approx(exact.log_marginal_likelihood_value_, rel=1e-8)
    for found, known in zip(ours.predict(X, return_std=True), exact.predict(X, return_std=True), strict=True):
        np.testing.assert_allclose(found, known, rtol=1e-6, atol=1e-8)
    density = stats.norm.logpdf(y, *exact.predict(X, return_std=True))
    np.testing.assert_allclose(ours.log_predictive_density(X, y), density, rtol=1e-6, atol=1e-8)


# predictions


@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_predictions_are_moments_over_the_latent_value(method):
    X, y = counts()
    model = fixed(method=method).fit(X, y)
    new = counts(20, seed=3)[0]
    mean, std = model.latent(new, return_std=True)
    z = np.linspace(-8, 8, 4001)
    weights = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()
    mu = np.exp(mean[:, None] + std[:, None] * z)
    expected = (mu * weights).sum(1)
    spread = np.sqrt((mu * weights).sum(1) + (mu**2 * weights).sum(1) - expected**2)
    found, found_std = model.predict(new, return_std=True)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(found_std, spread, rtol=1e-6)
    np.testing.assert_array_equal(found, model.predict(new))
    seen = np.arange(20.0) % 7
    density = (stats.poisson.pmf(seen[:, None], mu) * weights).sum(1)
    np.testing.assert_allclose(model.log_predictive_density(new, seen), np.log(density), rtol=1e-6)


def test_an_infinite_variance_is_said():
    X, y = with_outliers()
    model = fixed(StudentT(0.1, 1.5)).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isinf(std).all()


@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
def test_drifts(mean):
    X, y = counts()
    model = fixed(mean=mean).fit(X, y)
    assert model.score(X, y) > 0.3
    far = model.latent(np.array([[1e4]]))[0]
    assert mean == "linear" or far == pytest.approx(0.0 if mean == "zero" else np.log(y.mean()), abs=0.5)


def test_the_gradient_is_that_of_the_value():
    X, y = counts(40)
    model = fixed("negative_binomial").fit(X, y)
    theta = model.posterior_.gp.log_parameters().numpy() + 0.2
    value, gradient = model.log_marginal_likelihood(theta, eval_gradient=True)
    assert gradient.shape == theta.shape == (3,)
    for i in range(3):
        up, down = theta.copy(), theta.copy()
        up[i] += 1e-4
        down[i] -= 1e-4
        slope = (model.log_marginal_likelihood(up) - model.log_marginal_likelihood(down)) / 2e-4
        assert gradient[i] == pytest.approx(slope, rel=1e-4, abs=1e-5)
    assert value < model.log_marginal_likelihood_value_ + 50


# where log p(y | f) is not concave


@pytest.mark.parametrize("seed", range(4))
def test_outliers_are_learned_without_a_warning_and_the_last_step_has_the_value_of_the_fit(seed):
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(0, 6, size=(100, 1)), axis=0)
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=100)
    outliers = rng.random(100) < 0.1
    y[outliers] += 5 * rng.normal(size=outliers.sum())
    model, messages = told(lambda: GPGeneralizedRegressor().fit(X, y))
    assert messages == []
    assert model.certificate_.negative > 0
    assert model.certificate_.steps < 30
    assert model.learning_.steps[-1].value == pytest.approx(model.log_marginal_likelihood_value_, abs=1e-6)
    mean, std = model.predict(X, return_std=True)
    assert np.sqrt(np.mean((mean - np.sin(X[:, 0])) ** 2)) < 0.08
    assert np.isfinite(std).all()


@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_at_a_saddle_there_is_no_variance_and_a_warning(method):
    model = GPGeneralizedRegressor(
        RBF(1.0, 100.0), likelihood=StudentT(0.1, 4.0), optimizer=None, mean="zero", method=method
    )
    _, messages = told(lambda: model.fit([[0.0], [0.0]], [5.0, -5.0]))
    assert "no maximum" in messages[0]
    assert model.certificate_.mean_error == math.inf
    _, messages = told(lambda: model.predict([[0.0]], return_std=True))
    assert "no maximum" in messages[0]


@pytest.mark.parametrize("likelihood", ["student_t", "gaussian"])
def test_an_offset_of_y_changes_nothing(likelihood):
    X, y = with_outliers(60)
    model = GPGeneralizedRegressor(Matern(1.0), likelihood=likelihood, max_iter=5)
    plain, _ = told(lambda: clone(model).fit(X, y))
    moved, messages = told(lambda: clone(model).fit(X, y + 2.0**23))
    assert not any("did not converge" in message for message in messages)
    assert moved.log_marginal_likelihood_value_ == pytest.approx(plain.log_marginal_likelihood_value_, abs=0.05)


@pytest.mark.parametrize("likelihood", ["student_t", "gaussian"])
@pytest.mark.parametrize("n", [1, 30])
def test_nothing_is_learned_from_a_constant(likelihood, n):
    X = np.random.default_rng(0).normal(size=(n, 2))
    model, messages = told(lambda: GPGeneralizedRegressor(likelihood=likelihood).fit(X, np.ones(n)))
    assert "y is constant" in messages[0]
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, 1.0, atol=1e-6)
    assert std.min() > 0.1


# exposures of new points


def test_trials_are_whole_numbers_and_scores_need_exposures():
    rng = np.random.default_rng(0)
    X, trials = rng.normal(size=(40, 1)), rng.integers(1, 9, size=40)
    model = GPGeneralizedRegressor(likelihood="binomial").fit(X, rng.binomial(trials, 0.4), exposure=trials)
    with pytest.raises(ValueError, match="whole numbers"):
        model.predict(X, exposure=2.5)
    with pytest.raises(ValueError, match="score needs"):
        model.score(X, trials / 2)
    assert np.isfinite(model.score(X, trials / 2, exposure=trials))


# a likelihood of one's own


def test_a_likelihood_of_ones_own_is_one_method():
    X, y = with_outliers()
    model = GPGeneralizedRegressor(likelihood=HyperbolicSecant(0.3), max_iter=15)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    assert np.sqrt(np.mean((model.latent(X) - np.sin(2 * X[:, 0])) ** 2)) < 0.35
    assert np.isfinite(model.log_predictive_density(X, y)).all()
    with pytest.raises(NotImplementedError, match="moments"):
        model.predict(X)


# what is refused


@pytest.mark.parametrize(
    ("likelihood", "y", "exposure", "words"),
    [
        ("poisson", [1.0, 2.5], None, "whole number"),
        ("poisson", [1.0, -1.0], None, "non-negative"),
        ("poisson", [1.0, 2.0], [1.0, 0.0], "exposure must be positive"),
        ("poisson", [1.0, 2.0], [1.0, 2.0, 3.0], "exposure must be one number or 2"),
        ("poisson", [1.0, 2.0], [1.0, np.nan], "exposure"),
        ("binomial", [1.0, 3.0], [2.0, 2.0], "from 0 to the number of trials"),
        ("gamma", [1.0, 0.0], None, "positive"),
        ("poisson", [0.0, 0.0], None, "every y is 0.*mean='zero'"),
        ("binomial", [3.0, 2.0], [3.0, 2.0], "every y is the number of trials"),
        ("student_t", [1.0, np.nan], None, "NaN"),
        ("student_t", [[1.0, 2.0], [1.0, 2.0]], None, "1d array"),
        ("normal", [1.0, 2.0], None, "likelihood must be one of student_t"),
        (3, [1.0, 2.0], None, "likelihood must be one of student_t"),
    ],
)
def test_data_that_make_no_sense_are_refused(likelihood, y, exposure, words):
    with pytest.raises(ValueError, match=words):
        GPGeneralizedRegressor(likelihood=likelihood).fit([[0.0], [1.0]], y, exposure=exposure)


def test_predictions_check_what_they_are_given():
    model = fixed().fit(*counts())
    with pytest.raises(ValueError, match="exposure must be positive"):
        model.predict([[0.0]], exposure=-1.0)
    with pytest.raises(ValueError, match="y has 2"):
        model.log_predictive_density([[0.0]], [1.0, 2.0])
    with pytest.raises(ValueError, match="whole number"):
        model.log_predictive_density([[0.0]], [1.5])


def test_a_white_kernel_is_refused():
    with pytest.raises(ValueError, match="WhiteKernel"):
        GPGeneralizedRegressor(sk.RBF() + sk.WhiteKernel()).fit(*counts())


# hostile data


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_units_do_not_matter(unit):
    X, y = with_outliers(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        one = GPGeneralizedRegressor().fit(X, y).predict(X)
        other = GPGeneralizedRegressor().fit(unit * X, unit * y).predict(unit * X)
    np.testing.assert_allclose(other, unit * one, atol=0.02 * unit)


AWKWARD = {
    "one row": ("poisson", np.array([[1.0]]), np.array([3.0])),
    "two rows": ("student_t", np.array([[1.0], [2.0]]), np.array([3.0, 4.0])),
    "constant": ("student_t", np.arange(10.0)[:, None], np.full(10, 7.0)),
    "huge counts": ("poisson", np.arange(10.0)[:, None], 1e9 + np.arange(10.0)),
    "constant inputs": ("negative_binomial", np.ones((10, 2)), np.arange(10.0)),
    "duplicates": ("gamma", np.repeat([[1.0], [2.0]], 10, axis=0), np.arange(1.0, 21.0)),
}


@pytest.mark.filterwarnings("ignore::kernelcg.errors.ConvergenceWarning")
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_data_give_sensible_numbers(name):
    likelihood, X, y = AWKWARD[name]
    model = GPGeneralizedRegressor(likelihood=likelihood).fit(X, y)
    mean = model.predict(X)
    assert np.isfinite(mean).all()
    assert np.abs(mean - y).max() <= np.ptp(y) + 0.7 * np.abs(y).max() + 1


def test_nothing_but_zeros_needs_a_level_that_is_given():
    X = np.arange(10.0)[:, None]
    model = fixed(mean="zero").fit(X, np.zeros(10))
    assert (model.predict(X) < 1).all()


# what users are told


def test_one_warning_says_what_ended_early(monkeypatch):
    model, messages = told(lambda: GPGeneralizedRegressor(likelihood="poisson", max_iter=1).fit(*counts()))
    assert len(messages) == 1
    assert "learning ended early" in messages[0]
    monkeypatch.setattr(laplace_certificate, "AS_GOOD", 0.0)  # else what rounding leaves is as good
    model, messages = told(lambda: fixed(rtol=1e-30).fit(*counts()))
    assert len(messages) == 1
    assert "NOT exact: Newton's method for the mode" in messages[0]
    assert str(model.certificate_).startswith("NOT exact")


def test_points_without_concavity_are_counted():
    model = fixed(StudentT(0.1, 4.0)).fit(*with_outliers())
    assert model.certificate_.negative >= 8
    assert "not concave" in str(model.certificate_)
    assert "one more Newton step" in str(model.certificate_)


def test_two_fits_give_the_same_numbers():
    X, y = counts()
    one, two = (fixed(method="iterative").fit(X, y).predict(X, return_std=True) for _ in range(2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_pickles_are_small_and_complete(method):
    X, y = counts(300)
    model = fixed(method=method, mean="linear").fit(X, y)
    text = pickle.dumps(model)
    assert len(text) < 8 * 300 * 30 + 40_000
    copy = pickle.loads(text)
    np.testing.assert_array_equal(copy.latent(X), model.latent(X))
    assert copy.posterior_.is_lean, "a mean needs no factor"
    np.testing.assert_allclose(copy.predict(X, return_std=True), model.predict(X, return_std=True), rtol=1e-2)


def test_the_mode_is_that_of_the_dense_formula():
    X, y = counts(40)
    model = fixed(kernel=RBF(1.0), mean="zero", rtol=1e-12).fit(X, y)
    K = np.exp(-((X - X.T) ** 2) / 2)
    f = model.posterior_.mode.f[:, 0].numpy()
    np.testing.assert_allclose(K @ (y - np.exp(f)), f, atol=1e-8)
    W = np.exp(f)
    B = np.eye(40) + np.sqrt(W)[:, None] * K * np.sqrt(W)
    evidence = stats.poisson.logpmf(y, W).sum() - 0.5 * f @ (y - W) - 0.5 * np.linalg.slogdet(B)[1]
    assert model.log_marginal_likelihood_value_ == pytest.approx(evidence, rel=1e-9)
    mean, std = model.latent(X[:5], return_std=True)
    np.testing.assert_allclose(mean, f[:5], atol=1e-8)
    variance = np.diag(K - K @ np.linalg.solve(K + np.diag(1 / W), K))[:5]
    np.testing.assert_allclose(std**2, variance, rtol=1e-6)
    assert isinstance(model.likelihood_, Poisson)
    assert torch.is_tensor(model.posterior_.mode.f)


# what cannot be represented, or is not known


def test_predictions_beyond_float64_are_said():
    X, y = counts()
    model = fixed(mean="linear").fit(X, y)
    (_, std), messages = told(lambda: model.predict(np.full((1, X.shape[1]), 1e5), return_std=True))
    assert np.isinf(std).all()
    assert len(messages) == 1
    assert "more than 1e308" in messages[0]
    _, messages = told(lambda: model.predict(X, return_std=True))
    assert messages == []


@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
@pytest.mark.parametrize("scale", [1e-12, 1e-7, 1e7])
def test_student_t_in_small_and_large_units(mean, scale):
    """The units of y change nothing but the units of the answer."""
    X, y = with_outliers(60)
    model, _ = told(lambda: GPGeneralizedRegressor(mean=mean, max_iter=20).fit(X, scale * y))
    mean_, std = model.predict(X, return_std=True)
    assert np.isfinite(mean_).all()
    assert np.median(np.abs(mean_ - scale * y)) < scale
    assert np.median(std) < 2 * scale


@pytest.mark.parametrize("likelihood", ["poisson", "gaussian"])
def test_a_matrix_that_rounding_makes_indefinite_is_refused_with_a_remedy(likelihood):
    rng = np.random.default_rng(0)
    X = 1e10 + rng.normal(size=(40, 3))
    y = rng.poisson(1e5, size=40).astype(float)
    model = GPGeneralizedRegressor(Linear(1.0), likelihood=likelihood, optimizer=None, method="direct")
    with pytest.raises(ValueError, match="StandardScaler"):
        told(lambda: model.fit(X, y))


def test_a_prediction_that_is_not_known_warns():
    X, y = counts()
    model = fixed().fit(X, y)
    posterior = model.posterior_
    model.posterior_ = replace(posterior, error=replace(posterior.error, deviations=0.5, energy=0.5))
    for work in (lambda: model.predict(X, return_std=True), lambda: model.latent(X, return_std=True)):
        _, messages = told(work)
        assert len(messages) == 1
        assert "may be off by up to" in messages[0]
