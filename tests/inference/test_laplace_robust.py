"""The Laplace approximation where it is hard: right, or said to be wrong; its bounds; its systems; learning it."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from laplace_cases import LIKELIHOOD, Case, case, softmax_case
from reference import kernel_matrix
from scipy.optimize import minimize

from kernelcg.backends import default
from kernelcg.inference import Numerics, learn
from kernelcg.inference.laplace import evidence, evidence_by_pcg
from kernelcg.inference.laplace.evidence import laplace_estimate
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.mode import find_mode
from kernelcg.inference.laplace.newton_by_pcg import IterativeSystem
from kernelcg.inference.laplace.objective import LaplaceObjective
from kernelcg.inference.laplace.posterior import STRONG_CONCAVITY, condition_laplace
from kernelcg.inference.laplace.softmax_system import SoftmaxLowRank, SoftmaxSystem
from kernelcg.kernels import RBF
from kernelcg.likelihoods import BernoulliProbit, StudentT
from kernelcg.planning import Pricing
from kernelcg.planning.profile import TYPICAL
from kernelcg.randomness import seeded
from kernelcg.solvers import Status, Stopping

METHODS = ("direct", "iterative")
NEW = np.random.default_rng(99).normal(size=(4, 2))
FEW = Numerics(probes=16, stopping=Stopping(rtol=1e-6))


def scaled(one, variance=None, inputs=1.0):
    """Return the case with another kernel variance, and inputs and lengthscales in other units."""
    kernel = replace(one.kernel, lengthscale=one.kernel.lengthscale * inputs)
    kernel = kernel if variance is None else replace(kernel, variance=variance)
    return replace(one, X=one.X * inputs, kernel=kernel)


def with_outliers(size, degrees):
    one = case("student_t", "constant")
    y = one.y.copy()
    y[[3, 7]] = size, -size
    return replace(one, y=y, likelihood=StudentT(0.3, degrees))


def with_duplicates(name):
    one = case(name)
    return replace(one, X=np.concatenate([one.X[:15]] * 2))


def labelled(name, mean, y):
    one = case(name, mean)
    return replace(one, y=np.asarray(y(one), dtype=float))


def first_input_positive(one):
    return one.X[:, 0] > 0


def many(one):
    return np.round((1e5 if one.name == "poisson" else 1e3) * np.exp(one.X[:, 0]))


def gamma_times(factor, mean):
    one = case("gamma", mean)
    return replace(one, y=one.y * factor)


HARD = {
    **{f"variance {v:g} {name}": partial(lambda v, name: scaled(case(name), v), v, name)
       for v in (1e-6, 1e6, 1e8) for name in LIKELIHOOD},
    **{f"inputs {s:g} {name}": partial(lambda s, name: scaled(case(name, "linear"), inputs=s), s, name)
       for s in (1e-6, 1e6) for name in ("probit", "poisson", "student_t")},
    **{f"inputs in other units {s:g}": partial(lambda s: replace(case("probit"), X=s * case("probit").X), s)
       for s in (1e-6, 1e6)},
    **{f"separable {name} {mean} {v:g}": partial(
           lambda name, mean, v: scaled(labelled(name, mean, first_input_positive), v), name, mean, v)
       for name in ("probit", "logit") for mean in ("zero", "constant") for v in (1.5, 1e4)},
    "one label probit": lambda: labelled("probit", "zero", lambda one: np.ones(30)),
    "one label logit": lambda: labelled("logit", "zero", lambda one: np.ones(30)),
    **{f"large counts {name} {mean}": partial(lambda name, mean: labelled(name, mean, many), name, mean)
       for name in ("poisson", "negative_binomial") for mean in ("zero", "constant")},
    **{f"exposures {name}": partial(lambda name: replace(case(name), exposure=np.logspace(-3, 3, 30)), name)
       for name in ("poisson", "negative_binomial")},
    **{f"gamma times {s:g} {mean}": partial(gamma_times, s, mean)
       for s in (1e-8, 1e8) for mean in ("zero", "constant")},
    **{f"outliers {size:g}, {degrees} degrees": partial(with_outliers, size, degrees)
       for size in (1e2, 1e6, 1e12) for degrees in (1.5, 3.0)},
    **{f"duplicates {name}": partial(with_duplicates, name) for name in ("probit", "poisson", "student_t", "gaussian")},
    **{f"one point {name}": partial(lambda name: case(name, n=1), name) for name in LIKELIHOOD},
}  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", HARD)
def test_right_or_refused(name, method):
    """The evidence to 1e-6 or 5 standard errors; a gradient to 1e-6, or with a standard error that covers it."""
    one = HARD[name]()
    mode = one.mode("direct", rtol=1e-9) if one.name == "student_t" else None
    truth = one.truth(mode)
    estimate, _ = laplace_estimate(one.problem, one.gp, method, FEW, mode_rtol=1e-8, errors=True)
    if estimate.status is not Status.CONVERGED:
        assert estimate.status in (Status.PRECISION_EXHAUSTED, Status.STAGNATED, Status.MAX_ITERATIONS)
        assert "variance 1e+0" in name  # where eleven digits are lost to rounding; nowhere else
        return
    size = np.abs(truth.gradient_terms).max()
    slack = 1e-6 * max(1.0, 1e-3 * abs(truth.log_evidence))
    assert abs(estimate.value - truth.log_evidence) <= 5 * estimate.value_error + slack
    if method == "direct":
        assert np.max(np.abs(estimate.gradient.numpy() - truth.gradient)) <= 1e-6 * size
    else:
        assert np.all(estimate.gradient.isfinite().numpy())
        assert estimate.lower <= estimate.value <= estimate.upper
        # four groups: Student's t with 3 degrees, of which 40 is exceeded once in 15,000
        error = np.abs(estimate.gradient.numpy() - truth.gradient)
        assert np.all(error <= 40 * estimate.gradient_error.numpy() + 1e-5 * size)


def everything_positive(one):
    return np.ones(30)


def nothing_counted(one):
    return np.zeros(30)


NO_MODE = {
    "one label, constant drift": lambda: labelled("probit", "constant", everything_positive),
    "one label, logit": lambda: labelled("logit", "constant", everything_positive),
    "separable by a linear drift": lambda: labelled("probit", "linear", first_input_positive),
    "separable by a linear drift, logit": lambda: labelled("logit", "linear", first_input_positive),
    "no count at all": lambda: labelled("poisson", "constant", nothing_counted),
    "no count at all, overdispersed": lambda: labelled("negative_binomial", "constant", nothing_counted),
}


def test_no_mode_is_said_by_the_posterior():
    one = labelled("probit", "constant", everything_positive)
    assert condition_laplace(one.problem, one.gp, method="direct").mode.status is not Status.CONVERGED


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", NO_MODE)
def test_no_mode_is_said(name, method):
    """A drift with a flat prior runs away: there is nothing to converge to."""
    one = NO_MODE[name]()
    with pytest.raises(ArithmeticError):
        _ = one.truth().a
    estimate, _ = laplace_estimate(one.problem, one.gp, method, FEW)
    assert estimate.status is not Status.CONVERGED


@pytest.mark.parametrize("name", ["gaussian", "student_t", "gamma"])
def test_one_point_and_a_constant(name):
    """The drift takes it all: f̂ = log-likelihood's maximum, a = 0."""
    one = case(name, "constant", n=1)
    estimate, _ = laplace_estimate(one.problem, one.gp, "direct")
    f = math.log(one.y[0]) if name == "gamma" else one.y[0]
    parts = one.truth().parts(np.array([f]))
    assert estimate.status is Status.CONVERGED
    assert estimate.value == pytest.approx(parts.log_density[0] - 0.5 * math.log1p(1.5 * parts.W[0]), abs=1e-10)


