"""What is handed to KernelPlusDiagonal: numbers of every kind work, misuse is named at once."""

import numpy as np
import pytest
import torch
from bound import bound_system
from reference import TOLERANCE, array, product_error, system_matrix
from strategies import normal

from kernelcg.kernels import RBF

X = normal(6, 2, 1)
V = normal(6, 3, 2)
KERNEL = RBF(0.9, 1.4)
ARRAY = X.numpy()
READ_ONLY = ARRAY.copy()
READ_ONLY.flags.writeable = False

DATA = {
    "array": ARRAY,
    "read-only array": READ_ONLY,
    "backward array": ARRAY[::-1, ::-1],
    "column-major array": np.asfortranarray(ARRAY),
    "list": X.tolist(),
    "integers": np.arange(12).reshape(6, 2) % 5,
    "integer tensor": torch.arange(12).reshape(6, 2) % 5,
    "booleans": ARRAY > 0,
    "slice of a tensor": normal(6, 4)[:, ::2],
    "float32": ARRAY.astype(np.float32),
    "float32 tensor": X.float(),
}


@pytest.mark.parametrize("name", DATA)
def test_numbers_of_every_kind_work(name):
    data = DATA[name]
    before = array(data).copy()
    A = bound_system(KERNEL, data, 0.5, np.linspace(0, 1, 6))
    assert A.precision == (torch.float32 if "float32" in name else torch.float64)
    truth = system_matrix(KERNEL, before, 0.5, np.linspace(0, 1, 6))
    tolerance = TOLERANCE["float32" if "float32" in name else "float64"]
    assert product_error(A @ V, truth, V) < tolerance
    assert product_error(A.with_precision(torch.float64) @ V, truth, V) < TOLERANCE["float64"]
    np.testing.assert_array_equal(before, array(data))


@pytest.mark.parametrize(
    "diagonal", [2, 2.0, [2.0], np.full(6, 2), np.float32(2), torch.tensor(2), torch.full((6,), 2.0)]
)
def test_the_noise_is_one_number_or_one_for_each_row(diagonal):
    A = bound_system(KERNEL, X, diagonal)
    assert A.diagonal.tolist() == [2.0] * 6
    assert A.diagonal.dtype == torch.float64


def bad_entry(value):
    data = X.clone()
    data[4, 1] = value
    return data


MISUSE = {
    "one dimension": ({"X": X[:, 0]}, ValueError, r"X must have two dimensions.*X\[:, None\]"),
    "three dimensions": ({"X": X[None]}, ValueError, "X must have two dimensions"),
    "no rows": ({"X": X[:0]}, ValueError, "X is empty"),
    "no features": ({"X": X[:, :0]}, ValueError, "X is empty"),
    "strings": ({"X": np.array([["a", "b"]])}, TypeError, "X must hold real numbers"),
    "objects": ({"X": np.array([[1.0, None]], dtype=object)}, TypeError, "X must hold real numbers"),
    "complex": ({"X": np.ones((2, 2)) * 1j}, TypeError, "X must hold real numbers"),
    "nan in X": ({"X": bad_entry(float("nan"))}, ValueError, r"X holds NaN.*\(4, 1\)"),
    "inf in X": ({"X": bad_entry(float("inf"))}, ValueError, r"X holds NaN.*\(4, 1\)"),
    "zero noise": ({"diagonal": 0.0}, ValueError, "diagonal .* must be positive"),
    "negative noise": ({"diagonal": [1.0, 1.0, -0.25, 1.0, 1.0, 1.0]}, ValueError, r"diagonal .* positive.*-0\.25"),
    "nan noise": ({"diagonal": float("nan")}, ValueError, "diagonal holds NaN"),
    "infinite noise": ({"diagonal": float("inf")}, ValueError, "diagonal holds NaN or inf"),
    "noise of other length": ({"diagonal": np.ones(5)}, ValueError, "diagonal must be one number or 6"),
    "noise as a column": ({"diagonal": np.ones((6, 1))}, ValueError, "diagonal must be one number or 6"),
    "noise in words": ({"diagonal": "low"}, TypeError, "diagonal must hold real numbers"),
    "no noise": ({"diagonal": None}, TypeError, "diagonal"),
    "negative scale": ({"scale": [1.0, 1.0, -0.25, 1.0, 1.0, 1.0]}, ValueError, r"scale must not be negative.*-0\.25"),
    "nan in scale": ({"scale": np.full(6, np.nan)}, ValueError, "scale holds NaN"),
    "scale of other length": ({"scale": np.ones(7)}, ValueError, "scale must be one number or 6"),
    "scale as a matrix": ({"scale": np.eye(6)}, ValueError, "scale must be one number or 6"),
    "no kernel": ({"kernel": "rbf"}, TypeError, "kernel must be a kernelcg kernel, not str"),
    "class of a kernel": ({"kernel": RBF}, TypeError, "kernel must be a kernelcg kernel"),
    "half precision": ({"product_dtype": torch.float16}, TypeError, "product_dtype must be torch.float32"),
    "no backend": ({"backend": "native"}, TypeError, "backend"),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_is_named_at_once(case):
    changed, error, message = MISUSE[case]
    with pytest.raises(error, match=message):
        bound_system(**{"kernel": KERNEL, "X": X, "diagonal": 1.0} | changed)


@pytest.mark.parametrize("scale", [None, torch.linspace(0.5, 2, 6, dtype=torch.float64)], ids=["no scale", "scale"])
@pytest.mark.parametrize(
    "columns",
    [
        torch.ones(6, dtype=torch.float64),
        torch.ones(1, 3, dtype=torch.float64),
        torch.ones(5, 3, dtype=torch.float64),
        X[None],
    ],
    ids=["one dimension", "one row", "five rows", "three dimensions"],
)
def test_columns_of_the_wrong_shape_are_refused(scale, columns):
    """With S they would be spread over the rows unnoticed."""
    A = bound_system(KERNEL, X, 1.0, scale)
    with pytest.raises(ValueError, match="V "):
        A @ columns
    with pytest.raises(ValueError, match=r"(left|right|X|Y) "):
        A.kernel_gradient(columns, columns)


@pytest.mark.parametrize("scale", [None, torch.linspace(0.5, 2, 6, dtype=torch.float64)], ids=["no scale", "scale"])
@pytest.mark.parametrize("columns", [torch.ones(6, 2, dtype=torch.int64), np.ones((6, 2))], ids=["integers", "array"])
def test_columns_of_the_wrong_type_are_refused(scale, columns):
    with pytest.raises(TypeError, match="V "):
        bound_system(KERNEL, X, 1.0, scale) @ columns


def test_a_lengthscale_that_does_not_fit_the_data_is_named_by_the_first_product():
    with pytest.raises(ValueError, match="lengthscale has 3 entries but X has 2 features"):
        bound_system(RBF([1.0, 2.0, 3.0]), X, 1.0) @ V


def test_with_precision_refuses_other_types():
    with pytest.raises(TypeError, match=r"torch\.float32"):
        bound_system(KERNEL, X, 1.0).with_precision(torch.bfloat16)
