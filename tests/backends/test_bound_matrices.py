"""What belongs to a bound matrix alone: parts of it, other kernels and rows, points far from the data."""

import numpy as np
import pytest
import torch
from conftest import native_or_skip
from reference import TOLERANCE, block_error, gradient_error, kernel_matrix, product_error
from strategies import DTYPES, FUSED, KERNELS, normal

from kernelcg import backends
from kernelcg.backends.rounding import centre_of
from kernelcg.kernels import RBF, Kernel, Periodic, squared_distances

SOME = ["rbf", "matern32 ard", "multiple", "sum", "multiple of a sum", "periodic", "product", "sum with linear"]
ROWS = {
    "all": None,
    "slice": slice(5, 20),
    "numbers": torch.tensor([3, 3, 0, 39]),
    "none": torch.zeros(0, dtype=torch.int64),
}


def of(X, rows):
    return X if rows is None else X[rows]


@pytest.mark.parametrize("columns", ROWS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", ["rbf", "sum", "periodic"])
def test_parts_of_the_matrix(backend_for, name, rows, columns):
    kernel, X, Z = KERNELS[name](3), normal(40, 3, 1), normal(7, 3, 2)
    K = backend_for(kernel, X).bind(kernel, X)
    truth = kernel_matrix(kernel, of(X, ROWS[rows]), of(X, ROWS[columns]))
    assert K.block(ROWS[rows], ROWS[columns]).shape == truth.shape
    assert block_error(K.block(ROWS[rows], ROWS[columns]), truth) < TOLERANCE["float64"]
    found = K.cross_block(Z, ROWS[columns])
    assert block_error(found, kernel_matrix(kernel, Z, of(X, ROWS[columns]))) < TOLERANCE["float64"]


@pytest.mark.parametrize("name", SOME)
def test_products_of_some_columns(backend_for, precision, name):
    kernel, X, some = KERNELS[name](3), normal(40, 3, 1), ROWS["numbers"]
    V, K = normal(len(some), 2, 2), backend_for(kernel, X, DTYPES[precision]).bind(kernel, X)
    found = K.product_of_columns(some, V, precision=DTYPES[precision])
    assert product_error(found, kernel_matrix(kernel, X, X[some]), V) < TOLERANCE[precision]
    with pytest.raises(ValueError, match="V"):
        K.product_of_columns(some, normal(40, 2, 2))


@pytest.mark.parametrize("columns", ["slice", "numbers"])
@pytest.mark.parametrize("name", SOME)
def test_gradients_of_some_columns(backend_for, precision, name, columns):
    kernel, X = KERNELS[name](3), normal(40, 3, 1)
    U = of(X, ROWS[columns])
    left, right = normal(40, 2, 2), normal(len(U), 2, 3)
    K = backend_for(kernel, X, DTYPES[precision]).bind(kernel, X)
    found = K.gradient(left, right, columns=ROWS[columns], precision=DTYPES[precision])
    assert gradient_error(found, kernel, X, U, left, right) < TOLERANCE[precision]


@pytest.mark.parametrize("name", SOME)
def test_other_kernels_rows_and_points(backend_for, name):
    kernel, X, Z, V = KERNELS[name](3), normal(40, 3, 1), normal(9, 3, 2), normal(49, 2, 3)
    K = backend_for(RBF(1.0), X).bind(RBF(1.0), X).with_kernel(kernel)
    assert K.X is X
    assert K.kernel is kernel
    assert product_error(K.product(V[:40]), kernel_matrix(kernel, X, X), V[:40]) < TOLERANCE["float64"]
    some, both = K.at(slice(10, 40)), K.joined(Z)
    truth = kernel_matrix(kernel, X[10:], X[10:])
    assert product_error(some.product(V[:30]), truth, V[:30]) < TOLERANCE["float64"]
    XZ = torch.cat([X, Z])
    assert product_error(both.product(V), kernel_matrix(kernel, XZ, XZ), V) < TOLERANCE["float64"]
    np.testing.assert_allclose(K.diagonal(), np.diag(kernel_matrix(kernel, X, X)), rtol=1e-13)


@pytest.mark.parametrize("name", [name for name in SOME if "linear" not in name])  # its entries are a matrix product
def test_a_far_point_leaves_the_others_alone(backend_within, precision, name):
    """Not even the last bit of a row depends on what else is asked for."""
    kernel, X, V = KERNELS[name](3), normal(300, 3, 1), normal(300, 4, 3)
    K, near = backend_within().bind(kernel, X), normal(4, 3, 2)
    far = near.clone()
    far[3] = 1e20
    one, other = (K.cross(points, V, precision=DTYPES[precision]) for points in (near, far))
    assert torch.equal(one[:3], other[:3])
    few, many = (K.cross_block(points, precision=DTYPES[precision]) for points in (near[:3], far))
    assert torch.equal(few, many[:3])


@pytest.mark.parametrize("name", FUSED)
def test_the_native_code_takes_no_notice_of_a_further_point(precision, name):
    """Matrix products of torch may sum in another order for another number of rows; the native code does not."""
    kernel, X, V = KERNELS[name](3), normal(300, 3, 1), normal(300, 4, 3)
    K, near = native_or_skip().bind(kernel, X), normal(3, 3, 2)
    far = torch.cat([near, torch.full((1, 3), 1e20, dtype=torch.float64)])
    one, other = (K.cross(points, V, precision=DTYPES[precision]) for points in (near, far))
    assert torch.equal(one, other[:3])


@pytest.mark.parametrize("name", ["rbf", "matern12", "sum"])
def test_a_far_row_of_the_data_costs_the_others_nothing(backend_within, name):
    """The data are centred by their medians; centred by the means, the others would be rounded to one point."""
    kernel, X, V = KERNELS[name](2), normal(50, 2, 1), normal(50, 2, 2)
    X[7] = 1e20
    result = backend_within().bind(kernel, X).product(V)
    assert product_error(result, kernel_matrix(kernel, X, X), V) < TOLERANCE["float64"]


def test_points_in_and_beyond_the_range_that_a_phase_survives():
    """The data are centred exactly; a point of another magnitude would be rounded, so it is not centred."""
    kernel = Periodic(0.5, 2.0**-10)
    X = 2.0**30 + 2.0**-13 * torch.arange(12, dtype=torch.float64)[:, None]
    points = torch.cat([X[:3], X[:3] - 2.0**30])
    K = backends.Tiles().bind(kernel, X)
    block = K.cross_block(points)
    np.testing.assert_allclose(block[:3], block[3:], rtol=1e-13)
    np.testing.assert_allclose(K.cross(points, torch.eye(12, dtype=torch.float64)), block, rtol=1e-13)


def test_the_centre_is_the_median_of_every_feature():
    X = torch.tensor([[1.0, 9.0], [2.0, -1e20], [3.0, 5.0]])
    assert centre_of(X).tolist() == [2.0, 5.0]
    assert centre_of(X[:0]).tolist() == [0.0, 0.0]


class Wary(Kernel):
    """Counts how often it is moved beside data."""

    moves = 0

    def covariance(self, X, Y):
        return X @ Y.T

    def _beside(self, X):
        type(self).moves += 1
        return super()._beside(X)


class Crossing(torch.autograd.Function):
    """Stands for a copy to another device; counts how often a gradient is copied back."""

    backs = 0

    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, slope):
        Crossing.backs += 1
        return slope


