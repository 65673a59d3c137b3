"""P ⪯ A, what follows from it, and the derivatives of P that make it a control variate."""

import numpy as np
import pytest
import torch
from bound import bound_system
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from inference import extended
from inference.extended import IS_EXTENDED, real
from inference.hard_cases import case
from reference import array, kernel_derivatives, kernel_matrix, log_parameters
from strategies import columns, kernels, normal, points, seeds

from kernelcg.inference.bounds.lower_bound import Exact, LowerBound, rounding_slack
from kernelcg.inference.bounds.rounding import UNIT_ROUNDOFF
from kernelcg.kernels import Matern
from kernelcg.preconditioners.shapes import BlockDiagonal, Diagonal, Factored, LowRankPlus, SparseInverse
from kernelcg.randomness import seeded
from kernelcg.solvers import CholeskyFactor

extended_only = pytest.mark.skipif(not IS_EXTENDED, reason="long double is float64 on this platform")

CHUNKS, PER_CHUNK = 4, 40


def bounds(one):
    """Return bounds with rows drawn at random, with all of them in any order, and with some of them repeated."""
    A, n, rng = one.problem.system(one.gp), len(one.problem), one.rng
    chosen = [LowerBound.of(A, seeded(one.number), rank) for rank in (1, min(5, n), n)]
    rows = [np.arange(n), rng.permutation(n), rng.integers(0, n, n)]
    return chosen + [LowerBound.at(A, torch.from_numpy(some)) for some in rows]


