"""The Triton backend by itself, in Triton's interpreter: number formats, boundaries of tiles, kernels that fail.

The contract of all backends is in the other files.
"""

import logging
import math
import pickle
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import triton_or_skip
from reference import TOLERANCE, array, block_error, gradient_error, kernel_matrix, product_error
from strategies import DTYPES, KERNELS, TRITON, normal

from kernelcg import GPRegressor, backends
from kernelcg.backends import triton as triton_backend
from kernelcg.backends.tiles import TilesMatrix
from kernelcg.backends.triton import forms
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.kernels import RBF, Matern
from kernelcg.planning.costs import Pricing
from kernelcg.planning.planner import Options, Resources, Workload, planned

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="GPU kernels are tested on the GPU here")


@pytest.fixture
def backend():
    return triton_or_skip(TRITON[0])


def squares(Z, Y):
    return ((array(Z)[:, None] - array(Y)) ** 2).sum(2)


# number formats


@pytest.mark.parametrize("d", [1, 9, 12, 13, 60, 61, 130, 512])
def test_halves_give_distances_without_cancellation(d):
    """Multiplied and added exactly, as tensor cores do, neighbours are as far apart as their float64 coordinates."""
    Z = 8 * normal(40, d, 1) / math.sqrt(d)
    Z[1::2] = Z[::2] + 1e-3 * normal(20, d, 2) / math.sqrt(d)
    radius = float(Z.norm(dim=1).max())
    A = forms.fixed_point(Z, forms.step_for(radius))
    left, right = (array(M[: A.count]) for M in (A.left, A.right))
    high, low = slice(None, A.features), slice(A.features, None)
    whole = left[:, high] @ right[:, high].T
    assert np.array_equal(whole, whole.astype(np.float32))
    assert np.abs(whole).max() < 2**23
    rest = left[:, high] @ right[:, low].T + left[:, low] @ right[:, high].T + left[:, low] @ right[:, low].T
    q, truth = -2 * A.step**2 * (whole + rest), squares(Z, Z)
    assert np.all(np.abs(q - truth) <= 4 * math.sqrt(d) * radius * 2.0**-23 * np.sqrt(truth) + 1e-9 * radius**2)


def test_no_partial_sum_of_whole_numbers_is_rounded():
    """In float32 and in any order: each is a multiple of ½ below 2²³."""
    Z = 8 * normal(30, 9, 1)
    A = forms.fixed_point(Z, forms.step_for(float(Z.norm(dim=1).max())))
    order = np.random.default_rng(0).permutation(A.features)
    products = array(A.left[:30, None, : A.features]) * array(A.right[None, :30, : A.features])
    partial = np.cumsum(products[:, :, order], axis=2)
    assert np.array_equal(partial, partial.astype(np.float32))


@pytest.mark.parametrize("k", [2, 16, 17])
def test_split_columns_have_22_bits(k):
    V = normal(50, k, 3)
    V = V / V.abs().max()
    V[3] *= 1e-6
    halves = forms.columns_for(V, torch.float32)
    T = halves.shape[1] // 2
    found = (halves[:, :T].double() + halves[:, T:].double()) / 2**forms.COLUMN_SHIFT
    assert torch.all((found[:50, :k] - V).abs() <= 2.0**-22 * V.abs() + 2.0**-39)
    assert not found[50:].any()
    assert not found[:, k:].any()


# boundaries of tiles, parts and chunks


@pytest.mark.parametrize("n", [1, 127, 129])
def test_rows_around_a_tile(backend, precision, n):
    kernel, X, V = KERNELS["matern32 ard"](2), normal(n, 2, 1), normal(n, 2, 2)
    K, truth = backend.bind(kernel, X), kernel_matrix(kernel, X, X)
    assert product_error(K.product(V, precision=DTYPES[precision]), truth, V) < TOLERANCE[precision]
    assert block_error(K.block(precision=DTYPES[precision]), truth) < TOLERANCE[precision]
    assert gradient_error(K.gradient(V, V, precision=DTYPES[precision]), kernel, X, X, V, V) < TOLERANCE[precision]


@pytest.mark.parametrize(
    ("precision", "k"),
    [*(("float32", k) for k in (1, 15, 33, 128, 130)), *(("float64", k) for k in (1, 32, 33))],
    indirect=["precision"],
)
def test_numbers_of_columns(backend, precision, k):
    kernel, X, V, W = KERNELS["rbf ard"](2), normal(40, 2, 1), normal(40, k, 2), normal(40, k, 3)
    K = backend.bind(kernel, X)
    found = K.product(V, precision=DTYPES[precision])
    assert product_error(found, kernel_matrix(kernel, X, X), V) < TOLERANCE[precision]
    found = K.gradient(V, W, precision=DTYPES[precision])
    assert gradient_error(found, kernel, X, X, V, W) < TOLERANCE[precision]


