"""Fixtures shared by all tests."""

import os

import pytest
import torch
from both_workers import await_both
from bound import OnGpu, Storing
from hypothesis import HealthCheck, Phase, settings
from strategies import BACKENDS, DTYPES, NATIVE, TRITON

from kernelcg import backends
from kernelcg.estimators.cluster_connection import PATIENT

os.environ["KERNELCG_PROFILE"] = "typical"  # the same choices on every machine
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # GPU kernels run on the CPU, in NumPy

settings.register_profile(
    "kernelcg", deadline=None, max_examples=25, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("fuzz", settings.get_profile("kernelcg"), derandomize=False, max_examples=500)
settings.register_profile("quick", settings.get_profile("kernelcg"), phases=[Phase.explicit, Phase.generate])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "kernelcg"))


def native_or_skip(memory=None, **options):
    """Return a native backend, or skip the test saying why there is none."""
    native = backends.available()["native"]
    if not native.usable:
        pytest.skip(native.reason)
    level = options.get("level")
    if level is not None and backends.levels()[level] != "usable":
        pytest.skip(f"{level}: {backends.levels()[level]}")
    return backends.Native(memory, **options)


TOO_LARGE_TO_INTERPRET = {
    "test_the_same_call_gives_the_same_bits",
    "test_calls_from_several_threads_do_not_disturb_each_other",  # the interpreter cannot be called from several
}


def pytest_collection_modifyitems(config, items):
    """Mark what needs a GPU; leave it out where there is none, and the interpreter where there is one."""
    left_out = TRITON[0] if torch.cuda.is_available() else TRITON[1]
    kept, dropped = [], []
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        backend = parameters.get("backend_for", parameters.get("backend_within"))
        if backend == TRITON[1]:
            item.add_marker(pytest.mark.gpu)
        too_large = backend == TRITON[0] and item.originalname in TOO_LARGE_TO_INTERPRET
        (dropped if backend == left_out or too_large else kept).append(item)
    config.hook.pytest_deselected(items=dropped)
    items[:] = kept


def triton_or_skip(name, memory=None):
    """Return the Triton backend, on a GPU if that is asked for, or skip the test saying why there is none."""
    triton = backends.available()["triton"]
    if not triton.usable:
        pytest.skip(triton.reason)
    backend = backends.named("triton", memory)
    return OnGpu(backend) if name == TRITON[1] else backend


@pytest.fixture(scope="session", params=BACKENDS)
def backend_for(request):
    """Return a function (kernel, X, precision) → something that binds; each backend of this machine in turn."""

    def make(kernel, X, precision=None):
        if request.param in NATIVE:
            return native_or_skip(**NATIVE[request.param])
        if request.param in TRITON:
            return triton_or_skip(request.param)
        tiles = backends.Tiles()
        return tiles if request.param == "tiles" else Storing(tiles, precision)

    return make


@pytest.fixture(scope="session", params=[name for name in BACKENDS if name not in ("dense", TRITON[0])])
def backend_within(request):
    """Return a function memory → backend, for the backends that store nothing and are fast enough for many shapes."""
    if request.param in NATIVE:
        return lambda memory=None: native_or_skip(memory, **NATIVE[request.param])
    if request.param in TRITON:
        return lambda memory=None: triton_or_skip(request.param, memory)
    return backends.Tiles


@pytest.fixture(scope="session")
def two_workers():
    """Return a connection to two workers, processes of this machine with one thread each."""
    distributed = pytest.importorskip("distributed")
    import dask

    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": "CRITICAL"}
    with (
        dask.config.set(PATIENT),
        distributed.LocalCluster(**options) as own,
        distributed.Client(own, set_as_default=False) as found,
    ):
        yield found


@pytest.fixture
def client(two_workers):
    """Return the connection to the two workers once both answer, whatever another test has done to them."""
    await_both(two_workers)
    return two_workers


@pytest.fixture
def small_blocks(monkeypatch):
    """Let a few rows be enough for a cluster."""
    from kernelcg.backends import dask

    monkeypatch.setattr(dask, "LEAST_BLOCK", 120)
    monkeypatch.setattr(dask, "BLOCK_GROWTH", 1.0)


@pytest.fixture(scope="session", params=DTYPES)
def precision(request):
    """Return the name of a precision in which products are computed, "float32" or "float64"."""
    return request.param
