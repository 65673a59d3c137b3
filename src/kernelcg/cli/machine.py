"""Commands about this machine: what it can do, and a demonstration."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table as RichTable

from kernelcg import backends
from kernelcg.cli.words import line, show
from kernelcg.planning.plan import in_bytes, in_time
from kernelcg.planning.planner import Options, Resources, Workload, planned
from kernelcg.planning.pricing import pricing_of
from kernelcg.randomness import normal, seeded

SIZES = (1_000, 5_000, 20_000, 100_000)
"""Rows for which a fit is priced."""

FEATURES = 8

DEMO_FILES = ("houses.csv", "new_houses.csv", "houses.kcg", "houses.html")
"""What the demonstration writes: a table, rows to predict, the model and its page."""


def run_bench(rows: int) -> None:
    """Measure products and a factorisation, and price fits of several sizes."""
    from kernelcg.kernels import RBF, Matern

    backend = backends.default()
    print(line("backend", f"{backend.name()}; {', '.join(backends.available())}"))
    print(line("memory", in_bytes(backend.budget())))
    like, scale = torch.zeros(0, dtype=torch.float64), torch.full((FEATURES,), 2.0, dtype=torch.float64)
    X, V = normal(rows, FEATURES, seeded(0), like), normal(rows, 8, seeded(1), like)
    for name, kernel in (("RBF", RBF(scale)), ("Matérn-3/2", Matern(scale, nu=1.5))):
        K = backends.bind(kernel, X)
        for precision in (torch.float32, torch.float64):
            seconds = _seconds(partial(K.product, V, precision=precision))
            rate = rows**2 / seconds / 1e9
            kind = str(precision).removeprefix("torch.")
            print(
                line(
                    "product", f"{name}, {kind}, {rows:,} rows, 8 columns: {1e3 * seconds:.0f} ms, {rate:.2g}e9 pairs/s"
                )
            )
    table = RichTable(
        "rows", "method", "a fit takes about", "memory", title=f"default GPRegressor, {FEATURES} features"
    )
    for n in SIZES:
        work = Workload(n, FEATURES, 2, parameters=FEATURES + 2)
        pricing = pricing_of(Matern(scale), X, backend)
        plan = planned(work, Options(), Resources.of(backend, X.device, pricing))
        table.add_row(f"{n:,}", str(plan.method), in_time(plan.seconds), in_bytes(plan.bytes))
    Console().print(table)


def _seconds(work: Callable[[], object]) -> float:
    """Return how long some work takes the second time."""
    work()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def run_demo(folder: Path, *, quiet: bool) -> int:
    """Write a table of invented houses, fit it, predict some, and write the report."""
    from kernelcg.cli.fitting import FitRequest, run_fit, run_predict
    from kernelcg.tables.fitting import prepare
    from kernelcg.tables.houses import houses
    from kernelcg.tables.reading import read_table

    folder.mkdir(parents=True, exist_ok=True)
    data, new, model, page = (folder / name for name in DEMO_FILES)
    frame = houses()
    frame.to_csv(data, index=False)
    frame.drop(columns="price").head(5).assign(area=lambda t: t.area + 20).to_csv(new, index=False)
    show(f"$ kernelcg fit {data} --target price --out {model}")
    code = run_fit(prepare(read_table(data), "price"), FitRequest(model, page, quiet=quiet))
    show(f"$ kernelcg predict {model} {new}")
    run_predict(
        model, str(new), out=None, interval=0.95, keep=False, delimiter=None, encoding=None, quiet=True, digits=4
    )
    return code
