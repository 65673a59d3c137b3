"""Products and gradients on a cluster of two processes: right, the same bits with any workers, and never in silence."""

import concurrent.futures
import os
import pickle
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from both_workers import PATIENCE, await_both
from reference import TOLERANCE, block_error, gradient_error, kernel_matrix, product_error
from strategies import DTYPES, KERNELS, normal

from kernelcg import backends
from kernelcg.backends import cluster_tasks as tasks
from kernelcg.backends.cluster import Cluster
from kernelcg.backends.dask import BLOCK_GROWTH, LEAST_BLOCK
from kernelcg.backends.file_rows import FileRows
from kernelcg.backends.references import Reference
from kernelcg.errors import ClusterFailed
from kernelcg.kernels import RBF, Kernel, Matern
from kernelcg.kernels.distances import squared_distances

ROWS, BLOCK = 400, 150

SOME = ["rbf", "matern32 ard", "multiple of a sum", "periodic", "sum with linear"]


@pytest.fixture
def backend(client):
    return backends.Dask(client=client, block_rows=BLOCK)


@pytest.mark.parametrize("name", SOME)
def test_products_and_gradients(backend, name):
    kernel, X, V, Z = KERNELS[name](3), normal(ROWS, 3, 1), normal(ROWS, 4, 2), normal(170, 3, 3)
    K, here = backend.bind(kernel, X), backends.default().bind(kernel, X)
    truth = kernel_matrix(kernel, X, X)
    assert product_error(K.product(V), truth, V) < TOLERANCE["float64"]
    assert (K.product(V) - here.product(V)).abs().max() <= 1e-12 * here.product(V).abs().max()
    assert product_error(K.cross(Z, V), kernel_matrix(kernel, Z, X), V) < TOLERANCE["float64"]
    left, right = V[:, :2], V[:, 2:]
    found = K.gradient(left, right)
    assert gradient_error(found, kernel, X, X, left, right) < TOLERANCE["float64"]
    assert (found - here.gradient(left, right)).abs().max() <= 1e-12 * here.gradient(left, right).abs().max()
    some = torch.tensor([3, 390, 7])
    found = K.product_of_columns(some, V[:3])
    assert product_error(found, truth[:, some], V[:3]) < TOLERANCE["float64"]
    found = K.gradient(left, right[:3], columns=some)
    assert gradient_error(found, kernel, X, X[some], left, right[:3]) < TOLERANCE["float64"]
    assert block_error(K.block(None, some), truth[:, some]) < TOLERANCE["float64"]


def test_single_precision(backend):
    kernel, X, V = Matern(1.0), normal(ROWS, 3, 1), normal(ROWS, 2, 2)
    found = backend.bind(kernel, X).product(V, precision=DTYPES["float32"])
    assert found.dtype == torch.float64
    assert product_error(found, kernel_matrix(kernel, X, X), V) < TOLERANCE["float32"]
    assert product_error(found, kernel_matrix(kernel, X, X), V) > TOLERANCE["float64"]


def test_entries_stored_on_the_workers(client, backend):
    kernel, X, V = Matern(1.0), normal(ROWS, 3, 1), normal(ROWS, 4, 2)
    K, truth = backend.bind(kernel, X), kernel_matrix(kernel, X, X)
    for name, dtype in DTYPES.items():
        stored = K.stored(dtype)
        assert stored.is_stored
        found = stored.product(V, precision=dtype)
        assert product_error(found, truth, V) < TOLERANCE[name]
        os.kill(pids(client)[0], signal.SIGKILL)  # with its entries
        assert torch.equal(stored.product(V, precision=dtype), found)
        await_both(client)
    other = torch.float64 if dtype == torch.float32 else torch.float32
    assert torch.equal(stored.product(V, precision=other), K.product(V, precision=other)), "not the stored precision"
    with pytest.raises(MemoryError, match="on the workers"):
        backends.Dask(client=client).place(X[:1].expand(10**6, 3)).bind(kernel).stored()


def test_entries_weights_and_local_factors_are_those_of_this_process(backend):
    kernel, X, Z = Matern([1.0, 2.0]), normal(ROWS, 2, 1), normal(9, 2, 2)
    K, here = backend.bind(kernel, X), backends.default().bind(kernel, X)
    C = here.block()
    assert torch.equal(K.block(slice(3, 300), slice(0, 7)), C[3:300, :7])
    assert torch.equal(K.cross_block(Z, torch.tensor([1, 5])), here.cross_block(Z, torch.tensor([1, 5])))
    weights, V = C / ROWS, normal(ROWS, 1, 3)
    assert torch.equal(K.gradient(V, V, weights=weights), here.gradient(V, V, weights=weights))
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))
    neighbours = here.neighbours(order, 5)
    assert torch.equal(K.neighbours(order, 5), neighbours)
    D = torch.full((ROWS,), 0.1, dtype=torch.float64)
    assert torch.equal(K.local_factors(neighbours, None, None, D), here.local_factors(neighbours, None, None, D))