def residuals(one, truth):
    """Return columns that P⁻¹ may get wrong: normal, first and last eigenvector of A, kernel columns, a unit vector."""
    n = len(one.problem)
    _, vectors = np.linalg.eigh(truth.A.astype(float))
    rows = np.asarray(truth.A[:, : min(3, n)], dtype=float)
    unit = np.eye(n)[:, [n // 2]]
    return torch.from_numpy(np.concatenate([one.rng.standard_normal((n, 2)), vectors[:, [0, -1]], rows, unit], axis=1))


@extended_only
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_below_the_matrix(chunk):
    """P ⪯ s A and log|P| ≤ log|A| + n log s with the slack s for rounding; rᵀA⁻¹r is below its bound for any r."""
    for number in range(chunk * PER_CHUNK, (chunk + 1) * PER_CHUNK):
        one = case(number, means=("zero",))
        truth, _ = one.exact()
        A, n, R = one.problem.system(one.gp), len(one.problem), residuals(one, truth)
        slack, exact = rounding_slack(A), truth.quadratic_forms(real(R))
        for bound in bounds(one):
            P = real(bound.F) @ real(bound.F).T + np.diag(truth.D)
            quotient = extended.forward(truth.L, extended.forward(truth.L, P).T).astype(float)
            assert np.linalg.eigvalsh(quotient)[-1] <= slack + 1e-14, one
            rounding = 8 * UNIT_ROUNDOFF * (n + float(bound.P.T.diagonal().abs().log().abs().sum() * 2))
            rounding += 4 * UNIT_ROUNDOFF * float(A.diagonal.log().abs().sum())
            assert float(bound.P.log_determinant()) <= truth.log_determinant() + n * np.log(slack) + rounding, one
            assert np.all(exact <= real(bound.energy(R))), one


@extended_only
def test_exact_factor():
    """The bound of a factor of A itself is above the truth, and equal to it up to the slack."""
    for number in range(80):
        one = case(number, means=("zero",), noises=(-9.0, 0.5))
        truth, _ = one.exact()
        A, R = one.problem.system(one.gp), residuals(one, truth)
        found, exact = real(Exact(A, CholeskyFactor(A.dense())).energy(R)), truth.quadratic_forms(real(R))
        assert np.all(exact <= found), one
        assert np.all(found <= rounding_slack(A) ** 2 * exact), one


@extended_only
def test_full_rank_is_tight():
    """With every row in U the bound of rᵀA⁻¹r is the truth, as far as noise and rounding let it be."""
    for number in range(80):
        one = case(number, means=("zero",), noises=(-5.0, 0.5))
        truth, _ = one.exact()
        A, R = one.problem.system(one.gp), residuals(one, truth)
        found = real(LowerBound.at(A, torch.arange(len(A))).energy(R))
        assert np.all(found <= (1 + 1e-4) * truth.quadratic_forms(real(R)) + 1e-300), one


# derivatives


@st.composite
def systems(draw):
    """Draw A = K + D of moderate condition, for any kernel, and some of its rows."""
    n, d = draw(st.integers(1, 25)), draw(st.integers(1, 3))
    diagonal = torch.from_numpy(np.random.default_rng(draw(seeds)).uniform(0.1, 2.0, n))
    A = bound_system(draw(kernels(d)), draw(points(n, d)), diagonal)
    rank = draw(st.integers(1, n))
    return A, LowerBound.of(A, seeded(draw(seeds)), rank)


def low_rank(A, pivots, theta):
    """Return Q = K_XU K_UU⁻¹ K_UX at these (complex) log hyperparameters."""
    X, U = array(A.X), array(A.X)[pivots]
    K_XU = kernel_matrix(A.kernel, X, U, theta)
    return K_XU @ np.linalg.solve(kernel_matrix(A.kernel, U, U, theta), K_XU.T)


def slopes(function, kernel, step=1e-30):
    """Return ∂/∂θ_p of a real function at the hyperparameters of the kernel, by complex steps: no cancellation."""
    theta = log_parameters(kernel)
    return np.array([function(theta + 1j * step * e).imag / step for e in np.eye(len(theta))])


def is_well_posed(bound):
    """Whether K_UU is far enough from singular for derivatives of its inverse to mean anything in float64."""
    U = bound.A.X[bound.pivots]
    return len(U) > 0 and np.linalg.cond(kernel_matrix(bound.A.kernel, U, U)) < 1e6


@settings(max_examples=60)
@given(systems(), st.data())
def test_gradient(system, data):
    A, bound = system
    assume(is_well_posed(bound))
    left, right = data.draw(columns(len(A), 3)), data.draw(columns(len(A), 3))
    pivots = bound.pivots.numpy()
    truth = slopes(lambda theta: np.sum(array(left) * (low_rank(A, pivots, theta) @ array(right))), A.kernel)
    found = array(bound.gradient(left, right))
    assert found.shape == truth.shape
    size = np.abs(array(left)).sum(0) @ np.abs(array(right)).sum(0) * float(A.kernel_diagonal().abs().max())
    assert np.abs(found - truth).max(initial=0.0) <= 1e-8 * (size + np.abs(truth).max(initial=0.0))


@settings(max_examples=60)
@given(systems())
def test_trace_gradient(system):
    """∂ log|P| by the phase of a complex determinant, and tr P⁻¹ as its derivative in a common noise."""
    A, bound = system
    assume(is_well_posed(bound))
    D, pivots = np.diag(array(A.diagonal)), bound.pivots.numpy()

    def log_determinant(theta):
        sign, value = np.linalg.slogdet(low_rank(A, pivots, theta) + D)
        return value + 1j * sign.imag

    truth = slopes(log_determinant, A.kernel)
    found = array(bound.trace_gradient())
    assert found.shape == truth.shape
    assert np.abs(found - truth).max(initial=0.0) <= 1e-8 * (len(A) + np.abs(truth).max(initial=0.0))
    P = low_rank(A, pivots, log_parameters(A.kernel)) + D
    step = 1e-4
    up, down = (np.linalg.slogdet(P + sign * step * np.eye(len(A)))[1] for sign in (1, -1))
    assert bound.trace_of_inverse() == pytest.approx((up - down) / (2 * step), rel=1e-4)


def test_gradients_of_a_full_rank_bound_are_those_of_the_matrix():
    """With U = X, Q = K: the derivatives are those of K, which the reference has without any inverse."""
    A = bound_system(Matern([0.5, 1.0], 1.7, nu=0.5), normal(20, 2), 0.1)
    bound = LowerBound.at(A, torch.arange(len(A)))
    dK, inverse = kernel_derivatives(A.kernel, A.X, A.X), np.linalg.inv(array(A.dense()))
    V = np.random.default_rng(0).standard_normal((len(A), 2))
    assert is_well_posed(bound)
    truth = np.array([np.sum(V * (derivative @ V)) for derivative in dK])
    np.testing.assert_allclose(array(bound.gradient(*[torch.from_numpy(V)] * 2)), truth, rtol=1e-6)
    truth = np.array([np.sum(inverse * derivative) for derivative in dK])
    np.testing.assert_allclose(array(bound.trace_gradient()), truth, rtol=1e-6)


# the diagonal of P⁻¹


def diagonal(n, rng):
    return Diagonal(torch.from_numpy(10 ** rng.uniform(-3, 3, n)))


def block_diagonal(n, rng):
    """Blocks of one, two and more rows, in no order."""
    order, groups, start = rng.permutation(n), {}, 0
    while start < n:
        size = min(int(rng.integers(1, 5)), n - start)
        L = np.tril(rng.standard_normal((size, size)), -1) + np.diag(rng.uniform(0.5, 2, size))
        groups.setdefault(size, []).append((order[start : start + size], L))
        start += size
    return BlockDiagonal(
        [
            (torch.from_numpy(np.stack([rows for rows, _ in some])), torch.from_numpy(np.stack([L for _, L in some])))
            for some in groups.values()
        ]
    )


def sparse_inverse(n, rng, q=3):
    """Up to q earlier neighbours of each point, in a random order; −1 and 0 where there are fewer."""
    order = rng.permutation(n)
    neighbours, values = np.full((n, q + 1), -1), np.zeros((n, q + 1))
    for place, row in enumerate(order):
        count = min(q, place)
        neighbours[row, :count] = rng.choice(order[:place], count, replace=False)
        neighbours[row, q] = row
        values[row, :count], values[row, q] = rng.standard_normal(count), rng.uniform(0.5, 2)
    return SparseInverse(*(torch.from_numpy(part) for part in (neighbours, values, order)))


BASES = {Diagonal: diagonal, BlockDiagonal: block_diagonal, SparseInverse: sparse_inverse}


def test_every_shape_is_tried():
    assert set(BASES) == set(Factored.__subclasses__())


@pytest.mark.parametrize("rank", [None, 1, 4, 40])
@pytest.mark.parametrize("shape", BASES, ids=lambda shape: shape.__name__)
def test_inverse_diagonal(shape, rank):
    """[P⁻¹]_ii against a dense inverse and, as ∂ log|P + t e_i e_iᵀ| / ∂t, against finite differences."""
    for seed in range(6):
        rng = np.random.default_rng([seed, rank or 0])
        n = int(rng.integers(1, 25))
        P = base = BASES[shape](n, rng)
        if rank is not None:
            P = LowRankPlus(base, torch.from_numpy(10 ** rng.uniform(-1, 1) * rng.standard_normal((n, rank))))
        dense, found = array(P.dense()), array(P.inverse_diagonal())
        assert found.shape == (n,)
        units = 100 * n * np.finfo(float).eps
        rounding = units * (np.linalg.cond(dense) * found + array(base.inverse_diagonal()))  # what is subtracted from
        assert np.all(np.abs(found - np.diag(np.linalg.inv(dense))) <= rounding)
        for i in rng.integers(0, n, 3):
            step = 1e-4 / found[i]
            bump = step * np.outer(np.eye(n)[i], np.eye(n)[i])
            up, down = (np.linalg.slogdet(dense + sign * bump)[1] for sign in (1, -1))
            assert found[i] == pytest.approx((up - down) / (2 * step), rel=1e-6, abs=1e4 * rounding[i])


@pytest.mark.parametrize("noise", [1e-4, 1e-8, 1e-12])
def test_inverse_diagonal_stays_positive_at_tiny_noise(noise):
    """1/λ − Σ Q² / λ cancels; for the rows of a full-rank bound what is left is still right to n u σ² / λ of 1/λ."""
    rng = np.random.default_rng(0)
    F = torch.from_numpy(rng.standard_normal((30, 40)))
    P = LowRankPlus(Diagonal(torch.full((30,), noise, dtype=torch.float64)), F)
    found, truth = array(P.inverse_diagonal()), np.diag(np.linalg.inv(array(F) @ array(F).T + noise * np.eye(30)))
    assert np.all(np.abs(found - truth) <= 30 * np.finfo(float).eps * 30 / noise)
