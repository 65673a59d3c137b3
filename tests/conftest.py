"""Fixtures shared by all tests."""

import os

import pytest
from bound import Storing
from hypothesis import HealthCheck, Phase, settings
from strategies import BACKENDS, DTYPES, NATIVE

from kernelcg import backends

os.environ["KERNELCG_PROFILE"] = "typical"  # the same choices on every machine

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


@pytest.fixture(scope="session", params=BACKENDS)
def backend_for(request):
    """Return a function (kernel, X, precision) → something that binds; each backend of this machine in turn."""

    def make(kernel, X, precision=None):
        if request.param in NATIVE:
            return native_or_skip(**NATIVE[request.param])
        tiles = backends.Tiles()
        return tiles if request.param == "tiles" else Storing(tiles, precision)

    return make


@pytest.fixture(scope="session", params=[name for name in BACKENDS if name != "dense"])
def backend_within(request):
    """Return a function memory → backend, for the backends that store nothing."""
    if request.param in NATIVE:
        return lambda memory=None: native_or_skip(memory, **NATIVE[request.param])
    return backends.Tiles


@pytest.fixture(scope="session")
def client():
    """Return a connection to two workers, processes of this machine with one thread each."""
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": "CRITICAL"}
    with distributed.LocalCluster(**options) as own, distributed.Client(own, set_as_default=False) as found:
        yield found


@pytest.fixture(scope="session", params=DTYPES)
def precision(request):
    """Return the name of a precision in which products are computed, "float32" or "float64"."""
    return request.param