@pytest.mark.parametrize(("features", "count"), [(2, 8), (20, 8), (3, 1100)], ids=["tree", "pairs", "most"])
def test_neighbourhoods_by_workers(backend, features, count):
    """Points beyond 512 are looked up in levels, by trees up to 15 features."""
    X = normal(1300, features, 1)
    X[7] = X[900]
    kernel, order = Matern(1.0), torch.randperm(1300, generator=torch.Generator().manual_seed(0))
    K, here = backend.bind(kernel, X), backends.default().bind(kernel, X)
    neighbours = here.neighbours(order, count)
    assert torch.equal(K.neighbours(order, count), neighbours)
    some, scale, D = neighbours[:, :8].contiguous(), normal(1300, 1, 4)[:, 0].exp(), torch.full((1300,), 0.1).double()
    F = 0.3 * here.block(None, torch.arange(3))
    assert torch.equal(K.local_factors(some, F, scale, D), here.local_factors(some, F, scale, D))


def test_neighbourhoods_while_a_worker_is_lost(client, backend):
    X, order = normal(ROWS, 2, 1), torch.arange(ROWS)
    K = backend.bind(RBF(1.0), X)
    D = torch.full((ROWS,), 0.1, dtype=torch.float64)
    neighbours = K.neighbours(order, 5)
    factors = K.local_factors(neighbours, None, None, D)
    os.kill(pids(client)[0], signal.SIGKILL)
    assert torch.equal(K.neighbours(order, 5), neighbours)
    assert torch.equal(K.local_factors(neighbours, None, None, D), factors)
    await_both(client)


def test_columns_of_many_features_by_workers(backend, monkeypatch):
    X, Z, some = normal(ROWS, 60, 1), normal(3, 60, 2), torch.tensor([3, 399, 3])
    K, here = backend.bind(Matern(5.0), X), backends.default().bind(Matern(5.0), X)
    monkeypatch.setattr(type(K), "_at", None)  # nothing is computed here
    for dtype in DTYPES.values():
        assert torch.equal(K.block(None, some, precision=dtype), here.block(None, some, precision=dtype))
        assert torch.equal(K.cross_block(Z, precision=dtype), here.cross_block(Z, precision=dtype))


@pytest.mark.parametrize("name", ["periodic", "sum with linear"])
def test_columns_of_formulas_in_torch_by_workers(backend, monkeypatch, name):
    kernel, X, Z, some = KERNELS[name](3), normal(ROWS, 3, 1), normal(3, 3, 2), torch.tensor([3, 399, 3])
    K = backend.bind(kernel, X)
    monkeypatch.setattr(type(K), "_at", None)
    assert block_error(K.block(None, some), kernel_matrix(kernel, X, X[some])) < TOLERANCE["float64"]
    assert block_error(K.cross_block(Z), kernel_matrix(kernel, Z, X)) < TOLERANCE["float64"]


def test_products_of_columns_by_workers(backend, monkeypatch):
    X, some = normal(ROWS, 3, 1), torch.tensor([3, 399, 3])
    K, here, V = backend.bind(Matern(1.0), X), backends.default().bind(Matern(1.0), X), normal(3, 2, 2)
    monkeypatch.setattr(type(K), "_at", None)
    monkeypatch.setattr(type(K), "at", None)
    for name, dtype in DTYPES.items():
        found = K.product_of_columns(some, V, precision=dtype)
        assert product_error(found, kernel_matrix(Matern(1.0), X, X[some]), V) < TOLERANCE[name]
        assert found.dtype == V.dtype == here.product_of_columns(some, V, precision=dtype).dtype


def test_entries_of_many_features_in_little_memory(client):
    X = normal(ROWS, 200, 1)
    little = backends.Dask(300_000, client=client, block_rows=BLOCK)
    K, some = little.place(X).bind(RBF(10.0)), torch.arange(5)
    assert torch.equal(K.block(None, some), backends.default().bind(RBF(10.0), X).block(None, some))


def test_a_row_of_a_product_depends_on_no_other_point(backend):
    X, V, Z = normal(ROWS, 3, 1), normal(ROWS, 2, 2), normal(200, 3, 3)
    K = backend.bind(RBF(1.0), X)
    all_of_them = K.cross(Z, V)
    assert torch.equal(K.cross(Z[190:], V), all_of_them[190:])
    assert K.cross(Z[:0], V).shape == (0, 2)


class Cauchy(Kernel):
    width: torch.Tensor

    def covariance(self, X, Y):
        return 1 / (1 + squared_distances(X / self.width, Y / self.width))


