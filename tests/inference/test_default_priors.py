"""The default priors: their formula and gradient, the optimum with them, and what they keep from running away."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from kernelcg import GPClassifier, GPGeneralizedRegressor, GPRegressor, load
from kernelcg.errors import ConvergenceWarning, StateMismatch
from kernelcg.events import EventKind
from kernelcg.inference.gaussian.likelihood_by_cholesky import direct_estimate
from kernelcg.inference.gaussian.model import GaussianProcess, Noise, Regression
from kernelcg.inference.gaussian.objective import Objective
from kernelcg.inference.learning.default_priors import LONGEST, default_priors, largest_ratio
from kernelcg.inference.learning.learn import learn
from kernelcg.kernels import RBF, Constant, Linear, Matern, Periodic
from kernelcg.randomness import child, seeded


def friedman(n, d, noise, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, d))
    f = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
    return X, f + noise * rng.normal(size=n)


def problem_of(X, y, noise_variance=None):
    Y = torch.from_numpy((y - y.mean()) / y.std()).reshape(len(X), -1)
    return Regression(torch.from_numpy(X), Y, noise_variance, mean="constant")


# the density


def density(signal, noise, n, outputs=1, known=0.0):
    """Return the formula of the docstring, in NumPy."""
    R = (1e-3 / (32 * 2.0**-53 * n)) ** (2 / 3)
    return -0.25 * n * outputs * max(0.0, math.log(signal / (noise + known) / R) + 1) ** 2


@pytest.mark.parametrize("ratio", [1e2, 1e5, 3e5, 1e6, 1e9])
@pytest.mark.parametrize(("outputs", "known"), [(1, 0.0), (3, 0.0), (1, 1e-6)])
def test_density_is_the_formula(ratio, outputs, known):
    X = np.random.default_rng(0).normal(size=(200, 2))
    y = np.random.default_rng(1).normal(size=(200, outputs))
    gp = GaussianProcess(RBF(1.0, 2.0) + Constant(3.0), Noise(5.0 / ratio))
    priors = default_priors(gp, problem_of(X, y, known * torch.ones(200, dtype=torch.float64) if known else None))
    assert priors.log_density(gp)[0] == pytest.approx(density(5.0, 5.0 / ratio, 200, outputs, known), rel=1e-12)


@pytest.mark.parametrize("noise", [1e-2, 1e-5, 3e-6, 1e-7, 1e-10])
@pytest.mark.parametrize(
    "kernel",
    [Matern([1.0, 2.0], 3.0), RBF(1.0) * Constant(2.0) + Matern(0.5, 0.1), Periodic(1.0, 2.0) * RBF([3.0, 1.0], 2.0)],
    ids=repr,
)
def test_gradient_is_that_of_finite_differences(kernel, noise):
    X, y = friedman(100, 5, 0.1)
    gp = GaussianProcess(kernel, Noise(noise))
    priors = default_priors(gp, problem_of(X[:, :2], y))
    theta, gradient = gp.log_parameters(), priors.log_density(gp)[1]
    for i in range(len(theta)):
        step = torch.zeros_like(theta)
        step[i] = 1e-5
        ends = [priors.log_density(gp.with_log_parameters(theta + sign * step))[0] for sign in (1, -1)]
        assert float(gradient[i]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6, abs=1e-6)


# the optimum


def dense_posterior(theta, X, y, priors_too):
    """Return the log density that is maximised, from the formulas alone: Matérn-3/2, constant drift, and the prior."""
    lengthscale, variance, noise = np.exp(theta[:-2]), math.exp(theta[-2]), math.exp(theta[-1])
    Z = X / lengthscale
    q = np.sqrt(3 * np.maximum(((Z[:, None] - Z[None]) ** 2).sum(2), 0))
    A = variance * (1 + q) * np.exp(-q) + noise * np.eye(len(X))
    one = np.ones(len(X))
    level = one @ np.linalg.solve(A, y) / (one @ np.linalg.solve(A, one))
    residual = y - level
    value = -0.5 * (residual @ np.linalg.solve(A, residual) + np.linalg.slogdet(A)[1] + len(X) * math.log(2 * math.pi))
    return value + (density(variance, noise, len(X)) if priors_too else 0.0)


@pytest.mark.parametrize("noise", [0.0, 0.1], ids=["noise-free", "noise"])
def test_optimum_is_that_of_a_dense_search(noise):
    rng = np.random.default_rng(3)
    X = rng.uniform(-1, 1, size=(60, 2))
    y = np.sin(3 * X[:, 0]) + X[:, 1] ** 2 + noise * rng.normal(size=60)
    standard = (y - y.mean()) / y.std()
    model = GPRegressor(method="direct").fit(X, y)
    gp = model.learning_.gp
    found = gp.log_parameters().numpy()
    free = [(None, None)] * 3 + [(math.log(1 / largest_ratio(60)), None)]
    best = minimize(
        lambda theta: -dense_posterior(theta, X, standard, True), found + 0.3, bounds=free, method="L-BFGS-B", tol=1e-12
    )
    assert dense_posterior(found, X, standard, True) >= -best.fun - 1e-3
    np.testing.assert_allclose(found, best.x, atol=0.03)
    assert (model.learning_.default_log_prior < 0) == (noise == 0.0)
    assert model.learning_.default_log_prior == pytest.approx(density(*np.exp(found[-2:]), 60), rel=1e-9)


@pytest.mark.parametrize("d", [5, 10])
def test_noise_stays_where_float64_resolves_it(d):
    X, y = friedman(250, d, 0.0)
    model = GPRegressor().fit(X, y)
    ratio = model.kernel_.variance.item() / model.noise_
    assert largest_ratio(250) / math.e < ratio <= largest_ratio(250)
    assert model.certificate_.mean_error < 0.02 * math.sqrt(model.noise_) * model.y_scale_[0]
    assert "the data have little noise or are nearly linear" in str(model.learning_)
    with pytest.warns(ConvergenceWarning, match="five orders of magnitude from its start"):
        free = GPRegressor(priors=None).fit(X, y)
    assert free.kernel_.variance.item() / free.noise_ > 10 * largest_ratio(250)
    assert free.learning_.default_log_prior is None
    assert free.learning_.findings == ()


def test_a_linear_kernel_has_a_floor_below_the_noise_too():
    X = np.random.default_rng(0).normal(size=(80, 2))
    model = GPRegressor(Linear(1.0)).fit(X, X @ [1.0, 2.0])
    assert model.noise_ == pytest.approx(1 / largest_ratio(80))
    assert "noise.variance ended at the lower end" in str(model.learning_)


# where data speak


SPEAKING = {
    "friedman": friedman(200, 6, 1.0),
    "sine": (np.linspace(0, 10, 150)[:, None], np.sin(np.linspace(0, 10, 150)) + 0.1 * friedman(150, 5, 1.0, 1)[1]),
    "linear": (friedman(200, 5, 0)[0], friedman(200, 5, 0)[0].sum(1) + np.random.default_rng(5).normal(size=200)),
    "noise": (friedman(100, 5, 0)[0], np.random.default_rng(0).normal(size=100)),
}


@pytest.mark.parametrize("name", SPEAKING)
def test_no_evidence_is_lost_where_the_data_speak(name):
    X, y = SPEAKING[name]
    weak, none = (GPRegressor(priors=priors).fit(X, y) for priors in ("weak", None))
    assert weak.log_marginal_likelihood_value_ > none.log_marginal_likelihood_value_ - 0.5
    assert weak.learning_.default_log_prior > -0.1


def test_features_without_effect_are_named():
    rng = np.random.default_rng(0)
    X = np.c_[rng.normal(size=(300, 4)), np.ones(300)]
    y = np.sin(2 * X[:, 1]) + 0.3 * rng.normal(size=300)
    model = GPRegressor(max_iter=300).fit(X, y)
    constant, unseen = model.learning_.findings
    assert constant == "no visible effect of feature 4: constant"
    assert unseen.startswith("no visible effect of feature 0, 3: over the data each changes the function by")
    reach = model.kernel_.lengthscale.numpy() / X.std(0).clip(1e-300)
    assert reach[:4].max() <= 1.2 * LONGEST


def test_a_linear_effect_is_visible_however_long_its_lengthscale():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    model = GPRegressor().fit(X, 3 * X[:, 0] + 0.1 * rng.normal(size=200))
    assert model.kernel_.lengthscale[0] > 20
    assert not any("feature 0" in line for line in model.learning_.findings)


# what users say wins


def test_noise_that_was_restricted_is_left_alone():
    X, y = friedman(100, 5, 0.0)
    for noise in (
        Noise(1e-9).fixed(),
        Noise(1e-9).bounded(variance=(1e-10, 1e-8)),
        Noise(1e-9).with_prior(variance=(1e-9, 0.1)),
    ):
        gp = GaussianProcess(Matern([1.0] * 5), noise)
        priors = default_priors(gp, problem_of(X, y))
        assert math.isinf(priors.resolvable)
        assert priors.lower[-1] == -math.inf


def test_lengthscales_that_were_restricted_are_left_alone():
    X, y = friedman(100, 5, 0.1)
    gp = GaussianProcess(RBF([1.0] * 5).bounded(lengthscale=(1e-9, 1e9)) + Matern(1.0), Noise(0.1))
    priors = default_priors(gp, problem_of(X, y))
    restricted = [name.startswith("kernel.left.lengthscale") for name in gp.parameter_names()]
    assert all(low == -math.inf for low, own in zip(priors.lower, restricted, strict=True) if own)
    named = dict(zip(gp.parameter_names(), priors.upper.exp().tolist(), strict=True))
    assert named["kernel.right.lengthscale"] == pytest.approx(LONGEST * X.std(0).max(), rel=0.2)
    assert named["kernel.right.variance"] == pytest.approx(1e4)
    factors = GaussianProcess(Constant(1.0) * Matern(1.0), Noise(0.1))
    found = default_priors(factors, problem_of(X, y)).upper.exp().tolist()
    assert found == pytest.approx([math.inf, named["kernel.right.lengthscale"], math.inf, 10.0])


def test_lengthscales_on_some_columns_are_in_units_of_those():
    X, y = friedman(50, 5, 0.1)
    X = X * 10.0 ** np.arange(5)
    gp = GaussianProcess(RBF([1.0, 1.0]).on([3, 1]) + Constant(1.0), Noise(0.1))
    ratios = default_priors(gp, problem_of(X, y)).upper[:2].exp().numpy() / X.std(0)[[3, 1]]
    np.testing.assert_allclose(ratios, LONGEST, rtol=0.3)


def test_a_start_outside_the_default_range_is_kept_within_it():
    X, y = friedman(50, 5, 0.1)
    gp = GaussianProcess(RBF([1e8] * 5), Noise(0.1))
    assert default_priors(gp, problem_of(X, y)).upper[0] == pytest.approx(math.log(1e8))


@pytest.mark.parametrize("estimator", [GPRegressor, GPClassifier, GPGeneralizedRegressor])
def test_options_are_checked(estimator):
    X, y = friedman(20, 5, 0.1)
    with pytest.raises(ValueError, match="priors must be 'weak' or None, not 'strong'"):
        estimator(priors="strong").fit(X, y > y.mean())


# stages, states and files


def test_every_stage_sees_the_prior_of_all_data():
    X, y = friedman(600, 5, 0.0)
    problem = problem_of(X, y)
    gp = GaussianProcess(Matern([1.0] * 5), Noise(1e-7))
    priors, seen = default_priors(gp, problem), []
    objective = Objective(problem, method="direct")
    learn(
        objective,
        gp,
        max_steps=1,
        restarts=1,
        generator=seeded(0),
        priors=priors,
        callback=lambda event: seen.append(event.payload) if event.kind is EventKind.EVALUATION else None,
    )
    order = torch.randperm(600, generator=child(seeded(0), "subset"))
    assert len({one.rows for one in seen}) > 1
    for one in seen:
        at = gp.with_log_parameters(torch.tensor(one.log_parameters, dtype=torch.float64))
        part = problem if one.rows == 600 else problem.subset(order[: one.rows])
        value = direct_estimate(part, at, "marginal_likelihood").value + density(
            at.kernel.variance.item(), at.noise.variance.item(), 600
        )
        assert one.value == pytest.approx(value, rel=1e-9)


def test_learning_with_priors_resumes_to_the_same_bits():
    X, y = friedman(80, 5, 0.0)
    states = []

    def listen(event):
        if event.kind is EventKind.STEP:
            states.append(event.payload.state)

    whole = GPRegressor().fit(X, y, callback=listen)
    again = GPRegressor().fit(X, y, resume=states[3])
    assert torch.equal(whole.learning_.gp.log_parameters(), again.learning_.gp.log_parameters())
    with pytest.raises(StateMismatch, match="priors was DefaultPriors, not None"):
        GPRegressor(priors=None).fit(X, y, resume=states[3])


def test_what_was_found_is_in_the_file(tmp_path):
    X, y = friedman(80, 5, 0.0)
    model = GPRegressor().fit(X, y)
    model.save(tmp_path / "model.kcg")
    loaded = load(tmp_path / "model.kcg")
    assert str(loaded.learning_) == str(model.learning_)
    assert loaded.learning_.default_log_prior == model.learning_.default_log_prior < 0
    assert loaded.priors == "weak"


# other likelihoods


def test_other_likelihoods_name_features_without_effect():
    rng = np.random.default_rng(0)
    X = np.c_[rng.normal(size=(150, 1)), np.ones(150)]
    classifier = GPClassifier().fit(X, X[:, 0] + 0.3 * rng.normal(size=150) > 0)
    counts = GPGeneralizedRegressor(likelihood="poisson").fit(X, rng.poisson(np.exp(X[:, 0])))
    robust = GPGeneralizedRegressor().fit(X, np.sin(2 * X[:, 0]) + 0.1 * rng.standard_t(3, size=150))
    for model in (classifier, counts, robust):
        assert model.learning_.default_log_prior == 0
        assert model.learning_.findings == ("no visible effect of feature 1: constant",)