# what did not converge


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["probit", "poisson", "student_t"])
def test_newton_stopped_early(name, method, monkeypatch):
    one = case(name)
    mode = one.mode(method, max_steps=1)
    assert mode.status is Status.MAX_ITERATIONS
    assert mode.residual > 1e-10
    assert mode.steps == 1
    monkeypatch.setattr(evidence, "find_mode", partial(find_mode, max_steps=1))
    estimate, _ = laplace_estimate(one.problem, one.gp, method, FEW, mode_rtol=1e-8)
    assert estimate.status is Status.MAX_ITERATIONS


@pytest.mark.parametrize("name", ["probit", "poisson", "softmax", "student_t"])
def test_inner_solves_stopped_early(name, monkeypatch):
    """With one iteration a solve, Newton's method still rises; whatever it reaches, the estimate is not CONVERGED."""
    solve = IterativeSystem.solve

    def one_iteration(self, B, stopping, start=None):
        return solve(self, B, replace(stopping, max_iterations=1), start)

    monkeypatch.setattr(IterativeSystem, "solve", one_iteration)
    one = softmax_case(3) if name == "softmax" else case(name)
    one = replace(one, kernel=replace(one.kernel, variance=100.0))
    numerics = Numerics(probes=2, stopping=Stopping(rtol=1e-8), preconditioner=None)
    mode = one.mode("iterative", rtol=1e-8, numerics=numerics)
    start = one.mode("direct", max_steps=0)
    assert mode.psi > start.psi
    assert mode.inner is not Status.CONVERGED
    if mode.status is Status.CONVERGED:
        assert torch.allclose(mode.f, one.mode("direct").f, atol=1e-4)
    estimate, _ = laplace_estimate(one.problem, one.gp, "iterative", numerics, mode_rtol=1e-8)
    assert estimate.status is not Status.CONVERGED


