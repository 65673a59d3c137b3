"""What all iterative solvers share beside their algorithm: limits, checks of residuals, history and the report."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernelcg.dense import eigvalsh
from kernelcg.events import Event, EventKind, Listener
from kernelcg.operators import CountsInner, Identity, Invertible, LinearOperator, Tally, in_best_precision
from kernelcg.solvers.columns import column_norms, power_of_two_near
from kernelcg.solvers.reading import Flags, Floats, read
from kernelcg.solvers.report import Progress, SolveReport, Status, Stopping
from kernelcg.solvers.ritz import Spectrum
from kernelcg.solvers.stagnation import Stagnation

CHECK_AFTER_DROP = 100.0
"""With reduced-precision products, recompute b − Ax each time the residual has fallen by this factor."""

WORTHWHILE = 0.5
"""A recomputed residual that is not below this multiple of the last one means that precision is exhausted."""

SHORT_SOLVE = 150
"""Iterations after which products move to float64: rounding has then cost float32 more steps than it saved time."""

ROUNDING = 1e-14
"""A residual of the recurrence that is so small beside the right-hand side is recomputed, whatever the tolerance."""

SINGULAR = 1e-18
"""A curvature dᵀAd / dᵀd below this multiple of the largest one seen is zero up to rounding."""

ASYMMETRY = 1e-3
"""Relative difference of uᵀP⁻¹v and vᵀP⁻¹u above which P⁻¹ is called unsymmetric."""


@dataclass(frozen=True, eq=False)
class Question:
    """Numbers that are still on the device, and what to decide once they are on the host."""

    numbers: tuple[Tensor, ...]
    decide: Callable[..., None]


class Monitor:
    """Watches a solve: limits, thresholds, true residuals, precision, history, and the reason of every end.

    A column is `CONVERGED` only after its residual b − Ax was recomputed in the best precision and met the
    threshold; it is frozen from then on. If products run in float32, the residual is recomputed in float64
    whenever it fell by a factor of 100 (residual replacement, which is iterative refinement without losing the
    Krylov space), and products move to float64 for good once that stops helping.

    An iteration copies numbers from the device to the host once, in `checked`. What `step_length`, `block_step` and
    `preconditioned` have to ask is kept until then; they replace what is not usable by zero on the device, so that
    nothing can go wrong in the meantime.

    References
    ----------
    van der Vorst & Ye (2000), Residual replacement strategies for Krylov subspace iterative methods.
    """

    @np.errstate(all="ignore")
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
        self.A, self.exact, self.tally = A, in_best_precision(A), Tally()
        self.scale = power_of_two_near(B)
        self.B, self.start = B / self.scale, None if start is None else start / self.scale
        self.stopping, self.callback, self.method = stopping, callback, method
        self.preconditioner = preconditioner
        self.inner_before = _inner_columns(preconditioner)
        self.norms_of_B, scale = read(column_norms(self.B), self.scale)
        self.thresholds = np.maximum(stopping.rtol * self.norms_of_B, stopping.atol / scale)
        k = B.shape[1]
        self.reasons: list[Status] = [Status.MAX_ITERATIONS] * k
        self.iterations = np.zeros(k, dtype=np.int64)
        self.norms = self.norms_of_B
        self.true_norms = np.full(k, np.inf)
        self.last_check = self.true_norms
        self.history: list[Floats] = []
        self.replaced = self.nothing = torch.zeros(k, dtype=torch.bool, device=B.device)
        self.must_restart = self.must_precondition_again = False
        self.stagnation = Stagnation(k)
        self.notes: list[str] = []
        self.spectrum = Spectrum()
        self._first: tuple[Tensor, Tensor] | None = None
        self._about_preconditioner: list[Question] = []
        self._questions: list[Question] = []
        self._set_active(np.ones(k, dtype=np.bool_))

    # what the algorithms call, in the order in which they call it

    def begin(self) -> tuple[Tensor, Tensor]:
        """Return the first X and its residual; columns that are not finite are given up at once."""
        broken = ~np.isfinite(self.norms_of_B)
        self.retire(broken, Status.NOT_FINITE)
        self.B = torch.where(self.mask, self.B, 0.0)
        if self.start is None:
            X, R, norms = torch.zeros_like(self.B), self.B.clone(), np.where(broken, 0.0, self.norms_of_B)
        else:
            X = torch.where(self.mask, self.start, 0.0)
            self.tally.add(X.shape[1])
            R = self.B - self.exact @ X
            [norms] = read(column_norms(R))
        self._judge(norms, self.active)
        self.last_check = np.full_like(norms, np.inf)  # the first guess was not computed here, so that it is not judged
        self.norms = norms
        return X, R

    @np.errstate(all="ignore")
    def wants_more(self) -> bool:
        """Record ‖r‖ of every column and say whether any column still needs a step."""
        self.history.append(self.norms)
        if self._callback_stops():
            self.retire(self.active, Status.STOPPED)
        self._check_progress()
        if len(self.history) > self.stopping.max_iterations:
            self._end(Status.MAX_ITERATIONS)
        elif time.perf_counter() - self.began > self.stopping.max_seconds:
            self._end(Status.TIME_LIMIT)
        return bool(self.active.any())

    def product(self, D: Tensor) -> Tensor:
        """Return A D on the active columns, zero elsewhere."""
        return self._on_active(self._multiplied, D)

    def preconditioned(self, R: Tensor) -> Tensor:
        """Return P⁻¹ R on the active columns, zero elsewhere and where rᵀP⁻¹r is not a positive number."""
        Z = self._on_active(self._preconditioner_solve, R)
        rz = (R * Z).sum(0)
        self._about_preconditioner = [Question((rz, self._asymmetry(R, Z)), self._check_preconditioner)]
        return torch.where(rz.isfinite() & (rz > 0), Z, 0.0)

    def step_length(self, rz: Tensor, curvature: Tensor, squared_norms: Tensor) -> Tensor:
        """Return rz / dᵀAd on the active columns, zero on those that are finished or hit a bad curvature."""
        positive = curvature > SINGULAR * self.spectrum.high * squared_norms
        alpha = torch.where(self.mask & positive, rz / curvature, 0.0)
        step = Question((curvature, squared_norms, alpha * rz), self._check_step)
        self._questions = [*self._about_preconditioner, step]
        return alpha

    def block_step(self, G: Tensor, right: Tensor) -> Tensor:
        """Return G⁻¹ right for the curvatures G = DᵀAD of orthonormal directions; zero if G has no factor."""
        factor, failed = torch.linalg.cholesky_ex(G)
        solved = (failed == 0) & factor.isfinite().all()
        steps = torch.where(solved, torch.cholesky_solve(right, factor), 0.0)
        step = Question((G, solved, (right * steps).sum(0)), partial(self._check_block_step, self.active))
        self._questions = [*self._about_preconditioner, step]
        return steps

    def checked(self, X: Tensor, R: Tensor) -> Tensor:
        """Return R, with b − Ax in its place where it is time to look; settles which columns are done."""
        return self.checked_with(X, R)[0]

    def checked_with(self, X: Tensor, R: Tensor, *more: Tensor) -> tuple[Tensor, list[Floats]]:
        """Do what `checked` does, and return host copies of more tensors from the same transfer."""
        with np.errstate(all="ignore"):
            norms, *others = self._answers(column_norms(R), *more)
            due = self._due(norms)
            together = self.must_restart or (self._is_reduced() and bool(due.any()))
            replaced = self.active if together else due
            self.replaced = self._sent(replaced) if replaced.any() else self.nothing
            if replaced.any():
                columns = self._sent(np.flatnonzero(replaced))
                self.tally.add(len(columns))
                R = R.index_copy(1, columns, self.B[:, columns] - self.exact @ X[:, columns])
                [norms] = read(column_norms(R))
                self.stagnation.forget(replaced, norms)
                self.true_norms = np.where(replaced, norms, self.true_norms)
                self._judge(norms, due | (replaced & (norms <= self.thresholds)))
            self.must_precondition_again = bool((replaced & self.active).any())
            self.norms = norms
            return R, others

    def restarts(self) -> bool:
        """Whether earlier directions must be dropped, since their products were too inexact; it is True once."""
        answer, self.must_restart = self.must_restart, False
        return answer

    def retire(self, columns: Flags, reason: Status) -> None:
        """End these columns, unless they ended before, for this reason."""
        ended = np.flatnonzero(self.active & columns).tolist()
        for column in ended:
            self.reasons[column] = reason
        if ended:
            self._set_active(self.active & ~columns)

    @np.errstate(all="ignore")
    def report(self, X: Tensor) -> SolveReport:
        """Return the record of the solve; residuals of columns that did not converge are recomputed here."""
        open_columns = np.array([reason is not Status.CONVERGED for reason in self.reasons])
        if open_columns.any():
            columns = self._sent(np.flatnonzero(open_columns))
            self.tally.add(len(columns))
            [norms] = read(column_norms(self.B[:, columns] - self.exact @ X[:, columns]))
            self.true_norms = self.true_norms.copy()
            self.true_norms[open_columns] = norms
            self._forgive(open_columns & (self.true_norms <= self.thresholds))
        true_norms = np.where(np.isfinite(self.norms_of_B), self.true_norms, np.nan)
        status = next((reason for reason in self.reasons if reason is not Status.CONVERGED), Status.CONVERGED)
        operator, preconditioned = self.spectrum.condition_numbers(isinstance(self.preconditioner, Identity))
        self._questions = self._about_preconditioner = []  # questions refer to the monitor and so to its blocks
        return SolveReport(
            solution=X * self.scale,
            status=status,
            column_status=tuple(self.reasons),
            iterations=self._sent(self.iterations),
            residual_norms=self._sent(np.stack(self.history)) * self.scale,
            true_residual_norms=self._sent(true_norms) * self.scale,
            right_hand_norms=self._sent(self.norms_of_B) * self.scale,
            thresholds=self._sent(self.thresholds) * self.scale,
            products=self.tally.products,
            columns=self.tally.columns,
            inner_columns=_inner_columns(self.preconditioner) - self.inner_before,
            seconds=time.perf_counter() - self.began,
            method=self.method,
            precision=self.A.precision,
            condition_operator=operator,
            condition_preconditioned=preconditioned,
            tried=tuple(self.notes),
        )

    # what it does on the device

    def _set_active(self, active: Flags) -> None:
        """Say which columns go on: here, and on the device as a mask and as column numbers."""
        self.active = active
        self.mask, self.columns = self._sent(active), self._sent(np.flatnonzero(active))

    def _sent(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(self.B.device)

    def _preconditioner_solve(self, R: Tensor) -> Tensor:
        Z = self.preconditioner.solve(R)
        if Z.shape != R.shape:
            raise ValueError(f"preconditioner.solve gave shape {tuple(Z.shape)} for {tuple(R.shape)}")
        return Z.to(R)

    def _multiplied(self, V: Tensor) -> Tensor:
        self.tally.add(V.shape[1])
        return self.A @ V

    def _on_active(self, function: Callable[[Tensor], Tensor], V: Tensor) -> Tensor:
        if self.active.all():
            return function(V)
        result = torch.zeros_like(V)
        return result.index_copy(1, self.columns, function(V[:, self.columns])) if self.active.any() else result

    def _asymmetry(self, R: Tensor, Z: Tensor) -> Tensor:
        """Return for each column whether the first two pairs of r and z = P⁻¹r prove a constant P⁻¹ unsymmetric."""
        if not self.history:
            self._first = (R, Z)
        elif len(self.history) == 1 and self._first is not None and self.preconditioner.is_constant:
            R0, Z0 = self._first
            difference = ((Z * R0).sum(0) - (R * Z0).sum(0)).abs()
            size = column_norms(Z) * column_norms(R0) + column_norms(R) * column_norms(Z0)
            return difference > ASYMMETRY * size
        else:
            self._first = None
        return self.nothing

    # how it decides, on the host

    def _answers(self, *more: Tensor) -> list[Floats]:
        """Read the numbers of all open questions and ``more`` at once, decide the questions, return the rest."""
        questions, self._questions = self._questions, []
        numbers = read(*(number for question in questions for number in question.numbers), *more)
        for question in questions:
            count = len(question.numbers)
            question.decide(*numbers[:count])
            numbers = numbers[count:]
        return numbers

    def _end(self, reason: Status) -> None:
        """End all columns for this reason, or because of a preconditioner that the last residuals prove wrong."""
        if self.active.any() and self._about_preconditioner:
            self._questions = self._about_preconditioner
            self._answers()
        self.retire(self.active, reason)

    def _callback_stops(self) -> bool:
        """Tell the callback about the iteration and say whether it wants to stop."""
        if self.callback is None:
            return False
        relative = np.where(self.norms_of_B == 0, 0.0, self.norms / self.norms_of_B)
        seconds = time.perf_counter() - self.began
        progress = Progress(len(self.history) - 1, torch.from_numpy(relative), seconds)
        return bool(self.callback(Event(EventKind.ITERATION, seconds, progress)))

    def _due(self, norms: Floats) -> Flags:
        """Return the columns whose true residual has to be looked at now."""
        due: Flags = self.active & (norms <= np.maximum(self.thresholds, ROUNDING * self.norms_of_B))
        if not self._is_reduced():
            return due
        # one float64 check for all columns: once all are there, or any fell far or to rounding
        dropped = self.active & ~due & (norms * CHECK_AFTER_DROP <= self.true_norms)
        spent = due & (norms <= ROUNDING * self.norms_of_B)
        now = bool(dropped.any() or spent.any() or (due == self.active).all())
        return due | dropped if now else np.zeros_like(due)

    def _forgive(self, columns: Flags) -> None:
        """Call columns converged whose last residual turns out to meet the threshold after all."""
        for column in np.flatnonzero(columns).tolist():
            if self.reasons[column] in (Status.MAX_ITERATIONS, Status.TIME_LIMIT, Status.STOPPED, Status.STAGNATED):
                self.reasons[column] = Status.CONVERGED

    def _is_reduced(self) -> bool:
        return self.A.precision != self.exact.precision

    def _promote(self, why: str) -> None:
        self.notes.append(f"products moved to float64 at iteration {len(self.history)}: {why}")
        self.A = self.exact
        self.last_check = np.full_like(self.last_check, np.inf)
        self.stagnation.forget(np.ones_like(self.active), np.inf)
        self.must_restart = True

    def _judge(self, true_norms: Floats, looked_at: Flags) -> None:
        """Accept the columns whose true residual meets the threshold; act if the others gain nothing."""
        converged = looked_at & (true_norms <= self.thresholds)
        hopeless = looked_at & ~converged & ~(true_norms < WORTHWHILE * self.last_check)
        self.true_norms = np.where(looked_at, true_norms, self.true_norms)
        self.last_check = np.where(looked_at, true_norms, self.last_check)
        self.retire(converged, Status.CONVERGED)
        not_finite = hopeless & ~np.isfinite(true_norms)
        if not_finite.any():
            self.retire(not_finite, Status.NOT_FINITE)
        elif hopeless.any() and self._is_reduced():
            self._promote("refinement with float32 products gains nothing more")
        else:
            self.retire(hopeless, Status.PRECISION_EXHAUSTED)

    def _check_step(self, curvature: Floats, squared_norms: Floats, gain: Floats) -> None:
        """Count a step of PCG and check dᵀAd of every column."""
        positive = curvature > SINGULAR * self.spectrum.high * squared_norms
        self._check_curvature(curvature, self.active & ~positive)
        self.iterations = self.iterations + self.active
        self.spectrum.add_rayleigh_quotients((curvature / squared_norms)[self.active & positive])
        self.stagnation.add_gain(gain)

    def _check_block_step(self, stepped: Flags, G: Floats, solved: Floats, gain: Floats) -> None:
        """Count a step of block PCG and check the eigenvalues of DᵀAD."""
        self.iterations = self.iterations + self.active
        values = np.asarray(eigvalsh(G) if np.isfinite(G).all() else [np.nan], dtype=np.float64)
        if not (values[0] > SINGULAR * self.spectrum.high and solved):
            self._check_curvature(values[:1], self.active)
            return
        self.spectrum.add_rayleigh_quotients(values)
        gains = np.zeros(len(stepped))
        gains[stepped] = gain
        self.stagnation.add_gain(gains)

    def _check_curvature(self, curvature: Floats, bad: Flags) -> None:
        if not (bad & self.active).any():
            return
        if self._is_reduced():
            self._promote("a curvature dᵀAd was not positive in float32")
        else:
            finite = bool(np.isfinite(curvature).all())
            self.retire(bad, Status.INDEFINITE_OPERATOR if finite else Status.NOT_FINITE)

    def _check_preconditioner(self, rz: Floats, unsymmetric: Floats) -> None:
        self.retire(~np.isfinite(rz), Status.NOT_FINITE)
        self.retire(unsymmetric > 0, Status.UNSYMMETRIC_PRECONDITIONER)
        self.retire(rz <= 0, Status.INDEFINITE_PRECONDITIONER)

    def _check_progress(self) -> None:
        """Change to float64 when the solve makes no progress in float32, and end it when it makes none in float64."""
        self.stagnation.add_norms(self.norms, self.active)
        steps = len(self.history) - 1
        stands = self.stagnation.idle >= self.stopping.patience
        if self._is_reduced() and (stands or steps >= SHORT_SOLVE):
            self._promote(
                f"not converged after {steps} iterations in float32, where long solves lose more than they save"
            )
        elif stands:
            self._end(Status.STAGNATED)


def _inner_columns(preconditioner: Invertible) -> int:
    """Return how many columns the preconditioner has multiplied in inner solves so far."""
    return preconditioner.inner.columns if isinstance(preconditioner, CountsInner) else 0
