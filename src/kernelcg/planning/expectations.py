"""What each way of fitting is expected to take: evaluations, seconds and bytes, from sizes and the machine's rates.

The constants were set by `benchmarks/plan_against_reality.py`, on two quiet cores.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from kernelcg.backends import dask
from kernelcg.kernels.long_double import AFFORDABLE_OPERATIONS, operations_of_product
from kernelcg.planning.costs import Costs, stored_product
from kernelcg.planning.counts import FEW_FEATURES, evaluations, iterations, relative_noise
from kernelcg.planning.plan import Family, Method, Precision, Storage
from kernelcg.planning.profile import Profile
from kernelcg.planning.ranks import Sizes
from kernelcg.planning.workers import sharing
from kernelcg.planning.workload import Options, Resources, Workload
from kernelcg.solvers.direct import IN_PLACE_ROWS

# iterations of a solve

CONDITIONING = 2.0
"""A solve that conditions the process takes so many times the iterations of one in learning: it is more accurate."""

REBUILDS = 0.3
"""Preconditioners that are made anew, for each evaluation."""

TRIED_RANK, SEARCHING = 128, 1.2
"""Rank of the preconditioner with which the automatic choice compares a factorisation as a rule, and its cost with that
of looking for it, relative to without."""

IN_VAIN, TRIAL = 1.0, 4
"""Iterations before a factorisation that was the cheaper way, as a part of its time, and how many there are always."""

BOUNDS = 2.0
"""Low-rank factors that an estimated evaluation computes for its probes and their gradient."""

NEWTON_STEPS = 7.0
"""Systems that Laplace's mode takes, each from the solution of the one before."""

# seconds beside the arithmetic

EVALUATION_OVERHEAD, ESTIMATION_OVERHEAD, PARAMETER_OVERHEAD, ITERATION_OVERHEAD = 1.5e-3, 9e-3, 6e-5, 1.0
"""Seconds of Python in an exact and in an estimated evaluation, and for each hyperparameter in the step that follows;
steps of the profile in an iteration of a block."""

COLUMN_PASSES = 2.0
"""Multiply-adds for each entry of the factor and each random column in whose time an exact evaluation solves for it: a
triangle with a few columns is limited by memory."""

INFORMATION_PASSES = 6.0
"""Multiply-adds for each entry of the factor and each hyperparameter in whose time an exact evaluation solves for the
average information."""

FIRST_CALLS = 0.015
"""Seconds of a fit that do not depend on the data: checks, and what libraries prepare when they are first called."""

LONG_DOUBLE_RATIO, LONG_DOUBLE_OPERATION = 1.5e7, 1e-8
"""Rows over relative noise from which residuals of the weights are checked in long double, and seconds of an operation
there."""

OWN_KERNEL_SECONDS = 0.15
"""Seconds that the first gradient of a user's own formula takes beside its arithmetic, once."""

FACTOR_SPEED, INVERSE_SPEED, HALF_SPEED = 0.92, 1.05, 750
"""Speed of factorising and inverting many rows relative to a product of matrices, and rows at which both have half of
it."""

# bytes

MATRICES, MATRICES_IN_PLACE, LAPLACE_MATRICES, CLASS_MATRICES = 4.6, 1.8, 5.0, 6.0
"""Matrices of n² numbers that an exact evaluation holds at once, those that the allocator has not yet returned to the
system among them: of few rows A, its factor and its inverse; of more, one in whose place the others are made, and what
the gradient takes; those of Laplace's approximation; and those of classes beside two for each class."""

COLUMN_BLOCKS = 6
"""Blocks of n numbers for each random column of an exact evaluation: signs, solutions, both sides of the gradient."""

INFORMATION_BLOCKS = 6
"""Blocks of n × d numbers that an exact evaluation holds for the average information."""

LONG_DOUBLE_BYTES, LONG_DOUBLE_NUMBERS = 16_000_000, 30
"""Bytes of blocks of K in long double, where residuals are checked in it: at most so many, and for each entry."""