def test_limits_of_the_probe_solves_are_kept():
    one = scaled(case("probit"), 100.0)
    stopping = Stopping(rtol=1e-8, max_iterations=1)
    numerics = Numerics(probes=2, stopping=stopping, preconditioner=None)
    estimate, _ = laplace_estimate(one.problem, one.gp, "iterative", numerics)
    assert estimate.status is Status.MAX_ITERATIONS


def test_failed_solves_show_in_predictions(monkeypatch):
    """The variance is too large by no more than said, however early the solves end."""
    one = scaled(case("probit"), 100.0)
    found = condition_laplace(one.problem, one.gp, numerics=Numerics(preconditioner=None), variance_tolerance=1e-6)
    solve = IterativeSystem.solve

    def two_iterations(self, B, stopping, start=None):
        return solve(self, B, replace(stopping, max_iterations=2), start)

    monkeypatch.setattr(IterativeSystem, "solve", two_iterations)
    prediction = found.predict(torch.tensor(NEW), covariance=True)
    assert prediction.status is Status.MAX_ITERATIONS
    exact = one.latent(one.truth(), NEW)[1][:, 0, 0]
    variance, error = prediction.covariance[:, 0, 0].numpy(), prediction.covariance_error.numpy()
    assert np.all(exact <= variance * (1 + 1e-9))
    assert np.all(exact >= variance - error - 1e-9)
    assert np.max(variance / exact) > 1.01  # not by chance


def saddle():
    """Return two pairs of contradictory outliers, far apart: f = 0 is stationary by symmetry, and no maximum."""
    X = np.array([[0.0, 0.0], [0.0, 0.0], [50.0, 50.0], [50.0, 50.0]])
    return Case(X, np.array([3.0, -3.0, 3.0, -3.0]), RBF(1.0, 4.0), "student_t", StudentT(0.3, 3.0))


@pytest.mark.parametrize("method", METHODS)
def test_a_saddle_is_no_mode(method):
    """|I + KW| is positive with two directions of negative curvature as it is with none."""
    one = saddle()
    estimate, _ = laplace_estimate(one.problem, one.gp, method, FEW)
    proper = one.truth(one.mode(method)).positive_definite
    assert proper or estimate.status is not Status.CONVERGED


def test_a_pair_of_contradictory_outliers_is_no_mode():
    one = saddle()
    one = replace(one, X=one.X[:2], y=one.y[:2])
    assert laplace_estimate(one.problem, one.gp, "direct")[0].status is not Status.CONVERGED


# bounds


def bound_cases():
    """Return 320 log-concave problems, each to be stopped at its tolerance."""
    names = ["probit", "logit", "binomial", "poisson", "negative_binomial", "gamma", "gaussian", "softmax"]
    kernels = ["rbf", "matern 1/2", "matern 5/2", "sum"]
    for seed in range(40):
        for name in names:
            kernel = kernels[seed % 4]
            one = softmax_case(3, kernel, 6, seed) if name == "softmax" else case(name, "zero", kernel, 10, seed)
            yield one, 10.0 ** -(1 + seed % 8)


