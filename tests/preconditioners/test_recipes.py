"""Each recipe is its formula, written out in dense NumPy."""

from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pytest
import torch
from bound import bound_system
from reference import array, kernel_matrix
from scipy.stats import chisquare
from strategies import normal

from kernelcg.backends import Tiles
from kernelcg.kernels import RBF, Linear, Matern
from kernelcg.operators import KernelPlusDiagonal
from kernelcg.preconditioners import partial_cholesky, recipe
from kernelcg.preconditioners.partial_cholesky import extended, greedy, no_pivots, random_pivots
from kernelcg.randomness import seeded
from kernelcg.solvers import Status, Stopping, solve

N = 30
POINTS = (3, 17, 8, 25, 11)
KERNELS = {"rbf": RBF([0.6, 1.1], 1.7), "matern": Matern(0.9, 0.6, nu=1.5), "with linear": RBF(0.8) + Linear(0.3)}


@dataclass(frozen=True)
class Dense:
    """A system and its parts as NumPy arrays."""

    A: KernelPlusDiagonal
    K: np.ndarray
    S: np.ndarray
    D: np.ndarray

    def scaled(self, M):
        """Return S M S + D."""
        return self.S @ M @ self.S + self.D

    def projected(self, points=POINTS, jitter=1e-10):
        """Return Q = K_XU K_UU⁻¹ K_UX."""
        points = list(points)
        K_uu = self.K[np.ix_(points, points)]
        K_uu = K_uu + jitter * np.mean(np.diag(K_uu)) * np.eye(len(points))
        return self.K[:, points] @ np.linalg.solve(K_uu, self.K[points])

    def build(self, name, seed=0, **options):
        return recipe(name, **options).build(self.A, seeded(seed))


def make(kernel="rbf", scaled=True, n=N, noise=0.05):
    kernel, X = KERNELS[kernel], normal(n, 2, 4)
    diagonal = noise * np.linspace(1, 3, n)
    scale = np.where(np.arange(n) % 7 == 3, 0.0, np.linspace(0.2, 1.6, n)) if scaled else None
    S = np.diag(np.ones(n) if scale is None else scale)
    A = bound_system(kernel, X, diagonal, scale, Tiles())
    return Dense(A, kernel_matrix(kernel, X, X), S, np.diag(diagonal))


@pytest.fixture(scope="module", params=KERNELS)
def kernel(request):
    return request.param


@pytest.fixture(scope="module", params=[False, True], ids=["no S", "S"])
def dense(request, kernel):
    return make(kernel, request.param)


def assert_is(P, expected, rtol=1e-11):
    P = array(P.dense())
    assert np.abs(P - expected).max() <= rtol * np.abs(expected).max()


# the Nyström family and blocks


def test_jacobi_is_the_diagonal(dense):
    assert_is(dense.build("jacobi"), np.diag(np.diag(dense.scaled(dense.K))))


def test_nystrom_is_the_projection_and_the_diagonal(dense):
    assert_is(dense.build("nystrom", points=POINTS), dense.scaled(dense.projected()))
    assert_is(dense.build("nystrom", points=POINTS, jitter=0.1), dense.scaled(dense.projected(jitter=0.1)))


def test_nystrom_draws_distinct_points_uniformly(dense):
    """P of rank m is the projection on some m rows: those where it is exact. All rows have their turn."""
    counts = np.zeros(N)
    for seed in range(120):
        F = array(recipe("nystrom", rank=4).prepare(dense.A.K, seeded(seed)).F)
        exact = np.flatnonzero(np.abs(np.diag(dense.K - F @ F.T)) < 1e-8 * np.diag(dense.K))
        assert len(exact) == np.linalg.matrix_rank(F) == 4
        counts[exact] += 1
    assert chisquare(counts).pvalue > 1e-4


def test_fitc_has_the_diagonal_of_a(dense):
    Q = dense.projected()
    assert_is(dense.build("fitc", points=POINTS), dense.scaled(Q + np.diag(np.diag(dense.K - Q))))


