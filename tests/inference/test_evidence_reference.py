"""The log marginal likelihood, its gradient and the other criteria against dense NumPy, exact and by iteration."""

import math
from dataclasses import replace

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from inference.gaussian_truth import Truth, drawn, finite_differences, relative_error, toy
from scipy.linalg import solve_triangular
from strategies import KERNELS, features, kernels, points, positive, seeds
from torch import Tensor

from kernelcg.backends import default
from kernelcg.errors import SolveFailed
from kernelcg.inference import (
    GaussianProcess,
    Noise,
    Numerics,
    Objective,
    Regression,
    evidence,
    iterative_estimate,
)
from kernelcg.inference.gaussian.cross_validation import iterative_cross_validation
from kernelcg.inference.gaussian.likelihood_by_cholesky import direct_estimate, signs_for
from kernelcg.kernels import RBF, Kernel, Matern, Periodic, RationalQuadratic
from kernelcg.planning import Pricing
from kernelcg.planning.profile import TYPICAL
from kernelcg.planning.ranks import Sizes
from kernelcg.solvers import Status, Stopping

MEANS = ("zero", "constant", "linear")
DIRECT = 1e-11
"""Relative error of the direct method; measured: 4e-15 in values, 9e-14 in gradients."""

TIGHT = Stopping(rtol=1e-10)


class Wendland(Kernel):
    """A user's own kernel, positive definite up to d = 3: σ² (1 − r)₊⁴ (4r + 1), r = |x − y| / w."""

    width: Tensor
    variance: Tensor

    def covariance(self, X, Y):
        squares = ((X[:, None] - Y) / self.width).square().sum(2)
        r = torch.where(squares > 0, squares, 1.0).sqrt() * (squares > 0)
        return self.variance * (1 - r).clamp_min(0) ** 4 * (4 * r + 1)


def _wendland(X, Y, width, variance):
    squares = reference.scaled_squares(X, Y, width)
    r = np.sqrt(squares)
    return variance * np.where(np.real(r) < 1, (1 - r) ** 4 * (4 * r + 1), 0.0)


reference.FORMULAS["Wendland"] = _wendland

ALL = KERNELS | {"user-written": lambda d: Wendland(3.0, 1.4)}


def model(truth, **options):
    """Return the same model and data as the package sees them."""
    known = None if np.ndim(truth.known) == 0 else torch.from_numpy(truth.known)
    problem = Regression(torch.from_numpy(truth.X), torch.from_numpy(truth.Y), known, truth.mean, **options)
    return problem, GaussianProcess(truth.kernel, Noise(truth.noise))


def with_rank(rank):
    """Let the low-rank part have only so many rows, so that traces are really sampled."""
    return {"pricing": Pricing(sizes=Sizes(bound_rank=rank, bound_work=0.0))}


def z_scores(samples, truth):
    """Return (mean − truth) / standard error of the mean; the samples must differ."""
    samples = np.asarray(samples)
    spread = samples.std(0, ddof=1) / np.sqrt(len(samples))
    assert np.all(spread > 1e-6 * np.abs(truth)), "nothing random was tested"
    return (samples.mean(0) - truth) / spread


# the direct method


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("name", ALL)
def test_direct_value_and_gradient(name, mean):
    for columns, known in ((1, 0.0), (3, np.linspace(0, 0.5, 40))):
        X, Y = toy(40, 3, columns)
        truth = Truth(ALL[name](3), X, Y, 0.2, known, mean)
        estimate = direct_estimate(*model(truth))
        assert estimate.value == pytest.approx(truth.log_evidence(), rel=DIRECT)
        assert relative_error(estimate.gradient, truth.gradient()) < DIRECT
        assert relative_error(estimate.gradient, finite_differences(truth.log_evidence, truth.theta)) < 1e-9
        assert (estimate.lower, estimate.upper, estimate.value_error) == (estimate.value, estimate.value, 0)
        assert not estimate.gradient_error.any()


