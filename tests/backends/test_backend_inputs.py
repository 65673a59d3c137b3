"""What callers hand in: any layout is taken and left as it was, misuse is named."""

import pickle

import pytest
import torch
from bound import block_of, gradient_of, product_of
from reference import TOLERANCE, array, block_error, gradient_error, kernel_matrix, product_error
from strategies import KERNELS, normal

from kernelcg.kernels import RBF, Linear

FUSED_OR_NOT = pytest.mark.parametrize("name", ["rbf ard", "sum", "periodic", "linear"])


def assert_all_right(backend, kernel, X, Y, left, right):
    """Check product, gradient and block of float64 inputs, and that nothing was changed and no graph was built."""
    before = [value.detach().clone() for value in (X, Y, left, right)]
    product, gradient = product_of(backend, kernel, X, Y, right), gradient_of(backend, kernel, X, Y, left, right)
    block, K = block_of(backend, kernel, X, Y), kernel_matrix(kernel, X, Y)
    assert product_error(product, K, right) < TOLERANCE["float64"]
    assert gradient_error(gradient, kernel, X, Y, left, right) < TOLERANCE["float64"]
    assert block_error(block, K) < TOLERANCE["float64"]
    assert not any(result.requires_grad for result in (product, gradient, block))
    for old, new in zip(before, (X, Y, left, right), strict=True):
        assert torch.equal(old, new)


@FUSED_OR_NOT
def test_any_layout_is_taken_and_left_alone(backend_for, name):
    kernel, wide, tall = KERNELS[name](3), normal(40, 6, 1), normal(3, 30, 2)
    X, Y = wide[:, ::2], tall.T
    left, right = normal(80, 4, 3)[::2], normal(2, 30, 4).T.repeat(1, 2)
    assert not any(value.is_contiguous() for value in (X, Y, left))
    backend = backend_for(kernel, X)
    assert_all_right(backend, kernel, X, Y, left, right)
    assert_all_right(backend, kernel, X, X, left, left.flip(0))
    assert_all_right(backend, kernel, X, Y, left[:, :1].expand(40, 4), normal(1, 4).expand(30, 4))


@FUSED_OR_NOT
def test_slices_that_share_memory_are_not_mistaken_for_the_same_data(backend_for, name):
    kernel, X, V = KERNELS[name](3), normal(40, 3, 1), normal(40, 2, 2)
    backend = backend_for(kernel, X)
    assert_all_right(backend, kernel, X, X[:], V, V.flip(1))
    assert_all_right(backend, kernel, X[:30], X[10:], V[:30], V[10:])
    assert_all_right(backend, kernel, X, X.flip(0), V, V)


@FUSED_OR_NOT
def test_tensors_that_require_gradients_are_taken(backend_for, name):
    kernel, X, V = KERNELS[name](3), normal(40, 3, 1).requires_grad_(), normal(40, 2, 2).requires_grad_()
    trained = kernel.with_log_parameters(kernel.log_parameters().clone().requires_grad_())
    for own in (kernel, trained):
        assert_all_right(backend_for(own, X), own, X, X, V, V * 2)
        assert_all_right(backend_for(own, X), own, X, X[:9], V, V[:9])


def test_work_is_the_same_inside_no_grad_and_inference_mode(backend_for):
    kernel, X, V = KERNELS["product"](3), normal(40, 3, 1), normal(40, 2, 2)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert_all_right(backend_for(kernel, X), kernel, X, X, V, V.flip(0))


def call(backend, kernel, operation, X, points, V, left, precision=None):
    K = backend.bind(kernel, X)
    if operation == "product":
        return K.product(V, precision=precision)
    if operation == "cross":
        return K.cross(points, V, precision=precision)
    if operation == "gradient":
        return K.gradient(left, V, precision=precision)
    if operation == "cross_block":
        return K.cross_block(points, precision=precision)
    return K.block(precision=precision)


