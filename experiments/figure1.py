"""Run figure 1 of Cutajar et al. (2016): CG and preconditioned CG over a grid of lengthscales and noises.

Every finished cell is a row of results/figure1.csv; a second run does what is missing and no more. See README.md.
"""

import argparse
import importlib.metadata
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import protocol
import torch
from ledger import Ledger
from protocol import CAPS, CG, DIAGONAL, LENGTHSCALES, METHODS, NOISES, Method
from torch import Tensor

from kernelcg import backends, datasets, planning, preconditioners
from kernelcg.events import Listener
from kernelcg.kernels import RBF
from kernelcg.operators import CountsInner, Invertible, KernelPlusDiagonal
from kernelcg.randomness import child, seeded
from kernelcg.solvers import SolveReport, Status, Stopping, solve

RESULTS = Path(__file__).parent / "results"
SEED = 48
KEY = ("dataset", "log10_lengthscale", "log10_noise", "method")
COLUMNS = (
    "dataset",
    "n",
    "d",
    "log10_lengthscale",
    "log10_noise",
    "method",
    "settings",
    "iterations",
    "products",
    "columns",
    "inner_products",
    "setup_products",
    "total_products",
    "cap",
    "status",
    "converged",
    "true_relative_residual",
    "solver",
    "seconds_build",
    "seconds_solve",
    "seconds_product",
    "seed",
    "threads",
    "device",
    "version",
    "notes",
)
STORED_BYTES = {"cpu": 1e9, "cuda": 4e10}
"""K is kept where it fits this: on two cores a stored product with one column costs about what a fused one does."""

CAPPED = "PRODUCT_CAP"
Cell = tuple[int, int]
"""Decimal logarithms of lengthscale and noise."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A data set, standardised."""

    dataset: str
    X: Tensor
    y: Tensor  # (n, 1)

    @classmethod
    def load(cls, dataset: str, device: str) -> "Problem":
        """Return all rows of a data set."""
        data = datasets.load(dataset)
        X, y = (torch.from_numpy(part).to(device) for part in (data.X, data.y[:, None]))
        return cls(dataset, standardised(X), standardised(y))

    def operator(self, log10_lengthscale: int) -> KernelPlusDiagonal:
        """Return K + I at this lengthscale, with K stored where that pays; the noise is put in afterwards."""
        A = KernelPlusDiagonal(backends.bind(RBF(10.0**log10_lengthscale), self.X), 1.0)
        return A.stored() if 8 * len(A) ** 2 <= STORED_BYTES[self.X.device.type] else A


def standardised(values: Tensor) -> Tensor:
    """Return columns with mean 0 and population standard deviation 1."""
    return (values - values.mean(0)) / values.std(0, correction=0)


@dataclass(frozen=True)
class Outcome:
    """What one run came to; ``products`` are passes over A, ``inner`` and ``setup`` count columns."""

    iterations: int
    products: int
    columns: int
    inner: int
    setup: int
    status: str
    residual: float
    solver: str
    seconds_build: float
    seconds_solve: float
    notes: str = ""

    @property
    def total(self) -> int:
        """Return every product of the run: with A, in inner solves, in the set-up."""
        return self.products + self.inner + self.setup

    def judged(self, cap: int) -> "Outcome":
        """Return it with the status that the cap gives it: a run that spent more has not converged within it."""
        spent = self.total > cap or self.status in (Status.MAX_ITERATIONS.name, Status.STOPPED.name)
        return replace(self, status=CAPPED) if spent else self


def run(method: Method, A: KernelPlusDiagonal, y: Tensor, cap: int, seed: int) -> Outcome:
    """Solve A z = y by one method within ``cap`` products."""
    stopping = Stopping(rtol=0.0, atol=protocol.threshold(len(y)), max_iterations=cap - 1, patience=cap)
    if method.recipe == "none":
        return outcome(solve(A, y, method="cg", stopping=stopping)).judged(cap)
    if method.recipe == "auto":
        return run_auto(A, y, stopping, seed).judged(cap)
    return run_built(build(method, A, seed), A, y, stopping, cap).judged(cap)


