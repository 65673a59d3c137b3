"""The average information against dense formulas, and the coordinates of a search that knows it."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from kernelcg.inference import GaussianProcess, Objective, Regression, learn
from kernelcg.inference.gaussian.information import OUTPUTS, average_information
from kernelcg.inference.gaussian.likelihood_by_cholesky import direct_estimate
from kernelcg.inference.learning.coordinates import LOGARITHMIC, Coordinates
from kernelcg.inference.learning.criterion import Search
from kernelcg.inference.learning.default_priors import default_priors
from kernelcg.inference.learning.lbfgs import Ascent, Curvature, Point, Rule, advanced, proposed
from kernelcg.kernels import RBF, Matern
from kernelcg.randomness import seeded
from kernelcg.solvers import CholeskyFactor


def correlation(kind, X, lengthscale):
    """Return the correlations by the textbook formulas."""
    s = cdist(X / lengthscale, X / lengthscale, "sqeuclidean")
    if kind == "rbf":
        return np.exp(-s / 2)
    q = np.sqrt({"matern32": 3, "matern52": 5}[kind] * s)
    return (1 + q) * np.exp(-q) if kind == "matern32" else (1 + q + q**2 / 3) * np.exp(-q)


def dense_information(kind, X, Y, theta, ard):
    """Return ½ Σ_c a_cᵀ ∂_iA A⁻¹ ∂_jA a_c with derivatives of A by differences of fourth order."""

    def matrix(at):
        scale = np.exp(at[:-2]) if ard else np.full(X.shape[1], np.exp(at[0]))
        return np.exp(at[-2]) * correlation(kind, X, scale) + np.exp(at[-1]) * np.eye(len(X))

    h, steps = 1e-3, np.eye(len(theta))
    dA = [
        (8 * (matrix(theta + h * e) - matrix(theta - h * e)) - matrix(theta + 2 * h * e) + matrix(theta - 2 * h * e))
        / (12 * h)
        for e in steps
    ]
    A = matrix(theta)
    a = np.linalg.solve(A, Y)
    return 0.5 * sum(np.array([[(u @ c) @ np.linalg.solve(A, v @ c) for v in dA] for u in dA]) for c in a.T)


@pytest.mark.parametrize("ard", [True, False], ids=["ard", "isotropic"])
@pytest.mark.parametrize("kind", ["rbf", "matern32", "matern52"])
def test_information_equals_the_dense_formula(kind, ard):
    generator = np.random.default_rng(3)
    X, Y = generator.normal(size=(30, 3)) + 100, generator.normal(size=(30, 2))
    scale = np.array([0.7, 1.5, 4.0]) if ard else np.array([1.3])
    theta = np.log([*scale, 2.0, 0.1])
    lengthscale = scale if ard else scale[0]
    kernel = RBF(lengthscale, 2.0) if kind == "rbf" else Matern(lengthscale, 2.0, int(kind[-2]) / 2)
    gp = GaussianProcess(kernel, 0.1)
    problem = Regression(torch.from_numpy(X), torch.from_numpy(Y))
    expected = dense_information(kind, X, Y, theta, ard)
    np.testing.assert_allclose(direct_estimate(problem, gp).information, expected, rtol=1e-6, atol=1e-8)


def test_information_of_many_outputs_comes_from_the_first_ones():
    generator = torch.Generator().manual_seed(0)
    X, y = torch.randn(20, 2, generator=generator).double(), torch.randn(20, 1, generator=generator).double()
    gp = GaussianProcess(RBF([1.0, 2.0]), 0.1)
    single = direct_estimate(Regression(X, y), gp).information
    several = direct_estimate(Regression(X, y.expand(20, 3 * OUTPUTS)), gp).information
    torch.testing.assert_close(several, 3 * OUTPUTS * single)


@pytest.mark.parametrize("noise", [1e-9, 1e-13])
def test_information_is_a_square_whatever_the_condition_of_A(noise):
    """It is WᵀW of W = L⁻¹U: symmetric to the last digits, where UᵀA⁻¹U has as many wrong digits as A costs."""
    x = torch.linspace(0, 3, 60).double()[:, None]
    X = torch.cat([x, x.cos(), x.square() / 3], 1)
    found = direct_estimate(Regression(X, x.sin()), GaussianProcess(RBF([1.0, 2.0, 3.0]), noise)).information
    assert float((found - found.T).abs().max() / found.abs().max()) < 1e-15
    assert float(torch.linalg.eigvalsh(found)[0]) > 0


def test_curvature_lies_in_memory_as_torch_aligns_it():
    """Libraries of the host may round by that, and NumPy's memory lies differently in each process."""
    found = [Curvature().inverse(torch.eye(p, dtype=torch.float64)) for p in range(2, 40)]
    assert all(one.data_ptr() % 64 == 0 for one in found)


def test_there_is_no_information_without_a_formula():
    X, y = torch.linspace(0, 1, 9).double()[:, None], torch.ones(9, 1).double()
    problem = Regression(X, y)
    for kernel in (Matern(1.0, 1.0, 0.5), RBF(1.0) + RBF(2.0), 2 * RBF(1.0)):
        assert direct_estimate(problem, GaussianProcess(kernel, 0.1)).information is None
    gp = GaussianProcess(RBF(1.0), 0.1)
    assert direct_estimate(problem, gp, "loo").information is None
    A = problem.system(gp)
    factor = CholeskyFactor(A.dense())
    assert average_information(A, factor.solve(y), 0.1, factor.whiten) is not None


