"""Making a plan: which way each stage of a fit is done, as far as it fits the memory, and why."""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.planning.expectations import BLOCKS, Expectations
from kernelcg.planning.plan import Method, Plan, Stage, Storage, in_bytes, in_time
from kernelcg.planning.workload import Options, Resources, Workload

__all__ = ["BLOCKS", "Options", "Resources", "Workload", "planned", "reconsidered"]

GROWTH, LAST_GROWTH = 4, 2
"""By how much a stage of learning has more rows than the one before, and the last one than that."""

SMALLEST_STAGE = 200
"""Rows below which a part of the data says too little about the hyperparameters."""

NEAR_TIE = 1.3
"""Exact evaluations are chosen as long as they cost no more than so many times estimated ones: they end at the maximum
itself, and expectations are not more accurate than that."""

LEAST_PATIENCE = 4
"""Evaluations by iteration before they are given up for exact ones."""


def planned(work: Workload, options: Options, resources: Resources) -> Plan:
    """Return the plan; raise `MemoryBudgetExceeded`, naming what would do, if nothing that is allowed fits."""
    planner = _Planner(work, options, resources)
    sizes = planner.sizes() if work.parameters else ()
    stages = tuple(planner.stage(size, first=number == 0, last=size == sizes[-1]) for number, size in enumerate(sizes))
    conditioning = planner.conditioning()
    planner.require_memory(max(*stages, conditioning, key=lambda stage: stage.bytes) if stages else conditioning)
    return Plan(
        rows=work.rows,
        features=work.features,
        columns=work.columns,
        values=work.values,
        systems=work.systems,
        family=work.family,
        device=resources.device,
        backend=resources.backend,
        threads=resources.threads,
        memory=resources.memory,
        device_memory=resources.device_memory,
        seed=options.seed,
        preconditioner=options.preconditioner,
        probes=options.probes,
        stages=stages,
        conditioning=conditioning,
        most_direct_rows=planner.most_rows_in_memory(),
        parameters=work.parameters,
        pricing=resources.pricing,
        workers=resources.workers,
        passed_over=resources.passed_over,
        noise=work.noise,
    )


def reconsidered(plan: Plan, rows: int, noise: float | None) -> Plan:
    """Return the plan for the stage of so many rows, now that fewer rows have shown how much noise there is.

    The less noise, the more iterations a solve takes. The stage is done by the other method if that is cheaper at this
    noise, unless the user asked for the method; the revision says so. Where iterating was given up at fewer rows, that
    holds too: a factorisation grows faster with the rows than an iteration, and giving up again costs one evaluation.
    None means that nothing is known of the noise.
    """
    stage = plan.stage(rows)
    if stage.asked or not plan.stages:
        return plan
    planner = _planner_of(plan, stage, noise)
    is_last = rows == plan.stages[-1].rows
    better = planner.stage(rows, first=False, last=is_last)
    if better.method is stage.method or better.bytes > plan.budget:
        return plan
    conditioning = planner.conditioning() if is_last and not plan.conditioning.asked else plan.conditioning
    return replace(
        plan,
        stages=tuple(better if one is stage else one for one in plan.stages),
        conditioning=conditioning,
        revisions=(*plan.revisions, f"from {rows:,} rows on, {better.method}: {better.reason}"),
    )


def _planner_of(plan: Plan, stage: Stage, noise: float | None) -> "_Planner":
    """Return the planner that made this plan, with what is now known of the noise."""
    work = Workload(
        plan.rows,
        plan.features,
        plan.columns,
        plan.values,
        plan.family,
        parameters=plan.parameters,
        systems=plan.systems,
        noise=noise,
    )
    options = Options(Method.AUTO, stage.precision, plan.preconditioner, plan.probes, plan.seed)
    resources = Resources(
        plan.backend, plan.device, plan.threads, plan.memory, plan.device_memory, plan.pricing, plan.workers
    )
    return _Planner(work, options, resources)


