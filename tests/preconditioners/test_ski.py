"""SKI against an explicit W and an explicit K_GG, and the promises of its options."""

import subprocess
import sys
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
import reference
import torch
from bound import bound_system
from contract import Case, check_contract, systems
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import TOLERANCE, array, kernel_matrix, product_error, system_matrix
from strategies import STATIONARY, columns, normal, points, stationary_kernels
from torch import Tensor

from kernelcg.backends import Tiles
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.kernels import RBF, Constant, Kernel, Linear, Matern, Periodic, squared_distances
from kernelcg.preconditioners import available, recipe
from kernelcg.preconditioners.recipes import ski
from kernelcg.preconditioners.recipes.ski import SKI
from kernelcg.randomness import seeded
from kernelcg.solvers import Status, Stopping, solve

WAYS = {
    "as it chooses": {"STORED_UP_TO": ski.STORED_UP_TO},
    "stored": {"STORED_UP_TO": 1e9},
    "structured": {"STORED_UP_TO": 0},
    "structured, FFT in every direction": {"STORED_UP_TO": 0, "DENSE_UP_TO": 1},
    "column by column": {"STORED_UP_TO": 0, "NUMBERS_AT_ONCE": 1},
    "lags in pieces": {"STORED_UP_TO": 0, "LAGS_AT_ONCE": 7},
}
"""How a product may be computed: thresholds that force each way upon small grids."""


def axes(X, kind, g):
    """Return the grid points of each feature: from the least to the greatest datum, one step more if cubic."""
    found = []
    for x in array(X).T:
        low, high = x.min(), x.max()
        if low == high:
            found.append(np.array([low]))
        elif kind == "nearest":
            found.append(np.linspace(low, high, g))
        else:
            h = (high - low) / (g - 3)
            found.append(np.linspace(low - h, high + h, g))
    return found


def convolution_kernel(s):
    """Keys (1981), equation 15: the cubic convolution kernel with a = −1/2."""
    s = np.abs(s)
    near = 1.5 * s**3 - 2.5 * s**2 + 1
    far = -0.5 * s**3 + 2.5 * s**2 - 4 * s + 2
    return np.where(s < 1, near, np.where(s < 2, far, 0.0))


def weights(x, axis, kind):
    """Return the (n, g) interpolation weights of one feature."""
    if len(axis) == 1:
        return np.ones((len(x), 1))
    if kind == "nearest":
        return np.eye(len(axis))[np.abs(np.subtract.outer(x, axis)).argmin(1)]
    return convolution_kernel(np.subtract.outer(x, axis) / (axis[1] - axis[0]))


def explicit(kernel, X, kind, g):
    """Return W (n, G) and K_GG (G, G)."""
    grid, X = axes(X, kind, g), array(X)
    W = np.ones((len(X), 1))
    for r, axis in enumerate(grid):
        W = (W[:, :, None] * weights(X[:, r], axis, kind)[:, None]).reshape(len(X), -1)
    U = np.array(list(product(*grid)))
    return W, kernel_matrix(kernel, U, U)


def built(kernel, X, *, diagonal=0.1, scale=None, backend=None, **options):
    A = bound_system(kernel, X, diagonal, scale, backend or Tiles())
    return SKI(**options).build(A, seeded(0))


