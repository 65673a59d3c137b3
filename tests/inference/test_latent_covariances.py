"""Latent covariances from neighbours, against dense references, and the class structure on few rows."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from laplace_cases import case, softmax_case
from reference import kernel_matrix

from kernelcg import GPGeneralizedRegressor
from kernelcg.events import EventKind
from kernelcg.inference import LatentProcess, Observations
from kernelcg.inference.laplace.expansion import ClassExpansion
from kernelcg.inference.laplace.local_covariances import _energies
from kernelcg.inference.laplace.local_weights import local_weights
from kernelcg.inference.laplace.posterior import condition_laplace, differences
from kernelcg.inference.laplace.softmax_system import SoftmaxLowRank
from kernelcg.kernels import RBF, Constant, Matern, Polynomial
from kernelcg.likelihoods import Poisson, Softmax

NEW = np.random.default_rng(5).normal(size=(130, 2))


def dense_weights(K, pi, k):
    """Return (j, C, g, C) W (I + KW)⁻¹ (k ⊗ e_c) from matrices of all latent values, class by class."""
    j, C = pi.shape
    W = np.zeros((C, j, C, j))
    for a in range(C):
        for b in range(C):
            W[a, np.arange(j), b, np.arange(j)] = pi[:, a] * (a == b) - pi[:, a] * pi[:, b]
    W, big = W.reshape(C * j, C * j), np.kron(np.eye(C), K)
    Y = np.linalg.solve(np.eye(C * j) + W @ big, W @ np.kron(np.eye(C), k))
    return Y.reshape(C, j, C, -1).transpose(1, 0, 3, 2)


def at(pi):
    return ClassExpansion(Softmax(), 0.0, torch.zeros(pi.size, 1), torch.tensor(pi))


@pytest.mark.parametrize("classes", [2, 3, 5, 10])
def test_weights_on_few_rows_are_those_of_all_classes_together(classes):
    rng = np.random.default_rng(classes)
    X, new = rng.normal(size=(12, 2)), rng.normal(size=(4, 2))
    kernel, rows = RBF(1.0, 20.0), np.array([1, 3, 4, 8, 9, 11])
    pi = np.exp(3 * rng.normal(size=(12, classes)))
    pi /= pi.sum(1, keepdims=True)
    K, k = kernel_matrix(kernel, X, X)[np.ix_(rows, rows)], kernel_matrix(kernel, X, new)[rows]
    found = local_weights(at(pi), torch.tensor(rows), torch.tensor(K), torch.tensor(k))
    np.testing.assert_allclose(found.numpy(), dense_weights(K, pi[rows], k), rtol=1e-8, atol=1e-10)


def test_two_classes_explain_what_one_latent_function_of_twice_the_kernel_does():
    rng = np.random.default_rng(0)
    X, new = rng.normal(size=(9, 2)), rng.normal(size=(3, 2))
    K, k = (kernel_matrix(RBF(1.0, 5.0), X, other) for other in (X, new))
    p = rng.uniform(0.05, 0.95, 9)
    Y = local_weights(at(np.stack([p, 1 - p], 1)), torch.arange(9), torch.tensor(K), torch.tensor(k)).numpy()
    form = np.einsum("it,iatb->tab", k, Y)
    of_difference = form[:, 0, 0] + form[:, 1, 1] - form[:, 0, 1] - form[:, 1, 0]
    twice = np.linalg.solve(2 * K + np.diag(1 / (p * (1 - p))), 2 * k)
    np.testing.assert_allclose(of_difference, (2 * k * twice).sum(0), rtol=1e-9)


CASES = {
    "probit": lambda: case("probit", kernel="matern 5/2", n=150),
    "counts": lambda: case("poisson", "constant", kernel="matern 1/2", n=150),
    "outliers": lambda: case("student_t", kernel="rbf", n=100),
    "three classes": lambda: softmax_case(3, kernel="matern 1/2", n=90),
    "six classes": lambda: softmax_case(6, kernel="matern 5/2", n=60),
}


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_covariances_are_those_of_the_reference_up_to_their_errors(name, bound):
    """Estimates of errors hold here, too, where a pilot has seen 32 of 130 points; bounds hold always."""
    one = CASES[name]()
    found = condition_laplace(one.problem, one.gp, rtol=1e-9)
    prediction = found.predict(torch.tensor(NEW), covariance=True, bound=bound)
    exact = torch.tensor(one.latent(one.truth(found.mode), NEW)[1])
    off = (prediction.covariance - exact).diagonal(dim1=1, dim2=2).abs().amax(1)
    assert bool((off <= prediction.variance_error + 1e-9).all())
    seen = exact[:, :, 0] if one.classes == 1 else differences(exact)
    close = found.variance_tolerance * (1 + 1e-6) * seen + 1e-9
    assert bool(((differences if one.classes > 1 else _own)(prediction.covariance) - seen).abs().le(2 * close).all())


@pytest.mark.parametrize(("kernel", "seed"), [(RBF(7.0, 1e3), 0), (RBF(3.0, 1e4), 2), (Matern(5.0, 1e4, nu=2.5), 3)])
def test_variances_by_products_in_float32_are_off_by_no_more_than_they_say(kernel, seed):
    """Between tight groups of counts: the residuals of iterations drift from the true ones."""
    rng = np.random.default_rng(seed)
    X = 10 * rng.standard_normal((8, 2))[rng.integers(8, size=400)] + 0.005 * rng.standard_normal((400, 2))
    y = rng.poisson(np.exp(3 + np.sin(X.sum(1)))).astype(float)
    new = X[:24] + 3 * rng.standard_normal((24, 2))
    problem = Observations(torch.tensor(X), torch.tensor(y), precision=torch.float32)
    found = condition_laplace(problem, LatentProcess(kernel, Poisson()), rtol=1e-3)
    assert found.at_hand()[0].A.precision is torch.float32
    K, k = (kernel_matrix(kernel, one, X) for one in (X, new))
    root = np.exp(0.5 * found.mode.f[:, 0].numpy())
    A = np.eye(400) + root[:, None] * K * root
    exact = float(kernel.variance) - ((k * root) * np.linalg.solve(A, (k * root).T).T).sum(1)
    prediction = found.predict(torch.tensor(new), covariance=True)
    off = np.abs(prediction.covariance[:, 0, 0].numpy() - exact)
    assert np.all(off <= prediction.variance_error.numpy() + 1e-9 * exact)
    assert np.all(off <= 0.02 * exact)


@pytest.mark.parametrize("name", ["probit", "three classes"])
def test_covariances_in_little_memory(name):
    """The matrices of the neighbours of 32 points, 4 a class of 8 n² bytes, do not fit into half of that."""
    one = CASES[name]()
    found, n = condition_laplace(one.problem, one.gp, rtol=1e-9), len(one.X)
    share = 0.5 * 32 * n**2 * one.classes / one.problem.points.budget()
    pricing = replace(one.problem.pricing, sizes=replace(one.problem.pricing.sizes, for_columns=share))
    tight = replace(found, problem=replace(one.problem, pricing=pricing))
    prediction = tight.predict(torch.tensor(NEW), covariance=True)
    exact = torch.tensor(one.latent(one.truth(found.mode), NEW)[1])
    off = (prediction.covariance - exact).diagonal(dim1=1, dim2=2).abs().amax(1)
    assert bool((off <= prediction.variance_error + 1e-9).all())


def _own(covariance):
    return covariance[:, :, 0]


@pytest.mark.parametrize("name", ["probit", "three classes"])
def test_what_counts_beside_the_variances_saves_iterations(name):
    """Errors beside 1e3 need no iteration but the pilot's, and are as small as they say."""
    one = CASES[name]()
    found = condition_laplace(one.problem, one.gp, rtol=1e-9)
    told = {0.0: [], 1e3: []}
    for beside, events in told.items():
        prediction = found.predict(torch.tensor(NEW), covariance=True, beside=beside, callback=events.append)
        exact = torch.tensor(one.latent(one.truth(), NEW)[1])
        off = (prediction.covariance - exact).diagonal(dim1=1, dim2=2).abs().amax(1)
        assert bool((off <= prediction.variance_error + 1e-9).all())
    steps = {beside: sum(one.kind is EventKind.ITERATION for one in events) for beside, events in told.items()}
    assert steps[1e3] <= steps[0.0]
    assert told[1e3][-1].payload.done == len(NEW)