def test_priors_add_their_curvature():
    """A log-normal prior adds 1 / spread²; the default one adds its own where it is felt; what is fixed has none."""
    X, y = torch.linspace(0, 1, 40).double()[:, None], torch.linspace(0, 1, 40).double()[:, None].sin()
    problem = Regression(X, y)
    kernel = RBF(torch.tensor([1.0]).double(), 1.0)
    restricted = GaussianProcess(kernel.with_prior(lengthscale=(1.0, 0.5)).fixed("variance"), 0.1)
    estimate = direct_estimate(problem, restricted)
    free = torch.ones(3).double()
    bounds = -free, free * torch.tensor([1.0, -1.0, 1.0])
    found = Search(Objective(problem), restricted, *bounds, 0.0).information(restricted, estimate)
    expected = estimate.information + torch.diag(torch.tensor([4.0, 0.0, 0.0]).double())
    expected[1], expected[:, 1] = 0.0, 0.0
    torch.testing.assert_close(found, expected)

    gp = GaussianProcess(RBF(torch.tensor([1.0]).double(), 1.0), 5e-8)
    priors = default_priors(gp, problem)
    estimate = direct_estimate(problem, gp)
    found = Search(Objective(problem), gp, -free, free, 0.0, priors=priors).information(gp, estimate)
    r = torch.tensor([0.0, 1.0, -1.0]).double()  # the gradient of log k(x, x) / noise
    torch.testing.assert_close(found - estimate.information, 20 * torch.outer(r, r), rtol=1e-6, atol=1e-4)


# coordinates


def test_coordinates_are_logarithms_where_lengthscales_are_short_and_end_where_they_are_infinite():
    coordinates = Coordinates(torch.tensor([3.0, math.inf]).double())
    theta = torch.tensor([[-300.0, -300.0], [-5.0, 2.0], [3.0, 3.0], [9.0, 40.0]]).double()
    phi = coordinates.of(theta)
    torch.testing.assert_close(phi[0], theta[0])
    torch.testing.assert_close(phi[:, 1], theta[:, 1], rtol=0, atol=0)
    torch.testing.assert_close(coordinates.theta(phi), theta, rtol=1e-6, atol=0)
    assert phi[2, 0] == pytest.approx(3 - 0.5 * math.log(2))
    assert coordinates.of(torch.full((2,), 100.0).double())[0] == 3
    assert coordinates.theta(torch.tensor([3.0, 3.0]).double()).tolist() == [math.inf, 3]
    assert coordinates.theta(torch.tensor([3.5, 3.5]).double())[0] == math.inf


def test_points_in_other_coordinates_have_the_derivatives_of_the_chain_rule():
    coordinates, h = Coordinates(torch.tensor([1.0, math.inf]).double()), 1e-6
    theta = torch.tensor([2.0, -1.0]).double()
    ends = [coordinates.theta(coordinates.of(theta) + sign * h) for sign in (1, -1)]
    torch.testing.assert_close(coordinates.stretch(theta), (ends[0] - ends[1]) / (2 * h))
    point = Point(theta, 0.0, 0.0, torch.tensor([3.0, 5.0]).double(), None, information=torch.eye(2).double())
    J = coordinates.stretch(theta)
    moved = point.within(coordinates)
    torch.testing.assert_close(moved.gradient, 3 * J * torch.tensor([1.0, 5 / 3]).double())
    torch.testing.assert_close(moved.information, torch.diag(J.square()))
    assert torch.equal(point.within(LOGARITHMIC).gradient, point.gradient)


# the search


def quadratic(M, centre):
    def evaluate(theta):
        away = theta - centre
        return Point(theta, -0.5 * float(away @ M @ away), 0.0, -M @ away, None, information=M)

    return evaluate


def test_a_search_that_knows_the_curvature_goes_straight_to_the_maximum():
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        Q = torch.linalg.qr(torch.randn(6, 6, generator=generator).double()).Q
        M = Q @ torch.diag(10 ** (5 * torch.rand(6, generator=generator).double() - 1)) @ Q.T
        evaluate, far = quadratic(M, 0.1 * torch.randn(6, generator=generator).double()), torch.full((6,), 9.0).double()
        rule, ascent = Rule(-far, far, 1e-3, 50), Ascent(evaluate(torch.zeros(6).double()))
        while not ascent.ended:
            proposal = proposed(ascent, rule)
            if isinstance(proposal, Ascent):
                ascent = proposal
            else:
                ascent = advanced(ascent, evaluate(proposal.theta), proposal.promised, rule)
        assert ascent.converged
        assert ascent.evaluations <= 5
        assert ascent.point.value > -2e-3


def test_pairs_along_eigenvectors_are_the_curvature():
    generator = torch.Generator().manual_seed(1)
    M = torch.randn(5, 5, generator=generator).double()
    M = M @ M.T + torch.eye(5).double()
    torch.testing.assert_close(Curvature.of(M).inverse(), torch.linalg.inv(M))
    torch.testing.assert_close(Curvature.of(M).scaled(3.0).inverse(), torch.linalg.inv(M) / 3)


def test_features_that_do_not_matter_are_found_in_few_evaluations():
    """In log lengthscales alone it took 50 evaluations and more: one step of at most 1 after the other."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(120, 8))
    y = np.sin(2 * X[:, :1]) + 0.1 * generator.standard_normal((120, 1))
    problem = Regression(torch.from_numpy(X), torch.from_numpy(y))
    gp = GaussianProcess(Matern(np.full(8, math.sqrt(8)), 1.0), 0.1)
    learned = learn(Objective(problem), gp, generator=seeded(0), priors=default_priors(gp, problem))
    assert learned.converged
    assert learned.evaluations <= 30
    found = learned.gp.kernel.lengthscale
    assert found[0] < 5
    assert (found[1:] > 10 * found[0]).sum() >= 4
    at_end = direct_estimate(problem, learned.gp)
    inside = learned.gp.log_parameters() < default_priors(gp, problem).upper
    assert float(at_end.gradient[inside].abs().max()) < 0.1