def gaussian(n, d, seed=0):
    """Return normal data in pairs of equal points, the last one alone."""
    return normal(n, d, seed)[torch.arange(n) // 2 * 2]


class Tilted(Kernel):
    """Stationary, but not even in each feature: its level lines are tilted ellipses."""

    width: Tensor

    @property
    def is_stationary(self):
        return True

    def covariance(self, X, Y):
        tilt = torch.eye(X.shape[1]).to(X) + 0.7 * torch.ones(X.shape[1], X.shape[1]).to(X).tril(-1)
        return torch.exp(-squared_distances(X @ tilt / self.width, Y @ tilt / self.width))


def _tilted(X, Y, width):
    tilt = np.eye(X.shape[1]) + 0.7 * np.tril(np.ones((X.shape[1], X.shape[1])), -1)
    return np.exp(-reference.scaled_squares(X @ tilt, Y @ tilt, width))


KERNELS = STATIONARY | {
    "tilted": lambda d: Tilted(2.0),
    "product of three": lambda d: 0.7 * RBF(1.5) * Periodic(2.0, 3.0),
    "product with matern": lambda d: RBF(2.0) * Matern(1.0, nu=0.5),
}
COMBINATIONS = [(name, "structured") for name in KERNELS]
COMBINATIONS += [(name, way) for name in ("rbf ard", "matern32", "tilted") for way in WAYS if way != "structured"]
SIZES = {("nearest", 1): 9, ("nearest", 2): 5, ("nearest", 3): 3, ("nearest", 4): 3}
SIZES |= {("cubic", 1): 9, ("cubic", 2): 7, ("cubic", 3): 6, ("cubic", 4): 4}


@pytest.fixture(autouse=True)
def _formula(monkeypatch):
    monkeypatch.setitem(reference.FORMULAS, "Tilted", _tilted)


@pytest.mark.parametrize(("kind", "d"), SIZES)
@pytest.mark.parametrize(("name", "way"), COMBINATIONS)
def test_product_is_that_of_the_formula(name, kind, d, way):
    """P = S W K_GG Wᵀ S + D, with points in pairs and one that is zero in S."""
    n, g, kernel = 15, SIZES[kind, d], KERNELS[name](d)
    X, V = gaussian(n, d, seed=d), normal(n, 3, 1)
    S, D = np.linspace(0, 2, n), np.geomspace(0.01, 1, n)
    W, K = explicit(kernel, X, kind, g)
    truth = S[:, None] * (W @ K @ W.T) * S + np.diag(D)
    with patch.multiple(ski, **WAYS[way]):
        P = built(kernel, X, diagonal=D, scale=S, interpolation=kind, grid=g)
        assert product_error(P.operator @ V, truth, V) < TOLERANCE["float64"]
        np.testing.assert_allclose(P.dense(), truth, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["rbf ard", "matern32", "product of three"])
@pytest.mark.parametrize(("d", "g"), [(8, 2), (5, 3)])
def test_nearest_in_many_features(name, d, g, way):
    kernel, X, V = KERNELS[name](d), gaussian(20, d), normal(20, 2, 1)
    W, K = explicit(kernel, X, "nearest", g)
    with patch.multiple(ski, **WAYS[way]):
        P = built(kernel, X, grid=g)
        assert product_error(P.operator @ V, W @ K @ W.T + 0.1 * np.eye(20), V) < TOLERANCE["float64"]


@pytest.mark.parametrize("kind", ["nearest", "cubic"])
@pytest.mark.parametrize("kernel", [RBF(0.5), Matern(0.5)])
def test_grids_large_enough_for_fft_by_themselves(kernel, kind):
    X, V = normal(700, 1), normal(700, 2, 1)
    W, K = explicit(kernel, X, kind, 700)
    P = built(kernel, X, interpolation=kind, grid=700)
    (contraction,) = P.operator.kernel_part.K.contractions
    assert isinstance(contraction.factor, ski.Toeplitz)
    assert product_error(P.operator @ V, W @ K @ W.T + 0.1 * np.eye(700), V) < TOLERANCE["float64"]


@settings(max_examples=60)
@given(st.data())
def test_cubic_product_on_drawn_systems(data):
    """Any stationary kernel, points on a lattice, repeated or with a constant feature, each way of computing."""
    n, d = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 3))
    X, V, kernel = data.draw(points(n, d)), data.draw(columns(n, 2)), data.draw(stationary_kernels(d))
    g, way = data.draw(st.integers(4, 7)), data.draw(st.sampled_from(list(WAYS)))
    W, K = explicit(kernel, X, "cubic", g)
    with patch.multiple(ski, **WAYS[way]):
        P = built(kernel, X, interpolation="cubic", grid=g)
    assert product_error(P.operator @ V, W @ K @ W.T + 0.1 * np.eye(n), V) < 1e-12


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["nearest", "cubic"])
@settings(max_examples=15)
@given(st.data())
def test_contract(kind, way, data):
    A, tolerance = data.draw(systems(stationary=True)), data.draw(st.sampled_from([1e-1, 1e-3]))
    with patch.multiple(ski, **WAYS[way]):
        check_contract(Case(SKI(interpolation=kind, grid=5, inner_tolerance=tolerance), A, 0))


