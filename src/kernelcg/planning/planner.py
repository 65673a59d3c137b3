"""Making a plan: what each way would cost on this machine, what fits the memory, which way is taken, and why."""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch

from kernelcg.backends import Backend
from kernelcg.backends.memory import FOR_BOUND, FOR_PRECONDITIONER
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.planning.costs import Pricing, stored_product
from kernelcg.planning.plan import Family, Method, Plan, Precision, Stage, Storage, in_bytes, in_time
from kernelcg.planning.ranks import LEAST_RANK, bound_rank

GROWTH, LAST_GROWTH = 4, 2
"""By how much a stage of learning has more rows than the one before, and the last one than that."""

SMALLEST_STAGE = 200
"""Rows below which a part of the data says too little about the hyperparameters."""

IN_PLACE_ROWS = 3000
"""Rows above which a factorisation overwrites its matrix."""

MATRICES, MATRICES_IN_PLACE, LAPLACE_MATRICES = 3.0, 1.8, 5.0
"""Matrices of n² numbers that an exact evaluation holds at once: of few rows, in place, and of Laplace's."""

BLOCKS = 40
"""Blocks of n numbers a column that an iterative evaluation holds: solutions, directions, residuals, their copies."""

RANK_BLOCKS, BOUND_BLOCKS = 6, 4
"""Blocks of n × rank numbers that exist together while a preconditioner is factored, and of those of the bound."""

USUAL_RANK, USUAL_NEIGHBOURS, NUMBERS_PER_NEIGHBOUR = 512, 60, 14
"""The largest preconditioner that is chosen as a rule, and numbers of eight bytes for each entry of its sparse part."""

STORED_SHARE = 0.25
"""Part of the memory that K may take to be stored for products."""

OVERHEAD_BYTES = 8_000_000
"""What libraries allocate for themselves in a first fit: threads, buffers, code."""

PART_EVALUATIONS, EXACT_EVALUATIONS, ITERATIVE_EVALUATIONS = (8.0, 0.4), (14.0, 0.9), (4.0, 0.3)
"""Evaluations of the criterion, beside so many for each hyperparameter: on a part of the rows, exact ones on all rows,
and estimated ones on all rows, whose noise ends learning earlier."""

FIRST_EVALUATIONS = 8.0
"""Further ones in the first stage, which knows no curvature yet."""

ITERATIONS, CONDITIONING_ITERATIONS = 14.0, 30.0
"""Iterations of a preconditioned solve in learning, and of the one that conditions the process."""

REBUILDS = 0.3
"""Preconditioners that are made anew, for each evaluation."""

NEWTON_STEPS = 7.0
"""Systems that Laplace's mode takes, each from the solution of the one before."""

EXACTNESS = 1.0
"""Exact learning may take so many times the time of learning by iteration: it has no noise."""

LEAST_PATIENCE = 4
"""Evaluations by iteration before they are given up for exact ones."""

EVALUATION_OVERHEAD, ITERATION_OVERHEAD = 1.5e-3, 1.0
"""Seconds of Python in an evaluation; steps of the profile in an iteration of a block."""

HALF_SPEED = 1500
"""Rows at which a factorisation has half of the speed that it has with many."""


@dataclass(frozen=True)
class Workload:
    """What is to be fitted, in numbers.

    Attributes
    ----------
    columns : right-hand sides: outputs and drift functions
    values : latent values a row
    parameters : hyperparameters that are learned; 0 if none is
    in_stages : whether learning begins with a part of the rows
    exact_only : whether the criterion can only be computed by factorisation, on as many rows as that allows
    systems : matrices A that are worked with one after the other and kept: outputs with noise of their own
    """

    rows: int
    features: int
    columns: int = 1
    values: int = 1
    family: Family = Family.GAUSSIAN
    parameters: int = 10
    in_stages: bool = True
    exact_only: bool = False
    systems: int = 1


@dataclass(frozen=True)
class Resources:
    """Where the work is done: a backend by name, its threads, budgets in bytes, and what things cost."""

    backend: str
    device: str
    threads: int | None
    memory: int
    device_memory: int | None
    pricing: Pricing = Pricing()

    @classmethod
    def of(cls, backend: Backend, device: torch.device, pricing: Pricing) -> Self:
        """Return what a backend may use for data on this device."""
        on_device = None if device.type == "cpu" else backend.room(device)
        return cls(backend.name(), device.type, backend.threads, backend.budget(), on_device, pricing)

    @property
    def budget(self) -> int:
        """Return the bytes that may be allocated where the data are."""
        return self.memory if self.device_memory is None else min(self.memory, self.device_memory)


@dataclass(frozen=True)
class Options:
    """What a user may ask for."""

    method: Method = Method.AUTO
    precision: Precision = Precision.AUTO
    preconditioner: str = "auto"
    probes: int = 8
    seed: int = 0


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
        pricing=resources.pricing,
    )


