"""Tanimoto kernel of fingerprints: products by counting bits against torch tiles in the same run, then whole fits.

``python benchmarks/tanimoto.py`` takes 20,000 rows of 1,024 bits; ``--rows 4000`` is quick, ``--products-only`` leaves
out the fits. Seconds are of the wall clock, or with ``--cpu`` of the processor, which others on the machine do not
change; writes benchmarks/results/tanimoto.csv.
"""

import argparse
import csv
import time
from pathlib import Path

import numpy as np
import torch

from kernelcg import GPRegressor, KernelRidge
from kernelcg.backends import Native, Tiles
from kernelcg.kernels import Tanimoto

RESULTS = Path(__file__).parent / "results" / "tanimoto.csv"


def fingerprints(rows, bits, seed=0):
    """Return fingerprints of molecules in families, and an activity that depends on a few of their bits."""
    rng = np.random.default_rng(seed)
    families = rng.random((50, bits)) < 0.06
    X = families[rng.integers(50, size=rows)] ^ (rng.random((rows, bits)) < 0.02)
    weights = rng.normal(size=bits) * (rng.random(bits) < 0.1)
    return X.astype(float), X @ weights + 0.3 * rng.normal(size=rows)


def seconds(work, clock, times=3):
    best = float("inf")
    for _ in range(times):
        start = clock()
        work()
        best = min(best, clock() - start)
    return best


def products(X, clock):
    data = torch.from_numpy(X)
    native, tiles = Native().bind(Tanimoto(1.0), data), Tiles().bind(Tanimoto(1.0), data)
    for precision in (torch.float64, torch.float32):
        for k in (1, 16):
            V = torch.randn(len(X), k, dtype=torch.float64, generator=torch.Generator().manual_seed(k))
            native.product(V[:, :1], precision=precision)  # packs the words
            own = seconds(lambda V=V, p=precision: native.product(V, precision=p), clock)
            other = seconds(lambda V=V, p=precision: tiles.product(V, precision=p), clock, times=1)
            error = float((native.product(V) - tiles.product(V)).norm() / tiles.product(V).norm()) if k == 1 else None
            yield {
                "what": f"product, {precision}, {k} columns",
                "native": own,
                "tiles": other,
                "ratio": other / own,
                "difference": error,
            }


def fits(X, y, clock):
    cut = len(X) * 9 // 10
    for name, model in (
        ("KernelRidge", KernelRidge(alpha=0.1, kernel=Tanimoto(1.0))),
        ("GPRegressor", GPRegressor(kernel=Tanimoto(1.0), random_state=0)),
    ):
        own = seconds(lambda model=model: model.fit(X[:cut], y[:cut]), clock, times=1)
        yield {"what": f"{name}.fit", "native": own, "score": model.score(X[cut:], y[cut:])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--bits", type=int, default=1024)
    parser.add_argument("--products-only", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    clock = time.process_time if options.cpu else time.perf_counter
    X, y = fingerprints(options.rows, options.bits)
    names = ["rows", "bits", "threads", "clock", "what", "native", "tiles", "ratio", "difference", "score"]
    common = {"rows": options.rows, "bits": options.bits, "threads": torch.get_num_threads(), "clock": clock.__name__}
    with RESULTS.open("w", newline="") as file:
        table = csv.DictWriter(file, names)
        table.writeheader()
        for row in (*products(X, clock), *(() if options.products_only else fits(X, y, clock))):
            table.writerow(common | row)
            file.flush()  # an interrupted run leaves what it has measured
            words = (f"{key} {value:.3g}" if isinstance(value, float) else str(value) for key, value in row.items())
            print(", ".join(words), flush=True)


if __name__ == "__main__":
    main()
