"""The automatic choice of a preconditioner: short trials, measured costs, and a way out when it was wrong."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from kernelcg.operators import ConstantInvertible, KernelPlusDiagonal
from kernelcg.planning.costs import Costs, measured
from kernelcg.planning.pilot import Pilot, pilot
from kernelcg.planning.rate import Forecast
from kernelcg.preconditioners.partial_cholesky import PartialCholesky, extended, no_pivots, random_pivots
from kernelcg.preconditioners.prepared import DiagonalRemainder, LowRankAndRemainder
from kernelcg.preconditioners.vecchia import sparse_remainder
from kernelcg.randomness import child
from kernelcg.solvers import Attempt, Progress, SolveReport, Status, Stopping, solve

TRIAL = 3
"""Iterations without preconditioner before their end is forecast."""

PILOT_SECONDS = 0.02
"""What it takes to solve on a few hundred points: worth it where iterations are dearer."""

STRIP = 32
"""Part of the rows of A on which a product is timed; by symmetry the whole costs half as much a row."""

FIRST_RANK = 64

ENOUGH = 0.01
"""tr(D⁻¹ S (K − F Fᵀ) S) / n below which the low-rank part alone solves in a few iterations."""

FEW = 5
"""Those few iterations."""

NEIGHBOURS = (0, 30, 60)

RETRYABLE = (Status.STOPPED, Status.STAGNATED)


@dataclass(frozen=True)
class Option:
    """Something that can be done next, and what it is expected to cost from here to the end."""

    what: str
    rank: int
    neighbours: int
    iterations: float
    seconds: float
    why: str


@dataclass(frozen=True, eq=False)
class Automatic:
    """The outcome: the report, and the preconditioner it ended with (None: no preconditioner, or a direct solve)."""

    report: SolveReport
    prepared: LowRankAndRemainder | None
    preconditioner: ConstantInvertible | None
    build_seconds: float


class Search:
    """One automatic solve of A X = B.

    1. Iterate without preconditioner as long as that promises to end sooner than anything else could begin.
    2. Grow a randomly pivoted Cholesky factor by doubling; its remaining trace says what more rank would bring.
    3. If rank alone is too dear, try ranks and numbers of neighbours on a few hundred neighbouring points.
    4. Build what the cost model finds cheapest; a direct solve and going on as before are among the choices.
    5. If that turns out too slow, use more rank and neighbours, or the direct solve.
    """

    def __init__(
        self,
        A: KernelPlusDiagonal,
        B: Tensor,
        *,
        start: Tensor | None,
        stopping: Stopping,
        callback: Callable[[Progress], bool | None] | None,
        generator: Generator,
        numbers: float,
    ):
        self.A, self.B, self.X, self.stopping, self.callback = A, B, start, stopping, callback
        self.generator, self.numbers = generator, numbers
        self.began = time.perf_counter()
        self.reports: list[SolveReport] = []
        self.attempts: list[Attempt] = []
        self.factor: PartialCholesky | None = None
        self.ranks: list[tuple[int, float]] = []
        self.stopped = False
        norms = torch.linalg.vector_norm(B, dim=0)
        self.thresholds = (stopping.rtol * norms).clamp_min(stopping.atol) / torch.where(norms > 0, norms, 1.0)
        self.costs = Costs(len(A), B.shape[1], math.inf, math.inf, math.inf)
        self.built: tuple[LowRankAndRemainder, ConstantInvertible, float] | None = None

    def run(self) -> Automatic:
        """Choose, solve, and choose again until converged or nothing is left to try."""
        remaining = self._plain()
        if not self.reports or not self._finished():
            option = self._choose(remaining)
            while True:
                forecast = self._carry_out(option)
                if self._finished() or (stronger := self._escalation(option, forecast)) is None:
                    break
                option = stronger
        prepared, P, seconds = self.built or (None, None, 0.0)
        return Automatic(self._merged(), prepared, P, seconds)

    # the steps

    def _plain(self) -> float:
        """Iterate without preconditioner while that promises to end soonest; return how many iterations are left.

        Where a product is dear, a pilot comes first: no part of A is harder than A.
        """
        product = self._product_seconds()
        if TRIAL * product > PILOT_SECONDS:
            tried = self._pilot()
            trial = tried.trial(self._factor().F, 0)
            if trial.iterations * product > self._exploring(product):
                return trial.expected(tried.ratio)
        forecast = Forecast(self.thresholds, TRIAL)

        def exploring_is_cheaper() -> bool:
            if forecast.iterations < TRIAL:
                return False
            return forecast.remaining_seconds() > self._exploring(forecast.seconds / forecast.iterations)

        option = Option("no preconditioner", 0, 0, math.nan, math.nan, "a trial")
        self._attempt(option, None, 0.0, forecast, exploring_is_cheaper)
        self._measured(forecast.seconds / max(forecast.iterations, 1))
        return forecast.remaining()

    def _product_seconds(self) -> float:
        """Return the time of a product with A, from a strip of it."""
        A, rows = self.A, max(len(self.A) // STRIP, 1)
        began = time.perf_counter()
        A.backend.matmul(A.kernel, A.X[:rows], A.X, self.B, precision=A.precision).sum().item()
        return (time.perf_counter() - began) * len(A) / rows / 2

    def _exploring(self, product: float) -> float:
        """Return the least that a preconditioned solve costs."""
        return self._measured(product).low_rank(FIRST_RANK) + FEW * product

    def _choose(self, remaining: float) -> Option:
        """Return the cheapest option, growing the low-rank factor while that is what pays."""
        plain = remaining * self.costs.product
        standing = [
            Option("no preconditioner", 0, 0, remaining, plain, "as before: the cheapest way to the end"),
            *self._direct_option("the cheapest way to the end"),
        ]
        rank = FIRST_RANK
        while True:
            self._grow(rank)
            if rank < self._first_pilot_rank() and not self._low_rank_suffices():
                rank *= 2
                continue
            if self._low_rank_suffices():
                why = f"it leaves {self._share():.1e} of the noise"
                return self._priced(self._rank(), 0, FEW, 0.0, why)
            target = self._rank_that_suffices()
            cheapest = min([*standing, *self._rank_options(target)], key=lambda option: option.seconds)
            if cheapest.rank > self._rank():
                rank = min(2 * rank, target)
                continue
            pilot_seconds = 4 * self.costs.product  # what a pilot costs at least in lost time
            if cheapest.what != "low rank" and cheapest.seconds < pilot_seconds + FEW * self.costs.product:
                return cheapest
            cheapest = min([*standing, *self._piloted()], key=lambda option: option.seconds)
            if cheapest.rank <= self._rank():
                return cheapest
            rank = cheapest.rank

    def _carry_out(self, option: Option) -> Forecast:
        """Build what the option asks for and solve with it."""
        began = time.perf_counter()
        P = None
        if option.what.startswith("low rank"):
            self._grow(option.rank)
            prepared = self._prepared(option)
            P = prepared.factor(self.A.scale, self.A.diagonal)
            self.built = (prepared, P, time.perf_counter() - began)
        forecast = Forecast(self.thresholds, TRIAL)
        patience = 2 * option.iterations + 10

        def too_slow() -> bool:
            if forecast.iterations < patience or option.what == "direct":
                return False
            stronger = self._escalation(option, forecast)
            return stronger is not None and stronger.seconds < forecast.remaining_seconds()

        self._attempt(option, P, time.perf_counter() - began, forecast, too_slow)
        return forecast

    def _escalation(self, option: Option, forecast: Forecast) -> Option | None:
        """Return the cheapest stronger option, if there is any."""
        if option.what == "direct" or self._out_of_limits():
            return None
        why = f"{option.what} was too slow"
        stronger = self._direct_option(why)
        rank = min(2 * max(option.rank, FIRST_RANK), self._rank_limit())
        neighbours = max(NEIGHBOURS[-1], option.neighbours)
        if rank > option.rank or neighbours > option.neighbours:
            iterations = max(forecast.remaining() / 2, FEW)
            stronger.append(self._priced(rank, neighbours, iterations, self.costs.local(rank, neighbours), why))
        return min(stronger, key=lambda option: option.seconds, default=None)

    # what can be done

    def _direct_option(self, why: str) -> list[Option]:
        budget = self.A.memory_budget()
        if budget is not None and 8 * len(self.A) ** 2 > budget:
            return []
        return [Option("direct", 0, 0, 1, self.costs.direct(), why)]

    def _rank_options(self, target: int) -> list[Option]:
        if target > self._rank_limit():
            return []
        return [self._priced(target, 0, FEW, 0.0, "more rank")]

    def _piloted(self) -> list[Option]:
        """Return options tried on neighbouring points, and what twice the rank would give by the same trend."""
        pilot, m, F = self._pilot(), self._rank(), self._factor().F
        found = {q: pilot.trial(F, q) for q in NEIGHBOURS}
        growths = [trial.growth for q, trial in found.items() if q]
        options = []
        for q, trial in found.items():
            growth = sum(growths) / len(growths) if q else trial.growth  # few iterations: one trial alone is noisy
            expected, local = trial.expected(pilot.ratio, growth), trial.local_seconds if q else 0.0
            why = f"{trial.iterations:.0f} iterations on {len(pilot.rows)} neighbouring points"
            options.append(self._priced(m, q, expected, local, why))
            if 2 * m <= self._rank_limit():
                better = max(expected * 2 ** (-self._trace_slope() / 2), FEW)
                options.append(self._priced(2 * m, q, better, 2 * local, "more rank"))
        return options

    def _priced(self, rank: int, neighbours: int, iterations: float, local: float, why: str) -> Option:
        seconds = self.costs.low_rank(rank) + local + iterations * self.costs.iteration(rank, neighbours)
        return Option(_named(rank, neighbours), rank, neighbours, iterations, seconds, why)

    # the low-rank factor

    def _factor(self) -> PartialCholesky:
        if self.factor is None:
            self.factor = no_pivots(self.A.kernel, self.A.X)
        return self.factor

    def _grow(self, rank: int) -> None:
        choose = random_pivots(child(self.generator, f"pivots {self._rank()}"))
        weight = float(self._weights().mean())
        tolerance = ENOUGH * len(self.A) / (weight * self._factor().trace) if weight > 0 else 1.0
        self.factor = extended(
            self._factor(),
            self.A.kernel,
            self.A.X,
            self.A.backend,
            rank=min(rank, self._rank_limit()),
            tolerance=min(tolerance, 1.0),
            choose=choose,
        )
        self.ranks.append((self._rank(), self._share()))

    def _rank(self) -> int:
        return self._factor().rank

    def _weights(self) -> Tensor:
        squares = self.A.diagonal.new_ones(()) if self.A.scale is None else self.A.scale.square()
        return squares / self.A.diagonal

    def _share(self) -> float:
        """Return tr(D⁻¹ S (K − F Fᵀ) S) / n: what the factor leaves, in units of the noise."""
        return float((self._weights() * self._factor().remainder).mean())

    def _low_rank_suffices(self) -> bool:
        return self._share() <= 2 * ENOUGH or self._rank() == len(self.A)

    def _trace_slope(self) -> float:
        """Return the exponent s of the remaining trace ~ rank^(−s) over the last doubling; 0 if it does not fall."""
        everything = float((self._weights() * self.A.kernel_diagonal()).mean())
        (m0, share0), (m1, share1) = [(1, everything), *self.ranks][-2:]
        if m1 <= m0 or not 0 < share1 < share0:
            return 0.0
        return math.log(share0 / share1) / math.log(m1 / m0)

    def _rank_that_suffices(self) -> int:
        """Return the rank at which the remaining trace would be small enough, as it has been falling."""
        slope, (m, share) = self._trace_slope(), self.ranks[-1]
        if slope < math.log(share / ENOUGH) / math.log(max(len(self.A) / m, 1.0001)):
            return len(self.A)
        return math.ceil(m * (share / ENOUGH) ** (1 / slope))

    def _first_pilot_rank(self) -> int:
        """Return the rank that costs no more than one product, at which it is time to look around."""
        rank = FIRST_RANK
        while self.costs.low_rank(2 * rank) <= self.costs.product and 2 * rank <= self._rank_limit():
            rank *= 2
        return rank

    def _rank_limit(self) -> int:
        """Return the largest rank that fits the numbers a preconditioner may hold and the memory to build it."""
        n = len(self.A)
        budget = self.A.memory_budget() or math.inf
        held = (self.numbers / n - 4 * (NEIGHBOURS[-1] + 1)) / 2
        return int(max(min(held, budget / (8 * 4 * n), n), 1))

    def _prepared(self, option: Option) -> LowRankAndRemainder:
        F = self._factor().F[:, : option.rank]
        if option.neighbours == 0:
            return LowRankAndRemainder(F, DiagonalRemainder())
        order = child(self.generator, "order")
        A = self.A
        remainder = sparse_remainder(A.kernel, A.X, A.backend, order, option.neighbours, F)
        return LowRankAndRemainder(F, remainder)

    def _pilot(self) -> Pilot:
        rtol = float(self.thresholds.min())
        return pilot(self.A, rtol, child(self.generator, "pilot"))

    # bookkeeping

    def _measured(self, product: float) -> Costs:
        """Measure this machine once."""
        if math.isinf(self.costs.product):
            self.costs = measured(len(self.A), self.B.shape[1], product, self.A.X)
        return self.costs

    def _attempt(
        self,
        option: Option,
        P: ConstantInvertible | None,
        build_seconds: float,
        forecast: Forecast,
        give_up: Callable[[], bool],
    ) -> None:
        """Solve from where the last attempt ended, watching the forecast, and keep the record."""
        before, done = time.perf_counter() - self.began, self._iterations()

        def watch(progress: Progress) -> bool:
            forecast.add(progress)
            shifted = replace(progress, iteration=progress.iteration + done, seconds=progress.seconds + before)
            self.stopped = bool(self.callback and self.callback(shifted))
            return self.stopped or give_up()

        limits = replace(
            self.stopping,
            max_iterations=max(self.stopping.max_iterations - done, 0),
            max_seconds=max(self.stopping.max_seconds - before, 1e-9),
        )
        direct = option.what == "direct"
        report = solve(
            self.A,
            self.B,
            method="direct" if direct else None,
            preconditioner=P,
            start=None if direct else self.X,
            stopping=limits,
            callback=watch,
        )
        self.X = report.solution
        self.reports.append(report)
        steps = int(report.iterations.max())
        attempt = Attempt(
            option.what,
            option.why,
            option.iterations,
            option.seconds,
            build_seconds,
            steps,
            report.seconds,
            report.status,
        )
        self.attempts.append(attempt)

    def _iterations(self) -> int:
        return sum(int(report.iterations.max()) for report in self.reports)

    def _finished(self) -> bool:
        return self.stopped or self.reports[-1].status not in RETRYABLE or self._out_of_limits()

    def _out_of_limits(self) -> bool:
        spent = time.perf_counter() - self.began
        return self._iterations() >= self.stopping.max_iterations or spent >= self.stopping.max_seconds

    def _merged(self) -> SolveReport:
        """Return the last report with the costs of all."""
        reports = self.reports
        return replace(
            reports[-1],
            iterations=torch.stack([report.iterations for report in reports]).sum(0),
            residual_norms=torch.cat([report.residual_norms for report in reports]),
            products=sum(report.products for report in reports),
            columns=sum(report.columns for report in reports),
            seconds=time.perf_counter() - self.began,
            tried=tuple(note for report in reports for note in report.tried),
            attempts=tuple(self.attempts),
        )


def _named(rank: int, neighbours: int) -> str:
    return f"low rank {rank}" + (f" + Vecchia {neighbours}" if neighbours else "")