WRONG = {
    "X of one dimension": ({"X": torch.ones(5)}, ValueError, "X must have two dimensions"),
    "points of one dimension": ({"points": torch.ones(4)}, ValueError, "points must have two dimensions"),
    "V of one dimension": ({"V": torch.ones(5)}, ValueError, "(V|right) must have two dimensions"),
    "V of three dimensions": ({"V": torch.ones(5, 2, 2)}, ValueError, "(V|right) must have two dimensions"),
    "other features": ({"points": torch.ones(4, 2)}, ValueError, "X has 3 features but points has 2"),
    "other rows": ({"V": torch.ones(4, 2)}, ValueError, "X has 5 rows but (V|right) has 4"),
    "integers in X": ({"X": torch.ones(5, 3, dtype=torch.int64)}, TypeError, "X must be float32 or float64"),
    "X as a list": ({"X": [[1.0]]}, TypeError, "X must be a torch tensor, not list"),
    "half precision in V": ({"V": torch.ones(5, 2, dtype=torch.float16)}, TypeError, "(V|right) must be float32"),
    "complex V": ({"V": torch.ones(5, 2, dtype=torch.complex64)}, TypeError, "(V|right) must be float32"),
    "other device of points": (
        {"points": torch.ones(4, 3, device="meta")},
        ValueError,
        "points is on meta but X is on",
    ),
    "other device of V": ({"V": torch.ones(5, 2, device="meta")}, ValueError, "(V|right) is on meta but X is on cpu"),
    "half precision": ({"precision": torch.float16}, TypeError, "precision must be torch.float32"),
    "precision in words": ({"precision": "float32"}, TypeError, "precision must be torch.float32"),
    "left of one dimension": ({"left": torch.ones(5)}, ValueError, "left must have two dimensions"),
    "other rows of left": ({"left": torch.ones(4, 2)}, ValueError, "X has 5 rows but left has 4"),
    "one column of left": ({"left": torch.ones(5, 1)}, ValueError, "left.*columns"),
    "three columns of left": ({"left": torch.ones(5, 3)}, ValueError, "left.*columns"),
    "integers in left": ({"left": torch.ones(5, 2, dtype=torch.int32)}, TypeError, "left must be float32 or float64"),
    "NaN in X": ({"X": torch.full((5, 3), torch.nan)}, ValueError, "X holds NaN"),
    "infinity in points": ({"points": torch.full((4, 3), torch.inf)}, ValueError, "points holds NaN or infinite"),
}
USED = {
    "product": {"X", "V", "precision"},
    "cross": {"X", "points", "V", "precision"},
    "gradient": {"X", "V", "left", "precision"},
    "block": {"X", "precision"},
    "cross_block": {"X", "points", "precision"},
}
MISUSE = [
    (operation, case) for operation in USED for case, (changed, *_) in WRONG.items() if set(changed) <= USED[operation]
]


@pytest.mark.parametrize(("operation", "case"), MISUSE)
@pytest.mark.parametrize("kernel", [RBF(1.0), Linear(1.0)], ids=["rbf", "linear"])
@pytest.mark.parametrize("backend_for", ["tiles", "dense", "native"], indirect=True)
def test_misuse_is_named(backend_for, kernel, operation, case):
    changed, error, message = WRONG[case]
    right = {"X": torch.ones(5, 3), "points": torch.ones(4, 3), "V": torch.ones(5, 2), "left": torch.ones(5, 2)}
    backend = backend_for(kernel, right["X"])
    with pytest.raises(error, match=message):
        call(backend, kernel, operation, **right | changed)


@pytest.mark.parametrize("operation", USED)
def test_a_lengthscale_that_does_not_fit_the_data_is_named(backend_within, operation):
    X, V = normal(5, 3), normal(5, 2)
    with pytest.raises(ValueError, match="lengthscale has 2 entries but X has 3 features"):
        call(backend_within(), RBF([1.0, 2.0]), operation, X, X, V, V)


def test_stored_entries_serve_only_what_they_were_made_for(backend_for):
    """Another kernel, other points, or float64 asked of float32 entries are computed afresh."""
    kernel, other = RBF(0.8), RBF(1.6)
    X, V = normal(30, 2, 1), normal(30, 3, 2)
    backend = backend_for(kernel, X, torch.float32)

    def error(kernel, X, Y, precision):
        return product_error(product_of(backend, kernel, X, Y, V, precision=precision), kernel_matrix(kernel, X, Y), V)

    for asked in ((other, X, X), (kernel, X, X + 1), (kernel, X + 1, X), (kernel, X * 2, X * 2)):
        assert error(*asked, torch.float32) < TOLERANCE["float32"]
    assert error(kernel, X, X, torch.float64) < TOLERANCE["float64"]
    assert TOLERANCE["float64"] < error(kernel, X, X, torch.float32) < TOLERANCE["float32"]


def test_a_pickled_backend_works(backend_for):
    kernel, X, V = RBF(0.8), normal(30, 2, 1), normal(30, 3, 2)
    backend, kernel, X = pickle.loads(pickle.dumps((backend_for(kernel, X), kernel, X)))
    assert product_error(product_of(backend, kernel, X, X, V), kernel_matrix(kernel, X, X), V) < TOLERANCE["float64"]
    assert array(backend.budget()) > 0