def test_a_kernel_of_the_user_runs_on_the_workers(backend):
    X, V = normal(ROWS, 2, 1), normal(ROWS, 2, 2)
    kernel = Cauchy(1.5)
    here = backends.default().bind(kernel, X)
    found = backend.bind(kernel, X)
    assert (found.product(V) - here.product(V)).abs().max() <= 1e-12 * here.product(V).abs().max()
    assert (found.gradient(V, V) - here.gradient(V, V)).abs().max() <= 1e-12 * here.gradient(V, V).abs().max()


def test_what_arrives_is_aligned():
    """Sums over memory that begins anywhere differ in the last bit from run to run."""
    anywhere = np.empty(61)
    for shift in range(1, 3):
        rows = anywhere[shift : shift + 58].reshape(29, 2)
        rows[:] = 1.0
        assert tasks.placed(rows, torch.zeros(2, dtype=torch.float64)).X.data_ptr() % 64 == 0
    K = torch.from_numpy(np.random.default_rng(0).normal(size=2501)[1:].reshape(50, 50))
    V = ([(np.ones((50, 1)),)], 0)
    assert np.array_equal(tasks.product_of_entries(K, V, V)[0], tasks.product_of_entries(K.clone(), V, V)[0])


# data in a file


@pytest.fixture
def in_file(tmp_path):
    """Return a function X → the same numbers, mapped from a file."""

    def write(X):
        np.save(tmp_path / "X.npy", X.numpy())
        return np.load(tmp_path / "X.npy", mmap_mode="r")

    return write


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_workers_read_a_file_themselves(backend, in_file):
    kernel, X, V = Matern([1.0, 2.0]), normal(ROWS, 2, 1), normal(ROWS, 2, 2)
    mapped = in_file(X)
    reading = replace(backend, reference=Reference.of(mapped))
    K, sent = reading.bind(kernel, torch.from_numpy(mapped)), backend.bind(kernel, X)
    assert K.placed.is_by_reference
    assert torch.equal(K.product(V), sent.product(V))
    assert torch.equal(K.gradient(V, V), sent.gradient(V, V))
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))
    neighbours, D = sent.neighbours(order, 5), torch.full((ROWS,), 0.1, dtype=torch.float64)
    assert torch.equal(K.local_factors(neighbours, V, D, D), sent.local_factors(neighbours, V, D, D))
    assert not reading.bind(kernel, X).placed.is_by_reference, "other data than those of the file"


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_a_file_that_workers_do_not_see_is_named(backend, in_file):
    mapped = in_file(normal(ROWS, 2, 1))
    known = Reference.of(mapped)
    for wrong, words in (
        (replace(known.source, path="/nowhere/X.npy"), "cannot read /nowhere/X.npy"),
        (replace(known.source, offset=10**6), "has become shorter"),
    ):
        misled = replace(backend, reference=replace(known, source=wrong))
        with pytest.raises(ClusterFailed, match=words):
            misled.bind(RBF(1.0), torch.from_numpy(mapped)).product(normal(ROWS, 1))


def test_what_is_a_matrix_in_a_file(in_file, tmp_path):
    X = normal(ROWS, 2, 1)
    mapped = in_file(X)
    part = FileRows.of(np.asarray(mapped)[64:])  # scikit-learn hands on plain arrays
    assert np.array_equal(part.read(3, 10), X[67:74].numpy())
    for other in (X, X.numpy(), mapped[:, :1], mapped[1:3].astype(np.float32), mapped[0], np.load(tmp_path / "X.npy")):
        assert FileRows.of(other) is None
    assert FileRows.of(np.load(tmp_path / "X.npy", mmap_mode="r+")) is None, "somebody may write to it"


# blocks


def test_blocks_depend_on_the_rows_alone(backend):
    usual = backends.Dask(client=backend.client)
    for n in (1, LEAST_BLOCK, 30_000, 100_001, 10**6):
        found = usual.slices(n)
        sizes = [some.stop - some.start for some in found]
        assert sum(sizes) == n
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= max(LEAST_BLOCK, BLOCK_GROWTH * n**0.5 + 1)
    assert len(usual.slices(30_000)) == 6
    assert len(usual.slices(10**6)) == 35


def test_few_rows_stay_here(backend):
    K = backend.bind(RBF(1.0), normal(BLOCK, 2))
    assert K.backend.name() == backends.default().name()


# who computes changes nothing