@pytest.mark.parametrize("d", [12, 13, 61, 130])
def test_numbers_of_features(backend, d):
    kernel, X, V = KERNELS["matern52 ard"](d), normal(30, d, 1), normal(30, 2, 2)
    K, single = backend.bind(kernel, X), torch.float32
    assert product_error(K.product(V, precision=single), kernel_matrix(kernel, X, X), V) < TOLERANCE["float32"]
    assert gradient_error(K.gradient(V, V, precision=single), kernel, X, X, V, V) < TOLERANCE["float32"]


def test_512_features(backend):
    kernel, X, V = RBF(20.0), normal(20, 512, 1), normal(20, 2, 2)
    found = backend.bind(kernel, X).product(V, precision=torch.float32)
    assert product_error(found, kernel_matrix(kernel, X, X), V) < TOLERANCE["float32"]
    assert not backend.computes(kernel, normal(2, 513))


def test_columns_in_several_parts(backend):
    kernel, X, Z, V = Matern(1.0, nu=2.5), normal(1300, 1, 1), normal(3, 1, 2), normal(1300, 2, 3)
    found = backend.bind(kernel, X).cross(Z, V, precision=torch.float32)
    assert product_error(found, kernel_matrix(kernel, Z, X), V) < TOLERANCE["float32"]


def test_rows_in_several_launches(backend, monkeypatch):
    monkeypatch.setattr("kernelcg.backends.triton.launches.PARTIAL_SUMS", 64 * 16)
    kernel, X, V = KERNELS["rbf ard"](2), normal(150, 2, 1), normal(150, 3, 2)
    K = backend.bind(kernel, X)
    found = K.product(V, precision=torch.float32)
    assert product_error(found, kernel_matrix(kernel, X, X), V) < TOLERANCE["float32"]
    found = K.gradient(V, V, precision=torch.float32)
    assert gradient_error(found, kernel, X, X, V, V) < TOLERANCE["float32"]


# accuracy however wide the data are


@pytest.mark.parametrize("name", ["rbf ard", "matern12", "matern32", "matern52"])
@pytest.mark.parametrize("spread", [3, 30, 1e3, 1e6])
def test_narrow_and_wide_data(backend, name, spread):
    """Pairs of neighbours all over the place, so that there are entries beside 0 and 1."""
    kernel = KERNELS[name](3)
    X = spread * normal(100, 3, 1)
    X[1::2] = X[::2] + 0.3 * normal(50, 3, 2)
    X[4] = X[5]
    K, V, W = backend.bind(kernel, X), normal(100, 3, 3), normal(100, 3, 4)
    accepted = TOLERANCE["float32"] * max(1.0, spread / 30)  # float32 coordinates have no more digits
    found = K.product(V, precision=torch.float32)
    assert product_error(found, kernel_matrix(kernel, X, X), V) < accepted
    assert gradient_error(K.gradient(V, W, precision=torch.float32), kernel, X, X, V, W) < accepted


def test_points_outside_of_the_data_change_no_bit_of_the_others(backend):
    kernel, X, V = KERNELS["matern32 ard"](3), normal(150, 3, 1), normal(150, 4, 3)
    near, K = normal(5, 3, 2), backend.bind(kernel, X)
    alone = K.cross(near, V, precision=torch.float32)
    for far in (30.0, 1e8, 1e30):
        points = torch.cat([near[:2], far * torch.ones(1, 3, dtype=torch.float64), near[2:]])
        found = K.cross(points, V, precision=torch.float32)
        assert product_error(found, kernel_matrix(kernel, points, X), V) < TOLERANCE["float32"]
        if far < 1e15:
            assert torch.equal(found[[0, 1, 3, 4, 5]], alone)


def test_the_same_call_gives_the_same_bits_and_a_copy_computes_the_same(backend, precision):
    kernel, X, V = KERNELS["matern32 ard"](3), normal(70, 3, 1), normal(70, 3, 2)
    K, dtype = backend.bind(kernel, X), DTYPES[precision]
    copy = pickle.loads(pickle.dumps(K))
    for one in (K, copy):
        assert torch.equal(one.product(V, precision=dtype), K.product(V, precision=dtype))
        assert torch.equal(one.gradient(V, V, precision=dtype), K.gradient(V, V, precision=dtype))