def test_a_kernel_without_coordinates_has_covariances_too():
    one = softmax_case(3, n=40)
    one = type(one)(one.X, one.y, Constant(2.0), classes=3)
    found = condition_laplace(one.problem, one.gp, rtol=1e-9)
    prediction = found.predict(torch.tensor(NEW[:5]), covariance=True)
    exact = torch.tensor(one.latent(one.truth(), NEW[:5])[1])
    assert torch.allclose(differences(prediction.covariance), differences(exact), rtol=2e-2, atol=1e-9)


def test_variances_at_the_data_are_those_of_the_posterior():
    one = case("logit", kernel="rbf", n=80)
    one = type(one)(one.X, one.y, Matern([0.4, 0.7], 30.0), "logit", one.likelihood)
    found = condition_laplace(one.problem, one.gp, rtol=1e-9)
    prediction = found.predict(torch.tensor(one.X), covariance=True)
    exact = one.latent(one.truth(), one.X)[1]
    np.testing.assert_allclose(prediction.covariance.numpy(), exact, rtol=2e-2)


def test_energies_of_classes_are_those_of_the_preconditioner():
    """In float32, and from half of a solve."""
    rng = np.random.default_rng(4)
    pi = rng.dirichlet(np.ones(4), size=30)
    P = SoftmaxLowRank(torch.tensor(rng.normal(size=(30, 5))), torch.tensor(pi))
    R = torch.tensor(rng.normal(size=(120, 8)))
    exact = torch.einsum("ita,itb->tab", R.reshape(120, 2, 4), P.solve(R).reshape(120, 2, 4))
    torch.testing.assert_close(_energies(P, R, 4), exact, rtol=1e-4, atol=1e-4)
    assert P.in_single().solve(R).dtype == torch.float64
    assert P.L.dtype == torch.float64, "it stays as it was"


