"""Speed of the two O(n²) operations, as ratios against peers in the same run; writes results/products.csv.

Every time is the least CPU time of several repetitions on one thread, except the column "2 threads", which
is wall-clock time. The roof is the time of n²((d + p)/2 + t) multiply-adds, p = 5 in float32 and 10 in
float64, at the rate of fused multiply-adds measured on the spot. Peers that are not installed or fail are left out,
with the reason.
"""

import argparse
import math
import time
from collections.abc import Callable

import numpy as np
import torch
from scipy.spatial.distance import cdist
from table import Table
from torch import Tensor

from kernelcg import _native
from kernelcg.backends import Native, Tiles
from kernelcg.kernels import RBF

POLYNOMIAL = {torch.float32: 5, torch.float64: 10}
Product = Callable[[Tensor, Tensor], object]


def least_time(action: Callable[[], object], clock: Callable[[], float], seconds: float) -> float:
    """Return the least time of an action, repeated for about this long and at least twice."""
    action()
    best, spent, repeats = math.inf, 0.0, 0
    while repeats < 2 or (spent < seconds and repeats < 25):
        began = clock()
        action()
        elapsed = clock() - began
        best, spent, repeats = min(best, elapsed), spent + elapsed, repeats + 1
    return best


def scipy_product(X: Tensor, V: Tensor) -> object:
    x, v = X.numpy(), V.numpy()
    return np.vstack([np.exp(-0.5 * cdist(x[i : i + 500], x, "sqeuclidean")) @ v for i in range(0, len(x), 500)])


def peers() -> dict[str, Product]:
    """Return the products of every peer that works here, checked on a small case."""
    found: dict[str, Product] = {
        "torch tiles": lambda X, V: Tiles().bind(RBF(1.0), X).product(V),
        "scipy": scipy_product,
    }
    try:
        import gpytorch

        found["gpytorch"] = lambda X, V: gpytorch.kernels.RBFKernel().initialize(lengthscale=1.0).to(X)(X) @ V
    except ImportError as error:
        print(f"gpytorch left out: {error}")
    try:
        from pykeops.torch import LazyTensor

        def keops(X: Tensor, V: Tensor) -> object:
            x, y = LazyTensor(X[:, None].contiguous()), LazyTensor(X[None].contiguous())
            return (-((x - y) ** 2).sum(-1) / 2).exp() @ V

        keops(torch.randn(10, 2), torch.randn(10, 1))
        found["keops"] = keops
    except Exception as error:  # a peer may fail in any way; the benchmark goes on without it
        print(f"keops left out: {type(error).__name__}: {error}")
    return found


def relative_error(X: Tensor, V: Tensor, dtype: torch.dtype) -> float:
    exact = Tiles().bind(RBF(1.0), X).cross(X[:500], V)
    ours = Native().bind(RBF(1.0), X).cross(X[:500], V, precision=dtype)
    return float((ours - exact).norm() / exact.norm())


def measure(
    n: int, d: int, t: int, dtype: torch.dtype, others: dict[str, Product], seconds: float
) -> dict[str, object]:
    """Return one row of the table."""
    generator = torch.Generator().manual_seed(0)
    X64 = torch.randn(n, d, generator=generator, dtype=torch.float64) / math.sqrt(d)
    V64 = torch.randn(n, t, generator=generator, dtype=torch.float64)
    X, V = X64.to(dtype), V64.to(dtype)
    kernel, ard = RBF(1.0), RBF(torch.ones(d) if d > 1 else 1.0)
    one, two = Native(threads=1).bind(kernel, X), Native(threads=2).bind(kernel, X)
    per_feature = one.with_kernel(ard)

    def product() -> object:
        return one.product(V)

    rate = _native.fma_rate(dtype == torch.float32, 1, _native.best_level())
    ours = least_time(product, time.process_time, seconds)
    wall = least_time(product, time.perf_counter, seconds)
    parallel = least_time(lambda: two.product(V), time.perf_counter, seconds)
    gradient = least_time(lambda: per_feature.gradient(V, V), time.process_time, seconds)
    shared = least_time(lambda: one.gradient(V, V), time.process_time, seconds)
    roof = n * n * ((d + POLYNOMIAL[dtype]) / 2 + t) / rate
    row: dict[str, object] = {
        "dtype": str(dtype).removeprefix("torch."),
        "n": n,
        "d": d,
        "t": t,
        "native ms": round(1e3 * ours, 1),
        "% of roof": round(100 * roof / ours),
        "2 threads": round(wall / parallel, 2),
        "gradient / product": round(gradient / ours, 2),
        "shared lengthscale": round(shared / ours, 2),
        "relative error": f"{relative_error(X64, V64, dtype):.1e}",
    }
    for name, peer in others.items():
        row[f"{name} x"] = round(least_time(lambda p=peer: p(X, V), time.process_time, seconds) / ours, 1)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=1.0, help="time spent on each number")
    options = parser.parse_args()
    torch.set_num_threads(1)
    others, table = peers(), Table()
    print(f"RBF, n = {options.n}, instruction set {_native.levels()[_native.best_level()][0]}; peers: times slower")
    for dtype in (torch.float32, torch.float64):
        for d in (4, 9, 57):
            for t in (1, 5, 16):
                table.add(measure(options.n, d, t, dtype, others, options.seconds))
    table.save("products.csv")


if __name__ == "__main__":
    main()