def run_auto(A: KernelPlusDiagonal, y: Tensor, stopping: Stopping, seed: int) -> Outcome:
    """Solve with the preconditioner that the library chooses; what is no build counts as solving, the pilot too."""
    began = time.perf_counter()
    stopping = replace(stopping, patience=Stopping().patience)
    report = planning.solve(A, y, preconditioner="auto", stopping=stopping, generator=child(seeded(seed), "auto"))
    seconds = time.perf_counter() - began
    built = sum(attempt.build_seconds for attempt in report.attempts)
    return replace(outcome(report, built=built), seconds_solve=seconds - built)


@dataclass(frozen=True, eq=False)
class Built:
    """A preconditioner and what it cost: columns multiplied with K, seconds."""

    P: Invertible
    setup: int
    seconds: float
    notes: tuple[str, ...]


def build(method: Method, A: KernelPlusDiagonal, seed: int) -> Built:
    """Prepare and factor the preconditioner of a method, with a generator that depends on the method alone."""
    began = time.perf_counter()
    recipe = preconditioners.recipe(method.recipe, **method.options(*A.X.shape))
    prepared = recipe.prepare(A.K, child(seeded(seed), method.name))
    P = prepared.factor(A.scale, A.diagonal)
    seconds = time.perf_counter() - began
    return Built(P, prepared.setup_products, seconds, prepared.notes)


def run_built(built: Built, A: KernelPlusDiagonal, y: Tensor, stopping: Stopping, cap: int) -> Outcome:
    """Solve with a preconditioner; its set-up has already used a part of the cap."""
    left = cap - built.setup
    stopping = replace(stopping, max_iterations=max(left - 1, 0))
    report = solve(A, y, preconditioner=built.P, stopping=stopping, callback=watch(built.P, left))
    return outcome(report, built.setup, built.seconds, built.notes)


def watch(P: Invertible, left: int) -> Listener | None:
    """Return a callback that ends a solve once its inner products have used up what is left."""
    if not isinstance(P, CountsInner):
        return None
    return lambda event: P.inner.columns + event.payload.iteration > left


def outcome(report: SolveReport, setup: int = 0, built: float = 0.0, notes: tuple[str, ...] = ()) -> Outcome:
    """Return what a solve came to."""
    return Outcome(
        iterations=int(report.iterations.max()),
        products=report.products,
        columns=report.columns,
        inner=report.inner_columns,
        setup=setup,
        status=report.status.name,
        residual=float(report.relative_residuals.max()),
        solver=report.method,
        seconds_build=built,
        seconds_solve=report.seconds,
        notes="; ".join([*notes, *map(str, report.attempts), *report.tried]),
    )


def row(problem: Problem, cell: Cell, method: Method, found: Outcome, seconds: float) -> dict[str, object]:
    """Return the outcome as a row of the table; ``seconds`` is the time of one product with one column."""
    n, d = problem.X.shape
    return {
        "dataset": problem.dataset,
        "n": n,
        "d": d,
        "log10_lengthscale": cell[0],
        "log10_noise": cell[1],
        "method": method.name,
        "settings": method.settings(n, d),
        "iterations": found.iterations,
        "products": found.products,
        "columns": found.columns,
        "inner_products": found.inner,
        "setup_products": found.setup,
        "total_products": found.total,
        "cap": CAPS[problem.dataset],
        "status": found.status,
        "converged": int(found.status == Status.CONVERGED.name),
        "true_relative_residual": f"{found.residual:.3e}",
        "solver": found.solver,
        "seconds_build": f"{found.seconds_build:.4g}",
        "seconds_solve": f"{found.seconds_solve:.4g}",
        "seconds_product": f"{seconds:.4g}",
        "seed": SEED,
        "threads": torch.get_num_threads(),
        "device": problem.X.device.type,
        "version": version(),
        "notes": found.notes,
    }


def version() -> str:
    """Return the version of the library, of the source tree if it is not installed."""
    try:
        return importlib.metadata.version("kernelcg")
    except importlib.metadata.PackageNotFoundError:
        project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
        return str(project["project"]["version"])