class Distant(Kernel):
    """1 / (1 + |x − y|² / w²), whose w is on a device far away."""

    width: torch.Tensor

    def covariance(self, X, Y):
        return 1 / (1 + squared_distances(X / self.width, Y / self.width))

    def _beside(self, X):
        moved = super()._beside(X)
        object.__setattr__(moved, "width", Crossing.apply(moved.width))
        return moved


@pytest.mark.parametrize("kernel", [Distant(2.0), Distant(2.0) + RBF(1.0) * Distant(3.0)], ids=["one", "composite"])
def test_a_gradient_is_brought_back_once_and_not_for_every_tile(kernel):
    X, L, R = normal(300, 2, 1), normal(300, 3, 2), normal(300, 3, 3)
    theta = kernel.log_parameters().clone().requires_grad_()
    total = (L * (kernel.with_log_parameters(theta)(X, X) @ R)).sum()
    (truth,) = torch.autograd.grad(total, theta)
    for memory in ("1MB", "40MB"):  # many tiles, or one
        before = Crossing.backs
        found = backends.Tiles(memory).bind(kernel, X).gradient(L, R)
        assert Crossing.backs - before == len(kernel._tensors()) - (0 if type(kernel) is Distant else 2)
        torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-9)


def test_hyperparameters_are_moved_when_a_kernel_is_bound_and_not_for_every_tile():
    K, V = backends.Tiles("1MB").bind(Wary(), normal(1200, 2, 1)), normal(1200, 1, 2)
    before = Wary.moves
    K.product(V)
    K.cross(normal(30, 2, 3), V)
    K.block(slice(600))
    assert Wary.moves == before
    K.gradient(V, V)
    assert Wary.moves == before + 1