@pytest.mark.parametrize("kind", ["nearest", "cubic"])
def test_ties_and_edges_stay_on_the_grid(kind):
    """Data on grid points and midway between them: the kernel of a datum with itself stays right on the points."""
    X = torch.linspace(0, 1, 9, dtype=torch.float64)[:, None].expand(-1, 2).contiguous()
    g = 5 if kind == "nearest" else 7
    P = built(RBF(1.0), X, interpolation=kind, grid=g)
    truth = system_matrix(RBF(1.0), X, 0.1)
    np.testing.assert_allclose(P.dense()[::2, ::2], truth[::2, ::2], rtol=1e-14)


def dense_weights(X, **options):
    return SKI(**options).prepare(Tiles().bind(RBF(1.0), X), seeded(0)).W.to_dense()


def test_nearest_weights_are_single_ones():
    W = dense_weights(normal(50, 3), interpolation="nearest")
    assert torch.equal(W.sum(1), torch.ones(50, dtype=torch.float64))
    assert torch.equal(W.amax(1), W.sum(1))


@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_cubic_weights_sum_to_one_and_reproduce_quadratics(d):
    """W applied to a quadratic on the grid gives the quadratic at the data, extremes included."""
    X, g = normal(30, d), 6
    grid = SKI(interpolation="cubic", grid=g)._grid(X)
    corners, w = ski._stencils(grid, "cubic")
    assert corners.shape == (30, 4**d)
    assert int(corners.min()) >= 0
    assert int(corners.max()) < g**d
    np.testing.assert_allclose(w.sum(1), 1.0, rtol=1e-14)
    U = np.array(list(product(*axes(X, "cubic", g))))
    M = array(normal(d, d, 1))

    def quadratic(Z):
        return ((Z @ M) * Z).sum(1) + Z @ M[0] + 3.0

    np.testing.assert_allclose((array(w) * quadratic(U)[corners]).sum(1), quadratic(array(X)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("kernel", "d", "g"), [(RBF(1.0), 1, 60), (RBF([1.0, 2.0]), 2, 60), (Matern(1.5, nu=2.5), 2, 80)]
)
def test_fine_cubic_grid_is_close_to_the_exact_matrix(kernel, d, g):
    X, S = normal(150, d), np.linspace(0.5, 1.5, 150)
    truth = system_matrix(kernel, X, 0.01, S)
    P = built(kernel, X, diagonal=0.01, scale=S, interpolation="cubic", grid=g)
    assert np.linalg.norm(array(P.dense()) - truth, 2) < 1e-3 * np.linalg.norm(truth, 2)
    coarse = built(kernel, X, diagonal=0.01, scale=S, interpolation="nearest", grid=g)
    assert np.linalg.norm(array(coarse.dense()) - truth, 2) > 2 * np.linalg.norm(array(P.dense()) - truth, 2)


def test_far_from_the_origin_nothing_is_lost():
    """Only differences enter: data moved by a number that is exact in binary give the same P."""
    X = torch.round(normal(30, 2) * 2**20) / 2**20
    for kind in ("nearest", "cubic"):
        for kernel in (RBF(0.7), Matern(0.7)):
            P, moved = (built(kernel, data, interpolation=kind) for data in (X, X + 2.0**30))
            assert torch.equal(P.dense(), moved.dense())


@pytest.mark.parametrize(("n", "d", "g"), [(1030, 8, 4), (9568, 4, 31), (40, 3, 6), (3, 8, 2)])
def test_default_grid_is_the_papers(n, d, g):
    X, V = normal(n, d), normal(n, 1, 1)
    products = [built(RBF(1.0), X, grid=points).operator @ V for points in (None, g, g + 1)]
    assert torch.equal(products[0], products[1])
    assert not torch.allclose(products[0], products[2])


def test_default_grid_counts_the_features_that_vary():
    X = torch.cat([normal(100, 2), torch.full((100, 3), 7.0, dtype=torch.float64)], 1)
    P, smaller = built(RBF(1.0), X), built(RBF(1.0), X[:, :2].contiguous())
    torch.testing.assert_close(P.dense(), smaller.dense(), rtol=1e-13, atol=0)


def test_cubic_grid_has_room_for_the_stencil():
    assert torch.equal(
        built(RBF(1.0), normal(2, 3), interpolation="cubic").dense(),
        built(RBF(1.0), normal(2, 3), interpolation="cubic", grid=4).dense(),
    )


@pytest.mark.parametrize("kind", ["nearest", "cubic"])
@pytest.mark.parametrize("kernel", [RBF(1.0, 2.0), Matern(1.0, 2.0), Constant(2.0)])
def test_one_point_and_equal_points(kernel, kind):
    S = np.array([1.0, 2.0, 3.0])
    for n in (1, 3):
        P = built(kernel, torch.ones(n, 6, dtype=torch.float64), diagonal=0.5, scale=S[:n], interpolation=kind)
        np.testing.assert_allclose(P.dense(), 2.0 * np.outer(S[:n], S[:n]) + 0.5 * np.eye(n), rtol=1e-14)


@pytest.mark.parametrize("tolerance", [1e-1, 1e-3, 1e-8])
@pytest.mark.parametrize("way", WAYS)
def test_solve_meets_the_inner_tolerance(way, tolerance):
    n = 120
    X, R, S = gaussian(n, 2), normal(n, 3, 1), np.linspace(0, 1, n)
    with patch.multiple(ski, **WAYS[way]):
        P = built(Matern(1.0), X, diagonal=1e-2, scale=S, interpolation="cubic", inner_tolerance=tolerance)
        W, K = explicit(Matern(1.0), X, "cubic", round(n**0.75))
        truth = S[:, None] * (W @ K @ W.T) * S + 1e-2 * np.eye(n)
        residual = array(R) - truth @ array(P.solve(R))
    assert (np.linalg.norm(residual, axis=0) <= 1.01 * tolerance * np.linalg.norm(array(R), axis=0)).all()
    assert not P.is_constant
    assert P.inner.products > 0


def test_inner_iterations_are_limited():
    P = built(RBF(0.3), normal(100, 2), diagonal=1e-6, inner_iterations=3, inner_tolerance=1e-12)
    assert P.solve(normal(100, 1, 1)).isfinite().all()
    assert P.inner.products <= 5


def test_close_approximation_needs_few_outer_iterations():
    X, y = normal(300, 2), normal(300, 1, 1)
    A = bound_system(RBF(1.0), X, 1e-2, np.linspace(0.5, 1.5, 300), Tiles())
    stopping = Stopping(rtol=1e-8)
    report = solve(A, y, preconditioner=SKI(interpolation="cubic").build(A, seeded(0)), stopping=stopping)
    assert report.status is Status.CONVERGED
    assert int(report.iterations.max()) <= 6 < int(solve(A, y, method="cg", stopping=stopping).iterations.max())


def test_operator():
    P = built(RBF(1.0), normal(20, 2).float(), diagonal=np.linspace(0.1, 1, 20)).operator
    V = normal(20, 2, 1)
    assert (len(P), P.device, P.precision) == (20, torch.device("cpu"), torch.float64)
    assert P.with_precision(torch.float64) is P
    with pytest.raises(TypeError, match="float64"):
        P.with_precision(torch.float32)
    assert P.spectrum_floor() == 0.1
    assert (P @ V.float()).dtype == torch.float32
    before = V.clone()
    torch.testing.assert_close((P @ V.float()).double(), P @ V, rtol=1e-5, atol=1e-5)
    assert torch.equal(V, before)
    assert P.memory_budget() > 0


def test_parameters_under_optimisation_are_taken():
    kernel = RBF(1.0).with_log_parameters(torch.zeros(2, dtype=torch.float64, requires_grad=True))
    assert not built(kernel, normal(20, 2)).dense().requires_grad


def test_recipe_is_found_and_described():
    assert available()["ski"] is SKI
    assert SKI.IN_PAPER
    assert SKI.COST
    assert recipe("ski", interpolation="cubic", grid=8) == SKI("cubic", 8)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"interpolation": "linear"}, "interpolation must be 'nearest' or 'cubic', not 'linear'"),
        ({"grid": 1}, "at least 2 points"),
        ({"grid": 0}, "at least 2 points"),
        ({"grid": 2.5}, "not 2.5"),
        ({"grid": True}, "not True"),
        ({"grid": 3, "interpolation": "cubic"}, "at least 4 points"),
        ({"inner_tolerance": 0.0}, "inner_tolerance"),
        ({"inner_tolerance": 1.0}, "inner_tolerance"),
        ({"inner_iterations": 0}, "inner_iterations"),
        ({"inner_iterations": 2.0}, "inner_iterations"),
        ({"interpolaton": "cubic"}, "ski has no option interpolaton"),
    ],
)
def test_misuse_is_refused(options, named):
    with pytest.raises(ValueError, match=named):
        recipe("ski", **options)


