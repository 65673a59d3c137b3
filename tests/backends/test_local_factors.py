"""Rows of a Vecchia factor on every backend, against dense solves with each neighbourhood."""

import numpy as np
import pytest
import torch
from bound import local_factors_of
from conftest import native_or_skip
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import (
    FORMULAS,
    TOLERANCE,
    array,
    kernel_matrix,
    local_factors,
    local_factors_error,
    local_matrix,
    partial_cholesky,
    scaled_squares,
)
from strategies import CONTRACT, KERNELS, normal, points, seeds
from test_user_kernels import OWN
from torch import Tensor

from kernelcg.backends import Tiles
from kernelcg.backends.neighbourhoods import summed_squares
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.kernels import RBF, Kernel, Matern, squared_distances


def any_neighbours(n, q, seed=0, missing=0.2):
    """Return (n, q) distinct other rows in any order, −1 at random places and where there are fewer than q."""
    generator = np.random.default_rng(seed)
    rows = np.full((n, q), -1)
    for i in range(n):
        others = generator.permutation(np.delete(np.arange(n), i))[:q]
        rows[i, : len(others)] = np.where(generator.random(len(others)) < missing, -1, others)
        rows[i] = generator.permutation(rows[i])
    return torch.from_numpy(rows)


def earlier_neighbours(X, q):
    """Return for every row the up to q nearest rows before it, −1 at the end."""
    rows = np.full((len(X), q), -1)
    for i in range(1, len(X)):
        nearest = np.argsort(scaled_squares(array(X[i : i + 1]), array(X[:i]), 1.0)[0], kind="stable")[:q]
        rows[i, : len(nearest)] = nearest
    return torch.from_numpy(rows)


def part_of(kernel, X, m):
    """Return a float64 factor F of rank m that leaves K − F Fᵀ positive semidefinite."""
    return torch.from_numpy(partial_cholesky(kernel_matrix(kernel, X, X), m))


def between(low, high, n, seed):
    return low + (high - low) * torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def dense(G, neighbours):
    """Return the n x n matrix whose row i has the entries of G at the neighbours and at i."""
    result = np.zeros((len(G), len(G)))
    for i, row in enumerate(array(neighbours).astype(int)):
        result[i, row[row >= 0]] = array(G)[i, :-1][row >= 0]
        result[i, i] = G[i, -1]
    return result


every_kernel = pytest.mark.parametrize(("backend_for", "name"), CONTRACT, indirect=["backend_for"])
a_few_backends = pytest.mark.parametrize("backend_for", ["tiles", "dense", "native"], indirect=True)


@every_kernel
@settings(max_examples=4)
@given(data=st.data(), n=st.integers(1, 40), q=st.integers(0, 12), m=st.integers(0, 12), d=st.integers(1, 9))
def test_rows_of_every_kernel(backend_for, name, data, n, q, m, d):
    kernel, X = KERNELS[name](d), data.draw(points(n, d))
    neighbours, D = any_neighbours(n, q, data.draw(seeds)), between(0.05, 0.5, n, data.draw(seeds))
    F = data.draw(st.sampled_from([None, part_of(kernel, X, m)]))
    scale = data.draw(st.sampled_from([None, between(-1.0, 2.0, n, 3)]))
    result = local_factors_of(backend_for(kernel, X), kernel, X, neighbours, F, scale, D)
    assert result.dtype == torch.float64
    assert local_factors_error(result, kernel, X, neighbours, F, scale, D) < TOLERANCE["float64"]
    assert (result[:, :-1][neighbours < 0] == 0).all()
    assert (result[:, -1] > 0).all()


# Both sides of every boundary of the native code: rows treated together (4, 8), vectors (2, 4, 8), panels (4, 8, 24).
@pytest.mark.parametrize("q", [0, 1, 2, 3, 4, 6, 7, 8, 14, 15, 16, 22, 23, 24, 30, 46, 47, 48, 60, 71, 72, 100])
def test_neighbourhoods_of_every_size(backend_within, q):
    kernel, X = Matern(1.1, 0.7, nu=1.5), normal(120, 3, 1)
    neighbours, D, F = any_neighbours(120, q, q, missing=0.02), between(0.05, 0.1, 120, 2), part_of(kernel, X, 9)
    result = local_factors_of(backend_within(), kernel, X, neighbours, F, None, D)
    assert local_factors_error(result, kernel, X, neighbours, F, None, D) < TOLERANCE["float64"]


