"""Everything about an iterative solve that is not the algorithm."""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from kernelcg.events import Event, EventKind, Listener
from kernelcg.operators import Counting, CountsInner, Identity, Invertible, LinearOperator, in_best_precision
from kernelcg.solvers.report import Progress, SolveReport, Status, Stopping
from kernelcg.solvers.ritz import Spectrum

CHECK_AFTER_DROP = 100.0
"""With reduced-precision products, recompute b − Ax each time the residual has fallen by this factor."""

WORTHWHILE = 0.5
"""A recomputed residual that is not below this multiple of the last one means that precision is exhausted."""

SHORT_SOLVE = 150
"""Iterations after which products move to float64: rounding has then cost float32 more steps than it saved time."""

ROUNDING = 1e-14
"""A recurrence that has fallen this far below the right-hand side is checked even if nobody asked for so much."""

SINGULAR = 1e-18
"""A curvature dᵀAd / dᵀd below this multiple of the largest one seen is zero up to rounding."""

ASYMMETRY = 1e-3
"""Relative difference of uᵀP⁻¹v and vᵀP⁻¹u above which P⁻¹ is called unsymmetric."""


class Monitor:
    """Watches a solve: limits, thresholds, true residuals, precision, history, and the reason of every end.

    A column is `CONVERGED` only after its residual b − Ax was recomputed in the best precision and met the
    threshold; it is frozen from then on. If products run in float32, the residual is recomputed in float64
    whenever it fell by a factor of 100 (residual replacement, which is iterative refinement without losing the
    Krylov space), and products move to float64 for good once that stops helping.

    References
    ----------
    van der Vorst & Ye (2000), Residual replacement strategies for Krylov subspace iterative methods.
    """

    def __init__(
        self,
        A: LinearOperator,
        B: Tensor,
        start: Tensor | None,
        preconditioner: Invertible,
        stopping: Stopping,
        callback: Listener | None,
        method: str,
    ):
        self.began = time.perf_counter()
        self.counted = Counting(A)
        self.exact = in_best_precision(self.counted)
        self.scale = _power_of_two_near(B)
        self.B, self.start = B / self.scale, None if start is None else start / self.scale
        self.stopping, self.callback, self.method = stopping, callback, method
        self.preconditioner = preconditioner
        self.inner_before = _inner_columns(preconditioner)
        self.norms_of_B = torch.linalg.vector_norm(self.B, dim=0)
        self.thresholds = (stopping.rtol * self.norms_of_B).maximum(stopping.atol / self.scale)
        self.active = torch.ones(B.shape[1], dtype=torch.bool, device=B.device)
        self.reasons: list[Status] = [Status.MAX_ITERATIONS] * B.shape[1]
        self.iterations = torch.zeros(B.shape[1], dtype=torch.int64, device=B.device)
        self.true_norms = torch.full_like(self.thresholds, torch.inf)
        self.last_check = self.true_norms
        self.history: list[Tensor] = []
        self.replaced = torch.zeros_like(self.active)
        self.must_restart = False
        self.best = torch.full_like(self.thresholds, torch.inf)
        self.gain, self.recent_gain = torch.zeros_like(self.best), torch.zeros_like(self.best)
        self.idle = 0
        self.notes: list[str] = []
        self.spectrum = Spectrum()
        self._first: tuple[Tensor, Tensor] | None = None

    # what the algorithms call, in the order in which they call it

    def begin(self) -> tuple[Tensor, Tensor]:
        """Return the first X and its residual; columns that are not finite are given up at once."""
        broken = ~self.norms_of_B.isfinite()
        B = torch.where(broken, 0.0, self.B)
        self.retire(broken, Status.NOT_FINITE)
        X = torch.zeros_like(B) if self.start is None else torch.where(broken, 0.0, self.start)
        R = B if self.start is None else B - self.exact @ X
        self.B = B
        self._judge(torch.linalg.vector_norm(R, dim=0), self.active.clone())
        self.last_check = torch.full_like(self.true_norms, torch.inf)  # the start was no attempt of ours
        return X, R.clone()

    def wants_more(self, R: Tensor, Z: Tensor) -> bool:
        """Record ‖r‖ of every column and say whether any column still needs a step."""
        norms = torch.linalg.vector_norm(R, dim=0)
        self.history.append(norms)
        if self.callback is not None:
            relative = torch.where(self.norms_of_B == 0, 0.0, norms / self.norms_of_B)
            progress = Progress(len(self.history) - 1, relative, time.perf_counter() - self.began)
            if self.callback(Event(EventKind.ITERATION, progress.seconds, progress)):
                self.retire(self.active.clone(), Status.STOPPED)
        self._check_preconditioner(R, Z)
        self._check_progress(norms)
        if len(self.history) > self.stopping.max_iterations:
            self.retire(self.active.clone(), Status.MAX_ITERATIONS)
        elif time.perf_counter() - self.began > self.stopping.max_seconds:
            self.retire(self.active.clone(), Status.TIME_LIMIT)
        return bool(self.active.any())

    def product(self, D: Tensor) -> Tensor:
        """Return A D on the active columns, zero elsewhere."""
        return self._on_active(self.counted.__matmul__, D)

    def preconditioned(self, R: Tensor) -> Tensor:
        """Return P⁻¹ R on the active columns, zero elsewhere."""
        return self._on_active(self._preconditioner_solve, R)

    def step_length(self, rz: Tensor, curvature: Tensor, squared_norms: Tensor) -> Tensor:
        """Return rz / dᵀAd on the active columns, zero on those that are finished or hit a bad curvature."""
        positive = curvature > SINGULAR * self.spectrum.high * squared_norms
        self._check_curvature(curvature, self.active & ~positive)
        self.iterations += self.active
        usable = self.active & positive
        self.spectrum.add_rayleigh_quotients((curvature / squared_norms)[usable])
        alpha = torch.where(usable, rz / curvature, 0.0)
        self.recent_gain += alpha * rz
        return alpha

    def block_step(self, G: Tensor, right: Tensor) -> Tensor:
        """Return G⁻¹ right for the curvatures G = DᵀAD of a block of orthonormal directions."""
        self.iterations += self.active
        values = torch.linalg.eigvalsh(G) if bool(G.isfinite().all()) else G.new_full((1,), torch.nan)
        factor, failed = torch.linalg.cholesky_ex(G)
        if not bool(values[0] > SINGULAR * self.spectrum.high) or bool(failed):
            self._check_curvature(values[:1], self.active.clone())
            return torch.zeros_like(right)
        self.spectrum.add_rayleigh_quotients(values)
        steps = torch.cholesky_solve(right, factor)
        self.recent_gain[self.active] += (right * steps).sum(0)
        return steps

    def checked(self, X: Tensor, R: Tensor) -> Tensor:
        """Return R, with b − Ax in its place where it is time to look; settles which columns are done."""
        norms = torch.linalg.vector_norm(R, dim=0)
        due = self.active & (norms <= self.thresholds.maximum(ROUNDING * self.norms_of_B))
        if self._is_reduced():  # one float64 check for all columns: once all are there, or any fell far or to rounding
            dropped = self.active & ~due & (norms * CHECK_AFTER_DROP <= self.true_norms)
            spent = due & (norms <= ROUNDING * self.norms_of_B)
            now = bool(dropped.any() | spent.any() | (due == self.active).all())
            due = due | dropped if now else torch.zeros_like(due)
        together = self.must_restart or (self._is_reduced() and bool(due.any()))
        self.replaced = self.active if together else due
        if bool(self.replaced.any()):
            R = R.clone()
            R[:, self.replaced] = self.B[:, self.replaced] - self.exact @ X[:, self.replaced].contiguous()
            norms = torch.linalg.vector_norm(R, dim=0)
            self.best, self.idle = torch.where(self.replaced, norms, self.best), 0
            self.true_norms = torch.where(self.replaced, norms, self.true_norms)
            self._judge(norms, due | (self.replaced & (norms <= self.thresholds)))
        return R

    def restarts(self) -> bool:
        """Say, once, that past directions are worthless because the products they came from were."""
        answer, self.must_restart = self.must_restart, False
        return answer

    def retire(self, columns: Tensor, reason: Status) -> None:
        """End these columns, unless they ended before, for this reason."""
        for column in (self.active & columns).nonzero()[:, 0].tolist():
            self.reasons[column] = reason
        self.active = self.active & ~columns

    def report(self, X: Tensor) -> SolveReport:
        """Close the record; columns that did not converge get their true residual here."""
        done = [reason is Status.CONVERGED for reason in self.reasons]
        open_columns = ~torch.tensor(done, device=X.device)
        if bool(open_columns.any()):
            residual = self.B[:, open_columns] - self.exact @ X[:, open_columns].contiguous()
            self.true_norms[open_columns] = torch.linalg.vector_norm(residual, dim=0)
            self._forgive(open_columns & (self.true_norms <= self.thresholds))
        self.true_norms[~self.norms_of_B.isfinite()] = torch.nan
        status = next((reason for reason in self.reasons if reason is not Status.CONVERGED), Status.CONVERGED)
        operator, preconditioned = self.spectrum.condition_numbers(isinstance(self.preconditioner, Identity))
        return SolveReport(
            solution=X * self.scale,
            status=status,
            column_status=tuple(self.reasons),
            iterations=self.iterations,
            residual_norms=torch.stack(self.history) * self.scale,
            true_residual_norms=self.true_norms * self.scale,
            right_hand_norms=self.norms_of_B * self.scale,
            thresholds=self.thresholds * self.scale,
            products=self.counted.tally.products,
            columns=self.counted.tally.columns,
            inner_columns=_inner_columns(self.preconditioner) - self.inner_before,
            seconds=time.perf_counter() - self.began,
            method=self.method,
            precision=self.counted.precision,
            condition_operator=operator,
            condition_preconditioned=preconditioned,
            tried=tuple(self.notes),
        )

    # how it decides

    def _forgive(self, columns: Tensor) -> None:
        """Call columns converged whose last residual turns out to meet the threshold after all."""
        for column in columns.nonzero()[:, 0].tolist():
            if self.reasons[column] in (Status.MAX_ITERATIONS, Status.TIME_LIMIT, Status.STOPPED, Status.STAGNATED):
                self.reasons[column] = Status.CONVERGED

    def _preconditioner_solve(self, R: Tensor) -> Tensor:
        Z = self.preconditioner.solve(R)
        if Z.shape != R.shape:
            raise ValueError(f"preconditioner.solve gave shape {tuple(Z.shape)} for {tuple(R.shape)}")
        return Z.to(R)

    def _on_active(self, function: Callable[[Tensor], Tensor], V: Tensor) -> Tensor:
        if bool(self.active.all()):
            return function(V)
        result = torch.zeros_like(V)
        if bool(self.active.any()):
            result[:, self.active] = function(V[:, self.active].contiguous())
        return result

    def _is_reduced(self) -> bool:
        return self.counted.precision != self.exact.precision

    def _promote(self, why: str) -> None:
        self.notes.append(f"products moved to float64 at iteration {len(self.history)}: {why}")
        self.counted = self.exact
        self.last_check = torch.full_like(self.last_check, torch.inf)
        self.best, self.idle = torch.full_like(self.best, torch.inf), 0
        self.must_restart = True

    def _judge(self, true_norms: Tensor, looked_at: Tensor) -> None:
        """Accept the columns whose true residual meets the threshold; act if the others gain nothing."""
        converged = looked_at & (true_norms <= self.thresholds)
        hopeless = looked_at & ~converged & ~(true_norms < WORTHWHILE * self.last_check)
        self.true_norms = torch.where(looked_at, true_norms, self.true_norms)
        self.last_check = torch.where(looked_at, true_norms, self.last_check)
        self.retire(converged, Status.CONVERGED)
        if bool((hopeless & ~true_norms.isfinite()).any()):
            self.retire(hopeless & ~true_norms.isfinite(), Status.NOT_FINITE)
        elif bool(hopeless.any()) and self._is_reduced():
            self._promote("refinement with float32 products gains nothing more")
        else:
            self.retire(hopeless, Status.PRECISION_EXHAUSTED)

    def _check_curvature(self, curvature: Tensor, bad: Tensor) -> None:
        if not bool((bad & self.active).any()):
            return
        if self._is_reduced():
            self._promote("a curvature dᵀAd was not positive in float32")
        else:
            finite = bool(curvature.isfinite().all())
            self.retire(bad, Status.INDEFINITE_OPERATOR if finite else Status.NOT_FINITE)

    def _check_preconditioner(self, R: Tensor, Z: Tensor) -> None:
        rz = (R * Z).sum(0)
        self.retire(~rz.isfinite(), Status.NOT_FINITE)
        if self.preconditioner.is_constant and len(self.history) == 2 and self._first is not None:
            R0, Z0 = self._first
            difference = ((Z * R0).sum(0) - (R * Z0).sum(0)).abs()
            size = Z.norm(dim=0) * R0.norm(dim=0) + R.norm(dim=0) * Z0.norm(dim=0)
            self.retire(difference > ASYMMETRY * size, Status.UNSYMMETRIC_PRECONDITIONER)
        self._first = (R, Z) if len(self.history) == 1 else None
        self.retire(rz <= 0, Status.INDEFINITE_PRECONDITIONER)

    def _check_progress(self, norms: Tensor) -> None:
        """Give up when neither the residual nor the energy xᵀb − ½xᵀAx, which CG maximises, moves any more."""
        closer = self.active & (norms < 0.99 * self.best)
        self.best = torch.where(closer, norms, self.best)
        higher = self.active & (self.recent_gain > 0.01 * self.gain)
        self.gain = torch.where(higher, self.gain + self.recent_gain, self.gain)
        self.recent_gain = torch.where(higher, 0.0, self.recent_gain)
        self.idle = 0 if bool((closer | higher).any()) else self.idle + 1
        steps = len(self.history) - 1
        if self._is_reduced() and (self.idle >= self.stopping.patience or steps >= SHORT_SOLVE):
            self._promote(
                f"not converged after {steps} iterations in float32, where long solves lose more than they save"
            )
        elif self.idle >= self.stopping.patience:
            self.retire(self.active.clone(), Status.STAGNATED)


def _inner_columns(preconditioner: Invertible) -> int:
    """Return how many columns the preconditioner has multiplied in inner solves so far."""
    return preconditioner.inner.columns if isinstance(preconditioner, CountsInner) else 0


def _power_of_two_near(B: Tensor) -> Tensor:
    """Return, for each column, the power of two below its largest entry: dividing by it costs no digit.

    The solve then neither under- nor overflows, whatever the units of B. One for columns of zeros or non-numbers.
    """
    largest = B.abs().amax(0)
    usable = largest.isfinite() & (largest > 0)
    _, exponent = torch.frexp(torch.where(usable, largest, 1.0))
    return torch.where(usable, torch.ldexp(torch.ones_like(largest), exponent - 1), 1.0)
