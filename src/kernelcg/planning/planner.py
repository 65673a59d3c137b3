"""Making a plan: which way each stage of a fit is done, as far as it fits the memory, and why."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.planning.counts import evaluations
from kernelcg.planning.expectations import BLOCKS, Expectations
from kernelcg.planning.plan import Family, Method, Plan, Stage, Storage, in_bytes, in_time
from kernelcg.planning.workload import Options, Resources, Workload

__all__ = ["BLOCKS", "Options", "Resources", "Workload", "planned", "reconsidered"]

GROWTH, LAST_GROWTH = 4, 2
"""By how much a stage of learning has more rows than the one before, and the last one than that."""

SMALLEST_STAGE = 200
"""Rows below which a part of the data says too little about the hyperparameters."""

NEAR_TIE = 1.3
"""Exact evaluations are chosen as long as they cost no more than so many times estimated ones: they end at the maximum
itself, and expectations are not more accurate than that."""

EXACTNESS_SECONDS, PROBED_PART = 2.0, 0.6
"""Traces of exact evaluations come from A⁻¹ as long as a stage takes no more than so many seconds, and hardly more than
iterating; else they come from random columns if that takes less than this part of the time, since it costs a search at
most p / 2k nats."""

FACTOR_SECONDS = 3.0
"""Conditioning is by a factor as long as that takes no more than so many seconds, whatever iterating would take: its
error is rounding, and variances are triangular solves."""

BLOCKS_ON_HOST = 4
"""Blocks of n numbers for each column that the host holds where a device does the work: Y, weights, their copies."""

MARGIN, MOST_ROUNDS = 1.05, 50
"""By how much the memory that is named as enough exceeds what the plan needs, and how often that is asked for."""

LEAST_PATIENCE = 4
"""Evaluations by iteration before they are given up for exact ones."""


def planned(work: Workload, options: Options, resources: Resources) -> Plan:
    """Return the plan; raise `MemoryBudgetExceeded`, naming what would do, if nothing that is allowed fits."""
    planner = _Planner(work, options, resources)
    stages, conditioning = planner.stages(), planner.conditioning()
    planner.require_memory(_largest((*stages, conditioning)))
    planner.require_host_memory()
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


def _largest(stages: Iterable[Stage]) -> Stage:
    return max(stages, key=lambda stage: stage.bytes)


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

    def stages(self) -> tuple[Stage, ...]:
        """Return the stages of learning, if there is anything to learn."""
        sizes = self.sizes() if self.work.parameters else ()
        return tuple(self.stage(size, first=number == 0, last=size == sizes[-1]) for number, size in enumerate(sizes))

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
        columns = self.random_columns(rows, asked, last=last)
        count = evaluations(self.work, method, first=first, last=last, columns=columns)
        each = self.told.evaluation(rows, method, columns)
        return self._stage(rows, method, asked, reason, count, each, columns)

    def conditioning(self) -> Stage:
        """Return how the process is conditioned on all rows."""
        rows, asked = self.work.rows, self.options.method
        method, reason = self.chosen(rows, asked)
        if method is Method.ITERATIVE and asked is Method.AUTO and self.is_on_gpu:
            method, reason = self._conditioned_once(rows)
        seconds = self.told.conditioning(rows, method)
        return self._stage(rows, method, asked, reason, 1.0, seconds)

    def _stage(
        self,
        rows: int,
        method: Method,
        asked: Method,
        reason: str,
        evaluations: float,
        each: float,
        columns: int | None = None,
    ) -> Stage:
        """Return a stage of learning, or where no number of random ``columns`` is given the conditioning."""
        learning, columns = columns is not None, columns or 0
        storage = self.expected.storage(rows) if method is Method.ITERATIVE else Storage.STORED
        return Stage(
            rows,
            method,
            storage,
            self.options.precision,
            evaluations,
            evaluations * each,
            self.expected.bytes(rows, method, storage, learning=learning, columns=columns),
            reason,
            asked is method,
            self.patience(rows) if method is Method.ITERATIVE and learning else None,
            columns,
        )

    # choices

    def chosen(self, rows: int, asked: Method, *, last: bool = True) -> tuple[Method, str]:
        """Return the method for so many rows, and why; on a part of the rows both take as many evaluations."""
        if asked is not Method.AUTO:
            return asked, "as asked"
        columns = self._columns_that_decide(rows, last=last)
        price = self.expected.learning if last else self.expected.evaluation
        needed = self.expected.bytes(rows, Method.DIRECT, Storage.STORED, columns=columns)
        return self.chosen_by(rows, lambda method: price(rows, method, columns), needed)

    def chosen_by(self, rows: int, price: Callable[[Method], float], needed: int) -> tuple[Method, str]:
        """Return the method for so many rows by the seconds of both and the bytes of the direct one, and why."""
        what = f"{rows * self.work.values} {'latent values' if self.work.values > 1 else 'rows'}"
        if self.work.noise is not None:
            what += f" with noise of {self.work.noise:.1g} of the signal"
        if needed > self.resources.budget:
            budget = in_bytes(self.resources.budget)
            return Method.ITERATIVE, f"factorising K takes {in_bytes(needed)}, the memory is {budget}"
        exact, estimated = price(Method.DIRECT), price(Method.ITERATIVE)
        alone = "" if self.resources.workers is None else " on this machine alone"
        if exact <= NEAR_TIE * estimated:
            return Method.DIRECT, f"{what}: factorising K costs hardly more than iterating, and is exact"
        return (
            Method.ITERATIVE,
            f"{what}: iterating takes about {in_time(estimated)}, factorising {in_time(exact)}{alone}",
        )

    def random_columns(self, rows: int, asked: Method, *, last: bool) -> int:
        """Return from how many random columns exact evaluations take their traces; 0 if from A⁻¹.

        That is from A⁻¹ where it is soon made, and where the direct method was asked for and A⁻¹ fits the memory.
        """
        k = self.resources.pricing.sizes.trace_columns
        if self.work.family is Family.LAPLACE or self.work.needs_inverse:
            return 0
        fits = self.expected.bytes(rows, Method.DIRECT, Storage.STORED) <= self.resources.budget
        if fits and asked is Method.DIRECT:
            return 0

        def seconds(method: Method, columns: int = 0) -> float:
            count = evaluations(self.work, method, first=False, last=last, columns=columns)
            return count * self.expected.evaluation(rows, method, columns)

        exact, affordable = seconds(Method.DIRECT), NEAR_TIE * seconds(Method.ITERATIVE)
        if fits and (exact <= min(EXACTNESS_SECONDS, affordable) or seconds(Method.DIRECT, k) > PROBED_PART * exact):
            return 0
        return k

    @property
    def is_on_gpu(self) -> bool:
        """Whether the work is done on a device with a memory of its own."""
        return self.resources.device_memory is not None

    def _columns_that_decide(self, rows: int, *, last: bool) -> int:
        """Return with how many random columns the price of exact evaluations is compared with that of iterating.

        On a CPU it is that of exact gradients: with random columns a search may take several times the evaluations
        (elevators, 5,000 rows: 274 where 62 were expected), so that they are taken only where A⁻¹ would be, too.
        """
        return self.random_columns(rows, Method.AUTO, last=last) if self.is_on_gpu else 0

    def patience(self, rows: int) -> int:
        """Return after how many evaluations by iteration exact ones would have cost no more."""
        exact = self.expected.learning(rows, Method.DIRECT, self._columns_that_decide(rows, last=True))
        return max(LEAST_PATIENCE, math.ceil(exact / self.expected.evaluation(rows, Method.ITERATIVE)))

    def _conditioned_once(self, rows: int) -> tuple[Method, str]:
        """Return the method of conditioning, and why, for rows of which learning is not worth many factors."""
        needed, exact = self._factor_bytes(rows), self.expected.conditioning(rows, Method.DIRECT)
        if needed <= self.resources.budget and exact <= FACTOR_SECONDS:
            return Method.DIRECT, f"one factor of {rows:,} rows takes {in_time(exact)}, is exact, and predicts"
        return self.chosen_by(rows, lambda method: self.expected.conditioning(rows, method), needed)

    def _factor_bytes(self, rows: int) -> int:
        """Return the bytes of conditioning by a factor of A."""
        return self.expected.bytes(rows, Method.DIRECT, Storage.STORED, learning=False)

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

    def require_host_memory(self) -> None:
        """Raise if the host cannot hold the data that a device works on: X as it was given, Y and the weights."""
        work = self.work
        needed = 8 * work.rows * (work.features + BLOCKS_ON_HOST * work.columns * work.values)
        if self.resources.device_memory is not None and needed > self.resources.memory:
            memory = in_bytes(self.resources.memory)
            raise MemoryBudgetExceeded(
                f"the data of {work.rows} rows need {in_bytes(needed)} on the host, but the memory is {memory}; use "
                f"fewer rows or memory='{math.ceil(1.05 * needed / 1e6)}MB'"
            )

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
            f"{in_bytes(self.resources.budget)}; {remedy} or memory='{self.enough(stage.bytes) // 10**6}MB'"
        )

    def enough(self, memory: int) -> int:
        """Return the memory, from this one on, in which a plan fits: what is made for more may need more."""
        for _ in range(MOST_ROUNDS):
            memory = math.ceil(MARGIN * memory / 1e6) * 10**6
            planner = replace(self, resources=self.resources.within(memory))
            needed = _largest((*planner.stages(), planner.conditioning())).bytes
            if needed <= memory:
                break
            memory = needed
        return memory