@pytest.mark.parametrize("m", [0, 1, 2, 3, 5, 7, 8, 9, 16, 31, 511, 512, 513, 1025])
def test_factors_of_every_rank(backend_within, m):
    """Also of more columns than points, and than are gathered at once."""
    kernel, X = RBF(0.8, 1.4), normal(40, 3, 1)
    neighbours, D, scale = any_neighbours(40, 10, 1), between(0.05, 0.1, 40, 2), between(0.5, 2.0, 40, 3)
    rotation = np.linalg.qr(array(normal(max(m, 30), max(m, 30), m)))[0][:30, :m]
    F = torch.from_numpy(partial_cholesky(kernel_matrix(kernel, X, X), 30) @ rotation)
    result = local_factors_of(backend_within(), kernel, X, neighbours, F, scale, D)
    assert local_factors_error(result, kernel, X, neighbours, F, scale, D) < TOLERANCE["float64"]


@pytest.mark.parametrize("d", [1, 2, 8, 17, 60])
def test_every_number_of_features(backend_within, d):
    kernel, X = KERNELS["rbf ard"](d), normal(30, d, 1) + 1e3
    neighbours, D = any_neighbours(30, 6, 1), between(0.05, 0.1, 30, 2)
    result = local_factors_of(backend_within(), kernel, X, neighbours, None, None, D)
    assert local_factors_error(result, kernel, X, neighbours, None, None, D) < TOLERANCE["float64"]


def test_a_single_point_and_no_neighbours(backend_for):
    kernel, X, D = RBF(1.0, 2.0), normal(1, 3), torch.tensor([0.25], dtype=torch.float64)
    backend = backend_for(kernel, X)
    for q in (0, 3):
        result = local_factors_of(backend, kernel, X, torch.full((1, q), -1), None, None, D)
        np.testing.assert_allclose(result, [[0.0] * q + [1 / 1.5]], rtol=1e-15)
    F, scale = torch.tensor([[1.0, 0.5]], dtype=torch.float64), torch.tensor([-2.0], dtype=torch.float64)
    result = local_factors_of(backend, kernel, X, torch.full((1, 2), -1), F, scale, D)
    np.testing.assert_allclose(result, [[0.0, 0.0, 1 / np.sqrt(4 * 0.75 + 0.25)]], rtol=1e-15)
    assert local_factors_of(backend, kernel, X[:0], torch.zeros(0, 4, dtype=torch.int64), None, None, D[:0]).shape == (
        0,
        5,
    )


def test_all_earlier_points_give_the_inverse_cholesky_factor(backend_for):
    """Gᵀ G = R⁻¹ exactly when every point sees all before it."""
    kernel, X = Matern(1.0, nu=2.5), normal(30, 2, 1)
    D, F, neighbours = between(0.1, 0.2, 30, 2), part_of(kernel, X, 4), earlier_neighbours(X, 29)
    G = dense(local_factors_of(backend_for(kernel, X), kernel, X, neighbours, F, None, D), neighbours)
    np.testing.assert_allclose(G.T @ G @ local_matrix(kernel, X, F, None, D), np.eye(30), atol=1e-12)


def test_the_place_of_padding_does_not_matter(backend_for):
    kernel, X, D = RBF(0.9), normal(20, 2, 1), between(0.1, 0.2, 20, 2)
    close, backend = any_neighbours(20, 5, 1, missing=0.0), backend_for(kernel, X)
    spread = torch.full((20, 9), -1)
    spread[:, [1, 2, 4, 7, 8]] = close
    G, wide = (local_factors_of(backend, kernel, X, rows, None, None, D) for rows in (close, spread))
    np.testing.assert_allclose(wide[:, [1, 2, 4, 7, 8, 9]], G, rtol=1e-12, atol=1e-14)
    assert (wide[:, [0, 3, 5, 6]] == 0).all()


@pytest.mark.parametrize("name", ["rbf", "linear"])
def test_single_precision_points_are_taken_as_they_are(backend_for, name):
    kernel, X = KERNELS[name](3), normal(40, 3, 1).float()
    neighbours, D, F = any_neighbours(40, 7, 1), between(0.05, 0.1, 40, 2), part_of(kernel, X, 5)
    result = local_factors_of(backend_for(kernel, X), kernel, X, neighbours, F, None, D)
    assert result.dtype == torch.float64
    assert local_factors_error(result, kernel, X, neighbours, F, None, D) < TOLERANCE["float64"]


