"""Fixtures shared by all tests."""

import pytest
from hypothesis import HealthCheck, settings
from strategies import DTYPES

from kernelcg import backends

settings.register_profile("kernelcg", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kernelcg")

NATIVE = {
    "native baseline": {"level": "baseline", "threads": 1},
    "native avx2": {"level": "avx2", "threads": 1},
    "native avx512": {"level": "avx512", "threads": 1},
    "native 2 threads": {"threads": 2},
}


def native_or_skip(memory=None, **options):
    """Return a native backend, or skip the test saying why there is none."""
    native = backends.available()["native"]
    if not native.usable:
        pytest.skip(native.reason)
    level = options.get("level")
    if level is not None and backends.levels()[level] != "usable":
        pytest.skip(f"{level}: {backends.levels()[level]}")
    return backends.Native(memory, **options)


@pytest.fixture(scope="session", params=["tiles", "dense", *NATIVE])
def backend_for(request):
    """Return a function (kernel, X, precision, memory) → backend; each backend of this machine in turn."""
    name = request.param
    if name in NATIVE:
        native_or_skip(**NATIVE[name])

    def make(kernel, X, precision=None, memory=None):
        if name in NATIVE:
            return backends.Native(memory, **NATIVE[name])
        base = backends.Tiles(memory)
        return base if name == "tiles" else backends.store(kernel, X, base, precision=precision)

    return make


@pytest.fixture(scope="session", params=["tiles", *NATIVE])
def backend_within(request):
    """Return a function memory → backend, for the backends that store nothing."""
    name = request.param
    if name in NATIVE:
        native_or_skip(**NATIVE[name])
        return lambda memory=None: backends.Native(memory, **NATIVE[name])
    return backends.Tiles


@pytest.fixture
def native():
    """Return the class Native, or skip."""
    native_or_skip()
    return backends.Native


@pytest.fixture(scope="session", params=DTYPES)
def precision(request):
    """Return the name of a precision in which products are computed, "float32" or "float64"."""
    return request.param