def orthogonal_signs(n):
    """Return (n, n) signs with orthogonal columns, n a power of two, by Sylvester's construction."""
    signs = np.ones((1, 1))
    while len(signs) < n:
        signs = np.kron([[1, 1], [1, -1]], signs)
    return torch.from_numpy(signs)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("name", ALL)
def test_traces_from_all_orthogonal_signs_are_exact(name, mean):
    for columns, known in ((1, 0.0), (3, np.linspace(0, 0.5, 32))):
        X, Y = toy(32, 3, columns)
        truth = Truth(ALL[name](3), X, Y, 0.2, known, mean)
        estimate = direct_estimate(*model(truth), signs=orthogonal_signs(32))
        assert estimate.value == pytest.approx(truth.log_evidence(), rel=DIRECT)
        assert relative_error(estimate.gradient, truth.gradient()) < DIRECT
        assert relative_error(estimate.gradient, finite_differences(truth.log_evidence, truth.theta)) < 1e-9
        assert (estimate.lower, estimate.upper, estimate.value_error) == (estimate.value, estimate.value, 0)
        assert estimate.gradient_error.isnan().all(), "nobody asked"


@given(data=st.data(), d=features, n=st.integers(1, 30), noise=positive, mean=st.sampled_from(MEANS), seed=seeds)
def test_direct_method_on_degenerate_data(data, d, n, noise, mean, seed):
    """Repeated points, ties, constant features, fewer points than drift functions, any kernel."""
    kernel, X = data.draw(kernels(d)), data.draw(points(n, d)).numpy()
    generator = np.random.default_rng(seed)
    truth = Truth(kernel, X, generator.standard_normal((n, 2)), noise, generator.random(n), mean)
    estimate = direct_estimate(*model(truth))
    size = n + abs(truth.log_evidence())
    assert estimate.value == pytest.approx(truth.log_evidence(), abs=1e-10 * size)
    np.testing.assert_allclose(estimate.gradient.numpy(), truth.gradient(), atol=1e-8 * size)


@pytest.mark.parametrize("method", ["direct", "iterative"])
@pytest.mark.parametrize("spoilt", ["far away", "repeated feature", "constant feature", "few rows"])
def test_linear_drift_of_awkward_inputs(spoilt, method):
    X, Y = toy(4 if spoilt == "few rows" else 50, 5)
    if spoilt == "far away":
        X = X + 1e6
    elif spoilt == "repeated feature":
        X[:, 1] = 3 - 2 * X[:, 0]
    elif spoilt == "constant feature":
        X[:, 2] = 7.0
    truth = Truth(Matern(2.0, 1.0, nu=1.5), X, Y, 0.1, mean="linear")
    estimate = evidence(GaussianProcess(truth.kernel, Noise(0.1)), X, Y, mean="linear", method=method, rtol=1e-10)
    assert estimate.value == pytest.approx(truth.log_evidence(), rel=1e-8)
    assert relative_error(estimate.gradient, truth.gradient()) < (1e-8 if method == "direct" else 1e-4)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("criterion", ["loo", "gcv"])
def test_direct_cross_validation(name, criterion):
    for columns in (1, 2):
        X, Y = toy(40, 3, columns)
        truth = Truth(ALL[name](3), X, Y, 0.2, np.linspace(0, 0.5, 40))
        value = getattr(truth, criterion)
        estimate = direct_estimate(*model(truth), criterion)
        assert estimate.value == pytest.approx(value(), rel=1e-11)
        assert relative_error(estimate.gradient, finite_differences(value, truth.theta)) < 2e-7


def test_leave_one_out_criterion_leaves_one_out():
    X, Y = toy(25, 2, 2)
    truth = Truth(RBF(1.0), X, Y, 0.2, np.linspace(0, 0.5, 25))
    errors = np.array([truth.left_out(i)[0] for i in range(25)])
    assert direct_estimate(*model(truth), "loo").value == pytest.approx(-25 * np.log(np.mean(errors**2)), rel=1e-10)