@pytest.mark.parametrize("size", [1, 7, 30])
def test_contiguous_blocks(dense, size):
    count = -(-N // size)
    block = np.repeat(np.arange(count), [len(rows) for rows in np.array_split(np.arange(N), count)])
    same, Q = block[:, None] == block, dense.projected()
    assert_is(dense.build("block_jacobi", blocks="contiguous", block_size=size), dense.scaled(dense.K * same))
    P = dense.build("pitc", points=POINTS, blocks="contiguous", block_size=size)
    assert_is(P, dense.scaled(np.where(same, dense.K, Q)))


def test_spatial_blocks(dense):
    """Block Jacobi is zero outside its blocks, which divide the rows; PITC has the same ones."""
    same = array(make("matern", scaled=False).build("block_jacobi", block_size=8).dense()) != 0
    assert np.array_equal(same @ same, same), "an equivalence of rows"
    assert 4 <= same.sum(1).min() <= same.sum(1).max() <= 8
    assert not np.array_equal(same, np.kron(np.eye(5), np.ones((6, 6)))), "not the file order"
    if isinstance(dense.A.kernel, Matern):
        assert_is(dense.build("block_jacobi", block_size=8), dense.scaled(dense.K * same))
        P = dense.build("pitc", points=POINTS, block_size=8)
        assert_is(P, dense.scaled(np.where(same, dense.K, dense.projected())))


@pytest.mark.parametrize("layout", ["spatial", "contiguous"])
def test_one_block_is_exact(dense, layout):
    assert_is(dense.build("block_jacobi", blocks=layout, block_size=N), dense.scaled(dense.K))


def test_a_zero_kernel_matrix_leaves_the_diagonal():
    """A linear kernel at the origin: K_UU = 0 is semi-definite too."""
    A = bound_system(Linear(1.0), torch.zeros(4, 2, dtype=torch.float64), 0.5, backend=Tiles())
    for name in ("nystrom", "fitc", "pitc", "pivoted_cholesky", "rp_cholesky", "randomized_svd", "low_rank_vecchia"):
        assert_is(recipe(name).build(A, seeded(0)), 0.5 * np.eye(4))


def test_raised_jitter_is_recorded():
    """Duplicates in U make K_UU singular: more jitter than asked for is used, and said."""
    X = torch.ones(6, 1, dtype=torch.float64)
    prepared = recipe("nystrom", points=(0, 1, 2), jitter=0.0).prepare(Tiles().bind(RBF(1.0), X), seeded(0))
    assert any("jitter" in note for note in prepared.notes)
    assert recipe("nystrom", points=(0,), jitter=0.0).prepare(Tiles().bind(RBF(1.0), X), seeded(0)).notes == ()


# spectral and SVD


@pytest.mark.parametrize("nu", [None, 0.5, 1.5, 2.5])
def test_spectral_is_unbiased(nu):
    kernel, X = (RBF([0.8, 1.3], 1.4) if nu is None else Matern([0.8, 1.3], 1.4, nu=nu)), normal(8, 2, 6)
    draws = []
    for seed in range(300):
        Phi = array(recipe("spectral", frequencies=5).prepare(Tiles().bind(kernel, X), seeded(seed)).F)
        assert Phi.shape == (8, 10), "cosines and sines: 2m columns"
        assert np.diag(Phi @ Phi.T) == pytest.approx(1.4)
        draws.append(Phi @ Phi.T)
    rows = np.triu_indices(8, 1)
    error = np.std(draws, axis=0, ddof=1)[rows] / np.sqrt(len(draws))
    z = (np.mean(draws, axis=0) - kernel_matrix(kernel, X, X))[rows] / error
    assert np.abs(z).max() < 4


def test_spectral_is_its_features_and_the_diagonal():
    dense = make("matern")
    Phi = array(recipe("spectral", frequencies=6).prepare(dense.A.K, seeded(3)).F)
    assert_is(dense.build("spectral", seed=3, frequencies=6), dense.scaled(Phi @ Phi.T))


def test_svd_keeps_the_leading_eigenvectors(dense):
    """With all of the space at hand the basis is exact, and F Fᵀ is the best approximation of rank m."""
    values, V = np.linalg.eigh(dense.K)
    best = V[:, -4:] * values[-4:] @ V[:, -4:].T
    P = dense.build("randomized_svd", rank=4, oversampling=N)
    assert_is(P, dense.scaled(best))
    prepared = recipe("randomized_svd", rank=4, power=3).prepare(dense.A.K, seeded(1))
    assert np.linalg.norm(array(prepared.F @ prepared.F.T) - best, 2) <= 1e-2 * values[-5]
    assert prepared.setup_products == (2 + 3) * (4 + 10)


def test_svd_captures_what_theory_promises(dense):
    """Halko, Martinsson & Tropp: the mean error is within a small factor of the next eigenvalues."""
    values = np.linalg.eigvalsh(dense.K)[::-1]
    errors = []
    for seed in range(20):
        F = array(recipe("randomized_svd", rank=6).prepare(dense.A.K, seeded(seed)).F)
        assert np.linalg.eigvalsh(dense.K - F @ F.T)[0] > -2 * values[6], "F Fᵀ does not exceed K by much"
        errors.append(np.linalg.norm(dense.K - F @ F.T))
    assert np.mean(errors) <= 3 * np.linalg.norm(values[6:])


# partial Cholesky


def factored(dense, choose, rank, tolerance=0.0):
    A = dense.A
    return extended(no_pivots(A.K), A.K, rank=rank, tolerance=tolerance, choose=choose)


def assert_partial_factor(dense, found):
    """F Fᵀ is the projection on the pivots, so F Fᵀ ⪯ K, and the remainder is what is left on the diagonal."""
    F, E = array(found.F), dense.K - array(found.F @ found.F.T)
    size = np.abs(dense.K).max()
    assert len(set(found.pivots.tolist())) == found.rank == F.shape[1]
    assert np.abs(F @ F.T - dense.projected(found.pivots.tolist(), jitter=0.0)).max() <= 1e-8 * size
    assert np.linalg.eigvalsh(E)[0] >= -1e-12 * size
    assert array(found.remainder) == pytest.approx(np.diag(E), abs=1e-12 * size)
    assert found.remaining_share == pytest.approx(np.trace(E) / np.trace(dense.K), abs=1e-12)


def greedy_pivots(K, first, rank):
    """Return the pivots that follow the first, which a constant diagonal leaves open."""
    assert K[first, first] == pytest.approx(np.diag(K).max())
    E, pivots = K.copy(), []
    for _ in range(rank):
        pivots.append(int(np.argmax(np.diag(E))) if pivots else int(first))
        E = E - np.outer(E[:, pivots[-1]], E[pivots[-1]]) / E[pivots[-1], pivots[-1]]
    return pivots


def test_pivoted_cholesky_takes_the_worst_point_next(dense):
    found = factored(dense, greedy, 6)
    assert_partial_factor(dense, found)
    assert found.pivots.tolist() == greedy_pivots(dense.K, found.pivots[0], 6)
    assert_is(dense.build("pivoted_cholesky", rank=6), dense.scaled(array(found.F @ found.F.T)))


@pytest.mark.parametrize("name", ["pivoted_cholesky", "rp_cholesky"])
def test_rank_grows_until_the_trace_is_small_enough(dense, name):
    for tolerance in (0.3, 0.05):
        prepared = recipe(name, rank=N, tolerance=tolerance).prepare(dense.A.K, seeded(2))
        shares = 1 - np.cumsum(array(prepared.F.square().sum(0))) / np.trace(dense.K)
        assert shares[-1] <= tolerance
        if name == "pivoted_cholesky":
            assert prepared.F.shape[1] == 1 or shares[-2] > tolerance, "and no further"
    assert recipe(name, rank=4).prepare(dense.A.K, seeded(2)).F.shape == (N, 4)


def test_growing_goes_on_where_it_stopped(dense):
    A = dense.A
    few = factored(dense, greedy, 3)
    more = extended(few, A.K, rank=7, tolerance=0.0, choose=greedy)
    assert more.pivots.tolist() == greedy_pivots(dense.K, few.pivots[0], 7)
    assert torch.equal(more.F[:, :3], few.F)
    assert_partial_factor(dense, more)
    assert extended(more, A.K, rank=5, tolerance=0.0, choose=greedy) is more


@pytest.mark.parametrize("rank", [1, 6, 12])
def test_random_pivots_give_a_partial_factor(dense, rank):
    found = factored(dense, random_pivots(seeded(8)), rank)
    assert found.rank == rank
    assert_partial_factor(dense, found)
    assert_is(dense.build("rp_cholesky", seed=8, rank=rank), dense.scaled(array(found.F @ found.F.T)))


def one_at_a_time(K, rank):
    """Return the probability of every sequence of pivots under the law E_ii / tr E."""
    law = {}
    for pivots in permutations(range(len(K)), rank):
        E, probability = K.copy(), 1.0
        for pivot in pivots:
            probability *= E[pivot, pivot] / np.trace(E)
            E = E - np.outer(E[:, pivot], E[pivot]) / E[pivot, pivot]
        law[pivots] = probability
    return law


@pytest.mark.parametrize("proposals", [2, 100])
def test_blocks_of_pivots_have_the_law_of_one_at_a_time(monkeypatch, proposals):
    """Points 0 and 1 are nearly one: rejection has to know in one block that either makes the other worthless."""
    monkeypatch.setattr(partial_cholesky, "PROPOSALS", proposals)
    kernel, X = RBF(1.0) + Linear(0.4), torch.tensor([[0.0], [0.3], [1.2], [-2.0]], dtype=torch.float64)
    law, K = one_at_a_time(kernel_matrix(kernel, X, X), 2), Tiles().bind(kernel, X)
    counts, generator, start = dict.fromkeys(law, 0), seeded(5), no_pivots(K)
    for _ in range(1200):
        found = extended(start, K, rank=2, tolerance=0.0, choose=random_pivots(generator))
        counts[tuple(found.pivots.tolist())] += 1
    assert min(law.values()) * 1200 > 5
    assert chisquare(list(counts.values()), np.array(list(law.values())) * 1200).pvalue > 1e-4


# sparse factors


def vecchia_inverse(M, X, order, count, lengthscale):
    """Return GᵀG with g_i = M_JJ⁻¹ e_i / √(e_iᵀ M_JJ⁻¹ e_i), J the nearest earlier points and i."""
    G, X = np.zeros_like(M), array(X) / array(lengthscale)
    for rank, i in enumerate(order):
        earlier = order[:rank]
        nearest = earlier[np.argsort(np.linalg.norm(X[earlier] - X[i], axis=1))[:count]]
        J = np.append(nearest, i)
        column = np.linalg.inv(M[np.ix_(J, J)])[:, -1]
        G[i, J] = column / np.sqrt(column[-1])
    return G.T @ G


@pytest.mark.parametrize("count", [0, 1, 4, N])
@pytest.mark.parametrize("scaled", [False, True])
def test_vecchia_is_its_sparse_factor(scaled, count):
    dense = make("rbf", scaled)
    order = torch.randperm(N, generator=seeded(6)).numpy()
    expected = vecchia_inverse(dense.scaled(dense.K), dense.A.X, order, count, dense.A.kernel.lengthscale)
    P = dense.build("vecchia", seed=6, neighbours=count)
    assert_is(P, np.linalg.inv(expected), rtol=1e-9)
    inverse = array(P.solve(torch.eye(N, dtype=torch.float64)))
    assert np.abs(inverse - expected).max() <= 1e-9 * np.abs(expected).max()


@pytest.mark.parametrize("count", [0, 4, N])
@pytest.mark.parametrize("scaled", [False, True])
def test_low_rank_vecchia_is_a_partial_factor_and_a_sparse_one_of_the_rest(scaled, count):
    dense = make("matern", scaled)
    prepared = recipe("low_rank_vecchia", rank=5, neighbours=count).prepare(dense.A.K, seeded(6))
    low_rank = array(prepared.F @ prepared.F.T)
    assert prepared.F.shape == (N, 5)
    assert np.linalg.eigvalsh(dense.K - low_rank)[0] > -1e-12
    rest = dense.scaled(dense.K - low_rank)
    order = prepared.remainder.order.numpy()
    inverse = vecchia_inverse(rest, dense.A.X, order, count, dense.A.kernel.lengthscale)
    P = prepared.factor(dense.A.scale, dense.A.diagonal)
    assert_is(P, dense.S @ low_rank @ dense.S + np.linalg.inv(inverse), rtol=1e-9)


# inner solves


def test_regularized_adds_to_the_diagonal(dense):
    mean = np.mean(np.diag(dense.D))
    assert_is(dense.build("regularized"), dense.scaled(dense.K) + 100 * mean * np.eye(N))
    assert_is(dense.build("regularized", multiple=3.0), dense.scaled(dense.K) + 3 * mean * np.eye(N))
    assert_is(dense.build("regularized", delta=0.7), dense.scaled(dense.K) + 0.7 * np.eye(N))


@pytest.mark.parametrize("inner_tolerance", [1e-1, 1e-6])
def test_inner_products_are_counted(inner_tolerance):
    """Every column that the backend multiplied is in the report: outer ones, inner ones, and nothing else."""
    backend, X = Tiles().counting(N), normal(N, 2, 4)
    A, B = bound_system(RBF(1.0), X, 0.01, backend=backend), normal(N, 2, 9)
    P = recipe("regularized", inner_tolerance=inner_tolerance).build(A, seeded(0))
    assert backend.work.columns == 0, "building costs no product"
    for _ in range(2):  # the second solve counts its own products only
        backend.work.columns = 0
        report = solve(A, B, preconditioner=P, stopping=Stopping(rtol=1e-8))
        assert report.status is Status.CONVERGED
        assert report.inner_columns > 0
        assert backend.work.columns == report.columns + report.inner_columns
        assert f"{report.inner_columns} in inner solves" in str(report)


def test_set_up_products_of_the_svd_are_counted():
    backend = Tiles().counting(N)
    prepared = recipe("randomized_svd", rank=4, power=1).prepare(backend.bind(RBF(1.0), normal(N, 2, 4)), seeded(0))
    assert backend.work.columns == prepared.setup_products == 3 * 14
