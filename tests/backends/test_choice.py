"""Which backends there are, and the options they take."""

from types import SimpleNamespace

import pytest
import torch
from bound import product_of
from conftest import native_or_skip
from reference import TOLERANCE, kernel_matrix, product_error
from strategies import normal

from kernelcg import backends
from kernelcg.kernels import RBF


def test_every_backend_is_listed_with_a_reason():
    listed = backends.available()
    assert {"native", "tiles"} <= set(listed)
    assert all(entry.reason for entry in listed.values())
    assert listed["tiles"].usable


def test_the_default_is_native_where_there_is_one():
    expected = backends.Native if backends.available()["native"].usable else backends.Tiles
    backend = backends.default("1GB")
    assert type(backend) is expected
    assert backend.budget() == 10**9


def test_without_the_compiled_module_native_says_why():
    if backends.available()["native"].usable:
        pytest.skip("the compiled module is here")
    assert backends.levels() == {}
    with pytest.raises(RuntimeError, match="compiled module is missing"):
        backends.Native()


def test_instruction_sets_are_listed():
    native_or_skip()
    levels = backends.levels()
    assert levels["baseline"] == "usable"
    assert all(levels.values()), "a reason is missing"


@pytest.mark.parametrize(
    "options", [{"threads": 0}, {"threads": -1}, {"threads": True}, {"threads": 1.0}, {"level": "sse9"}, {"level": 0}]
)
def test_meaningless_options_of_native_are_refused_by_name(options):
    native_or_skip()
    with pytest.raises(ValueError, match=next(iter(options))):
        backends.Native(**options)


def test_more_threads_than_rows_and_cores_change_nothing():
    kernel, X, V = RBF(1.0), normal(70, 2, 1), normal(70, 3, 2)
    K = kernel_matrix(kernel, X, X)
    for threads in (1, 3, 40):
        backend = native_or_skip(threads=threads)
        for n in (1, 70):
            result = product_of(backend, kernel, X[:n], X, V)
            assert product_error(result, K[:n], V) < TOLERANCE["float64"]
        assert product_error(product_of(backend, kernel, X, X, V), K, V) < TOLERANCE["float64"]


@pytest.mark.parametrize("memory", [0, -5, "lots", True, float("nan")])
def test_a_meaningless_budget_is_refused(memory):
    with pytest.raises(ValueError, match="memory"):
        backends.Tiles(memory)


def test_without_a_budget_there_is_one_all_the_same():
    assert 0 < backends.Tiles().budget() < 2**50
    assert backends.Tiles("3 MiB").budget() == 3 * 2**20


def test_a_backend_cannot_be_changed():
    with pytest.raises(AttributeError):
        backends.Tiles().memory = 5


def test_a_stored_matrix_that_does_not_fit_is_refused():
    X = normal(1000, 2)
    with pytest.raises(MemoryError, match="1000 x 1000"):
        backends.Tiles("7MB").bind(RBF(1.0), X).stored()
    assert backends.Tiles("7MB").bind(RBF(1.0), X).stored(torch.float32).entries.dtype == torch.float32


# where the data are


def test_the_room_on_a_gpu_is_half_of_its_memory(monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: SimpleNamespace(total_memory=10_400))
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    assert backends.Tiles(10**6).room(gpu) == 5200
    assert backends.Tiles(1000).room(gpu) == 1000
    assert backends.Tiles().room(gpu) == 5200
    assert backends.Tiles(10**6).room(cpu) == 10**6