OWN_KERNEL_MATRICES, OWN_KERNEL_BYTES = 1.5, 60_000_000
"""Further ones for a user's own formula, and the memory of the library that differentiates it."""

SOLVE_MATRICES = 1.6
"""Matrices of n² numbers where the solve of an estimated evaluation is a factorisation."""

BLOCKS = 40
"""Blocks of n numbers a column that an iterative evaluation holds: solutions, directions, residuals, their copies."""

RANK_BLOCKS, HELD_BLOCKS, BOUND_BLOCKS = 6, 2, 5.4
"""Blocks of n × rank numbers that exist together while a preconditioner is factored, and afterwards; blocks of
(n + rank) × rank numbers while the bound is made."""

USUAL_RANK, RANK_OF_FEW_FEATURES, USUAL_NEIGHBOURS, NUMBERS_PER_NEIGHBOUR = 512, 256, 60, 14
"""The largest preconditioner that is chosen as a rule, and numbers of eight bytes for each entry of its sparse part."""

MUCH_NOISE = 0.01
"""Noise relative to the signal from which half of the usual rank and of the usual neighbours suffices."""

ROWS_OF_USUAL_RANK = 16_000
"""Rows up to which that is so; with more, the rank grows with them."""

ON_WORKERS = 0.75
"""Part of the n² entries that workers store at most: those on and above the diagonal, in two blocks of rows or more."""

STORED_SHARE = 0.25
"""Part of the memory that K may take to be stored for products."""

ITERATING_BYTES, ITERATING_BYTES_OF_A_ROW = 15_000_000, 5_000
"""Memory between blocks of other sizes that the allocator cannot use again in iterative work, at most, and a row: 6 MB
in a fit of 1,500 rows, 12 to 16 in fits of 3,000 to 6,000 rows within little memory."""

OVERHEAD_BYTES = 9_350_000
"""What libraries allocate for themselves in a first fit: threads, buffers, code."""