@dataclass(frozen=True)
class _Planner:
    """The choices for one work."""

    work: Workload
    options: Options
    resources: Resources

    @property
    def expected(self) -> Expectations:
        """Return what choices go by: the rates of this machine alone."""
        return Expectations(self.work, self.options, self.resources)

    @property
    def told(self) -> Expectations:
        """Return what is told: also with the workers of a cluster."""
        return Expectations(self.work, self.options, self.resources, with_workers=True)

    # stages

    def sizes(self) -> tuple[int, ...]:
        """Return the rows of each stage of learning, the smallest first."""
        most = min(self.work.rows, self.most_direct_rows()) if self.work.exact_only else self.work.rows
        sizes, size = [most], most // LAST_GROWTH
        while self.work.in_stages and size >= SMALLEST_STAGE:
            sizes.append(size)
            size //= GROWTH
        return tuple(reversed(sizes))

    def stage(self, rows: int, *, first: bool, last: bool) -> Stage:
        """Return how a stage of learning is done; only the last obeys the method that was asked for."""
        asked = self.options.method if last else Method.AUTO
        if self.work.exact_only:
            asked, method, reason = Method.DIRECT, Method.DIRECT, "the criterion needs it"
        else:
            method, reason = self.chosen(rows, asked, last=last)
        evaluations = self.expected.evaluations(method, first=first, last=last)
        each = self.told.evaluation(rows, method)
        return self._stage(rows, method, asked, reason, evaluations, each, learning=True)

    def conditioning(self) -> Stage:
        """Return how the process is conditioned on all rows."""
        rows = self.work.rows
        method, reason = self.chosen(rows, self.options.method)
        seconds = self.told.conditioning(rows, method)
        return self._stage(rows, method, self.options.method, reason, 1.0, seconds, learning=False)

    def _stage(
        self, rows: int, method: Method, asked: Method, reason: str, evaluations: float, each: float, *, learning: bool
    ) -> Stage:
        storage = self.expected.storage(rows) if method is Method.ITERATIVE else Storage.STORED
        return Stage(
            rows,
            method,
            storage,
            self.options.precision,
            evaluations,
            evaluations * each,
            self.expected.bytes(rows, method, storage, learning=learning),
            reason,
            asked is method,
            self.patience(rows) if method is Method.ITERATIVE and learning else None,
        )

    # choices

    def chosen(self, rows: int, asked: Method, *, last: bool = True) -> tuple[Method, str]:
        """Return the method for so many rows, and why; on a part of the rows both take as many evaluations."""
        if asked is not Method.AUTO:
            return asked, "as asked"
        what = f"{rows * self.work.values} {'latent values' if self.work.values > 1 else 'rows'}"
        if self.work.noise is not None:
            what += f" with noise of {self.work.noise:.1g} of the signal"
        needed = self.expected.bytes(rows, Method.DIRECT, Storage.STORED)
        if needed > self.resources.budget:
            budget = in_bytes(self.resources.budget)
            return Method.ITERATIVE, f"factorising K takes {in_bytes(needed)}, the memory is {budget}"
        price = self.expected.learning if last else self.expected.evaluation
        exact, estimated = (price(rows, method) for method in (Method.DIRECT, Method.ITERATIVE))
        alone = "" if self.resources.workers is None else " on this machine alone"
        if exact <= NEAR_TIE * estimated:
            return Method.DIRECT, f"{what}: factorising K costs hardly more than iterating, and is exact"
        return (
            Method.ITERATIVE,
            f"{what}: iterating takes about {in_time(estimated)}, factorising {in_time(exact)}{alone}",
        )

    def patience(self, rows: int) -> int:
        """Return after how many evaluations by iteration exact ones would have cost no more."""
        exact, each = self.expected.learning(rows, Method.DIRECT), self.expected.evaluation(rows, Method.ITERATIVE)
        return max(LEAST_PATIENCE, math.ceil(exact / each))

    def most_rows_in_memory(self) -> int:
        """Return the rows up to which an exact evaluation fits the memory."""
        budget = self.resources.budget
        return self._largest(lambda rows: self.expected.bytes(rows, Method.DIRECT, Storage.STORED) <= budget)

    def most_direct_rows(self) -> int:
        """Return the rows up to which an exact evaluation fits the memory and costs no more than estimated ones."""
        return self._largest(lambda rows: self.chosen(rows, Method.AUTO)[0] is Method.DIRECT)

    def _largest(self, holds: Callable[[int], bool]) -> int:
        """Return the largest number of rows for which a condition holds that holds for fewer, too; at least 1."""
        sizes = range(1, self.work.rows + 1)
        return max(bisect_left(sizes, True, key=lambda rows: not holds(rows)), 1)

    def require_memory(self, stage: Stage) -> None:
        """Raise before anything is allocated if a stage does not fit, naming what would do."""
        if stage.bytes <= self.resources.budget:
            return
        lean = max(
            self.expected.bytes(stage.rows, Method.ITERATIVE, Storage.RECOMPUTED, learning=a) for a in (True, False)
        )
        fits = stage.method is Method.DIRECT and lean <= self.resources.budget
        remedy = "use method='iterative', which stores no matrix," if fits else "use fewer rows or probes,"
        raise MemoryBudgetExceeded(
            f"fitting {stage.rows} rows by the {stage.method} method needs {in_bytes(stage.bytes)}, but the memory is "
            f"{in_bytes(self.resources.budget)}; {remedy} or memory='{math.ceil(1.05 * stage.bytes / 1e6)}MB'"
        )