def product_seconds(A: KernelPlusDiagonal, y: Tensor) -> float:
    """Return the least time of three products with one column."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        (A @ y).sum().item()
        times.append(time.perf_counter() - began)
    return min(times)


def is_finished(ledger: Ledger, problem: Problem, cell: Cell, method: Method) -> bool:
    """Say whether this cell is in the table with these very settings."""
    known = ledger.find(dataset=problem.dataset, log10_lengthscale=cell[0], log10_noise=cell[1], method=method.name)
    return known is not None and known["settings"] == method.settings(*problem.X.shape)


def run_set(problem: Problem, methods: Sequence[Method], ledger: Ledger, options: argparse.Namespace) -> int:
    """Run what is missing of one data set; return how many cells failed."""
    failures = 0
    for lengthscale in options.lengthscales:
        missing = [
            ((lengthscale, noise), method)
            for noise in options.noises
            for method in methods
            if problem.dataset not in method.excluded
            and (options.again or not is_finished(ledger, problem, (lengthscale, noise), method))
        ]
        if missing:
            K = problem.operator(lengthscale)
            seconds = product_seconds(K, problem.y)
        for cell, method in missing:
            A = replace(K, diagonal=torch.tensor(10.0 ** cell[1] + DIAGONAL, dtype=torch.float64))
            failures += not run_cell(problem, A, method, cell, seconds, ledger, options.strict)
    return failures


def run_cell(
    problem: Problem,
    A: KernelPlusDiagonal,
    method: Method,
    cell: Cell,
    seconds: float,
    ledger: Ledger,
    strict: bool = False,
) -> bool:
    """Run one cell and put it in the table; an error is shown, and the grid goes on without that cell."""
    where = f"{problem.dataset:<11} l=1e{cell[0]:<2} λ=1e{cell[1]}  {method.name:<24}"
    try:
        found = run(method, A, problem.y, CAPS[problem.dataset], SEED)
    except Exception as error:  # whatever a recipe does wrong, the other cells are worth having
        if strict:
            raise
        print(f"{where} FAILED: {type(error).__name__}: {error}", flush=True)
        return False
    ledger.put(row(problem, cell, method, found, seconds))
    print(
        f"{where} {found.iterations:>5} steps {found.total:>5} products  {found.status:<18}"
        f" {found.seconds_build:7.2f} + {found.seconds_solve:.2f} s",
        flush=True,
    )
    return True


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line, with what --quick means filled in."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=CAPS, default=list(CAPS), help="data sets")
    parser.add_argument("--recipes", nargs="+", choices=METHODS, default=list(METHODS), help="methods; cg comes along")
    parser.add_argument("--lengthscales", nargs="+", type=int, default=list(LENGTHSCALES), help="decimal logarithms")
    parser.add_argument("--noises", nargs="+", type=int, default=list(NOISES), help="decimal logarithms")
    parser.add_argument("--out", type=Path, help="table to add to; default results/figure1.csv")
    parser.add_argument("--quick", action="store_true", help="four cells of Concrete, in results/figure1_quick.csv")
    parser.add_argument("--again", action="store_true", help="run cells that are finished, too")
    parser.add_argument("--strict", action="store_true", help="stop at the first error")
    parser.add_argument("--device", default="cpu", choices=list(STORED_BYTES))
    options = parser.parse_args(words)
    if options.quick:
        options.sets, options.lengthscales, options.noises = ["concrete"], [-1, 1], [-2, -4]
    if options.out is None:
        options.out = RESULTS / ("figure1_quick.csv" if options.quick else "figure1.csv")
    return options


def main(words: Sequence[str] | None = None) -> int:
    """Run what is missing; return 1 if any cell failed."""
    options = arguments(words)
    ledger = Ledger(options.out, COLUMNS, KEY)
    methods = [METHODS[name] for name in METHODS if name in options.recipes or name == CG.name]
    failures = sum(run_set(Problem.load(name, options.device), methods, ledger, options) for name in options.sets)
    order = {
        "dataset": list(CAPS),
        "log10_lengthscale": list(map(str, LENGTHSCALES)),
        "log10_noise": list(map(str, NOISES)),
        "method": list(METHODS),
    }
    if ledger.rows:
        ledger.sort(order)
    print(f"{len(ledger.rows)} cells in {options.out}; {failures} failed")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