def test_columns_add_up_and_known_noise_is_noise():
    X, Y = toy(40, 2, 3)
    gp = GaussianProcess(RBF(1.0), Noise(0.3))
    together = evidence(gp, X, Y, mean="constant", method="direct")
    alone = [evidence(gp, X, y, mean="constant", method="direct") for y in Y.T]
    assert together.value == pytest.approx(sum(one.value for one in alone), rel=1e-12)
    torch.testing.assert_close(together.gradient, sum(one.gradient for one in alone))
    partly = evidence(GaussianProcess(RBF(1.0), Noise(0.1)), X, Y, mean="constant", noise_variance=0.2, method="direct")
    assert partly.value == pytest.approx(together.value, rel=1e-12)
    torch.testing.assert_close(partly.gradient[:-1], together.gradient[:-1])
    assert float(partly.gradient[-1]) == pytest.approx(float(together.gradient[-1]) / 3, rel=1e-10)


def test_singular_matrices_have_no_evidence():
    X, Y = np.ones((30, 2)), np.ones((30, 1))
    gp = GaussianProcess(RBF(1.0), Noise(1e-18))
    estimate = evidence(gp, X, Y, method="direct")
    assert estimate.value == -math.inf
    assert estimate.status is Status.INDEFINITE_OPERATOR
    with pytest.raises(SolveFailed, match="not positive definite"):
        estimate.differentiable(gp)


# the iterative method with a complete low-rank part


@pytest.mark.parametrize("name", ALL)
def test_iterative_value_is_exact_when_the_low_rank_part_is_complete(name):
    for mean in MEANS:
        for columns, known in ((1, 0.0), (2, np.linspace(0, 0.5, 60))):
            X, Y = toy(60, 3, columns)
            truth = Truth(ALL[name](3), X, Y, 0.1, known, mean)
            problem, gp = model(truth, precision=torch.float64)
            estimate, _ = iterative_estimate(problem, gp, Numerics(stopping=Stopping(rtol=1e-6)), errors=True)
            assert estimate.status is Status.CONVERGED
            assert estimate.value == pytest.approx(truth.log_evidence(), abs=1e-6)
            assert estimate.lower - 1e-8 <= truth.log_evidence() <= estimate.upper + 1e-8
            assert estimate.value_error < 1e-6
            assert relative_error(estimate.gradient, truth.gradient()) < 1e-5


@pytest.mark.parametrize("rtol", [0.1, 1e-2, 1e-4])
@pytest.mark.parametrize("mean", MEANS)
def test_bracket_holds_however_inexact_the_solves(mean, rtol):
    """The drift's coefficients are inexact too."""
    X, Y = toy(80, 2, 2)
    for noise in (1.0, 1e-2):
        truth = Truth(Matern(0.7, 1.0, nu=1.5), X, Y, noise, mean=mean)
        numerics = Numerics(stopping=Stopping(rtol=rtol), preconditioner=None)
        estimate, _ = iterative_estimate(*model(truth), numerics)
        slack = 1e-9 * abs(truth.log_evidence())
        assert estimate.lower - slack <= truth.log_evidence() <= estimate.upper + slack
        assert estimate.lower <= estimate.value <= estimate.upper


# the iterative method with sampled traces

SAMPLED = {
    "matern": (lambda: Matern([1.0, 2.0], 1.3, nu=1.5), 0.1),
    "sum": (lambda: RationalQuadratic(0.7, 1.0, 0.6) + 0.3 * Periodic(1.0, 1.7), 0.05),
    "user-written": (lambda: Wendland(2.0, 1.4), 0.02),
}


def sampled(name, mean="linear", columns=2):
    kernel, noise = SAMPLED[name]
    X, Y = toy(90, 2, columns)
    return Truth(kernel(), X, Y, noise, np.linspace(0, 0.1, 90), mean)