@dataclass(frozen=True)
class Expectations:
    """What one work takes with these options and resources."""

    work: Workload
    options: Options
    resources: Resources
    with_workers: bool = False
    """Whether seconds are those with the workers of a cluster, if there is one. Choices never go by them, so that any
    number of workers gives the same numbers."""

    # seconds

    def learning(self, rows: int, method: Method, columns: int = 0) -> float:
        """Return the seconds of learning on so many rows, the last ones."""
        count = evaluations(self.work, method, first=False, last=True, columns=columns)
        return count * self.evaluation(rows, method, columns)

    def evaluation(self, rows: int, method: Method, columns: int = 0) -> float:
        """Return the seconds of one evaluation of the criterion with its gradient, for all systems."""
        one = self._exact_evaluation(rows, columns) if method is Method.DIRECT else self._estimated_evaluation(rows)
        return self.work.systems * one

    def _exact_evaluation(self, rows: int, columns: int) -> float:
        profile, price, d = self.resources.pricing.profile, self.resources.pricing.price, self.work.features
        laplace, C = self.work.family is Family.LAPLACE, self.work.values
        factors = (NEWTON_STEPS if laplace else 1.0) * self._factors(rows)
        speed = INVERSE_SPEED * profile.multiply * rows / (rows + HALF_SPEED)
        inverse = rows**3 / 3 if C == 1 else 2 * C * rows**3
        traces = (COLUMN_PASSES * columns * rows**2 if columns else inverse) / speed
        gradient = price.gradient(profile, rows, d, max(columns, 1))
        information = 0.0 if laplace else self._information(rows)
        overhead = EVALUATION_OVERHEAD + PARAMETER_OVERHEAD * self.work.parameters
        return factors + traces + self._entries(rows) + gradient + information + overhead

    def _estimated_evaluation(self, rows: int) -> float:
        price, laplace = self.resources.pricing.price, self.work.family is Family.LAPLACE
        d, step = self.work.features, PARAMETER_OVERHEAD * self.work.parameters
        newton = NEWTON_STEPS * self._newton_step(rows) if laplace else 0.0
        gradient = self._shared(rows, lambda rates: price.gradient(rates, rows, d, self._block()))
        probes = BOUNDS * self._low_rank(rows, self._sizes.bound_rank)
        return newton + self._solve(rows) + gradient + probes + ESTIMATION_OVERHEAD + step

    def _newton_step(self, rows: int) -> float:
        """Return the seconds of a step of Newton's method; of classes each has a preconditioner of its own."""
        C, m = self.work.values, self._sizes.class_rank(rows, self.work.values)
        made = 0.0 if C == 1 else rows * (C * m) ** 2 / 2 + (C * m) ** 3 / 6
        return iterations(self.work) * self._iteration(rows, C) + made / self.resources.pricing.profile.multiply

    def _information(self, rows: int) -> float:
        """Return the seconds of the average information of an exact evaluation."""
        pricing, d = self.resources.pricing, self.work.features
        solves = INFORMATION_PASSES * rows**2 * self.work.parameters / pricing.profile.multiply
        return self._shared(rows, lambda rates: pricing.price.product(rates, rows, d, 2 * d + 2)) + solves

    def conditioning(self, rows: int, method: Method) -> float:
        """Return the seconds of conditioning on so many rows, with the certificate, for all systems."""
        own = OWN_KERNEL_SECONDS if self._differentiates_own_formula() else 0.0
        return FIRST_CALLS + own + self.work.systems * self._conditioning_of_one(rows, method)

    def _conditioning_of_one(self, rows: int, method: Method) -> float:
        steps = NEWTON_STEPS if self.work.family is Family.LAPLACE else 1.0
        if method is Method.DIRECT:
            checked = LONG_DOUBLE_OPERATION * self._long_double_operations(rows)
            return steps * self._factors(rows) + self._entries(rows) + 2 * EVALUATION_OVERHEAD + checked
        needed = CONDITIONING * iterations(self.work)
        if self._factorises(rows, self.work.columns * self.work.values, steps * needed):
            return (1 + IN_VAIN) * steps * self._direct_solve(rows) + ESTIMATION_OVERHEAD
        certificate = 0.5 * needed * self._iteration(rows, max(self.options.probes, 2))
        solve = steps * needed * self._iteration(rows, self.work.columns * self.work.values)
        bound = self._low_rank(rows, self._sizes.rank_of_bound(rows, self.resources.budget))
        return self._building(rows) + solve + certificate + bound

    def _solve(self, rows: int) -> float:
        """Return the seconds of the block solve of an evaluation."""
        if self._factorises(rows, self._block(), iterations(self.work)):
            return (1 + IN_VAIN) * self._direct_solve(rows) + TRIAL * self._iteration(rows, self._block())
        price, d = self.resources.pricing.price, self.work.features
        entries = self._shared(rows, lambda rates: rows**2 * price.entry(rates, d))
        stored = entries if self.storage(rows) is Storage.STORED else 0.0
        return iterations(self.work) * self._iteration(rows, self._block()) + REBUILDS * self._building(rows) + stored

    def _factorises(self, rows: int, k: int, steps: float) -> bool:
        """Whether the automatic choice solves for k columns by a factorisation, where steps cost more."""
        if self.work.values > 1 or 2 * SOLVE_MATRICES * 8 * rows**2 > self.resources.budget:
            return False
        pricing, stored = self.resources.pricing, self.storage(rows) is Storage.STORED
        costs = pricing.costs(rows, self.work.features, k, self._dtype(), stored=stored)
        rank = min(TRIED_RANK, rows)
        return costs.direct() < SEARCHING * (costs.low_rank(rank) + steps * costs.iteration(rank, 0))

    def _long_double_operations(self, rows: int) -> float:
        """Return how many operations check the weights in long double; 0 where there is noise enough without."""
        if (
            self.work.family is Family.LAPLACE
            or rows < LONG_DOUBLE_RATIO * relative_noise(self.work)
            or self._has_own_formula()
        ):
            return 0.0
        needed = operations_of_product(rows, rows, self.work.features, self.work.columns)
        return needed if needed <= AFFORDABLE_OPERATIONS else 0.0

    def _direct_solve(self, rows: int) -> float:
        return self._factor(rows * self.work.values) + self._entries(rows)

    def _factor(self, N: int) -> float:
        """Return the seconds of a Cholesky factorisation."""
        profile = self.resources.pricing.profile
        return N**3 / 6 / max(profile.factorise, FACTOR_SPEED * profile.multiply * N / (N + HALF_SPEED))

    def _factors(self, rows: int) -> float:
        """Return the seconds of a factor of A: for C classes, of C matrices that are inverted and one that is not."""
        return (1 if self.work.values == 1 else 3 * self.work.values + 1) * self._factor(rows)

    def _entries(self, rows: int) -> float:
        pricing = self.resources.pricing
        return rows**2 * pricing.price.entry(pricing.profile, self.work.features)

    def _iteration(self, rows: int, k: int) -> float:
        pricing, stored = self.resources.pricing, self.storage(rows) is Storage.STORED
        costs = pricing.costs(rows, self.work.features, k, self._dtype(), stored=stored)
        product = self._shared(rows, lambda rates: self._product_at(rates, rows, k, stored=stored))
        shared = replace(costs, product=product)
        return shared.iteration(self._sizes.bound_rank, 30) + ITERATION_OVERHEAD * pricing.profile.step

    def _product_at(self, rates: Profile, rows: int, k: int, *, stored: bool) -> float:
        """Return the seconds of a product at the rates of a machine or of a thread of a worker."""
        pricing = replace(self.resources.pricing, profile=rates)
        return pricing.costs(rows, self.work.features, k, self._dtype(), stored=stored).product

    def _shared(self, rows: int, work: Callable[[Profile], float]) -> float:
        """Return the seconds of work with K that the workers of a cluster share; of this process without them."""
        workers = sharing(self.resources.workers, rows) if self.with_workers else None
        return work(self.resources.pricing.profile) if workers is None else workers.seconds(rows, work)

    def _dtype(self) -> torch.dtype:
        """Return the precision that most products have: Newton's method works in float64, other solves as asked."""
        double = self.options.precision is Precision.FLOAT64 or self.work.family is Family.LAPLACE
        return torch.float64 if double else torch.float32

    def _building(self, rows: int) -> float:
        rank, pricing = self._sizes.bound_rank, self.resources.pricing

        def local(rates: Profile) -> float:
            costs = replace(pricing, profile=rates).costs(rows, self.work.features, self._block(), torch.float64)
            return costs.local(rank, 30)

        return self._low_rank(rows, rank) + self._shared(rows, local)

    def _low_rank(self, rows: int, rank: int) -> float:
        return self._costs(rows).low_rank(min(rank, rows))

    def _costs(self, rows: int) -> Costs:
        return self.resources.pricing.costs(rows, self.work.features, self._block(), torch.float64)

    def _block(self) -> int:
        return (self.work.columns + self.options.probes) * self.work.values

    @property
    def _sizes(self) -> Sizes:
        return self.resources.pricing.sizes

    def _differentiates_own_formula(self) -> bool:
        return self._has_own_formula() and self.work.parameters > 0

    def _has_own_formula(self) -> bool:
        return self.resources.pricing.price.seconds > 0

    # bytes

    def storage(self, rows: int) -> Storage:
        """Return whether K is stored for products: where it takes little of the memory and saves time.

        Of many rows the workers of a cluster store it, if there is one, and that takes as small a part of the time.
        """
        here = self._is_here(rows)
        room = STORED_SHARE * self.resources.budget if here else self.resources.pricing.workers_memory
        if (1 if here else ON_WORKERS) * 8 * rows**2 > room:
            return Storage.RECOMPUTED
        k, profile, price = self._block(), self.resources.pricing.profile, self.resources.pricing.price
        k = 1 if self.work.family is Family.LAPLACE else k  # most products of Newton's method have one column
        computed = price.product(profile, rows, self.work.features, k, self._dtype())
        made = self._entries(rows) / iterations(self.work)
        return Storage.STORED if stored_product(profile, rows, k) + made < computed else Storage.RECOMPUTED

    def _is_here(self, rows: int) -> bool:
        """Say whether this process does the products of so many rows."""
        return self.resources.workers is None or rows <= dask.LEAST_BLOCK

    def bytes(self, rows: int, method: Method, storage: Storage, *, learning: bool = True, columns: int = 0) -> int:
        """Return the memory that a stage of learning, or the conditioning, takes at its largest."""
        N, systems = rows * self.work.values, self.work.systems
        held = OVERHEAD_BYTES + 8 * (rows * self.resources.copies * self.work.features + 12 * N * self.work.columns)
        held += OWN_KERNEL_BYTES if self._differentiates_own_formula() else 0
        if method is Method.DIRECT:
            held += 8 * (INFORMATION_BLOCKS * rows * self.work.features + COLUMN_BLOCKS * N * columns)
            matrices = self._matrices(rows) + (systems - 1)
            return int(held + matrices * 8 * rows**2 + (0 if learning else self._checked(rows)))
        held += min(ITERATING_BYTES, ITERATING_BYTES_OF_A_ROW * rows)
        held += BLOCKS * 8 * N * (self.work.columns + self.options.probes)
        k = self._block() if learning else self.work.columns
        steps = iterations(self.work) * (1.0 if learning else CONDITIONING)
        by_factor = (SOLVE_MATRICES + systems - 1) * 8 * N**2 + self._bound_bytes(rows, self._sizes.bound_rank)
        if held + by_factor <= self.resources.budget and self._factorises(rows, k, steps):
            return int(held + by_factor)
        held += 8 * rows**2 if storage is Storage.STORED and self._is_here(rows) else 0
        return int(held + self._bytes_of_iterating(rows, max(self.resources.budget - held, 0), learning=learning))

    def _checked(self, rows: int) -> int:
        """Return the bytes of checks in long double."""
        checked = self._long_double_operations(rows) > 0
        return min(LONG_DOUBLE_BYTES, LONG_DOUBLE_NUMBERS * rows**2) if checked else 0

    def _bytes_of_iterating(self, rows: int, left: int, *, learning: bool) -> float:
        """Return the bytes of the preconditioner and of the low-rank bound, where so many are left for them.

        In learning a bound for the probes is there while a preconditioner is made; in conditioning the preconditioner
        is there while a larger bound is made.
        """
        systems = self.work.systems
        usual = RANK_OF_FEW_FEATURES if self.work.features <= FEW_FEATURES else USUAL_RANK
        part = 0.5 if relative_noise(self.work) >= MUCH_NOISE else 1.0
        rank = min(int(part * usual * max(1.0, rows / ROWS_OF_USUAL_RANK)), rows)
        numbers = RANK_BLOCKS * rank + NUMBERS_PER_NEIGHBOUR * (part * USUAL_NEIGHBOURS + 1)
        making = min(systems * 8 * rows * numbers, self._sizes.for_preconditioner * left)
        most = self._sizes.rank_of_bound(rows, left / systems)
        if learning:
            return making + HELD_BLOCKS / BOUND_BLOCKS * self._bound_bytes(rows, min(self._sizes.bound_rank, most))
        return max(making, HELD_BLOCKS / RANK_BLOCKS * making + self._bound_bytes(rows, most))

    def _bound_bytes(self, rows: int, rank: int) -> float:
        """Return the bytes in which a low-rank bound of A is made, for all systems."""
        m = min(rank, rows)
        return self.work.systems * 8 * BOUND_BLOCKS * (rows + m) * m

    def _matrices(self, rows: int) -> float:
        """Return how many n × n matrices an exact evaluation, or a factor alone, holds at its largest."""
        own = OWN_KERNEL_MATRICES if self._has_own_formula() else 0.0
        if self.work.values > 1:
            return 2 * self.work.values + CLASS_MATRICES + own
        if self.work.family is Family.LAPLACE:
            return LAPLACE_MATRICES + own
        return own + (MATRICES if self.work.exact_only or rows <= IN_PLACE_ROWS else MATRICES_IN_PLACE)
