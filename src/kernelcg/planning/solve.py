"""Solve with a preconditioner named, given or chosen automatically; keep it while it pays."""

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator

from kernelcg.arguments import matrix, memory_bytes
from kernelcg.events import Listener
from kernelcg.operators import Invertible, KernelPlusDiagonal
from kernelcg.planning.automatic import Search
from kernelcg.planning.costs import Costs, Pricing
from kernelcg.planning.growing_factor import Construction, constructed
from kernelcg.planning.options import Automatic
from kernelcg.planning.pricing import costs_of, pricing_of
from kernelcg.preconditioners import Preconditioner, Prepared, recipe
from kernelcg.randomness import seeded
from kernelcg.solvers import Approach, Attempt, SolveReport, Status, Stopping
from kernelcg.solvers import solve as solve_with
from kernelcg.threads import working

Choice = str | Preconditioner | Invertible | None


@dataclass(frozen=True, eq=False)
class Kept:
    """A preconditioner in use for a sequence of nearby systems, and whether it still pays.

    It is given up once the iterations above those of the first system it was kept for have cost as much time as
    building it did: no more is lost by keeping it than by having built it.

    Attributes
    ----------
    prepared : what depends on the kernel and the data alone; None if there is no preconditioner
    build_seconds : expected time of building it
    first_iterations : of the first system that it was kept for; None before
    excess_seconds : time of iterations above those, so far
    """

    prepared: Prepared | None
    build_seconds: float
    per_iteration: float
    """Seconds of an iteration. Like ``build_seconds`` they are expected, not measured."""
    first_iterations: int | None = None
    excess_seconds: float = 0.0
    how: Construction | None = None
    """How it was built, if the automatic choice did it."""

    def after(self, report: SolveReport) -> "Kept":
        """Return the record after one more solve with it."""
        steps = int(report.iterations.max())
        if self.first_iterations is None:
            return replace(self, first_iterations=steps)
        excess = max(steps - self.first_iterations, 0) * self.per_iteration
        return replace(self, excess_seconds=self.excess_seconds + excess)

    def lean(self) -> "Kept":
        """Return the record without the preconditioner, which `restored` builds again."""
        return replace(self, prepared=None)

    def restored(self, A: KernelPlusDiagonal) -> "Kept":
        """Return the record with the preconditioner, built again for the system that it was built for."""
        return self if self.how is None else replace(self, prepared=constructed(A, self.how))

    @property
    def pays(self) -> bool:
        """Whether it should be used for the next system too."""
        return self.prepared is not None and self.excess_seconds < self.build_seconds


def solve(
    A: KernelPlusDiagonal,
    B: Any,
    *,
    preconditioner: Choice = "auto",
    start: Any = None,
    stopping: Stopping = Stopping(),
    callback: Listener | None = None,
    generator: Generator | None = None,
    memory: int | str | None = None,
) -> SolveReport:
    """Solve A X = B with the preconditioner of your choice.

    Parameters
    ----------
    A : K + diagonal
    B : (n, k) right-hand sides
    start : first guess of X; None means 0
    stopping : tolerance and limits of the solve
    callback : told of every iteration; where it returns True the solve ends
    preconditioner : "auto", the name of a recipe (see `kernelcg.preconditioners.available`), a recipe, a built P,
        or None for plain CG
    generator : source of randomness for building it; None means a fixed seed
    memory : bytes the preconditioner may hold when chosen automatically; None means what building it in the
        budget of the backend leaves

    The rest is as in `kernelcg.solvers.solve`. ``report.attempts`` says what was chosen, why, what was expected
    and what happened.

    Returns
    -------
    SolveReport : the solution and how it was reached

    Examples
    --------
    >>> import torch
    >>> from kernelcg import backends
    >>> from kernelcg.kernels import RBF
    >>> from kernelcg.operators import KernelPlusDiagonal
    >>> from kernelcg.planning import solve
    >>> A = KernelPlusDiagonal(backends.bind(RBF(0.5), torch.linspace(0, 1, 40).double()[:, None]), 0.1)
    >>> report = solve(A, torch.ones(40, 1).double())
    >>> report.status.name
    'CONVERGED'
    """
    source = generator or seeded(0)
    with working(A.backend.threads if isinstance(A, KernelPlusDiagonal) else None):  # other matrices say so below
        if isinstance(preconditioner, str) and preconditioner == "auto":
            return solve_automatically(A, B, start, stopping, callback, source, memory)[0]
        P = recipe(preconditioner) if isinstance(preconditioner, str) else preconditioner
        if isinstance(P, Preconditioner):
            _require_kernel(A, "a recipe")
            return solve_with_recipe(P, A, B, start, stopping, callback, source)
        return solve_with(A, B, preconditioner=P, start=start, stopping=stopping, callback=callback)