@pytest.mark.parametrize("kernel", [Linear(1.0), RBF(1.0) + Linear(1.0), RBF(1.0) * Linear(1.0)])
def test_nonstationary_kernels_are_refused(kernel):
    with pytest.raises(TypeError, match="SKI needs a stationary kernel"):
        built(kernel, normal(5, 2))


def test_cubic_in_five_features_is_refused():
    with pytest.raises(ValueError, match="at most 4 features, not 5; use interpolation='nearest'"):
        built(RBF(1.0), normal(20, 5), interpolation="cubic")


@pytest.mark.parametrize("kernel", [RBF(1.0), Matern(1.0)])
@pytest.mark.parametrize("kind", ["nearest", "cubic"])
def test_too_large_a_grid_is_refused_and_a_smaller_one_named(kernel, kind):
    X, backend, options = normal(20, 3), Tiles("3MB"), {"interpolation": kind}
    with pytest.raises(MemoryBudgetExceeded, match=r"grid of 1000\^3 points \(grid=[0-9]+ would fit\)") as caught:
        built(kernel, X, backend=backend, grid=1000, **options)
    fits = int(str(caught.value).split("(grid=")[1].split()[0])
    assert len(built(kernel, X, backend=backend, grid=fits, **options)) == 20
    with pytest.raises(MemoryBudgetExceeded):
        built(kernel, X, backend=backend, grid=fits + 1, **options)