def test_mean_bound_holds():
    """Never exceeded but by rounding, over 320 problems; and not idle: its median is within 100 times the error."""
    ratios, points = [], torch.tensor(NEW)
    for number, (one, rtol) in enumerate(bound_cases()):
        found = condition_laplace(
            one.problem, one.gp, method="direct" if number % 2 else "iterative", rtol=rtol, numerics=FEW
        )
        assert found.rests_on == STRONG_CONCAVITY
        assert found.mode.residual <= rtol
        prediction = found.predict(points)
        truth = one.latent(one.truth(), NEW)[0]
        error = np.abs(prediction.mean.numpy() - truth).max(1)
        bound = prediction.mean_bound.numpy()
        assert np.all(error <= bound + 1e-13 * np.abs(truth).max())
        ratios.extend(bound[error > 1e-12] / error[error > 1e-12])
    assert len(ratios) > 500
    assert np.median(ratios) < 100


def test_covariance_brackets_hold():
    """The exact variance lies in [variance − error, variance] for one latent value, at loose tolerances too."""
    for number, (one, _) in enumerate(bound_cases()):
        if number % 9 == 0 and one.classes == 1:
            tolerance = 10.0 ** -(1 + number % 5)
            numerics = Numerics(preconditioner=None)
            found = condition_laplace(one.problem, one.gp, rtol=1e-10, numerics=numerics, variance_tolerance=tolerance)
            prediction = found.predict(torch.tensor(NEW), covariance=True)
            exact = one.latent(one.truth(), NEW)[1][:, 0, 0]
            variance, error = prediction.covariance[:, 0, 0].numpy(), prediction.covariance_error.numpy()
            assert prediction.status is Status.CONVERGED
            assert np.all(exact <= variance * (1 + 1e-7))
            assert np.all(exact >= (variance - error) * (1 - 1e-7))
            assert np.all(variance <= exact * (1 + 1.1 * tolerance + 1e-7))


# precision, warm starts, order, repetition


@pytest.mark.parametrize("name", ["probit", "poisson", "softmax"])
def test_float32_products(name):
    one = softmax_case(3) if name == "softmax" else case(name, n=40)
    single = replace(one, precision=torch.float32)
    numerics = Numerics(probes=32, stopping=Stopping(rtol=1e-4))
    found, _ = laplace_estimate(single.problem, one.gp, "iterative", numerics, mode_rtol=1e-4)
    exact, _ = laplace_estimate(
        replace(one, precision=torch.float64).problem, one.gp, "iterative", numerics, mode_rtol=1e-4
    )
    size = np.abs(one.truth().gradient_terms).max()
    assert found.status is Status.CONVERGED
    assert found.value == pytest.approx(exact.value, abs=1e-2)
    assert np.max(np.abs(found.gradient.numpy() - exact.gradient.numpy())) <= 2e-3 * size


@pytest.mark.parametrize("name", ["probit", "negative_binomial", "softmax"])
def test_warm_starts_change_nothing(name):
    """A trail from hyperparameters nearby: the same mode, value and gradient to the tolerance of the solves."""
    one = softmax_case(3) if name == "softmax" else case(name, "constant")
    numerics = Numerics(probes=8, rademacher=True, stopping=Stopping(rtol=1e-9))
    near = one.gp.with_log_parameters(one.gp.log_parameters() + 0.2)
    _, trail = laplace_estimate(one.problem, near, "iterative", numerics, mode_rtol=1e-10)
    warm, left = laplace_estimate(one.problem, one.gp, "iterative", numerics, trail, mode_rtol=1e-10)
    cold, other = laplace_estimate(one.problem, one.gp, "iterative", numerics, mode_rtol=1e-10)
    assert warm.status is cold.status is Status.CONVERGED
    assert torch.allclose(left.f, other.f, atol=1e-7)
    assert torch.allclose(warm.gradient, cold.gradient, rtol=1e-5, atol=1e-6)
    assert abs(warm.value - cold.value) <= 4 * math.hypot(warm.value_error, cold.value_error) + 1e-7