HARD = {
    "duplicates": lambda X: X[torch.arange(len(X)) // 4],
    "all equal": lambda X: X[:1].expand(len(X), -1),
    "close": lambda X: X[torch.arange(len(X)) // 4] + 1e-7 * X,
    "smooth": lambda X: 0.1 * X,
}


@pytest.mark.parametrize("style", HARD)
@pytest.mark.parametrize("rank", [None, 20, 60])
@pytest.mark.parametrize("noise", [1e-10, 1e-16, 1e-30, 1e-300])
def test_rounding_never_breaks_the_factor(backend_for, style, rank, noise):
    """Singular neighbourhoods and next to no noise; rank 60 leaves only rounding errors of K."""
    kernel, X = RBF(1.0), HARD[style](normal(60, 2, 1)).contiguous()
    F = None if rank is None else part_of(kernel, X, rank)
    neighbours, D = earlier_neighbours(X, 20), torch.full((60,), noise, dtype=torch.float64)
    result = local_factors_of(backend_for(kernel, X), kernel, X, neighbours, F, None, D)
    assert result.isfinite().all()
    assert (result[:, -1] > 0).all()
    assert (result.abs() <= (1 + 1e-12) * noise**-0.5).all()
    if noise == 1e-10:
        G = dense(result, neighbours)
        assert np.linalg.eigvalsh(G.T @ G)[0] > 0


@pytest.mark.parametrize("style", HARD)
def test_little_noise_costs_only_the_digits_it_must(backend_for, style):
    """gᵀ R g = 1 up to rounding relative to the noise, 1e-16 / 1e-10."""
    kernel, X = RBF(1.0), HARD[style](normal(60, 2, 1)).contiguous()
    neighbours, D = earlier_neighbours(X, 20), torch.full((60,), 1e-10, dtype=torch.float64)
    G = dense(local_factors_of(backend_for(kernel, X), kernel, X, neighbours, None, None, D), neighbours)
    R = local_matrix(kernel, X, None, None, D)
    np.testing.assert_allclose(np.einsum("ij,jk,ik->i", G, R, G), 1.0, atol=1e-4)


def test_a_factor_that_is_a_little_too_large_is_repaired(backend_for):
    """K − F Fᵀ has eigenvalues near −1e-9, beyond the noise of 1e-10."""
    kernel, X = Matern(1.0), normal(50, 2, 1)
    F = part_of(kernel, X, 50) * (1 + 1e-9)
    neighbours, D = earlier_neighbours(X, 10), torch.full((50,), 1e-10, dtype=torch.float64)
    result = local_factors_of(backend_for(kernel, X), kernel, X, neighbours, F, None, D)
    assert result.isfinite().all()
    assert (result[:, -1] > 0).all()


@pytest.mark.parametrize("name", OWN)
@a_few_backends
def test_an_own_kernel_runs_on_every_backend(backend_for, name):
    kernel, X = OWN[name], normal(50, 3, 1)
    neighbours, D, F = any_neighbours(50, 8, 1), between(0.1, 0.2, 50, 2), part_of(kernel, X, 3)
    result = local_factors_of(backend_for(kernel, X), kernel, X, neighbours, F, None, D)
    assert local_factors_error(result, kernel, X, neighbours, F, None, D) < TOLERANCE["float64"]


class Branching(Kernel):
    """σ² exp(−|x − y|²), by a formula that looks at its data and leaves torch: nothing that vmap could follow."""

    variance: Tensor

    def covariance(self, X, Y):
        s = squared_distances(X, Y)
        decay = torch.from_numpy(np.exp(-s.numpy())) if float(s.max()) >= 0 else s
        return self.variance * decay


FORMULAS["Branching"] = lambda X, Y, variance: variance * np.exp(-scaled_squares(X, Y, 1.0))


@a_few_backends
def test_a_formula_that_cannot_be_batched_runs_one_by_one(backend_for):
    kernel, X = Branching(1.3), normal(50, 3, 1)
    neighbours, D = any_neighbours(50, 8, 1), between(0.1, 0.2, 50, 2)
    result = local_factors_of(backend_for(kernel, X), kernel, X, neighbours, None, None, D)
    assert local_factors_error(result, kernel, X, neighbours, None, None, D) < TOLERANCE["float64"]


@pytest.mark.parametrize("name", ["multiple", "sum", "periodic"])
def test_any_layout_is_taken_and_left_alone(backend_for, name):
    kernel, X = KERNELS[name](3), normal(40, 6, 1)[:, ::2].requires_grad_()
    neighbours, F = any_neighbours(40, 14, 1)[:, ::2], part_of(kernel, X, 8)[:, ::2].requires_grad_()
    scale, D = between(0.5, 2.0, 80, 2)[::2], between(0.05, 0.1, 80, 3)[::2]
    arguments = (X, neighbours, F, scale, D)
    before = [value.detach().clone() for value in arguments]
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            result = local_factors_of(backend_for(kernel, X), kernel, *arguments)
        assert not result.requires_grad
        assert local_factors_error(result, kernel, *arguments) < TOLERANCE["float64"]
    assert all(torch.equal(old, new) for old, new in zip(before, arguments, strict=True))


def test_threads_do_not_change_a_bit():
    kernel, X = Matern(1.0), normal(101, 3, 1)
    arguments = (kernel, X, any_neighbours(101, 9, 1), part_of(kernel, X, 20), None, between(0.05, 0.1, 101, 2))
    one, two, many = (local_factors_of(native_or_skip(threads=threads), *arguments) for threads in (1, 2, 200))
    assert torch.equal(one, two)
    assert torch.equal(one, many)


@pytest.mark.parametrize("name", ["rbf ard", "product"])
@pytest.mark.parametrize("backend_within", ["tiles", "native baseline"], indirect=True)
def test_a_budget_is_refused_or_the_result_is_right(backend_within, name):
    kernel, X = KERNELS[name](3), normal(200, 3, 1)
    neighbours, F, D = any_neighbours(200, 12, 1), part_of(kernel, X, 20), between(0.05, 0.1, 200, 2)
    fitted = []
    for memory in (100, 10_000, 30_000, 100_000, 200_000, 300_000, 1_000_000, 100_000_000):
        try:
            result = local_factors_of(backend_within(memory), kernel, X, neighbours, F, None, D)
        except MemoryBudgetExceeded:
            fitted.append(False)
            continue
        fitted.append(True)
        assert local_factors_error(result, kernel, X, neighbours, F, None, D) < TOLERANCE["float64"]
    assert fitted == sorted(fitted), "a larger budget was refused"
    assert not fitted[0]
    assert fitted[-1]


def test_the_reference_solves_what_it_says():
    """Each row of the truth is R_JJ⁻¹ e_i scaled to gᵀ R g = 1, hence R_JJ g is a multiple of e_i."""
    kernel, X, neighbours = RBF(1.0), normal(10, 2, 1), any_neighbours(10, 4, 1)
    R = local_matrix(kernel, X, None, None, np.full(10, 0.1))
    G = dense(local_factors(R, neighbours), neighbours)
    np.testing.assert_allclose(np.einsum("ij,jk,ik->i", G, R, G), 1.0)
    for i, row in enumerate(neighbours.tolist()):
        np.testing.assert_allclose((R @ G[i])[[j for j in row if j >= 0]], 0.0, atol=1e-13)


WRONG = {
    "X of one dimension": ({"X": torch.ones(5)}, ValueError, "X must have two dimensions"),
    "integers in X": ({"X": torch.ones(5, 3, dtype=torch.int64)}, TypeError, "X must be float32 or float64"),
    "NaN in X": ({"X": torch.full((5, 3), torch.nan)}, ValueError, "X holds NaN or infinite values"),
    "neighbours as a list": ({"neighbours": [[1]] * 5}, TypeError, "neighbours must be a torch tensor, not list"),
    "int32 neighbours": ({"neighbours": torch.zeros(5, 2).int()}, TypeError, "neighbours must be int64"),
    "neighbours of one dimension": ({"neighbours": torch.zeros(5).long()}, ValueError, r"neighbours must .*\(5, any\)"),
    "other rows of neighbours": ({"neighbours": torch.full((4, 2), -1)}, ValueError, r"neighbours must .*not \(4, 2\)"),
    "neighbour beyond the end": ({"neighbours": torch.full((5, 2), 5)}, ValueError, "neighbours .*0 to 4.* not 5"),
    "negative neighbour": ({"neighbours": torch.full((5, 2), -2)}, ValueError, "neighbours .*-1 for none, not -2"),
    "its own neighbour": ({"neighbours": torch.full((5, 2), 3)}, ValueError, "neighbours of row 3 hold 3 itself"),
    "neighbours elsewhere": (
        {"neighbours": torch.ones(5, 2, device="meta").long()},
        ValueError,
        "neighbours is on meta",
    ),
    "F in float32": ({"F": torch.ones(5, 2)}, TypeError, "F must be float64, not torch.float32"),
    "F of one dimension": ({"F": torch.ones(5).double()}, ValueError, r"F must have shape \(5, any\), not \(5,\)"),
    "other rows of F": ({"F": torch.ones(4, 2).double()}, ValueError, r"F must have shape \(5, any\)"),
    "infinity in F": ({"F": torch.full((5, 2), torch.inf).double()}, ValueError, "F holds NaN or infinite values"),
    "scale in float32": ({"scale": torch.ones(5)}, TypeError, "scale must be float64"),
    "other length of scale": (
        {"scale": torch.ones(4).double()},
        ValueError,
        r"scale must have shape \(5\), not \(4,\)",
    ),
    "NaN in scale": ({"scale": torch.full((5,), torch.nan).double()}, ValueError, "scale holds NaN"),
    "no diagonal": ({"diagonal": None}, TypeError, "diagonal must be a torch tensor, not NoneType"),
    "a number as diagonal": ({"diagonal": 0.1}, TypeError, "diagonal must be a torch tensor, not float"),
    "other length of diagonal": ({"diagonal": torch.ones(6).double()}, ValueError, "diagonal must have shape"),
    "zero in diagonal": ({"diagonal": torch.zeros(5).double()}, ValueError, "diagonal must be positive, not 0"),
    "infinity in diagonal": (
        {"diagonal": torch.full((5,), torch.inf).double()},
        ValueError,
        "diagonal holds NaN or inf",
    ),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("name", ["rbf", "linear"])
@a_few_backends
def test_misuse_is_named(backend_for, name, case):
    changed, error, message = WRONG[case]
    right = {"X": torch.ones(5, 3), "neighbours": torch.full((5, 2), -1), "F": None, "scale": None}
    right["diagonal"] = torch.ones(5, dtype=torch.float64)
    kernel = KERNELS[name](3)
    backend = backend_for(kernel, right["X"])
    with pytest.raises(error, match=message):
        local_factors_of(backend, kernel, **right | changed)


def test_a_lengthscale_that_does_not_fit_the_data_is_named(backend_within):
    X, neighbours, D = normal(5, 3), any_neighbours(5, 2), torch.ones(5, dtype=torch.float64)
    with pytest.raises(ValueError, match="lengthscale has 2 entries but X has 3 features"):
        local_factors_of(backend_within(), RBF([1.0, 2.0]), X, neighbours, None, None, D)


@pytest.mark.parametrize("spread", [1.0, 1e-8, 1e8])
def test_distances_within_neighbourhoods_feature_by_feature(spread):
    """What a GPU does in place of cdist: exact between equal points, without cancellation between close ones."""
    points = 1e3 + spread * normal(6 * 9, 4, 1).reshape(6, 9, 4)
    points[:, 3] = points[:, 5]
    found = summed_squares(points)
    for one, P in zip(found, points, strict=True):
        np.testing.assert_allclose(one, scaled_squares(array(P), array(P), 1.0), rtol=1e-14)
    assert not found[:, 3, 5].any()


def test_local_factors_with_the_distances_of_a_gpu(monkeypatch):
    monkeypatch.setattr("kernelcg.backends.neighbourhoods._batched_squares", summed_squares)
    kernel, X = KERNELS["matern32 ard"](3), normal(40, 3, 1)
    arguments = (any_neighbours(40, 6), None, None, between(0.1, 1.0, 40, 2))
    found = local_factors_of(Tiles(), kernel, X, *arguments)
    assert local_factors_error(found, kernel, X, *arguments) < TOLERANCE["float64"]
