"""The memory budget of recipes: the least one that is accepted bounds what building P really allocates."""

import subprocess
import sys

import pytest

MEASURE = """
import torch
from kernelcg.backends import default
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.kernels import Matern
from kernelcg.operators import KernelPlusDiagonal
from kernelcg.preconditioners import recipe
from kernelcg.randomness import seeded
torch.set_num_threads(1)

def resident_bytes(which):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(which))

def build(X, memory, S):
    A = KernelPlusDiagonal(default(memory).bind(Matern(1.0, nu=1.5), X), 0.1, S)
    return recipe({name!r}, **{options!r}).build(A, seeded(0))

build(torch.rand(500, 3, dtype=torch.float64), None, None)  # what is loaded on first use is not counted
n = 20_000
X, S = torch.rand(n, 3, dtype=torch.float64), torch.rand(n, dtype=torch.float64)
memory = 20_000_000
while True:
    try:
        before = resident_bytes("VmRSS")
        build(X, memory, S)
        break
    except MemoryBudgetExceeded:
        memory = int(1.2 * memory)
print(memory, resident_bytes("VmHWM") - before)
"""


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("nystrom", {"rank": 200}),
        ("rp_cholesky", {"rank": 200}),
        ("pitc", {"rank": 200, "block_size": 50}),
        ("vecchia", {"neighbours": 20}),
        ("low_rank_vecchia", {"rank": 150, "neighbours": 20}),
        ("block_jacobi", {"block_size": 100}),
    ],
)
def test_the_budget_bounds_the_peak(name, options):
    program = MEASURE.format(name=name, options=options)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    budget, peak = map(int, done.stdout.split())
    assert peak <= 1.1 * budget, f"{peak / budget:.2f} times the budget"
