"""`auto` with block PCG against the paper's Nyström with batched PCG, at tuned hyperparameters; y and 15 probes.

Writes results/tuned_problems.csv. Matérn-3/2 with one lengthscale per feature, training rows of split 0, inputs and
target z-scored by them; all 16 columns to a true relative residual of 1e-4. Hyperparameters: those published with
github.com/cambridge-mlg/sgd-gp, in ``tuned_hyperparameters.json`` beside the data; Power plant's are fitted here, to
1,500 rows. The preconditioner that `auto` builds may hold 1,200 numbers a row.
"""

import json
import math
import os
import time
from pathlib import Path

import numpy as np
import torch
from table import Table
from torch import Tensor

from kernelcg import datasets, planning
from kernelcg.backends import bind
from kernelcg.kernels import Matern
from kernelcg.operators import KernelPlusDiagonal
from kernelcg.preconditioners import recipe
from kernelcg.randomness import choose, rademacher, seeded
from kernelcg.solvers import Stopping, solve

SETS = ("powerplant", "uci_pol", "uci_elevators", "uci_protein")
COLUMNS, NUMBERS_PER_ROW = 16, 1200
LARGEST_IN_FLOAT64 = 20_000
"""Above it the peer runs in the precision of `auto` only: in float64 it takes seven minutes on Protein."""

STOPPING = Stopping(rtol=1e-4, max_iterations=2000, patience=2000)


def training_rows(name: str) -> tuple[Tensor, Tensor]:
    data = datasets.load(name)
    if data.test_mask is None:
        train = np.ones(len(data.y), dtype=bool)
        train[choose(len(train), len(train) // 10, seeded(0)).numpy()] = False
    else:
        train = ~data.test_mask[:, 0]
    values = np.c_[data.X[train], data.y[train]]
    values = torch.from_numpy((values - values.mean(0)) / values.std(0))
    return values[:, :-1].contiguous(), values[:, -1:].contiguous()


def tuned(name: str, X: Tensor, y: Tensor) -> tuple[Matern, float]:
    if name == "powerplant":
        return fitted(X, y)
    known = json.loads((Path(os.environ["KERNELCG_DATA"]) / "tuned_hyperparameters.json").read_text())["sets"][name]
    return Matern(torch.tensor(known["lengthscales"]), known["signal_sd"] ** 2, nu=1.5), known["noise_sd"] ** 2


def fitted(X: Tensor, y: Tensor, rows: int = 1500) -> tuple[Matern, float]:
    """Maximise the evidence of a subset by L-BFGS with dense Cholesky factors."""
    some = choose(len(X), rows, seeded(0))
    X, y = X[some], y[some]
    start = Matern(torch.ones(X.shape[1]), 1.0, nu=1.5)
    theta = torch.cat([start.log_parameters(), torch.tensor([math.log(0.05)])]).double().requires_grad_()
    optimizer = torch.optim.LBFGS([theta], max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        A = start.with_log_parameters(theta[:-1])(X, X) + theta[-1].exp() * torch.eye(rows, dtype=X.dtype)
        L = torch.linalg.cholesky(A)
        value = 0.5 * torch.linalg.solve_triangular(L, y, upper=False).square().sum() + L.diagonal().log().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return start.with_log_parameters(theta[:-1].detach()), float(theta[-1].detach().exp())


def seconds_of(work: object, repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()  # type: ignore[operator]
        times.append(time.perf_counter() - began)
    return min(times)


def run(name: str, table: Table) -> None:
    X, y = training_rows(name)
    kernel, noise = tuned(name, X, y)
    exact = KernelPlusDiagonal(bind(kernel, X), noise)
    n, dtype = len(X), planning.product_dtype(exact)
    B = torch.cat([y, rademacher(n, COLUMNS - 1, seeded(1), like=y)], 1)
    peers = {"nystrom, float64": exact, "nystrom": exact.with_precision(dtype)}
    if n > LARGEST_IN_FLOAT64:
        del peers["nystrom, float64"]
    for label, A in peers.items():
        product = seconds_of(lambda A=A: A @ B)
        began = time.perf_counter()
        P = recipe("nystrom").build(A, seeded(2))
        build = time.perf_counter() - began
        report = solve(A, B, method="pcg", preconditioner=P, stopping=STOPPING)
        add(table, name, n, label, product, build, P, B, report, 4 * math.isqrt(n))
    began = time.perf_counter()
    report, kept = planning.solve_automatically(A, B, stopping=STOPPING, memory=8 * NUMBERS_PER_ROW * n)
    total = time.perf_counter() - began
    P = None if kept.prepared is None else kept.prepared.factor(A.scale, A.diagonal)
    add(
        table,
        name,
        n,
        "auto",
        product,
        total - sum(a.solve_seconds for a in report.attempts),
        P,
        B,
        report,
        0 if P is None else kept.prepared.F.shape[1],
    )
    print(report)


def add(table, name, n, label, product, build, P, B, report, factor) -> None:  # type: ignore[no-untyped-def]
    prepared = getattr(P, "numbers", 0) / n + factor
    table.add(
        {
            "data": name,
            "n": n,
            "method": label,
            "products in": str(report.precision).removeprefix("torch."),
            "product s": round(product, 4),
            "build s": round(build, 3),
            "build in products": round(build / product, 1),
            "apply s": round(seconds_of(lambda: P.solve(B)), 4) if P is not None else 0,
            "numbers a row": round(prepared),
            "iterations": int(report.iterations.max()),
            "products": report.products,
            "total s": round(report.seconds + (0 if report.attempts else build), 2),
            "worst residual": f"{float(report.relative_residuals.max()):.1e}",
            "status": report.status.name,
            "chosen": "; ".join(attempt.what for attempt in report.attempts) or f"rank {factor}",
        }
    )


def main() -> None:
    table = Table()
    for name in SETS:
        run(name, table)
    table.save("tuned_problems.csv")


if __name__ == "__main__":
    main()