@pytest.mark.parametrize("name", SAMPLED)
def test_traces_from_few_signs_are_unbiased_and_cost_what_is_said(name):
    truth = sampled(name, columns=1)
    problem, gp = model(truth)
    gradients, errors = [], []
    for seed in range(60):
        estimate = direct_estimate(problem, gp, signs=signs_for(problem, 4, seed), errors=True)
        assert estimate.value == pytest.approx(truth.log_evidence(), rel=DIRECT)
        gradients.append(estimate.gradient.numpy())
        errors.append(estimate.gradient_error.numpy())
    assert np.abs(z_scores(gradients, truth.gradient())).max() < 4
    ratio = np.sqrt(np.mean(np.square(errors), 0)) / np.std(gradients, 0)
    assert np.all((ratio > 0.6) & (ratio < 1.6)), "standard errors are those of the estimates"
    L = np.linalg.cholesky(truth.system())
    whitened = [
        solve_triangular(L, solve_triangular(L, dA, lower=True).T, lower=True) for dA in truth.system_derivatives()
    ]
    variances = np.array([2 * (np.sum(M**2) - np.sum(np.diag(M) ** 2)) / (4 * 4) for M in whitened])
    fisher = np.array([np.sum(M**2) / 2 for M in whitened])
    assert np.all(variances <= fisher / 4), "p / 2k nats at most"
    assert np.all(np.var(gradients, 0) / variances < 1.9)
    assert np.all(np.var(gradients, 0) / variances > 0.45)


@pytest.mark.parametrize("name", SAMPLED)
def test_sampled_values_keep_their_standard_errors(name):
    truth = sampled(name)
    problem, gp = model(truth, **with_rank(10))
    estimates = [iterative_estimate(problem, gp, Numerics(32, TIGHT, "rp_cholesky", seed))[0] for seed in range(25)]
    scores = [(one.value - truth.log_evidence()) / one.value_error for one in estimates]
    assert np.abs(scores).max() < 4
    assert 0.6 < np.std(scores) < 1.6
    assert all(one.lower <= one.value <= one.upper for one in estimates)
    assert all(one.upper - one.lower < one.value_error for one in estimates), "quadrature is better than sampling"
    assert np.abs(z_scores([one.value for one in estimates], truth.log_evidence())) < 4


@pytest.mark.parametrize("rademacher", [True, False], ids=["signs", "from P"])
@pytest.mark.parametrize("name", SAMPLED)
def test_sampled_gradient_is_unbiased(name, rademacher):
    truth = sampled(name)
    problem, gp = model(truth, precision=torch.float64, **with_rank(10))
    gradients, errors = [], []
    for seed in range(40):
        numerics = Numerics(4, TIGHT, "rp_cholesky", seed, rademacher)
        estimate, _ = iterative_estimate(problem, gp, numerics, value=False, errors=True)
        gradients.append(estimate.gradient.numpy())
        errors.append(estimate.gradient_error.numpy())
    assert np.abs(z_scores(gradients, truth.gradient())).max() < 4
    ratio = np.sqrt(np.mean(np.square(errors), 0)) / np.std(gradients, 0)
    assert np.all((ratio > 0.6) & (ratio < 1.6)), "standard errors are those of the estimates"


def test_trail_changes_nothing_but_the_work():
    """With first guesses and the rows of an evaluation nearby the gradient is unbiased still."""
    truth = sampled("matern")
    problem, gp = model(truth, precision=torch.float64, **with_rank(10))
    nearby = gp.with_log_parameters(gp.log_parameters() + 0.3)
    gradients = []
    for seed in range(40):
        numerics = Numerics(4, TIGHT, seed=seed)
        trail = iterative_estimate(problem, nearby, numerics, value=False)[1]
        gradients.append(iterative_estimate(problem, gp, numerics, trail, value=False)[0].gradient.numpy())
    assert np.abs(z_scores(gradients, truth.gradient())).max() < 4


