"""The automatic choice of a preconditioner: short trials, a cost model, and stronger choices when one is too slow."""

import math
import time
from dataclasses import replace

import torch
from torch import Generator, Tensor

from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.events import Event, Listener
from kernelcg.operators import ConstantInvertible, KernelPlusDiagonal
from kernelcg.planning.costs import Costs
from kernelcg.planning.forecast import Forecast
from kernelcg.planning.growing_factor import Construction, first_factor
from kernelcg.planning.options import Automatic, Option, Ready
from kernelcg.planning.pilot import FEW, Alone, Pilot, Trial, affordable_points, pilot
from kernelcg.planning.ranks import Sizes
from kernelcg.preconditioners.base import FACTORS_AT_ONCE, largest_rounded_rank
from kernelcg.preconditioners.low_rank_remainder import NUMBERS_PER_NEIGHBOUR, LowRankAndRemainder
from kernelcg.randomness import child
from kernelcg.solvers import Approach, Attempt, SolveReport, Status, Stopping, solve
from kernelcg.solvers.direct import IN_PLACE_ROWS, factor_bytes

TRIAL = 3
"""Iterations without preconditioner after which the rest of them is forecast."""

PILOT_SECONDS = 0.05
"""Seconds that a solve on a few hundred points takes, roughly. A pilot is made where `TRIAL` products take longer."""

STRIDE = 4
"""By how much the rank grows at most before the pilot is asked again, and what ranks differ by that show a trend."""

FOR_DIRECT = 0.5
"""Part of the memory that a direct solve may take: the solutions, probes and bounds of an evaluation stay beside it."""

RETRYABLE = (Status.STOPPED, Status.STAGNATED)
"""The ends of a solve after which a stronger preconditioner may still help."""


def direct_bytes(n: int, *, on_gpu: bool = False) -> int:
    """Return the bytes of a direct solve: the matrix and its factorisation, and for fewer rows a copy of the factor."""
    return factor_bytes(n, on_gpu=on_gpu) + (8 * n * n if n <= IN_PLACE_ROWS else 0)


