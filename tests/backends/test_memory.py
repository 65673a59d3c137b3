"""The memory budget: refused before anything is allocated, kept by working in pieces, and true when measured."""

import subprocess
import sys

import pytest
from bound import gradient_of, product_of
from conftest import native_or_skip
from reference import TOLERANCE, gradient_error, kernel_matrix, product_error
from strategies import DTYPES, KERNELS, normal

from kernelcg.errors import MemoryBudgetExceeded


@pytest.mark.parametrize("name", ["rbf ard", "product"])
@pytest.mark.parametrize("backend_within", ["tiles", "native baseline"], indirect=True)
def test_a_budget_is_refused_or_the_result_is_right(backend_within, precision, name):
    """From far too small to ample: first refused, then, in pieces, right; no budget in between fails otherwise."""
    kernel, X, Y = KERNELS[name](3), normal(300, 3, 1), normal(200, 3, 2)
    left, V, W = normal(300, 20, 3), normal(300, 20, 4), normal(200, 20, 5)
    work = {
        "symmetric": (lambda b: product_of(b, kernel, X, X, V, precision=DTYPES[precision]), X, V),
        "rectangular": (lambda b: product_of(b, kernel, X, Y, W, precision=DTYPES[precision]), Y, W),
        "gradient": (lambda b: gradient_of(b, kernel, X, Y, left, W, precision=DTYPES[precision]), None, None),
    }
    for task, (run, other, columns) in work.items():
        fitted = []
        for memory in (100, 100_000, 200_000, 300_000, 400_000, 600_000, 1_000_000, 100_000_000):
            try:
                result = run(backend_within(memory))
            except MemoryBudgetExceeded:
                fitted.append(False)
                continue
            fitted.append(True)
            if task == "gradient":
                assert gradient_error(result, kernel, X, Y, left, W) < TOLERANCE[precision]
            else:
                assert product_error(result, kernel_matrix(kernel, X, other), columns) < TOLERANCE[precision]
        assert fitted == sorted(fitted), "a larger budget was refused"
        assert not fitted[0]
        assert fitted[-1]


MEASURE = """
import torch
from kernelcg import backends
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.kernels import *
torch.set_num_threads(1)

def resident_bytes(which):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(which))

def peak_bytes(work):
    "Return what work() needs beyond what is there before; its result is part of it."
    before = resident_bytes("VmRSS")
    work()
    return resident_bytes("VmHWM") - before

def normal(n, k, dtype=torch.float64):
    return torch.randn(n, k, dtype=dtype, generator=torch.Generator().manual_seed(0))

def warm(backend, kernel, d):  # libraries loaded, threads started
    X = normal(600, d)
    K = backend.bind(kernel, X)
    K.product(X, precision=torch.float32)
    K.gradient(X, X, precision=torch.float32)
"""


def measured(script):
    """Run the script in a fresh process and return the bytes it prints."""
    if not sys.platform.startswith("linux"):
        pytest.skip("resident memory is read from /proc")
    run = subprocess.run([sys.executable, "-c", MEASURE + script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


SLACK = 40e6
"""Bytes that are not the work's: pages of the allocator, of libraries and of threads touched for the first time."""


def test_a_native_product_of_200_000_rows_keeps_its_budget():
    """K would take 160 GB in float32."""
    native_or_skip()
    used = measured(
        "backend, X, V = backends.Native('300MB', threads=2), normal(200_000, 9), normal(200_000, 16, torch.float32)\n"
        "warm(backend, Matern(1.0), 9)\n"
        "print(peak_bytes(lambda: backend.bind(Matern(1.0), X).product(V, precision=torch.float32)))"
    )
    assert used < 300e6 + 4 * 16 * 200_000 + SLACK


def test_a_product_by_tiles_keeps_its_budget():
    """K would take 1.6 GB in float32."""
    used = measured(
        "backend, X, V = backends.Tiles('60MB'), normal(20_000, 9), normal(20_000, 16, torch.float32)\n"
        "warm(backend, RBF(1.0), 9)\n"
        "print(peak_bytes(lambda: backend.bind(RBF(1.0), X).product(V, precision=torch.float32)))"
    )
    assert used < 60e6 + 4 * 16 * 20_000 + SLACK


def test_the_gradient_of_a_long_sum_keeps_its_budget():
    """One tile of 512 rows takes 2 MB; autograd keeps several for every part."""
    used = measured(
        "kernel = RBF(1.0)\n"
        "for _ in range(15): kernel = kernel + RationalQuadratic(1.0) * Matern(2.0)\n"
        "backend, X = backends.Tiles('30MB'), normal(600, 2)\n"
        "warm(backend, RBF(1.0), 2)\n"
        "print(peak_bytes(lambda: backend.bind(kernel, X).gradient(X, X)))"
    )
    assert used < 30e6 + SLACK


def test_stored_entries_keep_the_budget_while_they_are_made():
    """6,000² float32 entries are 144 MB."""
    used = measured(
        "backend, X = backends.default('150MB'), normal(6_000, 4)\n"
        "warm(backend, RBF(1.0), 4)\n"
        "print(peak_bytes(lambda: backend.bind(RBF(1.0), X).stored(torch.float32)))"
    )
    assert used < 150e6 + SLACK


@pytest.mark.parametrize("name", ["Tiles", "Native"])
def test_a_hopeless_budget_is_refused_before_anything_is_allocated(name):
    """A million rows that occupy one row of memory: copying them takes 0.4 GB."""
    if name == "Native":
        native_or_skip()
    used = measured(
        f"backend, kernel = backends.{name}('1MB'), RBF(1.0)\n"
        "X, V = torch.zeros(1, 50, dtype=torch.float64).expand(10**6, 50), torch.zeros(1, 1).expand(10**6, 1)\n"
        f"warm(backends.{name}(), kernel, 2)\n"
        "def work():\n"
        "    few = backend.bind(kernel, X[:50])\n"
        "    for call in (lambda: backend.bind(kernel, X).product(V), lambda: backend.bind(kernel, X).gradient(V, V),\n"
        "                 lambda: few.cross(X, V[:50]), lambda: few.cross_block(X)):\n"
        "        try:\n"
        "            call()\n"
        "        except MemoryBudgetExceeded:\n"
        "            continue\n"
        "        raise AssertionError('not refused')\n"
        "print(peak_bytes(work))"
    )
    assert used < SLACK