@pytest.mark.parametrize(("d", "noise", "rank"), [(1, 1e-6, 20), (2, 1e-4, 100)])
def test_probes_from_the_low_rank_part_have_far_less_variance(d, noise, rank):
    """Condition numbers of 4e8 and 4e6; the low-rank part is not complete but leaves little beside the noise."""
    X, Y = drawn(RBF(1.0), 400, d, noise)
    truth = Truth(RBF(1.0), X, Y, noise)
    problem, gp = model(truth, precision=torch.float64, **with_rank(rank))
    spread = {}
    for rademacher in (True, False):
        numerics = [Numerics(4, Stopping(rtol=1e-8), seed=seed, rademacher=rademacher) for seed in range(20)]
        gradients = [iterative_estimate(problem, gp, one, value=False)[0].gradient.numpy() for one in numerics]
        spread[rademacher] = np.std(gradients, 0)
        assert np.abs(z_scores(gradients, truth.gradient())).max() < 4
    assert np.all(spread[False] < 0.05 * spread[True])


# what is promised about tolerances and precision


HIGH_SIGNAL = (RBF(1.0), 400, 1, 1e-4)
"""Noise of a hundredth of the signal's standard deviation: kernel, n, d, noise variance."""


def test_default_tolerance_resolves_the_noise():
    """Relative to ‖y‖ a tolerance of 1e-2 is the size of the noise: it was off by 101 and 24 in log l and log λ."""
    kernel, n, d, noise = HIGH_SIGNAL
    truth = Truth(kernel, *drawn(kernel, n, d, noise), noise)
    estimate, _ = iterative_estimate(*model(truth, precision=torch.float64), value=False, errors=True)
    fisher = np.sqrt(n / 2)
    assert np.all(np.abs(estimate.gradient.numpy() - truth.gradient()) < 0.1 * fisher)


def test_float32_products_do_not_spoil_the_gradient():
    """Solves may iterate in float32, but ½ aᵀ∂A a summed in it was off by 4, which standard errors do not show."""
    truth = Truth(RBF(1.0), *drawn(RBF(1.0), 2000, 1, 1.6e-4), 1.6e-4)
    problem, gp = model(truth)
    assert problem.fast_system(gp).precision is torch.float32, "chosen automatically"
    estimate, _ = iterative_estimate(problem, gp, Numerics(stopping=Stopping(rtol=1e-6)), value=False, errors=True)
    exact = direct_estimate(problem, gp)
    assert np.all(np.abs((estimate.gradient - exact.gradient).numpy()) < 0.3)


def test_float64_products_give_the_gradient():
    truth = Truth(RBF(1.0), *drawn(RBF(1.0), 2000, 1, 1.6e-4), 1.6e-4)
    problem, gp = model(truth, precision=torch.float64)
    estimate, _ = iterative_estimate(problem, gp, Numerics(stopping=Stopping(rtol=1e-6)), value=False, errors=True)
    error = (estimate.gradient - direct_estimate(problem, gp).gradient).abs()
    assert bool((error < 1e-2).all())


# cross-validation by iteration


def averaged(problem, gp, probes, count):
    numerics = [Numerics(probes, TIGHT, seed=seed) for seed in range(count)]
    return [iterative_cross_validation(problem, gp, one, None)[0].gradient.numpy() for one in numerics]


@pytest.mark.parametrize(("probes", "count"), [(8, 30), (128, 10)])
def test_iterative_cross_validation(probes, count):
    """A plug-in estimate: what bias it has is below its standard error."""
    X, Y = toy(120, 2, 2)
    for noise in (0.1, 1e-3):
        truth = Truth(RBF(1.0), X, Y, noise, np.linspace(0, noise, 120))
        gradients = averaged(*model(truth), probes, count)
        assert np.abs(z_scores(gradients, finite_differences(truth.gcv, truth.theta))).max() < 4