def solve_with_recipe(
    chosen: Preconditioner,
    A: KernelPlusDiagonal,
    B: Any,
    start: Any,
    stopping: Stopping,
    callback: Listener | None,
    generator: Generator,
) -> SolveReport:
    """Build the preconditioner, solve, and report both: set-up products and time included."""
    began = time.perf_counter()
    prepared = chosen.prepare(A.K, generator)
    P = prepared.factor(A.scale, A.diagonal)
    built = time.perf_counter() - began
    report = solve_with(A, B, preconditioner=P, start=start, stopping=_less(stopping, built), callback=callback)
    attempt = _attempt(Approach.NAMED, chosen.name(), "as asked", built, report)
    return replace(
        report,
        columns=report.columns + prepared.setup_products,
        seconds=report.seconds + built,
        tried=(*prepared.notes, *report.tried),
        attempts=(attempt,),
    )


def _less(stopping: Stopping, seconds: float, iterations: int = 0) -> Stopping:
    """Return what is left of the limits."""
    left = max(stopping.max_seconds - seconds, 1e-9)
    return replace(stopping, max_seconds=left, max_iterations=stopping.max_iterations - iterations)


def _attempt(approach: Approach, what: str, why: str, build_seconds: float, report: SolveReport) -> Attempt:
    steps = int(report.iterations.max())
    return Attempt(what, why, math.nan, math.nan, build_seconds, steps, report.seconds, report.status, approach)


def solve_automatically(
    A: KernelPlusDiagonal,
    B: Any,
    start: Any = None,
    stopping: Stopping = Stopping(),
    callback: Listener | None = None,
    generator: Generator | None = None,
    memory: int | str | None = None,
    pricing: Pricing | None = None,
) -> tuple[SolveReport, Kept]:
    """Solve with an automatic choice by costs, and return what was built, to be kept for the next system.

    Parameters
    ----------
    A : K + diagonal
    B : (n, k) right-hand sides
    start : first guess of X; None means 0
    stopping : tolerance and limits of the solve
    callback : told of every iteration; where it returns True the solve ends
    generator : source of randomness for building a preconditioner; None means a fixed seed
    memory : bytes that the preconditioner may hold; None means what building it in the budget of the backend leaves
    pricing : costs of this machine; None means those of its stored profile

    Returns
    -------
    report, kept : the solution and how it was reached, and what was built

    Examples
    --------
    >>> import torch
    >>> from kernelcg import backends
    >>> from kernelcg.kernels import RBF
    >>> from kernelcg.operators import KernelPlusDiagonal
    >>> from kernelcg.planning import solve_automatically
    >>> A = KernelPlusDiagonal(backends.bind(RBF(0.5), torch.linspace(0, 1, 40).double()[:, None]), 0.1)
    >>> report, kept = solve_automatically(A, torch.ones(40, 1).double())
    >>> report.status.name
    'CONVERGED'
    """
    search = _search(A, B, start, stopping, callback, generator, memory, pricing)
    result = search.run()
    return result.report, _kept(result, search.costs)


def _require_kernel(A: Any, choice: str) -> None:
    """Raise unless A tells its kernel and its data, from which preconditioners are built."""
    if not isinstance(A, KernelPlusDiagonal):
        remedy = "give preconditioner=None for plain CG, or a built P, as kernelcg.solvers.solve takes it"
        raise TypeError(f"{choice} needs a KernelPlusDiagonal, not a {type(A).__name__}; {remedy}")


