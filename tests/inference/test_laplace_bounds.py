"""What is said about the error of Laplace's mode, variances and evidence holds, rounding included."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from extended import IS_EXTENDED, kernel_matrix, real
from laplace_cases import LIKELIHOOD, TIGHT, Case, case, softmax_case

from kernelcg import GPClassifier
from kernelcg.backends import default
from kernelcg.inference import Numerics
from kernelcg.inference.bounds.laplace_certificate import laplace_certificate
from kernelcg.inference.bounds.product_rounding import ProductRounding
from kernelcg.inference.bounds.verdict import Verdict
from kernelcg.inference.laplace import posterior as posterior_module
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.mode import newton_step
from kernelcg.inference.laplace.mode_error import mode_error
from kernelcg.inference.laplace.newton_methods import systems_for
from kernelcg.inference.laplace.posterior import condition_laplace, differences
from kernelcg.kernels import RBF, Constant, Linear, Matern
from kernelcg.likelihoods import BernoulliProbit, Gaussian

NEW = np.random.default_rng(99).normal(size=(4, 2))
METHODS = ("direct", "iterative")


# rounding of products


def clusters(distance, n=12):
    """Return rows around 0.3, and as many that are next to each other far away."""
    rng = np.random.default_rng(0)
    step = max(1.0, np.spacing(distance))
    near = 0.3 + rng.normal(size=(n + 1, 1))
    return np.concatenate([near, distance + step * np.arange(n)[:, None]])


@pytest.mark.skipif(not IS_EXTENDED, reason="long double is float64 here")
@pytest.mark.parametrize("distance", [1e3, 1e8, 1e12, 1e16, 1e20])
@pytest.mark.parametrize("kernel", [RBF(2.0, 3.0), Matern(2.0, 3.0, nu=1.5)])
def test_products_are_off_by_no_more_than_said(kernel, distance):
    X = clusters(distance)
    kind = "rbf" if isinstance(kernel, RBF) else kernel.nu
    V = np.random.default_rng(1).normal(size=(len(X), 2))
    K = default().bind(kernel, torch.tensor(X))
    rounding = ProductRounding.of(K)
    exact = kernel_matrix(kind, real(X), real(X), real([2.0]), real(3.0)) @ real(V)
    off = np.abs(exact - K.product(torch.tensor(V)).numpy())
    bound = rounding.of_product(torch.tensor(V)).numpy()
    assert np.all(off <= bound)
    cross = np.abs(exact - K.cross(torch.tensor(X), torch.tensor(V)).numpy())
    assert np.all(cross <= rounding.of_cross(torch.tensor(X), torch.tensor(V)).numpy())
    assert bound[:5].max() < 1e-11, "the rows around 0.3 do not suffer from those far away"


def test_forms_are_the_diagonal_of_cross():
    X, new = torch.tensor(clusters(1e9)), torch.tensor(clusters(1e9, 3))
    V = torch.rand(len(X), len(new), dtype=torch.float64)
    rounding = ProductRounding.of(default().bind(RBF(2.0, 3.0), X))
    assert torch.allclose(rounding.of_forms(new, V), rounding.of_cross(new, V).diagonal())


@pytest.mark.skipif(not IS_EXTENDED, reason="long double is float64 here")
def test_rows_next_to_each_other_far_away_are_not_certified():
    """They are one float64 apart: centring rounds their distances, and the latent mean there is off by 0.3."""
    X = clusters(3e16, 20)
    X[-20:] = 3e16 + 4 * np.arange(20)[:, None]
    y = (np.arange(len(X)) // 2 % 2).astype(float)
    one = Case(X, y, RBF(6.0, 9.0), "probit", BernoulliProbit())
    found = condition_laplace(one.problem, one.gp, method="direct", rtol=1e-9)
    K = kernel_matrix("rbf", real(X), real(X), real([6.0]), real(9.0)).astype(float)
    exact = replace(one.truth(), kernel=lambda theta: K).f
    off = np.abs(found.mode.f[:, 0].numpy() - exact)
    certificate = laplace_certificate(found, tolerance=1e-9)
    assert off.max() > 0.1
    assert off.max() <= certificate.mean_error
    assert certificate.verdict is not Verdict.CERTIFIED


@pytest.mark.parametrize("distance", [1e12, 1e16, 1e20, 1e100])
@pytest.mark.parametrize("likelihood", ["probit", "softmax"])
def test_one_far_row_changes_nothing_and_is_certified(distance, likelihood):
    one = case("probit")
    X, y = np.concatenate([one.X, [[distance, 0.0]]]), np.append(one.y, 1).astype(int)
    fitted = GPClassifier(RBF(1.0, 4.0), optimizer=None, likelihood=likelihood)
    with_it, without = fitted.fit(X, y), GPClassifier(**fitted.get_params()).fit(one.X, one.y.astype(int))
    assert np.abs(with_it.latent(NEW) - without.latent(NEW)).max() < 1e-5
    assert with_it.certificate_.verdict is Verdict.CERTIFIED
    assert with_it.certificate_.deviations < 1e-5
    batch = np.concatenate([NEW, [[distance, 0.0]]])
    np.testing.assert_array_equal(without.predict_proba(batch)[:4], without.predict_proba(NEW))
    np.testing.assert_array_equal(without.predict(batch)[:4], without.predict(NEW))
    assert np.isfinite(with_it.predict_proba(batch)).all()


# the mode


def rough_cases():
    """Return problems with modes that are stopped early."""
    names = [name for name in LIKELIHOOD if name != "student_t"]
    for seed in range(6):
        for name in names:
            for mean in ("zero", "constant", "linear"):
                kernel = ["rbf", "matern 1/2", "matern 5/2"][seed % 3]
                yield case(name, mean, kernel, 12, seed), 10.0 ** -(seed % 4) * 0.5
        yield softmax_case(3, "rbf", 6, seed), 10.0 ** -(seed % 4) * 0.5


def rough_error(one, method, rtol):
    """Return a mode that was stopped early and what is said about it."""
    systems = systems_for(one.problem, one.gp, method, TIGHT)
    mode = one.mode(method, rtol=rtol)
    step = newton_step(one.problem, systems.at(mode.expansion), mode.a, mode.expansion.gradient - mode.a, 1e-2)
    return mode, mode_error(one.problem, one.gp, mode, step)


@pytest.mark.parametrize("method", METHODS)
def test_the_exact_mode_is_where_it_is_said_to_be(method):
    """‖f − f̂‖_M ≤ deviations, Ψ, log|I + KW| and every latent variance move by no more than said; not idle either."""
    ratios = []
    for one, rtol in rough_cases():
        try:
            truth = one.truth()
            exact = truth.F.ravel() if one.classes > 1 else truth.f
        except ArithmeticError:
            continue  # no mode: a drift that separates the classes
        mode, error = rough_error(one, method, rtol)
        assert error.is_certain
        off = mode.f[:, 0].numpy() - exact
        C = one.classes
        K = np.kron(truth.K if C == 1 else truth.K[::C, ::C], np.eye(C))
        W = mode.expansion.half(mode.expansion.half_transposed(torch.eye(len(off), dtype=torch.float64))).numpy()
        deviations = np.sqrt(np.diag(np.linalg.solve(np.eye(len(K)) + K @ W, K)))
        if one.mean == "zero":
            assert np.all(np.abs(off) <= error.deviations * deviations + 1e-12)
            assert np.all(np.abs(off) <= error.energy * np.sqrt(np.diag(K)) + 1e-12)
            if np.abs(off).max() > 1e-9 and np.isfinite(error.deviations):
                ratios.append(error.deviations / np.max(np.abs(off) / deviations))
        value = mode.psi - 0.5 * np.linalg.slogdet(np.eye(len(K)) + K @ W)[1]
        either = error.psi_rounding + 0.5 * error.determinant
        assert value - either <= truth.log_evidence + 1e-9
        assert truth.log_evidence <= value + either + error.psi + 1e-9
        exact_W = truth.W if truth.W.ndim == 2 else np.diag(truth.W)
        variances = np.diag(np.linalg.solve(np.eye(len(K)) + K @ exact_W, K))
        assert np.all(variances <= deviations**2 * error.widening * (1 + 1e-9))
        assert np.all(variances >= deviations**2 / error.widening * (1 - 1e-9))
    assert len(ratios) > 20
    assert np.median(ratios) < 10


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["probit", "poisson", "softmax"])
def test_brackets_hold_at_loose_tolerances(name, method):
    """The bracket of the evidence, of variances and of means contains the truth although the mode is rough."""
    for rtol in (0.5, 1e-2, 1e-3):
        one = softmax_case(3) if name == "softmax" else case(name)
        found = condition_laplace(one.problem, one.gp, method=method, rtol=rtol)
        certificate, truth = laplace_certificate(found, tolerance=rtol), one.truth()
        spread = 5 * certificate.standard_error
        assert certificate.lower - spread <= truth.log_evidence <= certificate.upper + spread
        assert found.error.deviations <= posterior_module.ENOUGH
        prediction = found.predict(torch.tensor(NEW), covariance=True)
        mean, covariance = one.latent(truth, NEW)
        assert np.all(np.abs(prediction.mean.numpy() - mean).max(1) <= prediction.mean_bound.numpy())
        variances = [np.diagonal(values, axis1=1, axis2=2) for values in (prediction.covariance.numpy(), covariance)]
        off = np.abs(variances[0] - variances[1]).max(1)
        assert np.all(off <= prediction.variance_error.numpy() + 1e-12)


@pytest.mark.parametrize("scale", [1e5, 1e7, 1e9])
@pytest.mark.parametrize("method", METHODS)
def test_large_counts_are_certified(scale, method):
    one = case("poisson", "constant")
    one = replace(one, y=np.round(scale * np.exp(one.X[:, 0])), exposure=1.0)
    found = condition_laplace(one.problem, one.gp, method=method)
    certificate = laplace_certificate(found, tolerance=1e-6)
    assert certificate.verdict is Verdict.CERTIFIED
    exact = one.latent(one.truth(), one.X)[0]
    assert np.abs(found.mean(torch.tensor(one.X)).numpy() - exact).max() <= certificate.mean_error + 1e-12


@pytest.mark.parametrize("method", METHODS)
def test_differences_between_classes_are_known_where_what_they_share_is_not(method):
    """A constant in the kernel is seen by no softmax: its variance of 1e5 must not hide errors of the others."""
    one = softmax_case(3)
    one = replace(one, kernel=RBF([0.8, 1.3], 1.5) + Constant(1e5))
    found = condition_laplace(one.problem, one.gp, method=method, numerics=Numerics(preconditioner=None))
    prediction = found.predict(torch.tensor(NEW), covariance=True)
    exact = differences(torch.tensor(one.latent(one.truth(), NEW)[1]))
    assert torch.allclose(differences(prediction.covariance), exact, rtol=2e-2)


def test_variances_bounds_know_that_a_drift_is_rounded():
    """One far row moves the centre of a linear drift: x − centre loses the digits of all other rows."""
    flint = pytest.importorskip("flint")
    flint.ctx.prec, exact = 400, flint.arb
    rng = np.random.default_rng(5)
    X, new = rng.normal(size=(9, 2)), rng.normal(size=(4, 2))
    X[4] *= 1e10
    y = rng.normal(size=9)
    problem, gp = (
        Observations(torch.tensor(X), torch.tensor(y), mean="linear"),
        LatentProcess(RBF(1.0, 8.0), Gaussian(0.1)),
    )
    found = condition_laplace(problem, gp, method="direct").predict(torch.tensor(new), covariance=True, bound=True)
    T, centre = problem.drift.T.tolist(), problem.drift.centre.tolist()

    def kernel(A, B):
        return flint.arb_mat(
            [
                [
                    8 * (-sum((exact(s) - exact(t)) ** 2 for s, t in zip(a, b, strict=True)) / 2).exp()
                    for b in B.tolist()
                ]
                for a in A.tolist()
            ]
        )

    def drift(A):
        shifted = flint.arb_mat(
            [[1, *(exact(s) - exact(c) for s, c in zip(a, centre, strict=True))] for a in A.tolist()]
        )
        return shifted * flint.arb_mat([[exact(value) for value in row] for row in T])

    A = kernel(X, X) + flint.arb_mat([[exact(0.1) if i == j else 0 for j in range(9)] for i in range(9)])
    k, H, h = kernel(X, new), drift(X), drift(new).transpose()
    left = h - H.transpose() * A.solve(k)
    covariance = (
        kernel(new, new) - k.transpose() * A.solve(k) + left.transpose() * (H.transpose() * A.solve(H)).solve(left)
    )
    off = np.abs([float(covariance[i, i].mid()) - float(found.variances[i, 0]) for i in range(4)])
    assert off.max() > 1e-8, "the case shows something"
    assert np.all(off <= found.variance_error.numpy())
    assert np.all(found.variance_error.numpy() < 0.1 * found.variances[:, 0].numpy())


def test_a_trial_that_rounding_spoilt_is_not_iterated_from():
    """The noise is 4e-12 of the prior variance: weights from neighbours left residuals of 1e13."""
    rng = np.random.default_rng(2)
    X = np.column_stack([np.ones(11), 2 * rng.normal(size=11)])
    problem = Observations(torch.tensor(X), torch.tensor(1e-4 * rng.normal(size=11)))
    gp = LatentProcess(Matern([5.8, 14.8], 84.5, nu=2.5), Gaussian(2.9e-10))
    new = torch.tensor(np.concatenate([X[:3], X[:2] + np.array([0.0, 0.3])]))
    posterior = condition_laplace(problem, gp, method="iterative", variance_tolerance=1e-3)
    estimate, bounded = (posterior.predict(new, covariance=True, bound=bound) for bound in (False, True))
    off = (estimate.variances - bounded.variances).abs()[:, 0]
    assert torch.all(off <= bounded.variance_error + 10 * estimate.variance_error)
    assert torch.all(off <= 0.05 * bounded.variances[:, 0])


@pytest.mark.parametrize("method", METHODS)
def test_a_point_without_prior_variance_has_none(method):
    """At 0 a linear kernel is 0: no error is allowed there, and there is none."""
    X, y = np.zeros((2, 1)), np.array([0, 1])
    model = GPClassifier(Linear(1e6), optimizer=None, method=method).fit(X, y)
    mean, std = model.latent([[0.0], [1.0]], return_std=True)
    np.testing.assert_allclose(std, [0.0, 1e3], rtol=1e-6)
    np.testing.assert_array_equal(mean, [0.0, 0.0])
    np.testing.assert_allclose(model.predict_proba([[0.0]]), 0.5)