def test_variances_are_right_where_counts_say_nearly_all():
    """With W up to 1e6, weights from neighbours are not solved for exactly, and what they leave has to be looked at."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(28, 3))
    trials = rng.integers(1, 10**6, 28).astype(float)
    y = rng.binomial(trials.astype(int), 1 / (1 + np.exp(-np.sin(X @ rng.normal(size=3))))).astype(float)
    stds = []
    for method in ("direct", "iterative"):
        model = GPGeneralizedRegressor(
            Polynomial(0.1, 1.0, 3), likelihood="binomial", mean="zero", optimizer=None, method=method
        ).fit(X, y, trials)
        stds.append(model.latent(X + 0.1, return_std=True)[1])
    np.testing.assert_allclose(*stds, rtol=1e-2)


def test_moments_do_not_need_the_error_to_be_known():
    X = np.linspace(0, 1, 8)[:, None]
    model = GPGeneralizedRegressor(RBF(1.0), likelihood="poisson", optimizer=None).fit(X, np.arange(8.0))
    found = model._posterior().predict(torch.from_numpy(X), covariance=True)
    unknown = replace(found, mean_bound=torch.full((8,), torch.inf, dtype=torch.float64), relative_error=torch.inf)
    amounts = torch.ones(8, dtype=torch.float64)
    for one, other in zip(model._moments(found, amounts), model._moments(unknown, amounts), strict=True):
        assert torch.equal(one, other)
