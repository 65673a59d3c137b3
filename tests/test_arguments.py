import numpy as np
import pytest
import torch

from kernelcg.arguments import matrix, memory_bytes, positive, same_rows, tensor, vector

ONES = torch.ones(3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("4GB", 4_000_000_000),
        ("4G", 4_000_000_000),
        (" 4 gb ", 4_000_000_000),
        ("512 MiB", 512 * 2**20),
        ("2Ki", 2048),
        ("0.5 GB", 500_000_000),
        ("1.5TiB", 3 * 2**39),
        ("10B", 10),
        ("1e9", 10**9),
        ("1_000 KB", 10**6),
        (1e9, 10**9),
        (7, 7),
        (np.float64(2e6), 2_000_000),
        (np.int64(2_000_000), 2_000_000),
    ],
)
def test_amounts_of_memory(value, expected):
    result = memory_bytes(value)
    assert result == expected
    assert result is None or type(result) is int


BAD_AMOUNTS = [
    "",
    "GB",
    "four GB",
    "4XB",
    "4 4GB",
    "4KMB",
    "4G B",
    "4BB",
    "5I",
    "5IB",
    "4GBB",
    "1,5GB",
    "nan",
    "inf",
    "-4GB",
    "0",
]


@pytest.mark.parametrize("value", BAD_AMOUNTS)
def test_words_that_are_no_amount_of_memory(value):
    with pytest.raises(ValueError, match="memory"):
        memory_bytes(value)


@pytest.mark.parametrize("value", [0, -1, -1e9, 0.4, float("nan"), float("inf"), 2.0**63, True, False, [4], b"4GB", 1j])
def test_numbers_that_are_no_amount_of_memory(value):
    with pytest.raises((ValueError, TypeError), match="memory"):
        memory_bytes(value)


def test_a_bad_amount_of_memory_is_called_by_its_argument_and_shown():
    with pytest.raises(ValueError, match=r"cache.*5 parrots"):
        memory_bytes("5 parrots", "cache")


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.ones((2, 2), np.float32), torch.float32),
        (np.ones((2, 2), np.float64), torch.float64),
        (np.ones((2, 2), np.float16), torch.float64),
        (np.ones((2, 2), np.longdouble), torch.float64),
        (np.ones((2, 2), np.int8), torch.float64),
        (np.ones((2, 2), np.uint64), torch.float64),
        (np.ones((2, 2), bool), torch.float64),
        ([[1, 2], [3, 4]], torch.float64),
        (torch.ones(2, 2, dtype=torch.bfloat16), torch.float64),
        (torch.ones(2, 2, dtype=torch.int32), torch.float64),
        (torch.ones(2, 2, dtype=torch.float32), torch.float32),
    ],
)
def test_real_numbers_become_floats(value, dtype):
    assert tensor(value, "X").dtype == dtype


@pytest.mark.parametrize(
    "value",
    [
        np.array([["a", "b"]]),
        np.array([[1.0, None]], dtype=object),
        np.array([[1 + 1j]]),
        np.array([["2020-01-01"]], dtype="datetime64"),
        torch.ones(2, 2, dtype=torch.complex64),
        torch.eye(2).to_sparse(),
    ],
)
def test_other_things_are_refused_by_name(value):
    with pytest.raises(TypeError, match="weights"):
        matrix(value, "weights")


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_compressed_sparse_tensors_are_refused_by_name():
    with pytest.raises(TypeError, match="weights"):
        matrix(torch.eye(2).to_sparse_csr(), "weights")


def test_arrays_are_copied_whatever_their_layout():
    source = np.arange(12.0).reshape(3, 4)
    source.flags.writeable = False
    result = matrix(source[::-1, ::-2], "X")
    np.testing.assert_array_equal(result.numpy(), [[11, 9], [7, 5], [3, 1]])
    result += 1
    np.testing.assert_array_equal(source, np.arange(12.0).reshape(3, 4))


@pytest.mark.parametrize("shape", [(), (3,), (2, 2, 2)])
def test_a_matrix_has_two_dimensions(shape):
    with pytest.raises(ValueError, match="X must have two dimensions"):
        matrix(torch.ones(shape), "X")


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_a_matrix_is_not_empty(shape):
    with pytest.raises(ValueError, match="X is empty"):
        matrix(torch.ones(shape), "X")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_the_first_entry_that_is_not_finite_is_named(bad):
    value = torch.ones(4, 3)
    value[2, 1] = bad
    with pytest.raises(ValueError, match=r"X.*\(2, 1\)"):
        matrix(value, "X")
    assert matrix(value, "X", finite=False).shape == (4, 3)


@pytest.mark.parametrize("value", [2, 2.0, [2.0], np.float32(2), torch.tensor(2), torch.tensor([2.0])])
def test_one_number_serves_for_all_rows(value):
    result = vector(value, "noise", 3, ONES)
    torch.testing.assert_close(result, 2 * ONES, rtol=0, atol=0)


@pytest.mark.parametrize("value", [[1.0, 2.0], [[1.0, 2.0, 3.0]], [], [1.0, float("nan"), 2.0], "high"])
def test_a_vector_of_the_wrong_kind_is_refused_by_name(value):
    with pytest.raises((ValueError, TypeError), match="noise"):
        vector(value, "noise", 3, ONES)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), [1.0, 0.0], [[1.0]], []])
def test_what_is_not_positive_is_refused_by_name(value):
    with pytest.raises(ValueError, match="width"):
        positive(value, "width")


def test_positive_numbers_are_float64_and_keep_their_graph():
    source = torch.tensor([2.0, 3.0], requires_grad=True)
    result = positive(source, "width")
    assert result.dtype == torch.float64
    result.prod().backward()
    assert source.grad.tolist() == [3.0, 2.0]


def test_rows_are_compared():
    same_rows(ONES, "X", ONES, "y")
    with pytest.raises(ValueError, match="X has 3 rows but y has 2"):
        same_rows(ONES, "X", ONES[:2], "y")