class Search:
    """One automatic solve of A X = B.

    1. Iterate without preconditioner while that is expected to end before a preconditioned solve could.
    2. Grow a randomly pivoted Cholesky factor by doubling; its remaining trace says what more rank would bring.
    3. If rank alone costs too much, try ranks and numbers of neighbours on a few hundred neighbouring points, and rank
       alone on as many of all points: where data are dense and noisy, neighbours do not help and high rank does.
    4. Build what the cost model finds cheapest; a direct solve and plain iterations are among the choices.
    5. If the chosen preconditioner turns out too slow, use more rank and neighbours, or the direct solve.
    """

    def __init__(
        self,
        A: KernelPlusDiagonal,
        B: Tensor,
        *,
        start: Tensor | None,
        stopping: Stopping,
        callback: Listener | None,
        generator: Generator,
        numbers: float,
        costs: Costs,
        sizes: Sizes,
    ):
        self.costs, self.sizes = costs, sizes
        self.A, self.B, self.X, self.stopping, self.callback = A, B, start, stopping, callback
        self.generator, self.numbers = generator, numbers
        self.began = time.perf_counter()
        self.reports: list[SolveReport] = []
        self.attempts: list[Attempt] = []
        self.low_rank = first_factor(A, generator)
        self.alone: Alone | None = None
        self.notes: list[str] = []
        self.stopped = False
        self.idle_since = self.began
        norms = torch.linalg.vector_norm(B, dim=0)
        usable = norms[(norms > 0) & norms.isfinite()]
        self.thresholds = torch.full_like(norms, 1.0)
        self.thresholds[(norms > 0) & norms.isfinite()] = (stopping.rtol * usable).clamp_min(stopping.atol) / usable
        self.built: tuple[LowRankAndRemainder, ConstantInvertible, Construction] | None = None

    def run(self) -> Automatic:
        """Choose, solve, and choose again until converged or nothing is left to try."""
        trial, remaining = self._trial()
        if trial is not None:
            remaining = self._attempt(trial).remaining()
        if not self.reports or not self._finished():
            option = self._choose_within_memory(remaining)
            while True:
                try:
                    forecast = self._attempt(self._ready(option))
                except MemoryBudgetExceeded as error:
                    forecast = self._attempt(self._ready(self._without_memory(option, error)))
                if self._finished() or (stronger := self._escalation(option, forecast)) is None:
                    break
                option = stronger
        prepared, P, how = self.built or (None, None, None)
        return Automatic(self._merged(), prepared, P, how)

    # the steps

    def _trial(self) -> tuple[Ready | None, float]:
        """Return a trial without preconditioner, or None and the iterations that it would need if these are too many.

        The trial lasts as long as it is expected to end sooner than a preconditioned solve. Where a product takes long,
        a pilot solve on a few rows comes first: no part of A needs more iterations than A.
        """
        if TRIAL * self.costs.product > PILOT_SECONDS:
            tried = self._pilot()
            trial = tried.trial(self.low_rank.F, 0)
            if trial.iterations * self.costs.product > self._exploring():
                return None, trial.expected(tried.ratio)
        forecast = self._forecast(0, 0)

        def exploring_is_cheaper() -> bool:
            return forecast.iterations >= TRIAL and forecast.remaining_seconds() > self._exploring()

        option = Option(Approach.PLAIN, 0, 0, math.nan, math.nan, "a trial")
        return Ready(option, None, forecast, exploring_is_cheaper, option.what), math.nan

    def _exploring(self) -> float:
        """Return the least that a preconditioned solve costs."""
        return self.costs.low_rank(self.sizes.first_rank) + FEW * self.costs.product

    def _choose_within_memory(self, remaining: float) -> Option:
        """Return what `_choose` says, or plain CG if looking for it does not fit the memory."""
        try:
            return self._choose(remaining)
        except MemoryBudgetExceeded as error:
            self.notes.append(f"looking for a preconditioner was given up: {error}")
            return Option(Approach.PLAIN, 0, 0, remaining, math.inf, "memory is short")

    def _choose(self, remaining: float) -> Option:
        """Return the cheapest option, growing the low-rank factor while that is what pays."""
        plain = remaining * self.costs.product
        standing = [
            Option(Approach.PLAIN, 0, 0, remaining, plain, "as before: the cheapest way to the end"),
            *self._direct_option("the cheapest way to the end"),
        ]
        rank = min(self.sizes.first_rank, self._rank_limit())
        while rank > 0 and not self._out_of_limits():
            self.low_rank.grow(rank)
            if self.low_rank.suffices:
                return self._priced(
                    self.low_rank.rank, 0, FEW, 0.0, f"it leaves {self.low_rank.share:.1e} of the noise"
                )
            exhausted = self.low_rank.rank < rank
            if rank < self._first_pilot_rank() and not exhausted:
                rank *= 2
                continue
            target = self.low_rank.rank_that_suffices()
            cheapest = self._cheapest([*standing, *self._rank_option(target)])
            if cheapest.rank > self.low_rank.rank and not exhausted:
                rank = min(2 * rank, target)
                continue
            if cheapest.rank == 0 and cheapest.seconds < len(self.sizes.neighbours) * PILOT_SECONDS:
                return cheapest
            cheapest = self._cheapest([*standing, *self._piloted()])
            if cheapest.rank <= self.low_rank.rank or exhausted:
                return cheapest
            rank = min(cheapest.rank, STRIDE * self.low_rank.rank)  # and look again from there
        return self._cheapest(standing)

    def _cheapest(self, options: list[Option]) -> Option:
        """Return the cheapest option that fits the time left, or else one that can be interrupted."""
        fitting = [option for option in options if option.seconds <= self._seconds_left()]
        interruptible = [option for option in options if option.approach is Approach.PLAIN]
        return min(fitting or interruptible or options, key=lambda option: option.seconds)

    def _without_memory(self, option: Option, error: MemoryBudgetExceeded) -> Option:
        """Note that the option did not fit the memory, and return the one without preconditioner in its place."""
        self.notes.append(f"{option.what} was given up: {error}")
        why = "nothing stronger fits the memory"
        return Option(Approach.PLAIN, len(self.A), self.sizes.neighbours[-1], math.inf, math.inf, why)

    def _ready(self, option: Option) -> Ready:
        """Build what the option asks for."""
        self.built, P, what = None, None, option.what
        if option.approach is Approach.LOW_RANK:
            self.low_rank.grow(option.rank)
            prepared = self.low_rank.beside(option.rank, option.neighbours, self.generator)
            how = Construction(self.generator.initial_seed(), self.low_rank.ranks, option.rank, option.neighbours)
            P = prepared.factor(self.A.scale, self.A.diagonal)
            self.built = (prepared, P, how)
            what = replace(option, rank=self.low_rank.F[:, : option.rank].shape[1]).what
        forecast = self._forecast(option.rank, option.neighbours)
        patience = 2 * option.iterations + 10

        def too_slow() -> bool:
            if forecast.iterations < patience or option.approach is Approach.DIRECT:
                return False
            stronger = self._escalation(option, forecast)
            return stronger is not None and stronger.seconds < forecast.remaining_seconds()

        return Ready(option, P, forecast, too_slow, what)

    def _escalation(self, option: Option, forecast: Forecast) -> Option | None:
        """Return the cheapest stronger option, if there is any."""
        if option.approach is Approach.DIRECT or self._out_of_limits():
            return None
        why = f"{option.what} was too slow"
        stronger = self._direct_option(why)
        neighbours = max(q for q in self.sizes.neighbours if q == 0 or self._rank_limit(q) > 0)
        rank = min(2 * max(option.rank, self.sizes.first_rank), self._rank_limit(neighbours))
        if rank > 0 and (rank > option.rank or neighbours > option.neighbours):
            iterations = max(forecast.remaining() / 2, FEW)
            stronger.append(self._priced(rank, neighbours, iterations, self.costs.local(rank, neighbours), why))
        alone = min(STRIDE * max(option.rank, self.sizes.first_rank), self._rank_limit())
        if self.alone is not None and alone > option.rank:
            stronger.append(self._priced(alone, 0, self.alone.expected(alone), 0.0, why))
        fitting = [option for option in stronger if option.seconds <= self._seconds_left()]
        return min(fitting, key=lambda option: option.seconds, default=None)

    # what can be done

    def _direct_option(self, why: str) -> list[Option]:
        needed = direct_bytes(len(self.A), on_gpu=self.A.device.type == "cuda")
        if needed > FOR_DIRECT * self.A.memory_budget():
            return []
        return [Option(Approach.DIRECT, 0, 0, 1, self.costs.direct(), why)]

    def _rank_option(self, target: int) -> list[Option]:
        return [self._priced(target, 0, FEW, 0.0, "more rank")] if target <= self._rank_limit() else []

    def _piloted(self) -> list[Option]:
        """Return options tried on a few points, and what more rank would give by the same trend."""
        pilot, F = self._pilot(), self.low_rank.F
        ranks = {q: min(self.low_rank.rank, self._rank_limit(q)) for q in self.sizes.neighbours}
        found = {q: pilot.trial(F[:, :m], q) for q, m in ranks.items() if m > 0}
        growths = [trial.growth for q, trial in found.items() if q]
        options = self._of_rank_alone(pilot, found[0], ranks[0]) if 0 in found else []
        for q, trial in found.items():
            if q == 0:
                continue
            growth = sum(growths) / len(growths)  # few iterations: one trial alone is noisy
            expected, local = trial.expected(pilot.ratio, growth), self.costs.local(ranks[q], q)
            why = f"{trial.iterations:.0f} iterations on {len(pilot.rows)} neighbouring points"
            options.append(self._priced(ranks[q], q, expected, local, why))
            if 2 * ranks[q] <= self._rank_limit(q):
                better = max(expected * 2 ** (-self.low_rank.slope() / 2), FEW)
                options.append(self._priced(2 * ranks[q], q, better, 2 * local, "more rank"))
        return options

    def _of_rank_alone(self, pilot: Pilot, trial: Trial, rank: int) -> list[Option]:
        """Return the option of rank without neighbours, and of all doublings of it that can be held.

        How iterations fall as rank grows is what scattered points show between a part of the rank and all of it.
        """
        F = self.low_rank.F
        scattered, weaker = (pilot.rank_alone(F[:, :m]) for m in (rank, max(rank // STRIDE, 1)))
        slope = max(math.log(weaker / scattered) / math.log(STRIDE), 0.0)
        self.alone = Alone(rank, max(scattered, trial.iterations), slope)
        why = (
            f"{trial.iterations:.0f} iterations on {len(pilot.rows)} neighbouring points, {scattered:.0f} by the "
            f"largest eigenvalue on {len(pilot.scattered)} of everywhere"
        )
        options, limit = [self._priced(rank, 0, self.alone.iterations, 0.0, why)], self._rank_limit()
        while rank < limit:
            rank = min(2 * rank, limit)
            why = f"rank alone: iterations fall like its power of {-self.alone.slope:.2f}"
            options.append(self._priced(rank, 0, self.alone.expected(rank), 0.0, why))
        return options

    def _priced(self, rank: int, neighbours: int, iterations: float, local: float, why: str) -> Option:
        making = self.costs.low_rank(rank, beside_neighbours=neighbours > 0) + local
        seconds = making + iterations * self.costs.iteration(rank, neighbours)
        return Option(Approach.LOW_RANK, rank, neighbours, iterations, seconds, why)

    def _first_pilot_rank(self) -> int:
        """Return the rank that costs no more than one product, at which it is time to look around."""
        rank = min(self.sizes.first_rank, self._rank_limit())
        while rank > 0 and self.costs.low_rank(2 * rank) <= self.costs.product and 2 * rank <= self._rank_limit():
            rank *= 2
        return rank

    def _rank_limit(self, neighbours: int = 0) -> int:
        """Return the largest rank, beside so many neighbours, that may be held and can be built; 0 if none."""
        n, local = len(self.A), neighbours + 1 if neighbours else 0
        share = self.sizes.for_preconditioner * self.A.memory_budget()
        if self.low_rank.is_rounded and not neighbours:  # F in float32, its square and a diagonal
            made, held = largest_rounded_rank(n, share), largest_rounded_rank(n, 8 * (self.numbers - 2 * n))
            return int(max(min(made, held, n, self.sizes.most_rank), 0))
        budget = share / (8 * n) - NUMBERS_PER_NEIGHBOUR * local
        held = max(self.numbers / n - 4 * local - 1, 0.0)  # F and Q, two small triangles, a diagonal
        held = held / (2 + min(held / n, 2.0))
        return int(max(min(held, budget / FACTORS_AT_ONCE, n, self.sizes.most_rank), 0))

    def _pilot(self) -> Pilot:
        rtol, costs = float(self.thresholds.min()), self.costs
        most = affordable_points(FEW * costs.product, costs.bandwidth)
        return pilot(self.A, rtol, child(self.generator, "pilot"), most)

    # bookkeeping

    def _forecast(self, rank: int, neighbours: int) -> Forecast:
        return Forecast(self.thresholds, TRIAL, self.costs.iteration(rank, neighbours))

    def _attempt(self, ready: Ready) -> Forecast:
        """Solve from where the last attempt ended, record the attempt, and return the forecast that followed it."""
        option, forecast = ready.option, ready.forecast
        before, done = time.perf_counter() - self.began, self._iterations()
        build_seconds = time.perf_counter() - self.idle_since

        def watch(event: Event) -> bool:
            progress = event.payload
            forecast.add(progress)
            shifted = replace(progress, iteration=progress.iteration + done, seconds=progress.seconds + before)
            later = replace(event, seconds=shifted.seconds, payload=shifted)
            self.stopped = bool(self.callback and self.callback(later))
            return self.stopped or ready.give_up()

        limits = replace(
            self.stopping,
            max_iterations=max(self.stopping.max_iterations - done, 0),
            max_seconds=max(self.stopping.max_seconds - before, 1e-9),
        )
        report = solve(
            self.A,
            self.B,
            method="direct" if option.approach is Approach.DIRECT else None,
            preconditioner=ready.P,
            start=self.X,
            stopping=limits,
            callback=watch,
        )
        self.X = report.solution
        self.reports.append(report)
        steps = int(report.iterations.max())
        attempt = Attempt(
            ready.what,
            option.why,
            option.iterations,
            option.seconds,
            build_seconds,
            steps,
            report.seconds,
            report.status,
            option.approach,
        )
        self.attempts.append(attempt)
        self.idle_since = time.perf_counter()
        return forecast

    def _iterations(self) -> int:
        return sum(int(report.iterations.max()) for report in self.reports)

    def _finished(self) -> bool:
        unsolved = any(status in RETRYABLE for status in self.reports[-1].column_status)
        return self.stopped or not unsolved or self._out_of_limits()

    def _seconds_left(self) -> float:
        return self.stopping.max_seconds - (time.perf_counter() - self.began)

    def _out_of_limits(self) -> bool:
        return self._iterations() >= self.stopping.max_iterations or self._seconds_left() <= 0

    def _merged(self) -> SolveReport:
        """Return the last report with the costs of all; that we stopped it ourselves is no reason to give."""
        reports = self.reports
        spent = self._iterations() >= self.stopping.max_iterations
        reason = Status.MAX_ITERATIONS if spent else Status.TIME_LIMIT if self._out_of_limits() else Status.STAGNATED
        renamed = {} if self.stopped else {Status.STOPPED: reason}
        return replace(
            reports[-1],
            status=renamed.get(reports[-1].status, reports[-1].status),
            column_status=tuple(renamed.get(status, status) for status in reports[-1].column_status),
            iterations=torch.stack([report.iterations for report in reports]).sum(0),
            residual_norms=torch.cat([report.residual_norms for report in reports]),
            products=sum(report.products for report in reports),
            columns=sum(report.columns for report in reports),
            seconds=time.perf_counter() - self.began,
            tried=(*self.notes, *(note for report in reports for note in report.tried)),
            attempts=tuple(self.attempts),
        )
