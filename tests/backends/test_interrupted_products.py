"""Signals while compiled code works: what a handler raises ends the work early, and nothing else does."""

import signal
import subprocess
import sys

import pytest
from conftest import native_or_skip

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers for signals")

PREPARE = """
import signal, threading, time, torch
from kernelcg import _native
from kernelcg.backends import Native
from kernelcg.kernels import RBF

class Alarm(Exception):
    pass

def alarm(number, frame):
    raise Alarm

def points(rows):
    return torch.randn(rows, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

def packed(rows):
    return Native(threads=THREADS).packed(points(rows))

def column(rows, value):
    return torch.full((rows, 1), value, dtype=torch.float64)

HOW = (THREADS, _native.best_level())
"""

EARLY = """
signal.signal(signal.SIGALRM, alarm)
def is_early(work):
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        work()
    except Alarm:
        return True
    return False

A, B, out = packed(120_000), packed(90_000), column(120_000, torch.nan)
one = lambda: _native.product(A, None, column(120_000, 1.0), out, 1, *HOW)
print("product", is_early(one), bool(out.isnan().any()))
out, below = column(120_000, torch.nan), column(90_000, torch.nan)
both = lambda: _native.product_both_ways(A, B, column(90_000, 1.0), column(120_000, 1.0), out, below, 1, *HOW)
print("both ways", is_early(both), bool(out.isnan().any()))
X = points(60_000)
K = Native(threads=THREADS).bind(RBF(torch.full((8,), 2.0)), X)
print("gradient", is_early(lambda: K.gradient(X, X)))
N = (torch.arange(60_000)[:, None] - torch.arange(1, 200)).clamp_min(-1)
print("factors", is_early(lambda: K.local_factors(N, None, None, column(60_000, 1.0)[:, 0])))
small, ones, again = packed(500), column(500, 1.0), column(500, 0.0)  # the next calls are whole ones
_native.product(small, None, ones, again, 1, *HOW)
print("again", bool((again > 0).all()))
"""

SILENT = """
heard = []
signal.signal(signal.SIGALRM, lambda number, frame: heard.append(number))
A, found, V = packed(40_000), [], torch.sin(points(40_000)[:, :1])
for interval in (0.0, 0.01):
    out = torch.empty_like(V)
    signal.setitimer(signal.ITIMER_REAL, interval, interval)
    _native.product(A, None, V, out, 1, *HOW)
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    found.append(out)
print(len(heard) > 0, torch.equal(*found))

signal.signal(signal.SIGALRM, alarm)
out = column(40_000, torch.nan)
other = threading.Thread(target=_native.product, args=(A, None, V, out, 1, *HOW))
other.start()
try:
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    while other.is_alive():
        time.sleep(0.01)
    print("deaf")
except Alarm:
    print("heard")
while other.is_alive():
    time.sleep(0.01)
print(bool(out.isnan().any()))
"""


def lines_of(script, threads):
    """Run a script in a process of its own and return what it prints; a crash or a hang is a failure."""
    native_or_skip()
    code = PREPARE.replace("THREADS", str(threads)) + script.replace("THREADS", str(threads))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("threads", [1, 3])
def test_what_a_handler_raises_ends_the_work_before_it_is_done(threads):
    expected = ["product True True", "both ways True True", "gradient True", "factors True", "again True"]
    assert lines_of(EARLY, threads) == expected


def test_handlers_that_raise_nothing_change_no_bit_and_other_threads_go_on():
    assert lines_of(SILENT, 3) == ["True True", "heard", "False"]
