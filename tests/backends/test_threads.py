"""The number of threads, and what else runs on the machine, changes no bit of a native result."""

import subprocess
import sys

import pytest
import torch
from conftest import native_or_skip
from strategies import DTYPES, normal

from kernelcg import backends
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.kernels import RBF, Matern, Tanimoto
from kernelcg.threads import allowed

SIZES = [1, 2, 7, 33, 64, 131, 257, 600, 1023, 1500, 3000]
THREADS = [2, 3, 5]
LEVELS = ["baseline", "avx2", "avx512"]


@pytest.fixture(params=LEVELS)
def with_threads(request):
    """Return a function threads → native backend, for each instruction set in turn."""
    return lambda threads: native_or_skip(threads=threads, level=request.param)


@pytest.fixture
def busy_machine():
    """Keep every core busy with other processes."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for other in others:
        other.kill()
        other.wait()


def same_bits(work, with_threads, repeats=1):
    """Say whether work(backend) is the same for 1 thread and for several, each as often as asked."""
    expected = work(with_threads(1))
    return all(torch.equal(work(with_threads(t)), expected) for t in THREADS for _ in range(repeats))


def products(backend, n, k, precision):
    """Return a symmetric and a rectangular product, one below the other."""
    kernel, X, Y, V = Matern([0.7, 1.1, 2.0], nu=1.5), normal(n, 3, 1), normal(n // 2 + 1, 3, 2), normal(n, k, 3)
    K = backend.bind(kernel, X)
    return torch.cat([K.product(V, precision=DTYPES[precision]), K.cross(Y, V, precision=DTYPES[precision])])


def gradients(backend, n, k, precision):
    """Return a symmetric and a rectangular gradient, one after the other."""
    X, some, left, right = normal(n, 3, 1), torch.arange((n + 1) // 2), normal(n, k, 3), normal(n, k, 4)
    K, dtype = backend.bind(RBF([0.7, 1.1, 2.0]), X), DTYPES[precision]
    symmetric = K.gradient(left, right, precision=dtype)
    rectangular = K.with_kernel(RBF(1.3)).gradient(left, right[some], columns=some, precision=dtype)
    return torch.cat([symmetric, rectangular])


def local_factors(backend, n, q, m):
    """Return local factors with q neighbours and m columns of F."""
    generator = torch.Generator().manual_seed(5)
    earlier = torch.rand(n, q, generator=generator, dtype=torch.float64) * torch.arange(n)[:, None]
    neighbours = torch.where(torch.arange(n)[:, None] > torch.arange(q), earlier.long(), -1)
    F, ones = 0.1 * normal(n, m, 6), torch.ones(n, dtype=torch.float64)
    return backend.bind(RBF(1.0), normal(n, 3, 1)).local_factors(neighbours, F, None, ones)


@pytest.mark.parametrize("n", SIZES)
def test_products(with_threads, precision, n):
    for k in (1, 5, 16):
        assert same_bits(lambda backend, k=k: products(backend, n, k, precision), with_threads)


def test_products_with_more_columns_than_a_block_of_rows_is_made_for(with_threads, precision):
    assert same_bits(lambda backend: products(backend, 1100, 70, precision), with_threads)


@pytest.mark.parametrize("n", SIZES)
def test_gradients(with_threads, precision, n):
    for k in (1, 5):
        assert same_bits(lambda backend, k=k: gradients(backend, n, k, precision), with_threads)


@pytest.mark.parametrize("n", SIZES)
def test_local_factors(with_threads, n):
    assert same_bits(lambda backend: local_factors(backend, n, 5, 7), with_threads)


@pytest.mark.parametrize("n", [1, 700])
def test_blocks(with_threads, precision, n):
    X, Y = normal(n, 3, 1), normal(900, 3, 2)
    assert same_bits(
        lambda backend: backend.bind(RBF(1.0), Y).cross_block(X, precision=DTYPES[precision]), with_threads
    )


@pytest.mark.usefixtures("busy_machine")
def test_the_same_while_other_processes_are_busy(with_threads):
    for k in (1, 5):
        assert same_bits(lambda backend, k=k: products(backend, 3000, k, "float32"), with_threads, repeats=5)
    assert same_bits(lambda backend: gradients(backend, 1500, 5, "float32"), with_threads, repeats=5)
    assert same_bits(lambda backend: local_factors(backend, 1500, 5, 7), with_threads, repeats=5)


def test_where_memory_is_short_fewer_threads_work_and_no_bit_changes(precision):
    """Columns are divided alike on every machine, and many threads are no reason to refuse."""
    X, V = normal(1500, 3, 1), normal(1500, 24, 2)

    def found(memory, threads):
        backend = native_or_skip(memory, threads=threads)
        try:
            return backend.bind(RBF(1.0), X).product(V, precision=DTYPES[precision])
        except MemoryBudgetExceeded:
            return None

    outcomes = set()
    for memory in range(400_000, 8_000_000, 400_000):
        alone = found(memory, 1)
        outcomes.add(alone is None)
        for threads in (2, 9, 40):
            together = found(memory, threads)
            assert (together is None) == (alone is None), (memory, threads)
            assert alone is None or torch.equal(together, alone)
    assert outcomes == {True, False}


@pytest.mark.parametrize("kernel", [RBF(1.0), Tanimoto()], ids=lambda kernel: type(kernel).__name__)
def test_torch_keeps_to_one_thread_meanwhile(monkeypatch, kernel):
    """Its threads spin after every operation; how many it had before is how many the work takes."""
    seen, X = [], (normal(70, 5, 1) > 0).double()
    original = backends.rounding.rounded_columns
    for module in (backends.native, backends.sets, backends.rounding):
        monkeypatch.setattr(
            module,
            "rounded_columns",
            lambda *args: (seen.append((torch.get_num_threads(), allowed())), original(*args))[1],
        )
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for threads in (None, 2):
            K = native_or_skip(threads=threads).bind(kernel, X)
            K.product(X), K.cross(X[:9], X), K.gradient(X, X)
        after = torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {(1, 3), (1, 2)}
    assert after == 3