def test_a_warm_start_far_away_is_not_followed():
    """The better of the start and of the usual one is taken."""
    one = case("poisson", "constant")
    cold = one.mode("direct")
    far = one.mode("direct", start=torch.full((30, 1), 30.0, dtype=torch.float64))
    assert far.status is Status.CONVERGED
    assert torch.allclose(far.f, cold.f, atol=1e-8)


@pytest.mark.parametrize("name", ["probit", "student_t", "softmax"])
def test_order_of_the_data_does_not_matter(name):
    one = softmax_case(3) if name == "softmax" else case(name, "zero" if name == "probit" else "constant")
    order = np.random.default_rng(5).permutation(len(one.y))
    moved = replace(one, X=one.X[order], y=one.y[order])
    found, _ = laplace_estimate(one.problem, one.gp, "direct")
    again, _ = laplace_estimate(moved.problem, one.gp, "direct")
    assert again.value == pytest.approx(found.value, rel=1e-8)
    assert torch.allclose(again.gradient, found.gradient, rtol=1e-6, atol=1e-7)
    C = one.classes
    f, moved_f = one.mode("iterative").f.reshape(-1, C), moved.mode("iterative").f.reshape(-1, C)
    assert torch.allclose(moved_f, f[order], atol=1e-7)


@pytest.mark.parametrize("name", ["probit", "student_t", "softmax"])
def test_the_same_seed_gives_the_same(name):
    one = softmax_case(3) if name == "softmax" else case(name)
    numerics = Numerics(seed=3)
    found, again = (laplace_estimate(one.problem, one.gp, "iterative", numerics, errors=True)[0] for _ in range(2))
    other, _ = laplace_estimate(one.problem, one.gp, "iterative", replace(numerics, seed=4))
    assert found.value == again.value
    assert torch.equal(found.gradient, again.gradient)
    assert torch.equal(found.gradient_error, again.gradient_error)
    assert not torch.equal(found.gradient, other.gradient)


# the systems of several classes


def dense_class_system(K, pi):
    """Return A = Sᵀ(K ⊗ I)S + I and Π, from the blocks S = diag(√π)(I − √π√πᵀ), I − √π√πᵀ."""
    (n, C), root = pi.shape, np.sqrt(pi)
    S, projection = np.zeros((2, n * C, n * C))
    for i in range(n):
        rows = slice(i * C, (i + 1) * C)
        projection[rows, rows] = np.eye(C) - np.outer(root[i], root[i])
        S[rows, rows] = np.diag(root[i]) @ projection[rows, rows]
    return S.T @ np.kron(K, np.eye(C)) @ S + np.eye(n * C), projection


def class_setting(C, n=12, variance=1.5, spread=1.0):
    rng = np.random.default_rng(C)
    X, kernel = rng.normal(size=(n, 2)), RBF([0.8, 1.3], variance)
    F = spread * rng.normal(size=(n, C))
    pi = np.exp(F) / np.exp(F).sum(1, keepdims=True)
    return X, kernel, kernel_matrix(kernel, X, X), pi


def applied(P, size):
    return P.solve(torch.eye(size, dtype=torch.float64)).numpy()


@pytest.mark.parametrize("C", [2, 3, 5])
def test_class_system(C):
    X, kernel, K, pi = class_setting(C)
    A = SoftmaxSystem(default().bind(kernel, torch.tensor(X)), torch.tensor(pi))
    dense, _ = dense_class_system(K, pi)
    V = np.random.default_rng(0).normal(size=(len(dense), 3))
    assert len(A) == len(dense)
    assert (A @ torch.tensor(V)).numpy() == pytest.approx(dense @ V, rel=1e-10, abs=1e-10)
    assert (A @ torch.eye(len(A), dtype=torch.float64)).numpy() == pytest.approx(dense, abs=1e-11)
    assert np.min(np.linalg.eigvalsh(dense)) >= A.spectrum_floor() - 1e-12