def resized(client, count):
    """Return once the cluster has so many workers, which answer."""
    client.cluster.scale(count)
    deadline = time.monotonic() + PATIENCE
    while {len(client.scheduler_info(n_workers=-1)["workers"]), len(client.run(os.getpid, on_error="ignore"))} != {
        count
    }:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_same_bits_with_any_number_of_workers(client, backend):
    X, V, Z = normal(ROWS, 3, 1), normal(ROWS, 4, 2), normal(170, 3, 3)
    results = []
    try:
        for count in (2, 1, 3):
            resized(client, count)
            K = backend.bind(Matern(1.0), X)
            results.append((K.product(V), K.cross(Z, V), K.gradient(V, V)))
    finally:
        resized(client, 2)
    for other in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))


def pids(client):
    return sorted(client.run(os.getpid).values())


def test_a_worker_that_is_killed_changes_no_bit(client, backend):
    X, V = normal(ROWS, 3, 1), normal(ROWS, 4, 2)
    K = backend.bind(Matern(1.0), X)
    undisturbed = K.product(V)
    os.kill(pids(client)[0], signal.SIGKILL)  # with the blocks of X that it held
    assert torch.equal(K.product(V), undisturbed)
    await_both(client)
    killer = threading.Timer(0.02, os.kill, (pids(client)[0], signal.SIGKILL))
    killer.start()
    assert all(torch.equal(K.product(V), undisturbed) for _ in range(5))
    killer.join()
    await_both(client)


def test_a_worker_that_is_stopped_for_a_while_changes_no_bit(client, backend):
    X, V = normal(ROWS, 3, 1), normal(ROWS, 4, 2)
    K = backend.bind(Matern(1.0), X)
    undisturbed = K.product(V)
    stopped = pids(client)[0]
    waker = threading.Timer(1.5, os.kill, (stopped, signal.SIGCONT))
    os.kill(stopped, signal.SIGSTOP)
    waker.start()
    try:
        assert torch.equal(K.product(V), undisturbed)
    finally:
        waker.join()


# what goes wrong is said


def test_without_workers_it_gives_up(client, backend):
    X, V = normal(ROWS, 3, 1), normal(ROWS, 1, 2)
    impatient, calm = backends.Dask(client=client, block_rows=BLOCK, patience=0.5), backend.bind(RBF(1.0), X)
    undisturbed, K = calm.product(V), replace(calm, dask=impatient)
    try:
        resized(client, 0)
        with pytest.raises(ClusterFailed, match=r"no workers for 0\.5 s"):
            K.product(V)
        with pytest.raises(ClusterFailed, match="start workers"):
            impatient.bind(RBF(1.0), X).product(V)
    finally:
        resized(client, 2)
    assert torch.equal(calm.product(V), undisturbed)


def test_workers_are_counted_by_asking_the_scheduler(client, monkeypatch):
    """What Dask's client has heard last lacks the workers, if it comes from a query of its own."""

    async def of_its_own(n_workers=0):
        client._scheduler_identity = {"workers": {}}

    monkeypatch.setattr(client, "_update_scheduler_info", of_its_own)
    cluster = Cluster(client)
    assert (cluster.workforce().workers, cluster.workforce().threads) == (2, 2)
    assert len(cluster.each(os.getpid)) == 2


def test_a_scheduler_that_does_not_answer_for_a_while_is_not_one_without_workers(client, monkeypatch):
    class Busy:
        async def identity(self):
            raise TimeoutError

    impatient, pending = Cluster(client, patience=0.1), concurrent.futures.Future()
    later = threading.Timer(2.5, pending.set_result, ("done",))
    with monkeypatch.context() as patched:
        patched.setattr(client, "scheduler", Busy())
        later.start()
        assert impatient._awaited(pending) == "done"
    later.join()


class Broken(RBF):
    def covariance(self, X, Y):
        raise ZeroDivisionError("a formula that fails")


def test_an_exception_of_a_worker_is_raised_here(backend):
    with pytest.raises(ZeroDivisionError, match="a formula that fails"):
        backend.bind(Broken(1.0), normal(ROWS, 2)).product(normal(ROWS, 1))


def test_it_needs_a_client():
    with pytest.raises(ValueError, match="cluster"):
        backends.named("dask")
    assert backends.available()["dask"].usable


def test_once_closed_and_once_unpickled_the_work_is_done_here(client):
    from distributed import Client

    X, V = normal(ROWS, 2, 1), normal(ROWS, 2, 2)
    with Client(client.scheduler.address, set_as_default=False) as own:
        K = backends.Dask(client=own, block_rows=BLOCK).bind(RBF(1.0), X)
        found = K.product(V)
        copied = pickle.loads(pickle.dumps(K))
    assert copied.backend.name() == backends.default().name()
    for one in (K, copied):
        assert torch.allclose(one.product(V), found, rtol=1e-12, atol=1e-12)
        assert torch.allclose(one.cross(X[:5], V), found[:5], rtol=1e-12, atol=1e-12)