def test_iterative_cross_validation_is_exact_for_a_diagonal_matrix():
    """r_i (A⁻¹r)_i = [A⁻¹]_ii: points far apart."""
    X, Y = 100.0 * np.arange(20)[:, None], toy(20, 1, 2)[1]
    truth = Truth(RBF(1.0), X, Y, 0.3, np.linspace(0, 1, 20))
    problem, gp = model(truth)
    exact = direct_estimate(problem, gp, "gcv")
    estimate, _ = iterative_cross_validation(problem, gp, Numerics(2, TIGHT), None)
    assert estimate.value == pytest.approx(exact.value, rel=1e-9)
    torch.testing.assert_close(estimate.gradient, exact.gradient, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("criterion", ["loo", "gcv"])
@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_cross_validation_of_zeros(criterion, method):
    problem = Regression(torch.from_numpy(toy(30, 2)[0]), torch.zeros(30, 1))
    estimate, _ = Objective(problem, criterion, method)(GaussianProcess(RBF(1.0), Noise(0.1)))
    assert estimate.status is Status.NOT_FINITE
    assert estimate.value == -math.inf


def test_cross_validation_uses_the_preconditioner_asked_for():
    problem, gp = model(Truth(RBF(1.0), *toy(60, 2), 0.1))
    estimate, _ = iterative_cross_validation(problem, gp, Numerics(preconditioner="nystrom"), None)
    assert "nystrom" in estimate.report.attempts[0].what.lower()


def test_leave_one_out_is_never_estimated_from_probes():
    """Reciprocals of a few-probe estimate of diag A⁻¹ are biased without limit."""
    X, Y = toy(60, 2)
    truth = Truth(RBF(1.0), X, Y, 0.1)
    problem, gp = model(truth)
    objective = Objective(problem, "loo", method="iterative")
    assert objective.is_direct
    assert objective(gp)[0].value == pytest.approx(truth.loo(), rel=1e-11)


# as a differentiable function


@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_backward_is_the_gradient(method):
    X, Y = toy(50, 2)
    options = {"mean": "constant", "method": method, "preconditioner": "rp_cholesky", "rtol": 1e-8}
    gp = GaussianProcess(Matern([1.0, 2.0], 1.3, nu=2.5), Noise(0.1))
    theta = gp.log_parameters().clone().requires_grad_()
    here = gp.with_log_parameters(theta)
    value = evidence(here, X, Y, errors=False, **options).differentiable(here)
    (-2.0 * value).backward()
    estimate = evidence(gp.with_log_parameters(theta.detach()), X, Y, **options)
    assert value.item() == estimate.value
    torch.testing.assert_close(theta.grad, -2.0 * estimate.gradient, rtol=1e-9, atol=0)
    truth = Truth(gp.kernel, X, Y, 0.1, mean="constant")
    assert value.item() == pytest.approx(truth.log_evidence(), rel=1e-8)
    assert relative_error(theta.grad, -2 * truth.gradient()) < 1e-4


def test_backward_goes_through_the_callers_own_operations():
    """Hyperparameters made of a network's output and of natural parameters."""
    X, Y = toy(40, 2)
    raw = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, requires_grad=True)

    def made(values):
        return GaussianProcess(
            RBF(torch.nn.functional.softplus(values[:2]), values[2].exp()), Noise(0.1 + values[2].square())
        )

    evidence(made(raw), X, Y[:, 0], method="direct").differentiable(made(raw)).backward()

    def value(x):
        gp = made(torch.from_numpy(x))
        return Truth(gp.kernel, X, Y, gp.noise.variance.item()).log_evidence()

    assert relative_error(raw.grad, finite_differences(value, raw.detach().numpy())) < 1e-8