@pytest.mark.parametrize("rank", [1, 5, 12])
@pytest.mark.parametrize("C", [2, 3, 5])
def test_class_preconditioner_is_a_with_low_rank_for_k(C, rank):
    """Its solve, determinant and draws are those of Sᵀ(F Fᵀ ⊗ I)S + I, formed whole; at full rank it is A itself."""
    _, _, K, pi = class_setting(C)
    values, V = np.linalg.eigh(K)
    F = (V * np.sqrt(np.maximum(values, 0)))[:, -rank:]
    P = SoftmaxLowRank(torch.tensor(F), torch.tensor(pi))
    whole, _ = dense_class_system(F @ F.T, pi)
    inverse = applied(P, pi.size)
    assert inverse == pytest.approx(np.linalg.inv(whole), abs=1e-11)
    assert float(P.log_determinant()) == pytest.approx(np.linalg.slogdet(whole)[1], rel=1e-11)
    R = np.random.default_rng(0).normal(size=(pi.size, 2))
    assert P.solve(torch.tensor(R)).numpy() == pytest.approx(inverse @ R, abs=1e-11)
    draws = P.sample(torch.Generator().manual_seed(0), 40_000).numpy()
    error = np.sqrt((np.outer(np.diag(whole), np.diag(whole)) + whole**2) / 40_000)
    assert np.max(np.abs(draws @ draws.T / 40_000 - whole) / error) < 5
    spectrum = np.linalg.eigvals(inverse @ dense_class_system(K, pi)[0]).real
    assert np.min(spectrum) > 1 - 1e-9  # F Fᵀ ⪯ K
    assert np.max(spectrum) <= np.max(np.linalg.eigvalsh(dense_class_system(K, pi)[0])) + 1e-9
    if rank == len(K):
        assert np.max(spectrum) == pytest.approx(1, abs=1e-8)


# learning


def reference_optimum(one, x0, free):
    """Return the largest log evidence by the reference, started at x0, over the free log hyperparameters."""
    truth = one.truth()

    def negative(x):
        parameters = x0.copy()
        parameters[free] = x
        at = truth.at(parameters)
        return -at.log_evidence, -at.gradient[free]

    found = minimize(negative, x0[free], jac=True, method="L-BFGS-B", options={"ftol": 1e-13, "gtol": 1e-7})
    return -found.fun, found.x


@pytest.mark.parametrize("name", ["probit", "poisson", "negative_binomial", "gamma", "gaussian"])
def test_learning_finds_the_optimum_of_the_reference(name):
    one = case(name, "constant" if name == "poisson" else "zero", n=40, seed=3)
    learned = learn(LaplaceObjective(one.problem, "direct"), one.gp, generator=seeded(0))
    x0 = one.gp.log_parameters().numpy()
    value, x = reference_optimum(one, x0, np.arange(len(x0)))
    found, _ = laplace_estimate(one.problem, learned.gp, "direct")
    assert learned.converged
    assert found.value == pytest.approx(value, abs=1e-3)
    inside = np.abs(x - x0) < 5 * math.log(10) - 1e-6  # learning stays within five orders of magnitude
    if inside.all():
        assert learned.gp.log_parameters().numpy() == pytest.approx(x, abs=0.1)


def test_learning_several_classes():
    one = softmax_case(3, n=24, seed=1)
    learned = learn(LaplaceObjective(one.problem, "direct"), one.gp, generator=seeded(0))
    x0 = one.gp.log_parameters().numpy()
    value, _ = reference_optimum(one, x0, np.arange(len(x0)))
    assert laplace_estimate(one.problem, learned.gp, "direct")[0].value == pytest.approx(value, abs=1e-3)


def test_learning_respects_fixed_and_bounded():
    """The lengthscale stays; the variance goes to its bound and is said to; the dispersion is free."""
    one = case("negative_binomial", n=40)
    free = learn(LaplaceObjective(one.problem, "direct"), one.gp, generator=seeded(0)).gp
    upper = 0.5 * float(free.kernel.variance)
    kernel = replace(one.kernel, variance=0.4 * float(free.kernel.variance))
    kernel = kernel.fixed("lengthscale").bounded(variance=(1e-3, upper))
    gp = LatentProcess(kernel, one.likelihood)
    learned = learn(LaplaceObjective(one.problem, "direct"), gp, generator=seeded(0))
    assert torch.equal(learned.gp.kernel.lengthscale, one.kernel.lengthscale)
    assert 1e-3 <= float(learned.gp.kernel.variance) <= upper * (1 + 1e-12)
    assert float(learned.gp.likelihood.dispersion) != float(one.likelihood.dispersion)
    before, after = (laplace_estimate(one.problem, some, "direct")[0].value for some in (gp, learned.gp))
    assert after > before