def test_a_budget_that_is_too_small_is_refused_before_anything_is_copied(backend):
    X, V = normal(50, 3, 1), normal(50, 4, 2)
    many = torch.zeros(1, 3, dtype=torch.float64).expand(10**8, 3)
    K = backends.named("triton", "1MB").bind(RBF(1.0), X)
    for work in (lambda: K._cross(many, V, torch.float32), lambda: K._cross_block(many, None, torch.float64)):
        with pytest.raises(MemoryBudgetExceeded, match="100000000 x 50"):
            work()
    with pytest.raises(MemoryBudgetExceeded, match="50 x 50"):
        backends.named("triton", 3700).bind(RBF(1.0), X).product(V)


# where a kernel cannot be used


@pytest.fixture
def checked(backend, monkeypatch):
    """Return the backend as on a GPU, where every kernel is tried before it is used."""
    from kernelcg.backends.triton import shapes

    monkeypatch.setattr(shapes, "TRIAL_COLUMNS", 70)
    shapes.why_wrong.cache_clear()
    yield backend
    shapes.why_wrong.cache_clear()


def bound_and_checked(backend, kernel, X):
    K = backend.bind(kernel, X)
    object.__setattr__(K, "checked", True)
    return K


def test_a_kernel_that_is_right_is_used(checked, monkeypatch, caplog):
    kernel, X, V = RBF([1.0, 2.0]), normal(30, 2, 1), normal(30, 2, 2)
    K = bound_and_checked(checked, kernel, X)
    for name in ("_product", "_gradient", "_entries"):
        monkeypatch.delattr(TilesMatrix, name)
    for dtype in DTYPES.values():
        K.product(V, precision=dtype)
        K.gradient(V, V, precision=dtype)
        K.gradient(V, V, weights=torch.ones(30, 30, dtype=torch.float64), precision=dtype)
        K.block(precision=dtype)
    assert not caplog.records


@pytest.mark.parametrize("how", ["wrong", "does not compile"])
@pytest.mark.parametrize("work", ["product", "gradient", "gradient_by_moments", "block"])
def test_tiles_serve_where_a_kernel_fails_and_the_reason_is_logged(checked, monkeypatch, caplog, work, how):
    from kernelcg.backends.triton import launches

    right = getattr(launches, work)

    def broken(*arguments, **named):
        if how == "does not compile":
            raise RuntimeError("out of resource: shared memory")
        return 1.001 * right(*arguments, **named)

    monkeypatch.setattr(launches, work, broken)
    kernel, X, V = RBF([1.0, 2.0]), normal(30, 2, 1), normal(30, 2, 2)
    K, truth = bound_and_checked(checked, kernel, X), kernel_matrix(RBF([1.0, 2.0]), X, X)
    with caplog.at_level(logging.WARNING, "kernelcg"):
        for dtype in DTYPES.values():
            name = str(dtype).removeprefix("torch.")
            assert product_error(K.product(V, precision=dtype), truth, V) < TOLERANCE[name]
            assert product_error(K.cross(X.clone(), V, precision=dtype), truth, V) < TOLERANCE[name]
            assert block_error(K.block(precision=dtype), truth) < TOLERANCE[name]
            assert gradient_error(K.gradient(V, V, precision=dtype), kernel, X, X, V, V) < TOLERANCE[name]
    reasons = [record.getMessage() for record in caplog.records]
    assert all("torch tiles serve" in reason for reason in reasons)
    assert any(("shared memory" if how == "does not compile" else "its error is") in reason for reason in reasons)


def test_without_triton_it_says_so_and_tiles_serve(monkeypatch):
    monkeypatch.setattr(triton_backend, "_missing", lambda: "Triton cannot be imported (broken)")
    listed = backends.available()["triton"]
    assert not listed.usable
    assert "broken" in listed.reason
    assert backends.default(device="cuda").name() == "tiles"
    with pytest.raises(RuntimeError, match="broken"):
        backends.named("triton")


def test_an_old_triton_is_left_alone(backend, monkeypatch):
    triton_backend._missing.cache_clear()
    monkeypatch.setattr(sys.modules["triton"], "__version__", "3.0.0")
    assert "Triton 3.0.0 is too old" in backends.available()["triton"].reason
    triton_backend._missing.cache_clear()