def _search(
    A: KernelPlusDiagonal,
    B: Any,
    start: Any,
    stopping: Stopping,
    callback: Listener | None,
    generator: Generator | None,
    memory: int | str | None,
    pricing: Pricing | None,
) -> Search:
    """Return the automatic choice for this system, ready to run, with the costs by which it goes."""
    _require_kernel(A, "an automatic choice")
    held = memory_bytes(memory)
    numbers = math.inf if held is None else held // 8
    right = matrix(B, "B", finite=False).double()
    pricing = pricing or pricing_of(A.kernel, A.X, A.backend)
    return Search(
        A,
        right,
        start=None if start is None else torch.as_tensor(start).double(),
        stopping=stopping,
        callback=callback,
        generator=generator or seeded(0),
        numbers=numbers,
        costs=costs_of(pricing, A, right.shape[1]),
        sizes=pricing.sizes,
    )


def _kept(result: Automatic, costs: Costs) -> Kept:
    """Return the record of the preconditioner that an automatic choice ended with, at these costs."""
    if result.prepared is None:
        return Kept(None, 0.0, 0.0)
    rank, neighbours = result.prepared.rank, result.prepared.neighbours
    build_seconds = costs.low_rank(rank) + costs.local(rank, neighbours)
    return Kept(result.prepared, build_seconds, costs.iteration(rank, neighbours), how=result.how)


def solve_reusing(
    A: KernelPlusDiagonal,
    B: Any,
    kept: Kept | None,
    *,
    start: Any = None,
    stopping: Stopping = Stopping(),
    callback: Listener | None = None,
    generator: Generator | None = None,
    memory: int | str | None = None,
    pricing: Pricing | None = None,
) -> tuple[SolveReport, Kept]:
    """Solve one of a sequence of nearby systems, with the preconditioner of the last one while that pays.

    Only what depends on S and D is refactored; the pivots, the low-rank factor and the neighbours belong to the
    kernel they were made for. A solve that fails with a kept preconditioner goes on with a new one.

    Parameters
    ----------
    A : K + diagonal
    B : (n, k) right-hand sides
    kept : what an earlier solve returned; None for the first one
    start : first guess of X; None means 0
    stopping : tolerance and limits of the solve
    callback : told of every iteration; where it returns True the solve ends
    generator, memory, pricing : as in `solve_automatically`

    Returns
    -------
    report, kept : the solution and how it was reached, and what to keep for the next system

    Examples
    --------
    >>> import torch
    >>> from kernelcg import backends
    >>> from kernelcg.kernels import RBF
    >>> from kernelcg.operators import KernelPlusDiagonal
    >>> from kernelcg.planning import solve_reusing
    >>> A = KernelPlusDiagonal(backends.bind(RBF(0.5), torch.linspace(0, 1, 40).double()[:, None]), 0.1)
    >>> _, kept = solve_reusing(A, torch.ones(40, 1).double(), None)
    >>> report, kept = solve_reusing(A, torch.ones(40, 1).double(), kept)  # with what the first one built
    >>> report.status.name
    'CONVERGED'
    """
    if kept is None or kept.prepared is None or not kept.pays:
        search = _search(A, B, start, stopping, callback, generator, memory, pricing)
        result = search.run()
        return result.report, _kept(result, search.costs)
    began = time.perf_counter()
    P = kept.prepared.factor(A.scale, A.diagonal)
    built = time.perf_counter() - began
    first = solve_with(A, B, preconditioner=P, start=start, stopping=_less(stopping, built), callback=callback)
    attempt = _attempt(Approach.KEPT, "the preconditioner kept", "it still paid", built, first)
    first = replace(first, seconds=first.seconds + built, attempts=(attempt,))
    if first.status in (Status.CONVERGED, Status.STOPPED, Status.TIME_LIMIT, Status.MAX_ITERATIONS):
        return first, kept.after(first)
    left = _less(stopping, first.seconds, int(first.iterations.max()))
    second, fresh = solve_automatically(A, B, first.solution, left, callback, generator, memory, pricing)
    report = replace(
        second,
        iterations=first.iterations + second.iterations,
        residual_norms=torch.cat([first.residual_norms, second.residual_norms]),
        products=first.products + second.products,
        columns=first.columns + second.columns,
        seconds=first.seconds + second.seconds,
        tried=(*first.tried, *second.tried),
        attempts=(*first.attempts, *second.attempts),
    )
    return report, fresh