@dataclass(frozen=True)
class _Planner:
    """Prices of one work."""

    work: Workload
    options: Options
    resources: Resources

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
        method, reason = (
            (Method.DIRECT, "the criterion needs it") if self.work.exact_only else self.chosen(rows, asked, last=last)
        )
        evaluations = self.evaluations(method, first=first, last=last)
        return self._stage(rows, method, asked, reason, evaluations, self.evaluation(rows, method))

    def conditioning(self) -> Stage:
        """Return how the process is conditioned on all rows."""
        rows = self.work.rows
        method, reason = self.chosen(rows, self.options.method)
        return self._stage(rows, method, self.options.method, reason, 1.0, self.condition_seconds(rows, method))

    def _stage(self, rows: int, method: Method, asked: Method, reason: str, evaluations: float, each: float) -> Stage:
        storage = self.storage(rows) if method is Method.ITERATIVE else Storage.STORED
        return Stage(
            rows,
            method,
            storage,
            self.options.precision,
            evaluations,
            evaluations * each,
            self.bytes(rows, method, storage),
            reason,
            asked is method,
            self.patience(rows) if method is Method.ITERATIVE and evaluations > 1 else None,
        )

    # choices

    def chosen(self, rows: int, asked: Method, *, last: bool = True) -> tuple[Method, str]:
        """Return the method for so many rows, and why; on a part of the rows both take as many evaluations."""
        if asked is not Method.AUTO:
            return asked, "as asked"
        what = f"{rows * self.work.values} {'latent values' if self.work.values > 1 else 'rows'}"
        if self.bytes(rows, Method.DIRECT, Storage.STORED) > self.resources.budget:
            needed = in_bytes(self.bytes(rows, Method.DIRECT, Storage.STORED))
            return Method.ITERATIVE, f"factorising K takes {needed}, the memory is {in_bytes(self.resources.budget)}"
        price = self.learning if last else self.evaluation
        exact, estimated = (price(rows, method) for method in (Method.DIRECT, Method.ITERATIVE))
        if exact <= EXACTNESS * estimated:
            return Method.DIRECT, f"{what}: factorising K costs no more than iterating, and is exact"
        return Method.ITERATIVE, f"{what}: iterating takes about {in_time(estimated)}, factorising {in_time(exact)}"

    def storage(self, rows: int) -> Storage:
        """Return whether K is stored for products: where it takes little of the memory and saves time."""
        if 8 * rows**2 > STORED_SHARE * self.resources.budget:
            return Storage.RECOMPUTED
        k, profile, price = self._block(), self.resources.pricing.profile, self.resources.pricing.price
        k = 1 if self.work.family is Family.LAPLACE else k  # most products of Newton's method have one column
        computed = price.product(profile, rows, self.work.features, k, self._dtype())
        made = rows**2 * price.entry(profile, self.work.features) / ITERATIONS
        return Storage.STORED if stored_product(profile, rows, k) + made < computed else Storage.RECOMPUTED

    def most_rows_in_memory(self) -> int:
        """Return the rows up to which an exact evaluation fits the memory."""
        return self._largest(lambda rows: self.bytes(rows, Method.DIRECT, Storage.STORED) <= self.resources.budget)

    def most_direct_rows(self) -> int:
        """Return the rows up to which an exact evaluation fits the memory and costs no more than estimated ones."""
        return self._largest(lambda rows: self.chosen(rows, Method.AUTO)[0] is Method.DIRECT)

    def _largest(self, holds: Callable[[int], bool]) -> int:
        """Return the largest number of rows for which a condition holds that holds for fewer, too; at least 1."""
        sizes = range(1, self.work.rows + 1)
        return max(bisect_left(sizes, True, key=lambda rows: not holds(rows)), 1)

    # prices

    def evaluations(self, method: Method, *, first: bool, last: bool) -> float:
        """Return how many evaluations of the criterion a stage is expected to take."""
        exact = method is Method.DIRECT
        some, each = PART_EVALUATIONS if not last else EXACT_EVALUATIONS if exact else ITERATIVE_EVALUATIONS
        return some + each * self.work.parameters + (FIRST_EVALUATIONS if first else 0.0)

    def learning(self, rows: int, method: Method) -> float:
        """Return the seconds of learning on so many rows, the last ones."""
        return self.evaluations(method, first=False, last=True) * self.evaluation(rows, method)

    def patience(self, rows: int) -> int:
        """Return after how many evaluations by iteration exact ones would have cost no more."""
        exact, each = self.learning(rows, Method.DIRECT), self.evaluation(rows, Method.ITERATIVE)
        return max(LEAST_PATIENCE, math.ceil(exact / each))

    def evaluation(self, rows: int, method: Method) -> float:
        """Return the seconds of one evaluation of the criterion with its gradient, for all systems."""
        return self.work.systems * self._evaluation_of_one(rows, method)

    def _evaluation_of_one(self, rows: int, method: Method) -> float:
        laplace = self.work.family is Family.LAPLACE
        profile, price, d, N = (
            self.resources.pricing.profile,
            self.resources.pricing.price,
            self.work.features,
            rows * self.work.values,
        )
        if method is Method.DIRECT:
            factor, inverse = N**3 / 6 / self._factorising(N), N**3 / 3 / (0.9 * profile.multiply)
            solves = NEWTON_STEPS if laplace else 1.0
            entries = rows**2 * price.entry(profile, d)
            return solves * factor + inverse + entries + price.gradient(profile, rows, d, 1) + EVALUATION_OVERHEAD
        newton = NEWTON_STEPS * ITERATIONS * self._iteration(rows, self.work.values) if laplace else 0.0
        block = ITERATIONS * self._iteration(rows, self._block())
        block += rows**2 * price.entry(profile, d) if self.storage(rows) is Storage.STORED else 0.0
        gradient = price.gradient(profile, rows, d, self._block())
        return newton + block + gradient + REBUILDS * self._building(rows) + 4 * EVALUATION_OVERHEAD

    def condition_seconds(self, rows: int, method: Method) -> float:
        """Return the seconds of conditioning, with the certificate, for all systems."""
        return self.work.systems * self._condition_one(rows, method)

    def _condition_one(self, rows: int, method: Method) -> float:
        profile, price, d, N = (
            self.resources.pricing.profile,
            self.resources.pricing.price,
            self.work.features,
            rows * self.work.values,
        )
        if method is Method.DIRECT:
            solves = NEWTON_STEPS if self.work.family is Family.LAPLACE else 1.0
            return (
                solves * N**3 / 6 / self._factorising(N) + rows**2 * price.entry(profile, d) + 4 * EVALUATION_OVERHEAD
            )
        steps = NEWTON_STEPS if self.work.family is Family.LAPLACE else 1.0
        certificate = 0.5 * CONDITIONING_ITERATIONS * self._iteration(rows, max(self.options.probes, 2))
        solve = steps * CONDITIONING_ITERATIONS * self._iteration(rows, self.work.columns * self.work.values)
        return self._building(rows) + solve + certificate

    def _factorising(self, N: int) -> float:
        """Return the multiply-adds a second of a Cholesky factorisation of so many rows."""
        profile = self.resources.pricing.profile
        return max(profile.factorise, 0.6 * profile.multiply * N / (N + HALF_SPEED))

    def _iteration(self, rows: int, k: int) -> float:
        pricing, stored = self.resources.pricing, self.storage(rows) is Storage.STORED
        costs = pricing.costs(rows, self.work.features, k, self._dtype(), stored=stored)
        return costs.iteration(LEAST_RANK, 30) + ITERATION_OVERHEAD * pricing.profile.step

    def _dtype(self) -> torch.dtype:
        """Return the precision that most products have: Newton's method works in float64, other solves as asked."""
        double = self.options.precision is Precision.FLOAT64 or self.work.family is Family.LAPLACE
        return torch.float64 if double else torch.float32

    def _building(self, rows: int) -> float:
        costs = self.resources.pricing.costs(rows, self.work.features, self._block(), torch.float64)
        return costs.low_rank(min(LEAST_RANK, rows)) + costs.local(LEAST_RANK, 30)

    def _block(self) -> int:
        return (self.work.columns + self.options.probes) * self.work.values

    # memory

    def bytes(self, rows: int, method: Method, storage: Storage) -> int:
        """Return the memory that a stage takes at its largest."""
        N = rows * self.work.values
        held = 8 * (rows * 3 * self.work.features + 12 * N * self.work.columns)
        if method is Method.DIRECT:
            return int(held + (self._matrices(N) + self.work.systems - 1) * 8 * N * N) + OVERHEAD_BYTES
        held += BLOCKS * 8 * N * (self.work.columns + self.options.probes)
        held += 8 * rows**2 if storage is Storage.STORED else 0
        left = max(self.resources.budget - held - OVERHEAD_BYTES, 0)
        systems = self.work.systems  # share what is left
        held += systems * 8 * rows * BOUND_BLOCKS * bound_rank(rows, FOR_BOUND * left / systems)
        numbers = RANK_BLOCKS * min(USUAL_RANK, rows) + NUMBERS_PER_NEIGHBOUR * (USUAL_NEIGHBOURS + 1)
        return int(held + min(systems * 8 * rows * numbers, FOR_PRECONDITIONER * left)) + OVERHEAD_BYTES

    def _matrices(self, N: int) -> float:
        if self.work.family is Family.LAPLACE:
            return LAPLACE_MATRICES
        return MATRICES if self.work.exact_only or N <= IN_PLACE_ROWS else MATRICES_IN_PLACE

    def require_memory(self, stage: Stage) -> None:
        """Raise before anything is allocated if a stage does not fit, naming what would do."""
        if stage.bytes <= self.resources.budget:
            return
        lean = self.bytes(stage.rows, Method.ITERATIVE, Storage.RECOMPUTED)
        fits = stage.method is Method.DIRECT and lean <= self.resources.budget
        remedy = "use method='iterative', which stores no matrix," if fits else "use fewer rows or probes,"
        raise MemoryBudgetExceeded(
            f"fitting {stage.rows} rows by the {stage.method} method needs {in_bytes(stage.bytes)}, but the memory is "
            f"{in_bytes(self.resources.budget)}; {remedy} or memory='{math.ceil(1.05 * stage.bytes / 1e6)}MB'"
        )