def test_a_plan_by_tiles_says_why_triton_is_not_used(monkeypatch):
    monkeypatch.setattr(triton_backend, "_missing", lambda: "Triton cannot be imported (broken)")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=2**36))
    resources = Resources.of(backends.default(device="cuda"), torch.device("cuda"), Pricing())
    plan = planned(Workload(rows=1000, features=3), Options(), resources)
    assert plan.backend == "tiles"
    assert "triton cannot be used: Triton cannot be imported (broken)" in plan.explain()
    assert "triton" not in planned(Workload(1000, 3), Options(), replace(resources, passed_over=())).explain()


def test_without_a_gpu_and_an_interpreter_it_says_so(backend, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert "no GPU" in backends.available()["triton"].reason
    assert not backend.computes(RBF(1.0), normal(3, 2))


def test_a_gpu_on_which_triton_fails_is_left_to_tiles(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr(triton_backend, "_missing", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(triton_backend, "_trial", lambda device: "Triton does not work on this GPU: no compiler")
    assert backends.default(device="cuda").name() == "tiles"
    monkeypatch.setattr(triton_backend, "_trial", lambda device: None)
    assert backends.default(device="cuda").name() == "triton"
    assert backends.default(device="cpu").name() in ("native", "tiles")


# tuned tiles


@pytest.fixture
def tiles(tmp_path, monkeypatch, backend):
    """Return a function that writes a file of tiles, {work: tile}, and names it."""
    from kernelcg.backends.triton import shapes

    def name(text):
        path = tmp_path / f"tiles{len(list(tmp_path.iterdir()))}.json"
        path.write_text(text)
        monkeypatch.setenv(shapes.SETTING, str(path))
        return path

    return name


def test_the_fastest_right_tile_is_found_stored_and_used(checked, tiles, monkeypatch):
    from kernelcg.backends.triton import launches, shapes, tuning

    monkeypatch.setattr(tuning, "ROWS", 40)
    monkeypatch.setattr(tuning, "CANDIDATES", {torch.float32: [(64, 32, 4), (32, 16, 4), (16, 16, 4)]})
    shape = shapes.shape_for("product", torch.float32, 2, 3, 4, fixed=True)
    wrong, fast = launches.Tile(16, 16, 4, 3), launches.Tile(32, 16, 4, 3)
    real, used = launches.product, []

    def product(A, B, V, profile, tile):
        used.append(tile)
        return real(A, B, V, profile, tile) * (2.0 if tile == wrong else 1.0)

    monkeypatch.setattr(launches, "product", product)

    def seconds(work):
        work()
        return 0.5 if used[-1] == fast else 1.0

    times = tuning.fastest(shape, torch.device("cpu"), seconds)
    assert next(iter(times)) == fast
    assert wrong not in times
    assert shape.tile in times
    path = tiles("{}")
    tuning.write(path, [(shape, tuning.chosen(shape, times))])
    K, V = checked.bind(KERNELS["matern32 ard"](3), normal(40, 3, 1)), normal(40, 4, 2)
    found = K.product(V, precision=torch.float32)
    assert used[-1] == fast
    assert product_error(found, kernel_matrix(K.kernel, K.X, K.X), V) < TOLERANCE["float32"]
    assert tuning.chosen(shape, {shape.tile: 1.0, fast: 0.97}) == shape.tile


@pytest.mark.parametrize(
    "text", ["", "[]", '{"a": [64, 48, 4, 2]}', '{"a": [64, 64, 3, 2]}', '{"a": 7}', '{"a": [8, 64, 4, 2]}']
)
def test_a_file_that_holds_no_tiles_is_refused_by_name(tiles, backend, text):
    path = tiles(text)
    with pytest.raises(ValueError, match=path.name):
        backend.bind(RBF(1.0), normal(5, 2)).product(normal(5, 2))


# a whole fit


@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_a_fit_is_that_of_the_other_backends(backend, monkeypatch, method):
    generator = np.random.default_rng(0)
    X, Z = generator.normal(size=(150, 3)), generator.normal(size=(9, 3))
    y = np.sin(X[:, 0]) + 0.3 * generator.normal(size=150)

    def fitted():
        options = {"noise": 0.1, "optimizer": None, "method": method, "random_state": 0, "device": "cpu"}
        return GPRegressor(kernel=Matern(1.5 * torch.ones(3, dtype=torch.float64)), **options).fit(X, y)

    expected = fitted().predict(Z, return_std=True)
    monkeypatch.setattr(backends, "default", lambda memory, threads, device: backends.named("triton", memory, threads))
    model = fitted()
    assert model.plan_.backend == "triton"
    for found, truth in zip(model.predict(Z, return_std=True), expected, strict=True):
        np.testing.assert_allclose(found, truth, rtol=1e-9, atol=1e-9)