def test_same_seed_same_numbers_and_the_global_generator_is_left_alone():
    X, Y = toy(80, 2, 2)
    gp = GaussianProcess(Matern(1.0, nu=1.5), Noise(0.1))
    for options in ({"method": "direct"}, {"method": "iterative", "preconditioner": "rp_cholesky", "seed": 3}):
        runs = []
        for global_seed in (1, 2):
            torch.manual_seed(global_seed)
            before = torch.get_rng_state()
            runs.append(evidence(gp, X, Y, mean="linear", **options))
            assert torch.equal(before, torch.get_rng_state())
        first, second = runs  # equal up to the order of sums, which the libraries below choose by memory alignment
        assert [first.value, first.lower, first.upper] == pytest.approx(
            [second.value, second.lower, second.upper], 1e-12
        )
        assert torch.allclose(first.gradient, second.gradient, rtol=1e-9, atol=1e-11)
        assert torch.allclose(first.gradient_error, second.gradient_error, rtol=1e-6, atol=1e-11)


def test_order_of_the_data_does_not_matter():
    X, Y = toy(60, 2, 2)
    order = np.random.default_rng(1).permutation(60)
    gp = GaussianProcess(RBF(1.0), Noise(0.2))
    for method in ("direct", "iterative"):
        first, second = (
            evidence(gp, X[rows], Y[rows], mean="linear", method=method, rtol=1e-8) for rows in (np.arange(60), order)
        )
        assert first.value == pytest.approx(second.value, rel=1e-9)
        torch.testing.assert_close(first.gradient, second.gradient, rtol=1e-4, atol=1e-4)


# choice of the method, misuse


def test_method_is_chosen_by_rows_and_memory():
    few, many = torch.zeros(10, 1), torch.zeros(8000, 1)
    assert Objective(Regression(few, few)).plan.method == "direct"
    assert Objective(Regression(many, many)).plan.method == "iterative"
    asked = Objective(Regression(many, many), method="direct").plan
    assert (asked.method, asked.reason) == ("direct", "as asked")
    some = torch.zeros(600, 1)
    tight = Objective(Regression(some, some, backend=default(memory=15_000_000))).plan
    assert tight.method == "iterative"
    assert "the memory is 15 MB" in tight.reason
    assert Objective(Regression(many, many)).on(torch.arange(10)).is_direct


def test_more_rows_are_factorised_where_that_is_fast():
    fast = Pricing(replace(TYPICAL, multiply=3e13, factorise=3e13))
    X = torch.zeros(8000, 1)
    assert Objective(Regression(X, X, backend=default(memory=2**33), pricing=fast)).plan.method == "direct"
    assert Objective(Regression(X, X, backend=default(memory=2**28), pricing=fast)).plan.method == "iterative"


def test_misuse_is_named():
    X, Y = toy(10, 2)
    gp = GaussianProcess(RBF(1.0), Noise(0.1))
    problem = Regression(torch.from_numpy(X), torch.from_numpy(Y), mean="constant")
    for call, message in (
        (lambda: evidence(gp, X, Y, method="cholesky"), "method must be one of"),
        (lambda: evidence(gp, X, Y, mean="quadratic"), "mean must be one of"),
        (lambda: evidence(gp, X, Y, noise_variance=-np.ones(10)), "noise_variance must not be negative"),
        (lambda: evidence(gp, X, Y, noise_variance=np.ones(9)), "noise_variance must be one number or 10"),
        (lambda: evidence(gp, X, Y[:9]), "X has 10 rows but Y has 9"),
        (lambda: evidence(gp, X[:, 0], Y), "X must have two dimensions"),
        (lambda: evidence(gp, X, Y, method="iterative", probes=0), "probes must be at least 1"),
        (lambda: evidence(gp, X, Y, method="iterative", preconditioner="magic"), "no preconditioner 'magic'"),
        (lambda: Objective(problem, criterion="aic"), "criterion must be one of"),
        (lambda: Objective(problem, criterion="loo"), "mean='zero'"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match="kernel must be a kernelcg kernel"):
        GaussianProcess(lambda x, y: 0, Noise(0.1))
    with pytest.raises(ValueError, match="positive"):
        GaussianProcess(RBF(1.0), 0.0)