def test_absurd_grids_and_budgets_are_refused():
    for kernel in (RBF(1.0), Matern(1.0)):
        with pytest.raises(MemoryBudgetExceeded):
            built(kernel, normal(20, 8), grid=10**30)
    with pytest.raises(MemoryBudgetExceeded, match="no grid would fit"):
        built(RBF(1.0), normal(20, 3), backend=Tiles(1500))


MEASURE = """
import torch
from kernelcg.backends import Tiles
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.kernels import RBF, Matern
from kernelcg.preconditioners.recipes.ski import SKI
torch.set_num_threads(1)

def resident_bytes(which):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(which))

def build(X, V, grid, megabytes):
    prepared = SKI({kind!r}, grid).prepare(Tiles(f"{{megabytes}}MB").bind({kernel}, X), None)
    return prepared @ V

X, V = torch.randn(20_000, {d}, dtype=torch.float64), torch.randn(20_000, 3, dtype=torch.float64)
build(X[:20], V[:20], 10, 1000)
megabytes = 1
while True:
    before = resident_bytes("VmRSS")
    try:
        build(X, V, {grid}, megabytes)
        break
    except MemoryBudgetExceeded:
        megabytes *= 1.1
print(int(megabytes * 1e6), resident_bytes("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("kernel", "d", "kind", "grid"),
    [
        ("RBF(1.0)", 4, "nearest", 24),
        ("RBF(1.0)", 2, "nearest", 900),
        ("RBF(1.0)", 3, "cubic", 30),
        ("Matern(1.0)", 3, "cubic", 40),
        ("Matern(1.0)", 2, "cubic", 500),
    ],
)
def test_the_budget_is_kept(kernel, d, kind, grid):
    """The least budget that is accepted bounds what making P and multiplying by it allocate, as measured."""
    program = MEASURE.format(kernel=kernel, d=d, kind=kind, grid=grid)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    budget, peak = map(int, done.stdout.split())
    assert peak <= 1.1 * budget  # resident pages also hold what the allocator keeps for later