def test_restarts_do_no_harm():
    one = case("poisson", n=40)
    bad = LatentProcess(RBF([20.0, 20.0], 0.01), one.likelihood)
    single = learn(LaplaceObjective(one.problem, "direct"), bad, generator=seeded(0))
    several = learn(LaplaceObjective(one.problem, "direct"), bad, restarts=2, generator=seeded(0))
    values = [laplace_estimate(one.problem, found.gp, "direct")[0].value for found in (single, several)]
    assert values[1] >= values[0] - 1e-3
    assert several.evaluations > single.evaluations


@pytest.mark.parametrize("name", ["poisson", "softmax"])
def test_learning_by_iteration(name):
    """The same probes everywhere: within the noise of 32 probes of the exact optimum."""
    one = softmax_case(3, n=24, seed=1) if name == "softmax" else case(name, n=40, seed=3)
    start = one.gp.with_log_parameters(one.gp.log_parameters() + 0.7)
    numerics = Numerics(probes=32, stopping=Stopping(rtol=1e-3))
    exact, found = (
        learn(LaplaceObjective(one.problem, method, numerics), start, generator=seeded(0)).gp for method in METHODS
    )
    before, best, reached = (laplace_estimate(one.problem, gp, "direct")[0].value for gp in (start, exact, found))
    assert reached <= best + 1e-3
    assert best - reached < max(0.5, 0.2 * (best - before))


def test_adagrad_runs():
    one = case("poisson", n=30)
    start = one.gp.with_log_parameters(one.gp.log_parameters() + 1.0)
    objective = LaplaceObjective(one.problem, "iterative", Numerics(probes=4))
    learned = learn(objective, start, optimizer="adagrad", step_size=0.3, max_steps=15, generator=seeded(0))
    assert learned.evaluations == len(learned.steps) == 15
    assert learned.failures == 0
    before, after = (laplace_estimate(one.problem, gp, "direct")[0].value for gp in (start, learned.gp))
    assert after > before


def test_method_is_chosen_by_latent_values_rates_and_memory():
    few, many = (Observations(torch.zeros(n, 1), torch.zeros(n)) for n in (10, 8000))
    assert LaplaceObjective(few).plan.method == "direct"
    assert LaplaceObjective(many).plan.method == "iterative"
    asked = LaplaceObjective(many, "direct").plan
    assert (asked.method, asked.reason) == ("direct", "as asked")
    fast = Pricing(replace(TYPICAL, multiply=3e13, factorise=3e13))
    assert LaplaceObjective(many.at_price(fast)).plan.method == "direct"
    tight = LaplaceObjective(replace(many.at_price(fast), backend=default(memory=2**28))).plan
    assert tight.method == "iterative"
    assert "the memory is 268 MB" in tight.reason


def test_solutions_from_nearby_leave_no_trace_in_the_gradient(monkeypatch):
    """A loose tolerance would accept them as they are: the gradient of other hyperparameters."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(600, 6))
    y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * generator.normal(size=600) > 0
    problem, numerics = Observations(torch.from_numpy(X), torch.from_numpy(y).double()), Numerics(probes=16)
    gp = LatentProcess(RBF(4.0, 2000.0), BernoulliProbit())
    _, trail = laplace_estimate(
        problem, gp.with_log_parameters(gp.log_parameters() - 0.15), "iterative", numerics, value=False
    )
    found = laplace_estimate(problem, gp, "iterative", numerics, trail, value=False)[0].gradient
    monkeypatch.setattr(evidence_by_pcg, "SOLVE_RTOL", 1e-7)
    tight = laplace_estimate(problem, gp, "iterative", numerics, trail, value=False)[0].gradient
    assert float((found - tight).abs().max()) < 0.02  # with a tolerance of 0.03: 0.2
